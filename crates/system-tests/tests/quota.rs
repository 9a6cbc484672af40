//! A volume with a quota, and mounts that delay their writes: whoever is told that something is done has room for it, and a full
//! volume shows when a program writes, not later.

use rustix::io::Errno;
use soda_system_tests::cell::{Cell, LONG_TERM, PATIENCE, Setting, prerequisites};
use soda_system_tests::wait;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

const QUOTA_MIB: u64 = 48;

/// Free bytes and free inodes, as df(1) shows them.
fn free(path: &Path) -> (u64, u64) {
    let stats = rustix::fs::statvfs(path).unwrap();
    (stats.f_bavail * stats.f_frsize, stats.f_ffree)
}

fn cell(mount_options: &str) -> Cell {
    let quota = format!("{QUOTA_MIB}MiB");
    let server_options = ["--quota", &quota, "--deep-leases", "on"];
    let mount_options = ["-o", mount_options];
    Cell::assemble(
        2,
        &Setting {
            term: LONG_TERM,
            mount_options: &mount_options,
            server_options: &server_options,
            ..Setting::default()
        },
    )
}

fn is_full(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

// SEMANTICS 16
#[test]
fn df_shows_what_was_written_before_the_server_hears_of_it() {
    if !prerequisites() {
        return;
    }
    let cell = cell("write=behind,dirty-age=1h");
    let dir = cell.root(0).join("dir");
    fs::create_dir(&dir).unwrap();
    wait::in_time(PATIENCE, "nothing is delayed", || {
        fs::write(dir.join("warm"), "up").unwrap();
        cell.mounts[0].counter("backlog_records") > 0
    });
    let before = free(&dir);
    let digests = cell.mounts[0].counter("digests");
    for number in 0..100 {
        fs::write(dir.join(number.to_string()), vec![7; 5000]).unwrap();
    }
    let after = free(&dir);
    assert_eq!(cell.mounts[0].counter("digests"), digests, "it was told");
    assert!(
        after.0 + 100 * 5000 <= before.0 && after.1 + 100 <= before.1,
        "{after:?} are free, {before:?} before"
    );
    wait::run(cell.soda_at(0).arg("sync").arg(&dir), PATIENCE).expect_success("soda sync");
    let told = free(&dir);
    assert!(told.0.abs_diff(after.0) < 1 << 20, "{told:?} are free, {after:?} were said to be");
}

// SEMANTICS 16
#[test]
fn a_quota_ends_writes_at_once_and_takes_nothing_that_was_acknowledged() {
    if !prerequisites() {
        return;
    }
    let cell = cell("write=behind");
    // What each has been told is written: the file's number, and how much of it.
    let fill = |machine: usize| {
        let dir = cell.root(machine).join(format!("of {machine}"));
        fs::create_dir(&dir).unwrap();
        let (mut written, mut refused) = (Vec::new(), 0);
        for number in 0_u64.. {
            let len = [300, 5000, 70_000, 300_000][number as usize % 4];
            let file = match File::create_new(dir.join(number.to_string())) {
                Ok(file) => file,
                Err(error) if is_full(&error) => {
                    refused += 1;
                    if refused > 20 { break } else { continue }
                }
                Err(error) => panic!("{number}: {error}"),
            };
            match file.write_all_at(&vec![number as u8 | 1; len], 0) {
                Ok(()) => written.push((number, len)),
                Err(error) if is_full(&error) => refused += 1,
                Err(error) => panic!("{number}: {error}"),
            }
            // What was acknowledged has its room: that is what a later fsync must not deny.
            if number % 40 == 39 {
                file.sync_all().unwrap();
            }
            if refused > 20 {
                break;
            }
        }
        written
    };
    let written: Vec<_> = std::thread::scope(|scope| {
        let fill = &fill;
        let fillers = [0, 1].map(|machine| scope.spawn(move || fill(machine)));
        fillers.map(|filler| filler.join().unwrap()).into()
    });
    let total: usize = written.iter().flatten().map(|(_, len)| len).sum();
    eprintln!("{total} bytes in {:?} files", written.iter().map(Vec::len).collect::<Vec<_>>());
    assert!(total as u64 > (QUOTA_MIB << 20) / 3 && total as u64 <= QUOTA_MIB << 20, "{total} bytes");
    for machine in 0..2 {
        let root = cell.root(machine).to_path_buf();
        wait::run(cell.soda_at(machine).arg("sync").arg(root), PATIENCE * 2).expect_success("soda sync");
        let lost = ["lost_records", "digests_refused"].map(|name| cell.mounts[machine].counter(name));
        assert_eq!(lost, [0; 2]);
    }
    for (machine, written) in written.iter().enumerate() {
        let dir = cell.root(1 - machine).join(format!("of {machine}"));
        for (number, len) in written {
            let content = fs::read(dir.join(number.to_string())).unwrap();
            assert!(
                content == vec![*number as u8 | 1; *len],
                "{machine}/{number}: {} bytes of {len}",
                content.len()
            );
        }
    }
    // There is room again for who removes something.
    fs::remove_dir_all(cell.root(1).join("of 0")).unwrap();
    let path = cell.root(0).join("again");
    wait::in_time(PATIENCE, "no room", || fs::write(&path, vec![1; 1 << 20]).is_ok());
}
