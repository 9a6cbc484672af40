//! Where `soda recover` looks: cache directories that mounts of this user have used, and what has been lost of mounts without
//! one. The former are a list in a file, as the mounts themselves may be gone.

use crate::control::named_dir;
use crate::user::is_machines_root;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LIST: &str = "cache-dirs";
/// Locked by who writes the list.
const LOCK: &str = "cache-dirs.lock";
/// What mounts without a cache directory have lost: laid out as one.
const LOST: &str = "lost";
/// Directories in it, as far as they are not there.
const MOST: usize = 1000;

/// Notes that a mount uses it.
///
/// # Errors
/// The list cannot be written.
pub(crate) fn note(dir: &Path) -> io::Result<()> {
    note_in(&state_dir(), dir)
}

/// Those that are there, in the order of their first use; also that for what is lost without one.
pub(crate) fn known() -> Vec<PathBuf> {
    known_in(&state_dir())
}

/// Where a mount without one keeps what it loses.
pub(crate) fn for_lost() -> PathBuf {
    state_dir().join(LOST)
}

/// What has to survive a restart of the machine.
fn state_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("SODA_STATE_DIR") {
        return PathBuf::from(dir);
    }
    if is_machines_root() {
        return PathBuf::from("/var/lib/soda");
    }
    let home =
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into())).join(".local/state");
    named_dir(std::env::var_os("XDG_STATE_HOME")).unwrap_or_else(home).join("soda")
}

/// Mounts of one machine start together: each of them reads the list, and writes it anew, alone.
fn note_in(state: &Path, dir: &Path) -> io::Result<()> {
    if noted_in(state).iter().any(|noted| noted == dir) {
        return Ok(());
    }
    fs::create_dir_all(state)?;
    let lock = File::options().create(true).append(true).open(state.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let mut dirs = noted_in(state);
    dirs.push(dir.to_owned());
    let dirs = at_most(MOST, once(dirs), |dir| dir.is_dir());
    // A name with a line feed in it is found with --cache-dir only.
    let mut lines = Vec::new();
    for dir in dirs {
        lines.extend_from_slice(dir.as_os_str().as_bytes());
        lines.push(b'\n');
    }
    let new = state.join(format!("{LIST}.{}", std::process::id()));
    fs::write(&new, lines)?;
    fs::rename(&new, state.join(LIST))
}

/// Also those that are not there now: their disk may be mounted later.
fn noted_in(state: &Path) -> Vec<PathBuf> {
    let lines = fs::read(state.join(LIST)).unwrap_or_default();
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).collect()
}

fn known_in(state: &Path) -> Vec<PathBuf> {
    let all = noted_in(state).into_iter().chain([state.join(LOST)]).collect();
    once(all).into_iter().filter(|dir| dir.is_dir()).collect()
}

fn once(dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut once = Vec::new();
    dirs.into_iter().for_each(|dir| {
        if !once.contains(&dir) {
            once.push(dir);
        }
    });
    once
}

/// Of too many, those go first that are not there, the oldest of them before the others.
fn at_most(most: usize, dirs: Vec<PathBuf>, is_there: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut too_many = dirs.len().saturating_sub(most);
    let stays = |dir: &PathBuf| {
        let goes = too_many > 0 && !is_there(dir);
        too_many -= usize::from(goes);
        !goes
    };
    dirs.into_iter().filter(stays).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_known_once_and_as_long_as_it_is_there() {
        let state = tempfile::tempdir().unwrap();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let deep = state.path().join("a/b");
        assert!(known_in(&deep).is_empty());
        for dir in [&one, &two, &one] {
            note_in(&deep, dir.path()).unwrap();
        }
        assert_eq!(known_in(&deep), [one.path(), two.path()]);
        let two = two.path().to_owned();
        drop(one);
        assert_eq!(known_in(&deep), [two]);
    }

    #[test]
    fn what_was_lost_without_a_cache_directory_is_looked_for_when_there_is_some() {
        let (state, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        note_in(state.path(), cache.path()).unwrap();
        assert_eq!(known_in(state.path()), [cache.path()]);
        let lost = state.path().join(LOST);
        fs::create_dir(&lost).unwrap();
        assert_eq!(known_in(state.path()), [cache.path(), &lost]);
        note_in(state.path(), &lost).unwrap();
        assert_eq!(known_in(state.path()).len(), 2, "also if somebody has it as a cache directory");
    }

    #[test]
    fn of_mounts_that_start_together_none_is_forgotten() {
        let (state, caches) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dirs: Vec<PathBuf> = (0..32).map(|number| caches.path().join(number.to_string())).collect();
        dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let begin = std::sync::Barrier::new(dirs.len());
        std::thread::scope(|scope| {
            for dir in &dirs {
                scope.spawn(|| {
                    begin.wait();
                    note_in(state.path(), dir).unwrap();
                });
            }
        });
        let mut known = known_in(state.path());
        known.sort();
        let mut expected = dirs;
        expected.sort();
        assert_eq!(known, expected);
    }

    #[test]
    fn a_directory_whose_disk_is_not_mounted_now_stays_in_the_list() {
        let (state, caches) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (away, other) = (caches.path().join("away"), caches.path().join("other"));
        fs::create_dir(&other).unwrap();
        note_in(state.path(), &away).unwrap();
        note_in(state.path(), &other).unwrap();
        assert_eq!(known_in(state.path()), [other.as_path()]);
        fs::create_dir(&away).unwrap();
        assert_eq!(known_in(state.path()), [away, other]);
    }

    #[test]
    fn of_too_many_directories_the_oldest_that_are_gone_go() {
        let dirs = |names: &str| names.split(' ').map(PathBuf::from).collect::<Vec<_>>();
        let is_there = |dir: &Path| dir.starts_with("here");
        assert_eq!(at_most(3, dirs("a here b c here/2"), is_there), dirs("here c here/2"));
        assert_eq!(at_most(1, dirs("here here/2 a"), is_there), dirs("here here/2"));
    }
}
