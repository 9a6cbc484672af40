//! What each kind of object may answer: its sequential specification.

use super::directories::Directories;
use super::names::Names;
use super::object::{Answer, Call, Object, Operation};
use super::ranges::Ranges;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The state of an object between two operations.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum State {
    Value(u64),
    Names(Names),
    /// A log is its length and the digest of its records: the search keeps many states.
    Log {
        len: usize,
        digest: u64,
    },
    Lock {
        holder: Option<u16>,
    },
    Directories(Directories),
    Ranges(Ranges),
}

impl Object {
    /// The state that a workload starts from.
    pub fn initial(self) -> State {
        match self {
            Object::Block { .. } | Object::Whole { .. } | Object::Attribute { .. } | Object::Links { .. } => {
                State::Value(0)
            }
            Object::Names { .. } => State::Names(Names::default()),
            Object::Log { .. } => State::Log { len: 0, digest: digest(0, None) },
            Object::Lock { .. } => State::Lock { holder: None },
            Object::Directories { .. } => State::Directories(Directories::default()),
            Object::Ranges { .. } => State::Ranges(Ranges::default()),
        }
    }
}

impl State {
    /// The state after `call`; `None` if it cannot have been answered so in this state. Without an answer: the state after
    /// it happened.
    ///
    /// # Panics
    /// If the object has no such operation.
    pub fn after(&self, call: &Call) -> Option<State> {
        let answer = call.returned.as_ref().map(|(_, answer)| answer);
        let (after, correct) = match (self, &call.operation) {
            (State::Value(_), Operation::Write(value)) => (State::Value(*value), Answer::Done),
            (State::Value(_), Operation::Truncate) => (State::Value(0), Answer::Done),
            (State::Value(value), Operation::Link) => (State::Value(value + 1), Answer::Done),
            (State::Value(0), Operation::Unlink) => (State::Value(0), Answer::Missing),
            (State::Value(value), Operation::Unlink) => (State::Value(value - 1), Answer::Done),
            (State::Value(value), Operation::Read) => (self.clone(), Answer::Value(*value)),
            (State::Value(_) | State::Log { .. }, Operation::Sync) => (self.clone(), Answer::Done),
            (State::Names(names), Operation::Rename { from, to })
                if answer == Some(&Answer::Done) && names.were_just_renamed(*from, *to, call) =>
            {
                return Some(self.clone());
            }
            // Which of the two errors it is when both are true, no standard says.
            (State::Names(names), Operation::RenameNew { from, to })
                if answer == Some(&Answer::Missing) && names.is_missing(*from) && !names.is_missing(*to) =>
            {
                return Some(self.clone());
            }
            (State::Names(names), _) => {
                let mut names = names.clone();
                let answer = names.apply(call);
                (State::Names(names), answer)
            }
            (State::Log { len, digest: before }, Operation::Append(record)) => {
                (State::Log { len: len + 1, digest: digest(*before, Some(*record)) }, Answer::Done)
            }
            (State::Log { len, digest: expected }, Operation::ReadLog) => {
                let Some(Answer::Records(records)) = answer else { return Some(self.clone()) };
                let seen =
                    records.iter().fold(digest(0, None), |before, record| digest(before, Some(*record)));
                return (records.len() == *len && seen == *expected).then(|| self.clone());
            }
            (State::Lock { holder: None }, Operation::TryLock) => {
                (State::Lock { holder: Some(call.client) }, Answer::Done)
            }
            (State::Lock { holder: Some(_) }, Operation::TryLock) => (self.clone(), Answer::Busy),
            (State::Lock { holder }, Operation::Unlock) => {
                // A client that died may give back what it did not get: then nothing happens.
                let after = if *holder == Some(call.client) { None } else { *holder };
                (State::Lock { holder: after }, Answer::Done)
            }
            (State::Directories(directories), operation) => {
                let mut directories = directories.clone();
                let answer = directories.apply(operation);
                (State::Directories(directories), answer)
            }
            (State::Ranges(ranges), operation) => {
                let mut ranges = ranges.clone();
                let answer = ranges.apply(operation);
                (State::Ranges(ranges), answer)
            }
            (_, operation) => panic!("{self:?} has no {operation:?}"),
        };
        match answer {
            Some(answer) if *answer != correct => None,
            _ => Some(after),
        }
    }
}

fn digest(before: u64, record: Option<u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, record).hash(&mut hasher);
    hasher.finish()
}
