//! Inodes without a name, and getting rid of what they held.
//!
//! Deleting an inode takes one small batch however large the file was: its stream of extents goes on the reclaim table,
//! which is worked off in small steps in the background, and after a crash from where it was.

use crate::gather::chunk_end;
use crate::key::{self, KeyRange};
use crate::record::{self, ExtentBody, Reclaim};
use crate::turns::ReclaimTurn;
use crate::txn::Txn;
use crate::view::{Placed, View, damaged};
use crate::volume::Volume;
use soda_storage::{Table, crash};
use soda_types::{Errno, Fid, FsError, FsResult, Ino, Timestamp};
use std::ops::ControlFlow;
use std::sync::PoisonError;

/// So many extents and xattrs are deleted with the inode, which is all that most have.
const DELETE_AT_ONCE: usize = 8;

/// So many bytes of chunks that wait to be released are worth a sync of their own.
const SYNC_FOR_SPACE: u64 = 64 << 20;

/// Extents, xattrs or chunks dealt with in one batch when all work is done at once.
const RECLAIM_STEP: usize = 1024;

/// What is left for [`Volume::reclaim_some`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It did something: there may be more.
    More,
    /// There is nothing left to do.
    Done,
}

impl Volume {
    /// The inodes without a name, in the order of their numbers.
    pub fn orphans(&self) -> FsResult<Vec<Fid>> {
        let mut orphans = Vec::new();
        self.scan(Table::Orphan, &key::volume_range(self.id), &mut |key, _| {
            orphans.extend(key::number(key).map(|number| Fid::new(self.id, Ino(number))));
            ControlFlow::Continue(())
        })?;
        Ok(orphans)
    }

    /// Does a part of the work that deletions left behind: at most `limit` extents, xattrs or chunks. Cheap when there is
    /// none. To be called in the background. Chunks wait for a [`sync`](Volume::sync), which this only does itself when
    /// they take much space.
    pub fn reclaim_some(&self, limit: usize) -> FsResult<Progress> {
        if self.reclaim_records(limit)? == Progress::More {
            return Ok(Progress::More);
        }
        if self.releases.bytes_waiting() >= SYNC_FOR_SPACE {
            self.sync()?;
            return Ok(if self.releases.are_ready() { Progress::More } else { Progress::Done });
        }
        self.meta.tidy()?;
        Ok(Progress::Done)
    }

    /// Does all of that work that can be done, with the syncs it needs.
    pub fn reclaim_all(&self) -> FsResult<()> {
        loop {
            while self.reclaim_records(RECLAIM_STEP)? == Progress::More {}
            if self.releases.bytes_waiting() > 0 {
                self.sync()?;
            }
            // Whoever gives something back at the moment is waited for: it may be all that there is.
            let turn = self.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
            let is_over = !self.releases.are_ready();
            drop(turn);
            if is_over {
                return Ok(self.meta.tidy()?);
            }
        }
    }

    fn reclaim_records(&self, limit: usize) -> FsResult<Progress> {
        let mut turn = self.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
        let (meta, data) = (&*self.meta, &*self.data);
        if self.releases.give_back_some(meta, data, limit)? > 0
            || self.reclaim_next(&mut turn, limit)? == Progress::More
        {
            return Ok(Progress::More);
        }
        match self.sweep.go_on(meta, data, &self.releases, limit)? {
            0 => Ok(Progress::Done),
            _ => Ok(Progress::More),
        }
    }

    /// A file whose extents cannot be read holds up no other: it has its next turn when all of them had theirs.
    fn reclaim_next(&self, turn: &mut ReclaimTurn, limit: usize) -> FsResult<Progress> {
        let mut next = None;
        let all = key::volume_range(self.id);
        let range = KeyRange { start: turn.failed.as_deref().map_or(all.start, after), end: all.end };
        self.scan(Table::Reclaim, &range, &mut |key, value| {
            next = Some((key.to_vec(), value));
            ControlFlow::Break(())
        })?;
        let Some((key, value)) = next else {
            turn.failed = None;
            return Ok(Progress::Done);
        };
        self.reclaim_stream(&key, &value, limit).inspect_err(|_| turn.failed = Some(key))
    }

    fn reclaim_stream(&self, reclaim_key: &[u8], value: &[u8], limit: usize) -> FsResult<Progress> {
        let reclaim: Reclaim =
            record::decode(value).map_err(|error| damaged(Table::Reclaim, reclaim_key, error))?;
        let stream = key::number(reclaim_key).unwrap_or_default();
        // The time does not matter: no inode is changed.
        let mut txn = self.begin(Timestamp::default());
        let mut left = limit.max(1);
        let mut doomed = Vec::new();
        self.stored_extents().scan(stream, reclaim.deleted_to, &mut |placed| {
            doomed.push(placed);
            if doomed.len() == left { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        txn.delete_extents(stream, &doomed, left)?;
        let deleted_to = doomed.last().map_or(reclaim.deleted_to, |last| last.end);
        left -= doomed.len();
        if let Some(ino) = reclaim.xattrs_of {
            left -= txn.delete_xattrs(ino, left)?;
        }
        match left {
            0 => txn.put_record(Table::Reclaim, reclaim_key, &Reclaim { deleted_to, ..reclaim }),
            _ => txn.set_record(Table::Reclaim, reclaim_key, None),
        }
        txn.commit()?;
        crash::point(if left > 0 { "volume.reclaim.done" } else { "volume.reclaim.step" });
        Ok(Progress::More)
    }
}

/// The first key that comes after this one.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Txn<'_> {
    /// Deletes an orphan: nobody has it open any more. It is no error if it is gone already, or has a name again.
    pub fn drop_orphan(&mut self, fid: Fid) -> FsResult<()> {
        self.atomically(|txn| {
            let ino = txn.ino(fid)?;
            if txn.raw(Table::Orphan, &key::inode(txn.volume.id, ino))?.is_none() {
                return Ok(());
            }
            txn.unmake_orphan(ino);
            match txn.inode_record(ino)? {
                Some(inode) if inode.nlink == 0 => txn.delete_inode(ino),
                Some(_) => Err(FsError::new(Errno::Io, format!("orphan {fid} has names: run `soda fsck`"))),
                None => Ok(()),
            }
        })
    }

    pub(crate) fn make_orphan(&mut self, ino: Ino) {
        let key = key::inode(self.volume.id, ino);
        self.put_record(Table::Orphan, &key, &());
    }

    pub(crate) fn unmake_orphan(&mut self, ino: Ino) {
        let key = key::inode(self.volume.id, ino);
        self.set_record(Table::Orphan, &key, None);
    }

    /// Deletes an inode that nothing names; what it held is deleted now if it is little, else later.
    pub(crate) fn delete_inode(&mut self, ino: Ino) -> FsResult<()> {
        let inode = self.referred(ino)?;
        let (mut extents, mut deleted_to, mut xattrs) = (0, 0, 0);
        if inode.allocated > 0 {
            (extents, deleted_to) = self.delete_first_extents(inode.stream, DELETE_AT_ONCE)?;
        }
        if inode.xattrs > 0 {
            xattrs = self.delete_xattrs(ino, DELETE_AT_ONCE)?;
        }
        if extents == DELETE_AT_ONCE || xattrs == DELETE_AT_ONCE {
            let reclaim = Reclaim { xattrs_of: (xattrs == DELETE_AT_ONCE).then_some(ino), deleted_to };
            self.put_record(Table::Reclaim, &key::reclaim(self.volume.id, inode.stream), &reclaim);
        }
        self.set_inode(ino, None)
    }

    /// Deletes the first extents of a stream that nobody reads any more, at most `limit`. Returns how many, and the end of the
    /// last one: if it is `limit` there may be more, for the reclaim table.
    pub(crate) fn delete_first_extents(&mut self, stream: u64, limit: usize) -> FsResult<(usize, u64)> {
        match self.part(|txn| txn.try_delete_first_extents(stream, limit)) {
            // They are given up all the same. What they had is left to whoever can find that out: fsck.
            Err(error) if error.errno == Errno::Io => {
                tracing::warn!(stream, %error, "space that is given up cannot be given back");
                Ok((limit, 0))
            }
            deleted => deleted,
        }
    }

    fn try_delete_first_extents(&mut self, stream: u64, limit: usize) -> FsResult<(usize, u64)> {
        let mut doomed = Vec::new();
        self.extents(stream, &(0..u64::MAX), &mut |placed| {
            doomed.push(placed.clone());
            if doomed.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.delete_extents(stream, &doomed, limit)?;
        Ok((doomed.len(), doomed.last().map_or(0, |last| last.end)))
    }

    /// Deletes extents that follow each other: there are no more if they are fewer than `limit`.
    fn delete_extents(&mut self, stream: u64, doomed: &[Placed], limit: usize) -> FsResult<()> {
        for (index, placed) in doomed.iter().enumerate() {
            self.set_extent(stream, (placed.start, placed.end), None);
            let ExtentBody::Chunk { chunk, skip } = &placed.extent.body else {
                continue;
            };
            // Pieces of it that come before are gone: the last one releases the chunk.
            let window = chunk_end(placed.start, *skip, chunk);
            let mut later = doomed[index + 1..].iter().take_while(|later| later.start < window);
            if later.any(|later| later.extent.is_of(chunk)) {
                continue;
            }
            let seen_all = doomed.last().is_some_and(|last| last.start >= window) || doomed.len() < limit;
            if seen_all {
                self.release_chunk(*chunk);
            } else {
                self.release_if_unused(stream, placed.start, chunk, *skip)?;
            }
        }
        Ok(())
    }

    fn delete_xattrs(&mut self, ino: Ino, limit: usize) -> FsResult<usize> {
        let mut keys = Vec::new();
        if limit > 0 {
            self.scan(Table::Xattr, &key::number_range(self.volume.id, ino.0), &mut |key, _| {
                keys.push(key.to_vec());
                if keys.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        for key in &keys {
            self.set_record(Table::Xattr, key, None);
        }
        if !keys.is_empty() {
            self.set_xattr_sizes(ino, None);
        }
        Ok(keys.len())
    }
}
