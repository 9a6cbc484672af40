//! The queue: which operation may run now.

use super::LeaseTable;
use super::index::ObjectId;
use super::output::{Access, Ancestors, FenceReason, OpKey, Origin, Output, Refusal, Want};
use super::rates::{Intent, Use};
use super::recalls::Blocked;
use super::sessions::SessionStanding;
use super::store::{LeaseId, Waiter};
use soda_types::{Cause, Mode, Monotonic, SessionId};

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) session: SessionId,
    /// One for each object, sorted by fid.
    pub(super) accesses: Vec<Access>,
    pub(super) objects: Vec<ObjectId>,
    pub(super) arrived: Monotonic,
    pub(super) state: OpState,
    /// A change of a holder has gone ahead of it.
    pub(super) overtaken: bool,
    pub(super) terms: Terms,
}

/// On what terms an operation is admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Terms {
    /// What is in its way is recalled.
    Recalling,
    /// As long as its session holds what it has to hold: what each object is to it.
    Covered(Vec<Part>),
}

/// What an object is to a covered operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Part {
    Held,
    Made,
    Alone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpState {
    Waiting,
    Admitted,
}

impl Operation {
    pub(super) fn is_waiting(&self) -> bool {
        self.state == OpState::Waiting
    }

    pub(super) fn is_write_back(&self) -> bool {
        self.accesses.iter().any(|access| access.origin == Origin::WriteBack)
    }
}

/// Two operations, or an operation and a lease, exclude each other unless both only read.
pub(super) fn exclude(one: Intent, other: Intent) -> bool {
    one == Intent::Change || other == Intent::Change
}

/// The lease that allows an access without asking.
pub(super) fn mode_for(intent: Intent) -> Mode {
    match intent {
        Intent::Read => Mode::Read,
        Intent::Change => Mode::Write,
    }
}

/// What another session may keep while the access is made.
pub(super) fn others_keep(intent: Intent) -> Option<Mode> {
    match intent {
        Intent::Read => Some(Mode::Read),
        Intent::Change => None,
    }
}

impl LeaseTable {
    /// An operation of the session wants to run. [`Output::Admit`] follows, at once or later, or [`Output::Refuse`].
    ///
    /// Several accesses to one object count as one, the strongest. An operation without accesses is admitted at once.
    pub fn request(&mut self, now: Monotonic, session: SessionId, op: OpKey, accesses: Vec<Access>) {
        debug_assert!(!self.ops.contains_key(&op), "{op:?} is in use");
        if !self.sessions.get(&session).is_some_and(|session| session.is_good()) {
            self.outputs.push_back(Output::Refuse(op, Refusal::SessionEnded));
            return;
        }
        let accesses = merged(accesses);
        let objects: Vec<ObjectId> =
            accesses.iter().map(|access| self.store.find_or_insert(access.fid)).collect();
        for (object, access) in objects.iter().zip(&accesses) {
            self.place(*object, &access.ancestors);
        }
        self.ops.insert(
            op,
            Operation {
                session,
                accesses,
                objects,
                arrived: now,
                state: OpState::Waiting,
                overtaken: false,
                terms: Terms::Recalling,
            },
        );
        self.enter(now, op);
    }

    /// Admits a new operation or has it wait.
    pub(super) fn enter(&mut self, now: Monotonic, op: OpKey) {
        if self.examine(now, op) == Verdict::Waits {
            self.counters.waits += 1;
            self.enqueue(op);
        }
        // After the recalls, so that the use which made an object contended is the first that counts.
        self.note_uses(now, op);
        self.settle(now);
    }

    fn note_uses(&mut self, now: Monotonic, op: OpKey) {
        let Some(op) = self.ops.get(&op) else { return };
        let (session, mut uses) = (op.session, Vec::new());
        for (access, &object) in op.accesses.iter().zip(&op.objects) {
            if self.store.object(object).is_none_or(|found| found.rates.is_none()) {
                continue;
            }
            let is_leased = || {
                self.store.lease_of(object, session).is_some() || self.own_reach(object, session).is_some()
            };
            uses.push((
                object,
                match access.intent {
                    Intent::Read => Use::Read { what: access.seen, is_leased: is_leased() },
                    Intent::Change => Use::Change,
                },
            ));
        }
        for (object, used) in uses {
            self.note_use(now, object, session, used);
        }
    }

    /// Gives up an operation that still waits: no `Admit` follows. An admitted one is not stopped; finish it.
    pub fn cancel(&mut self, now: Monotonic, op: OpKey) {
        if self.ops.get(&op).is_some_and(Operation::is_waiting) {
            self.remove_waiting(op);
            self.settle(now);
        }
    }

    /// Lets every queue move as far as it can.
    pub(super) fn settle(&mut self, now: Monotonic) {
        self.relieve_crowds(now);
        while let Some(object) = self.unsettled.pop_front() {
            self.settle_object(now, object);
            self.retire_rates(now, object);
            self.store.tidy(object);
        }
        self.store.tidy_all();
    }

    fn settle_object(&mut self, now: Monotonic, object: ObjectId) {
        let Some(found) = self.store.object(object) else { return };
        if found.queue_len() == 0 {
            return;
        }
        let waiters: Vec<Waiter> = found.queue().copied().collect();
        let mut shut = false;
        for waiter in waiters {
            // Behind a change that waits only an operation that goes before it can move.
            let hurries = |op| self.is_needed_for_an_answer(now, op);
            let verdict = if shut && !self.ops.get(&waiter.op).is_some_and(hurries) {
                self.examine_covered(now, waiter.op)
            } else {
                self.examine(now, waiter.op)
            };
            shut |= verdict == Verdict::Waits && waiter.intent == Intent::Change;
        }
    }

    /// Admits the operation if nothing is in its way, or else starts what clears it.
    fn examine(&mut self, now: Monotonic, key: OpKey) -> Verdict {
        if let Some(verdict) = self.examine_covered_or(now, key) {
            return verdict;
        }
        let Some(op) = self.ops.get(&key) else { return Verdict::Gone };
        let session = op.session;
        let steps: Vec<(ObjectId, Intent)> =
            op.objects.iter().zip(&op.accesses).map(|(object, access)| (*object, access.intent)).collect();
        let mut clear = self.grace.is_none();
        if !clear {
            return Verdict::Waits;
        }
        for (at, (object, intent)) in steps.into_iter().enumerate() {
            if self.ahead_of(now, key, object, intent).next().is_some() {
                self.look_again_when_alone(now, key, object);
                clear = false;
                continue;
            }
            clear &= self.store.object(object).is_none_or(|found| found.running.lets_in(intent));
            clear &= self.clear_leases(now, session, object, intent, (key, at)) == Blocked::No;
        }
        // Fencing a holder cannot end this operation's own session: its own leases are never in its way.
        if clear { self.admit(now, key) } else { Verdict::Waits }
    }

    fn examine_covered(&mut self, now: Monotonic, key: OpKey) -> Verdict {
        self.examine_covered_or(now, key).unwrap_or(Verdict::Waits)
    }

    /// The verdict if the operation has ended, been admitted, or can be as a covered one.
    fn examine_covered_or(&mut self, now: Monotonic, key: OpKey) -> Option<Verdict> {
        let Some(op) = self.ops.get(&key) else { return Some(Verdict::Gone) };
        if !op.is_waiting() {
            return Some(Verdict::Gone);
        }
        if let Terms::Covered(parts) = &op.terms {
            let standing = self.standing_of(now, op, parts);
            return Some(self.examine_told(now, key, standing));
        }
        let mut pairs = op.objects.iter().zip(&op.accesses);
        // One without accesses conflicts with nothing, in the grace period neither: nobody would look at it at its end.
        let covered = pairs.all(|(object, access)| {
            let lease = self.store.lease_of(*object, op.session).and_then(|id| self.store.lease(id));
            let by_node =
                lease.is_some_and(|lease| lease.mode >= mode_for(access.intent) && lease.expires > now);
            (by_node || self.is_covered_deep(*object, op.session, access.intent))
                && self.store.object(*object).is_some_and(|found| found.running.lets_in(access.intent))
        });
        if !covered {
            return None;
        }
        self.note_overtaken(key);
        self.counters.admissions_covered += 1;
        Some(self.admit(now, key))
    }

    /// A covered operation goes ahead: of those who wait for what it changes.
    pub(super) fn note_overtaken(&mut self, key: OpKey) {
        let Some(op) = self.ops.get(&key) else { return };
        let changed =
            op.objects.iter().zip(&op.accesses).filter(|(_, access)| access.intent == Intent::Change);
        let queues =
            changed.filter_map(|(object, _)| self.store.object(*object)).flat_map(|found| found.queue());
        let waiting: Vec<OpKey> = queues.map(|waiter| waiter.op).filter(|waiter| *waiter != key).collect();
        for waiter in waiting {
            if let Some(op) = self.ops.get_mut(&waiter) {
                op.overtaken = true;
            }
        }
    }

    /// Makes sure that every lease of others that is in the way is being recalled, or is gone.
    fn clear_leases(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        intent: Intent,
        asker: (OpKey, usize),
    ) -> Blocked {
        let keep = self.kept_beside(now, asker.0, intent);
        let (in_the_way, examined) = self.leases_against(session, object, intent, keep);
        self.counters.leases_examined += examined;
        let mut blocked = Blocked::No;
        for id in in_the_way {
            if self.still_holds(now, id, object) {
                let cause = self.cause_of(asker);
                self.recall(now, id, keep, cause);
                blocked = Blocked::Yes;
            }
        }
        match self.clear_deep(now, session, object, keep, asker) {
            Blocked::No => blocked,
            Blocked::Yes => Blocked::Yes,
        }
    }

    /// Ends a lease in the way of whoever needs the object, if its time is over or its session's is.
    pub(super) fn still_holds(&mut self, now: Monotonic, id: LeaseId, object: ObjectId) -> bool {
        let Some(lease) = self.store.lease(id) else { return false };
        let holder = lease.session;
        if lease.expires <= now {
            self.counters.expiries += 1;
            self.end_lease(id);
            return false;
        }
        let Some(held_by) = self.sessions.get(&holder) else { return false };
        if held_by.expires <= now {
            let fid = self.store.object(object).map(|found| found.fid).unwrap_or_default();
            let reason = match held_by.standing {
                SessionStanding::Good => FenceReason::Expired(fid),
                SessionStanding::Condemned(reason) => reason,
            };
            self.fence(holder, reason);
            return false;
        }
        true
    }

    pub(super) fn cause_of(&self, (key, at): (OpKey, usize)) -> Cause {
        self.ops
            .get(&key)
            .and_then(|op| op.accesses.get(at))
            .map_or(Cause::Reclaim, |access| access.cause.clone())
    }

    pub(super) fn admit(&mut self, now: Monotonic, key: OpKey) -> Verdict {
        let Some(op) = self.ops.get_mut(&key) else { return Verdict::Gone };
        op.state = OpState::Admitted;
        let waited = now.since(op.arrived);
        for (object, access) in op.objects.iter().zip(&op.accesses) {
            if let Some(found) = self.store.object_mut(*object) {
                found.dequeue(key);
                found.running.enter(access.intent);
            }
        }
        self.counters.admissions += 1;
        self.counters.waited += waited;
        self.counters.longest_wait = self.counters.longest_wait.max(waited);
        self.outputs.push_back(Output::Admit(key));
        Verdict::Admitted
    }

    fn enqueue(&mut self, key: OpKey) {
        let Some(op) = self.ops.get(&key) else { return };
        for (object, access) in op.objects.iter().zip(&op.accesses) {
            if let Some(found) = self.store.object_mut(*object) {
                found.enqueue(Waiter { op: key, intent: access.intent });
            }
        }
    }

    /// Takes a waiting operation out of all queues.
    pub(super) fn remove_waiting(&mut self, key: OpKey) {
        let Some(op) = self.ops.remove(&key) else { return };
        for object in op.objects {
            if let Some(found) = self.store.object_mut(object) {
                found.dequeue(key);
            }
            self.unsettled.push_back(object);
        }
    }

    /// Somebody else waits for the object in a way that excludes a lease of this mode.
    pub(super) fn is_wanted(&self, object: ObjectId, session: SessionId, mode: Mode) -> bool {
        let Some(found) = self.store.object(object) else { return false };
        found.queue().any(|waiter| {
            let excluded = mode == Mode::Write || waiter.intent == Intent::Change;
            excluded && self.ops.get(&waiter.op).is_some_and(|op| op.session != session)
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Admitted,
    Waits,
    /// Not waiting (any more).
    Gone,
}

fn merged(mut accesses: Vec<Access>) -> Vec<Access> {
    if accesses.len() > 1 {
        accesses.sort_by(|one, other| (one.fid, other.intent).cmp(&(other.fid, one.intent)));
        accesses.dedup_by(|weaker, stronger| {
            let same = weaker.fid == stronger.fid;
            if same && weaker.want == Want::Lease {
                stronger.want = Want::Lease;
            }
            if same && stronger.ancestors == Ancestors::Unknown {
                stronger.ancestors = std::mem::take(&mut weaker.ancestors);
            }
            if same && let (Cause::Names(more), Cause::Names(names)) = (&weaker.cause, &mut stronger.cause) {
                names.extend(more.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
            }
            same
        });
    }
    accesses
}
