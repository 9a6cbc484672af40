//! Deep leases: what one covers, what is in its way, its holes, and who gets one.
//!
//! A deep lease is beside the node leases of its session, never in their place: it may be a read lease on a tree in which the
//! session holds write leases on single objects. It is given by policy only, when nothing conflicts, so nobody is ever
//! asked for the sake of one; and it keeps its epoch with its mode, it is not given again.
//!
//! * *Holes.* Who needs an object inside asks for that object alone. A hole that keeps reading is that object; a hole that
//!   keeps nothing is the object and all below it: its new user may change its names, that is, move things in and out
//!   without another word. So both ends of a rename by another session are holes, and so is what it moves.
//! * *Said object by object.* A session believes to be covered what it has been told of ([`Coverage`], with the answer of an
//!   operation that was admitted for the object), so it need not know the holes; they heal in the table alone, when the
//!   session comes by and contention there has ended. What comes to lie in the reach of a lease otherwise (a rename, a link
//!   less, a place that becomes known) gets a hole without a question: its session has not been told of it.
//! * *Moves under way.* An operation that was admitted before a lease is given or a hole heals may move what is inside
//!   afterwards. So neither happens while another session changes something there. (A session keeps its own moves apart, see
//!   [`crate::Holder::begin_move`].)

use super::admission::Operation;
use super::ancestry::Position;
use super::index::ObjectId;
use super::output::{Access, Ancestors, Moved, TreeChanges, TreeVersion};
use super::placing::Reaching;
use super::store::{LeaseId, Running};
use super::{Intent, Table};
use crate::conflict::{Concession, Place, Reach, concession};
use soda_types::{Cause, Coverage, Epoch, Fid, FileKind, Grant, Mode, Monotonic, Scope, SessionId, Term};
use std::collections::BTreeMap;

/// What a session may still do with single objects, or with a directory and all below it.
type Holes = BTreeMap<Fid, Option<Mode>>;

/// What a deep lease has beside what every lease has.
#[derive(Debug, Default)]
pub(super) struct Deep {
    /// What its session may still do there.
    holes: Holes,
    /// Questions that are not answered: the epoch that names each, and what may be kept.
    asked: BTreeMap<Fid, (Epoch, Option<Mode>)>,
}

impl Deep {
    /// What a lease of this mode allows on the first object of the path, whose other elements are the directories above it up
    /// to the lease's own.
    pub(super) fn allows(&self, mode: Mode, path: &[Fid]) -> Option<Mode> {
        let (object, above) = path.split_first()?;
        if above.iter().any(|directory| self.holes.get(directory) == Some(&None)) {
            return None;
        }
        self.holes.get(object).map_or(Some(mode), |kept| kept.map(|kept| kept.min(mode)))
    }

    /// The questions whose answers may change what is allowed on the first object of the path.
    pub(super) fn owed<'a>(&'a self, path: &'a [Fid]) -> impl Iterator<Item = Epoch> + 'a {
        path.iter().enumerate().filter_map(|(at, fid)| {
            let (epoch, to) = self.asked.get(fid)?;
            (at == 0 || to.is_none()).then_some(*epoch)
        })
    }

    pub(super) fn asked(&self, fid: Fid) -> Option<(Epoch, Option<Mode>)> {
        self.asked.get(&fid).copied()
    }

    pub(super) fn questions(&self) -> impl Iterator<Item = Epoch> {
        self.asked.values().map(|(epoch, _)| *epoch)
    }

    pub(super) fn ask(&mut self, fid: Fid, epoch: Epoch, to: Option<Mode>) {
        self.asked.insert(fid, (epoch, to));
    }

    pub(super) fn forget_question(&mut self, fid: Fid) {
        self.asked.remove(&fid);
    }

    pub(super) fn add_hole(&mut self, fid: Fid, kept: Option<Mode>) {
        let hole = self.holes.entry(fid).or_insert(kept);
        *hole = kept.min(*hole);
    }

    /// Holes that say no less than the lease does.
    pub(super) fn forget_holes_that_keep(&mut self, mode: Mode) {
        self.holes.retain(|_, kept| *kept < Some(mode));
    }

    pub(super) fn holes(&self) -> &Holes {
        &self.holes
    }
}

impl Table {
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
    pub(super) fn place(&mut self, object: ObjectId, ancestors: &Ancestors) {
        if self.store.ancestry().is_none() {
            return;
        }
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        if !self.moves.is_current(fid, ancestors) {
            return;
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
                    return;
                }
                for leased in self.store.place(object, chain) {
                    self.leave_holes_for(leased);
                }
            }
            Ancestors::Several(_) if !changes(object) => self.store.place_several(object),
            Ancestors::Several(_) | Ancestors::Unknown => {}
        }
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
            let moved = |table: &mut Table, object| table.move_object(object, above);
            leases.extend(self.take_along(now, session, (*fid, *kind), moved));
        }
        for fid in &changes.relinked {
            let relinked = |table: &mut Table, object| table.store.place_several(object);
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
        change: impl FnOnce(&mut Table, ObjectId),
    ) -> Vec<Grant> {
        let Some(object) = self.store.find(fid) else { return Vec::new() };
        let is_directory = kind == FileKind::Directory;
        // With its holes: it may come to lie in one.
        let reached = |table: &Table| {
            let own = |scope: Scope| {
                let all = table.store.reaching_into(object, scope).into_iter();
                all.filter(|reach| reach.session == session).collect::<Vec<Reaching>>()
            };
            // Of an unknown place, below any of them.
            let unknown = table.store.nearest_branch(object).is_none();
            let below = if unknown { Scope::Node } else { Scope::Subtree };
            (own(Scope::Node), if is_directory { own(below) } else { Vec::new() })
        };
        let placed = self.store.nearest_branch(object).is_some();
        let before = reached(self);
        let owed = self.owed_for(object, session);
        let below = if is_directory { self.reach_below(object, session) } else { None };
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
        let deep = below.and_then(|below| self.insert_deep(now, session, object, below));
        // Of several leases together, one to write and one to read, holes do not say all.
        self.leave_holes_inside(object, session);
        node.into_iter().chain(deep).collect()
    }

    /// What the session's deep leases allow below a directory, together: the strongest mode, and its holes. Those in whose holes
    /// the directory lies allow nothing there.
    fn reach_below(&self, object: ObjectId, session: SessionId) -> Option<(Mode, Holes)> {
        let reaching = match self.store.nearest_branch(object) {
            Some(_) => self.store.reaching_into(object, Scope::Subtree),
            // It may be in any of them.
            None => self.store.reaching(object),
        };
        let own = reaching.into_iter().filter(|reach| reach.session == session);
        let leases = &own.map(|reach| reach.lease).collect::<Vec<LeaseId>>()[..];
        let mode = leases.iter().filter_map(|id| Some(self.store.lease(*id)?.mode)).max()?;
        if let [lease] = leases {
            return Some((mode, self.store.deep(*lease)?.holes.clone()));
        }
        let all = leases.iter().filter_map(|id| self.store.deep(*id)).flat_map(|deep| deep.holes.keys());
        // Of what the table does not know, nobody has anything.
        let known = all.filter_map(|fid| Some((*fid, self.store.find(*fid)?)));
        let directory = self.store.object(object)?.fid;
        let allowed = |inside: ObjectId| {
            let path = self.store.path(inside);
            if self.store.nearest_branch(inside).is_none() {
                // It may be there.
                let each = leases
                    .iter()
                    .filter_map(|id| self.store.deep(*id)?.allows(self.store.lease(*id)?.mode, &path));
                return Some(each.max());
            }
            path.contains(&directory).then_some(())?;
            let each = leases.iter().filter_map(|id| {
                let root = self.store.object(self.store.lease(*id)?.object)?.fid;
                let end = path.iter().position(|fid| *fid == root)?;
                self.store.deep(*id)?.allows(self.store.lease(*id)?.mode, &path[..=end])
            });
            Some(each.max())
        };
        let holes = known.filter_map(|(fid, inside)| Some((fid, allowed(inside)?)));
        Some((mode, holes.filter(|(_, allowed)| *allowed < Some(mode)).collect()))
    }

    fn insert_deep(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        (mode, holes): (Mode, Holes),
    ) -> Option<Grant> {
        self.store.as_branch(object)?;
        let id = match self.store.deep_lease_of(object, session) {
            Some(id) => {
                self.rename_for(id, mode)?;
                id
            }
            None => {
                self.counters.deep_grants += 1;
                self.insert_lease(now, session, object, (Scope::Subtree, mode), Term::Session)?;
                self.store.deep_lease_of(object, session)?
            }
        };
        self.store.deep_mut(id)?.holes = holes;
        self.store.lease(id).map(|lease| self.grant_of(lease))
    }

    /// The lease gets another mode. Under its old name its holder would take that for old news; but if all of it is being asked
    /// for, it ends under that name.
    fn rename_for(&mut self, id: LeaseId, mode: Mode) -> Option<()> {
        let lease = self.store.lease(id)?;
        let (fid, old) = (self.store.object(lease.object)?.fid, lease.mode);
        let ends = self.store.deep(id)?.asked(fid).is_some_and(|(_, to)| to.is_none());
        if old != mode && !ends {
            self.store.lease_mut(id)?.epoch = self.take_epoch();
        }
        self.store.set_mode(id, mode);
        Some(())
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

    /// Leases of others on the object are none of the business of whose deep lease reaches it: it has not been told of it.
    pub(super) fn leave_holes_for(&mut self, object: ObjectId) {
        if self.store.deep_count() == 0 {
            return;
        }
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        for reach in self.store.reaching(object) {
            let here = self.store.held_on_by_others(object, reach.session);
            let kept = if here.writes > 0 { None } else { Some(Mode::Read) };
            if here.conflicts(reach.allows)
                && let Some(deep) = self.store.deep_mut(reach.lease)
            {
                deep.add_hole(fid, kept);
            }
        }
    }

    /// The object moves with what others hold on it and below: whose deep lease did not reach it before has not been told of
    /// any of it.
    fn move_object(&mut self, object: ObjectId, chain: &[Fid]) {
        let before = self.store.reaching_into(object, Scope::Subtree);
        self.store.move_object(object, chain);
        self.leave_holes_for(object);
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        for reach in self.store.reaching_into(object, Scope::Subtree) {
            let is_new = before.iter().all(|old| old.lease != reach.lease);
            if is_new
                && self.store.below_of_others(object, reach.session).conflicts(reach.allows)
                && let Some(deep) = self.store.deep_mut(reach.lease)
            {
                deep.add_hole(fid, None);
            }
        }
    }

    /// Another session holds a deep lease on the directory itself that excludes a lease of this mode.
    pub(super) fn is_deep_for_others(&self, object: ObjectId, session: SessionId, mode: Mode) -> bool {
        self.store
            .deep_on(object)
            .any(|lease| lease.session != session && (mode == Mode::Write || lease.mode == Mode::Write))
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
            if reach.session != session
                && conflicts
                && let Some(deep) = self.store.deep_mut(reach.lease)
            {
                deep.add_hole(fid, None);
            }
        }
        let here = self.store.held_on_by_others(object, session).conflicts(mode);
        if !here
            && !self.store.below_of_others(object, session).conflicts(mode)
            && !self.store.unplaced_of_others(fid.volume, session).conflicts(mode)
        {
            return;
        }
        let inside = |other: ObjectId| {
            let path = self.store.path(other);
            let unknown = self.store.position(other) == Position::Unknown;
            path.contains(&fid) || (unknown && path.first().is_some_and(|found| found.volume == fid.volume))
        };
        let theirs = self.store.leases().filter(|lease| lease.session != session && inside(lease.object));
        let holes: Vec<(Fid, Option<Mode>)> = theirs
            .filter(|lease| mode == Mode::Write || lease.mode == Mode::Write)
            .filter_map(|lease| {
                let alone = lease.mode == Mode::Read && lease.scope == Scope::Node;
                Some((self.store.object(lease.object)?.fid, alone.then_some(Mode::Read)))
            })
            .collect();
        for (fid, kept) in holes {
            if let Some(deep) = self.store.deep_mut(id) {
                deep.add_hole(fid, kept);
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
                let Some(kept) = hole.filter(|kept| at == 0 || kept.is_none()) else { continue };
                if !self.has_healed(now, session, lease, *fid, kept) {
                    break;
                }
                if let Some(deep) = self.store.deep_mut(lease) {
                    deep.holes.remove(fid);
                    self.counters.holes_healed += 1;
                }
            }
        }
    }

    fn has_healed(
        &self,
        now: Monotonic,
        session: SessionId,
        lease: LeaseId,
        fid: Fid,
        kept: Option<Mode>,
    ) -> bool {
        let Some(mode) = self.store.lease(lease).map(|lease| lease.mode) else { return false };
        let asked = self.store.deep(lease).is_some_and(|deep| deep.asked.contains_key(&fid));
        let Some(object) = self.store.find(fid) else {
            return !asked && !self.store.unplaced_of_others(fid.volume, session).conflicts(mode);
        };
        let scope = if kept.is_none() { Scope::Subtree } else { Scope::Node };
        !asked && self.nobody_minds(now, session, object, scope, mode)
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
