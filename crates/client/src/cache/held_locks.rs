//! File locks that this client holds: what it asks for again after a restart of the server.

use soda_protocol::{Lock, LockFamily};
use soda_types::{Fid, LockOwner};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    by_fid: BTreeMap<Fid, Vec<Lock>>,
}

impl HeldLocks {
    /// The server has granted it: replaces what the owner had in the range.
    pub(crate) fn set(&mut self, fid: Fid, lock: Lock) {
        self.release(fid, lock);
        self.by_fid.entry(fid).or_default().push(lock);
    }

    pub(crate) fn release(&mut self, fid: Fid, range: Lock) {
        let Some(locks) = self.by_fid.get_mut(&fid) else { return };
        let mut rest = Vec::with_capacity(locks.len() + 1);
        for lock in locks.drain(..) {
            let same = lock.family == range.family && lock.owner == range.owner;
            if !same || lock.end < range.start || range.end < lock.start {
                rest.push(lock);
                continue;
            }
            if lock.start < range.start {
                rest.push(Lock { end: range.start - 1, ..lock });
            }
            if lock.end > range.end {
                rest.push(Lock { start: range.end + 1, ..lock });
            }
        }
        *locks = rest;
        if locks.is_empty() {
            self.by_fid.remove(&fid);
        }
    }

    /// Whether the owner has a lock that overlaps the range.
    pub(crate) fn overlaps(&self, fid: Fid, range: Lock) -> bool {
        self.by_fid.get(&fid).is_some_and(|locks| {
            locks.iter().any(|lock| {
                let same = lock.family == range.family && lock.owner == range.owner;
                same && lock.start <= range.end && range.start <= lock.end
            })
        })
    }

    pub(crate) fn owner_has_any(&self, fid: Fid, family: LockFamily, owner: LockOwner) -> bool {
        let of_owner = |lock: &Lock| lock.family == family && lock.owner == owner;
        self.by_fid.get(&fid).is_some_and(|locks| locks.iter().any(of_owner))
    }

    pub(crate) fn all(&self) -> Vec<(Fid, Lock)> {
        let of =
            |(fid, locks): (&Fid, &Vec<Lock>)| locks.iter().map(|lock| (*fid, *lock)).collect::<Vec<_>>();
        self.by_fid.iter().flat_map(of).collect()
    }

    /// The session is lost, and all locks with it. Returns the inodes that had some.
    pub(crate) fn lose_all(&mut self) -> Vec<Fid> {
        std::mem::take(&mut self.by_fid).into_keys().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_fid.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_protocol::LockMode;
    use soda_types::{Ino, VolumeId};

    fn lock(start: u64, end: u64) -> Lock {
        let (family, owner, mode) = (LockFamily::Record, LockOwner(1), LockMode::Exclusive);
        Lock { family, owner, pid: 1, start, end, mode }
    }

    #[test]
    fn ranges_are_cut() {
        let fid = Fid::new(VolumeId(1), Ino(2));
        let mut held = HeldLocks::default();
        held.set(fid, lock(0, u64::MAX));
        held.release(fid, lock(10, 19));
        assert_eq!(held.all(), vec![(fid, lock(0, 9)), (fid, lock(20, u64::MAX))]);
        assert!(!held.overlaps(fid, lock(10, 19)));
        assert!(held.overlaps(fid, lock(19, 20)));
        held.set(fid, lock(5, 30));
        assert_eq!(held.len(), 3);
        assert!(!held.owner_has_any(fid, LockFamily::Flock, LockOwner(1)));
        held.release(fid, lock(0, u64::MAX));
        assert_eq!(held.len(), 0);
    }
}
