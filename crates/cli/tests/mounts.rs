//! Mounts in the states that people meet: busy, dead, remounted, called by mount(8). Real processes on loopback.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use soda_system_tests::cell::{PATIENCE, free_port, is_mounted, mount_entry, prerequisites};
use soda_system_tests::wait;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SODA: &str = env!("CARGO_BIN_EXE_soda");

/// A server and a place for mounts; everything is taken down when it is dropped.
struct Place {
    server: Child,
    term: &'static str,
    address: String,
    dir: TempDir,
}

/// `None` where nothing can be mounted.
fn place() -> Option<Place> {
    place_with_term("2s")
}

/// The session lease's term as in `2s`.
fn place_with_term(term: &'static str) -> Option<Place> {
    if !prerequisites() {
        return None;
    }
    let dir = tempfile::Builder::new().prefix("soda-cli.").tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let server = serve(term, &address, dir.path());
    fs::create_dir(dir.path().join("mount")).unwrap();
    Some(Place { server, term, address, dir })
}

fn serve(term: &str, address: &str, dir: &Path) -> Child {
    let mut server = Command::new(SODA);
    server.args(["serve", "--term", term, "--listen", address, "--data"]).arg(dir.join("data"));
    let server = server.stderr(Stdio::null()).spawn().unwrap();
    // Who connects while it starts is served as soon as it can.
    wait::in_time(PATIENCE, "the server listens", || std::net::TcpStream::connect(address).is_ok());
    server
}

impl Place {
    fn mount_point(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    fn spec(&self) -> String {
        format!("{}/main", self.address)
    }

    fn soda(&self, arguments: &[&str]) -> Output {
        self.run(SODA.as_ref(), arguments)
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "40"]).arg(program).args(arguments);
        command.env("SODA_RUNTIME_DIR", self.dir.path().join("run")).output().unwrap()
    }

    fn mount(&self, options: &[&str]) {
        let (spec, dir) = (self.spec(), self.mount_point());
        let arguments = [&["mount", &spec, dir.to_str().unwrap()], options].concat();
        succeeded(&self.soda(&arguments));
    }

    fn kill_server(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// When the daemon knows that the server is not there.
    fn wait_until_disconnected(&self) {
        wait::in_time(PATIENCE, "the daemon notices", || {
            let output = self.soda(&["status", "--json"]);
            String::from_utf8_lossy(&output.stdout).contains("\"Disconnected\"")
        });
    }

    fn umount(&self, options: &[&str]) -> Output {
        let dir = self.mount_point();
        self.soda(&[&["umount", dir.to_str().unwrap()], options].concat())
    }

    fn is_mounted(&self) -> bool {
        is_mounted(&self.mount_point())
    }

    fn status(&self) -> serde_json::Value {
        let output = self.soda(&["status", "--json"]);
        succeeded(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn daemon(&self) -> u64 {
        self.status()["mounts"][0]["pid"].as_u64().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.umount(&["--force"]);
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A process that works in the mount.
struct Busy(Child);

impl Busy {
    fn start(dir: &Path) -> Busy {
        Busy(Command::new("sleep").arg("60").current_dir(dir).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bind mount, taken away with the test.
struct Bound(PathBuf);

impl Bound {
    fn make(of: &Path, dir: PathBuf) -> Bound {
        fs::create_dir_all(&dir).unwrap();
        succeeded(&Command::new("mount").arg("--bind").arg(of).arg(&dir).output().unwrap());
        Bound(dir)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn is_there(&self) -> bool {
        is_mounted(&self.0)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

fn failed_with(output: &Output, code: i32, word: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(word), "{text}");
}

// Here every place has daemons of its own: elsewhere "all mounts" are those of other tests, too.
#[test]
fn a_sync_of_all_mounts_names_those_that_cannot_be_asked() {
    let Some(place) = place() else { return };
    assert_eq!(String::from_utf8_lossy(&place.soda(&["sync"]).stdout), "No mounts here.\n");
    place.mount(&["-o", "write=behind,dirty-age=1h"]);
    let dir = place.mount_point();
    let backlog = || {
        let output = place.soda(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["mounts"][0]["session"]["backlog"]["records"].as_u64().unwrap()
    };
    let mut number = 0;
    wait::in_time(PATIENCE, "changes are delayed", || {
        fs::write(dir.join(format!("file {number}")), "x").unwrap();
        number += 1;
        backlog() > 0
    });
    let output = place.soda(&["sync"]);
    succeeded(&output);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let synced = format!("{}: everything is on the server's disk (", dir.display());
    assert!(said.starts_with(&synced) && said.lines().count() == 1, "{said}");
    assert_eq!(backlog(), 0);
    let daemon = place.daemon().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &daemon]).status().unwrap().success());
    signal("-STOP");
    let (all, one) = (place.soda(&["sync"]), place.soda(&["sync", dir.to_str().unwrap()]));
    let json = place.soda(&["sync", "--json"]);
    signal("-CONT");
    failed_with(&all, 1, &format!("{} is not synced", dir.display()));
    failed_with(&json, 1, "is not synced");
    assert!(String::from_utf8_lossy(&json.stdout).contains("no_answer"), "{json:?}");
    failed_with(&one, 1, "does not answer");
}

// SEMANTICS 40
#[test]
fn a_dead_mount_is_taken_away_and_mounted_again() {
    let Some(place) = place() else { return };
    place.mount(&["-o", "sync"]);
    let file = place.mount_point().join("file");
    fs::write(&file, "kept").unwrap();
    let daemon = place.daemon().to_string();
    assert!(Command::new("kill").args(["-9", &daemon]).status().unwrap().success());
    wait::in_time(PATIENCE, "ENOTCONN", || {
        fs::metadata(&file).is_err_and(|error| error.raw_os_error() == Some(107))
    });
    let (spec, dir) = (place.spec(), place.mount_point());
    failed_with(&place.soda(&["mount", &spec, dir.to_str().unwrap()]), 5, "soda umount");
    succeeded(&place.umount(&[]));
    assert!(!place.is_mounted());
    place.mount(&[]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn a_busy_mount_stays_unless_it_is_detached_or_cut_off() {
    let Some(place) = place() else { return };
    place.mount(&["-o", "nosymfollow"]);
    std::os::unix::fs::symlink("/etc", place.mount_point().join("link")).unwrap();
    let refused = fs::read_dir(place.mount_point().join("link")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(40), "ELOOP: links are not followed");
    let busy = Busy::start(&place.mount_point());
    failed_with(&place.umount(&[]), 7, "in use");
    assert!(place.is_mounted());
    succeeded(&place.umount(&["--lazy"]));
    assert!(!place.is_mounted());
    drop(busy);

    place.mount(&[]);
    let _busy = Busy::start(&place.mount_point());
    succeeded(&place.umount(&["--force"]));
    assert!(!place.is_mounted());
    failed_with(&place.umount(&[]), 6, "not a Soda mount");
}

#[test]
fn the_log_of_a_daemon_is_json_if_asked_for() {
    let Some(place) = place() else { return };
    let log = place.dir.path().join("log");
    place.mount(&["--log", "debug", "--log-format", "json", "--log-file", log.to_str().unwrap()]);
    fs::write(place.mount_point().join("file"), "x").unwrap();
    let before = place.daemon();
    // The next daemon goes on with it, and says the last word.
    succeeded(&place.soda(&["mount", "--takeover", place.mount_point().to_str().unwrap()]));
    assert_ne!(place.daemon(), before);
    succeeded(&place.umount(&[]));
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    for line in &lines {
        assert!(
            line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string(),
            "{line}"
        );
    }
    let dir = place.mount_point().display().to_string();
    let unmounted = |line: &serde_json::Value| {
        line["fields"]["message"] == "unmounted" && line["fields"]["dir"] == dir.as_str()
    };
    assert!(lines.iter().any(unmounted), "{text}");
}

// SEMANTICS 38
#[test]
fn a_busy_mount_is_taken_away_when_the_server_is_gone() {
    let Some(mut place) = place() else { return };
    place.mount(&["-o", "sync"]);
    fs::write(place.mount_point().join("file"), "x").unwrap();
    let _busy = Busy::start(&place.mount_point());
    place.kill_server();
    place.wait_until_disconnected();
    let output = place.umount(&["--patience", "1s"]);
    succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is cut off"), "{output:?}");
    assert!(!place.is_mounted());
}

// SEMANTICS 38
#[test]
fn an_idle_mount_without_a_server_is_unmounted_without_a_word() {
    let Some(mut place) = place() else { return };
    place.mount(&[]);
    fs::write(place.mount_point().join("file"), "x").unwrap();
    let dir = place.mount_point();
    succeeded(&place.soda(&["sync", dir.to_str().unwrap()]));
    place.kill_server();
    place.wait_until_disconnected();
    let output = place.umount(&[]);
    succeeded(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(!place.is_mounted());
}

// SEMANTICS 38
#[test]
fn a_busy_mount_outlives_an_umount_while_the_server_restarts() {
    let Some(mut place) = place_with_term("60s") else { return };
    place.mount(&[]);
    let file = place.mount_point().join("file");
    fs::write(&file, "kept").unwrap();
    let _busy = Busy::start(&place.mount_point());
    place.kill_server();
    place.wait_until_disconnected();
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| place.umount(&["--patience", "0s"]));
        // It would not wait at all for a server that is gone: in processes of their own, which know the real time only.
        std::thread::sleep(Duration::from_secs(1));
        assert!(!unmounting.is_finished(), "{:?}", unmounting.join());
        let mut server = serve(place.term, &place.address, place.dir.path());
        let output = unmounting.join().unwrap();
        let still = fs::read_to_string(&file);
        server.kill().unwrap();
        server.wait().unwrap();
        failed_with(&output, 7, "in use");
        assert_eq!(still.unwrap(), "kept");
    });
}

#[test]
fn a_busy_mount_with_a_stopped_daemon_is_not_taken_for_dead() {
    let Some(place) = place() else { return };
    place.mount(&[]);
    let daemon = place.daemon().to_string();
    let _busy = Busy::start(&place.mount_point());
    let signal = |name: &str| assert!(Command::new("kill").args([name, &daemon]).status().unwrap().success());
    signal("-STOP");
    let output = place.umount(&[]);
    signal("-CONT");
    failed_with(&output, 7, "does not answer");
    assert!(place.is_mounted());
}

#[test]
fn remount_changes_flags_and_starts_nothing() {
    let Some(place) = place() else { return };
    place.mount(&[]);
    let (daemon, file) = (place.daemon(), place.mount_point().join("file"));
    fs::write(&file, "x").unwrap();
    place.mount(&["-o", "remount,ro"]);
    assert_eq!(fs::write(&file, "y").unwrap_err().raw_os_error(), Some(30));
    place.mount(&["-o", "remount,rw"]);
    fs::write(&file, "y").unwrap();
    assert_eq!(place.daemon(), daemon);
    succeeded(&place.umount(&[]));
    failed_with(
        &place.soda(&["mount", &place.spec(), place.dir.path().to_str().unwrap(), "-o", "remount"]),
        6,
        "mount",
    );
}

#[test]
fn a_remount_refuses_what_it_cannot_change() {
    let Some(place) = place() else { return };
    let cache = place.dir.path().join("cache").display().to_string();
    // As a line of fstab has it.
    let fstab = format!("_netdev,soft=20s,cache-dir={cache}");
    place.mount(&["-o", &fstab]);
    let (spec, dir) = (place.spec(), place.mount_point());
    let remount = |options: &str| {
        place.soda(&["mount", &spec, dir.to_str().unwrap(), "-o", &format!("remount,{options}")])
    };
    for (options, named) in [
        ("soft=5s", "hard or soft"),
        ("hard", "hard or soft"),
        ("consistency=verify,cache-dir=/x", "consistency, write, dirty-age, dirty-size, cache-dir"),
        ("ro,write=through", "write"),
    ] {
        let refused = remount(options);
        failed_with(&refused, 1, &format!("cannot change {named}"));
        failed_with(&refused, 1, "unmount and mount again");
    }
    let file = dir.join("file");
    fs::write(&file, "what is refused is refused as a whole").unwrap();
    // What mount(8) finds in fstab, or in the kernel's table.
    succeeded(&remount(&format!("{fstab},ro")));
    assert_eq!(fs::write(&file, "y").unwrap_err().raw_os_error(), Some(30));
    succeeded(&remount("rw,noatime,user_id=0,group_id=0,default_permissions,allow_other"));
    fs::write(&file, "y").unwrap();
}

#[test]
fn the_server_that_is_asked_is_that_of_the_mounts_listed() {
    let (Some(one), Some(two)) = (place(), place()) else { return };
    one.mount(&[]);
    // The latest of this machine, but not of these daemons: to them it is somebody else's.
    two.mount(&[]);
    let servers = |place: &Place| -> Vec<String> {
        let output = place.soda(&["status", "--json"]);
        succeeded(&output);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let servers = status["servers"].as_array().unwrap().iter();
        servers.map(|server| server["listen"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(servers(&one), std::slice::from_ref(&one.address));
    assert_eq!(servers(&two), std::slice::from_ref(&two.address));
    succeeded(&two.umount(&[]));

    let (spec, dir) = (two.spec(), two.mount_point());
    succeeded(&one.soda(&["mount", &spec, dir.to_str().unwrap()]));
    let mut both = [one.address.clone(), two.address.clone()];
    both.sort();
    assert_eq!(servers(&one), both);
    for command in [&["lease", "ls"][..], &["stats", "--once"], &["lab", "advise"]] {
        let refused = one.soda(command);
        failed_with(&refused, 2, "--server");
        both.iter().for_each(|address| failed_with(&refused, 2, address));
    }
    succeeded(&one.soda(&["lease", "ls", "--server", &two.address]));
}

#[test]
fn called_by_mount_8_it_is_a_mount_helper() {
    let Some(place) = place() else { return };
    let helper = place.dir.path().join("mount.fuse.soda");
    std::os::unix::fs::symlink(SODA, &helper).unwrap();
    let (spec, dir) = (place.spec(), place.mount_point());
    let arguments = [&spec, dir.to_str().unwrap(), "-s", "-o", "rw,noauto,_netdev,nosuid", "-t", "fuse.soda"];
    succeeded(&place.run(&helper, &arguments));
    let line = mount_entry(&dir).unwrap();
    assert!(line.contains("nosuid") && line.contains("fuse.soda"), "{line}");
    let helper = place.dir.path().join("umount.fuse.soda");
    std::os::unix::fs::symlink(SODA, &helper).unwrap();
    succeeded(&place.run(&helper, &[dir.to_str().unwrap(), "-n", "-t", "fuse.soda"]));
    assert!(mount_entry(&dir).is_none());
}

#[test]
fn fsck_refuses_a_directory_in_use_and_finds_a_killed_servers_clean() {
    let Some(mut place) = place() else { return };
    place.mount(&[]);
    fs::write(place.mount_point().join("file"), vec![7; 1 << 20]).unwrap();
    succeeded(&place.umount(&[]));
    let data = place.dir.path().join("data");
    failed_with(&place.soda(&["fsck", data.to_str().unwrap()]), 1, "in use");
    place.server.kill().unwrap();
    place.server.wait().unwrap();
    let output = place.soda(&["fsck", data.to_str().unwrap(), "--json"]);
    succeeded(&output);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((summary["inodes"].as_u64(), summary["left"].as_array().map(Vec::len)), (Some(2), Some(0)));
}

#[test]
fn a_path_below_a_bind_mount_is_the_one_in_the_volume() {
    // A lease on all of a directory covers what is in it.
    for (leases, leased) in [("deep-leases=on", "/sub"), ("deep-leases=off", "/sub/dir/file")] {
        let Some(place) = place() else { return };
        place.mount(&["-o", leases]);
        a_path_below_a_bind_mount(&place, leased);
    }
}

fn a_path_below_a_bind_mount(place: &Place, leased: &str) {
    let (mount, outside) = (place.mount_point(), place.dir.path().join("outside"));
    fs::create_dir_all(mount.join("sub/dir")).unwrap();
    fs::create_dir(mount.join("inside")).unwrap();
    fs::write(mount.join("sub/dir/file"), "x").unwrap();
    // What the server does not know yet has no lease there.
    succeeded(&place.soda(&["sync", mount.to_str().unwrap()]));
    let binds =
        [Bound::make(&mount.join("sub"), outside), Bound::make(&mount.join("sub"), mount.join("inside"))];
    for bind in &binds {
        let file = bind.0.join("dir/file");
        let why = place.soda(&["lease", "why", "--json", file.to_str().unwrap()]);
        succeeded(&why);
        let why: serde_json::Value = serde_json::from_slice(&why.stdout).unwrap();
        assert_eq!(why["path"], "/sub/dir/file", "{why}");
        assert!(why["changes"].is_object(), "the daemon was asked: {why}");
        let synced = place.soda(&["sync", file.to_str().unwrap()]);
        succeeded(&synced);
        let leases = place.soda(&["lease", "ls", "--json", file.to_str().unwrap()]);
        succeeded(&leases);
        let leases: serde_json::Value = serde_json::from_slice(&leases.stdout).unwrap();
        assert_eq!((leases.as_array().unwrap().len(), &leases[0]["path"]), (1, &leased.into()), "{leases}");
        assert!(String::from_utf8_lossy(&synced.stdout).starts_with(mount.to_str().unwrap()), "{synced:?}");
        succeeded(&place.soda(&["stats", "--once", bind.text()]));
        let remount = place.soda(&["mount", &place.spec(), bind.text(), "-o", "remount,ro"]);
        failed_with(&remount, 1, "is a bind mount of");
    }
    fs::remove_dir_all(mount.join("sub/dir")).unwrap();
    fs::remove_dir(mount.join("sub")).unwrap();
    failed_with(&place.soda(&["lease", "why", binds[0].text()]), 1, "was removed");
}

#[test]
fn bind_mounts_are_named_with_their_mount_and_not_as_dead_ones() {
    let Some(place) = place() else { return };
    place.mount(&[]);
    let (mount, dir) = (place.mount_point(), place.dir.path());
    fs::create_dir(mount.join("sub")).unwrap();
    let _part = Bound::make(&mount.join("sub"), dir.join("part"));
    let _again = Bound::make(&mount, dir.join("again"));
    // Tests beside this one have mounts that its daemons do not know.
    let of_this = |list: &serde_json::Value, key: Option<&str>| -> Vec<serde_json::Value> {
        let list = list.as_array().unwrap().iter();
        let is_here = |row: &&serde_json::Value| {
            let named = key.map_or(*row, |key| &row[key]);
            Path::new(named.as_str().unwrap()).starts_with(dir)
        };
        list.filter(is_here).cloned().collect()
    };
    let expected = [("part", "/sub"), ("again", "/")]
        .map(|(name, path)| serde_json::json!({ "dir": dir.join(name), "of": mount, "path": path }));
    let status = place.status();
    assert_eq!(of_this(&status["mounts"], Some("dir")).len(), 1, "{status}");
    assert_eq!(of_this(&status["dead_mounts"], None), [] as [serde_json::Value; 0]);
    assert_eq!(of_this(&status["bind_mounts"], Some("dir")), expected);
    let here = dir.to_str().unwrap();
    for command in ["sync", "doctor"] {
        let output = place.soda(&[command]);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let complaint = |line: &str| line.contains(here) && line.contains("does not answer");
        assert!(!said.iter().flat_map(|text| text.lines()).any(complaint), "{said:?}");
    }

    let daemon = place.daemon().to_string();
    assert!(Command::new("kill").args(["-9", &daemon]).status().unwrap().success());
    wait::in_time(PATIENCE, "ENOTCONN", || {
        fs::metadata(&mount).is_err_and(|error| error.raw_os_error() == Some(107))
    });
    let status = place.status();
    assert_eq!(of_this(&status["dead_mounts"], None), [serde_json::json!(mount)]);
    assert_eq!(of_this(&status["bind_mounts"], Some("dir")), expected);
}

#[test]
fn a_bind_mount_is_unmounted_alone() {
    let Some(place) = place() else { return };
    place.mount(&[]);
    let (mount, dir) = (place.mount_point(), place.dir.path());
    fs::create_dir(mount.join("sub")).unwrap();
    let (daemon, file) = (place.daemon(), mount.join("sub/file"));
    for options in [&[][..], &["--lazy"], &["--force"]] {
        let bind = Bound::make(&mount.join("sub"), dir.join("part"));
        let began = Instant::now();
        succeeded(&place.soda(&[&["umount", bind.text()], options].concat()));
        assert!(began.elapsed() < Duration::from_secs(8), "TIMED OUT: waited for the daemon to end");
        assert!(!bind.is_there() && place.is_mounted());
        fs::write(&file, "still served").unwrap();
        assert_eq!(place.daemon(), daemon);
    }
    // In a namespace of its own, as a container has it.
    for option in ["", " --force"] {
        let umount = format!("{SODA} umount {}{option}", mount.display());
        let began = Instant::now();
        succeeded(&place.run("unshare".as_ref(), &["--mount", "sh", "-c", &umount]));
        assert!(began.elapsed() < Duration::from_secs(8), "TIMED OUT: waited for the daemon to end");
        fs::write(&file, "still served").unwrap();
        assert_eq!(place.daemon(), daemon);
    }
    let bind = Bound::make(&mount.join("sub"), dir.join("part"));
    let busy = Busy::start(&bind.0);
    failed_with(&place.soda(&["umount", bind.text()]), 7, "in use");
    drop(busy);

    // Without the mount that it was made of it is one like any other.
    let output = place.umount(&[]);
    succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains(bind.text()), "{output:?}");
    assert_eq!(fs::read_to_string(bind.0.join("file")).unwrap(), "still served");
    succeeded(&place.soda(&["umount", bind.text()]));
    // One that nobody waits for may be left in the table of processes, without its words.
    let words = fs::read(format!("/proc/{daemon}/cmdline")).unwrap_or_default();
    assert!(words.is_empty(), "its daemon ends with the last");
}
