//! What programs wait for was read from several descriptors of /dev/fuse, all of which pass.

use super::{STILL, waiter};
use rustix::fs::{FlockOperation, flock};
use soda_system_tests::cell::{Cell, PATIENCE, prerequisites, transport};
use soda_system_tests::wait;
use std::fs::{self, File};
use std::path::Path;

/// More than threads read, several times.
const WAITERS: u64 = 24;

/// Of /dev/fuse.
fn descriptors(process: u32) -> u64 {
    let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = all.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    links.filter(|file| file == Path::new("/dev/fuse")).count() as u64
}

// SEMANTICS 57
#[test]
fn waits_of_several_descriptors_pass_twice_and_descriptors_do_not_become_more() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let held = File::create_new(cell.root(1).join("file")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let readers = cell.mounts[0].counter("kernel_readers");
    let expected = if transport() == "dev" { readers } else { 1 };
    let mut waits = Vec::new();
    for generation in 1..=2 {
        // Of the process that is there and of the one before.
        for _ in 0..WAITERS {
            let file = File::open(cell.root(0).join("file")).unwrap();
            waits.push(waiter(move || flock(&file, FlockOperation::LockShared)));
        }
        let all_wait = || cell.mounts[0].counter("kernel_waiting") == generation * WAITERS;
        wait::in_time(PATIENCE, "not all wait", all_wait);
        cell.mounts[0].take_over();
        let count = |name: &str| cell.mounts[0].counter(name);
        assert_eq!((count("kernel_readers"), count("kernel_descriptors")), (readers, expected));
        assert_eq!(descriptors(cell.mounts[0].process()), expected);
    }
    for _ in 0..6 {
        cell.mounts[0].take_over();
    }
    assert_eq!(descriptors(cell.mounts[0].process()), expected, "they become more");
    assert!(waits.iter().all(|wait| wait.try_recv().is_err()) && waits[0].recv_timeout(STILL).is_err());
    drop(held);
    for wait in &waits {
        assert_eq!(wait.recv_timeout(PATIENCE).expect("the lock"), Ok(()));
    }
    cell.mounts[0].unmount();
}
