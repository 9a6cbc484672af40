//! Attributes of an inode, as `stat(2)` shows them, and changes to them, as `chmod`, `chown`, `truncate` and
//! `utimensat` ask for them.

use crate::{Ino, Timestamp, Version};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// Permission bits of `st_mode`.
pub mod mode {
    pub const SET_UID: u16 = 0o4000;
    pub const SET_GID: u16 = 0o2000;
    pub const STICKY: u16 = 0o1000;
    pub const GROUP_EXEC: u16 = 0o0010;
    pub const ANY_EXEC: u16 = 0o0111;
    pub const ALL: u16 = 0o7777;
}

/// What `stat(2)` shows of an inode, and its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky: at most [`mode::ALL`].
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a special file, else 0.
    pub rdev: u32,
    /// Bytes. For a directory: a figure that grows with its entries. For a symbolic link: length of the target.
    pub size: u64,
    /// Bytes that are stored, holes left out (`st_blocks` is this over 512, rounded up).
    pub allocated: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Time of birth.
    pub btime: Timestamp,
    /// Grows with every change of the inode.
    pub version: Version,
    /// Grows with every change of the data (or of the names of a directory) and only then: what was cached of them at
    /// this number stays valid when only attributes changed.
    pub data_version: Version,
}

/// A time to be set: utimensat's `UTIME_NOW` or a given one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

/// A change of attributes; what is `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttr {
    pub perm: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Truncates or extends with a hole, bytes.
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Drop set-uid, and set-gid if group-executable, as the kernel asks after a write or chown by one who is not
    /// privileged (FUSE's KILLPRIV_V2).
    pub kill_suid_sgid: bool,
}

/// On whose behalf an operation runs; decides ownership of what is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Creds {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// What `statfs(2)` shows of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FsStats {
    /// Bytes the volume could hold, the used ones included.
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub total_inodes: u64,
    pub free_inodes: u64,
}
