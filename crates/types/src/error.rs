//! The errors an operation of the file system can end with. One list, an errno each; the cause is logged where it
//! happened and travels as text beside the code.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Result of a file system operation.
pub type FsResult<T> = Result<T, FsError>;

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// Error numbers of Linux (errno(3)) that Soda's operations return. The value is the one of Linux on x86-64
        /// and aarch64, and the one on the wire.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[repr(i32)]
        pub enum Errno { $($(#[$doc])* $name = $value),* }

        impl Errno {
            pub const ALL: &'static [Errno] = &[$(Errno::$name),*];

            pub fn from_raw(value: i32) -> Option<Errno> {
                match value { $($value => Some(Errno::$name),)* _ => None }
            }
        }
    };
}

errnos! {
    Perm = 1,
    NoEntry = 2,
    Interrupted = 4,
    Io = 5,
    /// A range or an address that is not there.
    NoDevice = 6,
    TooBig = 7,
    BadHandle = 9,
    TryAgain = 11,
    NoMemory = 12,
    Access = 13,
    Busy = 16,
    Exists = 17,
    /// A name of another volume.
    CrossDevice = 18,
    NotDirectory = 20,
    IsDirectory = 21,
    Invalid = 22,
    FileTooBig = 27,
    NoSpace = 28,
    ReadOnly = 30,
    TooManyLinks = 31,
    /// A buffer that is too small for the answer.
    Range = 34,
    Deadlock = 35,
    NameTooLong = 36,
    NoLocks = 37,
    NotImplemented = 38,
    NotEmpty = 39,
    Loop = 40,
    NoData = 61,
    Overflow = 75,
    NotSupported = 95,
    TimedOut = 110,
    /// The inode is gone.
    Stale = 116,
    Quota = 122,
}

impl Errno {
    pub fn raw(self) -> i32 {
        self as i32
    }
}

/// An error with its cause in words. Compared by its number only.
#[derive(Clone, Serialize, Deserialize)]
pub struct FsError {
    pub errno: Errno,
    /// For people; empty where the number says it all. Programs never look at it.
    pub context: String,
}

impl FsError {
    pub fn new(errno: Errno, context: impl Into<String>) -> FsError {
        FsError { errno, context: context.into() }
    }
}

impl PartialEq for FsError {
    fn eq(&self, other: &FsError) -> bool {
        self.errno == other.errno
    }
}

impl Eq for FsError {}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> FsError {
        FsError { errno, context: String::new() }
    }
}

impl fmt::Debug for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.errno)?;
        if !self.context.is_empty() {
            write!(f, " ({})", self.context)?;
        }
        Ok(())
    }
}

impl std::error::Error for FsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_numbers_go_both_ways() {
        for errno in Errno::ALL {
            assert_eq!(Errno::from_raw(errno.raw()), Some(*errno));
        }
        assert_eq!(Errno::from_raw(0), None);
    }
}
