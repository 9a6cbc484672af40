//! A power cut: of what was written after the last sync, any pages of journal and segments may be missing. What was synced
//! is there, the volume opens, and fsck mends the rest.

use crate::common::*;
use soda_storage::{DataDirectory, StoreOptions};
use soda_types::{Errno, Timestamp, Version};
use soda_volume::fsck::{DataCheck, FsckOptions, Problem, Repair, fsck};
use soda_volume::*;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SYNCED: u64 = 20;
const UNSYNCED: u64 = 20;
const PAGE: u64 = 4096;

fn len(number: u64) -> usize {
    [500, 9000, 300_000][(number % 3) as usize]
}

fn open(path: &Path) -> (DataDirectory, Volume) {
    let stores = DataDirectory::open(path, StoreOptions::default()).unwrap();
    let volume = Volume::open(stores.meta.clone(), stores.data.clone(), VolumeConfig::default()).unwrap();
    (stores, volume)
}

/// The files that are written to, and how far.
fn written(path: &Path) -> BTreeMap<PathBuf, u64> {
    let list =
        |directory: &str| fs::read_dir(path.join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let files = list("meta").chain(list("data"));
    let logs = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "jnl" || extension == "seg"));
    logs.map(|file| {
        let content = fs::read(&file).unwrap();
        let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        (file, end)
    })
    .collect()
}

/// Each page after `from` stays or is lost, as `random` will have it. The page of `from` itself was written in parts: what was
/// synced of it stays.
fn lose(file: &Path, from: u64, to: u64, random: &mut u64) {
    let file = File::options().write(true).open(file).unwrap();
    let mut at = from;
    while at < to {
        let end = to.min((at / PAGE + 1) * PAGE);
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (*random >> 33).is_multiple_of(3) {
            file.write_all_at(&vec![0; (end - at) as usize], at).unwrap();
        }
        at = end;
    }
}

// SEMANTICS 18
#[test]
fn what_was_synced_survives_a_power_cut() {
    let mut torn = 0;
    for seed in 1..=12u64 {
        let directory = tempfile::tempdir().unwrap();
        let (stores, volume) = open(directory.path());
        for number in 0..SYNCED {
            let file = create(&volume, &format!("synced-{number}"));
            write(&volume, file, 0, &pattern(number, len(number)));
        }
        volume.sync().unwrap();
        let durable = written(directory.path());
        for number in 0..UNSYNCED {
            let file = create(&volume, &format!("unsynced-{number}"));
            write(&volume, file, 0, &pattern(number, len(number)));
            let mut txn = volume.begin(now());
            txn.unlink(volume.root(), &name(&format!("unsynced-{}", number / 2)), IfOpen::Delete)
                .map(drop)
                .unwrap_or_else(|error| assert_eq!(error.errno, Errno::NoEntry));
            txn.commit().unwrap();
        }
        let all = written(directory.path());
        drop((volume, stores));
        let mut random = seed;
        for (file, end) in &all {
            lose(file, durable.get(file).copied().unwrap_or(0), *end, &mut random);
        }
        let (stores, volume) = open(directory.path());
        for number in 0..SYNCED {
            let node = volume
                .lookup(volume.root(), &name(&format!("synced-{number}")))
                .unwrap()
                .expect("it was synced");
            assert!(
                read(&volume, node.fid, 0, 1 << 20) == pattern(number, len(number)),
                "seed {seed}: {number}"
            );
        }
        // What was not synced is whole, or reading it is an error: never other bytes.
        for number in 0..UNSYNCED {
            if let Some(node) = volume.lookup(volume.root(), &name(&format!("unsynced-{number}"))).unwrap() {
                match volume.read(node.fid, 0, 1 << 20) {
                    Ok(data) => {
                        assert!(data == pattern(number, len(number)) || node.attr.size == 0)
                    }
                    Err(error) => assert_eq!(error.errno, Errno::Io),
                }
            }
        }
        drop(volume);
        let run = |repair| {
            let options =
                FsckOptions { repair, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
            fsck(stores.meta.clone(), stores.data.clone(), options, &mut |_| {}).unwrap()
        };
        let found = run(Repair::No);
        assert!(
            found.problems.iter().all(|problem| matches!(problem, Problem::LostData { .. })),
            "{:?}",
            found.problems
        );
        torn += found.problems.len();
        assert!(run(Repair::Discarding).is_clean());
        assert_eq!(run(Repair::No).problems, vec![]);
    }
    assert!(torn > 0, "no power cut tore anything: the test tests nothing");
}

/// What a client caches goes by its version: one that was seen must not come again with other content, although the change it
/// came with was lost.
#[test]
fn a_version_that_a_power_cut_took_back_is_not_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let (stores, volume) = open(directory.path());
    let file = create(&volume, "f");
    volume.sync().unwrap();
    drop((volume, stores));
    let mut seen: BTreeMap<Version, Vec<u8>> = BTreeMap::new();
    for run in 0..5u8 {
        let (stores, volume) = open(directory.path());
        let kept = read(&volume, file, 0, 1);
        let attr = volume.getattr(file).unwrap();
        assert!(run == 0 || seen.get(&attr.data_version).is_none_or(|content| *content == kept), "run {run}");
        let durable = written(directory.path());
        for change in 0..3 {
            let content = vec![10 * run + change];
            let attr = write(&volume, file, 0, &content).attr;
            let before = seen.insert(attr.data_version, content);
            assert_eq!(
                before, None,
                "run {run}: {:?} was given before, for something else",
                attr.data_version
            );
        }
        let all = written(directory.path());
        drop((volume, stores));
        for (path, end) in all {
            let from = durable.get(&path).copied().unwrap_or(0);
            let content = File::options().write(true).open(&path).unwrap();
            content.write_all_at(&vec![0; (end - from) as usize], from).unwrap();
        }
    }
    assert_eq!(seen.len(), 15);
}
