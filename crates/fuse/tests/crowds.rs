//! More callers on one core than its queue has entries: who waits in the kernel must not depend on an answer to those before.

#![allow(clippy::unwrap_used, reason = "tests")]

mod null;

use null::cores::{allowed_cores, run_on};
use null::{NullMount, on_each, wait_until};
use rustix::fs::FlockOperation::{LockExclusive, Unlock};
use rustix::fs::flock;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

/// More than twice the entries that a queue begins with.
const CALLERS: usize = 300;

/// A thread for each on one core calls while the daemon takes nothing in hand; then one more calls `last`. When all wait in
/// the kernel, the daemon goes on, and `then` is called.
fn crowd(mount: &NullMount, call: impl Fn(usize) + Sync, last: impl Fn() + Sync, then: impl Fn()) {
    let core = allowed_cores()[0];
    let called = |count| wait_until("all have called", || mount.waiting() >= count);
    wait_until("nothing is asked", || mount.waiting() == 0);
    mount.fs.stop();
    thread::scope(|scope| {
        let _rescue = mount.rescue();
        for number in 0..CALLERS {
            let call = &call;
            scope.spawn(move || {
                run_on(core);
                call(number);
            });
        }
        called(CALLERS);
        scope.spawn(|| {
            run_on(core);
            last();
        });
        called(CALLERS + 1);
        mount.fs.go_on();
        then();
    });
}

#[test]
fn who_comes_last_can_be_the_one_whom_all_others_wait_for() {
    on_each(|mount| {
        let holder = File::open(mount.file(0)).unwrap();
        flock(&holder, LockExclusive).unwrap();
        let files: Vec<_> = (0..CALLERS).map(|_| File::open(mount.file(0)).unwrap()).collect();
        let locked = AtomicU64::new(0);
        let lock = |number: usize| {
            flock(&files[number], LockExclusive).unwrap();
            locked.fetch_add(1, Ordering::Relaxed);
            flock(&files[number], Unlock).unwrap();
        };
        let all = || wait_until("all had the lock", || locked.load(Ordering::Relaxed) == CALLERS as u64);
        crowd(&mount, lock, || flock(&holder, Unlock).unwrap(), all);
        drop((files, holder));
        mount.end();
    });
}

#[test]
fn reads_that_wait_keep_no_other_from_the_daemon() {
    on_each(|mount| {
        let file = File::open(mount.file(0)).unwrap();
        mount.fs.hold();
        let read = |_| assert_eq!(file.read_at(&mut [7; 1], 0).unwrap(), 1);
        let stat = || assert!(mount.file(1).metadata().unwrap().is_file());
        crowd(&mount, read, stat, || {
            wait_until("all reads wait", || mount.fs.held() == CALLERS);
            mount.fs.release();
        });
        drop(file);
        mount.end();
    });
}

/// Of a name that is not there.
fn look_up(mount: &NullMount, number: usize) {
    assert!(mount.root().join(format!("x{number}")).metadata().is_err());
}

/// No file is open: the kernel is asked about one that it was told of.
#[test]
fn look_ups_that_wait_keep_no_other_from_the_daemon() {
    on_each(|mount| {
        mount.file(1).metadata().unwrap();
        mount.fs.hold();
        let look_up = |number| look_up(&mount, number);
        crowd(
            &mount,
            look_up,
            || look_up(CALLERS),
            || {
                wait_until("all look-ups wait", || mount.fs.held() == CALLERS + 1);
                mount.fs.release();
            },
        );
        mount.end();
    });
}

/// Nor does the kernel know one: it has to be shown one.
#[test]
fn where_nobody_names_a_file_all_are_let_in_too() {
    on_each(|mount| {
        mount.fs.hold();
        let look_up = |number| look_up(&mount, number);
        crowd(
            &mount,
            look_up,
            || look_up(CALLERS),
            || {
                wait_until("all look-ups wait", || mount.fs.held() == CALLERS + 1);
                mount.fs.release();
            },
        );
        mount.end();
    });
}

/// The kernel knows no file: who waits can go on when it hears of one.
#[test]
fn the_first_file_lets_in_who_waits() {
    on_each(|mount| {
        let Some(elsewhere) = allowed_cores().get(1).copied() else { return println!("SKIPPED: one core") };
        mount.fs.hold();
        let look_up = |number| look_up(&mount, number);
        crowd(
            &mount,
            look_up,
            || look_up(CALLERS),
            || {
                wait_until("some look-ups wait", || mount.fs.held() > 100);
                let stat = || {
                    run_on(elsewhere);
                    mount.file(1).metadata().unwrap();
                };
                thread::scope(|scope| scope.spawn(stat).join().unwrap());
                wait_until("all look-ups wait", || mount.fs.held() == CALLERS + 1);
                mount.fs.release();
            },
        );
        mount.end();
    });
}

/// Of requests that come together, the first are answered before the last is taken in hand.
#[test]
fn answers_do_not_wait_for_all_requests_that_came_with_theirs() {
    const TOGETHER: usize = 40;
    on_each(|mount| {
        let (core, answered) = (allowed_cores()[0], AtomicUsize::new(0));
        let file = File::open(mount.file(2)).unwrap();
        let stat = || {
            run_on(core);
            assert!(file.metadata().unwrap().is_file());
            answered.fetch_add(1, Ordering::Relaxed);
        };
        wait_until("nothing is asked", || mount.waiting() == 0);
        mount.fs.stop();
        thread::scope(|scope| {
            let _rescue = mount.rescue();
            scope.spawn(stat);
            wait_until("one is brought", || mount.fs.waiting_to_go_on() == 1);
            for _ in 0..TOGETHER {
                scope.spawn(stat);
            }
            wait_until("all have called", || mount.waiting() == 1 + TOGETHER);
            mount.fs.go_on_for(1 + TOGETHER / 2);
            wait_until("some are answered", || answered.load(Ordering::Relaxed) > TOGETHER / 4);
            mount.fs.go_on();
        });
        drop(file);
        mount.end();
    });
}
