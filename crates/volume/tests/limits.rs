//! Limits, edges and sizes.

use crate::common::*;
use bytes::Bytes;
use soda_storage::{DataStore, MemoryData, MemoryMeta};
use soda_types::semantics::{FILE_MAX, LINK_MAX};
use soda_types::{Errno, FileKind, Name, SetAttr, XATTR_VALUE_MAX};
use soda_volume::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[test]
fn links_are_limited() {
    let volume = in_memory();
    let file = create(&volume, "f");
    let mut txn = volume.begin(now());
    for number in 1..LINK_MAX {
        txn.link(file, volume.root(), &name(&format!("{number}"))).unwrap();
    }
    assert_eq!(txn.link(file, volume.root(), &name("more")).unwrap_err().errno, Errno::TooManyLinks);
    txn.commit().unwrap();
    assert_eq!(volume.getattr(file).unwrap().nlink, LINK_MAX);
}

// SEMANTICS 14
#[test]
fn files_reach_to_the_end_of_offsets() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        let written = write(volume, file, FILE_MAX - 5, b"tail!");
        assert_eq!((written.attr.size, written.attr.allocated), (FILE_MAX, 5));
        assert_eq!(read(volume, file, FILE_MAX - 7, 100), b"\0\0tail!");
        assert_eq!(volume.seek(file, 0, SeekTarget::Data).unwrap(), FILE_MAX - 5);
        let staged = volume.stage_write(file, Bytes::from_static(b"x")).unwrap();
        let mut txn = volume.begin(now());
        assert_eq!(
            txn.write(file, WriteAt::End, staged, KillPriv::Keep).unwrap_err().errno,
            Errno::FileTooBig
        );
        let set = SetAttr { size: Some(FILE_MAX + 1), ..SetAttr::default() };
        assert_eq!(txn.set_attr(file, &set).unwrap_err().errno, Errno::FileTooBig);
        let result = txn.fallocate(file, Allocate::ZeroRange, FILE_MAX, 1, KillPriv::Keep);
        assert_eq!(result.unwrap_err().errno, Errno::FileTooBig);
        // What does not fit the medium is refused, unless it is only a hole.
        let result = txn.fallocate(file, Allocate::Extend, 0, 1 << 60, KillPriv::Keep);
        assert_eq!(result.unwrap_err().errno, Errno::NoSpace);
        txn.fallocate(file, Allocate::PunchHole, 0, FILE_MAX, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
        assert_eq!(volume.getattr(file).unwrap().allocated, 0);
        assert_eq!(volume.seek(file, 0, SeekTarget::Data).unwrap_err().errno, Errno::NoDevice);
    });
}

/// What is beside the metadata is synced with it.
#[test]
fn a_file_of_one_block_takes_no_segment() {
    let data = Arc::new(MemoryData::new());
    let volume = Volume::open(Arc::new(MemoryMeta::new()), data.clone(), VolumeConfig::default()).unwrap();
    let stored = || {
        let segments = data.segments().unwrap();
        segments.iter().map(|segment| data.stored_ranges(segment.id).unwrap().len()).sum::<usize>()
    };
    let file = create(&volume, "block");
    write(&volume, file, 0, &pattern(0, 4096));
    assert_eq!(read(&volume, file, 0, 5000), pattern(0, 4096));
    assert_eq!(stored(), 0);
    write(&volume, create(&volume, "more"), 0, &pattern(0, 4097));
    assert_eq!(stored(), 1);
}

#[test]
fn emptying_a_large_file_is_one_small_step() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        for block in 0..100 {
            write(volume, file, block * 200_000, &pattern(block, 70_000));
        }
        let mut txn = volume.begin(now());
        txn.set_attr(file, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        txn.commit().unwrap();
        assert_eq!(volume.getattr(file).unwrap().allocated, 0);
        write(volume, file, 10, b"new");
        let mut txn = volume.begin(now());
        txn.set_attr(file, &SetAttr { size: Some(1_000_000), ..SetAttr::default() }).unwrap();
        txn.commit().unwrap();
        let content = read(volume, file, 0, 1_000_000);
        assert_eq!(&content[10..13], b"new");
        assert!(content[13..].iter().all(|byte| *byte == 0), "nothing of before shows through");
        volume.reclaim_all().unwrap();
        assert_eq!(&read(volume, file, 10, 3), b"new");
    });
}

#[test]
fn extended_attributes_have_their_errors() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        let set = |name: &[u8], len: usize, how| {
            let mut txn = volume.begin(now());
            txn.set_xattr(file, name, vec![1; len].into(), how, KillPriv::Keep)
                .map_err(|error| error.errno)?;
            txn.commit().unwrap();
            Ok(())
        };
        assert_eq!(set(b"user.a", 10, SetXattr::Replace), Err(Errno::NoData));
        assert_eq!(set(b"user.a", 10, SetXattr::Create), Ok(()));
        assert_eq!(set(b"user.a", 10, SetXattr::Create), Err(Errno::Exists));
        assert_eq!(set(b"user.a", 0, SetXattr::Replace), Ok(()));
        assert_eq!(volume.get_xattr(file, b"user.a").unwrap(), Bytes::new());
        assert_eq!(set(b"user.b", XATTR_VALUE_MAX, SetXattr::Either), Ok(()));
        assert_eq!(set(b"user.b", XATTR_VALUE_MAX + 1, SetXattr::Either), Err(Errno::TooBig));
        assert_eq!(set(&[b"user.", &[b'x'; 251][..]].concat(), 1, SetXattr::Either), Err(Errno::Range));
        assert_eq!(set(b"system.other", 1, SetXattr::Either), Err(Errno::NotSupported));
        assert_eq!(set(b"user.", 1, SetXattr::Either), Err(Errno::Invalid));
        assert_eq!(volume.get_xattr(file, b"user.c").unwrap_err().errno, Errno::NoData);
        assert_eq!(volume.list_xattrs(file).unwrap(), [&b"user.a"[..], b"user.b"]);
        let version = volume.getattr(file).unwrap();
        let mut txn = volume.begin(now());
        txn.remove_xattr(file, b"user.a").unwrap();
        assert_eq!(txn.remove_xattr(file, b"user.a").unwrap_err().errno, Errno::NoData);
        txn.commit().unwrap();
        let after = volume.getattr(file).unwrap();
        assert!(after.version > version.version && after.ctime > version.ctime);
        assert_eq!((after.data_version, after.mtime), (version.data_version, version.mtime));
        // A list has a largest length.
        let mut added = 0;
        let last = loop {
            let name = format!("user.{added:0>200}");
            match set(name.as_bytes(), 1, SetXattr::Either) {
                Ok(()) => added += 1,
                Err(errno) => break errno,
            }
        };
        assert_eq!((last, added), (Errno::NoSpace, (65536 - 7) / 206));
    });
}

#[test]
fn special_files_and_symbolic_links() {
    for_each_store(|volume| {
        let mut txn = volume.begin(now());
        let root = volume.root();
        for (kind, expected, rdev) in [
            (NewKind::Fifo, FileKind::Fifo, 0),
            (NewKind::Socket, FileKind::Socket, 0),
            (NewKind::CharDevice(0x501), FileKind::CharDevice, 0x501),
            (NewKind::BlockDevice(0x801), FileKind::BlockDevice, 0x801),
        ] {
            let node = txn.create(root, &name(&format!("{expected:?}")), new_node(kind, 0o666)).unwrap();
            assert_eq!((node.attr.kind, node.attr.rdev, node.attr.perm), (expected, rdev, 0o644));
        }
        let link = |target: &[u8]| new_node(NewKind::Symlink(Bytes::copy_from_slice(target)), 0);
        let node = txn.create(root, &name("link"), link(b"some/where")).unwrap();
        assert_eq!(txn.create(root, &name("empty"), link(b"")).unwrap_err().errno, Errno::NoEntry);
        assert_eq!(
            txn.create(root, &name("long"), link(&[b'x'; 4096])).unwrap_err().errno,
            Errno::NameTooLong
        );
        txn.create(root, &name("longest"), link(&[b'x'; 4095])).unwrap();
        txn.commit().unwrap();
        assert_eq!(volume.readlink(node.fid).unwrap(), &b"some/where"[..]);
        assert_eq!(volume.getattr(node.fid).unwrap().size, 10);
        assert_eq!(volume.readlink(root).unwrap_err().errno, Errno::Invalid);
        assert_eq!(volume.read(root, 0, 1).unwrap_err().errno, Errno::IsDirectory);
        assert_eq!(volume.read(node.fid, 0, 1).unwrap_err().errno, Errno::Invalid);
        assert_eq!(volume.lookup(node.fid, &name("x")).unwrap_err().errno, Errno::NotDirectory);
    });
}

// SEMANTICS 11
/// In pages by name, with names that are added and removed in between: each that was there all the time comes once.
#[test]
fn a_large_directory_is_read_in_pages() {
    for_each_store(|volume| {
        let directory = mkdir(volume, volume.root(), "d");
        let mut txn = volume.begin(now());
        for number in 0..5000 {
            txn.create(directory, &name(&format!("{number:05}")), new_file(0o644)).unwrap();
        }
        txn.commit().unwrap();
        let mut after: Option<Name> = None;
        let mut seen = Vec::new();
        loop {
            let page = volume.read_dir(directory, after.as_ref(), 100, Listing::Names).unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            // The one just seen goes, and one before it comes.
            let mut txn = volume.begin(now());
            txn.unlink(directory, &last.name, IfOpen::Delete).unwrap();
            txn.create(directory, &name(&format!("!{}", last.name)), new_file(0o644)).unwrap();
            txn.commit().unwrap();
            seen.extend(
                page.into_iter().map(|entry| entry.name.to_string()).filter(|name| !name.starts_with('!')),
            );
        }
        assert!(seen.iter().map(|name| name.parse::<u32>().unwrap()).eq(0..5000));
        assert_eq!(volume.getattr(directory).unwrap().size, 5000 * 32);
    });
}

#[test]
fn what_was_removed_takes_nothing_new() {
    let volume = in_memory();
    let directory = mkdir(&volume, volume.root(), "d");
    let file = create(&volume, "f");
    let mut txn = volume.begin(now());
    let removed = txn.rmdir(volume.root(), &name("d"), IfOpen::Keep).unwrap();
    assert_eq!((removed.fate, removed.attr.nlink), (Fate::Orphaned, 0));
    for result in [
        txn.create(directory, &name("x"), new_file(0o644)).map(drop),
        txn.link(file, directory, &name("x")).map(drop),
        txn.tmpfile(directory, new_file(0o644)).map(drop),
        txn.rename(volume.root(), &name("f"), directory, &name("x"), Replace::Allowed, IfOpen::Delete)
            .map(drop),
    ] {
        assert_eq!(result.unwrap_err().errno, Errno::NoEntry);
    }
    txn.commit().unwrap();
    assert_eq!(volume.lookup(directory, &name("x")).unwrap(), None);
    assert!(volume.read_dir(directory, None, 10, Listing::Names).unwrap().is_empty());
}

/// A large file in small pieces does not become a record for each.
#[test]
fn a_file_written_in_drips_takes_little() {
    for_each_store(|volume| {
        let log = create(volume, "log");
        let line = pattern(1, 100);
        for _ in 0..5000 {
            let staged = volume.stage_write(log, Bytes::copy_from_slice(&line)).unwrap();
            let mut txn = volume.begin(now());
            txn.write(log, WriteAt::End, staged, KillPriv::Keep).unwrap();
            txn.commit().unwrap();
        }
        assert_eq!(read(volume, log, 0, 1 << 20), line.repeat(5000));
        let attr = volume.getattr(log).unwrap();
        assert_eq!((attr.size, attr.allocated), (500_000, 500_000));
    });
}

/// Long reads use their memory again: what another file had in it must not shine through a hole or past the end.
#[test]
fn a_hole_is_zeros_whatever_was_read_before() {
    for_each_store(|volume| {
        let (full, sparse) = (create(volume, "full"), create(volume, "sparse"));
        let len = 1 << 20;
        write(volume, full, 0, &vec![0xff; len]);
        let parts = [(100_000u64, 5000usize), (300_000, 200_000), (700_001, 3), (899_000, 1000)];
        let mut wanted = vec![0; 900_000];
        for (offset, len) in parts {
            write(volume, sparse, offset, &pattern(offset, len));
            wanted[offset as usize..offset as usize + len].copy_from_slice(&pattern(offset, len));
        }
        for from in [0, 4096, 100_001, 310_000, 600_000] {
            assert!(read(volume, full, 0, len) == vec![0xff; len]);
            assert!(read(volume, sparse, from as u64, len) == wanted[from..], "from {from}");
            assert!(
                read(volume, sparse, from as u64, 300_000)[..] == wanted[from..from + 300_000],
                "from {from}"
            );
        }
    });
}

/// What attributes take is not counted anew each time: it must be what counting would give.
#[test]
fn the_bounds_of_extended_attributes_hold_however_they_come_and_go() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        let mut chance = 7u64;
        let mut random = |below: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % below
        };
        let (mut kept, mut full) = (BTreeMap::<Vec<u8>, usize>::new(), [0; 2]);
        for _ in 0..1500 {
            let (mut txn, mut after) = (volume.begin(now()), kept.clone());
            for _ in 0..=random(3) {
                // Names of 250 bytes fill a list, values of 30,000 an answer.
                let name = format!("user.{:0>245}", random(400)).into_bytes();
                let len = [0, 10, 30_000][random(3) as usize % if random(40) < 20 { 3 } else { 2 }];
                if random(8) == 0 {
                    let expected = after.remove(&name).map(drop).ok_or(Errno::NoData);
                    let found = txn.remove_xattr(file, &name).map(drop).map_err(|error| error.errno);
                    assert_eq!(found, expected);
                    continue;
                }
                let grows = after.get(&name).is_none_or(|before| *before < len);
                let with: BTreeMap<_, _> = after.clone().into_iter().chain([(name.clone(), len)]).collect();
                let list: usize = with.keys().map(|name| name.len() + 1).sum();
                // A record is its version, its length and the value.
                let record = |len: &usize| 2 + usize::from(*len > 127) + usize::from(*len > 16_383) + len;
                let all: usize = with.iter().map(|(name, len)| name.len() + record(len)).sum();
                let is_full = [list > soda_types::XATTR_LIST_MAX, all > soda_types::XATTRS_MAX];
                let fits = !grows || is_full == [false; 2];
                is_full.iter().zip(&mut full).for_each(|(is, full)| *full += u32::from(*is && grows));
                let set = txn.set_xattr(file, &name, vec![1; len].into(), SetXattr::Either, KillPriv::Keep);
                assert_eq!(set.is_ok(), fits, "{list} {all} {set:?}");
                if fits {
                    after = with;
                }
            }
            if random(3) > 0 {
                txn.commit().unwrap();
                kept = after;
            }
        }
        assert!(full.iter().all(|often| *often > 20), "{full:?}");
        assert_eq!(volume.list_xattrs(file).unwrap(), kept.keys().cloned().collect::<Vec<_>>());
    });
}

#[test]
fn as_many_extended_attributes_as_can_be_set_can_be_listed() {
    for_each_store(|volume| {
        let file = create(volume, "f");
        let set = |number: usize, len: usize| {
            let mut txn = volume.begin(now());
            let name = format!("user.{number:0>100}");
            txn.set_xattr(file, name.as_bytes(), vec![1; len].into(), SetXattr::Either, KillPriv::Keep)
                .map_err(|error| error.errno)?;
            txn.commit().unwrap();
            Ok(())
        };
        let most = (0..2000).find(|number| set(*number, 3000) != Ok(())).unwrap();
        assert_eq!(set(most, 3000), Err(Errno::NoSpace));
        assert_eq!(set(0, 9000), Err(Errno::NoSpace), "one that was there grows");
        let names = volume.list_xattrs(file).unwrap();
        assert!(names.len() == most && most > 300, "{most}");
        let values: usize =
            names.iter().map(|name| volume.get_xattr(file, name).unwrap().len() + name.len()).sum();
        assert!(values <= soda_types::XATTRS_MAX && values + 2 * 3200 > soda_types::XATTRS_MAX, "{values}");
        assert_eq!(set(0, 10), Ok(()), "one that shrinks");
        assert_eq!(set(1, 5000), Ok(()), "what was given up can be had");
    });
}
