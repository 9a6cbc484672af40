//! The server's one lock, and what the table decides under it.
//!
//! Every method of the table is followed by [`CoreGuard::settle`], which carries out what the table decided, in its order:
//! recalls are queued, sessions fenced, waiting operations woken. Replies with grants are queued under the same lock, so
//! what a client receives has the order of the decisions. Nothing under the lock waits for the network or the store.

use crate::clock;
use crate::core::{Core, Verdict, Waiting};
use crate::link::{Incoming, Warned};
use crate::metrics::CallKind;
use crate::net::Outbox;
use crate::respond::{self, Leases};
use crate::shared::Shared;
use bytes::Bytes;
use soda_lease::table::{Access, Covered, Granted, OpKey, Output, Refusal};
use soda_protocol::{Answer, Failure, Frame, FrameKind, Inquiry, InquiryAnswer, Node, OpId, Push};
use soda_types::{Fid, InUse, LeasePart, Monotonic, Recall, RecallAck, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Recalls that leave together in one message.
const RECALLS_PER_PUSH: usize = 1024;
/// Connections that the deciding thread writes to itself; more are left to their own tasks.
const FLUSH_MAX: usize = 4;
/// The core is used every second; if it was not for this long, the whole server stood still.
const OWN_PAUSE: Duration = Duration::from_millis(1800);

/// The locked core. Letting go of it sends what was queued.
pub(crate) struct CoreGuard<'s> {
    shared: &'s Shared,
    core: Option<MutexGuard<'s, Core>>,
    pub(crate) now: Monotonic,
    admitted: BTreeSet<OpKey>,
    refused: BTreeMap<OpKey, Refusal>,
    touched: Vec<Arc<Outbox>>,
}

/// What asking for admission led to.
#[derive(Debug)]
pub(crate) enum Admission {
    Admitted(OpKey),
    Waits(OpKey, oneshot::Receiver<Verdict>),
    SessionEnded,
    /// Of a covered operation: the lease that is missing.
    NotHeld(Fid),
    /// Of a covered operation: it is not known at the moment which leases cover it.
    Unplaced,
}

/// Who asks for admission, for logs and for `Cancel`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) session: SessionId,
    pub(crate) kind: CallKind,
    pub(crate) op: Option<OpId>,
    pub(crate) tag: u64,
}

impl Incoming {
    pub(crate) fn asker(&self) -> Asker {
        Asker { session: self.session(), kind: self.kind, op: self.request.op, tag: self.tag }
    }

    /// Answers in the order of the table's decisions.
    pub(crate) fn answer_in(&self, core: &mut CoreGuard<'_>, result: &Result<Answer, Failure>) {
        self.count(result);
        core.send(
            &self.link.outbox,
            respond::reply(self.tag, &respond::encode(result), Leases::NONE, Bytes::new()),
        );
    }
}

impl Shared {
    pub(crate) fn core(&self) -> CoreGuard<'_> {
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic();
        let pause = now.since(core.last_used);
        if pause > OWN_PAUSE {
            tracing::warn!(?pause, "the server was not running; its clients' sessions get a new term");
            core.table.handle_own_pause(now);
            core.delegations.handle_own_pause(now);
        }
        core.last_used = now;
        CoreGuard {
            shared: self,
            core: Some(core),
            now,
            admitted: BTreeSet::new(),
            refused: BTreeMap::new(),
            touched: Vec::new(),
        }
    }
}

impl<'s> CoreGuard<'s> {
    pub(crate) fn shared(&self) -> &'s Shared {
        self.shared
    }

    /// Asks the table to admit an operation.
    pub(crate) fn admit(&mut self, asker: Asker, accesses: Vec<Access>) -> Admission {
        let key = OpKey(self.new_key());
        let objects = accesses.iter().map(|access| access.fid).collect();
        let now = self.now;
        self.table.request(now, asker.session, key, accesses);
        self.admission(asker, key, objects)
    }

    /// Asks the table to admit what the session did under its leases.
    pub(crate) fn admit_covered(&mut self, asker: Asker, covered: Covered) -> Admission {
        let key = OpKey(self.new_key());
        let objects = covered.held.clone();
        let now = self.now;
        self.table.note_delays(asker.session);
        self.table.request_covered(now, asker.session, key, covered);
        self.admission(asker, key, objects)
    }

    fn admission(&mut self, asker: Asker, key: OpKey, objects: Vec<Fid>) -> Admission {
        self.settle();
        if self.admitted.remove(&key) {
            return Admission::Admitted(key);
        }
        match self.refused.remove(&key) {
            Some(Refusal::SessionEnded) => return Admission::SessionEnded,
            Some(Refusal::NotHeld(fid)) => return Admission::NotHeld(fid),
            Some(Refusal::Unplaced(_)) => return Admission::Unplaced,
            None => {}
        }
        let now = self.now;
        let (wake, verdict) = oneshot::channel();
        let waiting = Waiting {
            session: asker.session,
            kind: asker.kind,
            op: asker.op,
            tags: vec![asker.tag],
            objects,
            since: now,
            warned: Warned::NotYet,
            wake,
        };
        self.waiting.insert(key, waiting);
        Admission::Waits(key, verdict)
    }

    /// Takes the operation that a request waits for out of the queue.
    pub(crate) fn cancel(&mut self, session: SessionId, tag: u64) {
        let found = self
            .waiting
            .iter()
            .find(|(_, waiting)| waiting.session == session && waiting.tags.contains(&tag));
        if let Some(key) = found.map(|(key, _)| *key) {
            let now = self.now;
            self.table.cancel(now, key);
            self.wake(key, Verdict::Cancelled);
            self.settle();
        }
    }

    /// Asks the holder of what is in the way of an access what the object is like, if there is one who can be asked. `None` comes
    /// if it does not answer.
    pub(crate) fn inquire(
        &mut self,
        session: SessionId,
        access: &Access,
    ) -> Option<oneshot::Receiver<Option<Node>>> {
        let (now, key) = (self.now, OpKey(self.new_number()));
        if !self.table.inquire(now, session, key, access) {
            return None;
        }
        let (wake, answer) = oneshot::channel();
        self.inquiries.insert(key, wake);
        self.settle();
        Some(answer)
    }

    /// A holder has answered.
    pub(crate) fn inquiries_answered(&mut self, session: SessionId, answers: Vec<InquiryAnswer>) {
        for InquiryAnswer { number, node } in answers {
            let key = OpKey(number);
            if self.table.handle_inquiry_answer(session, key, node.is_some()) {
                self.end_inquiry(key, node);
            }
        }
    }

    fn end_inquiry(&mut self, key: OpKey, node: Option<Node>) {
        if let Some(waiting) = self.inquiries.remove(&key) {
            // The other end is gone only while the server stops.
            let _ = waiting.send(node);
        }
    }

    /// What is left of the grace period.
    pub(crate) fn grace_left(&self) -> Option<Duration> {
        self.table.grace_left(self.now)
    }

    /// What a reply says of leases that an operation left behind.
    pub(crate) fn leases(&self, session: SessionId, granted: Granted) -> Leases {
        let mut leases = Leases::of(granted.leases);
        for covered in granted.covered {
            if let Some(lease) = self.table.deep_lease(session, covered.root) {
                leases.cover(lease, covered);
            }
        }
        leases
    }

    /// Forgets a session's leases on an inode that does not exist any more, and that others have it left out of theirs.
    pub(crate) fn give_up_lease(&mut self, session: SessionId, fid: Fid) {
        self.table.forget_holes_of(fid);
        if let Some(grant) = self.table.lease(session, fid) {
            let now = self.now;
            let given_up =
                RecallAck { fid, epoch: grant.epoch, kept: None, in_use: InUse::No, uses: 0, part: None };
            self.table.handle_release(now, session, &[given_up]);
        }
        if let Some(grant) = self.table.deep_lease(session, fid) {
            let now = self.now;
            let (epoch, part) = (grant.epoch, Some(LeasePart::tree(fid)));
            let given_up = RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part };
            self.table.handle_release(now, session, &[given_up]);
        }
    }

    /// Takes an operation out of the queue whose asker does not wait.
    pub(crate) fn withdraw(&mut self, key: OpKey) {
        if self.waiting.remove(&key).is_some() {
            let now = self.now;
            self.table.cancel(now, key);
            self.settle();
        }
    }

    /// A waiting operation was sent again under another tag.
    pub(crate) fn join(&mut self, session: SessionId, op: OpId, tag: u64) {
        let same = |waiting: &&mut Waiting| waiting.session == session && waiting.op == Some(op);
        if let Some(waiting) = self.waiting.values_mut().find(same) {
            waiting.tags.push(tag);
        }
    }

    /// Carries out everything the table has decided.
    pub(crate) fn settle(&mut self) {
        let mut recalls: Vec<(SessionId, Vec<Recall>)> = Vec::new();
        let mut inquiries: Vec<(SessionId, Vec<Inquiry>)> = Vec::new();
        while let Some(output) = self.table.poll_output() {
            match output {
                Output::Admit(key) => {
                    if !self.wake(key, Verdict::Admitted) {
                        self.admitted.insert(key);
                    }
                }
                Output::Refuse(key, refusal) => {
                    let verdict = match refusal {
                        Refusal::SessionEnded => Verdict::SessionEnded,
                        Refusal::NotHeld(fid) => Verdict::NotHeld(fid),
                        Refusal::Unplaced(_) => Verdict::Unplaced,
                    };
                    if !self.wake(key, verdict) {
                        self.refused.insert(key, refusal);
                    }
                }
                Output::Recall { session, recall } => match recalls.iter_mut().find(|(to, _)| *to == session)
                {
                    Some((_, list)) => list.push(recall),
                    None => recalls.push((session, vec![recall])),
                },
                Output::Inquire { session, op, fid } => {
                    let inquiry = Inquiry { number: op.0, fid };
                    match inquiries.iter_mut().find(|(to, _)| *to == session) {
                        Some((_, list)) => list.push(inquiry),
                        None => inquiries.push((session, vec![inquiry])),
                    }
                }
                Output::NotDescribed(key) => self.end_inquiry(key, None),
                Output::Fence { session, reason } => {
                    let name = self.sessions.get(&session).map(|entry| entry.session.record.name.as_str());
                    tracing::warn!(%session, name, %reason, "session fenced");
                    self.shared.metrics.sessions_fenced.add(1);
                    self.end_session(session);
                }
                Output::SessionInUse { session, fid } => {
                    let order = self.new_key();
                    self.opens.add(session, fid, order);
                }
            }
        }
        for (session, recalls) in recalls {
            self.push_recalls(session, &recalls);
        }
        for (session, inquiries) in inquiries {
            // If it has no connection, it does not answer.
            if let Some(outbox) = self.sessions.get(&session).and_then(|entry| entry.control.clone()) {
                self.push(&outbox, &Push::Inquiries(inquiries));
            }
        }
    }

    /// Wakes a waiting operation; false if it is not one of those that wait.
    fn wake(&mut self, key: OpKey, verdict: Verdict) -> bool {
        let Some(waiting) = self.waiting.remove(&key) else { return false };
        let waited = self.now.since(waiting.since);
        self.shared.metrics.admission_wait.record(waited);
        if waiting.warned == Warned::Already {
            tracing::warn!(session = %waiting.session, op = waiting.kind.name(), ?waited, ?verdict,
                "an operation that waited long goes on");
        }
        // The other end is gone only while the server stops; then nobody is to be told.
        let _ = waiting.wake.send(verdict);
        true
    }

    /// Ends a session that the table does not know any more: its connections, its open files, what it waited for. Its record
    /// and replies in the store, and its file locks, go when the register is written (`register`).
    pub(crate) fn end_session(&mut self, session: SessionId) {
        let Some(entry) = self.sessions.remove(&session) else { return };
        entry.session.end();
        for outbox in entry.control.iter().chain(&entry.data) {
            outbox.close();
        }
        self.forget_lock_waits_of(session);
        self.shared.register.note_end(session);
        self.shared.space.forget(session);
        let freed = self.opens.remove_session(session);
        for fid in freed {
            self.drop_if_unused(fid);
        }
    }

    /// An orphan that nobody has open any more is to be deleted.
    pub(crate) fn drop_if_unused(&mut self, fid: Fid) {
        if self.orphans.contains(&fid) && !self.opens.is_used(fid) {
            self.shared.janitor.enqueue(fid);
        }
    }

    fn push_recalls(&mut self, session: SessionId, recalls: &[Recall]) {
        let Some(entry) = self.sessions.get(&session) else { return };
        entry.session.recalled().note();
        // A client without a connection gets them again when it has one.
        let Some(outbox) = entry.control.clone() else { return };
        for recalls in recalls.chunks(RECALLS_PER_PUSH) {
            self.shared.metrics.recalls_pushed.add(recalls.len() as u64);
            self.push(&outbox, &Push::Recalls(recalls.to_vec()));
        }
    }

    pub(crate) fn push(&mut self, outbox: &Arc<Outbox>, push: &Push) {
        match Frame::new(FrameKind::Push, 0, push, Bytes::new()) {
            Ok(frame) => self.send(outbox, frame),
            Err(error) => tracing::error!(%error, "a push could not be encoded"),
        }
    }

    /// Queues a frame in the order of the table's decisions.
    pub(crate) fn send(&mut self, outbox: &Arc<Outbox>, frame: Frame) {
        outbox.push(frame);
        if !self.touched.iter().any(|known| known.id() == outbox.id()) {
            self.touched.push(outbox.clone());
        }
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;
    fn deref(&self) -> &Core {
        self.core.as_deref().expect("only taken when the guard is dropped")
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_deref_mut().expect("only taken when the guard is dropped")
    }
}

impl Drop for CoreGuard<'_> {
    fn drop(&mut self) {
        let timeout = self.core.as_ref().and_then(|core| core.table.poll_timeout());
        self.core = None;
        if let Some(timeout) = timeout {
            self.shared.timer.wake_at(timeout);
        }
        let direct = self.touched.len().min(FLUSH_MAX);
        for outbox in self.touched.drain(direct..) {
            outbox.flush_later();
        }
        for outbox in &self.touched {
            outbox.flush();
        }
    }
}
