//! Both transports under a file system that does nothing itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod null;

use null::{
    FILE_LEN, LIMIT, NullMount, Setting, UringOn, can_mount, is_alone, is_wanted, on_each, skip, start,
    start_uring, wait_until,
};
use rustix::io::Errno;
use soda_client::Due;
use soda_fuse::wire::QueueFault;
use soda_fuse::wire::connection::{ConnectError, Transport, TransportChoice};
use soda_types::Monotonic;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;
use tokio::runtime::Runtime;

/// As many of them as there are, each in a thread.
fn in_threads(count: u64, work: impl Fn(u64) + Sync) {
    thread::scope(|scope| {
        for number in 0..count {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
}

/// A process that reads one byte of a file and says what came of it.
fn reader(mount: &NullMount, number: u64) -> Child {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", mount.file(number).display())).args(["of=/dev/null", "bs=1", "count=1"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

#[test]
fn requests_of_all_sizes_arrive_whole_and_so_do_their_answers() {
    on_each(|mount| {
        let mut sum = 0;
        for number in [0, 1] {
            let file = File::options().read(true).write(true).open(mount.file(number)).unwrap();
            for len in [1usize, 100, 4096, 40_000, 1 << 20, (1 << 20) + 5, 3 << 20] {
                let mut read = vec![0; len];
                file.read_exact_at(&mut read, 7).unwrap();
                assert!(read.iter().all(|byte| u64::from(*byte) == number + 2), "{len} bytes of {number}");
            }
            let direct = File::options().write(true).open(mount.file(0)).unwrap();
            for len in [1usize, 33_000, 1 << 20, 3 << 20] {
                let data: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
                direct.write_all_at(&data, 0).unwrap();
                sum += data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            }
        }
        assert_eq!(mount.fs.sum.load(Ordering::Relaxed), sum);
        let name = "x".repeat(255);
        let missing = mount.root().join(name).metadata().unwrap_err();
        assert_eq!(Errno::from_io_error(&missing), Some(Errno::NOENT));
        mount.end();
    });
}

/// Far more callers than entries, and one more.
#[test]
fn who_waits_holds_nobody_up() {
    on_each(|mount| {
        mount.fs.hold();
        thread::scope(|scope| {
            let _rescue = mount.rescue();
            for number in 0..100u64 {
                let path = mount.file(number * 2);
                scope.spawn(move || {
                    let mut byte = [0; 1];
                    File::open(path).unwrap().read_exact(&mut byte).unwrap();
                });
            }
            wait_until("readers wait", || mount.fs.held() == 100);
            for _ in 0..100 {
                mount.file(1).metadata().unwrap();
            }
            mount.fs.release();
        });
        mount.end();
    });
}

/// Direct writes to one file, and look-ups in one directory: none waits in the kernel for another.
#[test]
fn writes_to_a_file_and_look_ups_in_a_directory_go_beside_each_other() {
    const EACH: usize = 4;
    on_each(|mount| {
        let file = File::options().write(true).open(mount.file(0)).unwrap();
        mount.fs.hold();
        mount.fs.hold_writes();
        thread::scope(|scope| {
            let _rescue = mount.rescue();
            for number in 0..EACH {
                let (file, mount) = (&file, &mount);
                scope.spawn(move || file.write_all_at(&[1; 5000], 5000 * number as u64).unwrap());
                scope.spawn(move || mount.root().join(format!("x{number}")).metadata().unwrap_err());
            }
            wait_until("all wait at the file system", || mount.fs.held() == 2 * EACH);
            mount.fs.release();
        });
        drop(file);
        mount.end();
    });
}

#[test]
fn a_storm_from_64_threads() {
    on_each(|mount| {
        in_threads(64, |number| {
            let direct = File::options().read(true).write(true).open(mount.file(number * 2)).unwrap();
            for round in 0..50u64 {
                assert_eq!(mount.file(number).metadata().unwrap().len(), FILE_LEN);
                let mut data = vec![0; (1 + (number * 50 + round) * 97 % 9000) as usize];
                direct.read_exact_at(&mut data, round).unwrap();
                assert!(data.iter().all(|byte| *byte == (number * 2 + 2) as u8));
                direct.write_all_at(&data, round).unwrap();
            }
        });
        mount.end();
    });
}

/// Over io_uring an answer waits for the thread of its queue, which may be stopped, or without its core, after it was given.
#[test]
fn when_the_kernel_gets_an_answer_after_it_was_given_is_told() {
    on_each(|mount| {
        let due = Due::at(Monotonic::from_nanos(7));
        mount.file(2).metadata().unwrap();
        mount.fs.stop_behind(due);
        thread::scope(|scope| {
            let _rescue = mount.rescue();
            let caller = scope.spawn(|| mount.file(2).metadata().unwrap());
            wait_until("an answer is given", || mount.fs.waiting_to_go_on() == 1);
            match mount.transport {
                Transport::Dev => wait_until("the kernel has it", || caller.is_finished()),
                Transport::Uring => assert!(!caller.is_finished()),
            }
            assert_eq!(mount.fs.arrived(), []);
            mount.fs.go_on();
            caller.join().unwrap();
        });
        match mount.transport {
            Transport::Dev => {}
            Transport::Uring => wait_until("that is told", || mount.fs.arrived() == [due]),
        }
        mount.end();
    });
}

#[test]
fn interrupts_end_waits_even_if_many_come_at_once() {
    const READERS: usize = 40;
    on_each(|mount| {
        mount.fs.hold();
        let mut readers: Vec<_> = (0..READERS as u64).map(|number| reader(&mount, number * 2)).collect();
        wait_until("all wait", || mount.fs.held() == READERS);
        readers.iter_mut().for_each(|reader| reader.kill().unwrap());
        // Nobody else ends them.
        readers.iter_mut().for_each(|reader| wait_until("a reader has ended", || has_ended(reader)));
        assert!(mount.fs.interrupts.load(Ordering::Relaxed) >= READERS as u64);
        mount.fs.release();
        mount.end();
    });
}

/// Over io_uring, Linux (6.18) tells of no signal that comes between the moment in which it gives a request to an entry and the
/// one in which the queue's thread has brought it there; how many are in between depends on when that thread gets its core. The
/// file system has to look by itself (`Tasks::start_looking_around`), which this one does not: it answers in the end.
#[test]
fn who_is_killed_on_the_way_to_a_wait_ends() {
    on_each(|mount| {
        mount.fs.hold();
        let mut readers: Vec<_> = (0..40).map(|number| reader(&mount, number * 2)).collect();
        wait_until("some wait", || mount.fs.held() > 5);
        readers.iter_mut().for_each(|reader| reader.kill().unwrap());
        let mut all_end = || {
            readers.iter_mut().for_each(|reader| wait_until("a reader has ended", || has_ended(reader)));
        };
        if mount.transport == Transport::Dev {
            all_end();
        }
        mount.fs.release();
        all_end();
        mount.file(0).metadata().unwrap();
        mount.end();
    });
}

#[test]
fn the_kernel_says_what_it_forgets() {
    on_each(|mount| {
        for number in 0..200 {
            mount.file(number).metadata().unwrap();
        }
        for number in 0..200 {
            mount.invalidate_name(number).unwrap();
        }
        wait_until("inodes are forgotten", || mount.fs.forgets.load(Ordering::Relaxed) == 200);
        mount.end();
    });
}

/// Pages that are read, those of a file that is written, and names that are looked up are taken away from the kernel all the
/// while, and pages are given to it.
#[test]
fn what_is_read_and_written_and_looked_up_is_invalidated() {
    /// Bytes that are asked for if nothing is taken away: of two files a megabyte, and what is read ahead.
    const AT_ONCE: u64 = 2 * (2 << 20);
    on_each(|mount| {
        let taken = [const { AtomicU64::new(0) }; 4];
        let stop = AtomicBool::new(false);
        let (done, is_done) = channel();
        let is_enough = || {
            let read = mount.fs.read.load(Ordering::Relaxed);
            read > AT_ONCE && taken.iter().all(|taken| taken.load(Ordering::Relaxed) > 0)
        };
        let begun = Instant::now();
        let rounds = |least: u64| {
            (0..).take_while(move |round| *round < least || !is_enough() && begun.elapsed() < LIMIT / 2)
        };
        let rounds = &rounds;
        thread::scope(|scope| {
            let _rescue = mount.rescue();
            for number in [1, 3, 1, 3] {
                let (mount, done) = (&mount, done.clone());
                scope.spawn(move || {
                    let file = File::open(mount.file(number)).unwrap();
                    let mut data = vec![0; 300_000];
                    for round in rounds(150) {
                        file.read_exact_at(&mut data, round * 4096 % (1 << 20)).unwrap();
                        assert!(data.iter().all(|byte| u64::from(*byte) == number + 2));
                    }
                    done.send(()).unwrap();
                });
            }
            let (writer, writer_done) = (&mount, done.clone());
            scope.spawn(move || {
                let file = File::options().write(true).open(writer.file(1)).unwrap();
                for round in rounds(150) {
                    file.write_all_at(&[3; 5000], round * 700).unwrap();
                }
                writer_done.send(()).unwrap();
            });
            let (looker, looker_done) = (&mount, done.clone());
            scope.spawn(move || {
                for _ in rounds(300) {
                    assert_eq!(looker.file(5).metadata().unwrap().len(), FILE_LEN);
                }
                looker_done.send(()).unwrap();
            });
            let notify: [fn(&NullMount) -> io::Result<()>; 4] = [
                |mount| mount.invalidate(1),
                |mount| mount.invalidate(3),
                |mount| mount.invalidate_name(5),
                |mount| mount.store(3, 8192),
            ];
            for (notify, taken) in notify.into_iter().zip(&taken) {
                let (mount, stop) = (&mount, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match notify(mount) {
                            Ok(()) => {
                                taken.fetch_add(1, Ordering::Relaxed);
                            }
                            // Not known yet, or not any more.
                            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}"),
                        }
                    }
                });
            }
            let ended = (0..6).all(|_| is_done.recv_timeout(LIMIT).is_ok());
            stop.store(true, Ordering::Relaxed);
            assert!(ended, "a deadlock with notifications");
        });
        let taken = taken.map(AtomicU64::into_inner);
        assert!(
            taken.iter().all(|taken| *taken > 0),
            "the kernel took no notification of some kind: {taken:?}"
        );
        let read = mount.fs.read.load(Ordering::Relaxed);
        assert!(read > AT_ONCE, "pages that were taken away are asked for again: {read} bytes");
        mount.end();
    });
}

#[test]
fn an_unmount_with_requests_in_flight_ends_them() {
    on_each(|mount| {
        mount.fs.hold();
        let mut readers: Vec<_> = (0..30).map(|number| reader(&mount, number * 2)).collect();
        wait_until("readers wait", || mount.fs.held() == 30);
        mount.cut_off();
        readers.iter_mut().for_each(|reader| wait_until("a reader ends", || has_ended(reader)));
        assert_eq!(mount.fs.held(), 30, "they were answered");
        mount.join();
    });
}

/// Descriptors and threads of this process.
fn possessions() -> [usize; 2] {
    ["fd", "task"].map(|of| std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count())
}

#[test]
fn mounts_come_and_go_and_leave_nothing() {
    if !can_mount() || !is_alone("mounts_come_and_go_and_leave_nothing") {
        return;
    }
    on_each(|mount| {
        let runtime = Runtime::new().unwrap();
        let transport = mount.transport;
        mount.file(3).metadata().unwrap();
        mount.end();
        let before = possessions();
        for _ in 0..10 {
            let mount = match transport {
                Transport::Uring => start_uring(runtime.handle()).unwrap(),
                Transport::Dev => start(transport, runtime.handle()),
            };
            mount.file(3).metadata().unwrap();
            mount.end();
        }
        // A thread that was joined is listed for a moment more.
        wait_until("descriptors and threads are given back", || {
            possessions().iter().zip(before).all(|(now, before)| *now <= before)
        });
    });
}

fn auto(runtime: &Runtime) -> Transport {
    let mount = NullMount::try_start(Setting::default(), runtime.handle()).unwrap();
    mount.file(1).metadata().unwrap();
    let transport = mount.transport;
    mount.end();
    transport
}

#[test]
fn auto_takes_io_uring_where_it_is_switched_on() {
    if !can_mount() || !is_wanted() {
        return;
    }
    let Some(on) = UringOn::turn() else { return };
    assert_eq!(auto(&Runtime::new().unwrap()), Transport::Uring);
    drop(on);
}

/// Until all queues have entries there is a way back to the device, and after a refusal it is taken: from then on Linux (6.18)
/// would look at its switch for each answer.
#[test]
fn a_mount_of_which_the_kernel_refuses_queues_is_over_the_device_as_long_as_it_can_be() {
    if !can_mount() || !is_wanted() {
        return;
    }
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let last: usize = possible.trim().rsplit(['-', ',']).next().unwrap().parse().unwrap();
    let runtime = Runtime::new().unwrap();
    let (dev, uring) = (Transport::Dev, Transport::Uring);
    let first = if last > 0 { dev } else { uring };
    let cases = [
        (0, QueueFault::All, dev),
        (0, QueueFault::One, first),
        (last, QueueFault::All, dev),
        (last, QueueFault::One, uring),
    ];
    for (queue, fault, expected) in cases {
        let start = |transport| {
            let _on = UringOn::turn().unwrap();
            let setting = Setting { transport, fault: Some((queue, fault)), ..Setting::default() };
            NullMount::try_start(setting, runtime.handle())
        };
        match (start(TransportChoice::Only(uring)), expected) {
            (Ok(mount), Transport::Uring) => mount.end(),
            (Err(ConnectError::NoUring(why)), Transport::Dev) => {
                assert!(why.contains("the kernel refuses its queues"), "{why}");
            }
            (started, _) => panic!("{queue}, {fault:?}: {started:?}"),
        }
        let mount = start(TransportChoice::Auto).unwrap();
        assert_eq!(mount.transport, expected, "{queue}, {fault:?}");
        in_threads(8, |number| {
            let file = File::options().read(true).write(true).open(mount.file(number * 2)).unwrap();
            for round in 0..50 {
                assert_eq!(mount.file(number).metadata().unwrap().len(), FILE_LEN);
                file.read_exact_at(&mut vec![0; 100_000], round).unwrap();
                file.write_all_at(&vec![1; 100_000], round).unwrap();
            }
        });
        mount.fs.hold();
        let mut killed = reader(&mount, 0);
        wait_until("a reader waits", || mount.fs.held() == 1);
        killed.kill().unwrap();
        wait_until("it has ended", || has_ended(&mut killed));
        mount.fs.release();
        mount.end();
    }
}

#[test]
fn where_it_is_switched_off_auto_takes_the_device_and_uring_says_what_to_do() {
    if !can_mount() {
        return;
    }
    let off = UringOn::turn_off();
    let is_on = std::fs::read_to_string(soda_fuse::URING_SWITCH).is_ok_and(|switch| switch.trim() == "Y");
    if is_on {
        return skip("the switch of FUSE over io_uring is on, and not ours to turn");
    }
    let runtime = Runtime::new().unwrap();
    assert_eq!(auto(&runtime), Transport::Dev);
    let has_switch = Path::new(soda_fuse::URING_SWITCH).exists();
    let transport = TransportChoice::Only(Transport::Uring);
    let refused = NullMount::try_start(Setting { transport, ..Setting::default() }, runtime.handle());
    let Err(ConnectError::NoUring(why)) = refused else { panic!("{refused:?}") };
    let expected = if has_switch { "echo Y > /sys/module/fuse" } else { "Linux 6.14 and later" };
    assert!(why.contains(expected), "{why}");
    drop(off);
}
