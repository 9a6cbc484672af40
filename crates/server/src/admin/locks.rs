//! The file locks of an object, for people.

use super::name_of;
use crate::guard::CoreGuard;
use crate::lock_waits::lock_of;
use crate::shared::Shared;
use soda_lease::locks::HeldLock;
use soda_protocol::{LockHolder, LockWaitInfo, LocksInfo, ObjectRef};
use soda_types::FsError;

/// Most locks, and most who wait, in one answer.
const LOCKS_MAX: u32 = 1000;

impl Shared {
    pub(super) fn locks(&self, of: &ObjectRef, limit: u32) -> Result<LocksInfo, FsError> {
        let fid = self.find(of)?;
        let limit = limit.min(LOCKS_MAX) as usize;
        let core = self.core();
        let now = core.now;
        // Of a client that decides by itself the table has what it told the last time.
        let (held, count) = match core.delegations.delegate(fid) {
            Some(_) => (Vec::new(), 0),
            None => core.locks.some_locks(fid, limit),
        };
        let waits = core.locks.waiting(fid);
        let put_off = core.lock_calls.of_file(fid);
        let wait_count = waits.len() + core.lock_calls.of_file(fid).count();
        let waits = waits.filter_map(|key| core.lock_waits.get(&key.0)).map(|waiting| {
            let in_the_way = core.locks.test(fid, waiting.session, waiting.lock);
            LockWaitInfo {
                session: waiting.session,
                name: name_of(&core, waiting.session),
                operation: waiting.kind.name().to_owned(),
                wants: waiting.lock,
                waited: now.since(waiting.since),
                in_the_way: in_the_way.map(|held| holder(&core, held)),
            }
        });
        let put_off = put_off.filter_map(|(call, since)| {
            Some(LockWaitInfo {
                session: call.session(),
                name: name_of(&core, call.session()),
                operation: call.kind.name().to_owned(),
                wants: lock_of(call)?,
                waited: now.since(since),
                in_the_way: None,
            })
        });
        let waiting: Vec<LockWaitInfo> = waits.chain(put_off).take(limit).collect();
        Ok(LocksInfo {
            more_held: (count - held.len()) as u64,
            held: held.into_iter().map(|held| holder(&core, held)).collect(),
            more_waiting: (wait_count - waiting.len()) as u64,
            waiting,
        })
    }
}

fn holder(core: &CoreGuard<'_>, held: HeldLock) -> LockHolder {
    LockHolder { session: held.session, name: name_of(core, held.session), lock: held.lock }
}
