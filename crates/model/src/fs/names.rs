//! Names: what makes, removes and moves them. The order of the checks is Linux's (fs/namei.c), because it decides which
//! errno is seen when several apply.

use super::reference::{Body, Place, ReferenceFs};
use super::{Follow, Outcome, RenameMode, TreePath};
use soda_types::{Errno, Ino, Name, mode};
use std::collections::BTreeMap;

impl ReferenceFs {
    pub(super) fn mkdir(&mut self, path: &TreePath, perm: u16) -> Result<Outcome, Errno> {
        let place = self.free_place(path)?;
        // A set-gid directory hands the bit down to directories (Linux, System V groups).
        let inherited = self.inodes[&place.dir].perm & mode::SET_GID;
        let ino = self.new_inode(Body::Directory(BTreeMap::new()), perm | inherited);
        self.add_name(place.dir, place.name, ino);
        Ok(Outcome::Done)
    }

    pub(super) fn symlink(&mut self, target: &TreePath, path: &TreePath) -> Result<Outcome, Errno> {
        let place = self.free_place(path)?;
        let ino = self.new_inode(Body::Symlink(target.clone()), 0o777);
        self.add_name(place.dir, place.name, ino);
        Ok(Outcome::Done)
    }

    pub(super) fn link(&mut self, from: &TreePath, to: &TreePath) -> Result<Outcome, Errno> {
        let ino = self.existing(from, Follow::LinkItself)?;
        let place = self.free_place(to)?;
        if self.inodes[&ino].is_directory() {
            return Err(Errno::Perm);
        }
        self.inode(ino).nlink += 1;
        self.add_name(place.dir, place.name, ino);
        Ok(Outcome::Done)
    }

    pub(super) fn unlink(&mut self, path: &TreePath) -> Result<Outcome, Errno> {
        let place = self.locate(path, Follow::LinkItself)?;
        let ino = place.ino.ok_or(Errno::NoEntry)?;
        if self.inodes[&ino].is_directory() {
            return Err(Errno::IsDirectory);
        }
        self.remove_name(&place);
        self.drop_link(ino);
        Ok(Outcome::Done)
    }

    pub(super) fn rmdir(&mut self, path: &TreePath) -> Result<Outcome, Errno> {
        let place = self.locate(path, Follow::LinkItself)?;
        let ino = place.ino.ok_or(Errno::NoEntry)?;
        if !self.entries(ino)?.is_empty() {
            return Err(Errno::NotEmpty);
        }
        self.remove_name(&place);
        self.drop_link(ino);
        Ok(Outcome::Done)
    }

    pub(super) fn readlink(&self, path: &TreePath) -> Result<Outcome, Errno> {
        let ino = self.existing(path, Follow::LinkItself)?;
        match &self.inodes[&ino].body {
            Body::Symlink(target) => Ok(Outcome::Bytes(target.to_bytes())),
            _ => Err(Errno::Invalid),
        }
    }

    pub(super) fn readdir(&self, path: &TreePath) -> Result<Outcome, Errno> {
        let ino = self.existing(path, Follow::Target)?;
        let entries = self.entries(ino)?.iter();
        Ok(Outcome::Names(entries.map(|(name, ino)| (name.clone(), Some(self.inodes[ino].kind()))).collect()))
    }

    /// renameat2(2).
    pub(super) fn rename(
        &mut self,
        from: &TreePath,
        to: &TreePath,
        mode: RenameMode,
    ) -> Result<Outcome, Errno> {
        // Both directories are looked up before either name.
        let source = self.locate(from, Follow::LinkItself).and_then(|place| self.in_directory(place))?;
        let target = self.locate(to, Follow::LinkItself).and_then(|place| self.in_directory(place))?;
        let moved = source.ino.ok_or(Errno::NoEntry)?;
        match (mode, target.ino) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
            _ => {}
        }
        if self.is_below(target.dir, moved) {
            return Err(Errno::Invalid);
        }
        if let Some(replaced) = target.ino
            && self.is_below(source.dir, replaced)
        {
            return Err(if mode == RenameMode::Exchange { Errno::Invalid } else { Errno::NotEmpty });
        }
        if target.ino == Some(moved) {
            // Two names of one file: POSIX says that nothing happens.
            return Ok(Outcome::Done);
        }
        match (mode, target.ino) {
            (RenameMode::Exchange, Some(other)) => {
                self.remove_name(&source);
                self.remove_name(&target);
                self.add_name(target.dir, target.name, moved);
                self.add_name(source.dir, source.name, other);
            }
            (_, replaced) => {
                if let Some(replaced) = replaced {
                    self.check_replaceable(moved, replaced)?;
                    self.remove_name(&target);
                    self.drop_link(replaced);
                }
                self.remove_name(&source);
                self.add_name(target.dir, target.name, moved);
            }
        }
        Ok(Outcome::Done)
    }

    fn check_replaceable(&self, moved: Ino, replaced: Ino) -> Result<(), Errno> {
        match (self.inodes[&moved].is_directory(), self.inodes[&replaced].is_directory()) {
            (true, false) => Err(Errno::NotDirectory),
            (false, true) => Err(Errno::IsDirectory),
            (true, true) if !self.entries(replaced)?.is_empty() => Err(Errno::NotEmpty),
            _ => Ok(()),
        }
    }

    /// A name that is not there yet; EEXIST if it is, even as a link to nowhere.
    fn free_place(&self, path: &TreePath) -> Result<Place, Errno> {
        let place = self.in_directory(self.locate(path, Follow::LinkItself)?)?;
        if place.ino.is_some() { Err(Errno::Exists) } else { Ok(place) }
    }

    fn in_directory(&self, place: Place) -> Result<Place, Errno> {
        self.entries(place.dir).map(|_| place)
    }

    /// Whether `ancestor` is `dir` or a directory above it.
    fn is_below(&self, dir: Ino, ancestor: Ino) -> bool {
        if dir == ancestor {
            return true;
        }
        self.entries(ancestor).is_ok_and(|entries| entries.values().any(|child| self.is_below(dir, *child)))
    }

    pub(super) fn add_name(&mut self, dir: Ino, name: Name, ino: Ino) {
        let is_directory = self.inodes[&ino].is_directory();
        self.change_names(dir, |entries| entries.insert(name, ino));
        if is_directory {
            self.inode(dir).nlink += 1;
        }
    }

    fn remove_name(&mut self, place: &Place) {
        let removed = self.change_names(place.dir, |entries| entries.remove(&place.name));
        if removed.is_some_and(|ino| self.inodes[&ino].is_directory()) {
            self.inode(place.dir).nlink -= 1;
        }
    }

    fn change_names<T>(&mut self, dir: Ino, change: impl FnOnce(&mut BTreeMap<Name, Ino>) -> T) -> T {
        let inode = self.inode(dir);
        inode.mtime = None;
        match &mut inode.body {
            Body::Directory(entries) => change(entries),
            _ => panic!("{dir} is not a directory"),
        }
    }

    fn drop_link(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        inode.nlink = if inode.is_directory() { 0 } else { inode.nlink - 1 };
        self.forget_if_unreachable(ino);
    }
}
