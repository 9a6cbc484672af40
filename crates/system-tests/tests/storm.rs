//! One machine lists, again and again, a tree in which ten others create, rename and remove names: recalls from everybody to
//! everybody, and nobody waits for ever.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use soda_model::Rng;
use soda_system_tests::cell::{Cell, LONG_TERM, PATIENCE, Setting, prerequisites};
use soda_system_tests::wait;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const WRITERS: usize = 10;
const DIRS: u64 = 6;

/// One machine of many that work in the same directories, each with names of its own.
struct Writer<'a> {
    number: usize,
    top: PathBuf,
    lot: Rng,
    made: u64,
    /// Paths below the top, and what the files hold; `None`: a directory.
    own: BTreeMap<String, Option<String>>,
    done: &'a AtomicU64,
}

impl Writer<'_> {
    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("d{}/{}.{}", self.lot.below(DIRS), self.number, self.made)
    }

    fn any(&mut self) -> Option<String> {
        let count = self.own.len() as u64;
        (count > 0).then(|| self.own.keys().nth(self.lot.below(count) as usize).cloned())?
    }

    fn step(&mut self) {
        let new = self.new_name();
        let old =
            if self.own.len() > 30 { self.any() } else { self.any().filter(|_| self.lot.below(2) == 0) };
        let at = |path: &str| self.top.join(path);
        match (old, self.lot.below(4)) {
            (None, 0) => {
                fs::create_dir(at(&new)).unwrap();
                self.own.insert(new, None);
            }
            (None, _) => {
                fs::write(at(&new), &new).unwrap();
                self.own.insert(new.clone(), Some(new));
            }
            (Some(old), 0 | 1) => {
                // Another machine's listing may have the kernel here look the name up in the middle of it (`tree.rs`).
                let moved = || renameat_with(CWD, at(&old), CWD, at(&new), RenameFlags::NOREPLACE);
                moved().or_else(|_| moved()).unwrap();
                let what = self.own.remove(&old).unwrap();
                self.own.insert(new, what);
            }
            (Some(old), _) => {
                match self.own.remove(&old).unwrap() {
                    None => fs::remove_dir(at(&old)),
                    Some(content) => {
                        assert_eq!(fs::read_to_string(at(&old)).unwrap(), content);
                        fs::remove_file(at(&old))
                    }
                }
                .unwrap();
            }
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// `ls -lR`, which may miss what has gone when it comes to it, but nothing else.
fn list(top: &Path) {
    let mut ls = Command::new("ls");
    let output =
        wait::run(ls.arg("-lR").arg(top).env("LC_ALL", "C"), PATIENCE * 3).output("ls -lR still waits");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    let gone = |line: &str| line.contains("No such file or directory") || line.contains("Stale file handle");
    assert!(complaints.lines().all(gone), "{complaints}");
    assert!(output.status.code().is_some_and(|code| code <= 1), "{output:?}");
}

/// What there is below the top, with contents.
fn everything(top: &Path) -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    for dir in fs::read_dir(top).unwrap() {
        let dir = dir.unwrap();
        for entry in fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{}/{}", dir.file_name().display(), entry.file_name().display());
            let content = match fs::read_to_string(entry.path()) {
                Ok(content) => Some(content),
                Err(error) if error.kind() == ErrorKind::IsADirectory => None,
                Err(error) => panic!("{path}: {error}"),
            };
            found.insert(path, content);
        }
    }
    found
}

// SEMANTICS 1, 46
#[test]
fn a_listing_of_a_tree_that_ten_others_change_ends_and_all_is_right_afterwards() {
    const LISTINGS: usize = 4;
    if !prerequisites() {
        return;
    }
    let mount_options = ["-o", "write=behind"];
    let server_options = ["--deep-leases", "on"];
    let setting = Setting {
        term: LONG_TERM,
        mount_options: &mount_options,
        server_options: &server_options,
        ..Setting::default()
    };
    let cell = Cell::assemble(WRITERS + 1, &setting);
    let (looks, top) = (cell.root(WRITERS).join("top"), "top");
    fs::create_dir(&looks).unwrap();
    (0..DIRS).for_each(|dir| fs::create_dir(looks.join(format!("d{dir}"))).unwrap());
    let stop = AtomicBool::new(false);
    let done: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let mut expected = BTreeMap::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (stop, done, top) = (&stop, &done[number], cell.root(number).join(top));
                let lot = Rng::new(number as u64 + 7);
                let mut writer = Writer { number, top, lot, made: 0, own: BTreeMap::new(), done };
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        writer.step();
                    }
                    writer.own
                })
            })
            .collect();
        // Else they would go on for ever after a listing that is wrong.
        let stops = Stops(&stop);
        let all_work = || done.iter().all(|done| done.load(Ordering::Relaxed) >= 10);
        wait::in_time(PATIENCE * 2, "somebody does not come to work", all_work);
        for _ in 0..LISTINGS {
            let before: Vec<u64> = done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
            let began = Instant::now();
            list(&looks);
            let took = began.elapsed();
            // Who is listed goes on, every one.
            let goes_on =
                || done.iter().zip(&before).all(|(done, before)| done.load(Ordering::Relaxed) > *before);
            wait::in_time(PATIENCE, "somebody stands still", goes_on);
            let steps: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
            eprintln!("listed in {took:?}, {} steps meanwhile", steps - before.iter().sum::<u64>());
        }
        drop(stops);
        for writer in writers {
            expected.append(&mut writer.join().unwrap());
        }
    });
    for root in [WRITERS, 0, WRITERS / 2] {
        assert_eq!(everything(&cell.root(root).join(top)), expected, "on machine {root}");
    }
    for (number, mount) in cell.mounts.iter().enumerate() {
        let trouble = ["lost_records", "recalls_forced", "sessions_lost"].map(|name| mount.counter(name));
        assert_eq!(trouble, [0; 3], "on machine {number}");
    }
}

struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
