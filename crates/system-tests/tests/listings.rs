//! Listings that the kernel keeps in pages of its own: never with a name that is gone, never without one that is there.

use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom, openat, seek};
use soda_model::Rng;
use soda_system_tests::cell::{Cell, LONG_TERM, PATIENCE, Setting, prerequisites};
use soda_system_tests::wait;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Little, so that many calls make a listing: a few names fit.
const BUFFER: usize = 128;
const NOBODY: u32 = 65534;

fn cell() -> Cell {
    // No listing is made anew because time has passed.
    Cell::assemble(2, &Setting { term: LONG_TERM, ..Setting::default() })
}

fn listed(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The directory `d` on both mounts, with files of these numbers.
fn directory(cell: &Cell, numbers: Range<u32>) -> ([PathBuf; 2], BTreeSet<String>) {
    let dirs = [cell.root(0).join("d"), cell.root(1).join("d")];
    fs::create_dir(&dirs[0]).unwrap();
    let names: BTreeSet<_> = numbers.map(|number| format!("name-{number}")).collect();
    names.iter().for_each(|name| drop(File::create(dirs[0].join(name)).unwrap()));
    (dirs, names)
}

/// The inode that a directory's listing has as `..`.
fn above(dir: &Path) -> u64 {
    let dir = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut raw = RawDir::new(&dir, &mut buffer);
    let mut above = None;
    // To the end: else the kernel keeps nothing.
    while let Some(entry) = raw.next() {
        let entry = entry.unwrap();
        if entry.file_name() == c".." {
            above = Some(entry.ino());
        }
    }
    above.unwrap()
}

/// A directory that is read bit by bit.
struct Reader {
    dir: OwnedFd,
    seen: Vec<String>,
    /// What was there when the reading began, and still is.
    lasting: BTreeSet<String>,
    /// What was there at some time since.
    passing: BTreeSet<String>,
}

impl Reader {
    fn open(dir: &Path, there: &BTreeSet<String>) -> Reader {
        let dir = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Reader { dir, seen: Vec::new(), lasting: there.clone(), passing: there.clone() }
    }

    fn rewind(&mut self, there: &BTreeSet<String>) {
        seek(&self.dir, SeekFrom::Start(0)).unwrap();
        self.seen.clear();
        (self.lasting, self.passing) = (there.clone(), there.clone());
    }

    /// One call. `false` at the end.
    fn read(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut raw = RawDir::new(&self.dir, &mut buffer);
        let mut any = false;
        while let Some(entry) = raw.next() {
            any = true;
            let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
            if name != "." && name != ".." {
                self.seen.push(name);
            }
            if raw.is_buffer_empty() {
                break;
            }
        }
        any
    }

    fn read_to_the_end(&mut self) {
        while self.read() {}
        self.check();
    }

    fn check(&self) {
        let seen: BTreeSet<_> = self.seen.iter().cloned().collect();
        assert_eq!(seen.len(), self.seen.len(), "a name came twice: {:?}", self.seen);
        assert!(self.lasting.is_subset(&seen), "missing: {:?}", self.lasting.difference(&seen));
        assert!(seen.is_subset(&self.passing), "never there: {:?}", seen.difference(&self.passing));
    }

    fn made(&mut self, name: &str) {
        self.passing.insert(name.to_owned());
    }

    fn removed(&mut self, name: &str) {
        self.lasting.remove(name);
    }
}

/// SEMANTICS 11
#[test]
fn a_repeated_listing_asks_nobody_until_a_name_changes() {
    if !prerequisites() {
        return;
    }
    let cell = cell();
    let ([here, there], mut names) = directory(&cell, 0..200);
    assert_eq!(listed(&here), names);
    let calls = || cell.mounts[0].counter("op_readdir");
    // The handle of the listing before may not be released yet: then this one keeps nothing.
    let unchanged = |names: &BTreeSet<String>| {
        wait::in_time(PATIENCE, "the kernel keeps no listing", || {
            let before = calls();
            assert_eq!(listed(&here), *names);
            calls() == before
        });
    };
    unchanged(&names);
    // This machine, then the other one.
    for dir in [&here, &there] {
        fs::remove_file(dir.join("name-7")).unwrap();
        names.remove("name-7");
        assert_eq!(listed(&here), names);
        File::create(dir.join("name-7")).unwrap();
        names.insert("name-7".to_owned());
        unchanged(&names);
    }
}

#[test]
fn names_stay_in_the_kernel_of_who_makes_some_while_another_machine_looks() {
    const NAMES: u32 = 100;
    const ROUNDS: u32 = 20;
    if !prerequisites() {
        return;
    }
    let cell = cell();
    let ([here, there], names) = directory(&cell, 0..NAMES);
    let below = here.join("below");
    fs::create_dir(&below).unwrap();
    let stat = || {
        assert!(below.metadata().unwrap().is_dir());
        assert!(names.iter().all(|name| here.join(name).metadata().unwrap().is_file()));
    };
    stat();
    let asked = || cell.mounts[0].counter("op_lookup");
    let before = asked();
    for round in 0..ROUNDS {
        File::create(here.join(format!("new-{round}"))).unwrap();
        assert_eq!(listed(&there).len() as u32, NAMES + 2 + round);
        stat();
    }
    // Each new name is asked for once. On a busy machine a change that takes long, and an older kernel, may take all names away.
    let lookups = asked() - before;
    assert!(lookups < u64::from(ROUNDS * NAMES / 4), "{lookups} look-ups in {ROUNDS} rounds");
}

/// SEMANTICS 11
#[test]
fn who_reads_on_or_begins_anew_with_a_directory_that_is_open_sees_what_is_there() {
    if !prerequisites() {
        return;
    }
    let cell = cell();
    let ([here, there], mut names) = directory(&cell, 100..200);
    for dir in [&here, &there] {
        (0..3).for_each(|_| assert_eq!(listed(&here), names));
        let mut first = Reader::open(&here, &names);
        let mut second = Reader::open(&here, &names);
        (0..20).for_each(|_| assert!(first.read() && second.read()));
        for name in ["name-100", "name-120", "name-170"] {
            fs::remove_file(dir.join(name)).unwrap();
            names.remove(name);
            [&mut first, &mut second].into_iter().for_each(|reader| reader.removed(name));
        }
        assert_eq!(listed(&here), names, "with a third handle");
        second.read_to_the_end();
        first.read_to_the_end();
        for reader in [&mut second, &mut first] {
            reader.rewind(&names);
            reader.read_to_the_end();
        }
        for name in ["name-100", "name-120", "name-170"] {
            File::create(dir.join(name)).unwrap();
            names.insert(name.to_owned());
        }
        first.rewind(&names);
        first.read_to_the_end();
        drop(first);
        assert_eq!(listed(&here), names);
    }
}

/// The kernel throws attributes away that are answered while it is told to drop something of the inode.
///
/// SEMANTICS 11, 31
#[test]
fn a_listing_that_is_open_keeps_no_permissions_from_the_kernel() {
    if !prerequisites() {
        return;
    }
    let cell = cell();
    let ([here, there], mut names) = directory(&cell, 100..120);
    let may_enter = || {
        let mut stat = Command::new("stat");
        stat.arg(here.join("name-119")).uid(NOBODY).gid(NOBODY).stdout(Stdio::null()).stderr(Stdio::null());
        stat.status().unwrap().success()
    };
    (0..3).for_each(|_| assert_eq!(listed(&here), names));
    let mut reader = Reader::open(&here, &names);
    for (number, dir) in [&here, &there, &there, &here].into_iter().enumerate() {
        reader.read_to_the_end();
        assert!(may_enter());
        let name = format!("name-{}", 100 + number);
        fs::remove_file(dir.join(&name)).unwrap();
        names.remove(&name);
        reader.rewind(&names);
        fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
        assert!(!may_enter(), "{number}");
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        assert!(may_enter(), "{number}");
    }
}

/// SEMANTICS 11
#[test]
fn a_directory_that_was_moved_lists_where_it_is() {
    if !prerequisites() {
        return;
    }
    let cell = cell();
    let root = cell.root(0);
    let ino = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
    fs::create_dir_all(root.join("a/d")).unwrap();
    fs::create_dir(root.join("b")).unwrap();
    for (from, to) in [("a", "b"), ("b", "a")] {
        let before = root.join(from).join("d");
        (0..3).for_each(|_| assert_eq!(above(&before), ino(from)));
        fs::rename(&before, root.join(to).join("d")).unwrap();
        (0..3).for_each(|_| assert_eq!(above(&root.join(to).join("d")), ino(to)));
    }
}

/// Linux itself looks whether the directory was changed since, by its time.
///
/// SEMANTICS 11
#[test]
fn a_time_that_is_set_back_brings_no_old_names_back() {
    if !prerequisites() {
        return;
    }
    let cell = cell();
    let ([here, there], mut names) = directory(&cell, 100..120);
    (0..3).for_each(|_| assert_eq!(listed(&here), names));
    let mut reader = Reader::open(&here, &names);
    reader.read_to_the_end();
    for name in ["name-100", "name-110"] {
        let changed = fs::metadata(&there).unwrap().modified().unwrap();
        fs::remove_file(there.join(name)).unwrap();
        File::open(&there).unwrap().set_modified(changed).unwrap();
        names.remove(name);
        reader.rewind(&names);
        reader.read_to_the_end();
        assert_eq!(fs::metadata(&here).unwrap().modified().unwrap(), changed);
    }
    drop(reader);
    assert_eq!(listed(&here), names);
}

/// Names come and go on both machines while three handles read, begin anew, are closed and opened.
///
/// SEMANTICS 11
#[test]
fn listings_are_right_whatever_happens_in_between() {
    if !prerequisites() {
        return;
    }
    let cell = cell();
    let seeds = std::env::var("SEED").map_or(0..30, |seed| seed.parse().map_or(0..30, |seed| seed..seed + 1));
    for seed in seeds {
        eprintln!("SEED={seed}");
        let mut rng = Rng::new(seed);
        let mut below = |bound: usize| rng.below(bound as u64) as usize;
        let dirs = [cell.root(0).join(format!("d{seed}")), cell.root(1).join(format!("d{seed}"))];
        fs::create_dir(&dirs[0]).unwrap();
        let mut names = BTreeSet::new();
        let mut readers: Vec<_> = (0..3).map(|_| Reader::open(&dirs[0], &names)).collect();
        // Quiet seeds have nearly no changes of the other machine: there is more for the kernel to keep.
        let other = [2, 20][below(2)];
        for number in 0..400 {
            let dir = &dirs[usize::from(below(other) == 0)];
            match below(10) {
                0 | 1 if names.len() < 60 => {
                    // Of several lengths, so that pages end in different places.
                    let name = format!("{number}{}", "x".repeat(below(100)));
                    File::create(dir.join(&name)).unwrap();
                    readers.iter_mut().for_each(|reader| reader.made(&name));
                    names.insert(name);
                }
                2 if !names.is_empty() => {
                    let name = names.iter().nth(below(names.len())).unwrap().clone();
                    fs::remove_file(dir.join(&name)).unwrap();
                    readers.iter_mut().for_each(|reader| reader.removed(&name));
                    names.remove(&name);
                }
                3 if !names.is_empty() => {
                    let name = names.iter().nth(below(names.len())).unwrap().clone();
                    let new = format!("{number}{}", "y".repeat(below(100)));
                    fs::rename(dir.join(&name), dir.join(&new)).unwrap();
                    for reader in &mut readers {
                        reader.removed(&name);
                        reader.made(&new);
                    }
                    names.remove(&name);
                    names.insert(new);
                }
                4 if below(3) == 0 => assert_eq!(listed(&dirs[below(2)]), names),
                4 => {
                    let at = below(readers.len());
                    readers[at].rewind(&names);
                }
                5 => {
                    let at = below(readers.len());
                    readers.remove(at);
                    readers.push(Reader::open(&dirs[0], &names));
                }
                6 => {
                    let at = below(readers.len());
                    readers[at].read_to_the_end();
                    readers[at].rewind(&names);
                }
                _ => {
                    let at = below(readers.len());
                    if !readers[at].read() {
                        readers[at].check();
                        readers[at].rewind(&names);
                    }
                }
            }
        }
    }
}
