//! Stores that fail: an operation that fails changes nothing, and what comes after works.

use crate::common::*;
use bytes::Bytes;
use soda_storage::{
    Batch, ChunkRef, DataStore, MemoryData, MemoryMeta, MetaRead, MetaStore, SegmentId, SegmentInfo, Space,
    StorageError, StorageResult, Table, Visit,
};
use soda_types::semantics::FILE_MAX;
use soda_types::{Errno, Fid, FsResult, SetAttr, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, fsck};
use soda_volume::*;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Counts down with each call that can fail; fails at zero.
#[derive(Debug)]
struct Fuse(AtomicI64);

impl Fuse {
    fn burn(&self) -> StorageResult<()> {
        match self.0.fetch_sub(1, Ordering::SeqCst) {
            1 => Err(StorageError::NoSpace { path: "nowhere".into(), free: 0, reserve: 0, wanted: 1 }),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
struct FailingMeta(MemoryMeta, Arc<Fuse>);

#[derive(Debug)]
struct FailingData(MemoryData, Arc<Fuse>);

impl MetaRead for FailingMeta {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.0.get(table, key)
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.0.scan(table, start, end, visit)
    }
}

impl MetaStore for FailingMeta {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        self.1.burn()?;
        self.0.commit(batch)
    }

    fn sync(&self) -> StorageResult<()> {
        self.1.burn()?;
        self.0.sync()
    }

    fn origin(&self) -> soda_storage::Origin {
        self.0.origin()
    }

    fn complete(&self) -> StorageResult<()> {
        self.0.complete()
    }

    fn snapshot(&self) -> Box<dyn MetaRead> {
        self.0.snapshot()
    }
}

impl DataStore for FailingData {
    fn begin_at(&self, segment: SegmentId) -> StorageResult<()> {
        self.0.begin_at(segment)
    }

    fn append(&self, data: &[u8]) -> StorageResult<ChunkRef> {
        self.1.burn()?;
        self.0.append(data)
    }

    fn read_into(&self, chunk: &ChunkRef, data: &mut [u8]) -> StorageResult<()> {
        self.0.read_into(chunk, data)
    }

    fn restore(&self, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()> {
        self.1.burn()?;
        self.0.restore(chunk, data)
    }

    fn sync(&self) -> StorageResult<()> {
        self.1.burn()?;
        self.0.sync()
    }

    fn sync_what_others_wrote(&self) -> StorageResult<()> {
        self.0.sync_what_others_wrote()
    }

    fn release_range(&self, segment: SegmentId, range: Range<u64>) -> StorageResult<()> {
        self.0.release_range(segment, range)
    }

    fn segments(&self) -> StorageResult<Vec<SegmentInfo>> {
        self.0.segments()
    }

    fn stored_ranges(&self, segment: SegmentId) -> StorageResult<Vec<Range<u64>>> {
        self.0.stored_ranges(segment)
    }

    fn space(&self) -> StorageResult<Space> {
        self.0.space()
    }
}

struct Lab {
    meta: MemoryMeta,
    data: MemoryData,
    fuse: Arc<Fuse>,
    volume: Volume,
}

impl Lab {
    fn new() -> Lab {
        let (meta, data) = (MemoryMeta::new(), MemoryData::new());
        let fuse = Arc::new(Fuse(AtomicI64::new(0)));
        let failing = (FailingMeta(meta.clone(), fuse.clone()), FailingData(data.clone(), fuse.clone()));
        let volume = Volume::open(Arc::new(failing.0), Arc::new(failing.1), VolumeConfig::default()).unwrap();
        let directory = mkdir(&volume, volume.root(), "d");
        let file = create_in(&volume, directory, "f");
        write(&volume, file, 0, &pattern(0, 400_000));
        write(&volume, file, 400_000, b"small");
        create_in(&volume, directory, "victim");
        Lab { meta, data, fuse, volume }
    }

    fn file(&self) -> Fid {
        self.volume.lookup(self.directory(), &name("f")).unwrap().unwrap().fid
    }

    fn directory(&self) -> Fid {
        self.volume.lookup(self.volume.root(), &name("d")).unwrap().unwrap().fid
    }

    /// Everything that can be seen.
    fn look(&self) -> String {
        let volume = &self.volume;
        let list = |fid| volume.read_dir(fid, None, 100, Listing::Attributes).unwrap();
        let file = self.file();
        let data = crc(&read(volume, file, 0, 1 << 20));
        let xattrs = volume.list_xattrs(file).unwrap();
        let seen = (volume.getattr(volume.root()).unwrap(), list(volume.root()), list(self.directory()));
        format!("{seen:?} {data} {xattrs:?} {:?} {:?}", volume.usage(), volume.orphans().unwrap())
    }

    fn stored(&self) -> u64 {
        self.data.segments().unwrap().iter().map(|segment| segment.stored).sum()
    }

    fn fsck(&self) {
        let options = FsckOptions {
            repair: Repair::No,
            data: DataCheck::CheckSums,
            now: Timestamp::new(1, 0),
            branch: 0,
        };
        let report =
            fsck(Arc::new(self.meta.clone()), Arc::new(self.data.clone()), options, &mut |_| {}).unwrap();
        assert_eq!((report.problems, report.unswept), (vec![], 0));
    }
}

fn crc(data: &[u8]) -> u64 {
    data.iter().fold(data.len() as u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

const WITH_DATA: [&str; 4] = ["write", "small writes that spill", "overwrite that gathers", "copy"];

type Operation = fn(&Lab) -> FsResult<()>;

const OPERATIONS: [(&str, Operation); 10] = [
    ("create", |lab| {
        let mut txn = lab.volume.begin(now());
        txn.create(lab.directory(), &name("new"), new_file(0o644))?;
        txn.commit()
    }),
    ("write", |lab| {
        let staged = lab.volume.stage_write(lab.file(), pattern(7, 300_000).into())?;
        let mut txn = lab.volume.begin(now());
        txn.write(lab.file(), WriteAt::Offset(50_000), staged, KillPriv::Keep)?;
        txn.commit()
    }),
    ("small writes that spill", |lab| {
        let mut txn = lab.volume.begin(now());
        for number in 0..40 {
            let staged = lab.volume.stage_write(lab.file(), vec![number; 2000].into())?;
            txn.write(lab.file(), WriteAt::End, staged, KillPriv::Keep)?;
        }
        txn.commit()
    }),
    ("overwrite that gathers", |lab| {
        let staged = lab.volume.stage_write(lab.file(), pattern(9, 125_000).into())?;
        let mut txn = lab.volume.begin(now());
        txn.write(lab.file(), WriteAt::Offset(0), staged, KillPriv::Keep)?;
        txn.commit()
    }),
    ("truncate", |lab| {
        let mut txn = lab.volume.begin(now());
        txn.set_attr(lab.file(), &SetAttr { size: Some(1000), ..SetAttr::default() })?;
        txn.commit()
    }),
    ("copy", |lab| {
        let mut txn = lab.volume.begin(now());
        txn.copy_range((lab.file(), 0), (lab.file(), 1 << 20), 300_000, KillPriv::Keep)?;
        txn.commit()
    }),
    ("unlink", |lab| {
        let mut txn = lab.volume.begin(now());
        txn.unlink(lab.directory(), &name("victim"), IfOpen::Keep)?;
        txn.commit()
    }),
    ("rename", |lab| {
        let mut txn = lab.volume.begin(now());
        let mode = Replace::Allowed;
        txn.rename(
            lab.directory(),
            &name("victim"),
            lab.volume.root(),
            &name("moved"),
            mode,
            IfOpen::Delete,
        )?;
        txn.commit()
    }),
    ("xattr", |lab| {
        let mut txn = lab.volume.begin(now());
        txn.set_xattr(lab.file(), b"user.a", Bytes::from_static(b"1"), SetXattr::Either, KillPriv::Keep)?;
        txn.commit()
    }),
    ("reclaim and sync", |lab| {
        lab.volume.reclaim_all()?;
        lab.volume.sync()
    }),
];

#[test]
fn what_fails_changes_nothing_and_leaks_nothing() {
    for (what, operation) in OPERATIONS {
        for fail_at in 1.. {
            let lab = Lab::new();
            let (before, stored) = (lab.look(), lab.stored());
            lab.fuse.0.store(fail_at, Ordering::SeqCst);
            let result = operation(&lab);
            if lab.fuse.0.swap(0, Ordering::SeqCst) > 0 {
                // It has fewer steps.
                result.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(fail_at > 1, "{what} has no step that can fail");
                break;
            }
            let done = result.is_ok();
            match result {
                Err(error) => {
                    assert_eq!(error.errno, Errno::NoSpace, "{what}, step {fail_at}");
                    assert_eq!(lab.look(), before, "{what}, step {fail_at}");
                    assert_eq!(
                        lab.stored(),
                        stored,
                        "{what}, step {fail_at}: something is stored for nothing"
                    );
                }
                // A step that it can do without, or did again after space was given back.
                Ok(()) => assert!(WITH_DATA.contains(&what), "{what}, step {fail_at}"),
            }
            lab.fsck();
            if !done {
                operation(&lab).unwrap_or_else(|error| panic!("{what} again: {error}"));
            }
            lab.volume.reclaim_all().unwrap();
            lab.fsck();
        }
    }
}

/// An operation that fails leaves the others of its transaction alone.
#[test]
fn a_transaction_goes_on_after_an_operation_that_failed() {
    let lab = Lab::new();
    let mut txn = lab.volume.begin(now());
    txn.create(lab.directory(), &name("one"), new_file(0o644)).unwrap();
    let staged = lab.volume.stage_write(lab.file(), pattern(1, 100_000).into()).unwrap();
    let huge = WriteAt::Offset(FILE_MAX);
    assert_eq!(txn.write(lab.file(), huge, staged, KillPriv::Keep).unwrap_err().errno, Errno::FileTooBig);
    assert_eq!(txn.create(lab.directory(), &name("f"), new_file(0o644)).unwrap_err().errno, Errno::Exists);
    txn.put_extra(Table::Reply, b"slot", Bytes::from_static(b"the reply"));
    txn.commit().unwrap();
    assert!(lab.volume.lookup(lab.directory(), &name("one")).unwrap().is_some());
    assert_eq!(lab.volume.meta().get(Table::Reply, b"slot").unwrap().as_deref(), Some(&b"the reply"[..]));
    lab.fsck();
}

/// The numbers of segments do not go on from those that are there: what was in lost ones is given back some day.
#[test]
fn what_is_lost_is_not_given_back_from_under_what_is_new() {
    let directory = tempfile::tempdir().unwrap();
    let (lost, kept) = ([1; 300_000], [2; 300_000]);
    {
        let volume = embedded(directory.path());
        write(&volume, create(&volume, "lost"), 0, &lost);
        volume.sync().unwrap();
    }
    // A disk that was put back from a copy, or a file system's own repair: the newest files are gone, not all.
    let data = directory.path().join("data");
    for entry in std::fs::read_dir(&data).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    std::fs::write(data.join("0000000000000001.seg"), b"").unwrap();
    let volume = embedded(directory.path());
    let new = create(&volume, "new");
    write(&volume, new, 0, &kept);
    let old = volume.lookup(volume.root(), &name("lost")).unwrap().unwrap().fid;
    assert_eq!(volume.read(old, 0, 10).unwrap_err().errno, Errno::Io);
    let mut txn = volume.begin(now());
    txn.unlink(volume.root(), &name("lost"), IfOpen::Delete).unwrap();
    txn.commit().unwrap();
    volume.sync().unwrap();
    volume.reclaim_all().unwrap();
    assert!(read(&volume, new, 0, kept.len()) == kept);
}

/// The data is on the medium before the journal's copy of it goes.
#[test]
fn redo_records_stay_until_the_data_is_durable() {
    // Sync of the data, end of the record, sync of the data again.
    for (failing, left) in [(1, 1), (2, 1), (3, 0)] {
        let lab = Lab::new();
        let staged = lab.volume.stage(1 << 20, pattern(7, 100_000).into(), Redo::Yes).unwrap();
        let mut txn = lab.volume.begin(now());
        txn.write(lab.file(), WriteAt::Offset(50_000), staged, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
        assert_eq!((redo_records(&lab.meta), lab.volume.redo_bytes()), (1, 100_000));
        lab.fuse.0.store(failing, Ordering::SeqCst);
        // Without room for the end of a record all is durable, all the same.
        assert_eq!(lab.volume.sync().is_ok(), failing == 2, "{failing}");
        assert_eq!(redo_records(&lab.meta), left, "{failing}");
        lab.volume.sync().unwrap();
        assert_eq!((redo_records(&lab.meta), lab.volume.redo_bytes()), (0, 0), "{failing}");
    }
}

/// A file that came and went, whose data the journal has: on its way to be given back.
fn with_something_to_give_back(lab: &Lab) {
    let file = create_in(&lab.volume, lab.directory(), "short-lived");
    let staged = lab.volume.stage(1 << 20, pattern(7, 100_000).into(), Redo::Yes).unwrap();
    let mut txn = lab.volume.begin(now());
    txn.write(file, WriteAt::Offset(0), staged, KillPriv::Keep).unwrap();
    txn.commit().unwrap();
    let mut txn = lab.volume.begin(now());
    txn.unlink(lab.directory(), &name("short-lived"), IfOpen::Delete).unwrap();
    txn.commit().unwrap();
    while lab.volume.reclaim_some(100).unwrap() == Progress::More {}
}

/// Where the end of a record finds no room there may be nothing to be had but what its place takes.
#[test]
fn a_place_is_given_back_with_its_redo_record_if_that_could_not_end_before() {
    let lab = Lab::new();
    let before = lab.stored();
    with_something_to_give_back(&lab);
    // The sync of the data goes well, the end of the record does not.
    lab.fuse.0.store(2, Ordering::SeqCst);
    lab.volume.reclaim_all().unwrap();
    assert_eq!((redo_records(&lab.meta), lab.stored()), (0, before));
    lab.volume.sync().unwrap();
    lab.fsck();
}

/// Whoever opens the volume next has written the data into its place.
#[test]
fn a_place_that_was_given_back_without_its_redo_record_is_given_back_again() {
    for is_killed in [true, false] {
        let lab = Lab::new();
        let before = lab.stored();
        with_something_to_give_back(&lab);
        lab.fuse.0.store(2, Ordering::SeqCst);
        lab.volume.sync().unwrap();
        lab.fuse.0.store(1, Ordering::SeqCst);
        assert_eq!(lab.volume.reclaim_all().unwrap_err().errno, Errno::NoSpace);
        assert_eq!((redo_records(&lab.meta), lab.stored()), (1, before), "there is a hole");
        if is_killed {
            let stores = (Arc::new(lab.meta.clone()), Arc::new(lab.data.clone()));
            let volume = Volume::open(stores.0, stores.1, VolumeConfig::default()).unwrap();
            assert!(lab.stored() > before);
            volume.reclaim_all().unwrap();
        } else {
            lab.volume.reclaim_all().unwrap();
        }
        assert_eq!((redo_records(&lab.meta), lab.stored()), (0, before), "killed: {is_killed}");
        lab.fsck();
    }
}

/// Two files, whose data a power cut has taken and the journal has.
fn with_two_to_restore(lab: &Lab) -> [Fid; 2] {
    let segments = || -> Vec<_> {
        let segments = lab.data.segments().unwrap();
        segments.iter().map(|segment| (segment.id, lab.data.stored_ranges(segment.id).unwrap())).collect()
    };
    let files = ["one", "other"].map(|text| create_in(&lab.volume, lab.directory(), text));
    for file in files {
        let before = segments();
        let staged = lab.volume.stage(1 << 20, pattern(7, 100_000).into(), Redo::Yes).unwrap();
        let mut txn = lab.volume.begin(now());
        txn.write(file, WriteAt::Offset(0), staged, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
        for (id, ranges) in segments() {
            let known = before
                .iter()
                .find(|(known, _)| *known == id)
                .map_or(0, |(_, ranges)| ranges.last().map_or(0, |range| range.end));
            lab.data.release_range(id, known..ranges.last().map_or(known, |range| range.end)).unwrap();
        }
    }
    files
}

/// Opens it anew. The `failing`th of its first steps fails; 0: none.
fn open_failing(lab: &Lab, failing: i64) -> Volume {
    lab.fuse.0.store(failing, Ordering::SeqCst);
    let meta = FailingMeta(lab.meta.clone(), lab.fuse.clone());
    let data = FailingData(lab.data.clone(), lab.fuse.clone());
    Volume::open(Arc::new(meta), Arc::new(data), VolumeConfig::default()).unwrap()
}

/// A place that cannot be written to takes the data that belongs there, nothing else, and not for good.
#[test]
fn what_cannot_be_restored_keeps_the_volume_open() {
    let lab = Lab::new();
    let files = with_two_to_restore(&lab);
    let volume = open_failing(&lab, 1);
    assert_eq!(volume.read(files[0], 0, 10).unwrap_err().errno, Errno::Io);
    assert!(read(&volume, files[1], 0, 100_000) == pattern(7, 100_000));
    volume.sync().unwrap();
    assert_eq!(redo_records(&lab.meta), 1, "what is not in its place stays in the journal");
    drop(volume);
    let volume = open_failing(&lab, 0);
    assert!(read(&volume, files[0], 0, 100_000) == pattern(7, 100_000));
    volume.sync().unwrap();
    assert_eq!(redo_records(&lab.meta), 0);
}

/// What was never in its place is deleted: then nothing is to be written there any more.
#[test]
fn what_cannot_be_restored_is_given_back_with_its_redo_record() {
    let lab = Lab::new();
    let [lost, kept] = with_two_to_restore(&lab);
    let volume = open_failing(&lab, 1);
    let mut txn = volume.begin(now());
    txn.unlink(lab.directory(), &name("one"), IfOpen::Delete).unwrap();
    txn.commit().unwrap();
    volume.reclaim_all().unwrap();
    assert_eq!(redo_records(&lab.meta), 0);
    drop(volume);
    let volume = open_failing(&lab, 0);
    assert_eq!(volume.getattr(lost).unwrap_err().errno, Errno::Stale);
    assert!(read(&volume, kept, 0, 100_000) == pattern(7, 100_000));
    volume.reclaim_all().unwrap();
    drop(volume);
    lab.fsck();
}

/// All records, apart from those of the other.
fn copy(meta: &MemoryMeta) -> MemoryMeta {
    let mut batch = Batch::new();
    for table in Table::ALL {
        let mut put = |key: &[u8], value| {
            batch.put(*table, key.to_vec(), value);
            ControlFlow::Continue(())
        };
        meta.scan(*table, &[], &[0xff; 17], &mut put).unwrap();
    }
    let copy = MemoryMeta::new();
    copy.commit(batch).unwrap();
    copy.complete().unwrap();
    copy
}

/// As after a power cut with a store that loses a part of a batch: the end of an extent, not the release of its chunk.
#[test]
fn a_start_gives_back_nothing_that_an_extent_refers_to() {
    // With segments that a sweep looks at anyway, and without.
    for is_swept in [false, true] {
        let (meta, data) = (MemoryMeta::new(), MemoryData::new());
        let open = |meta: &MemoryMeta| {
            Volume::open(Arc::new(meta.clone()), Arc::new(data.clone()), VolumeConfig::default()).unwrap()
        };
        let stored = || data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
        let unlink = |volume: &Volume, text: &str| {
            let mut txn = volume.begin(now());
            txn.unlink(volume.root(), &name(text), IfOpen::Delete).unwrap();
            txn.commit().unwrap();
        };
        let volume = open(&meta);
        let [kept, gone] = ["kept", "gone"].map(|text| create(&volume, text));
        write(&volume, kept, 0, &pattern(1, 131_072));
        write(&volume, gone, 0, &pattern(2, 65_536));
        volume.sync().unwrap();
        drop(volume);
        if is_swept {
            open(&meta).reclaim_all().unwrap();
        }
        let volume = open(&meta);
        unlink(&volume, "gone");
        let cut = copy(&meta);
        unlink(&volume, "kept");
        drop(volume);
        let mut releases = Batch::releasing();
        let mut put = |key: &[u8], value| {
            releases.put(Table::Release, key.to_vec(), value);
            ControlFlow::Continue(())
        };
        meta.scan(Table::Release, &[], &[0xff; 17], &mut put).unwrap();
        assert_eq!(releases.changes.len(), 2);
        cut.commit(releases).unwrap();

        let volume = open(&cut);
        volume.reclaim_all().unwrap();
        assert!(read(&volume, kept, 0, 1 << 20) == pattern(1, 131_072), "swept: {is_swept}");
        assert_eq!(stored(), 131_072, "the other is given back");
        unlink(&volume, "kept");
        volume.reclaim_all().unwrap();
        assert_eq!(stored(), 0, "it is not kept for good");
    }
}
