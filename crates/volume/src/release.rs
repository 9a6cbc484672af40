//! Chunks that nothing refers to any more, on their way to being released.
//!
//! The batch that drops the last reference to a chunk also puts a record into the release table. Only when that batch is
//! durable may the space be given back: else a power cut could bring the reference back to a hole. So a chunk waits
//! here for the next sync, then is released, then its record is deleted. A crash in between repeats the release, which
//! does nothing the second time. If the journal still has its data, too ([`redo`](crate::redo)), that record goes with it:
//! after a crash before that the data is written into its place once more, and then released again.
//!
//! What the last run left is looked at twice: it waits until all extents were looked through ([`sweep`](crate::sweep)), and what
//! one of them refers to is kept. Drop and record come in one batch, so that takes a fault of ours or of the store's; but of what
//! is given back in error nothing is left.

use crate::record::{self, Released};
use crate::{key, view};
use soda_storage::{Batch, ChunkRef, DataStore, MetaRead, MetaStore, SegmentId, Table, crash};
use soda_types::FsResult;
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the last run.
    unchecked: Vec<ChunkRef>,
    /// Dropped by batches that may not be durable.
    waiting: Vec<ChunkRef>,
    /// Dropped by batches that are, in the order of the medium.
    ready: BTreeSet<ChunkRef>,
}

impl ReleaseQueue {
    /// What was left by the last run.
    pub(crate) fn load(meta: &dyn MetaRead) -> FsResult<ReleaseQueue> {
        let queue = ReleaseQueue::default();
        queue.reload(meta)?;
        Ok(queue)
    }

    /// Takes everything from the records again. They may not be durable, whatever was known.
    pub(crate) fn reload(&self, meta: &dyn MetaRead) -> FsResult<()> {
        let mut unchecked = Vec::new();
        meta.scan(Table::Release, &[], &key::end_of_table(), &mut |key, value| {
            match record::decode::<Released>(&value) {
                Ok(released) => unchecked.push(released.chunk),
                // Left for fsck: the chunk shows up as leaked.
                Err(error) => tracing::warn!("{}", view::damaged(Table::Release, key, error)),
            }
            ControlFlow::Continue(())
        })?;
        *self.state() = State { unchecked, ..State::default() };
        Ok(())
    }

    /// Segments with chunks of which it is yet to be seen that no extent refers to them.
    pub(crate) fn unchecked(&self) -> BTreeSet<SegmentId> {
        self.state().unchecked.iter().map(|chunk| chunk.segment).collect()
    }

    /// Goes on with what was left by the last run. `in_use`: what extents refer to in these segments, in order.
    pub(crate) fn checked(&self, in_use: &[ChunkRef]) {
        let mut state = self.state();
        for chunk in std::mem::take(&mut state.unchecked) {
            if is_in_use(&chunk, in_use) {
                // It may have been dropped meanwhile: then it has the same record. Else fsck takes that away.
                tracing::error!(
                    ?chunk,
                    "it was to be given back and a file has it: it is kept, run `soda fsck`"
                );
            } else {
                state.waiting.push(chunk);
            }
        }
    }

    /// Takes up what a batch dropped that was just committed.
    pub(crate) fn dropped(&self, chunks: Vec<ChunkRef>) {
        if !chunks.is_empty() {
            self.state().waiting.extend(chunks);
        }
    }

    /// Runs `sync`. If it ends well, what was dropped before it may be given back.
    pub(crate) fn at_sync(&self, sync: impl FnOnce() -> FsResult<()>) -> FsResult<()> {
        let waiting = std::mem::take(&mut self.state().waiting);
        let synced = sync();
        let mut state = self.state();
        match synced {
            Ok(()) => state.ready.extend(waiting),
            Err(_) => state.waiting.extend(waiting),
        }
        synced
    }

    /// Gives back the space of at most `limit` chunks whose end is durable. Returns how many it was.
    pub(crate) fn give_back_some(
        &self,
        meta: &dyn MetaStore,
        data: &dyn DataStore,
        limit: usize,
    ) -> FsResult<usize> {
        let chunks: Vec<ChunkRef> = {
            let mut state = self.state();
            (0..limit).map_while(|_| state.ready.pop_first()).collect()
        };
        if chunks.is_empty() {
            return Ok(0);
        }
        if let Err(error) = give_back(meta, data, &chunks) {
            // To release once more what was released does nothing.
            self.state().ready.extend(chunks);
            return Err(error);
        }
        Ok(chunks.len())
    }

    /// Whether there is something to give back now.
    pub(crate) fn are_ready(&self) -> bool {
        !self.state().ready.is_empty()
    }

    /// Bytes of the chunks that wait for a sync to be released.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.state().waiting.iter().map(|chunk| u64::from(chunk.len)).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one of these, which are in order, takes a part of what the chunk takes.
fn is_in_use(chunk: &ChunkRef, in_use: &[ChunkRef]) -> bool {
    let span = chunk.span();
    let behind = in_use.partition_point(|used| (used.segment, used.offset) < (chunk.segment, span.end));
    let before = behind.checked_sub(1).map(|last| in_use[last]);
    before.is_some_and(|used| used.segment == chunk.segment && used.span().end > span.start)
}

/// What chunks take, neighbours as one: giving space back is slow on some media, whatever its length. `chunks` are in
/// order.
fn joined(chunks: &[ChunkRef]) -> Vec<(SegmentId, Range<u64>)> {
    let mut ranges: Vec<(SegmentId, Range<u64>)> = Vec::new();
    for chunk in chunks {
        let span = chunk.span();
        match ranges.last_mut() {
            Some((segment, range)) if *segment == chunk.segment && range.end == span.start => {
                range.end = span.end
            }
            _ => ranges.push((chunk.segment, span)),
        }
    }
    ranges
}

fn give_back(meta: &dyn MetaStore, data: &dyn DataStore, chunks: &[ChunkRef]) -> FsResult<()> {
    for (segment, range) in joined(chunks) {
        data.release_range(segment, range)?;
    }
    let mut batch = Batch::releasing();
    for chunk in chunks {
        let key = key::chunk(chunk);
        // Left alone it would take the place anew at the next start, and nobody would give that back.
        if meta.get(Table::Redo, &key)?.is_some() {
            batch.delete(Table::Redo, key.clone());
        }
        batch.delete(Table::Release, key);
    }
    crash::point("volume.release.punched");
    meta.commit(batch)?;
    crash::point("volume.release.recorded");
    Ok(())
}
