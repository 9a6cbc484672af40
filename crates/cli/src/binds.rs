//! Bind mounts: a mount, or a part of it, shown once more. The kernel's table has them as mounts like any other, with the device
//! of the one that they were made of, whose daemon answers for them, too.

use crate::answer::MountStatus;
use serde::Serialize;
use soda_fuse::MountEntry;
use std::path::{Path, PathBuf};

/// What the kernel lists, by what it is.
#[derive(Debug)]
pub(crate) struct Sorted {
    /// No daemon that answers serves them.
    pub silent: Vec<MountEntry>,
    pub binds: Vec<BindMount>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct BindMount {
    pub dir: PathBuf,
    /// The directory of the mount that it shows, or shows a part of.
    pub of: PathBuf,
    /// Which part, from the volume's root.
    pub path: PathBuf,
}

pub(crate) fn sort(listed: Vec<MountEntry>, alive: &[&MountStatus]) -> Sorted {
    let mut sorted = Sorted { silent: Vec::new(), binds: Vec::new() };
    for entry in &listed {
        let bind_of =
            |of: &Path| BindMount { dir: entry.dir.clone(), of: of.into(), path: entry.root.clone() };
        match alive.iter().find(|daemon| daemon.serves(entry)) {
            Some(daemon) if daemon.made(entry) => {}
            Some(daemon) => sorted.binds.push(bind_of(&daemon.dir)),
            None => match without_answer(entry, &listed) {
                of if of != entry => sorted.binds.push(bind_of(&of.dir)),
                _ => sorted.silent.push(entry.clone()),
            },
        }
    }
    sorted
}

/// Of those with the device of `entry`, the one that stands for all: the first of the whole volume, or simply the first.
fn without_answer<'a>(entry: &'a MountEntry, listed: &'a [MountEntry]) -> &'a MountEntry {
    let mut same = listed.iter().filter(|other| other.device == entry.device);
    let first = same.clone().next();
    same.find(|other| other.root == Path::new("/")).or(first).unwrap_or(entry)
}

/// Whether `entry` was made of another mount, which it can be taken away without.
pub(crate) fn is_bind(entry: &MountEntry, listed: &[MountEntry], daemon: Option<&MountStatus>) -> bool {
    let is_alone = listed.iter().filter(|other| other.device == entry.device).count() < 2;
    match daemon {
        _ if is_alone => false,
        Some(daemon) => !daemon.made(entry),
        None => without_answer(entry, listed) != entry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::{entry, mount_status};

    fn bind(dir: &str, of: &str, path: &str) -> BindMount {
        BindMount { dir: dir.into(), of: of.into(), path: path.into() }
    }

    #[test]
    fn what_shows_a_mount_once_more_is_no_mount_of_its_own() {
        let listed = vec![
            entry(45, "/", "/mnt"),
            entry(45, "/sub", "/part"),
            entry(45, "/", "/again"),
            entry(45, "/sub", "/mnt"),
            entry(46, "/x", "/dead/part"),
            entry(46, "/", "/dead"),
            entry(47, "/y", "/left"),
        ];
        let sorted = sort(listed, &[&mount_status()]);
        assert_eq!(sorted.silent, [entry(46, "/", "/dead"), entry(47, "/y", "/left")]);
        let expected = [
            bind("/part", "/mnt", "/sub"),
            bind("/again", "/mnt", "/"),
            bind("/mnt", "/mnt", "/sub"),
            bind("/dead/part", "/dead", "/x"),
        ];
        assert_eq!(sorted.binds, expected);
    }

    #[test]
    fn the_last_that_shows_a_mount_is_the_mount() {
        let status = mount_status();
        let all = [entry(45, "/", "/mnt"), entry(45, "/sub", "/part"), entry(45, "/", "/again")];
        for daemon in [Some(&status), None] {
            assert_eq!(all.clone().map(|entry| is_bind(&entry, &all, daemon)), [false, true, true]);
            assert!(!is_bind(&all[1], &all[1..2], daemon));
        }
        assert!(is_bind(&all[1], &all[1..], Some(&status)), "one of two that are left");
    }
}
