//! Each problem is made, found, repaired, and gone.

mod lost;

use super::*;
use crate::record::{Dirent, Extent, ExtentBody, Inode, Reclaim, Released, Swept, Xattr};
use crate::view::View;
use crate::{IfOpen, KillPriv, NewKind, NewNode, SetXattr, WriteAt};
use bytes::Bytes;
use serde::Serialize;
use soda_storage::{MemoryData, MemoryMeta, MetaRead};
use soda_types::{Creds, Fid, FileKind, Name, Version};

/// A small volume with one of everything, and its stores.
struct Lab {
    meta: MemoryMeta,
    data: MemoryData,
    directory: Ino,
    subdirectory: Ino,
    small: Ino,
    large: Ino,
    orphan: Ino,
}

const ID: VolumeId = VolumeId(1);
const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);

impl Lab {
    fn new() -> Lab {
        let (meta, data) = (MemoryMeta::new(), MemoryData::new());
        let volume = open(&meta, &data);
        let mut txn = volume.begin(NOW);
        let root = volume.root();
        let make = |txn: &mut crate::Txn<'_>, parent: Fid, name: &str, kind: NewKind| {
            let node = NewNode { kind, perm: 0o755, umask: 0, creds: Creds::default() };
            txn.create(parent, &entry(name), node).unwrap().fid
        };
        let directory = make(&mut txn, root, "directory", NewKind::Directory);
        let subdirectory = make(&mut txn, directory, "subdirectory", NewKind::Directory);
        let small = make(&mut txn, directory, "small", NewKind::File);
        let large = make(&mut txn, root, "large", NewKind::File);
        let orphan = make(&mut txn, root, "orphan", NewKind::File);
        make(&mut txn, subdirectory, "link", NewKind::Symlink(Bytes::from_static(b"target")));
        txn.link(small, root, &entry("hard")).unwrap();
        txn.set_xattr(small, b"user.a", Bytes::from_static(b"1"), SetXattr::Either, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
        for (file, len) in [(small, 1000), (large, 500_000), (orphan, 200_000)] {
            let staged = volume.stage_write(file, vec![7; len].into()).unwrap();
            let mut txn = volume.begin(NOW);
            txn.write(file, WriteAt::End, staged, KillPriv::Keep).unwrap();
            txn.commit().unwrap();
        }
        let mut txn = volume.begin(NOW);
        txn.unlink(root, &entry("orphan"), IfOpen::Keep).unwrap();
        txn.commit().unwrap();
        let (directory, subdirectory) = (directory.ino, subdirectory.ino);
        Lab { meta, data, directory, subdirectory, small: small.ino, large: large.ino, orphan: orphan.ino }
    }

    fn put<T: Serialize>(&self, table: Table, key: Vec<u8>, record: &T) {
        self.put_raw(table, key, record::encode(record));
    }

    fn put_raw(&self, table: Table, key: Vec<u8>, value: Bytes) {
        let mut batch = Batch::new();
        batch.put(table, key, value);
        self.meta.commit(batch).unwrap();
    }

    fn delete(&self, table: Table, key: Vec<u8>) {
        let mut batch = Batch::new();
        batch.delete(table, key);
        self.meta.commit(batch).unwrap();
    }

    fn change(&self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let volume = open(&self.meta, &self.data);
        let mut inode = Inode::clone(&volume.inode_record(ino).unwrap().unwrap());
        change(&mut inode);
        self.put(Table::Inode, key::inode(ID, ino), &inode);
    }

    fn chunk_of_large(&self) -> (u64, ChunkRef) {
        let volume = open(&self.meta, &self.data);
        let mut first = None;
        volume
            .extents(self.large.0, &(0..1), &mut |placed| {
                if let ExtentBody::Chunk { chunk, .. } = placed.extent.body {
                    first = Some((placed.end, chunk));
                }
                std::ops::ControlFlow::Break(())
            })
            .unwrap();
        first.unwrap()
    }

    fn check(&self, repair: Repair) -> Report {
        let options = FsckOptions { repair, data: DataCheck::CheckSums, now: NOW, branch: 0 };
        fsck(Arc::new(self.meta.clone()), Arc::new(self.data.clone()), options, &mut |_| {}).unwrap()
    }
}

fn open(meta: &MemoryMeta, data: &MemoryData) -> Volume {
    Volume::open(Arc::new(meta.clone()), Arc::new(data.clone()), VolumeConfig::default()).unwrap()
}

fn entry(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// Spoils a good volume; then a check must find something that `expected` knows, repair must leave nothing.
#[track_caller]
fn spoiled(spoil: impl FnOnce(&Lab), expected: impl Fn(&Problem) -> bool) -> Lab {
    let lab = Lab::new();
    assert_eq!(lab.check(Repair::No).problems, vec![]);
    spoil(&lab);
    let found = lab.check(Repair::No);
    assert!(found.problems.iter().any(&expected), "not found, but {:?}", found.problems);
    assert!(found.problems.iter().all(|problem| !problem.to_string().is_empty()));
    assert!(!found.is_clean() && found.repaired == 0);
    let repaired = lab.check(Repair::Discarding);
    assert_eq!(repaired.left, vec![]);
    assert!(repaired.repaired > 0);
    assert_eq!(lab.check(Repair::No).problems, vec![]);
    lab
}

#[test]
fn unreadable_records_of_every_table() {
    for table in [
        Table::Inode,
        Table::Dirent,
        Table::Extent,
        Table::Xattr,
        Table::Orphan,
        Table::Reclaim,
        Table::Release,
    ] {
        spoiled(
            |lab| {
                let key = match table {
                    Table::Inode => key::inode(ID, lab.directory),
                    Table::Dirent => key::dirent(ID, lab.directory, &entry("small")),
                    Table::Extent => key::extent(ID, lab.large.0, 500_000),
                    Table::Xattr => key::xattr(ID, lab.small, b"user.a"),
                    Table::Orphan => key::inode(ID, lab.orphan),
                    Table::Reclaim => key::reclaim(ID, 1 << 40),
                    _ => vec![0; 16],
                };
                lab.put_raw(table, key, Bytes::from_static(&[1, 0xff, 0xff, 0xff]));
            },
            |problem| matches!(problem, Problem::Unreadable { table: found, .. } if *found == table),
        );
    }
}

#[test]
fn unreadable_first_records() {
    for key in [key::superblock(ID), key::counters(ID), key::inode_mark(ID), key::runs(ID)] {
        spoiled(
            |lab| lab.put_raw(Table::Meta, key.clone(), Bytes::from_static(&[9])),
            |problem| matches!(problem, Problem::Unreadable { table: Table::Meta, .. }),
        );
        spoiled(
            |lab| lab.delete(Table::Meta, key.clone()),
            |problem| matches!(problem, Problem::Unreadable { .. }),
        );
    }
}

#[test]
fn a_lost_root_is_made_anew_and_its_children_are_rescued() {
    let lab = spoiled(
        |lab| lab.delete(Table::Inode, key::inode(ID, Ino::ROOT)),
        |problem| *problem == Problem::NoRoot,
    );
    let volume = open(&lab.meta, &lab.data);
    let found = volume.lookup(volume.root(), &entry("directory")).unwrap();
    // Its name was still there.
    assert_eq!(found.unwrap().fid.ino, lab.directory);
}

#[test]
fn an_inode_that_is_gone() {
    spoiled(
        |lab| {
            lab.delete(Table::Inode, key::inode(ID, lab.small));
            lab.delete(Table::Extent, key::extent(ID, lab.small.0, 1000));
        },
        |problem| matches!(problem, Problem::DanglingName { .. }),
    );
    spoiled(
        |lab| {
            lab.delete(Table::Inode, key::inode(ID, lab.large));
            lab.delete(Table::Dirent, key::dirent(ID, Ino::ROOT, &entry("large")));
        },
        |problem| matches!(problem, Problem::LeakedExtents { .. }),
    );
    spoiled(
        |lab| lab.delete(Table::Inode, key::inode(ID, lab.small)),
        |problem| matches!(problem, Problem::LeakedXattr { .. }),
    );
    spoiled(
        |lab| lab.delete(Table::Inode, key::inode(ID, lab.orphan)),
        |problem| matches!(problem, Problem::OrphanWithoutInode { .. }),
    );
    let lab = spoiled(
        |lab| lab.delete(Table::Inode, key::inode(ID, lab.directory)),
        |problem| matches!(problem, Problem::LostDirectory { .. }),
    );
    let volume = open(&lab.meta, &lab.data);
    let directory = volume.lookup(volume.root(), &entry("directory")).unwrap().unwrap().fid;
    assert_eq!(volume.lookup(directory, &entry("subdirectory")).unwrap().unwrap().fid.ino, lab.subdirectory);
}

#[test]
fn a_name_that_is_gone() {
    let lab = spoiled(
        |lab| lab.delete(Table::Dirent, key::dirent(ID, Ino::ROOT, &entry("large"))),
        |problem| matches!(problem, Problem::Unreachable { kind: FileKind::File, .. }),
    );
    let volume = open(&lab.meta, &lab.data);
    let lost = volume.lookup(volume.root(), &entry("lost+found")).unwrap().unwrap().fid;
    let rescued = volume.lookup(lost, &entry(&format!("#{}", lab.large.0))).unwrap().unwrap();
    assert_eq!(rescued.attr.size, 500_000);
    spoiled(
        |lab| lab.delete(Table::Orphan, key::inode(ID, lab.orphan)),
        |problem| matches!(problem, Problem::Unreachable { .. }),
    );
}

#[test]
fn names_that_are_wrong() {
    let dirent = |ino, kind| Dirent { ino, kind };
    spoiled(
        |lab| {
            let key = key::dirent(ID, lab.directory, &entry("small"));
            lab.put(Table::Dirent, key, &dirent(lab.small, FileKind::Fifo));
        },
        |problem| matches!(problem, Problem::WrongKind { .. }),
    );
    spoiled(
        |lab| {
            let key = key::dirent(ID, Ino::ROOT, &entry("again"));
            lab.put(Table::Dirent, key, &dirent(lab.subdirectory, FileKind::Directory));
        },
        |problem| matches!(problem, Problem::SecondName { .. }),
    );
    spoiled(
        |lab| {
            let key = key::dirent(ID, lab.large, &entry("inside"));
            lab.put(Table::Dirent, key, &dirent(lab.small, FileKind::File));
        },
        |problem| matches!(problem, Problem::NameInNoDirectory { .. }),
    );
    spoiled(
        |lab| {
            lab.delete(Table::Dirent, key::dirent(ID, Ino::ROOT, &entry("directory")));
            let key = key::dirent(ID, lab.subdirectory, &entry("up"));
            lab.put(Table::Dirent, key, &dirent(lab.directory, FileKind::Directory));
        },
        |problem| matches!(problem, Problem::Loop { .. }),
    );
}

#[test]
fn counts_that_are_wrong() {
    spoiled(
        |lab| lab.change(lab.small, |inode| inode.nlink = 7),
        |problem| matches!(problem, Problem::WrongLinkCount { recorded: 7, actual: 2, .. }),
    );
    spoiled(
        |lab| lab.change(lab.directory, |inode| inode.nlink = 9),
        |problem| matches!(problem, Problem::WrongLinkCount { recorded: 9, actual: 3, .. }),
    );
    spoiled(
        |lab| lab.change(lab.orphan, |inode| inode.nlink = 1),
        |problem| matches!(problem, Problem::WrongLinkCount { recorded: 1, actual: 0, .. }),
    );
    spoiled(
        |lab| lab.change(lab.directory, |inode| inode.entries = 9),
        |problem| matches!(problem, Problem::WrongNameCount { recorded: 9, actual: 2, .. }),
    );
    spoiled(
        |lab| lab.change(lab.directory, |inode| inode.parent = Ino(77)),
        |problem| matches!(problem, Problem::WrongParent { recorded: Ino(77), actual: Ino::ROOT, .. }),
    );
    spoiled(
        |lab| lab.change(lab.small, |inode| inode.parent = Ino(77)),
        |problem| matches!(problem, Problem::WrongParent { recorded: Ino(77), actual: Ino(0), .. }),
    );
    spoiled(
        |lab| lab.change(lab.large, |inode| inode.parent = Ino(77)),
        |problem| matches!(problem, Problem::WrongParent { recorded: Ino(77), actual, .. } if *actual != Ino(0)),
    );
    spoiled(
        |lab| lab.change(lab.small, |inode| inode.xattrs = 4),
        |problem| matches!(problem, Problem::WrongXattrCount { recorded: 4, actual: 1, .. }),
    );
    spoiled(
        |lab| lab.change(lab.large, |inode| inode.allocated = 4),
        |problem| matches!(problem, Problem::WrongAllocation { recorded: (4, _), actual: (500_000, _), .. }),
    );
    spoiled(
        |lab| lab.put(Table::Meta, key::counters(ID), &Counters { inodes: 99, allocated: 1 }),
        |problem| matches!(problem, Problem::WrongTotals { recorded: (99, 1), .. }),
    );
    spoiled(
        |lab| lab.put(Table::Meta, key::inode_mark(ID), &InodeMark { next: 3 }),
        |problem| matches!(problem, Problem::LowInodeMark { recorded: 3, .. }),
    );
    spoiled(
        |lab| lab.change(lab.large, |inode| inode.version = Version(9 << 44)),
        |problem| matches!(problem, Problem::LowRuns { highest: 9, .. }),
    );
    spoiled(
        |lab| lab.put(Table::Orphan, key::inode(ID, lab.small), &()),
        |problem| matches!(problem, Problem::OrphanWithNames { .. }),
    );
}

#[test]
fn extents_that_are_wrong() {
    let zeros = |len: usize| Extent { len: len as u64, body: ExtentBody::Inline(vec![0; len].into()) };
    spoiled(
        |lab| lab.put(Table::Extent, key::extent(ID, lab.small.0, 900), &zeros(100)),
        |problem| matches!(problem, Problem::Overlap { .. }),
    );
    let lab = spoiled(
        |lab| lab.change(lab.large, |inode| inode.size = 400_000),
        |problem| matches!(problem, Problem::PastEnd { size: 400_000, .. }),
    );
    let volume = open(&lab.meta, &lab.data);
    let fid = Fid::new(ID, lab.large);
    assert_eq!(volume.read(fid, 0, 1 << 20).unwrap(), vec![7; 400_000]);
    spoiled(
        |lab| lab.put(Table::Extent, key::extent(ID, 1 << 40, 900), &zeros(100)),
        |problem| matches!(problem, Problem::LeakedExtents { .. }),
    );
    spoiled(
        |lab| {
            lab.put(
                Table::Reclaim,
                key::reclaim(ID, lab.large.0),
                &Reclaim { xattrs_of: None, deleted_to: 0 },
            )
        },
        |problem| matches!(problem, Problem::ReclaimedInUse { .. }),
    );
    spoiled(
        |lab| lab.put(Table::Xattr, key::xattr(ID, Ino(1 << 40), b"user.x"), &Xattr { value: Bytes::new() }),
        |problem| matches!(problem, Problem::LeakedXattr { .. }),
    );
}

#[test]
fn chunks_that_are_wrong() {
    let lab = spoiled(
        |lab| lab.data.corrupt(&lab.chunk_of_large().1),
        |problem| matches!(problem, Problem::LostData { why: BadChunk::CheckSum, .. }),
    );
    let volume = open(&lab.meta, &lab.data);
    let data = volume.read(Fid::new(ID, lab.large), 0, 1 << 20).unwrap();
    assert_eq!(data.len(), 500_000);
    assert_eq!(data.iter().filter(|byte| **byte == 0).count(), 128 << 10, "only the bad chunk is lost");
    spoiled(
        |lab| {
            let (end, chunk) = lab.chunk_of_large();
            let chunk = ChunkRef { segment: soda_storage::SegmentId(1 << 50), ..chunk };
            let extent = Extent { len: u64::from(chunk.len), body: ExtentBody::Chunk { chunk, skip: 0 } };
            lab.put(Table::Extent, key::extent(ID, lab.large.0, end), &extent);
        },
        |problem| matches!(problem, Problem::LostData { why: BadChunk::Missing, .. }),
    );
    spoiled(
        |lab| {
            let (_, chunk) = lab.chunk_of_large();
            lab.put(Table::Release, key::chunk(&chunk).to_vec(), &Released { chunk });
        },
        |problem| matches!(problem, Problem::ReleasedInUse { .. }),
    );
    let lab = spoiled(
        |lab| {
            let (_, chunk) = lab.chunk_of_large();
            let extent = Extent { len: 5000, body: ExtentBody::Chunk { chunk, skip: 3000 } };
            lab.put(Table::Extent, key::extent(ID, lab.small.0, 5000), &extent);
            lab.delete(Table::Extent, key::extent(ID, lab.small.0, 1000));
            lab.change(lab.small, |inode| (inode.size, inode.allocated, inode.inline) = (5000, 5000, 0));
            let volume = open(&lab.meta, &lab.data);
            let allocated = volume.usage().1 + 4000;
            lab.put(Table::Meta, key::counters(ID), &Counters { inodes: volume.usage().0, allocated });
        },
        |problem| matches!(problem, Problem::SharedData { other: Some(_), .. }),
    );
    // What one gives up the other keeps.
    let volume = open(&lab.meta, &lab.data);
    let mut txn = volume.begin(NOW);
    txn.unlink(volume.root(), &entry("large"), IfOpen::Delete).unwrap();
    txn.commit().unwrap();
    volume.reclaim_all().unwrap();
    assert_eq!(volume.read(Fid::new(ID, lab.small), 0, 1 << 20).unwrap(), vec![7; 5000]);
    spoiled(
        |lab| {
            assert_eq!(lab.data.append(&[1; 9000]).unwrap().len, 9000);
            let report = lab.check(Repair::No);
            assert_eq!((report.problems, report.unswept), (vec![], 12288), "a crash may do that");
            lab.put(Table::Meta, key::swept(), &Swept { before: SegmentId(1 << 50) });
        },
        |problem| matches!(problem, Problem::LeakedSpace { .. }),
    );
}

/// What is lost reads as an error, before a repair and after it, until somebody gives it up.
// SEMANTICS 41
#[test]
fn lost_data_stay_an_error_until_they_are_discarded() {
    let lab = Lab::new();
    let fid = Fid::new(ID, lab.large);
    lab.data.corrupt(&lab.chunk_of_large().1);
    for repair in [Repair::No, Repair::Yes, Repair::Yes] {
        let report = lab.check(repair);
        let [problem @ Problem::LostData { .. }] = &report.left[..] else { panic!("{:?}", report.left) };
        assert_eq!(
            (report.inode(problem), report.paths(problem).join(" ")),
            (Some(lab.large), "/large".into())
        );
        assert_eq!((report.repaired, report.lost_files, problem.range()), (0, 0, Some(0..128 << 10)));
        let volume = open(&lab.meta, &lab.data);
        assert_eq!(volume.read(fid, 0, 10).unwrap_err().errno, soda_types::Errno::Io);
        assert_eq!(volume.read(fid, 128 << 10, 10).unwrap(), [7; 10][..]);
    }
    let report = lab.check(Repair::Discarding);
    assert_eq!((report.left, report.lost_files, report.lost_bytes), (vec![], 1, 128 << 10));
    assert_eq!(open(&lab.meta, &lab.data).read(fid, 0, 10).unwrap(), [0; 10][..]);
}

#[test]
fn lost_data_end_with_being_overwritten_or_cut_off() {
    for cut in [false, true] {
        let lab = Lab::new();
        let fid = Fid::new(ID, lab.large);
        lab.data.corrupt(&lab.chunk_of_large().1);
        assert_eq!(lab.check(Repair::Yes).left.len(), 1);
        let volume = open(&lab.meta, &lab.data);
        let mut txn;
        if cut {
            txn = volume.begin(NOW);
            txn.set_attr(fid, &soda_types::SetAttr { size: Some(0), ..Default::default() }).unwrap();
        } else {
            let staged = volume.stage_write(fid, vec![8; 128 << 10].into()).unwrap();
            txn = volume.begin(NOW);
            txn.write(fid, WriteAt::Offset(0), staged, KillPriv::Keep).unwrap();
        }
        txn.commit().unwrap();
        if !cut {
            assert_eq!(volume.read(fid, 0, 10).unwrap(), [8; 10][..]);
        }
        drop(volume);
        assert_eq!(lab.check(Repair::No).problems, vec![]);
    }
}

#[test]
fn work_that_was_left_is_no_problem_and_is_finished() {
    let lab = Lab::new();
    let volume = open(&lab.meta, &lab.data);
    let mut txn = volume.begin(NOW);
    txn.unlink(volume.root(), &entry("large"), IfOpen::Delete).unwrap();
    txn.drop_orphan(Fid::new(ID, lab.orphan)).unwrap();
    txn.commit().unwrap();
    let report = lab.check(Repair::No);
    assert_eq!((report.problems, report.left), (vec![], vec![]));
    assert_eq!(lab.check(Repair::Yes).problems, vec![]);
    assert_eq!(lab.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>(), 0);
}

/// A sweep cannot tell what is leaked while an extent is unreadable; once that is repaired it can.
#[test]
fn damage_and_leaks_of_a_crash_together() {
    let lab = Lab::new();
    let used = lab.data.segments().unwrap()[0].stored;
    for _ in 0..6 {
        lab.data.append(&[1; 1 << 20]).unwrap();
    }
    lab.put_raw(Table::Extent, key::extent(ID, lab.large.0, 500_000), Bytes::from_static(&[1, 0xff]));
    let volume = open(&lab.meta, &lab.data);
    let step = || volume.reclaim_some(10);
    while step().is_ok_and(|progress| progress == crate::Progress::More) {}
    assert!(
        lab.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>() >= used + (6 << 20)
    );
    drop(volume);
    let stored = || lab.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
    assert_eq!(lab.check(Repair::Yes).left.len(), 1);
    assert!(stored() >= used + (6 << 20), "which of it the bad extent has nobody knows");
    assert!(lab.check(Repair::Discarding).is_clean());
    assert_eq!(lab.check(Repair::No).problems, vec![]);
    let left = lab.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
    assert!(left < used, "{left} of {used} left: the chunk of the bad extent has gone too");
}

/// What is written stays, also where its neighbours in the chunk are lost: those alone go on reading as an error.
#[test]
fn a_part_of_a_lost_chunk_can_be_overwritten() {
    let lab = Lab::new();
    let fid = Fid::new(ID, lab.large);
    lab.data.corrupt(&lab.chunk_of_large().1);
    let volume = open(&lab.meta, &lab.data);
    let parts = [0..4096, 50_000..51_000, (128 << 10) - 5000..128 << 10];
    for part in &parts {
        let staged = volume.stage_write(fid, vec![8; (part.end - part.start) as usize].into()).unwrap();
        let mut txn = volume.begin(NOW);
        txn.write(fid, WriteAt::Offset(part.start), staged, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
    }
    drop(volume);
    let check = |volume: &Volume| {
        for part in &parts {
            let len = (part.end - part.start) as usize;
            assert_eq!(volume.read(fid, part.start, len).unwrap(), vec![8; len]);
        }
        for lost in [4096..50_000, 51_000..(128 << 10) - 5000] {
            for at in [lost.start, lost.end - 1] {
                assert_eq!(volume.read(fid, at, 1).unwrap_err().errno, soda_types::Errno::Io);
            }
        }
        assert_eq!(volume.read(fid, 128 << 10, 10).unwrap()[..], [7; 10]);
    };
    check(&open(&lab.meta, &lab.data));
    let report = lab.check(Repair::Yes);
    let lost: Vec<_> = report.left.iter().map(|problem| (problem.is_lost_data(), problem.range())).collect();
    let expected = [4096..50_000, 51_000..(128 << 10) - 5000].map(|range| (true, Some(range)));
    assert_eq!(lost, expected);
    check(&open(&lab.meta, &lab.data));
    let report = lab.check(Repair::Discarding);
    assert_eq!((report.lost_files, report.lost_bytes), (1, (128 << 10) - 4096 - 1000 - 5000));
    assert!(report.is_clean() && lab.check(Repair::No).problems.is_empty());
    let volume = open(&lab.meta, &lab.data);
    assert_eq!(volume.read(fid, 4090, 12).unwrap()[..], [8, 8, 8, 8, 8, 8, 0, 0, 0, 0, 0, 0]);
}

/// Nobody can say what it has; that holds up nothing else, and a repair gives its space back.
#[test]
fn a_file_with_an_unreadable_extent_can_be_removed_and_emptied() {
    for empty in [false, true] {
        let lab = Lab::new();
        lab.put_raw(Table::Extent, key::extent(ID, lab.large.0, 500_000), Bytes::from_static(&[1, 0xff]));
        let volume = open(&lab.meta, &lab.data);
        let stored = || lab.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
        let (before, name) = (stored(), entry("large"));
        let mut txn = volume.begin(NOW);
        if empty {
            let size = soda_types::SetAttr { size: Some(0), ..Default::default() };
            txn.set_attr(Fid::new(ID, lab.large), &size).unwrap();
        } else {
            txn.unlink(volume.root(), &name, IfOpen::Delete).unwrap();
        }
        txn.drop_orphan(Fid::new(ID, lab.orphan)).unwrap();
        txn.commit().unwrap();
        assert_eq!(volume.resolve(volume.root(), &name).unwrap().is_some(), empty);
        volume.sync().unwrap();
        for _ in 0..100 {
            let _ = volume.reclaim_some(10);
            volume.sync().unwrap();
        }
        assert!(stored() <= before - 200_000, "what another file had is held up: {} of {before}", stored());
        if empty {
            let fid = Fid::new(ID, lab.large);
            let staged = volume.stage_write(fid, vec![8; 5000].into()).unwrap();
            let mut txn = volume.begin(NOW);
            txn.write(fid, WriteAt::End, staged, KillPriv::Keep).unwrap();
            txn.commit().unwrap();
            assert_eq!(volume.read(fid, 0, 10_000).unwrap()[..], [8; 5000]);
        }
        drop(volume);
        assert!(!lab.check(Repair::No).is_clean() && lab.check(Repair::Discarding).is_clean());
        assert_eq!(lab.check(Repair::No).problems, vec![]);
        assert_eq!(stored(), if empty { 8192 } else { 0 });
    }
}
