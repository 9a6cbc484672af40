//! Those who wait for a flock(2) or fcntl(2) lock: who is in their way, and their answer when they have it.

use crate::core::LockWaiting;
use crate::guard::CoreGuard;
use crate::respond::{self, Leases};
use crate::session::ReplyTo;
use bytes::Bytes;
use soda_lease::locks::WaitKey;
use soda_protocol::{Answer, Failure};
use soda_types::{Errno, Fid, Lock, Monotonic, SessionId};
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

impl CoreGuard<'_> {
    /// Looks at who has a lock in the way of `lock`; ends that session if its lease has run out.
    pub(crate) fn contest_locks(&mut self, fid: Fid, session: SessionId, lock: Lock) -> Contest {
        let Some(held) = self.locks.test(fid, session, lock) else { return Contest::Free };
        if !self.sessions.contains_key(&held.session) {
            return Contest::Ended;
        }
        let now = self.now;
        match self.table.contest(now, held.session, fid) {
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
                self.answer_lock(&waiting, &Ok(Answer::Done));
            }
        }
    }

    /// The end of a session is in the journal: others may have its locks.
    pub(crate) fn free_locks(&mut self, session: SessionId) {
        self.locks.release_session(session);
        self.settle_locks();
    }

    /// Gives up waiting for a lock on the client's wish.
    pub(crate) fn cancel_lock(&mut self, session: SessionId, tag: u64) {
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
