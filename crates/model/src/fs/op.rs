//! The alphabet: operations as data, and what each of them answered.

use soda_types::{Errno, FileKind, Ino, Name, Timestamp};
use std::fmt;

/// A path below the root of the tree under test: directories, then a last name. Its names may be symbolic links.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath {
    pub parents: Vec<Name>,
    pub last: Name,
}

impl TreePath {
    /// # Panics
    /// If a name between two `/` is not one ([`Name::new`]): paths of tests are written in them.
    pub fn parse(text: &str) -> TreePath {
        let mut names: Vec<Name> = text.split('/').map(checked).collect();
        let last = names.pop().unwrap_or_else(|| checked(""));
        TreePath { parents: names, last }
    }

    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.parents.iter().chain([&self.last])
    }

    /// As a path relative to the root, for system calls and as a symbolic link's target.
    pub fn to_bytes(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.names().map(Name::as_bytes).collect();
        names.join(&b'/')
    }
}

fn checked(text: &str) -> Name {
    match Name::try_from(text) {
        Ok(name) => name,
        Err(error) => panic!("{text:?} in a path: {error}"),
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

/// The number a test gives to an open file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u8);

/// Bytes to be written, as a rule: every byte says where in the pattern it belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    pub seed: u64,
    pub len: u32,
}

impl Fill {
    pub fn bytes(self) -> Vec<u8> {
        let mut rng = crate::Rng::new(self.seed);
        let mut bytes = Vec::with_capacity(self.len as usize + 8);
        while bytes.len() < self.len as usize {
            // Never a zero byte: what was written must differ from a hole.
            bytes.extend((rng.next_u64() | 0x0101_0101_0101_0101).to_le_bytes());
        }
        bytes.truncate(self.len as usize);
        bytes
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// What open(2) does about a file that is not there, or is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// No flag.
    MustExist,
    /// O_CREAT
    Create,
    /// O_CREAT | O_EXCL
    CreateNew,
    /// O_TRUNC
    Truncate,
    /// O_CREAT | O_TRUNC
    CreateOrTruncate,
}

/// Where write(2) on the handle puts its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    AtOffset,
    /// O_APPEND
    Append,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// As lstat(2).
    LinkItself,
    /// As stat(2).
    Target,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    Set,
    Create,
    Replace,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    Allocate,
    AllocateKeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// SEEK_DATA
    Data,
    /// SEEK_HOLE
    Hole,
}

/// One system call (a mapping takes some). Offsets and lengths in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Open {
        handle: Handle,
        path: TreePath,
        access: Access,
        disposition: Disposition,
        mode: OpenMode,
        perm: u16,
    },
    Close {
        handle: Handle,
    },
    /// pread(2)
    Read {
        handle: Handle,
        offset: u64,
        len: u32,
    },
    /// pwrite(2); on a handle that appends, the offset is ignored, as Linux does.
    Write {
        handle: Handle,
        offset: u64,
        fill: Fill,
    },
    /// lseek(2) with SEEK_DATA or SEEK_HOLE. Which of its zeros a file system calls a hole is its own affair: compare with
    /// [`ReferenceFs::allows_seek`](super::ReferenceFs::allows_seek).
    Seek {
        handle: Handle,
        offset: u64,
        whence: Whence,
    },
    /// Loads through a shared mapping of the part before the end of the file.
    MapLoad {
        handle: Handle,
        offset: u64,
        len: u32,
    },
    /// Stores through a shared mapping of the part before the end of the file, and msync(MS_SYNC).
    MapStore {
        handle: Handle,
        offset: u64,
        fill: Fill,
    },
    Ftruncate {
        handle: Handle,
        size: u64,
    },
    Fallocate {
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
    },
    Fstat {
        handle: Handle,
    },
    Fsync {
        handle: Handle,
    },
    Mkdir {
        path: TreePath,
        perm: u16,
    },
    Rmdir {
        path: TreePath,
    },
    Unlink {
        path: TreePath,
    },
    Link {
        from: TreePath,
        to: TreePath,
    },
    /// The target is relative to the directory of the link.
    Symlink {
        target: TreePath,
        path: TreePath,
    },
    Readlink {
        path: TreePath,
    },
    Rename {
        from: TreePath,
        to: TreePath,
        mode: RenameMode,
    },
    Truncate {
        path: TreePath,
        size: u64,
    },
    Chmod {
        path: TreePath,
        perm: u16,
    },
    /// Sets the time of modification.
    Utimens {
        path: TreePath,
        mtime: Timestamp,
    },
    Stat {
        path: TreePath,
        follow: Follow,
    },
    Readdir {
        path: TreePath,
    },
    SetXattr {
        path: TreePath,
        name: Name,
        value: Vec<u8>,
        mode: XattrMode,
    },
    GetXattr {
        path: TreePath,
        name: Name,
    },
    ListXattr {
        path: TreePath,
    },
    RemoveXattr {
        path: TreePath,
        name: Name,
    },
}

/// What a system call answered.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Failed(Errno),
    /// Of read, readlink, getxattr.
    Bytes(Vec<u8>),
    /// Bytes written.
    Count(u64),
    /// Of lseek.
    Offset(u64),
    Stat(Seen),
    /// Sorted, without `.` and `..`.
    Names(Vec<(Name, Option<FileKind>)>),
}

/// What of stat(2) can be compared between file systems.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// To be compared up to a renaming of the numbers: two paths lead to one inode here exactly if they do there.
    pub ino: Ino,
    pub kind: FileKind,
    pub perm: u16,
    pub nlink: u32,
    /// Bytes; 0 for a directory, whose size says nothing.
    pub size: u64,
    /// Where it was set and nothing changed the file since; a clock's value is not compared.
    pub mtime: Option<Timestamp>,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("Done"),
            Outcome::Failed(errno) => write!(f, "Failed({errno:?})"),
            Outcome::Bytes(bytes) if bytes.len() <= 64 => write!(f, "Bytes({})", bytes.escape_ascii()),
            Outcome::Bytes(bytes) => {
                write!(f, "Bytes({} of them, {}…)", bytes.len(), bytes[..48].escape_ascii())
            }
            Outcome::Count(count) => write!(f, "Count({count})"),
            Outcome::Offset(offset) => write!(f, "Offset({offset})"),
            Outcome::Stat(seen) => write!(f, "{seen:?}"),
            Outcome::Names(names) => f.debug_tuple("Names").field(names).finish(),
        }
    }
}
