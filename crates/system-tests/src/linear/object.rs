//! What histories are made of: objects, what is asked of them, what is answered.

use serde::Serialize;

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

impl Object {
    /// Whether changes of it may be acknowledged before the server hears of them.
    pub(super) fn may_be_lost(self) -> bool {
        !matches!(self, Object::Lock { .. } | Object::Ranges { .. })
    }

    /// Other machines are shown it as it is where it was changed, told or not (SEMANTICS 55).
    pub(super) fn is_shown_by_stat(self) -> bool {
        use Attribute::{Mtime, Permissions, Size};
        matches!(self, Object::Attribute { which: Permissions | Size | Mtime, .. } | Object::Links { .. })
    }
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
    /// fsync of the file.
    Sync,
    /// Not an operation of a program: from here on the mount tells nobody what it does.
    Ahead {
        mount: u16,
        loss: u8,
    },
    /// Nor is this: what the mount has told nobody is lost.
    Lose {
        mount: u16,
        loss: u8,
    },
}

impl Operation {
    /// Whether it may leave a state that is another one.
    pub fn changes(&self) -> bool {
        use Operation::{List, ListLeaves, Lookup, Read, ReadLog, Sync};
        !matches!(self, Read | Lookup { .. } | List | ListLeaves { .. } | ReadLog | Sync)
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

/// One operation as its caller saw it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Call {
    /// Who called: one thread. Its calls follow each other.
    pub client: u16,
    pub object: Object,
    pub operation: Operation,
    /// Nanoseconds of `CLOCK_MONOTONIC`, before the call.
    pub called: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC` after the return, and what it returned. `None`: nobody knows whether it
    /// happened; it may have at any time since the call, or never.
    pub returned: Option<(u64, Answer)>,
}
