//! Directories in a directory, and the leaves (files) in each of them: mkdir, rmdir and readdir on two levels.

use super::object::{Answer, Operation};
use std::collections::{BTreeMap, BTreeSet};

/// Which directories there are, and what is in each.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Directories(BTreeMap<u8, BTreeSet<u8>>);

impl Directories {
    /// Does `operation`; says what one copy answers.
    ///
    /// # Panics
    /// If directories have no such operation.
    pub(super) fn apply(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::MakeDirectory { name } if self.0.contains_key(name) => Answer::Exists,
            Operation::MakeDirectory { name } => {
                self.0.insert(*name, BTreeSet::new());
                Answer::Done
            }
            Operation::RemoveDirectory { name } => match self.0.get(name) {
                None => Answer::Missing,
                Some(leaves) if !leaves.is_empty() => Answer::Occupied,
                Some(_) => {
                    self.0.remove(name);
                    Answer::Done
                }
            },
            Operation::CreateLeaf { name, leaf } => match self.0.get_mut(name) {
                None => Answer::Missing,
                Some(leaves) if leaves.contains(leaf) => Answer::Exists,
                Some(leaves) => {
                    leaves.insert(*leaf);
                    Answer::Done
                }
            },
            Operation::RemoveLeaf { name, leaf } => {
                let was_there = self.0.get_mut(name).is_some_and(|leaves| leaves.remove(leaf));
                if was_there { Answer::Done } else { Answer::Missing }
            }
            Operation::List => Answer::Names(self.0.keys().copied().collect()),
            Operation::ListLeaves { name } => {
                let names = |leaves: &BTreeSet<u8>| Answer::Names(leaves.iter().copied().collect());
                self.0.get(name).map_or(Answer::Missing, names)
            }
            other => panic!("directories have no {other:?}"),
        }
    }
}
