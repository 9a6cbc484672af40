//! Which calls on a mount wait for the server's disk: counted by the messages that ask it to sync. What such a message
//! keeps over a power cut is tested at the server.

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::{ReadWriteFlags, pwritev2};
use soda_system_tests::cell::{Cell, Mount, Network, prerequisites};
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// How many syncs the server was asked for while `act` ran.
fn syncs(mount: &Mount, act: impl FnOnce()) -> u64 {
    let before = mount.counter("msg_sync");
    act();
    mount.counter("msg_sync") - before
}

fn open(mount: &Mount, name: &str, flags: OFlags) -> File {
    let mut options = File::options();
    options.write(true).create(true).custom_flags(flags.bits().cast_signed());
    options.open(mount.root().join(name)).unwrap()
}

fn write_with(file: &File, offset: u64, flags: ReadWriteFlags) {
    assert_eq!(pwritev2(file, &[IoSlice::new(b"piece")], offset, flags).unwrap(), 5);
}

// SEMANTICS 18
#[test]
fn synchronous_writes_wait_for_the_servers_disk_and_no_others() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 1);
    let mount = &cell.mounts[0];
    for (name, flags) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let mut file = open(mount, name, flags);
        assert_eq!(syncs(mount, || file.write_all(b"one").unwrap()), 1, "{name}: write");
        assert_eq!(syncs(mount, || file.write_all_at(b"two", 100).unwrap()), 1, "{name}: pwrite");
        let extend = || fallocate(&file, FallocateFlags::empty(), 0, 9000).unwrap();
        assert_eq!(syncs(mount, extend), 1, "{name}: fallocate");
        let mut at_end = open(mount, name, flags | OFlags::APPEND);
        assert_eq!(syncs(mount, || at_end.write_all(b"three").unwrap()), 1, "{name}: append");
        let from = File::open(mount.root().join(name)).unwrap();
        let copy = || {
            let (mut here, mut there) = (0, 20_000);
            rustix::fs::copy_file_range(&from, Some(&mut here), &file, Some(&mut there), 100).unwrap();
        };
        assert_eq!(syncs(mount, copy), 1, "{name}: copy_file_range");
    }
    let mut file = open(mount, "plain", OFlags::empty());
    assert_eq!(syncs(mount, || write_with(&file, 0, ReadWriteFlags::DSYNC)), 1, "RWF_DSYNC");
    assert_eq!(syncs(mount, || write_with(&file, 5, ReadWriteFlags::SYNC)), 1, "RWF_SYNC");
    let plain = || {
        write_with(&file, 10, ReadWriteFlags::empty());
        file.write_all(b"first").unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 9000).unwrap();
    };
    assert_eq!(syncs(mount, plain), 0, "without a flag");
}

// SEMANTICS 18
#[test]
fn a_synchronous_write_through_the_kernels_pages_waits_too() {
    if !prerequisites() {
        return;
    }
    // Where handles for reading and writing are not direct.
    let cell = Cell::start_pretending("6.1", 1);
    let mount = &cell.mounts[0];
    let mut options = File::options();
    options.read(true).write(true).create(true).custom_flags(OFlags::DSYNC.bits().cast_signed());
    let file = options.open(mount.root().join("file")).unwrap();
    assert!(syncs(mount, || file.write_all_at(b"one", 0).unwrap()) >= 1);
}
