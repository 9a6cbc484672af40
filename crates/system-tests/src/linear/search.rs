//! The search for an order: Wing & Gong, "Testing and Verifying Concurrent Objects" (1993), with the memory of Lowe,
//! "Testing for Linearizability" (2017): a set of operations done so far and the state they led to is tried once.
//!
//! Calls and returns stand in one list, by time. Any call before the first return may come next in the order. It is taken
//! out together with its return; when the first thing in the list is a return whose call could not be taken, the last
//! choice was wrong and is put back.

use super::branch::Branch;
use super::object::{Call, Object};
use serde::Serialize;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Sets of calls tried before a history counts as undecided: half a minute and half a GiB.
const BUDGET: usize = 20_000_000;

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum Verdict {
    Linearizable,
    /// No order explains the answers: at best `explained` calls, then none could be followed by the call `stuck_at`
    /// (an index into the calls by time).
    Impossible {
        explained: usize,
        stuck_at: usize,
    },
    /// Too many orders to try: shorten the run.
    Undecided,
}

/// Looks for an order of `calls`, which are all on `object` and sorted by the time of the call. Thread n works on mount
/// n modulo `mounts`.
pub fn search(object: Object, calls: &[Call], mounts: u16) -> Verdict {
    let mut events = Events::new(calls);
    let mut state = Branch::initial(object);
    let mut done = Done::default();
    let mut tried: HashSet<u128> = HashSet::new();
    let mut choices: Vec<(usize, Branch)> = Vec::new();
    let (mut explained, mut stuck_at) = (0, 0);
    let mut cursor = events.first();
    loop {
        if tried.len() > BUDGET {
            return Verdict::Undecided;
        }
        match cursor.map(|event| (event, events.kind(event))) {
            // Only calls that nobody knows the end of are left: they may never have happened.
            None => return Verdict::Linearizable,
            Some((event, Kind::Call(index))) => {
                cursor = events.next(event);
                let Some(after) = state.after(&calls[index], mounts) else { continue };
                // An order in which a call without an answer changes nothing is an order without it, too.
                if calls[index].returned.is_none() && after == state {
                    continue;
                }
                done.insert(index);
                if tried.insert(fingerprint(&done, &after)) {
                    choices.push((index, std::mem::replace(&mut state, after)));
                    events.take_out(index);
                    cursor = events.first();
                } else {
                    done.remove(index);
                }
            }
            Some((_, Kind::Return(index))) => {
                if choices.len() >= explained {
                    (explained, stuck_at) = (choices.len(), index);
                }
                let Some((wrong, before)) = choices.pop() else {
                    return Verdict::Impossible { explained, stuck_at };
                };
                state = before;
                done.remove(wrong);
                events.put_back(wrong);
                cursor = events.next(Events::call_of(wrong));
            }
        }
    }
}

/// 128 bits stand for the pair itself: two pairs with one fingerprint would hide a violation with a probability of 10^-24.
fn fingerprint(done: &Done, state: &Branch) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, done, state).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

enum Kind {
    Call(usize),
    Return(usize),
}

/// A list of calls (even numbers: twice the index) and returns (odd), in the order of time, from which pairs are taken
/// out and put back in the reverse order.
struct Events {
    next: Vec<usize>,
    previous: Vec<usize>,
    returns: Vec<bool>,
}

impl Events {
    fn new(calls: &[Call]) -> Events {
        let end = 2 * calls.len();
        let mut order: Vec<(u64, usize)> = Vec::with_capacity(end);
        for (index, call) in calls.iter().enumerate() {
            // At equal times a call comes first: what might have overlapped did.
            order.push((call.called, 2 * index));
            if let Some((returned, _)) = &call.returned {
                order.push((*returned, 2 * index + 1));
            }
        }
        order.sort_by_key(|(time, event)| (*time, event % 2, *event));
        let (mut next, mut previous) = (vec![end; end + 1], vec![end; end + 1]);
        let mut last = end;
        for (_, event) in order {
            next[last] = event;
            previous[event] = last;
            last = event;
        }
        next[last] = end;
        previous[end] = last;
        Events { next, previous, returns: calls.iter().map(|call| call.returned.is_some()).collect() }
    }

    fn first(&self) -> Option<usize> {
        self.next(self.returns.len() * 2)
    }

    fn next(&self, event: usize) -> Option<usize> {
        let next = self.next[event];
        (next < self.returns.len() * 2).then_some(next)
    }

    fn kind(&self, event: usize) -> Kind {
        if event.is_multiple_of(2) { Kind::Call(event / 2) } else { Kind::Return(event / 2) }
    }

    fn call_of(index: usize) -> usize {
        2 * index
    }

    fn take_out(&mut self, index: usize) {
        self.unlink(2 * index);
        if self.returns[index] {
            self.unlink(2 * index + 1);
        }
    }

    fn put_back(&mut self, index: usize) {
        if self.returns[index] {
            self.relink(2 * index + 1);
        }
        self.relink(2 * index);
    }

    fn unlink(&mut self, event: usize) {
        let (before, after) = (self.previous[event], self.next[event]);
        self.next[before] = after;
        self.previous[after] = before;
    }

    fn relink(&mut self, event: usize) {
        let (before, after) = (self.previous[event], self.next[event]);
        self.next[before] = event;
        self.previous[after] = event;
    }
}

/// A set of calls: all below `bound` but the `missing`. Overlaps are short, so few are missing: those that overlap what
/// was done last, and those that perhaps never happened.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Done {
    bound: usize,
    /// Sorted, all below `bound`, and never `bound - 1`: one set has one representation.
    missing: Vec<usize>,
}

impl Done {
    fn insert(&mut self, index: usize) {
        if index >= self.bound {
            self.missing.extend(self.bound..index);
            self.bound = index + 1;
        } else if let Ok(place) = self.missing.binary_search(&index) {
            self.missing.remove(place);
        }
    }

    fn remove(&mut self, index: usize) {
        if index + 1 < self.bound {
            if let Err(place) = self.missing.binary_search(&index) {
                self.missing.insert(place, index);
            }
            return;
        }
        self.bound = index;
        while self.bound > 0 && self.missing.last() == Some(&(self.bound - 1)) {
            self.missing.pop();
            self.bound -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_one_representation() {
        let mut rng = soda_model::Rng::new(5);
        let mut plain = std::collections::BTreeSet::new();
        let mut done = Done::default();
        for _ in 0..3000 {
            let index = rng.below(12) as usize;
            if plain.remove(&index) {
                done.remove(index);
            } else {
                plain.insert(index);
                done.insert(index);
            }
            let mut fresh = Done::default();
            plain.iter().for_each(|index| fresh.insert(*index));
            assert!(done == fresh);
            assert_eq!(done.bound, plain.last().map_or(0, |last| last + 1));
            assert!((0..done.bound).all(|index| plain.contains(&index) != done.missing.contains(&index)));
        }
    }
}
