//! Objects find their place in the ancestry table, and move in it.

use super::ancestry::{BranchId, By, Counted, Position, Tally};
use super::index::ObjectId;
use super::store::{Lease, LeaseId, Store};
use soda_types::{Fid, Mode, Scope, SessionId, VolumeId};
use std::collections::BTreeSet;

/// A deep lease that reaches an object, and what it allows there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reaching {
    pub(super) lease: LeaseId,
    pub(super) session: SessionId,
    pub(super) allows: Mode,
}

impl Store {
    pub(super) fn position(&self, object: ObjectId) -> Position {
        self.object(object).map_or(Position::Unknown, |found| found.position.into())
    }

    fn set_position(&mut self, object: ObjectId, position: Position) {
        if let Some(found) = self.object_mut(object) {
            found.position = position.into();
        }
    }

    /// The directory that the object is, or the one right above it.
    pub(super) fn nearest_branch(&self, object: ObjectId) -> Option<BranchId> {
        match self.position(object) {
            Position::In(branch) | Position::Is(branch) => Some(branch),
            Position::Unknown | Position::Several => None,
        }
    }

    /// The object and the directories above it, up to the root.
    pub(super) fn path(&self, object: ObjectId) -> Vec<Fid> {
        let Some(found) = self.object(object) else { return Vec::new() };
        let own = if matches!(found.position.into(), Position::Is(_)) { None } else { Some(found.fid) };
        let above = self.ancestry().map(|ancestry| ancestry.up_from(self.nearest_branch(object)));
        own.into_iter().chain(above.into_iter().flatten().map(|(_, branch)| branch.fid)).collect()
    }

    /// The object is the directory, or lies below it, or may for all that is known.
    pub(super) fn may_be_inside(&self, object: ObjectId, directory: Fid) -> bool {
        let fid = self.object(object).map(|found| found.fid);
        match self.position(object) {
            _ if fid == Some(directory) => true,
            Position::Unknown => fid.is_some_and(|fid| fid.volume == directory.volume),
            Position::Several => false,
            Position::In(branch) | Position::Is(branch) => self
                .ancestry()
                .is_some_and(|all| all.up_from(Some(branch)).any(|(_, above)| above.fid == directory)),
        }
    }

    fn counted(&self, object: ObjectId) -> Counted {
        match self.position(object) {
            Position::Unknown => {
                self.object(object).map_or(Counted::Nowhere, |found| Counted::Unplaced(found.fid.volume))
            }
            Position::Several => Counted::Nowhere,
            Position::In(branch) => Counted::From(Some(branch)),
            Position::Is(branch) => {
                Counted::From(self.ancestry().and_then(|ancestry| ancestry.get(branch)?.up))
            }
        }
    }

    /// A lease on the object comes or goes.
    pub(super) fn count(&mut self, object: ObjectId, session: SessionId, tally: Tally, by: By) {
        if self.ancestry().is_some() {
            let whom = self.counted(object);
            if let Some(ancestry) = self.ancestry_mut() {
                ancestry.count(whom, session, tally, by);
            }
        }
    }

    /// All leases that move with the object.
    fn held_here(&self, object: ObjectId) -> Vec<(SessionId, Tally)> {
        let branch = match self.position(object) {
            Position::Is(branch) => self.ancestry().and_then(|ancestry| ancestry.get(branch)),
            _ => None,
        };
        let leases = self.holders(object).chain(self.deep_ids_on(object)).filter_map(|id| self.lease(id));
        let here = leases.map(|lease| (lease.session, Tally::one(lease.mode, lease.scope)));
        let below = branch.into_iter().flat_map(|branch| branch.below.each().iter().copied());
        here.chain(below).collect()
    }

    /// Gives an object another place, with all that is below it.
    fn relocate(&mut self, object: ObjectId, to: Position) {
        let (from, held) = (self.position(object), self.held_here(object));
        for (session, tally) in &held {
            self.count(object, *session, *tally, By::Taking);
        }
        match (from, to) {
            (Position::Is(branch), Position::In(up)) => {
                let old = self
                    .ancestry_mut()
                    .and_then(|ancestry| ancestry.get_mut(branch).and_then(|found| found.up.replace(up)));
                self.enter(up);
                self.leave(old);
            }
            (from, to) => {
                self.set_position(object, to);
                if let Position::In(up) = to {
                    self.enter(up);
                }
                if let Position::In(old) = from {
                    self.leave(Some(old));
                }
            }
        }
        for (session, tally) in &held {
            self.count(object, *session, *tally, By::Adding);
        }
    }

    fn enter(&mut self, branch: BranchId) {
        if let Some(found) = self.ancestry_mut().and_then(|ancestry| ancestry.get_mut(branch)) {
            found.inside += 1;
        }
    }

    fn leave(&mut self, branch: Option<BranchId>) {
        let found = branch.and_then(|id| self.ancestry_mut()?.get_mut(id));
        let Some(found) = found else { return };
        found.inside = found.inside.saturating_sub(1);
        let object = found.object;
        self.note_untidy(object);
    }

    /// The object lies below these directories, from its parent to the root. What the table knows already stays: it hears
    /// of every move. Returns what got its place now and is leased.
    pub(super) fn place(&mut self, object: ObjectId, chain: &[Fid]) -> Vec<ObjectId> {
        let mut news = Vec::new();
        if self.ancestry().is_none() || self.nearest_branch(object).is_some() {
            return news;
        }
        match self.branch_at(chain, &mut news) {
            Some(up) => self.relocate(object, Position::In(up)),
            None => {
                self.make_branch(object, None);
            }
        }
        if self.object(object).is_some_and(|found| found.has_holders()) {
            news.push(object);
        }
        news
    }

    /// The object is new, right below the parent.
    pub(super) fn place_new(&mut self, object: ObjectId, parent: Fid) {
        let up = self.find(parent).and_then(|parent| self.as_branch(parent));
        if let Some(up) = up
            && self.position(object) == Position::Unknown
        {
            self.relocate(object, Position::In(up));
        }
    }

    /// Several names, or none: no deep lease covers the object. A directory that was removed is the top of a tree of its own.
    pub(super) fn place_several(&mut self, object: ObjectId) {
        match self.position(object) {
            Position::Unknown | Position::In(_) => self.relocate(object, Position::Several),
            Position::Is(branch) => self.cut_off(object, branch),
            Position::Several => {}
        }
    }

    fn cut_off(&mut self, object: ObjectId, branch: BranchId) {
        let held = self.held_here(object);
        for (session, tally) in &held {
            self.count(object, *session, *tally, By::Taking);
        }
        let old = self.ancestry_mut().and_then(|ancestry| ancestry.get_mut(branch)?.up.take());
        self.leave(old);
    }

    /// The object has another parent now.
    pub(super) fn move_object(&mut self, object: ObjectId, chain: &[Fid]) {
        let parent = chain.first().and_then(|parent| self.find(*parent));
        let known = parent.is_some_and(|parent| self.nearest_branch(parent).is_some());
        let up = match self.position(object) {
            // Nobody else moves a directory at the same time, so the chain is right.
            Position::Is(_) => self.branch_at(chain, &mut Vec::new()),
            _ if known => self.branch_at(chain, &mut Vec::new()),
            Position::In(_) => return self.relocate(object, Position::Unknown),
            Position::Unknown | Position::Several => return,
        };
        let fid = self.object(object).map(|found| found.fid);
        let inside_itself = |up: BranchId| {
            self.ancestry()
                .is_some_and(|all| all.up_from(Some(up)).any(|(_, branch)| Some(branch.fid) == fid))
        };
        if let Some(up) = up.filter(|up| !inside_itself(*up)) {
            self.relocate(object, Position::In(up));
        }
    }

    /// The branch of the first directory of the chain, with those above it.
    fn branch_at(&mut self, chain: &[Fid], news: &mut Vec<ObjectId>) -> Option<BranchId> {
        let known = chain.iter().enumerate().find_map(|(at, fid)| {
            let object = self.find(*fid)?;
            self.nearest_branch(object).map(|_| (at, object))
        });
        let (missing, mut up) = match known {
            Some((at, object)) => (at, Some(self.as_branch(object)?)),
            None => (chain.len(), None),
        };
        for fid in chain.iter().take(missing).rev() {
            let object = self.find_or_insert(*fid);
            if self.object(object).is_some_and(|found| found.has_holders()) {
                news.push(object);
            }
            up = Some(self.make_branch(object, up)?);
        }
        up
    }

    /// The branch of a directory whose place is known.
    pub(super) fn as_branch(&mut self, object: ObjectId) -> Option<BranchId> {
        match self.position(object) {
            Position::Is(branch) => Some(branch),
            Position::In(up) => {
                // It goes on being one of those inside `up`.
                let fid = self.object(object)?.fid;
                let branch = self.ancestry_mut()?.insert(fid, object, Some(up));
                self.set_position(object, Position::Is(branch));
                Some(branch)
            }
            Position::Unknown | Position::Several => None,
        }
    }

    fn make_branch(&mut self, object: ObjectId, up: Option<BranchId>) -> Option<BranchId> {
        let fid = self.object(object)?.fid;
        let held = self.held_here(object);
        for (session, tally) in &held {
            self.count(object, *session, *tally, By::Taking);
        }
        let branch = self.ancestry_mut()?.insert(fid, object, up);
        self.set_position(object, Position::Is(branch));
        if let Some(up) = up {
            self.enter(up);
        }
        for (session, tally) in &held {
            self.count(object, *session, *tally, By::Adding);
        }
        Some(branch)
    }

    /// Deep leases that reach the object, the nearest first.
    pub(super) fn reaching(&self, object: ObjectId) -> Vec<Reaching> {
        let mut found = Vec::new();
        let Some(fid) = self.object(object).map(|object| object.fid) else { return found };
        if self.deep_count() == 0 || self.position(object) == Position::Several {
            return found;
        }
        let allowed = |lease: LeaseId, path: &[Fid]| {
            let (held, deep) = (self.lease(lease)?, self.deep(lease)?);
            let allows = deep.allows(held.mode, path)?;
            Some(Reaching { lease, session: held.session, allows })
        };
        let Some(branch) = self.nearest_branch(object) else {
            // It may be below any of them.
            let all = self.deep_leases().filter(|(_, root)| root.volume == fid.volume);
            return all.filter_map(|(lease, _)| allowed(lease, &[fid])).collect();
        };
        let mut path = vec![fid];
        for (_, branch) in self.ancestry().into_iter().flat_map(|all| all.up_from(Some(branch))) {
            if branch.fid != fid {
                path.push(branch.fid);
            }
            found.extend(branch.deep.iter().filter_map(|lease| allowed(*lease, &path)));
        }
        found
    }

    /// Deep leases on the object's path in whose holes it lies, the nearest first, with what each still allows.
    pub(super) fn with_holes_for(&self, object: ObjectId) -> Vec<(LeaseId, Option<Mode>)> {
        if self.deep_count() == 0 || self.position(object) == Position::Several {
            return Vec::new();
        }
        let path = self.path(object);
        let branches = self.ancestry().into_iter().flat_map(|all| all.up_from(self.nearest_branch(object)));
        let mut found = Vec::new();
        for (_, branch) in branches {
            let Some(end) = path.iter().position(|fid| *fid == branch.fid) else { continue };
            found.extend(branch.deep.iter().filter_map(|id| {
                let (held, deep) = (self.lease(*id)?, self.deep(*id)?);
                let allows = deep.allows(held.mode, &path[..=end]);
                (allows < Some(held.mode)).then_some((*id, allows))
            }));
        }
        found
    }

    /// Deep leases that reach the object, or with [`Scope::Subtree`] anything below it.
    pub(super) fn reaching_into(&self, object: ObjectId, scope: Scope) -> Vec<Reaching> {
        if scope == Scope::Node {
            return self.reaching(object);
        }
        let mut found = Vec::new();
        let path = self.path(object);
        for (_, branch) in
            self.ancestry().into_iter().flat_map(|all| all.up_from(self.nearest_branch(object)))
        {
            let Some(end) = path.iter().position(|fid| *fid == branch.fid) else { continue };
            found.extend(branch.deep.iter().filter_map(|id| {
                let (held, deep) = (self.lease(*id)?, self.deep(*id)?);
                let allows = deep.allows_below(held.mode, &path[..=end])?;
                Some(Reaching { lease: *id, session: held.session, allows })
            }));
        }
        found
    }

    /// Deep leases that reach, or may reach, what is below a directory.
    pub(super) fn reaching_below(&self, object: ObjectId) -> Vec<Reaching> {
        if self.position(object) != Position::Unknown {
            return self.reaching_into(object, Scope::Subtree);
        }
        // It may be below any of them.
        let Some(fid) = self.object(object).map(|found| found.fid) else { return Vec::new() };
        let all = self.deep_leases().filter(|(_, root)| root.volume == fid.volume);
        let reach = |lease: LeaseId| {
            let (held, deep) = (self.lease(lease)?, self.deep(lease)?);
            let allows = deep.allows_below(held.mode, &[fid])?;
            Some(Reaching { lease, session: held.session, allows })
        };
        all.filter_map(|(lease, _)| reach(lease)).collect()
    }

    /// The directory right above it, if that is known.
    pub(super) fn parent(&self, object: ObjectId) -> Option<Fid> {
        self.path(object).get(1).copied()
    }

    /// The session's deep leases on the object's path; of an unknown place, all that it has in the volume.
    pub(super) fn deep_on_path(&self, object: ObjectId, session: SessionId) -> Vec<LeaseId> {
        let own = |id: &LeaseId| self.lease(*id).is_some_and(|lease| lease.session == session);
        if self.deep_count() == 0 || self.position(object) == Position::Several {
            return Vec::new();
        }
        match self.nearest_branch(object) {
            Some(branch) => {
                let above = self.ancestry().into_iter().flat_map(|all| all.up_from(Some(branch)));
                above.flat_map(|(_, branch)| branch.deep.iter().copied()).filter(own).collect()
            }
            None => {
                let volume = self.object(object).map(|found| found.fid.volume);
                let all = self.deep_leases().filter(|(_, root)| Some(root.volume) == volume);
                all.map(|(id, _)| id).filter(own).collect()
            }
        }
    }

    /// Leases of other sessions below the object.
    pub(super) fn below_of_others(&self, object: ObjectId, session: SessionId) -> Tally {
        let Position::Is(branch) = self.position(object) else { return Tally::default() };
        let branch = self.ancestry().and_then(|ancestry| ancestry.get(branch));
        branch.map_or(Tally::default(), |branch| branch.below.of_others(session))
    }

    /// Node leases of other sessions on the object.
    pub(super) fn held_on_by_others(&self, object: ObjectId, session: SessionId) -> Tally {
        let leases = self.holders(object).filter_map(|id| self.lease(id));
        let others = leases.filter(|lease| lease.session != session);
        others.fold(Tally::default(), |sum, lease| sum.plus(Tally::one(lease.mode, lease.scope)))
    }

    /// Sessions that hold something on a directory or, for all that is known, below it.
    pub(super) fn sessions_inside(&self, object: ObjectId) -> BTreeSet<SessionId> {
        let Some(ancestry) = self.ancestry() else { return BTreeSet::new() };
        let branch = match self.position(object) {
            Position::Is(branch) => ancestry.get(branch),
            _ => None,
        };
        let volume = self.object(object).map(|found| found.fid.volume);
        let unplaced = volume.and_then(|volume| ancestry.unplaced(volume));
        let counted = branch.map(|branch| &branch.below).into_iter().chain(unplaced);
        let inside = counted.flat_map(|below| below.each()).map(|(session, _)| *session);
        let here = self.holders(object).chain(self.deep_ids_on(object)).filter_map(|id| self.lease(id));
        inside.chain(here.map(|lease| lease.session)).collect()
    }

    /// Leases of other sessions on objects of unknown place.
    pub(super) fn unplaced_of_others(&self, volume: VolumeId, session: SessionId) -> Tally {
        let ancestry = self.ancestry();
        ancestry.map_or(Tally::default(), |ancestry| ancestry.unplaced_of_others(volume, session))
    }

    /// The session's deep lease on a directory.
    pub(super) fn deep_lease_of(&self, object: ObjectId, session: SessionId) -> Option<LeaseId> {
        let mut deep = self.deep_ids_on(object);
        deep.find(|id| self.lease(*id).is_some_and(|lease| lease.session == session))
    }

    /// Deep leases on a directory.
    pub(super) fn deep_on(&self, object: ObjectId) -> impl Iterator<Item = &Lease> {
        self.deep_ids_on(object).filter_map(|id| self.lease(id))
    }

    fn deep_ids_on(&self, object: ObjectId) -> impl Iterator<Item = LeaseId> {
        let branch = match self.position(object) {
            Position::Is(branch) => self.ancestry().and_then(|ancestry| ancestry.get(branch)),
            _ => None,
        };
        branch.into_iter().flat_map(|branch| branch.deep.iter().copied())
    }

    /// A lease's mode changes.
    pub(super) fn set_mode(&mut self, id: LeaseId, mode: Mode) {
        let Some(lease) = self.lease(id) else { return };
        let (object, session, old, scope) = (lease.object, lease.session, lease.mode, lease.scope);
        if old != mode {
            self.count(object, session, Tally::one(old, scope), By::Taking);
            self.count(object, session, Tally::one(mode, scope), By::Adding);
        }
        if let Some(lease) = self.lease_mut(id) {
            lease.mode = mode;
        }
    }

    /// Deep leases with the directories they are on.
    pub(super) fn deep_leases(&self) -> impl Iterator<Item = (LeaseId, Fid)> {
        self.deep_ids().filter_map(|id| {
            let lease = self.lease(id).filter(|lease| lease.scope == Scope::Subtree)?;
            Some((id, self.object(lease.object)?.fid))
        })
    }
}
