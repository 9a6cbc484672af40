//! What was read from a peer and waits to be done.

use super::{Budget, Outbox};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Above this many bytes nothing more is read.
const MAX: usize = 16 << 20;
/// What a waiting frame takes beside its bytes.
const OVERHEAD: usize = 512;

#[derive(Debug)]
pub(crate) struct Backlog {
    bytes: AtomicUsize,
    /// The reader waits until there is room.
    is_waited_for: AtomicBool,
    budget: Arc<Budget>,
}

impl Backlog {
    pub(crate) fn new(budget: &Arc<Budget>) -> Backlog {
        Backlog {
            bytes: AtomicUsize::new(0),
            is_waited_for: AtomicBool::new(false),
            budget: Arc::clone(budget),
        }
    }

    /// If not, the connection is woken when there is.
    pub(crate) fn has_room(&self) -> bool {
        if self.fits() {
            return true;
        }
        // Said before it is looked again: who is done with something afterwards sees it.
        self.is_waited_for.store(true, Ordering::SeqCst);
        self.fits()
    }

    /// A frame with so many bytes waits.
    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes + OVERHEAD, Ordering::SeqCst);
        self.budget.take(bytes + OVERHEAD);
    }

    /// It is done; wakes the reader of the connection if there is room again.
    pub(crate) fn done(&self, bytes: usize, outbox: &Outbox) {
        self.budget.give_back(bytes + OVERHEAD);
        self.bytes.fetch_sub(bytes + OVERHEAD, Ordering::SeqCst);
        if self.is_waited_for.load(Ordering::SeqCst)
            && self.fits()
            && self.is_waited_for.swap(false, Ordering::SeqCst)
        {
            outbox.flush_later();
        }
    }

    fn fits(&self) -> bool {
        self.budget.allows(self.bytes.load(Ordering::SeqCst), MAX)
    }
}

/// What nobody has begun goes with the connection.
impl Drop for Backlog {
    fn drop(&mut self) {
        self.budget.give_back(*self.bytes.get_mut());
    }
}
