//! Each thread that reads /dev/fuse has a descriptor of its own, where that can be had.

#![allow(clippy::unwrap_used, reason = "tests")]

mod null;

use null::{
    NullMount, Setting, can_mount, descriptors_in, is_alone, is_alone_under, open_device, start, wait_until,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_bind, mount_remount};
use soda_fuse::wire::connection::{Transport, TransportChoice};
use soda_fuse::wire::{Cores, DESCRIPTORS_MAX, Readers, Sink};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use tokio::runtime::Runtime;

const DEV: TransportChoice = TransportChoice::Only(Transport::Dev);

fn own_descriptors() -> usize {
    descriptors_in(Path::new("/proc/self/fd"))
}

/// `device`: as in [`Setting`].
fn with_threads(threads: usize, device: Option<OwnedFd>, runtime: &Runtime) -> NullMount {
    let readers = Readers { threads, cores: Cores::Free };
    let setting = Setting { transport: DEV, readers, device, ..Setting::default() };
    NullMount::try_start(setting, runtime.handle()).unwrap()
}

/// One whose reads wait, if this machine can mount.
fn holding(runtime: &Runtime) -> Option<NullMount> {
    can_mount().then(|| {
        let mount = start(Transport::Dev, runtime.handle());
        mount.fs.hold();
        mount
    })
}

/// Files that are read and written by several threads.
fn use_it(mount: &NullMount) {
    thread::scope(|scope| {
        let _rescue = mount.rescue();
        let user = |number: u64| {
            scope.spawn(move || {
                let file = File::options().read(true).write(true).open(mount.file(number * 2)).unwrap();
                for round in 0..100 {
                    let mut data = [0; 5000];
                    file.read_exact_at(&mut data, round).unwrap();
                    assert!(data.iter().all(|byte| u64::from(*byte) == number * 2 + 2));
                    file.write_all_at(&data, round).unwrap();
                    assert!(mount.file(1000 + round).metadata().unwrap().is_file());
                }
            })
        };
        let users: Vec<_> = (0..8).map(user).collect();
        wait_until("all is answered", || users.iter().all(|user| user.is_finished()));
    });
}

#[test]
fn there_are_as_many_as_threads_that_read_up_to_a_bound_and_none_is_left() {
    if !can_mount() || !is_alone("there_are_as_many_as_threads_that_read_up_to_a_bound_and_none_is_left") {
        return;
    }
    let runtime = Runtime::new().unwrap();
    for (threads, descriptors) in [(1, 1), (2, 2), (9, 9), (DESCRIPTORS_MAX + 10, DESCRIPTORS_MAX)] {
        let mount = with_threads(threads, None, &runtime);
        assert_eq!(own_descriptors(), descriptors, "{threads} threads");
        assert_eq!(
            (mount.serving().readers(), mount.serving().descriptors().count()),
            (threads, descriptors)
        );
        use_it(&mount);
        mount.end();
        wait_until("all are closed", || own_descriptors() == 0);
    }
}

/// Who knows its number only asks all of them, as a wait for a lock that is begun once more.
#[test]
fn a_request_is_answered_on_the_descriptor_that_it_was_read_from_by_whichever_thread() {
    const READERS: u64 = 60;
    let runtime = Runtime::new().unwrap();
    let Some(mount) = holding(&runtime) else { return };
    thread::scope(|scope| {
        let _rescue = mount.rescue();
        for number in 0..READERS {
            let path = mount.file(number * 2);
            scope.spawn(move || File::open(path).unwrap().read_exact_at(&mut [0; 1], 0).unwrap());
        }
        wait_until("all wait", || mount.fs.held() == READERS as usize);
        let reads = mount.fs.held_reads();
        let unknown = Err(Some(Errno::NOENT.raw_os_error()));
        let is_elsewhere = |number: &u64| {
            let sent = mount.device.send(*number, 0, &[&[0; 1]]).map_err(|error| error.raw_os_error());
            assert!(sent.is_ok() || sent == unknown, "{sent:?}");
            sent == unknown
        };
        let elsewhere: Vec<u64> = reads[..40].iter().copied().filter(is_elsewhere).collect();
        assert!(!elsewhere.is_empty(), "one thread has read all of them, or all from one descriptor");
        for number in elsewhere {
            mount.answers.send(number, 0, &[&[0; 1]]).unwrap();
        }
        let again = mount.answers.send(reads[0], 0, &[&[0; 1]]).map_err(|error| error.raw_os_error());
        assert_eq!(again, unknown, "it is answered once");
        // The others by what each has with it.
        mount.fs.release();
    });
    mount.end();
}

/// INTERRUPT is read by any thread, and says of a request of another one's.
#[test]
fn an_interrupt_that_is_put_off_comes_again() {
    const READERS: u64 = 10;
    let runtime = Runtime::new().unwrap();
    let Some(mount) = holding(&runtime) else { return };
    let reader = |number: u64| {
        let mut command = Command::new("dd");
        let file = format!("if={}", mount.file(number * 2).display());
        command.arg(file).args(["of=/dev/null", "bs=1", "count=1"]).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut readers: Vec<_> = (0..READERS).map(reader).collect();
    wait_until("all wait", || mount.fs.held() == READERS as usize);
    let _rescue = mount.rescue();
    mount.fs.put_off.store(10 * READERS, Ordering::Relaxed);
    readers.iter_mut().for_each(|reader| reader.kill().unwrap());
    for reader in &mut readers {
        wait_until("a reader has ended", || reader.try_wait().unwrap().is_some());
    }
    assert_eq!(mount.fs.put_off.load(Ordering::Relaxed), 0);
    mount.fs.release();
    drop(_rescue);
    mount.end();
}

/// As in a container that got the descriptor of the mount from elsewhere.
#[test]
fn where_the_device_cannot_be_opened_threads_share_the_descriptor_of_the_mount() {
    const NAME: &str = "where_the_device_cannot_be_opened_threads_share_the_descriptor_of_the_mount";
    if !can_mount() || !is_alone_under(&["unshare", "--mount"], NAME) {
        return;
    }
    let (device, runtime) = (open_device(), Runtime::new().unwrap());
    mount_bind("/dev/fuse", "/dev/fuse").unwrap();
    mount_remount("/dev/fuse", MountFlags::BIND | MountFlags::NODEV, "").unwrap();
    let refused = File::open("/dev/fuse").map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(std::io::ErrorKind::PermissionDenied));
    let mount = with_threads(3, Some(device), &runtime);
    assert_eq!((own_descriptors(), mount.serving().readers()), (1, 3));
    use_it(&mount);
    mount.end();
}
