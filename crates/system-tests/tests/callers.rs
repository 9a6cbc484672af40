//! 64 callers on one mount while another machine changes the same files: recalls come all the while, and with them notifications
//! to the kernel, which wait for what the callers are at; and so do signals, which the kernel tells of by INTERRUPT. Nobody waits
//! for ever, nobody sees anything go back, and in the end all is as it was last written, on both machines.
//!
//! Each block of each file, and each name, has one thread that changes it; all threads look at all of them.

use rustix::process::Signal;
use soda_model::Rng;
use soda_system_tests::cell::{Cell, PATIENCE, prerequisites};
use soda_system_tests::{mapping, wait};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// On the first machine, in a process of their own, which is stopped again and again.
const CALLERS: Range<usize> = 0..64;
/// On the other one.
const OTHERS: Range<usize> = 64..68;
const FILES: usize = 6;
const BLOCK: usize = 4096;
const FILE_LEN: u64 = (OTHERS.end * BLOCK) as u64;
/// Of one thread.
const MOST_NAMES: usize = 5;
/// For how long they work at least; `SODA_SECONDS` for more.
const WORK: Duration = Duration::from_secs(10);
/// What each does at least.
const STEPS: u64 = 40;
/// For that, on the slowest machine.
const LIMIT: Duration = Duration::from_secs(240);
/// In the environment of the callers' process: the directory, and where to write down what they have made.
const DIR: &str = "SODA_TEST_CALLERS_DIR";
const REPORT: &str = "SODA_TEST_CALLERS_REPORT";

/// What a thread's blocks and names are: a version for each file, and the names that are there.
type Made = (usize, Vec<u64>, BTreeSet<String>);

struct Caller {
    number: usize,
    top: PathBuf,
    lot: Rng,
    /// Of the own block in each file.
    versions: Vec<u64>,
    names: BTreeSet<String>,
    names_made: u64,
    /// The highest version that was seen of each block, by file.
    seen: Vec<Vec<u64>>,
}

/// As a program does that is interrupted.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            ended => return ended,
        }
    }
}

/// Every fourth thread of the first machine stores to a mapping, of a block no more than its first word.
fn maps(number: usize) -> bool {
    CALLERS.contains(&number) && number.is_multiple_of(4)
}

fn words(block: &[u8]) -> impl Iterator<Item = u64> {
    block.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()))
}

impl Caller {
    fn new(number: usize, top: &Path) -> Caller {
        Caller {
            number,
            top: top.to_owned(),
            lot: Rng::new(number as u64 + 1),
            versions: vec![0; FILES],
            names: BTreeSet::new(),
            names_made: 0,
            seen: vec![vec![0; OTHERS.end]; FILES],
        }
    }

    fn file(&self, file: usize) -> PathBuf {
        self.top.join(format!("file{file}"))
    }

    fn open(&self, file: usize, writes: bool) -> File {
        File::options().read(true).write(writes).open(self.file(file)).unwrap()
    }

    fn at_names(&self, name: &str) -> PathBuf {
        self.top.join("names").join(name)
    }

    fn step(&mut self, doing: &Mutex<String>) {
        let (file, number) =
            (self.lot.below(FILES as u64) as usize, self.lot.below(OTHERS.end as u64) as usize);
        let what = self.lot.below(8);
        *doing.lock().unwrap() = format!("operation {what} on file {file}, block {number}");
        match what {
            0 | 1 => self.write(file),
            2 => {
                let mut block = [0; BLOCK];
                self.open(file, false).read_exact_at(&mut block, (number * BLOCK) as u64).unwrap();
                self.look(file, number, &block);
            }
            3 => {
                let mut whole = vec![0; FILE_LEN as usize];
                self.open(file, true).read_exact_at(&mut whole, 0).unwrap();
                for (number, block) in whole.chunks_exact(BLOCK).enumerate() {
                    self.look(file, number, block);
                }
            }
            4 => {
                let (file_there, at) = (self.open(file, false).into(), (number * BLOCK) as u64);
                let word = again(|| Ok(mapping::load(&file_there, at, 8)?)).unwrap();
                self.look_at_version(file, number, words(&word).next().unwrap());
            }
            5 => {
                assert_eq!(again(|| self.file(file).metadata()).unwrap().len(), FILE_LEN);
                let gone = again(|| self.at_names(&format!("{}.no", self.number)).metadata());
                assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotFound);
            }
            6 => self.list(),
            _ => self.make_or_remove(),
        }
    }

    fn write(&mut self, file: usize) {
        let (version, at) = (self.versions[file] + 1, (self.number * BLOCK) as u64);
        let open = self.open(file, true);
        if maps(self.number) {
            let open = open.into();
            let stored = again(|| Ok(mapping::store(&open, at, &version.to_le_bytes())?)).unwrap();
            assert_eq!(stored, 8);
        } else {
            open.write_all_at(&version.to_le_bytes().repeat(BLOCK / 8), at).unwrap();
        }
        self.versions[file] = version;
        let mut word = [0; 8];
        self.open(file, false).read_exact_at(&mut word, at).unwrap();
        assert_eq!(u64::from_le_bytes(word), version, "thread {} reads what it wrote", self.number);
    }

    /// A block as it was read by one call.
    fn look(&mut self, file: usize, number: usize, block: &[u8]) {
        let version = words(block).next().unwrap();
        if !maps(number) {
            assert!(
                words(block).all(|word| word == version),
                "block {number} of file {file} is of two writes"
            );
        }
        self.look_at_version(file, number, version);
    }

    fn look_at_version(&mut self, file: usize, number: usize, version: u64) {
        let seen = &mut self.seen[file][number];
        assert!(version >= *seen, "block {number} of file {file} went back from {seen} to {version}");
        *seen = version;
        if number == self.number {
            assert_eq!(version, self.versions[file], "the own block of file {file}");
        }
    }

    fn list(&self) {
        let prefix = format!("{}.", self.number);
        let listed = fs::read_dir(self.top.join("names")).unwrap();
        let names = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let own: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
        assert_eq!(own.len(), self.names.len(), "{own:?} are listed of {:?}", self.names);
        assert!(own.iter().all(|name| self.names.contains(name)), "{own:?} {:?}", self.names);
    }

    fn make_or_remove(&mut self) {
        if self.names.len() < MOST_NAMES && self.lot.chance(2, 3) {
            self.names_made += 1;
            let name = format!("{}.{}", self.number, self.names_made);
            fs::write(self.at_names(&name), &name).unwrap();
            self.names.insert(name);
        } else if let Some(name) = self.names.pop_first() {
            assert_eq!(fs::read_to_string(self.at_names(&name)).unwrap(), name);
            again(|| fs::remove_file(self.at_names(&name))).unwrap();
            let gone = again(|| self.at_names(&name).metadata());
            assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
}

struct Working {
    number: usize,
    steps: Arc<AtomicU64>,
    doing: Arc<Mutex<String>>,
    thread: JoinHandle<Made>,
}

/// Threads that work until they are told to stop.
struct Crowd {
    stop: Arc<AtomicBool>,
    all: Vec<Working>,
}

impl Crowd {
    fn start(numbers: Range<usize>, top: &Path) -> Crowd {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |number| {
            let (steps, doing) = (Arc::<AtomicU64>::default(), Arc::<Mutex<String>>::default());
            let (mut caller, stop) = (Caller::new(number, top), stop.clone());
            let (counted, told) = (steps.clone(), doing.clone());
            let thread = thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    caller.step(&told);
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                (caller.number, caller.versions, caller.names)
            });
            Working { number, steps, doing, thread }
        };
        Crowd { all: numbers.map(start).collect(), stop }
    }

    /// When each has done its part. They are not joined before all have ended: one that hangs would not end.
    fn end(self) -> Vec<Made> {
        let until = Instant::now() + LIMIT;
        let left = || until.saturating_duration_since(Instant::now());
        let has_done = |working: &Working| {
            assert!(!working.thread.is_finished(), "thread {} has panicked", working.number);
            working.steps.load(Ordering::Relaxed) >= STEPS
        };
        let done = wait::until(left(), || self.all.iter().all(has_done));
        self.stop.store(true, Ordering::Relaxed);
        let ended =
            wait::until(left().max(PATIENCE * 3), || self.all.iter().all(|one| one.thread.is_finished()));
        let hang = self.all.iter().filter(|one| !one.thread.is_finished());
        let hang: Vec<_> = hang.map(|one| (one.number, one.doing.lock().unwrap().clone())).collect();
        assert!(ended, "they hang: {hang:?}");
        assert!(done, "{}: somebody has done next to nothing", wait::TIMED_OUT);
        self.all.into_iter().map(|one| one.thread.join().unwrap()).collect()
    }
}

#[test]
#[ignore = "a process of the other test"]
fn callers_at_work() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let crowd = Crowd::start(CALLERS, dir.as_ref());
    // Until it is closed.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    let made = crowd.end();
    fs::write(std::env::var_os(REPORT).unwrap(), serde_json::to_vec(&made).unwrap()).unwrap();
}

/// Killed with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_callers(top: &Path, report: &Path) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "callers::callers_at_work", "--ignored", "--nocapture"]);
    command.env(DIR, top).env(REPORT, report);
    Process(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
}

/// Whatever all threads of it wait for in the kernel is interrupted, and goes on.
fn interrupt(callers: &Process, lot: &mut Rng) {
    wait::signal(&callers.0, Signal::STOP);
    thread::sleep(Duration::from_millis(lot.below(4)));
    wait::signal(&callers.0, Signal::CONT);
    thread::sleep(Duration::from_millis(5 + lot.below(20)));
}

/// A reader that is killed in the middle.
fn kill_a_reader(top: &Path, lot: &mut Rng) {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", top.join(format!("file{}", lot.below(FILES as u64))).display()));
    command.args(["of=/dev/null", "bs=4096"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = Process(command.spawn().unwrap());
    thread::sleep(Duration::from_millis(lot.below(5)));
    reader.0.kill().unwrap();
    wait::in_time(PATIENCE, "a reader that was killed does not end", || {
        reader.0.try_wait().unwrap().is_some()
    });
}

// SEMANTICS 1, 3, 11
#[test]
fn sixty_four_callers_and_another_machine_change_the_same_files_and_nobody_waits_for_ever() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::unhurried(2);
    let [top, there] = [0, 1].map(|machine| cell.root(machine).join("top"));
    fs::create_dir_all(top.join("names")).unwrap();
    for file in 0..FILES {
        fs::write(top.join(format!("file{file}")), vec![0; FILE_LEN as usize]).unwrap();
    }
    let report = cell.scratch().join("report");
    let work = std::env::var("SODA_SECONDS").map_or(WORK, |text| Duration::from_secs(text.parse().unwrap()));
    let mut callers = start_callers(&top, &report);
    let others = Crowd::start(OTHERS, &there);
    let mut lot = Rng::new(7);
    let begun = Instant::now();
    while begun.elapsed() < work {
        (0..5).for_each(|_| interrupt(&callers, &mut lot));
        kill_a_reader(&top, &mut lot);
        assert!(callers.0.try_wait().unwrap().is_none(), "the callers have ended");
    }
    drop(callers.0.stdin.take());
    let mut status = None;
    let ended = wait::until(LIMIT * 2, || {
        status = callers.0.try_wait().unwrap();
        status.is_some()
    });
    assert!(ended, "{}: the callers do not end", wait::TIMED_OUT);
    // What they complain of has been printed.
    assert!(status.is_some_and(|status| status.success()), "the callers have failed");
    let mut made: Vec<Made> = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    made.extend(others.end());

    let names: BTreeSet<String> = made.iter().flat_map(|(_, _, names)| names.clone()).collect();
    for (machine, top) in [&top, &there].into_iter().enumerate() {
        for file in 0..FILES {
            let content = fs::read(top.join(format!("file{file}"))).unwrap();
            for (number, versions, _) in &made {
                let block = &content[number * BLOCK..(number + 1) * BLOCK];
                let seen = words(block).next().unwrap();
                assert_eq!(seen, versions[file], "block {number} of file {file}, machine {machine}");
            }
        }
        let listed = fs::read_dir(top.join("names")).unwrap();
        let listed: BTreeSet<String> =
            listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(listed, names, "names on machine {machine}");
    }
    let versions: u64 = made.iter().flat_map(|(_, versions, _)| versions).sum();
    for (number, mount) in cell.mounts.iter().enumerate() {
        let trouble = ["lost_records", "recalls_forced", "sessions_lost"].map(|name| mount.counter(name));
        assert_eq!(trouble, [0; 3], "on machine {number}");
        let recalls = mount.counter("recalls");
        eprintln!("machine {number}: {recalls} recalls, {versions} writes of both");
        assert!(recalls > 100, "{recalls} recalls on machine {number}: nothing was tried");
        wait::in_time(PATIENCE, "the kernel waits for an answer", || mount.waiting() == 0);
    }
}
