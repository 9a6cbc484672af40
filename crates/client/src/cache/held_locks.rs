//! File locks that this client holds: what it asks for again after a restart of the server.

use soda_lease::locks::OwnLocks;
use soda_protocol::{Lock, LockFamily, LockMode};
use soda_types::{Fid, LockOwner};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// Who delays changes and did not lock for so long asks again, as others need not wait for this machine then: a session that ends
/// takes along what was not told, and who is cut off is fenced for the right to decide, too.
pub(crate) const IDLE_BEHIND: Duration = Duration::from_secs(2);

/// Locks on one file about which a client decides by itself: they fit into one message when it has to tell of them.
pub(crate) const MOST_HERE: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    by_owner: BTreeMap<Owner, OwnLocks>,
}

/// Whose locks are not in each other's way.
pub(crate) type Owner = (Fid, LockFamily, LockOwner);

pub(crate) fn owner_of(fid: Fid, lock: &Lock) -> Owner {
    (fid, lock.family, lock.owner)
}

/// What brings a part of a range back to what the owner had there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undo {
    Release(Lock),
    /// To another mode.
    Set(Lock),
}

impl HeldLocks {
    /// The server has granted it: replaces what the owner had in the range.
    pub(crate) fn set(&mut self, fid: Fid, lock: Lock) {
        self.by_owner.entry(owner_of(fid, &lock)).or_default().put(lock);
    }

    pub(crate) fn release(&mut self, fid: Fid, range: Lock) {
        let Entry::Occupied(mut of_owner) = self.by_owner.entry(owner_of(fid, &range)) else { return };
        of_owner.get_mut().cut(range);
        if of_owner.get().is_empty() {
            of_owner.remove();
        }
    }

    /// Whether the owner has a lock that overlaps the range.
    pub(crate) fn overlaps(&self, fid: Fid, range: Lock) -> bool {
        let locks = self.by_owner.get(&owner_of(fid, &range));
        locks.is_some_and(|locks| locks.overlapping(range).next().is_some())
    }

    /// What the owner has of the range, in order.
    pub(crate) fn within(&self, fid: Fid, range: Lock) -> Vec<Lock> {
        let Some(locks) = self.by_owner.get(&owner_of(fid, &range)) else { return Vec::new() };
        let clipped =
            |lock: &Lock| Lock { start: lock.start.max(range.start), end: lock.end.min(range.end), ..*lock };
        locks.overlapping(range).map(clipped).collect()
    }

    /// Takes a granted lock back, where it was not released or replaced since. `before`: what the owner had of its range.
    pub(crate) fn undo(&mut self, fid: Fid, granted: Lock, before: &[Lock]) -> Vec<Undo> {
        let mut steps = Vec::new();
        for piece in self.within(fid, granted).iter().filter(|piece| piece.mode == granted.mode) {
            let mut rest = Some(piece.start);
            for old in before.iter().filter(|old| old.start <= piece.end && piece.start <= old.end) {
                let Some(from) = rest else { break };
                let old = Lock { start: old.start.max(piece.start), end: old.end.min(piece.end), ..*old };
                if from < old.start {
                    steps.push(Undo::Release(Lock { start: from, end: old.start - 1, ..granted }));
                }
                if old.mode != granted.mode {
                    steps.push(Undo::Set(old));
                }
                rest = old.end.checked_add(1);
            }
            if let Some(from) = rest.filter(|from| *from <= piece.end) {
                steps.push(Undo::Release(Lock { start: from, end: piece.end, ..granted }));
            }
        }
        for step in &steps {
            match *step {
                Undo::Release(lock) => self.release(fid, lock),
                Undo::Set(lock) => self.set(fid, lock),
            }
        }
        steps
    }

    /// Of the locks of other owners that keep this one from being taken, the one that starts first.
    pub(crate) fn in_the_way(&self, fid: Fid, lock: Lock) -> Option<Lock> {
        let own = owner_of(fid, &lock);
        let others = self.of_family(fid, lock.family).filter(|(owner, _)| **owner != own);
        let conflicts = others.filter_map(|(_, locks)| {
            let exclusive =
                |held: &&Lock| LockMode::Exclusive == lock.mode || LockMode::Exclusive == held.mode;
            locks.overlapping(lock).find(exclusive)
        });
        conflicts.min_by_key(|held| held.start).copied()
    }

    fn of_family(&self, fid: Fid, family: LockFamily) -> impl Iterator<Item = (&Owner, &OwnLocks)> {
        self.by_owner.range((fid, family, LockOwner(0))..=(fid, family, LockOwner(u64::MAX)))
    }

    fn both_families(&self, fid: Fid) -> impl Iterator<Item = &OwnLocks> {
        let families = [LockFamily::Flock, LockFamily::Record];
        families.into_iter().flat_map(move |family| self.of_family(fid, family)).map(|(_, locks)| locks)
    }

    /// All that this client has on the file.
    pub(crate) fn of_file(&self, fid: Fid) -> Vec<Lock> {
        self.both_families(fid).flat_map(OwnLocks::iter).copied().collect()
    }

    /// Number of locks on the file.
    pub(crate) fn count_of(&self, fid: Fid) -> usize {
        self.both_families(fid).map(OwnLocks::len).sum()
    }

    pub(crate) fn owner_has_any(&self, fid: Fid, family: LockFamily, owner: LockOwner) -> bool {
        self.by_owner.contains_key(&(fid, family, owner))
    }

    pub(crate) fn all(&self) -> Vec<(Fid, Lock)> {
        let of = |((fid, ..), locks): (&Owner, &OwnLocks)| {
            let fid = *fid;
            locks.iter().map(move |lock| (fid, *lock)).collect::<Vec<_>>()
        };
        self.by_owner.iter().flat_map(of).collect()
    }

    /// The session is lost, and all locks with it. Returns the inodes that had some.
    pub(crate) fn lose_all(&mut self) -> Vec<Fid> {
        let mut fids: Vec<Fid> =
            std::mem::take(&mut self.by_owner).into_keys().map(|(fid, ..)| fid).collect();
        fids.dedup();
        fids
    }

    pub(crate) fn len(&self) -> usize {
        self.by_owner.values().map(OwnLocks::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    const FID: Fid = Fid { volume: VolumeId(1), ino: Ino(2), generation: 0 };

    fn lock(start: u64, end: u64) -> Lock {
        let (family, owner, mode) = (LockFamily::Record, LockOwner(1), LockMode::Exclusive);
        Lock { family, owner, pid: 1, start, end, mode }
    }

    fn shared(start: u64, end: u64) -> Lock {
        Lock { mode: LockMode::Shared, ..lock(start, end) }
    }

    #[test]
    fn what_is_in_the_way_is_of_another_owner_and_of_the_same_family() {
        let mut held = HeldLocks::default();
        let of = |owner, lock| Lock { owner: LockOwner(owner), ..lock };
        held.set(FID, of(1, shared(10, 19)));
        held.set(FID, of(2, lock(20, 29)));
        held.set(FID, of(3, shared(5, 15)));
        assert_eq!(held.in_the_way(FID, of(4, shared(0, 19))), None);
        assert_eq!(held.in_the_way(FID, of(4, shared(0, 20))), Some(of(2, lock(20, 29))));
        assert_eq!(
            held.in_the_way(FID, of(4, lock(0, u64::MAX))),
            Some(of(3, shared(5, 15))),
            "the first one"
        );
        assert_eq!(held.in_the_way(FID, of(2, lock(20, 40))), None, "its own");
        let flock = Lock { family: LockFamily::Flock, ..of(4, lock(0, u64::MAX)) };
        assert_eq!(held.in_the_way(FID, flock), None);
        let other = Fid { ino: Ino(3), ..FID };
        assert_eq!(held.in_the_way(other, of(4, lock(0, u64::MAX))), None);
        held.set(FID, flock);
        assert_eq!((held.count_of(FID), held.of_file(FID).len(), held.count_of(other)), (4, 4, 0));
    }

    #[test]
    fn ranges_are_cut() {
        let mut held = HeldLocks::default();
        held.set(FID, lock(0, u64::MAX));
        held.release(FID, lock(10, 19));
        assert_eq!(held.all(), vec![(FID, lock(0, 9)), (FID, lock(20, u64::MAX))]);
        assert!(!held.overlaps(FID, lock(10, 19)));
        assert!(held.overlaps(FID, lock(19, 20)));
        held.set(FID, shared(5, 30));
        assert_eq!(held.len(), 3);
        held.set(FID, lock(5, 30));
        assert_eq!(held.all(), vec![(FID, lock(0, u64::MAX))], "joined, as at the server");
        assert!(!held.owner_has_any(FID, LockFamily::Flock, LockOwner(1)));
        held.release(FID, lock(0, u64::MAX));
        assert_eq!(held.len(), 0);
        assert!(!held.owner_has_any(FID, LockFamily::Record, LockOwner(1)));
    }

    #[test]
    fn a_grant_is_undone_to_what_was_there_before() {
        let mut held = HeldLocks::default();
        for lock in [shared(0, 4), lock(10, 14), shared(90, u64::MAX)] {
            held.set(FID, lock);
        }
        let (was, wanted) = (held.all(), lock(3, u64::MAX));
        let before = held.within(FID, wanted);
        assert_eq!(before, [shared(3, 4), lock(10, 14), shared(90, u64::MAX)]);
        held.set(FID, wanted);
        let steps = held.undo(FID, wanted, &before);
        use Undo::{Release, Set};
        let expected =
            [Set(shared(3, 4)), Release(lock(5, 9)), Release(lock(15, 89)), Set(shared(90, u64::MAX))];
        assert_eq!(steps, expected);
        let covered = |at: u64| held.within(FID, lock(at, at)).first().map(|lock| lock.mode);
        for (at, mode) in [(0, 4), (10, 14), (90, 99)].iter().flat_map(|(from, to)| *from..=*to).zip(0..) {
            let of_old = was.iter().find(|(_, old)| old.start <= at && at <= old.end).unwrap();
            assert_eq!(covered(at), Some(of_old.1.mode), "{mode}");
        }
        assert_eq!((covered(5), covered(9), covered(15), covered(89)), (None, None, None, None));
    }

    #[test]
    fn what_was_released_since_is_not_given_back_again() {
        let mut held = HeldLocks::default();
        held.set(FID, lock(0, 9));
        held.release(FID, lock(0, 3));
        held.set(FID, shared(4, 5));
        assert_eq!(
            held.undo(FID, lock(0, 9), &[shared(0, 7)]),
            [Undo::Set(shared(6, 7)), Undo::Release(lock(8, 9))]
        );
        held.release(FID, lock(0, u64::MAX));
        assert_eq!(held.undo(FID, lock(0, 9), &[]), []);
    }

    /// As one byte after the other would have it.
    #[test]
    fn it_holds_what_a_simple_list_of_bytes_would() {
        let mut held = HeldLocks::default();
        let mut bytes = [None; 32];
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for _ in 0..5000 {
            let start = next(32);
            let end = start + next(32 - start);
            let range = if next(2) == 0 { lock(start, end) } else { shared(start, end) };
            let new = (next(3) > 0).then_some(range.mode);
            match new {
                Some(_) => held.set(FID, range),
                None => held.release(FID, range),
            }
            bytes[start as usize..=end as usize].fill(new);
            for (at, mode) in (0..).zip(&bytes) {
                let seen = held.within(FID, lock(at, at));
                assert_eq!(seen.first().map(|lock| &lock.mode), mode.as_ref());
                assert_eq!(held.overlaps(FID, lock(at, at)), mode.is_some());
            }
        }
    }
}
