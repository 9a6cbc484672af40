//! The log on the local disk: files of check-summed entries, and what is found in them after a crash.
//!
//! # Layout
//! A directory of files `<number>.log`, numbered from 1 without gaps; the oldest are deleted when nothing in them is
//! needed any more. Each file:
//!
//! ```text
//! magic "SODALOG1" | entry | entry | ...          entry = length u32 | crc32c u32 | body     (little-endian)
//! ```
//!
//! The check sum is over length and body; the body is an [`Entry`] in postcard. The first entry of each file is a
//! [`Entry::Header`], so a file explains itself when the ones before it are gone.
//!
//! # After a crash
//! The log ends with its first entry that is not whole. At the end of the last file that is what a crash leaves, and
//! nothing that was synced is missing. Anywhere else it is damage, and said ([`Found::damage`]): what comes after
//! it is not taken for a continuation, as the order would have a hole.

mod read;

use crate::{Lsn, Record};
use serde::{Deserialize, Serialize};
use soda_protocol::{OpId, SessionKey};
use soda_types::ClientId;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use read::{Damage, Found, read};

const MAGIC: &[u8; 8] = b"SODALOG1";
/// A file that has reached this many bytes is followed by a new one.
const FILE_BYTES: u64 = 16 << 20;
/// No entry is longer: more is damage.
const LONGEST_ENTRY: usize = 64 << 20;

/// What the files hold.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Entry {
    Header(Header),
    Record(Record),
    /// A digest is about to be sent. One is under way at a time, so all before it have been answered. Sent again after a
    /// crash, it is the same operation to the server.
    Sent {
        op: OpId,
        lsns: Vec<Lsn>,
    },
    /// The last digest has been answered: the server has applied it.
    Applied,
    /// The server's disk has everything below.
    Durable {
        below: Lsn,
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
}

#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    #[error("operation log {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not an operation log of Soda")]
    NotALog { path: PathBuf },
    #[error("{path} was written by a later version of Soda (format {format})")]
    TooNew { path: PathBuf, format: u8 },
}

/// The writing end.
#[derive(Debug)]
pub struct Segments {
    directory: PathBuf,
    header: Header,
    current: Open,
    /// Full ones, oldest first.
    full: VecDeque<Full>,
    /// Entries that the operating system does not have yet.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    file: File,
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
    /// log; what a crash left at their end is cut off. [`read()`] them first: a damaged log should not be gone on with.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn create(directory: &Path, header: Header) -> Result<Segments, SegmentError> {
        let failed = |source| SegmentError::Io { path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let mut full = VecDeque::new();
        for (number, path) in read::files(directory)? {
            let read::Extent { bytes, last } = read::extent(&path)?;
            if bytes < MAGIC.len() as u64 {
                // A crash in its making: the number is free again.
                std::fs::remove_file(&path).map_err(|source| SegmentError::Io { path, source })?;
                continue;
            }
            let cut = || OpenOptions::new().write(true).open(&path)?.set_len(bytes);
            cut().map_err(|source| SegmentError::Io { path: path.clone(), source })?;
            full.push_back(Full { number, bytes, last });
        }
        let number = full.back().map_or(1, |file| file.number + 1);
        let last = full.back().map_or(Lsn(0), |file| file.last);
        let current = open(directory, number, &header, last)?;
        Ok(Segments { directory: directory.to_owned(), header, current, full, buffer: Vec::new() })
    }

    /// Adds an entry to the buffer.
    pub fn append(&mut self, entry: &Entry) {
        if let Entry::Record(record) = entry {
            self.current.last = record.lsn;
        }
        encode(entry, &mut self.buffer);
    }

    /// Hands what is buffered to the operating system: it survives a crash of the process.
    ///
    /// # Errors
    /// ENOSPC above all. Nothing that was written before is lost; the buffer stays and can be tried again.
    pub fn write(&mut self) -> Result<(), SegmentError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = path_of(&self.directory, self.current.number);
        if let Err(source) = self.current.file.write_all(&self.buffer) {
            // What was written of it would be taken for damage in the middle.
            let _ = self.current.file.set_len(self.current.bytes);
            return Err(SegmentError::Io { path, source });
        }
        self.current.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        if self.current.bytes >= FILE_BYTES {
            self.sync_file()?;
            let next = open(&self.directory, self.current.number + 1, &self.header, self.current.last)?;
            let Open { number, bytes, last, .. } = std::mem::replace(&mut self.current, next);
            self.full.push_back(Full { number, bytes, last });
        }
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

    fn sync_file(&self) -> Result<(), SegmentError> {
        let path = path_of(&self.directory, self.current.number);
        self.current.file.sync_data().map_err(|source| SegmentError::Io { path, source })
    }

    /// Deletes files in which no record is needed any more: all are below `floor`.
    ///
    /// # Errors
    /// A file cannot be deleted. It does no harm.
    pub fn forget_below(&mut self, floor: Lsn) -> Result<(), SegmentError> {
        while let Some(file) = self.full.front().filter(|file| file.last < floor) {
            let path = path_of(&self.directory, file.number);
            std::fs::remove_file(&path).map_err(|source| SegmentError::Io { path, source })?;
            self.full.pop_front();
        }
        Ok(())
    }

    /// Bytes on the local disk, and about to be.
    pub fn bytes(&self) -> u64 {
        let full: u64 = self.full.iter().map(|file| file.bytes).sum();
        full + self.current.bytes + self.buffer.len() as u64
    }
}

fn open(directory: &Path, number: u64, header: &Header, last: Lsn) -> Result<Open, SegmentError> {
    let path = path_of(directory, number);
    let mut first = MAGIC.to_vec();
    encode(&Entry::Header(header.clone()), &mut first);
    let made = || -> io::Result<File> {
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path)?;
        file.write_all(&first)?;
        // The name, too.
        File::open(directory)?.sync_all()?;
        Ok(file)
    };
    match made() {
        Ok(file) => Ok(Open { number, file, bytes: first.len() as u64, last }),
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
