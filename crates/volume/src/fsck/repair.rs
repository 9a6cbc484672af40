//! Mending, one problem at a time.

use super::census::Census;
use super::problem::Problem;
use crate::key;
use crate::record::{self, Counters, Dirent, Extent, ExtentBody, Inode, InodeMark, Reclaim, Runs};
use crate::view::View;
use crate::volume::{Volume, root_inode};
use bytes::Bytes;
use serde::Serialize;
use soda_storage::{Batch, Table};
use soda_types::semantics::Moment;
use soda_types::{Errno, FileKind, FsError, FsResult, Ino, Name, Timestamp};

const LOST_AND_FOUND: &str = "lost+found";

/// Makes a problem go away. Others may show after that, as counts that were right before.
pub(super) fn mend(volume: &Volume, census: &Census, problem: &Problem, now: Timestamp) -> FsResult<()> {
    let now = Moment::now(now, volume.first_version);
    let mut mender = Mender { volume, batch: Batch::releasing(), now };
    let id = volume.id;
    match problem {
        Problem::Unreadable { table, key, .. } => mender.batch.delete(*table, key.clone()),
        Problem::NoRoot => mender.put(Table::Inode, key::inode(id, Ino::ROOT), &root_inode(now)),
        Problem::LostDirectory { ino } => {
            let inode = Inode { perm: 0o700, stream: ino.0, ..root_inode(now) };
            mender.put(Table::Inode, key::inode(id, *ino), &inode);
        }
        Problem::LostFile { ino, size, allocated } => {
            let inode = Inode {
                kind: FileKind::File,
                perm: 0o600,
                nlink: 1,
                parent: Ino::default(),
                stream: ino.0,
                size: *size,
                allocated: allocated.0,
                inline: allocated.1,
                ..root_inode(now)
            };
            mender.put(Table::Inode, key::inode(id, *ino), &inode);
        }
        Problem::DanglingName { parent, name, .. }
        | Problem::NameInNoDirectory { parent, name, .. }
        | Problem::SecondName { parent, name, .. }
        | Problem::Loop { parent, name, .. } => {
            mender.batch.delete(Table::Dirent, key::dirent(id, *parent, name));
            mender.change(*parent, |_| {})?;
        }
        Problem::WrongKind { parent, name, ino, kind } => {
            let dirent = Dirent { ino: *ino, kind: *kind };
            mender.put(Table::Dirent, key::dirent(id, *parent, name), &dirent);
            mender.change(*parent, |_| {})?;
        }
        Problem::Unreachable { ino, kind } => mender.rescue(census, *ino, *kind)?,
        Problem::WrongParent { ino, actual, .. } => mender.change(*ino, |inode| inode.parent = *actual)?,
        Problem::WrongLinkCount { ino, actual, .. } => mender.change(*ino, |inode| inode.nlink = *actual)?,
        Problem::WrongNameCount { ino, actual, .. } => {
            mender.change(*ino, |inode| inode.entries = *actual)?
        }
        Problem::WrongXattrCount { ino, actual, .. } => {
            mender.change(*ino, |inode| inode.xattrs = *actual)?
        }
        Problem::WrongAllocation { ino, actual, .. } => {
            mender.change(*ino, |inode| (inode.allocated, inode.inline) = *actual)?;
        }
        Problem::OrphanWithoutInode { ino } | Problem::OrphanWithNames { ino } => {
            mender.batch.delete(Table::Orphan, key::inode(id, *ino));
        }
        Problem::Old { ino, .. } => mender.change(*ino, |_| {})?,
        Problem::SharedData { ino, stream, range, .. } => {
            mender.copy(*stream, range.end)?;
            mender.change(*ino, |_| {})?;
        }
        Problem::Overlap { ino, stream, range } | Problem::LostData { ino, stream, range, .. } => {
            mender.batch.delete(Table::Extent, key::extent(id, *stream, range.end));
            mender.change(*ino, |_| {})?;
        }
        Problem::PastEnd { ino, stream, range, size } => {
            mender.cut(*stream, range.clone(), *size)?;
            mender.change(*ino, |_| {})?;
        }
        Problem::LeakedExtents { stream } => {
            mender.put(
                Table::Reclaim,
                key::reclaim(id, *stream),
                &Reclaim { xattrs_of: None, deleted_to: 0 },
            );
        }
        Problem::LeakedXattr { key, .. } => mender.batch.delete(Table::Xattr, key.clone()),
        Problem::ReclaimedInUse { stream, .. } => {
            mender.batch.delete(Table::Reclaim, key::reclaim(id, *stream))
        }
        Problem::ReleasedInUse { chunk } => mender.batch.delete(Table::Release, key::chunk(chunk)),
        Problem::LeakedSpace { segment, range } => volume.data.release_range(*segment, range.clone())?,
        Problem::WrongTotals { actual: (inodes, allocated), .. } => {
            let counters = Counters { inodes: *inodes, allocated: *allocated };
            mender.put(Table::Meta, key::counters(id), &counters);
        }
        Problem::LowRuns { highest, .. } => {
            mender.put(Table::Meta, key::runs(id), &Runs { begun: *highest });
        }
        Problem::LowInodeMark { highest, .. } => {
            mender.put(Table::Meta, key::inode_mark(id), &InodeMark { next: highest.saturating_add(1) });
        }
    }
    volume.meta.commit(mender.batch)?;
    match problem {
        // What is made from here on gets numbers above the mark.
        Problem::LowInodeMark { .. } => volume.forget_cached(),
        _ => Ok(()),
    }
}

struct Mender<'v> {
    volume: &'v Volume,
    batch: Batch,
    now: Moment,
}

impl Mender<'_> {
    fn put<T: Serialize>(&mut self, table: Table, key: Vec<u8>, record: &T) {
        self.batch.put(table, key, record::encode(record));
    }

    /// The record as it is now, after what was mended before.
    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) -> FsResult<()> {
        let key = key::inode(self.volume.id, ino);
        let inode: Option<Inode> = self.volume.record(Table::Inode, &key)?;
        if let Some(mut inode) = inode {
            change(&mut inode);
            // Whatever clients have cached of it, they shall ask again.
            let mut attr = inode.attr(ino);
            attr.data_changed(self.now);
            inode.set_attr(&attr);
            self.put(Table::Inode, key, &inode);
        }
        Ok(())
    }

    /// Gives an inode the name `#number` in `lost+found`. Counts are put right by the next round.
    fn rescue(&mut self, census: &Census, ino: Ino, kind: FileKind) -> FsResult<()> {
        if !census.inodes.contains_key(&Ino::ROOT) {
            // There is a root in the next round.
            return Ok(());
        }
        let directory = self.lost_and_found()?;
        let name = entry_name(&format!("#{}", ino.0))?;
        self.put(Table::Dirent, key::dirent(self.volume.id, directory, &name), &Dirent { ino, kind });
        self.change(ino, |inode| {
            inode.parent = directory;
            if kind != FileKind::Directory {
                inode.nlink = 1;
            }
        })
    }

    fn lost_and_found(&mut self) -> FsResult<Ino> {
        let name = entry_name(LOST_AND_FOUND)?;
        let key = key::dirent(self.volume.id, Ino::ROOT, &name);
        let known: Option<Dirent> = self.volume.record(Table::Dirent, &key)?;
        match known {
            Some(dirent) if dirent.kind == FileKind::Directory => Ok(dirent.ino),
            // Something else has the name: the root will do.
            Some(_) => Ok(Ino::ROOT),
            None => {
                let ino = Ino(self.volume.new_number()?);
                let inode = Inode { perm: 0o700, stream: ino.0, ..root_inode(self.now) };
                self.put(Table::Inode, key::inode(self.volume.id, ino), &inode);
                self.put(Table::Dirent, key, &Dirent { ino, kind: FileKind::Directory });
                Ok(ino)
            }
        }
    }

    /// Gives an extent a chunk of its own with the same data.
    fn copy(&mut self, stream: u64, end: u64) -> FsResult<()> {
        let key = key::extent(self.volume.id, stream, end);
        let extent: Option<Extent> = self.volume.record(Table::Extent, &key)?;
        if let Some(extent) = extent {
            let data = self.volume.extent_data(&extent)?;
            let body = ExtentBody::Chunk { chunk: self.volume.append_chunk(&data)?, skip: 0 };
            self.put(Table::Extent, key, &Extent { len: extent.len, body });
        }
        Ok(())
    }

    /// Cuts an extent off at the end of its file.
    fn cut(&mut self, stream: u64, range: std::ops::Range<u64>, size: u64) -> FsResult<()> {
        let id = self.volume.id;
        let key = key::extent(id, stream, range.end);
        let value: Option<Bytes> = self.volume.raw(Table::Extent, &key)?;
        self.batch.delete(Table::Extent, key.clone());
        if let Some(value) = value
            && range.start < size
            && let Ok(placed) = crate::view::placed(&key, &value)
        {
            self.put(
                Table::Extent,
                key::extent(id, stream, size),
                &placed.extent.part(0, size - range.start),
            );
        }
        Ok(())
    }
}

fn entry_name(text: &str) -> FsResult<Name> {
    Name::try_from(text).map_err(|error| FsError::new(Errno::Invalid, error.to_string()))
}
