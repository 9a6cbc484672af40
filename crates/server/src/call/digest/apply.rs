//! The records of a digest on a transaction, each at its own time, each checked as the ordinary operation checks it.

use super::plan::Plan;
use crate::call::ancestry::{self, Watched};
use crate::call::change::new_node;
use crate::shared::Shared;
use bytes::Bytes;
use soda_lease::table::TreeChanges;
use soda_protocol::{Change, Failure, Fate, Lsn, Moved, NewNode, Place, Record};
use soda_types::{
    Attr, Errno, Fid, FileKind, FsError, FsResult, Ino, KillPriv, Replace, SessionId, Version, WriteAt,
};
use soda_volume::{IfOpen, Number, Removed, Renamed, Staged, Txn};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::vec::IntoIter;

/// What the records did, for the server's own tables.
#[derive(Debug, Default)]
pub(super) struct Applied {
    made: BTreeSet<Fid>,
    /// What exists of it, and what was moved and has more or fewer names.
    pub(super) tree: TreeChanges,
    /// Of inodes that lost a name or had none: what they are in the end.
    pub(super) ends: BTreeMap<Fid, End>,
    /// Of all that was touched and exists.
    pub(super) attrs: Vec<(Fid, Attr)>,
}

/// What is left of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Named,
    /// It has no name, and the session has it open.
    Kept,
    /// It has no name, and others have it open, or may have in the grace period.
    KeptForOthers,
    Gone,
}

impl Applied {
    /// Whether the inode was created and exists.
    pub(super) fn has_made(&self, fid: Fid) -> bool {
        self.made.contains(&fid) && self.ends.get(&fid) != Some(&End::Gone)
    }

    /// What was created and exists, where it is in the end.
    fn note_created(&mut self, txn: &Txn<'_>) -> FsResult<()> {
        let exists = |fid: &&Fid| self.ends.get(fid) != Some(&End::Gone);
        for fid in self.made.iter().filter(exists) {
            self.tree.created.push(ancestry::created(txn, *fid, &txn.attr(*fid)?)?);
        }
        Ok(())
    }
}

/// Who else may have open what the records say is gone.
#[derive(Debug, Default)]
pub(super) struct Users {
    grace: bool,
    used: HashMap<Fid, UsedBy>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UsedBy {
    /// Only the session, which says of files when it is not so any more.
    Itself,
    Others,
}

impl Users {
    pub(super) fn of(shared: &Shared, session: SessionId, records: &[Record]) -> Users {
        let gone: Vec<Fid> = records.iter().filter_map(|record| loses(&record.change)).collect();
        if gone.is_empty() {
            return Users::default();
        }
        let core = shared.core();
        let used = gone.into_iter().filter(|fid| core.opens.is_used(*fid)).map(|fid| {
            let others = core.opens.users(fid).any(|user| user != session);
            (fid, if others { UsedBy::Others } else { UsedBy::Itself })
        });
        Users { used: used.collect(), grace: core.grace_left().is_some() }
    }

    /// Whether a file has to be kept when its last name goes. In the grace period somebody may still come back who has it open.
    fn if_open(&self, fid: Fid, fate: Fate) -> IfOpen {
        match fate {
            Fate::Stays => IfOpen::Keep,
            Fate::Gone if self.grace || self.used.get(&fid) == Some(&UsedBy::Others) => IfOpen::Keep,
            Fate::Gone => IfOpen::Delete,
        }
    }

    /// The same for a directory: of those the session does not say that it has them open.
    fn if_directory_open(&self, fid: Fid) -> IfOpen {
        if self.grace || self.used.contains_key(&fid) { IfOpen::Keep } else { IfOpen::Delete }
    }

    fn kept(&self, fid: Fid, kind: FileKind, fate: Fate) -> End {
        let own = match kind {
            FileKind::Directory => self.used.contains_key(&fid),
            _ => fate == Fate::Stays,
        };
        if own && self.used.get(&fid) != Some(&UsedBy::Others) || fate == Fate::Stays {
            End::Kept
        } else {
            End::KeptForOthers
        }
    }
}

/// The inode that a change may delete.
fn loses(change: &Change) -> Option<Fid> {
    match change {
        Change::Unlink { fid, .. } | Change::RemoveDirectory { fid, .. } | Change::Release { fid } => {
            Some(*fid)
        }
        Change::Rename { replaced, .. } | Change::Whiteout { replaced, .. } => replaced.map(|(fid, _)| fid),
        _ => None,
    }
}

/// The inodes whose place a change may alter.
fn moved_by(change: &Change) -> [Option<Fid>; 2] {
    match change {
        Change::Link { fid, .. } | Change::Unlink { fid, .. } | Change::RemoveDirectory { fid, .. } => {
            [Some(*fid), None]
        }
        Change::Rename { moved, replaced, .. } | Change::Whiteout { moved, replaced, .. } => {
            [Some(*moved), replaced.map(|(fid, _)| fid)]
        }
        Change::Exchange { one, other, .. } => [Some(one.1), Some(other.1)],
        _ => [None, None],
    }
}

/// Makes the changes. `number` takes the number of an inode that is made.
///
/// # Errors
/// The record that cannot be made, and why.
pub(super) fn apply(
    txn: &mut Txn<'_>,
    records: &[Record],
    staged: Vec<Staged>,
    users: &Users,
    number: impl FnMut(Ino) -> FsResult<()>,
) -> Result<Applied, Failure> {
    let last = records.last().map_or(Lsn(0), |record| record.lsn);
    let mut work = Work { txn, users, number, staged: staged.into_iter(), applied: Applied::default() };
    for record in records {
        work.txn.logged_at(record.at);
        work.apply_watched(&record.change).map_err(|error| Failure::Digest { lsn: record.lsn, error })?;
    }
    let Work { txn, mut applied, .. } = work;
    applied.note_created(txn).map_err(|error| Failure::Digest { lsn: last, error })?;
    Ok(applied)
}

/// Gives inodes the versions that the client has counted.
pub(super) fn set_versions(
    txn: &mut Txn<'_>,
    plan: &Plan,
    versions: &[(Fid, Version, Version)],
) -> FsResult<()> {
    for (fid, version, data_version) in versions {
        if plan.has(*fid) && txn.attr(*fid).is_ok() {
            txn.set_versions(*fid, *version, *data_version)?;
        }
    }
    Ok(())
}

/// Attributes of all that was touched and exists, in order.
pub(super) fn attributes(txn: &Txn<'_>, plan: &Plan) -> FsResult<Vec<(Fid, Attr)>> {
    let mut attrs = Vec::with_capacity(plan.held.len() + plan.made.len());
    for fid in plan.held.iter().chain(&plan.made) {
        match txn.attr(*fid) {
            Ok(attr) => attrs.push((*fid, attr)),
            Err(error) if error.errno == Errno::Stale => {}
            Err(error) => return Err(error),
        }
    }
    attrs.sort_unstable_by_key(|(fid, _)| *fid);
    Ok(attrs)
}

struct Work<'a, 'v, N> {
    txn: &'a mut Txn<'v>,
    users: &'a Users,
    number: N,
    staged: IntoIter<Staged>,
    applied: Applied,
}

impl<N: FnMut(Ino) -> FsResult<()>> Work<'_, '_, N> {
    /// Makes the change, and sees what it moves of what was there before.
    fn apply_watched(&mut self, change: &Change) -> FsResult<()> {
        let made = &self.applied.made;
        let old = moved_by(change).into_iter().flatten().filter(|fid| !made.contains(fid));
        let watched = Watched::before(self.txn, old)?;
        self.apply(change)?;
        watched.note_moves(self.txn, &mut self.applied.tree)
    }

    fn apply(&mut self, change: &Change) -> FsResult<()> {
        let txn = &mut *self.txn;
        match change {
            Change::Create { place, fid, new } => {
                let number = self.make(*fid)?;
                self.txn.create_as(place.directory, &place.name, new_node(new)?, number)?;
            }
            Change::TmpFile { directory, fid, new } => {
                let number = self.make(*fid)?;
                self.txn.tmpfile_as(*directory, new_node(new)?, number)?;
                self.end(*fid, End::Kept);
            }
            Change::Link { fid, place } => {
                let attr = txn.link(*fid, place.directory, &place.name)?;
                if attr.nlink == 1 {
                    self.end(*fid, End::Named);
                }
            }
            Change::Unlink { place, fid, then } => {
                expect(txn, place, Some(*fid))?;
                let removed = txn.unlink(place.directory, &place.name, self.users.if_open(*fid, *then))?;
                self.removed(&removed, *then);
            }
            Change::RemoveDirectory { place, fid } => {
                expect(txn, place, Some(*fid))?;
                let removed = txn.rmdir(place.directory, &place.name, self.users.if_directory_open(*fid))?;
                self.removed(&removed, Fate::Gone);
            }
            Change::Rename { from, to, moved, what, replaced } => {
                self.rename(from, to, *moved, *what, *replaced)?;
            }
            Change::Whiteout { from, to, moved, what, replaced, left: (fid, creds) } => {
                self.rename(from, to, *moved, *what, *replaced)?;
                let number = self.make(*fid)?;
                let left = new_node(&NewNode::whiteout(*creds))?;
                self.txn.create_as(from.directory, &from.name, left, number)?;
            }
            Change::Exchange { one, other, what } => {
                let kinds = [expect(txn, &one.0, Some(one.1))?, expect(txn, &other.0, Some(other.1))?];
                let (from, to) = (&one.0, &other.0);
                if kinds.contains(&Some(FileKind::Directory)) {
                    check_shape(from, to, *what)?;
                }
                txn.exchange((from.directory, &from.name), (to.directory, &to.name))?;
            }
            Change::Release { fid } => self.release(*fid)?,
            Change::SetAttr { fid, set } => drop(txn.set_attr(*fid, set)?),
            Change::Write { fid, offset, kill_suid_sgid, .. } => {
                let gone = || FsError::new(Errno::Io, "the data of the write is gone");
                let data = self.staged.next().ok_or_else(gone)?;
                txn.write(*fid, WriteAt::Offset(*offset), data, KillPriv::when(*kill_suid_sgid))?;
            }
            Change::Allocate { fid, offset, len, how } => {
                txn.fallocate(*fid, *how, *offset, *len, KillPriv::Keep)?;
            }
            Change::SetXattr { fid, name, value, how, kill_sgid } => {
                let value = Bytes::copy_from_slice(value);
                txn.set_xattr(*fid, name, value, *how, KillPriv::when(*kill_sgid))?;
            }
            Change::RemoveXattr { fid, name } => drop(txn.remove_xattr(*fid, name)?),
        }
        Ok(())
    }

    fn make(&mut self, fid: Fid) -> FsResult<Number> {
        if fid.volume != self.txn.volume_id() || fid.generation != 0 {
            return Err(FsError::new(Errno::Stale, format!("{fid} is of another volume")));
        }
        (self.number)(fid.ino)?;
        self.applied.made.insert(fid);
        Ok(Number::Given(fid.ino))
    }

    fn rename(
        &mut self,
        from: &Place,
        to: &Place,
        moved: Fid,
        what: Moved,
        replaced: Option<(Fid, Fate)>,
    ) -> FsResult<()> {
        let txn = &mut *self.txn;
        let kind = expect(txn, from, Some(moved))?;
        let target = expect(txn, to, replaced.map(|(fid, _)| fid))?;
        if kind == Some(FileKind::Directory) {
            check_shape(from, to, what)?;
        }
        let keep = match replaced {
            Some((fid, _)) if target == Some(FileKind::Directory) => self.users.if_directory_open(fid),
            Some((fid, fate)) => self.users.if_open(fid, fate),
            None => IfOpen::Keep,
        };
        let existing = Replace::Allowed;
        let Renamed { replaced: removed, .. } =
            txn.rename(from.directory, &from.name, to.directory, &to.name, existing, keep)?;
        if let (Some(removed), Some((_, fate))) = (removed, replaced) {
            self.removed(&removed, fate);
        }
        Ok(())
    }

    /// The session has closed an inode without a name.
    fn release(&mut self, fid: Fid) -> FsResult<()> {
        match self.txn.attr(fid) {
            Ok(attr) if attr.nlink > 0 => return Err(FsError::new(Errno::Invalid, "it has a name")),
            // It was gone before: a session that ends takes what it has open with it.
            Err(error) if error.errno == Errno::Stale => return Ok(()),
            other => drop(other?),
        }
        if self.users.if_open(fid, Fate::Gone) == IfOpen::Keep {
            self.end(fid, End::KeptForOthers);
        } else {
            self.txn.drop_orphan(fid)?;
            self.end(fid, End::Gone);
        }
        Ok(())
    }

    fn removed(&mut self, removed: &Removed, fate: Fate) {
        match removed.fate {
            soda_volume::Fate::Linked => {}
            soda_volume::Fate::Orphaned => {
                self.end(removed.fid, self.users.kept(removed.fid, removed.attr.kind, fate));
            }
            soda_volume::Fate::Deleted => self.end(removed.fid, End::Gone),
        }
    }

    fn end(&mut self, fid: Fid, end: End) {
        self.applied.ends.insert(fid, end);
    }
}

/// Whether a name means what the client says; of what kind that is.
fn expect(txn: &Txn<'_>, place: &Place, expected: Option<Fid>) -> FsResult<Option<FileKind>> {
    let found = txn.resolve(place.directory, &place.name)?;
    if found.map(|(fid, _)| fid) == expected {
        return Ok(found.map(|(_, kind)| kind));
    }
    let errno = if expected.is_some() { Errno::NoEntry } else { Errno::Exists };
    let says = |fid: Option<Fid>| fid.map_or_else(|| "nothing".to_owned(), |fid| fid.to_string());
    let (means, expected) = (says(found.map(|(fid, _)| fid)), says(expected));
    let context = format!("{:?} in {} means {means}, not {expected}", place.name, place.directory);
    Err(FsError::new(errno, context))
}

/// A directory that gets another parent changes the shape of the tree: the record has to say so, for that is planned.
fn check_shape(from: &Place, to: &Place, what: Moved) -> FsResult<()> {
    match what {
        Moved::Leaf if from.directory != to.directory => Err(FsError::new(
            Errno::Invalid,
            "a directory gets another parent, and the record does not say so",
        )),
        _ => Ok(()),
    }
}
