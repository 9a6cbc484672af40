//! Answers that the kernel takes in late: who asked does not get to run while another machine changes what they are about.
//!
//! The kernel copies an answer out when the daemon writes it, but what it means is made of it by the thread that asked, once it
//! runs. On a busy machine that can be after the recall for another machine's change, of which the kernel was told in between.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use soda_system_tests::cell::{
    Cell, LONG_TERM, Mount, PATIENCE, Setting, TERM, prerequisites, skip, transport,
};
use soda_system_tests::wait::{self, TIMED_OUT};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// The core that who asks is kept on, and from.
const CORE: &str = "0";
/// For as long as an answer needs from the server to the kernel. Were it too short, the recall would come before the answer, and
/// the test would find nothing.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
/// Less than Linux lets processes of real time have without a break (`sched_rt_runtime_us`).
const BUSY_SECONDS: f64 = 0.7;
/// A busy machine may need longer than that for the other machine's change.
const TRIES: usize = 10;

/// Takes the core from everybody else until it is dropped.
struct Hog(Child);

impl Hog {
    /// `None`: this user may not.
    fn start() -> Option<Hog> {
        let loops = "end = time.monotonic() + seconds\nwhile time.monotonic() < end: pass";
        let busy = format!("import time; print(flush=True); seconds = {BUSY_SECONDS}\n{loops}");
        let words = ["-c", CORE, "chrt", "-f", "1", "python3", "-c", &busy];
        let mut child = Command::new("taskset").args(words).stdout(Stdio::piped()).spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        if line.is_empty() {
            let _ = child.wait();
            return None;
        }
        Some(Hog(child))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the kernel took the answer in after the other machine's change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Late,
    InTime,
}

/// Tells the story, each time to new mounts, until the answer was late: before that it proves nothing.
fn until_late(mounts: usize, story: impl Fn(&Cell) -> Answer) {
    if prerequisites() {
        // Where the server has to be asked, the answer can be held back.
        let mount_options = &["-o", "write=through"];
        let setting = Setting { term: LONG_TERM, mount_options, ..Setting::default() };
        let is_late = (0..TRIES).any(|_| story(&Cell::assemble(mounts, &setting)) == Answer::Late);
        assert!(is_late, "{TIMED_OUT}: no answer was late");
    }
}

/// Runs `command` on the first mount so that its answer is written, then `other` on the second one, then lets the kernel of the
/// first take the answer in.
fn late(
    cell: &Cell,
    command: &[&OsStr],
    before: impl Fn(&Path) -> bool,
    other: impl FnOnce(&Path),
) -> Answer {
    static ONE_CORE: Mutex<()> = Mutex::new(());
    let _one = ONE_CORE.lock().unwrap_or_else(PoisonError::into_inner);
    let there = cell.root(1);
    cell.server.freeze();
    let mut asks = Command::new("taskset").args(["-c", CORE]).args(command).spawn().unwrap();
    let wchan = format!("/proc/{}/wchan", asks.id());
    let waits = || fs::read_to_string(&wchan).unwrap().contains("request_wait_answer");
    wait::in_time(PATIENCE, &format!("{command:?} asks nothing"), waits);
    let hog = Hog::start();
    cell.server.thaw();
    wait::in_time(PATIENCE, &format!("{command:?} was not done"), || before(there));
    std::thread::sleep(ON_ITS_WAY);
    other(there);
    let is_late = asks.try_wait().unwrap().is_none();
    if hog.is_none() {
        skip("no process of real time may be started");
    }
    let answer = if is_late || hog.is_none() { Answer::Late } else { Answer::InTime };
    drop(hog);
    assert!(asks.wait().unwrap().success(), "{command:?}");
    answer
}

/// Looked at where the answer will not be late first, so that here it stays cached.
fn on_both<T>(cell: &Cell, look: impl Fn(&Path) -> T) -> [T; 2] {
    [cell.root(1), cell.root(0)].map(look)
}

// SEMANTICS 5
#[test]
fn a_late_answer_to_link_is_not_believed() {
    until_late(2, |cell| {
        let links = |root: &Path| fs::metadata(root.join("file")).unwrap().nlink();
        fs::write(cell.root(0).join("file"), b"content").unwrap();
        assert_eq!(on_both(cell, links), [1; 2]);
        // In directories of their own: if names were recalled as well, the file's would be looked up again.
        for [root, dir] in [[cell.root(1), "there".as_ref()], [cell.root(0), "here".as_ref()]] {
            fs::create_dir(root.join(dir)).unwrap();
            assert!(!root.join(dir).join("link").exists());
        }
        let [file, here] = ["file", "here/link"].map(|name| cell.root(0).join(name));
        assert_eq!(on_both(cell, links), [1; 2]);
        let answer = late(
            cell,
            &["ln".as_ref(), file.as_ref(), here.as_ref()],
            |root| links(root) == 2,
            |root| {
                fs::hard_link(root.join("file"), root.join("there/link")).unwrap();
            },
        );
        assert_eq!(links(cell.root(0)), 3);
        answer
    });
}

// SEMANTICS 5
#[test]
fn a_late_answer_to_chmod_is_not_believed() {
    until_late(2, |cell| {
        let mode = |root: &Path| fs::metadata(root.join("file")).unwrap().mode() & 0o7777;
        fs::write(cell.root(0).join("file"), b"content").unwrap();
        assert_eq!(on_both(cell, mode), [0o644; 2]);
        let file = cell.root(0).join("file");
        let answer = late(
            cell,
            &["chmod".as_ref(), "640".as_ref(), file.as_ref()],
            |root| mode(root) == 0o640,
            |root| {
                fs::set_permissions(root.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
            },
        );
        assert_eq!(mode(cell.root(0)), 0o600);
        answer
    });
}

// SEMANTICS 5
#[test]
fn a_late_answer_to_truncate_is_not_believed() {
    until_late(2, |cell| {
        let size = |root: &Path| fs::metadata(root.join("file")).unwrap().len();
        fs::write(cell.root(0).join("file"), b"content").unwrap();
        assert_eq!(on_both(cell, size), [7; 2]);
        let truncate = "import os, sys; os.truncate(sys.argv[1], 3)";
        let file = cell.root(0).join("file");
        let answer = late(
            cell,
            &["python3".as_ref(), "-c".as_ref(), truncate.as_ref(), file.as_ref()],
            |root| size(root) == 3,
            |root| {
                fs::write(root.join("file"), b"new content").unwrap();
            },
        );
        assert_eq!(fs::read(cell.root(0).join("file")).unwrap(), b"new content");
        assert_eq!(size(cell.root(0)), 11);
        answer
    });
}

// SEMANTICS 4
#[test]
fn a_late_listing_is_not_believed() {
    until_late(3, |cell| {
        let dir = |root: &Path| root.join("dir");
        fs::create_dir_all(dir(cell.root(1)).join("old")).unwrap();
        // So that who made it does not keep it for itself.
        assert!(dir(cell.root(2)).join("old").is_dir());
        // Who is in the directory does not look it up again, and with it all below it.
        let held = File::open(dir(cell.root(0))).unwrap();
        let inside = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
        let list = "import os, sys; os.listdir(sys.argv[1])";
        let here = dir(cell.root(0));
        let answer = late(
            cell,
            &["python3".as_ref(), "-c".as_ref(), list.as_ref(), here.as_ref()],
            |_| true,
            |root| fs::rename(dir(root).join("old"), dir(root).join("new")).unwrap(),
        );
        // The daemon does not wait as long as who asked was kept from its core, and tells the kernel again.
        let is_gone = || !inside.join("old").exists();
        assert!(wait::until(Duration::from_secs(5), is_gone), "a name of before is believed");
        assert!(inside.join("new").is_dir());
        answer
    });
}

/// Threads of a mount's daemon that run beside the queue of the core that is taken away.
fn keep_off_core(mount: &Mount) {
    let mut others = CpuSet::new();
    let core: usize = CORE.parse().unwrap();
    (0..CpuSet::MAX_CPU).filter(|other| *other != core).for_each(|other| others.set(other));
    for thread in fs::read_dir(format!("/proc/{}/task", mount.process())).unwrap() {
        let thread = thread.unwrap().path();
        let name = fs::read_to_string(thread.join("comm")).unwrap();
        if name.trim() != format!("fuse-core-{CORE}") {
            let number = thread.file_name().unwrap().to_str().unwrap().parse::<i32>().unwrap();
            sched_setaffinity(Pid::from_raw(number), &others).unwrap();
        }
    }
}

/// Over io_uring who has an answer leaves it to the queue's thread, which may not get its core for longer than the lease has in
/// reserve: what the kernel is told then begins to count too late.
// SEMANTICS 37
#[test]
fn an_answer_that_the_kernel_gets_too_late_for_its_lease_is_noticed() {
    /// Longer than is kept in reserve of `TERM`: an eighth, and 40 ms.
    const TOO_LONG: Duration = Duration::from_millis(400);
    const NOTICED: &str = "stopped while answering";
    if !prerequisites() || transport() != "uring" {
        return println!("of io_uring only");
    }
    let mount_options = &["-o", "write=through"];
    let setting = Setting { term: TERM, mount_options, ..Setting::default() };
    let is_noticed = (0..TRIES).any(|_| {
        let cell = Cell::assemble(2, &setting);
        fs::write(cell.root(1).join("file"), b"content").unwrap();
        keep_off_core(&cell.mounts[0]);
        let file = cell.root(0).join("file");
        let log = || fs::read_to_string(cell.mounts[0].log()).unwrap();
        assert!(!log().contains(NOTICED), "{}", log());
        late(&cell, &["stat".as_ref(), file.as_ref()], |_| true, |_| std::thread::sleep(TOO_LONG));
        // Not where the server was away for so long that nothing was left of the lease.
        wait::until(TERM / 2, || log().contains(NOTICED))
    });
    assert!(is_noticed, "no answer was noticed to be late");
}

/// Linux takes attributes for valid just before it sets them, and stat takes no lock: who looks just then would see those of
/// before. That is some nanoseconds in a thousand looks, so it is counted here who asks.
// SEMANTICS 5
#[test]
fn attributes_of_another_machine_are_believed_from_the_second_answer_on() {
    if !prerequisites() {
        return;
    }
    // What is not told is not leased.
    let mount_options = &["-o", "write=through"];
    let setting = Setting { term: LONG_TERM, mount_options, ..Setting::default() };
    let cell = Cell::assemble(2, &setting);
    let file = |mount| cell.root(mount).join("file");
    let set = |mount, seconds| {
        File::open(file(mount)).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    };
    // The release of a descriptor comes when it comes, and does not count.
    let asked = || ["op_getattr", "op_lookup"].map(|name| cell.mounts[0].counter(name)).iter().sum::<u64>();
    // How often each of four looks asks the daemon.
    let looks = |expected: i64| {
        [(); 4].map(|()| {
            let before = asked();
            assert_eq!(fs::metadata(file(0)).unwrap().mtime(), expected);
            asked() - before
        })
    };
    File::create(file(1)).unwrap();
    set(1, 600);
    // The directory, which has a new name, is asked for, too.
    assert_eq!(looks(600)[2..], [0; 2]);
    set(1, 640);
    assert_eq!(looks(640), [1, 1, 0, 0]);
    set(0, 644);
    assert_eq!(looks(644)[1..], [0; 3], "an own change");
}
