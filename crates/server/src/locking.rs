//! flock(2) and fcntl(2) locks: the lock table decides, this tells the clients.

use crate::core::{CoreGuard, LockWaiting};
use crate::link::{Incoming, respond};
use crate::metrics::CallKind;
use crate::server::Shared;
use crate::session::ReplyTo;
use soda_lease::locks::{IfBusy, LockAnswer, LockError, WaitKey};
use soda_protocol::{Answer, Call, Failure, LockWait};
use soda_types::{Errno, Fid, FsError, Lock, Monotonic, SessionId};
use std::time::Duration;

/// Carries out a lock call: answers it now, or keeps it until the lock can be had.
pub(crate) fn run(shared: &Shared, incoming: &Incoming) {
    if let Call::LockTest { fid, lock } | Call::LockSet { fid, lock, .. } = &incoming.request.call {
        let contest = || {
            let mut core = shared.core();
            // In grace the lock is not decided about, and nobody is to be ended for it.
            if core.grace_left().is_some() {
                Contest::Free
            } else {
                core.contest_locks(*fid, incoming.session(), *lock)
            }
        };
        while contest() == Contest::Ended {
            // Locks of the ended are free when their end is in the journal.
            shared.write_ends();
        }
    }
    decide(&mut shared.core(), incoming);
}

fn decide(core: &mut CoreGuard<'_>, incoming: &Incoming) {
    let session = incoming.session();
    let result = match &incoming.request.call {
        _ if incoming.link.session.has_ended() => Err(Failure::SessionEnded),
        Call::LockTest { .. } | Call::LockSet { .. } if core.grace_left().is_some() => {
            // Somebody may come back who had a lock before the restart.
            Err(Failure::Grace(core.grace_left().unwrap_or_default()))
        }
        Call::LockTest { fid, lock } => {
            let conflict = core.locks.test(*fid, session, *lock);
            Ok(Answer::Conflict(conflict.map(|held| held.lock)))
        }
        Call::LockRelease { fid, lock } => {
            core.locks.release(*fid, session, *lock);
            Ok(Answer::Done)
        }
        Call::LockSet { fid, lock, wait } => match set(core, incoming, *fid, *lock, *wait) {
            Some(result) => result,
            None => return,
        },
        other => Err(Failure::Unsupported(format!("{} is not about locks", CallKind::from(other).name()))),
    };
    incoming.answer_in(core, &result);
    core.settle_locks();
}

fn set(
    core: &mut CoreGuard<'_>,
    incoming: &Incoming,
    fid: Fid,
    lock: Lock,
    wait: LockWait,
) -> Option<Result<Answer, Failure>> {
    let now = core.now;
    let contest = core.contest_locks(fid, incoming.session(), lock);
    let key = core.new_key();
    let if_busy = match wait {
        LockWait::No => IfBusy::Fail,
        LockWait::Yes => IfBusy::Wait(WaitKey(key)),
    };
    match core.locks.set(fid, incoming.session(), lock, if_busy) {
        Ok(LockAnswer::Granted) => Some(Ok(Answer::Done)),
        Ok(LockAnswer::Waits) => {
            let waiting = LockWaiting {
                session: incoming.session(),
                reply_to: incoming.reply_to(),
                kind: incoming.kind,
                since: now,
                fid,
                lock,
            };
            core.lock_waits.insert(key, waiting);
            if let Contest::Alive(left) = contest {
                core.shared().wake_timer_at(now + left);
            }
            core.settle_locks();
            None
        }
        Err(error) => Some(Err(Failure::Fs(errno_of(&error)))),
    }
}

fn errno_of(error: &LockError) -> FsError {
    let errno = match error {
        LockError::Busy(_) => Errno::TryAgain,
        LockError::Deadlock => Errno::Deadlock,
        LockError::BadRange => Errno::Invalid,
    };
    FsError::new(errno, error.to_string())
}

/// Who has a lock that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contest {
    Free,
    /// A session whose lease has this time left.
    Alive(Duration),
    /// A session that has ended, but the store may not know it yet.
    Ended,
}

impl CoreGuard<'_> {
    /// Looks at who has a lock in the way of `lock`; ends that session if its lease has run out.
    fn contest_locks(&mut self, fid: Fid, session: SessionId, lock: Lock) -> Contest {
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

    /// A session has ended: nothing is granted to it any more.
    pub(crate) fn forget_lock_waits_of(&mut self, session: SessionId) {
        self.forget_lock_waits_where(|waiting| waiting.session == session);
    }

    /// The end of a session is in the journal: others may have its locks.
    pub(crate) fn free_locks(&mut self, session: SessionId) {
        self.locks.release_session(session);
        self.settle_locks();
    }

    /// Gives up waiting for a lock on the client's wish.
    pub(crate) fn cancel_lock(&mut self, session: SessionId, tag: u64) {
        let same = |waiting: &LockWaiting| waiting.session == session && waiting.reply_to.tag == tag;
        let found = self.lock_waits.iter().find(|(_, waiting)| same(waiting)).map(|(key, _)| *key);
        if let Some(key) = found
            && self.locks.cancel(WaitKey(key))
            && let Some(waiting) = self.lock_waits.remove(&key)
        {
            self.answer_lock(&waiting, &Err(Failure::Fs(Errno::Interrupted.into())));
        }
    }

    /// A connection has ended: who waited on it for a lock asks again on the next one.
    pub(crate) fn forget_lock_waits(&mut self, connection: u64) {
        self.forget_lock_waits_where(|waiting| waiting.reply_to.outbox.id() == connection);
    }

    fn forget_lock_waits_where(&mut self, forget: impl Fn(&LockWaiting) -> bool) {
        let found = self.lock_waits.iter().filter(|(_, waiting)| forget(waiting));
        let keys: Vec<u64> = found.map(|(key, _)| *key).collect();
        for key in keys {
            self.locks.cancel(WaitKey(key));
            self.lock_waits.remove(&key);
        }
    }

    fn answer_lock(&mut self, waiting: &LockWaiting, result: &Result<Answer, Failure>) {
        let ReplyTo { outbox, tag } = &waiting.reply_to;
        let waited = self.now.since(waiting.since);
        self.shared().metrics.call(waiting.kind).latency.record(waited);
        let frame = respond::reply(*tag, &respond::encode(result), &[], bytes::Bytes::new());
        self.send(outbox, frame);
    }
}
