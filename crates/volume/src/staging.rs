//! Data on its way into a file: written out before the transaction that refers to it.

use crate::record::{Extent, ExtentBody};
use crate::redo::{Appended, Redo, Safe};
use crate::txn::Txn;
use crate::view::View;
use crate::volume::{Volume, VolumeConfig};
use bytes::Bytes;
use soda_storage::{CHUNK_ALIGN, ChunkRef, DataStore, StorageError, crash};
use soda_types::{Fid, FsResult};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Data that is stored but not yet part of a file. Dropped, its space is given back.
pub struct Staged {
    store: Arc<dyn DataStore>,
    pieces: Vec<Extent>,
    appended: Vec<Appended>,
    len: u64,
}

impl Volume {
    /// Stores data for a write to come. The expensive part of writing: needs no lock and no admission, runs beside
    /// everything else. Small data is only kept in memory here, it is going to travel with the metadata; the file's size
    /// decides what is small.
    pub fn stage_write(&self, fid: Fid, data: Bytes) -> FsResult<Staged> {
        let size = self.file(fid)?.size;
        self.stage(size, data, Redo::No)
    }

    /// [`stage_write`](Volume::stage_write) for a file that may not exist yet and has `size` bytes by then.
    /// The size decides how the data is kept, nothing else depends on it. `redo`: whether the transaction brings it along.
    pub fn stage(&self, size: u64, data: Bytes, redo: Redo) -> FsResult<Staged> {
        let (pieces, appended) = (Vec::new(), Vec::new());
        let mut staged = Staged { store: self.data.clone(), pieces, appended, len: data.len() as u64 };
        if data.is_empty() {
            return Ok(staged);
        }
        if stays_inline(&self.config, size, data.len() as u64) {
            staged.pieces.push(Extent { len: staged.len, body: ExtentBody::Inline(data) });
            return Ok(staged);
        }
        for start in (0..data.len()).step_by(self.config.chunk_len) {
            let part = data.slice(start..data.len().min(start + self.config.chunk_len));
            let len = part.len() as u64;
            // The rest of a long write would waste most of a block.
            let body = if len < CHUNK_ALIGN {
                ExtentBody::Inline(part)
            } else {
                let chunk = self.append_chunk(&part)?;
                let safe = if redo == Redo::Yes { Safe::InJournal(part) } else { Safe::BySync };
                if safe.needs_sync() {
                    self.owes_data.store(true, Ordering::SeqCst);
                }
                staged.appended.push(Appended { chunk, safe });
                ExtentBody::Chunk { chunk, skip: 0 }
            };
            staged.pieces.push(Extent { len, body });
        }
        crash::point("volume.staged");
        Ok(staged)
    }

    /// Stores a chunk. On a full medium what was deleted is given back first, rather than in a while.
    pub(crate) fn append_chunk(&self, data: &[u8]) -> FsResult<ChunkRef> {
        match self.data.append(data) {
            Err(StorageError::NoSpace { .. }) => {
                if let Err(error) = self.reclaim_all() {
                    tracing::warn!(%error, "space of deleted files could not be given back");
                }
                Ok(self.data.append(data)?)
            }
            other => Ok(other?),
        }
    }
}

/// Writes of less than a block are always inline, a chunk for each would waste the rest of the block; others as long as
/// the file is small: a file of exactly a block costs one sync, of the journal, not one of a segment before it.
fn stays_inline(config: &VolumeConfig, size: u64, len: u64) -> bool {
    len < CHUNK_ALIGN || (len <= config.inline_max && size <= config.inline_max)
}

impl Staged {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether some of it is not in the journal with what refers to it, and has to be synced by itself.
    pub fn needs_sync(&self) -> bool {
        self.appended.iter().any(Appended::needs_sync)
    }

    /// Whether any of it is a chunk, which the medium has to have.
    pub fn has_chunks(&self) -> bool {
        !self.appended.is_empty()
    }

    /// The medium has had all that it was told since this was stored: what refers to it neither brings it along nor waits for
    /// a sync that is under way.
    pub fn note_synced(&mut self) {
        self.appended.iter_mut().for_each(|appended| appended.safe = Safe::OnMedium);
    }

    /// Hands the chunks over to a transaction.
    pub(crate) fn hand_over(mut self, txn: &mut Txn<'_>) -> Vec<Extent> {
        txn.adopt(std::mem::take(&mut self.appended));
        std::mem::take(&mut self.pieces)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for Appended { chunk, .. } in &self.appended {
            if let Err(error) = self.store.release(chunk) {
                tracing::warn!(%error, "the space of a write that was given up is not given back before fsck");
            }
        }
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged").field("len", &self.len).field("pieces", &self.pieces.len()).finish()
    }
}
