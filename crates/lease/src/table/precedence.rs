//! Who goes before whom, where several operations wait for one object: first come first served, but for those that a
//! holder may have to see done before it can answer a recall.
//!
//! The kernel of a client that runs an operation may hold something for it (a directory's lock, a page on its way to the
//! server) that the dropping of its caches has to wait for. Suppose operation R waits for B's answer to a recall, and B's
//! operation R' uses the same object: behind R it would wait for its own machine. So R' goes first.
//!
//! * *Nobody starves.* R' goes first only until its session has answered; while R waits the session gets no new lease on the
//!   object (`is_wanted`). A session that does not answer but sends operation after operation loses the precedence at the
//!   recall's first deadline; reports of progress do not extend it.
//! * *No circle.* An operation is let pass others, it is never made to wait for one that came later. So whoever waits in a
//!   queue still waits for an earlier one only.
//! * *When both are holders* (R's own session has a lease that R' would need recalled) neither machine can give way, and
//!   letting R' go first would only make two stuck recalls of one. Then the order of arrival decides.
//! * *Pages that are written back* go before everything that is not a write-back, whoever holds what: B's kernel drops no
//!   page before, and a page is written as a whole. Behind R, a write of another machine, it would take back what R wrote. R's
//!   machine can answer for the file while R waits: only write-backs and reads keep pages locked.

use super::admission::{Operation, exclude, others_keep};
use super::index::ObjectId;
use super::output::Origin;
use super::store::{Lease, RecallState};
use super::{Intent, LeaseTable, OpKey};
use soda_types::{Monotonic, SessionId};

impl LeaseTable {
    /// The operations in the object's queue that this one has to let pass: earlier ones that conflict with it.
    pub(super) fn ahead_of(
        &self,
        now: Monotonic,
        key: OpKey,
        object: ObjectId,
        intent: Intent,
    ) -> impl Iterator<Item = &Operation> {
        let op = self.ops.get(&key);
        let hurries = op.is_some_and(|op| self.is_needed_for_an_answer(now, op));
        let queue = self.store.object(object).into_iter().flat_map(|found| found.queue());
        queue
            .take_while(move |waiter| waiter.op != key)
            .filter(move |waiter| exclude(waiter.intent, intent))
            .filter_map(|waiter| self.ops.get(&waiter.op))
            .filter(move |earlier| !hurries || op.is_some_and(|op| self.needs_lease_of(now, op, earlier)))
    }

    /// The session has been asked for its lease on one of the operation's objects, and has not answered in the time that it
    /// is given for that.
    pub(super) fn is_needed_for_an_answer(&self, now: Monotonic, op: &Operation) -> bool {
        op.objects.iter().any(|object| {
            self.live_lease(now, *object, op.session).is_some_and(|lease| {
                lease.recall == RecallState::Recalled
                    && self
                        .recalls
                        .get(lease.epoch)
                        .is_some_and(|asked| now < asked.since + self.config.recall_deadline)
            }) || self.owed_for(*object, op.session).into_iter().any(|epoch| {
                self.recalls.get(epoch).is_some_and(|asked| now < asked.since + self.config.recall_deadline)
            })
        })
    }

    /// `op` cannot run before the other's session has given up a lease on an object that both use.
    fn needs_lease_of(&self, now: Monotonic, op: &Operation, other: &Operation) -> bool {
        op.session != other.session
            && op.objects.iter().zip(&op.accesses).any(|(object, access)| {
                other.objects.contains(object)
                    && (access.origin == Origin::Call || other.is_write_back())
                    && (self
                        .live_lease(now, *object, other.session)
                        .is_some_and(|lease| Some(lease.mode) > others_keep(access.intent))
                        || self.own_reach(*object, other.session) > others_keep(access.intent))
            })
    }

    fn live_lease(&self, now: Monotonic, object: ObjectId, session: SessionId) -> Option<&Lease> {
        let lease = self.store.lease(self.store.lease_of(object, session)?)?;
        (lease.expires > now).then_some(lease)
    }
}
