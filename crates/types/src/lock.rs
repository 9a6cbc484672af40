//! Byte-range locks that programs take: flock(2) and fcntl(2).

use crate::LockOwner;
use serde::{Deserialize, Serialize};

/// A lock, or the question for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lock {
    pub family: LockFamily,
    pub owner: LockOwner,
    /// Process that asked, for F_GETLK.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` for "to the end".
    pub end: u64,
    pub mode: LockMode,
}

/// flock(2) locks and fcntl(2) record locks do not see each other, as on a local Linux file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LockFamily {
    Flock,
    Record,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockMode {
    Shared,
    Exclusive,
}
