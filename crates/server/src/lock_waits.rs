//! Those who wait for a flock(2) or fcntl(2) lock: who is in their way, and their answer when they have it. Who decides about a
//! file's locks alone is in everybody's way until it has given that right back.

use crate::core::{Core, LockWaiting};
use crate::guard::CoreGuard;
use crate::link::Incoming;
use crate::respond::{self, Leases};
use crate::session::ReplyTo;
use bytes::Bytes;
use soda_lease::locks::WaitKey;
use soda_protocol::{Answer, Call, Delegable, Failure, Push};
use soda_types::{Epoch, Errno, Fid, Lock, Monotonic, SessionId};
use std::time::Duration;

/// Who has a lock that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contest {
    Free,
    /// A session whose lease has this time left.
    Alive(Duration),
    /// A session that has ended, but the store may not know it yet.
    Ended,
}

/// Recalls that leave together in one message.
const LOCK_RECALLS_PER_PUSH: usize = 1024;

impl CoreGuard<'_> {
    /// Looks at who has a lock in the way of `lock`; ends that session if its lease has run out.
    pub(crate) fn contest_locks(&mut self, fid: Fid, session: SessionId, lock: Lock) -> Contest {
        let now = self.now;
        let delegate = self.delegations.other(fid, session);
        let holder = || self.locks.test(fid, session, lock).map(|held| held.session);
        let Some(other) = delegate.or_else(holder) else { return Contest::Free };
        if !self.sessions.contains_key(&other) {
            return Contest::Ended;
        }
        let deadline = self.table.recall_deadline();
        let is_late = |since: Monotonic| now.since(since) > deadline;
        if delegate.is_some() && self.delegations.recalled_since(fid).is_some_and(is_late) {
            self.table.condemn(other, fid);
        }
        match self.table.contest(now, other, fid) {
            Some(left) => Contest::Alive(left),
            None => {
                self.settle();
                Contest::Ended
            }
        }
    }

    /// Looks after those who wait for locks of the dead. Returns when to look again.
    pub(crate) fn contest_waits(&mut self) -> Option<Monotonic> {
        let waits: Vec<(Fid, SessionId, Lock)> =
            self.lock_waits.values().map(|waiting| (waiting.fid, waiting.session, waiting.lock)).collect();
        let first = |(fid, first): (Fid, &Incoming)| Some((fid, first.session(), lock_of(first)?));
        let waits: Vec<_> = waits.into_iter().chain(self.lock_calls.firsts().filter_map(first)).collect();
        let now = self.now;
        let alive = waits.into_iter().filter_map(|(fid, session, lock)| {
            match self.contest_locks(fid, session, lock) {
                Contest::Alive(left) => Some(left),
                Contest::Free | Contest::Ended => None,
            }
        });
        alive.min().map(|left| now + left)
    }

    /// Answers those who waited and have their lock now.
    pub(crate) fn settle_locks(&mut self) {
        while let Some(WaitKey(key)) = self.locks.poll_granted() {
            if let Some(waiting) = self.lock_waits.remove(&key) {
                let answer = self.taken(waiting.fid, waiting.session, waiting.delegable);
                self.answer_lock(&waiting, &Ok(answer));
            }
        }
    }

    /// The end of a session is in the journal: others may have its locks.
    pub(crate) fn free_locks(&mut self, session: SessionId) {
        self.locks.release_session(session);
        self.settle_locks();
        for fid in self.delegations.end_session(session) {
            self.decide_put_off(fid);
        }
    }

    /// What who has got a lock is told: that, and perhaps that it need not ask for the next.
    pub(crate) fn taken(&mut self, fid: Fid, session: SessionId, delegable: Delegable) -> Answer {
        let (now, epoch) = (self.now, self.new_lock_epoch());
        let wanted = delegable == Delegable::Yes && !self.lock_calls.has_any(fid);
        let Core { delegations, locks, .. } = &mut **self;
        let offered = if wanted { delegations.offer(now, fid, session, locks, epoch) } else { None };
        offered.map_or(Answer::Done, Answer::Delegated)
    }

    /// Asks the session that decides about the file's locks to give that right back.
    pub(crate) fn recall_locks(&mut self, fid: Fid) {
        let now = self.now;
        if let Some((session, epoch)) = self.delegations.recall(now, fid) {
            self.push_lock_recalls(session, vec![(fid, epoch)]);
        }
    }

    /// The session has a control connection again: what was pushed on the one before may be lost.
    pub(crate) fn recall_locks_again(&mut self, session: SessionId) {
        let recalled = self.delegations.recalled_from(session);
        for some in recalled.chunks(LOCK_RECALLS_PER_PUSH) {
            self.push_lock_recalls(session, some.to_vec());
        }
    }

    fn push_lock_recalls(&mut self, session: SessionId, recalls: Vec<(Fid, Epoch)>) {
        let outbox = self.sessions.get(&session).and_then(|entry| entry.control.clone());
        if let Some(outbox) = outbox {
            self.shared().metrics.lock_recalls_pushed.add(recalls.len() as u64);
            self.push(&outbox, &Push::RecallLocks(recalls));
        }
    }

    /// Gives up waiting for a lock on the client's wish.
    pub(crate) fn cancel_lock(&mut self, session: SessionId, tag: u64) {
        if let Some(call) = self.lock_calls.cancel(session, tag) {
            call.answer_in(self, &Err(Failure::Fs(Errno::Interrupted.into())));
            return;
        }
        let same = |waiting: &LockWaiting| waiting.session == session && waiting.reply_to.tag == tag;
        // One that was sent again may wait twice, until the end of the connection before is noticed.
        let found = self.lock_waits.iter().filter(|(_, waiting)| same(waiting));
        for key in found.map(|(key, _)| *key).collect::<Vec<_>>() {
            if self.locks.cancel(WaitKey(key))
                && let Some(waiting) = self.lock_waits.remove(&key)
            {
                self.answer_lock(&waiting, &Err(Failure::Fs(Errno::Interrupted.into())));
            }
        }
    }

    fn answer_lock(&mut self, waiting: &LockWaiting, result: &Result<Answer, Failure>) {
        let ReplyTo { outbox, tag } = &waiting.reply_to;
        let waited = self.now.since(waiting.since);
        self.shared().metrics.call(waiting.kind).latency.record(waited);
        let frame = respond::reply(*tag, &respond::encode(result), Leases::NONE, Bytes::new());
        self.send(outbox, frame);
    }
}

/// What a call asks for, or asks about.
pub(crate) fn lock_of(incoming: &Incoming) -> Option<Lock> {
    match &incoming.request.call {
        Call::LockTest { lock, .. } | Call::LockSet { lock, .. } => Some(*lock),
        _ => None,
    }
}
