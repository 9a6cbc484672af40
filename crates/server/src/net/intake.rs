//! Memory of requests: what was read from clients and has no answer yet.
//!
//! What waits for the store waits in memory: digests, each as large as a frame and up to nine of a session (also what is stored
//! before its turn), and data of writes. A store that stalls keeps it there, of all sessions at once. So there is one limit for
//! all of it.
//!
//! * *Who gets how much.* A session gets more for what is long only while it has no more than what is left for all (Choudhury
//!   and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). So who tells much cannot take all,
//!   nobody's share has to be set, and there is room for who has nothing there: beside `n` sessions that tell as much as they
//!   can the `n + 1`th part of the limit.
//! * *Who others wait for* gets what is kept for that, too: what such a session tells need not wait for the disk
//!   (`call::digest::medium`).
//! * *What is short* is taken in any case, and counts: it is what others' requests wait for, and what ends them.
//!
//! Nobody waits in a circle for this: what is long waits for the store only and not for other clients, as a write's data is in
//! the store before anybody is asked for a lease, and a digest asks nobody.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Up to this many bytes a request is short.
pub(crate) const SHORT: usize = 64 << 10;
/// The least limit: the longest frame fits in beside others.
const LEAST: u64 = 16 << 20;
/// The part of the limit that is kept for sessions that others wait for.
const KEPT: u64 = 8;

/// All requests of all sessions.
#[derive(Debug)]
pub(crate) struct Intake {
    limit: u64,
    held: AtomicU64,
    /// Who waits for room.
    waiting: AtomicUsize,
    /// Some was given back.
    freed: Notify,
}

/// What one session has of it.
#[derive(Debug, Default)]
pub(crate) struct Account(AtomicU64);

/// A session's access to it.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    intake: Arc<Intake>,
    account: Arc<Account>,
}

/// Memory that a request has until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    share: Share,
    bytes: u64,
}

/// Whether others wait for what a session holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    No,
    Yes,
}

impl Intake {
    pub(crate) fn new(limit: u64) -> Intake {
        let limit = limit.max(LEAST);
        Intake { limit, held: AtomicU64::new(0), waiting: AtomicUsize::new(0), freed: Notify::new() }
    }

    /// Bytes.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }
}

impl Share {
    pub(crate) fn new(intake: &Arc<Intake>, account: &Arc<Account>) -> Share {
        Share { intake: Arc::clone(intake), account: Arc::clone(account) }
    }

    /// Room for a request, whether there is any or not.
    pub(crate) fn take(&self, bytes: usize) -> Held {
        let mut held = Held { share: self.clone(), bytes: 0 };
        held.grow(bytes);
        held
    }

    /// Room for a request; `None`: there is none now.
    pub(crate) fn try_take(&self, bytes: usize, awaited: Awaited) -> Option<Held> {
        let bytes = bytes as u64;
        let taken = |held: u64| self.fits(held, bytes, awaited).then_some(held + bytes);
        self.intake.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).ok()?;
        self.account.0.fetch_add(bytes, Ordering::SeqCst);
        Some(Held { share: self.clone(), bytes })
    }

    /// Waits until [`Share::try_take`] would find room for who nobody waits for.
    pub(crate) async fn room(&self, bytes: usize) {
        // Said before it is looked: who gives back afterwards sees it.
        let _waits = Waits::new(&self.intake.waiting);
        loop {
            let mut freed = pin!(self.intake.freed.notified());
            freed.as_mut().enable();
            if self.fits(self.intake.held(), bytes as u64, Awaited::No) {
                return;
            }
            freed.await;
        }
    }

    fn fits(&self, held: u64, bytes: u64, awaited: Awaited) -> bool {
        let limit = self.intake.limit;
        match awaited {
            Awaited::Yes => bytes <= limit.saturating_sub(held),
            Awaited::No => {
                let own = self.account.0.load(Ordering::SeqCst);
                own + bytes <= (limit - limit / KEPT).saturating_sub(held)
            }
        }
    }
}

impl Held {
    /// So many bytes more: what the request was decoded to.
    pub(crate) fn grow(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.share.intake.held.fetch_add(bytes, Ordering::SeqCst);
        self.share.account.0.fetch_add(bytes, Ordering::SeqCst);
        self.bytes += bytes;
    }

    /// What is left of the request is next to nothing: its data is in the store.
    pub(crate) fn give_back(&mut self) {
        let (bytes, intake) = (std::mem::take(&mut self.bytes), &self.share.intake);
        self.share.account.0.fetch_sub(bytes, Ordering::SeqCst);
        intake.held.fetch_sub(bytes, Ordering::SeqCst);
        if bytes > 0 && intake.waiting.load(Ordering::SeqCst) > 0 {
            intake.freed.notify_waiters();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Counts as waiting while this is there.
struct Waits<'a>(&'a AtomicUsize);

impl Waits<'_> {
    fn new(waiting: &AtomicUsize) -> Waits<'_> {
        waiting.fetch_add(1, Ordering::SeqCst);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    const MIB: usize = 1 << 20;

    fn intake() -> Arc<Intake> {
        Arc::new(Intake::new(64 << 20))
    }

    fn session(intake: &Arc<Intake>) -> Share {
        Share::new(intake, &Arc::default())
    }

    /// All that it gets in pieces of a MiB.
    fn all(share: &Share, awaited: Awaited) -> Vec<Held> {
        std::iter::from_fn(|| share.try_take(MIB, awaited)).collect()
    }

    #[test]
    fn who_takes_all_he_can_leaves_as_much_for_others() {
        let intake = intake();
        let sessions: Vec<Share> = (0..6).map(|_| session(&intake)).collect();
        // An eighth is kept, and of the other 56 half is left, then a third.
        let first = all(&sessions[0], Awaited::No);
        let second = all(&sessions[1], Awaited::No);
        assert_eq!((first.len(), second.len()), (28, 14));
        drop(first);
        // It has more than is left while others have more.
        assert_eq!(all(&sessions[0], Awaited::No).len(), 21);
        assert_eq!(intake.held(), 14 << 20, "given back");
    }

    #[test]
    fn who_comes_late_finds_room_however_many_others_take_all_they_can() {
        let intake = intake();
        let others: Vec<Share> = (0..20).map(|_| session(&intake)).collect();
        let mut held: Vec<Held> = Vec::new();
        loop {
            let more: Vec<Held> =
                others.iter().filter_map(|share| share.try_take(MIB, Awaited::No)).collect();
            if more.is_empty() {
                break;
            }
            held.extend(more);
        }
        assert!(session(&intake).try_take(MIB, Awaited::No).is_some());
        assert!(held.len() >= 40, "{}: the others have the most", held.len());
    }

    #[test]
    fn what_is_kept_is_for_who_others_wait_for_and_the_limit_holds_for_all() {
        let intake = intake();
        let sessions: Vec<Share> = (0..100).map(|_| session(&intake)).collect();
        let mut held: Vec<Held> =
            sessions.iter().filter_map(|share| share.try_take(MIB, Awaited::No)).collect();
        assert_eq!(held.len(), 56);
        assert!(sessions[99].try_take(MIB, Awaited::No).is_none());
        held.extend(all(&sessions[0], Awaited::Yes));
        assert_eq!((held.len(), intake.held()), (64, 64 << 20));
        assert!(sessions[1].try_take(1, Awaited::Yes).is_none());
        held.truncate(56);
        assert!(
            sessions[1].try_take(MIB, Awaited::Yes).is_some(),
            "what is given back is there for the next"
        );
    }

    #[test]
    fn what_is_short_is_taken_in_any_case_and_counts() {
        let intake = intake();
        let share = session(&intake);
        let mut held = share.take(60 * MIB);
        assert!(share.try_take(MIB, Awaited::No).is_none());
        held.grow(10 * MIB);
        assert_eq!(intake.held(), 70 << 20);
        assert!(session(&intake).try_take(1, Awaited::Yes).is_none());
        held.give_back();
        assert_eq!(intake.held(), 0);
        drop(held);
        assert_eq!(intake.held(), 0, "once");
    }

    #[test]
    fn who_waits_for_room_goes_on_when_there_is_some() {
        let intake = intake();
        let (share, other) = (session(&intake), session(&intake));
        let (much, little) = (other.take(40 * MIB), other.take(15 * MIB));
        let mut context = Context::from_waker(Waker::noop());
        let mut room = pin!(share.room(2 * MIB));
        assert_eq!(room.as_mut().poll(&mut context), Poll::Pending);
        assert!(share.try_take(2 * MIB, Awaited::No).is_none());
        drop(little);
        assert_eq!(room.as_mut().poll(&mut context), Poll::Ready(()));
        assert!(share.try_take(2 * MIB, Awaited::No).is_some());
        assert_eq!(intake.waiting.load(Ordering::SeqCst), 0, "nobody waits any more");
        drop(much);
    }
}
