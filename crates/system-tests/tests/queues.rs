//! What becomes of callers when a queue of io_uring runs short, gets no more entries, or does not work any more.
//!
//! A program of its own: it turns the kernel's switch, without which no other test could mount meanwhile.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use soda_system_tests::cell::{Cell, LONG_TERM, Mount, PATIENCE, Setting, prerequisites, transport};
use soda_system_tests::wait;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// More than twice the entries that a queue begins with.
const CALLERS: u64 = 300;

/// Hands the kernel an entry for a queue of another process's mount, and does not say where it is. What comes of it is printed.
const SPOIL: &str = r"
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
IO_URING_SETUP, IO_URING_ENTER, PIDFD_GETFD = 425, 426, 438
process = int(sys.argv[1])
is_device = lambda fd: os.readlink(f'/proc/{process}/fd/{fd}') == '/dev/fuse'
fd = next(int(fd) for fd in os.listdir(f'/proc/{process}/fd') if is_device(fd))
device = call(PIDFD_GETFD, os.pidfd_open(process), fd, 0)
parameters = ctypes.create_string_buffer(120)
struct.pack_into('I', parameters, 8, 1 << 10)  # IORING_SETUP_SQE128
ring = call(IO_URING_SETUP, 4, parameters)
tail, array = (struct.unpack_from('I', parameters, at)[0] for at in (44, 64))
completions = struct.unpack_from('I', parameters, 100)[0]
queue = mmap.mmap(ring, max(array + 4 * 4, completions + 8 * 16), mmap.MAP_SHARED)
commands = mmap.mmap(ring, 4 * 128, mmap.MAP_SHARED, offset=0x10000000)
struct.pack_into('BxxxiI', commands, 0, 46, device, 1)  # IORING_OP_URING_CMD, FUSE_IO_URING_CMD_REGISTER
struct.pack_into('I', queue, array, 0)
struct.pack_into('I', queue, tail, 1)
call(IO_URING_ENTER, ring, 1, 1, 1, None, 0)
print(struct.unpack_from('i', queue, completions + 8)[0])
";

/// The switch is off while this lives, and who minds the lock leaves it so.
struct Off {
    _lock: File,
    was: String,
}

impl Off {
    fn turn() -> Off {
        let lock = File::open(SWITCH).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let was = fs::read_to_string(SWITCH).unwrap();
        fs::write(SWITCH, "N").unwrap();
        Off { _lock: lock, was }
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.was.trim());
    }
}

/// From now on the kernel takes no command for the mount's queues: Linux (6.18) forgets that they are in use when it has
/// refused an entry, and looks at the switch again.
fn refuse(mount: &Mount) -> Off {
    let off = Off::turn();
    let mut spoil = Command::new("python3");
    let output = wait::run(spoil.args(["-c", SPOIL, &mount.process().to_string()]), PATIENCE);
    let output = output.expect_success("a bad entry");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "-22", "{output:?}");
    off
}

/// Ends a mount's connection when the test does, however: else nobody could end those who wait.
struct Rescue(File);

impl Drop for Rescue {
    fn drop(&mut self) {
        let _ = self.0.write_all(b"1");
    }
}

fn log(mount: &Mount) -> String {
    fs::read_to_string(mount.log()).unwrap()
}

/// A mount over io_uring where the server has each change at once; one test has one at a time.
fn with_mount(test: impl FnOnce(&mut Cell)) {
    static ONE: Mutex<()> = Mutex::new(());
    if !prerequisites() {
        return;
    }
    if transport() != "uring" {
        return println!("of io_uring only");
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let setting = Setting {
        term: LONG_TERM,
        mount_options: &["-o", "write=through"],
        // What it says each time that it gives a queue more entries; and it finds no other program.
        mount_prefix: &["env", "RUST_LOG=info,soda_fuse=debug", "PATH=/nowhere"],
        ..Setting::default()
    };
    let mut cell = Cell::assemble(2, &setting);
    test(&mut cell);
}

fn run_on_one_core() {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

/// Of a name that is not there.
fn look_up(dir: &Path, number: u64) -> Errno {
    rustix::fs::stat(dir.join(format!("x{number}"))).unwrap_err()
}

/// So many look names up, all from one core, before the daemon takes anything in hand, and the server is away.
fn crowd(cell: &Cell, count: u64) -> Vec<JoinHandle<Errno>> {
    let root = cell.root(0);
    // The first answer is not believed (`late_answers.rs`), and callers would ask for that, too.
    let asked = || cell.mounts[0].counter("op_getattr");
    wait::in_time(PATIENCE, "the root directory is asked for again and again", || {
        let before = asked();
        root.metadata().unwrap();
        asked() == before
    });
    cell.server.freeze();
    cell.mounts[0].freeze();
    let callers = (0..count).map(|number| {
        let root = root.to_owned();
        thread::spawn(move || {
            run_on_one_core();
            look_up(&root, number)
        })
    });
    let callers = callers.collect();
    wait::in_time(PATIENCE, "not all call", || cell.mounts[0].waiting() >= count);
    callers
}

/// That all of them come to the daemon, and none has an answer.
fn all_come(cell: &Cell, count: u64) {
    wait::in_time(PATIENCE, "some are left in the kernel", || cell.mounts[0].counter("op_lookup") >= count);
    assert!(cell.mounts[0].waiting() >= count);
}

/// The kernel is asked about a file to have it hand over who waits already, and knows none: it is shown one.
#[test]
fn who_waits_on_a_mount_where_nobody_has_named_a_file_comes_to_the_daemon() {
    with_mount(|cell| {
        let _rescue = Rescue(cell.mounts[0].abort_knob());
        let callers = crowd(cell, CALLERS);
        cell.mounts[0].thaw();
        all_come(cell, CALLERS);
        cell.server.thaw();
        callers.into_iter().for_each(|caller| assert_eq!(caller.join().unwrap(), Errno::NOENT));
    });
}

/// As in a control group that has no memory left for a while.
#[test]
fn a_queue_whose_entries_the_kernel_refuses_asks_again_after_pauses_and_says_so_once() {
    /// With pauses of 10, 20, 40 and 80 ms between.
    const TRIES: usize = 5;
    with_mount(|cell| {
        let _rescue = Rescue(cell.mounts[0].abort_knob());
        let callers = crowd(cell, CALLERS);
        let off = refuse(&cell.mounts[0]);
        cell.mounts[0].thaw();
        let tries = || log(&cell.mounts[0]).matches("more entries").count();
        wait::in_time(PATIENCE, "it does not ask again", || tries() >= TRIES);
        let log = log(&cell.mounts[0]);
        assert_eq!(log.lines().filter(|line| line.contains("refuse")).count(), 1, "{log}");
        drop(off);
        all_come(cell, CALLERS);
        cell.server.thaw();
        callers.into_iter().for_each(|caller| assert_eq!(caller.join().unwrap(), Errno::NOENT));
        fs::write(cell.root(0).join("file"), b"content").unwrap();
    });
}

/// Bytes of one request at the most.
const LARGEST: u64 = 1 << 20;
/// What entries of one queue may keep, and what one takes in any case (`entry_memory.rs`).
const KEPT: u64 = 64 << 20;
const EACH: u64 = 20 << 10;

/// Memory that the daemon's entries have, bytes: they are where nothing else is, and some on a file.
fn entries_have(mount: &Mount) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", mount.process())).unwrap();
    let mut is_of_entries = false;
    let mut have = on_file(mount);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if let Some((begin, _)) = first.split_once('-') {
            let begin = u64::from_str_radix(begin, 16).unwrap();
            is_of_entries = (1 << 44..1 << 46).contains(&begin);
        } else if is_of_entries && first == "Rss:" {
            have += words.next().unwrap().parse::<u64>().unwrap() << 10;
        }
    }
    have
}

fn on_file(mount: &Mount) -> u64 {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", mount.process())).unwrap();
    let is_for_answers = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|file| file.to_string_lossy().contains("memfd:soda-answers"))
    };
    let files = descriptors.filter_map(|descriptor| Some(descriptor.ok()?.path())).filter(is_for_answers);
    files.map(|file| file.metadata().unwrap().blocks() * 512).sum()
}

/// So many call, each with a buffer of the largest size and where in the file that belongs, while the server is away. Returns
/// what the entries have then.
fn large_crowd(cell: &Cell, call: impl Fn(&File, &mut [u8], u64) -> io::Result<usize> + Sync) -> u64 {
    let path = cell.root(0).join("large");
    let file = File::options().read(true).write(true).open(path).unwrap();
    cell.server.freeze();
    let mut have = 0;
    thread::scope(|scope| {
        for number in 0..CALLERS {
            let (file, call) = (&file, &call);
            scope.spawn(move || {
                run_on_one_core();
                let mut buffer = vec![7; LARGEST as usize];
                assert_eq!(call(file, &mut buffer, number * LARGEST).unwrap(), buffer.len());
            });
        }
        wait::in_time(PATIENCE, "not all call", || cell.mounts[0].counter("kernel_waiting") >= CALLERS);
        have = entries_have(&cell.mounts[0]);
        cell.server.thaw();
    });
    have
}

/// That the entries have not kept what a crowd needed, and that it is told how much they may have.
fn is_given_back(mount: &Mount) {
    let (have, told) = (entries_have(mount), mount.counter("kernel_entry_bytes"));
    let most = KEPT + LARGEST + mount.counter("kernel_entries") * EACH;
    assert!(have <= told && told <= most, "{have} bytes, {told} told, {most} at most");
}

#[test]
fn large_writes_that_waited_at_the_same_time_leave_little_memory() {
    with_mount(|cell| {
        let _rescue = Rescue(cell.mounts[0].abort_knob());
        File::create(cell.root(0).join("large")).unwrap().set_len(CALLERS * LARGEST).unwrap();
        let have = large_crowd(cell, |file, buffer, at| file.write_at(buffer, at));
        assert!(have > CALLERS * LARGEST, "only {have} bytes: they did not come at the same time");
        is_given_back(&cell.mounts[0]);
        let mut read = vec![0; LARGEST as usize];
        File::open(cell.root(0).join("large"))
            .unwrap()
            .read_exact_at(&mut read, (CALLERS - 1) * LARGEST)
            .unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
    });
}

/// An entry is handed over with the answer in it: nothing of that is to stay.
#[test]
fn large_reads_that_waited_at_the_same_time_leave_little_memory() {
    with_mount(|cell| {
        let _rescue = Rescue(cell.mounts[0].abort_knob());
        let path = cell.root(1).join("large");
        let content: Vec<u8> = (0..CALLERS).flat_map(|number| vec![number as u8; LARGEST as usize]).collect();
        fs::write(&path, content).unwrap();
        // What can write is read past the kernel's pages.
        large_crowd(cell, |file, buffer, at| {
            let read = file.read_at(buffer, at)?;
            assert!(buffer.iter().all(|byte| *byte == (at / LARGEST) as u8));
            Ok(read)
        });
        is_given_back(&cell.mounts[0]);
    });
}

/// Who waits would else wait for ever.
// SEMANTICS 40
#[test]
fn a_mount_whose_answers_the_kernel_refuses_ends() {
    with_mount(|cell| {
        let _rescue = Rescue(cell.mounts[0].abort_knob());
        let root = cell.root(0).to_owned();
        let callers = crowd(cell, 1);
        cell.mounts[0].thaw();
        all_come(cell, 1);
        let off = refuse(&cell.mounts[0]);
        cell.server.thaw();
        wait::in_time(PATIENCE, "who waits goes on waiting", || callers[0].is_finished());
        for caller in callers {
            let error = caller.join().unwrap();
            assert!(matches!(error, Errno::CONNABORTED | Errno::NOTCONN), "{error}");
        }
        drop(off);
        assert_eq!(rustix::fs::statfs(&root).unwrap_err(), Errno::NOTCONN);
        let log = log(&cell.mounts[0]);
        assert!(log.contains("a queue of the mount does not work any more"), "{log}");
        cell.crash_client(0);
        fs::write(root.join("file"), b"content").unwrap();
    });
}
