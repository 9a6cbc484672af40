//! Slots and sequences: what makes changing operations exactly-once. One operation in flight for each slot.

use soda_oplog::DigestId;
use soda_protocol::{DigestSlots, OpId};
use soda_types::{Sequence, Slot};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

#[derive(Debug, Default)]
pub(crate) struct Slots {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    free: Vec<Slot>,
    next: u64,
    /// What belongs to an older one is not given back.
    generation: Generation,
    /// For digests: who waits at the server in the others must not keep a flush waiting.
    digests: Option<DigestSlots>,
    waiting: VecDeque<oneshot::Sender<SlotGuard>>,
}

/// Sessions of this client, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Generation(u64);

/// A slot in use with the sequence of its operation; free again when dropped.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    pub(crate) op: OpId,
    /// Only in this session does the sequence mean anything.
    pub(crate) generation: Generation,
    slots: Arc<Slots>,
    pool: Pool,
}

/// Whether a slot goes back to the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pool {
    Shared,
    Digests,
}

impl Slots {
    /// A new session begins: slots `0..count`, the last of which are for digests; sequences from 1.
    pub(crate) fn start_session(self: &Arc<Slots>, count: u16) -> Generation {
        let mut inner = crate::lock(&self.inner);
        inner.generation.0 += 1;
        let generation = inner.generation;
        inner.next = 1;
        inner.digests = DigestSlots::of(count);
        let others = inner.digests.map_or(count, |digests| digests.first.0);
        inner.free = (0..others.max(1)).rev().map(Slot).collect();
        drop(inner);
        self.serve_waiting();
        generation
    }

    /// The sequence of the next operation.
    pub(crate) fn next(&self) -> u64 {
        crate::lock(&self.inner).next
    }

    /// Sequences go on from here: those before were used by another process.
    pub(crate) fn go_on_from(&self, next: u64) {
        crate::lock(&self.inner).next = next;
    }

    /// `None` when all are in use.
    pub(crate) fn try_acquire(self: &Arc<Slots>) -> Option<SlotGuard> {
        let mut inner = crate::lock(&self.inner);
        if !inner.waiting.is_empty() {
            return None;
        }
        self.take(&mut inner)
    }

    /// Waits for a slot, in the order of asking. `None`: the client is shutting down.
    pub(crate) async fn acquire(self: &Arc<Slots>) -> Option<SlotGuard> {
        let receiver = {
            let mut inner = crate::lock(&self.inner);
            if inner.waiting.is_empty()
                && let Some(guard) = self.take(&mut inner)
            {
                return Some(guard);
            }
            let (sender, receiver) = oneshot::channel();
            inner.waiting.push_back(sender);
            receiver
        };
        receiver.await.ok()
    }

    /// Nobody gets a slot any more.
    pub(crate) fn close(&self) {
        let mut inner = crate::lock(&self.inner);
        inner.generation.0 += 1;
        inner.free.clear();
        inner.waiting.clear();
    }

    fn take(self: &Arc<Slots>, inner: &mut Inner) -> Option<SlotGuard> {
        let slot = inner.free.pop()?;
        let op = OpId { slot, sequence: Sequence(inner.next) };
        inner.next += 1;
        Some(SlotGuard { op, generation: inner.generation, slots: Arc::clone(self), pool: Pool::Shared })
    }

    /// `None`: the server gives too few.
    pub(crate) fn digest_slots(&self) -> Option<DigestSlots> {
        crate::lock(&self.inner).digests
    }

    /// One of the digests' own slots, for one of them. Their numbers are its sequences.
    pub(crate) fn digest(self: &Arc<Slots>, id: DigestId) -> Option<SlotGuard> {
        let (generation, slots) = {
            let inner = crate::lock(&self.inner);
            (inner.generation, inner.digests?)
        };
        let op = slots.op(Sequence(id.0));
        Some(SlotGuard { op, generation, slots: Arc::clone(self), pool: Pool::Digests })
    }

    fn serve_waiting(self: &Arc<Slots>) {
        loop {
            let mut inner = crate::lock(&self.inner);
            if inner.waiting.is_empty() {
                return;
            }
            let Some(guard) = self.take(&mut inner) else { return };
            let waiter = inner.waiting.pop_front();
            drop(inner);
            // If the waiter has gone the guard comes back and its drop serves the next one.
            if let Some(waiter) = waiter {
                let _ = waiter.send(guard);
            }
        }
    }
}

impl SlotGuard {
    /// Whether this is of the digest directly before that one.
    pub(crate) fn is_before(&self, other: &SlotGuard) -> bool {
        let are_digests = self.pool == Pool::Digests && other.pool == Pool::Digests;
        let follows = self.op.sequence.0 + 1 == other.op.sequence.0;
        are_digests && follows && self.generation == other.generation
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut inner = crate::lock(&self.slots.inner);
        if inner.generation != self.generation || self.pool == Pool::Digests {
            return;
        }
        inner.free.push(self.op.slot);
        let waiting = !inner.waiting.is_empty();
        drop(inner);
        if waiting {
            self.slots.serve_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slot_carries_one_operation_and_sequences_grow() {
        let slots = Arc::new(Slots::default());
        slots.start_session(3);
        let first = slots.try_acquire().unwrap();
        let second = slots.try_acquire().unwrap();
        assert!(slots.try_acquire().is_none());
        assert_ne!(first.op.slot, second.op.slot);
        let waiting = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.acquire().await.map(|guard| guard.op) }
        });
        tokio::task::yield_now().await;
        let slot = first.op.slot;
        drop(first);
        let op = waiting.await.unwrap().unwrap();
        assert_eq!((op.slot, op.sequence), (slot, Sequence(3)));
    }

    #[tokio::test]
    async fn a_waiter_that_gave_up_loses_no_slot() {
        let slots = Arc::new(Slots::default());
        slots.start_session(1);
        let first = slots.try_acquire().unwrap();
        let gave_up = slots.acquire();
        tokio::pin!(gave_up);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), &mut gave_up).await.is_err());
        drop(first);
        #[allow(clippy::drop_non_drop)]
        drop(gave_up);
        // `pin!` keeps the future until the end of the block: it was granted the slot and still holds it.
        let other = Arc::new(Slots::default());
        other.start_session(1);
        let first = other.try_acquire().unwrap();
        {
            let future = other.acquire();
            tokio::pin!(future);
            let _ = tokio::time::timeout(std::time::Duration::from_millis(1), &mut future).await;
            drop(first);
        }
        assert!(other.try_acquire().is_some());
    }

    #[test]
    fn digests_have_slots_of_their_own() {
        let slots = Arc::new(Slots::default());
        slots.start_session(2);
        let other = slots.try_acquire().unwrap();
        assert!(slots.try_acquire().is_none());
        let digest = slots.digest(DigestId(7)).unwrap();
        assert_ne!(digest.op.slot, other.op.slot);
        assert_eq!(digest.op.sequence, Sequence(7));
        drop(digest);
        assert!(slots.try_acquire().is_none(), "not given to others");
        slots.start_session(1);
        assert!(slots.digest(DigestId(8)).is_none());
    }

    #[test]
    fn a_new_session_starts_over() {
        let slots = Arc::new(Slots::default());
        slots.start_session(1);
        let old = slots.try_acquire().unwrap();
        slots.start_session(1);
        let new = slots.try_acquire().unwrap();
        assert_eq!(new.op.sequence, Sequence(1));
        drop(old);
        assert!(slots.try_acquire().is_none(), "the old session's slot must not come back");
    }
}
