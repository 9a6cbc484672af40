//! What system calls say of the changes that they ask for.

use crate::Attr;
use serde::{Deserialize, Serialize};

/// Whether a change takes the set-user-id and set-group-id bits away: who makes it is not privileged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KillPriv {
    Keep,
    Kill,
}

impl KillPriv {
    pub fn when(kill: bool) -> KillPriv {
        if kill { KillPriv::Kill } else { KillPriv::Keep }
    }

    pub fn kills(self) -> bool {
        self == KillPriv::Kill
    }

    /// For a file whose contents change.
    pub fn apply(self, attr: &mut Attr) {
        if self.kills() {
            attr.drop_privileges();
        }
    }
}

/// Modes of fallocate(2): what it does to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Allocate {
    /// Sees to it that there is space now, and extends the file to the end of the range. Data is never written in
    /// place by the server, so space cannot be set aside for a later write.
    Extend,
    /// FALLOC_FL_KEEP_SIZE: the same without extending the file.
    KeepSize,
    /// FALLOC_FL_PUNCH_HOLE | KEEP_SIZE: makes the range a hole.
    PunchHole,
    /// FALLOC_FL_ZERO_RANGE: makes the range read as zeros, and extends the file to its end.
    ZeroRange,
    /// FALLOC_FL_ZERO_RANGE | KEEP_SIZE
    ZeroRangeKeepSize,
}

/// What setxattr(2) asks about an attribute that is there, or is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetXattr {
    Either,
    /// XATTR_CREATE: EEXIST if it is there.
    Create,
    /// XATTR_REPLACE: ENODATA if it is not.
    Replace,
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WriteAt {
    Offset(u64),
    /// O_APPEND: at the end of the file, whatever it is by then.
    End,
    /// At this offset, from pages that the client's kernel writes back, and keeps locked until the answer.
    Pages(u64),
}

impl WriteAt {
    /// In a file of this size.
    pub fn offset(self, size: u64) -> u64 {
        match self {
            WriteAt::Offset(offset) | WriteAt::Pages(offset) => offset,
            WriteAt::End => size,
        }
    }
}

/// What a rename does with what is at the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Replace {
    Allowed,
    /// RENAME_NOREPLACE: EEXIST.
    Refused,
}
