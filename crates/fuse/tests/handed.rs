//! The queues of a mount pass from process to process.

#![allow(clippy::unwrap_used, reason = "tests")]

mod null;

use null::cores::{Away, allowed_cores, run_on};
use null::daemon::{DIR, Daemon, READY, Rescue, mount_at, obey, unmount_at};
use null::{LIMIT, NullFs, NullMount, can_mount, is_wanted, new_dir, wait_until, waiting};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use soda_client::handover::{decode, encode};
use soda_fuse::wire::connection::{Inherited, Transport};
use soda_fuse::wire::device::Device;
use soda_fuse::wire::{Agreement, Cores, HandedQueues, Readers};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::runtime::Runtime;

/// In the environment of a daemon that is to go on with what another one leaves.
const HEIR: &str = "SODA_TEST_DAEMON_HEIR";
/// More than a queue has entries to begin with.
const CROWD: usize = 300;
const READERS: u64 = 40;
/// As many as of the daemons before, over the device.
const THREADS: Readers = Readers { threads: 3, cores: Cores::Free };

/// What a daemon is told. All reads from now on wait.
const HOLD: &str = "hold";
/// What is told of the root directory may be believed: who looks a name up there asks for nothing else.
const KEEP_ROOT: &str = "keep root";
/// Hand nothing on any more.
const REST: &str = "rest";
/// Empty the queues, and write down what belongs to the mount: the name of a file is behind.
const LEAVE: &str = "leave ";
/// Go on after all.
const STAY: &str = "stay";
/// Take what another one has left, as it says in the file that is named behind.
const TAKE: &str = "take ";
/// Serve that.
const BEGIN: &str = "begin";
/// The same, and all reads wait.
const BEGIN_AND_HOLD: &str = "begin and hold";
/// Answer the reads.
const RELEASE: &str = "release";
/// Have the kernel know a file.
const DECOY: &str = "decoy";

/// Process, its descriptors of the device, what was agreed on, queues, reads that wait.
type Estate = (u32, Vec<i32>, Agreement, Option<HandedQueues>, Vec<u64>);

#[test]
#[ignore = "a process of the other tests"]
fn daemon() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let runtime = Runtime::new().unwrap();
    let mut mount = None;
    let mut inherited = None;
    let mut waiting = Vec::new();
    if std::env::var_os(HEIR).is_none() {
        mount = Some(mount_at(dir.as_ref(), runtime.handle()));
    }
    println!("\n{READY}");
    obey(|order| match (order.strip_prefix(TAKE), &mount) {
        (Some(estate), None) => {
            let estate: Estate = decode(&std::fs::read(estate).unwrap()).unwrap();
            let (process, devices, agreement, queues, reads) = estate;
            let process = Pid::from_raw(process as i32).unwrap();
            let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
            let passed = |device| pidfd_getfd(&process, device, PidfdGetfdFlags::empty()).unwrap();
            let mut devices = devices.into_iter().map(passed);
            let (device, clones) = (Device::new(devices.next().unwrap()), devices.collect());
            let prepared = Inherited::prepare(&device, clones, agreement, THREADS, queues.as_ref());
            inherited = Some(prepared.unwrap());
            waiting = reads;
        }
        (None, None) => {
            let fs = NullFs::default();
            match order {
                BEGIN_AND_HOLD => fs.0.hold(),
                order => assert_eq!(order, BEGIN),
            }
            mount = Some(NullMount::inherit(dir.as_ref(), inherited.take().unwrap(), fs, runtime.handle()));
        }
        (_, Some(mount)) => carry_out(order, mount, &mut waiting),
    });
}

fn carry_out(order: &str, mount: &NullMount, waiting: &mut Vec<u64>) {
    let serving = mount.serving();
    match order {
        HOLD => mount.fs.hold(),
        KEEP_ROOT => mount.fs.keeps_root.store(true, Ordering::Relaxed),
        REST => {
            serving.begin_pause();
            wait_until("all rest", || serving.reading(Duration::from_millis(100)) == 0);
        }
        STAY => serving.end_pause(),
        RELEASE => {
            // Of the process before; it may have let them go.
            let answer = |number: u64| drop(mount.answers.send(number, 0, &[&[0; 1]]));
            waiting.drain(..).for_each(answer);
            mount.fs.release();
        }
        order => match order.strip_prefix(LEAVE) {
            Some(file) => {
                serving.empty_queues(LIMIT).unwrap();
                let queues = serving.hand_over_queues().unwrap();
                let reads = mount.fs.held_reads().into_iter().chain(waiting.iter().copied()).collect();
                let devices = serving.descriptors().map(|device| device.as_raw_fd()).collect();
                let estate: Estate = (std::process::id(), devices, mount.agreement, queues, reads);
                std::fs::write(file, encode(&estate).unwrap()).unwrap();
            }
            None => {
                assert_eq!(order, DECOY);
                let look_up = |name: &str| {
                    let looked = Command::new("stat").arg(mount.root().join(name)).output().unwrap();
                    assert!(looked.status.success(), "{looked:?}");
                };
                serving.show_decoy(look_up);
            }
        },
    }
}

fn is_possible() -> bool {
    can_mount() && is_wanted()
}

/// To be started before files are opened: a new process closes its copies of these, which are requests.
fn heir(dir: &Path) -> Daemon<'_> {
    Daemon::start_with(dir, &[(HEIR, "1")])
}

/// With a file that the kernel can be asked about: what else it knows it may forget, or nobody has named one.
fn rest(daemon: &mut Daemon<'_>) {
    daemon.order(DECOY);
    daemon.order(REST);
}

/// Who was killed before is not to unmount what others serve.
fn bury(mut daemon: Daemon<'_>) {
    daemon.process.kill().unwrap();
    daemon.process.wait().unwrap();
    std::mem::forget(daemon);
}

/// Callers of all kinds while the mount passes on, and those who wait for an answer of the first process.
#[test]
fn no_call_fails_or_is_forgotten_while_a_mount_passes_from_process_to_process() {
    if !is_possible() {
        return;
    }
    let (dir, scratch) = (new_dir(), tempfile::tempdir().unwrap());
    let estate = scratch.path().join("estate");
    let mut daemon = Daemon::start(dir.path(), Transport::Uring);
    let heirs: Vec<_> = (0..4).map(|_| heir(dir.path())).collect();
    daemon.order(HOLD);
    let file = |number: u64| dir.path().join(number.to_string());
    let open = |number| File::options().read(true).write(true).open(file(number)).unwrap();
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let (released, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _rescue = Rescue { process: None, dir: dir.path() };
        let _stop = StopOnDrop(&stop);
        for number in 0..READERS {
            let (file, released, answered) = (open(number * 2), &released, &answered);
            scope.spawn(move || {
                file.read_at(&mut [0; 1], 0).unwrap();
                assert!(released.load(Ordering::Relaxed), "nobody has answered yet");
                answered.fetch_add(1, Ordering::Relaxed);
            });
        }
        wait_until("all readers wait", || waiting(dir.path()) >= READERS as usize);
        for number in 0..12u64 {
            let (file, path, stop, calls) = (open(0), file(100 + number), &stop, &calls);
            scope.spawn(move || {
                let data = vec![number as u8; if number % 4 == 0 { 1 << 20 } else { 4096 }];
                while !stop.load(Ordering::Relaxed) {
                    match number % 2 {
                        0 => file.write_all_at(&data, 0).unwrap(),
                        _ => assert!(path.metadata().unwrap().is_file()),
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let crowd = |count: usize| {
            let paths = (0..count).map(|number| dir.path().join(format!("{}", 1000 + number)));
            for path in paths {
                scope.spawn(move || assert!(path.metadata().unwrap().is_file()));
            }
        };
        for (generation, mut next) in heirs.into_iter().enumerate() {
            let before = calls.load(Ordering::Relaxed);
            wait_until("calls are answered", || calls.load(Ordering::Relaxed) > before + 200);
            rest(&mut daemon);
            // These are kept in their entries, those that come later in the kernel.
            crowd(50);
            wait_until("a crowd waits", || waiting(dir.path()) >= 50 + READERS as usize);
            daemon.order(&format!("{LEAVE}{}", estate.display()));
            // The questions that emptied the queues wait, too.
            let wait_already = waiting(dir.path());
            crowd(CROWD);
            wait_until("all wait", || waiting(dir.path()) >= wait_already + CROWD);
            next.order(&format!("{TAKE}{}", estate.display()));
            // Whichever comes first.
            if generation % 2 == 0 {
                next.order(BEGIN);
                bury(std::mem::replace(&mut daemon, next));
            } else {
                bury(std::mem::replace(&mut daemon, next));
                daemon.order(BEGIN);
            }
        }
        let before = calls.load(Ordering::Relaxed);
        wait_until("calls are answered", || calls.load(Ordering::Relaxed) > before + 200);
        released.store(true, Ordering::Relaxed);
        daemon.order(RELEASE);
        wait_until("all readers are answered", || answered.load(Ordering::Relaxed) == READERS);
    });
    unmount_at(dir.path());
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The next process dies, or the one before it, when all has been handed over and nothing begun.
#[test]
fn the_death_of_the_next_process_changes_nothing_and_that_of_the_one_before_ends_the_mount() {
    if !is_possible() {
        return;
    }
    let (dir, scratch) = (new_dir(), tempfile::tempdir().unwrap());
    let estate = scratch.path().join("estate");
    let mut daemon = Daemon::start(dir.path(), Transport::Uring);
    let calls = |count: usize, ends: &'static str| {
        let paths = (0..count).map(|number| dir.path().join(format!("{}", 1000 + number)));
        let call = move |path: std::path::PathBuf| match (path.metadata(), ends) {
            (Ok(metadata), "well") => assert!(metadata.is_file()),
            (Err(_), "badly") => {}
            (ended, _) => panic!("{ended:?} is to end {ends}"),
        };
        paths.map(|path| thread::spawn(move || call(path))).collect::<Vec<_>>()
    };
    let ended = |calls: Vec<thread::JoinHandle<()>>| {
        wait_until("all calls end", || calls.iter().all(|call| call.is_finished()));
        calls.into_iter().for_each(|call| call.join().unwrap());
    };
    let _rescue = Rescue { process: None, dir: dir.path() };
    // All that the mount needs is with the next process, which has not begun; calls of all kinds wait.
    let hand_over = |daemon: &mut Daemon<'_>, next: &mut Daemon<'_>, ends| {
        rest(daemon);
        let mut all = calls(50, ends);
        wait_until("they wait", || waiting(dir.path()) >= 50);
        daemon.order(&format!("{LEAVE}{}", estate.display()));
        // The questions that emptied the queues wait, too.
        let wait_already = waiting(dir.path());
        all.extend(calls(CROWD, ends));
        wait_until("all wait", || waiting(dir.path()) >= wait_already + CROWD);
        next.order(&format!("{TAKE}{}", estate.display()));
        all
    };
    for _ in 0..3 {
        let mut next = heir(dir.path());
        let all = hand_over(&mut daemon, &mut next, "well");
        bury(next);
        daemon.order(STAY);
        ended(all);
    }
    let mut next = heir(dir.path());
    let all = hand_over(&mut daemon, &mut next, "badly");
    bury(daemon);
    bury(next);
    ended(all);
    unmount_at(dir.path());
}

/// Callers on one core have all the entries of its queue, and each of them waits: also for what comes after them, maybe.
#[test]
fn where_all_that_have_entries_wait_the_next_process_has_entries_for_others() {
    if !is_possible() {
        return;
    }
    let (dir, scratch) = (new_dir(), tempfile::tempdir().unwrap());
    let estate = scratch.path().join("estate");
    let mut daemon = Daemon::start(dir.path(), Transport::Uring);
    let mut next = heir(dir.path());
    let (file, core) = (File::open(dir.path().join("0")).unwrap(), allowed_cores()[0]);
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        let _rescue = Rescue { process: None, dir: dir.path() };
        rest(&mut daemon);
        for _ in 0..CROWD {
            scope.spawn(|| {
                run_on(core);
                file.read_at(&mut [7; 1], 0).unwrap();
                answered.fetch_add(1, Ordering::Relaxed);
            });
        }
        wait_until("all wait", || waiting(dir.path()) >= CROWD);
        daemon.order(&format!("{LEAVE}{}", estate.display()));
        next.order(&format!("{TAKE}{}", estate.display()));
        next.order(BEGIN_AND_HOLD);
        bury(std::mem::replace(&mut daemon, next));
        let last = scope.spawn(|| {
            run_on(core);
            assert!(dir.path().join("100001").metadata().unwrap().is_file());
        });
        wait_until("who came last is answered", || last.is_finished());
        assert_eq!(answered.load(Ordering::Relaxed), 0, "reads wait");
        daemon.order(RELEASE);
        wait_until("all are answered", || answered.load(Ordering::Relaxed) == CROWD as u64);
    });
    drop(file);
    unmount_at(dir.path());
}

/// What is in hand was read from several descriptors, each of which has to answer for its own; also in the process after the
/// next.
#[test]
fn who_waits_while_a_mount_over_the_device_passes_on_twice_is_answered() {
    if !can_mount() {
        return;
    }
    let (dir, scratch) = (new_dir(), tempfile::tempdir().unwrap());
    let estate = scratch.path().join("estate");
    let mut daemon = Daemon::start(dir.path(), Transport::Dev);
    let mut heirs = vec![heir(dir.path()), heir(dir.path())];
    daemon.order(HOLD);
    let file = |number: u64| dir.path().join(number.to_string());
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _rescue = Rescue { process: None, dir: dir.path() };
        let _stop = StopOnDrop(&stop);
        // They also wake the threads that are to rest.
        for number in 0..8 {
            let (path, stop) = (file(100 + number), &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert!(path.metadata().unwrap().is_file());
                }
            });
        }
        let read = |numbers: Range<u64>| {
            for number in numbers {
                let (path, answered) = (file(number * 2), &answered);
                scope.spawn(move || {
                    File::open(path).unwrap().read_exact_at(&mut [0; 1], 0).unwrap();
                    answered.fetch_add(1, Ordering::Relaxed);
                });
            }
        };
        let mut readers = 0;
        for _ in 0..2 {
            read(readers..readers + READERS);
            readers += READERS;
            wait_until("all readers wait", || waiting(dir.path()) >= readers as usize);
            let held = daemon.descriptors();
            daemon.order(REST);
            daemon.order(&format!("{LEAVE}{}", estate.display()));
            let mut next = heirs.pop().unwrap();
            next.order(&format!("{TAKE}{}", estate.display()));
            next.order(BEGIN_AND_HOLD);
            bury(std::mem::replace(&mut daemon, next));
            assert_eq!((daemon.descriptors(), held), (3, 3), "one for each thread that reads");
        }
        assert_eq!(answered.load(Ordering::Relaxed), 0);
        daemon.order(RELEASE);
        wait_until("all are answered", || answered.load(Ordering::Relaxed) == readers);
    });
    unmount_at(dir.path());
}

/// Processes that look up a name which is not there. Nothing of theirs is closed when they end, which would be a request, too.
fn lookers(dir: &Path, numbers: Range<usize>) -> Vec<Child> {
    let look =
        |number| Command::new("stat").arg(dir.join(format!("x{number}"))).stderr(Stdio::null()).spawn();
    numbers.map(|number| look(number).unwrap()).collect()
}

/// Whether it waits for an answer, so that the kernel has queued its request.
fn waits(process: &Child) -> bool {
    let place = std::fs::read_to_string(format!("/proc/{}/wchan", process.id())).unwrap();
    place == "request_wait_answer"
}

fn have_ended(processes: &mut [Child]) -> bool {
    processes.iter_mut().all(|one| one.try_wait().unwrap().is_some())
}

/// In the pause nobody reads the device, by which the kernel tells of signals; who goes on with the mount hears of them. Whose
/// request the kernel still has ends at once.
///
/// Each makes one request only. Of what somebody asks for with the signal pending already, Linux (6.18) tells nothing over
/// io_uring, which is the way from a directory's attributes to the name that is looked up there.
#[test]
fn who_is_killed_while_a_mount_passes_on_ends_as_soon_as_it_is_served() {
    const EACH: usize = 20;
    let cores = allowed_cores();
    if !is_possible() || cores.len() == 1 {
        return;
    }
    let (dir, scratch) = (new_dir(), tempfile::tempdir().unwrap());
    let estate = scratch.path().join("estate");
    let mut daemon = Daemon::start(dir.path(), Transport::Uring);
    let heirs = [heir(dir.path()), heir(dir.path())];
    let _rescue = Rescue { process: None, dir: dir.path() };
    // Look-ups come to its queue. That of the last core is owed nudges from the start, which may take all of its entries.
    run_on(cores[0]);
    daemon.order(KEEP_ROOT);
    daemon.order(HOLD);
    for (is_given_up, mut next) in [true, false].into_iter().zip(heirs) {
        rest(&mut daemon);
        let mut kept = lookers(dir.path(), 0..EACH);
        let wait_to_be_kept = || waiting(dir.path()) >= EACH && kept.iter().all(waits);
        wait_until("look-ups are kept", wait_to_be_kept);
        daemon.order(&format!("{LEAVE}{}", estate.display()));
        let before = waiting(dir.path());
        let mut in_kernel = lookers(dir.path(), EACH..2 * EACH);
        let wait_in_kernel = || waiting(dir.path()) >= before + EACH && in_kernel.iter().all(waits);
        wait_until("look-ups wait in the kernel", wait_in_kernel);
        next.order(&format!("{TAKE}{}", estate.display()));
        [&mut kept, &mut in_kernel].into_iter().flatten().for_each(|one| one.kill().unwrap());
        wait_until("whose request the kernel has ends", || have_ended(&mut in_kernel));
        assert!(kept.iter_mut().all(|one| one.try_wait().unwrap().is_none()), "they end without an answer");
        match is_given_up {
            true => {
                bury(next);
                daemon.order(STAY);
            }
            false => {
                next.order(BEGIN_AND_HOLD);
                bury(std::mem::replace(&mut daemon, next));
            }
        }
        wait_until("whose request was kept ends", || have_ended(&mut kept));
        wait_until("nothing waits", || waiting(dir.path()) == 0);
    }
    unmount_at(dir.path());
}

/// With calls of before and after the queues were emptied, and it comes back later.
#[test]
#[ignore = "takes a core from the whole machine for a moment"]
fn calls_from_a_core_that_goes_away_while_a_mount_passes_on_are_answered() {
    const EACH: usize = 20;
    let core = allowed_cores().into_iter().next_back().filter(|core| *core > 0);
    let Some(core) = core.filter(|_| is_possible()) else { return };
    let (dir, scratch) = (new_dir(), tempfile::tempdir().unwrap());
    let estate = scratch.path().join("estate");
    let mut daemon = Daemon::start(dir.path(), Transport::Uring);
    let mut next = heir(dir.path());
    thread::scope(|scope| {
        let _rescue = Rescue { process: None, dir: dir.path() };
        let calls = |numbers: Range<usize>| {
            let paths = numbers.map(|number| dir.path().join(number.to_string()));
            let call = |path: std::path::PathBuf| {
                scope.spawn(move || {
                    run_on(core);
                    assert!(path.metadata().unwrap().is_file());
                })
            };
            paths.map(call).collect::<Vec<_>>()
        };
        rest(&mut daemon);
        let mut all = calls(0..EACH);
        wait_until("they wait", || waiting(dir.path()) >= EACH);
        daemon.order(&format!("{LEAVE}{}", estate.display()));
        let before = waiting(dir.path());
        all.extend(calls(EACH..2 * EACH));
        wait_until("all wait", || waiting(dir.path()) >= before + EACH);
        let away = Away::take(core);
        next.order(&format!("{TAKE}{}", estate.display()));
        next.order(BEGIN);
        bury(std::mem::replace(&mut daemon, next));
        wait_until("all are answered", || all.iter().all(|call| call.is_finished()));
        drop(away);
        let last = calls(2 * EACH..3 * EACH);
        wait_until("who calls when it is back is answered", || last.iter().all(|call| call.is_finished()));
    });
    unmount_at(dir.path());
}
