//! Leases that somebody asked for: sent, sent again, answered, or waited out.

use super::LeaseTable;
use super::holes::Hole;
use super::index::ObjectId;
use super::output::{FenceReason, OpKey, Output};
use super::parts::DeepPart;
use super::rates::Use;
use super::sessions::SessionStanding;
use super::store::{Lease, LeaseId, RecallState};
use soda_types::{Cause, Epoch, Fid, InUse, LeasePart, Mode, Monotonic, Recall, RecallAck, Scope, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Recalls that have not been answered, by the epoch of the lease, or of the question if only part of a deep lease is asked
/// for: there are few of them at any time.
#[derive(Debug, Default)]
pub(super) struct Recalls {
    by_epoch: BTreeMap<Epoch, Outstanding>,
    /// The same by who is asked, if there are any.
    by_session: BTreeMap<SessionId, BTreeSet<Epoch>>,
    /// When to look at which one next.
    wakes: BTreeSet<(Monotonic, Epoch)>,
}

#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) lease: LeaseId,
    /// Whose lease it is.
    holder: SessionId,
    /// Of the lease.
    fid: Fid,
    /// `None`: a node lease.
    pub(super) part: Option<DeepPart>,
    /// What the holder may keep.
    pub(super) to: Option<Mode>,
    pub(super) cause: Cause,
    pub(super) since: Monotonic,
    last_sent: Monotonic,
    /// Moves on with every sign of progress.
    pub(super) deadline: Monotonic,
    wake: Monotonic,
}

impl Outstanding {
    fn new(
        now: Monotonic,
        (holder, lease): (SessionId, LeaseId),
        fid: Fid,
        to: Option<Mode>,
        cause: Cause,
    ) -> Outstanding {
        let (since, last_sent, deadline, wake) = (now, now, now, Monotonic::NEVER);
        Outstanding { lease, holder, fid, part: None, to, cause, since, last_sent, deadline, wake }
    }

    pub(super) fn of_part(
        now: Monotonic,
        lease: (SessionId, LeaseId),
        fid: Fid,
        cause: Cause,
        part: DeepPart,
    ) -> Outstanding {
        Outstanding { part: Some(part), ..Outstanding::new(now, lease, fid, part.hole.kept(), cause) }
    }

    fn message(&self, epoch: Epoch) -> Recall {
        let part = self.part.map(|part| LeasePart { fid: part.fid, scope: part.hole.scope() });
        Recall { fid: self.fid, epoch, to: self.to, cause: self.cause.clone(), part }
    }
}

/// Whether a lease is still in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocked {
    No,
    Yes,
}

impl Recalls {
    pub(super) fn get(&self, epoch: Epoch) -> Option<&Outstanding> {
        self.by_epoch.get(&epoch)
    }

    pub(super) fn next_wake(&self) -> Option<Monotonic> {
        self.wakes.first().map(|(wake, _)| *wake)
    }

    /// The leases that holders have been asked for.
    pub(super) fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.by_epoch.values().map(|outstanding| outstanding.lease)
    }

    /// Whether the session has been asked for anything.
    pub(super) fn is_asked(&self, session: SessionId) -> bool {
        self.by_session.contains_key(&session)
    }

    pub(super) fn insert(&mut self, epoch: Epoch, outstanding: Outstanding) {
        self.wakes.insert((outstanding.wake, epoch));
        self.by_session.entry(outstanding.holder).or_default().insert(epoch);
        self.by_epoch.insert(epoch, outstanding);
    }

    pub(super) fn remove(&mut self, epoch: Epoch) -> Option<Outstanding> {
        let outstanding = self.by_epoch.remove(&epoch)?;
        self.wakes.remove(&(outstanding.wake, epoch));
        if let Some(asked) = self.by_session.get_mut(&outstanding.holder) {
            asked.remove(&epoch);
            if asked.is_empty() {
                self.by_session.remove(&outstanding.holder);
            }
        }
        Some(outstanding)
    }

    /// What this asks for has come to mean more, and is about to be asked anew: the holder has as long for it as at first.
    /// But its own moves may have brought that about, so twice as long from the first time is all it gets.
    pub(super) fn renew(&mut self, now: Monotonic, epoch: Epoch, by: Duration) {
        if let Some(outstanding) = self.by_epoch.get_mut(&epoch) {
            let latest = outstanding.since + by + by;
            outstanding.deadline = outstanding.deadline.max((now + by).min(latest));
        }
    }

    /// Nobody was heard until now: holders are given so long from now on, and have been asked now.
    pub(super) fn put_off_deadlines(&mut self, now: Monotonic, by: Duration) {
        for outstanding in self.by_epoch.values_mut() {
            outstanding.deadline = outstanding.deadline.max(now + by);
            outstanding.since = outstanding.since.max(now);
        }
    }

    fn wake_at(&mut self, epoch: Epoch, wake: Monotonic) {
        if let Some(outstanding) = self.by_epoch.get_mut(&epoch) {
            self.wakes.remove(&(outstanding.wake, epoch));
            outstanding.wake = wake;
            self.wakes.insert((wake, epoch));
        }
    }
}

impl LeaseTable {
    /// Answers to recalls. Each counts for its lease alone; those of the past are ignored.
    pub fn handle_acks(&mut self, now: Monotonic, session: SessionId, acks: &[RecallAck]) {
        for ack in acks {
            self.handle_given_back(now, session, ack);
        }
        self.settle(now);
    }

    /// Leases given back unasked. The same as [`LeaseTable::handle_acks`]: a release may cross a recall on the way.
    pub fn handle_release(&mut self, now: Monotonic, session: SessionId, acks: &[RecallAck]) {
        self.handle_acks(now, session, acks);
    }

    /// The holder is at work on the recalls of these objects (a flush): their deadline starts anew.
    pub fn handle_progress(&mut self, now: Monotonic, session: SessionId, fids: &[Fid]) {
        for object in fids.iter().filter_map(|fid| self.store.find(*fid)).collect::<Vec<_>>() {
            let lease = self.store.lease_of(object, session).and_then(|id| self.store.lease(id));
            let mut epochs = self.owed_for(object, session);
            epochs.extend(lease.map(|lease| lease.epoch));
            for epoch in epochs {
                if let Some(outstanding) = self.recalls.by_epoch.get_mut(&epoch) {
                    outstanding.deadline = now + self.config.recall_deadline;
                    outstanding.last_sent = now;
                    self.counters.progress_reports += 1;
                    self.plan(now, epoch);
                }
            }
        }
    }

    /// The session has a control connection again: what was asked of it is sent at once, not at the next resend.
    pub fn handle_reconnect(&mut self, now: Monotonic, session: SessionId) {
        let asked = self.recalls.by_session.get(&session);
        let epochs: Vec<Epoch> = asked.into_iter().flatten().copied().collect();
        for epoch in epochs {
            self.resend(now, session, epoch);
            self.plan(now, epoch);
        }
    }

    fn handle_given_back(&mut self, now: Monotonic, session: SessionId, ack: &RecallAck) {
        if let Some(part) = ack.part {
            return self.handle_part_given_back(now, session, ack, part);
        }
        let object = self.store.find(ack.fid);
        if ack.in_use == InUse::Yes && self.sessions.contains_key(&session) {
            self.outputs.push_back(Output::SessionInUse { session, fid: ack.fid });
        }
        let found = object.and_then(|object| self.store.lease_of(object, session));
        let (Some(object), Some(id)) = (object, found) else {
            self.counters.stale_acks += 1;
            return;
        };
        let Some(lease) = self.store.lease(id).filter(|lease| lease.epoch == ack.epoch) else {
            self.counters.stale_acks += 1;
            return;
        };
        let (mode, recalled) = (lease.mode, lease.recall);
        // An answer to an earlier question, given before the holder heard that all of it is wanted. It may have changed the
        // object in between, and this answer does not speak of its caches after that.
        if ack.kept.is_some() && self.recalls.get(ack.epoch).is_some_and(|asked| asked.to.is_none()) {
            self.counters.stale_acks += 1;
            return;
        }
        self.counters.reported_uses += u64::from(ack.uses);
        if ack.uses > 0 {
            self.note_use(now, object, session, Use::Hits(ack.uses));
        }
        if recalled == RecallState::Quiet {
            self.counters.releases += 1;
        }
        if ack.kept < Some(mode) {
            match ack.kept {
                None => {
                    if recalled == RecallState::Recalled {
                        self.counters.acks += 1;
                    }
                    self.end_lease(id);
                    return;
                }
                Some(kept) => self.store.set_mode(id, kept),
            }
        }
        if self.recalls.get(ack.epoch).is_some_and(|outstanding| ack.kept <= outstanding.to) {
            self.counters.acks += 1;
            self.recalls.remove(ack.epoch);
            self.quiet(id);
        }
    }

    /// Asks for a lease, unless it has been asked for at least as much already.
    pub(super) fn recall(&mut self, now: Monotonic, id: LeaseId, to: Option<Mode>, cause: Cause) {
        let Some(lease) = self.store.lease_mut(id) else { return };
        let (session, epoch, object, mode) = (lease.session, lease.epoch, lease.object, lease.mode);
        if lease.scope == Scope::Subtree {
            return self.recall_part(now, id, object, Hole::new(to, Scope::Subtree), cause);
        }
        if let Some(outstanding) = self.recalls.by_epoch.get_mut(&epoch) {
            if outstanding.to <= to {
                return;
            }
            outstanding.to = to;
            outstanding.cause = cause;
            self.resend(now, session, epoch);
            self.look_again_for(session, object);
            return;
        }
        lease.recall = RecallState::Recalled;
        let Some(found) = self.store.object_mut(object) else { return };
        found.unanswered += 1;
        let fid = found.fid;
        self.counters.recalls += 1;
        self.send_new(now, session, epoch, Outstanding::new(now, (session, id), fid, to, cause));
        self.look_again_for(session, object);
        self.note_contention(now, object, session, mode);
    }

    pub(super) fn send_new(
        &mut self,
        now: Monotonic,
        session: SessionId,
        epoch: Epoch,
        mut asked: Outstanding,
    ) {
        asked.deadline = now + self.config.recall_deadline;
        self.outputs.push_back(Output::Recall { session, recall: asked.message(epoch) });
        self.recalls.insert(epoch, asked);
        self.plan(now, epoch);
    }

    /// An operation of the holder that waits for the object may be what its answer waits for: it goes first from now on.
    pub(super) fn look_again_for(&mut self, session: SessionId, object: ObjectId) {
        let Some(found) = self.store.object(object) else { return };
        let mut waiting = found.queue().filter_map(|waiter| self.ops.get(&waiter.op));
        if waiting.any(|op| op.session == session) {
            self.unsettled.push_back(object);
        }
    }

    /// The operation waits behind another holder's, and its own session's answer may wait for it (see [`super::precedence`]). It
    /// goes first once that other lease has run out by itself, which nobody is asked for: its own recall is looked at then.
    pub(super) fn look_again_when_alone(&mut self, now: Monotonic, key: OpKey, object: ObjectId) {
        let Some(op) = self.ops.get(&key).filter(|op| self.is_needed_for_an_answer(now, op)) else { return };
        let others = self.store.holders(object).filter_map(|id| self.store.lease(id));
        let ends = others.filter(|lease| lease.session != op.session && lease.expires > now);
        let Some(end) = ends.map(|lease| lease.expires).min() else { return };
        let own = self.store.lease_of(object, op.session).and_then(|id| self.store.lease(id));
        let asked = own.map(|lease| lease.epoch).into_iter().chain(self.owed_for(object, op.session));
        for epoch in asked.collect::<Vec<_>>() {
            if self.recalls.get(epoch).is_some_and(|asked| end < asked.wake) {
                self.recalls.wake_at(epoch, end);
            }
        }
    }

    /// The holder has changed the object since it was asked, and an answer that it may keep reading can be on the way
    /// that was given before: it would not speak of the caches after the change. Under a new epoch it does not count.
    pub(super) fn ask_anew(&mut self, now: Monotonic, id: LeaseId) {
        let Some(lease) = self.store.lease(id) else { return };
        let (session, old) = (lease.session, lease.epoch);
        if self.recalls.get(old).is_none_or(|outstanding| outstanding.to.is_none()) {
            return;
        }
        let epoch = self.take_epoch();
        if let Some(lease) = self.store.lease_mut(id) {
            lease.epoch = epoch;
        }
        if let Some(outstanding) = self.recalls.remove(old) {
            self.recalls.insert(epoch, outstanding);
            self.resend(now, session, epoch);
            self.plan(now, epoch);
        }
    }

    pub(super) fn resend(&mut self, now: Monotonic, session: SessionId, epoch: Epoch) {
        let Some(outstanding) = self.recalls.by_epoch.get_mut(&epoch) else { return };
        outstanding.last_sent = now;
        let recall = outstanding.message(epoch);
        self.outputs.push_back(Output::Recall { session, recall });
        self.counters.recall_resends += 1;
    }

    /// Sets the time at which the recall is looked at again: resend, end of the lease or of its session, deadline.
    pub(super) fn plan(&mut self, now: Monotonic, epoch: Epoch) {
        let Some(outstanding) = self.recalls.by_epoch.get(&epoch) else { return };
        let Some(lease) = self.store.lease(outstanding.lease) else { return };
        let mut wake = (outstanding.last_sent + self.config.recall_resend).min(lease.expires);
        if let Some(session) = self.sessions.get(&lease.session) {
            wake = wake.min(session.expires);
            if session.is_good() {
                wake = wake.min(outstanding.deadline);
            }
        }
        // Later than now in any case, or a time-out would never end.
        self.recalls.wake_at(epoch, wake.max(now + Duration::from_nanos(1)));
    }

    pub(super) fn wake_recalls(&mut self, now: Monotonic) {
        // What is looked at is planned anew for later than now, so this ends.
        while let Some((wake, epoch)) = self.recalls.wakes.first().copied()
            && wake <= now
        {
            self.wake_recall(now, epoch);
        }
    }

    fn wake_recall(&mut self, now: Monotonic, epoch: Epoch) {
        let Some(outstanding) = self.recalls.get(epoch) else { return };
        let (id, fid, part) = (outstanding.lease, outstanding.fid, outstanding.part);
        let (deadline, resend) = (outstanding.deadline, outstanding.last_sent + self.config.recall_resend);
        let Some(lease) = self.store.lease(id) else {
            self.recalls.remove(epoch);
            return;
        };
        let (session, object, expires) = (lease.session, lease.object, lease.expires);
        if expires <= now {
            self.counters.expiries += 1;
            self.end_lease(id);
            return;
        }
        let Some(holder) = self.sessions.get_mut(&session) else { return };
        if holder.expires <= now {
            // Whoever still waits for the lease finds its holder expired and fences it. If nobody does any more, the
            // lease stays by courtesy.
            self.recalls.remove(epoch);
            match part {
                None => self.quiet(id),
                Some(part) => self.withdraw_question(id, part),
            }
            self.unsettled.push_back(part.map_or(object, |part| part.object));
            return;
        }
        if deadline <= now && holder.is_good() {
            holder.standing = SessionStanding::Condemned(FenceReason::Silent(fid));
        }
        if resend <= now {
            self.resend(now, session, epoch);
        }
        self.plan(now, epoch);
        self.look_again_for(session, part.map_or(object, |part| part.object));
    }

    /// The lease is not asked for any more.
    fn quiet(&mut self, id: LeaseId) {
        let Some(lease) = self.store.lease_mut(id) else { return };
        lease.recall = RecallState::Quiet;
        let object = lease.object;
        self.one_answer(object);
    }

    pub(super) fn one_answer(&mut self, object: ObjectId) {
        if let Some(found) = self.store.object_mut(object) {
            found.unanswered = found.unanswered.saturating_sub(1);
            // With a thousand readers of one object, only the last answer can let anybody in; or the last but one, if the
            // last holder's own operation has to be done before.
            if found.unanswered <= 1 {
                self.unsettled.push_back(object);
            }
        }
    }

    /// Removes a lease. The object's queue is not looked at unless this was the last answer it waited for.
    pub(super) fn end_lease(&mut self, id: LeaseId) {
        let Some(session) = self.store.lease(id).map(|lease| lease.session) else { return };
        self.end_questions(id);
        let Some(holder) = self.sessions.get_mut(&session) else { return };
        if let Some(lease) = self.store.remove_lease(&mut holder.leases, id) {
            self.after_lease_gone(&lease);
        }
    }

    pub(super) fn after_lease_gone(&mut self, lease: &Lease) {
        if lease.recall == RecallState::Recalled {
            self.recalls.remove(lease.epoch);
            self.one_answer(lease.object);
        } else {
            self.unsettled.push_back(lease.object);
        }
    }
}
