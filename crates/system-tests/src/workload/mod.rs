//! Threads on several mounts of one volume that do random operations on a few shared objects and note what they saw.

mod actor;

use crate::linear::History;
use crate::wait;
use actor::{Actor, Current};
use soda_model::Rng;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

/// How many objects of each kind: few, so that the threads meet.
const DATA_FILES: u16 = 2;
const BLOCKS: u16 = 3;
const DIRECTORIES: u16 = 2;
const NAMES: u8 = 4;
const ATTRIBUTE_FILES: u16 = 2;
const LOGS: u16 = 1;
const LOCKS: u16 = 1;
/// Distance of two blocks, bytes: a page.
const BLOCK_STRIDE: usize = 4096;
/// Records after which a log is only read: each check of a log looks at all of it.
const LOG_RECORDS: usize = 1500;
/// An operation without an answer for so long, with no fault in force, is hung.
const HUNG: Duration = Duration::from_secs(60);

/// What the threads do.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    pub threads_per_mount: u16,
    /// Each thread stops after so many operations, or when the faults are over.
    pub operations: u64,
    /// Bytes that one read and one write of a block are about, a multiple of 8, at most a page: what must never be
    /// seen half old and half new. (Linux's own file systems promise no more than a word.)
    pub block_bytes: usize,
    /// The mean pause between two operations of a thread.
    pub pause: Duration,
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
    /// If that takes longer than `limit`.
    pub fn advance(&self, count: u64, limit: Duration) {
        let before = self.done.load(Ordering::Relaxed);
        let advanced = wait::until(limit, || self.done.load(Ordering::Relaxed) >= before + count);
        let done = self.done.load(Ordering::Relaxed) - before;
        assert!(advanced, "only {done} of {count} operations within {limit:?}");
    }

    /// Waits until every thread has done all its operations.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    pub fn complete(&self, limit: Duration) {
        let complete = wait::until(limit, || self.running.load(Ordering::Relaxed) == 0);
        assert!(complete, "not done within {limit:?}");
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
        prepare(&roots[0]);
        let progress = Progress::default();
        let mut rng = Rng::new(self.seed);
        let threads = roots.len() * usize::from(self.threads_per_mount);
        progress.running.store(threads as u64, Ordering::Relaxed);
        let (mut workers, mut current) = (Vec::new(), Vec::new());
        for number in 0..threads {
            let doing = Current::default();
            let root = roots[number % roots.len()].clone();
            let actor = Actor::new(number as u16, root, self.block_bytes, rng.fork(), doing.clone());
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
        let history = History { reproduce, calls: Vec::new() };
        let mut run = Run { history, errors: vec![Vec::new(); roots.len()] };
        for (number, worker) in workers.into_iter().enumerate() {
            let Ok(actor) = worker.join() else { panic!("thread {number} failed") };
            run.history.calls.extend(actor.calls);
            run.errors[number % roots.len()].extend(actor.errors);
        }
        run
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

/// The seed of a test: `SODA_SEED`, or the one given.
pub fn seed(default: u64) -> u64 {
    std::env::var("SODA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Puts every object in its initial state.
fn prepare(root: &Path) {
    let made = || -> std::io::Result<()> {
        for file in 0..DATA_FILES {
            fs::write(root.join(data_name(file)), vec![0; BLOCK_STRIDE * usize::from(BLOCKS)])?;
        }
        for directory in 0..DIRECTORIES {
            fs::create_dir(root.join(directory_name(directory)))?;
        }
        for file in 0..ATTRIBUTE_FILES {
            for which in actor::ATTRIBUTES {
                let path = root.join(attribute_name(file, which));
                let file = fs::File::create(&path)?;
                file.set_modified(UNIX_EPOCH)?;
                file.set_permissions(fs::Permissions::from_mode(0o000))?;
            }
        }
        for log in 0..LOGS {
            fs::File::create(root.join(log_name(log)))?;
        }
        for lock in 0..LOCKS {
            fs::File::create(root.join(lock_name(lock)))?;
        }
        Ok(())
    };
    if let Err(error) = made() {
        panic!("{}: {error}", root.display());
    }
}

fn data_name(file: u16) -> String {
    format!("data{file}")
}

fn directory_name(directory: u16) -> String {
    format!("names{directory}")
}

fn attribute_name(file: u16, which: crate::linear::object::Attribute) -> String {
    format!("attribute{file}.{which:?}")
}

fn log_name(file: u16) -> String {
    format!("log{file}")
}

fn lock_name(file: u16) -> String {
    format!("lock{file}")
}
