//! One thread: does one operation after the other, notes the time before and after each and the answer.

use super::layout::own_name;
use super::locker::Locker;
use super::{Descriptors, Pieces, Place, Role, Syncs};
use crate::linear::Call;
use crate::linear::object::{Answer, Object, Operation};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::time::{ClockId, clock_gettime};
use soda_model::Rng;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Before the next look at a mount that is not there.
const RETRY: Duration = Duration::from_millis(10);

/// What a thread is doing, for the report about one that hangs.
pub(super) type Current = Arc<Mutex<Option<(Object, Operation)>>>;

/// One thread's state. Descriptors are sometimes held and sometimes fresh, because caches differ in both.
pub(super) struct Actor {
    pub(super) client: u16,
    pub(super) role: Role,
    pub(super) is_on_last_mount: bool,
    pub(super) pieces: Pieces,
    pub(super) descriptors: Descriptors,
    pub(super) syncs: Syncs,
    pub(super) rng: Rng,
    root: PathBuf,
    /// The root, opened. A path would lead elsewhere when a dead mount is taken away: to the empty directory below it.
    directory: Option<OwnedFd>,
    /// What kind of file system the root must be on (`f_type` of statfs(2)).
    filesystem: i64,
    held: HashMap<(String, OFlags), OwnedFd>,
    /// Locks that are held, and when they were asked for.
    pub(super) locked: BTreeMap<u16, (OwnedFd, u64)>,
    /// Parts of files that are locked, and when that was asked for.
    pub(super) ranges: BTreeMap<(u16, u8), u64>,
    pub(super) lockers: HashMap<u16, Locker>,
    /// How often the processes that hold record locks were replaced.
    generation: u32,
    /// Names that this thread gave to linked files, by number.
    pub(super) links: Vec<u64>,
    pub(super) written: u64,
    pub(super) log_len: usize,
    /// When the call that counts began.
    called: u64,
    current: Current,
    pub(super) calls: Vec<Call>,
    pub(super) errors: Vec<String>,
}

impl Actor {
    pub(super) fn new(
        client: u16,
        place: Place,
        (pieces, descriptors, syncs): (Pieces, Descriptors, Syncs),
        rng: Rng,
        current: Current,
    ) -> Actor {
        Actor {
            client,
            role: place.role,
            is_on_last_mount: place.is_last,
            pieces,
            descriptors,
            syncs,
            rng,
            filesystem: fs::statfs(&place.root).map(|stat| stat.f_type).unwrap_or_default(),
            root: place.root,
            directory: None,
            held: HashMap::new(),
            locked: BTreeMap::new(),
            ranges: BTreeMap::new(),
            lockers: HashMap::new(),
            generation: 0,
            links: Vec::new(),
            written: 0,
            log_len: 0,
            called: 0,
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
        while let Some((file, part)) = self.ranges.keys().next().copied() {
            let operation = Operation::UnlockRange { owner: self.owner(), from: part, to: part + 1 };
            self.perform(Object::Ranges { file }, operation);
        }
        self.held.clear();
        self.lockers.clear();
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

    fn perform(&mut self, object: Object, operation: Operation) {
        if let Ok(mut current) = self.current.lock() {
            *current = Some((object, operation.clone()));
        }
        self.called = now();
        let result = self.call(object, &operation);
        let returned = now();
        let called = self.called;
        match result {
            Ok(answer) => self.note(object, operation, called, Some((returned, answer))),
            Err(errno) => {
                self.errors.push(format!("{operation:?} of {object:?}: {errno:?}"));
                // ENOTCONN: the kernel knew that the client was dead and asked nobody.
                if operation.changes() && errno != Errno::NOTCONN {
                    self.note(object, operation, called, None);
                }
                self.forget_descriptors();
            }
        }
    }

    /// The preparations are over: what counts begins now.
    pub(super) fn start_clock(&mut self) {
        self.called = now();
    }

    pub(super) fn called(&self) -> u64 {
        self.called
    }

    fn note(&mut self, object: Object, operation: Operation, called: u64, returned: Option<(u64, Answer)>) {
        let client = self.client;
        if returned.is_none() {
            // A lock that was perhaps taken is given back with its descriptor or process.
            match &operation {
                Operation::TryLock => self.note(object, Operation::Unlock, called, None),
                Operation::TryRange { owner, from, to, .. } => {
                    let unlock = Operation::UnlockRange { owner: *owner, from: *from, to: *to };
                    self.note(object, unlock, called, None);
                }
                _ => {}
            }
        }
        for page in self.pages_of(object, &operation) {
            let (operation, returned) = (operation.clone(), returned.clone());
            self.calls.push(Call { client, object: page, operation, called, returned });
        }
        self.calls.push(Call { client, object, operation, called, returned });
    }

    /// After an error the mount may be another one. Locks go with the descriptors; a client that was taken for dead may
    /// have lost them at any time since it got them, if only it is told so, and the error told it.
    fn forget_descriptors(&mut self) {
        self.held.clear();
        self.directory = None;
        for (file, (_, since)) in std::mem::take(&mut self.locked) {
            self.note(Object::Lock { file }, Operation::Unlock, since, None);
        }
        let owner = self.owner();
        for ((file, part), since) in std::mem::take(&mut self.ranges) {
            let unlock = Operation::UnlockRange { owner, from: part, to: part + 1 };
            self.note(Object::Ranges { file }, unlock, since, None);
        }
        self.lockers.clear();
        self.generation += 1;
    }

    /// Who owns the record locks: the processes that this thread uses now.
    pub(super) fn owner(&self) -> u32 {
        u32::from(self.client) + 64 * self.generation
    }

    fn call(&mut self, object: Object, operation: &Operation) -> Result<Answer> {
        match object {
            Object::Block { file, block } => self.block(file, block, operation),
            Object::Whole { file } => self.whole(file, operation),
            Object::Log { file } => self.log(file, operation),
            Object::Names { directory } => self.names(directory, operation),
            Object::Directories { parent } => self.directories(parent, operation),
            Object::Attribute { file, which } => self.attribute(file, which, operation),
            Object::Links { file } => self.linked(file, operation),
            Object::Lock { file } => self.lock(file, operation),
            Object::Ranges { file } => self.range(file, operation),
        }
    }

    /// With a descriptor that is held from before, or a fresh one.
    pub(super) fn with_file<T>(
        &mut self,
        name: String,
        flags: OFlags,
        what: impl FnOnce(&OwnedFd) -> Result<T>,
    ) -> Result<T> {
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

    pub(super) fn root(&self) -> Result<&OwnedFd> {
        self.directory.as_ref().ok_or(Errno::NOTCONN)
    }

    pub(super) fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        fs::openat(self.root()?, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// A name in the directory that only this thread uses.
    pub(super) fn own(&self, name: &str) -> String {
        format!("{}/{name}", own_name(self.client))
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`: one clock for all threads of the machine.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl std::fmt::Debug for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "actor {} on {}", self.client, self.root.display())
    }
}
