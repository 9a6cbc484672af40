//! Large directories, and what is left of deleted files. Counted, not timed: what is read and held does not grow with the
//! directory. `SODA_ENTRIES=1000000` for a directory of a million names.

use crate::common::*;
use bytes::Bytes;
use soda_storage::{
    Batch, DataDirectory, MemoryData, MemoryMeta, MetaRead, MetaStore, StorageResult, StoreOptions, Table,
    Visit,
};
use soda_types::Name;
use soda_volume::*;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 1000;

/// Metadata on disk that counts the records that are read.
#[derive(Debug)]
struct Counting {
    meta: Arc<dyn MetaStore>,
    read: AtomicU64,
}

impl Counting {
    /// Since the last call.
    fn take(&self) -> u64 {
        self.read.swap(0, Ordering::Relaxed)
    }
}

impl MetaRead for Counting {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.read.fetch_add(1, Ordering::Relaxed);
        self.meta.get(table, key)
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.meta.scan(table, start, end, &mut |key, value| {
            self.read.fetch_add(1, Ordering::Relaxed);
            visit(key, value)
        })
    }
}

impl MetaStore for Counting {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        assert!(batch.changes.len() <= 5, "a creation in a large directory is a small batch");
        self.meta.commit(batch)
    }

    fn sync(&self) -> StorageResult<()> {
        self.meta.sync()
    }

    fn origin(&self) -> soda_storage::Origin {
        self.meta.origin()
    }

    fn complete(&self) -> StorageResult<()> {
        self.meta.complete()
    }

    fn snapshot(&self) -> Box<dyn MetaRead> {
        self.meta.snapshot()
    }
}

/// Names that do not come in their order.
fn entry(number: u64, entries: u64) -> Name {
    name(&format!("{:09}-{}", number * 7919 % entries, "x".repeat(40)))
}

#[test]
fn a_large_directory_costs_by_what_is_asked_of_it() {
    let entries: u64 = std::env::var("SODA_ENTRIES").map_or(100_000, |text| text.parse().unwrap());
    let path = tempfile::tempdir().unwrap();
    let stores = DataDirectory::open(path.path(), StoreOptions::default()).unwrap();
    let meta = Arc::new(Counting { meta: stores.meta.clone(), read: AtomicU64::new(0) });
    // Much less than the directory.
    let config = VolumeConfig { inode_cache: 1000, dirent_cache: 1000, ..VolumeConfig::default() };
    let volume = Volume::open(meta.clone(), Arc::new(MemoryData::new()), config).unwrap();
    let directory = mkdir(&volume, volume.root(), "d");
    let mut most = 0;
    for number in 0..entries {
        meta.take();
        let mut txn = volume.begin(now());
        txn.create(directory, &entry(number, entries), new_file(0o644)).unwrap();
        txn.commit().unwrap();
        most = most.max(meta.take());
    }
    assert!(most <= 4, "a creation read {most} records");
    assert_eq!(volume.getattr(directory).unwrap().size, entries * 32);
    let (mut after, mut seen, mut last) = (None, 0, None::<Name>);
    loop {
        meta.take();
        let page = volume.read_dir(directory, after.as_ref(), PAGE, Listing::Names).unwrap();
        assert!(meta.take() <= PAGE as u64 + 2, "a page reads what is on it");
        for entry in &page {
            assert!(last.as_ref().is_none_or(|last| *last < entry.name), "once, and in order");
            last = Some(entry.name.clone());
        }
        seen += page.len() as u64;
        let Some(end) = page.last() else { break };
        after = Some(end.name.clone());
    }
    assert_eq!(seen, entries);
    let caches = format!("{volume:?}");
    for (cache, used) in [("inodes", 1000), ("dirents", 1000)] {
        let (_, rest) = caches.split_once(&format!("{cache}: Cache {{ entries: ")).unwrap();
        let held: u64 = rest.split(',').next().unwrap().parse().unwrap();
        assert!((1..=used).contains(&held), "{held} {cache} in memory");
    }
    for number in (0..entries).step_by(entries as usize / 1000) {
        meta.take();
        let found = volume.lookup(directory, &entry(number, entries)).unwrap();
        assert!(found.is_some() && meta.take() <= 3, "a name is found without a search");
        let mut txn = volume.begin(now());
        txn.unlink(directory, &entry(number, entries), IfOpen::Delete).unwrap();
        txn.commit().unwrap();
    }
    let (files, _) = volume.usage();
    assert_eq!(files, 2 + entries - entries.div_ceil((entries as usize / 1000) as u64));
}

#[test]
fn an_extended_attribute_costs_the_same_however_many_there_are() {
    let meta = Arc::new(Counting { meta: Arc::new(MemoryMeta::default()), read: AtomicU64::new(0) });
    let volume = Volume::open(meta.clone(), Arc::new(MemoryData::new()), VolumeConfig::default()).unwrap();
    let file = create(&volume, "f");
    let change = |number: usize, value: Option<usize>| {
        meta.take();
        let (mut txn, name) = (volume.begin(now()), format!("user.{number}"));
        match value {
            Some(len) => {
                let value = vec![1; len].into();
                txn.set_xattr(file, name.as_bytes(), value, SetXattr::Either, KillPriv::Keep).unwrap();
            }
            None => drop(txn.remove_xattr(file, name.as_bytes()).unwrap()),
        }
        txn.commit().unwrap();
        meta.take()
    };
    // The first that has to be counted with all others reads them: there are few then.
    let first = (0..100).map(|number| change(number, Some(10))).max();
    assert!(first < Some(30), "{first:?}");
    for number in 100..2000 {
        let read = [change(number, Some(10)), change(number, Some(20)), change(number, Some(5))];
        assert!(read.iter().all(|read| *read <= 4), "with {number} others: {read:?} records");
        if number % 3 == 0 {
            assert!(change(number - 50, None) <= 4, "with {number} others");
        }
    }
}

/// Whoever had it open is gone with the machine: nobody is going to close it.
#[test]
fn the_space_of_an_orphan_comes_back_after_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let stored = |stores: &DataDirectory| {
        use soda_storage::DataStore;
        stores.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>()
    };
    let open = || {
        let stores = DataDirectory::open(directory.path(), StoreOptions::default()).unwrap();
        let volume = Volume::open(stores.meta.clone(), stores.data.clone(), VolumeConfig::default()).unwrap();
        (stores, volume)
    };
    let (stores, volume) = open();
    let file = create(&volume, "f");
    for block in 0..40 {
        write(&volume, file, block << 18, &pattern(block, 1 << 18));
    }
    let mut txn = volume.begin(now());
    assert_eq!(txn.unlink(volume.root(), &name("f"), IfOpen::Keep).unwrap().fate, Fate::Orphaned);
    txn.commit().unwrap();
    volume.reclaim_all().unwrap();
    assert!(stored(&stores) >= 10 << 20, "it is open");
    drop((volume, stores));
    let (stores, volume) = open();
    volume.reclaim_all().unwrap();
    assert!(stored(&stores) >= 10 << 20, "who has it open may come back");
    assert_eq!(volume.orphans().unwrap(), [file]);
    let mut txn = volume.begin(now());
    txn.drop_orphan(file).unwrap();
    txn.commit().unwrap();
    // In steps, as the server does it, with another crash between.
    while volume.reclaim_some(7).unwrap() == Progress::More {}
    drop((volume, stores));
    let (stores, volume) = open();
    volume.reclaim_all().unwrap();
    assert_eq!((stored(&stores), volume.usage()), (0, (1, 0)));
    let mut left = 0;
    for table in [Table::Extent, Table::Orphan, Table::Reclaim, Table::Release] {
        let all = [0xff; 17];
        volume
            .meta()
            .scan(table, &[], &all, &mut |_, _| {
                left += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    assert_eq!(left, 0, "records are left");
}
