//! flock(2) and fcntl(2) locks: the lock table decides, this tells the clients. A client that nobody else is in the way of
//! decides by itself; whoever comes then waits here until it has told of its locks.

use crate::core::LockWaiting;
use crate::guard::CoreGuard;
use crate::link::{Incoming, Lane};
use crate::lock_waits::Contest;
use crate::metrics::CallKind;
use crate::register::Ends;
use crate::shared::Shared;
use soda_lease::locks::{IfBusy, LockAnswer, LockError, WaitKey};
use soda_protocol::{Answer, Call, Delegable, Failure, LockWait};
use soda_storage::crash;
use soda_types::{Epoch, Errno, Fid, FsError, Lock};

/// Locks that a session tells of at once; clients of this version give up deciding at half of them.
const MOST_RETURNED: usize = 8192;

/// Carries out a lock call: answers it now, or keeps it until the lock can be had.
pub(crate) fn run(shared: &Shared, incoming: Incoming) {
    if !incoming.payload.is_empty() {
        // It would be kept as long as the call waits.
        return incoming.invalid("a call about locks has no data");
    }
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
        // Locks of the ended are free when their end is stored. Until it is, they are in the way like any others.
        while contest() == Contest::Ended && shared.write_all_ends() == Ends::Written {}
    }
    shared.core().decide_in_turn(incoming);
}

impl CoreGuard<'_> {
    /// Decides, or puts it off until the session that decides about the file's locks alone has told of them.
    fn decide_in_turn(&mut self, incoming: Incoming) {
        if let Call::LockTest { fid, lock } | Call::LockSet { fid, lock, .. } = &incoming.request.call
            && self.grace_left().is_none()
            && !incoming.link.session.has_ended()
            && self.delegations.other(*fid, incoming.session()).is_some()
        {
            let fid = *fid;
            self.recall_locks(fid);
            if let Contest::Alive(left) = self.contest_locks(fid, incoming.session(), *lock) {
                self.shared().timer.wake_at(self.now + left);
            }
            if let Err(busy) = incoming.link.may_wait() {
                return incoming.answer_in(self, &Err(busy));
            }
            let now = self.now;
            self.lock_calls.push(now, fid, incoming);
            return;
        }
        decide(self, &incoming);
    }

    /// Nobody decides about the file's locks alone any more.
    pub(crate) fn decide_put_off(&mut self, fid: Fid) {
        while let Some(next) = self.lock_calls.take_first(fid) {
            decide(self, &next);
        }
    }
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
        Call::LockSet { fid, lock, wait, delegable } => {
            let delegable = if incoming.link.lane == Lane::Control { *delegable } else { Delegable::No };
            match set(core, incoming, Wanted { fid: *fid, lock: *lock, wait: *wait, delegable }) {
                Some(result) => result,
                None => return,
            }
        }
        Call::LockReturn { fid, epoch, locks } => {
            return take_back(core, incoming, *fid, *epoch, locks.as_deref());
        }
        other => Err(Failure::Unsupported(format!("{} is not about locks", CallKind::from(other).name()))),
    };
    incoming.answer_in(core, &result);
    core.settle_locks();
}

/// A session tells of the locks that it took by itself, before anybody else can ask for one. What it says a second time, or of
/// a right that it does not have any more, counts for nothing.
fn take_back(core: &mut CoreGuard<'_>, incoming: &Incoming, fid: Fid, epoch: Epoch, locks: Option<&[Lock]>) {
    let session = incoming.session();
    // All of them are entered in one go, and everybody waits for that.
    if locks.is_some_and(|locks| locks.len() > MOST_RETURNED) {
        let problem = "too many locks are told at once";
        tracing::warn!(%session, %fid, problem, "a client breaks the rules");
        return incoming.answer_in(core, &Err(Failure::Fs(FsError::new(Errno::Invalid, problem))));
    }
    let had_it = core.delegations.take_back(fid, session, epoch);
    if let Some(locks) = locks.filter(|_| had_it) {
        let refused = core.locks.replace(fid, session, locks).len();
        if refused > 0 {
            tracing::warn!(%session, %fid, refused, "locks of one client that exclude each other");
        }
    }
    incoming.answer_in(core, &Ok(Answer::Done));
    core.settle_locks();
    if had_it {
        core.decide_put_off(fid);
    }
}

/// A [`Call::LockSet`].
#[derive(Clone, Copy, Debug)]
struct Wanted {
    fid: Fid,
    lock: Lock,
    wait: LockWait,
    delegable: Delegable,
}

fn set(core: &mut CoreGuard<'_>, incoming: &Incoming, wanted: Wanted) -> Option<Result<Answer, Failure>> {
    let Wanted { fid, lock, wait, delegable } = wanted;
    let now = core.now;
    let contest = core.contest_locks(fid, incoming.session(), lock);
    let key = core.new_key();
    let if_busy = match wait {
        LockWait::No => IfBusy::Fail,
        LockWait::Yes => IfBusy::Wait(WaitKey(key)),
    };
    match core.locks.set(fid, incoming.session(), lock, if_busy) {
        Ok(LockAnswer::Granted) => {
            crash::point("server.lock-taken");
            Some(Ok(core.taken(fid, incoming.session(), delegable)))
        }
        Ok(LockAnswer::Waits) => {
            let waiting = LockWaiting {
                session: incoming.session(),
                reply_to: incoming.reply_to(),
                kind: incoming.kind,
                since: now,
                fid,
                lock,
                delegable,
            };
            core.lock_waits.insert(key, waiting);
            if let Contest::Alive(left) = contest {
                core.shared().timer.wake_at(now + left);
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
