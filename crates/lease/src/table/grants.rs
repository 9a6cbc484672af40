//! What an operation leaves behind: leases, by policy.

use super::LeaseTable;
use super::admission::OpState;
use super::config::WriteLeases;
use super::index::ObjectId;
use super::output::{Access, Created, OpKey, Outcome, TreeChanges, Want};
use super::rates::{BackOff, Equation8, Intent, Rates, Use};
use super::store::{LeaseId, NewLease, RecallState};
use soda_types::{Cause, Coverage, Fid, FileKind, Grant, Mode, Monotonic, Scope, SessionId, Term};

/// Objects that are remembered for their rates only.
const MAX_COLD: usize = 65_536;

/// The leases that go with an operation's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Granted {
    pub leases: Vec<Grant>,
    /// Its objects that a deep lease covers.
    pub covered: Vec<Coverage>,
}

impl LeaseTable {
    /// The admitted operation is over: lets the next ones in and says which leases go with the answer: one at most
    /// for each access that wants one, deep ones, and those on what has moved out of their reach.
    pub fn finish(&mut self, now: Monotonic, op: OpKey, outcome: Outcome) -> Vec<Grant> {
        self.finish_with(now, op, outcome, &[])
    }

    /// As [`LeaseTable::finish`] for an operation that made new inodes: nobody else knows them, their maker gets them.
    pub fn finish_with(
        &mut self,
        now: Monotonic,
        key: OpKey,
        outcome: Outcome,
        created: &[Fid],
    ) -> Vec<Grant> {
        let new = |fid: &Fid| Created { fid: *fid, kind: FileKind::File, parent: None };
        let created = created.iter().map(new).collect();
        self.finish_tree(now, key, outcome, &TreeChanges { created, ..TreeChanges::default() }).leases
    }

    /// As [`LeaseTable::finish_with`], with deep leases: says what the operation did to the tree, and hears which of its objects,
    /// the new ones included, a deep lease of the session covers.
    pub fn finish_tree(
        &mut self,
        now: Monotonic,
        key: OpKey,
        outcome: Outcome,
        changes: &TreeChanges,
    ) -> Granted {
        if self.ops.get(&key).is_none_or(|op| op.state != OpState::Admitted) {
            return Granted::default();
        }
        let Some(op) = self.ops.remove(&key) else { return Granted::default() };
        let mut grants = self.apply_to_tree(now, op.session, changes);
        let read = |(access, object): (&Access, &ObjectId)| {
            (access.intent == Intent::Read && access.want == Want::Lease).then_some(*object)
        };
        let read: Vec<ObjectId> = op.accesses.iter().zip(&op.objects).filter_map(read).collect();
        grants.extend(self.offer_deep_for_all(now, op.session, &read));
        for (access, object) in op.accesses.iter().zip(&op.objects) {
            if let Some(found) = self.store.object_mut(*object) {
                found.running.leave();
            }
            let held = self.store.lease_count();
            let changed = access.intent == Intent::Change && outcome == Outcome::Applied;
            let grant = if changed {
                if access.want == Want::Lease && matches!(access.cause, Cause::Names(_)) {
                    grants.extend(self.offer_names(now, op.session, *object));
                }
                self.grant_changer(now, op.session, *object, access)
            } else {
                self.grant_reader(now, op.session, *object, access)
            };
            grants.extend(grant);
            if self.store.lease_count() > held {
                grants.extend(self.offer_deep(now, op.session, *object, 0));
            }
            self.unsettled.push_back(*object);
        }
        let mut objects = op.objects;
        for created in &changes.created {
            let object = self.store.find_or_insert(created.fid);
            self.place_made(object, created.parent);
            if !self.store.object(object).is_some_and(|found| found.has_holders()) {
                grants.extend(self.grant_created(now, op.session, object, created));
            }
            objects.push(object);
            self.unsettled.push_back(object);
        }
        let covered: Vec<Coverage> =
            objects.iter().filter_map(|object| self.covered(op.session, *object)).collect();
        self.note_told(op.session, &covered);
        self.settle(now);
        // It had expired, and one that was waiting for it has ended it.
        if !self.sessions.contains_key(&op.session) {
            return Granted::default();
        }
        Granted { leases: grants, covered }
    }

    /// A new directory is its maker's with all that it will put there.
    fn grant_created(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        created: &Created,
    ) -> Option<Grant> {
        self.leave_out_new(object, session, created.kind);
        let made = Access::change(created.fid, Cause::Data);
        let covered = self.own_reach(object, session) == Some(Mode::Write);
        if created.kind == FileKind::Directory && !covered && self.store.as_branch(object).is_some() {
            let deep = self.grant_deep(now, session, object, Mode::Write);
            if deep.is_some() {
                return deep;
            }
        }
        self.grant_changer(now, session, object, &made)
    }

    pub(super) fn grant_changer(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        access: &Access,
    ) -> Option<Grant> {
        if !self.sessions.contains_key(&session) {
            return None;
        }
        self.ask_anew_inside(now, session, object);
        self.heal(now, session, object);
        if let Some(id) = self.store.lease_of(object, session) {
            let lease = self.store.lease(id)?;
            if lease.recall == RecallState::Recalled {
                // No new promise while the old one is asked for. But who reads next has to wait for an answer that was
                // given after this change, when this session's own caches show it.
                self.store.set_mode(id, Mode::Write);
                self.leave_holes_for(object);
                self.ask_anew(now, id);
                return None;
            }
            if lease.mode == Mode::Write && access.want == Want::Nothing {
                return None;
            }
            if lease.mode == Mode::Read {
                self.store.set_mode(id, Mode::Write);
                self.leave_holes_for(object);
                self.counters.write_grants += 1;
            }
            return self.regrant(now, id).filter(|_| access.want == Want::Lease);
        }
        if self.own_reach(object, session) == Some(Mode::Write) {
            return None;
        }
        if self.may_reach(object, session) {
            // It may read the object from its caches: they have to show the change before anybody else sees it.
            self.counters.write_grants += 1;
            let grant = self.insert_lease(now, session, object, (Scope::Node, Mode::Write), Term::Session);
            self.leave_holes_for(object);
            return grant.filter(|_| access.want == Want::Lease);
        }
        if access.want == Want::Nothing || self.config.write_leases == WriteLeases::OnlyToHolders {
            return None;
        }
        if self.is_wanted(object, session, Mode::Write) {
            self.counters.refusals_contended += 1;
            return None;
        }
        let rates = self.store.object(object).and_then(|found| found.rates.as_deref());
        if rates.is_some_and(|rates| rates.backs_off(now).is_some()) {
            self.counters.refusals_back_off += 1;
            return None;
        }
        self.grant_new(now, session, object, Mode::Write)
    }

    fn grant_reader(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        access: &Access,
    ) -> Option<Grant> {
        if access.want == Want::Nothing || !self.sessions.contains_key(&session) {
            return None;
        }
        if let Some(id) = self.store.lease_of(object, session) {
            let quiet = self.store.lease(id)?.recall == RecallState::Quiet;
            return if quiet { self.regrant(now, id) } else { None };
        }
        self.heal(now, session, object);
        if self.own_reach(object, session).is_some() {
            return None;
        }
        if self.is_wanted(object, session, Mode::Read) {
            self.counters.refusals_contended += 1;
            return None;
        }
        self.grant_new(now, session, object, Mode::Read)
    }

    /// A new lease, if policy gives one.
    fn grant_new(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        mode: Mode,
    ) -> Option<Grant> {
        let fid = self.store.object(object)?.fid;
        let term = self.term_of(session, fid).term()?;
        if self.sessions.get(&session).is_none_or(|session| !session.is_good()) {
            return None;
        }
        // Given while this operation was under way.
        if self.is_excluded(object, session, mode) {
            self.counters.refusals_contended += 1;
            return None;
        }
        if !self.leases_pay(now, object) {
            self.counters.refusals_equation_8 += 1;
            return None;
        }
        if !self.make_room(now, session) {
            self.counters.refusals_full += 1;
            return None;
        }
        match mode {
            Mode::Read => self.counters.read_grants += 1,
            Mode::Write => self.counters.write_grants += 1,
        }
        self.insert_lease(now, session, object, (Scope::Node, mode), term)
    }

    pub(super) fn insert_lease(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        (scope, mode): (Scope, Mode),
        term: Term,
    ) -> Option<Grant> {
        let epoch = self.take_epoch();
        let fid = self.store.object(object)?.fid;
        let holder = self.sessions.get_mut(&session)?;
        let new = NewLease { session, object, scope, mode, epoch, now, expires: end_of(term, now) };
        self.store.add_lease(&mut holder.leases, new);
        Some(Grant { fid, scope, mode, epoch, term })
    }

    /// The same lease under a new epoch and with its term from now.
    pub(super) fn regrant(&mut self, now: Monotonic, id: LeaseId) -> Option<Grant> {
        let epoch = self.take_epoch();
        let lease = self.store.lease(id)?;
        let (session, object, mode) = (lease.session, lease.object, lease.mode);
        let fid = self.store.object(object)?.fid;
        let term = self.term_of(session, fid).term().unwrap_or(Term::Session);
        let lease = self.store.lease_mut(id)?;
        if lease.expires <= now {
            lease.since = now;
        }
        lease.epoch = epoch;
        lease.expires = end_of(term, now);
        // Keeping the order costs four cache misses; it matters only when room gets scarce.
        let holder = self.sessions.get_mut(&session)?;
        let scarce = holder.leases.len() > self.config.max_leases_per_session / 2
            || self.store.lease_count() > self.config.max_leases / 2;
        if scarce {
            self.store.freshen(&mut holder.leases, id);
        }
        self.counters.regrants += 1;
        Some(Grant { fid, scope: Scope::Node, mode, epoch, term })
    }

    /// Each session pays for its own leases: its least recently granted one goes when there are too many.
    pub(super) fn make_room(&mut self, now: Monotonic, session: SessionId) -> bool {
        let Some(holder) = self.sessions.get(&session) else { return false };
        let full = self.store.lease_count() >= self.config.max_leases;
        if !full && holder.leases.len() < self.config.max_leases_per_session {
            return true;
        }
        let mut candidate = holder.leases.oldest();
        while let Some(id) = candidate {
            let Some(lease) = self.store.lease(id) else { break };
            if lease.expires <= now {
                self.counters.expiries += 1;
                self.end_lease(id);
                return true;
            }
            if lease.recall == RecallState::Quiet {
                self.recall(now, id, None, Cause::Reclaim);
                break;
            }
            candidate = self.store.newer(id);
        }
        false
    }

    fn leases_pay(&mut self, now: Monotonic, object: ObjectId) -> bool {
        let Equation8::On { half_life, min_writes } = self.config.equation_8 else { return true };
        let Some(rates) = self.store.object_mut(object).and_then(|found| found.rates.as_deref_mut()) else {
            return true;
        };
        rates.decay(now, half_life);
        rates.leases_pay(min_writes)
    }

    /// Counts a use of an object that clients contend for.
    pub(super) fn note_use(&mut self, now: Monotonic, object: ObjectId, session: SessionId, used: Use) {
        let half_life = self.config.equation_8.half_life();
        if let Some(rates) = self.store.object_mut(object).and_then(|found| found.rates.as_deref_mut()) {
            rates.note(now, half_life, session, used);
        }
    }

    /// A lease on the object is recalled: from now on its use is worth counting.
    pub(super) fn note_contention(
        &mut self,
        now: Monotonic,
        object: ObjectId,
        holder: SessionId,
        mode: Mode,
    ) {
        if self.config.equation_8 == Equation8::Off && self.config.back_off == BackOff::Off {
            return;
        }
        let (half_life, back_off) = (self.config.equation_8.half_life(), self.config.back_off);
        let Some(found) = self.store.object_mut(object) else { return };
        let rates = found.rates.get_or_insert_with(|| Box::new(Rates::new(now)));
        rates.note(now, half_life, holder, Use::Holds);
        if mode == Mode::Write {
            rates.contended(now, back_off);
        }
    }

    /// Forgets rates that say nothing any more. Looks at this object and at a few of those seen before.
    pub(super) fn retire_rates(&mut self, now: Monotonic, object: ObjectId) {
        let Some(found) = self.store.object_mut(object) else { return };
        let in_use = found.is_in_use();
        let Some(rates) = found.rates.as_deref_mut() else { return };
        if !in_use && !rates.is_listed {
            rates.is_listed = true;
            self.cold.push_back(object);
        }
        let half_life = self.config.equation_8.half_life();
        for _ in 0..self.cold.len().min(2) {
            let Some(old) = self.cold.pop_front() else { return };
            let crowded = self.cold.len() >= MAX_COLD;
            let Some(found) = self.store.object_mut(old) else { continue };
            let in_use = found.is_in_use();
            let Some(rates) = found.rates.as_deref_mut() else { continue };
            rates.decay(now, half_life);
            if in_use {
                rates.is_listed = false;
            } else if rates.is_negligible(now) || crowded {
                found.rates = None;
                self.store.tidy(old);
            } else {
                self.cold.push_back(old);
            }
        }
    }
}

fn end_of(term: Term, now: Monotonic) -> Monotonic {
    match term {
        Term::Session => Monotonic::NEVER,
        Term::For(term) => now + term,
    }
}
