//! A file that is written all over, again and again: what a write costs, and what the file takes, does not grow with the
//! number of writes. Counted, not timed: records read from the store, extents of the file, bytes of chunks.

use crate::common::*;
use bytes::Bytes;
use soda_storage::{
    Batch, DataStore, MemoryData, MemoryMeta, MetaRead, MetaStore, StorageResult, Table, Visit,
};
use soda_types::{SetAttr, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, Report, fsck};
use soda_volume::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FILE: u64 = 1 << 20;

/// Metadata that counts how often its extents are scanned: a scan passes everything that was ever there.
#[derive(Debug, Default)]
struct Counting {
    meta: MemoryMeta,
    scans: AtomicU64,
    committed: AtomicU64,
}

impl Counting {
    /// Scans of extents, and bytes committed, since the last call.
    fn take(&self) -> (u64, u64) {
        (self.scans.swap(0, Ordering::Relaxed), self.committed.swap(0, Ordering::Relaxed))
    }
}

impl MetaRead for Counting {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.meta.get(table, key)
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.scans.fetch_add(u64::from(table == Table::Extent), Ordering::Relaxed);
        self.meta.scan(table, start, end, visit)
    }
}

impl MetaStore for Counting {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        self.committed.fetch_add(batch.size(), Ordering::Relaxed);
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

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What a file took after many writes.
struct Outcome {
    /// Scans of the store's extents for the last thousand writes.
    scans: u64,
    /// Bytes of records committed by a thousand writes: after the first ones, and the last ones.
    committed: (u64, u64),
    report: Report,
    /// Bytes on the medium for the file's data.
    stored: u64,
}

/// Writes of 1 to `len_max` bytes, with cuts in between, compared with the same in memory.
fn write_all_over(writes: u64, len_max: u64) -> Outcome {
    let meta = Arc::new(Counting::default());
    let data = Arc::new(MemoryData::new());
    let volume = Volume::open(meta.clone(), data.clone(), VolumeConfig::default()).unwrap();
    let file = create(&volume, "f");
    write(&volume, file, 0, &pattern(0, FILE as usize));
    let mut expected = pattern(0, FILE as usize);
    let mut random = Random(len_max);
    let mut early = 0;
    for number in 0..writes {
        if number == 2000 || number + 1000 == writes {
            meta.take();
        }
        if number == 3000 {
            (_, early) = meta.take();
        }
        let len = 1 + random.below(len_max);
        let offset = random.below(FILE - len);
        let bytes = pattern(random.below(1 << 30), len as usize);
        write(&volume, file, offset, &bytes);
        expected[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
        if number % 1000 == 500 {
            let size = FILE - random.below(FILE / 8);
            for size in [size, FILE] {
                let mut txn = volume.begin(now());
                txn.set_attr(file, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
                txn.commit().unwrap();
            }
            expected[size as usize..].fill(0);
            assert!(read(&volume, file, 0, FILE as usize) == expected, "after {number} writes");
        }
        if number % 64 == 0 {
            volume.reclaim_all().unwrap();
        }
    }
    let (scans, late) = meta.take();
    assert!(read(&volume, file, 0, FILE as usize) == expected);
    volume.reclaim_all().unwrap();
    drop(volume);
    let volume = Volume::open(meta.clone(), data.clone(), VolumeConfig::default()).unwrap();
    assert!(read(&volume, file, 0, FILE as usize) == expected, "the store has another file than the memory");
    let stored = data.segments().unwrap().iter().map(|segment| segment.stored).sum();
    let options =
        FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
    let report = fsck(meta, data, options, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    Outcome { scans, committed: (early, late), report, stored }
}

#[test]
fn a_random_write_costs_the_same_however_many_went_before() {
    for (writes, len_max) in [(20_000, 1), (50_000, 4096), (10_000, 65_536)] {
        let Outcome { scans, committed: (early, late), report, stored } = write_all_over(writes, len_max);
        assert!(scans == 0, "writes of {len_max}: {scans} scans of what was ever there");
        assert!(late < 2 * early, "writes of {len_max}: {late} bytes of records, {early} at first");
        // 128 pieces for each 128 KiB.
        assert!(report.extents <= 1024, "writes of {len_max}: {} extents", report.extents);
        assert!(stored <= 6 * FILE, "writes of {len_max}: {stored} bytes stored");
    }
}

/// The same for a file that is mostly holes: bytes far from each other are brought together by blocks.
#[test]
fn single_bytes_in_a_hole_come_together() {
    let (meta, data) = (Arc::new(MemoryMeta::new()), Arc::new(MemoryData::new()));
    let volume = Volume::open(meta.clone(), data.clone(), VolumeConfig::default()).unwrap();
    let file = create(&volume, "f");
    for number in 0..4096u64 {
        // Every 256th byte, in an order that jumps.
        write(&volume, file, number * 1021 % 4096 * 256, &[1]);
    }
    let content = read(&volume, file, 0, FILE as usize);
    assert!(content.iter().enumerate().all(|(at, byte)| (*byte == 1) == (at % 256 == 0)));
    let attr = volume.getattr(file).unwrap();
    assert!(attr.allocated <= FILE, "{attr:?}");
    drop(volume);
    let options =
        FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
    let report = fsck(meta, data, options, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(report.extents <= 1024, "{} extents", report.extents);
}

/// Holes of a byte do not cut a file into as many pieces.
#[test]
fn single_bytes_punched_out_leave_few_pieces() {
    let (meta, data) = (Arc::new(MemoryMeta::new()), Arc::new(MemoryData::new()));
    let volume = Volume::open(meta.clone(), data.clone(), VolumeConfig::default()).unwrap();
    let file = create(&volume, "f");
    write(&volume, file, 0, &vec![1; FILE as usize]);
    for number in 0..4096u64 {
        let mut txn = volume.begin(now());
        txn.fallocate(file, Allocate::PunchHole, number * 1021 % 4096 * 256, 1, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
    }
    let content = read(&volume, file, 0, FILE as usize);
    assert!(content.iter().enumerate().all(|(at, byte)| (*byte == 0) == (at % 256 == 0)));
    drop(volume);
    let options =
        FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
    let report = fsck(meta, data, options, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(report.extents <= 1024, "{} extents", report.extents);
}
