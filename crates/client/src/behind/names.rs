//! Names, here: create, link, unlink, rename. Rules and attributes are those of [`soda_types::semantics`], which the server's
//! volume follows, too; what they do not decide (loops of directories that are not known here) goes through.

use super::here::{Here, NotHere};
use crate::cache::State;
use crate::cache::inode::{Inode, Keeping, Origin, Xattrs};
use crate::cache::names::{Complete, Known};
use crate::interface::{Entry, RenameHow};
use crate::validity::Validity;
use crate::why::Why;
use bytes::Bytes;
use soda_oplog::{Change, Fate, Moved, Place};
use soda_protocol::{IfExists, NewNode, Node, Replace, XattrSummary, space_for, space_for_lists};
use soda_types::acl::Inherited;
use soda_types::semantics::{self, Moment, Names, Newborn};
use soda_types::{
    Attr, Creds, Errno, Fid, FileKind, InUse, Ino, Monotonic, Name, Timestamp, XATTR_DEFAULT_LIST, mode,
};
use std::sync::Arc;

/// A path from a directory to the root is not followed further than this.
const DEEPEST: usize = 512;

/// Bytes: what a name takes at most.
const LONGEST_NAME: usize = 255;
/// Bytes: access lists that are handed on to what is made, with their names. They are not counted in a digest, and a thousand of
/// them are one transaction of the server.
const LONGEST_LISTS: usize = 4096;

/// A name in a directory, for the time of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) dir: Fid,
    pub(crate) name: &'a Name,
}

impl At<'_> {
    fn place(self) -> Place {
        Place { directory: self.dir, name: self.name.clone() }
    }
}

impl State {
    /// creat, mkdir, mknod, symlink.
    pub(crate) fn create_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        at: At<'_>,
        new: &NewNode,
    ) -> Here<Entry> {
        let parent = self.attr_here(now, at.dir)?;
        match self.name_here(now, at.dir, at.name)? {
            Known::Present { .. } if new.existing == IfExists::Fail => return Err(Errno::Exists.into()),
            Known::Present { .. } => return Err(Why::Kind.into()),
            Known::Absent => {}
        }
        alive(&parent)?;
        let (fid, moment) = self.make_here(now, calendar, (at.dir, &parent), new, Names::One)?;
        self.add_name(now, at, (fid, new.kind), moment);
        let new = NewNode { existing: IfExists::Fail, ..new.clone() };
        self.log_change(now, moment, Change::Create { place: at.place(), fid, new });
        Ok(self.entry_here(now, Some(at), fid)?)
    }

    /// O_TMPFILE.
    pub(crate) fn tmpfile_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        dir: Fid,
        new: &NewNode,
    ) -> Here<Entry> {
        let parent = self.attr_here(now, dir)?;
        alive(&parent)?;
        let (fid, moment) = self.make_here(now, calendar, (dir, &parent), new, Names::None)?;
        self.inode(fid).log.keeping = Keeping::Open;
        self.log_change(now, moment, Change::TmpFile { directory: dir, fid, new: new.clone() });
        Ok(self.entry_here(now, None, fid)?)
    }

    pub(crate) fn link_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        fid: Fid,
        at: At<'_>,
    ) -> Here<Entry> {
        let parent = self.attr_here(now, at.dir)?;
        let mut attr = self.attr_here(now, fid)?;
        if self.name_here(now, at.dir, at.name)? != Known::Absent {
            return Err(Errno::Exists.into());
        }
        alive(&parent)?;
        attr.check_link().map_err(NotHere::Fails)?;
        self.room_here(now, at.name.as_bytes().len())?;
        let moment = self.moment(calendar, &[&parent, &attr]);
        attr.linked(moment);
        self.set_attr_here(now, fid, attr);
        self.add_name(now, at, (fid, attr.kind), moment);
        self.log_change(now, moment, Change::Link { fid, place: at.place() });
        self.changed(now, fid, None, None);
        Ok(self.entry_here(now, Some(at), fid)?)
    }

    /// `found`: the inode that the name meant just now, and whether the kernel has it open, as far as the open files here do
    /// not tell.
    pub(crate) fn unlink_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        at: At<'_>,
        (found, in_use): (Fid, InUse),
    ) -> Here<()> {
        let parent = self.attr_here(now, at.dir)?;
        let (fid, kind) = present(self.name_here(now, at.dir, at.name)?)?;
        if fid != found {
            return Err(Why::Contended.into());
        }
        if kind == FileKind::Directory {
            return Err(Errno::IsDirectory.into());
        }
        let attr = self.attr_here(now, fid)?;
        if self.need_not_be_told(fid, in_use) {
            return Err(Why::Reservation.into());
        }
        self.room_to_free()?;
        let moment = self.moment(calendar, &[&parent, &attr]);
        let then = self.lose_name(now, fid, in_use, moment);
        self.remove_name(now, at, kind, moment);
        self.log_change(now, moment, Change::Unlink { place: at.place(), fid, then });
        Ok(())
    }

    pub(crate) fn rmdir_here(&mut self, now: Monotonic, calendar: Timestamp, at: At<'_>) -> Here<()> {
        let parent = self.attr_here(now, at.dir)?;
        let (fid, kind) = present(self.name_here(now, at.dir, at.name)?)?;
        if kind != FileKind::Directory {
            return Err(Errno::NotDirectory.into());
        }
        let attr = self.attr_here(now, fid)?;
        attr.check_empty().map_err(NotHere::Fails)?;
        self.room_to_free()?;
        let moment = self.moment(calendar, &[&parent, &attr]);
        self.lose_name(now, fid, InUse::No, moment);
        self.remove_name(now, at, kind, moment);
        self.log_change(now, moment, Change::RemoveDirectory { place: at.place(), fid });
        Ok(())
    }

    /// `found`: as for [`State::unlink_here`], of what is replaced.
    pub(crate) fn rename_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        (from, to): (At<'_>, At<'_>),
        how: RenameHow,
        found: Option<(Fid, InUse)>,
    ) -> Here<()> {
        let parents = (self.attr_here(now, from.dir)?, self.attr_here(now, to.dir)?);
        let source = present(self.name_here(now, from.dir, from.name)?)?;
        let target = match self.name_here(now, to.dir, to.name)? {
            Known::Absent => None,
            Known::Present { fid, kind } => Some((fid, kind)),
        };
        if target.map(|(fid, _)| fid) != found.map(|(fid, _)| fid) {
            return Err(Why::Contended.into());
        }
        let in_use = found.map_or(InUse::No, |(_, in_use)| in_use);
        let moved = self.attr_here(now, source.0)?;
        let other = target.map(|(fid, _)| self.attr_here(now, fid)).transpose()?;
        alive(&parents.1)?;
        self.room_here(now, to.name.as_bytes().len())?;
        let mut touched = vec![&parents.0, &parents.1, &moved];
        touched.extend(&other);
        match (how, target) {
            (RenameHow::NoReplace | RenameHow::Whiteout { existing: Replace::Refused, .. }, Some(_)) => {
                Err(Errno::Exists.into())
            }
            (RenameHow::Exchange, None) => Err(Errno::NoEntry.into()),
            // Two names of one inode stay as they are; a directory over itself is the same.
            (_, Some((fid, _))) if fid == source.0 => Ok(()),
            (RenameHow::Exchange, Some(target)) => {
                self.not_into_itself(now, source, from.dir, to.dir)?;
                self.not_into_itself(now, target, to.dir, from.dir)?;
                let moment = self.moment(calendar, &touched);
                self.exchange_here(now, (from, source), (to, target), moment);
                Ok(())
            }
            (_, target) => {
                if let Some(other) = &other {
                    semantics::check_replace(moved.kind, other).map_err(NotHere::Fails)?;
                }
                self.not_into_itself(now, source, from.dir, to.dir)?;
                let whiteout = match how {
                    RenameHow::Whiteout { creds, .. } => {
                        let left = NewNode::whiteout(creds);
                        let (fid, _) =
                            self.make_here(now, calendar, (from.dir, &parents.0), &left, Names::One)?;
                        Some((fid, creds))
                    }
                    _ => None,
                };
                let moment = self.moment(calendar, &touched);
                self.move_here(now, (from, source), (to, target), (in_use, whiteout), moment);
                Ok(())
            }
        }
    }

    fn move_here(
        &mut self,
        now: Monotonic,
        (from, source): (At<'_>, (Fid, FileKind)),
        (to, target): (At<'_>, Option<(Fid, FileKind)>),
        (in_use, whiteout): (InUse, Option<(Fid, Creds)>),
        moment: Moment,
    ) {
        let replaced = target.map(|(fid, kind)| {
            let then = self.lose_name(now, fid, in_use, moment);
            self.remove_name(now, to, kind, moment);
            (fid, then)
        });
        self.remove_name(now, from, source.1, moment);
        self.add_name(now, to, source, moment);
        self.moved(now, source, to.dir, moment);
        if let Some((fid, _)) = whiteout {
            self.add_name(now, from, (fid, FileKind::CharDevice), moment);
        }
        let what = moved(source.1, from, to);
        let (moved, from, to) = (source.0, from.place(), to.place());
        let change = match whiteout {
            None => Change::Rename { from, to, moved, what, replaced },
            Some(left) => Change::Whiteout { from, to, moved, what, replaced, left },
        };
        self.log_change(now, moment, change);
    }

    fn exchange_here(
        &mut self,
        now: Monotonic,
        (from, source): (At<'_>, (Fid, FileKind)),
        (to, target): (At<'_>, (Fid, FileKind)),
        moment: Moment,
    ) {
        for (at, (_, kind)) in [(from, source), (to, target)] {
            self.remove_name(now, at, kind, moment);
        }
        for (at, inode) in [(from, target), (to, source)] {
            self.add_name(now, at, inode, moment);
            self.moved(now, inode, at.dir, moment);
        }
        let shapes = [moved(source.1, from, to), moved(target.1, from, to)];
        let what = if shapes.contains(&Moved::Subtree) { Moved::Subtree } else { Moved::Leaf };
        let change = Change::Exchange { one: (from.place(), source.0), other: (to.place(), target.0), what };
        self.log_change(now, moment, change);
    }

    /// A directory, the name of which is in `from`, must not come to lie in itself. The paths up from where it is and from
    /// where it comes meet, if not below then at the root: what lies below where they meet is not above it.
    fn not_into_itself(
        &mut self,
        now: Monotonic,
        (moved, kind): (Fid, FileKind),
        from: Fid,
        new_parent: Fid,
    ) -> Here<()> {
        if kind != FileKind::Directory {
            return Ok(());
        }
        let above = self.path_up(now, new_parent, |_| false);
        if above.contains(&moved) {
            return Err(Errno::Invalid.into());
        }
        let beside = self.path_up(now, from, |dir| above.contains(&dir));
        if beside.last().is_some_and(|last| above.contains(last)) {
            return Ok(());
        }
        // One of them ends where it is not certain how it goes on.
        let ends = [above.last(), beside.last()].into_iter().flatten().filter(|end| end.ino != Ino::ROOT);
        for end in ends {
            self.parent_here(now, *end)?;
        }
        Err(Why::Unknown.into())
    }

    /// A directory and those above it, up to the first that is `enough`, to the root, or as far as it is certain.
    fn path_up(&mut self, now: Monotonic, dir: Fid, enough: impl Fn(Fid) -> bool) -> Vec<Fid> {
        let mut path = vec![dir];
        while let Some(last) = path.last().copied().filter(|last| !enough(*last) && path.len() < DEEPEST) {
            match self.parent_here(now, last) {
                Ok(parent) if last.ino != Ino::ROOT => path.push(parent),
                _ => break,
            }
        }
        path
    }

    /// Where a directory lies, and will until the server has been told what is done here.
    fn parent_here(&mut self, now: Monotonic, dir: Fid) -> Here<Fid> {
        // That is told by the lease on it: who moves it changes it.
        self.served(now, dir).ok_or(Why::Unknown)?;
        // And it is to be heard before the server is told what is done here, not to run out.
        let at_server = self.peek(dir).is_some_and(|inode| inode.log.origin == Origin::AtServer);
        if at_server && !self.holder.lasts_until_recalled(now, dir) {
            return Err(Why::NoLease.into());
        }
        if self.peek(dir).is_some_and(|inode| inode.kernel.recalling > 0) {
            return Err(Why::Recalled.into());
        }
        let known = self.peek(dir).and_then(|inode| inode.dir.as_ref()?.parent());
        Ok(known.ok_or(Why::Unknown)?)
    }

    /// Permissions and access lists of what is made in a directory.
    fn inherited(&self, dir: Fid, new: &NewNode) -> Here<Inherited> {
        let xattrs = self.xattrs_here(dir)?;
        let default = xattrs.iter().find(|(name, _)| name == XATTR_DEFAULT_LIST);
        match default.filter(|_| new.kind != FileKind::Symlink) {
            None => Ok(Inherited::plain(new.perm, new.umask)),
            // The server says what is wrong with it.
            Some((_, list)) => {
                Ok(Inherited::from_default(list, new.perm & mode::ALL, new.kind)
                    .map_err(|_| Why::AccessList)?)
            }
        }
    }

    /// A new inode in the caches.
    fn make_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        (dir, parent): (Fid, &Attr),
        new: &NewNode,
        names: Names,
    ) -> Here<(Fid, Moment)> {
        let inherited = self.inherited(dir, new)?;
        let lists: Vec<_> = inherited.xattrs().map(|(name, list)| (name.to_vec(), list)).collect();
        let handed_on: usize = lists.iter().map(|(name, list)| name.len() + list.len()).sum();
        if handed_on > LONGEST_LISTS {
            return Err(Why::Large.into());
        }
        if new.kind == FileKind::Symlink {
            semantics::check_target(new.target.len()).map_err(NotHere::Fails)?;
        }
        self.space_here(now, space_for(LONGEST_NAME + new.target.len()) + space_for_lists(handed_on))?;
        let fid = self.number_here(dir.volume)?;
        let moment = self.moment(calendar, &[parent]);
        let newborn = Newborn {
            kind: new.kind,
            perm: inherited.perm,
            umask: inherited.umask,
            creds: new.creds,
            rdev: match new.kind {
                FileKind::CharDevice | FileKind::BlockDevice => new.rdev,
                _ => 0,
            },
            size: new.target.len() as u64,
            names,
        };
        let attr = Attr::created(parent, fid.ino, &newborn, moment);
        self.set_attr_here(now, fid, attr);
        let inode = self.inode(fid);
        inode.log.origin = Origin::Here;
        inode.xattrs = Xattrs::None;
        if !lists.is_empty() {
            self.set_xattrs(now, fid, Xattrs::All(Arc::new(lists)));
        }
        let inode = self.inode(fid);
        match new.kind {
            FileKind::Directory => {
                let names = inode.directory();
                names.complete = Complete::Yes;
                names.set_parent(dir);
            }
            FileKind::Symlink => self.set_target(now, fid, Bytes::copy_from_slice(&new.target)),
            _ => {}
        }
        if new.kind != FileKind::Directory {
            self.met(fid, dir);
        }
        self.memory.rename_version(fid, attr.data_version);
        self.changed(now, fid, None, None);
        Ok((fid, moment))
    }

    fn add_name(&mut self, now: Monotonic, at: At<'_>, (fid, kind): (Fid, FileKind), moment: Moment) {
        self.with_names(now, at.dir, |names| names.set(now, at.name, Known::Present { fid, kind }));
        self.change_attr(now, at.dir, |attr| attr.entry_added(kind, moment));
        self.changed(now, at.dir, Some(at.name), None);
    }

    fn remove_name(&mut self, now: Monotonic, at: At<'_>, kind: FileKind, moment: Moment) {
        self.with_names(now, at.dir, |names| names.set(now, at.name, Known::Absent));
        self.change_attr(now, at.dir, |attr| attr.entry_removed(kind, moment));
        self.changed(now, at.dir, Some(at.name), None);
    }

    /// An inode has another place now.
    fn moved(&mut self, now: Monotonic, (fid, kind): (Fid, FileKind), new_parent: Fid, moment: Moment) {
        self.change_attr(now, fid, |attr| attr.changed(moment));
        match (kind, self.inode(fid).dir.as_mut()) {
            (FileKind::Directory, Some(dir)) => dir.set_parent(new_parent),
            (FileKind::Directory, None) => {}
            _ => self.met(fid, new_parent),
        }
        self.changed(now, fid, None, None);
    }

    /// An inode loses a name. Says what becomes of it.
    fn lose_name(&mut self, now: Monotonic, fid: Fid, in_use: InUse, moment: Moment) -> Fate {
        self.change_attr(now, fid, |attr| attr.unlinked(moment));
        self.changed(now, fid, None, None);
        let inode = self.inode(fid);
        let named = inode.attr.is_some_and(|attr| attr.nlink > 0);
        let used = inode.uses.opens > 0 || in_use == InUse::Yes;
        if !named {
            inode.log.keeping = if used { Keeping::Open } else { Keeping::No };
        }
        if named || used { Fate::Stays } else { Fate::Gone }
    }

    pub(super) fn change_attr(&mut self, now: Monotonic, fid: Fid, change: impl FnOnce(&mut Attr)) {
        if let Some(mut attr) = self.inode(fid).attr {
            change(&mut attr);
            self.set_attr_here(now, fid, attr);
        }
    }

    fn number_here(&mut self, volume: soda_types::VolumeId) -> Here<Fid> {
        Ok(self.behind.reserve.number(volume).ok_or(Why::Reservation)?)
    }

    /// What the kernel is told of an inode that was changed here.
    fn entry_here(&mut self, now: Monotonic, at: Option<At<'_>>, fid: Fid) -> Result<Entry, Why> {
        let attr = self.inode(fid).attr.ok_or(Why::Unknown)?;
        let xattrs = self.inode(fid).summary().unwrap_or(XattrSummary::Some);
        let known = Known::Present { fid, kind: attr.kind };
        let names = at.map_or(Validity::NONE, |at| self.name_validity(now, at.dir, at.name, known));
        let valid = self.attr_validity(now, fid, &attr);
        Ok(Entry { node: Some(Node { fid, attr, xattrs }), names, attr: valid })
    }
}

fn present(known: Known) -> Here<(Fid, FileKind)> {
    match known {
        Known::Present { fid, kind } => Ok((fid, kind)),
        Known::Absent => Err(Errno::NoEntry.into()),
    }
}

/// Nothing can be made in a directory that was removed.
fn alive(dir: &Attr) -> Here<()> {
    if dir.nlink == 0 { Err(Errno::NoEntry.into()) } else { Ok(()) }
}

fn moved(kind: FileKind, from: At<'_>, to: At<'_>) -> Moved {
    match kind {
        FileKind::Directory if from.dir != to.dir => Moved::Subtree,
        _ => Moved::Leaf,
    }
}

impl Inode {
    /// Whether the last close of it is to be told by the log: the server keeps it until then, and has not heard of all that was
    /// done to it. Not so what nobody had open when it lost its last name: that is gone.
    pub(crate) fn is_released_by_log(&self) -> bool {
        let nameless = self.attr.is_some_and(|attr| attr.nlink == 0);
        let kept = self.log.keeping == Keeping::Open || self.uses.open_at_server == InUse::Yes;
        self.log.records > 0 && nameless && kept
    }
}
