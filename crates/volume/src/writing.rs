//! Changing file data: nothing is overwritten in place, extents are replaced.

use crate::key;
use crate::record::{Extent, ExtentBody, Reclaim};
use crate::staging::Staged;
use crate::txn::{KillPriv, Txn};
use crate::view::{Placed, View};
use bytes::{Bytes, BytesMut};
use soda_storage::{ChunkRef, Table};
use soda_types::{Attr, Errno, Fid, FsError, FsResult, Ino};
use std::ops::{ControlFlow, Range};

/// The largest file, bytes: offsets are signed in Linux.
pub const FILE_MAX: u64 = i64::MAX as u64;

/// Neighbouring inline extents are joined up to this length, so that a log file written line by line does not become an
/// extent for each line, bytes.
const JOIN_MAX: u64 = 4096;

/// So many extents are deleted at once when a file is emptied, others by the detour over the reclaim table.
const EMPTY_AT_ONCE: usize = 16;

/// The most that one copy copies, bytes; callers go on from there.
const COPY_MAX: u64 = 16 << 20;

/// A chunk of which less than this part (1/n) is in use is given up.
const CRUMBLING: u64 = 4;

/// Shorter chunks are left alone, bytes.
const CRUMBLING_MIN: u64 = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAt {
    Offset(u64),
    /// At the end of the file, whatever it is.
    Append,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    pub offset: u64,
    pub len: u64,
    pub attr: Attr,
}

/// What `fallocate(2)` does to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FallocateMode {
    /// Sees to it that there is space now, and extends the file to the end of the range. Data is never written in
    /// place here, so space cannot be set aside for a later write.
    Allocate,
    /// The same without extending the file.
    AllocateKeepSize,
    /// Makes the range a hole.
    PunchHole,
    /// Makes the range read as zeros, and extends the file to its end.
    ZeroRange,
    ZeroRangeKeepSize,
}

impl Txn<'_> {
    /// Writes staged data. An empty write changes nothing.
    pub fn write(
        &mut self,
        fid: Fid,
        at: WriteAt,
        staged: Staged,
        privileges: KillPriv,
    ) -> FsResult<Written> {
        self.atomically(|txn| {
            let inode = txn.file(fid)?;
            let offset = match at {
                WriteAt::Offset(offset) => offset,
                WriteAt::Append => inode.size,
            };
            let len = staged.len();
            if len == 0 {
                return Ok(Written { offset, len, attr: inode.attr(fid.ino) });
            }
            let end = checked_end(offset, len)?;
            txn.takes_space();
            let pieces = staged.hand_over(txn);
            txn.replace_range(fid.ino, offset..end, pieces)?;
            let now = txn.now();
            let inode = txn.inode_mut(fid.ino)?;
            inode.size = inode.size.max(end);
            inode.data_changed(now);
            if privileges == KillPriv::Drop {
                inode.drop_privileges();
            }
            txn.spill(fid.ino)?;
            Ok(Written { offset, len, attr: txn.attr(fid)? })
        })
    }

    pub fn fallocate(&mut self, fid: Fid, mode: FallocateMode, offset: u64, len: u64) -> FsResult<Attr> {
        self.atomically(|txn| {
            let inode = txn.file(fid)?;
            if len == 0 {
                return Err(Errno::Invalid.into());
            }
            let end = checked_end(offset, len)?;
            let keep_size = matches!(
                mode,
                FallocateMode::AllocateKeepSize | FallocateMode::PunchHole | FallocateMode::ZeroRangeKeepSize
            );
            match mode {
                FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                    txn.takes_space();
                    let free = txn.volume.data.space()?.free;
                    if free < len {
                        let context = format!("{len} bytes to be allocated, {free} bytes free");
                        return Err(FsError::new(Errno::NoSpace, context));
                    }
                }
                FallocateMode::PunchHole => txn.replace_range(fid.ino, offset..end, Vec::new())?,
                FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => {
                    txn.takes_space();
                    txn.replace_range(fid.ino, offset..end, Vec::new())?;
                }
            }
            let now = txn.now();
            let inode = {
                let size = if keep_size { inode.size } else { inode.size.max(end) };
                let inode = txn.inode_mut(fid.ino)?;
                inode.size = size;
                inode
            };
            inode.data_changed(now);
            txn.attr(fid)
        })
    }

    /// Copies a range between files, or within one, and returns how much it was: less than asked for at the end of the
    /// source and for long ranges. Holes stay holes.
    pub fn copy_range(
        &mut self,
        from: Fid,
        from_offset: u64,
        to: Fid,
        to_offset: u64,
        len: u64,
    ) -> FsResult<Written> {
        self.atomically(|txn| {
            let source = txn.file(from)?;
            txn.file(to)?;
            let len = len.min(COPY_MAX).min(source.size.saturating_sub(from_offset));
            if len == 0 {
                return Ok(Written { offset: to_offset, len, attr: txn.attr(to)? });
            }
            let to_end = checked_end(to_offset, len)?;
            let from_end = from_offset + len;
            if from == to && from_offset < to_end && to_offset < from_end {
                return Err(Errno::Invalid.into());
            }
            txn.takes_space();
            let mut copies = Vec::new();
            for (place, data) in txn.data_in(source.stream, from_offset..from_end)? {
                copies.push((place - from_offset + to_offset, data));
            }
            txn.replace_range(to.ino, to_offset..to_end, Vec::new())?;
            for (offset, data) in copies {
                let size = txn.file(to)?.size;
                let staged = txn.volume.stage(size, data)?;
                let end = offset + staged.len();
                let pieces = staged.hand_over(txn);
                txn.replace_range(to.ino, offset..end, pieces)?;
            }
            let now = txn.now();
            let inode = txn.inode_mut(to.ino)?;
            inode.size = inode.size.max(to_end);
            inode.data_changed(now);
            txn.spill(to.ino)?;
            Ok(Written { offset: to_offset, len, attr: txn.attr(to)? })
        })
    }

    /// Cuts or extends a file; times and versions are the caller's business.
    pub(crate) fn resize(&mut self, ino: Ino, size: u64) -> FsResult<()> {
        if size > FILE_MAX {
            return Err(Errno::FileTooBig.into());
        }
        let inode = self.referred(ino)?;
        if size == 0 && inode.allocated > 0 {
            let (deleted, deleted_to) = self.delete_extents(inode.stream, 0, EMPTY_AT_ONCE)?;
            let mut stream = inode.stream;
            if deleted == EMPTY_AT_ONCE {
                let old = key::reclaim(self.volume.id, stream);
                self.put_record(Table::Reclaim, &old, &Reclaim { xattrs_of: None, deleted_to });
                stream = self.volume.new_number()?;
            }
            let inode = self.inode_mut(ino)?;
            (inode.stream, inode.allocated, inode.inline, inode.inline_from) = (stream, 0, 0, u64::MAX);
        } else if size < inode.size {
            self.replace_range(ino, size..u64::MAX, Vec::new())?;
        } else {
            self.takes_space();
        }
        self.inode_mut(ino)?.size = size;
        Ok(())
    }

    /// Takes out what is in a range of a file, and puts `pieces` there one after the other.
    fn replace_range(&mut self, ino: Ino, range: Range<u64>, pieces: Vec<Extent>) -> FsResult<()> {
        let inode = self.referred(ino)?;
        let stream = inode.stream;
        // There is nothing past the end, and nothing to look for when a file is appended to.
        let hit = match range.start < inode.size {
            true => self.extents_in(stream, &range)?,
            false => Vec::new(),
        };
        for placed in &hit {
            self.delete_extent(ino, stream, placed)?;
            if placed.start < range.start {
                let head = placed.extent.part(0, range.start - placed.start);
                self.put_extent(ino, stream, range.start, head)?;
            }
            if placed.end > range.end {
                let tail = placed.extent.part(range.end - placed.start, placed.extent.len);
                self.put_extent(ino, stream, placed.end, tail)?;
            }
        }
        let mut at = range.start;
        for piece in pieces {
            at += piece.len;
            self.put_joined(ino, stream, at, piece)?;
        }
        for placed in hit {
            if let ExtentBody::Chunk { chunk, skip } = placed.extent.body {
                self.release_or_gather(ino, stream, placed.start, &chunk, skip)?;
            }
        }
        Ok(())
    }

    fn extents_in(&self, stream: u64, range: &Range<u64>) -> FsResult<Vec<Placed>> {
        let mut found = Vec::new();
        self.extents(stream, range.start, &mut |placed| {
            if placed.start >= range.end {
                return ControlFlow::Break(());
            }
            found.push(placed);
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Puts an extent; a small inline one is joined with a small inline one before it.
    fn put_joined(&mut self, ino: Ino, stream: u64, end: u64, extent: Extent) -> FsResult<()> {
        let start = end - extent.len;
        if let ExtentBody::Inline(data) = &extent.body
            && extent.len < JOIN_MAX
            && start > 0
            && let Some(before) = self.extent_ending_at(stream, start)?
            && let ExtentBody::Inline(first) = &before.extent.body
            && before.extent.len + extent.len <= JOIN_MAX
        {
            let mut joined = BytesMut::with_capacity(first.len() + data.len());
            joined.extend_from_slice(first);
            joined.extend_from_slice(data);
            self.delete_extent(ino, stream, &before)?;
            let joined = Extent { len: joined.len() as u64, body: ExtentBody::Inline(joined.freeze()) };
            return self.put_extent(ino, stream, end, joined);
        }
        self.put_extent(ino, stream, end, extent)
    }

    fn extent_ending_at(&self, stream: u64, end: u64) -> FsResult<Option<Placed>> {
        let key = key::extent(self.volume.id, stream, end);
        let extent: Option<Extent> = self.record(Table::Extent, &key)?;
        Ok(extent.map(|extent| Placed { start: end.saturating_sub(extent.len), end, extent }))
    }

    fn put_extent(&mut self, ino: Ino, stream: u64, end: u64, extent: Extent) -> FsResult<()> {
        let inode = self.inode_mut(ino)?;
        inode.allocated += extent.len;
        if extent.inline_len() > 0 {
            inode.inline += extent.inline_len();
            inode.inline_from = inode.inline_from.min(end - extent.len);
        }
        let key = key::extent(self.volume.id, stream, end);
        self.put_record(Table::Extent, &key, &extent);
        Ok(())
    }

    fn delete_extent(&mut self, ino: Ino, stream: u64, placed: &Placed) -> FsResult<()> {
        let inode = self.inode_mut(ino)?;
        inode.allocated = inode.allocated.saturating_sub(placed.extent.len);
        inode.inline = inode.inline.saturating_sub(placed.extent.inline_len());
        let key = key::extent(self.volume.id, stream, placed.end);
        self.set_record(Table::Extent, &key, None);
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
    fn release_or_gather(
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
            let stored = self.volume.extent_data(&part.extent).and_then(|data| self.volume.stage(size, data));
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
        let mut parts = Vec::new();
        let end = chunk_end(start, skip, chunk);
        self.extents(stream, start.saturating_sub(u64::from(skip)), &mut |placed| {
            if placed.start >= end {
                return ControlFlow::Break(());
            }
            if placed.extent.is_of(chunk) {
                parts.push(placed);
            }
            ControlFlow::Continue(())
        })?;
        Ok(parts)
    }

    /// Moves inline data to chunks when a file has too much of it.
    fn spill(&mut self, ino: Ino) -> FsResult<()> {
        let inode = self.referred(ino)?;
        if inode.inline <= self.volume.config.inline_total {
            return Ok(());
        }
        let mut runs: Vec<Vec<Placed>> = Vec::new();
        let chunk_len = self.volume.config.chunk_len as u64;
        self.extents(inode.stream, inode.inline_from, &mut |placed| {
            if matches!(placed.extent.body, ExtentBody::Inline(_)) {
                match runs.last_mut() {
                    Some(run) if continues(run, &placed, chunk_len) => run.push(placed),
                    _ => runs.push(vec![placed]),
                }
            }
            ControlFlow::Continue(())
        })?;
        for run in runs {
            let mut data = BytesMut::new();
            for placed in &run {
                if let ExtentBody::Inline(part) = &placed.extent.body {
                    data.extend_from_slice(part);
                }
                self.delete_extent(ino, inode.stream, placed)?;
            }
            let end = run.last().map_or(0, |placed| placed.end);
            let chunk = self.volume.append_chunk(&data)?;
            self.adopt([chunk]);
            let body = ExtentBody::Chunk { chunk, skip: 0 };
            self.put_extent(ino, inode.stream, end, Extent { len: data.len() as u64, body })?;
        }
        self.inode_mut(ino)?.inline_from = u64::MAX;
        Ok(())
    }

    /// The data in a range, without the holes, in pieces with their offsets.
    fn data_in(&self, stream: u64, range: Range<u64>) -> FsResult<Vec<(u64, Bytes)>> {
        let part = |placed: Placed| {
            let (from, to) = (placed.start.max(range.start), placed.end.min(range.end));
            let extent = placed.extent.part(from - placed.start, to - placed.start);
            Ok((from, self.volume.extent_data(&extent)?))
        };
        self.extents_in(stream, &range)?.into_iter().map(part).collect()
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

fn checked_end(offset: u64, len: u64) -> FsResult<u64> {
    offset.checked_add(len).filter(|end| *end <= FILE_MAX).ok_or(Errno::FileTooBig.into())
}
