//! Mounts with delayed writes that are killed, frozen or cut off: what is told all the same, what is said to be lost, and what
//! `soda recover` is left with.

use soda_system_tests::cell::{
    Cell, MEASURED_TERM, Network, PATIENCE, Setting, TERM, prerequisites, soda_binary,
};
use soda_system_tests::wait::{self, Finish};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const FILES: usize = 20;

fn soda(arguments: &[&str]) -> Command {
    let mut command = Command::new(soda_binary());
    command.args(arguments);
    command
}

fn recover(cache: &TempDir, arguments: &[&str]) -> Finish {
    let dir = cache.path().to_str().unwrap();
    let all: Vec<&str> =
        ["recover", "--cache-dir", dir].into_iter().chain(arguments.iter().copied()).collect();
    wait::run(&mut soda(&all), PATIENCE)
}

fn said(finish: Finish) -> String {
    let output = finish.expect_success("soda recover");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn kept(cache: &TempDir) -> Vec<serde_json::Value> {
    serde_json::from_str(&said(recover(cache, &["ls", "--json"]))).unwrap()
}

/// Mounts that tell nothing before they are asked; the first one logs.
fn cell(clients: usize, more: &str) -> (Cell, TempDir) {
    let cache = tempfile::tempdir().unwrap();
    let options = format!("write=behind,dirty-age=1h,cache-dir={}{more}", cache.path().display());
    (Cell::start_with(Network::Loopback, clients, &["-o", &options]), cache)
}

fn backlog(cell: &Cell) -> u64 {
    cell.mounts[0].counter("backlog_records")
}

/// Files with their numbers in a new directory, all of them delayed. The first changes go through, and bring the leases.
fn write_later(cell: &Cell) {
    wait::in_time(PATIENCE, "nothing is delayed", || {
        fs::write(cell.root(0).join("warm"), "up").unwrap();
        backlog(cell) > 0
    });
    let dir = cell.root(0).join("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..FILES {
        fs::write(dir.join(number.to_string()), number.to_string()).unwrap();
    }
    assert!(backlog(cell) as usize > FILES);
}

fn has_all(root: &Path) -> bool {
    (0..FILES).all(|number| {
        fs::read_to_string(root.join("dir").join(number.to_string()))
            .is_ok_and(|content| content == number.to_string())
    })
}

#[test]
fn a_mount_that_was_killed_tells_what_it_had_not() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = cell(2, "");
    for _ in 0..3 {
        write_later(&cell);
        cell.crash_client(0);
        assert!(cell.mounts[0].counter("replayed") > 0);
        assert!(has_all(cell.root(1)));
        fs::remove_dir_all(cell.root(0).join("dir")).unwrap();
        fs::remove_file(cell.root(0).join("warm")).unwrap();
    }
    assert!(kept(&cache).is_empty());
}

#[test]
fn an_unmount_without_the_server_leaves_the_rest_to_the_next_mount() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = cell(1, "");
    write_later(&cell);
    cell.server.kill();
    // As a machine that goes down in the middle of a long unmount.
    cell.mounts[0].crash();
    let [waits] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    assert_eq!(waits["state"], "waiting");
    assert!(said(recover(&cache, &["ls"])).contains("is told when this is mounted"));
    cell.server.restart();
    cell.mounts[0].start();
    assert!(has_all(cell.root(0)) && kept(&cache).is_empty());
}

#[test]
fn an_unmount_without_the_server_says_where_the_rest_is() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = cell(1, "");
    write_later(&cell);
    cell.server.kill();
    let dir = cell.root(0).to_str().unwrap().to_owned();
    // Some time for the server to come back, then half a minute more for the daemon.
    let umount = wait::run(&mut soda(&["umount", &dir]), PATIENCE * 5).expect_success("umount");
    let said = String::from_utf8_lossy(&umount.stderr).into_owned();
    assert!(said.contains("is gone") && said.contains("cache-dir") && !said.contains("lost"), "{said}");
    cell.mounts[0].crash();
    cell.server.restart();
    cell.mounts[0].start();
    assert!(has_all(cell.root(0)) && kept(&cache).is_empty());
}

/// A log that is kept: somebody else needed the directory in which it was written.
fn fenced() -> (Cell, TempDir) {
    let (mut cell, cache) = cell(2, "");
    write_later(&cell);
    cell.mounts[0].crash();
    let gone = wait::until(TERM * 10, || fs::metadata(cell.root(1).join("dir")).is_err());
    assert!(gone, "nobody had been told of it");
    cell.mounts[0].start();
    (cell, cache)
}

// SEMANTICS 51
#[test]
fn what_may_not_be_told_any_more_is_kept_shown_applied_and_dropped() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = fenced();
    assert!(!cell.root(0).join("dir").exists(), "applied although it was fenced");
    let log = fs::read_to_string(cell.mounts[0].log()).unwrap();
    assert!(log.contains("soda recover"), "{log}");
    let [one] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    let name = one["name"].as_str().unwrap();
    assert!(said(recover(&cache, &["ls"])).contains("the session has ended"));
    assert!(said(recover(&cache, &["show", name])).contains("/dir/7"));
    let status = wait::run(cell.soda_at(0).arg("status"), PATIENCE).expect_success("status");
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("see `soda recover ls`"), "{status}");
    let doctor = wait::run(cell.soda_at(0).args(["doctor", "--json"]), PATIENCE).output("it waits");
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("kept that no server was told of"), "{doctor}");
    let saved = cache.path().join("saved");
    said(recover(&cache, &["show", name, "--save", saved.to_str().unwrap()]));
    assert_eq!(fs::read_to_string(saved.join("dir/7")).unwrap(), "7");

    assert!(said(recover(&cache, &["apply", name])).contains("applied"));
    assert!(has_all(cell.root(0)) && has_all(cell.root(1)));
    assert!(kept(&cache).is_empty());

    // Once more, with somebody who was faster.
    fs::remove_dir_all(cell.root(1).join("dir")).unwrap();
    write_later(&cell);
    cell.mounts[0].crash();
    let dir = cell.root(1).join("dir");
    let faster = || fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join("7"), "theirs")).is_ok();
    assert!(wait::until(TERM * 10, faster));
    cell.mounts[0].start();
    let [one] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    let name = one["name"].as_str().unwrap();
    let output = recover(&cache, &["apply", name]).output("it waits");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && report.contains("its name is taken"), "{report}");
    assert_eq!(fs::read_to_string(dir.join("7")).unwrap(), "theirs");
    assert_eq!(kept(&cache).len(), 1, "what was not applied stays");
    assert!(said(recover(&cache, &["drop", name])).contains("dropped"));
    assert!(kept(&cache).is_empty());
    let output = recover(&cache, &["show", name]).output("it waits");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_was_there_before_is_shown_by_its_name_and_without_the_server_by_its_number() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = cell(2, "");
    let file = cell.root(0).join("before/f");
    fs::create_dir(cell.root(0).join("before")).unwrap();
    fs::write(&file, "there").unwrap();
    let mount = cell.root(0).to_str().unwrap().to_owned();
    wait::run(&mut soda(&["sync", &mount]), PATIENCE).expect_success("sync");
    let open = File::options().write(true).open(&file).unwrap();
    wait::in_time(PATIENCE, "nothing is delayed", || {
        open.write_all_at(b"there", 0).unwrap();
        backlog(&cell) > 0
    });
    open.write_all_at(b"later", 0).unwrap();
    drop(open);
    cell.mounts[0].crash();
    assert_eq!(fs::read_to_string(cell.root(1).join("before/f")).unwrap(), "there");
    // As somebody has called it since.
    fs::rename(cell.root(1).join("before"), cell.root(1).join("after")).unwrap();
    cell.mounts[0].start();
    let [one] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    let name = one["name"].as_str().unwrap();
    let shown = said(recover(&cache, &["show", name]));
    assert!(shown.contains(" /after/f ") && !shown.contains("<inode"), "{shown}");
    assert!(
        shown.ends_with("\nWhat was there before the log is named as the server has it now.\n"),
        "{shown}"
    );
    let saved = cache.path().join("saved");
    said(recover(&cache, &["show", name, "--save", saved.to_str().unwrap()]));
    assert_eq!(fs::read_to_string(saved.join("after/f")).unwrap(), "later");

    cell.server.kill();
    let shown = said(recover(&cache, &["show", name]));
    assert!(shown.contains("<inode ") && shown.contains("the server was not asked"), "{shown}");
    cell.server.restart();
    fs::write(cell.root(1).join("after/f"), "theirs").unwrap();
    let output = recover(&cache, &["apply", name]).output("it waits");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains(" /after/f ") && report.contains("somebody else has changed it"), "{report}");
}

// SEMANTICS 52
#[test]
fn a_local_fsync_asks_nobody_and_survives_a_crash() {
    if !prerequisites() {
        return;
    }
    let (mut cell, _cache) = cell(1, ",fsync=local");
    write_later(&cell);
    // What went through to the server is not in the log.
    let root = cell.root(0).to_str().unwrap().to_owned();
    wait::run(&mut soda(&["sync", &root]), PATIENCE).expect_success("soda sync");
    let path = cell.root(0).join("dir/safe");
    let mut file = File::create_new(&path).unwrap();
    file.write_all(b"and sound").unwrap();
    let pending = backlog(&cell);
    file.sync_all().unwrap();
    assert_eq!((backlog(&cell), cell.mounts[0].counter("fsyncs_local")), (pending, 1));
    assert!(pending > 0);
    drop(file);
    cell.crash_client(0);
    assert_eq!(fs::read(&path).unwrap(), b"and sound");
    assert!(cell.mounts[0].counter("replayed") > 0);
}

/// Holds a file open with a change in it that is not told, until it is asked to close it.
struct Closer(Child);

impl Closer {
    fn start(path: &Path) -> Closer {
        const PROGRAM: &str = "import os, sys\n\
            file = os.open(sys.argv[1], os.O_WRONLY)\n\
            os.write(file, b'lost')\n\
            print('written', flush=True)\n\
            sys.stdin.read()\n\
            os.close(file)\n";
        let mut python = Command::new("python3");
        python.args(["-c", PROGRAM]).arg(path);
        let mut child =
            python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "written\n");
        Closer(child)
    }

    /// What closing it says.
    fn close(mut self) -> String {
        drop(self.0.stdin.take());
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(self.0.wait().unwrap().success(), said.is_empty());
        said
    }
}

#[track_caller]
fn fails(result: std::io::Result<()>) {
    let error = result.expect_err("what was lost must be said");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
}

type Act = fn(&Cell);

// SEMANTICS 49, 51
/// As a laptop that was closed in the middle of its work.
#[test]
fn a_writer_that_was_frozen_past_its_term_says_what_it_lost() {
    if prerequisites() {
        past_its_term(Network::Loopback, |cell| cell.mounts[0].freeze(), |cell| cell.mounts[0].thaw());
    }
}

// SEMANTICS 49, 51
#[test]
fn a_writer_that_was_cut_off_past_its_term_says_what_it_lost() {
    if prerequisites() {
        past_its_term(Network::Namespaces, |cell| cell.cut(0), |cell| cell.heal(0));
    }
}

fn past_its_term(network: Network, leave: Act, come_back: Act) {
    let cache = tempfile::tempdir().unwrap();
    let options = format!("write=behind,dirty-age=1h,cache-dir={}", cache.path().display());
    // Longer than a busy machine takes for anything else here.
    let term = MEASURED_TERM / 2;
    let setting = Setting { network, mount_options: &["-o", &options], term, ..Setting::default() };
    let cell = Cell::assemble(2, &setting);
    write_later(&cell);
    let (mine, theirs) = (cell.root(0).join("dir"), cell.root(1).join("dir"));
    for name in ["written", "synced", "closed", "untouched"] {
        fs::write(mine.join(name), "told").unwrap();
    }
    let root = cell.root(0).to_str().unwrap().to_owned();
    wait::run(&mut soda(&["sync", &root]), PATIENCE).expect_success("soda sync");
    let open = |name| File::options().read(true).write(true).open(mine.join(name)).unwrap();
    let (written, again, synced, untouched) =
        (open("written"), open("written"), open("synced"), open("untouched"));
    let reader = File::open(mine.join("written")).unwrap();
    written.write_all_at(b"lost", 0).unwrap();
    synced.write_all_at(b"lost", 0).unwrap();
    let closer = Closer::start(&mine.join("closed"));
    fs::write(mine.join("new"), "lost").unwrap();
    assert!(backlog(&cell) >= 5, "{}", backlog(&cell));

    leave(&cell);
    for name in ["written", "synced", "closed"] {
        assert_eq!(fs::read_to_string(theirs.join(name)).unwrap(), "told", "{name}");
    }
    assert!(!theirs.join("new").exists());
    fs::write(theirs.join("synced"), "theirs").unwrap();
    come_back(&cell);

    for file in [&written, &again] {
        fails(file.write_all_at(b"late", 0));
        file.sync_all().expect("said once");
    }
    fails(synced.sync_all());
    synced.sync_all().expect("said once");
    let closed = closer.close();
    assert!(closed.contains("Input/output error"), "close said {closed:?}");
    let mut seen = [0; 4];
    reader.read_exact_at(&mut seen, 0).expect("who only reads hears of it at fsync");
    assert_eq!(&seen, b"told");
    fails(reader.sync_all());
    reader.sync_all().expect("said once");
    untouched.write_all_at(b"mine", 0).expect("nothing of it was lost");
    untouched.sync_all().unwrap();

    for root in [&mine, &theirs] {
        let content = |name| fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(
            ["written", "synced", "closed", "untouched"].map(content),
            ["told", "theirs", "told", "mine"]
        );
        assert!(!root.join("new").exists(), "nothing of the old session is done");
    }
    assert!(cell.mounts[0].counter("lost_records") >= 5);
    let [one] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    let shown = said(recover(&cache, &["show", one["name"].as_str().unwrap()]));
    assert!(shown.contains("/new") && shown.matches("4 bytes at 0").count() == 4, "{shown}");

    // What nobody else has touched since is applied, the rest is reported and stays.
    let mut apply = cell.soda_at(0);
    apply.args(["recover", "--cache-dir"]).arg(cache.path()).args(["apply", one["name"].as_str().unwrap()]);
    let output = wait::run(&mut apply, PATIENCE).output("it waits");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.code() == Some(1) && report.contains("somebody else has changed it since"),
        "{report}"
    );
    for root in [&mine, &theirs] {
        let content = |name| fs::read_to_string(root.join(name)).unwrap();
        let names = ["synced", "written", "closed", "new", "untouched"];
        assert_eq!(names.map(content), ["theirs", "lost", "lost", "lost", "mine"], "{report}");
    }
    assert_eq!(kept(&cache).len(), 1, "what was not applied stays");
}

/// The output of a command that looks where mounts of the cell leave things.
fn here(cell: &Cell, arguments: &[&str]) -> String {
    let output = wait::run(cell.soda_at(0).args(arguments), PATIENCE).expect_success(arguments[0]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

// SEMANTICS 49, 51
/// As most mounts are: the log is in the daemon's memory only, and the daemon lives.
#[test]
fn a_writer_without_a_cache_dir_that_was_frozen_past_its_term_keeps_what_it_lost() {
    if !prerequisites() {
        return;
    }
    let term = MEASURED_TERM / 2;
    let setting = Setting { mount_options: &["-o", "dirty-age=1h"], term, ..Setting::default() };
    let cell = Cell::assemble(2, &setting);
    write_later(&cell);
    let (mine, theirs) = (cell.root(0).join("dir"), cell.root(1).join("dir"));
    for name in ["mine", "both"] {
        fs::write(mine.join(name), "told").unwrap();
    }
    here(&cell, &["sync", cell.root(0).to_str().unwrap()]);
    let open = |name| File::options().read(true).write(true).open(mine.join(name)).unwrap();
    let (only_mine, both) = (open("mine"), open("both"));
    only_mine.write_all_at(b"lost", 0).unwrap();
    both.write_all_at(b"lost", 0).unwrap();
    fs::write(mine.join("new"), "lost").unwrap();
    assert!(here(&cell, &["recover", "ls"]).contains("Nothing is kept"));

    cell.mounts[0].freeze();
    fs::write(theirs.join("both"), "theirs").unwrap();
    assert!(!theirs.join("new").exists());
    cell.mounts[0].thaw();

    fails(only_mine.sync_all());
    fails(both.sync_all());
    wait::in_time(PATIENCE, "nothing is kept", || cell.mounts[0].counter("kept_logs") == 1);
    let lost = cell.mounts[0].counter("lost_records");
    let listed = here(&cell, &["recover", "ls"]);
    assert!(listed.contains("the session has ended: this client was stopped"), "{listed}");
    let logs: Vec<serde_json::Value> =
        serde_json::from_str(&here(&cell, &["recover", "ls", "--json"])).unwrap();
    let [one] = &logs[..] else { panic!("{logs:?}") };
    assert_eq!((one["state"].as_str(), one["records"].as_u64()), (Some("kept"), Some(lost)));
    let client = one["client"].as_str().unwrap();
    assert!(client.ends_with(&format!(":{}", cell.root(0).display())), "{client}");
    let name = one["name"].as_str().unwrap();
    let shown = here(&cell, &["recover", "show", name]);
    assert!(shown.contains("/new") && shown.matches("4 bytes at 0").count() == 3, "{shown}");
    assert!(here(&cell, &["status"]).contains("see `soda recover ls`"));

    // What nobody else has touched since is applied, the rest is reported and stays.
    let output = wait::run(cell.soda_at(0).args(["recover", "apply", name]), PATIENCE).output("it waits");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.code() == Some(1) && report.contains("somebody else has changed it since"),
        "{report}"
    );
    for root in [&mine, &theirs] {
        let content = |name| fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(["mine", "both", "new"].map(content), ["lost", "theirs", "lost"], "{report}");
    }
    here(&cell, &["recover", "drop", name]);
    assert!(here(&cell, &["recover", "ls"]).contains("Nothing is kept"));
}

// SEMANTICS 49
#[test]
fn a_writer_that_was_away_for_less_than_a_term_loses_nothing() {
    if !prerequisites() {
        return;
    }
    let mount_options = ["-o", "write=behind,dirty-age=1h"];
    let (network, term) = (Network::Namespaces, MEASURED_TERM);
    let setting = Setting { network, term, mount_options: &mount_options, ..Setting::default() };
    let cell = Cell::assemble(2, &setting);
    write_later(&cell);
    let (mine, theirs) = (cell.root(0).join("dir/7"), cell.root(1).join("dir/7"));
    let file = File::options().write(true).open(&mine).unwrap();
    let freeze: (Act, Act) = (|cell| cell.mounts[0].freeze(), |cell| cell.mounts[0].thaw());
    let cut: (Act, Act) = (|cell| cell.cut(0), |cell| cell.heal(0));
    for (number, (leave, come_back)) in [freeze, cut].into_iter().enumerate() {
        let content = format!("written {number}");
        file.write_all_at(content.as_bytes(), 0).unwrap();
        assert!(backlog(&cell) > 0);
        leave(&cell);
        let reading = std::thread::spawn({
            let theirs = theirs.clone();
            move || fs::read_to_string(theirs)
        });
        assert!(
            !wait::until(Duration::from_secs(1), || reading.is_finished()),
            "answered without the writer"
        );
        come_back(&cell);
        assert_eq!(reading.join().unwrap().unwrap(), content);
        file.sync_all().unwrap();
    }
    assert_eq!(["lost_records", "sessions_lost"].map(|name| cell.mounts[0].counter(name)), [0, 0]);
    assert!((0..FILES).filter(|number| *number != 7).all(|number| {
        fs::read_to_string(cell.root(1).join("dir").join(number.to_string())).unwrap() == number.to_string()
    }));
}
