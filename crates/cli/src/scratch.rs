//! A directory of files that are good for one run, also after a run that was killed: the next one removes what it left.

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use std::io;
use std::path::Path;
use tempfile::TempDir;

/// Its lock ends with the process, however that ends. Without the lock it is nobody's.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
    _lock: OwnedFd,
}

impl Scratch {
    /// Makes one whose name begins so, and removes those of this user that nobody has any more.
    pub(crate) fn new_in(parent: &Path, prefix: &str) -> io::Result<Scratch> {
        remove_dead(parent, prefix);
        loop {
            let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
            let lock = open_dir(dir.path())?;
            flock(&lock, FlockOperation::LockExclusive)?;
            // Before it was locked another run may have taken it for one that was left.
            let is_there = stat(dir.path()).is_ok_and(|there| {
                fstat(&lock)
                    .is_ok_and(|locked| (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino))
            });
            if is_there {
                return Ok(Scratch { dir, _lock: lock });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// What cannot be removed is no reason not to go on.
fn remove_dead(parent: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let Ok(dir) = open_dir(&entry.path()) else { continue };
        let is_own = fstat(&dir).is_ok_and(|stat| stat.st_uid == own);
        if is_own && flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PREFIX: &str = "soda-look.";

    #[test]
    fn what_a_killed_run_left_is_removed_by_the_next_one() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let alive = Scratch::new_in(parent.path(), PREFIX).unwrap();
        fs::write(alive.path().join("file"), "in use").unwrap();
        for name in ["soda-look.dead", "another"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), "left").unwrap();
        }
        std::os::unix::fs::symlink(at("another"), at("soda-look.link")).unwrap();
        fs::write(at("soda-look.file"), "").unwrap();

        let next = Scratch::new_in(parent.path(), PREFIX).unwrap();
        assert!(!at("soda-look.dead").exists());
        assert_eq!(fs::read_to_string(alive.path().join("file")).unwrap(), "in use");
        assert!(at("another").join("file").exists() && at("soda-look.file").exists());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());

        // As after a kill: the lock is gone, the directory is not.
        let Scratch { dir, _lock } = alive;
        let left = dir.keep();
        drop(_lock);
        drop(Scratch::new_in(parent.path(), PREFIX).unwrap());
        assert!(!left.exists());
    }
}
