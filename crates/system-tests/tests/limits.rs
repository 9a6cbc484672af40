//! Many and much, on two machines: a long directory, a long file. The sizes here fit CI; docs/TESTING.md has the commands for
//! more, and what they took.
//!
//! A program of its own: gigabytes on their way to the disk delay whatever waits for it.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Resource, getrlimit, setrlimit};
use soda_system_tests::cell::{Cell, LONG_TERM, Mount, PATIENCE, Setting, prerequisites, skip};
use soda_system_tests::wait;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a daemon may take beside what grows with the directory, bytes.
const DAEMON_BYTES: u64 = 256 << 20;
/// What each name of a listed directory may take in the daemon, bytes.
const NAME_BYTES: u64 = 1500;

/// What each inode that the kernel knows may take in a daemon, with its name and what is cached of it, bytes.
const INODE_BYTES: u64 = 2000;
/// What a daemon may take more than the first time when the kernel asks for everything once more: a part of it, and bytes.
const MORE: (f64, u64) = (0.1, 8 << 20);

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
    mount.questions() + mount.counter("recalls")
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
/// Under deep read leases: a message for a thousand files, none the next time, and a handful of leases at the server.
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
    assert!(costs[0].0 <= 20 + dirs * IN_ONE / 1000, "{costs:?}");
    assert_eq!(costs[1].0, 0, "{costs:?}");
}

/// As many descriptors as `wanted`. Says so where this process may not have them.
fn may_open(wanted: u64) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    let more = |limit: Option<u64>| limit.map(|limit| limit.max(wanted));
    (limit.current, limit.maximum) = (more(limit.current), more(limit.maximum));
    let raised = setrlimit(Resource::Nofile, limit).is_ok();
    if !raised {
        skip("a process may not have so many open files");
    }
    raised
}

// SEMANTICS 57
#[test]
fn ten_thousand_files_are_open_on_two_machines_and_change_hands() {
    /// Every so many are open on the other machine, too.
    const SHARED: u64 = 10;
    if !prerequisites() {
        return;
    }
    let _alone = DISK.lock().unwrap_or_else(PoisonError::into_inner);
    let count = size("SODA_OPEN_FILES", 10_000);
    if !may_open(2 * count) {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let start = Instant::now();
    let roots = cell.roots();
    let name = |root: &Path, number: u64| root.join((number % 2).to_string()).join(number.to_string());
    // Each machine makes every second one, in a directory of its own, and keeps it open.
    let files: Vec<(u64, File)> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..2)
            .map(|machine| {
                let root = &roots[machine as usize];
                scope.spawn(move || {
                    fs::create_dir(root.join(machine.to_string())).unwrap();
                    let make = |number| {
                        let path = name(root, number);
                        let file =
                            File::options().read(true).write(true).create_new(true).open(path).unwrap();
                        file.write_all_at(&number.to_le_bytes(), 0).unwrap();
                        (number, file)
                    };
                    (machine..count).step_by(2).map(make).collect::<Vec<_>>()
                })
            })
            .collect();
        makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect()
    });
    let made = start.elapsed();
    let other = |number: u64| &roots[1 - (number % 2) as usize];
    let shared: Vec<(u64, File)> = (0..count)
        .filter(|number| number / 2 % SHARED == 0)
        .map(|number| (number, File::open(name(other(number), number)).unwrap()))
        .collect();
    let open =
        |cell: &Cell| -> u64 { cell.mounts.iter().map(|mount| mount.counter("kernel_open_files")).sum() };
    assert_eq!(open(&cell), count + shared.len() as u64);

    cell.mounts[0].take_over();
    let content = |file: &File| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        u64::from_le_bytes(bytes)
    };
    for (number, file) in files.iter().chain(&shared) {
        assert_eq!(content(file), *number);
    }
    for (number, file) in files.iter().filter(|(number, _)| number / 2 % 500 == 0) {
        File::options()
            .write(true)
            .open(name(other(*number), *number))
            .unwrap()
            .write_all_at(&(number + count).to_le_bytes(), 0)
            .unwrap();
        assert_eq!(content(file), number + count);
    }
    let used = start.elapsed();
    drop((files, shared));
    // RELEASE is told when the kernel comes to it.
    wait::in_time(PATIENCE, "files are still open", || open(&cell) == 0);
    eprintln!(
        "{count} files made and kept open in {made:?}, used until {used:?}, closed at {:?}",
        start.elapsed()
    );
}

// SEMANTICS 1, 10
#[test]
fn inodes_that_the_kernel_forgets_under_pressure_are_forgotten_and_come_back_as_they_are() {
    const PRESSURE: &str = "/proc/sys/vm/drop_caches";
    const LEFT: u64 = 1000;
    /// How often the kernel knows them all, and forgets them.
    const ROUNDS: usize = 3;
    if !prerequisites() {
        return;
    }
    let _alone = DISK.lock().unwrap_or_else(PoisonError::into_inner);
    // Dentries and inodes that nobody uses, of the whole machine.
    let press = || fs::write(PRESSURE, "2");
    if press().is_err() {
        return skip("the kernel's caches are not ours to drop");
    }
    let entries = size("SODA_PRESSED", 10_000);
    let cell = Cell::unhurried(2);
    let (here, there) = (cell.root(0).join("directory"), cell.root(1).join("directory"));
    fs::create_dir(&here).unwrap();
    let fresh: Vec<u64> = cell.mounts.iter().map(|mount| resident(mount.process())).collect();
    for number in 0..entries {
        rustix::fs::mknodat(CWD, here.join(number.to_string()), FileType::RegularFile, Mode::RUSR, 0)
            .unwrap();
    }
    let look = |dir: &Path| -> Vec<u64> {
        let mut inodes = vec![0; entries as usize];
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let number: usize = entry.file_name().to_str().unwrap().parse().unwrap();
            inodes[number] = entry.metadata().unwrap().ino();
        }
        inodes
    };
    let before = [&here, &there].map(|dir| look(dir));
    assert!(before[0] == before[1] && !before[0].contains(&0), "other inodes on the other machine");
    // What is used stays known: a file without a name, and a directory that somebody is in.
    let nameless =
        File::options().read(true).write(true).create_new(true).open(there.join("nameless")).unwrap();
    nameless.write_all_at(b"still there", 0).unwrap();
    fs::remove_file(there.join("nameless")).unwrap();
    let inside = File::open(&there).unwrap();

    let known = |mount: &Mount| mount.counter("kernel_inodes");
    let memory = || -> Vec<u64> { cell.mounts.iter().map(|mount| resident(mount.process())).collect() };
    let had: Vec<u64> = cell.mounts.iter().map(known).collect();
    assert!(had.iter().all(|known| *known > entries), "{had:?} inodes known of {entries}");
    let mut full = vec![memory()];
    let mut forgotten = Vec::new();
    let start = Instant::now();
    for again in 0..ROUNDS {
        if again > 0 {
            assert!([&here, &there].iter().all(|dir| look(dir) == before[0]), "other inodes than before");
            full.push(memory());
        }
        for mount in &cell.mounts {
            wait::in_time(PATIENCE * 3, "inodes are not forgotten", || {
                press().unwrap();
                known(mount) < LEFT
            });
        }
        forgotten.push(memory());
    }
    eprintln!(
        "{had:?} inodes known, then {:?}; daemons took {fresh:?} bytes, with all known {full:?}, when they were forgotten \
         {forgotten:?}; {ROUNDS} times in {:?}",
        cell.mounts.iter().map(known).collect::<Vec<_>>(),
        start.elapsed()
    );
    for (number, fresh) in fresh.into_iter().enumerate() {
        let first = full[0][number];
        let each = first.saturating_sub(fresh) / entries;
        eprintln!("daemon {number}: {each} bytes for each inode");
        // A small part of what a daemon takes is there for any number.
        assert!(first < fresh + (16 << 20) + entries * INODE_BYTES, "{each} bytes for each inode");
        let most = first + (first as f64 * MORE.0) as u64 + MORE.1;
        let worst = full.iter().chain(&forgotten).map(|bytes| bytes[number]).max().unwrap();
        assert!(worst <= most, "daemon {number} took {worst} bytes, the first time {first}");
    }

    let mut bytes = [0; 11];
    nameless.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"still there");
    rustix::fs::statat(&inside, "7", rustix::fs::AtFlags::empty()).unwrap();
    fs::set_permissions(here.join("7"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(there.join("7")).unwrap().permissions().mode() & 0o777, 0o640);
    assert!([&here, &there].iter().all(|dir| look(dir) == before[0]), "other inodes than before");
}
