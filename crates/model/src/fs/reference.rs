//! The state of the reference file system and the operations on one inode.

use super::{Contents, Follow, Handle, Op, Outcome, Seen, TreePath, XattrMode};
use soda_types::{Errno, FileKind, Ino, Name, Timestamp, mode};
use std::collections::{BTreeMap, VecDeque};

/// Links followed in one path before ELOOP (Linux `MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// A file system in memory. See the crate's front page for what it is for, [`ReferenceFs::apply`] for how it is used.
#[derive(Clone, Debug)]
pub struct ReferenceFs {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    pub(super) handles: BTreeMap<Handle, OpenFile>,
    next_ino: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) body: Body,
    pub(super) perm: u16,
    /// Names that lead here; of a directory 2 and one for each sub-directory, 0 when it was removed.
    pub(super) nlink: u32,
    /// `None` when only a clock knows it.
    pub(super) mtime: Option<Timestamp>,
    xattrs: BTreeMap<Name, Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    File(Contents),
    Directory(BTreeMap<Name, Ino>),
    Symlink(TreePath),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) access: super::Access,
    pub(super) mode: super::OpenMode,
}

/// Where a path leads: the directory and name it ends at, and what is there.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) dir: Ino,
    pub(super) name: Name,
    pub(super) ino: Option<Ino>,
}

impl ReferenceFs {
    /// An empty root directory.
    pub fn new() -> ReferenceFs {
        let root = Inode::new(Body::Directory(BTreeMap::new()), 0o755);
        ReferenceFs { inodes: BTreeMap::from([(Ino::ROOT, root)]), handles: BTreeMap::new(), next_ino: 2 }
    }

    /// Carries out one operation.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.try_apply(op).unwrap_or_else(Outcome::Failed)
    }

    /// Whether the inode can still be reached, by a name or an open file. The numbers of others may come back on file
    /// systems that use them again.
    pub fn is_alive(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    /// Every path of the tree, directories before what is in them.
    pub fn paths(&self) -> Vec<TreePath> {
        let mut found = Vec::new();
        let mut queue = VecDeque::from([(Ino::ROOT, Vec::new())]);
        while let Some((dir, parents)) = queue.pop_front() {
            for (name, ino) in self.entries(dir).into_iter().flatten() {
                let path = TreePath { parents: parents.clone(), last: name.clone() };
                if self.entries(*ino).is_ok() {
                    queue.push_back((*ino, path.names().cloned().collect()));
                }
                found.push(path);
            }
        }
        found
    }

    /// The operations that show everything about the tree as it is: names, attributes, data, targets, xattrs. Their
    /// outcomes here and elsewhere must be equal.
    pub fn inspection(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        let handle = Handle(u8::MAX);
        for path in self.paths() {
            ops.push(Op::Stat { path: path.clone(), follow: Follow::LinkItself });
            let Ok(Some(ino)) = self.locate(&path, Follow::LinkItself).map(|place| place.ino) else {
                continue;
            };
            match &self.inodes[&ino].body {
                Body::Directory(_) => ops.push(Op::Readdir { path: path.clone() }),
                Body::Symlink(_) => {
                    ops.push(Op::Readlink { path });
                    continue;
                }
                Body::File(contents) => {
                    ops.push(Op::Open {
                        handle,
                        path: path.clone(),
                        access: super::Access::Read,
                        disposition: super::Disposition::MustExist,
                        mode: super::OpenMode::AtOffset,
                        perm: 0,
                    });
                    // A sparse file may be far larger than what can be compared: its last MiB then.
                    let len = contents.size().min(1 << 20) as u32 + 1;
                    ops.push(Op::Read { handle, offset: contents.size().saturating_sub(1 << 20), len });
                    ops.push(Op::Close { handle });
                }
            }
            ops.push(Op::ListXattr { path: path.clone() });
            for name in self.inodes[&ino].xattrs.keys() {
                ops.push(Op::GetXattr { path: path.clone(), name: name.clone() });
            }
        }
        ops
    }

    fn try_apply(&mut self, op: &Op) -> Result<Outcome, Errno> {
        match op {
            Op::Open { handle, path, access, disposition, mode, perm } => {
                self.open(*handle, path, *access, *disposition, *mode, *perm)
            }
            Op::Close { handle } => self.close(*handle),
            Op::Read { handle, offset, len } => self.read(*handle, *offset, *len),
            Op::Write { handle, offset, fill } => self.write(*handle, *offset, *fill),
            Op::Seek { handle, offset, whence } => self.seek(*handle, *offset, *whence),
            Op::MapLoad { handle, offset, len } => self.map_load(*handle, *offset, *len),
            Op::MapStore { handle, offset, fill } => self.map_store(*handle, *offset, *fill),
            Op::Ftruncate { handle, size } => self.ftruncate(*handle, *size),
            Op::Fallocate { handle, mode, offset, len } => self.fallocate(*handle, *mode, *offset, *len),
            Op::Fstat { handle } => Ok(Outcome::Stat(self.seen(self.opened(*handle)?.ino))),
            Op::Fsync { handle } => self.opened(*handle).map(|_| Outcome::Done),
            Op::Mkdir { path, perm } => self.mkdir(path, *perm),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Unlink { path } => self.unlink(path),
            Op::Link { from, to } => self.link(from, to),
            Op::Symlink { target, path } => self.symlink(target, path),
            Op::Readlink { path } => self.readlink(path),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::Truncate { path, size } => self.truncate(path, *size),
            Op::Chmod { path, perm } => {
                let ino = self.existing(path, Follow::Target)?;
                self.inode(ino).perm = *perm & mode::ALL;
                Ok(Outcome::Done)
            }
            Op::Utimens { path, mtime } => {
                let ino = self.existing(path, Follow::Target)?;
                self.inode(ino).mtime = Some(*mtime);
                Ok(Outcome::Done)
            }
            Op::Stat { path, follow } => Ok(Outcome::Stat(self.seen(self.existing(path, *follow)?))),
            Op::Readdir { path } => self.readdir(path),
            Op::SetXattr { path, name, value, mode } => self.set_xattr(path, name, value, *mode),
            Op::GetXattr { path, name } => {
                let ino = self.existing(path, Follow::Target)?;
                let value = self.inodes[&ino].xattrs.get(name).ok_or(Errno::NoData)?;
                Ok(Outcome::Bytes(value.clone()))
            }
            Op::ListXattr { path } => {
                let ino = self.existing(path, Follow::Target)?;
                let names = self.inodes[&ino].xattrs.keys().map(|name| (name.clone(), None));
                Ok(Outcome::Names(names.collect()))
            }
            Op::RemoveXattr { path, name } => {
                let ino = self.existing(path, Follow::Target)?;
                self.inode(ino).xattrs.remove(name).map(|_| Outcome::Done).ok_or(Errno::NoData)
            }
        }
    }

    fn set_xattr(
        &mut self,
        path: &TreePath,
        name: &Name,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Outcome, Errno> {
        let ino = self.existing(path, Follow::Target)?;
        let xattrs = &mut self.inode(ino).xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::Exists),
            (XattrMode::Replace, false) => return Err(Errno::NoData),
            _ => {}
        }
        xattrs.insert(name.clone(), value.to_vec());
        Ok(Outcome::Done)
    }

    pub(super) fn seen(&self, ino: Ino) -> Seen {
        let inode = &self.inodes[&ino];
        let size = match &inode.body {
            Body::File(contents) => contents.size(),
            Body::Symlink(target) => target.to_bytes().len() as u64,
            Body::Directory(_) => 0,
        };
        Seen { ino, kind: inode.kind(), perm: inode.perm, nlink: inode.nlink, size, mtime: inode.mtime }
    }

    /// Follows a path. What it ends at may be missing; what lies before must be there.
    pub(super) fn locate(&self, path: &TreePath, follow: Follow) -> Result<Place, Errno> {
        let mut left: VecDeque<Name> = path.names().cloned().collect();
        let mut dir = Ino::ROOT;
        let mut links = 0;
        loop {
            let Some(name) = left.pop_front() else { return Err(Errno::NoEntry) };
            let ino = self.entries(dir)?.get(&name).copied();
            let is_last = left.is_empty();
            let Some(found) = ino else {
                return if is_last { Ok(Place { dir, name, ino: None }) } else { Err(Errno::NoEntry) };
            };
            if let Body::Symlink(target) = &self.inodes[&found].body
                && (!is_last || follow == Follow::Target)
            {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::Loop);
                }
                for name in target.names().collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(name.clone());
                }
                continue;
            }
            if is_last {
                return Ok(Place { dir, name, ino });
            }
            dir = found;
        }
    }

    pub(super) fn existing(&self, path: &TreePath, follow: Follow) -> Result<Ino, Errno> {
        self.locate(path, follow)?.ino.ok_or(Errno::NoEntry)
    }

    /// The names of a directory; ENOTDIR if it is none.
    pub(super) fn entries(&self, dir: Ino) -> Result<&BTreeMap<Name, Ino>, Errno> {
        match &self.inodes[&dir].body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Errno::NotDirectory),
        }
    }

    /// # Panics
    /// If it is gone: callers have found it in the tree or behind a handle.
    pub(super) fn inode(&mut self, ino: Ino) -> &mut Inode {
        match self.inodes.get_mut(&ino) {
            Some(inode) => inode,
            None => panic!("{ino} is gone"),
        }
    }

    pub(super) fn new_inode(&mut self, body: Body, perm: u16) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.inodes.insert(ino, Inode::new(body, perm));
        ino
    }

    /// Forgets an inode that has neither a name nor an open file any more.
    pub(super) fn forget_if_unreachable(&mut self, ino: Ino) {
        let is_open = self.handles.values().any(|file| file.ino == ino);
        if self.inodes[&ino].nlink == 0 && !is_open {
            self.inodes.remove(&ino);
        }
    }
}

impl Default for ReferenceFs {
    fn default() -> ReferenceFs {
        ReferenceFs::new()
    }
}

impl Inode {
    fn new(body: Body, perm: u16) -> Inode {
        let nlink = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        Inode { body, perm, nlink, mtime: None, xattrs: BTreeMap::new() }
    }

    pub(super) fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }
}
