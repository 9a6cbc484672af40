//! What a program with caches of its own (the kernel behind FUSE) must provide, so that these keep the leases' promise.

use soda_types::{Fid, InUse, Name};
use std::ops::Range;

/// Names of one directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Names {
    These(Vec<Name>),
    All,
}

/// Whether [`KernelHooks::invalidate_names`] waits for a lock that a change of the directory in progress holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamesLock {
    None,
    /// The directory's own lock. Then own changes of the directory that wait behind the very operation which recalls
    /// its lease are taken back and fail with `ESTALE` ("walk the path again"), which frees the lock.
    Directory,
}

/// Called on threads of the client's own with no lock held; may block. When a method returns, nothing that was handed
/// out before with a validity is used any more without asking the client again.
pub trait KernelHooks: Send + Sync + 'static {
    fn invalidate_attr(&self, fid: Fid);
    /// An end of `u64::MAX` means to the end of the file.
    fn invalidate_data(&self, fid: Fid, range: Range<u64>);
    fn invalidate_names(&self, dir: Fid, names: &Names);

    /// Uses of an inode that the client does not know from its open files.
    fn in_use(&self, _fid: Fid) -> InUse {
        InUse::No
    }

    fn names_lock(&self) -> NamesLock {
        NamesLock::None
    }
}

/// For a program that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKernel;

impl KernelHooks for NoKernel {
    fn invalidate_attr(&self, _fid: Fid) {}
    fn invalidate_data(&self, _fid: Fid, _range: Range<u64>) {}
    fn invalidate_names(&self, _dir: Fid, _names: &Names) {}
}
