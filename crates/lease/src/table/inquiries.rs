//! Attributes asked of the holder of a write lease, instead of the lease.
//!
//! Who only wants to know what an object is like (stat(2)) needs no lease on it, and its holder need not give one up: the holder
//! says what the object is like at that moment. The answer is true whatever became of the lease since, because the question is
//! younger than the operation that waits for it. It is worth a round trip only if the holder delays its changes: of any other
//! the server knows as much, once it has been asked for the lease.
//!
//! An inquiry waits in no queue and keeps nobody waiting. If the holder does not answer in a while, or cannot, the operation
//! goes the way of all others, which has the lease recalled.

use super::config::DeepLeases;
use super::index::ObjectId;
use super::output::{Access, OpKey, Output};
use super::{Intent, LeaseTable};
use soda_types::{Mode, Monotonic, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Inquiries without an answer.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    by_op: BTreeMap<OpKey, Asked>,
    /// When patience ends.
    wakes: BTreeSet<(Monotonic, OpKey)>,
}

#[derive(Debug)]
struct Asked {
    holder: SessionId,
    asker: SessionId,
    until: Monotonic,
}

impl Inquiries {
    pub(super) fn next_wake(&self) -> Option<Monotonic> {
        self.wakes.first().map(|(wake, _)| *wake)
    }

    fn remove(&mut self, op: OpKey) -> Option<Asked> {
        let asked = self.by_op.remove(&op)?;
        self.wakes.remove(&(asked.until, op));
        Some(asked)
    }

    fn of(&self, session: SessionId) -> Vec<OpKey> {
        let concerned = |asked: &Asked| asked.holder == session || asked.asker == session;
        self.by_op.iter().filter(|(_, asked)| concerned(asked)).map(|(op, _)| *op).collect()
    }
}

impl LeaseTable {
    /// The session has begun to delay changes: what it holds write leases on the server does not know.
    pub fn note_delays(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.delays = true;
        }
    }

    /// Whether the attributes that an access is for can be had from the one session that is in its way.
    pub fn may_inquire(&mut self, now: Monotonic, session: SessionId, access: &Access) -> bool {
        self.holder_to_ask(now, session, access).is_some()
    }

    /// Asks the holder, if there is one who can be asked: then [`Output::Inquire`] follows. Whoever gets its answer tells it to
    /// [`LeaseTable::handle_inquiry_answer`]. If there is none in time, [`Output::NotDescribed`] follows. `op` is the inquiry's
    /// own key, not that of an operation.
    pub fn inquire(&mut self, now: Monotonic, session: SessionId, op: OpKey, access: &Access) -> bool {
        let Some(holder) = self.holder_to_ask(now, session, access) else { return false };
        let until = now + self.config.inquiry_patience;
        self.inquiries.by_op.insert(op, Asked { holder, asker: session, until });
        self.inquiries.wakes.insert((until, op));
        self.counters.inquiries += 1;
        self.outputs.push_back(Output::Inquire { session: holder, op, fid: access.fid });
        true
    }

    /// The session answers an inquiry. False: nobody waits for this answer (any more), and it must not be used.
    pub fn handle_inquiry_answer(&mut self, session: SessionId, op: OpKey, describes: bool) -> bool {
        if self.inquiries.by_op.get(&op).is_none_or(|asked| asked.holder != session) {
            return false;
        }
        self.inquiries.remove(op);
        if !describes {
            self.counters.inquiries_declined += 1;
            self.outputs.push_back(Output::NotDescribed(op));
        }
        describes
    }

    /// Nobody waits for the answer any more.
    pub fn cancel_inquiry(&mut self, op: OpKey) {
        self.inquiries.remove(op);
    }

    pub(super) fn wake_inquiries(&mut self, now: Monotonic) {
        while let Some((wake, op)) = self.inquiries.wakes.first().copied()
            && wake <= now
        {
            let Some(asked) = self.inquiries.remove(op) else { return };
            self.counters.inquiries_unanswered += 1;
            // One that is stopped has many files: not each is to cost this patience.
            if let Some(holder) = self.sessions.get_mut(&asked.holder) {
                holder.not_asked_until = now + self.config.recall_resend;
            }
            self.outputs.push_back(Output::NotDescribed(op));
        }
    }

    /// The session has ended.
    pub(super) fn end_inquiries(&mut self, session: SessionId) {
        for op in self.inquiries.of(session) {
            self.inquiries.remove(op);
            self.outputs.push_back(Output::NotDescribed(op));
        }
    }

    fn holder_to_ask(&mut self, now: Monotonic, session: SessionId, access: &Access) -> Option<SessionId> {
        if self.grace.is_some() || !self.sessions.get(&session).is_some_and(|session| session.is_good()) {
            return None;
        }
        let object = match self.config.deep_leases {
            DeepLeases::Off => self.store.find(access.fid)?,
            DeepLeases::On { .. } => {
                let object = self.store.find_or_insert(access.fid);
                self.place(object, &access.ancestors);
                self.store.note_untidy(object);
                object
            }
        };
        let holder = self.only_holder_against(now, session, object);
        self.store.tidy_all();
        holder.filter(|holder| self.can_be_asked(now, *holder))
    }

    /// The session whose write leases, none of them recalled, are all that is in the way of a read.
    fn only_holder_against(&self, now: Monotonic, session: SessionId, object: ObjectId) -> Option<SessionId> {
        let found = self.store.object(object)?;
        // Operations that run are no obstacle: a digest tells what the holder knows, and a change of the holder's that goes
        // through has it decline.
        if found.queue_len() > 0 || found.unanswered > 0 {
            return None;
        }
        let (nodes, _) = self.leases_against(session, object, Intent::Read, Some(Mode::Read));
        let (deep, _) = self.deep_against(session, object, Some(Mode::Read));
        let mut leases = nodes.into_iter().chain(deep.into_iter().map(|reach| reach.lease));
        let first = leases.next()?;
        let holder = self.store.lease(first)?.session;
        let is_of_holder = |id| self.store.lease(id).is_some_and(|lease| lease.session == holder);
        let alone = leases.all(is_of_holder) && self.owed_for(object, holder).is_empty();
        (alone && self.is_live(now, first)).then_some(holder)
    }

    fn can_be_asked(&self, now: Monotonic, holder: SessionId) -> bool {
        self.sessions
            .get(&holder)
            .is_some_and(|holder| holder.is_good() && holder.delays && holder.not_asked_until <= now)
    }
}
