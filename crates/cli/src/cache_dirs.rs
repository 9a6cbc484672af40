//! Cache directories that mounts of this user have used: where `soda recover` looks. A list in a file, as the mounts themselves
//! may be gone.

use crate::control::named_dir;
use crate::user::is_machines_root;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LIST: &str = "cache-dirs";

/// Notes that a mount uses it.
///
/// # Errors
/// The list cannot be written.
pub(crate) fn note(dir: &Path) -> io::Result<()> {
    note_in(&state_dir(), dir)
}

/// Those that are there, in the order of their first use.
pub(crate) fn known() -> Vec<PathBuf> {
    known_in(&state_dir())
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

fn note_in(state: &Path, dir: &Path) -> io::Result<()> {
    if known_in(state).iter().any(|known| known == dir) {
        return Ok(());
    }
    fs::create_dir_all(state)?;
    // A name with a line feed in it is found with --cache-dir only. Those that are gone are left out.
    let mut lines = Vec::new();
    for dir in known_in(state).iter().map(PathBuf::as_path).chain([dir]) {
        lines.extend_from_slice(dir.as_os_str().as_bytes());
        lines.push(b'\n');
    }
    let new = state.join(format!("{LIST}.{}", std::process::id()));
    fs::write(&new, lines)?;
    fs::rename(&new, state.join(LIST))
}

fn known_in(state: &Path) -> Vec<PathBuf> {
    let lines = fs::read(state.join(LIST)).unwrap_or_default();
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let dirs = lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).filter(|dir| dir.is_dir());
    let mut once = Vec::new();
    dirs.for_each(|dir| {
        if !once.contains(&dir) {
            once.push(dir);
        }
    });
    once
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
}
