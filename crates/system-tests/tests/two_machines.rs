//! What programs on two machines do with one tree: the reference model says what each must see.

use soda_model::{Alphabet, Generator, Placement, Rng};
use soda_system_tests::cell::{Cell, LONG_TERM, PATIENCE, Setting, copy_program, prerequisites, soda_binary};
use soda_system_tests::tree::{Comparison, RealTree};
use soda_system_tests::wait;
use soda_system_tests::workload::seed;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

/// One operation after the other, each through a mount chosen by lot; every answer is compared with the model's.
fn compare(name: &str, seed: u64, alphabet: Alphabet, placement: Placement, operations: usize) {
    let cell = Cell::unhurried(2);
    let mut comparison = Comparison::new(RealTree::new(cell.roots()));
    let mut lot = Rng::new(seed ^ 0xff);
    for op in Generator::new(seed, alphabet, placement).take(operations) {
        let root = lot.below(2) as usize;
        if let Err(difference) = comparison.step(root, &op) {
            panic!("{difference}\nrepeat with: SODA_SEED={seed} cargo test -p soda-system-tests {name}");
        }
    }
    if let Err(difference) = comparison.inspect() {
        panic!(
            "in the end: {difference}\nrepeat with: SODA_SEED={seed} cargo test -p soda-system-tests {name}"
        );
    }
}

// SEMANTICS 1, 3, 14
#[test]
fn two_machine_fsx() {
    if prerequisites() {
        compare("two_machine_fsx", seed(21), Alphabet::Data, Placement::Within { bytes: 1 << 20 }, 10_000);
    }
}

// SEMANTICS 4, 5, 9, 33
#[test]
fn names_attributes_and_data_like_the_model() {
    if prerequisites() {
        let placement = Placement::Within { bytes: 300_000 };
        compare("names_attributes_and_data_like_the_model", seed(22), Alphabet::Full, placement, 10_000);
    }
}

#[test]
fn sparse_files_beyond_four_gibibytes_like_the_model() {
    if prerequisites() {
        let name = "sparse_files_beyond_four_gibibytes_like_the_model";
        compare(name, seed(23), Alphabet::Full, Placement::Sparse, 4000);
    }
}

/// Runs one closure for each mount, all at once.
fn at_once<T: Send>(cell: &Cell, work: impl Fn(usize, PathBuf) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(cell.mounts.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = cell
            .roots()
            .into_iter()
            .enumerate()
            .map(|(number, root)| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    work(number, root)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A file of one page that all of holds one byte, written again and again by one machine; `change` makes it hold another.
/// Readers on the other machine ask for more than there is, as programs do who do not know how long it is.
fn read_beyond_the_end(change: impl Fn(&std::path::Path, &[u8]) + Sync) {
    const PAGE: usize = 4096;
    let cell = Cell::unhurried(2);
    let (here, there) = (cell.root(0).join("file"), cell.root(1).join("file"));
    fs::write(&here, [0; PAGE]).unwrap();
    let writing = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut bytes = [0; 2 * PAGE];
                while writing.load(std::sync::atomic::Ordering::Relaxed) {
                    let file = File::open(&there).unwrap();
                    for _ in 0..5 {
                        let read = rustix::io::pread(&file, &mut bytes[..], 0).unwrap();
                        assert!(read == 0 || read == PAGE, "{read} bytes of {PAGE}");
                        let last = bytes[..read].last();
                        let other = bytes[..read].iter().position(|byte| Some(byte) != last);
                        assert_eq!(other, None, "a mix of {} and {last:?}", bytes[0]);
                    }
                }
            });
        }
        for round in 1..=400_u32 {
            change(&here, &[(round % 251) as u8; PAGE]);
        }
        writing.store(false, std::sync::atomic::Ordering::Relaxed);
    });
}

// SEMANTICS 6
#[test]
fn who_reads_beyond_the_end_sees_one_state_of_the_last_page() {
    if !prerequisites() {
        return;
    }
    read_beyond_the_end(|path, bytes| {
        let file = File::options().write(true).open(path).unwrap();
        assert_eq!(rustix::io::pwrite(&file, bytes, 0).unwrap(), bytes.len());
    });
    read_beyond_the_end(|path, bytes| fs::write(path, bytes).unwrap());
}

// SEMANTICS 13
#[test]
fn appends_of_two_machines_lose_nothing() {
    if !prerequisites() {
        return;
    }
    const RECORDS: usize = 1000;
    let cell = Cell::unhurried(2);
    File::create(cell.root(0).join("log")).unwrap();
    at_once(&cell, |number, root| {
        let mut log = File::options().append(true).open(root.join("log")).unwrap();
        for record in 0..RECORDS {
            // Lengths differ, so that a wrong offset shows.
            log.write_all(format!("{number} {record} {}\n", "x".repeat(record % 50)).as_bytes()).unwrap();
        }
    });
    for root in cell.roots() {
        let text = fs::read_to_string(root.join("log")).unwrap();
        for number in 0..2 {
            let own: Vec<String> = text
                .lines()
                .filter(|line| line.starts_with(&format!("{number} ")))
                .map(str::to_owned)
                .collect();
            let expected: Vec<String> =
                (0..RECORDS).map(|record| format!("{number} {record} {}", "x".repeat(record % 50))).collect();
            assert!(own == expected, "mount {number}: {} of {RECORDS} records in order", own.len());
        }
    }
}

// SEMANTICS 8
#[test]
fn of_two_exclusive_creates_one_wins() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    let wins = at_once(&cell, |_, root| {
        let attempts = (0..300).map(|name| File::create_new(root.join(format!("lock{name}"))));
        attempts
            .map(|result| match result {
                Ok(_) => true,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
                Err(error) => panic!("{error}"),
            })
            .collect::<Vec<bool>>()
    });
    for (name, (one, other)) in wins[0].iter().zip(&wins[1]).enumerate() {
        assert!(one != other, "lock{name}: won by {} of two", u8::from(*one) * 2);
    }
}

/// A counter in a file, protected by a lock only: what is read, added to and written is lost if the lock is none.
fn count_under_lock(lock: &str) {
    const ADDITIONS: u64 = 150;
    let cell = Cell::unhurried(2);
    fs::write(cell.root(0).join("counter"), b"0").unwrap();
    let program = format!(
        "import fcntl, os, sys\n\
         for _ in range({ADDITIONS}):\n\
         \x20   with open(sys.argv[1], 'r+') as f:\n\
         \x20       fcntl.{lock}(f, fcntl.LOCK_EX)\n\
         \x20       value = int(f.read())\n\
         \x20       f.seek(0); f.write(str(value + 1)); f.flush()\n\
         \x20       fcntl.{lock}(f, fcntl.LOCK_UN)\n"
    );
    at_once(&cell, |_, root| {
        let mut python = Command::new("python3");
        python.arg("-c").arg(&program).arg(root.join("counter"));
        wait::run(&mut python, Duration::from_secs(120)).expect_success("python3");
    });
    for root in cell.roots() {
        let counted: u64 = fs::read_to_string(root.join("counter")).unwrap().parse().unwrap();
        assert_eq!(counted, 2 * ADDITIONS, "additions under {lock}");
    }
}

// SEMANTICS 26
#[test]
fn flock_excludes_across_machines() {
    if prerequisites() {
        count_under_lock("flock");
    }
}

// SEMANTICS 26
#[test]
fn fcntl_locks_exclude_across_machines() {
    if prerequisites() {
        count_under_lock("lockf");
    }
}

// SEMANTICS 29
/// A lock dies with the process that holds it, also when another machine waits.
#[test]
fn a_lock_is_free_when_its_holder_is_killed() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    File::create(cell.root(0).join("lock")).unwrap();
    let program =
        "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); time.sleep(600)";
    let mut holder =
        Command::new("python3").args(["-c", program]).arg(cell.root(0).join("lock")).spawn().unwrap();
    let is_held = || {
        !Command::new("flock")
            .arg("-n")
            .arg(cell.root(1).join("lock"))
            .arg("true")
            .status()
            .unwrap()
            .success()
    };
    assert!(wait::until(PATIENCE, is_held), "the lock is not seen by the other machine");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(wait::until(PATIENCE, || !is_held()), "the lock outlives its holder");
}

#[test]
fn who_waits_for_a_file_lock_is_told_who_has_it() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    let lock = File::create(cell.root(0).join("lock")).unwrap();
    lock.lock().unwrap();
    // The server hears of the file, and who decides about its locks.
    fs::metadata(cell.root(1).join("lock")).unwrap();
    let why = |number: usize, more: &[&str]| {
        let mut soda = Command::new(soda_binary());
        soda.args(["lease", "why"]).args(more).arg(cell.root(number).join("lock"));
        let output = wait::run(&mut soda, PATIENCE).expect_success("lease why");
        String::from_utf8(output.stdout).unwrap()
    };
    let process = std::process::id();
    let (alone, there) = (why(0, &[]), why(1, &[]));
    assert!(alone.contains("Nobody waits for it."), "{alone}");
    assert!(alone.contains(&format!("\n        an exclusive flock (process {process})\n")), "{alone}");
    assert!(there.contains("which it has is known there only"), "{there}");

    let mut waiter = Command::new("flock").arg(cell.root(1).join("lock")).arg("true").spawn().unwrap();
    let mut seen = serde_json::Value::Null;
    wait::in_time(PATIENCE, "nobody waits for the lock", || {
        seen = serde_json::from_str(&why(1, &["--json"])).unwrap();
        !seen["file_locks"]["waiting"][0]["in_the_way"].is_null()
    });
    let (held, waiting) = (&seen["file_locks"]["held"], &seen["file_locks"]["waiting"]);
    assert_eq!((held.as_array().unwrap().len(), waiting.as_array().unwrap().len()), (1, 1), "{seen}");
    assert_eq!((&held[0]["lock"]["family"], &held[0]["lock"]["pid"]), (&"Flock".into(), &process.into()));
    assert_eq!((&waiting[0]["in_the_way"], &waiting[0]["wants"]["pid"]), (&held[0], &waiter.id().into()));
    assert_ne!(held[0]["session"], waiting[0]["session"]);
    for text in [why(0, &[]), why(1, &[])] {
        let waits = format!("(process {} there) waits for an exclusive flock: ", waiter.id());
        let has = format!("(process {process} there) has an exclusive flock.\n");
        assert!(text.contains(&waits) && text.contains(&has) && !text.contains("Nobody waits"), "{text}");
    }
    lock.unlock().unwrap();
    assert!(waiter.wait().unwrap().success());
    assert!(why(1, &[]).contains("Nobody waits for it."));
}

/// The kernel tells of a close late, and by then may have given the closed file's address, by which it names the owner of
/// locks, to the next.
#[test]
fn a_lock_outlives_the_close_of_an_earlier_descriptor() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    fs::write(cell.root(0).join("lock"), b"").unwrap();
    let program = "
import fcntl, struct, sys
path, other = sys.argv[1:]
F_OFD_SETLK = 37
whole = struct.pack('hhxxxxqqixxxx', fcntl.F_WRLCK, 0, 0, 0, 0)
ways = {'flock': lambda f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB),
        'OFD': lambda f: fcntl.fcntl(f, F_OFD_SETLK, whole)}
def is_free(lock):
    with open(other, 'r+') as f:
        try:
            lock(f)
            return True
        except BlockingIOError:
            return False
def acquire(lock):
    f = open(path, 'r+')
    while True:
        try:
            lock(f)
            return f
        except BlockingIOError:
            pass  # who had it has closed it: that takes a moment to arrive
for name, lock in ways.items():
    for attempt in range(150):
        acquire(lock).close()
        held = acquire(lock)
        assert not any(is_free(lock) for _ in range(3)), f'{name} {attempt}: the lock is lost'
        held.close()
";
    let mut python = Command::new("python3");
    python.arg("-c").arg(program).args(cell.roots().iter().map(|root| root.join("lock")));
    wait::run(&mut python, Duration::from_secs(60)).expect_success("locks after a close");
}

#[test]
fn sqlite_on_both_machines() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/external/sqlite.py");
    let mut python = Command::new("python3");
    python.arg(script).args(cell.roots());
    wait::run(&mut python, Duration::from_secs(300)).expect_success("sqlite.py");
}

// SEMANTICS 4, 5
/// Directory listings, names that come and go, and sizes that grow are seen at once, not after a time-out.
#[test]
fn changes_are_seen_by_the_very_next_call() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    let (here, there) = (cell.root(0).to_path_buf(), cell.root(1).to_path_buf());
    let names = |root: &PathBuf| {
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    for round in 0..100 {
        let name = format!("file{round}");
        assert!(!there.join(&name).exists());
        fs::write(here.join(&name), "x".repeat(round)).unwrap();
        assert_eq!(fs::metadata(there.join(&name)).unwrap().len(), round as u64);
        assert_eq!(names(&there).len(), 1);
        fs::rename(there.join(&name), there.join("renamed")).unwrap();
        assert!(!here.join(&name).exists());
        assert_eq!(fs::read(here.join("renamed")).unwrap().len(), round);
        fs::remove_file(here.join("renamed")).unwrap();
        assert!(names(&there).is_empty());
    }
}

#[test]
fn a_directory_that_was_removed_elsewhere_is_at_its_end() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    let [here, there] = [0, 1].map(|mount| cell.root(mount).join("directory"));
    fs::create_dir(&here).unwrap();
    let listing = fs::read_dir(&here).unwrap();
    fs::remove_dir(&there).unwrap();
    assert!(listing.map(Result::unwrap).next().is_none());
}

#[test]
fn a_program_that_runs_is_not_cut_off() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(1);
    let program = cell.roots()[0].join("program");
    copy_program(Path::new("/bin/sleep"), &program);
    let size = fs::metadata(&program).unwrap().len();
    let mut running = Command::new(&program).arg("100").spawn().unwrap();
    // O_RDONLY with O_TRUNC: the flag that must not take effect before the kernel has looked who executes the file.
    let opened = rustix::fs::open(
        &program,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC,
        rustix::fs::Mode::empty(),
    );
    let after = fs::metadata(&program).unwrap().len();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(opened.err(), Some(rustix::io::Errno::TXTBSY));
    assert_eq!(after, size);
}

/// Sources, and how to build them: each is an object of its own, all of them are a program.
const SOURCES: usize = 16;

fn write_sources(dir: &Path) {
    const MAKEFILE: &str = "OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))\n\
        program: $(OBJECTS)\n\tcc -o $@ $(OBJECTS)\n\
        %.o: %.c common.h\n\tcc -O0 -c $< -o $@\n";
    fs::create_dir(dir).unwrap();
    fs::write(dir.join("Makefile"), MAKEFILE).unwrap();
    fs::write(dir.join("common.h"), "int sum(int);\n").unwrap();
    for number in 0..SOURCES {
        let next = (number + 1) % SOURCES;
        let start = if number == 0 { "int main(void) { return f1(0) != 15; }\n" } else { "" };
        let source = format!(
            "#include \"common.h\"\nint f{next}(int);\n\
             int f{number}(int n) {{ return {number} ? f{next}(n + 1) : n; }}\n{start}"
        );
        fs::write(dir.join(format!("c{number}.c")), source).unwrap();
    }
}

fn make(dir: &Path, targets: &[String]) {
    let mut make = Command::new("make");
    make.arg("-j2").arg("-C").arg(dir).args(targets);
    wait::run(&mut make, Duration::from_secs(120)).expect_success("make");
}

fn objects(numbers: impl Iterator<Item = usize>) -> Vec<String> {
    numbers.map(|number| format!("c{number}.o")).collect()
}

/// Every file, with its content.
fn contents(dir: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(Result::unwrap)
        .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
        .collect();
    found.sort();
    found
}

/// Beside each other, then in one directory: what comes out is what one machine makes alone, and the other machine sees it.
// SEMANTICS 1, 46
#[test]
fn two_machines_that_build_at_once_make_what_one_makes_alone() {
    if !prerequisites() {
        return;
    }
    for mount_options in [&[][..], &["-o", "write=through"]] {
        let setting = Setting { mount_options, term: LONG_TERM, ..Setting::default() };
        let cell = Cell::assemble(2, &setting);
        let alone = cell.scratch().join("alone");
        write_sources(&alone);
        make(&alone, &[]);
        let expected = contents(&alone);

        let names = ["a", "b"];
        fs::create_dir(cell.root(0).join("tree")).unwrap();
        let own = |mount: usize| cell.root(mount).join("tree").join(names[mount]);
        (0..2).for_each(|mount| write_sources(&own(mount)));
        make(&own(0), &objects(0..1));
        make(&own(1), &objects(0..1));
        let recalls = || cell.mounts.iter().map(|mount| mount.counter("recalls")).sum::<u64>();
        let before = recalls();
        std::thread::scope(|scope| {
            for mount in 0..2 {
                let dir = own(mount);
                scope.spawn(move || make(&dir, &[]));
            }
        });
        let recalled = recalls() - before;
        for mount in 0..2 {
            for name in names {
                let seen = contents(&cell.root(mount).join("tree").join(name));
                assert!(seen == expected, "{name} on mount {mount}");
            }
        }
        // The directories above them, on either side.
        assert!(recalled <= 8, "{recalled} recalls for builds that have nothing in common");

        let both = |mount: usize| cell.root(mount).join("tree/both");
        write_sources(&both(0));
        std::thread::scope(|scope| {
            for mount in 0..2 {
                let half = objects((0..SOURCES).filter(|number| number % 2 == mount));
                let dir = both(mount);
                scope.spawn(move || make(&dir, &half));
            }
        });
        make(&both(1), &[]);
        for mount in 0..2 {
            assert!(contents(&both(mount)) == expected, "mount {mount}");
            wait::run(&mut Command::new(both(mount).join("program")), PATIENCE).expect_success("the program");
        }
        let lost: Vec<u64> = cell.mounts.iter().map(|mount| mount.counter("lost_records")).collect();
        assert_eq!(lost, [0, 0]);
    }
}
