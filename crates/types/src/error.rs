//! The errors an operation of the file system can end with. One list, an errno each; the cause is logged where it
//! happened and travels as text beside the code.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Result of a file system operation.
pub type FsResult<T> = Result<T, FsError>;

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $value:literal $linux:ident),* $(,)?) => {
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

            /// As programs and manuals of Linux call it: `EIO`.
            pub fn name(self) -> &'static str {
                match self { $(Errno::$name => stringify!($linux),)* }
            }
        }
    };
}

errnos! {
    Perm = 1 EPERM,
    NoEntry = 2 ENOENT,
    Interrupted = 4 EINTR,
    Io = 5 EIO,
    /// A range or an address that is not there.
    NoDevice = 6 ENXIO,
    TooBig = 7 E2BIG,
    BadHandle = 9 EBADF,
    TryAgain = 11 EAGAIN,
    NoMemory = 12 ENOMEM,
    Access = 13 EACCES,
    Busy = 16 EBUSY,
    Exists = 17 EEXIST,
    /// A name of another volume.
    CrossDevice = 18 EXDEV,
    NotDirectory = 20 ENOTDIR,
    IsDirectory = 21 EISDIR,
    Invalid = 22 EINVAL,
    FileTooBig = 27 EFBIG,
    NoSpace = 28 ENOSPC,
    ReadOnly = 30 EROFS,
    TooManyLinks = 31 EMLINK,
    /// A buffer that is too small for the answer.
    Range = 34 ERANGE,
    Deadlock = 35 EDEADLK,
    NameTooLong = 36 ENAMETOOLONG,
    NoLocks = 37 ENOLCK,
    NotImplemented = 38 ENOSYS,
    NotEmpty = 39 ENOTEMPTY,
    Loop = 40 ELOOP,
    NoData = 61 ENODATA,
    Overflow = 75 EOVERFLOW,
    NotSupported = 95 EOPNOTSUPP,
    TimedOut = 110 ETIMEDOUT,
    /// The inode is gone.
    Stale = 116 ESTALE,
    Quota = 122 EDQUOT,
}

impl Errno {
    pub fn raw(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
        write!(f, "{}", self.errno)?;
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

    #[test]
    fn people_are_told_the_name_that_manuals_have() {
        assert_eq!(FsError::new(Errno::NotSupported, "no quotas").to_string(), "EOPNOTSUPP (no quotas)");
        assert_eq!(FsError::from(Errno::Io).to_string(), "EIO");
    }
}
