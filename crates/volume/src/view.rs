//! Reading, the same for what is committed and for what a transaction sees.

use crate::key::{self, KeyRange};
use crate::record::{self, Dirent, Extent, Inode, RecordError};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use soda_storage::{Table, Visit};
use soda_types::{Errno, Fid, FileKind, FsError, FsResult, Ino, Name, VolumeId};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// A state of the volume.
pub(crate) trait View {
    fn volume_id(&self) -> VolumeId;

    fn raw(&self, table: Table, key: &[u8]) -> FsResult<Option<Bytes>>;

    fn scan(&self, table: Table, range: &KeyRange, visit: Visit<'_>) -> FsResult<()>;

    fn inode_record(&self, ino: Ino) -> FsResult<Option<Arc<Inode>>>;

    fn dirent(&self, parent: Ino, name: &Name) -> FsResult<Option<Dirent>>;

    fn record<T: DeserializeOwned>(&self, table: Table, key: &[u8]) -> FsResult<Option<T>> {
        let bytes = self.raw(table, key)?;
        bytes.map(|bytes| record::decode(&bytes).map_err(|error| damaged(table, key, error))).transpose()
    }

    /// The number of a fid that is of this volume.
    fn ino(&self, fid: Fid) -> FsResult<Ino> {
        if fid.volume != self.volume_id() || fid.generation != 0 {
            return Err(FsError::new(Errno::Stale, format!("{fid} is not of volume {}", self.volume_id())));
        }
        Ok(fid.ino)
    }

    /// The inode of a fid.
    fn inode(&self, fid: Fid) -> FsResult<Arc<Inode>> {
        let ino = self.ino(fid)?;
        self.inode_record(ino)?
            .ok_or_else(|| FsError::new(Errno::Stale, format!("{fid} does not exist any more")))
    }

    fn directory(&self, fid: Fid) -> FsResult<Arc<Inode>> {
        let inode = self.inode(fid)?;
        match inode.kind {
            FileKind::Directory => Ok(inode),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    /// An inode whose data can be read and written.
    fn file(&self, fid: Fid) -> FsResult<Arc<Inode>> {
        let inode = self.inode(fid)?;
        match inode.kind {
            FileKind::File => Ok(inode),
            FileKind::Directory => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// The inode that a name or an inode's parent stands for: it must be there.
    fn referred(&self, ino: Ino) -> FsResult<Arc<Inode>> {
        self.inode_record(ino)?.ok_or_else(|| {
            FsError::new(Errno::Io, format!("inode {ino} is named but does not exist: run `soda fsck`"))
        })
    }

    /// Visits the extents that hold data in a range, in order.
    fn extents(
        &self,
        stream: u64,
        range: &Range<u64>,
        visit: &mut dyn FnMut(&Placed) -> ControlFlow<()>,
    ) -> FsResult<()>;

    /// The extents that hold data in a range, in order.
    fn extents_in(&self, stream: u64, range: &Range<u64>) -> FsResult<Vec<Placed>> {
        let mut found = Vec::new();
        self.extents(stream, range, &mut |placed| {
            found.push(placed.clone());
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

/// An extent with its place in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) extent: Extent,
}

pub(crate) fn placed(key: &[u8], value: &[u8]) -> Result<Placed, RecordError> {
    let extent: Extent = record::decode(value)?;
    let end = key::extent_end(key).ok_or(RecordError::Malformed)?;
    let start = end.checked_sub(extent.len).ok_or(RecordError::Malformed)?;
    if extent.len == 0 || !extent.fits() {
        return Err(RecordError::Malformed);
    }
    Ok(Placed { start, end, extent })
}

pub(crate) fn damaged(table: Table, key: &[u8], error: RecordError) -> FsError {
    FsError::new(Errno::Io, format!("{error} in table {} at {key:02x?}: run `soda fsck`", table.name()))
}
