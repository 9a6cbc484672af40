//! The process dies at every crash point; what it had acknowledged is there, what it had begun is there wholly or not at
//! all, and fsck finds nothing.
//!
//! A program of its own: a process that is being started has all descriptors of this one for a moment, and the tests that open a
//! directory again would find it in use.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use soda_storage::{DataDirectory, DataStore, StoreOptions, crash};
use soda_types::Timestamp;
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, Report, fsck};
use soda_volume::*;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

const STEPS: u64 = 40;

/// Names of this crate and the one below; those above have tests of their own.
fn points() -> impl Iterator<Item = &'static str> {
    let ours = ["format.", "meta.", "segment.", "volume."];
    crash::ALL.iter().copied().filter(move |point| ours.iter().any(|prefix| point.starts_with(prefix)))
}

// SEMANTICS 17
#[test]
fn every_crash_point_leaves_a_whole_volume() {
    for point in points() {
        for nth in [1, 4] {
            let directory = tempfile::tempdir().unwrap();
            // Something to recover, and to sweep.
            if point == "volume.swept" {
                run(directory.path(), "volume.staged");
            }
            // What was not synced, but for that in the journal, too.
            if point == "volume.redone" {
                run(directory.path(), "volume.staged:2");
            }
            let (done, aborted) = run(directory.path(), &format!("{point}:{nth}"));
            assert!(aborted || nth > 1, "{point} was never passed");
            check(directory.path(), done, &format!("{point}:{nth}"));
        }
    }
}

/// Runs the child until it dies or is done. Returns the last step it acknowledged, and whether it died.
fn run(directory: &Path, point: &str) -> (u64, bool) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("SODA_CRASH_POINT", point)
        .env("SODA_CRASH_DIRECTORY", directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut done = 0;
    for line in output.lines().map_while(Result::ok) {
        if let Some(step) = line.strip_prefix("done ") {
            done = step.parse().unwrap();
        }
    }
    let status = child.wait().unwrap();
    assert!(status.success() || status.signal() == Some(6), "the child failed otherwise: {status}");
    (done, !status.success())
}

#[test]
#[ignore = "run by the test above, in a process that is going to die"]
fn child() {
    let Some(path) = std::env::var_os("SODA_CRASH_DIRECTORY") else { return };
    let (_stores, volume) = open(Path::new(&path));
    let root = volume.root();
    for step in 1..=STEPS {
        let clock = Timestamp::new(step as i64, 0);
        if volume.lookup(root, &name(&step.to_string())).unwrap().is_some() {
            // Done by the run before.
            continue;
        }
        let new = name(&format!("new-{step}"));
        let file = match volume.lookup(root, &new).unwrap() {
            Some(node) => node.fid,
            None => create(&volume, &new.to_string()),
        };
        let data = pattern(step, len(step)).into();
        let redo = if step % 2 == 1 { Redo::Yes } else { Redo::No };
        let staged = volume.stage(0, data, redo).unwrap();
        let mut txn = volume.begin(clock);
        txn.write(file, WriteAt::Offset(0), staged, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
        let mut txn = volume.begin(clock);
        txn.rename(root, &new, root, &name(&step.to_string()), Replace::Allowed, IfOpen::Delete).unwrap();
        if let Some(victim) = victim(step) {
            txn.unlink(root, &name(&victim.to_string()), IfOpen::Delete).unwrap();
        }
        txn.commit().unwrap();
        if step % 3 == 0 {
            volume.sync().unwrap();
        }
        println!("done {step}");
        if step % 5 == 0 {
            for _ in 0..4 {
                volume.reclaim_some(3).unwrap();
            }
        }
    }
    volume.reclaim_all().unwrap();
}

fn len(step: u64) -> usize {
    [10, 5000, 100_000, 1_800_000][(step % 4) as usize]
}

/// The file that goes in a step.
fn victim(step: u64) -> Option<u64> {
    step.is_multiple_of(2).then_some(step / 2)
}

fn open(path: &Path) -> (DataDirectory, Volume) {
    let options = StoreOptions { segment_len: 2 << 20, ..StoreOptions::default() };
    let stores = DataDirectory::open(path, options).unwrap();
    let volume = Volume::open(stores.meta.clone(), stores.data.clone(), VolumeConfig::default()).unwrap();
    (stores, volume)
}

fn check(path: &Path, done: u64, point: &str) {
    let report = check_volume(path);
    assert!(report.problems.is_empty(), "after {point}: {:#?}", report.problems);
    let (stores, volume) = open(path);
    for step in 1..=STEPS {
        let found = volume.lookup(volume.root(), &name(&step.to_string())).unwrap();
        let gone = |until: u64| (1..=until).any(|later| victim(later) == Some(step));
        if step <= done && !gone(done + 1) {
            let node = found.unwrap_or_else(|| panic!("{point}: step {step} of {done} is lost"));
            assert!(
                read(&volume, node.fid, 0, 1 << 21) == pattern(step, len(step)),
                "{point}: data of {step}"
            );
        } else if gone(done) || step > done + 1 {
            assert!(found.is_none(), "{point}: {step} is there after {done}");
        }
    }
    // The server goes on: what was left is finished, and nothing is stored for nothing.
    let file = create(&volume, "after");
    write(&volume, file, 0, &pattern(3, 200_000));
    volume.reclaim_all().unwrap();
    let allocated = volume.usage().1;
    let stored: u64 = stores.data.segments().unwrap().iter().map(|segment| segment.stored).sum();
    assert!(stored <= allocated + 100 * 4096, "{point}: {stored} bytes stored for {allocated}");
    drop((volume, stores));
    let report = check_volume(path);
    assert_eq!((report.problems, report.unswept), (vec![], 0), "after {point} and going on");
}

fn check_volume(path: &Path) -> Report {
    let stores = DataDirectory::open(path, StoreOptions::default()).unwrap();
    let options =
        FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
    fsck(stores.meta.clone(), stores.data.clone(), options, &mut |_| {}).unwrap()
}
