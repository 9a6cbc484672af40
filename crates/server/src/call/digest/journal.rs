//! How much of digests' data may go into the store's journal.

use crate::shared::Shared;
use soda_volume::Redo;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most of a digest, bytes: what clients tell at once, and a little more.
const MOST: u64 = 2 << 20;

/// A digest with no more data than this, bytes, goes there without waiting for the medium first: likely somebody waits for it,
/// and to write this twice takes less than one more sync.
pub(super) const AT_ONCE: u64 = 128 << 10;

/// The most that is there before a sync makes it superfluous, bytes. It shares a tree of the store with small records, whose
/// table in memory would be written out otherwise (32 MiB: `StoreOptions::memtable`).
const MOST_OF_ALL: u64 = 16 << 20;

/// What has to be free for that beside what is spoken for, bytes: it takes its space twice until the next sync, and what others
/// were promised is not to be had for that. The same for what is stored before its turn.
const ROOM: u64 = 64 << 20;

/// Whether so much data of a digest may go there.
pub(super) fn redo(bytes: u64) -> Redo {
    if (1..=MOST).contains(&bytes) { Redo::Yes } else { Redo::No }
}

/// Whether something may take its space twice for a while.
pub(super) fn has_room(shared: &Shared) -> bool {
    let needed = shared.space.spoken_for().saturating_add(ROOM);
    shared.free_space().is_ok_and(|free| free >= needed)
}

/// Data of a digest on their way into the journal, until the volume counts them.
#[derive(Debug)]
pub(super) struct Part {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Part {
    /// `None`: with all that is there or on the way it would be too much.
    pub(super) fn take(shared: &Arc<Shared>, bytes: u64) -> Option<Part> {
        let all = shared.to_journal.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        // Given back where it is dropped here.
        let part = Part { shared: shared.clone(), bytes };
        let fits = shared.volume.redo_bytes().saturating_add(all) <= MOST_OF_ALL;
        (fits && has_room(shared)).then_some(part)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.shared.to_journal.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
