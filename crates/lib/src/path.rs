//! From a path to what it means.

use soda_client::{Client, Node};
use soda_types::{Attr, Errno, Fid, FileKind, FsResult, Name, NameError};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Symbolic links in one path (Linux `MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    Follow,
    Stay,
}

/// Where a path ends.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The directory and the name in it; `None` for the root, and where a path ends with `.` or `..`.
    pub(crate) entry: Option<(Fid, Name)>,
    /// `None`: there is no such name.
    pub(crate) found: Option<Found>,
    /// The directories down to it, from the root on.
    pub(crate) above: Vec<Fid>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) fid: Fid,
    pub(crate) kind: FileKind,
}

impl From<Node> for Found {
    fn from(Node { fid, attr: Attr { kind, .. }, .. }: Node) -> Found {
        Found { fid, kind }
    }
}

impl Place {
    /// # Errors
    /// ENOENT.
    pub(crate) fn found(&self) -> FsResult<Found> {
        self.found.ok_or_else(|| Errno::NoEntry.into())
    }

    /// The name of what is there, to be removed or moved.
    ///
    /// # Errors
    /// ENOENT; EBUSY for the root, `.` and `..`.
    pub(crate) fn named(self) -> FsResult<(Fid, Name)> {
        self.found()?;
        self.entry.ok_or_else(|| Errno::Busy.into())
    }

    /// The name for what is to be made.
    ///
    /// # Errors
    /// EEXIST.
    pub(crate) fn free(self) -> FsResult<(Fid, Name)> {
        match (self.entry, self.found) {
            (Some(entry), None) => Ok(entry),
            _ => Err(Errno::Exists.into()),
        }
    }
}

/// What is left of a path: its last component first.
struct Rest {
    components: Vec<Vec<u8>>,
    /// It ends with `/`: it means a directory.
    directory: bool,
}

impl Rest {
    fn of(path: &[u8]) -> Rest {
        let components = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && part != b".");
        let components = components.rev().map(<[u8]>::to_vec).collect();
        Rest { components, directory: path.ends_with(b"/") || path.ends_with(b"/.") || path == b"." }
    }

    /// The target of a link in place of its name.
    fn push(&mut self, target: &[u8]) {
        let target = Rest::of(target);
        self.directory |= target.directory && self.components.is_empty();
        self.components.extend(target.components);
    }
}

/// Walks from the volume's root.
///
/// # Errors
/// ENOENT for a directory that is not there, or an empty path; ENOTDIR, ELOOP, ENAMETOOLONG, EINVAL for a NUL.
pub(crate) async fn walk(client: &Client, path: &Path, last: Last) -> FsResult<Place> {
    let path = path.as_os_str().as_bytes();
    if path.is_empty() {
        return Err(Errno::NoEntry.into());
    }
    let mut rest = Rest::of(path);
    // The directories down to where the walk is: `..` goes back.
    let mut dirs = vec![client.root()];
    let mut links = 0;
    loop {
        let dir = dirs.last().copied().unwrap_or(client.root());
        let Some(component) = rest.components.pop() else {
            let found = Some(Found { fid: dir, kind: FileKind::Directory });
            return Ok(Place { entry: None, found, above: dirs });
        };
        if component == b".." {
            dirs.truncate(dirs.len().saturating_sub(1).max(1));
            continue;
        }
        let name = Name::new(&component).map_err(|error| match error {
            NameError::TooLong => Errno::NameTooLong,
            NameError::Reserved | NameError::BadByte => Errno::Invalid,
        })?;
        let is_last = rest.components.is_empty();
        let Some(node) = client.lookup(dir, &name).await?.node else {
            // To be made, if it is the last one.
            if is_last {
                return Ok(Place { entry: Some((dir, name)), found: None, above: dirs });
            }
            return Err(Errno::NoEntry.into());
        };
        match node.attr.kind {
            FileKind::Symlink if !is_last || last == Last::Follow || rest.directory => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::Loop.into());
                }
                let target = client.readlink(node.fid).await?;
                if target.starts_with(b"/") {
                    dirs.truncate(1);
                }
                rest.push(&target);
            }
            FileKind::Directory if !is_last => dirs.push(node.fid),
            kind if kind != FileKind::Directory && (!is_last || rest.directory) => {
                return Err(Errno::NotDirectory.into());
            }
            _ => return Ok(Place { entry: Some((dir, name)), found: Some(node.into()), above: dirs }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_apart() {
        let rest = Rest::of(b"//a/./b/../c/");
        assert_eq!(rest.components, [b"c".to_vec(), b"..".to_vec(), b"b".to_vec(), b"a".to_vec()]);
        assert!(rest.directory);
        assert!(!Rest::of(b"a").directory);
    }

    #[test]
    fn a_link_stands_for_its_target() {
        let mut rest = Rest::of(b"link/x");
        assert_eq!(rest.components.pop(), Some(b"link".to_vec()));
        rest.push(b"../t/");
        assert_eq!(rest.components, [b"x".to_vec(), b"t".to_vec(), b"..".to_vec()]);
        assert!(!rest.directory, "x may be a file");
        let mut rest = Rest::of(b"link");
        rest.components.pop();
        rest.push(b"t/");
        assert!(rest.directory);
    }
}
