//! Locks that were asked for, until the caller has the answer. One that the caller did not wait for is given back when the
//! server grants it; before that the same owner asks for nothing else, or would lose it with what is given back.

use crate::cache::State;
use crate::cache::held_locks::{Owner, owner_of};
use soda_protocol::{Lock, LockFamily, LockMode};
use soda_types::Fid;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// A request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockRequest {
    pub(crate) fid: Fid,
    pub(crate) lock: Lock,
    id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caller {
    Waits,
    Gone,
}

#[derive(Debug, Default)]
pub(crate) struct AskedLocks {
    last: u64,
    by_owner: BTreeMap<Owner, BTreeMap<u64, (Lock, Caller)>>,
    /// A request without a caller is over.
    settled: Arc<Notify>,
}

impl AskedLocks {
    pub(crate) fn ask(&mut self, fid: Fid, lock: Lock) -> LockRequest {
        self.last += 1;
        self.by_owner.entry(owner_of(fid, &lock)).or_default().insert(self.last, (lock, Caller::Waits));
        LockRequest { fid, lock, id: self.last }
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn abandon(&mut self, request: LockRequest) {
        let of_owner = self.by_owner.get_mut(&owner_of(request.fid, &request.lock));
        if let Some((_, caller)) = of_owner.and_then(|requests| requests.get_mut(&request.id)) {
            *caller = Caller::Gone;
        }
    }

    /// The answer is where it belongs.
    pub(crate) fn settle(&mut self, request: LockRequest) {
        let Entry::Occupied(mut of_owner) = self.by_owner.entry(owner_of(request.fid, &request.lock)) else {
            return;
        };
        if let Some((_, Caller::Gone)) = of_owner.get_mut().remove(&request.id) {
            self.settled.notify_waiters();
        }
        if of_owner.get().is_empty() {
            of_owner.remove();
        }
    }

    /// Whether the same owner has asked for a part of the range once more.
    pub(crate) fn is_asked_again(&self, request: LockRequest) -> bool {
        let of_owner = self.by_owner.get(&owner_of(request.fid, &request.lock)).into_iter().flatten();
        let mut others = of_owner.filter(|(id, _)| **id != request.id).map(|(_, (lock, _))| lock);
        others.any(|other| other.start <= request.lock.end && request.lock.start <= other.end)
    }

    /// Whether the owner has asked for an exclusive lock.
    pub(crate) fn asks_for_exclusive(&self, owner: Owner) -> bool {
        let requests = self.by_owner.get(&owner).into_iter().flatten();
        requests.into_iter().any(|(_, (lock, _))| lock.mode == LockMode::Exclusive)
    }

    /// What the owner has to wait for before it asks for more: that a request without a caller is over.
    pub(crate) fn unsettled(&self, owner: Owner) -> Option<OwnedNotified> {
        let requests = self.by_owner.get(&owner)?;
        let gone = requests.values().any(|(_, caller)| *caller == Caller::Gone);
        gone.then(|| Arc::clone(&self.settled).notified_owned())
    }
}

impl State {
    /// Flocks that went when the wait for an exclusive one began (flock(2)); only the server knows whether it began. They are
    /// not to be had again after its restart: others may have got what these exclude.
    pub(crate) fn drop_flocks_given_up(&mut self) {
        for (fid, lock) in self.locks.all() {
            let shared = lock.family == LockFamily::Flock && lock.mode == LockMode::Shared;
            if shared && self.asked_locks.asks_for_exclusive(owner_of(fid, &lock)) {
                self.locks.release(fid, lock);
            }
        }
    }

    /// Locks of the file that its users rely on are gone: they get an error, those who open it anew do not.
    pub(crate) fn note_lost_locks(&mut self, fid: Fid, loss: u64) {
        self.inode(fid).uses.locks_lost = loss;
        self.repin(fid);
    }
}
