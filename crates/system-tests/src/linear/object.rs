//! What each kind of object may answer: its sequential specification.

use super::Call;
use super::directories::Directories;
use super::ranges::Ranges;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A part of the file system whose operations do not depend on any other part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub enum Object {
    /// An aligned block of a file, written and read as a whole.
    Block { file: u16, block: u16 },
    /// All of a file: up to 1 MiB written and read by one call, or cut off.
    Whole { file: u16 },
    /// The names in one directory.
    Names { directory: u16 },
    /// Directories in a directory, with files in them.
    Directories { parent: u16 },
    /// An attribute of a file, which one call sets and another reads.
    Attribute { file: u16, which: Attribute },
    /// How many names a file has besides its first.
    Links { file: u16 },
    /// A file that only grows, by records written with O_APPEND.
    Log { file: u16 },
    /// A file's exclusive lock (flock).
    Lock { file: u16 },
    /// Record locks (fcntl) on parts of a file.
    Ranges { file: u16 },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub enum Attribute {
    Permissions,
    Size,
    Mtime,
    /// An extended attribute; 0: it is not there.
    Extended,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum RangeMode {
    Shared,
    Exclusive,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum Operation {
    /// Of blocks, whole files and attributes.
    Write(u64),
    Read,
    /// Cuts a whole file off: there is nothing in it then, which is read as 0.
    Truncate,
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
    /// With RENAME_NOREPLACE.
    RenameNew {
        from: u8,
        to: u8,
    },
    /// With RENAME_EXCHANGE.
    Exchange {
        one: u8,
        other: u8,
    },
    Lookup {
        name: u8,
    },
    List,
    MakeDirectory {
        name: u8,
    },
    RemoveDirectory {
        name: u8,
    },
    CreateLeaf {
        name: u8,
        leaf: u8,
    },
    RemoveLeaf {
        name: u8,
        leaf: u8,
    },
    ListLeaves {
        name: u8,
    },
    /// Gives a file one more name; takes one away.
    Link,
    Unlink,
    Append(u64),
    ReadLog,
    /// Without waiting.
    TryLock,
    Unlock,
    /// Without waiting: the parts from `from` to before `to`. An owner is a process.
    TryRange {
        owner: u32,
        from: u8,
        to: u8,
        mode: RangeMode,
    },
    UnlockRange {
        owner: u32,
        from: u8,
        to: u8,
    },
}

impl Operation {
    /// Whether it may leave a state that is another one.
    pub fn changes(&self) -> bool {
        use Operation::{List, ListLeaves, Lookup, Read, ReadLog};
        !matches!(self, Read | Lookup { .. } | List | ListLeaves { .. } | ReadLog)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum Answer {
    Done,
    /// EEXIST
    Exists,
    /// ENOENT
    Missing,
    /// ENOTEMPTY
    Occupied,
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

/// The names in a directory, and what it depends on whether a rename that finds nothing to do may be answered with success.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Names {
    entries: BTreeMap<u8, u64>,
    /// The last rename that was made of each pair of names, as long as neither of them has been changed since.
    renamed: BTreeMap<(u8, u8), Renamed>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Renamed {
    by: u16,
    /// `None`: nobody knows when, or whether, it ended.
    returned: Option<u64>,
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

impl Names {
    /// Another client's rename of the same two names came just before, and overlaps `call` in time. Linux looks the two
    /// names up one after the other. If another machine makes the same rename in between, it finds one inode at both,
    /// which is no work and no error (SEMANTICS 9). Whatever happens to the names after that comes after `call` too.
    fn were_just_renamed(&self, from: u8, to: u8, call: &Call) -> bool {
        self.renamed.get(&(from, to)).is_some_and(|made| {
            made.by != call.client && made.returned.is_none_or(|returned| call.called <= returned)
        })
    }

    fn is_missing(&self, name: u8) -> bool {
        !self.entries.contains_key(&name)
    }

    /// Does what `call` asks for; says what one copy answers.
    fn apply(&mut self, call: &Call) -> Answer {
        match &call.operation {
            Operation::Create { name, .. } if self.entries.contains_key(name) => Answer::Exists,
            Operation::Create { name, id } => {
                self.change(*name, Some(*id));
                Answer::Done
            }
            Operation::Remove { name } if self.entries.contains_key(name) => {
                self.change(*name, None);
                Answer::Done
            }
            Operation::RenameNew { to, .. } if self.entries.contains_key(to) => Answer::Exists,
            Operation::Rename { from, to } | Operation::RenameNew { from, to }
                if self.entries.contains_key(from) =>
            {
                self.rename(*from, *to, call);
                Answer::Done
            }
            Operation::Exchange { one, other }
                if self.entries.contains_key(one) && self.entries.contains_key(other) =>
            {
                let id = self.change(*one, self.entries.get(other).copied());
                self.change(*other, id);
                Answer::Done
            }
            Operation::Remove { .. }
            | Operation::Rename { .. }
            | Operation::RenameNew { .. }
            | Operation::Exchange { .. } => Answer::Missing,
            Operation::Lookup { name } => {
                self.entries.get(name).map_or(Answer::Missing, |id| Answer::Found(*id))
            }
            Operation::List => Answer::Names(self.entries.keys().copied().collect()),
            other => panic!("names have no {other:?}"),
        }
    }

    fn rename(&mut self, from: u8, to: u8, call: &Call) {
        let returned = call.returned.as_ref().map(|(returned, _)| *returned);
        let mut renamed = vec![((from, to), Renamed { by: call.client, returned })];
        // What came to `from` by a rename itself, has now come all the way.
        let earlier = self.renamed.iter().filter(|((_, through), _)| *through == from);
        renamed.extend(earlier.map(|((first, _), made)| ((*first, to), *made)));
        renamed.retain(|((first, last), _)| first != last);
        let id = self.change(from, None);
        self.change(to, id);
        self.renamed.extend(renamed);
    }

    /// What the name led to until now.
    fn change(&mut self, name: u8, leads_to: Option<u64>) -> Option<u64> {
        self.renamed.retain(|(from, to), _| *from != name && *to != name);
        match leads_to {
            Some(id) => self.entries.insert(name, id),
            None => self.entries.remove(&name),
        }
    }
}

fn digest(before: u64, record: Option<u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, record).hash(&mut hasher);
    hasher.finish()
}
