//! Which inodes were changed since the last sync: whose fsync must fail if a power cut of the server takes changes back
//! that it had acknowledged.

use crate::cache::hash::FastMap;
use soda_types::{Fid, Sequence};

/// Above this many a background sync is due, which empties the list.
pub(crate) const SYNC_ABOVE: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    /// With the number of the last change.
    changed: FastMap<Fid, u64>,
    next: u64,
    /// The highest sequence that the server has answered in this session.
    pub(crate) highest_answered: Sequence,
    lost: FastMap<Fid, ()>,
}

/// A moment in the order of changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

impl Unsynced {
    pub(crate) fn note(&mut self, fid: Fid) {
        self.next += 1;
        self.changed.insert(fid, self.next);
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(self.next)
    }

    /// Everything up to the mark is on the server's disk.
    pub(crate) fn synced(&mut self, mark: Mark) {
        self.changed.retain(|_, change| *change > mark.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.changed.len()
    }

    /// The server has come back with less than it had acknowledged. Returns how many inodes are concerned.
    pub(crate) fn lose(&mut self) -> usize {
        let lost = std::mem::take(&mut self.changed);
        self.lost.extend(lost.into_keys().map(|fid| (fid, ())));
        self.lost.len()
    }

    /// Whether the inode's changes were lost; says so once.
    pub(crate) fn take_lost(&mut self, fid: Fid) -> bool {
        self.lost.remove(&fid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    #[test]
    fn loss_is_reported_once_and_only_for_what_was_not_synced() {
        let [a, b] = [1, 2].map(|ino| Fid::new(VolumeId(1), Ino(ino)));
        let mut unsynced = Unsynced::default();
        unsynced.note(a);
        let mark = unsynced.mark();
        unsynced.note(b);
        unsynced.synced(mark);
        assert_eq!(unsynced.lose(), 1);
        assert!(!unsynced.take_lost(a));
        assert!(unsynced.take_lost(b));
        assert!(!unsynced.take_lost(b));
    }
}
