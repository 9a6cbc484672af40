//! Where the kernel has the directories that it was told of.

use super::Nodes;
use serde::{Deserialize, Serialize};
use soda_types::Fid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Directories on a path that can be walked: names are a byte and a slash at least, and Linux takes 4,095 bytes.
const DEEPEST: usize = 2048;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) dir: Fid,
    pub(crate) name: Box<[u8]>,
}

impl Place {
    pub(crate) fn is(&self, dir: Fid, name: &[u8]) -> bool {
        self.dir == dir && *self.name == *name
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Placed {
    at: Place,
    taken: Taken,
}

/// Whether the kernel has a directory where it was told that it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Taken {
    Surely,
    /// It had it below another one before, and cannot always move it ([`crate::fs`], `moved`).
    Maybe,
}

impl Nodes {
    /// A directory is about to be handed out at a name.
    pub(crate) fn tell_place(&self, fid: Fid, dir: Fid, name: &[u8]) {
        self.with(fid, |node| {
            let taken = match node.place.as_deref() {
                Some(placed) if placed.at.is(dir, name) => return,
                Some(placed) if placed.at.dir != dir => Taken::Maybe,
                // Below the same one it can always be moved.
                Some(placed) => placed.taken,
                None => Taken::Surely,
            };
            node.place = Some(Box::new(Placed { at: Place { dir, name: name.into() }, taken }));
        });
    }

    /// If it is a directory that the kernel knows: it has it at this place.
    pub(crate) fn place_is(&self, fid: Fid, place: Place) {
        self.with(fid, |node| {
            if let Some(placed) = &mut node.place {
                **placed = Placed { at: place, taken: Taken::Surely };
            }
        });
    }

    /// Whether the kernel may have the directory at another place when it is told that it is in `dir`.
    pub(crate) fn may_be_elsewhere(&self, fid: Fid, dir: Fid) -> bool {
        let elsewhere = |placed: &Placed| placed.taken == Taken::Maybe || placed.at.dir != dir;
        self.with(fid, |node| node.place.as_deref().is_some_and(elsewhere)).unwrap_or(false)
    }

    /// The path from the root, as the kernel was told. `None`: it has forgotten a directory on the way.
    pub(crate) fn path_of(&self, place: &Place) -> Option<PathBuf> {
        let mut names = vec![place.name.clone()];
        let mut dir = place.dir;
        while dir != self.root {
            // Told at different times, places may make a circle.
            if names.len() == DEEPEST {
                return None;
            }
            let at = self.with(dir, |node| node.place.as_ref().map(|placed| placed.at.clone())).flatten()?;
            names.push(at.name);
            dir = at.dir;
        }
        Some(names.iter().rev().map(|name| OsStr::from_bytes(name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    #[test]
    fn a_directory_that_was_told_below_another_one_may_not_be_there() {
        let fid = |ino| Fid::new(VolumeId(1), Ino(ino));
        let nodes = Nodes::new(fid(1));
        [5, 6, 7].into_iter().for_each(|ino| nodes.remember(fid(ino)));
        nodes.tell_place(fid(5), fid(1), b"five");
        nodes.tell_place(fid(6), fid(1), b"six");
        nodes.tell_place(fid(7), fid(5), b"seven");
        let path = |dir, name: &[u8]| nodes.path_of(&Place { dir: fid(dir), name: name.into() });
        assert_eq!(path(7, b"x"), Some("five/seven/x".into()));
        nodes.tell_place(fid(7), fid(5), b"other name");
        assert!(!nodes.may_be_elsewhere(fid(7), fid(5)));
        assert!(nodes.may_be_elsewhere(fid(7), fid(6)));
        nodes.tell_place(fid(7), fid(6), b"seven");
        nodes.tell_place(fid(7), fid(6), b"other name");
        assert!(nodes.may_be_elsewhere(fid(7), fid(6)));
        assert_eq!(path(7, b"x"), Some("six/other name/x".into()));
        nodes.place_is(fid(7), Place { dir: fid(6), name: (*b"other name").into() });
        assert!(!nodes.may_be_elsewhere(fid(7), fid(6)));
        nodes.tell_place(fid(6), fid(7), b"circle");
        assert_eq!(path(7, b"x"), None);
        assert_eq!(path(8, b"x"), None, "the kernel does not know it");
    }
}
