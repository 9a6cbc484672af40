//! A volume on a medium that gets full. The medium is a small tmpfs in a mount namespace of its own; who is not root may be
//! denied that, then the test is skipped.
//!
//! A program of its own: a process that is being started has all descriptors of this one for a moment, and the tests that open a
//! directory again would find it in use.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use soda_storage::{DataDirectory, MetaStore, StoreOptions};
use soda_system_tests::cell::skip;
use soda_types::{Errno, FsResult, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, fsck};
use soda_volume::*;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

#[test]
fn a_full_disk_is_refused_in_time_and_recovers() {
    let mount_point = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=300m none \"$SODA_FULL_DISK\" || exit 77; \
                  exec \"$0\" --exact child --ignored --nocapture";
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    // Root needs no user namespace, which may be forbidden to everybody.
    let namespaces: &[&str] = if root { &["--mount"] } else { &["--map-root-user", "--mount"] };
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("SODA_FULL_DISK", mount_point.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) if output.status.code() == Some(101) => {
            panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        }
        other => {
            assert!(!root, "no full disk to be had: {other:?}");
            skip(&format!("no mount namespace to be had: {other:?}"));
        }
    }
}

fn open(path: &Path) -> (DataDirectory, Volume) {
    let stores = DataDirectory::open(path, StoreOptions::default()).unwrap();
    let volume = Volume::open(stores.meta.clone(), stores.data.clone(), VolumeConfig::default()).unwrap();
    (stores, volume)
}

fn try_create(volume: &Volume, text: &str, len: usize) -> FsResult<()> {
    let mut txn = volume.begin(now());
    let node = txn.create(volume.root(), &name(text), new_file(0o644))?;
    txn.commit()?;
    let staged = volume.stage_write(node.fid, pattern(0, len).into())?;
    let mut txn = volume.begin(now());
    txn.write(node.fid, WriteAt::End, staged, KillPriv::Keep)?;
    txn.commit()
}

/// Creates files until there is no space for one more; returns how many there are.
fn fill(volume: &Volume, prefix: &str, len: usize) -> usize {
    for number in 0..1_000_000 {
        if let Err(error) = try_create(volume, &format!("{prefix}{number}"), len) {
            assert_eq!(error.errno, Errno::NoSpace, "{error}");
            return number;
        }
    }
    panic!("it never gets full");
}

fn empty(volume: &Volume, prefix: &str, count: usize) {
    for number in 0..count {
        let mut txn = volume.begin(now());
        // The last one may not be there: its creation was refused, or only its data.
        match txn.unlink(volume.root(), &name(&format!("{prefix}{number}")), IfOpen::Delete) {
            Ok(_) => txn.commit().unwrap(),
            Err(error) => assert!(error.errno == Errno::NoEntry && number + 1 == count, "{number}: {error}"),
        }
    }
    volume.reclaim_all().unwrap();
}

/// Another program takes the last byte, the reserve included: the store must not begin what it cannot end.
fn filled_by_others(stores: &DataDirectory, volume: &Volume, foreign: &Path) {
    let before = 50;
    for number in 0..before {
        try_create(volume, &format!("before{number}"), 3000).unwrap();
    }
    let mut file = File::create(foreign).unwrap();
    for len in [1 << 20, 1] {
        while file.write_all(&vec![1; len]).is_ok() {}
    }
    for number in 0..3000 {
        let error = try_create(volume, &format!("refused{number}"), 3000).unwrap_err();
        assert_eq!(error.errno, Errno::NoSpace, "{number}: {error}");
        let mut txn = volume.begin(now());
        txn.unlink(volume.root(), &name("before0"), IfOpen::Delete).unwrap();
        assert_eq!(txn.commit().unwrap_err().errno, Errno::NoSpace);
    }
    stores.meta.tidy().unwrap();
    drop(file);
    std::fs::remove_file(foreign).unwrap();
    empty(volume, "before", before);
    try_create(volume, "after0", 3000).unwrap();
    empty(volume, "after", 1);
}

#[test]
#[ignore = "run by the test above, on a small medium"]
fn child() {
    let Some(path) = std::env::var_os("SODA_FULL_DISK") else { return };
    let path = Path::new(&path).join("data");
    let (stores, volume) = open(&path);
    let (mut counts, mut smalls) = (Vec::new(), Vec::new());
    for round in 0..3 {
        // Data leaves some space to names; names come to an end as well.
        let large = fill(&volume, "large", 1 << 20);
        let small = fill(&volume, "small", 3000);
        eprintln!("round {round}: {large} large files, {small} small ones");
        assert!(large >= 40, "round {round}: only {large} large files");
        assert!(volume.statfs().unwrap().free_bytes < 2 << 20);
        for number in 0..large {
            let file = volume.lookup(volume.root(), &name(&format!("large{number}"))).unwrap().unwrap().fid;
            assert!(read(&volume, file, 0, 1 << 20) == pattern(0, 1 << 20));
        }
        volume.sync().unwrap();
        empty(&volume, "large", large + 1);
        empty(&volume, "small", small + 1);
        counts.push(large);
    }
    // Only names and what is beside them, in the engine.
    for round in 0..3 {
        let small = fill(&volume, "small", 3000);
        eprintln!("round {round}: {small} small files only");
        empty(&volume, "small", small + 1);
        smalls.push(small);
    }
    for counts in [counts, smalls] {
        // On so small a medium the engine's journals and merges are a large part, and not the same each time.
        assert!(counts[2] * 4 > counts[0], "space is lost from round to round: {counts:?}");
    }
    filled_by_others(&stores, &volume, &path.with_file_name("foreign"));
    drop((volume, stores));
    let (stores, volume) = open(&path);
    assert!(volume.read_dir(volume.root(), None, 10, Listing::Names).unwrap().is_empty());
    drop(volume);
    let options =
        FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
    let report = fsck(stores.meta.clone(), stores.data.clone(), options, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
