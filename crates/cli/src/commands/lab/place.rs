//! Where something is written that takes long to make, and that must not spoil what was there before it is made.

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A path that can be written.
#[derive(Debug)]
pub(super) enum Place {
    /// A file, or none yet: written beside it, which then takes its place.
    File(PathBuf),
    /// A terminal, a pipe, a device: nothing may take its place.
    Other(File),
}

impl Place {
    /// Changes nothing.
    ///
    /// # Errors
    /// If it could not be written.
    pub(super) fn of(path: &Path) -> Result<Place> {
        // What is behind a link is what is meant.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.exists() {
            let there = OpenOptions::new().write(true).open(&path)?;
            if !there.metadata()?.is_file() {
                return Ok(Place::Other(there));
            }
        }
        beside(&path)?;
        Ok(Place::File(path))
    }

    pub(super) fn put(self, bytes: &[u8]) -> Result<()> {
        match self {
            Place::File(path) => {
                let mut file = beside(&path)?;
                file.write_all(bytes)?;
                file.persist(&path)?;
                Ok(())
            }
            Place::Other(mut file) => file.write_all(bytes),
        }
    }
}

/// A new file in the same directory, gone again unless it is kept.
fn beside(path: &Path) -> Result<NamedTempFile> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = match path.metadata() {
        Ok(there) => there.permissions().mode() & 0o777,
        Err(_) => 0o666,
    };
    tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(mode)).tempfile_in(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_until_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.csv");
        let there = || std::fs::read_dir(dir.path()).unwrap().count();
        let place = Place::of(&path).unwrap();
        assert_eq!(there(), 0, "nothing is made before there is something to write");
        place.put(b"one").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let place = Place::of(&link).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        place.put(b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert!(link.is_symlink() && there() == 2);
        assert!(Place::of(dir.path()).is_err() && Place::of(&dir.path().join("none/trace")).is_err());
    }

    #[test]
    fn nothing_takes_the_place_of_a_device() {
        let place = Place::of(Path::new("/dev/null")).unwrap();
        assert!(matches!(place, Place::Other(_)), "{place:?}");
        place.put(b"bytes").unwrap();
    }
}
