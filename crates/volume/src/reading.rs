//! Reading file data.

use crate::record::{Extent, ExtentBody};
use crate::view::View;
use crate::volume::Volume;
use bytes::Bytes;
use soda_storage::ChunkRef;
use soda_types::{Errno, Fid, FsError, FsResult};
use std::ops::ControlFlow;

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
        for placed in self.extents_in(inode.stream, &(offset..end))? {
            push_zeros(&mut pieces, placed.start.saturating_sub(at));
            let (from, to) = (at.max(placed.start), end.min(placed.end));
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
        self.extents(inode.stream, &(offset..inode.size), &mut |placed| match target {
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
            SeekTarget::Data => found.ok_or(Errno::NoDevice.into()),
            SeekTarget::Hole => Ok(found.unwrap_or(at).min(inode.size)),
        }
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
