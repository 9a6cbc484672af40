//! The log on the local disk: files of check-summed entries, and what is found in them after a crash.
//!
//! # Layout
//! A directory of files `<number>.log`, numbered from 1 without gaps; the oldest are deleted when nothing in them is
//! needed any more. Each file:
//!
//! ```text
//! magic "SODALOG4" | entry | entry | ...          entry = length u32 | crc32c u32 | body     (little-endian)
//! ```
//!
//! The check sum is over length and body; the body is an [`Entry`] in postcard. The first entry of each file is a
//! [`Entry::Header`], so a file explains itself when the ones before it are gone. Format 1 had digests in one slot, one under
//! way at a time: its files have no [`Entry::Slots`] and no [`Entry::SentBehind`], and [`Entry::Applied`] in place of
//! [`Entry::AppliedAs`]. Format 2 had no [`Entry::After`], format 3 no [`Entry::GivenUpHere`]. All are read all the same.
//!
//! # After a crash
//! The log ends with its first entry that is not whole. At the end of the last file that is what a crash leaves, and
//! nothing that was synced is missing. Anywhere else, and that is wherever a whole entry comes after it (`search`), it is
//! damage, and said ([`Found::damage`]): what comes after it is not taken for a continuation, as the order would have a
//! hole. (A power cut can leave that, too, of what was not synced: pages reach the disk in any order, and with
//! [`Safety::ProcessCrash`] so do files.) So is a file that is shorter than the next one says it was ([`Entry::After`]): it
//! may have been cut where an entry ends. A damaged log is never written again ([`Segments::create`]): what is behind the
//! damage would be taken for the continuation of what is before it.

mod read;
mod search;

use crate::{Lsn, Record};
use serde::{Deserialize, Serialize};
use soda_protocol::{DigestSlots, OpId, SessionKey};
use soda_types::{ClientId, Fid, Sequence, Version};
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use read::{Damage, Digested, Found, owner, read};

const MAGIC: &[u8; 8] = b"SODALOG4";
/// A file that has reached this many bytes is followed by a new one.
const FILE_BYTES: u64 = 16 << 20;
/// A file of less is left, although nothing in it is needed.
const WORTH_DELETING: u64 = 1 << 20;
/// No entry is longer: more is damage.
const LONGEST_ENTRY: usize = 64 << 20;
/// What stands before the first record of a file is shorter.
const LONGEST_HEAD: usize = 4 << 10;

/// What the files hold.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Entry {
    Header(Header),
    /// The version that the server has of an inode: the record that follows found it so.
    Told {
        fid: Fid,
        version: Version,
    },
    Record(Record),
    /// A digest is about to be sent, and all before it have been answered. Sent again after a crash, it is the same operation to
    /// the server.
    Sent {
        op: OpId,
        lsns: Vec<Lsn>,
    },
    /// The first digest without an answer has got it: the server has applied it, and is at these versions. Of format 1; where
    /// several are under way the file that says which is the first may be gone.
    Applied {
        versions: Vec<(Fid, Version)>,
    },
    /// The server has neither this digest nor any later one: their records are to be sent again, in others.
    Lost {
        from: Sequence,
    },
    /// The server will never take these. They are kept elsewhere, or needed by nobody.
    GivenUp {
        lsns: Vec<Lsn>,
    },
    /// The server's disk has everything up to this digest.
    Durable {
        up_to: Sequence,
    },
    /// As `Sent`, but those before it may be without an answer: the server applies it after them or not at all.
    SentBehind {
        op: OpId,
        lsns: Vec<Lsn>,
    },
    /// Follows the header: how many slots digests have.
    Slots(u16),
    /// The server has applied this digest, the first one without an answer, and is at these versions.
    AppliedAs {
        sequence: Sequence,
        versions: Vec<(Fid, Version)>,
    },
    /// Follows the slots, if the file goes on where another one ended: how many bytes that has.
    After {
        bytes: u64,
    },
    /// The server will never take these, and they are nowhere else. A log with them is not removed.
    GivenUpHere {
        lsns: Vec<Lsn>,
    },
}

/// Whose log it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    pub server: String,
    pub volume: String,
    pub client: ClientId,
    /// The session under whose leases the records were made.
    pub session: SessionKey,
    /// The first slot of digests, and the last one of them that was sent when the file was begun; sequence 0: none.
    pub digest: OpId,
    /// How many slots digests have. Kept as [`Entry::Slots`].
    #[serde(skip, default = "one_slot")]
    pub slots: u16,
}

fn one_slot() -> u16 {
    1
}

impl Header {
    pub fn digest_slots(&self) -> DigestSlots {
        DigestSlots { first: self.digest.slot, count: self.slots.max(1) }
    }
}

/// What the log has to survive without [`Segments::sync`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Safety {
    /// `kill -9`: what the operating system has is enough.
    ProcessCrash,
    /// The order of the files also when the power goes: a file is on the disk before there is a next one.
    PowerCut,
}

#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    #[error("operation log {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not an operation log of Soda")]
    NotALog { path: PathBuf },
    #[error("{path} was written by a later version of Soda (format {format})")]
    TooNew { path: PathBuf, format: u8 },
    #[error("the operation log is damaged, and not written any more: {path} at byte {offset}")]
    Damaged { path: PathBuf, offset: u64 },
}

/// fdatasync(2), or what a test puts in its place.
pub type SyncData = fn(&File) -> io::Result<()>;

/// The writing end.
#[derive(Debug)]
pub struct Segments {
    directory: PathBuf,
    header: Header,
    safety: Safety,
    sync_data: SyncData,
    /// The disk has failed to take something, which the operating system says once and then takes for written: nothing of these
    /// files is believed to be on the disk before all that is in them is not needed any more.
    failed: bool,
    current: Open,
    /// Full ones, oldest first.
    full: VecDeque<Full>,
    /// Entries that the operating system does not have yet.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    file: Arc<File>,
    /// Written, not counting the buffer.
    bytes: u64,
    last: Lsn,
}

#[derive(Debug)]
struct Full {
    number: u64,
    bytes: u64,
    last: Lsn,
}

impl Segments {
    /// Starts a log in a directory, which is made if it is not there. Files that are there stay, as older ones of the same
    /// log; what a crash left at their end is cut off.
    ///
    /// # Errors
    /// The directory cannot be made or written, or the log in it is damaged: nothing is changed then.
    pub fn create(directory: &Path, header: Header, safety: Safety) -> Result<Segments, SegmentError> {
        let failed = |source| SegmentError::Io { path: directory.to_owned(), source };
        // File data is in it: nobody else's business.
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let read::Scan { files, damage } = read::scan(directory, |_| ())?;
        if let Some(Damage { file, offset, .. }) = damage {
            return Err(SegmentError::Damaged { path: file, offset });
        }
        let mut full = VecDeque::new();
        for read::Extent { number, path, bytes, torn, last } in files {
            if bytes == 0 {
                // A crash in its making: the number is free again.
                std::fs::remove_file(&path).map_err(|source| SegmentError::Io { path, source })?;
                continue;
            }
            if torn > 0 {
                tracing::warn!(?path, bytes = torn, "{CUT_OFF}");
            }
            let cut = || cut_to(&path, bytes, safety);
            cut().map_err(|source| SegmentError::Io { path: path.clone(), source })?;
            full.push_back(Full { number, bytes, last });
        }
        let number = full.back().map_or(1, |file| file.number + 1);
        let last = full.back().map_or(Lsn(0), |file| file.last);
        let before = full.back().map(|file| file.bytes);
        let current = open(directory, number, &header, Place { last, before }, safety)?;
        let directory = directory.to_owned();
        let sync_data = File::sync_data;
        Ok(Segments {
            directory,
            header,
            safety,
            sync_data,
            failed: false,
            current,
            full,
            buffer: Vec::new(),
        })
    }

    /// Syncs otherwise: for tests.
    #[must_use]
    pub fn syncing_with(self, sync_data: SyncData) -> Segments {
        Segments { sync_data, ..self }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds an entry to the buffer.
    pub fn append(&mut self, entry: &Entry) {
        match entry {
            Entry::Record(record) => self.current.last = record.lsn,
            Entry::Sent { op, .. } | Entry::SentBehind { op, .. } => {
                self.header.digest.sequence = op.sequence;
            }
            _ => {}
        }
        encode(entry, &mut self.buffer);
    }

    /// Hands what is buffered to the operating system: it survives a crash of the process.
    ///
    /// # Errors
    /// ENOSPC above all. Nothing that was written before is lost; the buffer stays and can be tried again.
    pub fn write(&mut self) -> Result<(), SegmentError> {
        self.write_on()?;
        if self.is_full() { self.begin_file() } else { Ok(()) }
    }

    /// As [`Segments::write`], also into a file that is full.
    ///
    /// # Errors
    /// As [`Segments::write`].
    pub fn write_on(&mut self) -> Result<(), SegmentError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = path_of(&self.directory, self.current.number);
        if let Err(source) = (&*self.current.file).write_all(&self.buffer) {
            // What was written of it would be taken for damage in the middle.
            let _ = self.current.file.set_len(self.current.bytes);
            return Err(SegmentError::Io { path, source });
        }
        self.current.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Whether it is time for another file.
    pub fn is_full(&self) -> bool {
        self.current.bytes >= FILE_BYTES && !self.failed
    }

    /// Begins another file; with [`Safety::PowerCut`] when the disk has the one before.
    ///
    /// # Errors
    /// It cannot be made, or the one before cannot be synced.
    pub fn begin_file(&mut self) -> Result<(), SegmentError> {
        if self.safety == Safety::PowerCut {
            self.sync_file()?;
        }
        self.open_next()
    }

    fn open_next(&mut self) -> Result<(), SegmentError> {
        let Open { number, bytes, last, .. } = self.current;
        let place = Place { last, before: Some(bytes) };
        self.current = open(&self.directory, number + 1, &self.header, place, self.safety)?;
        self.full.push_back(Full { number, bytes, last });
        Ok(())
    }

    /// As [`Segments::write`], and waits until the disk has it: it survives a power cut.
    ///
    /// # Errors
    /// As [`Segments::write`].
    pub fn sync(&mut self) -> Result<(), SegmentError> {
        self.write()?;
        self.sync_file()
    }

    fn sync_file(&mut self) -> Result<(), SegmentError> {
        let path = path_of(&self.directory, self.current.number);
        let synced = match self.failed {
            true => Err(io::Error::other("the disk failed before")),
            false => (self.sync_data)(&self.current.file),
        };
        self.failed = synced.is_err();
        synced.map_err(|source| SegmentError::Io { path, source })
    }

    /// A sync of [`Segments::file`] has failed.
    pub fn note_failed(&mut self) {
        self.failed = true;
    }

    /// Whether a sync has failed, and what was in the files then is still needed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Nothing in the files is needed: they are replaced by a new one, before anything is believed to be on the disk again.
    fn start_over(&mut self) -> Result<(), SegmentError> {
        self.open_next()?;
        self.buffer.clear();
        self.delete_below(Lsn(u64::MAX))?;
        if self.safety == Safety::PowerCut {
            // Should they come back, what is torn in them would be taken for damage.
            let synced = File::open(&self.directory).and_then(|directory| directory.sync_all());
            synced.map_err(|source| SegmentError::Io { path: self.directory.clone(), source })?;
        }
        self.failed = false;
        Ok(())
    }

    /// Deletes files in which no record is needed any more: all are below `floor`. If that is so of everything, what
    /// is left is one short file.
    ///
    /// # Errors
    /// A file cannot be deleted. It does no harm.
    pub fn forget_below(&mut self, floor: Lsn) -> Result<(), SegmentError> {
        if self.failed {
            return if self.current.last < floor { self.start_over() } else { Ok(()) };
        }
        if self.current.last < floor && self.current.bytes + self.buffer.len() as u64 >= WORTH_DELETING {
            // As long as these files are there they need their end: another one may not be had, or not be begun any more.
            let _ = self.write_on();
            self.begin_file()?;
            // Nor is what could not be written, if the disk is full.
            self.buffer.clear();
        }
        self.delete_below(floor)
    }

    fn delete_below(&mut self, floor: Lsn) -> Result<(), SegmentError> {
        while let Some(file) = self.full.front().filter(|file| file.last < floor) {
            let path = path_of(&self.directory, file.number);
            std::fs::remove_file(&path).map_err(|source| SegmentError::Io { path, source })?;
            self.full.pop_front();
        }
        Ok(())
    }

    /// The file that is written now, and how it is synced. To sync it while others write; with [`Safety::PowerCut`] those before
    /// it are synced. Who fails to says so: [`Segments::note_failed`].
    pub fn file(&self) -> (Arc<File>, SyncData) {
        (Arc::clone(&self.current.file), self.sync_data)
    }

    /// Whether the operating system has everything.
    pub fn is_written(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Bytes on the local disk, and about to be.
    pub fn bytes(&self) -> u64 {
        let full: u64 = self.full.iter().map(|file| file.bytes).sum();
        full + self.current.bytes + self.buffer.len() as u64
    }
}

const CUT_OFF: &str =
    "the end of an operation log is cut off: there is no whole entry in it, as a crash in a write leaves it";

fn cut_to(path: &Path, bytes: u64, safety: Safety) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.len() > bytes {
        file.set_len(bytes)?;
        if safety == Safety::PowerCut {
            // Should it come back, it would be taken for damage: this is not the last file any more.
            file.sync_all()?;
        }
    }
    Ok(())
}

/// Where a file goes on.
struct Place {
    /// The last record before it.
    last: Lsn,
    /// Bytes of the file before it.
    before: Option<u64>,
}

fn open(
    directory: &Path,
    number: u64,
    header: &Header,
    Place { last, before }: Place,
    safety: Safety,
) -> Result<Open, SegmentError> {
    let path = path_of(directory, number);
    let mut first = MAGIC.to_vec();
    encode(&Entry::Header(header.clone()), &mut first);
    encode(&Entry::Slots(header.slots), &mut first);
    before.into_iter().for_each(|bytes| encode(&Entry::After { bytes }, &mut first));
    let made = || -> io::Result<File> {
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(&first)?;
        if safety == Safety::PowerCut {
            // The name, too.
            File::open(directory)?.sync_all()?;
        }
        Ok(file)
    };
    match made() {
        Ok(file) => Ok(Open { number, file: Arc::new(file), bytes: first.len() as u64, last }),
        Err(source) => {
            let _ = std::fs::remove_file(&path);
            Err(SegmentError::Io { path, source })
        }
    }
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:010}.log"))
}

fn encode(entry: &Entry, into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&[0; 8]);
    // Writing to memory does not fail, and every entry can be expressed.
    let mut all = postcard::to_extend(entry, std::mem::take(into)).unwrap_or_default();
    let length = (all.len().saturating_sub(start + 8)) as u32;
    all[start..start + 4].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(length, &all[start + 8..]);
    all[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    *into = all;
}

fn checksum(length: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length.to_le_bytes()), body)
}

#[cfg(test)]
mod tests;
