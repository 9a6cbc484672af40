//! Data that the journal has, too: where its records are damaged, where fsck meets them, and what is stored anew.

use crate::common::*;
use bytes::Bytes;
use soda_storage::{
    Batch, Change, DataStore, MemoryData, MemoryMeta, MetaRead, MetaStore, SegmentId, StorageResult, Table,
    Visit,
};
use soda_types::{Errno, Fid, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Problem, Repair, fsck};
use soda_volume::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A volume on a medium in memory, and how far each segment is durable.
struct Medium {
    meta: MemoryMeta,
    data: MemoryData,
    durable: BTreeMap<SegmentId, u64>,
}

impl Medium {
    fn new() -> Medium {
        Medium { meta: MemoryMeta::new(), data: MemoryData::new(), durable: BTreeMap::new() }
    }

    fn open(&self) -> Volume {
        let stores = (Arc::new(self.meta.clone()), Arc::new(self.data.clone()));
        Volume::open(stores.0, stores.1, VolumeConfig::default()).unwrap()
    }

    fn ends(&self) -> BTreeMap<SegmentId, u64> {
        self.data.segments().unwrap().iter().map(|segment| (segment.id, segment.len)).collect()
    }

    fn synced(&mut self, volume: &Volume) {
        volume.sync().unwrap();
        self.durable = self.ends();
    }

    /// The journal was written out by chance, and nothing of the data was.
    fn power_cut(&self) {
        for (id, end) in self.ends() {
            let durable = self.durable.get(&id).copied().unwrap_or(0);
            self.data.release_range(id, durable..end.max(durable)).unwrap();
        }
    }

    /// Two files, whose data a power cut has taken and the journal has.
    fn with_two_files(&self) -> [Fid; 2] {
        let volume = self.open();
        let files = ["one", "other"].map(|text| create(&volume, text));
        for file in files {
            let staged = volume.stage(1 << 20, pattern(file.ino.0, 100_000).into(), Redo::Yes).unwrap();
            let mut txn = volume.begin(now());
            txn.write(file, WriteAt::Offset(0), staged, KillPriv::Keep).unwrap();
            txn.commit().unwrap();
        }
        drop(volume);
        self.power_cut();
        files
    }

    fn fsck(&self, repair: Repair) -> Vec<Problem> {
        let options =
            FsckOptions { repair, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
        let stores = (Arc::new(self.meta.clone()), Arc::new(self.data.clone()));
        fsck(stores.0, stores.1, options, &mut |_| {}).unwrap().problems
    }
}

fn has(volume: &Volume, file: Fid) -> bool {
    volume.read(file, 0, 100_000).is_ok_and(|data| data == pattern(file.ino.0, 100_000))
}

#[test]
fn a_damaged_record_takes_its_own_data_only_and_fsck_takes_it_away() {
    for damage in [0, 40] {
        let medium = Medium::new();
        let files = medium.with_two_files();
        let mut first = None;
        let mut look = |key: &[u8], value: Bytes| {
            first = Some((key.to_vec(), value));
            ControlFlow::Break(())
        };
        medium.meta.scan(Table::Redo, &[], &[0xff; 17], &mut look).unwrap();
        let (key, value) = first.unwrap();
        // Its beginning, or only its data.
        let mut value = value.to_vec();
        value[damage] ^= 0xff;
        let mut batch = Batch::releasing();
        batch.put(Table::Redo, key, value);
        medium.meta.commit(batch).unwrap();

        let volume = medium.open();
        assert_eq!(volume.read(files[0], 0, 10).unwrap_err().errno, Errno::Io);
        assert!(has(&volume, files[1]));
        volume.sync().unwrap();
        drop(volume);
        let unreadable =
            |problem: &Problem| matches!(problem, Problem::Unreadable { table: Table::Redo, .. });
        let lost = |problem: &Problem| matches!(problem, Problem::LostData { .. });
        let found = medium.fsck(Repair::Yes);
        assert!(found.len() == 2 && found.iter().any(unreadable) && found.iter().any(lost), "{found:?}");
        let left = medium.fsck(Repair::No);
        assert!(left.len() == 1 && left.iter().all(lost), "{left:?}");
        assert!(has(&medium.open(), files[1]));
    }
}

#[test]
fn what_the_journal_has_is_not_lost_to_fsck_which_mends_beside_it() {
    let medium = Medium::new();
    let files = medium.with_two_files();
    // Something that it mends.
    let mut batch = Batch::releasing();
    batch.put(Table::Xattr, b"\0\0\0\x01none".to_vec(), Bytes::from_static(b"x"));
    medium.meta.commit(batch).unwrap();
    assert_eq!((medium.fsck(Repair::No).len(), redo_records(&medium.meta)), (1, 2));
    assert_eq!(medium.fsck(Repair::Discarding).len(), 1);
    assert_eq!(medium.fsck(Repair::No), vec![]);
    let volume = medium.open();
    assert!(files.iter().all(|file| has(&volume, *file)));
}

/// Of a chunk of which little is left that little is stored anew, and was durable.
#[test]
fn what_is_left_of_a_crumbling_chunk_is_not_lost_with_the_write_that_it_crumbles_by() {
    let mut medium = Medium::new();
    let volume = medium.open();
    let file = create(&volume, "f");
    write(&volume, file, 0, &pattern(0, 100_000));
    medium.synced(&volume);
    let before = medium.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
    write(&volume, file, 0, &pattern(7, 90_112));
    let after = medium.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
    assert!(after > before + 90_112, "what is left was stored anew");
    drop(volume);
    medium.power_cut();
    let volume = medium.open();
    assert_eq!(volume.read(file, 0, 10).unwrap_err().errno, Errno::Io, "nobody was told that it was durable");
    assert!(read(&volume, file, 90_112, 100_000) == pattern(90_112, 100_000 - 90_112));
}

/// Counts what goes into the journal.
#[derive(Debug)]
struct Counting {
    meta: MemoryMeta,
    /// Bytes of keys and values, of redo records and of all.
    redo: AtomicU64,
    all: AtomicU64,
}

impl MetaRead for Counting {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.meta.get(table, key)
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.meta.scan(table, start, end, visit)
    }
}

impl MetaStore for Counting {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        for change in &batch.changes {
            let (table, bytes) = match change {
                Change::Put { table, key, value } => (table, key.len() + value.len()),
                Change::Delete { table, key } => (table, key.len()),
            };
            let bytes = bytes as u64;
            self.all.fetch_add(bytes, Ordering::Relaxed);
            if *table == Table::Redo {
                self.redo.fetch_add(bytes, Ordering::Relaxed);
            }
        }
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

#[test]
#[ignore = "counts, and judges nothing; run it with --nocapture"]
fn what_gathering_costs_the_journal() {
    const SIZE: u64 = 16 << 20;
    for (len, random) in [(4096, true), (2000, true), (512, true), (3000, false), (512, false)] {
        let meta = Arc::new(Counting { meta: MemoryMeta::new(), redo: 0.into(), all: 0.into() });
        let data = Arc::new(MemoryData::new());
        let volume = Volume::open(meta.clone(), data, VolumeConfig::default()).unwrap();
        let file = create(&volume, "f");
        for at in (0..if random { SIZE } else { 0 }).step_by(1 << 20) {
            write(&volume, file, at, &pattern(at, 1 << 20));
        }
        volume.sync().unwrap();
        let count = || [&meta.redo, &meta.all].map(|count| count.load(Ordering::Relaxed));
        let before = count();
        let writes = if random { 20_000 } else { SIZE / len };
        for number in 0..writes {
            let place = if random { ((number * 2_654_435_761) >> 3) % (SIZE / len) } else { number };
            write(&volume, file, place * len, &pattern(place, len as usize));
            if number % 1000 == 999 {
                volume.reclaim_all().unwrap();
            }
        }
        let [redo, all] = [0, 1].map(|which| count()[which] - before[which]);
        let order = if random { "at random" } else { "in order" };
        println!("{len} bytes {order}: {} written, {all} in the journal, {redo} of these redo", writes * len);
    }
}
