//! The cache directory of a mount: what was read before a crash is not read from the server again, the bound is kept, and a
//! full disk is nobody's error.

use soda_system_tests::cell::{Cell, Network, PATIENCE, SmallDisk, prerequisites, soda_binary};
use soda_system_tests::wait::{self, TIMED_OUT};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LEN: usize = 1 << 20;

/// Content that no other file has.
fn content(number: usize) -> Vec<u8> {
    (0..LEN / 4).flat_map(|at| ((number * LEN + at) as u32).to_le_bytes()).collect()
}

/// What the caches of the directory take, in bytes of their blocks; without the log of delayed writes.
fn space_below(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).unwrap().filter_map(Result::ok);
    let caches = entries.filter(|entry| entry.file_name() != "oplog");
    let sizes = caches.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => space_below(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

fn cached(dir: &Path, more: &str) -> Vec<String> {
    vec!["-o".into(), format!("cache-dir={}{more}", dir.display())]
}

/// The second mount writes, the first one reads.
fn cell(options: &[String], files: usize) -> (Cell, Vec<PathBuf>) {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let cell = Cell::start_with(Network::Loopback, 2, &options);
    let names: Vec<PathBuf> = (0..files).map(|number| format!("file{number}").into()).collect();
    for (number, name) in names.iter().enumerate() {
        fs::write(cell.root(1).join(name), content(number)).unwrap();
    }
    (cell, names)
}

#[test]
fn what_was_read_before_a_crash_is_not_read_from_the_server_again() {
    const FILES: usize = 4;
    if !prerequisites() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut cell, names) = cell(&cached(dir.path(), ""), FILES);
    for (number, name) in names.iter().enumerate() {
        assert!(fs::read(cell.root(0).join(name)).unwrap() == content(number));
    }
    // A piece has its name once it is whole.
    let is_whole = |path: &Path| path.extension().is_none_or(|extension| extension != "new");
    let below =
        |dir: &Path| fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|it| it.path());
    let pieces = || below(dir.path()).flat_map(|caches| below(&caches)).filter(|path| is_whole(path));
    let whole = || pieces().filter_map(|path| path.metadata().ok()).map(|it| it.len()).sum::<u64>();
    let kept = wait::until(PATIENCE, || whole() >= (FILES * LEN) as u64);
    assert!(kept, "{TIMED_OUT}: only {} bytes in the cache directory", space_below(dir.path()));
    cell.mounts[0].crash();
    fs::write(cell.root(1).join(&names[0]), content(100)).unwrap();
    cell.mounts[0].start();

    let before = cell.mounts[0].counter("bytes_received");
    for (number, name) in names.iter().enumerate().skip(1) {
        assert!(fs::read(cell.root(0).join(name)).unwrap() == content(number), "{}", name.display());
    }
    let received = cell.mounts[0].counter("bytes_received") - before;
    assert!(received < LEN as u64 / 4, "{received} bytes came from the server");
    assert!(cell.mounts[0].counter("disk_hits") > 0);
    assert!(fs::read(cell.root(0).join(&names[0])).unwrap() == content(100), "an old version was believed");
    assert!(cell.mounts[0].counter("bytes_received") - before >= LEN as u64);
}

#[test]
fn the_bound_of_the_directory_is_kept() {
    const BOUND: u64 = 3 << 20;
    if !prerequisites() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut cell, names) = cell(&cached(dir.path(), ",cache-size=3M"), 8);
    // Of files like these a bound on the data alone would let in 40 times as much.
    for number in 0..1000 {
        fs::write(cell.root(1).join(format!("small{number}")), vec![7; 100]).unwrap();
    }
    // What is on its way to the disk when the bound is looked at, and two lock files.
    let within = || space_below(dir.path()) <= BOUND + 8192;
    for number in 0..1000 {
        assert_eq!(fs::read(cell.root(0).join(format!("small{number}"))).unwrap().len(), 100);
    }
    wait::in_time(PATIENCE, "not as much as the bound lets in", || {
        within() && space_below(dir.path()) > BOUND / 2
    });
    for (number, name) in names.iter().enumerate() {
        assert!(fs::read(cell.root(0).join(name)).unwrap() == content(number));
    }
    assert!(wait::until(PATIENCE, within), "{TIMED_OUT}: {} bytes", space_below(dir.path()));
    cell.crash_client(0);
    assert!(within(), "{} bytes after a restart", space_below(dir.path()));
    assert!(space_below(dir.path()) > BOUND / 2, "nothing was kept");
}

#[test]
fn a_full_disk_below_the_cache_is_nobodys_error() {
    if !prerequisites() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&parent.path().join("disk"), 2);
    let (mut cell, names) = cell(&cached(disk.path(), ",cache-size=64M"), 6);
    for _ in 0..2 {
        for (number, name) in names.iter().enumerate() {
            assert!(fs::read(cell.root(0).join(name)).unwrap() == content(number));
        }
        let said =
            || fs::read_to_string(cell.mounts[0].log()).unwrap().contains("is not written to any more");
        wait::in_time(PATIENCE, "the disk was never full", said);
        cell.crash_client(0);
    }
}

#[test]
fn a_bound_without_a_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut mount = Command::new(soda_binary());
    mount.arg("mount").arg("127.0.0.1:1/main").arg(dir.path()).args(["-o", "cache-size=1G"]);
    let output = wait::run(&mut mount, PATIENCE).output("it waits");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("cache-dir"), "{text}");
}

// SEMANTICS 31
/// The modes in the volume are for those who go through the mount; what the daemon and the server keep is for nobody else.
#[test]
fn what_a_mount_and_a_server_keep_is_not_for_others() {
    if !prerequisites() {
        return;
    }
    const SECRET: &str = "a word that is nowhere else: Sesquipedalia";
    let dir = tempfile::tempdir().unwrap();
    let (cell, _) = cell(&cached(dir.path(), ",write=behind"), 1);
    fs::write(cell.root(0).join("secret"), SECRET.repeat(1000)).unwrap();
    assert_eq!(fs::read(cell.root(1).join("secret")).unwrap().len(), SECRET.len() * 1000);
    let places = [dir.path(), cell.server.data()];
    let finds = |grep: &mut Command| {
        grep.args(["-rlq", SECRET])
            .args(places)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    wait::in_time(PATIENCE, "it is not kept at all", || finds(&mut Command::new("grep")));
    // What lies around them is open.
    for path in [dir.path(), cell.server.data().parent().unwrap()] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    use std::os::unix::process::CommandExt;
    assert!(!finds(Command::new("grep").uid(65534).gid(65534)), "others can read it");
}
