//! Chunks that nothing refers to any more, on their way to being released.
//!
//! The batch that drops the last reference to a chunk also puts a record into the release table. Only when that batch is
//! durable may the space be given back: else a power cut could bring the reference back to a hole. So a chunk waits
//! here for the next sync, then is released, then its record is deleted. A crash in between repeats the release, which
//! does nothing the second time. If the journal has its data, too ([`redo`](crate::redo)), it waits until that is gone.

use crate::record::{self, Released};
use crate::volume::Volume;
use crate::{key, view};
use soda_storage::{Batch, ChunkRef, MetaRead, SegmentId, Table, crash};
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
        let mut waiting = Vec::new();
        meta.scan(Table::Release, &[], &key::end_of_table(), &mut |key, value| {
            match record::decode::<Released>(&value) {
                Ok(released) => waiting.push(released.chunk),
                // Left for fsck: the chunk shows up as leaked.
                Err(error) => tracing::warn!("{}", view::damaged(Table::Release, key, error)),
            }
            ControlFlow::Continue(())
        })?;
        *self.state() = State { waiting, ready: BTreeSet::new() };
        Ok(())
    }

    /// Takes up what a batch dropped that was just committed.
    pub(crate) fn dropped(&self, chunks: Vec<ChunkRef>) {
        if !chunks.is_empty() {
            self.state().waiting.extend(chunks);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

impl Volume {
    /// Makes everything that was committed before the call durable. Callers at the same time share the work.
    pub fn sync(&self) -> FsResult<()> {
        self.group_sync.run(|| {
            let waiting = std::mem::take(&mut self.releases.state().waiting);
            let synced = self.sync_stores();
            let mut releases = self.releases.state();
            match synced {
                Ok(()) => {
                    // The end of a record may have found no room. Whoever opens the volume next writes the data into its
                    // place, so that must be nobody else's, nor given back.
                    let (kept, ended) = self.redo.split(waiting);
                    releases.ready.extend(ended);
                    releases.waiting.extend(kept);
                }
                Err(_) => releases.waiting.extend(waiting),
            }
            synced
        })
    }

    /// Brings the metadata to where the next start finds it without recovering anything. For the end of a server.
    pub fn checkpoint(&self) -> FsResult<()> {
        Ok(self.meta.checkpoint()?)
    }

    /// Data before the metadata that refers to it. What is committed while the journal is synced may become durable with
    /// it: so commits that refer to new chunks wait for the second part, in which there is little left to write.
    fn sync_stores(&self) -> FsResult<()> {
        let redo = self.redo.take();
        match self.data.sync() {
            Ok(()) if redo.is_empty() => {}
            Ok(()) => self.end_redo(redo),
            Err(error) => {
                self.redo.committed(redo);
                return Err(error.into());
            }
        }
        let _no_new_chunks = self.chunks_committed.write().unwrap_or_else(PoisonError::into_inner);
        self.data.sync()?;
        crash::point("volume.sync.data-done");
        self.meta.sync()?;
        crash::point("volume.sync.done");
        Ok(())
    }

    /// Gives back the space of at most `limit` chunks whose end is durable. Returns how many it was.
    pub(crate) fn release_some(&self, limit: usize) -> FsResult<usize> {
        let chunks: Vec<ChunkRef> = {
            let mut releases = self.releases.state();
            (0..limit).map_while(|_| releases.ready.pop_first()).collect()
        };
        if chunks.is_empty() {
            return Ok(0);
        }
        for (segment, range) in joined(&chunks) {
            if let Err(error) = self.data.release_range(segment, range) {
                // To release once more what was released does nothing.
                self.releases.state().ready.extend(chunks);
                return Err(error.into());
            }
        }
        let mut batch = Batch::releasing();
        for chunk in &chunks {
            batch.delete(Table::Release, key::chunk(chunk));
        }
        crash::point("volume.release.punched");
        self.meta.commit(batch)?;
        crash::point("volume.release.recorded");
        Ok(chunks.len())
    }

    /// Whether there is something to release now.
    pub(crate) fn releases_now(&self) -> bool {
        !self.releases.state().ready.is_empty()
    }

    /// Bytes of the chunks that wait for a sync to be released.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.releases.state().waiting.iter().map(|chunk| u64::from(chunk.len)).sum()
    }
}
