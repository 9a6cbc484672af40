//! The server's byte-range locks: flock(2) and fcntl(2), across machines.
//!
//! Semantics are those of a local Linux file system: the two families do not see each other; an owner's own locks never
//! conflict, a new one replaces what it overlaps, splitting and merging ranges; a change of a record lock's mode is
//! atomic, that of a flock is not (the old one is gone while the new one waits, flock(2)). Who waits is served first
//! come, first served, but does not keep others from locks that can be had now, as on Linux. A wait that would close a
//! circle of record locks is refused (EDEADLK).
//!
//! What a request costs depends on what it overlaps and on who waits for the file, not on how many locks there are: an
//! owner's own locks are in order ([`OwnLocks`]), those that may be in the way are found by their ranges (`spans`).

mod delegate;
mod delegations;
mod held;
mod own;
mod spans;

pub use delegate::{Delegate, Return, Truth};
pub use delegations::Delegations;
pub use own::{Change, OwnLocks};

use held::{Freed, Held};
use soda_types::{Fid, Lock, LockFamily, LockOwner, SessionId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A request that waits, by a key that the server chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaitKey(pub u64);

/// What to do if the lock cannot be had now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfBusy {
    Fail,
    /// Wait; [`LockTable::poll_granted`] names the key in the end.
    Wait(WaitKey),
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockAnswer {
    Granted,
    Waits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// EAGAIN
    #[error("another owner has a conflicting lock")]
    Busy(HeldLock),
    /// EDEADLK
    #[error("waiting would close a circle of owners that wait for each other")]
    Deadlock,
    /// EINVAL
    #[error("the range ends before it starts")]
    BadRange,
}

/// A lock and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    pub session: SessionId,
    pub lock: Lock,
}

/// Locks of all files of a server. Sans-IO: it keeps no time and talks to nobody.
#[derive(Debug, Default)]
pub struct LockTable {
    files: BTreeMap<Fid, FileLocks>,
    /// The files that a session has locks on.
    held_by: BTreeMap<SessionId, BTreeSet<Fid>>,
    waits: BTreeMap<WaitKey, Fid>,
    waits_of: BTreeMap<Owner, BTreeSet<WaitKey>>,
    granted: VecDeque<WaitKey>,
}

type Owner = (SessionId, LockOwner);

#[derive(Debug, Default)]
struct FileLocks {
    flocks: Held,
    records: Held,
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: WaitKey,
    asked: HeldLock,
}

impl HeldLock {
    fn owner(&self) -> Owner {
        (self.session, self.lock.owner)
    }
}

impl FileLocks {
    fn of(&self, family: LockFamily) -> &Held {
        match family {
            LockFamily::Flock => &self.flocks,
            LockFamily::Record => &self.records,
        }
    }

    fn of_mut(&mut self, family: LockFamily) -> &mut Held {
        match family {
            LockFamily::Flock => &mut self.flocks,
            LockFamily::Record => &mut self.records,
        }
    }

    fn both(&self) -> [&Held; 2] {
        [&self.flocks, &self.records]
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.both().iter().all(|held| held.is_empty())
    }
}

impl LockTable {
    pub fn new() -> LockTable {
        LockTable::default()
    }

    /// Takes a lock, or changes the mode of what the owner has in the range.
    ///
    /// # Errors
    /// See [`LockError`]. A flock that is refused is gone in its old mode too, as flock(2) says.
    pub fn set(
        &mut self,
        fid: Fid,
        session: SessionId,
        lock: Lock,
        if_busy: IfBusy,
    ) -> Result<LockAnswer, LockError> {
        if lock.end < lock.start {
            return Err(LockError::BadRange);
        }
        let asked = HeldLock { session, lock };
        let Some(conflict) = self.test(fid, session, lock) else {
            // Lowering to shared may let others in.
            if self.put(fid, &asked) == Freed::Something {
                self.serve(fid);
            }
            return Ok(LockAnswer::Granted);
        };
        if lock.family == LockFamily::Flock {
            self.cut(fid, &asked);
        }
        let IfBusy::Wait(key) = if_busy else { return Err(LockError::Busy(conflict)) };
        if lock.family == LockFamily::Record && self.closes_circle(fid, &asked) {
            return Err(LockError::Deadlock);
        }
        self.files.entry(fid).or_default().waiting.push_back(Waiting { key, asked });
        self.waits.insert(key, fid);
        self.waits_of.entry(asked.owner()).or_default().insert(key);
        // The owner's own flock may have been all that was in the way of another's, which now is in ours, or not.
        self.serve(fid);
        Ok(LockAnswer::Waits)
    }

    /// Of the locks that keep `lock` from being taken the one that starts first (F_GETLK). None does if it ends before it
    /// starts.
    pub fn test(&self, fid: Fid, session: SessionId, lock: Lock) -> Option<HeldLock> {
        let file = self.files.get(&fid).filter(|_| lock.start <= lock.end)?;
        file.of(lock.family).first_in_the_way(&HeldLock { session, lock })
    }

    /// Unlocks the range for the owner; the mode of `lock` does not matter.
    pub fn release(&mut self, fid: Fid, session: SessionId, lock: Lock) {
        self.cut(fid, &HeldLock { session, lock });
    }

    /// The session has decided about the file alone: what it has there is this. Returns those that cannot be, as they are in
    /// each other's way.
    pub fn replace(&mut self, fid: Fid, session: SessionId, locks: &[Lock]) -> Vec<Lock> {
        for held in self.locks(fid).iter().filter(|held| held.session == session) {
            self.cut(fid, held);
        }
        let set = |lock: &&Lock| self.set(fid, session, **lock, IfBusy::Fail).is_err();
        locks.iter().filter(set).copied().collect()
    }

    /// Nobody but the session has a lock on the file, and nobody at all waits for one.
    pub fn has_none_but(&self, fid: Fid, session: SessionId) -> bool {
        let Some(file) = self.files.get(&fid) else { return true };
        file.waiting.is_empty() && file.both().iter().all(|held| held.has_none_but(session))
    }

    /// The session has ended: unlocks all it had and gives up all it waits for.
    pub fn release_session(&mut self, session: SessionId) {
        let owners = (session, LockOwner(0))..=(session, LockOwner(u64::MAX));
        let waits = self.waits_of.range(owners).flat_map(|(_, keys)| keys);
        let mut fids: BTreeSet<Fid> = waits.filter_map(|key| self.waits.get(key)).copied().collect();
        fids.extend(self.held_by.remove(&session).into_iter().flatten());
        for fid in fids {
            let Some(file) = self.files.get_mut(&fid) else { continue };
            file.flocks.drop_session(session);
            file.records.drop_session(session);
            for waiting in file.waiting.iter().filter(|waiting| waiting.asked.session == session) {
                self.waits.remove(&waiting.key);
                forget_wait(&mut self.waits_of, waiting);
            }
            file.waiting.retain(|waiting| waiting.asked.session != session);
            self.serve(fid);
        }
    }

    /// Gives up waiting. False if the request does not wait (any more): then it has been granted, or was never there.
    pub fn cancel(&mut self, key: WaitKey) -> bool {
        let Some(fid) = self.waits.remove(&key) else { return false };
        if let Some(file) = self.files.get_mut(&fid) {
            for waiting in file.waiting.iter().filter(|waiting| waiting.key == key) {
                forget_wait(&mut self.waits_of, waiting);
            }
            file.waiting.retain(|waiting| waiting.key != key);
        }
        self.tidy(fid);
        true
    }

    /// A request that waited and now has its lock. Drain it after every call.
    pub fn poll_granted(&mut self) -> Option<WaitKey> {
        self.granted.pop_front()
    }

    /// Locks held on a file, by session, owner and range.
    pub fn locks(&self, fid: Fid) -> Vec<HeldLock> {
        let files = self.files.get(&fid).into_iter();
        let mut held: Vec<HeldLock> = files.flat_map(FileLocks::both).flat_map(Held::iter).collect();
        held.sort_by_key(|held| (held.session, held.lock.family, held.lock.owner, held.lock.start));
        held
    }

    /// At most so many of the locks held on a file, flocks first; and how many there are.
    pub fn some_locks(&self, fid: Fid, most: usize) -> (Vec<HeldLock>, usize) {
        let Some(file) = self.files.get(&fid) else { return (Vec::new(), 0) };
        let count = file.both().iter().map(|held| held.count()).sum();
        (file.both().into_iter().flat_map(Held::iter).take(most).collect(), count)
    }

    /// Who waits for a lock on the file, first come first.
    pub fn waiting(&self, fid: Fid) -> impl ExactSizeIterator<Item = WaitKey> {
        static NOBODY: VecDeque<Waiting> = VecDeque::new();
        let waiting = self.files.get(&fid).map_or(&NOBODY, |file| &file.waiting);
        waiting.iter().map(|waiting| waiting.key)
    }

    /// Number of locks that a session holds.
    pub fn count_of(&self, session: SessionId) -> usize {
        let fids = self.held_by.get(&session).into_iter().flatten();
        let files = fids.filter_map(|fid| self.files.get(fid));
        files.flat_map(FileLocks::both).map(|held| held.count_of(session)).sum()
    }

    pub fn waiting_count(&self) -> usize {
        self.waits.len()
    }

    fn put(&mut self, fid: Fid, new: &HeldLock) -> Freed {
        self.held_by.entry(new.session).or_default().insert(fid);
        self.files.entry(fid).or_default().of_mut(new.lock.family).put(new)
    }

    /// Takes the range from its owner and gives it to who waits for it.
    fn cut(&mut self, fid: Fid, range: &HeldLock) {
        let Some(file) = self.files.get_mut(&fid) else { return };
        if file.of_mut(range.lock.family).cut(range) == Freed::Nothing {
            return;
        }
        if !file.both().iter().any(|held| held.has_any_of(range.session))
            && let Entry::Occupied(mut fids) = self.held_by.entry(range.session)
        {
            fids.get_mut().remove(&fid);
            if fids.get().is_empty() {
                fids.remove();
            }
        }
        self.serve(fid);
    }

    /// Grants what can be granted, first come first.
    fn serve(&mut self, fid: Fid) {
        let mut at = 0;
        while let Some(file) = self.files.get_mut(&fid)
            && let Some(waiting) = file.waiting.get(at).copied()
        {
            if file.of(waiting.asked.lock.family).first_in_the_way(&waiting.asked).is_some() {
                at += 1;
                continue;
            }
            file.waiting.remove(at);
            self.waits.remove(&waiting.key);
            forget_wait(&mut self.waits_of, &waiting);
            self.granted.push_back(waiting.key);
            // A record lock that was lowered by this may let in somebody further ahead.
            if self.put(fid, &waiting.asked) == Freed::Something {
                at = 0;
            }
        }
        self.tidy(fid);
    }

    fn tidy(&mut self, fid: Fid) {
        if self.files.get(&fid).is_some_and(FileLocks::is_empty) {
            self.files.remove(&fid);
        }
    }

    /// Somebody who is in the way waits, directly or through others, for a lock of the one who asks.
    fn closes_circle(&self, fid: Fid, asked: &HeldLock) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = self.owners_in_the_way(fid, asked);
        while let Some(owner) = next.pop_first() {
            if owner == asked.owner() {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for key in self.waits_of.get(&owner).into_iter().flatten() {
                let Some((fid, file)) =
                    self.waits.get(key).and_then(|fid| Some((*fid, self.files.get(fid)?)))
                else {
                    continue;
                };
                let waiting = file.waiting.iter().filter(|waiting| waiting.key == *key);
                next.extend(waiting.flat_map(|waiting| self.owners_in_the_way(fid, &waiting.asked)));
            }
        }
        false
    }

    fn owners_in_the_way(&self, fid: Fid, asked: &HeldLock) -> BTreeSet<Owner> {
        let file = self.files.get(&fid);
        file.map(|file| file.of(asked.lock.family).owners_in_the_way(asked)).unwrap_or_default()
    }
}

fn forget_wait(waits_of: &mut BTreeMap<Owner, BTreeSet<WaitKey>>, waiting: &Waiting) {
    let owner = waiting.asked.owner();
    if let Some(keys) = waits_of.get_mut(&owner) {
        keys.remove(&waiting.key);
        if keys.is_empty() {
            waits_of.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests;
