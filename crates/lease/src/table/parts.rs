//! Recalls of part of a deep lease: one object, or a directory and all below it. There can be many for one lease, so each is a
//! question with an epoch of its own as its name, and is never altered: a question for more is a new one.

use super::admission::mode_for;
use super::holes::Hole;
use super::index::ObjectId;
use super::rates::Use;
use super::recalls::{Blocked, Outstanding};
use super::store::LeaseId;
use super::{Intent, LeaseTable, OpKey};
use soda_types::{Cause, Epoch, Fid, InUse, LeasePart, Mode, Monotonic, RecallAck, SessionId};

/// Which part of a deep lease is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeepPart {
    pub(super) object: ObjectId,
    pub(super) fid: Fid,
    pub(super) hole: Hole,
}

impl LeaseTable {
    /// Makes sure that every deep lease of others that reaches the object in the way is being asked, or is gone.
    pub(super) fn clear_deep(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        keep: Option<Mode>,
        asker: (OpKey, usize),
    ) -> Blocked {
        let (in_the_way, examined) = self.deep_against(session, object, keep);
        self.counters.leases_examined += examined;
        let mut blocked = Blocked::No;
        for reach in in_the_way {
            let hole = self.hole_at(object, keep);
            if !self.leave_out_untold(now, reach.lease, object, hole)
                && self.still_holds(now, reach.lease, object)
            {
                let cause = self.cause_of(asker);
                self.recall_part(now, reach.lease, object, hole, cause);
                blocked = Blocked::Yes;
            }
        }
        blocked
    }

    /// Asks for an object out of a deep lease, or for a directory with all below it: if it is the lease's own, that is all of it.
    pub(super) fn recall_part(
        &mut self,
        now: Monotonic,
        id: LeaseId,
        object: ObjectId,
        hole: Hole,
        cause: Cause,
    ) {
        let Some(lease) = self.store.lease(id) else { return };
        let (session, root, mode) = (lease.session, lease.object, lease.mode);
        let root = self.store.object(root).map(|found| found.fid).unwrap_or_default();
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        if let Some((epoch, asked)) = self.store.deep(id).and_then(|deep| deep.asked(fid)) {
            if asked < hole {
                self.ask_for(now, epoch, hole, cause);
                self.look_again_for(session, object);
            }
            return;
        }
        if let Some(found) = self.store.object_mut(object) {
            found.unanswered += 1;
        }
        let epoch = self.take_epoch();
        if let Some(deep) = self.store.deep_mut(id) {
            deep.ask(fid, epoch, hole);
        }
        self.counters.recalls += 1;
        self.counters.recalls_inside += 1;
        self.send_new(
            now,
            session,
            epoch,
            Outstanding::of_part(now, (session, id), root, cause, DeepPart { object, fid, hole }),
        );
        self.look_again_for(session, object);
        self.note_contention(now, object, session, mode);
    }

    /// Puts a question in another's place: answers to that one do not count any more. One for more of the lease is a new
    /// question, of which there are two at most before the next answer. For the same the deadline stays: the holder's own
    /// changes may be why it is asked anew, and it could go on with these for ever.
    fn ask_for(&mut self, now: Monotonic, old: Epoch, hole: Hole, cause: Cause) {
        let Some(mut outstanding) = self.recalls.remove(old) else { return };
        let Some(session) = self.store.lease(outstanding.lease).map(|lease| lease.session) else { return };
        let epoch = self.take_epoch();
        if let (Some(part), Some(deep)) = (&mut outstanding.part, self.store.deep_mut(outstanding.lease)) {
            deep.ask(part.fid, epoch, hole);
            if part.hole < hole {
                outstanding.since = now;
                outstanding.deadline = now + self.config.recall_deadline;
            }
            part.hole = hole;
        }
        outstanding.to = hole.kept();
        outstanding.cause = cause;
        self.recalls.insert(epoch, outstanding);
        self.resend(now, session, epoch);
        self.plan(now, epoch);
    }

    /// As [`LeaseTable::ask_anew`] for all that is being asked of a deep lease, which stands for more by now.
    pub(super) fn ask_all_anew(&mut self, now: Monotonic, lease: LeaseId) {
        let asked: Vec<(Epoch, Hole)> =
            self.store.deep(lease).into_iter().flat_map(|deep| deep.all_asked()).collect();
        for (epoch, hole) in asked {
            self.recalls.renew(now, epoch, self.config.recall_deadline);
            let cause = self.recalls.get(epoch).map_or(Cause::Reclaim, |asked| asked.cause.clone());
            self.ask_for(now, epoch, hole, cause);
        }
    }

    /// As [`LeaseTable::ask_anew`] for deep leases of the session that reach the object.
    pub(super) fn ask_anew_inside(&mut self, now: Monotonic, session: SessionId, object: ObjectId) {
        if self.store.deep_count() == 0 {
            return;
        }
        let Some(fid) = self.store.object(object).map(|found| found.fid) else { return };
        for lease in self.store.deep_on_path(object, session) {
            let asked = self.store.deep(lease).and_then(|deep| deep.asked(fid));
            if let Some((epoch, hole @ Hole::KeepsReading)) = asked {
                let cause = self.recalls.get(epoch).map_or(Cause::Reclaim, |asked| asked.cause.clone());
                self.ask_for(now, epoch, hole, cause);
            }
        }
    }

    /// The epochs of the questions about the object that the session has not answered.
    pub(super) fn owed_for(&self, object: ObjectId, session: SessionId) -> Vec<Epoch> {
        let leases = self.store.deep_on_path(object, session);
        if leases.is_empty() {
            return Vec::new();
        }
        let path = self.store.path(object);
        let deep = leases.iter().filter_map(|id| self.store.deep(*id));
        deep.flat_map(|deep| deep.owed(&path).collect::<Vec<_>>()).collect()
    }

    /// A deep lease of the session allows the access. In a grace period it may have holes that nobody has told of.
    pub(super) fn is_covered_deep(&self, object: ObjectId, session: SessionId, intent: Intent) -> bool {
        self.grace.is_none() && self.own_reach(object, session) >= Some(mode_for(intent))
    }

    pub(super) fn handle_part_given_back(
        &mut self,
        now: Monotonic,
        session: SessionId,
        ack: &RecallAck,
        told: LeasePart,
    ) {
        let fid = told.fid;
        if ack.in_use == InUse::Yes && self.sessions.contains_key(&session) {
            self.outputs.push_back(super::Output::SessionInUse { session, fid });
        }
        let all_of_it = told == LeasePart::tree(ack.fid) && ack.kept.is_none();
        let asked = self.recalls.get(ack.epoch).and_then(|asked| {
            let held_by = self.store.lease(asked.lease).map(|lease| lease.session);
            (held_by == Some(session)).then_some((asked.lease, asked.part?))
        });
        let Some((lease, part)) = asked else {
            let held = self.store.find(ack.fid).and_then(|object| self.store.deep_lease_of(object, session));
            match held.filter(|id| self.store.lease(*id).is_some_and(|lease| lease.epoch == ack.epoch)) {
                Some(id) if all_of_it => {
                    self.counters.releases += 1;
                    self.end_lease(id);
                }
                Some(id) if told == LeasePart::tree(ack.fid) => self.lower_whole(now, id, ack.kept),
                _ => self.counters.stale_acks += 1,
            }
            return;
        };
        if all_of_it {
            self.counters.acks += 1;
            self.end_lease(lease);
            return;
        }
        let hole = Hole::new(ack.kept, told.scope);
        if part.fid != fid || hole < part.hole {
            self.counters.stale_acks += 1;
            return;
        }
        self.counters.acks += 1;
        self.counters.reported_uses += u64::from(ack.uses);
        if ack.uses > 0 {
            self.note_use(now, part.object, session, Use::Hits(ack.uses));
        }
        self.recalls.remove(ack.epoch);
        let mode = self.store.lease(lease).map(|lease| lease.mode);
        let directory = self.store.parent(part.object);
        let Some(deep) = self.store.deep_mut(lease) else { return };
        deep.forget_question(fid);
        if ack.kept < mode {
            self.store.add_hole(lease, fid, hole, directory);
            self.counters.holes += 1;
        }
        if hole == Hole::Tree {
            self.close_below(lease, fid);
        }
        let holes = self.store.deep(lease).map_or(0, |deep| deep.holes().len());
        self.crowded.extend(directory.map(|directory| (lease, directory)));
        self.one_answer(part.object);
        self.give_up_if_too_full(now, lease, holes);
    }

    /// The holder keeps no more of all that the lease covers than this, unasked. Who waits for single objects goes on waiting for
    /// the answers about these.
    fn lower_whole(&mut self, now: Monotonic, id: LeaseId, kept: Option<Mode>) {
        self.counters.releases += 1;
        let Some((lease, kept)) = self.store.lease(id).zip(kept) else { return };
        let (root, session, mode) = (lease.object, lease.session, lease.mode);
        if kept >= mode {
            return;
        }
        self.store.set_mode(id, kept);
        self.store.forget_holes_that_keep(id, kept);
        self.counters.deep_lowered += 1;
        self.note_contention(now, root, session, mode);
    }

    /// Its holder is asked for it; if that is away, it is ended.
    pub(super) fn give_up_if_too_full(&mut self, now: Monotonic, lease: LeaseId, holes: usize) {
        if holes > self.config.most_holes()
            && let Some(root) = self.store.lease(lease).map(|lease| lease.object)
            && self.still_holds(now, lease, root)
        {
            self.recall_part(now, lease, root, Hole::Tree, Cause::Reclaim);
        }
    }

    /// Nobody needs the answer any more, or it will not come.
    pub(super) fn withdraw_question(&mut self, lease: LeaseId, part: DeepPart) {
        if let Some(deep) = self.store.deep_mut(lease) {
            deep.forget_question(part.fid);
        }
        self.one_answer(part.object);
    }

    /// The lease is about to end, and what was asked of it has its answer.
    pub(super) fn end_questions(&mut self, lease: LeaseId) {
        let Some(deep) = self.store.deep(lease) else { return };
        for epoch in deep.questions().collect::<Vec<_>>() {
            if let Some(part) = self.recalls.remove(epoch).and_then(|asked| asked.part) {
                self.one_answer(part.object);
            }
        }
    }
}
