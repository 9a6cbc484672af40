//! `rename(2)`.

use crate::ancestry::DEPTH_MAX;
use crate::record::{Dirent, Inode};
use crate::txn::{IfOpen, Removed, Txn};
use crate::view::View;
use crate::volume::Node;
use soda_types::semantics::check_replace;
use soda_types::{Errno, Fid, FileKind, FsError, FsResult, Ino, Name, Replace};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    pub moved: Node,
    /// What was at the new name and is not any more.
    pub replaced: Option<Removed>,
    /// What is at the old name now, after an exchange.
    pub exchanged: Option<Node>,
}

impl Txn<'_> {
    /// # Errors
    /// `Exists` if something is at the new name and `existing` is [`Replace::Refused`].
    pub fn rename(
        &mut self,
        parent: Fid,
        name: &Name,
        new_parent: Fid,
        new_name: &Name,
        existing: Replace,
        if_open: IfOpen,
    ) -> FsResult<Renamed> {
        self.atomically(|txn| {
            txn.takes_space();
            let (from, to) = (txn.living_directory(parent)?, txn.living_directory(new_parent)?);
            let source = txn.dirent(from, name)?.ok_or(Errno::NoEntry)?;
            match (existing, txn.dirent(to, new_name)?) {
                (Replace::Refused, Some(_)) => Err(Errno::Exists.into()),
                // Two names of one inode: nothing happens.
                (_, Some(target)) if target.ino == source.ino => {
                    Ok(Renamed { moved: txn.node_of(source.ino)?, replaced: None, exchanged: None })
                }
                (_, target) => txn.replace((from, name, source), (to, new_name, target), if_open),
            }
        })
    }

    /// What is at the two names changes places.
    pub fn exchange(&mut self, one: (Fid, &Name), other: (Fid, &Name)) -> FsResult<Renamed> {
        self.atomically(|txn| {
            txn.takes_space();
            let (from, to) = (txn.living_directory(one.0)?, txn.living_directory(other.0)?);
            let source = txn.dirent(from, one.1)?.ok_or(Errno::NoEntry)?;
            let target = txn.dirent(to, other.1)?.ok_or(Errno::NoEntry)?;
            txn.swap((from, one.1, source), (to, other.1, target))
        })
    }

    fn replace(
        &mut self,
        (from, name, source): (Ino, &Name, Dirent),
        (to, new_name, target): (Ino, &Name, Option<Dirent>),
        if_open: IfOpen,
    ) -> FsResult<Renamed> {
        self.refuse_loop(source, from, to)?;
        let replaced = match target {
            None => None,
            Some(target) => {
                check_replace(source.kind, &self.referred(target.ino)?.attr(target.ino))?;
                Some(self.remove_name(to, new_name, target, if_open)?)
            }
        };
        self.delete_dirent(from, name, source)?;
        self.put_dirent(to, new_name, source)?;
        self.moved(source, to)?;
        Ok(Renamed { moved: self.node_of(source.ino)?, replaced, exchanged: None })
    }

    fn swap(
        &mut self,
        (from, name, source): (Ino, &Name, Dirent),
        (to, new_name, target): (Ino, &Name, Dirent),
    ) -> FsResult<Renamed> {
        if source.ino != target.ino {
            self.refuse_loop(source, from, to)?;
            self.refuse_loop(target, to, from)?;
            self.delete_dirent(from, name, source)?;
            self.delete_dirent(to, new_name, target)?;
            self.put_dirent(from, name, target)?;
            self.put_dirent(to, new_name, source)?;
            self.moved(source, to)?;
            self.moved(target, from)?;
        }
        let (moved, exchanged) = (self.node_of(source.ino)?, Some(self.node_of(target.ino)?));
        Ok(Renamed { moved, replaced: None, exchanged })
    }

    fn moved(&mut self, dirent: Dirent, to: Ino) -> FsResult<()> {
        let now = self.now();
        let attr = self.change(dirent.ino, |attr| attr.changed(now))?;
        let known = attr.kind == FileKind::Directory || attr.nlink == 1;
        self.hang(dirent.ino, if known { to } else { Ino::default() })
    }

    /// A directory cannot move into itself or below.
    fn refuse_loop(&mut self, moving: Dirent, from: Ino, to: Ino) -> FsResult<()> {
        if moving.kind != FileKind::Directory || from == to {
            return Ok(());
        }
        self.take_rename_turn();
        let mut ancestor = to;
        for _ in 0..DEPTH_MAX {
            if ancestor == Ino::ROOT {
                return Ok(());
            }
            if ancestor == moving.ino {
                return Err(Errno::Invalid.into());
            }
            let inode: Arc<Inode> = self.referred(ancestor)?;
            ancestor = inode.parent;
        }
        Err(FsError::new(Errno::Io, format!("directory {to} is below itself: run `soda fsck`")))
    }
}
