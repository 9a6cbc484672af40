//! Files whose first read costs a message of its own. Who reads those of a directory in order is brought the next ones before
//! they are asked for (the client's read-ahead of small files), and what was brought is not cold. So each of these is in a
//! directory of its own, and how often the server was asked for data is counted.

use crate::LabError;
use crate::cell::{Mount, count};
use crate::check::Check;
use std::path::{Path, PathBuf};

/// Some of them, of one size.
#[derive(Clone, Debug)]
pub(super) struct Apart {
    name: String,
    count: usize,
}

impl Apart {
    pub(super) fn new(name: &str, count: usize) -> Apart {
        Apart { name: name.to_owned(), count }
    }

    fn dir(&self, root: &Path, number: usize) -> PathBuf {
        root.join(format!("{}-{number}", self.name))
    }

    pub(super) fn path(&self, root: &Path, number: usize) -> PathBuf {
        self.dir(root, number).join("file")
    }

    /// All their paths.
    pub(super) fn paths(&self, root: &Path) -> Vec<PathBuf> {
        (0..self.count).map(|number| self.path(root, number)).collect()
    }

    pub(super) fn make(&self, root: &Path, bytes: &[u8]) -> Result<(), LabError> {
        self.make_by(root, |path| std::fs::write(path, bytes).map_err(LabError::io(path)))
    }

    pub(super) fn make_by(
        &self,
        root: &Path,
        write: impl Fn(&Path) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        (0..self.count).try_for_each(|number| {
            let dir = self.dir(root, number);
            std::fs::create_dir(&dir).map_err(LabError::io(&dir))?;
            write(&self.path(root, number))
        })
    }

    /// Their directories are known from now on, they themselves are not.
    pub(super) fn look(&self, root: &Path) -> Result<(), LabError> {
        (0..self.count).try_for_each(|number| {
            let dir = self.dir(root, number);
            std::fs::metadata(&dir).map(drop).map_err(LabError::io(&dir))
        })
    }
}

/// How often a mount has asked for data, and how many files it has asked for before they were read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Asked {
    pub(super) data: u64,
    pub(super) foreseen: u64,
}

impl Asked {
    /// So far.
    pub(super) fn by(mount: &Mount) -> Result<Asked, LabError> {
        let counters = mount.counters()?;
        Ok(Asked {
            data: count(&counters, "msg_read") + count(&counters, "fetched"),
            foreseen: count(&counters, "next_files"),
        })
    }

    /// More, by what was asked between these.
    pub(super) fn add(&mut self, before: Asked, after: Asked) {
        self.data += after.data.saturating_sub(before.data);
        self.foreseen += after.foreseen.saturating_sub(before.foreseen);
    }

    /// That so many small files were cold.
    pub(super) fn check(self, what: &str, files: usize) -> Check {
        let claim = format!(
            "{what}: the server is asked for the data of each file, once, and for none before it is read"
        );
        let Asked { data, foreseen } = self;
        let numbers = format!("{files} files, {data} messages, {foreseen} ahead");
        Check::counted(claim, data == files as u64 && foreseen == 0, numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_in_a_directory_of_its_own() {
        let root = tempfile::tempdir().expect("a directory");
        let apart = Apart::new("small", 3);
        apart.make(root.path(), b"bytes").expect("made");
        apart.look(root.path()).expect("there");
        let paths = apart.paths(root.path());
        assert!(paths.iter().all(|path| std::fs::read(path).expect("read") == b"bytes"));
        let parents: std::collections::BTreeSet<_> = paths.iter().map(|path| path.parent()).collect();
        assert_eq!(parents.len(), 3);
        assert!(Apart::new("small", 4).look(root.path()).is_err());
    }

    #[test]
    fn what_was_brought_before_is_not_cold() {
        let holds = |data, foreseen| Asked { data, foreseen }.check("cold", 20).holds;
        assert!(holds(20, 0));
        assert!(!holds(20, 17) && !holds(4, 0) && !holds(21, 0));
        let mut sum = Asked { data: 1, foreseen: 2 };
        sum.add(Asked { data: 10, foreseen: 0 }, Asked { data: 15, foreseen: 3 });
        assert_eq!(sum, Asked { data: 6, foreseen: 5 });
    }
}
