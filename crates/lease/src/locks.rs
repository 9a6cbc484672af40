//! The server's byte-range locks: flock(2) and fcntl(2), across machines.
//!
//! Semantics are those of a local Linux file system: the two families do not see each other; an owner's own locks never
//! conflict, a new one replaces what it overlaps, splitting and merging ranges; a change of a record lock's mode is
//! atomic, that of a flock is not (the old one is gone while the new one waits, flock(2)). Who waits is served first
//! come, first served, but does not keep others from locks that can be had now, as on Linux. A wait that would close a
//! circle of record locks is refused (EDEADLK).

use soda_types::{Fid, Lock, LockFamily, LockMode, LockOwner, SessionId};
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
    waits: BTreeMap<WaitKey, Fid>,
    waits_of: BTreeMap<Owner, BTreeSet<WaitKey>>,
    granted: VecDeque<WaitKey>,
}

type Owner = (SessionId, LockOwner);

#[derive(Debug, Default)]
struct FileLocks {
    /// Sorted by start within an owner and family; no order across owners that means anything.
    held: Vec<HeldLock>,
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

    fn is_same_owner(&self, other: &HeldLock) -> bool {
        self.owner() == other.owner() && self.lock.family == other.lock.family
    }

    fn overlaps(&self, other: &HeldLock) -> bool {
        self.lock.start <= other.lock.end && other.lock.start <= self.lock.end
    }

    fn conflicts(&self, other: &HeldLock) -> bool {
        let shared = self.lock.mode == LockMode::Shared && other.lock.mode == LockMode::Shared;
        self.lock.family == other.lock.family && !shared && !self.is_same_owner(other) && self.overlaps(other)
    }
}

impl FileLocks {
    fn conflict(&self, asked: &HeldLock) -> Option<HeldLock> {
        self.held.iter().filter(|held| held.conflicts(asked)).min_by_key(|held| held.lock.start).copied()
    }

    /// Removes the owner's locks in the range, cutting those that stick out.
    fn cut(&mut self, range: &HeldLock) {
        let (start, end) = (range.lock.start, range.lock.end);
        let mut rest = Vec::new();
        self.held.retain(|held| {
            if !held.is_same_owner(range) || !held.overlaps(range) {
                return true;
            }
            if held.lock.start < start {
                rest.push(HeldLock { lock: Lock { end: start - 1, ..held.lock }, ..*held });
            }
            if held.lock.end > end {
                rest.push(HeldLock { lock: Lock { start: end + 1, ..held.lock }, ..*held });
            }
            false
        });
        self.held.extend(rest);
    }

    /// Adds a lock that conflicts with none, joined with the owner's neighbours of the same mode.
    fn put(&mut self, new: HeldLock) {
        self.cut(&new);
        let mut joined = new;
        self.held.retain(|held| {
            let touches = held.lock.end.checked_add(1) == Some(joined.lock.start)
                || joined.lock.end.checked_add(1) == Some(held.lock.start);
            let same = held.is_same_owner(&new) && held.lock.mode == new.lock.mode;
            if same && touches {
                joined.lock.start = joined.lock.start.min(held.lock.start);
                joined.lock.end = joined.lock.end.max(held.lock.end);
            }
            !(same && touches)
        });
        self.held.push(joined);
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
        let file = self.files.entry(fid).or_default();
        let Some(conflict) = file.conflict(&asked) else {
            file.put(asked);
            // Lowering to shared may let others in.
            self.serve(fid);
            return Ok(LockAnswer::Granted);
        };
        if lock.family == LockFamily::Flock {
            file.cut(&asked);
            self.serve(fid);
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

    /// The lock that keeps `lock` from being taken, if any (F_GETLK).
    pub fn test(&self, fid: Fid, session: SessionId, lock: Lock) -> Option<HeldLock> {
        self.files.get(&fid)?.conflict(&HeldLock { session, lock })
    }

    /// Unlocks the range for the owner; the mode of `lock` does not matter.
    pub fn release(&mut self, fid: Fid, session: SessionId, lock: Lock) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.cut(&HeldLock { session, lock });
            self.serve(fid);
        }
    }

    /// Unlocks all that the owner has on the file in the family, and gives up what it waits for there (close).
    pub fn release_owner(&mut self, fid: Fid, session: SessionId, owner: LockOwner, family: LockFamily) {
        let is_owners = |held: &HeldLock| held.owner() == (session, owner) && held.lock.family == family;
        self.drop_where(fid, is_owners);
    }

    /// The session has ended: unlocks all it had and gives up all it waits for.
    pub fn release_session(&mut self, session: SessionId) {
        let fids: Vec<Fid> = self.files.keys().copied().collect();
        for fid in fids {
            self.drop_where(fid, |held| held.session == session);
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
        let mut held = self.files.get(&fid).map(|file| file.held.clone()).unwrap_or_default();
        held.sort_by_key(|held| (held.session, held.lock.family, held.lock.owner, held.lock.start));
        held
    }

    /// Number of locks that a session holds.
    pub fn count_of(&self, session: SessionId) -> usize {
        self.files.values().flat_map(|file| &file.held).filter(|held| held.session == session).count()
    }

    pub fn waiting_count(&self) -> usize {
        self.waits.len()
    }

    fn drop_where(&mut self, fid: Fid, unwanted: impl Fn(&HeldLock) -> bool) {
        let Some(file) = self.files.get_mut(&fid) else { return };
        let before = (file.held.len(), file.waiting.len());
        file.held.retain(|held| !unwanted(held));
        for waiting in file.waiting.iter().filter(|waiting| unwanted(&waiting.asked)) {
            self.waits.remove(&waiting.key);
            forget_wait(&mut self.waits_of, waiting);
        }
        file.waiting.retain(|waiting| !unwanted(&waiting.asked));
        if before != (file.held.len(), file.waiting.len()) {
            self.serve(fid);
        }
    }

    /// Grants what can be granted, first come first.
    fn serve(&mut self, fid: Fid) {
        let Some(file) = self.files.get_mut(&fid) else { return };
        let mut at = 0;
        while let Some(waiting) = file.waiting.get(at).copied() {
            if file.conflict(&waiting.asked).is_some() {
                at += 1;
                continue;
            }
            file.waiting.remove(at);
            file.put(waiting.asked);
            self.waits.remove(&waiting.key);
            forget_wait(&mut self.waits_of, &waiting);
            self.granted.push_back(waiting.key);
            // A record lock that was lowered by this may let in somebody further ahead.
            at = 0;
        }
        self.tidy(fid);
    }

    fn tidy(&mut self, fid: Fid) {
        if self.files.get(&fid).is_some_and(|file| file.held.is_empty() && file.waiting.is_empty()) {
            self.files.remove(&fid);
        }
    }

    /// Somebody who is in the way waits, directly or through others, for a lock of the one who asks.
    fn closes_circle(&self, fid: Fid, asked: &HeldLock) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = self.owners_in_the_way(fid, asked);
        while let Some(owner) = next.pop() {
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

    fn owners_in_the_way(&self, fid: Fid, asked: &HeldLock) -> Vec<Owner> {
        let held = self.files.get(&fid).into_iter().flat_map(|file| &file.held);
        held.filter(|held| held.conflicts(asked)).map(HeldLock::owner).collect()
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
