//! The *ancestry table* (Zhang & Honeyman, figure 2): for each directory with a lease below it, how many each session
//! holds there. So whether anybody else holds something in a subtree is one look-up, not a walk.
//!
//! The table keeps no more of the tree than what is leased or in use, with the directories above: a branch for each such
//! directory. Objects say in 4 bytes where they lie. With deep leases off there are no branches and nothing is counted.

use super::index::ObjectId;
use super::slab::Slab;
use super::store::LeaseId;
use soda_types::{Fid, Mode, Scope, SessionId, VolumeId};
use std::collections::BTreeMap;

pub(super) type BranchId = u32;

/// Where an object lies, as far as the table knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// Nobody has said. It may be below any directory of its volume.
    Unknown,
    /// Hard links: below several directories. No deep lease covers it.
    Several,
    /// Right below this directory.
    In(BranchId),
    /// A directory with something known below it, or the root.
    Is(BranchId),
}

/// A [`Position`] in 4 bytes: there is one in every object.
#[derive(Clone, Copy)]
pub(super) struct PackedPosition(u32);

const IS: u32 = 1 << 31;
const UNKNOWN: u32 = u32::MAX;
const SEVERAL: u32 = u32::MAX - 1;

impl From<Position> for PackedPosition {
    fn from(position: Position) -> PackedPosition {
        PackedPosition(match position {
            Position::Unknown => UNKNOWN,
            Position::Several => SEVERAL,
            Position::In(branch) => branch,
            Position::Is(branch) => branch | IS,
        })
    }
}

impl From<PackedPosition> for Position {
    fn from(packed: PackedPosition) -> Position {
        match packed.0 {
            UNKNOWN => Position::Unknown,
            SEVERAL => Position::Several,
            branch if branch & IS != 0 => Position::Is(branch & !IS),
            branch => Position::In(branch),
        }
    }
}

impl std::fmt::Debug for PackedPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Position::from(*self).fmt(f)
    }
}

/// Leases by mode; of these, deep ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: u32,
    pub(super) writes: u32,
    pub(super) deep: u32,
}

impl Tally {
    pub(super) fn one(mode: Mode, scope: Scope) -> Tally {
        Tally {
            reads: u32::from(mode == Mode::Read),
            writes: u32::from(mode == Mode::Write),
            deep: u32::from(scope == Scope::Subtree),
        }
    }

    pub(super) fn plus(self, other: Tally) -> Tally {
        Tally {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            deep: self.deep + other.deep,
        }
    }

    fn minus(self, other: Tally) -> Tally {
        Tally {
            reads: self.reads.saturating_sub(other.reads),
            writes: self.writes.saturating_sub(other.writes),
            deep: self.deep.saturating_sub(other.deep),
        }
    }

    pub(super) fn all(self) -> u32 {
        self.reads + self.writes
    }

    /// A lease of the mode on everything that these are in would exclude one of them.
    pub(super) fn conflicts(self, mode: Mode) -> bool {
        match mode {
            Mode::Read => self.writes > 0,
            Mode::Write => self.all() > 0,
        }
    }
}

/// Leases of each session.
#[derive(Clone, Debug, Default)]
pub(super) struct Below {
    all: Tally,
    /// Sorted by session.
    each: Vec<(SessionId, Tally)>,
}

impl Below {
    pub(super) fn of(&self, session: SessionId) -> Tally {
        let at = self.each.binary_search_by_key(&session, |(holder, _)| *holder);
        at.map_or(Tally::default(), |at| self.each[at].1)
    }

    pub(super) fn of_others(&self, session: SessionId) -> Tally {
        self.all.minus(self.of(session))
    }

    pub(super) fn each(&self) -> &[(SessionId, Tally)] {
        &self.each
    }

    fn change(&mut self, session: SessionId, tally: Tally, by: By) {
        let apply = |old: Tally| match by {
            By::Adding => old.plus(tally),
            By::Taking => old.minus(tally),
        };
        self.all = apply(self.all);
        match self.each.binary_search_by_key(&session, |(holder, _)| *holder) {
            Ok(at) => {
                self.each[at].1 = apply(self.each[at].1);
                if self.each[at].1 == Tally::default() {
                    self.each.remove(at);
                }
            }
            Err(at) if by == By::Adding => self.each.insert(at, (session, tally)),
            Err(_) => {}
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Adding,
    Taking,
}

/// A directory with something known below it.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) fid: Fid,
    pub(super) object: ObjectId,
    /// `None`: the root of the volume.
    pub(super) up: Option<BranchId>,
    /// Objects and branches right below it.
    pub(super) inside: u32,
    /// Leases anywhere below it, those on itself left out.
    pub(super) below: Below,
    /// Deep leases on it.
    pub(super) deep: Vec<LeaseId>,
}

impl Branch {
    pub(super) fn is_empty(&self) -> bool {
        self.inside == 0 && self.deep.is_empty()
    }
}

/// Whom a lease counts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// This directory and all above it.
    From(Option<BranchId>),
    /// Nobody knows: all directories of the volume, perhaps.
    Unplaced(VolumeId),
    Nowhere,
}

#[derive(Debug)]
pub(super) struct Ancestry {
    branches: Slab<Branch>,
    /// Leases on objects of unknown place.
    unplaced: BTreeMap<VolumeId, Below>,
}

impl Ancestry {
    pub(super) fn new() -> Ancestry {
        Ancestry { branches: Slab::new(), unplaced: BTreeMap::new() }
    }

    pub(super) fn get(&self, branch: BranchId) -> Option<&Branch> {
        self.branches.get(branch)
    }

    pub(super) fn get_mut(&mut self, branch: BranchId) -> Option<&mut Branch> {
        self.branches.get_mut(branch)
    }

    pub(super) fn insert(&mut self, fid: Fid, object: ObjectId, up: Option<BranchId>) -> BranchId {
        let branch = Branch { fid, object, up, inside: 0, below: Below::default(), deep: Vec::new() };
        self.branches.insert(branch)
    }

    pub(super) fn remove(&mut self, branch: BranchId) -> Option<Branch> {
        self.branches.remove(branch)
    }

    pub(super) fn len(&self) -> usize {
        self.branches.len()
    }

    /// The directory and those above it, up to the root.
    pub(super) fn up_from(&self, branch: Option<BranchId>) -> impl Iterator<Item = (BranchId, &Branch)> {
        let step = |id: BranchId| self.branches.get(id).map(|found| (id, found));
        std::iter::successors(branch.and_then(step), move |(_, found)| found.up.and_then(step))
    }

    /// One step for each element of the path.
    pub(super) fn count(&mut self, whom: Counted, session: SessionId, tally: Tally, by: By) {
        match whom {
            Counted::From(mut next) => {
                while let Some(branch) = next.and_then(|id| self.branches.get_mut(id)) {
                    branch.below.change(session, tally, by);
                    next = branch.up;
                }
            }
            Counted::Unplaced(volume) => {
                self.unplaced.entry(volume).or_default().change(session, tally, by);
            }
            Counted::Nowhere => {}
        }
    }

    /// Leases that may be anywhere in the volume.
    pub(super) fn unplaced(&self, volume: VolumeId) -> Option<&Below> {
        self.unplaced.get(&volume)
    }

    /// As [`Ancestry::unplaced`], those of other sessions than this one.
    pub(super) fn unplaced_of_others(&self, volume: VolumeId, session: SessionId) -> Tally {
        self.unplaced(volume).map_or(Tally::default(), |below| below.of_others(session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_keeps_its_meaning_in_4_bytes() {
        let all = [
            Position::Unknown,
            Position::Several,
            Position::In(0),
            Position::Is(0),
            Position::In(7),
            Position::Is(7),
        ];
        for position in all {
            assert_eq!(Position::from(PackedPosition::from(position)), position);
        }
        assert_eq!(size_of::<PackedPosition>(), 4);
    }
}
