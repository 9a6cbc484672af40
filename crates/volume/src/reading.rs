//! Reading file data.

use crate::record::{Extent, ExtentBody};
use crate::view::{Placed, View};
use crate::volume::Volume;
use bytes::Bytes;
use soda_storage::ChunkRef;
use soda_types::{Errno, Fid, FsError, FsResult};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Streams of at most so many extents are kept in memory whole.
const STREAM_CACHED: usize = 64;

/// What an extent's record takes in memory beside inline data, bytes, roughly.
const EXTENT_WEIGHT: usize = 96;

/// Zeros that all holes are read from.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// What `lseek(2)` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    Data,
    Hole,
}

impl Volume {
    /// Reads at most `len` bytes, fewer at the end of the file: in pieces, so that nothing is copied.
    pub fn read(&self, fid: Fid, offset: u64, len: usize) -> FsResult<Vec<Bytes>> {
        let inode = self.file(fid)?;
        let end = inode.size.min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut pieces = Vec::new();
        let mut at = offset;
        for placed in self.covering(inode.stream, offset, end)?.iter() {
            if placed.end <= offset {
                continue;
            }
            if placed.start >= end {
                break;
            }
            push_zeros(&mut pieces, placed.start.saturating_sub(at));
            let (from, to) = (offset.max(placed.start), end.min(placed.end));
            pieces.push(self.extent_data(&placed.extent.part(from - placed.start, to - placed.start))?);
            at = to;
        }
        push_zeros(&mut pieces, end - at);
        Ok(pieces)
    }

    /// The first offset at or after `offset` where data (or a hole) begins, as `lseek(2)`: `NoDevice` past the end.
    pub fn seek(&self, fid: Fid, offset: u64, target: SeekTarget) -> FsResult<u64> {
        let inode = self.file(fid)?;
        if offset >= inode.size {
            return Err(Errno::NoDevice.into());
        }
        let mut at = offset;
        let mut found = None;
        self.extents(inode.stream, offset, &mut |placed| match target {
            SeekTarget::Data => {
                found = Some(placed.start.max(offset));
                ControlFlow::Break(())
            }
            SeekTarget::Hole if placed.start > at => {
                found = Some(at);
                ControlFlow::Break(())
            }
            SeekTarget::Hole => {
                at = placed.end;
                ControlFlow::Continue(())
            }
        })?;
        match target {
            SeekTarget::Data => found.filter(|start| *start < inode.size).ok_or(Errno::NoDevice.into()),
            SeekTarget::Hole => Ok(found.unwrap_or(at).min(inode.size)),
        }
    }

    /// The extents of a stream that hold data from `start` to `end`, maybe more.
    fn covering(&self, stream: u64, start: u64, end: u64) -> FsResult<Arc<Vec<Placed>>> {
        let ticket = match self.streams.get(&stream) {
            Ok(extents) => return Ok(extents),
            Err(ticket) => ticket,
        };
        let all = self.collect_extents(stream, 0, u64::MAX, STREAM_CACHED + 1)?;
        if all.len() <= STREAM_CACHED {
            let inline: u64 = all.iter().map(|placed| placed.extent.inline_len()).sum();
            let weight = EXTENT_WEIGHT * (all.len() + 1) + inline as usize;
            let all = Arc::new(all);
            self.streams.fill(stream, all.clone(), weight, ticket);
            return Ok(all);
        }
        if all.last().is_some_and(|last| last.end >= end) {
            return Ok(Arc::new(all));
        }
        Ok(Arc::new(self.collect_extents(stream, start, end, usize::MAX)?))
    }

    fn collect_extents(&self, stream: u64, start: u64, end: u64, limit: usize) -> FsResult<Vec<Placed>> {
        let mut found = Vec::new();
        self.extents(stream, start, &mut |placed| {
            if placed.start >= end || found.len() == limit {
                return ControlFlow::Break(());
            }
            found.push(placed);
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// The data of an extent.
    pub(crate) fn extent_data(&self, extent: &Extent) -> FsResult<Bytes> {
        match &extent.body {
            ExtentBody::Inline(data) => Ok(data.clone()),
            ExtentBody::Chunk { chunk, skip } => {
                let data = self.chunk(chunk)?;
                let skip = *skip as usize;
                let end = skip + extent.len as usize;
                if end > data.len() {
                    return Err(FsError::new(
                        Errno::Io,
                        format!("an extent past the end of {chunk:?}: run `soda fsck`"),
                    ));
                }
                Ok(data.slice(skip..end))
            }
        }
    }

    fn chunk(&self, chunk: &ChunkRef) -> FsResult<Bytes> {
        let ticket = match self.chunks.get(chunk) {
            Ok(data) => return Ok(data),
            Err(ticket) => ticket,
        };
        let data = self.data.read(chunk)?;
        self.chunks.fill(*chunk, data.clone(), data.len(), ticket);
        Ok(data)
    }
}

/// Zeros of any length, from static memory.
pub(crate) fn push_zeros(pieces: &mut Vec<Bytes>, mut len: u64) {
    while len > 0 {
        let part = len.min(ZEROS.len() as u64) as usize;
        pieces.push(Bytes::from_static(&ZEROS[..part]));
        len -= part as u64;
    }
}
