//! What is in the way of an operation. Admission, which clears it, and the view, which shows it to people, ask the same
//! questions about leases. About operations that run admission asks a count (`Running::lets_in`), which says the same.

use super::LeaseTable;
use super::admission::{Operation, Terms, exclude, others_keep};
use super::ancestry::Position;
use super::index::ObjectId;
use super::output::OpKey;
use super::placing::Reaching;
use super::rates::Intent;
use super::store::LeaseId;
use soda_types::{Mode, Monotonic, SessionId};

/// What keeps an operation that waits from running.
#[derive(Debug, Default)]
pub(super) struct Obstacles {
    /// Whose operations run, or go first.
    pub(super) operations: Vec<SessionId>,
    /// Node leases and deep ones.
    pub(super) leases: Vec<LeaseId>,
}

impl LeaseTable {
    /// What other sessions may keep of the object while the operation makes this access.
    pub(super) fn kept_beside(&self, now: Monotonic, key: OpKey, intent: Intent) -> Option<Mode> {
        // A holder with one change behind the other never gives an answer that still counts when it arrives: each change
        // makes the answers before it void. Who has nothing left to keep has nothing to change under.
        let starves = self
            .ops
            .get(&key)
            .is_some_and(|op| op.overtaken && now.since(op.arrived) >= self.config.read_patience);
        others_keep(intent).filter(|_| !starves)
    }

    /// Node leases of others that allow more than they may keep, over or not, and how many were looked at.
    pub(super) fn leases_against(
        &self,
        session: SessionId,
        object: ObjectId,
        intent: Intent,
        keep: Option<Mode>,
    ) -> (Vec<LeaseId>, u64) {
        // Only a write lease is in the way of a read, and it has no company: with a thousand readers, one more does not
        // look at each of them.
        let enough = match intent {
            Intent::Read => 1,
            Intent::Change => usize::MAX,
        };
        let mut examined = 0;
        let leases = self
            .store
            .holders(object)
            .take(enough)
            .inspect(|_| examined += 1)
            .filter_map(|id| Some((id, self.store.lease(id)?)))
            .filter(|(_, lease)| lease.session != session && Some(lease.mode) > keep)
            .map(|(id, _)| id)
            .collect();
        (leases, examined)
    }

    /// As [`LeaseTable::leases_against`], of deep leases. Who changes something of which it is not known where it lies may move
    /// it with all below: a lease with a hole for the object alone is in its way, too.
    pub(super) fn deep_against(
        &self,
        session: SessionId,
        object: ObjectId,
        keep: Option<Mode>,
    ) -> (Vec<Reaching>, u64) {
        if self.store.deep_count() == 0 {
            return (Vec::new(), 0);
        }
        let unknown = keep.is_none() && self.store.position(object) == Position::Unknown;
        let mut reaching =
            if unknown { self.store.reaching_below(object) } else { self.store.reaching(object) };
        let examined = reaching.len() as u64;
        reaching.retain(|reach| reach.session != session && Some(reach.allows) > keep);
        (reaching, examined)
    }

    /// Whether neither the lease's time is over nor its session's.
    pub(super) fn is_live(&self, now: Monotonic, id: LeaseId) -> bool {
        let lease = self.store.lease(id).filter(|lease| lease.expires > now);
        lease.and_then(|lease| self.sessions.get(&lease.session)).is_some_and(|session| session.expires > now)
    }

    /// All that is in the way of an operation, grace periods left out. Who goes first is named even where the operation's session
    /// has all leases that it needs and so need not wait for that.
    pub(super) fn obstacles(&self, now: Monotonic, key: OpKey) -> Obstacles {
        let mut found = Obstacles::default();
        let Some(op) = self.ops.get(&key) else { return found };
        for (object, access) in op.objects.iter().zip(&op.accesses) {
            let running = self.running_against(*object, access.intent).map(|running| running.session);
            found.operations.extend(running);
            // What a covered operation needs its session has.
            if op.terms != Terms::Recalling {
                continue;
            }
            let ahead = self.ahead_of(now, key, *object, access.intent).map(|ahead| ahead.session);
            found.operations.extend(ahead);
            let keep = self.kept_beside(now, key, access.intent);
            let (nodes, _) = self.leases_against(op.session, *object, access.intent, keep);
            let (deep, _) = self.deep_against(op.session, *object, keep);
            let leases = nodes.into_iter().chain(deep.into_iter().map(|reach| reach.lease));
            found.leases.extend(leases.filter(|id| self.is_live(now, *id)));
        }
        found
    }

    /// Running operations that do not let such an access in: those that `Running::lets_in` counts.
    fn running_against(&self, object: ObjectId, intent: Intent) -> impl Iterator<Item = &Operation> {
        self.ops.values().filter(move |op| {
            let mut accesses = op.objects.iter().zip(&op.accesses);
            !op.is_waiting()
                && accesses.any(|(other, access)| *other == object && exclude(access.intent, intent))
        })
    }
}
