//! The locks that one owner has on one file, in one family. They never overlap: a new one replaces what is in its range.

use soda_types::Lock;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct OwnLocks {
    by_start: BTreeMap<u64, Lock>,
}

/// What became of an owner's locks: those that are no more, or not as they were, and those that are new.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    pub gone: Vec<Lock>,
    pub new: Vec<Lock>,
}

impl OwnLocks {
    /// Takes a lock, joined with those of the same mode that it touches.
    pub fn put(&mut self, lock: Lock) -> Change {
        let near = Lock { start: lock.start.saturating_sub(1), end: lock.end.saturating_add(1), ..lock };
        let same = self.overlapping(near).filter(|own| own.mode == lock.mode);
        let joined = same.fold(lock, |joined, own| Lock {
            start: joined.start.min(own.start),
            end: joined.end.max(own.end),
            ..joined
        });
        let mut change = self.cut(joined);
        self.by_start.insert(joined.start, joined);
        change.new.push(joined);
        change
    }

    /// Gives up the range; what sticks out of it stays.
    pub fn cut(&mut self, range: Lock) -> Change {
        let gone: Vec<Lock> = self.overlapping(range).copied().collect();
        let mut new = Vec::new();
        for lock in &gone {
            self.by_start.remove(&lock.start);
            if lock.start < range.start {
                new.push(Lock { end: range.start - 1, ..*lock });
            }
            if lock.end > range.end {
                new.push(Lock { start: range.end + 1, ..*lock });
            }
        }
        self.by_start.extend(new.iter().map(|lock| (lock.start, *lock)));
        Change { gone, new }
    }

    /// In order. A range that ends before it starts has nothing in it.
    pub fn overlapping(&self, range: Lock) -> impl Iterator<Item = &Lock> {
        let first = self.by_start.range(..range.start).next_back().map(|(_, lock)| lock);
        let first = first.filter(move |lock| range.start <= range.end && range.start <= lock.end);
        let inside = (range.start <= range.end).then(|| self.by_start.range(range.start..=range.end));
        first.into_iter().chain(inside.into_iter().flatten().map(|(_, lock)| lock))
    }

    /// The one that starts there.
    pub fn starting_at(&self, start: u64) -> Option<&Lock> {
        self.by_start.get(&start)
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.by_start.values()
    }

    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
}
