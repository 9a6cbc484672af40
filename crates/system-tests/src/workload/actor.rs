//! One thread: picks an operation, does the system calls, notes the time before and after and the answer.

use super::{
    ATTRIBUTE_FILES, BLOCK_STRIDE, BLOCKS, DATA_FILES, DIRECTORIES, LOCKS, LOG_RECORDS, LOGS, NAMES,
};
use super::{attribute_name, data_name, directory_name, lock_name, log_name};
use crate::linear::Call;
use crate::linear::object::{Answer, Attribute, Object, Operation};
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags, Timespec};
use rustix::io::{Errno, Result};
use rustix::time::{ClockId, clock_gettime};
use soda_model::Rng;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) const ATTRIBUTES: [Attribute; 3] = [Attribute::Permissions, Attribute::Size, Attribute::Mtime];

/// Bytes of a record of a log: its number and the complement.
const RECORD: usize = 16;
/// Before the next look at a mount that is not there.
const RETRY: Duration = Duration::from_millis(10);
/// A block of which one part is of one write and another of another. Nobody writes this value.
const TORN: u64 = u64::MAX;

/// What a thread is doing, for the report about one that hangs.
pub(super) type Current = Arc<Mutex<Option<(Object, Operation)>>>;

/// One thread's state. Descriptors are sometimes held and sometimes fresh, because caches differ in both.
pub(super) struct Actor {
    client: u16,
    root: PathBuf,
    /// The root, opened. A path would lead elsewhere when a dead mount is taken away: to the empty directory below it.
    directory: Option<OwnedFd>,
    /// What kind of file system the root must be on (`f_type` of statfs(2)).
    filesystem: i64,
    block_bytes: usize,
    rng: Rng,
    held: HashMap<(String, OFlags), OwnedFd>,
    /// Locks that are held, and since when.
    locked: BTreeMap<u16, (OwnedFd, u64)>,
    written: u64,
    log_len: usize,
    current: Current,
    pub(super) calls: Vec<Call>,
    pub(super) errors: Vec<String>,
}

impl Actor {
    pub(super) fn new(client: u16, root: PathBuf, block_bytes: usize, rng: Rng, current: Current) -> Actor {
        Actor {
            client,
            filesystem: fs::statfs(&root).map(|stat| stat.f_type).unwrap_or_default(),
            root,
            directory: None,
            block_bytes,
            rng,
            held: HashMap::new(),
            locked: BTreeMap::new(),
            written: 0,
            log_len: 0,
            current,
            calls: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// One operation; none while there is no mount.
    pub(super) fn step(&mut self) {
        if self.directory.is_none() && self.open_root().is_err() {
            std::thread::sleep(RETRY);
            return;
        }
        let (object, operation) = self.choose();
        self.perform(object, operation);
    }

    /// Gives back what is held.
    pub(super) fn finish(&mut self) {
        for file in self.locked.keys().copied().collect::<Vec<_>>() {
            self.perform(Object::Lock { file }, Operation::Unlock);
        }
        self.held.clear();
    }

    fn open_root(&mut self) -> Result<()> {
        let directory =
            fs::open(&self.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        if fs::fstatfs(&directory)?.f_type != self.filesystem {
            return Err(Errno::NOTCONN);
        }
        self.directory = Some(directory);
        Ok(())
    }

    fn choose(&mut self) -> (Object, Operation) {
        match self.rng.below(100) {
            0..=34 => {
                let (file, block) = (self.below(DATA_FILES), self.below(BLOCKS));
                (Object::Block { file, block }, self.write_or_read())
            }
            35..=59 => {
                let (name, to) = (self.below(NAMES.into()) as u8, self.below(NAMES.into()) as u8);
                let operation = match self.rng.below(10) {
                    0..=1 => Operation::Create { name, id: self.unique() },
                    2 => Operation::Remove { name },
                    3 if name != to => Operation::Rename { from: name, to },
                    4 => Operation::List,
                    _ => Operation::Lookup { name },
                };
                (Object::Names { directory: self.below(DIRECTORIES) }, operation)
            }
            60..=79 => {
                let (file, which) = (self.below(ATTRIBUTE_FILES), self.rng.pick(&ATTRIBUTES));
                let operation = match (self.write_or_read(), which) {
                    (Operation::Write(value), Attribute::Permissions) => Operation::Write(value & 0o777),
                    (operation, _) => operation,
                };
                (Object::Attribute { file, which }, operation)
            }
            80..=91 => {
                let append = self.log_len < LOG_RECORDS && self.rng.chance(1, 2);
                let operation = if append { Operation::Append(self.unique()) } else { Operation::ReadLog };
                (Object::Log { file: self.below(LOGS) }, operation)
            }
            _ => {
                let file = self.below(LOCKS);
                let operation =
                    if self.locked.contains_key(&file) { Operation::Unlock } else { Operation::TryLock };
                (Object::Lock { file }, operation)
            }
        }
    }

    fn write_or_read(&mut self) -> Operation {
        if self.rng.chance(1, 3) { Operation::Write(self.unique()) } else { Operation::Read }
    }

    fn below(&mut self, bound: u16) -> u16 {
        self.rng.below(bound.into()) as u16
    }

    /// A number that no other thread writes.
    fn unique(&mut self) -> u64 {
        self.written += 1;
        self.written * 64 + u64::from(self.client)
    }

    fn perform(&mut self, object: Object, operation: Operation) {
        if let Ok(mut current) = self.current.lock() {
            *current = Some((object, operation.clone()));
        }
        let called = now();
        let result = self.call(object, &operation);
        let returned = now();
        match result {
            Ok(answer) => {
                self.note(object, operation, called, Some((returned, answer)));
            }
            Err(errno) => {
                self.errors.push(format!("{operation:?} of {object:?}: {errno:?}"));
                self.forget_descriptors();
                let changes = !matches!(
                    operation,
                    Operation::Read | Operation::Lookup { .. } | Operation::List | Operation::ReadLog
                );
                // ENOTCONN: the kernel knew that the client was dead and asked nobody.
                if changes && errno != Errno::NOTCONN {
                    self.note(object, operation, called, None);
                }
            }
        }
    }

    fn note(&mut self, object: Object, operation: Operation, called: u64, returned: Option<(u64, Answer)>) {
        self.calls.push(Call { client: self.client, object, operation, called, returned });
    }

    /// After an error the mount may be another one. Locks go with the descriptors; a client that was taken for dead may
    /// have lost them at any time since it got them, if only it is told so, and the error told it.
    fn forget_descriptors(&mut self) {
        self.held.clear();
        self.directory = None;
        for (file, (_, since)) in std::mem::take(&mut self.locked) {
            self.note(Object::Lock { file }, Operation::Unlock, since, None);
        }
    }

    fn call(&mut self, object: Object, operation: &Operation) -> Result<Answer> {
        match (object, operation) {
            (Object::Block { file, block }, Operation::Write(value)) => {
                let flags = if self.rng.chance(1, 2) { OFlags::RDWR } else { OFlags::WRONLY };
                let bytes = value.to_le_bytes().repeat(self.block_bytes / 8);
                self.with_file(data_name(file), flags, |file| {
                    let written = rustix::io::pwrite(file, &bytes, u64::from(block) * BLOCK_STRIDE as u64)?;
                    if written == bytes.len() { Ok(Answer::Done) } else { Err(Errno::IO) }
                })
            }
            (Object::Block { file, block }, _) => {
                let flags = if self.rng.chance(1, 4) { OFlags::RDWR } else { OFlags::RDONLY };
                let mut bytes = vec![0; self.block_bytes];
                self.with_file(data_name(file), flags, |file| {
                    let read =
                        rustix::io::pread(file, &mut bytes[..], u64::from(block) * BLOCK_STRIDE as u64)?;
                    Ok(Answer::Value(if read == bytes.len() { whole(&bytes) } else { TORN }))
                })
            }
            (Object::Names { directory }, operation) => self.names(&directory_name(directory), operation),
            (Object::Attribute { file, which }, operation) => {
                self.attribute(attribute_name(file, which), which, operation)
            }
            (Object::Log { file }, Operation::Append(record)) => {
                let mut bytes = record.to_le_bytes().to_vec();
                bytes.extend((!record).to_le_bytes());
                self.with_file(log_name(file), OFlags::WRONLY | OFlags::APPEND, |file| {
                    let written = rustix::io::write(file, &bytes)?;
                    if written == RECORD { Ok(Answer::Done) } else { Err(Errno::IO) }
                })
            }
            (Object::Log { file }, _) => {
                let answer = self.with_file(log_name(file), OFlags::RDONLY, |file| {
                    let mut bytes = vec![0; RECORD * LOG_RECORDS * 4];
                    let read = rustix::io::pread(file, &mut bytes[..], 0)?;
                    Ok(Answer::Records(records(&bytes[..read])))
                })?;
                if let Answer::Records(records) = &answer {
                    self.log_len = records.len();
                }
                Ok(answer)
            }
            (Object::Lock { file }, Operation::TryLock) => {
                let descriptor = self.open(&lock_name(file), OFlags::RDWR)?;
                match fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => {
                        self.locked.insert(file, (descriptor, now()));
                        Ok(Answer::Done)
                    }
                    Err(Errno::WOULDBLOCK) => Ok(Answer::Busy),
                    Err(errno) => Err(errno),
                }
            }
            (Object::Lock { file }, _) => match self.locked.remove(&file) {
                Some((descriptor, since)) => {
                    // What the lock was for. A client that lost it with its session must hear so here, at the latest.
                    let work = rustix::io::pwrite(&descriptor, b"x", 0);
                    let result = work.and_then(|_| fs::flock(&descriptor, FlockOperation::Unlock));
                    if result.is_err() {
                        self.locked.insert(file, (descriptor, since));
                    }
                    result.map(|()| Answer::Done)
                }
                None => Ok(Answer::Done),
            },
        }
    }

    fn names(&self, directory: &str, operation: &Operation) -> Result<Answer> {
        let root = self.root()?;
        let path = |name: &u8| format!("{directory}/name{name}");
        let done = |()| Answer::Done;
        let result = match operation {
            // The target of the link is the identity: known before the call, so that a lost answer leaves no doubt.
            Operation::Create { name, id } => fs::symlinkat(id.to_string(), root, path(name)).map(done),
            Operation::Remove { name } => fs::unlinkat(root, path(name), AtFlags::empty()).map(done),
            Operation::Rename { from, to } => fs::renameat(root, path(from), root, path(to)).map(done),
            Operation::Lookup { name } => fs::readlinkat(root, path(name), Vec::new())
                .map(|target| Answer::Found(number(target.to_bytes()))),
            _ => list(root, directory),
        };
        match result {
            Err(Errno::NOENT) => Ok(Answer::Missing),
            Err(Errno::EXIST) => Ok(Answer::Exists),
            other => other,
        }
    }

    fn attribute(&mut self, name: String, which: Attribute, operation: &Operation) -> Result<Answer> {
        let Operation::Write(value) = operation else {
            let stat = if self.rng.chance(1, 2) {
                fs::statat(self.root()?, name, AtFlags::empty())?
            } else {
                let mut stat = None;
                self.with_file(name, OFlags::RDONLY, |file| {
                    stat = Some(fs::fstat(file)?);
                    Ok(Answer::Done)
                })?;
                stat.ok_or(Errno::IO)?
            };
            return Ok(Answer::Value(match which {
                Attribute::Permissions => u64::from(stat.st_mode & 0o777),
                Attribute::Size => stat.st_size as u64,
                Attribute::Mtime => stat.st_mtime as u64 * 1_000_000_000 + stat.st_mtime_nsec,
            }));
        };
        match which {
            Attribute::Permissions => {
                let mode = Mode::from_raw_mode(*value as u32);
                fs::chmodat(self.root()?, name, mode, AtFlags::empty())?;
            }
            Attribute::Size => {
                self.with_file(name, OFlags::WRONLY, |file| {
                    fs::ftruncate(file, *value).map(|()| Answer::Done)
                })?;
            }
            Attribute::Mtime => {
                let time = Timespec {
                    tv_sec: (value / 1_000_000_000) as i64,
                    tv_nsec: (value % 1_000_000_000) as i64,
                };
                let times = fs::Timestamps { last_access: time, last_modification: time };
                fs::utimensat(self.root()?, name, &times, AtFlags::empty())?;
            }
        }
        Ok(Answer::Done)
    }

    /// With a descriptor that is held from before, or a fresh one.
    fn with_file(
        &mut self,
        name: String,
        flags: OFlags,
        what: impl FnOnce(&OwnedFd) -> Result<Answer>,
    ) -> Result<Answer> {
        if self.rng.chance(1, 3) {
            return what(&self.open(&name, flags)?);
        }
        let key = (name, flags);
        if !self.held.contains_key(&key) {
            let file = self.open(&key.0, flags)?;
            self.held.insert(key.clone(), file);
        }
        what(&self.held[&key])
    }

    fn root(&self) -> Result<&OwnedFd> {
        self.directory.as_ref().ok_or(Errno::NOTCONN)
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        fs::openat(self.root()?, name, flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`: one clock for all threads of the machine.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The value a block holds; [`TORN`] if it does not hold one.
fn whole(bytes: &[u8]) -> u64 {
    let value = bytes.first_chunk().map_or(TORN, |first| u64::from_le_bytes(*first));
    let is_whole = bytes.chunks_exact(8).all(|part| part == value.to_le_bytes());
    if is_whole { value } else { TORN }
}

/// The records of a log; one that is cut short, or has zeros in it, becomes [`TORN`].
fn records(bytes: &[u8]) -> Vec<u64> {
    let record = |part: &[u8]| {
        let number = part.first_chunk().map_or(TORN, |first| u64::from_le_bytes(*first));
        if part.len() == RECORD && part[8..] == (!number).to_le_bytes() { number } else { TORN }
    };
    bytes.chunks(RECORD).map(record).collect()
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(TORN)
}

fn list(root: &OwnedFd, directory: &str) -> Result<Answer> {
    let opened =
        fs::openat(root, directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(opened)? {
        if let Some(digits) = entry?.file_name().to_bytes().strip_prefix(b"name") {
            names.push(number(digits) as u8);
        }
    }
    names.sort();
    Ok(Answer::Names(names))
}

impl std::fmt::Debug for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "actor {} on {}", self.client, self.root.display())
    }
}
