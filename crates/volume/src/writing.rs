//! Changing file data: nothing is overwritten in place, extents are replaced.

use crate::key;
use crate::record::{Extent, ExtentBody, Reclaim};
use crate::redo::Redo;
use crate::staging::Staged;
use crate::txn::Txn;
use crate::view::{Placed, View};
use bytes::{Bytes, BytesMut};
use soda_storage::Table;
use soda_types::semantics::{FILE_MAX, checked_end};
use soda_types::{Allocate, Attr, Errno, Fid, FsError, FsResult, Ino, KillPriv, WriteAt};
use std::ops::Range;

/// Neighbouring inline extents are joined up to this length, so that a log file written line by line does not become an
/// extent for each line, bytes.
const JOIN_MAX: u64 = 4096;

/// So many extents are deleted at once when a file is emptied, others by the detour over the reclaim table.
const EMPTY_AT_ONCE: usize = 16;

/// The most that one copy copies, bytes; callers go on from there.
const COPY_MAX: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    pub offset: u64,
    pub len: u64,
    pub attr: Attr,
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
            let offset = at.offset(inode.size);
            let len = staged.len();
            if len == 0 {
                return Ok(Written { offset, len, attr: inode.attr(fid.ino) });
            }
            let end = checked_end(offset, len)?;
            txn.takes_space();
            let pieces = staged.hand_over(txn);
            txn.replace_range(fid.ino, offset..end, pieces)?;
            let now = txn.now();
            txn.change(fid.ino, |attr| {
                attr.written(end, now);
                privileges.apply(attr);
            })?;
            txn.drop_capabilities(fid.ino)?;
            txn.gather(fid.ino, offset..end)?;
            Ok(Written { offset, len, attr: txn.attr(fid)? })
        })
    }

    /// Changes how a range is stored, or makes it a hole or zeros.
    pub fn fallocate(
        &mut self,
        fid: Fid,
        mode: Allocate,
        offset: u64,
        len: u64,
        privileges: KillPriv,
    ) -> FsResult<Attr> {
        self.atomically(|txn| {
            txn.file(fid)?;
            if len == 0 {
                return Err(Errno::Invalid.into());
            }
            let end = checked_end(offset, len)?;
            let keep_size =
                matches!(mode, Allocate::KeepSize | Allocate::PunchHole | Allocate::ZeroRangeKeepSize);
            match mode {
                Allocate::Extend | Allocate::KeepSize => {
                    txn.takes_space();
                    let free = txn.volume.space()?.free;
                    if free < len {
                        let context = format!("{len} bytes to be allocated, {free} bytes free");
                        return Err(FsError::new(Errno::NoSpace, context));
                    }
                }
                Allocate::PunchHole => txn.replace_range(fid.ino, offset..end, Vec::new())?,
                Allocate::ZeroRange | Allocate::ZeroRangeKeepSize => {
                    txn.takes_space();
                    txn.replace_range(fid.ino, offset..end, Vec::new())?;
                }
            }
            let now = txn.now();
            let attr = txn.change(fid.ino, |attr| {
                attr.written(if keep_size { 0 } else { end }, now);
                privileges.apply(attr);
            })?;
            let size = attr.size;
            txn.drop_capabilities(fid.ino)?;
            // Many small holes are as bad as many small writes. Between its ends there is nothing now.
            for edge in [offset, end - 1].into_iter().filter(|edge| *edge < size) {
                txn.gather(fid.ino, edge..edge + 1)?;
            }
            txn.attr(fid)
        })
    }

    /// Copies a range between files, or within one, and returns how much it was: less than asked for at the end of the
    /// source and for long ranges. Holes stay holes.
    pub fn copy_range(
        &mut self,
        (from, from_offset): (Fid, u64),
        (to, to_offset): (Fid, u64),
        len: u64,
        privileges: KillPriv,
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
                let staged = txn.volume.stage(size, data, Redo::No)?;
                let end = offset + staged.len();
                let pieces = staged.hand_over(txn);
                txn.replace_range(to.ino, offset..end, pieces)?;
            }
            let now = txn.now();
            txn.change(to.ino, |attr| {
                attr.written(to_end, now);
                privileges.apply(attr);
            })?;
            txn.drop_capabilities(to.ino)?;
            txn.gather(to.ino, to_offset..to_end)?;
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
            let (deleted, deleted_to) = self.delete_first_extents(inode.stream, EMPTY_AT_ONCE)?;
            let mut stream = inode.stream;
            if deleted == EMPTY_AT_ONCE {
                let old = key::reclaim(self.volume.id, stream);
                self.put_record(Table::Reclaim, &old, &Reclaim { xattrs_of: None, deleted_to });
                stream = self.volume.new_number()?;
            }
            let inode = self.inode_mut(ino)?;
            (inode.stream, inode.allocated, inode.inline) = (stream, 0, 0);
        } else if size < inode.size {
            self.replace_range(ino, size..inode.size, Vec::new())?;
        } else {
            self.takes_space();
        }
        self.inode_mut(ino)?.size = size;
        Ok(())
    }

    /// Takes out what is in a range of a file, and puts `pieces` there one after the other.
    pub(crate) fn replace_range(&mut self, ino: Ino, range: Range<u64>, pieces: Vec<Extent>) -> FsResult<()> {
        let inode = self.referred(ino)?;
        let stream = inode.stream;
        // There is nothing past the end, and nothing to look for when a file is appended to.
        let hit = match range.start < inode.size {
            true => self.extents_in(stream, &(range.start..range.end.min(inode.size)))?,
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

    pub(crate) fn put_extent(&mut self, ino: Ino, stream: u64, end: u64, extent: Extent) -> FsResult<()> {
        let inode = self.inode_mut(ino)?;
        inode.allocated += extent.len;
        inode.inline += extent.inline_len();
        self.set_extent(stream, (end - extent.len, end), Some(extent));
        Ok(())
    }

    pub(crate) fn delete_extent(&mut self, ino: Ino, stream: u64, placed: &Placed) -> FsResult<()> {
        let inode = self.inode_mut(ino)?;
        inode.allocated = inode.allocated.saturating_sub(placed.extent.len);
        inode.inline = inode.inline.saturating_sub(placed.extent.inline_len());
        self.set_extent(stream, (placed.start, placed.end), None);
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
