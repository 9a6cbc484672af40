//! Holes of deep leases: how they are made, that they do not get too many, and how they heal.

use super::LeaseTable;
use super::ancestry::Position;
use super::index::ObjectId;
use super::sessions::Session;
use super::store::{LeaseId, Store};
use soda_types::{Cause, Epoch, Fid, FileKind, Mode, Monotonic, Scope, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// What a deep lease does not cover, or not as the rest; the weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hole {
    /// The object may be read.
    KeepsReading,
    /// The object, and nothing below it.
    Object,
    /// The object and all below it.
    Tree,
}

impl Hole {
    pub fn new(kept: Option<Mode>, scope: Scope) -> Hole {
        match (kept, scope) {
            (Some(_), _) => Hole::KeepsReading,
            (None, Scope::Node) => Hole::Object,
            (None, Scope::Subtree) => Hole::Tree,
        }
    }

    /// What the session may still do with the object.
    pub fn kept(self) -> Option<Mode> {
        (self == Hole::KeepsReading).then_some(Mode::Read)
    }

    pub fn scope(self) -> Scope {
        if self == Hole::Tree { Scope::Subtree } else { Scope::Node }
    }
}

pub(super) type Holes = BTreeMap<Fid, Hole>;

/// What a deep lease has beside what every lease has.
#[derive(Debug, Default)]
pub(super) struct Deep {
    holes: Holes,
    /// Questions that are not answered: the epoch that names each, and the hole that it makes.
    asked: BTreeMap<Fid, (Epoch, Hole)>,
    /// How many holes there are in one directory, roughly: those that were made there and have not healed.
    crowds: BTreeMap<Fid, usize>,
}

impl Deep {
    /// What a lease of this mode allows on the first object of the path, whose other elements are the directories above it up
    /// to the lease's own.
    pub(super) fn allows(&self, mode: Mode, path: &[Fid]) -> Option<Mode> {
        let (object, above) = path.split_first()?;
        if above.iter().any(|directory| self.holes.get(directory) == Some(&Hole::Tree)) {
            return None;
        }
        self.holes.get(object).map_or(Some(mode), |hole| hole.kept().map(|kept| kept.min(mode)))
    }

    /// As [`Deep::allows`] for what is below a directory, of which nothing is said in particular.
    pub(super) fn allows_below(&self, mode: Mode, path: &[Fid]) -> Option<Mode> {
        let is_out = path.iter().any(|directory| self.holes.get(directory) == Some(&Hole::Tree));
        (!is_out).then_some(mode)
    }

    /// The questions whose answers may change what is allowed on the first object of the path.
    pub(super) fn owed<'a>(&'a self, path: &'a [Fid]) -> impl Iterator<Item = Epoch> + 'a {
        path.iter().enumerate().filter_map(|(at, fid)| {
            let (epoch, hole) = self.asked.get(fid)?;
            (at == 0 || *hole == Hole::Tree).then_some(*epoch)
        })
    }

    pub(super) fn asked(&self, fid: Fid) -> Option<(Epoch, Hole)> {
        self.asked.get(&fid).copied()
    }

    pub(super) fn all_asked(&self) -> impl Iterator<Item = (Epoch, Hole)> {
        self.asked.values().copied()
    }

    pub(super) fn questions(&self) -> impl Iterator<Item = Epoch> {
        self.asked.values().map(|(epoch, _)| *epoch)
    }

    pub(super) fn ask(&mut self, fid: Fid, epoch: Epoch, hole: Hole) {
        self.asked.insert(fid, (epoch, hole));
    }

    pub(super) fn forget_question(&mut self, fid: Fid) {
        self.asked.remove(&fid);
    }

    fn add_hole(&mut self, fid: Fid, hole: Hole, directory: Option<Fid>) {
        let known = self.holes.get(&fid).copied();
        self.holes.insert(fid, known.map_or(hole, |known| known.max(hole)));
        if let Some(directory) = directory.filter(|_| known.is_none()) {
            *self.crowds.entry(directory).or_default() += 1;
        }
    }

    fn close_hole(&mut self, fid: Fid, directory: Option<Fid>) {
        self.holes.remove(&fid);
        if let Some(directory) = directory
            && let Some(crowd) = self.crowds.get_mut(&directory)
        {
            *crowd -= 1;
            if *crowd == 0 {
                self.crowds.remove(&directory);
            }
        }
    }

    pub(super) fn crowd_in(&self, directory: Fid) -> usize {
        self.crowds.get(&directory).copied().unwrap_or_default()
    }

    pub(super) fn holes(&self) -> &Holes {
        &self.holes
    }
}

/// Whether a hole may be the one too many for its directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counts {
    InCrowd,
    /// What is in it has its own user already.
    Alone,
}

/// The deep leases that have a hole for an inode, in the order of inodes: it may be gone, or lie elsewhere, and the hole is
/// there.
#[derive(Debug, Default)]
pub(super) struct Holed(BTreeSet<(Fid, LeaseId)>);

impl Holed {
    fn leases(&self, fid: Fid) -> impl Iterator<Item = LeaseId> {
        self.0.range((fid, LeaseId::MIN)..=(fid, LeaseId::MAX)).map(|(_, lease)| *lease)
    }

    /// The lease is gone.
    pub(super) fn forget(&mut self, lease: LeaseId, gone: &Deep) {
        for fid in gone.holes.keys() {
            self.0.remove(&(*fid, lease));
        }
    }
}

/// All that changes holes, so that [`Holed`] is right.
impl Store {
    /// The object's directory, if it is known, is told how many there are in it.
    pub(super) fn add_hole(&mut self, lease: LeaseId, fid: Fid, hole: Hole, directory: Option<Fid>) {
        if let Some(deep) = self.deep_mut(lease) {
            deep.add_hole(fid, hole, directory);
            self.holed_mut().0.insert((fid, lease));
        }
    }

    fn close_hole(&mut self, lease: LeaseId, fid: Fid, directory: Option<Fid>) {
        if let Some(deep) = self.deep_mut(lease) {
            deep.close_hole(fid, directory);
            self.holed_mut().0.remove(&(fid, lease));
        }
    }

    /// What was in the hole is gone. A directory takes its crowd along.
    fn forget_hole(&mut self, lease: LeaseId, fid: Fid) {
        if let Some(deep) = self.deep_mut(lease) {
            deep.holes.remove(&fid);
            deep.crowds.remove(&fid);
            self.holed_mut().0.remove(&(fid, lease));
        }
    }

    /// Holes that are part of the one that a directory is with all below it.
    fn forget_holes_below(&mut self, lease: LeaseId, directory: Fid, below: &[Fid]) {
        below.iter().for_each(|fid| self.forget_hole(lease, *fid));
        if let Some(deep) = self.deep_mut(lease) {
            deep.crowds.retain(|fid, _| *fid != directory && below.binary_search(fid).is_err());
        }
    }

    /// Holes that say no less than the lease does.
    pub(super) fn forget_holes_that_keep(&mut self, lease: LeaseId, mode: Mode) {
        let holes = self.deep(lease).into_iter().flat_map(|deep| &deep.holes);
        let idle: Vec<Fid> =
            holes.filter(|(_, hole)| hole.kept() >= Some(mode)).map(|(fid, _)| *fid).collect();
        for fid in idle {
            if let Some(deep) = self.deep_mut(lease) {
                deep.holes.remove(&fid);
                self.holed_mut().0.remove(&(fid, lease));
            }
        }
    }

    pub(super) fn set_holes(&mut self, lease: LeaseId, holes: Holes) {
        let Some(deep) = self.deep_mut(lease) else { return };
        let new: Vec<Fid> = holes.keys().copied().collect();
        let asked = std::mem::take(&mut deep.asked);
        let old = std::mem::replace(deep, Deep { holes, asked, ..Deep::default() });
        let holed = self.holed_mut();
        holed.forget(lease, &old);
        holed.0.extend(new.into_iter().map(|fid| (fid, lease)));
    }
}

impl LeaseTable {
    /// Leases of others on the object are none of the business of whose deep lease reaches it: it has not been told of it.
    pub(super) fn leave_holes_for(&mut self, object: ObjectId) {
        if self.store.deep_count() == 0 {
            return;
        }
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        for reach in self.store.reaching(object) {
            let here = self.store.held_on_by_others(object, reach.session);
            let hole = self.hole_at(object, (here.writes == 0).then_some(Mode::Read));
            if here.conflicts(reach.allows) {
                self.make_hole(reach.lease, object, fid, hole);
            }
        }
    }

    /// The hole for a user of the object. Where the object lies is not known, or it was not when this was asked: who moves a
    /// directory then has nobody left below it.
    pub(super) fn hole_at(&self, object: ObjectId, kept: Option<Mode>) -> Hole {
        let unknown = self.store.position(object) == Position::Unknown;
        Hole::new(kept, if unknown { Scope::Subtree } else { Scope::Node })
    }

    /// An inode of which nobody but its maker has heard is in no other deep lease, nor is what will be in it. There is no hole
    /// below it yet, and others work where they make directories, as where they make files.
    pub(super) fn leave_out_new(&mut self, object: ObjectId, maker: SessionId, kind: FileKind) {
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        for reach in self.store.reaching_into(object, Scope::Subtree) {
            if reach.session != maker {
                let hole = if kind == FileKind::Directory { Hole::Tree } else { Hole::Object };
                self.make_hole_for(reach.lease, object, fid, hole, Counts::InCrowd);
            }
        }
    }

    /// The lease's session does not hear of it.
    pub(super) fn make_hole(&mut self, lease: LeaseId, object: ObjectId, fid: Fid, hole: Hole) {
        if hole == Hole::Tree {
            self.close_below(lease, fid);
        }
        let counts = if hole == Hole::Tree { Counts::Alone } else { Counts::InCrowd };
        self.make_hole_for(lease, object, fid, hole, counts);
    }

    fn make_hole_for(&mut self, lease: LeaseId, object: ObjectId, fid: Fid, hole: Hole, counts: Counts) {
        let directory = self.store.parent(object);
        let most = self.store.lease(lease).map_or(usize::MAX, |lease| self.config.crowd(lease.mode));
        self.store.add_hole(lease, fid, hole, directory);
        let Some(deep) = self.store.deep(lease) else { return };
        let crowded = directory.is_some_and(|directory| deep.crowd_in(directory) > most);
        if (crowded && counts == Counts::InCrowd) || deep.holes.len() > self.config.most_holes() {
            self.crowded.push((lease, directory.unwrap_or(fid)));
        }
    }

    /// A session whose time is over has a hole where it has been told of nothing, and nobody waits for it. If it comes back it
    /// goes on without knowing. False: it may have something there, or its lease has as many holes as it may have, and nobody can
    /// be asked to give it up.
    pub(super) fn leave_out_untold(
        &mut self,
        now: Monotonic,
        lease: LeaseId,
        object: ObjectId,
        hole: Hole,
    ) -> bool {
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return false };
        let holder = self.store.lease(lease).and_then(|lease| self.sessions.get(&lease.session));
        let is_untold = |holder: &Session| {
            holder.expires <= now && holder.is_good() && hole != Hole::Tree && !holder.told.has(fid)
        };
        let deep = self.store.deep(lease);
        let has_room =
            |deep: &Deep| deep.holes.len() < self.config.most_holes() || deep.holes.contains_key(&fid);
        if !holder.is_some_and(is_untold) || !deep.is_some_and(has_room) {
            return false;
        }
        if let Some((epoch, _)) = deep.and_then(|deep| deep.asked(fid))
            && let Some(part) = self.recalls.remove(epoch).and_then(|asked| asked.part)
        {
            self.withdraw_question(lease, part);
        }
        self.make_hole(lease, object, fid, hole);
        self.counters.holes_untold += 1;
        true
    }

    /// The inode does not exist any more, nor will another of its number: nobody needs a hole for it, wherever it lay and whether
    /// or not anything else is known of it. For the crowd in its directory it goes on counting: who removes one file after the
    /// other there asks for all of it after some.
    pub fn forget_holes_of(&mut self, fid: Fid) {
        let leases: Vec<LeaseId> = self.store.holed().leases(fid).collect();
        for lease in leases {
            if self.store.deep(lease).is_some_and(|deep| !deep.asked.contains_key(&fid)) {
                self.store.forget_hole(lease, fid);
            }
        }
    }

    /// The holes below a directory are part of the one that it is with all below it.
    pub(super) fn close_below(&mut self, lease: LeaseId, directory: Fid) {
        let root =
            self.store.lease(lease).and_then(|lease| self.store.object(lease.object)).map(|found| found.fid);
        let (Some(deep), Some(root)) = (self.store.deep(lease), root) else { return };
        // The lease may be on something below the directory: where that lies was not known when it was asked for.
        let inside = |fid: &Fid| {
            let path = self.store.find(*fid).map(|object| self.store.path(object)).unwrap_or_default();
            let at = |fid: Fid| path.iter().position(|above| *above == fid);
            at(directory).is_some_and(|at| at > 0) && at(directory) <= at(root)
        };
        let below: Vec<Fid> = deep.holes.keys().copied().filter(inside).collect();
        self.counters.holes_examined += deep.holes.len() as u64;
        self.store.forget_holes_below(lease, directory, &below);
    }

    /// Directories with too many holes are asked for with all below them, leases with too many are given up.
    pub(super) fn relieve_crowds(&mut self, now: Monotonic) {
        for (lease, directory) in std::mem::take(&mut self.crowded) {
            let (Some(held), Some(deep)) = (self.store.lease(lease), self.store.deep(lease)) else {
                continue;
            };
            let (holes, crowd) = (deep.holes.len(), deep.crowd_in(directory));
            let out = deep.holes.get(&directory) == Some(&Hole::Tree);
            let away = self.sessions.get(&held.session).is_none_or(|holder| holder.expires <= now);
            if crowd > self.config.crowd(held.mode)
                && !out
                && !away
                && let Some(object) = self.store.find(directory)
            {
                self.recall_part(now, lease, object, Hole::Tree, Cause::Reclaim);
            }
            self.give_up_if_too_full(now, lease, holes);
        }
    }

    /// The session's deep lease on the directory was held when the leases that others have inside were: so it had holes there,
    /// and those above it had one here.
    pub(super) fn leave_holes_inside(&mut self, object: ObjectId, session: SessionId) {
        let Some(id) = self.store.deep_lease_of(object, session) else { return };
        let Some((fid, mode)) =
            self.store.object(object).and_then(|found| Some((found.fid, self.store.lease(id)?.mode)))
        else {
            return;
        };
        for reach in self.store.reaching_into(object, Scope::Subtree) {
            let conflicts = mode == Mode::Write || reach.allows == Mode::Write;
            if reach.session != session && conflicts {
                self.make_hole(reach.lease, object, fid, Hole::Tree);
            }
        }
        let here = self.store.held_on_by_others(object, session).conflicts(mode);
        if !here
            && !self.store.below_of_others(object, session).conflicts(mode)
            && !self.store.unplaced_of_others(fid.volume, session).conflicts(mode)
        {
            return;
        }
        let mut holes: Vec<(ObjectId, Hole)> = Vec::new();
        for holder in self.store.sessions_inside(object).into_iter().filter(|holder| *holder != session) {
            let mut next = self.sessions.get(&holder).and_then(|holder| holder.leases.oldest());
            while let Some(id) = next
                && let Some(lease) = self.store.lease(id)
            {
                self.counters.leases_examined += 1;
                // All that the session holds is looked at, so what costs least goes first.
                let conflicts = mode == Mode::Write || lease.mode == Mode::Write;
                if conflicts && self.store.may_be_inside(lease.object, fid) {
                    let kept = (lease.mode == Mode::Read && lease.scope == Scope::Node).then_some(Mode::Read);
                    holes.push((lease.object, Hole::new(kept, lease.scope)));
                }
                next = self.store.newer(id);
            }
        }
        for (object, hole) in holes {
            if let Some(fid) = self.store.object(object).map(|found| found.fid) {
                self.make_hole(id, object, fid, hole);
            }
        }
    }

    /// Holes of the session's deep leases that keep it from the object are closed where contention has ended.
    pub(super) fn heal(&mut self, now: Monotonic, session: SessionId, object: ObjectId) {
        // In a grace period not everybody has said what it holds.
        let known = self.grace.is_none() && self.store.nearest_branch(object).is_some();
        if self.store.deep_count() == 0 || !known {
            return;
        }
        let path = self.store.path(object);
        for lease in self.store.deep_on_path(object, session) {
            // From the top: what is in a hole cannot heal before it.
            for (at, fid) in path.iter().enumerate().rev() {
                let hole = self.store.deep(lease).and_then(|deep| deep.holes.get(fid).copied());
                let Some(hole) = hole.filter(|hole| at == 0 || *hole == Hole::Tree) else { continue };
                if !self.has_healed(now, session, lease, *fid, hole) {
                    break;
                }
                self.store.close_hole(lease, *fid, path.get(at + 1).copied());
                self.counters.holes_healed += 1;
            }
        }
    }

    fn has_healed(&self, now: Monotonic, session: SessionId, lease: LeaseId, fid: Fid, hole: Hole) -> bool {
        let Some(mode) = self.store.lease(lease).map(|lease| lease.mode) else { return false };
        let asked = self.store.deep(lease).is_some_and(|deep| deep.asked.contains_key(&fid));
        let Some(object) = self.store.find(fid) else {
            return !asked && !self.store.unplaced_of_others(fid.volume, session).conflicts(mode);
        };
        !asked && self.nobody_minds(now, session, object, hole.scope(), mode)
    }
}
