//! Wherever the metadata's files are damaged: what can be read is saved, all that is missing is named, and nothing else is.

use crate::common::*;
use bytes::Bytes;
use soda_storage::{DataDirectory, MetaStore, StoreOptions, Table};
use soda_types::{Fid, FileKind, Ino, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Problem, Repair, Report, fsck, fsck_salvaged};
use soda_volume::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What can be seen at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    kind: FileKind,
    content: Bytes,
    xattrs: Vec<(Bytes, Bytes)>,
    perm: u16,
    ino: Ino,
}

const DIRECTORIES: usize = 8;

/// Some hundred files of all kinds, some of them removed again, in trees of several tables each.
fn make(path: &Path) {
    let directory = DataDirectory::open(path, StoreOptions::default()).unwrap();
    let volume =
        Volume::open(directory.meta.clone(), directory.data.clone(), VolumeConfig::default()).unwrap();
    let directories: Vec<Fid> =
        (0..DIRECTORIES).map(|number| mkdir(&volume, volume.root(), &format!("dir{number}"))).collect();
    for round in 0..4 {
        for number in 0..80 {
            let parent = directories[(number * 7 + round) % DIRECTORIES];
            let file = create_in(&volume, parent, &format!("file{round}-{number}"));
            let len = [0, 10, 900, 3000, 20_000][number % 5];
            write(&volume, file, 0, &pattern(number as u64 * 1000, len));
            let mut txn = volume.begin(now());
            if number % 9 == 0 {
                txn.link(file, volume.root(), &name(&format!("link{round}-{number}"))).unwrap();
            }
            if number % 7 == 0 {
                let value = Bytes::from(vec![number as u8; 50]);
                txn.set_xattr(file, b"user.a", value, SetXattr::Either, KillPriv::Keep).unwrap();
            }
            if number % 11 == 0 {
                let link = new_node(NewKind::Symlink(Bytes::from(vec![b'x'; 30])), 0o777);
                txn.create(parent, &name(&format!("symlink{round}-{number}")), link).unwrap();
            }
            txn.commit().unwrap();
        }
        if round > 0 {
            for number in (0..80).step_by(3) {
                let parent = directories[(number * 7 + round - 1) % DIRECTORIES];
                let mut txn = volume.begin(now());
                txn.unlink(parent, &name(&format!("file{}-{number}", round - 1)), IfOpen::Delete).unwrap();
                txn.commit().unwrap();
            }
            for number in (1..80).step_by(3) {
                let parent = directories[(number * 7 + round - 1) % DIRECTORIES];
                let name = name(&format!("file{}-{number}", round - 1));
                let file = volume.lookup(parent, &name).unwrap().unwrap().fid;
                write(&volume, file, 0, &pattern(7 + round as u64, 700));
            }
        }
        volume.reclaim_all().unwrap();
        volume.sync().unwrap();
        // The last one is in the journal, too.
        directory.meta.checkpoint().unwrap();
    }
}

fn walk(volume: &Volume) -> BTreeMap<String, Seen> {
    let mut seen = BTreeMap::new();
    let mut left = vec![(volume.root(), String::new())];
    while let Some((fid, path)) = left.pop() {
        let attr = volume.getattr(fid).unwrap();
        let content = match attr.kind {
            FileKind::File => volume.read(fid, 0, attr.size as usize).unwrap(),
            FileKind::Symlink => volume.readlink(fid).unwrap(),
            _ => Bytes::new(),
        };
        let names = volume.list_xattrs(fid).unwrap().into_iter();
        let xattrs = names.map(|name| (name.clone(), volume.get_xattr(fid, &name).unwrap())).collect();
        if attr.kind == FileKind::Directory {
            let entries = volume.read_dir(fid, None, usize::MAX, Listing::Names).unwrap();
            left.extend(entries.into_iter().map(|entry| (entry.fid, format!("{path}/{}", entry.name))));
        }
        let path = if path.is_empty() { "/".to_owned() } else { path };
        let seen_there = Seen { kind: attr.kind, content, xattrs, perm: attr.perm, ino: attr.ino };
        seen.insert(path, seen_there);
    }
    seen
}

fn options(repair: Repair) -> FsckOptions {
    FsckOptions { repair, data: DataCheck::CheckSums, now: Timestamp::new(1_800_000_000, 0), branch: 77 }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn tree_files(path: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(tree_files(&path)),
            false => all.push(path),
        }
    }
    all.sort();
    all
}

/// All problems but the space of holes: a copy has none.
fn wrong(report: &Report) -> String {
    let is_wrong = |problem: &&Problem| !matches!(problem, Problem::LeakedSpace { .. });
    report.problems.iter().filter(is_wrong).map(|problem| format!("{problem}\n")).collect()
}

/// Where the report says that something is lost.
fn named(report: &Report) -> BTreeSet<String> {
    let losses = report.problems.iter().filter(|problem| problem.loss().is_some());
    losses.flat_map(|problem| report.paths(problem)).cloned().collect()
}

/// Whether a path may be missing: it is named, or names of its directory are lost, or that is missing itself.
fn may_be_missing(path: &str, named: &BTreeSet<String>, after: &BTreeMap<String, Seen>) -> bool {
    let parent = match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    };
    let is_parent_gone = || parent != "/" && !after.contains_key(parent);
    named.contains(path)
        || named.contains(parent)
        || (is_parent_gone() && may_be_missing(parent, named, after))
}

#[derive(Default, Debug)]
struct Tally {
    damaged: usize,
    lost_paths: usize,
    changed_paths: usize,
    saved_whole: usize,
}

/// Damages a copy there, has it mended, and compares.
fn survive(sound: &Path, before: &BTreeMap<String, Seen>, places: &[(PathBuf, u64)], tally: &mut Tally) {
    let what = format!("{places:?}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    copy(sound, &path);
    for (file, at) in places {
        let file = path.join(file);
        let mut bytes = fs::read(&file).unwrap();
        bytes[*at as usize] ^= 0xa5;
        fs::write(&file, bytes).unwrap();
    }
    let Some(damaged) = DataDirectory::damaged_metadata(&path).unwrap() else {
        let report = check(&path);
        assert_eq!(wrong(&report), "", "{what}");
        return;
    };
    tally.damaged += 1;
    // Who looks sees the same, and changes nothing.
    let files = tree_files(&path);
    let all = || files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>();
    let unchanged = all();
    let shadow = tempfile::tempdir().unwrap();
    let salvage = damaged.salvage_to_look(shadow.path(), StoreOptions::default()).unwrap();
    let stores = &salvage.directory;
    let looked = fsck_salvaged(
        stores.meta.clone(),
        stores.data.clone(),
        options(Repair::No),
        &salvage.found,
        &mut |_| {},
    )
    .unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(salvage);
    assert!(all() == unchanged && tree_files(&path) == files, "{what}: who looks changes something");

    let damaged = DataDirectory::damaged_metadata(&path).unwrap().unwrap();
    let salvage = damaged.salvage(&StoreOptions::default()).unwrap();
    let stores = &salvage.directory;
    let options = options(Repair::Discarding);
    let report =
        fsck_salvaged(stores.meta.clone(), stores.data.clone(), options, &salvage.found, &mut |_| {})
            .unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.left);
    let is_whole = salvage.found.lost.is_empty();
    salvage.install("now").unwrap();
    let names = named(&report);
    assert!(named(&looked).is_subset(&names), "{what}: {looked:?} {report:?}");
    if is_whole {
        assert_eq!(wrong(&report), "", "{what}");
        tally.saved_whole += 1;
    }

    assert!(DataDirectory::damaged_metadata(&path).unwrap().is_none(), "{what}");
    let again = check(&path);
    assert_eq!(again.problems, [], "{what}");
    let directory = DataDirectory::open(&path, StoreOptions::default()).unwrap();
    let volume = Volume::open(directory.meta.clone(), directory.data, VolumeConfig::default()).unwrap();
    let after = walk(&volume);
    let highest = before.values().map(|seen| seen.ino.0).max().unwrap();
    assert!(create(&volume, "new").ino.0 > highest, "{what}: a number twice");
    for (path, seen) in before {
        match after.get(path) {
            Some(found) if found == seen => {}
            Some(_) => {
                assert!(names.contains(path), "{what}: {path} is another in silence: {names:?}");
                tally.changed_paths += 1;
            }
            None => {
                assert!(may_be_missing(path, &names, &after), "{what}: {path} is lost in silence: {names:?}");
                tally.lost_paths += 1;
            }
        }
    }
    for path in after.keys().filter(|path| !path.starts_with("/lost+found") && !before.contains_key(*path)) {
        assert!(may_be_missing(path, &names, &after), "{what}: {path} was removed before");
    }
}

fn check(path: &Path) -> Report {
    let shadow = tempfile::tempdir().unwrap();
    let directory = DataDirectory::open_to_look(path, shadow.path(), StoreOptions::default()).unwrap();
    fsck(directory.meta.clone(), directory.data.clone(), options(Repair::No), &mut |_| {}).unwrap()
}

fn sound() -> (tempfile::TempDir, BTreeMap<String, Seen>, Vec<(PathBuf, u64)>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    make(&path);
    let stores = DataDirectory::open(&path, StoreOptions::default()).unwrap();
    let volume = Volume::open(stores.meta.clone(), stores.data.clone(), VolumeConfig::default()).unwrap();
    let before = walk(&volume);
    drop((volume, stores));
    let files = tree_files(&path.join("meta/keyspaces")).into_iter();
    let len = |file: &PathBuf| fs::metadata(file).unwrap().len();
    let files = files.map(|file| (file.strip_prefix(&path).unwrap().to_owned(), len(&file))).collect();
    (directory, before, files)
}

#[test]
fn whatever_byte_of_the_metadata_is_wrong_what_is_lost_is_named_and_the_rest_is_there() {
    let (directory, before, files) = sound();
    let (path, mut tally) = (directory.path().join("data"), Tally::default());
    for (number, (file, len)) in files.iter().enumerate() {
        // More of the large ones, never the same place of each.
        let looks = (len / 6000).clamp(2, 12);
        for look in 0..looks {
            let at = (len / looks * look + (number as u64 * 131 + look * 17) % (len / looks)).min(len - 1);
            survive(&path, &before, &[(file.clone(), at)], &mut tally);
        }
    }
    assert!(tally.damaged > 40 && tally.lost_paths > 20, "{tally:?}");
    assert!(tally.changed_paths > 0 && tally.saved_whole > 5, "{tally:?}");
    assert!(tally.lost_paths < tally.damaged * before.len() / 4, "{tally:?} of {}", before.len());
}

#[test]
fn several_damaged_places_of_the_metadata_at_once() {
    let (directory, before, files) = sound();
    let (path, mut tally) = (directory.path().join("data"), Tally::default());
    for round in 0..25u64 {
        let mut places = BTreeMap::new();
        for place in 0..2 + round % 4 {
            let (file, len) = &files[((round * 31 + place * 7) % files.len() as u64) as usize];
            places.insert(file.clone(), (round * 7919 + place * 104_729) % len);
        }
        survive(&path, &before, &places.into_iter().collect::<Vec<_>>(), &mut tally);
    }
    assert!(tally.damaged > 20, "{tally:?}");
}

/// The volume's own records are few, and in one block: nothing that others have seen comes again.
#[test]
fn all_of_the_volumes_own_records_can_be_lost() {
    let (directory, before, _) = sound();
    let path = directory.path().join("data");
    let stores = DataDirectory::open(&path, StoreOptions::default()).unwrap();
    let runs = soda_volume::fsck::runs_begun(&*stores.meta).unwrap();
    let mut batch = soda_storage::Batch::new();
    let mut keys = Vec::new();
    let mut delete = |key: &[u8], _| {
        keys.push(key.to_vec());
        std::ops::ControlFlow::Continue(())
    };
    soda_storage::MetaRead::scan(&*stores.meta, Table::Meta, &[], &[0xff; 17], &mut delete).unwrap();
    keys.into_iter().for_each(|key| batch.delete(Table::Meta, key));
    stores.meta.commit(batch).unwrap();
    let salvaged = soda_storage::Salvaged::default();
    let report = fsck_salvaged(
        stores.meta.clone(),
        stores.data.clone(),
        options(Repair::Discarding),
        &salvaged,
        &mut |_| {},
    );
    assert!(report.unwrap().is_clean());
    assert!(soda_volume::fsck::runs_begun(&*stores.meta).unwrap() > runs);
    let volume = Volume::open(stores.meta.clone(), stores.data, VolumeConfig::default()).unwrap();
    assert_eq!(walk(&volume), before);
    let highest = before.values().map(|seen| seen.ino.0).max().unwrap();
    assert!(create(&volume, "new").ino.0 > highest + (1 << 40));
}
