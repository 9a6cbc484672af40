//! Record locks (fcntl) on the parts of one file.

use super::object::{Answer, Operation, RangeMode};
use std::collections::BTreeSet;

/// How many parts of a file are locked, each by itself or with its neighbours.
pub const PARTS: u8 = 4;

/// Who holds which part.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Ranges([Part; PARTS as usize]);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Part {
    /// Free, if nobody shares it.
    Shared(BTreeSet<u32>),
    Exclusive(u32),
}

impl Default for Part {
    fn default() -> Part {
        Part::Shared(BTreeSet::new())
    }
}

impl Part {
    fn allows(&self, owner: u32, mode: RangeMode) -> bool {
        match (self, mode) {
            (Part::Exclusive(holder), _) => *holder == owner,
            (Part::Shared(_), RangeMode::Shared) => true,
            (Part::Shared(holders), RangeMode::Exclusive) => holders.iter().all(|holder| *holder == owner),
        }
    }

    fn take(&mut self, owner: u32, mode: RangeMode) {
        match (&mut *self, mode) {
            (_, RangeMode::Exclusive) => *self = Part::Exclusive(owner),
            (Part::Exclusive(_), RangeMode::Shared) => *self = Part::Shared(BTreeSet::from([owner])),
            (Part::Shared(holders), RangeMode::Shared) => {
                holders.insert(owner);
            }
        }
    }

    fn give_back(&mut self, owner: u32) {
        match self {
            Part::Exclusive(holder) if *holder == owner => *self = Part::default(),
            Part::Exclusive(_) => {}
            Part::Shared(holders) => {
                holders.remove(&owner);
            }
        }
    }
}

impl Ranges {
    /// Does `operation`; says what one copy answers.
    ///
    /// # Panics
    /// If record locks have no such operation.
    pub(super) fn apply(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::TryRange { owner, from, to, mode } => {
                let parts = &mut self.0[usize::from(*from)..usize::from(*to)];
                if !parts.iter().all(|part| part.allows(*owner, *mode)) {
                    return Answer::Busy;
                }
                parts.iter_mut().for_each(|part| part.take(*owner, *mode));
            }
            Operation::UnlockRange { owner, from, to } => {
                let parts = &mut self.0[usize::from(*from)..usize::from(*to)];
                parts.iter_mut().for_each(|part| part.give_back(*owner));
            }
            other => panic!("record locks have no {other:?}"),
        }
        Answer::Done
    }
}
