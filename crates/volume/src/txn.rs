//! A transaction: changes that are seen by nobody else until they are committed, all at once.

use crate::extents::{ExtentChange, ExtentChanges};
use crate::key::{self, KeyRange};
use crate::record::{self, Counters, Dirent, Extent, Inode, Released};
use crate::redo::{Appended, Kept};
use crate::turns::{RenameLock, RenameTurn};
use crate::view::{Placed, View};
use crate::volume::{Node, Volume};
use crate::xattr_sizes::XattrSizes;
use bytes::Bytes;
use serde::Serialize;
use soda_storage::{Batch, ChunkRef, SpaceUse, StorageError, Table, Visit, crash};
use soda_types::semantics::Moment;
use soda_types::{Attr, Errno, Fid, FileKind, FsError, FsResult, Ino, Name, Timestamp, Version, VolumeId};
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, PoisonError};

/// What becomes of an inode that loses its last name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfOpen {
    /// Somebody has it open: it becomes an orphan until [`Txn::drop_orphan`].
    Keep,
    /// Nobody has it open: it is deleted.
    Delete,
}

/// An inode that lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    pub fid: Fid,
    /// After the removal.
    pub attr: Attr,
    pub fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It has other names.
    Linked,
    /// It has no name but is kept because somebody has it open.
    Orphaned,
    Deleted,
}

type RawKey = (Table, Bytes);

/// A transaction. Dropped without [`commit`](Txn::commit) it changes nothing. An operation that fails leaves the
/// transaction as it was before it.
#[derive(Debug)]
pub struct Txn<'v> {
    pub(crate) volume: &'v Volume,
    now: Moment,
    inodes: HashMap<Ino, InodeChange>,
    records: BTreeMap<RawKey, Option<Bytes>>,
    dirents: HashMap<(Ino, Name), Option<Dirent>>,
    extents: ExtentChanges,
    /// Of inodes whose extended attributes it changes; `None`: not known.
    xattr_sizes: HashMap<Ino, Option<XattrSizes>>,
    /// Chunks whose last reference goes with this transaction.
    released: Vec<ChunkRef>,
    /// Chunks that were appended for it: nobody else knows them.
    appended: Vec<Appended>,
    space: SpaceUse,
    rename_turn: Option<RenameTurn>,
    undo: Vec<Undo>,
}

#[derive(Clone, Debug)]
struct InodeChange {
    before: Option<Arc<Inode>>,
    now: Option<Arc<Inode>>,
}

/// How to take back one step.
#[derive(Debug)]
enum Undo {
    Inode(Ino, Option<InodeChange>),
    Record(RawKey, Option<Option<Bytes>>),
    Dirent((Ino, Name), Option<Option<Dirent>>),
    Extent((u64, u64), Option<ExtentChange>),
    XattrSizes(Ino, Option<Option<XattrSizes>>),
    Released,
    /// So many chunks were taken over.
    Adopted(usize),
    Space(SpaceUse),
}

impl Volume {
    /// Begins a transaction whose changes happen at `now`.
    pub fn begin(&self, now: Timestamp) -> Txn<'_> {
        Txn {
            volume: self,
            now: Moment::now(now, self.first_version),
            inodes: HashMap::new(),
            records: BTreeMap::new(),
            dirents: HashMap::new(),
            extents: ExtentChanges::default(),
            xattr_sizes: HashMap::new(),
            released: Vec::new(),
            appended: Vec::new(),
            space: SpaceUse::Releases,
            rename_turn: None,
            undo: Vec::new(),
        }
    }
}

impl Txn<'_> {
    /// What follows was done at that time, somewhere else ([`Moment::logged`]).
    pub fn logged_at(&mut self, time: Timestamp) {
        self.now = Moment::logged(time, self.volume.first_version);
    }

    /// Gives an inode these versions, as who changed it elsewhere has counted them. What is not above what the
    /// inode had before the transaction is left as it is.
    pub fn set_versions(&mut self, fid: Fid, version: Version, data_version: Version) -> FsResult<()> {
        let first = self.volume.first_version;
        let before = match self.inodes.get(&fid.ino) {
            Some(change) => change.before.clone(),
            None => self.volume.inode_record(fid.ino)?,
        };
        let (last, last_data) =
            before.map_or_else(Default::default, |inode| (inode.version, inode.data_version));
        if version > last && version >= first {
            self.inode_mut(fid.ino)?.version = version;
        }
        if data_version > last_data && data_version >= first {
            self.inode_mut(fid.ino)?.data_version = data_version;
        }
        Ok(())
    }

    /// What a name stands for as the transaction sees it, without a look at the inode.
    pub fn resolve(&self, parent: Fid, name: &Name) -> FsResult<Option<(Fid, FileKind)>> {
        self.directory(parent)?;
        let dirent = self.dirent(parent.ino, name)?;
        Ok(dirent.map(|dirent| (Fid::new(self.volume.id, dirent.ino), dirent.kind)))
    }

    /// Attributes as the transaction sees them.
    pub fn attr(&self, fid: Fid) -> FsResult<Attr> {
        Ok(self.inode(fid)?.attr(fid.ino))
    }

    /// How many extended attributes an inode has, as the transaction sees it.
    pub fn xattr_count(&self, fid: Fid) -> FsResult<u32> {
        Ok(self.inode(fid)?.xattrs)
    }

    pub fn volume_id(&self) -> VolumeId {
        self.volume.id
    }

    /// A name as the transaction sees it.
    pub fn lookup(&self, parent: Fid, name: &Name) -> FsResult<Option<Node>> {
        self.directory(parent)?;
        self.dirent(parent.ino, name)?.map(|dirent| self.node_of(dirent.ino)).transpose()
    }

    /// Puts a record of the server into the same batch: a session, a reply.
    pub fn put_extra(&mut self, table: Table, key: &[u8], value: Bytes) {
        self.set_record(table, key, Some(value));
    }

    pub fn delete_extra(&mut self, table: Table, key: &[u8]) {
        self.set_record(table, key, None);
    }

    /// Makes all changes, or none. When it returns they survive the death of the process; [`Volume::sync`] makes them
    /// survive that of the machine.
    pub fn commit(mut self) -> FsResult<()> {
        let mut batch = Batch { changes: Vec::new(), space: self.space };
        let (mut grown, mut shrunk) = (Counters::default(), Counters::default());
        for (ino, change) in &self.inodes {
            let key = key::inode(self.volume.id, *ino);
            match &change.now {
                Some(inode) => batch.put(Table::Inode, key, record::encode(&**inode)),
                None => batch.delete(Table::Inode, key),
            }
            count(&mut shrunk, change.before.as_deref());
            count(&mut grown, change.now.as_deref());
        }
        let redo = self.put_redo(&mut batch);
        for ((table, key), value) in std::mem::take(&mut self.records) {
            match value {
                Some(value) => batch.put(table, key, value),
                None => batch.delete(table, key),
            }
        }
        for ((stream, end), change) in self.extents.iter() {
            let key = key::extent(self.volume.id, *stream, *end);
            match &change.now {
                Some(extent) => batch.put(Table::Extent, key, record::encode(extent)),
                None => batch.delete(Table::Extent, key),
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        crash::point("volume.commit.before");
        // Before the counters are locked: who has no chunks that only a sync makes durable does not wait for one.
        let volume = self.volume;
        let needs_sync = self.appended.iter().any(Appended::needs_sync);
        let _turn =
            needs_sync.then(|| volume.chunks_committed.read().unwrap_or_else(PoisonError::into_inner));
        if grown == shrunk {
            self.commit_batch(batch)?;
        } else {
            let mut turn = self.volume.totals.turn();
            let counters = turn.stored();
            let after = Counters {
                inodes: (counters.inodes + grown.inodes).saturating_sub(shrunk.inodes),
                allocated: (counters.allocated + grown.allocated).saturating_sub(shrunk.allocated),
            };
            batch.put(Table::Meta, key::counters(self.volume.id), record::encode(&after));
            self.commit_batch(batch)?;
            turn.set(after);
        }
        crash::point("volume.commit.after");
        self.appended.clear();
        // Before what it releases is known: a record goes before its chunk does.
        volume.redo.committed(redo);
        self.publish();
        Ok(())
    }

    /// Has the batch bring the data of chunks along that must not be lost without it. Returns the keys of the records.
    fn put_redo(&self, batch: &mut Batch) -> Vec<Kept> {
        let kept = self.appended.iter().filter(|appended| !self.is_released(&appended.chunk));
        kept.filter_map(|appended| appended.put_redo(batch)).collect()
    }

    fn commit_batch(&mut self, batch: Batch) -> FsResult<()> {
        let result = self.volume.meta.commit(batch);
        if matches!(result, Err(ref error) if !matches!(error, StorageError::NoSpace { .. })) {
            // The batch may be on the medium or not: its chunks must stay. If it is not, fsck finds them.
            self.appended.clear();
        }
        Ok(result?)
    }

    /// Has the caches show what was committed.
    fn publish(&mut self) {
        let volume = self.volume;
        for (ino, change) in self.inodes.drain() {
            volume.inodes.committed(ino, change.now.map(|inode| (inode, 1)));
        }
        for (name, dirent) in self.dirents.drain() {
            volume.dirents.committed(name, Some((dirent, 1)));
        }
        for (ino, sizes) in self.xattr_sizes.drain() {
            volume.xattr_sizes.committed(ino, sizes.map(|sizes| (sizes, 1)));
        }
        volume.windows.committed(std::mem::take(&mut self.extents));
        volume.releases.dropped(std::mem::take(&mut self.released));
    }

    /// When its changes happen.
    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// Notes that the transaction is not one that leads to space being freed.
    pub(crate) fn takes_space(&mut self) {
        if self.space != SpaceUse::Takes {
            self.undo.push(Undo::Space(self.space));
            self.space = SpaceUse::Takes;
        }
    }

    /// Runs an operation; takes its changes back if it fails.
    pub(crate) fn atomically<T>(&mut self, operation: impl FnOnce(&mut Self) -> FsResult<T>) -> FsResult<T> {
        self.undo.clear();
        self.part(operation)
    }

    /// Runs a part of an operation that may fail without the whole; takes the changes of the part back if it does.
    pub(crate) fn part<T>(&mut self, part: impl FnOnce(&mut Self) -> FsResult<T>) -> FsResult<T> {
        let before = self.undo.len();
        let result = part(self);
        if result.is_err() {
            for step in self.undo.split_off(before).into_iter().rev() {
                self.take_back(step);
            }
        }
        result
    }

    fn take_back(&mut self, step: Undo) {
        fn restore<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match step {
            Undo::Inode(ino, change) => restore(&mut self.inodes, ino, change),
            Undo::Dirent(name, dirent) => restore(&mut self.dirents, name, dirent),
            Undo::Extent(place, before) => self.extents.restore(place, before),
            Undo::XattrSizes(ino, sizes) => restore(&mut self.xattr_sizes, ino, sizes),
            Undo::Record(key, Some(value)) => {
                self.records.insert(key, value);
            }
            Undo::Record(key, None) => {
                self.records.remove(&key);
            }
            Undo::Released => {
                self.released.pop();
            }
            Undo::Adopted(count) => {
                let keep = self.appended.len().saturating_sub(count);
                give_back(self.volume, self.appended.drain(keep..));
            }
            Undo::Space(space) => self.space = space,
        }
    }

    /// The inode, to be changed. It must exist.
    pub(crate) fn inode_mut(&mut self, ino: Ino) -> FsResult<&mut Inode> {
        let known = self.inodes.get(&ino).cloned();
        let change = match &known {
            Some(change) => change.clone(),
            None => {
                let before = self.volume.inode_record(ino)?;
                InodeChange { now: before.clone(), before }
            }
        };
        self.undo.push(Undo::Inode(ino, known));
        let slot = self.inodes.entry(ino).insert_entry(change).into_mut();
        match &mut slot.now {
            Some(inode) => Ok(Arc::make_mut(inode)),
            None => Err(FsError::new(Errno::Io, format!("inode {ino} does not exist"))),
        }
    }

    /// Changes the attributes of an inode as an operation does. Returns them.
    pub(crate) fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Attr)) -> FsResult<Attr> {
        let inode = self.inode_mut(ino)?;
        let mut attr = inode.attr(ino);
        change(&mut attr);
        inode.set_attr(&attr);
        Ok(attr)
    }

    /// Makes or deletes an inode.
    pub(crate) fn set_inode(&mut self, ino: Ino, inode: Option<Inode>) -> FsResult<()> {
        let known = self.inodes.get(&ino).cloned();
        let before = match &known {
            Some(change) => change.before.clone(),
            // One that is made has a number that was never used.
            None if inode.is_some() => None,
            None => self.volume.inode_record(ino)?,
        };
        self.undo.push(Undo::Inode(ino, known));
        self.inodes.insert(ino, InodeChange { before, now: inode.map(Arc::new) });
        Ok(())
    }

    pub(crate) fn put_record<T: Serialize>(&mut self, table: Table, key: &[u8], value: &T) {
        self.set_record(table, key, Some(record::encode(value)));
    }

    pub(crate) fn set_record(&mut self, table: Table, key: &[u8], value: Option<Bytes>) {
        let key = (table, Bytes::copy_from_slice(key));
        let before = self.records.insert(key.clone(), value);
        self.undo.push(Undo::Record(key, before));
    }

    /// What the extended attributes take in the transaction, if it has changed them; within that `None`: not known.
    pub(crate) fn changed_xattr_sizes(&self, ino: Ino) -> Option<Option<XattrSizes>> {
        self.xattr_sizes.get(&ino).copied()
    }

    pub(crate) fn set_xattr_sizes(&mut self, ino: Ino, sizes: Option<XattrSizes>) {
        let before = self.xattr_sizes.insert(ino, sizes);
        self.undo.push(Undo::XattrSizes(ino, before));
    }

    pub(crate) fn set_dirent(&mut self, parent: Ino, name: &Name, dirent: Option<Dirent>) {
        let raw = key::dirent(self.volume.id, parent, name);
        self.set_record(Table::Dirent, &raw, dirent.map(|dirent| record::encode(&dirent)));
        let key = (parent, name.clone());
        let before = self.dirents.insert(key.clone(), dirent);
        self.undo.push(Undo::Dirent(key, before));
    }

    /// Has the extent from `start` to `end` of a stream be this one, or none.
    pub(crate) fn set_extent(&mut self, stream: u64, (start, end): (u64, u64), extent: Option<Extent>) {
        let before = self.extents.set((stream, end), start, extent);
        self.undo.push(Undo::Extent((stream, end), before));
    }

    /// The extent that ends at `end`, if there is one.
    pub(crate) fn extent_ending_at(&self, stream: u64, end: u64) -> FsResult<Option<Placed>> {
        let extent = match self.extents.get(stream, end) {
            Some(change) => change.now.clone(),
            None => self.record(Table::Extent, &key::extent(self.volume.id, stream, end))?,
        };
        Ok(extent.map(|extent| Placed { start: end.saturating_sub(extent.len), end, extent }))
    }

    /// Notes that nothing refers to a chunk any more.
    pub(crate) fn release_chunk(&mut self, chunk: ChunkRef) {
        self.put_record(Table::Release, &key::chunk(&chunk), &Released { chunk });
        self.undo.push(Undo::Released);
        self.released.push(chunk);
    }

    /// Whether this transaction releases the chunk already.
    pub(crate) fn is_released(&self, chunk: &ChunkRef) -> bool {
        matches!(self.records.get(&(Table::Release, key::chunk(chunk))), Some(Some(_)))
    }

    /// Takes over chunks that were appended for this transaction.
    pub(crate) fn adopt(&mut self, chunks: impl IntoIterator<Item = Appended>) {
        let before = self.appended.len();
        self.appended.extend(chunks);
        self.undo.push(Undo::Adopted(self.appended.len() - before));
    }

    pub(crate) fn take_rename_turn(&mut self) {
        if self.rename_turn.is_none() {
            self.rename_turn = Some(RenameLock::wait(&self.volume.rename_lock));
        }
    }

    pub(crate) fn node_of(&self, ino: Ino) -> FsResult<Node> {
        Ok(self.volume.node(ino, &*self.referred(ino)?))
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        give_back(self.volume, self.appended.drain(..));
    }
}

/// Releases chunks that no record refers to.
fn give_back(volume: &Volume, chunks: impl Iterator<Item = Appended>) {
    for Appended { chunk, .. } in chunks {
        if let Err(error) = volume.data.release(&chunk) {
            tracing::warn!(%error, "the space of a chunk nobody refers to is not given back before the next start");
        }
    }
}

impl View for Txn<'_> {
    fn volume_id(&self) -> VolumeId {
        self.volume.id
    }

    fn raw(&self, table: Table, key: &[u8]) -> FsResult<Option<Bytes>> {
        match self.records.get(&(table, Bytes::copy_from_slice(key))) {
            Some(value) => Ok(value.clone()),
            None => self.volume.raw(table, key),
        }
    }

    /// Merges what the transaction changed with what is committed.
    fn scan(&self, table: Table, range: &KeyRange, visit: Visit<'_>) -> FsResult<()> {
        let bound = |key: &[u8]| (table, Bytes::copy_from_slice(key));
        let mut own = self.records.range(bound(&range.start)..bound(&range.end)).peekable();
        if own.peek().is_none() {
            return self.volume.scan(table, range, visit);
        }
        let mut stopped = false;
        self.volume.scan(table, range, &mut |key, value| {
            while let Some(((_, own_key), own_value)) = own.next_if(|((_, own_key), _)| own_key[..] < *key) {
                if let Some(own_value) = own_value
                    && visit(own_key, own_value.clone()).is_break()
                {
                    stopped = true;
                    return ControlFlow::Break(());
                }
            }
            let flow = match own.next_if(|((_, own_key), _)| own_key[..] == *key) {
                Some((_, Some(own_value))) => visit(key, own_value.clone()),
                Some((_, None)) => ControlFlow::Continue(()),
                None => visit(key, value),
            };
            stopped = flow.is_break();
            flow
        })?;
        if !stopped {
            for ((_, key), value) in own {
                if let Some(value) = value
                    && visit(key, value.clone()).is_break()
                {
                    break;
                }
            }
        }
        Ok(())
    }

    fn extents(
        &self,
        stream: u64,
        range: &Range<u64>,
        visit: &mut dyn FnMut(&Placed) -> ControlFlow<()>,
    ) -> FsResult<()> {
        let committed =
            |visit: &mut dyn FnMut(&Placed) -> ControlFlow<()>| self.volume.extents(stream, range, visit);
        self.extents.merged(stream, range, visit, committed)
    }

    fn inode_record(&self, ino: Ino) -> FsResult<Option<Arc<Inode>>> {
        match self.inodes.get(&ino) {
            Some(change) => Ok(change.now.clone()),
            None => self.volume.inode_record(ino),
        }
    }

    fn dirent(&self, parent: Ino, name: &Name) -> FsResult<Option<Dirent>> {
        match self.dirents.get(&(parent, name.clone())) {
            Some(dirent) => Ok(*dirent),
            None => self.volume.dirent(parent, name),
        }
    }
}

fn count(counters: &mut Counters, inode: Option<&Inode>) {
    if let Some(inode) = inode {
        counters.inodes += 1;
        counters.allocated += inode.allocated;
    }
}
