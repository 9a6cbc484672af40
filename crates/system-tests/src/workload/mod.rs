//! Threads on several mounts of one volume that do random operations on a few shared objects and note what they saw.

mod actor;
mod attributes;
mod choice;
mod files;
mod layout;
mod locker;
mod locks;
mod names;

use crate::linear::History;
use crate::wait::{self, TIMED_OUT};
pub(crate) use actor::now;
use actor::{Actor, Current};
use soda_model::Rng;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An operation without an answer for so long, with no fault in force, is hung.
const HUNG: Duration = Duration::from_secs(60);
/// What takes so many times as long as it may without a break is slow.
const SLOW: u32 = 5;

/// What the threads do.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    pub threads_per_mount: u16,
    /// Each thread stops after so many operations, or when the faults are over.
    pub operations: u64,
    pub pieces: Pieces,
    pub descriptors: Descriptors,
    pub syncs: Syncs,
    /// The mean pause between two operations of a thread.
    pub pause: Duration,
    /// On so many mounts, the first ones, the threads only look. The others look and change.
    pub readers: usize,
}

/// What must never be seen half old and half new: how much one read and one write are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pieces {
    /// Eight bytes: no more do Linux's own file systems promise.
    Words,
    /// Pages, and up to 1 MiB for descriptors that can write (SEMANTICS 6).
    Calls,
}

/// What data is read and written through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptors {
    Any,
    /// Each for reading or for writing: Linux before 6.6 caches what goes through those for both (SEMANTICS E21).
    OneWay,
}

/// Whether files are synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syncs {
    Never,
    /// Now and then.
    Sometimes,
    /// The same, for mounts that may lose what is not synced. Directories have no files in them then: each is told by itself,
    /// so what is lost of several is not the end of anything.
    AgainstLoss,
}

/// What the threads on a mount do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Reader,
    Everything,
}

/// Where a thread works.
#[derive(Clone, Debug)]
struct Place {
    root: PathBuf,
    role: Role,
    is_last: bool,
}

/// What they saw.
#[derive(Debug)]
pub struct Run {
    pub history: History,
    /// Of each mount: the operations that ended with an error that no healthy file system gives.
    pub errors: Vec<Vec<String>>,
}

/// How far the threads are, for who injects faults.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    done: Arc<AtomicU64>,
    running: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Waits until all threads together have done `count` more operations.
    ///
    /// # Panics
    /// If none was done for `limit`; if it takes [`SLOW`] times as long in all, a slow machine is an excuse.
    pub fn advance(&self, count: u64, limit: Duration) {
        let before = self.done();
        self.wait(limit, &format!("{count} operations"), || self.done() >= before + count);
    }

    /// Waits until every thread has done all its operations.
    ///
    /// # Panics
    /// As [`Progress::advance`].
    pub fn complete(&self, limit: Duration) {
        self.wait(limit, "all operations", || self.running.load(Ordering::Relaxed) == 0);
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn wait(&self, limit: Duration, what: &str, mut is_done: impl FnMut() -> bool) {
        let (start, begun) = (self.done(), Instant::now());
        // Looks, not time: a machine that stood still was not looking.
        let (mut last, mut looks) = (start, 0);
        let ended = wait::until(limit * SLOW, || {
            looks = if last == self.done() { looks + 1 } else { 0 };
            last = self.done();
            is_done() || wait::POLL * looks >= limit
        });
        let done = last - start;
        assert!(ended, "{TIMED_OUT}: only {done} of {what} within {:?}", begun.elapsed());
        assert!(is_done(), "hung: none for {limit:?} after {done} of {what}");
    }
}

impl Workload {
    /// Runs on `roots`, each the volume as one mount shows it, while `faults` happen; stops when those are over.
    ///
    /// # Panics
    /// If an operation hangs, saying which.
    pub fn run(self, test: &str, roots: &[PathBuf], faults: impl FnOnce(&Progress)) -> Run {
        let reproduce = format!("SODA_SEED={} cargo test -p soda-system-tests {test}", self.seed);
        eprintln!("{reproduce}");
        let progress = Progress::default();
        let mut rng = Rng::new(self.seed);
        let threads = roots.len() * usize::from(self.threads_per_mount);
        layout::prepare(&roots[0], threads as u16);
        progress.running.store(threads as u64, Ordering::Relaxed);
        let (mut workers, mut current) = (Vec::new(), Vec::new());
        for number in 0..threads {
            let doing = Current::default();
            let place = self.place(roots, number % roots.len());
            let actor = Actor::new(number as u16, place, self.kind(), rng.fork(), doing.clone());
            let (progress, pauses) = (progress.clone(), rng.fork());
            workers.push(std::thread::spawn(move || self.work(actor, &progress, pauses)));
            current.push(doing);
        }
        faults(&progress);
        progress.stop.store(true, Ordering::Relaxed);
        if !wait::until(HUNG, || workers.iter().all(JoinHandle::is_finished)) {
            let hung = (0..threads).filter(|number| !workers[*number].is_finished());
            let lines: Vec<String> = hung
                .map(|number| format!("  mount {}: {:?}", number % roots.len(), current[number]))
                .collect();
            // They are not joined: the cell that this panic drops frees them.
            panic!("hung for {HUNG:?} after the last fault:\n{}\nrepeat with: {reproduce}", lines.join("\n"));
        }
        let history = History { reproduce, mounts: roots.len() as u16, ..History::default() };
        let mut run = Run { history, errors: vec![Vec::new(); roots.len()] };
        for (number, worker) in workers.into_iter().enumerate() {
            let Ok(actor) = worker.join() else { panic!("thread {number} failed") };
            run.history.calls.extend(actor.calls);
            run.errors[number % roots.len()].extend(actor.errors);
        }
        run
    }

    fn kind(&self) -> (Pieces, Descriptors, Syncs) {
        (self.pieces, self.descriptors, self.syncs)
    }

    fn place(&self, roots: &[PathBuf], mount: usize) -> Place {
        let role = if mount < self.readers { Role::Reader } else { Role::Everything };
        Place { root: roots[mount].clone(), role, is_last: mount + 1 == roots.len() }
    }

    fn work(self, mut actor: Actor, progress: &Progress, mut pauses: Rng) -> Actor {
        for _ in 0..self.operations {
            if progress.stop.load(Ordering::Relaxed) {
                break;
            }
            actor.step();
            progress.done.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(self.pause * pauses.below(200) as u32 / 100);
        }
        actor.finish();
        progress.running.fetch_sub(1, Ordering::Relaxed);
        actor
    }
}

/// The seed of a test: `SODA_SEED`, a number or `random`, or the one given.
///
/// # Panics
/// If it is neither: a run that was meant to be another one would pass for it.
pub fn seed(default: u64) -> u64 {
    match std::env::var("SODA_SEED").as_deref() {
        Err(_) => default,
        Ok("random") => u64::from(RandomState::new().build_hasher().finish() as u32),
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("SODA_SEED={text}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "hung")]
    fn threads_that_do_nothing_are_hung() {
        Progress::default().advance(1, Duration::from_millis(50));
    }
}
