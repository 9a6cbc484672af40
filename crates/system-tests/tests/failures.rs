//! Failures cost time, never correctness, and never for ever: bounds on waiting, and what goes on by itself.

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use soda_system_tests::cell::{
    Cell, LONG_TERM, MEASURED_TERM, Network, PATIENCE, Setting, TERM, is_mounted, prerequisites,
    skip_not_allowed, soda_binary,
};
use soda_system_tests::wait::{self, Finish};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Past the end of a term: the server's own margin.
const SLACK: Duration = Duration::from_millis(1500);

/// A reader has the file cached and is then gone without a word; a writer waits until the reader's promise has ended.
fn writer_waits_at_most_one_term(network: Network, gone: impl FnOnce(&mut Cell)) {
    let mut cell = Cell::assemble(2, &Setting { network, term: MEASURED_TERM, ..Setting::default() });
    let (reader, writer) = (cell.root(0).join("file"), cell.root(1).join("file"));
    let beside = cell.root(1).join("beside");
    fs::create_dir(&beside).unwrap();
    fs::write(&writer, b"old").unwrap();
    assert_eq!(fs::read(reader).unwrap(), b"old");
    gone(&mut cell);
    let control = |number: u32| fs::write(beside.join(number.to_string()), b"").unwrap();
    wait::at_most_a_term(MEASURED_TERM, control, || fs::write(&writer, b"new").unwrap());
    assert_eq!(fs::read(&writer).unwrap(), b"new");
}

// SEMANTICS 36
#[test]
fn a_writer_waits_at_most_one_term_for_a_reader_that_died() {
    if prerequisites() {
        writer_waits_at_most_one_term(Network::Loopback, |cell| cell.mounts[0].crash());
    }
}

// SEMANTICS 36
#[test]
fn a_writer_waits_at_most_one_term_for_a_reader_that_is_frozen() {
    if prerequisites() {
        writer_waits_at_most_one_term(Network::Loopback, |cell| cell.mounts[0].freeze());
    }
}

// SEMANTICS 36
#[test]
fn a_writer_waits_at_most_one_term_for_a_reader_that_is_cut_off() {
    if prerequisites() {
        writer_waits_at_most_one_term(Network::Namespaces, |cell| cell.cut(0));
    }
}

/// A writer has told nothing of what it did under a deep lease, has it in its log, and dies. Others who need it wait as they do
/// for any other lease, and each of them once: with the session all of its leases have gone.
// SEMANTICS 36, 51
#[test]
fn who_takes_over_from_a_dead_writer_with_a_deep_lease_waits_at_most_one_term() {
    if !prerequisites() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let options = format!("write=behind,dirty-age=1h,cache-dir={}", cache.path().display());
    let (mount_options, server_options) = (["-o", &options], ["--deep-leases", "on"]);
    let setting = Setting {
        term: MEASURED_TERM,
        mount_options: &mount_options,
        server_options: &server_options,
        ..Setting::default()
    };
    let mut cell = Cell::assemble(2, &setting);
    let (mine, theirs) = (cell.root(0).join("tree"), cell.root(1).join("tree"));
    let beside = cell.root(1).join("beside");
    // Made, and told, before the root is the other one's, too.
    fs::create_dir_all(mine.join("old")).unwrap();
    fs::write(mine.join("old/told"), "told").unwrap();
    let root = cell.root(0).to_path_buf();
    wait::run(Command::new(soda_binary()).arg("sync").arg(&root), PATIENCE).expect_success("soda sync");
    fs::create_dir(&beside).unwrap();
    wait::in_time(PATIENCE, "nothing is delayed", || {
        fs::write(mine.join("warm"), "up").unwrap();
        cell.mounts[0].counter("backlog_records") > 0
    });
    for number in 0..50 {
        let dir = mine.join(format!("dir{}", number % 5));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(number.to_string()), "not told").unwrap();
    }
    fs::write(mine.join("old/told"), "changed").unwrap();
    assert!(cell.mounts[0].counter("backlog_records") > 50);

    cell.mounts[0].crash();
    let control = |number: u32| fs::write(beside.join(number.to_string()), b"").unwrap();
    wait::at_most_a_term(MEASURED_TERM, control, || {
        fs::write(theirs.join("mine now"), "new").unwrap();
    });
    // Nobody has to wait for the rest.
    let start = std::time::Instant::now();
    assert_eq!(fs::read_to_string(theirs.join("old/told")).unwrap(), "told");
    fs::remove_file(theirs.join("old/told")).unwrap();
    assert!(!theirs.join("dir3").exists());
    assert!(start.elapsed() < MEASURED_TERM / 2, "{}: {:?}", wait::TIMED_OUT, start.elapsed());
    // And the log is not told over what was done meanwhile.
    cell.mounts[0].start();
    let mut names: Vec<_> =
        fs::read_dir(&mine).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(
        names.contains(&"mine now".to_owned()) && !names.iter().any(|name| name.starts_with("dir")),
        "{names:?}"
    );
    let mut ls = Command::new(soda_binary());
    let kept = wait::run(ls.args(["recover", "--cache-dir"]).arg(cache.path()).arg("ls"), PATIENCE);
    let kept = String::from_utf8_lossy(&kept.expect_success("soda recover").stdout).into_owned();
    assert!(kept.contains("the session has ended"), "{kept}");
}

// SEMANTICS 37
/// A frozen daemon makes the readers of its machine wait; when it wakes up they see the new state, not the cached one.
#[test]
fn readers_of_a_frozen_client_wait_and_then_see_the_new_state() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 2);
    let (frozen, other) = (cell.root(0).join("file"), cell.root(1).join("file"));
    fs::write(&other, b"old").unwrap();
    assert_eq!(fs::read(&frozen).unwrap(), b"old");
    cell.mounts[0].freeze();
    fs::write(&other, b"new").unwrap();
    let mut reader = Command::new("cat").arg(&frozen).stdout(Stdio::piped()).spawn().unwrap();
    let early = wait::until(Duration::from_millis(500), || reader.try_wait().unwrap().is_some());
    assert!(!early, "the reader got an answer from a frozen client's cache");
    cell.mounts[0].thaw();
    wait::in_time(PATIENCE, "the reader still waits", || reader.try_wait().unwrap().is_some());
    let mut seen = Vec::new();
    reader.stdout.take().unwrap().read_to_end(&mut seen).unwrap();
    assert_eq!(seen, b"new");
}

// SEMANTICS 38
#[test]
fn a_reader_whose_server_is_gone_waits_can_be_killed_and_can_be_unmounted() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::writing_through(1);
    let root = cell.root(0).to_path_buf();
    fs::write(root.join("file"), b"content").unwrap();
    cell.server.kill();
    // Past the lease: what is cached may not be used any more.
    std::thread::sleep(TERM + SLACK);
    let finish = wait::run(Command::new("cat").arg(root.join("file")), Duration::from_secs(2));
    assert!(matches!(finish, Finish::TimedOut { killable: true }), "hard mounts wait, killably: {finish:?}");
    cell.mounts[0].unmount();
}

/// What a busy machine takes to end those who are killed.
const SLOW: Duration = Duration::from_secs(1);
/// Of `fuse/src/task.rs`: until a signal is seen that nobody told of, and for how long a change may be under way then.
const LOOKED_FOR: Duration = Duration::from_millis(500);
const TAKE_BACK: Duration = Duration::from_secs(2);

/// Kills many as they begin to wait for a frozen server. Over io_uring, too, where Linux (6.18) does not tell the daemon of a
/// signal that comes just when a request is handed over: then it has to look. They may wait on for so long.
fn killed_while_they_wait(
    cell: &Cell,
    limit: Duration,
    before: impl Fn(&Path),
    command: impl Fn(&Path) -> Command,
) {
    const CALLERS: usize = 40;
    let dir = |mount: usize| cell.root(mount).join("dir");
    fs::create_dir(dir(1)).unwrap();
    for number in 0..CALLERS {
        fs::write(dir(1).join(number.to_string()), b"content").unwrap();
    }
    assert!(dir(0).is_dir());
    let file = |number: usize| dir(0).join(number.to_string());
    (0..CALLERS).for_each(|number| before(&file(number)));
    cell.server.freeze();
    let call = |number: usize| {
        let mut command = command(&file(number));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut callers: Vec<_> = (0..CALLERS).map(call).collect();
    wait::in_time(PATIENCE, "nobody waits", || cell.mounts[0].waiting() > 5);
    callers.iter().for_each(|caller| wait::signal(caller, Signal::KILL));
    let killed = Instant::now();
    let ended = |caller: &mut Child| matches!(caller.try_wait(), Ok(Some(_)));
    wait::in_time(limit, "who was killed waits on", || callers.iter_mut().all(ended));
    eprintln!("all have ended after {:?}", killed.elapsed());
    cell.server.thaw();
}

// SEMANTICS 38
#[test]
fn all_who_are_killed_as_they_begin_to_wait_for_a_frozen_server_end() {
    if prerequisites() {
        let cat = |file: &Path| {
            let mut cat = Command::new("cat");
            cat.arg(file);
            cat
        };
        killed_while_they_wait(&Cell::unhurried(2), LOOKED_FOR + SLOW, |_| (), cat);
    }
}

// SEMANTICS 38
#[test]
fn all_who_are_killed_with_changes_at_a_frozen_server_end() {
    if prerequisites() {
        let setting =
            Setting { term: LONG_TERM, mount_options: &["-o", "write=through"], ..Setting::default() };
        // Of a known file only the change has to be asked for.
        let known = |file: &Path| assert!(file.is_file());
        let change = |file: &Path| {
            let mut chmod = Command::new("chmod");
            chmod.arg("600").arg(file);
            chmod
        };
        killed_while_they_wait(&Cell::assemble(2, &setting), LOOKED_FOR + TAKE_BACK + SLOW, known, change);
    }
}

/// Of a container's daemon, whose mount programs outside of it use: it cannot see their signals, nor their groups.
// SEMANTICS 27, 32
#[test]
fn a_daemon_in_another_pid_namespace_takes_no_signal_for_death() {
    const WAITS: &str = "import ctypes, signal, sys\n\
        signal.signal(signal.SIGALRM, lambda *_: None)\n\
        signal.setitimer(signal.ITIMER_REAL, 0.1)\n\
        done = ctypes.CDLL(None, use_errno=True).mkdir(sys.argv[1].encode(), 0o755)\n\
        print(done, ctypes.get_errno())\n";
    const ALARM: u64 = 1 << 13;
    if !prerequisites() {
        return;
    }
    let (mount_prefix, mount_options) =
        (["unshare", "--pid", "--fork", "--kill-child"], ["-o", "write=through"]);
    let setting = Setting {
        term: LONG_TERM,
        mount_prefix: &mount_prefix,
        mount_options: &mount_options,
        ..Setting::default()
    };
    let cell = Cell::assemble(1, &setting);
    let root = cell.root(0);

    let file = root.join("file");
    fs::write(&file, "x").unwrap();
    std::os::unix::fs::chown(&file, Some(1234), Some(4242)).unwrap();
    let mut chmod = Command::new("setpriv");
    chmod.args(["--reuid=1234", "--regid=1234", "--groups=4242", "chmod", "2755", "file"]).current_dir(root);
    wait::run(&mut chmod, PATIENCE).expect_success("chmod");
    assert_eq!(
        fs::metadata(&file).unwrap().mode() & 0o7777,
        0o2755,
        "set-group-id for a group of the caller's"
    );

    cell.server.freeze();
    let mut python = Command::new("python3");
    python.args(["-c", WAITS]).arg(root.join("dir")).stdout(Stdio::piped());
    let mut mkdir = python.spawn().unwrap();
    // It waits in the kernel: else its handler would have taken the signal.
    let status = format!("/proc/{}/status", mkdir.id());
    let is_pending = || {
        let status = fs::read_to_string(&status).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or("0");
        u64::from_str_radix(pending.trim(), 16).unwrap() & ALARM != 0
    };
    let told = wait::until(PATIENCE, || is_pending() || mkdir.try_wait().unwrap().is_some());
    let early = wait::until(Duration::from_secs(1), || mkdir.try_wait().unwrap().is_some());
    cell.server.thaw();
    wait::in_time(PATIENCE, "mkdir still waits", || mkdir.try_wait().unwrap().is_some());
    let mut said = String::new();
    mkdir.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "0 0\n", "SIGALRM was taken for a signal that kills");
    assert!(told && !early, "it did not wait for the server");
}

// SEMANTICS 38
#[test]
fn a_soft_mount_fails_when_the_server_is_gone() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start_with(Network::Loopback, 1, &["-o", "soft"]);
    let root = cell.root(0).to_path_buf();
    fs::write(root.join("file"), b"content").unwrap();
    cell.server.kill();
    std::thread::sleep(TERM + SLACK);
    match wait::run(Command::new("cat").arg(root.join("file")), Duration::from_secs(60)) {
        Finish::Exited(output) => {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && message.contains("Input/output error"), "{message}");
        }
        other => panic!("a soft mount answers EIO: {other:?}"),
    }
}

// SEMANTICS 10, 29, 39
#[test]
fn open_files_and_their_locks_survive_a_server_restart() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 2);
    let mut held =
        File::options().create(true).append(true).read(true).open(cell.root(0).join("held")).unwrap();
    held.write_all(b"before ").unwrap();
    let orphan = File::create_new(cell.root(0).join("orphan")).unwrap();
    orphan.write_all_at(b"nameless", 0).unwrap();
    fs::remove_file(cell.root(0).join("orphan")).unwrap();
    held.lock().unwrap();
    for _ in 0..2 {
        cell.server.kill();
        cell.server.restart();
        held.write_all(b"after ").unwrap();
        let other = File::options().write(true).open(cell.root(1).join("held")).unwrap();
        assert!(other.try_lock().is_err(), "the lock was lost with the server");
    }
    orphan.write_all_at(b"!", 8).unwrap();
    assert_eq!(orphan.metadata().unwrap().len(), 9);
    held.unlock().unwrap();
    assert_eq!(fs::read(cell.root(1).join("held")).unwrap(), b"before after after ");
}

// SEMANTICS 17
/// Everything that was acknowledged is there after kill -9 of the server, with no client left that could repeat it.
#[test]
fn what_was_acknowledged_survives_the_crash_of_everything() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::writing_through(1);
    let root = cell.root(0).to_path_buf();
    for number in 0..200 {
        let dir = root.join(format!("dir{}", number % 10));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("file{number}")), format!("content {number}")).unwrap();
    }
    fs::rename(root.join("dir3"), root.join("renamed")).unwrap();
    fs::remove_file(root.join("dir4/file4")).unwrap();
    cell.server.kill();
    cell.mounts[0].crash();
    let check = Command::new(soda_binary()).arg("fsck").arg(cell.server.data()).output().unwrap();
    assert!(check.status.success(), "fsck after a crash: {check:?}");
    cell.server.restart();
    cell.mounts[0].start();
    for number in 0..200 {
        let dir = if number % 10 == 3 { "renamed".to_owned() } else { format!("dir{}", number % 10) };
        let content = fs::read_to_string(root.join(dir).join(format!("file{number}")));
        match number {
            4 => assert!(content.is_err(), "a removed file is back"),
            _ => assert_eq!(content.unwrap(), format!("content {number}")),
        }
    }
}

/// For mounts whose daemon asks for none (Linux 6.15 and later).
const TIME_LIMIT: &str = "/proc/sys/fs/fuse/default_request_timeout";

/// What was there before is there again when this is dropped. Mounts keep what was there when they were made.
struct Restored(String);

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = fs::write(TIME_LIMIT, self.0.trim());
    }
}

// SEMANTICS 27, 38, 40
#[test]
fn a_default_time_limit_for_requests_ends_no_mount() {
    /// Linux takes no less, and looks so often.
    const LEAST: Duration = Duration::from_secs(15);
    if !prerequisites() {
        return;
    }
    let Ok(was) = fs::read_to_string(TIME_LIMIT) else { return println!("this Linux has none") };
    let restored = Restored(was);
    if fs::write(TIME_LIMIT, LEAST.as_secs().to_string()).is_err() {
        return skip_not_allowed("the time limit is not ours to set");
    }
    let cell = Cell::unhurried(1);
    drop(restored);
    let [holder, waiter] = [(); 2].map(|()| File::create(cell.root(0).join("file")).unwrap());
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(flock(&waiter, FlockOperation::LockExclusive)));
    // When Linux has looked twice, the mount would have ended.
    assert_eq!(told.recv_timeout(LEAST * 2 + SLACK), Err(RecvTimeoutError::Timeout));
    flock(&holder, FlockOperation::Unlock).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(())));
}

#[test]
fn orderly_stop_and_start_again() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 1);
    fs::write(cell.root(0).join("file"), b"kept").unwrap();
    cell.mounts[0].unmount();
    assert!(!is_mounted(cell.root(0)));
    cell.server.stop();
    cell.server.restart();
    cell.mounts[0].start();
    assert_eq!(fs::read(cell.root(0).join("file")).unwrap(), b"kept");
}
