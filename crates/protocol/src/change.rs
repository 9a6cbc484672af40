//! What changes are made of, those that are asked for as well as those that are told afterwards.

use serde::{Deserialize, Serialize};
pub use soda_types::{Allocate, Replace, SetXattr, WriteAt};
use soda_types::{Creds, FileKind, InUse, Sequence, Slot};
use std::time::Duration;

/// Identity of a changing operation within its session. A retry carries the same one and gets the stored reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpId {
    pub slot: Slot,
    pub sequence: Sequence,
}

/// What is to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewNode {
    pub kind: FileKind,
    /// Permission bits, umask not yet applied.
    pub perm: u16,
    pub umask: u16,
    pub rdev: u32,
    /// Target of a symbolic link, else empty.
    pub target: Vec<u8>,
    pub creds: Creds,
    /// What to do if the name exists: only for regular files.
    pub existing: IfExists,
    /// Whether the creator goes on to hold it open.
    pub open: InUse,
}

impl NewNode {
    /// What union file systems take for a removed name: a character device with the number 0 (`WHITEOUT_DEV` in Linux).
    pub fn whiteout(creds: Creds) -> NewNode {
        NewNode {
            kind: FileKind::CharDevice,
            perm: 0,
            umask: 0,
            rdev: 0,
            target: Vec::new(),
            creds,
            existing: IfExists::Fail,
            open: InUse::No,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IfExists {
    /// O_EXCL, mkdir, mknod, symlink: EEXIST.
    Fail,
    /// open(O_CREAT): the existing inode is the answer.
    Open,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unlink {
    /// unlink(2). The caller's own machine may still have it open.
    File { in_use: InUse },
    /// rmdir(2).
    Directory,
    /// unlink(2) of a file that the caller's machine does not have open, and of which the caller has changes to tell that the
    /// server has no room for: they go with it. ENOSPC if anybody may see the file afterwards, by another name or because
    /// another session has it open.
    Untold,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Rename {
    /// May replace; `in_use`: whether the caller's machine has the replaced inode open.
    Plain {
        in_use: InUse,
    },
    NoReplace,
    Exchange,
    /// RENAME_WHITEOUT (renameat2(2)): a whiteout stays at the old name in the same step. `existing`: whether what is at the new
    /// name is replaced; `in_use` as for [`Rename::Plain`].
    Whiteout {
        existing: Replace,
        in_use: InUse,
        creds: Creds,
    },
}

impl Rename {
    /// What it does with what is at the new name; `None`: both names change places.
    pub fn existing(self) -> Option<Replace> {
        match self {
            Rename::Plain { .. } => Some(Replace::Allowed),
            Rename::NoReplace => Some(Replace::Refused),
            Rename::Whiteout { existing, .. } => Some(existing),
            Rename::Exchange => None,
        }
    }
}

/// Changes of a client that its server has not heard of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct BacklogReport {
    /// Changes; with a digest those that it leaves.
    pub records: u64,
    pub bytes: u64,
    /// How long the oldest of them had been waiting.
    pub age: Duration,
}
