//! A daemon that is killed with requests in flight.

#![allow(clippy::unwrap_used, reason = "tests")]

mod null;

use null::daemon::{DIR, Daemon, READY, Rescue, mount_at, obey, unmount_at};
use null::{NullMount, can_mount, control, is_wanted, new_dir, wait_until, waiting};
use rustix::fs::FlockOperation::LockExclusive;
use rustix::fs::flock;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use soda_fuse::wire::connection::Transport;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tokio::runtime::Runtime;

/// More than all queues of a small machine have entries to begin with.
const CALLERS: usize = 300;

#[test]
#[ignore = "a process of the other tests"]
fn daemon() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let runtime = Runtime::new().unwrap();
    let mount = mount_at(dir.as_ref(), runtime.handle());
    println!("\n{READY}");
    obey(|order| carry_out(order, &mount));
}

/// What a daemon is told.
const HOLD: &str = "hold";
/// Take nothing in hand any more.
const STOP: &str = "stop";
/// Wait until a thread has brought something nevertheless.
const BRING: &str = "bring";
/// Have a thread look up what is named behind.
const LOOK_UP: &str = "look up ";

fn carry_out(order: &str, mount: &NullMount) {
    match order {
        HOLD => mount.fs.hold(),
        STOP => mount.fs.stop(),
        BRING => wait_until("something is brought", || mount.fs.waiting_to_go_on() > 0),
        order => {
            let path = PathBuf::from(order.strip_prefix(LOOK_UP).unwrap());
            thread::spawn(move || path.metadata());
        }
    }
}

/// Whether requests have all reached the daemon when it is killed, or also wait in the kernel.
#[derive(Clone, Copy, PartialEq)]
enum When {
    InHand,
    Stopped,
}

fn kill(transport: Transport, when: When) {
    let dir = new_dir();
    let mut daemon = Daemon::start(dir.path(), transport);
    daemon.order(HOLD);
    let file = |number: usize| dir.path().join(number.to_string());
    let files: Vec<_> = (0..CALLERS / 3).map(|_| File::open(file(0)).unwrap()).collect();
    let holder = File::open(file(2)).unwrap();
    flock(&holder, LockExclusive).unwrap();
    if when == When::Stopped {
        daemon.send(Signal::STOP);
    }
    let failed = AtomicUsize::new(0);
    let rescue = Rescue { process: Some(Pid::from_child(&daemon.process)), dir: dir.path() };
    thread::scope(|scope| {
        let _rescue = rescue;
        for number in 0..CALLERS {
            let (failed, open, name) = (&failed, &files[number / 3], dir.path().join(format!("x{number}")));
            scope.spawn(move || {
                let error = match number % 3 {
                    0 => open.read_at(&mut [0; 1], 0).err().and_then(|error| Errno::from_io_error(&error)),
                    1 => name.metadata().err().and_then(|error| Errno::from_io_error(&error)),
                    _ => flock(open, LockExclusive).err(),
                };
                // Over io_uring Linux (6.18) says CANCELED or INTR of what was just being handed over.
                const ERRORS: [Errno; 4] = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED, Errno::INTR];
                assert!(error.is_some_and(|error| ERRORS.contains(&error)), "{number}: {error:?}");
                failed.fetch_add(1, Ordering::Relaxed);
            });
        }
        wait_until("all wait", || waiting(dir.path()) >= CALLERS);
        daemon.process.kill().unwrap();
        daemon.process.wait().unwrap();
        wait_until("all have failed", || failed.load(Ordering::Relaxed) == CALLERS);
    });
    drop((files, holder));
    assert_eq!(dir.path().metadata().unwrap_err().raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    unmount_at(dir.path());
    drop(daemon);

    let again = Daemon::start(dir.path(), transport);
    assert!(file(1).metadata().unwrap().is_file());
    unmount_at(dir.path());
    drop(again);
}

fn on_each(test: impl Fn(Transport)) {
    if can_mount() {
        test(Transport::Dev);
        if is_wanted() {
            test(Transport::Uring);
            println!("tested over io_uring, too");
        }
    }
}

#[test]
fn who_waits_for_a_daemon_that_is_killed_gets_an_error_and_the_place_can_be_mounted_again() {
    on_each(|transport| kill(transport, When::InHand));
}

#[test]
fn so_does_who_waits_in_the_kernel_for_one_that_was_stopped() {
    on_each(|transport| kill(transport, When::Stopped));
}

/// Answers, however the test ends, what a thread of the daemon waits for.
struct Answering(NullMount);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fs.release();
    }
}

/// One that does not end, as a thread of it waits in the kernel: here for another file system, else for a lock that one of the
/// callers holds. Of these one is with the thread that takes requests, which is busy, one comes for it meanwhile, and one when
/// it is gone. An abort must end them all.
fn kill_one_that_does_not_end(transport: Transport, death: Signal) {
    let runtime = Runtime::new().unwrap();
    let other = Answering(null::start(Transport::Dev, runtime.handle()));
    other.0.fs.hold_fast();
    let dir = new_dir();
    let mut daemon = Daemon::start(dir.path(), transport);
    let mut abort = File::options().write(true).open(control(dir.path()).join("abort")).unwrap();
    let stat = |options: &[&str], name: &str| {
        let mut stat = Command::new("taskset");
        stat.args(["-c", &first_core().to_string(), "stat"]).args(options).arg(dir.path().join(name));
        stat.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    daemon.order(&format!("{LOOK_UP}{}", other.0.root().join("x").display()));
    wait_until("a thread of the daemon waits", || other.0.fs.held() == 1);
    daemon.order(STOP);
    let with_it = stat(&["-f"], "");
    daemon.order(BRING);
    let for_it = stat(&[], "x");
    wait_until("two wait", || waiting(dir.path()) >= 2);

    daemon.send(death);
    let is_dumped = |daemon: &Daemon<'_>| daemon.status("CoreDumping") == "1";
    wait_until("it is dying", || daemon.status("State").starts_with('Z') || is_dumped(&daemon));
    let mut too_late = stat(&[], "y");
    // Over io_uring Linux (6.18) may have ended it already.
    let has_ended = |caller: &mut Child| caller.try_wait().unwrap().is_some();
    wait_until("three wait", || waiting(dir.path()) >= 3 || has_ended(&mut too_late));
    abort.write_all(b"1").unwrap();
    for (name, mut caller) in [("first", with_it), ("second", for_it), ("third", too_late)] {
        wait_until(&format!("the {name} gets an error"), || has_ended(&mut caller));
        assert!(!caller.wait().unwrap().success());
    }
    assert!(!daemon.has_ended(), "nothing kept it from that");
    other.0.fs.release();
    wait_until("the daemon has ended", || daemon.has_ended());
    unmount_at(dir.path());
    drop(daemon);
}

fn first_core() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap()
}

#[test]
fn an_abort_ends_all_calls_of_a_daemon_that_is_killed_and_does_not_end() {
    on_each(|transport| kill_one_that_does_not_end(transport, Signal::KILL));
}

/// Before memory is dumped, all threads are stopped and wait for the one that does not end.
#[test]
fn and_those_of_one_that_crashes_and_does_not_end() {
    on_each(|transport| kill_one_that_does_not_end(transport, Signal::ABORT));
}

/// What a guard is given may outlive its mount, and numbers of connections are used again at once.
#[test]
fn an_abort_knob_that_is_held_open_stays_that_of_its_own_connection() {
    if !can_mount() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    let start = || null::start(Transport::Dev, runtime.handle());
    // What else is mounted just then may get the number.
    let has_been_reused = (0..50).any(|_| {
        let first = start();
        let number = first.control();
        let mut knob = File::options().write(true).open(number.join("abort")).unwrap();
        first.end();
        let others: Vec<_> = (0..4).map(|_| start()).collect();
        knob.write_all(b"1").unwrap();
        let reused = others.iter().any(|other| other.control() == number);
        for other in others {
            assert!(other.file(1).metadata().unwrap().is_file(), "another connection was aborted");
            other.end();
        }
        reused
    });
    assert!(has_been_reused, "no number was used again");
}
