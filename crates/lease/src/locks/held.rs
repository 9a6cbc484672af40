//! What is locked of one file, in one family.

use super::own::{Change, OwnLocks};
use super::spans::Spans;
use super::{HeldLock, Owner};
use soda_types::{LockMode, LockOwner, SessionId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Held {
    /// No owner without locks.
    by_owner: BTreeMap<Owner, OwnLocks>,
    /// The same once more, to find who is in the way without asking each of the owners.
    shared: Spans,
    exclusive: Spans,
}

/// Whether others can have what they could not before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Freed {
    Something,
    Nothing,
}

impl Held {
    /// Of the locks that keep this one from being taken, the one that starts first.
    pub(super) fn first_in_the_way(&self, asked: &HeldLock) -> Option<HeldLock> {
        let firsts = self.in_the_way(asked).filter_map(|mut of_one_size| of_one_size.next());
        let (start, owner) = firsts.min()?;
        let lock = *self.by_owner.get(&owner)?.starting_at(start)?;
        Some(HeldLock { session: owner.0, lock })
    }

    pub(super) fn owners_in_the_way(&self, asked: &HeldLock) -> BTreeSet<Owner> {
        self.in_the_way(asked).flatten().map(|(_, owner)| owner).collect()
    }

    /// First bytes and owners; each of the inner ones is in order.
    fn in_the_way(&self, asked: &HeldLock) -> impl Iterator<Item = impl Iterator<Item = (u64, Owner)>> {
        let (lock, own) = (asked.lock, asked.owner());
        let shared = (lock.mode == LockMode::Exclusive).then(|| self.shared.overlapping(lock));
        let all = self.exclusive.overlapping(lock).chain(shared.into_iter().flatten());
        all.map(move |of_one_size| of_one_size.filter(move |(_, owner)| *owner != own))
    }

    /// Adds a lock that nothing is in the way of.
    pub(super) fn put(&mut self, new: &HeldLock) -> Freed {
        let change = self.by_owner.entry(new.owner()).or_default().put(new.lock);
        self.note(new.owner(), &change);
        let lowered = new.lock.mode == LockMode::Shared
            && change.gone.iter().any(|lock| lock.mode == LockMode::Exclusive);
        if lowered { Freed::Something } else { Freed::Nothing }
    }

    /// Removes the owner's locks in the range, cutting those that stick out.
    pub(super) fn cut(&mut self, range: &HeldLock) -> Freed {
        let owner = range.owner();
        let Some(own) = self.by_owner.get_mut(&owner) else { return Freed::Nothing };
        let change = own.cut(range.lock);
        if own.is_empty() {
            self.by_owner.remove(&owner);
        }
        self.note(owner, &change);
        if change.gone.is_empty() { Freed::Nothing } else { Freed::Something }
    }

    /// Removes all that a session has.
    pub(super) fn drop_session(&mut self, session: SessionId) {
        let owners: Vec<Owner> = self.of_session(session).map(|(owner, _)| *owner).collect();
        for owner in owners {
            let gone = self.by_owner.remove(&owner).unwrap_or_default();
            self.note(owner, &Change { gone: gone.iter().copied().collect(), new: Vec::new() });
        }
    }

    fn note(&mut self, owner: Owner, change: &Change) {
        change.gone.iter().for_each(|lock| self.spans_of(lock.mode).remove(owner, lock));
        change.new.iter().for_each(|lock| self.spans_of(lock.mode).insert(owner, lock));
    }

    fn spans_of(&mut self, mode: LockMode) -> &mut Spans {
        match mode {
            LockMode::Shared => &mut self.shared,
            LockMode::Exclusive => &mut self.exclusive,
        }
    }

    pub(super) fn has_any_of(&self, session: SessionId) -> bool {
        self.of_session(session).next().is_some()
    }

    pub(super) fn has_none_but(&self, session: SessionId) -> bool {
        let ends = [self.by_owner.first_key_value(), self.by_owner.last_key_value()];
        ends.into_iter().flatten().all(|((of, _), _)| *of == session)
    }

    pub(super) fn count(&self) -> usize {
        self.by_owner.values().map(OwnLocks::len).sum()
    }

    /// Number of locks that a session has.
    pub(super) fn count_of(&self, session: SessionId) -> usize {
        self.of_session(session).map(|(_, own)| own.len()).sum()
    }

    fn of_session(&self, session: SessionId) -> impl Iterator<Item = (&Owner, &OwnLocks)> {
        self.by_owner.range((session, LockOwner(0))..=(session, LockOwner(u64::MAX)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// By owner and range.
    pub(super) fn iter(&self) -> impl Iterator<Item = HeldLock> {
        self.by_owner
            .iter()
            .flat_map(|(owner, own)| own.iter().map(|lock| HeldLock { session: owner.0, lock: *lock }))
    }
}
