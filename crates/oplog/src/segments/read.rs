//! Reading a log after a crash.

use super::search::whole_entries;
use super::{Entry, Header, LONGEST_ENTRY, LONGEST_HEAD, MAGIC, SegmentError, checksum};
use crate::{Lsn, Object, Record};
use soda_protocol::OpId;
use soda_types::{Fid, Sequence, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What a log holds.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The newest header: whose log it is.
    pub header: Header,
    /// Digests that the server has applied, and that its disk may lack; ascending.
    pub applied: Vec<Digested>,
    /// Digests that may have been applied or not, under their identities; ascending. If one was not, none after it was.
    pub sent: Vec<Digested>,
    /// Never sent, or lost by the server; ascending.
    pub pending: Vec<Record>,
    /// What the server will never take, and that is nowhere else; ascending.
    pub given_up: Vec<Record>,
    /// The last digest that was sent; 0: none.
    pub last_digest: Sequence,
    /// Versions that the server had of inodes, each from a record on; ascending.
    pub versions: BTreeMap<Fid, Vec<(Lsn, Version)>>,
    /// Inodes that were changed through the server since the record before, each with the record that found it so.
    pub through: Vec<(Fid, Lsn)>,
    pub damage: Option<Damage>,
}

/// A digest and its records, ascending.
#[derive(Clone, PartialEq, Debug)]
pub struct Digested {
    pub op: OpId,
    pub records: Vec<Record>,
}

impl Found {
    /// The version of an inode that the server had when the record was made.
    pub fn version_before(&self, fid: Fid, lsn: Lsn) -> Option<Version> {
        let known = self.versions.get(&fid)?;
        known.iter().rev().find(|(from, _)| *from <= lsn).map(|(_, version)| *version)
    }

    /// Everything that the server's disk may lack, in order; also what it will never take.
    pub fn records(&self) -> Vec<&Record> {
        let digests = self.applied.iter().chain(&self.sent).flat_map(|digest| &digest.records);
        let mut all: Vec<&Record> = digests.chain(&self.pending).chain(&self.given_up).collect();
        all.sort_unstable_by_key(|record| record.lsn);
        all
    }
}

/// Where a log is damaged, and what was found behind that place.
#[derive(Clone, PartialEq, Debug)]
pub struct Damage {
    pub file: PathBuf,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Whole records behind it. Others between them may be missing: for people to look at, not to be applied.
    pub beyond: Vec<Record>,
}

/// Reads the log in a directory. `None` if there is none.
///
/// # Errors
/// Something that is no log, or of a later version, or cannot be read; or a log whose head is damaged: nobody can say whose
/// it is.
pub fn read(directory: &Path) -> Result<Option<Found>, SegmentError> {
    let mut state = State::default();
    let Scan { damage, .. } = scan(directory, |entry| state.add(entry))?;
    if let (None, Some(damage)) = (&state.header, &damage) {
        return Err(SegmentError::NotALog { path: damage.file.clone() });
    }
    Ok(state.found(damage))
}

/// Whose log it is, from the beginning of its oldest file: also while somebody writes it. `None` if that cannot be told.
///
/// # Errors
/// It cannot be read.
pub fn owner(directory: &Path) -> Result<Option<Header>, SegmentError> {
    let Some((_, path)) = files(directory)?.into_iter().next() else { return Ok(None) };
    let mut bytes = Vec::new();
    let begin = File::open(&path).and_then(|file| file.take(LONGEST_HEAD as u64).read_to_end(&mut bytes));
    begin.map_err(|source| SegmentError::Io { path: path.clone(), source })?;
    let mut state = State::default();
    let mut rest = body(&path, &bytes)?.unwrap_or_default();
    while let Some((Some(entry @ (Entry::Header(_) | Entry::Slots(_))), after)) = split(rest) {
        state.add(entry);
        rest = after;
    }
    Ok(state.header)
}

/// The files of a log, oldest first, and where it is damaged.
pub(super) struct Scan {
    pub(super) files: Vec<Extent>,
    pub(super) damage: Option<Damage>,
}

/// A file, and how much of it is whole entries.
pub(super) struct Extent {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// With the magic; 0: a crash in its making.
    pub(super) bytes: u64,
    /// What follows them of an entry that is not, with what the file system has put behind it; 0: nothing, or nothing but zeros.
    pub(super) torn: u64,
    /// The largest number of its records.
    pub(super) last: Lsn,
}

/// Goes through a log. `entry` hears of all before the damage, in order.
pub(super) fn scan(directory: &Path, mut entry: impl FnMut(Entry)) -> Result<Scan, SegmentError> {
    let files = files(directory)?;
    let last = last_begun(&files)?;
    let mut scan = Scan { files: Vec::new(), damage: None };
    let mut last_told = Lsn(0);
    for (number, path) in files {
        let is_last = last.is_none_or(|last| number >= last);
        let before = scan.files.last().map(|file| (file.number, file.path.clone(), file.bytes));
        if before.as_ref().is_some_and(|(before, ..)| before + 1 != number) {
            scan.damaged(&path, 0);
        }
        let bytes = contents(&path)?;
        let (mut rest, mut extent) = match body(&path, &bytes)? {
            Some(rest) => (rest, Extent { number, path, bytes: 0, torn: 0, last: Lsn(0) }),
            None => {
                let beyond = whole_entries(&bytes, MAGIC.len(), last_told);
                if !is_last || !beyond.is_empty() {
                    scan.damaged(&path, 0).add(beyond);
                }
                scan.files.push(Extent { number, path, bytes: 0, torn: 0, last: Lsn(0) });
                continue;
            }
        };
        loop {
            let offset = (bytes.len() - rest.len()) as u64;
            match next(rest) {
                Next::Entry(found, after) => {
                    rest = after;
                    if let (Entry::After { bytes }, Some((_, path, there))) = (&*found, &before)
                        && there != bytes
                    {
                        scan.damaged(path, *there);
                    }
                    if let Entry::Record(record) = &*found {
                        extent.last = extent.last.max(record.lsn);
                    }
                    match &mut scan.damage {
                        None => {
                            last_told = last_told.max(extent.last);
                            entry(*found);
                        }
                        Some(damage) => damage.add([*found]),
                    }
                }
                Next::End => {
                    // Zeros are what a crash leaves at the end of all, only there.
                    if !is_last && !rest.is_empty() {
                        scan.damaged(&extent.path, offset);
                    }
                    break;
                }
                Next::Broken(Some(after)) => {
                    scan.damaged(&extent.path, offset);
                    rest = after;
                }
                Next::Broken(None) => {
                    // With whole entries behind it this is kept and not told up to here, although a power cut can leave it,
                    // too: of two pages that were not synced the later one. What the last sync covered the log does not say,
                    // so a hole in what nobody was promised looks like rot in what an fsync has returned for.
                    let is_head = offset == MAGIC.len() as u64 && rest.len() > LONGEST_HEAD;
                    let beyond = whole_entries(&bytes, offset as usize + 1, last_told);
                    if !is_last || is_head || !beyond.is_empty() {
                        scan.damaged(&extent.path, offset).add(beyond);
                    }
                    extent.torn = rest.len() as u64;
                    break;
                }
            }
        }
        extent.bytes = (bytes.len() - rest.len()) as u64;
        scan.files.push(extent);
    }
    Ok(scan)
}

impl Scan {
    /// The first place is the one that counts.
    fn damaged(&mut self, file: &Path, offset: u64) -> &mut Damage {
        self.damage.get_or_insert_with(|| Damage { file: file.to_owned(), offset, beyond: Vec::new() })
    }
}

impl Damage {
    fn add(&mut self, beyond: impl IntoIterator<Item = Entry>) {
        self.beyond.extend(beyond.into_iter().filter_map(|entry| match entry {
            Entry::Record(record) => Some(record),
            _ => None,
        }));
    }
}

/// The last file that has a beginning: those behind it are what a crash in their making leaves.
fn last_begun(files: &[(u64, PathBuf)]) -> Result<Option<u64>, SegmentError> {
    for (number, path) in files.iter().rev() {
        let mut magic = Vec::new();
        let begin = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut magic));
        begin.map_err(|source| SegmentError::Io { path: path.clone(), source })?;
        if body(path, &magic)?.is_some() {
            return Ok(Some(*number));
        }
    }
    Ok(None)
}

/// The files of a log, oldest first.
pub(super) fn files(directory: &Path) -> Result<Vec<(u64, PathBuf)>, SegmentError> {
    let failed = |source| SegmentError::Io { path: directory.to_owned(), source };
    let mut files = Vec::new();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(files),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        // No log gets as far as the last number of all, and it has no next one.
        files.extend(number.filter(|number| is_log && *number < u64::MAX).map(|number| (number, path)));
    }
    files.sort_unstable();
    Ok(files)
}

fn contents(path: &Path) -> Result<Vec<u8>, SegmentError> {
    std::fs::read(path).map_err(|source| SegmentError::Io { path: path.to_owned(), source })
}

/// What follows the magic; `None` if the file ends before that, or a power cut has left zeros in its place.
fn body<'a>(path: &Path, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, SegmentError> {
    let (name, _) = MAGIC.split_at(MAGIC.len() - 1);
    if bytes.iter().take(MAGIC.len()).all(|byte| *byte == 0) {
        return Ok(None);
    }
    let Some((magic, rest)) = bytes.split_at_checked(MAGIC.len()) else {
        return match MAGIC.starts_with(bytes) {
            true => Ok(None),
            false => Err(SegmentError::NotALog { path: path.to_owned() }),
        };
    };
    match magic.strip_prefix(name) {
        Some(&[format]) if (b'1'..=MAGIC[name.len()]).contains(&format) => Ok(Some(rest)),
        Some(&[format]) if format.is_ascii_digit() => {
            Err(SegmentError::TooNew { path: path.to_owned(), format: format - b'0' })
        }
        _ => Err(SegmentError::NotALog { path: path.to_owned() }),
    }
}

enum Next<'a> {
    Entry(Box<Entry>, &'a [u8]),
    End,
    /// No whole entry. With what follows it, if its length is believable and another whole entry stands there.
    Broken(Option<&'a [u8]>),
}

fn next(bytes: &[u8]) -> Next<'_> {
    // A crash can leave a tail of zeros.
    if bytes.iter().all(|byte| *byte == 0) {
        return Next::End;
    }
    match split(bytes) {
        None => Next::Broken(None),
        Some((Some(entry), rest)) => Next::Entry(Box::new(entry), rest),
        Some((None, rest)) => {
            let goes_on = split(rest).is_some_and(|(entry, _)| entry.is_some());
            Next::Broken(goes_on.then_some(rest))
        }
    }
}

/// One entry, if it is whole, and what follows it; `None` if its length cannot be right.
fn split(bytes: &[u8]) -> Option<(Option<Entry>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(8)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let sum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if length as usize > LONGEST_ENTRY {
        return None;
    }
    let (body, rest) = rest.split_at_checked(length as usize)?;
    let entry = (checksum(length, body) == sum).then(|| postcard::from_bytes(body).ok()).flatten();
    Some((entry, rest))
}

#[derive(Default)]
struct State {
    header: Option<Header>,
    applied: Vec<Batch>,
    /// Without an answer, in their order.
    sent: VecDeque<Batch>,
    pending: BTreeMap<Lsn, Record>,
    given_up: BTreeMap<Lsn, Record>,
    last_digest: Sequence,
    /// Not followed by their record yet.
    told: Vec<(Fid, Version)>,
    versions: BTreeMap<Fid, Vec<(Lsn, Version)>>,
    /// As digests left them.
    left_at: BTreeMap<Fid, Version>,
    through: Vec<(Fid, Lsn)>,
}

struct Batch {
    op: OpId,
    records: BTreeMap<Lsn, Record>,
}

impl State {
    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Header(header) => {
                self.last_digest = self.last_digest.max(header.digest.sequence);
                // If a crash has cut off what follows it.
                let slots = self.header.as_ref().map_or(header.slots, |before| before.slots);
                self.header = Some(Header { slots, ..header });
            }
            Entry::Told { fid, version } => self.told.push((fid, version)),
            Entry::Record(record) => {
                for (fid, version) in std::mem::take(&mut self.told) {
                    if self.left_at.get(&fid).is_some_and(|left| *left != version) {
                        self.through.push((fid, record.lsn));
                    }
                    self.versions.entry(fid).or_default().push((record.lsn, version));
                }
                self.pending.insert(record.lsn, record);
            }
            Entry::Sent { op, lsns } => {
                self.applied.extend(std::mem::take(&mut self.sent));
                self.note_sent(op, &lsns);
            }
            Entry::SentBehind { op, lsns } => self.note_sent(op, &lsns),
            Entry::Applied { versions } => {
                let sent = self.sent.pop_front();
                self.note_applied(sent, versions);
            }
            Entry::AppliedAs { sequence, versions } => {
                // Those before it may have stood in a file that is gone.
                let sent = self.sent.pop_front_if(|sent| sent.op.sequence == sequence);
                self.note_applied(sent, versions);
            }
            Entry::Lost { from } => {
                let is_lost = |batch: &mut Batch| batch.op.sequence >= from;
                let mut lost: Vec<Batch> = self.applied.extract_if(.., is_lost).collect();
                let first = self.sent.partition_point(|batch| batch.op.sequence < from);
                lost.extend(self.sent.split_off(first));
                self.pending.extend(lost.into_iter().flat_map(|batch| batch.records));
            }
            Entry::GivenUp { lsns } => {
                let lsns: BTreeSet<Lsn> = lsns.into_iter().collect();
                self.pending.retain(|lsn, _| !lsns.contains(lsn));
                self.given_up.retain(|lsn, _| !lsns.contains(lsn));
            }
            Entry::GivenUpHere { lsns } => {
                let given_up = lsns.iter().filter_map(|lsn| self.pending.remove_entry(lsn));
                self.given_up.extend(given_up);
            }
            Entry::Durable { up_to } => self.applied.retain(|batch| batch.op.sequence > up_to),
            Entry::After { .. } => {}
            Entry::Slots(slots) => {
                if let Some(header) = &mut self.header {
                    header.slots = slots;
                }
            }
        }
    }

    fn note_sent(&mut self, op: OpId, lsns: &[Lsn]) {
        let records = lsns.iter().filter_map(|lsn| self.pending.remove_entry(lsn)).collect();
        self.last_digest = self.last_digest.max(op.sequence);
        self.sent.push_back(Batch { op, records });
    }

    fn note_applied(&mut self, sent: Option<Batch>, versions: Vec<(Fid, Version)>) {
        if let Some(sent) = sent {
            self.note_versions(&sent, versions);
            self.applied.push(sent);
        }
    }

    /// What the server said is so for the records that come after those of the digest.
    fn note_versions(&mut self, sent: &Batch, versions: Vec<(Fid, Version)>) {
        let told: BTreeMap<Fid, Version> = versions.into_iter().collect();
        let mut last: BTreeMap<Fid, Lsn> = BTreeMap::new();
        for record in sent.records.values() {
            for (object, _) in record.change.touches() {
                if let Object::Inode(fid) = object {
                    last.insert(fid, record.lsn);
                }
            }
        }
        for (fid, lsn) in last {
            if let Some(version) = told.get(&fid) {
                self.versions.entry(fid).or_default().push((Lsn(lsn.0 + 1), *version));
                self.left_at.insert(fid, *version);
            }
        }
    }

    fn found(self, damage: Option<Damage>) -> Option<Found> {
        let list = |records: BTreeMap<Lsn, Record>| records.into_values().collect::<Vec<_>>();
        let digested = |batch: Batch| Digested { op: batch.op, records: list(batch.records) };
        let mut versions = self.versions;
        versions.values_mut().for_each(|versions| versions.sort_by_key(|(lsn, _)| *lsn));
        Some(Found {
            header: self.header?,
            applied: self.applied.into_iter().map(digested).collect(),
            sent: self.sent.into_iter().map(digested).collect(),
            pending: list(self.pending),
            given_up: list(self.given_up),
            last_digest: self.last_digest,
            versions,
            through: self.through,
            damage,
        })
    }
}
