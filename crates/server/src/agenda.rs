//! What is left for others to do. It is noted here where nothing may wait, mostly under the core's lock; the tasks and threads
//! of `upkeep` and `register` do it.

use soda_types::{Fid, Monotonic, SessionId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use tokio::sync::Notify;

/// When the table wants to be called.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    /// When its task is going to wake by itself, nanoseconds of the lease clock.
    armed: AtomicU64,
    wake: Notify,
}

impl Timer {
    /// The table wants to be called at `time`: wakes the timer's task if that would sleep for longer.
    pub(crate) fn wake_at(&self, time: Monotonic) {
        if time.as_nanos() < self.armed.load(Ordering::Acquire) {
            self.wake.notify_one();
        }
    }

    /// The timer's task wakes by itself at `time`. To be said under the core's lock.
    pub(crate) fn arm(&self, time: Monotonic) {
        self.armed.store(time.as_nanos(), Ordering::Release);
    }

    /// Waits until somebody wants to be looked after earlier.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}

/// Inodes to be deleted as soon as nobody uses them.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    queue: Mutex<VecDeque<Fid>>,
    wake: Notify,
    /// Something was refused for want of space.
    space_is_wanted: AtomicBool,
}

impl Janitor {
    pub(crate) fn want_space(&self) {
        self.space_is_wanted.store(true, Ordering::Release);
    }

    /// Whether space was wanted since the last time.
    pub(crate) fn take_want_of_space(&self) -> bool {
        self.space_is_wanted.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn enqueue(&self, fid: Fid) {
        lock(&self.queue).push_back(fid);
        self.wake.notify_one();
    }

    pub(crate) fn next(&self) -> Option<Fid> {
        lock(&self.queue).pop_front()
    }

    /// Waits until there is something to delete.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}

/// Sessions that have ended and that the store still has.
#[derive(Debug, Default)]
pub(crate) struct Register {
    ended: Mutex<Vec<SessionId>>,
    /// How many of them; one that is being deleted counts until it is.
    pending: AtomicUsize,
    writing: Mutex<()>,
    writer: OnceLock<Thread>,
}

impl Register {
    /// Notes that a session has ended. To be called under the core's lock, before anybody goes on who waited for it.
    pub(crate) fn note_end(&self, session: SessionId) {
        lock(&self.ended).push(session);
        self.pending.fetch_add(1, Ordering::Release);
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// Whether the store has sessions that have ended.
    pub(crate) fn is_behind(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Those that nobody is about to delete yet.
    pub(crate) fn take_ended(&self) -> Vec<SessionId> {
        std::mem::take(&mut *lock(&self.ended))
    }

    /// So many of them are not in the store any more.
    pub(crate) fn deleted(&self, count: usize) {
        self.pending.fetch_sub(count, Ordering::Release);
    }

    /// Held while the register is written. Taken before the core's lock, never after it.
    pub(crate) fn writing(&self) -> MutexGuard<'_, ()> {
        lock(&self.writing)
    }

    /// The thread to wake when a session ends.
    pub(crate) fn set_writer(&self, writer: Thread) {
        let _ = self.writer.set(writer);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
