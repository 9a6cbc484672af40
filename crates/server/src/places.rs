//! Work on the store is done on the runtime's threads, so that a call costs no change of threads. But a store can stall for
//! seconds (a slow disk, a full write cache), and a thread that waits for it does nothing else. So there are fewer places
//! for such work than threads: some are always left to read what clients send, renew sessions and take answers to
//! recalls. Nothing that does this takes a place, or waits for a lock that somebody holds while the store works.

use crate::server::Shared;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Threads that never work on the store.
pub(crate) const RESERVED: usize = 2;
/// Work that takes longer has its thread stuck.
const STUCK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Places {
    free: Semaphore,
    entered: AtomicU64,
    left: AtomicU64,
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
}

/// Whoever of the runtime's threads handles events of sockets goes on to the work they bring; if that gets stuck, the other
/// threads sleep on. Waking one of them makes it look after the sockets.
pub(crate) fn start_watch(shared: Arc<Shared>, runtime: Handle) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("soda-watch".to_owned()).spawn(move || {
        let mut left_before = 0;
        while !shared.is_stopping() {
            std::thread::park_timeout(STUCK);
            let left = shared.places.left.load(Ordering::Relaxed);
            let at_work = shared.places.entered.load(Ordering::Relaxed) > left;
            if at_work && left == left_before {
                drop(runtime.spawn(async {}));
            }
            left_before = left;
        }
    })
}
