//! How much a volume holds: exact in every batch, and to be asked for without waiting for a commit that is under way.

use crate::record::Counters;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(crate) struct Totals {
    /// As of the last commit.
    stored: Mutex<Counters>,
    inodes: AtomicU64,
    /// Bytes.
    allocated: AtomicU64,
}

/// Kept from the making of a batch that changes the totals to the end of its commit.
#[derive(Debug)]
pub(crate) struct Turn<'t> {
    totals: &'t Totals,
    stored: MutexGuard<'t, Counters>,
}

impl Totals {
    pub(crate) fn new(stored: Counters) -> Totals {
        let (inodes, allocated) = (AtomicU64::new(stored.inodes), AtomicU64::new(stored.allocated));
        Totals { stored: Mutex::new(stored), inodes, allocated }
    }

    /// Waits for the commit of who changes them at the moment.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn { totals: self, stored: self.stored.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Each as it was at some moment since this was called.
    pub(crate) fn seen(&self) -> Counters {
        Counters {
            inodes: self.inodes.load(Ordering::Relaxed),
            allocated: self.allocated.load(Ordering::Relaxed),
        }
    }
}

impl Turn<'_> {
    pub(crate) fn stored(&self) -> Counters {
        *self.stored
    }

    /// The store has these now.
    pub(crate) fn set(&mut self, stored: Counters) {
        *self.stored = stored;
        self.totals.inodes.store(stored.inodes, Ordering::Relaxed);
        self.totals.allocated.store(stored.allocated, Ordering::Relaxed);
    }
}
