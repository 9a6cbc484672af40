//! What is left for others to do. It is noted here where nothing may wait, mostly under the core's lock; the tasks and threads
//! of `upkeep` and `register` do it.

use soda_types::{Fid, Monotonic, SessionId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;
use tokio::sync::Notify;

/// Before a deletion that failed is tried again; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 6;

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
    lists: Mutex<Unlinked>,
    wake: Notify,
    /// Something was refused for want of space.
    space_is_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct Unlinked {
    queue: VecDeque<Deletion>,
    /// Failed before; to be tried again at that time.
    put_off: BTreeSet<(Monotonic, Deletion)>,
}

/// An inode that is to be deleted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Deletion {
    pub(crate) fid: Fid,
    pub(crate) failures: u32,
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
        lock(&self.lists).queue.push_back(Deletion { fid, failures: 0 });
        self.wake.notify_one();
    }

    /// It could not be deleted; returns when it is tried again.
    pub(crate) fn put_off(&self, now: Monotonic, deletion: Deletion) -> Duration {
        let pause = FIRST_PAUSE * (1 << deletion.failures.min(MOST_DOUBLINGS));
        let deletion = Deletion { failures: deletion.failures + 1, ..deletion };
        lock(&self.lists).put_off.insert((now + pause, deletion));
        self.wake.notify_one();
        pause
    }

    pub(crate) fn next(&self, now: Monotonic) -> Option<Deletion> {
        let mut lists = lock(&self.lists);
        if lists.put_off.first().is_some_and(|(due, _)| *due <= now) {
            return lists.put_off.pop_first().map(|(_, deletion)| deletion);
        }
        lists.queue.pop_front()
    }

    /// When there is something to delete though nobody says so.
    pub(crate) fn next_due(&self) -> Option<Monotonic> {
        lock(&self.lists).put_off.first().map(|(due, _)| *due)
    }

    /// Waits until somebody says that there is something to delete.
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
    /// Those whose end the store refused.
    refused: Mutex<Vec<SessionId>>,
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

    /// Whether the store has sessions that have ended and was not asked yet to forget them.
    pub(crate) fn is_behind(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Those that nobody is about to delete yet.
    pub(crate) fn take_ended(&self) -> Vec<SessionId> {
        std::mem::take(&mut *lock(&self.ended))
    }

    /// So many of them are not in the store any more, or are refused.
    pub(crate) fn tried(&self, count: usize) {
        self.pending.fetch_sub(count, Ordering::Release);
    }

    /// To be tried again.
    pub(crate) fn note_refused(&self, sessions: &[SessionId]) {
        lock(&self.refused).extend(sessions);
    }

    /// They stay refused while they are tried again: whoever asks meanwhile is not to hear that they are written.
    pub(crate) fn refused(&self) -> Vec<SessionId> {
        lock(&self.refused).clone()
    }

    /// What is left of [`Register::refused`] now that they were tried again.
    pub(crate) fn note_still_refused(&self, still: Vec<SessionId>) {
        *lock(&self.refused) = still;
    }

    pub(crate) fn is_refused(&self, session: SessionId) -> bool {
        lock(&self.refused).contains(&session)
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

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    #[test]
    fn a_session_whose_end_is_being_tried_again_is_refused_until_it_is_written() {
        let register = Register::default();
        let (one, two) = (SessionId(1), SessionId(2));
        register.note_refused(&[one, two]);
        assert_eq!(register.refused(), [one, two]);
        assert!(register.is_refused(one) && register.is_refused(two), "its goodbye may be answered just now");
        register.note_still_refused(vec![two]);
        assert_eq!((register.is_refused(one), register.is_refused(two)), (false, true));
    }

    #[test]
    fn a_deletion_that_fails_is_tried_again_later_each_time_and_holds_nobody_up() {
        let janitor = Janitor::default();
        let (bad, good) = (Fid::new(VolumeId(1), Ino(2)), Fid::new(VolumeId(1), Ino(3)));
        let mut now = Monotonic::from_nanos(5);
        janitor.enqueue(bad);
        let mut pauses = Vec::new();
        for failures in 0..9 {
            let deletion = Deletion { fid: bad, failures };
            assert_eq!(janitor.next(now), Some(deletion));
            let pause = janitor.put_off(now, deletion);
            pauses.push(pause.as_secs());
            assert_eq!(janitor.next_due(), Some(now + pause));
            assert_eq!(janitor.next(now), None);
            janitor.enqueue(good);
            assert_eq!(janitor.next(now).map(|next| next.fid), Some(good));
            now = now + pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }
}
