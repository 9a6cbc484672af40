//! Ranges of many owners, some of which overlap, to be found by what they overlap.
//!
//! Among ranges sorted by their start, one that reaches here from far ahead is behind any number of short ones. So they are
//! kept by size, from a power of two to the next: what overlaps then starts near by, or is not of that size.

use super::Owner;
use soda_types::{Lock, LockOwner, SessionId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Spans {
    /// The last byte, by size, first byte and owner.
    by_size: BTreeMap<Size, BTreeMap<(u64, Owner), u64>>,
}

/// How many binary digits the distance from the first byte to the last has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Size(u32);

impl Size {
    fn of(lock: &Lock) -> Size {
        Size(u64::BITS - (lock.end - lock.start).leading_zeros())
    }

    /// The greatest distance from the first byte to the last.
    fn reach(self) -> u64 {
        u64::MAX.checked_shr(u64::BITS - self.0).unwrap_or(0)
    }
}

impl Spans {
    pub(super) fn insert(&mut self, owner: Owner, lock: &Lock) {
        self.by_size.entry(Size::of(lock)).or_default().insert((lock.start, owner), lock.end);
    }

    pub(super) fn remove(&mut self, owner: Owner, lock: &Lock) {
        let size = Size::of(lock);
        if let Some(spans) = self.by_size.get_mut(&size) {
            spans.remove(&(lock.start, owner));
            if spans.is_empty() {
                self.by_size.remove(&size);
            }
        }
    }

    /// First bytes and owners of the ranges that overlap this one: those of each size in order.
    pub(super) fn overlapping(
        &self,
        range: Lock,
    ) -> impl Iterator<Item = impl Iterator<Item = (u64, Owner)>> {
        const FIRST: Owner = (SessionId(0), LockOwner(0));
        const LAST: Owner = (SessionId(u64::MAX), LockOwner(u64::MAX));
        self.by_size.iter().map(move |(size, spans)| {
            let near = (range.start.saturating_sub(size.reach()), FIRST)..=(range.end, LAST);
            spans.range(near).filter(move |(_, end)| range.start <= **end).map(|(span, _)| *span)
        })
    }
}
