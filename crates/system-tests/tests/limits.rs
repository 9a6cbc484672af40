//! Many and much, on two machines: a long directory, a long file. The sizes here fit CI; docs/TESTING.md has the commands for
//! more, and what they took.
//!
//! A program of its own: gigabytes on their way to the disk delay whatever waits for it.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use rustix::fs::{CWD, FileType, Mode};
use soda_system_tests::cell::{Cell, LONG_TERM, Mount, PATIENCE, Setting, prerequisites};
use soda_system_tests::wait;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a daemon may take beside what grows with the directory, bytes.
const DAEMON_BYTES: u64 = 256 << 20;
/// What each name of a listed directory may take in the daemon, bytes.
const NAME_BYTES: u64 = 1500;

/// Each of these fills the disk's queue, and the other would measure that.
static DISK: Mutex<()> = Mutex::new(());

/// A number from the environment, for longer runs.
fn size(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

/// What a process has in memory, bytes.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Lists the directory: how often each of the names `0..entries` is there.
fn list(dir: &Path, entries: u64) -> Vec<u8> {
    let mut seen = vec![0; entries as usize];
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name();
        let number: usize = name.to_str().unwrap().parse().expect("only names that were made");
        seen[number] += 1;
    }
    seen
}

// SEMANTICS 11
#[test]
fn a_long_directory_is_listed_whole_with_each_name_once() {
    const THREADS: u64 = 4;
    if !prerequisites() {
        return;
    }
    let _alone = DISK.lock().unwrap_or_else(PoisonError::into_inner);
    let entries = size("SODA_ENTRIES", 40_000);
    let cell = Cell::unhurried(2);
    let (here, there) = (cell.root(0).join("directory"), cell.root(1).join("directory"));
    fs::create_dir(&here).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let here = &here;
            scope.spawn(move || {
                for number in (thread..entries).step_by(THREADS as usize) {
                    let name = here.join(number.to_string());
                    rustix::fs::mknodat(CWD, &name, FileType::RegularFile, Mode::RUSR, 0).unwrap();
                }
            });
        }
    });
    let created = start.elapsed();
    for (which, dir) in [("there", &there), ("there again", &there), ("here", &here)] {
        let start = Instant::now();
        let seen = list(dir, entries);
        let wrong = seen.iter().filter(|times| **times != 1).count();
        assert_eq!(wrong, 0, "{which}: names that are missing or listed twice");
        eprintln!("{entries} entries listed {which} in {:?}", start.elapsed());
    }
    let memory: Vec<u64> = cell.mounts.iter().map(|mount| resident(mount.process())).collect();
    eprintln!("{entries} entries created in {created:?}; daemons take {memory:?} bytes");
    for bytes in memory {
        assert!(bytes < DAEMON_BYTES + entries * NAME_BYTES, "{bytes} bytes for {entries} names");
    }
    // One name more and one less, seen by a listing of a million as by one of three.
    fs::remove_file(there.join("0")).unwrap();
    fs::rename(there.join("1"), there.join("0")).unwrap();
    let seen = list(&here, entries);
    assert_eq!(
        (seen[0], seen[1], seen.iter().map(|times| u64::from(*times)).sum::<u64>()),
        (1, 0, entries - 1)
    );
}

/// Each eight bytes of the file say where they are.
fn block_at(offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|word| (offset + word * 8).to_le_bytes()).collect()
}

// SEMANTICS 1, 14
#[test]
fn a_file_of_more_than_four_gibibytes_is_what_was_written() {
    const BLOCK: usize = 1 << 20;
    const EDGE: u64 = 4 << 30;
    if !prerequisites() {
        return;
    }
    let _alone = DISK.lock().unwrap_or_else(PoisonError::into_inner);
    // Real data: nothing is sparse.
    let blocks = size("SODA_LARGE_MIB", (4 << 10) + 32);
    let len = blocks * BLOCK as u64;
    let cell = Cell::unhurried(2);
    let (here, there) = (cell.root(0).join("large"), cell.root(1).join("large"));
    let writer = File::create_new(&here).unwrap();
    let start = Instant::now();
    for number in 0..blocks {
        let offset = number * BLOCK as u64;
        writer.write_all_at(&block_at(offset, BLOCK), offset).unwrap();
    }
    let written = start.elapsed();
    let reader = File::open(&there).unwrap();
    let metadata = reader.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks() * 512 >= len), (len, true));
    let start = Instant::now();
    let mut read = vec![0; BLOCK];
    // All of it beyond what 32 bits can count, and blocks before that.
    let step = size("SODA_LARGE_STEP", 8) as usize;
    let edge = EDGE / BLOCK as u64 - 1;
    for number in (0..blocks.min(edge)).step_by(step).chain(edge..blocks) {
        let offset = number * BLOCK as u64;
        reader.read_exact_at(&mut read, offset).unwrap();
        assert!(read == block_at(offset, BLOCK), "other data at {offset}");
    }
    eprintln!("{len} bytes written in {written:?}, read on the other machine in {:?}", start.elapsed());
    // Changed across the edge of what 32 bits can count, seen through the descriptor that was open before.
    for edge in [EDGE, len].into_iter().filter(|edge| *edge <= len) {
        File::options().write(true).open(&there).unwrap().write_all_at(b"across", edge - 3).unwrap();
        let mut seen = [0; 6];
        reader.read_exact_at(&mut seen, edge - 3).unwrap();
        assert_eq!(&seen, b"across", "at {edge}");
    }
    assert_eq!(fs::metadata(&here).unwrap().len(), len + 3);
}

/// What a mount has asked for that a scan may need, and what was asked of it.
fn messages(mount: &Mount) -> u64 {
    let kinds = ["lookup", "getattr", "readdir", "getxattrs", "getxattr", "stat", "lookupstat", "opened"];
    kinds.iter().map(|kind| mount.counter(&format!("msg_{kind}"))).sum::<u64>() + mount.counter("recalls")
}

fn scan(top: &Path) -> usize {
    let mut seen = 0;
    for dir in fs::read_dir(top).unwrap() {
        for entry in fs::read_dir(dir.unwrap().path()).unwrap() {
            assert!(entry.unwrap().metadata().unwrap().is_file());
            seen += 1;
        }
    }
    seen
}

// SEMANTICS 1
/// Under deep read leases: a message or two for each directory, none the next time, and a handful of leases at the server.
#[test]
fn a_scan_of_many_files_costs_little_and_the_next_one_nothing() {
    const IN_ONE: u64 = 50;
    if !prerequisites() {
        return;
    }
    let _alone = DISK.lock().unwrap_or_else(PoisonError::into_inner);
    let dirs = size("SODA_FILES", 20_000) / IN_ONE;
    let server_options = ["--deep-leases", "on"];
    let setting = Setting { term: LONG_TERM, server_options: &server_options, ..Setting::default() };
    let mut cell = Cell::assemble(2, &setting);
    let (here, there) = (cell.root(0).join("top"), cell.root(1).join("top"));
    let start = Instant::now();
    for dir in 0..dirs {
        let dir = here.join(dir.to_string());
        fs::create_dir_all(&dir).unwrap();
        for file in 0..IN_ONE {
            rustix::fs::mknodat(CWD, dir.join(file.to_string()), FileType::RegularFile, Mode::RUSR, 0)
                .unwrap();
        }
    }
    eprintln!("{} files made in {:?}", dirs * IN_ONE, start.elapsed());
    cell.mounts[0].unmount();
    let mut costs = Vec::new();
    for _ in 0..2 {
        let (before, start) = (messages(&cell.mounts[1]), Instant::now());
        assert_eq!(scan(&there) as u64, dirs * IN_ONE);
        costs.push((messages(&cell.mounts[1]) - before, start.elapsed()));
    }
    let mut status = cell.soda_at(0);
    status.args(["status", "--server", &cell.server.address(), "--json"]);
    let said = wait::run(&mut status, PATIENCE).expect_success("soda status");
    let status: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let servers = status["servers"].as_array().unwrap();
    let ours = servers.iter().find(|server| server["listen"] == cell.server.address().as_str()).unwrap();
    let leases = ours["leases"].as_u64().unwrap();
    eprintln!("messages and time of each scan: {costs:?}; {leases} leases at the server");
    assert!(leases <= 60, "{leases} leases at the server");
    assert!(costs[0].0 <= 3 * dirs + 50, "{costs:?}");
    assert_eq!(costs[1].0, 0, "{costs:?}");
}
