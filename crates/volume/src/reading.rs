//! Reading file data.

use crate::record::{Extent, ExtentBody};
use crate::view::{Placed, View};
use crate::volume::Volume;
use bytes::Bytes;
use soda_storage::ChunkRef;
use soda_types::{Errno, Fid, FsError, FsResult};
use std::ops::{ControlFlow, Range};

/// What `lseek(2)` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    Data,
    Hole,
}

/// Where a file has data, from an offset on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Stretches of data, in order, with a hole between each two.
    pub data: Vec<Range<u64>>,
    /// What lies before it is known: the end of the last stretch, or of the file.
    pub until: u64,
    /// The file's.
    pub size: u64,
}

impl Volume {
    /// Reads at most `len` bytes, fewer at the end of the file.
    pub fn read(&self, fid: Fid, offset: u64, len: usize) -> FsResult<Bytes> {
        let inode = self.file(fid)?;
        let end = inode.size.min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(Bytes::new());
        }
        let found = self.extents_in(inode.stream, &(offset..end))?;
        if let [only] = found.as_slice()
            && only.start <= offset
            && only.end >= end
        {
            return self.extent_data(&only.extent.part(offset - only.start, end - only.start));
        }
        self.buffers.filled((end - offset) as usize, |data| self.read_extents(&found, offset, data))
    }

    /// Fills `data` with what a file has from `offset` on: `found` is all that is stored of it there.
    fn read_extents(&self, found: &[Placed], offset: u64, mut data: &mut [u8]) -> FsResult<()> {
        let (mut at, end) = (offset, offset + data.len() as u64);
        for placed in found {
            let (from, to) = (at.max(placed.start), end.min(placed.end));
            let (hole, rest) = data.split_at_mut((from - at) as usize);
            let (part, rest) = rest.split_at_mut((to - from) as usize);
            hole.fill(0);
            self.read_extent(&placed.extent.part(from - placed.start, to - placed.start), part)?;
            (at, data) = (to, rest);
        }
        data.fill(0);
        Ok(())
    }

    /// The data of an extent, to where it is wanted. Whole chunks are read there, and kept in memory only if they were read
    /// a short time before as well: what is read from end to end once must not push out what is read again and again.
    fn read_extent(&self, extent: &Extent, data: &mut [u8]) -> FsResult<()> {
        let chunk = match &extent.body {
            ExtentBody::Chunk { chunk, skip: 0 } if extent.len == u64::from(chunk.len) => chunk,
            _ => {
                data.copy_from_slice(&self.extent_data(extent)?);
                return Ok(());
            }
        };
        let ticket = match self.chunks.get(chunk) {
            Ok(kept) => {
                data.copy_from_slice(&kept);
                return Ok(());
            }
            Err(ticket) => ticket,
        };
        self.data.read_into(chunk, data)?;
        match self.streamed.get(chunk) {
            Ok(()) => self.chunks.fill(*chunk, Bytes::copy_from_slice(data), data.len(), ticket),
            Err(ticket) => self.streamed.fill(*chunk, (), 1, ticket),
        }
        Ok(())
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

    /// Where the file has data from `offset` on. After `most` extents it stops between two stretches of data; that it does not
    /// stop in one makes every answer good for `lseek(2)` at `offset`.
    pub fn layout(&self, fid: Fid, offset: u64, most: usize) -> FsResult<Layout> {
        let inode = self.file(fid)?;
        let mut layout = Layout { data: Vec::new(), until: inode.size, size: inode.size };
        if offset >= inode.size {
            return Ok(layout);
        }
        let mut looked_at = 0;
        self.extents(inode.stream, &(offset..inode.size), &mut |placed| {
            let (start, end) = (placed.start.max(offset), placed.end.min(inode.size));
            match layout.data.last_mut() {
                Some(last) if last.end == start => last.end = end,
                Some(last) if looked_at >= most => {
                    layout.until = last.end;
                    return ControlFlow::Break(());
                }
                _ => layout.data.push(start..end),
            }
            looked_at += 1;
            ControlFlow::Continue(())
        })?;
        Ok(layout)
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
