//! What is agreed on with the kernel when a mount begins.

use super::abi::{self, init};
use super::request::SetXattrForm;
use serde::{Deserialize, Serialize};

/// What was agreed on with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Minor version of the kernel's protocol.
    pub kernel_minor: u32,
    /// `FUSE_INIT` flags in force.
    pub(super) flags: u64,
    /// Flags the kernel offered.
    pub(super) offered: u64,
}

impl Agreement {
    pub fn has_inc_epoch(&self) -> bool {
        self.kernel_minor >= abi::notify::INC_EPOCH_SINCE
    }

    pub fn has_expire_only(&self) -> bool {
        self.offered & init::HAS_EXPIRE_ONLY != 0
    }

    pub(super) fn setxattr_form(&self) -> SetXattrForm {
        match self.flags & init::SETXATTR_EXT != 0 {
            true => SetXattrForm::Extended,
            false => SetXattrForm::Short,
        }
    }

    /// Of a kernel that offers all that is wanted.
    #[cfg(test)]
    pub(crate) fn of_linux_6_18() -> Agreement {
        Agreement { kernel_minor: abi::MINOR, flags: wanted_flags(), offered: wanted_flags() }
    }

    pub fn has_direct_mmap(&self) -> bool {
        self.flags & init::DIRECT_IO_ALLOW_MMAP != 0
    }
}

/// Set to `6.1`, the mount behaves as on Debian 12's own kernel, and so on: for tests of what is done without the later
/// features.
const PRETENCE: &str = "SODA_FUSE_PRETEND";

/// Which kernel to take this one for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pretence {
    ItIsWhatItIs,
    Linux6_1,
    /// The last without mappings of direct files.
    Linux6_5,
    /// The last without epochs of names.
    Linux6_15,
}

impl Pretence {
    pub(super) fn from_environment() -> Pretence {
        match std::env::var(PRETENCE).as_deref() {
            Ok("6.1") => Pretence::Linux6_1,
            Ok("6.5") => Pretence::Linux6_5,
            Ok("6.15") => Pretence::Linux6_15,
            _ => Pretence::ItIsWhatItIs,
        }
    }

    /// Minor version of the protocol and flags that such a kernel offers.
    pub(super) fn apply(self, minor: u32, offered: u64) -> (u32, u64) {
        let (last_minor, later) = match self {
            Pretence::ItIsWhatItIs => return (minor, offered),
            Pretence::Linux6_1 => {
                (37, init::HAS_EXPIRE_ONLY | init::DIRECT_IO_ALLOW_MMAP | init::OVER_IO_URING)
            }
            Pretence::Linux6_5 => (38, init::DIRECT_IO_ALLOW_MMAP | init::OVER_IO_URING),
            Pretence::Linux6_15 => (43, 0),
        };
        (minor.min(last_minor), offered & !later)
    }
}

/// Not ATOMIC_O_TRUNC: with it the file would be cut by the open, before the kernel finds that it is being executed and
/// refuses with ETXTBSY. The truncation comes as a request of its own.
pub(super) fn wanted_flags() -> u64 {
    init::ASYNC_READ
        | init::POSIX_LOCKS
        | init::FLOCK_LOCKS
        | init::BIG_WRITES
        | init::DONT_MASK
        | init::AUTO_INVAL_DATA
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::POSIX_ACL
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of `include/uapi/linux/fuse.h`: some flags cost nothing but speed if they are lost, which no other test sees.
    #[test]
    fn what_is_asked_of_the_kernel_is_all_there() {
        let bits = [0, 1, 5, 6, 10, 12, 13, 14, 15, 18, 20, 22, 23, 28, 29, 30, 36];
        assert_eq!(wanted_flags(), bits.iter().map(|bit| 1 << bit).sum());
    }

    #[test]
    fn an_older_kernel_has_none_of_the_later_features() {
        let (kernel_minor, offered) = Pretence::Linux6_1.apply(abi::MINOR, u64::MAX);
        let agreement = Agreement { kernel_minor, flags: wanted_flags() & offered, offered };
        assert!(!agreement.has_inc_epoch() && !agreement.has_expire_only() && !agreement.has_direct_mmap());
        assert_eq!(Pretence::Linux6_5.apply(abi::MINOR, init::HAS_EXPIRE_ONLY), (38, init::HAS_EXPIRE_ONLY));
        assert_eq!(Pretence::Linux6_15.apply(45, 7), (43, 7));
        assert_eq!(Pretence::ItIsWhatItIs.apply(45, 7), (45, 7));
    }
}
