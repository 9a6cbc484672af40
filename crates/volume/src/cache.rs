//! A bounded, sharded cache of what is committed, coherent with commits.
//!
//! The danger of a cache beside a store: a reader misses, reads the store, is overtaken by a commit that stores the new
//! value here, and then puts the old value over it. So a reader takes a [`Ticket`] before it reads the store, and its
//! value is dropped if the part of the cache that it is in has seen a commit since.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 16;

/// Commits of a shard are told apart by so many parts of its keys: a commit somewhere else spoils few tickets.
const PARTS: usize = 64;
const NONE: usize = usize::MAX;

pub(crate) struct Cache<K, V> {
    hasher: RandomState,
    shards: Vec<Mutex<Shard<K, V>>>,
}

/// How often a cache had what was looked for, since the volume was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheUse {
    pub hits: u64,
    pub misses: u64,
}

/// The state of a part of a shard before the store was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// `capacity`: the sum of the weights kept at most.
    pub(crate) fn new(capacity: usize) -> Cache<K, V> {
        let shard = || Mutex::new(Shard::new(capacity / SHARDS));
        Cache { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// The cached value, or a ticket for putting the one that is read now.
    pub(crate) fn get(&self, key: &K) -> Result<V, Ticket> {
        let (mut shard, part) = self.place(key);
        match shard.get(key) {
            Some(value) => {
                shard.uses.hits += 1;
                Ok(value)
            }
            None => {
                shard.uses.misses += 1;
                Err(Ticket(shard.commits[part]))
            }
        }
    }

    pub(crate) fn uses(&self) -> CacheUse {
        self.shards.iter().fold(CacheUse::default(), |sum, shard| {
            let uses = shard.lock().unwrap_or_else(PoisonError::into_inner).uses;
            CacheUse { hits: sum.hits + uses.hits, misses: sum.misses + uses.misses }
        })
    }

    /// Keeps what was read from the store, unless a commit came in between.
    pub(crate) fn fill(&self, key: K, value: V, weight: usize, ticket: Ticket) {
        let (mut shard, part) = self.place(&key);
        if shard.commits[part] == ticket.0 {
            shard.put(key, value, weight);
        }
    }

    /// Keeps what was committed; `None` forgets what was known.
    pub(crate) fn committed(&self, key: K, value: Option<(V, usize)>) {
        let (mut shard, part) = self.place(&key);
        shard.commits[part] += 1;
        match value {
            Some((value, weight)) => shard.put(key, value, weight),
            None => drop(shard.remove(&key)),
        }
    }

    /// Has what is kept, if it is, follow a commit. `change` returns the new value and its weight.
    pub(crate) fn change(&self, key: K, change: impl FnOnce(V) -> (V, usize)) {
        let (mut shard, part) = self.place(&key);
        shard.commits[part] += 1;
        if let Some(value) = shard.remove(&key) {
            let (value, weight) = change(value);
            shard.put(key, value, weight);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = Shard::new(shard.capacity);
            let before = std::mem::replace(&mut *shard, fresh);
            shard.commits = before.commits.map(|commits| commits + 1);
        }
    }

    /// The shard of a key, and the part of it.
    fn place(&self, key: &K) -> (MutexGuard<'_, Shard<K, V>>, usize) {
        // The map in the shard hashes with another state, so taking the low bits here does not spoil its spread.
        let hash = self.hasher.hash_one(key) as usize;
        let shard = self.shards[hash % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        (shard, hash / SHARDS % PARTS)
    }
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        let (mut entries, mut weight) = (0, 0);
        for shard in sizes {
            entries += shard.index.len();
            weight += shard.weight;
        }
        f.debug_struct("Cache").field("entries", &entries).field("weight", &weight).finish()
    }
}

/// Entries in a slab, linked in the order of their last use.
struct Shard<K, V> {
    index: HashMap<K, usize>,
    slab: Vec<Option<Entry<K, V>>>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
    weight: usize,
    capacity: usize,
    commits: [u64; PARTS],
    uses: CacheUse,
}

struct Entry<K, V> {
    key: K,
    value: V,
    weight: usize,
    newer: usize,
    older: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Shard<K, V> {
    fn new(capacity: usize) -> Shard<K, V> {
        Shard {
            index: HashMap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            weight: 0,
            capacity,
            commits: [0; PARTS],
            uses: CacheUse::default(),
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        let slot = *self.index.get(key)?;
        if self.newest != slot {
            let entry = self.unlink(slot)?;
            self.link(slot, entry);
        }
        self.slab[slot].as_ref().map(|entry| entry.value.clone())
    }

    fn put(&mut self, key: K, value: V, weight: usize) {
        self.remove(&key);
        if weight > self.capacity {
            return;
        }
        self.weight += weight;
        while self.weight > self.capacity && self.oldest != NONE {
            self.remove_slot(self.oldest);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            self.slab.len() - 1
        });
        self.index.insert(key.clone(), slot);
        self.link(slot, Entry { key, value, weight, newer: NONE, older: NONE });
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        self.index.get(key).copied().and_then(|slot| self.remove_slot(slot))
    }

    fn remove_slot(&mut self, slot: usize) -> Option<V> {
        let entry = self.unlink(slot)?;
        self.weight -= entry.weight;
        self.index.remove(&entry.key);
        self.free.push(slot);
        Some(entry.value)
    }

    fn unlink(&mut self, slot: usize) -> Option<Entry<K, V>> {
        let entry = self.slab[slot].take()?;
        match self.slab.get_mut(entry.newer).and_then(Option::as_mut) {
            Some(newer) => newer.older = entry.older,
            None => self.newest = entry.older,
        }
        match self.slab.get_mut(entry.older).and_then(Option::as_mut) {
            Some(older) => older.newer = entry.newer,
            None => self.oldest = entry.newer,
        }
        Some(entry)
    }

    /// Makes it the newest.
    fn link(&mut self, slot: usize, mut entry: Entry<K, V>) {
        entry.newer = NONE;
        entry.older = self.newest;
        match self.slab.get_mut(self.newest).and_then(Option::as_mut) {
            Some(previous) => previous.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
        self.slab[slot] = Some(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_value_read_before_a_commit_is_not_kept() {
        let cache: Cache<u32, &str> = Cache::new(1600);
        let ticket = cache.get(&1).unwrap_err();
        cache.committed(1, Some(("new", 1)));
        cache.fill(1, "old", 1, ticket);
        assert_eq!(cache.get(&1).unwrap(), "new");
        cache.committed(1, None);
        cache.fill(1, "old", 1, ticket);
        assert!(cache.get(&1).is_err());
        let ticket = cache.get(&1).unwrap_err();
        cache.change(1, |_| unreachable!("there is nothing to change"));
        cache.fill(1, "old", 1, ticket);
        assert!(cache.get(&1).is_err());
    }

    #[test]
    fn a_changed_value_keeps_its_place_and_its_new_weight() {
        let cache: Cache<u32, u32> = Cache::new(SHARDS * 10);
        cache.committed(1, Some((7, 1)));
        cache.change(1, |value| (value + 1, 10));
        assert_eq!(cache.get(&1).unwrap(), 8);
        cache.change(1, |value| (value + 1, 11));
        assert!(cache.get(&1).is_err(), "it is too heavy to be kept");
    }

    /// One shard against the obvious implementation.
    #[test]
    fn the_least_recently_used_go_first() {
        let mut shard: Shard<u64, u64> = Shard::new(40);
        let mut model: VecDeque<(u64, u64, usize)> = VecDeque::new();
        let mut random = 1u64;
        for step in 0..20_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (key, action, weight) = (random >> 33 & 31, random >> 60, (random >> 50 & 7) as usize);
            let position = model.iter().position(|entry| entry.0 == key);
            let known = position.and_then(|position| model.remove(position));
            if action < 8 {
                assert_eq!(shard.get(&key), known.map(|entry| entry.1), "step {step}");
                model.extend(known);
            } else if action < 14 {
                shard.put(key, step, weight);
                model.push_back((key, step, weight));
                while model.iter().map(|entry| entry.2).sum::<usize>() > 40 {
                    model.pop_front();
                }
            } else {
                shard.remove(&key);
            }
            assert_eq!(shard.index.len(), model.len(), "step {step}");
            assert_eq!(shard.weight, model.iter().map(|entry| entry.2).sum::<usize>());
        }
    }
}
