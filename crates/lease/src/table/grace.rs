//! After a restart: the table was memory and is gone, the list of sessions was on disk. Clients say what they held.
//!
//! Until all known sessions have done so, or their time is over, nothing is admitted but operations that a reclaimed
//! lease covers: those cannot conflict with a lease that is not reclaimed yet.

use super::output::{Ancestors, FenceReason, SessionEnded};
use super::sessions::SessionStanding;
use super::store::{Lease, RecallState};
use super::{LeaseTable, OpKey};
use soda_types::{Grant, Mode, Monotonic, ObjectTerm, Scope, SessionId, Term};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Grace {
    /// Known sessions that have not finished reclaiming, and when the last batch of each came.
    pub(super) missing: BTreeMap<SessionId, Option<Monotonic>>,
    /// The end of the period; later while a session is at work on its reclaim, or had come back, did not finish and has a
    /// lease to run out.
    pub(super) wake: Monotonic,
    /// Nobody is waited for beyond, at work or not.
    latest: Monotonic,
}

/// A session whose last batch is no older than this part of the grace period is at work.
const AT_WORK: u32 = 4;
/// How many grace periods those who are at work get at most.
const LATEST: u32 = 4;

impl LeaseTable {
    /// Starts the grace period. `known` are the sessions of the list on disk; they count as just renewed, since they
    /// may have been so right before the restart.
    pub fn begin_grace(&mut self, now: Monotonic, known: impl IntoIterator<Item = SessionId>) {
        let missing: BTreeMap<SessionId, _> = known.into_iter().map(|session| (session, None)).collect();
        for session in missing.keys() {
            self.open_session(now, *session);
        }
        if !missing.is_empty() {
            let grace = self.config.grace;
            let latest = now + grace.saturating_mul(LATEST);
            self.grace = Some(Grace { missing, wake: now + grace, latest });
        }
    }

    /// Leases that the session held before the restart: for each, in order, what it is now, or nothing. May come in
    /// batches and more than once. Without a restart it says what the session still holds.
    ///
    /// # Errors
    /// The session is not known; all it held is void.
    pub fn handle_reclaim(
        &mut self,
        now: Monotonic,
        session: SessionId,
        held: &[Grant],
    ) -> Result<Vec<Option<Grant>>, SessionEnded> {
        let unplaced: Vec<_> = held.iter().map(|grant| (*grant, Ancestors::Unknown)).collect();
        self.handle_reclaim_placed(now, session, &unplaced)
    }

    /// As [`LeaseTable::handle_reclaim`], with the directories above each object. A deep lease comes back only with these; its
    /// holes nobody has to tell: they are where others reclaim what would be in its way.
    ///
    /// # Errors
    /// The session is not known; all it held is void.
    pub fn handle_reclaim_placed(
        &mut self,
        now: Monotonic,
        session: SessionId,
        held: &[(Grant, Ancestors)],
    ) -> Result<Vec<Option<Grant>>, SessionEnded> {
        if !self.sessions.get(&session).is_some_and(|session| session.is_good()) {
            return Err(SessionEnded);
        }
        if let Some(batch) = self.grace.as_mut().and_then(|grace| grace.missing.get_mut(&session)) {
            *batch = Some(now);
        }
        Ok(held
            .iter()
            .map(|(grant, ancestors)| match grant.scope {
                Scope::Node => self.reclaim_one(now, session, grant, ancestors),
                Scope::Subtree => self.reclaim_deep(now, session, grant, ancestors),
            })
            .collect())
    }

    /// The session has reclaimed all it wants.
    pub fn finish_reclaim(&mut self, now: Monotonic, session: SessionId) {
        if let Some(grace) = &mut self.grace {
            grace.missing.remove(&session);
            self.end_grace_if_complete(now);
            self.settle(now);
        }
    }

    /// What is left of the grace period.
    pub fn grace_left(&self, now: Monotonic) -> Option<Duration> {
        self.grace.as_ref().map(|grace| grace.wake.since(now))
    }

    fn reclaim_one(
        &mut self,
        now: Monotonic,
        session: SessionId,
        held: &Grant,
        ancestors: &Ancestors,
    ) -> Option<Grant> {
        let object = self.store.find(held.fid);
        if let Some(id) = object.and_then(|object| self.store.lease_of(object, session)) {
            let lease = self.store.lease(id)?;
            let quiet = lease.recall == RecallState::Quiet && lease.expires > now;
            return if quiet { self.regrant(now, id) } else { None };
        }
        let allowed = self.may_reclaim(session, held);
        let Some(term) = self.term_of(session, held.fid).term().filter(|_| allowed) else {
            self.counters.reclaims_refused += 1;
            return None;
        };
        let object = self.store.find_or_insert(held.fid);
        let excludes = |lease: &Lease| held.mode == Mode::Write || lease.mode == Mode::Write;
        self.place(object, ancestors);
        let conflict = self.store.first_holder(object).is_some_and(excludes);
        if conflict || (held.mode == Mode::Write && self.is_deep_for_others(object, session, Mode::Write)) {
            self.counters.reclaims_refused += 1;
            self.store.tidy(object);
            return None;
        }
        self.counters.reclaims += 1;
        let lease = (Scope::Node, held.mode);
        let grant = self.insert_lease(now, session, object, lease, term);
        self.leave_holes_for(object);
        grant
    }

    fn may_reclaim(&self, session: SessionId, held: &Grant) -> bool {
        let waits = self.grace.as_ref().is_some_and(|grace| grace.missing.contains_key(&session));
        // No earlier start can have given out such an epoch: whoever claims it is wrong about more than this lease.
        let impossible = held.epoch >= self.first_epoch;
        waits && !impossible
    }

    /// Leases did not conflict before the restart, so where others have reclaimed something inside there was a hole.
    fn reclaim_deep(
        &mut self,
        now: Monotonic,
        session: SessionId,
        held: &Grant,
        ancestors: &Ancestors,
    ) -> Option<Grant> {
        let known = self.store.find(held.fid).and_then(|object| self.store.deep_lease_of(object, session));
        if let Some(id) = known {
            return self.store.lease(id).map(|lease| self.grant_of(lease));
        }
        let object = self.store.find_or_insert(held.fid);
        self.place(object, ancestors);
        // On the directory itself a hole keeps reading at least: without that there is no lease.
        let taken = self.store.held_on_by_others(object, session).writes > 0
            || self.is_deep_for_others(object, session, held.mode);
        let placed = self.store.as_branch(object).is_some();
        let long = self.term_of(session, held.fid) == ObjectTerm::Session;
        if !self.may_reclaim(session, held) || !long || !placed || taken {
            self.counters.reclaims_refused += 1;
            self.store.tidy(object);
            return None;
        }
        self.counters.reclaims += 1;
        let grant = self.insert_lease(now, session, object, (Scope::Subtree, held.mode), Term::Session);
        self.leave_holes_inside(object, session);
        if let Some(holder) = self.sessions.get_mut(&session) {
            holder.told.add_everything();
        }
        grant
    }

    pub(super) fn wake_grace(&mut self, now: Monotonic) {
        let Some(grace) = &self.grace else { return };
        if grace.wake > now {
            return;
        }
        // Whoever came back and did not finish believes in its lease until that has run out: nobody may go on before. A
        // long reclaim that gets on is not cut off: it would have to be done again from the start.
        let patience = self.config.grace / AT_WORK;
        let latest = grace.latest;
        let at_work = |batch: &Option<Monotonic>| {
            batch.map(|batch| batch + patience).filter(|end| *end > now && now < latest)
        };
        let missing: Vec<_> = grace.missing.iter().map(|(id, batch)| (*id, at_work(batch))).collect();
        let mut wake = now;
        for (id, at_work) in missing {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            if let Some(end) = at_work
                && session.is_good()
            {
                wake = wake.max(end.min(latest));
                continue;
            }
            session.standing = SessionStanding::Condemned(FenceReason::NotReclaimed);
            if session.expires <= now {
                self.fence(id, FenceReason::NotReclaimed);
            } else {
                wake = wake.max(session.expires);
            }
        }
        if let Some(grace) = &mut self.grace {
            grace.wake = wake;
        }
        self.end_grace_if_complete(now);
    }

    pub(super) fn end_grace_if_complete(&mut self, _now: Monotonic) {
        if self.grace.as_ref().is_some_and(|grace| grace.missing.is_empty()) {
            self.grace = None;
            let waiting: Vec<OpKey> =
                self.ops.iter().filter(|(_, op)| op.is_waiting()).map(|(key, _)| *key).collect();
            for key in waiting {
                if let Some(op) = self.ops.get(&key) {
                    self.unsettled.extend(op.objects.iter().copied());
                }
            }
        }
    }
}
