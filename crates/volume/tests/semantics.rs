//! What each operation does, one by one, on both stores.

use crate::common::*;
use soda_types::{Errno, Fid, FileKind, SetAttr, SetTime, Timestamp};
use soda_volume::*;

#[test]
fn a_fresh_store_has_an_empty_main_volume() {
    for_each_store(|volume| {
        assert_eq!(volume.name(), "main");
        let root = volume.getattr(volume.root()).unwrap();
        assert_eq!((root.kind, root.nlink, root.perm), (FileKind::Directory, 2, 0o755));
        assert!(volume.read_dir(volume.root(), None, 10, Listing::Names).unwrap().is_empty());
    });
}

#[test]
fn what_is_written_is_read() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        for (offset, len) in
            [(0u64, 10usize), (5, 100), (4096, 4096), (70_000, 300_000), (3, 80_000), (1 << 33, 5)]
        {
            let data = pattern(offset, len);
            write(volume, file, offset, &data);
            assert_eq!(read(volume, file, offset, len), data, "at {offset}");
        }
        let attr = volume.getattr(file).unwrap();
        assert_eq!(attr.size, (1 << 33) + 5);
        assert_eq!(attr.allocated, 370_000 + 5);
        assert!(read(volume, file, 400_000, 1000).iter().all(|byte| *byte == 0));
        assert_eq!(volume.seek(file, 370_000, SeekTarget::Data).unwrap(), 1 << 33);
        assert_eq!(volume.seek(file, 0, SeekTarget::Hole).unwrap(), 370_000);
        assert_eq!(volume.seek(file, 1 << 40, SeekTarget::Data).unwrap_err().errno, Errno::NoDevice);
    });
}

#[test]
fn a_layout_stops_between_two_stretches_of_data() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        // One stretch of three extents, then four of one.
        for offset in [3u64, 4, 5, 7, 9, 11, 13] {
            write(volume, file, offset << 16, &pattern(offset, 1 << 16));
        }
        write(volume, file, 20 << 16, b"end");
        let layout = |offset: u64, most| {
            let layout = volume.layout(file, offset << 16, most).unwrap();
            assert_eq!(layout.size, (20 << 16) + 3);
            let data = layout.data.iter().map(|data| (data.start >> 16, data.end >> 16)).collect::<Vec<_>>();
            (data, layout.until >> 16)
        };
        assert_eq!(layout(0, 1), (vec![(3, 6)], 6));
        assert_eq!(layout(4, 2), (vec![(4, 6)], 6));
        assert_eq!(layout(6, 2), (vec![(7, 8), (9, 10)], 10));
        assert_eq!(layout(12, 9), (vec![(13, 14), (20, 20)], 20));
        assert_eq!(layout(14, 0), (vec![(20, 20)], 20), "however little is asked for");
        assert_eq!(layout(30, 9), (vec![], 20));
        let mut txn = volume.begin(now());
        txn.set_attr(file, &SetAttr { size: Some(30 << 16), ..SetAttr::default() }).unwrap();
        txn.commit().unwrap();
        let layout = volume.layout(file, 21 << 16, 9).unwrap();
        assert_eq!((layout.data, layout.until), (vec![], 30 << 16));
    });
}

#[test]
fn names_come_and_go() {
    for_each_store(|volume| {
        let directory = mkdir(volume, volume.root(), "d");
        let file = create_in(volume, directory, "f");
        assert_eq!(volume.lookup(directory, &name("f")).unwrap().unwrap().fid, file);
        assert_eq!(volume.lookup(directory, &name("g")).unwrap(), None);
        assert_eq!(volume.parent(directory).unwrap(), volume.root());
        assert_eq!(volume.getattr(volume.root()).unwrap().nlink, 3);
        let mut txn = volume.begin(now());
        assert_eq!(txn.rmdir(volume.root(), &name("d"), IfOpen::Delete).unwrap_err().errno, Errno::NotEmpty);
        assert_eq!(
            txn.unlink(volume.root(), &name("d"), IfOpen::Delete).unwrap_err().errno,
            Errno::IsDirectory
        );
        assert_eq!(txn.rmdir(directory, &name("f"), IfOpen::Delete).unwrap_err().errno, Errno::NotDirectory);
        let removed = txn.unlink(directory, &name("f"), IfOpen::Delete).unwrap();
        assert_eq!((removed.fid, removed.fate, removed.attr.nlink), (file, Fate::Deleted, 0));
        txn.rmdir(volume.root(), &name("d"), IfOpen::Delete).unwrap();
        txn.commit().unwrap();
        assert_eq!(volume.getattr(file).unwrap_err().errno, Errno::Stale);
        assert_eq!(volume.lookup(volume.root(), &name("d")).unwrap(), None);
        assert_eq!(volume.getattr(volume.root()).unwrap().nlink, 2);
    });
}

#[test]
fn a_transaction_that_is_dropped_changes_nothing() {
    for_each_store(|volume| {
        let before = volume.getattr(volume.root()).unwrap();
        let mut txn = volume.begin(now());
        txn.create(volume.root(), &name("f"), new_file(0o644)).unwrap();
        drop(txn);
        assert_eq!(volume.getattr(volume.root()).unwrap(), before);
        assert_eq!(volume.lookup(volume.root(), &name("f")).unwrap(), None);
    });
}

#[test]
fn an_orphan_lives_until_it_is_dropped() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        write(volume, file, 0, &pattern(0, 500_000));
        let mut txn = volume.begin(now());
        let removed = txn.unlink(volume.root(), &name("f"), IfOpen::Keep).unwrap();
        assert_eq!(removed.fate, Fate::Orphaned);
        txn.commit().unwrap();
        assert_eq!(volume.orphans().unwrap(), vec![file]);
        assert_eq!(read(volume, file, 0, 500_000), pattern(0, 500_000));
        let mut txn = volume.begin(now());
        txn.drop_orphan(file).unwrap();
        txn.commit().unwrap();
        assert!(volume.orphans().unwrap().is_empty());
        assert_eq!(volume.getattr(file).unwrap_err().errno, Errno::Stale);
        assert_eq!(volume.usage(), (1, 0));
        volume.reclaim_all().unwrap();
    });
}

// SEMANTICS 35
#[test]
fn times_only_grow() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        let set =
            SetAttr { mtime: Some(SetTime::At(Timestamp::new(5_000_000_000, 0))), ..SetAttr::default() };
        let mut last = volume.getattr(file).unwrap();
        for _ in 0..3 {
            let mut txn = volume.begin(Timestamp::new(1, 0));
            let staged = volume.stage_write(file, b"x"[..].into()).unwrap();
            let attr = txn.write(file, WriteAt::End, staged, KillPriv::Keep).unwrap().attr;
            txn.commit().unwrap();
            assert!(attr.mtime > last.mtime && attr.ctime > last.ctime);
            assert!(attr.version > last.version && attr.data_version > last.data_version);
            last = attr;
        }
        let mut txn = volume.begin(now());
        let attr = txn.set_attr(file, &set).unwrap();
        txn.commit().unwrap();
        assert_eq!((attr.mtime.secs(), attr.data_version), (5_000_000_000, last.data_version));
        assert!(attr.ctime > last.ctime && attr.ctime.secs() < 5_000_000_000);
    });
}

/// Rights that a program gets by its file were given to its contents as they were (Linux: `file_remove_privs`).
#[test]
fn file_capabilities_go_with_every_change_of_contents_or_owner() {
    type Work = fn(&mut Txn<'_>, &Volume, Fid);
    let drops: [(&str, Work); 8] = [
        ("a write", |txn, volume, file| {
            let staged = volume.stage(0, bytes::Bytes::from_static(b"other"), Redo::No).unwrap();
            txn.write(file, WriteAt::Offset(0), staged, KillPriv::Keep).unwrap();
        }),
        ("an append", |txn, volume, file| {
            let staged = volume.stage(0, bytes::Bytes::from_static(b"more"), Redo::No).unwrap();
            txn.write(file, WriteAt::End, staged, KillPriv::Keep).unwrap();
        }),
        ("allocation", |txn, _, file| {
            txn.fallocate(file, Allocate::Extend, 0, 100, KillPriv::Keep).unwrap();
        }),
        ("a hole", |txn, _, file| {
            txn.fallocate(file, Allocate::PunchHole, 0, 1, KillPriv::Keep).unwrap();
        }),
        ("zeros", |txn, _, file| {
            txn.fallocate(file, Allocate::ZeroRange, 0, 1, KillPriv::Keep).unwrap();
        }),
        ("a copy", |txn, volume, file| {
            let from = volume.lookup(volume.root(), &name("from")).unwrap().unwrap().fid;
            txn.copy_range((from, 0), (file, 0), 3, KillPriv::Keep).unwrap();
        }),
        ("truncation", |txn, _, file| {
            txn.set_attr(file, &SetAttr { size: Some(1), ..SetAttr::default() }).unwrap();
        }),
        ("another owner", |txn, _, file| {
            txn.set_attr(file, &SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
        }),
    ];
    let keeps = SetAttr { perm: Some(0o700), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let xattr = |volume: &Volume, file: Fid, name: &str| {
        let mut txn = volume.begin(now());
        txn.set_xattr(file, name.as_bytes(), "value".into(), SetXattr::Either, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
    };
    for_each_store(|volume| {
        let from = create(volume, "from");
        write(volume, from, 0, b"from");
        let file = create(volume, "f");
        write(volume, file, 0, b"data");
        xattr(volume, file, "security.other");
        for (what, work) in drops {
            xattr(volume, file, "security.capability");
            let mut txn = volume.begin(now());
            txn.set_attr(file, &keeps).unwrap();
            txn.commit().unwrap();
            assert_eq!(volume.list_xattrs(file).unwrap(), [&b"security.capability"[..], b"security.other"]);
            let mut txn = volume.begin(now());
            work(&mut txn, volume, file);
            txn.commit().unwrap();
            assert_eq!(volume.list_xattrs(file).unwrap(), [&b"security.other"[..]], "{what}");
        }
    });
}

#[test]
fn inode_numbers_are_not_used_twice() {
    let directory = tempfile::tempdir().unwrap();
    let volume = embedded(directory.path());
    let first = create(&volume, "f");
    drop(volume);
    let volume = embedded(directory.path());
    let second = create(&volume, "g");
    assert!(second.ino > first.ino, "numbers are not used twice");
    assert_eq!(
        volume.getattr(Fid::new(volume.id(), soda_types::Ino(1 << 50))).unwrap_err().errno,
        Errno::Stale
    );
}
