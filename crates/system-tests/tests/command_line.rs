//! The command line: what scripts rely on, and bad input, each with a message that says what is wrong.

use soda_system_tests::cell::{
    Cell, LONG_TERM, Network, PATIENCE, Setting, SmallDisk, free_port, is_mounted, prerequisites,
    skip_not_allowed, soda_binary,
};
use soda_system_tests::wait;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

fn soda(arguments: &[&str]) -> Command {
    let mut command = Command::new(soda_binary());
    command.args(arguments);
    command
}

/// How a command ended that must not succeed.
#[derive(Debug)]
struct Refusal {
    /// As `soda help` lists them.
    code: i32,
    message: String,
}

impl Refusal {
    #[track_caller]
    fn is(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}", self.message);
        for word in words {
            assert!(self.message.contains(word), "no `{word}` in: {}", self.message);
        }
    }
}

/// Runs `soda` with these arguments, which must fail.
fn refused(arguments: &[&str]) -> Refusal {
    let output = wait::run(&mut soda(arguments), PATIENCE).output(&format!("soda {arguments:?}"));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "soda {arguments:?} succeeded: {message}");
    assert!(!message.contains("panicked"), "{message}");
    Refusal { code: output.status.code().unwrap_or(-1), message }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Its socket has its name last, some time after the mount can be used.
#[test]
fn a_mount_can_be_asked_as_soon_as_it_can_be_used() {
    const RENAMES: &str = "trace=rename,renameat,renameat2";
    const SLOWLY: &str = "inject=rename,renameat,renameat2:delay_enter=700000";
    let prefix = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", RENAMES, "-e", SLOWLY];
    if !prerequisites() {
        return;
    }
    let tried = wait::run(Command::new("strace").args(["-o", "/dev/null", "true"]), PATIENCE);
    if !tried.output("strace").status.success() {
        return skip_not_allowed("tracing is not allowed");
    }
    let cell = Cell::assemble(1, &Setting { term: LONG_TERM, mount_prefix: &prefix, ..Setting::default() });
    let root = text(cell.root(0));
    for question in [&["stats", root, "--once", "--json"][..], &["sync", root]] {
        wait::run(&mut soda(question), PATIENCE).expect_success("who asks at once");
    }
}

#[test]
fn a_mount_of_a_volume_that_is_not_there_is_refused() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("{}/elsewhere", cell.server.address());
    refused(&["mount", &spec, text(dir.path())]).is(4, &["elsewhere", "this server has \"main\""]);
    assert!(!is_mounted(dir.path()));
}

#[test]
fn a_mount_without_a_server_is_refused() {
    if !prerequisites() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let spec = format!("{address}/main");
    refused(&["mount", &spec, text(dir.path())]).is(3, &[&address, "Is `soda serve` running there?"]);
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
    refused(&["mount", &spec, text(&missing)]).is(5, &["missing", "mkdir -p"]);
    refused(&["mount", &spec, text(&missing.join("below"))]).is(5, &["missing/below", "mkdir -p"]);
    refused(&["mount", &spec, text(&file)]).is(5, &["not a directory"]);
}

#[test]
fn a_mount_over_another_is_refused_and_over_files_told() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let spec = format!("{}/main", cell.server.address());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("hidden"), b"").unwrap();
    let output = wait::run(&mut soda(&["mount", &spec, text(dir.path())]), PATIENCE).expect_success("mount");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("is not empty"), "{message}");
    let runtime = std::env::var("SODA_RUNTIME_DIR").unwrap_or_else(|_| "/run/soda".into());
    let log_path = format!("{runtime}/{}.log", text(dir.path())[1..].replace('/', "-"));
    let log = fs::read_to_string(&log_path).unwrap();
    // Without being asked for more: the transport, and why it is no other.
    assert!(log.contains("the mount answers the kernel"), "{log}");
    assert!(!log.contains("transport=dev") || log.contains("not io_uring why="), "{log}");
    refused(&["mount", &spec, text(dir.path())]).is(5, &["already", &spec, "soda umount"]);
    wait::run(&mut soda(&["umount", text(dir.path())]), PATIENCE).expect_success("umount");
    refused(&["umount", text(dir.path())]).is(6, &["is not a Soda mount", "soda status"]);
    let left = fs::read_to_string(&log_path);
    assert!(left.as_ref().map_or(true, |left| left.contains(" WARN ")), "what says nothing goes: {left:?}");
    assert!(dir.path().join("hidden").exists());
}

#[test]
fn nonsense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    refused(&["mount", "no-volume-here", text(dir.path())]).is(2, &["HOST:PORT/VOLUME"]);
    let option = |option| refused(&["mount", "127.0.0.1:1/main", text(dir.path()), "-o", option]);
    option("consistency=perhaps").is(2, &["lease, verify or ttl"]);
    option("relatime").is(2, &["relatime", "noatime"]);
    option("soft=soon").is(2, &["soft=soon", "such as 10s"]);
    refused(&["serve", "--data", text(dir.path()), "--listen", "not an address"]).is(2, &["--listen"]);
    refused(&["lease", "why", text(dir.path())]).is(2, &["neither in a Soda mount"]);
    refused(&["stats", text(dir.path())]).is(6, &["is not a Soda mount"]);
    refused(&["fly"]).is(2, &["fly"]);
}

#[test]
fn a_port_in_use_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    refused(&["serve", "--data", text(&data), "--listen", &address])
        .is(1, &[&address, "stop it, or choose another"]);
    assert!(!data.exists(), "nothing is made before the port is ours");
}

#[test]
fn a_directory_that_is_not_ours_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), b"precious").unwrap();
    refused(&["serve", "--data", text(dir.path()), "--listen", &free_address()])
        .is(1, &[text(dir.path()), "give an empty or new directory"]);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["thesis.txt"]);
    refused(&["fsck", text(dir.path())]).is(1, &["not a data directory"]);
    refused(&["fsck", text(&dir.path().join("no"))]).is(1, &["not a data directory"]);
    let file = dir.path().join("thesis.txt");
    refused(&["serve", "--data", text(&file), "--listen", &free_address()]).is(2, &["not a directory"]);
}

#[test]
fn a_data_directory_of_another_format_is_refused() {
    let cell = Cell::start(Network::Loopback, 0);
    let data = cell.scratch().join("other");
    fs::create_dir(&data).unwrap();
    let format = fs::read_to_string(cell.server.data().join("FORMAT")).unwrap();
    let ours = format.lines().find(|line| line.starts_with("version ")).unwrap();
    for (version, advice) in [("9", "use a newer `soda`"), ("1", "with the `soda` that made it")] {
        fs::write(data.join("FORMAT"), format.replace(ours, &format!("version {version}"))).unwrap();
        let says = [&format!("has format {version}"), advice];
        refused(&["serve", "--data", text(&data), "--listen", &free_address()]).is(1, &says);
        refused(&["fsck", text(&data)]).is(1, &says);
    }
}

/// What is lost is not made anew: the data would belong to nobody then, and be swept away.
#[test]
fn a_data_directory_without_its_metadata_is_refused_and_its_data_stay() {
    let mut cell = Cell::start(Network::Loopback, 0);
    cell.server.stop();
    let data = cell.server.data().to_owned();
    let segment = data.join("data/00000000000000ff.seg");
    fs::write(&segment, [7; 8192]).unwrap();
    let meta = data.join("meta");
    for emptied in [false, true] {
        fs::remove_dir_all(&meta).unwrap();
        if emptied {
            fs::create_dir(&meta).unwrap();
        }
        let says = [text(&data), "metadata", "are missing: restore them from a copy; nothing was changed"];
        refused(&["fsck", text(&data)]).is(8, &says);
        refused(&["fsck", "--repair", text(&data)]).is(8, &says);
        refused(&["serve", "--data", text(&data), "--listen", &free_address()]).is(1, &says);
        assert_eq!(meta.exists(), emptied);
        fs::create_dir_all(&meta).unwrap();
        assert_eq!(fs::read_dir(&meta).unwrap().count(), 0);
        assert_eq!(fs::read(&segment).unwrap(), [7; 8192]);
    }
    let format = data.join("FORMAT");
    fs::write(&format, "garbage\n").unwrap();
    refused(&["fsck", text(&data)]).is(8, &["FORMAT is damaged"]);
    refused(&["serve", "--data", text(&data), "--listen", &free_address()]).is(1, &["FORMAT is damaged"]);
}

/// Wherever a bit of the engine's files is turned over, fsck and the server say what it is, and what to do.
#[test]
fn damaged_metadata_are_named_and_nothing_is_changed_unasked() {
    let mut cell = Cell::start(Network::Loopback, 0);
    cell.server.stop();
    let data = cell.server.data().to_owned();
    let trees =
        fs::read_dir(data.join("meta/keyspaces")).unwrap().map(|tree| tree.unwrap().path().join("tables"));
    let tables = trees.filter_map(|tables| fs::read_dir(tables).ok()).flatten();
    let tables: Vec<_> = tables.map(|table| table.unwrap().path()).collect();
    assert!(!tables.is_empty(), "the server wrote its trees out");
    for (number, table) in tables.iter().enumerate() {
        let good = fs::read(table).unwrap();
        let mut bad = good.clone();
        for place in [5, 40, 100, 300] {
            bad[place] ^= 0xff;
        }
        fs::write(table, bad).unwrap();
        let says = ["the metadata", "are damaged", "from a copy"];
        refused(&["fsck", text(&data)]).is(8, &says);
        // What the engine keeps of its trees is made anew: nothing is lost by that.
        if !table.starts_with(data.join("meta/keyspaces/0")) {
            refused(&["fsck", "--repair", text(&data)]).is(8, &says);
        }
        if number == 0 {
            refused(&["serve", "--data", text(&data), "--listen", &free_address()]).is(1, &says);
        }
        fs::write(table, good).unwrap();
    }
    wait::run(&mut soda(&["fsck", text(&data)]), PATIENCE).expect_success("fsck of what was put back");
}

#[test]
fn a_data_directory_has_one_server() {
    let cell = Cell::start(Network::Loopback, 0);
    let data = text(cell.server.data());
    refused(&["serve", "--data", data, "--listen", &free_address()])
        .is(1, &[data, "in use by a running server"]);
    refused(&["fsck", data]).is(1, &[data, "in use by a running server"]);
}

#[test]
fn a_server_that_others_can_reach_must_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    refused(&["serve", "--data", text(&data), "--listen", "0.0.0.0:0"]).is(1, &["--insecure"]);
    let address = free_address();
    let serve = ["serve", "--data", text(&data), "--listen", &address, "--metrics", "0.0.0.0:0"];
    refused(&serve).is(1, &["metrics", "--insecure"]);
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

/// A server that was killed keeps everybody waiting for those whom it knew: the mount is not there before.
#[test]
fn mount_returns_when_a_restarted_server_answers() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::writing_through(1);
    fs::write(cell.mounts[0].root().join("file"), b"content").unwrap();
    cell.mounts[0].kill();
    cell.server.kill();
    cell.server.restart();
    let server = cell.server.address();
    let grace = || status(&[&server])["servers"][0]["grace"].clone();
    assert!(grace().is_number());
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("{server}/main");
    wait::run(&mut soda(&["mount", &spec, text(dir.path())]), PATIENCE).expect_success("mount");
    assert!(grace().is_null(), "mounted in the grace period");
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"content");
    wait::run(&mut soda(&["umount", text(dir.path())]), PATIENCE).expect_success("umount");
}

fn status(of: &[&str]) -> serde_json::Value {
    let output = wait::run(soda(&["status", "--json"]).args(of), PATIENCE).expect_success("status --json");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn is_listed(dir: &Path) -> bool {
    status(&[]).to_string().contains(text(dir))
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

// SEMANTICS 41
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
    refused(&["fsck", text(cell.server.data())]).is(8, &["problem", "--repair"]);
    cell.server.restart();
    cell.mounts[0].start();
    assert!(fs::read(&file).is_err(), "damaged data was read without an error");
    let says_where =
        |line: &str| ["op=\"read\" of=[1:", "chunk", "corrupt"].into_iter().all(|word| line.contains(word));
    let said = || fs::read_to_string(cell.server.log()).unwrap().lines().any(says_where);
    wait::in_time(PATIENCE, "the server does not say where", said);
    assert_eq!(fs::read(cell.root(0).join("other")).unwrap(), b"sound");
    cell.mounts[0].unmount();
    cell.server.stop();
    let data = cell.server.data().to_owned();
    let fsck = |arguments: &[&str]| -> (Option<i32>, serde_json::Value) {
        let all = [&["fsck", "--json"], arguments, &[text(&data)]].concat();
        let output = wait::run(&mut soda(&all), PATIENCE).output("fsck hangs");
        (output.status.code(), serde_json::from_slice(&output.stdout).expect("JSON"))
    };
    let (code, summary) = fsck(&["--repair"]);
    assert_eq!(code, Some(8), "{summary}");
    let left = summary["left"].as_array().unwrap();
    assert!(!left.is_empty(), "{summary}");
    for found in left {
        assert!(
            found["path"] == "/file" && found["inode"].is_u64() && found["range"].is_array(),
            "{summary}"
        );
    }
    assert!(summary["unswept_bytes"].is_u64() && summary["reclaim_left"].is_u64(), "{summary}");
    cell.server.restart();
    cell.mounts[0].start();
    assert!(fs::read(&file).is_err(), "damaged data was read without an error after a repair");
    cell.mounts[0].unmount();
    cell.server.stop();
    let (code, summary) = fsck(&["--repair", "--discard-lost"]);
    assert_eq!((code, &summary["lost_files"]), (Some(0), &1.into()), "{summary}");
    assert!(summary["lost_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{summary}");
    cell.server.restart();
    cell.mounts[0].start();
    let holes = fs::read(&file).unwrap();
    assert!(holes.len() == content.len() && holes[2_000_000..2_000_016] == [0; 16]);
}

// SEMANTICS 16
#[test]
fn a_full_disk_is_enospc_and_passes_when_space_is_made() {
    if !prerequisites() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&parent.path().join("disk"), 512);
    let cell = Cell::start_on(&disk.path().join("data"), 1);
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
        vec!["stats", "--once", "--json", text(cell.root(0))],
        vec!["sync", text(cell.root(0)), "--json"],
        vec!["recover", "ls", "--json"],
        vec!["lab", "model", "--json"],
        vec!["lab", "run", "list", "--json"],
    ] {
        let output = wait::run(&mut soda(&arguments), PATIENCE).expect_success(&arguments.join(" "));
        let parsed = serde_json::from_slice::<serde_json::Value>(&output.stdout);
        assert!(parsed.is_ok(), "soda {arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Counters again and again, until its reader has seen enough: then it ends by itself.
#[test]
fn live_counters_show_rates() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 1);
    let mut stats = soda(&["stats", text(cell.root(0)), "--interval", "20ms"]);
    let mut stats = stats.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(stats.stdout.take().unwrap()).lines().map_while(Result::ok);
    let head = lines.find(|line| line.starts_with("MESSAGES SENT") && line.ends_with("NOW"));
    let rate = lines.find(|line| line.starts_with("hello ") && line.ends_with("/s"));
    drop(lines);
    stats.kill().unwrap();
    stats.wait().unwrap();
    assert!(head.is_some() && rate.is_some(), "no messages by kind, or no rate: {head:?}, {rate:?}");
}

/// A server that is there, but silent: who waits for it is told so before it gives up.
#[test]
fn whoever_waits_is_told_for_what() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    cell.server.freeze();
    let address = cell.server.address();
    let waiting = format!("waiting for the server {address} to answer");
    refused(&["status", "--server", &address]).is(3, &[&waiting, "it does not answer"]);
    refused(&["status", &address]).is(3, &[&waiting, "it does not answer"]);
    cell.server.thaw();
}

/// Who asks why others hang must not hang with them: nothing is asked of the mount itself.
#[test]
fn a_mount_that_hangs_can_be_asked_about() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 2);
    fs::write(cell.root(1).join("file"), b"content").unwrap();
    cell.mounts[0].freeze();
    let file = cell.root(0).join("file");
    let why = wait::run(&mut soda(&["lease", "why", text(&file)]), PATIENCE).expect_success("lease why");
    let status = wait::run(&mut soda(&["status"]), PATIENCE).expect_success("status");
    refused(&["stats", text(cell.root(0))]).is(1, &["the daemon of", "does not answer"]);
    cell.mounts[0].thaw();
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.starts_with("/file (file ") && why.contains("Nobody waits for it."), "{why}");
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let row =
        |line: &str| line.starts_with(&format!("{} ", text(cell.root(0)))) && line.contains(" no answer ");
    assert!(status.lines().any(row), "{status}");
}

/// `mount DIR` with the line of fstab(5) that docs/OPERATIONS.md shows: mount(8) calls mount.fuse3, which looks for `soda` in the
/// system's directories only. So the test has a /usr/local/bin of its own, in a mount namespace.
#[test]
fn a_line_of_fstab() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 1);
    let (bin, fstab, dir) =
        (cell.scratch().join("bin"), cell.scratch().join("fstab"), cell.scratch().join("dir"));
    fs::create_dir(&bin).unwrap();
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(soda_binary(), bin.join("soda")).unwrap();
    let server = cell.server.address();
    let line = format!("{server}/main {} fuse.soda _netdev,nosuid,nodev,noauto 0 0\n", text(&dir));
    fs::write(&fstab, line).unwrap();
    let script = "mount --bind \"$1\" /usr/local/bin && mount --fstab \"$2\" \"$3\" || exit
                  trap 'umount \"$3\"' EXIT
                  grep -q \" $3 .*nosuid,nodev.* fuse.soda \" /proc/self/mountinfo && echo content >\"$3/file\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script, "sh"]).args([&bin, &fstab, &dir]);
    wait::run(&mut unshare, PATIENCE).expect_success("mount DIR");
    assert_eq!(fs::read_to_string(cell.root(0).join("file")).unwrap(), "content\n");
}

#[test]
fn a_server_without_space_to_start_says_so() {
    if !prerequisites() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&parent.path().join("disk"), 1);
    fs::write(disk.path().join("filler"), vec![0; 1 << 20]).unwrap_or_default();
    let data = disk.path().join("data");
    refused(&["serve", "--data", text(&data), "--listen", &free_address()]).is(1, &["No space left"]);
}

/// Who can reach a server may end it, whether it has opened its directory or not.
#[test]
fn a_server_that_has_just_begun_ends_when_it_is_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    for round in 0..10 {
        let address = free_address();
        let mut serve = soda(&["serve", "--data", text(&data), "--listen", &address]);
        let mut server = serve.stderr(Stdio::null()).spawn().unwrap();
        wait::in_time(PATIENCE, "nobody listens", || std::net::TcpStream::connect(&address).is_ok());
        if round % 2 == 1 {
            wait::run(&mut soda(&["status", "--server", &address]), PATIENCE).expect_success("status");
        }
        wait::signal(&server, rustix::process::Signal::TERM);
        let mut ended = None;
        wait::in_time(PATIENCE, "it does not end", || {
            ended = server.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
    wait::run(&mut soda(&["fsck", text(&data)]), PATIENCE).expect_success("fsck");
}
