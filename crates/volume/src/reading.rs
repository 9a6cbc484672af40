//! Reading file data.

use crate::record::{Extent, ExtentBody, Inode};
use crate::view::{Placed, View};
use crate::volume::Volume;
use bytes::Bytes;
use soda_storage::ChunkRef;
use soda_types::{Errno, Fid, FsError, FsResult, Version};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The extents of so many bytes of a file are kept in memory together.
const WINDOW: u64 = 8 << 20;

/// What an extent's record takes in memory beside inline data, bytes, roughly.
const EXTENT_WEIGHT: usize = 96;

/// A part of a file's data at one of its versions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Window {
    stream: u64,
    data_version: Version,
    number: u64,
}

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
        for number in offset / WINDOW..=(end - 1) / WINDOW {
            for placed in self.window(&inode, number)?.iter() {
                // One that reaches over the edge of two windows is in both.
                if placed.end <= at {
                    continue;
                }
                if placed.start >= end {
                    break;
                }
                push_zeros(&mut pieces, placed.start.saturating_sub(at));
                let (from, to) = (at.max(placed.start), end.min(placed.end));
                pieces.push(self.extent_data(&placed.extent.part(from - placed.start, to - placed.start))?);
                at = to;
            }
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

    /// The extents that hold data in a window of a file. Nothing has to be done to keep them right: with every change of
    /// the data they go by another data version.
    fn window(&self, inode: &Inode, number: u64) -> FsResult<Arc<Vec<Placed>>> {
        let key = Window { stream: inode.stream, data_version: inode.data_version, number };
        let ticket = match self.windows.get(&key) {
            Ok(extents) => return Ok(extents),
            Err(ticket) => ticket,
        };
        let start = number * WINDOW;
        let mut found = Vec::new();
        self.extents(inode.stream, start, &mut |placed| {
            if placed.start >= start.saturating_add(WINDOW) {
                return ControlFlow::Break(());
            }
            found.push(placed);
            ControlFlow::Continue(())
        })?;
        let inline: u64 = found.iter().map(|placed| placed.extent.inline_len()).sum();
        let weight = EXTENT_WEIGHT * (found.len() + 1) + inline as usize;
        let found = Arc::new(found);
        self.windows.fill(key, found.clone(), weight, ticket);
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
