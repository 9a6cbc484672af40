//! The operation log on a local disk: what a crash of this machine leaves of the log, for the next mount (`replay`) or for
//! people (`recover`).
//!
//! `behind` says what happens to its log, in order, while it holds the lock of the caches ([`DiskLog::push`]); that only
//! queues. Whoever is about to answer a program has the queue written first ([`DiskLog::write`]), for all that wait: so what
//! a program was told is done survives `kill -9`. A digest is sent only when the files say so: what is found after a crash
//! may then have been applied, and everything that is not said to have been sent was not. `fsync=local` syncs the files
//! ([`DiskLog::sync`]), and then also before each digest, so that this holds after a power cut as well.
//!
//! Without room on the local disk nothing is lost: changes go through to the server until there is some. Nor on a disk that
//! fails: an operating system says once that it could not write something, and forgets it; so nothing of the files is believed
//! to be on the disk after a sync that failed, until the server's disk has all that was in them and they are replaced.
//!
//! What is given up goes into a log of its own, and is held here until the disk has that: whenever this process dies, it is in
//! one of them ([`DiskLog::keep_apart`]).
//!
//! One log is of one session. When that is lost, so is the log: it is put aside, and the next session begins another.

pub(crate) mod holder;
pub(crate) mod keeper;
pub(crate) mod place;

use crate::threads::blocking;
use crate::{crash, lock};
use keeper::Keeper;
use place::{Note, Place};
use soda_oplog::segments::{self, Entry, Found, Header, Safety, SegmentError, Segments, SyncData};
use soda_oplog::{Change, DigestId, Lsn, Object, Record};
use soda_types::{Fid, Sequence, Version};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Beside what may wait, in bytes: what is told and not durable yet, and what is left of files.
const BEYOND_PENDING: u64 = 256 << 20;

/// So many operations write it, or have it synced, at a time. One is enough, for it writes what all wait for; of the threads that
/// serve a mount, three at least, this leaves one when the disk hangs.
const AT_ONCE: usize = 2;

/// So often a log is read that others write.
const READS: u32 = 3;
/// Why a log is kept of which nothing else is needed.
pub(crate) const GIVEN_UP: &str = "the server would not take these, and when that turned out there was no room on the local \
     disk to keep them apart";

/// The files of a log.
#[derive(Debug)]
pub(crate) struct DiskLog {
    /// Where it lies, and whose it is.
    keeper: Keeper,
    safety: Safety,
    /// Most bytes on the disk.
    bound: u64,
    queue: Mutex<Vec<Queued>>,
    /// Entries that were ever queued, written, and synced.
    queued: AtomicU64,
    written: AtomicU64,
    synced: AtomicU64,
    files: Mutex<Stage>,
    /// One at a time; who comes meanwhile finds its entries synced.
    syncing: Mutex<()>,
    /// Operations that block in it, each a thread: [`AT_ONCE`].
    writers: Semaphore,
    syncers: Semaphore,
    no_room: AtomicBool,
    /// The session has been named in the files, or could not be.
    begun: AtomicBool,
    /// Somebody syncs a full file, to begin another one.
    beginning: AtomicBool,
    given_up: Mutex<GivenUp>,
    /// One at a time puts aside what is given up.
    putting_aside: Mutex<()>,
    sync_data: SyncData,
}

/// What will never be told, and is nowhere but in the files of this log.
#[derive(Debug, Default)]
struct GivenUp {
    lsns: BTreeSet<Lsn>,
    /// For what there was no room elsewhere, and why it was given up.
    again: Vec<(Vec<Record>, String)>,
    /// Why that could not be kept elsewhere.
    is_said: bool,
    /// The log was kept, or left, as a whole: with all of it.
    kept: Option<PathBuf>,
}

/// Where records are that were given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Aside {
    /// Among the logs that are kept.
    Kept(PathBuf),
    /// In this log, which goes on: there was no room elsewhere. Tried again.
    Here,
    /// In this log, which is over and could not be moved: whoever finds it there moves it.
    Left(PathBuf),
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    NothingYet,
    Begun(Box<Files>),
    /// Nothing is written any more.
    Ended,
}

#[derive(Debug)]
struct Files {
    place: Place,
    segments: Segments,
    /// Entries handed to `segments`, written or not.
    taken: u64,
}

#[derive(Debug)]
enum Queued {
    Entry(Entry),
    /// Nothing below is needed any more.
    Forget(Lsn),
}

/// Whether the operating system, or the disk, has what was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum OnDisk {
    Yes,
    /// No: there is no room, or the disk fails. The server has to hear of it instead.
    No,
}

impl DiskLog {
    /// `pending`: most bytes that wait for the server.
    pub(crate) fn new(cache_dir: &Path, name: &str, header: Header, safety: Safety, pending: u64) -> DiskLog {
        DiskLog {
            keeper: Keeper::new(cache_dir, name, header),
            safety,
            bound: pending.saturating_mul(2).saturating_add(BEYOND_PENDING),
            queue: Mutex::default(),
            queued: AtomicU64::new(0),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            files: Mutex::default(),
            syncing: Mutex::default(),
            writers: Semaphore::new(AT_ONCE),
            syncers: Semaphore::new(AT_ONCE),
            no_room: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            beginning: AtomicBool::new(false),
            given_up: Mutex::default(),
            putting_aside: Mutex::default(),
            sync_data: File::sync_data,
        }
    }

    /// Adds an entry to the queue. Under the lock of the caches, whose order it keeps.
    pub(crate) fn push(&self, entry: Entry) {
        self.enqueue([Queued::Entry(entry)]);
    }

    /// Adds a record, with the versions that the server has of what it touches.
    pub(crate) fn push_record(&self, told: impl Iterator<Item = (Fid, Version)>, record: Record) {
        let told = told.map(|(fid, version)| Entry::Told { fid, version });
        self.enqueue(told.chain([Entry::Record(record)]).map(Queued::Entry));
    }

    /// A digest is about to be sent; `after`: the one before it, which has no answer yet.
    pub(crate) fn push_sent(&self, id: DigestId, after: Option<DigestId>, lsns: Vec<Lsn>) {
        let op = self.keeper.header.digest_slots().op(Sequence(id.0));
        self.push(match after {
            None => Entry::Sent { op, lsns },
            Some(_) => Entry::SentBehind { op, lsns },
        });
    }

    /// The server will never take these. Under the lock of the caches.
    pub(crate) fn push_given_up(&self, records: &[Record]) {
        let lsns: Vec<Lsn> = records.iter().map(|record| record.lsn).collect();
        lock(&self.given_up).lsns.extend(&lsns);
        self.push(Entry::GivenUpHere { lsns });
    }

    /// Records below are not needed any more.
    pub(crate) fn push_forget(&self, floor: Lsn) {
        self.enqueue([Queued::Forget(floor)]);
    }

    fn enqueue(&self, queued: impl IntoIterator<Item = Queued>) {
        let mut queue = lock(&self.queue);
        let before = queue.len();
        queue.extend(queued);
        self.queued.fetch_add((queue.len() - before) as u64, Ordering::Release);
    }

    /// Whether changes may go into the log.
    pub(crate) fn has_room(&self) -> bool {
        self.begun.load(Ordering::Relaxed) && !self.no_room.load(Ordering::Relaxed)
    }

    pub(crate) fn safety(&self) -> Safety {
        self.safety
    }

    /// The session has begun: names it in the files before anything is done in it. Whoever finds them can end it, and nobody
    /// waits for its leases until they run out.
    pub(crate) fn begin_session(&self) -> OnDisk {
        blocking(|| self.attempt(&mut lock(&self.files)))
    }

    /// Whether the operating system has everything that was queued until now.
    pub(crate) fn is_written(&self) -> bool {
        let target = self.queued.load(Ordering::Acquire);
        self.written.load(Ordering::Acquire) >= target
    }

    /// Has the operating system take everything that was queued until now. Blocks as a write to a local file does.
    pub(crate) fn write(&self) -> OnDisk {
        let target = self.queued.load(Ordering::Acquire);
        if self.written.load(Ordering::Acquire) >= target {
            return OnDisk::Yes;
        }
        blocking(|| self.write_up_to(target))
    }

    /// As [`DiskLog::write`], for an operation: of those only some block at a time, however many there are.
    pub(crate) async fn write_in_turn(&self) -> OnDisk {
        if self.is_written() {
            return OnDisk::Yes;
        }
        // It is never closed.
        let _turn = self.writers.acquire().await;
        self.write()
    }

    fn write_up_to(&self, target: u64) -> OnDisk {
        let mut files = lock(&self.files);
        if self.written.load(Ordering::Acquire) >= target {
            return OnDisk::Yes;
        }
        let outcome = self.attempt(&mut files);
        drop(files);
        if outcome == OnDisk::Yes { self.begin_file() } else { outcome }
    }

    fn attempt(&self, files: &mut Stage) -> OnDisk {
        let written = self.write_out(files);
        self.begun.store(true, Ordering::Relaxed);
        self.said(written)
    }

    /// If a file is full, begins another one. Until the disk has the full one others go on in that: nobody waits for it but who
    /// found it full.
    fn begin_file(&self) -> OnDisk {
        let (file, sync_data) = {
            let stage = lock(&self.files);
            let Stage::Begun(files) = &*stage else { return OnDisk::Yes };
            if !files.segments.is_full() || self.beginning.swap(true, Ordering::AcqRel) {
                return OnDisk::Yes;
            }
            files.segments.file()
        };
        let synced = if self.safety == Safety::PowerCut { sync_data(&file) } else { Ok(()) };
        let mut stage = lock(&self.files);
        let begun = match (&mut *stage, synced) {
            // What was written meanwhile is little.
            (Stage::Begun(files), Ok(())) => files.segments.begin_file(),
            (Stage::Begun(files), Err(source)) => {
                files.segments.note_failed();
                Err(SegmentError::Io { path: files.place.dir().to_owned(), source })
            }
            (Stage::NothingYet | Stage::Ended, _) => Ok(()),
        };
        self.beginning.store(false, Ordering::Release);
        self.said(begun)
    }

    fn said(&self, done: Result<(), SegmentError>) -> OnDisk {
        match done {
            Ok(()) => OnDisk::Yes,
            Err(error) => {
                if !self.no_room.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        %error,
                        "the operation log cannot be written to the local disk: until it can, changes go to the server at once"
                    );
                }
                OnDisk::No
            }
        }
    }

    /// As [`DiskLog::write`], and waits until the disk has it.
    pub(crate) fn sync(&self) -> OnDisk {
        let target = self.queued.load(Ordering::Acquire);
        if self.write() == OnDisk::No {
            return OnDisk::No;
        }
        let _one_at_a_time = lock(&self.syncing);
        if self.synced.load(Ordering::Acquire) >= target {
            return OnDisk::Yes;
        }
        let (file, sync_data, written) = {
            let stage = lock(&self.files);
            let Stage::Begun(files) = &*stage else { return OnDisk::Yes };
            let (file, sync_data) = files.segments.file();
            (file, sync_data, self.written.load(Ordering::Acquire))
        };
        let synced = if self.has_failed() { Ok(()) } else { sync_data(&file) };
        let mut stage = lock(&self.files);
        let Stage::Begun(files) = &mut *stage else { return OnDisk::Yes };
        if let Err(error) = synced {
            files.segments.note_failed();
            tracing::error!(
                %error,
                "the operation log cannot be synced to the local disk: until the server's disk has all that is in it, changes go \
                 to the server at once, and a power cut of this machine may damage the log"
            );
        }
        // Who writes may have heard of it before.
        if files.segments.has_failed() {
            self.no_room.store(true, Ordering::Relaxed);
            return OnDisk::No;
        }
        self.synced.fetch_max(written, Ordering::Release);
        OnDisk::Yes
    }

    /// As [`DiskLog::sync`], for an operation, on a thread that may block.
    pub(crate) async fn sync_in_turn(self: &Arc<DiskLog>, runtime: &Handle) -> OnDisk {
        let target = self.queued.load(Ordering::Acquire);
        let _turn = self.syncers.acquire().await;
        if self.synced.load(Ordering::Acquire) >= target {
            return OnDisk::Yes;
        }
        let disk = Arc::clone(self);
        runtime.spawn_blocking(move || disk.sync()).await.unwrap_or(OnDisk::No)
    }

    /// As if the disk hung, until this is dropped.
    #[cfg(test)]
    pub(crate) fn hang(&self) -> impl Sized + '_ {
        lock(&self.files)
    }

    fn has_failed(&self) -> bool {
        matches!(&*lock(&self.files), Stage::Begun(files) if files.segments.has_failed())
    }

    /// Now and then: writes what nobody waits for, such as what is durable, and tries again to write what did not fit.
    pub(crate) fn catch_up(&self) {
        if self.has_room() {
            let _ = self.write();
        } else {
            let _ = self.attempt(&mut lock(&self.files));
        }
    }

    fn write_out(&self, stage: &mut Stage) -> Result<(), SegmentError> {
        if let Stage::NothingYet = stage {
            *stage = Stage::Begun(Box::new(self.begin()?));
        }
        let Stage::Begun(files) = stage else { return Ok(()) };
        let queue = std::mem::take(&mut *lock(&self.queue));
        files.taken += queue.len() as u64;
        let mut floor = None;
        for queued in queue {
            match queued {
                Queued::Entry(entry) => files.segments.append(&entry),
                Queued::Forget(below) => floor = Some(below),
            }
        }
        // First, as it may make room. Should it fail, the files stay longer.
        let held = lock(&self.given_up).lsns.first().copied();
        let floor = floor.map(|floor| held.map_or(floor, |held| floor.min(held)));
        let forgotten = floor.map_or(Ok(()), |floor| files.segments.forget_below(floor));
        files.segments.write_on()?;
        self.written.store(files.taken, Ordering::Release);
        forgotten?;
        self.note_room(files);
        Ok(())
    }

    fn note_room(&self, files: &Files) {
        let too_much = files.segments.bytes() > self.bound || files.segments.has_failed();
        if self.no_room.swap(too_much, Ordering::Relaxed) && !too_much {
            tracing::info!("the operation log is written to the local disk again");
        }
    }

    fn begin(&self) -> Result<Files, SegmentError> {
        let Keeper { dir, name, header } = &self.keeper;
        let failed = |source| SegmentError::Io { path: dir.clone(), source };
        let place = Place::take(dir, name).map_err(failed)?;
        let segments =
            Segments::create(place.dir(), header.clone(), self.safety)?.syncing_with(self.sync_data);
        Ok(Files { place, segments, taken: 0 })
    }

    /// Where it lies, for a process that takes it over; `None`: there are no files.
    pub(crate) fn to_pass_on(&self) -> std::io::Result<Option<(PathBuf, File)>> {
        blocking(|| match &*lock(&self.files) {
            Stage::Begun(files) => Ok(Some((files.place.dir().to_owned(), files.place.lock_to_pass_on()?))),
            // Whoever finds them later ends the session that they name.
            Stage::NothingYet if !self.begun.load(Ordering::Relaxed) => {
                Err(std::io::ErrorKind::ResourceBusy.into())
            }
            Stage::NothingYet | Stage::Ended => Ok(None),
        })
    }

    /// Nothing of it is needed any more, but for what was given up and is nowhere else: with that it is kept. It is not written
    /// to afterwards.
    pub(crate) fn remove(&self) {
        let _no_other = lock(&self.putting_aside);
        if !lock(&self.given_up).lsns.is_empty() {
            self.keep(GIVEN_UP);
            return;
        }
        blocking(|| self.end().into_iter().for_each(|files| files.place.remove()));
    }

    /// Leaves it to the next client with this cache directory. Returns where it lies, if the operating system has all of it.
    pub(crate) fn leave(&self) -> Option<PathBuf> {
        if blocking(|| self.sync()) == OnDisk::No && self.write() == OnDisk::No {
            return None;
        }
        let files = self.end()?;
        if files.segments.has_failed() {
            let dir = files.place.dir();
            tracing::warn!(
                ?dir,
                "what is left on the local disk may not survive a power cut: the disk fails"
            );
        }
        let dir = files.place.dir().to_owned();
        lock(&self.given_up).kept = Some(dir.clone());
        Some(dir)
    }

    fn end(&self) -> Option<Files> {
        match std::mem::replace(&mut *lock(&self.files), Stage::Ended) {
            Stage::Begun(files) => Some(*files),
            Stage::NothingYet | Stage::Ended => None,
        }
    }

    /// The session is lost: puts it aside for recovery. `None`: there is nothing of it.
    pub(crate) fn keep(&self, why: &str) -> Option<Aside> {
        blocking(|| self.put_aside(why))
    }

    fn put_aside(&self, why: &str) -> Option<Aside> {
        let complete = self.write();
        let files = self.end()?;
        let dir = files.place.dir().to_owned();
        if complete == OnDisk::No {
            tracing::error!(?dir, "the operation log on the local disk lacks its last records");
        }
        let (dir, aside): (_, fn(PathBuf) -> Aside) =
            match files.place.keep(&Note::new(&self.keeper.name, why)) {
                Ok(kept) => (kept, Aside::Kept),
                Err(error) => {
                    tracing::error!(%error, "the operation log could not be put aside");
                    (dir, Aside::Left)
                }
            };
        lock(&self.given_up).kept = Some(dir.clone());
        Some(aside(dir))
    }

    /// Puts records that were given up ([`DiskLog::push_given_up`]) into a log of their own, for recovery, before this one
    /// forgets them. Reads all of this log: may take long.
    pub(crate) fn keep_apart(&self, records: Vec<Record>, why: &str) -> Aside {
        let _one_at_a_time = lock(&self.putting_aside);
        if let Some(kept) = &lock(&self.given_up).kept {
            return Aside::Kept(kept.clone());
        }
        let _ = self.write();
        crash::point_of_loss("client.given-up");
        let found = self.find();
        let found_at = |fid, lsn| found.as_ref()?.version_before(fid, lsn);
        match self.keeper.keep(&records, found_at, why) {
            Ok(dir) => {
                crash::point_of_loss("client.kept-apart");
                let lsns: Vec<Lsn> = records.iter().map(|record| record.lsn).collect();
                self.push(Entry::GivenUp { lsns: lsns.clone() });
                let mut given_up = lock(&self.given_up);
                given_up.lsns.retain(|lsn| !lsns.contains(lsn));
                given_up.is_said = false;
                drop(given_up);
                let _ = self.write();
                Aside::Kept(dir)
            }
            Err(error) => {
                let mut given_up = lock(&self.given_up);
                // The next ones as a rule fail in the same way.
                if !std::mem::replace(&mut given_up.is_said, true) {
                    tracing::error!(%error, "what was given up stays in the operation log until it can be kept elsewhere");
                }
                given_up.again.push((records, why.to_owned()));
                Aside::Here
            }
        }
    }

    /// Whether [`DiskLog::keep_apart`] is to be tried again.
    pub(crate) fn has_more_to_keep(&self) -> bool {
        !lock(&self.given_up).again.is_empty()
    }

    /// As [`DiskLog::keep_apart`], of what there was no room for. Returns where it lies now.
    pub(crate) fn keep_the_rest(&self) -> Vec<PathBuf> {
        let again = std::mem::take(&mut lock(&self.given_up).again);
        let kept = again.into_iter().map(|(records, why)| self.keep_apart(records, &why));
        let kept = kept.filter_map(|aside| match aside {
            Aside::Kept(dir) => Some(dir),
            Aside::Here | Aside::Left(_) => None,
        });
        kept.collect()
    }

    /// What is in the files, while others write them: what they delete meanwhile is looked for again.
    fn find(&self) -> Option<Found> {
        let dir = match &*lock(&self.files) {
            Stage::Begun(files) => files.place.dir().to_owned(),
            Stage::NothingYet | Stage::Ended => return None,
        };
        (0..READS).find_map(|_| segments::read(&dir).ok())?
    }
}

/// Inodes that a change touches; each once.
pub(crate) fn inodes_of(change: &Change) -> impl Iterator<Item = Fid> {
    change.touches().into_iter().filter_map(|(object, _)| match object {
        Object::Inode(fid) => Some(fid),
        Object::Name(_) | Object::Tree => None,
    })
}

#[cfg(test)]
mod tests;
