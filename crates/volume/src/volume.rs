//! A volume: what is shared by its readers and its transactions.

use crate::buffers::Buffers;
use crate::cache::{Cache, CacheUse};
use crate::extents::{StoredExtents, Windows};
use crate::group_sync::GroupSync;
use crate::key::{self, KeyRange};
use crate::record::{self, Counters, Dirent, Inode, InodeMark, Runs, Superblock};
use crate::redo::{self, RedoList};
use crate::release::ReleaseQueue;
use crate::sweep::Sweep;
use crate::totals::Totals;
use crate::turns::{ReclaimTurn, RenameLock};
use crate::versions;
use crate::view::{Placed, View, damaged};
use crate::xattr_sizes::XattrSizes;
use bytes::Bytes;
use soda_storage::{Batch, ChunkRef, DataStore, MetaStore, Origin, Space, Table, Visit, crash};
use soda_types::semantics::Moment;
use soda_types::{
    Attr, Errno, Fid, FileKind, FsError, FsResult, FsStats, Ino, Name, Timestamp, Version, VolumeId,
};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Name of the volume that a fresh data directory has.
pub const MAIN_VOLUME: &str = "main";
pub(crate) const MAIN_ID: VolumeId = VolumeId(1);

/// Inode numbers reserved at a time: one sync for so many creations.
const INODE_RANGE: u64 = 1 << 16;

/// Inodes of which it is remembered what their extended attributes take.
const XATTR_SIZES: usize = 4096;

/// An inode and what `stat` shows of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    pub fid: Fid,
    pub attr: Attr,
}

/// What an inode with its name takes, roughly, bytes.
pub const INODE_COST: u64 = 512;

/// Limits and sizes of a volume.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Inode records kept in memory.
    pub inode_cache: usize,
    /// Names, present and absent, kept in memory.
    pub dirent_cache: usize,
    /// Bytes of verified chunks kept in memory.
    pub chunk_cache: usize,
    /// Bytes of extent records (and data in them) kept in memory.
    pub extent_cache: usize,
    /// Files up to this many bytes keep what is written to them beside the metadata, if it is no more than that. Writes of
    /// less than a block (4 KiB) stay there in any case. Much more than a block does not pay: the engine writes every byte
    /// several times, and gives the space back late.
    pub inline_max: u64,
    /// Once a file has more than this many bytes beside the metadata, its small writes are brought together in chunks.
    pub inline_total: u64,
    /// The longest chunk that a write is cut into, bytes.
    pub chunk_len: usize,
    /// A file that is in more pieces than this over the length of a chunk is stored anew there.
    pub pieces_max: usize,
    /// What the volume may hold, bytes: the allocated ones and [`INODE_COST`] for each inode. Nothing here refuses what is
    /// beyond it: whoever lets operations in goes by [`Volume::space`]. `None`: what the store has room for.
    pub quota: Option<u64>,
    /// The time a fresh volume's root gets.
    pub created: Timestamp,
    /// Moves what the versions and inode numbers of this run begin with; see `versions.rs`. Random wherever clients may have
    /// seen another continuation of the same data, as when a backup is put back.
    pub branch: u64,
}

impl Default for VolumeConfig {
    fn default() -> VolumeConfig {
        VolumeConfig {
            inode_cache: 200_000,
            dirent_cache: 200_000,
            chunk_cache: 256 << 20,
            extent_cache: 64 << 20,
            inline_max: 4 << 10,
            inline_total: 64 << 10,
            chunk_len: 128 << 10,
            pieces_max: 128,
            quota: None,
            created: Timestamp::default(),
            branch: 0,
        }
    }
}

/// A volume above a store. Methods may be called from many threads; transactions that touch the same inode must not
/// overlap (see the crate's page).
#[derive(Debug)]
pub struct Volume {
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) data: Arc<dyn DataStore>,
    pub(crate) config: VolumeConfig,
    pub(crate) id: VolumeId,
    pub(crate) name: String,
    pub(crate) inodes: Cache<Ino, Arc<Inode>>,
    pub(crate) dirents: Cache<(Ino, Name), Option<Dirent>>,
    /// Of inodes that have many extended attributes and got more lately.
    pub(crate) xattr_sizes: Cache<Ino, XattrSizes>,
    pub(crate) chunks: Cache<ChunkRef, Bytes>,
    /// Chunks that were read as parts of long reads and are not in `chunks`: as many as would fit there.
    pub(crate) streamed: Cache<ChunkRef, ()>,
    pub(crate) windows: Windows,
    pub(crate) buffers: Buffers,
    pub(crate) totals: Totals,
    numbers: Mutex<Numbers>,
    /// The lowest version that a change may give.
    pub(crate) first_version: Version,
    /// Read-locked by commits that refer to new chunks, write-locked while the journal is synced.
    pub(crate) chunks_committed: RwLock<()>,
    pub(crate) rename_lock: Arc<RenameLock>,
    pub(crate) releases: ReleaseQueue,
    pub(crate) redo: RedoList,
    pub(crate) sweep: Sweep,
    /// Held through a step of the work that deletions left behind.
    pub(crate) reclaiming: Mutex<ReclaimTurn>,
    pub(crate) group_sync: GroupSync,
    /// As `group_sync`, of rounds that need the journal only.
    pub(crate) journal_sync: GroupSync,
    /// Chunks were stored since the last sync of data that only the next one sees to. Set before what refers to one is
    /// committed, or the round of that is known.
    pub(crate) owes_data: AtomicBool,
}

/// Inode numbers that are reserved but not used.
#[derive(Debug)]
struct Numbers {
    next: u64,
    end: u64,
}

impl Volume {
    /// Opens the volume `main`; makes it in a store that is new. One that is kept and has none is refused: it has lost it.
    pub fn open(
        meta: Arc<dyn MetaStore>,
        data: Arc<dyn DataStore>,
        config: VolumeConfig,
    ) -> FsResult<Volume> {
        let mut volume = Volume::load(meta, data, config)?;
        volume.redo = redo::restore(&*volume.meta, &*volume.data)?;
        let next = volume.numbers.get_mut().unwrap_or_else(PoisonError::into_inner).next;
        let next = volume.branched(next)?;
        volume.first_version = versions::begin_run(&*volume.meta, volume.id, volume.config.branch)?;
        volume.numbers = Mutex::new(Numbers { next, end: next });
        volume.data.begin_at(versions::first_segment(volume.first_version))?;
        Ok(volume)
    }

    /// The number from which this branch goes on where others may have seen those that follow this one.
    fn branched(&self, number: u64) -> FsResult<u64> {
        let next = number.checked_add(versions::skipped_numbers(self.config.branch));
        next.filter(|next| *next <= u64::MAX - INODE_RANGE).ok_or_else(|| versions::used_up("inode numbers"))
    }

    /// Opens it for those who change nothing.
    pub(crate) fn load(
        meta: Arc<dyn MetaStore>,
        data: Arc<dyn DataStore>,
        config: VolumeConfig,
    ) -> FsResult<Volume> {
        let id = MAIN_ID;
        let made = match meta.get(Table::Meta, &key::superblock(id))? {
            Some(_) => Made::Before,
            None if meta.origin() == Origin::New => {
                create(&*meta, id, config.created)?;
                Made::Now
            }
            None => return Err(missing()),
        };
        if meta.origin() == Origin::New {
            meta.complete()?;
        }
        let superblock: Superblock = read_meta(&*meta, key::superblock(id))?;
        let counters: Counters = read_meta(&*meta, key::counters(id))?;
        let mark: InodeMark = read_meta(&*meta, key::inode_mark(id))?;
        let releases = ReleaseQueue::load(&*meta)?;
        let sweep = match made {
            // Whatever data there may be: nobody knows what refers to it.
            Made::Now => Sweep::default(),
            Made::Before => Sweep::begin(&*meta, &*data, &releases)?,
        };
        Ok(Volume {
            inodes: Cache::new(config.inode_cache),
            dirents: Cache::new(config.dirent_cache),
            xattr_sizes: Cache::new(XATTR_SIZES),
            chunks: Cache::new(config.chunk_cache),
            streamed: Cache::new(config.chunk_cache / config.chunk_len),
            windows: Windows::new(config.extent_cache),
            buffers: Buffers::default(),
            totals: Totals::new(counters),
            // What is left of the last reserved range is not used: nobody knows how much of it was.
            numbers: Mutex::new(Numbers { next: mark.next, end: mark.next }),
            first_version: Version(1),
            chunks_committed: RwLock::default(),
            rename_lock: Arc::default(),
            releases,
            redo: RedoList::default(),
            sweep,
            reclaiming: Mutex::default(),
            group_sync: GroupSync::default(),
            journal_sync: GroupSync::default(),
            owes_data: AtomicBool::new(false),
            name: superblock.name,
            meta,
            data,
            config,
            id,
        })
    }

    pub fn id(&self) -> VolumeId {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn root(&self) -> Fid {
        Fid::new(self.id, Ino::ROOT)
    }

    /// The metadata store, for reading the tables that belong to the server.
    pub fn meta(&self) -> &dyn MetaStore {
        &*self.meta
    }

    pub fn lookup(&self, parent: Fid, name: &Name) -> FsResult<Option<Node>> {
        self.directory(parent)?;
        let Some(dirent) = self.dirent(parent.ino, name)? else {
            return Ok(None);
        };
        Ok(Some(self.node(dirent.ino, &*self.referred(dirent.ino)?)))
    }

    /// What a name stands for, without a look at the inode: never confused by a change that is under way.
    pub fn resolve(&self, parent: Fid, name: &Name) -> FsResult<Option<(Fid, FileKind)>> {
        self.directory(parent)?;
        let dirent = self.dirent(parent.ino, name)?;
        Ok(dirent.map(|dirent| (Fid::new(self.id, dirent.ino), dirent.kind)))
    }

    /// How many extended attributes an inode has.
    pub fn xattr_count(&self, fid: Fid) -> FsResult<u32> {
        Ok(self.inode(fid)?.xattrs)
    }

    /// `Stale` when the inode is gone.
    pub fn getattr(&self, fid: Fid) -> FsResult<Attr> {
        Ok(self.inode(fid)?.attr(fid.ino))
    }

    /// What `..` stands for.
    pub fn parent(&self, directory: Fid) -> FsResult<Fid> {
        Ok(Fid::new(self.id, self.directory(directory)?.parent))
    }

    pub fn readlink(&self, fid: Fid) -> FsResult<Bytes> {
        let inode = self.inode(fid)?;
        match inode.kind {
            FileKind::Symlink => Ok(inode.target.clone()),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// Why no changes are taken any more, until the stores are opened anew.
    pub fn stopped(&self) -> Option<String> {
        self.meta.stopped().or_else(|| self.data.stopped())
    }

    /// Space and inodes. The number of inodes is only bounded by space, so the free ones are an estimate.
    pub fn statfs(&self) -> FsResult<FsStats> {
        let space = self.space()?;
        let (used, _) = self.usage();
        let free_inodes = space.free / INODE_COST;
        Ok(FsStats {
            total_bytes: space.total,
            free_bytes: space.free,
            total_inodes: used + free_inodes,
            free_inodes,
        })
    }

    /// What the store has, within the quota.
    pub fn space(&self) -> FsResult<Space> {
        let space = self.data.space()?;
        let Some(quota) = self.config.quota else { return Ok(space) };
        let (inodes, allocated) = self.usage();
        let used = allocated.saturating_add(inodes.saturating_mul(INODE_COST));
        Ok(Space { total: space.total.min(quota), free: space.free.min(quota.saturating_sub(used)) })
    }

    /// Inodes and allocated bytes of the volume, as of the last commit. Waits for nobody.
    pub fn usage(&self) -> (u64, u64) {
        let Counters { inodes, allocated } = self.totals.seen();
        (inodes, allocated)
    }

    pub(crate) fn node(&self, ino: Ino, inode: &Inode) -> Node {
        Node { fid: Fid::new(self.id, ino), attr: inode.attr(ino) }
    }

    /// The lowest version that a change may give in this run.
    pub fn first_version(&self) -> Version {
        self.first_version
    }

    /// Inode numbers for [`Number::Given`](crate::Number), given out for good: the first of `count`, at most 65,536.
    pub fn reserve_numbers(&self, count: u32) -> FsResult<Ino> {
        self.take_numbers(u64::from(count).min(INODE_RANGE)).map(Ino)
    }

    /// An inode (or stream) number that was never given out before.
    pub(crate) fn new_number(&self) -> FsResult<u64> {
        self.take_numbers(1)
    }

    /// The first of so many numbers in a row.
    fn take_numbers(&self, count: u64) -> FsResult<u64> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if numbers.end - numbers.next < count {
            let end =
                numbers.end.checked_add(INODE_RANGE).ok_or_else(|| versions::used_up("inode numbers"))?;
            let mut batch = Batch::new();
            batch.put(Table::Meta, key::inode_mark(self.id), record::encode(&InodeMark { next: end }));
            self.meta.commit(batch)?;
            // Durable before any number of it is seen: a power cut must not hand one out twice.
            self.meta.sync()?;
            crash::point("volume.inodes-reserved");
            numbers.end = end;
        }
        let first = numbers.next;
        numbers.next += count;
        Ok(first)
    }

    /// Whether chunks were stored since the last sync of data that the journal does not have, committed or not.
    pub fn owes_data(&self) -> bool {
        self.owes_data.load(Ordering::SeqCst)
    }

    /// Bytes of data that are in the journal, too, and for which no sync has begun since.
    pub fn redo_bytes(&self) -> u64 {
        self.redo.bytes()
    }

    /// The uses of each cache, by its name.
    pub fn cache_uses(&self) -> [(&'static str, CacheUse); 4] {
        [
            ("inodes", self.inodes.uses()),
            ("names", self.dirents.uses()),
            ("chunks", self.chunks.uses()),
            ("extents", self.windows.uses()),
        ]
    }

    pub(crate) fn stored_extents(&self) -> StoredExtents<'_> {
        StoredExtents { meta: &*self.meta, volume: self.id }
    }

    /// Reads everything anew that is kept in memory, after records were changed past the transactions.
    pub(crate) fn forget_cached(&self) -> FsResult<()> {
        self.inodes.clear();
        self.dirents.clear();
        self.xattr_sizes.clear();
        self.windows.clear();
        self.chunks.clear();
        self.releases.reload(&*self.meta)?;
        self.sweep.begin_again(&*self.meta, &*self.data, &self.releases)?;
        self.totals.turn().set(read_meta(&*self.meta, key::counters(self.id))?);
        let mark: InodeMark = read_meta(&*self.meta, key::inode_mark(self.id))?;
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        // A mark above all that is known here was put right: from there on the branch has yet to begin.
        let next = match mark.next > numbers.end {
            true => self.branched(mark.next)?,
            false => mark.next.max(numbers.next),
        };
        *numbers = Numbers { next, end: next };
        Ok(())
    }
}

impl View for Volume {
    fn volume_id(&self) -> VolumeId {
        self.id
    }

    fn raw(&self, table: Table, key: &[u8]) -> FsResult<Option<Bytes>> {
        Ok(self.meta.get(table, key)?)
    }

    fn scan(&self, table: Table, range: &KeyRange, visit: Visit<'_>) -> FsResult<()> {
        Ok(self.meta.scan(table, &range.start, &range.end, visit)?)
    }

    fn extents(
        &self,
        stream: u64,
        range: &Range<u64>,
        visit: &mut dyn FnMut(&Placed) -> ControlFlow<()>,
    ) -> FsResult<()> {
        self.windows.visit(&self.stored_extents(), stream, range, visit)
    }

    fn inode_record(&self, ino: Ino) -> FsResult<Option<Arc<Inode>>> {
        let ticket = match self.inodes.get(&ino) {
            Ok(inode) => return Ok(Some(inode)),
            Err(ticket) => ticket,
        };
        let found = self.record::<Inode>(Table::Inode, &key::inode(self.id, ino))?.map(Arc::new);
        if let Some(inode) = &found {
            self.inodes.fill(ino, inode.clone(), 1, ticket);
        }
        Ok(found)
    }

    fn dirent(&self, parent: Ino, name: &Name) -> FsResult<Option<Dirent>> {
        let cache_key = (parent, name.clone());
        let ticket = match self.dirents.get(&cache_key) {
            Ok(dirent) => return Ok(dirent),
            Err(ticket) => ticket,
        };
        let found = self.record(Table::Dirent, &key::dirent(self.id, parent, name))?;
        self.dirents.fill(cache_key, found, 1, ticket);
        Ok(found)
    }
}

/// When the volume was made.
enum Made {
    Now,
    Before,
}

/// A store that was completed had a superblock.
pub(crate) fn missing() -> FsError {
    let context =
        "the metadata are missing (there is no superblock): restore them from a copy; nothing was changed";
    FsError::new(Errno::Io, context)
}

/// Writes a fresh volume: superblock, counters and root, all in one batch.
fn create(meta: &dyn MetaStore, id: VolumeId, now: Timestamp) -> FsResult<()> {
    let root = root_inode(Moment::now(now, Version(1)));
    let superblock = Superblock { name: MAIN_VOLUME.to_owned(), created: now };
    let mut batch = Batch::new();
    batch.put(Table::Inode, key::inode(id, Ino::ROOT), record::encode(&root));
    batch.put(Table::Meta, key::counters(id), record::encode(&Counters { inodes: 1, allocated: 0 }));
    batch.put(Table::Meta, key::inode_mark(id), record::encode(&InodeMark { next: Ino::ROOT.0 + 1 }));
    batch.put(Table::Meta, key::runs(id), record::encode(&Runs::default()));
    batch.put(Table::Meta, key::superblock(id), record::encode(&superblock));
    meta.commit(batch)?;
    meta.sync()?;
    crash::point("volume.created");
    Ok(())
}

/// An empty root directory.
pub(crate) fn root_inode(at: Moment) -> Inode {
    let now = at.time();
    let attr = Attr {
        ino: Ino::ROOT,
        kind: FileKind::Directory,
        perm: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        version: at.first_version(),
        data_version: at.first_version(),
    };
    Inode::new(&attr, Ino::ROOT, Bytes::new())
}

fn read_meta<T: serde::de::DeserializeOwned>(meta: &dyn MetaStore, key: Vec<u8>) -> FsResult<T> {
    let bytes = meta.get(Table::Meta, &key)?;
    let bytes = bytes
        .ok_or_else(|| FsError::new(Errno::Io, format!("record {key:02x?} of the volume is missing")))?;
    record::decode(&bytes).map_err(|error| damaged(Table::Meta, &key, error))
}
