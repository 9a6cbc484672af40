//! Operations on names: of symbolic links in one directory, and of directories with files in them.

use super::actor::Actor;
use super::files::TORN;
use super::layout::{directory_name, parent_name};
use crate::linear::object::{Answer, Operation};
use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;

impl Actor {
    pub(super) fn names(&mut self, directory: u16, operation: &Operation) -> Result<Answer> {
        let directory = directory_name(directory);
        let path = |name: &u8| format!("{directory}/name{name}");
        let rename = |actor: &Actor, from: &u8, to: &u8, flags: RenameFlags| {
            fs::renameat_with(actor.root()?, path(from), actor.root()?, path(to), flags)
        };
        let result = match operation {
            Operation::Create { name, id } => self.create(&path(name), *id),
            Operation::Remove { name } => fs::unlinkat(self.root()?, path(name), AtFlags::empty()),
            Operation::Rename { from, to } => rename(self, from, to, RenameFlags::empty()),
            Operation::RenameNew { from, to } => rename(self, from, to, RenameFlags::NOREPLACE),
            Operation::Exchange { one, other } => rename(self, one, other, RenameFlags::EXCHANGE),
            Operation::Lookup { name } => {
                return match fs::readlinkat(self.root()?, path(name), Vec::new()) {
                    Err(Errno::NOENT) => Ok(Answer::Missing),
                    target => Ok(Answer::Found(number(target?.to_bytes()))),
                };
            }
            _ => return list(self.root()?, &directory, b"name"),
        };
        as_answer(result)
    }

    /// The target of the link is the identity: known before the call, so that a lost answer leaves no doubt. Two ways to
    /// make a name that must not be there: as a new inode, and as one more name of an inode.
    fn create(&mut self, path: &str, id: u64) -> Result<()> {
        if self.rng.chance(1, 2) {
            return fs::symlinkat(id.to_string(), self.root()?, path);
        }
        let source = self.own("source");
        match fs::unlinkat(self.root()?, &source, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        fs::symlinkat(id.to_string(), self.root()?, &source)?;
        self.start_clock();
        fs::linkat(self.root()?, &source, self.root()?, path, AtFlags::empty())
    }

    pub(super) fn directories(&mut self, parent: u16, operation: &Operation) -> Result<Answer> {
        let parent = parent_name(parent);
        let directory = |name: &u8| format!("{parent}/directory{name}");
        let root = self.root()?;
        let result = match operation {
            Operation::MakeDirectory { name } => {
                fs::mkdirat(root, directory(name), Mode::from_raw_mode(0o755))
            }
            Operation::RemoveDirectory { name } => fs::unlinkat(root, directory(name), AtFlags::REMOVEDIR),
            Operation::CreateLeaf { name, leaf } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let path = format!("{}/leaf{leaf}", directory(name));
                fs::openat(root, path, flags, Mode::from_raw_mode(0o644)).map(drop)
            }
            Operation::RemoveLeaf { name, leaf } => {
                fs::unlinkat(root, format!("{}/leaf{leaf}", directory(name)), AtFlags::empty())
            }
            Operation::ListLeaves { name } => {
                return match list(root, &directory(name), b"leaf") {
                    // ESTALE: removed between its opening and its reading. (Here the library opens it again, as `.`, which a
                    // local file system allows.)
                    Err(Errno::NOENT | Errno::STALE) => Ok(Answer::Missing),
                    listed => listed,
                };
            }
            _ => return list(root, &parent, b"directory"),
        };
        match result {
            // The directory was removed, and when Linux looked again another one of that name, before it could be used.
            Err(Errno::STALE) => Ok(Answer::Missing),
            result => as_answer(result),
        }
    }
}

fn as_answer(result: Result<()>) -> Result<Answer> {
    match result {
        Ok(()) => Ok(Answer::Done),
        Err(Errno::NOENT) => Ok(Answer::Missing),
        Err(Errno::EXIST) => Ok(Answer::Exists),
        Err(Errno::NOTEMPTY) => Ok(Answer::Occupied),
        Err(errno) => Err(errno),
    }
}

/// The numbers of the names that begin with `prefix`.
fn list(root: &OwnedFd, directory: &str, prefix: &[u8]) -> Result<Answer> {
    let opened =
        fs::openat(root, directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(opened)? {
        if let Some(digits) = entry?.file_name().to_bytes().strip_prefix(prefix) {
            names.push(number(digits) as u8);
        }
    }
    names.sort();
    Ok(Answer::Names(names))
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(TORN)
}
