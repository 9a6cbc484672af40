//! flock(2) and fcntl(2) locks: the lock table decides, this tells the clients.

use crate::core::LockWaiting;
use crate::guard::CoreGuard;
use crate::link::Incoming;
use crate::lock_waits::Contest;
use crate::metrics::CallKind;
use crate::register::Ends;
use crate::shared::Shared;
use soda_lease::locks::{IfBusy, LockAnswer, LockError, WaitKey};
use soda_protocol::{Answer, Call, Failure, LockWait};
use soda_storage::crash;
use soda_types::{Errno, Fid, FsError, Lock};

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
        // Locks of the ended are free when their end is stored. Until it is, they are in the way like any others.
        while contest() == Contest::Ended && shared.write_all_ends() == Ends::Written {}
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
        Ok(LockAnswer::Granted) => {
            crash::point("server.lock-taken");
            Some(Ok(Answer::Done))
        }
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
