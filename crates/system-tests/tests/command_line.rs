//! The command line: what scripts rely on, and bad input, each with a message that says what is wrong.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use soda_system_tests::cell::{Cell, Network, PATIENCE, is_mounted, prerequisites, soda_binary};
use soda_system_tests::wait::{self, Finish};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn soda(arguments: &[&str]) -> Command {
    let mut command = Command::new(soda_binary());
    command.args(arguments);
    command
}

/// Runs `soda` with these arguments, which must fail; its message.
fn refused(arguments: &[&str]) -> String {
    match wait::run(&mut soda(arguments), PATIENCE) {
        Finish::Exited(output) => {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "soda {arguments:?} succeeded: {message}");
            assert!(!message.contains("panicked"), "{message}");
            message
        }
        timed_out => panic!("soda {arguments:?}: {timed_out:?}"),
    }
}

fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no `{word}` in: {message}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_mount_of_a_volume_that_is_not_there_is_refused() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("{}/elsewhere", cell.server.address());
    assert_says(&refused(&["mount", &spec, text(dir.path())]), &["elsewhere"]);
    assert!(!is_mounted(dir.path()));
}

#[test]
fn a_mount_without_a_server_is_refused() {
    if !prerequisites() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    assert_says(&refused(&["mount", &format!("{address}/main"), text(dir.path())]), &[&address]);
    assert!(!is_mounted(dir.path()));
}

#[test]
fn a_mount_on_what_is_no_directory_is_refused() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let spec = format!("{}/main", cell.server.address());
    let dir = tempfile::tempdir().unwrap();
    let (missing, file) = (dir.path().join("missing"), dir.path().join("file"));
    fs::write(&file, b"").unwrap();
    assert_says(&refused(&["mount", &spec, text(&missing)]), &["missing"]);
    assert_says(&refused(&["mount", &spec, text(&file)]), &["directory"]);
}

#[test]
fn nonsense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    refused(&["mount", "no-volume-here", text(dir.path())]);
    refused(&["mount", "127.0.0.1:1/main", text(dir.path()), "-o", "consistency=perhaps"]);
    refused(&["serve", "--data", text(dir.path()), "--listen", "not an address"]);
    refused(&["umount", text(dir.path())]);
    refused(&["fly"]);
}

#[test]
fn a_port_in_use_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let message = refused(&["serve", "--data", text(&dir.path().join("data")), "--listen", &address]);
    assert_says(&message, &[&address]);
}

#[test]
fn a_directory_that_is_not_ours_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), b"precious").unwrap();
    let message = refused(&["serve", "--data", text(dir.path()), "--listen", &free_address()]);
    assert_says(&message, &[text(dir.path())]);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["thesis.txt"]);
    refused(&["fsck", text(dir.path())]);
}

#[test]
fn a_data_directory_has_one_server() {
    let cell = Cell::start(Network::Loopback, 0);
    let data = text(cell.server.data());
    assert_says(&refused(&["serve", "--data", data, "--listen", &free_address()]), &[data]);
    refused(&["fsck", data]);
}

#[test]
fn a_server_that_others_can_reach_must_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let message = refused(&["serve", "--data", text(&dir.path().join("data")), "--listen", "0.0.0.0:0"]);
    assert_says(&message, &["--insecure"]);
}

#[test]
fn mount_returns_when_usable_and_umount_when_gone() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("{}/main", cell.server.address());
    for _ in 0..3 {
        wait::run(&mut soda(&["mount", &spec, text(dir.path())]), PATIENCE).expect_success("mount");
        assert!(is_mounted(dir.path()));
        fs::write(dir.path().join("file"), b"content").unwrap();
        assert!(is_listed(dir.path()), "soda status does not show the mount");
        wait::run(&mut soda(&["umount", text(dir.path())]), PATIENCE).expect_success("umount");
        assert!(!is_mounted(dir.path()) && !dir.path().join("file").exists());
    }
}

fn is_listed(dir: &Path) -> bool {
    let output = wait::run(&mut soda(&["status", "--json"]), PATIENCE).expect_success("status --json");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    status.to_string().contains(text(dir))
}

/// As /etc/fstab has it: mount(8) calls mount.fuse3, which calls the program. There the type is `fuse.soda` and `soda` is
/// found in the system's directories; `fuse` with `PROGRAM#SPEC` goes the same way to one that is not installed.
#[test]
fn mount_by_type() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("{}#{}/main", text(&soda_binary()), cell.server.address());
    let mut mount = Command::new("mount");
    mount.args(["-t", "fuse", "-o", "noatime,soft,nofail", &spec]).arg(dir.path());
    wait::run(&mut mount, PATIENCE).expect_success("mount -t fuse");
    assert!(is_mounted(dir.path()));
    fs::write(dir.path().join("file"), b"content").unwrap();
    wait::run(Command::new("umount").arg(dir.path()), PATIENCE).expect_success("umount");
}

#[test]
fn a_read_only_mount_changes_nothing() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start_with(Network::Loopback, 1, &["-o", "ro"]);
    let error = fs::write(cell.root(0).join("file"), b"").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

/// Turns over one byte wherever this content is found below the directory.
fn damage(dir: &Path, content: &[u8]) -> usize {
    let mut found = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found += damage(&path, content);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        for place in bytes.windows(content.len()).enumerate().filter(|(_, window)| *window == content) {
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[!content[0]], place.0 as u64).unwrap();
            found += 1;
        }
    }
    found
}

#[test]
fn a_damaged_chunk_is_an_error_and_not_wrong_data() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 1);
    let file = cell.root(0).join("file");
    let content: Vec<u8> = (0..1 << 20_u32).flat_map(|number: u32| number.to_le_bytes()).collect();
    fs::write(&file, &content).unwrap();
    fs::write(cell.root(0).join("other"), b"sound").unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    cell.mounts[0].unmount();
    cell.server.stop();
    assert!(
        damage(cell.server.data(), &content[2_000_000..2_000_016]) > 0,
        "the content is not found in the data directory"
    );
    let fsck = wait::run(soda(&["fsck"]).arg(cell.server.data()), Duration::from_secs(60));
    assert!(
        matches!(&fsck, Finish::Exited(output) if !output.status.success()),
        "fsck finds nothing: {fsck:?}"
    );
    cell.server.restart();
    cell.mounts[0].start();
    assert!(fs::read(&file).is_err(), "damaged data was read without an error");
    assert_eq!(fs::read(cell.root(0).join("other")).unwrap(), b"sound");
}

/// A disk of a given size, mounted below a directory; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf, mebibytes: u32) -> SmallDisk {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "none"]);
        wait::run(mount.arg(&path), PATIENCE).expect_success("mount -t tmpfs");
        SmallDisk(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_enospc_and_passes_when_space_is_made() {
    if !prerequisites() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let disk = SmallDisk::new(parent.path().join("disk"), 512);
    let cell = Cell::start_on(&disk.0.join("data"), 1);
    let root = cell.root(0);
    fs::write(root.join("before"), b"kept").unwrap();
    let block = vec![7_u8; 8 << 20];
    let full = (0..100).find_map(|number| {
        let written = fs::write(root.join(format!("big{number}")), &block);
        written.err().map(|error| (number, error))
    });
    let (number, error) = full.expect("800 MiB fit on a disk of 512 MiB");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(number > 10, "full after {number} files");
    assert_eq!(fs::read(root.join("before")).unwrap(), b"kept");
    assert!(fs::metadata(root.join("big0")).unwrap().size() == 8 << 20);
    for name in 0..=number {
        let _ = fs::remove_file(root.join(format!("big{name}")));
    }
    let again = wait::until(PATIENCE, || fs::write(root.join("after"), &block).is_ok());
    assert!(again, "no space although everything was removed");
    assert_eq!(fs::read(root.join("after")).unwrap(), block);
}

#[test]
fn tables_are_json_when_asked() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 1);
    let file = cell.root(0).join("file");
    fs::write(&file, b"content").unwrap();
    fs::read(&file).unwrap();
    let server = cell.server.address();
    for arguments in [
        vec!["status", "--json", "--server", &server],
        vec!["lease", "ls", "--json", "--server", &server],
        vec!["lease", "why", text(&file), "--json"],
        vec!["stats", "--once", "--json", "--server", &server],
    ] {
        let output = wait::run(&mut soda(&arguments), PATIENCE).expect_success(&arguments.join(" "));
        let parsed = serde_json::from_slice::<serde_json::Value>(&output.stdout);
        assert!(parsed.is_ok(), "soda {arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
