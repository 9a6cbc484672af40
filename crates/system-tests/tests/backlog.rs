//! What people see of delayed writes: the options, the backlog, `soda sync`, and an unmount that loses nothing.

use rustix::process::{Pid, Signal, kill_process};
use soda_system_tests::cell::{Cell, Network, PATIENCE, is_mounted, prerequisites, soda_binary};
use soda_system_tests::wait::{self, Finish, TIMED_OUT};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Nothing is told before somebody asks.
const BEHIND: [&str; 2] = ["-o", "write=behind,dirty-age=1h,dirty-size=8M"];
/// The server's term, the patience with a server that is gone, and some more.
const GONE: Duration = Duration::from_secs(30);

fn soda(arguments: &[&str]) -> Command {
    let mut command = Command::new(soda_binary());
    command.args(arguments);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = wait::run(&mut soda(arguments), PATIENCE).expect_success(&arguments.join(" "));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What `soda status` says of a mount.
fn mount_status(dir: &Path) -> serde_json::Value {
    let status = json(&["status", "--json"]);
    let mounts = status["mounts"].as_array().unwrap();
    mounts.iter().find(|mount| mount["dir"] == text(dir)).unwrap_or_else(|| panic!("{status}")).clone()
}

fn backlog(dir: &Path) -> u64 {
    mount_status(dir)["session"]["backlog"]["records"].as_u64().unwrap()
}

/// Mounts with a backlog on the first: files `0`, `1`, … in `dir`, each with its number. How many there are.
fn cell_with_backlog(clients: usize) -> (Cell, usize) {
    backlog_on(Cell::start_with(Network::Loopback, clients, &BEHIND))
}

fn backlog_on(cell: Cell) -> (Cell, usize) {
    let dir = cell.root(0).join("dir");
    fs::create_dir(&dir).unwrap();
    let mut files = 0;
    // The first changes go through, and bring the leases.
    let is_behind = wait::until(PATIENCE, || {
        fs::write(dir.join(files.to_string()), files.to_string()).unwrap();
        files += 1;
        backlog(cell.root(0)) >= 10
    });
    assert!(is_behind, "{TIMED_OUT}: nothing is delayed: {}", mount_status(cell.root(0)));
    (cell, files)
}

fn has_all(dir: &Path, files: usize) -> bool {
    (0..files).all(|number| {
        fs::read_to_string(dir.join("dir").join(number.to_string()))
            .is_ok_and(|content| content == number.to_string())
    })
}

fn failed(finish: Finish) -> (Output, String) {
    let output = finish.output("it waits");
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn the_options_and_the_backlog_are_shown() {
    if !prerequisites() {
        return;
    }
    let (cell, _) = cell_with_backlog(1);
    let status = mount_status(cell.root(0));
    let options = status["options"].as_str().unwrap();
    for option in ["write=behind", "dirty-age=3600s", "dirty-size=8388608"] {
        assert!(options.contains(option), "no `{option}` in `{options}`");
    }
    let table = wait::run(&mut soda(&["status"]), PATIENCE).expect_success("status");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let columns = table
        .lines()
        .position(|line| line.starts_with("MOUNT  ") && line.contains("NOT TOLD"))
        .expect(&table);
    let row = table.lines().skip(columns).find(|line| line.starts_with(text(cell.root(0)))).expect(&table);
    assert!(row.contains("1h00m") && row.contains("8.0 MiB"), "{table}");
    let stats =
        wait::run(&mut soda(&["stats", "--once", text(cell.root(0))]), PATIENCE).expect_success("stats");
    let stats = String::from_utf8_lossy(&stats.stdout).into_owned();
    assert!(stats.lines().next().unwrap().contains("not told"), "{stats}");
    let counters = json(&["stats", "--once", "--json", text(cell.root(0))]);
    assert!(counters[text(cell.root(0))]["backlog_records"].as_u64() >= Some(10), "{counters}");
}

#[test]
fn a_mount_is_told_what_its_delayed_writes_lack() {
    for (list, word) in [
        ("write=through,dirty-age=1s", "leave out write=through"),
        ("write=sometimes", "choose behind or through"),
        ("write=behind,dirty-size=much", "dirty-size=much"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            wait::run(&mut soda(&["mount", "127.0.0.1:1/main", text(dir.path()), "-o", list]), PATIENCE);
        let (output, said) = failed(mount);
        assert!(output.status.code() == Some(2) && said.contains(word), "{said}");
    }
}

#[test]
fn a_sync_ends_with_an_empty_backlog() {
    if !prerequisites() {
        return;
    }
    let (mut cell, files) = cell_with_backlog(2);
    let inside = cell.root(0).join("dir/1");
    let synced = json(&["sync", "--json", text(&inside)]);
    assert_eq!(synced[0]["dir"], text(cell.root(0)), "{synced}");
    assert_eq!(synced[0]["outcome"], "synced", "{synced}");
    assert!(synced[0]["began"]["records"].as_u64() >= Some(10), "{synced}");
    let left = mount_status(cell.root(0))["session"]["backlog"].clone();
    assert_eq!((left["records"].as_u64(), left["not_durable"].as_u64()), (Some(0), Some(0)), "{left}");
    // What is on the server's disk needs nobody here.
    cell.mounts[0].kill();
    assert!(has_all(cell.root(1), files));
}

/// What a server says that its clients have not told: changes, by session, of those that said so.
fn backlogs_at(server: &str) -> Vec<u64> {
    let status = json(&["status", "--json", server]);
    let sessions = status["servers"][0]["sessions"].as_array().unwrap();
    sessions.iter().filter_map(|session| session["backlog"]["said"]["records"].as_u64()).collect()
}

#[test]
fn the_backlog_of_every_client_is_known_at_the_server() {
    if !prerequisites() {
        return;
    }
    let (cell, _) = cell_with_backlog(2);
    let server = cell.server.address();
    let is_said = wait::until(PATIENCE, || {
        let mut said = backlogs_at(&server);
        said.sort_unstable();
        said.len() == 2 && said[0] == 0 && said[1] >= 10
    });
    assert!(is_said, "{TIMED_OUT}: {:?}", backlogs_at(&server));
    let table = wait::run(&mut soda(&["status", &server]), PATIENCE).expect_success("status");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.lines().any(|line| line.starts_with("SESSION") && line.contains("NOT TOLD")), "{table}");
    wait::run(&mut soda(&["sync", text(cell.root(0))]), PATIENCE).expect_success("sync");
    let is_empty = wait::until(PATIENCE, || backlogs_at(&server) == [0, 0]);
    assert!(is_empty, "{TIMED_OUT}: {:?}", backlogs_at(&server));
}

#[test]
fn a_sync_beside_a_writer_that_never_stops_ends() {
    if !prerequisites() {
        return;
    }
    let (mut cell, files) = cell_with_backlog(2);
    let (root, is_over) = (cell.root(0).to_owned(), AtomicBool::new(false));
    let more = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            (0u64..)
                .take_while(|_| !is_over.load(Ordering::Relaxed))
                .map(|number| fs::write(root.join(format!("more{number}")), "more").unwrap())
                .count()
        });
        let synced = json(&["sync", "--json", text(&root)]);
        assert_eq!(synced[0]["outcome"], "synced", "{synced}");
        assert!(!writer.is_finished());
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(more > 0);
    // What was there is on the server's disk.
    cell.mounts[0].kill();
    assert!(has_all(cell.root(1), files));
}

/// On a terminal: `script` gives the command one, and writes here what it shows.
#[test]
fn a_sync_that_takes_long_shows_a_bar_on_a_terminal() {
    if !prerequisites() {
        return;
    }
    let (mut cell, _) = cell_with_backlog(1);
    let waiting = backlog(cell.root(0));
    cell.server.kill();
    let command = format!("{} sync {}", soda_binary().display(), text(cell.root(0)));
    let mut terminal = Command::new("script")
        .args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = terminal.stdout.take().unwrap();
    let mut screen = String::new();
    let mut read_until = |text: &str| {
        let mut bytes = [0; 4096];
        while !screen.contains(text) {
            match shown.read(&mut bytes).unwrap() {
                0 => return (false, screen.clone()),
                count => screen.push_str(&String::from_utf8_lossy(&bytes[..count])),
            }
        }
        (true, screen.clone())
    };
    let (waits, screen) = read_until("to come back");
    assert!(waits && screen.contains(&format!("0/{waiting}")), "{screen:?}");
    cell.server.restart();
    let (is_done, screen) = read_until("everything is on the server's disk");
    assert!(is_done, "{screen:?}");
    let told = format!("{waiting} changes waited");
    let (is_told, screen) = read_until(&told);
    assert!(is_told, "{told}: {screen:?}");
    wait::in_time(PATIENCE, "the terminal stays", || matches!(terminal.try_wait(), Ok(Some(_))));
    assert!(terminal.wait().unwrap().success());
}

#[test]
fn a_sync_outside_of_mounts_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (output, said) = failed(wait::run(&mut soda(&["sync", text(dir.path())]), PATIENCE));
    assert!(output.status.code() == Some(6) && said.contains("not a Soda mount"), "{said}");
}

#[test]
fn a_sync_that_waits_for_its_server_can_be_interrupted() {
    if !prerequisites() {
        return;
    }
    let (mut cell, files) = cell_with_backlog(2);
    cell.server.kill();
    let mut sync = soda(&["sync", text(cell.root(0))]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(sync.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = said.find(|line| line.contains("to come back"));
    wait::signal(&sync, Signal::INT);
    assert!(waits.is_some_and(|line| line.contains(&cell.server.address())));
    wait::in_time(PATIENCE, "it goes on after Ctrl-C", || matches!(sync.try_wait(), Ok(Some(_))));
    assert!(backlog(cell.root(0)) >= 10, "{}", mount_status(cell.root(0)));
    cell.server.restart();
    wait::run(&mut soda(&["sync", text(cell.root(0))]), PATIENCE).expect_success("sync");
    assert_eq!(backlog(cell.root(0)), 0);
    assert!(has_all(cell.root(1), files));
}

#[test]
fn a_sync_says_that_the_server_is_gone() {
    if !prerequisites() {
        return;
    }
    let (mut cell, _) = cell_with_backlog(1);
    cell.server.kill();
    let (output, said) = failed(wait::run(&mut soda(&["sync", text(cell.root(0)), "--json"]), GONE));
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(&cell.server.address()) && said.contains("changes ("), "{said}");
    let synced: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(synced[0]["outcome"], "server_gone", "{synced}");
    assert!(synced[0]["left"]["records"].as_u64() >= Some(10), "{synced}");
}

#[test]
fn an_unmount_loses_nothing() {
    if !prerequisites() {
        return;
    }
    let (mut cell, files) = cell_with_backlog(2);
    cell.mounts[0].unmount();
    assert!(has_all(cell.root(1), files));
}

/// A daemon that is stopped cannot say what it has not told: that is no success.
#[test]
fn an_unmount_says_that_the_daemon_does_not_answer() {
    if !prerequisites() {
        return;
    }
    let (cell, _) = cell_with_backlog(1);
    cell.mounts[0].freeze();
    let root = cell.mounts[0].root().to_owned();
    let (output, said) = failed(wait::run(&mut soda(&["umount", text(&root)]), PATIENCE));
    cell.mounts[0].thaw();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("does not answer") && said.contains("is lost"), "{said}");
    assert!(!is_mounted(&root));
}

#[test]
fn an_unmount_waits_for_a_server_that_restarts() {
    if !prerequisites() {
        return;
    }
    let (mut cell, files) = cell_with_backlog(2);
    cell.server.kill();
    let mut umount = soda(&["umount", text(cell.root(0))]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(umount.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("to come back")));
    assert!(is_mounted(cell.root(0)), "unmounted before its changes were told");
    cell.server.restart();
    wait::in_time(PATIENCE, "umount waits", || matches!(umount.try_wait(), Ok(Some(_))));
    assert!(umount.wait().unwrap().success());
    assert!(!is_mounted(cell.root(0)));
    assert!(has_all(cell.root(1), files));
}

/// Unmounts a mount whose server is gone, and asks its daemon twice to end at once. What the unmount says.
fn unmounted_in_a_hurry(cell: &mut Cell) -> Output {
    let daemon = mount_status(cell.root(0))["pid"].as_i64().unwrap();
    let daemon = Pid::from_raw(daemon.try_into().unwrap()).unwrap();
    cell.server.kill();
    let root = cell.root(0).to_owned();
    std::thread::scope(|scope| {
        let umount = scope.spawn(|| wait::run(&mut soda(&["umount", text(&root)]), GONE).output("it waits"));
        wait::in_time(GONE, "it is not unmounted", || !is_mounted(&root));
        // Half a minute is what the daemon would wait for its server.
        wait::in_time(GONE / 2, "two signals do not end the daemon", || {
            let _ = kill_process(daemon, Signal::TERM);
            umount.is_finished()
        });
        umount.join().unwrap()
    })
}

// SEMANTICS 56
#[test]
fn an_unmount_says_what_a_server_that_is_gone_has_not_heard_of() {
    if !prerequisites() {
        return;
    }
    let (mut cell, _) = cell_with_backlog(1);
    let umount = unmounted_in_a_hurry(&mut cell);
    let said = String::from_utf8_lossy(&umount.stderr).into_owned();
    assert_eq!(umount.status.code(), Some(1), "{said}");
    assert!(said.contains("is gone") && said.contains("changes (") && said.contains("is lost"), "{said}");
    assert!(said.contains(&format!("changes of {} are lost", text(cell.root(0)))), "{said}");
    let kept = wait::run(cell.soda_at(0).args(["recover", "ls"]), PATIENCE).expect_success("soda recover");
    let kept = String::from_utf8_lossy(&kept.stdout).into_owned();
    assert!(kept.contains("the server did not take them before the end"), "{kept}");
}

// SEMANTICS 56
#[test]
fn an_unmount_that_leaves_a_log_says_so() {
    if !prerequisites() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let option = format!("{},cache-dir={}", BEHIND[1], text(cache.path()));
    let (mut cell, files) = backlog_on(Cell::start_with(Network::Loopback, 1, &["-o", &option]));
    let umount = unmounted_in_a_hurry(&mut cell);
    let said = String::from_utf8_lossy(&umount.stderr).into_owned();
    assert_eq!(umount.status.code(), Some(0), "{said}");
    assert!(said.contains("are in the log in its cache-dir") && !said.contains("lost"), "{said}");
    cell.server.restart();
    // It has ended.
    cell.mounts[0].kill();
    cell.mounts[0].start();
    assert!(has_all(cell.root(0), files));
}

// SEMANTICS 56
#[test]
fn a_mount_that_is_asked_to_end_tells_everything_first() {
    if !prerequisites() {
        return;
    }
    let (cell, files) = cell_with_backlog(2);
    let pid =
        mount_status(cell.root(0))["pid"].as_i64().and_then(|pid| Pid::from_raw(pid.try_into().unwrap()));
    kill_process(pid.unwrap(), Signal::TERM).unwrap();
    wait::in_time(PATIENCE, "the mount stays", || !is_mounted(cell.root(0)));
    assert!(has_all(cell.root(1), files));
}

/// `meanwhile`: what another machine does before the daemon ends.
fn after_umount_8(meanwhile: impl FnOnce(&Path, usize)) {
    if !prerequisites() {
        return;
    }
    let (cell, files) = cell_with_backlog(2);
    let pid = mount_status(cell.root(0))["pid"].as_u64().unwrap();
    wait::run(Command::new("umount").arg(cell.root(0)), PATIENCE).expect_success("umount");
    assert!(!is_mounted(cell.root(0)));
    meanwhile(cell.root(1), files);
    // A zombie, whose parent is this test.
    let ended = || fs::read_link(format!("/proc/{pid}/exe")).is_err();
    wait::in_time(PATIENCE, "the daemon stays", ended);
    assert!(has_all(cell.root(1), files));
}

// SEMANTICS 56
#[test]
fn after_umount_8_the_daemon_goes_on_until_everything_is_told() {
    // Who looked would have it told.
    after_umount_8(|_, _| ());
}

#[test]
fn who_looks_after_umount_8_sees_everything() {
    after_umount_8(|root, files| assert!(has_all(root, files), "less in between"));
}

#[test]
fn why_a_file_is_or_is_not_told_later() {
    if !prerequisites() {
        return;
    }
    let (cell, files) = cell_with_backlog(2);
    let last = format!("dir/{}", files - 1);
    let changes = |number: usize, path: &str| {
        json(&["lease", "why", "--json", text(&cell.root(number).join(path))])["changes"].clone()
    };
    let waiting = changes(0, &last);
    assert!(waiting["told"] == "later" && waiting["waiting"].as_u64() > Some(0), "{waiting}");
    assert_eq!(changes(1, "dir")["told"]["at_once"], "Unknown", "nobody has looked at it there");
    assert_eq!((&waiting["locks"], &waiting["last_at_once"]), (&"server".into(), &serde_json::Value::Null));
    let why = wait::run(&mut soda(&["lease", "why", text(&cell.root(0).join(&last))]), PATIENCE);
    let said = String::from_utf8_lossy(&why.expect_success("lease why").stdout).into_owned();
    assert!(said.starts_with("It was made here") && said.contains("not told yet"), "{said}");
    assert!(has_all(cell.root(1), files));
    let read_by_another = changes(0, &last);
    assert_eq!(read_by_another["told"]["at_once"], "NoLease", "{read_by_another}");
    assert_eq!(read_by_another["waiting"], 0, "{read_by_another}");
    // Too large for the log.
    let large = cell.root(0).join("large");
    wait::run(Command::new("fallocate").args(["-l", "65M", text(&large)]), PATIENCE)
        .expect_success("fallocate");
    let why = wait::run(&mut soda(&["lease", "why", text(&cell.root(0).join("large"))]), PATIENCE);
    let why = String::from_utf8_lossy(&why.expect_success("lease why").stdout).into_owned();
    assert!(
        why.contains("it was too large") && why.contains("\nlease ") && why.contains("\nlocks "),
        "{why}"
    );
    let (_, said) =
        failed(wait::run(&mut soda(&["lease", "why", text(&cell.root(0).join("none"))]), PATIENCE));
    assert!(said.contains("none") || said.contains("No"), "{said}");
}
