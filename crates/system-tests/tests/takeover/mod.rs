//! A mount passes from one process to another, and nobody who uses it notices.

mod descriptors;
mod warm;

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use soda_system_tests::cell::{Cell, LONG_TERM, PATIENCE, Setting, prerequisites, soda_binary, transport};
use soda_system_tests::story::{OldKernel, Story};
use soda_system_tests::wait::{self, Finish};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// No program waits longer for a take-over, by the bounds in `mount/leave.rs` and `takeover.rs`: 3 s to come to rest, 5 s for the
/// server, 10 s for the heir, 2 s for the guard. As a rule it is some hundredths of a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// In which a lock that is not to be had is not had.
const STILL: Duration = Duration::from_millis(300);

fn reread(file: &mut File) -> String {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// The directory with delayed writes' log, and a cell of which all mounts have it.
fn logging_cell(mounts: usize) -> (tempfile::TempDir, Cell) {
    let logs = tempfile::tempdir().unwrap();
    let cache_dir = logs.path().display().to_string();
    let mount_options = ["--cache-dir", &cache_dir, "-o", "write=behind,dirty-age=1h"];
    let setting = Setting { mount_options: &mount_options, term: LONG_TERM, ..Setting::default() };
    let cell = Cell::assemble(mounts, &setting);
    (logs, cell)
}

fn socket_of(process: u32) -> Option<PathBuf> {
    let start = format!("mount-{process}-");
    let runtime = std::env::var_os("SODA_RUNTIME_DIR").map_or("/run/soda".into(), PathBuf::from);
    let mut sockets = fs::read_dir(runtime).unwrap().map(|entry| entry.unwrap());
    let is_ours = |name: &str| name.starts_with(&start) && name.ends_with(".sock");
    let ours = sockets.find(|socket| is_ours(&socket.file_name().to_string_lossy()));
    ours.map(|socket| socket.path())
}

/// The same of a daemon that may just have mounted: it can be asked a moment later.
fn socket_soon_of(process: u32) -> PathBuf {
    wait::in_time(PATIENCE, "there is no control socket", || socket_of(process).is_some());
    socket_of(process).expect("a control socket")
}

/// What a daemon says to a line.
fn ask(process: u32, line: &str) -> String {
    let mut daemon = UnixStream::connect(socket_soon_of(process)).unwrap();
    daemon.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut said = String::new();
    BufReader::new(daemon).read_line(&mut said).unwrap();
    said
}

fn failure(finish: Finish) -> (Option<i32>, String) {
    let output = finish.output("who tries to take the mount over");
    assert!(!output.status.success(), "{output:?}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// As in a container that has the program and nothing else.
#[test]
fn a_daemon_that_finds_no_other_program_hands_over() {
    if !prerequisites() {
        return;
    }
    let setting = Setting { term: LONG_TERM, mount_prefix: &["env", "PATH=/nowhere"], ..Setting::default() };
    let mut cell = Cell::assemble(1, &setting);
    let first = cell.mounts[0].process();
    cell.mounts[0].take_over();
    assert_ne!(cell.mounts[0].process(), first);
    fs::write(cell.root(0).join("file"), "content").unwrap();
}

// SEMANTICS 57
#[test]
fn open_files_go_on_also_without_a_name() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let path = cell.root(0).join("file");
    let open = || File::options().read(true).append(true).create(true).open(&path).unwrap();
    let (mut appending, mut nameless) = (open(), File::create_new(cell.root(0).join("gone")).unwrap());
    let mut reading = File::open(&path).unwrap();
    appending.write_all(b"one ").unwrap();
    nameless.write_all(b"still here").unwrap();
    fs::remove_file(cell.root(0).join("gone")).unwrap();
    assert_eq!(reread(&mut reading), "one ");
    let first = cell.mounts[0].process();
    for number in ["two ", "three "] {
        cell.mounts[0].take_over();
        appending.write_all(number.as_bytes()).unwrap();
        assert!(reread(&mut reading).ends_with(number));
        nameless.write_all_at(number.as_bytes(), 20).unwrap();
    }
    assert_ne!(cell.mounts[0].process(), first);
    assert_eq!(fs::read_to_string(cell.root(1).join("file")).unwrap(), "one two three ");
    File::options().append(true).open(cell.root(1).join("file")).unwrap().write_all(b"four").unwrap();
    assert_eq!(reread(&mut reading), "one two three four");
    let mut rest = [0; 26];
    let nameless_too = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless)));
    nameless_too.unwrap().read_exact_at(&mut rest, 0).unwrap();
    assert_eq!(&rest, b"still here\0\0\0\0\0\0\0\0\0\0three ");
    let daemon = cell.mounts[0].process();
    let status: serde_json::Value = serde_json::from_str(&ask(daemon, "\"status\"")).unwrap();
    assert_eq!(status["pid"], daemon);
    assert!(socket_of(first).is_none(), "who served before answers no more");
    drop((appending, nameless, reading));
    cell.mounts[0].unmount();
}

// SEMANTICS 57
#[test]
fn a_directory_that_is_half_read_is_read_on() {
    const NAMES: usize = 4000;
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let dir = cell.root(0).join("dir");
    fs::create_dir(&dir).unwrap();
    let names: BTreeSet<String> = (0..NAMES).map(|number| format!("a name that is long {number}")).collect();
    names.iter().for_each(|name| drop(File::create(dir.join(name)).unwrap()));
    let mut listing = fs::read_dir(&dir).unwrap();
    let mut seen = Vec::new();
    for part in 0..3 {
        // Each time more than the C library has asked for in advance.
        seen.extend(listing.by_ref().take(NAMES / 4).map(|entry| entry.unwrap().file_name()));
        cell.mounts[0].take_over();
        // A place in the listing stays what it is.
        let read = &seen[part * NAMES / 4..][..100];
        read.iter().for_each(|name| fs::remove_file(cell.root(1).join("dir").join(name)).unwrap());
    }
    seen.extend(listing.map(|entry| entry.unwrap().file_name()));
    let seen: Vec<String> = seen.into_iter().map(|name| name.into_string().unwrap()).collect();
    assert_eq!(seen.len(), NAMES);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), names);
}

/// A thread that waits for a lock.
fn waiter(lock: impl FnOnce() -> Result<(), Errno> + Send + 'static) -> mpsc::Receiver<Result<(), Errno>> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(lock()));
    told
}

// SEMANTICS 57
#[test]
fn locks_are_held_and_waited_for() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let open = |mount: usize, name: &str| {
        let path = cell.root(mount).join(name);
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    // Both decided at mount 0 alone, until somebody else asks.
    let (held, record) = (open(0, "flock"), open(0, "record"));
    flock(&held, FlockOperation::LockExclusive).unwrap();
    fcntl_lock(&record, FlockOperation::LockExclusive).unwrap();
    // What others hold.
    let theirs = (open(1, "flock of theirs"), open(1, "record of theirs"));
    flock(&theirs.0, FlockOperation::LockExclusive).unwrap();
    fcntl_lock(&theirs.1, FlockOperation::LockExclusive).unwrap();
    let (same, first, second) = (open(0, "flock"), open(0, "flock of theirs"), open(0, "record of theirs"));
    let other_mount = (open(1, "flock"), open(1, "record"));
    let waits = [
        waiter(move || flock(&same, FlockOperation::LockExclusive)),
        waiter(move || flock(&first, FlockOperation::LockShared)),
        waiter(move || fcntl_lock(&second, FlockOperation::LockExclusive)),
    ];
    wait::in_time(PATIENCE, "not all wait", || cell.mounts[0].counter("kernel_waiting") == 3);
    for _ in 0..2 {
        cell.mounts[0].take_over();
    }
    assert!(waits.iter().all(|wait| wait.recv_timeout(STILL).is_err()), "who waits goes on waiting");
    let refused = Err(Errno::WOULDBLOCK);
    assert_eq!(flock(&other_mount.0, FlockOperation::NonBlockingLockExclusive), refused);
    assert_eq!(fcntl_lock(&other_mount.1, FlockOperation::NonBlockingLockExclusive), refused);
    drop((held, theirs));
    for wait in &waits {
        assert_eq!(wait.recv_timeout(PATIENCE).expect("the lock"), Ok(()));
    }
    drop(record);
    fcntl_lock(&other_mount.1, FlockOperation::LockExclusive).unwrap();
}

// SEMANTICS 57
#[test]
fn a_history_with_take_overs_is_one_of_one_copy() {
    Story::of(3).with_seed(81).disturbed(|stage| {
        for client in [0, 1, 0] {
            stage.take_over(client);
        }
    });
}

// SEMANTICS 57
#[test]
fn a_history_with_take_overs_of_mounts_that_log_is_one_of_one_copy() {
    let logs = tempfile::tempdir().unwrap();
    Story::of(2).writing_behind_with_logs_in(logs.path()).with_seed(82).disturbed(|stage| {
        for client in [0, 1, 0] {
            stage.take_over(client);
        }
    });
}

/// Names run out there; they cannot be dropped at once.
// SEMANTICS 57
#[test]
fn a_history_with_take_overs_on_an_older_kernel_is_one_of_one_copy() {
    Story::of(2).on_kernel(OldKernel::Linux6_15).with_seed(83).disturbed(|stage| {
        for client in [0, 1] {
            stage.take_over(client);
        }
    });
}

/// Over io_uring the kernel has to be asked about a file, and knows none here.
// SEMANTICS 57
#[test]
fn an_empty_mount_that_nobody_has_used_is_handed_over() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(1);
    for name in ["one", "two", "three"] {
        cell.mounts[0].take_over();
        fs::create_dir(cell.root(0).join(name)).unwrap();
    }
    let said: serde_json::Value = serde_json::from_str(&ask(cell.mounts[0].process(), "\"status\"")).unwrap();
    assert_eq!(said["transport"], transport());
    assert_eq!(fs::read_dir(cell.root(0)).unwrap().count(), 3);
    cell.mounts[0].unmount();
}

// SEMANTICS 57
#[test]
fn delayed_writes_before_and_after_are_not_lost() {
    if !prerequisites() {
        return;
    }
    let (_logs, mut cell) = logging_cell(1);
    let file = |name: &str| cell.root(0).join(name);
    let (before, between, after) = (file("before"), file("between"), file("after"));
    fs::write(&before, b"before").unwrap();
    cell.mounts[0].take_over();
    fs::write(&between, b"between").unwrap();
    cell.mounts[0].take_over();
    fs::write(&after, b"after").unwrap();
    assert!(cell.mounts[0].counter("backlog_records") > 0, "the server has not heard of the last one");
    cell.crash_client(0);
    for (path, content) in [(&before, "before"), (&between, "between"), (&after, "after")] {
        assert_eq!(fs::read_to_string(path).unwrap(), content);
    }
    assert_eq!(cell.mounts[0].counter("lost_records"), 0);
}

// SEMANTICS 57
#[test]
fn an_heir_that_dies_leaves_the_mount_to_who_has_it() {
    if !prerequisites() {
        return;
    }
    let (_logs, mut cell) = logging_cell(2);
    let (daemon, path) = (cell.mounts[0].process(), cell.root(0).join("file"));
    let mut file = File::create_new(&path).unwrap();
    file.write_all(b"one").unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let theirs = File::open(cell.root(1).join("file")).unwrap();
    let same = File::open(&path).unwrap();
    let waits = waiter(move || flock(&same, FlockOperation::LockShared));
    wait::in_time(PATIENCE, "nobody waits", || cell.mounts[0].counter("kernel_waiting") == 1);
    let finish = cell.mounts[0].try_to_take_over(&["SODA_CRASH_POINT=client.heir-connected"]);
    failure(finish);
    file.write_all(b" two").unwrap();
    assert_eq!(flock(&theirs, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    assert!(waits.recv_timeout(STILL).is_err());
    assert_eq!(cell.mounts[0].process(), daemon);
    assert_eq!(fs::read_to_string(cell.root(1).join("file")).unwrap(), "one two");
    drop(file);
    assert_eq!(waits.recv_timeout(PATIENCE).expect("the lock"), Ok(()));
    wait::in_time(PATIENCE, "the daemon has no guard any more", || cell.mounts[0].guard().is_some());
    cell.mounts[0].take_over();
    assert_eq!(fs::read_to_string(&path).unwrap(), "one two");
}

/// Nothing was told when it is too late, and nobody is left to serve: as after any crash.
// SEMANTICS 57
#[test]
fn who_has_the_mount_dies_in_the_middle() {
    if !prerequisites() {
        return;
    }
    let (_logs, mut cell) = logging_cell(2);
    cell.mounts[0].take_over_with(&["SODA_CRASH_POINT=client.let-go"]);
    fs::write(cell.root(0).join("file"), b"content").unwrap();
    let (_, said) = failure(cell.mounts[0].try_to_take_over(&[]));
    assert!(said.contains("the running daemon does not answer"), "{said}");
    // The free space: attributes the kernel may know.
    let mut space = Command::new("stat");
    let finish = wait::run(space.arg("--file-system").arg(cell.root(0)), PATIENCE).output("a dead mount");
    assert!(!finish.status.success(), "{finish:?}");
    cell.crash_client(0);
    for mount in [0, 1] {
        assert_eq!(fs::read_to_string(cell.root(mount).join("file")).unwrap(), "content");
    }
}

/// The heir has begun a log of its own, and dies: two logs name the session.
// SEMANTICS 57
#[test]
fn an_heir_that_dies_too_late_is_as_any_crash() {
    if !prerequisites() {
        return;
    }
    let (_logs, mut cell) = logging_cell(1);
    fs::write(cell.root(0).join("file"), b"content").unwrap();
    failure(cell.mounts[0].try_to_take_over(&["SODA_CRASH_POINT=client.heir-begun"]));
    cell.crash_client(0);
    assert_eq!(fs::read_to_string(cell.root(0).join("file")).unwrap(), "content");
    fs::write(cell.root(0).join("file"), b"more").unwrap();
    cell.crash_client(0);
    assert_eq!(fs::read_to_string(cell.root(0).join("file")).unwrap(), "more");
}

#[test]
fn who_does_not_understand_what_is_handed_over_is_refused() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(1);
    let claim = "{\"take_over\":{\"format\":4000000000,\"version\":\"9.9\"}}";
    let said = ask(cell.mounts[0].process(), claim);
    assert!(said.contains("stays") && said.contains("soda 9.9 understands format 4000000000"), "{said}");
    fs::write(cell.root(0).join("file"), b"it goes on").unwrap();
}

#[test]
fn what_is_no_mount_cannot_be_taken_over_and_a_relative_path_can() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(1);
    let take_over = |dir: &Path, from: &Path| {
        let mut command = Command::new(soda_binary());
        command.args(["mount", "--takeover"]).arg(dir).current_dir(from);
        wait::run(&mut command, PATIENCE * 3)
    };
    let (code, said) = failure(take_over(cell.scratch(), Path::new("/")));
    assert_eq!(code, Some(6), "{said}");
    let (parent, name) = (cell.root(0).parent().unwrap(), cell.root(0).file_name().unwrap());
    fs::write(cell.root(0).join("file"), b"content").unwrap();
    // In the mount itself, which the daemon must not keep in use.
    take_over(&Path::new("..").join(name), cell.root(0)).expect_success("takeover of a relative path");
    take_over(Path::new(name), parent).expect_success("takeover of a relative path");
    assert_eq!(fs::read_to_string(cell.root(0).join("file")).unwrap(), "content");
    cell.mounts[0].take_over_from_daemon();
    cell.mounts[0].unmount();
}

#[test]
fn a_process_that_uses_the_mount_does_not_serve_it() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(1);
    fs::write(cell.root(0).join("file"), b"content").unwrap();
    let mut shell = Command::new("sh");
    let script =
        format!("exec 7<{0}/file; {1} mount --takeover {0}", cell.root(0).display(), soda_binary().display());
    let (_, said) = failure(wait::run(shell.args(["-c", &script]), PATIENCE * 3));
    assert!(said.contains("open descriptor 7"), "{said}");
    assert_eq!(fs::read_to_string(cell.root(0).join("file")).unwrap(), "content");
}

#[test]
fn a_log_or_a_cache_in_the_mount_itself_is_refused() {
    if !prerequisites() {
        return;
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let (cache, real) = (elsewhere.path().join("cache"), elsewhere.path().join("real"));
    fs::create_dir(&real).unwrap();
    let leads_to = |dir: &Path| {
        let _ = fs::remove_file(&cache);
        symlink(dir, &cache).unwrap();
    };
    leads_to(&real);
    let mount_options = ["--cache-dir", &cache.display().to_string()];
    let cell = Cell::assemble(1, &Setting { mount_options: &mount_options, ..Setting::default() });
    let (daemon, root) = (cell.mounts[0].process(), cell.root(0));
    for foreground in [&["--foreground"][..], &[]] {
        let mut command = Command::new(soda_binary());
        command.args(["mount", "--takeover"]).arg(root).args(foreground);
        let (_, said) = failure(wait::run(command.arg("--log-file").arg(root.join("log")), PATIENCE * 3));
        assert!(said.contains("the log file is"), "{said}");
    }
    leads_to(root);
    let finish = cell.mounts[0].try_to_take_over(&[]);
    leads_to(&real);
    let (_, said) = failure(finish);
    assert!(said.contains("the cache directory is"), "{said}");
    assert!(ask(daemon, "\"status\"").contains("pid"));
    fs::write(root.join("file"), b"it goes on").unwrap();
}

#[test]
fn an_heir_that_nobody_could_ask_takes_nothing() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(1);
    fs::write(cell.root(0).join("file"), b"content").unwrap();
    let (daemon, soda) = (cell.mounts[0].process(), soda_binary());
    let socket = socket_soon_of(daemon);
    let minor = socket.file_stem().unwrap().to_str().unwrap().rsplit_once('-').unwrap().1.to_owned();
    // Where its socket would be made.
    let taken = format!("{}/mount-$$-{minor}.new", socket.parent().unwrap().display());
    let script = format!(
        "echo {taken}; mkdir {taken} && exec {} mount --takeover {} --foreground",
        soda.display(),
        cell.root(0).display()
    );
    let output = wait::run(Command::new("sh").args(["-c", &script]), PATIENCE * 3).output("the heir");
    fs::remove_dir(String::from_utf8_lossy(&output.stdout).trim()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the control socket"), "{output:?}");
    assert!(ask(daemon, "\"status\"").contains("pid"), "who has the mount goes on");
    assert_eq!(fs::read_to_string(cell.root(0).join("file")).unwrap(), "content");
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Several programs work on both mounts; none sees an error, nor waits for long.
// SEMANTICS 57
#[test]
fn three_take_overs_in_a_row_under_load() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let stop = AtomicBool::new(false);
    let roots = cell.roots();
    let slowest = thread::scope(|scope| {
        let (stop, roots) = (&stop, &roots);
        // Also if the test fails meanwhile.
        let _stop = StopOnDrop(stop);
        let worker = |number: usize| {
            let (mine, other) = (&roots[number % 2], &roots[1 - number % 2]);
            let name = format!("dir{number}");
            fs::create_dir(mine.join(&name)).unwrap();
            let log = File::options().append(true).create(true).open(mine.join("log")).unwrap();
            let (mut slowest, mut rounds) = (Duration::ZERO, 0u64);
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let path = Path::new(&name).join((rounds % 20).to_string());
                let content = vec![rounds as u8; 20_000];
                fs::write(mine.join(&path), &content).unwrap();
                assert!(fs::read(mine.join(&path)).unwrap() == content);
                (&log).write_all(b"line\n").unwrap();
                if rounds.is_multiple_of(7) {
                    assert!(
                        fs::read(other.join(&path)).unwrap() == content,
                        "the other mount sees something else"
                    );
                    fs::rename(mine.join(&path), mine.join(&name).join("moved")).unwrap();
                    assert!(fs::read_dir(other.join(&name)).unwrap().count() > 0);
                }
                slowest = slowest.max(start.elapsed());
                rounds += 1;
            }
            (slowest, rounds)
        };
        let workers: Vec<_> = (0..4).map(|number| scope.spawn(move || worker(number))).collect();
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(300));
            cell.mounts[0].take_over();
        }
        thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        let rounds: u64 = ended.iter().map(|(_, rounds)| rounds).sum();
        let lines = fs::read(roots[1].join("log")).unwrap().len() / b"line\n".len();
        assert_eq!(lines as u64, rounds, "each line once");
        ended.into_iter().map(|(slowest, _)| slowest).max().unwrap()
    });
    eprintln!("the longest round took {slowest:?}");
    assert!(slowest < LONGEST_PAUSE, "{}: a program waited for {slowest:?}", wait::TIMED_OUT);
}
