//! Ordered metadata with atomic batches.

use crate::StorageResult;
use bytes::Bytes;
use std::fmt;
use std::ops::ControlFlow;

/// The name spaces of keys. Which records live where is the business of those above; the store only keeps them apart.
/// The order is part of the format: append only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Table {
    /// Superblock, counters, allocation marks.
    Meta = 0,
    Inode = 1,
    Dirent = 2,
    Extent = 3,
    Xattr = 4,
    /// Inodes without a name that somebody may still have open.
    Orphan = 5,
    /// Inodes that are gone, whose extents and xattrs are still to be deleted.
    Reclaim = 6,
    /// Chunks that nothing refers to, whose space is given back after the next sync.
    Release = 7,
    /// A server's sessions (owned by the server).
    Session = 8,
    /// Replies kept for retries (owned by the server).
    Reply = 9,
    /// Anything else of the server: epochs, clients' identities (owned by the server).
    Server = 10,
    /// What sessions have set aside: inode numbers, space (owned by the server).
    Reservation = 11,
    /// Chunks that a power cut may take, with their data, until a sync has them on the medium.
    Redo = 12,
}

impl Table {
    pub const ALL: &'static [Table] = &[
        Table::Meta,
        Table::Inode,
        Table::Dirent,
        Table::Extent,
        Table::Xattr,
        Table::Orphan,
        Table::Reclaim,
        Table::Release,
        Table::Session,
        Table::Reply,
        Table::Server,
        Table::Reservation,
        Table::Redo,
    ];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Inode => "inode",
            Table::Dirent => "dirent",
            Table::Extent => "extent",
            Table::Xattr => "xattr",
            Table::Orphan => "orphan",
            Table::Reclaim => "reclaim",
            Table::Release => "release",
            Table::Session => "session",
            Table::Reply => "reply",
            Table::Server => "server",
            Table::Reservation => "reservation",
            Table::Redo => "redo",
        }
    }
}

/// What a batch does to the space of the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpaceUse {
    /// Refused once the free space is down to the reserve.
    #[default]
    Takes,
    /// Leads to space being freed (unlink, truncate): may use the reserve.
    Releases,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Put { table: Table, key: Bytes, value: Bytes },
    Delete { table: Table, key: Bytes },
}

/// Changes that happen together or not at all, in order: of two changes of one key the later one counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub space: SpaceUse,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    /// A batch that may use the reserve.
    pub fn releasing() -> Batch {
        Batch { changes: Vec::new(), space: SpaceUse::Releases }
    }

    pub fn put(&mut self, table: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.changes.push(Change::Put { table, key: key.into(), value: value.into() });
    }

    pub fn delete(&mut self, table: Table, key: impl Into<Bytes>) {
        self.changes.push(Change::Delete { table, key: key.into() });
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Bytes of keys and values.
    pub fn size(&self) -> u64 {
        let bytes = |change: &Change| match change {
            Change::Put { key, value, .. } => key.len() + value.len(),
            Change::Delete { key, .. } => key.len(),
        };
        self.changes.iter().map(|change| bytes(change) as u64).sum()
    }
}

/// Where a store comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was made just now, or by somebody who did not come to complete it.
    New,
    /// It was completed before.
    Kept,
}

/// Called with each key and value of a scan, in key order; `Break` ends the scan.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], Bytes) -> ControlFlow<()>;

/// Reading of ordered metadata.
pub trait MetaRead: Send + Sync + fmt::Debug {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>>;

    /// Visits the keys from `start` (included) to `end` (excluded) in ascending order.
    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()>;
}

/// Ordered metadata with atomic batches.
///
/// [`commit`](MetaStore::commit) returns when the batch is visible and in the hands of the operating system: it
/// survives the death of the process, not that of the machine. [`sync`](MetaStore::sync) makes everything that was
/// committed before the call durable. Batches become durable in the order of their commits.
pub trait MetaStore: MetaRead {
    fn commit(&self, batch: Batch) -> StorageResult<()>;

    fn sync(&self) -> StorageResult<()>;

    /// Gives back the space of what was deleted or overwritten, where that is worth the work. Called in the background;
    /// may take its time, and is cheap when there is nothing to do.
    fn tidy(&self) -> StorageResult<()> {
        Ok(())
    }

    /// Brings everything to where a start finds it without doing anything again. For the end of a server: what is committed
    /// after it has to be recovered as ever.
    fn checkpoint(&self) -> StorageResult<()> {
        Ok(())
    }

    /// Only in a new store may be made what there has to be from the start: one that is kept and has none of it has lost it.
    fn origin(&self) -> Origin;

    /// Makes a new store one that is kept. Called when all that it has to have from the start is committed and synced.
    fn complete(&self) -> StorageResult<()>;

    /// Why nothing is written any more until the store is opened anew, if it is so.
    fn stopped(&self) -> Option<String> {
        None
    }

    /// The state as of now, whatever is committed later.
    fn snapshot(&self) -> Box<dyn MetaRead>;
}
