//! The process beside a mount's daemon: what it sees to when the daemon is killed, and that it is in nobody's way.

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use soda_system_tests::cell::{Cell, Network, PATIENCE, prerequisites, soda_binary};
use soda_system_tests::wait::{self, Finish, TIMED_OUT};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// In which who waits for a daemon that was killed gets an error: the guard looks once a second; else a busy machine's delays.
const FREED: Duration = Duration::from_secs(5);
/// Where the kernel waits for the lock of the directory whose names it is to drop.
const TAKES_NAMES_BACK: &str = "fuse_reverse_inval_entry";

/// Ends a mount's connection when the test does, however: else nobody could end it.
struct Rescue(File);

impl Drop for Rescue {
    fn drop(&mut self) {
        let _ = self.0.write_all(b"1");
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// It has been started, but need not have its name yet.
fn guard_of(cell: &Cell) -> u32 {
    let mut guard = None;
    wait::in_time(PATIENCE, "no guard", || {
        guard = cell.mounts[0].guard();
        guard.is_some()
    });
    guard.expect("a guard")
}

/// Operations that wait at the server.
fn waiting(cell: &Cell) -> u64 {
    let mut status = Command::new(soda_binary());
    status.args(["status", "--json", "--server", &cell.server.address()]);
    // Without the mounts, of which two do not answer.
    status.env("SODA_RUNTIME_DIR", cell.scratch());
    let output = wait::run(&mut status, PATIENCE).expect_success("status");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    status["servers"][0]["waiting"].as_u64().unwrap()
}

fn is_stack(threads: &Path, matches: impl Fn(&str) -> bool) -> bool {
    let stacks = fs::read_dir(threads).unwrap();
    let mut stacks = stacks.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stack")).ok());
    stacks.any(|stack| matches(&stack))
}

/// A thread of this process that makes a directory in `dir`.
struct Maker {
    stack: PathBuf,
    done: mpsc::Receiver<Result<(), Errno>>,
}

impl Maker {
    fn start(dir: &File, name: &'static str) -> Maker {
        let (tell, told) = mpsc::channel();
        let (finish, done) = mpsc::channel();
        let dir = dir.try_clone().unwrap();
        thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            let _ = finish.send(mkdirat(&dir, name, Mode::RWXU));
        });
        let thread = told.recv().unwrap().as_raw_nonzero();
        Maker { stack: format!("/proc/self/task/{thread}/stack").into(), done }
    }

    /// Whether it has the directory's lock. If not, it asks for the directory's attributes, which it has to do first where the
    /// kernel believes them no more.
    fn has_lock(&self) -> bool {
        let mut stack = String::new();
        let asks = wait::until(PATIENCE, || {
            stack = fs::read_to_string(&self.stack).unwrap();
            stack.contains("fuse_")
        });
        assert!(asks, "{TIMED_OUT}: it does not wait for the daemon: {stack}");
        !stack.contains("parentat") && !stack.contains("link_path_walk")
    }
}

/// The kernel of mount 0 holds a directory's lock for a mkdir that waits for mount 1, which is frozen. Mount 0 is asked for the
/// directory, and a thread of its daemon waits for that lock to drop the names.
fn stuck(death: Signal) {
    let cell = Cell::unhurried(3);
    let _rescue = Rescue(cell.mounts[0].abort_knob());
    let daemon = cell.mounts[0].process();
    fs::create_dir(cell.root(2).join("dir")).unwrap();
    fs::write(cell.root(2).join("dir/file"), b"content").unwrap();
    let dir = File::open(cell.root(0).join("dir")).unwrap();
    let mut names = ["one", "two", "three", "four", "five", "six"].into_iter();
    let waits = loop {
        // Both cache the directory, and mount 0 names in it.
        for number in [0, 1] {
            fs::read_dir(cell.root(number).join("dir")).unwrap().for_each(|entry| drop(entry.unwrap()));
            assert!(
                cell.root(number).join("dir/file").exists() && !cell.root(number).join("dir/new").exists()
            );
        }
        dir.metadata().unwrap();
        // So that the server hears of the other machine's operation first.
        cell.mounts[0].freeze();
        let waits = Maker::start(
            &dir,
            names.next().expect("the directory's attributes are asked for again and again"),
        );
        if waits.has_lock() {
            break waits;
        }
        cell.mounts[0].thaw();
        waits.done.recv_timeout(PATIENCE).unwrap().unwrap();
    };
    cell.mounts[1].freeze();
    let mut other = Command::new("touch").arg(cell.root(2).join("dir/new")).spawn().unwrap();
    wait::in_time(PATIENCE, "the other machine waits for nobody", || waiting(&cell) > 0);
    cell.mounts[0].thaw();
    let threads = PathBuf::from(format!("/proc/{daemon}/task"));
    let is_stuck = || is_stack(&threads, |stack| stack.contains(TAKES_NAMES_BACK));
    wait::in_time(PATIENCE, "the daemon is not stuck", is_stuck);

    signal(daemon, death);
    match waits.done.recv_timeout(FREED) {
        // CANCELED: over io_uring (Linux 6.18), if it had not been brought to the daemon.
        Ok(Err(Errno::CONNABORTED | Errno::NOTCONN | Errno::CANCELED)) => {}
        other => panic!("who waited for the daemon: {other:?}"),
    }
    let finish = wait::run(Command::new("stat").args(["-f"]).arg(cell.root(0)), FREED);
    assert!(matches!(&finish, Finish::Exited(output) if !output.status.success()), "{finish:?}");
    let has_ended = || fs::read_dir(&threads).map_or(0, Iterator::count) <= 1;
    assert!(wait::until(FREED, has_ended), "a thread of the daemon is left");
    let _ = other.kill();
    let _ = other.wait();
}

/// For an older kernel than Linux 6.16 the client takes its mkdir back when the directory is recalled: what waits there is a
/// look-up that comes in the same moment, which nobody can bring about at will.
fn drops_names_without_a_lock() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let does = (numbers.next(), numbers.next()) >= (Some(6), Some(16));
    if !does {
        println!("not on Linux {release}");
    }
    does
}

// SEMANTICS 40
#[test]
fn who_waits_for_a_daemon_that_is_killed_while_it_takes_a_name_back_gets_an_error() {
    if prerequisites() && drops_names_without_a_lock() {
        stuck(Signal::KILL);
    }
}

/// A process whose memory is to be dumped waits for all of its threads first, as none of them is a zombie.
#[test]
fn so_does_who_waits_for_one_that_crashes_meanwhile() {
    if prerequisites() && drops_names_without_a_lock() {
        stuck(Signal::ABORT);
    }
}

fn status_of(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

#[test]
fn a_guard_holds_nothing_open_outlasts_who_asks_for_an_end_and_ends_with_the_mount() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 1);
    let guard = guard_of(&cell);
    let is_ready = || status_of(guard, "NSsid:") == guard.to_string();
    wait::in_time(PATIENCE, "it is in the daemon's session", is_ready);
    let descriptor = |number: u32| fs::read_link(format!("/proc/{guard}/fd/{number}")).unwrap();
    assert_eq!(descriptor(2), Path::new("/dev/null"));
    assert!(descriptor(0).ends_with("abort") && descriptor(1).to_str().unwrap().starts_with("pipe:"));
    let all = || fs::read_dir(format!("/proc/{guard}/fd")).unwrap().map(|fd| fd.unwrap().path());
    let device = Path::new("/dev/fuse");
    assert!(
        all().all(|fd| fs::read_link(fd).is_ok_and(|file| file != device)),
        "it keeps the connection alive"
    );
    assert_eq!(fs::read_link(format!("/proc/{guard}/cwd")).unwrap(), Path::new("/"));
    // Of SIGTERM, SIGINT and SIGHUP.
    const CAUGHT: u64 = 1 << 14 | 1 << 1 | 1;
    let caught = || u64::from_str_radix(&status_of(guard, "SigCgt:"), 16).unwrap();
    assert!(wait::until(PATIENCE, || caught() & CAUGHT == CAUGHT), "{:x}", caught());
    for request in [Signal::TERM, Signal::INT, Signal::HUP] {
        signal(guard, request);
    }
    fs::write(cell.root(0).join("file"), b"content").unwrap();
    assert_eq!(cell.mounts[0].guard(), Some(guard));
    cell.mounts[0].unmount();
    wait::in_time(PATIENCE, "it is left", || !Path::new(&format!("/proc/{guard}")).exists());
}

/// Nothing waits for a daemon that is gone to the last thread: the kernel itself has ended the connection.
#[test]
fn a_guard_ends_with_its_daemon_and_a_mount_goes_on_without_its_guard() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 1);
    let guard = guard_of(&cell);
    cell.mounts[0].kill();
    wait::in_time(PATIENCE, "it is left", || !Path::new(&format!("/proc/{guard}")).exists());
    cell.mounts[0].crash();
    cell.mounts[0].start();

    let guard = guard_of(&cell);
    signal(guard, Signal::KILL);
    let told = || fs::read_to_string(cell.mounts[0].log()).unwrap().contains("the guard of");
    wait::in_time(PATIENCE, "the daemon says nothing of it", told);
    assert_eq!(cell.mounts[0].guard(), None, "nobody waits for what it has left");
    fs::write(cell.root(0).join("file"), b"content").unwrap();
    cell.mounts[0].unmount();
}
