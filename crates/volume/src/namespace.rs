//! Names: create, link, unlink, rmdir, and reading directories.

use crate::acl::{self, Inherited};
use crate::key;
use crate::record::{self, Dirent, Inode};
use crate::txn::{Fate, IfOpen, Removed, Txn};
use crate::view::{View, damaged};
use crate::volume::{Node, Volume};
use bytes::Bytes;
use soda_storage::Table;
use soda_types::semantics::{Names, Newborn, check_target};
use soda_types::{Attr, Creds, Errno, Fid, FileKind, FsError, FsResult, Ino, Name, mode};
use std::ops::ControlFlow;

/// What is to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewNode {
    pub kind: NewKind,
    /// As asked for; ignored for symbolic links.
    pub perm: u16,
    /// Taken off `perm`, unless the parent has a default ACL.
    pub umask: u16,
    pub creds: Creds,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewKind {
    File,
    Directory,
    /// With its target, 1 to [`soda_types::SYMLINK_MAX`] bytes.
    Symlink(Bytes),
    Fifo,
    Socket,
    /// With its device number.
    CharDevice(u32),
    BlockDevice(u32),
}

impl NewKind {
    pub fn kind(&self) -> FileKind {
        match self {
            NewKind::File => FileKind::File,
            NewKind::Directory => FileKind::Directory,
            NewKind::Symlink(_) => FileKind::Symlink,
            NewKind::Fifo => FileKind::Fifo,
            NewKind::Socket => FileKind::Socket,
            NewKind::CharDevice(_) => FileKind::CharDevice,
            NewKind::BlockDevice(_) => FileKind::BlockDevice,
        }
    }
}

/// How much a reading of a directory shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listing {
    Names,
    Attributes,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    pub name: Name,
    pub fid: Fid,
    pub kind: FileKind,
    /// With [`Listing::Attributes`].
    pub attr: Option<Attr>,
}

impl Volume {
    /// At most `limit` entries in the order of their names, those after `after`; fewer only at the end. `.` and `..` are
    /// not among them.
    pub fn read_dir(
        &self,
        directory: Fid,
        after: Option<&Name>,
        limit: usize,
        listing: Listing,
    ) -> FsResult<Vec<DirEntry>> {
        self.directory(directory)?;
        let mut entries = Vec::with_capacity(limit.min(4096));
        if limit == 0 {
            return Ok(entries);
        }
        let mut failure = None;
        self.scan(Table::Dirent, &key::dirents_after(self.id, directory.ino, after), &mut |key, value| {
            match decode_entry(self, key, &value) {
                Ok(entry) => entries.push(entry),
                Err(error) => failure = Some(error),
            }
            if failure.is_some() || entries.len() == limit {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        if listing == Listing::Attributes {
            for entry in &mut entries {
                entry.attr = Some(self.referred(entry.fid.ino)?.attr(entry.fid.ino));
            }
        }
        Ok(entries)
    }
}

fn decode_entry(volume: &Volume, key: &[u8], value: &[u8]) -> FsResult<DirEntry> {
    let dirent: Dirent = record::decode(value).map_err(|error| damaged(Table::Dirent, key, error))?;
    let name = Name::new(key::rest(key))
        .map_err(|error| FsError::new(Errno::Io, format!("a damaged name: {error}")))?;
    Ok(DirEntry { name, fid: Fid::new(volume.id, dirent.ino), kind: dirent.kind, attr: None })
}

/// The number of a new inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    Next,
    /// One from [`Volume::reserve_numbers`] that was not used yet, the caller sees to that.
    Given(Ino),
}

impl Txn<'_> {
    pub fn create(&mut self, parent: Fid, name: &Name, node: NewNode) -> FsResult<Node> {
        self.create_as(parent, name, node, Number::Next)
    }

    /// [`create`](Txn::create) with a number.
    pub fn create_as(&mut self, parent: Fid, name: &Name, node: NewNode, number: Number) -> FsResult<Node> {
        self.atomically(|txn| {
            txn.takes_space();
            let parent = txn.living_directory(parent)?;
            if txn.dirent(parent, name)?.is_some() {
                return Err(Errno::Exists.into());
            }
            let kind = node.kind.kind();
            let ino = txn.new_inode(parent, node, Names::One, number)?;
            txn.put_dirent(parent, name, Dirent { ino, kind })?;
            txn.node_of(ino)
        })
    }

    /// A file without a name (`O_TMPFILE`): an orphan until it is linked. `parent` decides where it may be and what it
    /// inherits.
    pub fn tmpfile(&mut self, parent: Fid, node: NewNode) -> FsResult<Node> {
        self.tmpfile_as(parent, node, Number::Next)
    }

    /// [`tmpfile`](Txn::tmpfile) with a number.
    pub fn tmpfile_as(&mut self, parent: Fid, node: NewNode, number: Number) -> FsResult<Node> {
        self.atomically(|txn| {
            txn.takes_space();
            if node.kind != NewKind::File {
                return Err(Errno::Invalid.into());
            }
            let parent = txn.living_directory(parent)?;
            let ino = txn.new_inode(parent, node, Names::None, number)?;
            txn.make_orphan(ino);
            txn.node_of(ino)
        })
    }

    /// Gives an inode another name. An orphan is linkable only if it never had a name; the kernel sees to that.
    pub fn link(&mut self, fid: Fid, new_parent: Fid, new_name: &Name) -> FsResult<Attr> {
        self.atomically(|txn| {
            txn.takes_space();
            let inode = txn.inode(fid)?;
            let parent = txn.living_directory(new_parent)?;
            inode.attr(fid.ino).check_link()?;
            if txn.dirent(parent, new_name)?.is_some() {
                return Err(Errno::Exists.into());
            }
            if inode.nlink == 0 {
                txn.unmake_orphan(fid.ino);
            }
            let now = txn.now();
            let attr = txn.change(fid.ino, |attr| attr.linked(now))?;
            txn.hang(fid.ino, if attr.nlink == 1 { parent } else { Ino::default() })?;
            let kind = attr.kind;
            txn.put_dirent(parent, new_name, Dirent { ino: fid.ino, kind })?;
            txn.attr(fid)
        })
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&mut self, parent: Fid, name: &Name, if_open: IfOpen) -> FsResult<Removed> {
        self.atomically(|txn| {
            let parent = txn.parent_of_name(parent)?;
            let dirent = txn.dirent(parent, name)?.ok_or(Errno::NoEntry)?;
            if dirent.kind == FileKind::Directory {
                return Err(Errno::IsDirectory.into());
            }
            txn.remove_name(parent, name, dirent, if_open)
        })
    }

    pub fn rmdir(&mut self, parent: Fid, name: &Name, if_open: IfOpen) -> FsResult<Removed> {
        self.atomically(|txn| {
            let parent = txn.parent_of_name(parent)?;
            let dirent = txn.dirent(parent, name)?.ok_or(Errno::NoEntry)?;
            if dirent.kind != FileKind::Directory {
                return Err(Errno::NotDirectory.into());
            }
            txn.referred(dirent.ino)?.attr(dirent.ino).check_empty()?;
            txn.remove_name(parent, name, dirent, if_open)
        })
    }

    /// The directory, if something can be created in it: not in a removed one.
    pub(crate) fn living_directory(&self, fid: Fid) -> FsResult<Ino> {
        match self.directory(fid)?.nlink {
            0 => Err(Errno::NoEntry.into()),
            _ => Ok(fid.ino),
        }
    }

    fn parent_of_name(&self, fid: Fid) -> FsResult<Ino> {
        self.directory(fid).map(|_| fid.ino)
    }

    /// Makes an inode; its name, if it gets one, comes next.
    fn new_inode(&mut self, parent: Ino, node: NewNode, names: Names, number: Number) -> FsResult<Ino> {
        let kind = node.kind.kind();
        let rdev = match node.kind {
            NewKind::CharDevice(rdev) | NewKind::BlockDevice(rdev) => rdev,
            _ => 0,
        };
        let target = match node.kind {
            NewKind::Symlink(target) => {
                check_target(target.len())?;
                target
            }
            _ => Bytes::new(),
        };
        let parent_inode = self.referred(parent)?;
        let inherited = match kind {
            FileKind::Symlink => Inherited::plain(0, 0),
            _ => acl::inherit(self, parent, &parent_inode, node.perm & mode::ALL, node.umask, kind)?,
        };
        let size = target.len() as u64;
        let new = Newborn {
            kind,
            perm: inherited.perm,
            umask: inherited.umask,
            creds: node.creds,
            rdev,
            size,
            names,
        };
        let ino = match number {
            Number::Next => Ino(self.volume.new_number()?),
            Number::Given(ino) => ino,
        };
        let attr = Attr::created(&parent_inode.attr(parent), ino, &new, self.now());
        let hangs = if names == Names::None { Ino::default() } else { parent };
        self.set_inode(ino, Some(Inode::new(&attr, hangs, target)))?;
        for (name, value) in inherited.xattrs() {
            self.put_xattr(ino, name, value)?;
        }
        Ok(ino)
    }

    /// Adds a name that is not there, and what it means for the directory.
    pub(crate) fn put_dirent(&mut self, parent: Ino, name: &Name, dirent: Dirent) -> FsResult<()> {
        let now = self.now();
        self.change(parent, |attr| attr.entry_added(dirent.kind, now))?;
        self.set_dirent(parent, name, Some(dirent));
        Ok(())
    }

    /// Takes a name away, and what it means for the directory.
    pub(crate) fn delete_dirent(&mut self, parent: Ino, name: &Name, dirent: Dirent) -> FsResult<()> {
        let now = self.now();
        self.change(parent, |attr| attr.entry_removed(dirent.kind, now))?;
        self.set_dirent(parent, name, None);
        Ok(())
    }

    /// Takes a name away, and what it means for the inode.
    pub(crate) fn remove_name(
        &mut self,
        parent: Ino,
        name: &Name,
        dirent: Dirent,
        if_open: IfOpen,
    ) -> FsResult<Removed> {
        self.delete_dirent(parent, name, dirent)?;
        let now = self.now();
        let attr = self.change(dirent.ino, |attr| attr.unlinked(now))?;
        let fate = match (attr.nlink, if_open) {
            (1.., _) => Fate::Linked,
            (0, IfOpen::Keep) => {
                self.make_orphan(dirent.ino);
                if dirent.kind != FileKind::Directory {
                    self.hang(dirent.ino, Ino::default())?;
                }
                Fate::Orphaned
            }
            (0, IfOpen::Delete) => {
                self.delete_inode(dirent.ino)?;
                Fate::Deleted
            }
        };
        Ok(Removed { fid: Fid::new(self.volume.id, dirent.ino), attr, fate })
    }
}
