//! Sentences of docs/SEMANTICS.md that take faults, mount options or counted bytes to test. Those that take only system
//! calls are in tests/external/semantics.py.

use rustix::io::Errno;
use soda_system_tests::cell::{
    Cell, MEASURED_TERM, Network, PATIENCE, Setting, SmallDisk, TERM, prerequisites, skip_not_allowed,
    soda_binary, transport,
};
use soda_system_tests::linear::assert_linearizable;
use soda_system_tests::wait;
use soda_system_tests::workload::{Descriptors, Pieces, Syncs, Workload, seed};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Past the end of a term: the server's own margin.
const SLACK: Duration = Duration::from_millis(1500);

/// A Python that carries out one line after the other and answers with what each expression is: for mapped memory, and for
/// whatever holds locks or waits and must be a process of its own.
pub(crate) struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Python {
    pub(crate) fn start() -> Python {
        const LOOP: &str = "import sys, os, fcntl, mmap, errno\n\
            for line in sys.stdin:\n\
            \x20   try:\n\
            \x20       line = line.strip()\n\
            \x20       try: answer = repr(eval(line))\n\
            \x20       except SyntaxError: exec(line); answer = 'done'\n\
            \x20   except OSError as error: answer = errno.errorcode[error.errno]\n\
            \x20   print(answer, flush=True)\n";
        let mut child = Command::new("python3")
            .args(["-c", LOOP])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Python { child, to, from }
    }

    fn begin(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.begin(line);
        self.answer()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A history of random operations of all mounts that could have happened on one copy, without any error.
fn one_copy(test: &str, seed: u64, cell: &Cell) {
    let (pieces, descriptors, syncs) = (Pieces::Calls, Descriptors::Any, Syncs::Never);
    let (threads_per_mount, operations, pause, readers) = (2, 600, Duration::ZERO, 0);
    let workload =
        Workload { seed, threads_per_mount, operations, pieces, descriptors, syncs, pause, readers };
    let run = workload.run(test, &cell.roots(), |progress| progress.complete(Duration::from_secs(120)));
    let errors: Vec<_> = run.errors.iter().flatten().take(5).collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_linearizable(&run.history);
}

// SEMANTICS 7
#[test]
fn verify_is_one_copy() {
    if prerequisites() {
        let cell = Cell::start_with(Network::Loopback, 2, &["-o", "consistency=verify"]);
        one_copy("verify_is_one_copy", seed(31), &cell);
    }
}

// SEMANTICS 7
#[test]
fn ttl_may_be_stale_for_so_long_and_no_longer() {
    const TTL: Duration = Duration::from_secs(3);
    if !prerequisites() {
        return;
    }
    let cell = Cell::start_with(Network::Loopback, 2, &["-o", "consistency=ttl=3"]);
    let (here, there) = (cell.root(0).join("file"), cell.root(1).join("file"));
    fs::write(&here, "old").unwrap();
    let open = File::open(&there).unwrap();
    let read = || {
        let mut content = [0; 3];
        open.read_exact_at(&mut content, 0).unwrap();
        content
    };
    let fetched = Instant::now();
    assert_eq!(&read(), b"old");
    fs::write(&here, "new").unwrap();
    let seen = read();
    assert!(seen == *b"old" || fetched.elapsed() > TTL, "no ttl at work");
    // What was fetched before the write is no longer used this long after the write.
    std::thread::sleep(TTL + Duration::from_millis(200));
    assert_eq!(&read(), b"new");
}

// SEMANTICS 10
#[test]
fn space_of_a_removed_file_comes_back_when_its_holder_crashes() {
    const BLOCK: usize = 8 << 20;
    if !prerequisites() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&parent.path().join("disk"), 512);
    let data = disk.path().join("data");
    // A mount that writes behind has room set aside for what it has not told.
    let setting =
        Setting { data: Some(&data), mount_options: &["-o", "write=through"], ..Setting::default() };
    let mut cell = Cell::assemble(2, &setting);
    let held =
        File::options().create_new(true).read(true).write(true).open(cell.root(0).join("held")).unwrap();
    let block: Vec<u8> = (0..BLOCK as u32 / 4).flat_map(u32::to_le_bytes).collect();
    let mut blocks = 0;
    while blocks < 100 {
        match held.write_all_at(&block, (blocks * BLOCK) as u64) {
            Ok(()) => blocks += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull);
                break;
            }
        }
    }
    assert!((10..100).contains(&blocks), "{blocks} blocks of 8 MiB on 512 MiB");
    fs::remove_file(cell.root(1).join("held")).unwrap();
    let other = cell.root(1).join("other");
    let error = fs::write(&other, &block).expect_err("the space is still in use");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let mut read = vec![0; BLOCK];
    held.read_exact_at(&mut read, BLOCK as u64).unwrap();
    assert!(read == block, "the removed file has other data");
    cell.mounts[0].crash();
    wait::in_time(PATIENCE, "its space is not given back", || fs::write(&other, &block).is_ok());
    wait::in_time(PATIENCE, "not all of it", || fs::write(&other, vec![7; blocks / 2 * BLOCK]).is_ok());
    drop(held);
}

// SEMANTICS 15
#[test]
fn a_copy_does_not_travel() {
    const LEN: u64 = 32 << 20;
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Namespaces, 2);
    let content: Vec<u8> =
        (0..LEN as u32 / 4).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(cell.root(0).join("source"), &content).unwrap();
    let source = File::open(cell.root(1).join("source")).unwrap();
    let target = File::options().create_new(true).write(true).open(cell.root(1).join("target")).unwrap();
    let before = cell.wire_bytes(0) + cell.wire_bytes(1);
    let (mut from, mut to) = (0, 0);
    while from < LEN {
        let len = (LEN - from) as usize;
        let copied =
            rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), len).unwrap();
        assert!(copied > 0, "nothing copied at {from}");
    }
    let traveled = cell.wire_bytes(0) + cell.wire_bytes(1) - before;
    assert!(traveled < LEN / 100, "{traveled} bytes on the wire for a copy of {LEN}");
    drop(target);
    assert!(fs::read(cell.root(0).join("target")).unwrap() == content, "the copy differs");
    // The counter counts: the read did travel.
    assert!(cell.wire_bytes(0) + cell.wire_bytes(1) - before > LEN);
}

// SEMANTICS 19
#[test]
fn sync_of_a_machine_does_not_ask_the_server() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 1);
    let file = File::create(cell.root(0).join("file")).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let before = cell.mounts[0].counter("msg_sync");
    rustix::fs::syncfs(&file).unwrap();
    assert_eq!(cell.mounts[0].counter("msg_sync"), before, "syncfs");
    rustix::fs::sync();
    assert_eq!(cell.mounts[0].counter("msg_sync"), before, "sync");
    file.sync_data().unwrap();
    assert_eq!(cell.mounts[0].counter("msg_sync"), before + 1, "fdatasync");
}

/// The answer. `None` if the page is not there, because the kernel wanted the memory or had no lease for it, and the load
/// waits: then `end_it`.
fn unless_it_waits(program: &mut Python, line: &str, end_it: impl FnOnce() + Send) -> Option<String> {
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let waits = is_done.recv_timeout(3 * TERM).is_err();
            if waits {
                end_it();
            }
            waits
        });
        let answer = program.ask(line);
        // Nobody listens any more if it waited.
        let _ = done.send(());
        (!watch.join().unwrap()).then_some(answer)
    })
}

// SEMANTICS 25
#[test]
fn mapped_pages_of_a_frozen_machine_stay_and_stat_waits() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 2);
    let (frozen, other) = (cell.root(0).join("file"), cell.root(1).join("file"));
    fs::write(&other, "old").unwrap();
    let mut program = Python::start();
    program.ask(&format!("file = open({frozen:?})"));
    program.ask("mapped = mmap.mmap(file.fileno(), 3, prot=mmap.PROT_READ)");
    let stays = (0..5).any(|_| {
        fs::write(&other, "old").unwrap();
        assert!(wait::until(PATIENCE, || program.ask("mapped[:]") == "b'old'"));
        cell.mounts[0].freeze();
        fs::write(&other, "new").unwrap();
        let seen = unless_it_waits(&mut program, "mapped[:]", || cell.mounts[0].thaw());
        assert!(seen.as_ref().is_none_or(|seen| seen == "b'old'"), "mapped memory does not ask anybody");
        seen.is_some()
    });
    assert!(stays, "the page was gone each time");
    let mut waiting: Vec<Child> = [("stat", "-c%s"), ("cat", "--")]
        .into_iter()
        .map(|(tool, option)| {
            Command::new(tool).arg(option).arg(&frozen).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let early = wait::until(Duration::from_millis(500), || {
        waiting.iter_mut().any(|child| child.try_wait().unwrap().is_some())
    });
    assert!(!early, "stat or open was answered by a frozen machine's cache");
    cell.mounts[0].thaw();
    let seen: Vec<_> = waiting.into_iter().map(|child| child.wait_with_output().unwrap().stdout).collect();
    assert_eq!(seen, [b"3\n".to_vec(), b"new".to_vec()]);
    assert!(wait::until(PATIENCE, || program.ask("mapped[:]") == "b'new'"), "the mapping stays behind");
}

// SEMANTICS 7, 23
#[test]
fn mapped_pages_that_no_lease_covers_are_dropped_soon() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start_with(Network::Loopback, 2, &["-o", "consistency=verify"]);
    let (here, there) = (cell.root(0).join("file"), cell.root(1).join("file"));
    fs::write(&there, "000").unwrap();
    let mut program = Python::start();
    program.ask(&format!("file = open({here:?})"));
    program.ask("mapped = mmap.mmap(file.fileno(), 3, prot=mmap.PROT_READ)");
    for number in 1..20 {
        program.ask("mapped[:]");
        fs::write(&there, format!("{number:03}")).unwrap();
        let expected = format!("b'{number:03}'");
        assert!(wait::until(PATIENCE, || program.ask("mapped[:]") == expected), "the old page stays mapped");
    }
}

// SEMANTICS 1
#[test]
fn without_leases_the_end_of_a_file_that_is_mapped_is_where_another_machine_has_put_it() {
    if !prerequisites() {
        return;
    }
    for options in ["consistency=verify", "lease-term=0"] {
        let cell = Cell::start_with(Network::Loopback, 2, &["-o", options]);
        let (here, there) = (cell.root(0).join("file"), cell.root(1).join("file"));
        fs::write(&there, [b'x'; 4095]).unwrap();
        let mut writer = fs::OpenOptions::new().append(true).open(&there).unwrap();
        let mut program = Python::start();
        program.ask(&format!("file = os.open({here:?}, os.O_RDWR)"));
        for length in 4096..4120 {
            // A page that is there when the file has grown.
            program.ask("mapped = mmap.mmap(file, 4095); mapped[0]; mapped.close()");
            writer.write_all(b"x").unwrap();
            assert_eq!(program.ask("os.lseek(file, 0, 2)"), length.to_string(), "{options}");
        }
    }
}

/// Takes a whole-file lock through an open `file`.
fn lock(program: &mut Python, kind: &str) -> String {
    program.ask(&format!("fcntl.{kind}(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"))
}

// SEMANTICS 29
#[test]
fn locks_of_a_machine_that_crashes_are_free_after_a_term() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::assemble(2, &Setting { term: MEASURED_TERM, ..Setting::default() });
    let beside = cell.root(1).join("beside");
    fs::create_dir(&beside).unwrap();
    let mut programs = ["flock", "lockf"].map(|kind| {
        File::create(cell.root(0).join(kind)).unwrap();
        let (mut holder, mut other) = (Python::start(), Python::start());
        holder.ask(&format!("file = open({:?}, 'r+')", cell.root(0).join(kind)));
        other.ask(&format!("file = open({:?}, 'r+')", cell.root(1).join(kind)));
        assert_eq!(lock(&mut holder, kind), "None");
        assert!(["EAGAIN", "EACCES"].contains(&lock(&mut other, kind).as_str()));
        (kind, other, holder)
    });
    cell.mounts[0].crash();
    let control = |number: u32| fs::write(beside.join(number.to_string()), "").unwrap();
    wait::at_most_a_term(MEASURED_TERM, control, || {
        for (kind, other, _) in &mut programs {
            other.begin(&format!("fcntl.{kind}(file, fcntl.LOCK_EX)"));
        }
        for (kind, other, _) in &mut programs {
            assert_eq!(other.answer(), "None", "{kind}");
        }
    });
}

// SEMANTICS 30
#[test]
fn a_machine_that_lost_its_locks_is_told() {
    if !prerequisites() {
        return;
    }
    for kind in ["flock", "lockf"] {
        let cell = Cell::start(Network::Loopback, 2);
        fs::write(cell.root(0).join("lock"), "content").unwrap();
        let (mut holder, mut other) = (Python::start(), Python::start());
        holder.ask(&format!("file = open({:?}, 'r+b', buffering=0)", cell.root(0).join("lock")));
        holder.ask(&format!("unlocked = open({:?}, 'r+b', buffering=0)", cell.root(0).join("lock")));
        other.ask(&format!("file = open({:?}, 'r+')", cell.root(1).join("lock")));
        assert_eq!(lock(&mut holder, kind), "None");
        cell.mounts[0].freeze();
        // Waits for the end of the holder's term.
        assert_eq!(other.ask(&format!("fcntl.{kind}(file, fcntl.LOCK_EX)")), "None");
        cell.mounts[0].thaw();
        assert_eq!(holder.ask("os.pread(file.fileno(), 7, 0)"), "EIO", "{kind}: read");
        assert_eq!(holder.ask("os.pwrite(file.fileno(), b'broken', 0)"), "EIO", "{kind}: write");
        assert_eq!(fs::read_to_string(cell.root(1).join("lock")).unwrap(), "content");
        // A new descriptor starts anew: without the lock.
        holder.ask(&format!("file = open({:?}, 'r+b', buffering=0)", cell.root(0).join("lock")));
        assert_eq!(holder.ask("os.pread(file.fileno(), 7, 0)"), "b'content'");
        assert!(["EAGAIN", "EACCES"].contains(&lock(&mut holder, kind).as_str()));
    }
}

// SEMANTICS 36
#[test]
fn a_machine_that_nobody_missed_goes_on_as_if_nothing_had_been() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Namespaces, 2);
    let mut file =
        File::options().create_new(true).read(true).append(true).open(cell.root(0).join("file")).unwrap();
    file.write_all(b"before").unwrap();
    file.lock().unwrap();
    fs::create_dir(cell.root(1).join("elsewhere")).unwrap();
    cell.cut(0);
    // Elsewhere nobody needs what the other has, and so nobody is asked for it.
    fs::write(cell.root(1).join("elsewhere/file"), "x").unwrap();
    std::thread::sleep(TERM + SLACK);
    cell.heal(0);
    assert_eq!(cell.mounts[0].counter("sessions_lost"), 0, "thrown out although nobody waited");
    file.write_all(b" and after").unwrap();
    assert_eq!(fs::read_to_string(cell.root(1).join("file")).unwrap(), "before and after");
    let other = File::options().write(true).open(cell.root(1).join("file")).unwrap();
    assert!(other.try_lock().is_err(), "its lock was given away");
}

// SEMANTICS 35
#[test]
fn access_times_cannot_be_asked_for() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 0);
    let dir = tempfile::tempdir().unwrap();
    for option in ["relatime", "strictatime"] {
        let mut mount = Command::new(soda_binary());
        mount.args(["mount", &format!("{}/main", cell.server.address()), "-o", option]).arg(dir.path());
        let output = wait::run(&mut mount, PATIENCE).output("soda mount hangs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains("noatime"), "-o {option}: {message}");
    }
}

// SEMANTICS 38
#[test]
fn what_is_cached_can_be_used_without_the_server() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start_with(Network::Loopback, 1, &["-o", "soft=1s"]);
    let file = cell.root(0).join("file");
    fs::write(&file, "content").unwrap();
    // On a machine so busy that the lease ends before the look it is an error; such a try says nothing.
    let is_served = (0..5).any(|_| {
        wait::until(PATIENCE, || fs::read(&file).is_ok());
        cell.server.kill();
        let seen = fs::metadata(&file).and_then(|_| fs::read(&file));
        cell.server.restart();
        seen.is_ok_and(|seen| seen == b"content")
    });
    assert!(is_served, "nothing is served without the server");
}

// SEMANTICS 40
#[test]
fn a_mount_whose_daemon_died_says_so_and_is_replaced() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::writing_through(1);
    let root = cell.root(0).to_path_buf();
    fs::write(root.join("file"), "kept").unwrap();
    let open = File::open(root.join("file")).unwrap();
    cell.mounts[0].kill();
    if transport() == "uring" {
        // Linux (6.18) closes the rings after the process has ended. Who calls before is one who waits for the daemon.
        const WAITED: [Errno; 3] = [Errno::CONNABORTED, Errno::CANCELED, Errno::INTR];
        wait::in_time(PATIENCE, "the connection outlives the daemon", || {
            let error = rustix::fs::statfs(&root).unwrap_err();
            assert!(error == Errno::NOTCONN || WAITED.contains(&error), "{error}");
            error == Errno::NOTCONN
        });
    }
    let not_connected = |error: std::io::Error| assert_eq!(error.raw_os_error(), Some(107), "{error}");
    not_connected(fs::metadata(root.join("file")).unwrap_err());
    not_connected(open.read_at(&mut [0; 1], 0).unwrap_err());
    drop(open);
    cell.mounts[0].unmount();
    cell.mounts[0].start();
    assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "kept");
}

// SEMANTICS 20, 39
#[test]
fn operations_under_way_when_the_server_crashes_are_done_once() {
    const APPENDS: usize = 600;
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 2);
    let roots = cell.roots();
    let start = std::sync::Barrier::new(roots.len() + 1);
    std::thread::scope(|scope| {
        let start = &start;
        let workers: Vec<_> = roots
            .iter()
            .enumerate()
            .map(|(number, root)| scope.spawn(move || append_and_link(root, number, APPENDS, start)))
            .collect();
        start.wait();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(150));
            cell.server.kill();
            cell.server.restart();
        }
    });
    for (number, root) in roots.iter().enumerate() {
        let log = fs::read_to_string(root.join("log")).unwrap();
        let own: Vec<&str> =
            log.lines().filter_map(|line| line.strip_prefix(&format!("{number} "))).collect();
        let expected: Vec<String> = (0..APPENDS).map(|record| record.to_string()).collect();
        assert!(own == expected, "machine {number}: {} of {APPENDS} records, each once", own.len());
        assert_eq!(
            fs::metadata(root.join(format!("linked{number}"))).unwrap().nlink(),
            1 + APPENDS as u64 / 10
        );
    }
}

/// A repeated append or link would be seen; so would a repeated `mkdir`, which fails the second time.
fn append_and_link(root: &Path, number: usize, appends: usize, start: &std::sync::Barrier) {
    let mut log = File::options().create(true).append(true).open(root.join("log")).unwrap();
    let linked = root.join(format!("linked{number}"));
    File::create_new(&linked).unwrap();
    start.wait();
    for record in 0..appends {
        log.write_all(format!("{number} {record}\n").as_bytes()).unwrap();
        if record % 10 == 0 {
            fs::hard_link(&linked, root.join(format!("link{number}.{record}"))).unwrap();
            fs::create_dir(root.join(format!("dir{number}.{record}"))).unwrap();
        }
    }
}

#[test]
fn the_helper_of_these_tests_tells_errors_from_values() {
    let mut python = Python::start();
    assert_eq!(python.ask("x = 3"), "done");
    assert_eq!(python.ask("x + 1"), "4");
    assert_eq!(python.ask("os.close(999)"), "EBADF");
}

/// What containers are made of: overlayfs takes no file system for its upper layer that cannot rename and leave a whiteout in one
/// step. What it writes another mount sees, whiteouts and all.
#[test]
fn a_union_file_system_has_its_upper_layer_here() {
    const WORK: &str = r#"set -eu
        cd "$HERE"; mkdir lower lower/dir merged "$ONE/upper" "$ONE/work"
        echo lower >lower/file; echo two >lower/two; echo in >lower/dir/in
        mount -t overlay overlay -o "lowerdir=$HERE/lower,upperdir=$ONE/upper,workdir=$ONE/work" merged
        cd merged; echo changed >>file; rm two; mv file renamed; mv dir/in dir/out; mv renamed dir/; rm -r dir; mkdir dir
        [ "$(ls)" = dir ] && [ -z "$(ls dir)" ]; echo last >dir/last
        cd "$TWO/upper"; [ "$(ls)" = "$(printf 'dir\nfile\ntwo')" ]
        [ "$(stat -c '%F %t:%T' file two | uniq)" = 'character special file 0:0' ]; [ "$(cat dir/last)" = last ]
        cd "$HERE"; umount merged; echo done"#;
    if !prerequisites() {
        return;
    }
    if !fs::read_to_string("/proc/filesystems").unwrap().contains("overlay")
        && !Command::new("modprobe").arg("overlay").status().is_ok_and(|status| status.success())
    {
        return skip_not_allowed("the kernel has no overlayfs");
    }
    let (cell, here) = (Cell::unhurried(2), tempfile::tempdir().unwrap());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WORK]).env("HERE", here.path());
    command.env("ONE", cell.root(0)).env("TWO", cell.root(1));
    wait::run(&mut command, PATIENCE).expect_success("work in a union");
}
