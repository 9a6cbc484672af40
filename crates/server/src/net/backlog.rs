//! What was read from a peer and waits to be done.

use super::Outbox;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Above this many bytes nothing more is read.
const MAX: usize = 16 << 20;
/// What a waiting frame takes beside its bytes.
const OVERHEAD: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Backlog(AtomicUsize);

impl Backlog {
    pub(crate) fn has_room(&self) -> bool {
        self.0.load(Ordering::Acquire) <= MAX
    }

    /// A frame with so many bytes waits.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes + OVERHEAD, Ordering::AcqRel);
    }

    /// It is done; wakes the reader of the connection if there is room again.
    pub(crate) fn done(&self, bytes: usize, outbox: &Outbox) {
        let before = self.0.fetch_sub(bytes + OVERHEAD, Ordering::AcqRel);
        if before > MAX && self.has_room() {
            outbox.flush_later();
        }
    }
}
