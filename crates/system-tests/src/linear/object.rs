//! What each kind of object may answer: its sequential specification.

use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A part of the file system whose operations do not depend on any other part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub enum Object {
    /// An aligned block of a file, written and read as a whole.
    Block { file: u16, block: u16 },
    /// The names in one directory.
    Names { directory: u16 },
    /// An attribute of a file: permissions, size or time of modification.
    Attribute { file: u16, which: Attribute },
    /// A file that only grows, by records written with O_APPEND.
    Log { file: u16 },
    /// A file's exclusive lock.
    Lock { file: u16 },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub enum Attribute {
    Permissions,
    Size,
    Mtime,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum Operation {
    /// Of blocks and attributes.
    Write(u64),
    Read,
    /// Makes a name, which must not exist, lead to `id`.
    Create {
        name: u8,
        id: u64,
    },
    Remove {
        name: u8,
    },
    /// Replaces what `to` led to.
    Rename {
        from: u8,
        to: u8,
    },
    Lookup {
        name: u8,
    },
    List,
    Append(u64),
    ReadLog,
    /// Without waiting.
    TryLock,
    Unlock,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum Answer {
    Done,
    /// EEXIST
    Exists,
    /// ENOENT
    Missing,
    /// EWOULDBLOCK
    Busy,
    Value(u64),
    Found(u64),
    Names(Vec<u8>),
    Records(Vec<u64>),
}

/// The state of an object between two operations.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum State {
    Value(u64),
    Names(BTreeMap<u8, u64>),
    /// A log is its length and the digest of its records: the search keeps many states.
    Log {
        len: usize,
        digest: u64,
    },
    Lock {
        holder: Option<u16>,
    },
}

impl Object {
    /// The state that a workload starts from.
    pub fn initial(self) -> State {
        match self {
            Object::Block { .. } | Object::Attribute { .. } => State::Value(0),
            Object::Names { .. } => State::Names(BTreeMap::new()),
            Object::Log { .. } => State::Log { len: 0, digest: digest(0, None) },
            Object::Lock { .. } => State::Lock { holder: None },
        }
    }
}

impl State {
    /// The state after `client` did `operation` and was told `answer`; `None` if it cannot have been told that in this
    /// state. Without an answer: the state after it happened.
    ///
    /// # Panics
    /// If the object has no such operation.
    pub fn after(&self, client: u16, operation: &Operation, answer: Option<&Answer>) -> Option<State> {
        let (after, correct) = match (self, operation) {
            (State::Value(_), Operation::Write(value)) => (State::Value(*value), Answer::Done),
            (State::Value(value), Operation::Read) => (self.clone(), Answer::Value(*value)),
            (State::Names(names), Operation::Rename { from, to })
                if answer == Some(&Answer::Done) && !names.contains_key(from) && names.contains_key(to) =>
            {
                // Linux looks the two names up one after the other. If another machine makes the same rename in between, it
                // finds one inode at both, which is no work and no error (SEMANTICS 9).
                return Some(self.clone());
            }
            (State::Names(names), operation) => names_after(names, operation),
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
                (State::Lock { holder: Some(client) }, Answer::Done)
            }
            (State::Lock { holder: Some(_) }, Operation::TryLock) => (self.clone(), Answer::Busy),
            (State::Lock { holder }, Operation::Unlock) => {
                // A client that died may give back what it did not get: then nothing happens.
                let after = if *holder == Some(client) { None } else { *holder };
                (State::Lock { holder: after }, Answer::Done)
            }
            _ => panic!("{self:?} has no {operation:?}"),
        };
        match answer {
            Some(answer) if *answer != correct => None,
            _ => Some(after),
        }
    }
}

fn names_after(names: &BTreeMap<u8, u64>, operation: &Operation) -> (State, Answer) {
    let mut after = names.clone();
    let answer = match operation {
        Operation::Create { name, .. } if names.contains_key(name) => Answer::Exists,
        Operation::Create { name, id } => {
            after.insert(*name, *id);
            Answer::Done
        }
        Operation::Remove { name } => after.remove(name).map_or(Answer::Missing, |_| Answer::Done),
        Operation::Rename { from, to } => match after.remove(from) {
            Some(id) => {
                after.insert(*to, id);
                Answer::Done
            }
            None => Answer::Missing,
        },
        Operation::Lookup { name } => names.get(name).map_or(Answer::Missing, |id| Answer::Found(*id)),
        Operation::List => Answer::Names(names.keys().copied().collect()),
        other => panic!("names have no {other:?}"),
    };
    (State::Names(after), answer)
}

fn digest(before: u64, record: Option<u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, record).hash(&mut hasher);
    hasher.finish()
}
