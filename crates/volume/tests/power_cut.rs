//! A power cut: of what was written after the last sync, any pages of journal and segments may be missing. What was synced
//! is there, the volume opens, and fsck mends the rest.

use crate::common::*;
use soda_storage::{DataDirectory, DataStore, StoreOptions};
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

/// The journal was written out by chance, and nothing of the data was.
fn lose_data(path: &Path, durable: &BTreeMap<PathBuf, u64>) {
    for (file, end) in written(path) {
        if file.extension().is_some_and(|extension| extension == "seg") && end > 0 {
            match durable.get(&file) {
                Some(end) => File::options().write(true).open(&file).unwrap().set_len(*end).unwrap(),
                // Not even its name was durable.
                None => fs::remove_file(&file).unwrap(),
            }
        }
    }
}

fn check_volume(stores: &DataDirectory) -> Vec<Problem> {
    let options =
        FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
    fsck(stores.meta.clone(), stores.data.clone(), options, &mut |_| {}).unwrap().problems
}

#[test]
fn what_is_in_the_journal_is_put_back_into_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { segment_len: 1 << 20, ..StoreOptions::default() };
    let open = || {
        let stores = DataDirectory::open(directory.path(), options.clone()).unwrap();
        let volume = Volume::open(stores.meta.clone(), stores.data.clone(), VolumeConfig::default()).unwrap();
        (stores, volume)
    };
    let (stores, volume) = open();
    let write_as = |volume: &Volume, file, number: u64, redo| {
        let staged = volume.stage(0, pattern(number, 700_000).into(), redo).unwrap();
        assert_eq!(staged.needs_sync(), redo == Redo::No);
        let mut txn = volume.begin(now());
        txn.write(file, WriteAt::Offset(0), staged, KillPriv::Keep).unwrap();
        txn.commit().unwrap();
    };
    let files: Vec<_> = (0..4).map(|number| create(&volume, &format!("f{number}"))).collect();
    volume.sync().unwrap();
    let durable = written(directory.path());
    for (file, number) in files.iter().zip(0..) {
        write_as(&volume, *file, number, if number == 3 { Redo::No } else { Redo::Yes });
    }
    // One of them is not needed any more, nor is its chunk.
    let mut txn = volume.begin(now());
    txn.unlink(volume.root(), &name("f2"), IfOpen::Delete).unwrap();
    txn.commit().unwrap();
    drop((volume, stores));
    lose_data(directory.path(), &durable);

    let intact = |volume: &Volume| {
        for number in 0..2 {
            let data = read(volume, files[number as usize], 0, 1 << 20);
            assert!(data == pattern(number, 700_000), "{number}");
        }
    };
    let lost = |problems: &[Problem]| {
        assert!(!problems.is_empty(), "the one without a record was lost: else the test tests nothing");
        assert!(problems.iter().all(|problem| matches!(problem, Problem::LostData { .. })), "{problems:?}");
    };
    // Who only checks puts nothing back, and knows that it is not lost.
    let stores = DataDirectory::open(directory.path(), options.clone()).unwrap();
    lost(&check_volume(&stores));
    drop(stores);
    // The power goes again before anything is synced.
    for _ in 0..2 {
        let (stores, volume) = open();
        intact(&volume);
        assert!(redo_records(&*stores.meta) > 0);
        drop((volume, stores));
        lose_data(directory.path(), &durable);
    }
    let (stores, volume) = open();
    volume.sync().unwrap();
    assert_eq!(redo_records(&*stores.meta), 0, "the medium has it");
    volume.reclaim_all().unwrap();
    drop((volume, stores));
    let (stores, volume) = open();
    intact(&volume);
    volume.reclaim_all().unwrap();
    lost(&check_volume(&stores));
}

/// What was durable and is only stored anew, for a write beside it.
// SEMANTICS 18
#[test]
fn what_is_gathered_is_not_lost_with_the_write_that_it_is_gathered_for() {
    // Many holes; much that is small, too.
    for (len, step) in [(500, 1000), (1000, 1000)] {
        let directory = tempfile::tempdir().unwrap();
        let (stores, volume) = open(directory.path());
        let file = create(&volume, "f");
        let mut known = vec![0; 128_000];
        let mut durable = BTreeMap::new();
        let mut gathered = false;
        for at in (0..127_000usize).step_by(step) {
            let before = stores.data.segments().unwrap().iter().map(|segment| segment.len).sum::<u64>();
            write(&volume, file, at as u64, &pattern(at as u64, len));
            let after = stores.data.segments().unwrap().iter().map(|segment| segment.len).sum::<u64>();
            if after > before {
                gathered = true;
                break;
            }
            known[at..at + len].copy_from_slice(&pattern(at as u64, len));
            volume.sync().unwrap();
            durable = written(directory.path());
        }
        if !gathered {
            // So many pieces are just not too many.
            write(&volume, file, 127_600, &pattern(0, 100));
            write(&volume, file, 127_800, &pattern(0, 100));
        }
        let size = volume.getattr(file).unwrap().size;
        assert!(size > 60_000, "{size}");
        assert!(
            stores.data.segments().unwrap().iter().any(|segment| segment.len > 0),
            "nothing was gathered"
        );
        drop((volume, stores));
        lose_data(directory.path(), &durable);
        let (_stores, volume) = open(directory.path());
        let end = known.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        assert!(read(&volume, file, 0, end)[..] == known[..end], "{len} bytes in {step}");
    }
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
