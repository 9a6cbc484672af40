//! Bringing together what small writes scatter: the number of a file's extents, what its chunks waste, and how much data is
//! beside the metadata stay within bounds, whatever is written to it and how often.
//!
//! What is stored anew may have been durable, and a power cut must not take it for somebody's next write: so it is in the
//! journal, too ([`Redo`]).

use crate::record::{Extent, ExtentBody};
use crate::redo::{Appended, Redo, Safe};
use crate::txn::Txn;
use crate::view::{Placed, View};
use bytes::BytesMut;
use soda_storage::{CHUNK_ALIGN, ChunkRef};
use soda_types::{FsResult, Ino};
use std::ops::{ControlFlow, Range};

/// A chunk of which less than this part (1/n) is in use is given up.
const CRUMBLING: u64 = 4;

/// Shorter chunks are left alone, bytes.
const CRUMBLING_MIN: u64 = 32 << 10;

/// Of a file that has too much inline, this part (1/n) of what all of it may have is too much over the length of a chunk.
const INLINE_SHARE: u64 = 4;

/// Runs of inline data that are this long on average get chunks of their own, bytes; around shorter ones everything is stored
/// anew, a block for each would waste most of it.
const RUN_MIN: u64 = 2 * CHUNK_ALIGN;

impl Txn<'_> {
    /// Looks after the places that a write to `range` may have left in too many pieces.
    pub(crate) fn gather(&mut self, ino: Ino, range: Range<u64>) -> FsResult<()> {
        let config = &self.volume.config;
        let (stretch_len, pieces_max, inline_total) =
            (config.chunk_len as u64, config.pieces_max, config.inline_total);
        let inode = self.referred(ino)?;
        let much_inline = inode.inline > inline_total;
        // A file that is appended to has its inline data before the write.
        let from = if much_inline { range.start.saturating_sub(inline_total) } else { range.start };
        for number in from / stretch_len..=(range.end - 1) / stretch_len {
            let stretch = number * stretch_len..(number + 1).saturating_mul(stretch_len).min(inode.size);
            let (mut pieces, mut inline) = (0, 0);
            self.extents(inode.stream, &stretch, &mut |placed| {
                pieces += 1;
                inline += placed.extent.inline_len();
                ControlFlow::Continue(())
            })?;
            if pieces > pieces_max {
                self.store_anew(ino, inode.stream, stretch)?;
            } else if much_inline && inline > inline_total / INLINE_SHARE {
                self.move_inline(ino, inode.stream, stretch)?;
            }
        }
        Ok(())
    }

    /// Stores a stretch of a file as one chunk, or as few as its holes allow. Holes within a block are filled.
    fn store_anew(&mut self, ino: Ino, stream: u64, stretch: Range<u64>) -> FsResult<()> {
        let mut data = BytesMut::zeroed((stretch.end - stretch.start) as usize);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for placed in self.extents_in(stream, &stretch)? {
            let (from, to) = (placed.start.max(stretch.start), placed.end.min(stretch.end));
            let part = placed.extent.part(from - placed.start, to - placed.start);
            // A bad chunk is reported to who reads it, not to who writes beside it.
            let Ok(part) = self.volume.extent_data(&part) else {
                return Ok(());
            };
            let at = (from - stretch.start) as usize;
            data[at..at + part.len()].copy_from_slice(&part);
            let start = (from / CHUNK_ALIGN * CHUNK_ALIGN).max(stretch.start);
            let end = to.next_multiple_of(CHUNK_ALIGN).min(stretch.end);
            match runs.last_mut() {
                Some(run) if start <= run.end => run.end = end,
                _ => runs.push(start..end),
            }
        }
        let (data, size) = (data.freeze(), self.referred(ino)?.size);
        let mut stored = Vec::new();
        for run in runs {
            let part = data.slice((run.start - stretch.start) as usize..(run.end - stretch.start) as usize);
            // A full disk does not stop a write that found its place.
            let Ok(staged) = self.volume.stage(size, part, Redo::Yes) else {
                return Ok(());
            };
            stored.push((run, staged));
        }
        for (run, staged) in stored {
            let pieces = staged.hand_over(self);
            self.replace_range(ino, run, pieces)?;
        }
        Ok(())
    }

    /// Moves the inline data of a stretch to chunks.
    fn move_inline(&mut self, ino: Ino, stream: u64, stretch: Range<u64>) -> FsResult<()> {
        let chunk_len = self.volume.config.chunk_len as u64;
        let mut runs: Vec<Vec<Placed>> = Vec::new();
        let mut inline = 0;
        self.extents(stream, &stretch, &mut |placed| {
            inline += placed.extent.inline_len();
            if matches!(placed.extent.body, ExtentBody::Inline(_)) {
                match runs.last_mut() {
                    Some(run) if continues(run, placed, chunk_len) => run.push(placed.clone()),
                    _ => runs.push(vec![placed.clone()]),
                }
            }
            ControlFlow::Continue(())
        })?;
        if inline < RUN_MIN * runs.len() as u64 {
            return self.store_anew(ino, stream, stretch);
        }
        for run in runs {
            let mut data = BytesMut::new();
            for placed in &run {
                if let ExtentBody::Inline(part) = &placed.extent.body {
                    data.extend_from_slice(part);
                }
            }
            // A full disk does not stop a write that found its place.
            let Ok(chunk) = self.volume.append_chunk(&data) else {
                return Ok(());
            };
            let len = data.len() as u64;
            self.adopt([Appended { chunk, safe: Safe::InJournal(data.freeze()) }]);
            for placed in &run {
                self.delete_extent(ino, stream, placed)?;
            }
            let end = run.last().map_or(0, |placed| placed.end);
            let body = ExtentBody::Chunk { chunk, skip: 0 };
            self.put_extent(ino, stream, end, Extent { len, body })?;
        }
        Ok(())
    }

    /// Releases a chunk if no extent refers to it any more. A part of it that was deleted was at `start` with `skip`.
    pub(crate) fn release_if_unused(
        &mut self,
        stream: u64,
        start: u64,
        chunk: &ChunkRef,
        skip: u32,
    ) -> FsResult<()> {
        let used = !self.parts_of(stream, start, chunk, skip)?.is_empty();
        if !used && !self.is_released(chunk) {
            self.release_chunk(*chunk);
        }
        Ok(())
    }

    /// The same for a file that lives: a chunk of which little is left is given up as well, that little is stored anew.
    /// Else small random writes would leave a file that takes many times its size.
    pub(crate) fn release_or_gather(
        &mut self,
        ino: Ino,
        stream: u64,
        start: u64,
        chunk: &ChunkRef,
        skip: u32,
    ) -> FsResult<()> {
        if self.is_released(chunk) {
            return Ok(());
        }
        let parts = self.parts_of(stream, start, chunk, skip)?;
        let live: u64 = parts.iter().map(|part| part.extent.len).sum();
        if live > 0 && (u64::from(chunk.len) < CRUMBLING_MIN || live * CRUMBLING > u64::from(chunk.len)) {
            return Ok(());
        }
        for part in parts {
            let size = self.referred(ino)?.size;
            let data = self.volume.extent_data(&part.extent);
            let stored = data.and_then(|data| self.volume.stage(size, data, Redo::Yes));
            // A bad chunk is reported to who reads it, not to who writes beside it; a full disk does not stop who gives
            // space back.
            let Ok(staged) = stored else {
                return Ok(());
            };
            let mut end = part.start;
            self.delete_extent(ino, stream, &part)?;
            for piece in staged.hand_over(self) {
                end += piece.len;
                self.put_extent(ino, stream, end, piece)?;
            }
        }
        self.release_chunk(*chunk);
        Ok(())
    }

    /// The extents that refer to a chunk of which a part was at `start` with `skip`. Parts never move within their file
    /// and never get into another one, so they can only be where the whole chunk was.
    fn parts_of(&self, stream: u64, start: u64, chunk: &ChunkRef, skip: u32) -> FsResult<Vec<Placed>> {
        let place = start.saturating_sub(u64::from(skip))..chunk_end(start, skip, chunk);
        let mut parts = Vec::new();
        self.extents(stream, &place, &mut |placed| {
            if placed.extent.is_of(chunk) {
                parts.push(placed.clone());
            }
            ControlFlow::Continue(())
        })?;
        Ok(parts)
    }
}

fn continues(run: &[Placed], next: &Placed, chunk_len: u64) -> bool {
    match (run.first(), run.last()) {
        (Some(first), Some(last)) => last.end == next.start && next.end - first.start <= chunk_len,
        _ => false,
    }
}

/// The end of the place in a file that a chunk was written for, a part of which is at `start` with `skip`.
pub(crate) fn chunk_end(start: u64, skip: u32, chunk: &ChunkRef) -> u64 {
    start.saturating_sub(u64::from(skip)).saturating_add(u64::from(chunk.len))
}
