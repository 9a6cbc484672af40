//! Deep leases: what one covers, what is in its way, its holes, and who gets one.
//!
//! A deep lease is beside the node leases of its session, never in their place: it may be a read lease on a tree in which the
//! session holds write leases on single objects. It is given by policy only, when nothing conflicts, so nobody is ever
//! asked for the sake of one; and it keeps its epoch until it gets another mode or stands for more, it is not given again.
//!
//! * *Holes* ([`Hole`]). Who needs an object inside asks for that object alone. What is below a directory stays covered though
//!   its new user may change its names, that is, move things in and out without another word: see the next point. A hole with all
//!   below is where another session has a deep lease, or has made a directory, or where there are too many holes.
//! * *Moved by others* (`leave_behind`). A directory that another session moves may leave the reach of the lease with all that
//!   its holder has been told of below it. In the same step the holder gets a deep lease on the directory, in the place of
//!   those above it, and is asked for all of it. It never heard of that lease; it drops what it has below the directory.
//! * *Said object by object.* A session believes to be covered what it has been told of ([`Coverage`], with the answer of an
//!   operation that was admitted for the object), so it need not know the holes; they heal in the table alone, when the
//!   session comes by and contention there has ended. What comes to lie in the reach of a lease otherwise (a rename, a link
//!   less, a place that becomes known) gets a hole without a question: its session has not been told of it.
//! * *Away.* A session whose time is over is ended as with node leases, but not for what it has not been told of (`told.rs`):
//!   there it has a hole, and does not hear of it.
//! * *Moves under way.* An operation that was admitted before a lease is given or a hole heals may move what is inside
//!   afterwards. So neither happens while another session changes something there. (A session keeps its own moves apart, see
//!   [`crate::Holder::begin_move`].)

use super::admission::Operation;
use super::holes::{Hole, Holes};
use super::index::ObjectId;
use super::output::{Access, Ancestors, Moved, TreeChanges, TreeVersion};
use super::placing::Reaching;
use super::store::{LeaseId, Running};
use super::{Intent, LeaseTable};
use crate::conflict::{Concession, Place, Reach, concession};
use soda_types::{Cause, Coverage, Fid, FileKind, Grant, Mode, Monotonic, Scope, SessionId, Term};
use std::collections::BTreeSet;

/// What a session's deep leases allow below a directory, together: the strongest mode, and its holes.
type Below = (Mode, Holes);

/// What goes on below a directory that moves, by deep leases that a session gets there.
#[derive(Debug)]
struct Kept {
    all: Below,
    /// Directories that other sessions have deep leases on: a lease that allows less, from further above, is all that the session
    /// has below these, which no hole can say.
    apart: Vec<(Fid, Below)>,
}

/// What became of the word where an object lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placing {
    /// It is known, or nobody can say.
    Done,
    /// It can be said when an operation under way has ended, or is to be looked up anew.
    PutOff,
}

impl LeaseTable {
    /// Names the state of the tree that the table has heard of. Take it before a plan looks at the volume.
    pub fn tree_version(&self) -> TreeVersion {
        self.moves.version()
    }

    /// Something on the way from the root to the object has moved since its place was looked up: to be looked up anew. What
    /// cannot be said at all is never out of date.
    pub fn is_out_of_date(&self, fid: Fid, ancestors: &Ancestors) -> bool {
        !self.moves.is_current(fid, ancestors)
    }

    /// Learns where an object lies. What is being changed at this moment may have moved already: its mover gets leases for what
    /// it goes on with when the table hears of that, by where it was before.
    pub(super) fn place(&mut self, object: ObjectId, ancestors: &Ancestors) -> Placing {
        if self.store.ancestry().is_none() {
            return Placing::Done;
        }
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return Placing::Done };
        if !self.moves.is_current(fid, ancestors) {
            return Placing::PutOff;
        }
        let changes =
            |found: ObjectId| self.store.object(found).is_some_and(|found| found.running == Running::Changer);
        match ancestors {
            Ancestors::Chain(_, chain) => {
                let above = chain.iter().filter_map(|fid| self.store.find(*fid));
                let news = std::iter::once(object)
                    .chain(above)
                    .take_while(|found| self.store.nearest_branch(*found).is_none());
                if news.into_iter().any(changes) {
                    return Placing::PutOff;
                }
                for leased in self.store.place(object, chain) {
                    self.leave_holes_for(leased);
                }
            }
            Ancestors::Several(_) if !changes(object) => self.store.place_several(object),
            Ancestors::Several(_) | Ancestors::Unknown => {}
        }
        Placing::Done
    }

    /// An inode is new, right below the parent. In no directory (a temporary file, or one with several names from the start) it
    /// is in no deep lease: if its place were only not known, it might be in any of the volume's, and each would have a hole.
    pub(super) fn place_made(&mut self, object: ObjectId, parent: Option<Fid>) {
        match parent {
            Some(parent) => self.store.place_new(object, parent),
            None if self.store.ancestry().is_some() => self.store.place_several(object),
            None => {}
        }
    }

    /// Names have moved. The session that moved them goes on with what leaves the reach of its deep leases as its own: it gets
    /// node leases on it. Returns these.
    pub(super) fn apply_to_tree(
        &mut self,
        now: Monotonic,
        session: SessionId,
        changes: &TreeChanges,
    ) -> Vec<Grant> {
        if !self.note_tree_changes(changes) {
            return Vec::new();
        }
        let mut leases = Vec::new();
        for Moved { fid, kind, above } in &changes.moved {
            let left = if *kind == FileKind::Directory { self.told_below(*fid, session) } else { Vec::new() };
            let moved = |table: &mut LeaseTable, object| table.move_object(object, *kind, above);
            leases.extend(self.take_along(now, session, (*fid, *kind), moved));
            self.leave_behind(now, *fid, left);
        }
        for fid in &changes.relinked {
            let relinked = |table: &mut LeaseTable, object| table.store.place_several(object);
            leases.extend(self.take_along(now, session, (*fid, FileKind::File), relinked));
        }
        leases
    }

    /// A change that may take an object out of reach of the session's deep leases. What it has been told that they cover stays
    /// covered, in the table's own words: the object by a node lease, what is below a directory by a deep one.
    fn take_along(
        &mut self,
        now: Monotonic,
        session: SessionId,
        (fid, kind): (Fid, FileKind),
        change: impl FnOnce(&mut LeaseTable, ObjectId),
    ) -> Vec<Grant> {
        let Some(object) = self.store.find(fid) else { return Vec::new() };
        let is_directory = kind == FileKind::Directory;
        // With its holes: it may come to lie in one.
        let reached = |table: &LeaseTable| {
            let own = |all: Vec<Reaching>| -> Vec<Reaching> {
                all.into_iter().filter(|reach| reach.session == session).collect()
            };
            let below = if is_directory { table.store.reaching_below(object) } else { Vec::new() };
            (own(table.store.reaching(object)), own(below))
        };
        let placed = self.store.nearest_branch(object).is_some();
        let before = reached(self);
        let owed = self.owed_for(object, session);
        let below = if is_directory { self.kept_below(object, session) } else { None };
        change(self, object);
        // Where nobody can say any more what is above it, nothing covers it.
        let lost = placed && self.store.nearest_branch(object).is_none();
        let after = if lost { Default::default() } else { reached(self) };
        let goes_on = |before: &[Reaching], after: &[Reaching]| {
            let as_before =
                |old: &Reaching| after.iter().any(|new| new.lease == old.lease && new.allows >= old.allows);
            before.iter().all(as_before)
        };
        let holds_on = goes_on(&before.0, &after.0) && goes_on(&before.1, &after.1);
        // It may come to lie in what is being asked for: the answer is about what was there when the session heard the question.
        let is_asked = self.owed_for(object, session).iter().any(|epoch| !owed.contains(epoch));
        if (holds_on && !is_asked) || !self.sessions.contains_key(&session) {
            return Vec::new();
        }
        let node = match self.store.lease_of(object, session) {
            Some(_) => self.grant_changer(now, session, object, &Access::change(fid, Cause::Attributes)),
            None => self.grant_made(now, session, object),
        };
        let deep = below.map(|below| self.keep_below(now, session, object, below)).unwrap_or_default();
        node.into_iter().chain(deep).collect()
    }

    /// Other sessions that may have been told of what is below the directory by deep leases above it, with what these allow.
    /// Where its place is not known nobody has been told anything: see [`LeaseTable::hole_at`].
    fn told_below(&self, fid: Fid, mover: SessionId) -> Vec<(SessionId, Kept)> {
        let Some(object) = self.store.find(fid).filter(|_| self.store.deep_count() > 0) else {
            return Vec::new();
        };
        let is_above = |reach: &Reaching| {
            let on = self.store.lease(reach.lease).map(|lease| lease.object);
            reach.session != mover && on != Some(object)
        };
        let above = self.store.reaching_into(object, Scope::Subtree).into_iter().filter(is_above);
        let sessions: BTreeSet<SessionId> = above.map(|reach| reach.session).collect();
        let below = |session| Some((session, self.kept_below(object, session)?));
        sessions.into_iter().filter_map(below).collect()
    }

    /// The directory has been moved by another session than these, which goes on without another word: what they have been told
    /// of below it is asked for, as of a deep lease that they have on it from now on.
    fn leave_behind(&mut self, now: Monotonic, fid: Fid, left: Vec<(SessionId, Kept)>) {
        let Some(object) = self.store.find(fid) else { return };
        for (session, below) in left {
            for Grant { fid, .. } in self.keep_below(now, session, object, below) {
                let Some(directory) = self.store.find(fid) else { continue };
                if let Some(id) = self.store.deep_lease_of(directory, session) {
                    self.recall_part(now, id, directory, Hole::Tree, Cause::Reclaim);
                }
            }
        }
    }

    fn kept_below(&self, object: ObjectId, session: SessionId) -> Option<Kept> {
        let all = self.reach_below(object, session)?;
        let own = self.store.reaching_below(object).into_iter().filter(|reach| reach.session == session);
        if own.count() < 2 {
            return Some(Kept { all, apart: Vec::new() });
        }
        let directory = self.store.object(object)?.fid;
        let theirs = self.store.deep_leases().filter(|(id, root)| {
            *root != directory && self.store.lease(*id).is_some_and(|lease| lease.session != session)
        });
        let roots: BTreeSet<Fid> = theirs.map(|(_, root)| root).collect();
        let inside = |root: Fid| {
            let found = self.store.find(root).filter(|found| self.store.path(*found).contains(&directory))?;
            Some((root, self.reach_below(found, session)?))
        };
        Some(Kept { all, apart: roots.into_iter().filter_map(inside).collect() })
    }

    /// Gives a session deep leases in the place of those that the directory has left the reach of.
    fn keep_below(&mut self, now: Monotonic, session: SessionId, object: ObjectId, kept: Kept) -> Vec<Grant> {
        let mut grants = Vec::new();
        for (fid, below) in kept.apart {
            let grant = self.store.find(fid).and_then(|inside| self.insert_deep(now, session, inside, below));
            grants.extend(grant);
        }
        grants.extend(self.insert_deep(now, session, object, kept.all));
        // Of several leases together, one to write and one to read, holes do not say all.
        self.leave_holes_inside(object, session);
        grants
    }

    /// What the session's deep leases allow below a directory, together: the strongest mode, and its holes. Those in whose holes
    /// the directory lies allow nothing there.
    fn reach_below(&self, object: ObjectId, session: SessionId) -> Option<Below> {
        let own = self.store.reaching_below(object).into_iter().filter(|reach| reach.session == session);
        let leases = &own.map(|reach| reach.lease).collect::<Vec<LeaseId>>()[..];
        let mode = leases.iter().filter_map(|id| Some(self.store.lease(*id)?.mode)).max()?;
        if let [lease] = leases {
            return Some((mode, self.store.deep(*lease)?.holes().clone()));
        }
        let all = leases.iter().filter_map(|id| self.store.deep(*id)).flat_map(|deep| deep.holes().keys());
        // Of what the table does not know, nobody has anything.
        let known = all.filter_map(|fid| Some((*fid, self.store.find(*fid)?)));
        let directory = self.store.object(object)?.fid;
        let allowed = |inside: ObjectId| {
            let path = self.store.path(inside);
            if self.store.nearest_branch(inside).is_none() {
                // It may be there.
                let each = leases.iter().map(|id| self.allowed_at(*id, &path));
                return Some(strongest(each));
            }
            path.contains(&directory).then_some(())?;
            let each = leases.iter().filter_map(|id| {
                let root = self.store.object(self.store.lease(*id)?.object)?.fid;
                let end = path.iter().position(|fid| *fid == root)?;
                Some(self.allowed_at(*id, &path[..=end]))
            });
            Some(strongest(each))
        };
        let hole = |(here, below): (Option<Mode>, Option<Mode>)| match here {
            Some(_) => (here < Some(mode)).then_some(Hole::KeepsReading),
            None => Some(if below.is_some() { Hole::Object } else { Hole::Tree }),
        };
        let holes = known.filter_map(|(fid, inside)| Some((fid, hole(allowed(inside)?)?)));
        Some((mode, holes.collect()))
    }

    /// What the lease allows on the first object of the path, and on what is below that.
    fn allowed_at(&self, lease: LeaseId, path: &[Fid]) -> (Option<Mode>, Option<Mode>) {
        let Some((held, deep)) = self.store.lease(lease).zip(self.store.deep(lease)) else {
            return (None, None);
        };
        (deep.allows(held.mode, path), deep.allows_below(held.mode, path))
    }

    /// A lease that is there already stands for more from now on: what was said of it before, that it is given back or what is
    /// kept of it, may be on the way and does not speak of that. So it gets another name, and what is being asked of it, too.
    fn insert_deep(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        (mode, holes): Below,
    ) -> Option<Grant> {
        self.store.as_branch(object)?;
        let id = match self.store.deep_lease_of(object, session) {
            Some(id) => {
                self.store.lease_mut(id)?.epoch = self.take_epoch();
                self.store.set_mode(id, mode);
                id
            }
            None => {
                self.counters.deep_grants += 1;
                self.insert_lease(now, session, object, (Scope::Subtree, mode), Term::Session)?;
                self.store.deep_lease_of(object, session)?
            }
        };
        self.store.set_holes(id, holes);
        self.ask_all_anew(now, id);
        self.store.lease(id).map(|lease| self.grant_of(lease))
    }

    /// Plans of before are not believed any more. False: nothing has moved.
    fn note_tree_changes(&mut self, changes: &TreeChanges) -> bool {
        let moves = !changes.moved.is_empty() || !changes.relinked.is_empty();
        let matters = moves && self.store.ancestry().is_some();
        if matters {
            let moved = changes.moved.iter().map(|moved| moved.fid);
            self.moves.note(moved.chain(changes.relinked.iter().copied()));
        }
        matters
    }

    /// What the session may certainly do with the object under deep leases.
    pub(super) fn own_reach(&self, object: ObjectId, session: SessionId) -> Option<Mode> {
        if self.store.deep_count() == 0 || self.store.nearest_branch(object).is_none() {
            return None;
        }
        let own = self.store.reaching(object).into_iter().filter(|reach| reach.session == session);
        own.map(|reach| reach.allows).max()
    }

    /// The session may believe that a deep lease covers the object.
    pub(super) fn may_reach(&self, object: ObjectId, session: SessionId) -> bool {
        self.store.deep_count() > 0
            && self.store.reaching(object).into_iter().any(|reach| reach.session == session)
    }

    /// A deep lease of another session excludes a lease of this mode on the object.
    pub(super) fn is_excluded(&self, object: ObjectId, session: SessionId, mode: Mode) -> bool {
        self.store.deep_count() > 0
            && self.store.reaching(object).into_iter().any(|reach| {
                let held = Reach { scope: Scope::Subtree, mode: reach.allows };
                let asked = Reach { scope: Scope::Node, mode };
                reach.session != session && concession(held, Place::Above, asked) != Concession::Nothing
            })
    }

    /// The deep lease by which the session is covered on an object that an operation of it was admitted for.
    pub(super) fn covered(&self, session: SessionId, object: ObjectId) -> Option<Coverage> {
        let known = self.grace.is_none() && self.store.nearest_branch(object).is_some();
        if self.store.deep_count() == 0 || !known {
            return None;
        }
        let path = self.store.path(object);
        let settled = |reach: &Reaching| {
            let deep = self.store.deep(reach.lease);
            reach.session == session && deep.is_some_and(|deep| deep.owed(&path).next().is_none())
        };
        let reaching: Vec<Reaching> = self.store.reaching(object).into_iter().filter(settled).collect();
        let best = reaching.iter().rev().max_by_key(|reach| reach.allows)?;
        let root = self.store.object(self.store.lease(best.lease)?.object)?.fid;
        let end = path.iter().position(|fid| *fid == root)?;
        // Who reads it at this moment may get a lease with what was read: nobody writes in between.
        let alone = self.store.object(object)?.running == Running::Readers(0);
        let mode = if alone { best.allows } else { Mode::Read };
        Some(Coverage { fid: path[0], root, mode, above: path[1..=end].to_vec() })
    }

    pub(super) fn note_told(&mut self, session: SessionId, covered: &[Coverage]) {
        if !covered.is_empty()
            && let Some(holder) = self.sessions.get_mut(&session)
        {
            covered.iter().for_each(|covered| holder.told.add(covered.fid));
        }
    }

    /// The object moves with what others hold on it and below: whose deep lease did not reach it before has not been told of
    /// any of it.
    fn move_object(&mut self, object: ObjectId, kind: FileKind, chain: &[Fid]) {
        let before = self.store.reaching_into(object, Scope::Subtree);
        self.store.move_object(object, chain);
        if kind == FileKind::Directory {
            // Nobody else moves a directory at the same time, so this is where it lies.
            self.store.place(object, chain).into_iter().for_each(|leased| self.leave_holes_for(leased));
        }
        self.leave_holes_for(object);
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        for reach in self.store.reaching_into(object, Scope::Subtree) {
            let is_new = before.iter().all(|old| old.lease != reach.lease);
            let taken = self.store.below_of_others(object, reach.session).conflicts(reach.allows)
                || self.is_deep_for_others(object, reach.session, reach.allows);
            if is_new && taken {
                self.make_hole(reach.lease, object, fid, Hole::Tree);
            }
        }
    }

    /// Another session holds a deep lease on the directory itself that excludes a lease of this mode.
    pub(super) fn is_deep_for_others(&self, object: ObjectId, session: SessionId, mode: Mode) -> bool {
        self.store
            .deep_on(object)
            .any(|lease| lease.session != session && (mode == Mode::Write || lease.mode == Mode::Write))
    }

    /// The session may cover the object, or all below it, without asking anybody.
    pub(super) fn nobody_minds(
        &self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        scope: Scope,
        mode: Mode,
    ) -> bool {
        let Some(found) = self.store.object(object) else { return false };
        let asked = Reach { scope, mode };
        let in_the_way = |held: Scope, mode: Mode, place: Place| {
            concession(Reach { scope: held, mode }, place, asked) != Concession::Nothing
        };
        let above = self.store.reaching_into(object, scope).into_iter();
        // For writing, as with node leases: who reads takes nothing from anybody, and who has a lease on it already does not
        // take turns.
        let is_new = scope == Scope::Node || self.store.deep_lease_of(object, session).is_none();
        let backs_off = mode == Mode::Write
            && is_new
            && found.rates.as_deref().is_some_and(|rates| rates.backs_off(now).is_some());
        self.grace.is_none()
            && self.store.nearest_branch(object).is_some()
            && !backs_off
            && !self.store.held_on_by_others(object, session).conflicts(mode)
            && (scope == Scope::Node || !self.store.below_of_others(object, session).conflicts(mode))
            && !self.store.unplaced_of_others(found.fid.volume, session).conflicts(mode)
            && !above
                .filter(|reach| reach.session != session)
                .any(|reach| in_the_way(Scope::Subtree, reach.allows, Place::Above))
            && !self.is_wanted(object, session, mode)
            && !self.others_work_below(session, object, Intent::Change)
    }

    /// An admitted operation of another session changes the object or something below it, or at least reads it.
    pub(super) fn others_work_below(&self, session: SessionId, object: ObjectId, least: Intent) -> bool {
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return false };
        let inside = |used: ObjectId| {
            let unknown = self.store.nearest_branch(used).is_none();
            let path = self.store.path(used);
            path.contains(&fid) || (unknown && path.first().is_some_and(|found| found.volume == fid.volume))
        };
        let at_work = |op: &&Operation| !op.is_waiting() && op.session != session;
        self.ops.values().filter(at_work).any(|op| {
            let mut pairs = op.objects.iter().zip(&op.accesses);
            pairs.any(|(used, access)| access.intent >= least && inside(*used))
        })
    }
}

fn strongest(each: impl Iterator<Item = (Option<Mode>, Option<Mode>)>) -> (Option<Mode>, Option<Mode>) {
    each.fold((None, None), |one, other| (one.0.max(other.0), one.1.max(other.1)))
}
