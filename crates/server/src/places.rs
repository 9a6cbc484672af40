//! Work on the store is done on the runtime's threads, so that a call costs no change of threads. But a store can stall for
//! seconds (a slow disk, a full write cache), and a thread that waits for it does nothing else. So there are fewer places
//! for such work than threads: some are always left to read what clients send, renew sessions and take answers to
//! recalls. Nothing that does this takes a place, or waits for a lock that somebody holds while the store works.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Threads that never work on the store.
pub(crate) const RESERVED: usize = 2;
#[derive(Debug)]
pub(crate) struct Places {
    free: Semaphore,
    entered: AtomicU64,
    left: AtomicU64,
}

/// How far the work at all places has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// Pieces of work that are done.
    pub(crate) left: u64,
    /// Somebody has a place.
    pub(crate) is_at_work: bool,
}

/// The right to work on the store, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'p> {
    left: &'p AtomicU64,
    _permit: Option<SemaphorePermit<'p>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

impl Places {
    pub(crate) fn new(threads: usize) -> Places {
        let places = threads.saturating_sub(RESERVED).max(1);
        Places { free: Semaphore::new(places), entered: AtomicU64::new(0), left: AtomicU64::new(0) }
    }

    /// Waits for a place, in the order of asking.
    pub(crate) async fn enter(&self) -> Place<'_> {
        // The semaphore is never closed.
        let permit = self.free.acquire().await.ok();
        self.entered.fetch_add(1, Ordering::Relaxed);
        Place { left: &self.left, _permit: permit }
    }

    pub(crate) fn progress(&self) -> Progress {
        let left = self.left.load(Ordering::Relaxed);
        Progress { left, is_at_work: self.entered.load(Ordering::Relaxed) > left }
    }
}
