//! Options of `soda serve` and `soda mount`: that each is taken, and does what it says where others can see it.

use soda_system_tests::cell::{Cell, Network, PATIENCE, prerequisites, soda_binary};
use soda_system_tests::wait::{self, TIMED_OUT};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Killed when dropped.
struct Serve(Child);

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_with_all_its_options() {
    let dir = tempfile::tempdir().unwrap();
    let mut serve = Command::new(soda_binary());
    serve.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
        "--term",
        "2s",
        "--grace",
        "3s",
    ]);
    serve.args(["--object-term", "5s", "--object-term", "main=session", "--write-leases", "only-to-holders"]);
    serve.args(["--equation-8", "off", "--metadata-cache", "16M", "--data-cache", "16M", "--reserve", "1M"]);
    serve
        .args(["--sync-interval", "200ms", "--threads", "2", "--log", "warn", "--data"])
        .arg(dir.path().join("data"));
    let mut serve = Serve(serve.stderr(Stdio::piped()).spawn().unwrap());
    let said = BufReader::new(serve.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<_> = said.take(2).collect();
    let address = said[0].rsplit_once(" on ").unwrap().1;
    let metrics = said[1].split_once("http://").unwrap().1.strip_suffix("/metrics").unwrap();

    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("\nsoda_"), "{page}");

    let mut status = Command::new(soda_binary());
    status.args(["status", "--json", "--server", address]);
    let status = wait::run(&mut status, PATIENCE).expect_success("status");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["servers"][0]["term"], 2.0, "{status}");
}

#[test]
fn metrics_that_others_can_reach_must_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut serve = Command::new(soda_binary());
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0", "--data"])
        .arg(dir.path().join("data"));
    let output = wait::run(&mut serve, PATIENCE).output("it serves");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--insecure"), "{output:?}");
}

#[test]
fn a_mount_with_all_its_options() {
    if !prerequisites() {
        return;
    }
    let cache = tempfile::Builder::new().prefix("soda,cache.").tempdir().unwrap();
    let place = cache.path().display().to_string();
    let list = format!("cache-dir={},cache-size=64M", place.replace(',', "\\,"));
    let more = "memory=16M,consistency=verify,soft=5s,nosuid,nodev,noexec";
    let cell = Cell::start_with(Network::Loopback, 1, &["-o", &list, "-o", more]);
    let (file, content) = (cell.root(0).join("file"), vec![7_u8; 1 << 20]);
    fs::write(&file, &content).unwrap();
    assert_eq!(fs::read(&file).unwrap(), content);
    let kept = wait::until(PATIENCE, || bytes_below(cache.path()) >= content.len() as u64);
    assert!(kept, "{TIMED_OUT}: nothing in the cache directory: {}", bytes_below(cache.path()));

    let mut status = Command::new(soda_binary());
    let status = wait::run(status.args(["status", "--json"]), PATIENCE).expect_success("status");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let mounts = status["mounts"].as_array().unwrap();
    let mount =
        mounts.iter().find(|mount| mount["dir"] == cell.root(0).display().to_string().as_str()).unwrap();
    let options = mount["options"].as_str().unwrap();
    for option in
        ["consistency=verify", "soft=5s", "nosuid", "nodev", "noexec", &list.replace("64M", "67108864")]
    {
        assert!(options.contains(option), "no `{option}` in `{options}`");
    }
}

#[test]
fn a_mount_with_a_term_of_its_own_for_leases() {
    if !prerequisites() {
        return;
    }
    for (term, stats_ask) in [("0", true), ("1h", false), ("infinite", false)] {
        let cell = Cell::start_with(Network::Loopback, 1, &["-o", &format!("lease-term={term}")]);
        let file = cell.root(0).join("file");
        fs::write(&file, "content").unwrap();
        fs::metadata(&file).unwrap();
        let questions = ["msg_lookup", "msg_lookupstat", "msg_getattr", "msg_stat", "msg_fetch"];
        let asked = || questions.iter().map(|question| cell.mounts[0].counter(question)).sum::<u64>();
        let before = asked();
        for _ in 0..10 {
            fs::metadata(&file).unwrap();
        }
        let questions = asked() - before;
        assert_eq!(questions >= 10, stats_ask, "lease-term={term}: {questions} questions");
        let mut leases = Command::new(soda_binary());
        leases.args(["lease", "ls", "--json", "--server", &cell.server.address()]);
        let leases = wait::run(&mut leases, PATIENCE).expect_success("lease ls");
        let leases: serde_json::Value = serde_json::from_slice(&leases.stdout).unwrap();
        let none = leases.as_array().is_some_and(Vec::is_empty);
        assert_eq!(none, stats_ask, "lease-term={term}: {leases}");
    }
}

fn bytes_below(dir: &std::path::Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let sizes = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => bytes_below(&entry.path()),
        false => entry.metadata().map_or(0, |metadata| metadata.len()),
    });
    sizes.sum()
}

#[test]
fn a_soft_mount_gives_up_after_its_time() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start_with(Network::Loopback, 1, &["-o", "soft=1s"]);
    cell.server.kill();
    let touched = wait::run(Command::new("touch").arg(cell.root(0).join("new")), PATIENCE);
    let output = touched.output("a soft mount waits for ever");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("Input/output error"), "{message}");
}

/// A lock that flock(1) has for the command ends with it, and who reads a pipe to its end is not kept by the mount. And a limit
/// for files of the shell's does not end the mount.
#[test]
fn a_mount_keeps_nothing_of_who_made_it() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let scratch = tempfile::tempdir().unwrap();
    let (mount, cache) = (scratch.path().join("m"), scratch.path().join("c"));
    fs::create_dir(&mount).unwrap();
    let script = r#"
        exec 9>"$1/lock"; flock 9; ulimit -S -f 100
        "$2" mount "$3" "$4" -o "cache-dir=$5"
    "#;
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash"]).arg(scratch.path()).arg(soda_binary());
    command.arg(format!("{}/main", cell.server.address())).args([&mount, &cache]);
    let output = wait::run(&mut command, PATIENCE).output("bash");
    assert!(output.status.success(), "{output:?}");
    let lock = fs::File::open(scratch.path().join("lock")).unwrap();
    assert!(lock.try_lock().is_ok(), "the mount's daemon has the lock");

    let data = vec![7; 1 << 20];
    fs::write(mount.join("f"), &data).unwrap();
    fs::File::open(mount.join("f")).unwrap().sync_all().unwrap();
    assert!(fs::read(mount.join("f")).unwrap() == data);
    let mut umount = Command::new(soda_binary());
    wait::run(umount.arg("umount").arg(&mount), PATIENCE).expect_success("umount");
}
