//! What a program with caches of its own (the kernel behind FUSE) must provide, so that these keep the leases' promise.

use soda_types::{Fid, InUse, Name};
use std::ops::Range;
use std::time::Duration;

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
    /// The directory's own lock, which whoever looks a name up may hold, too, and who waits at the server behind the very
    /// operation that recalls the directory's lease. So names are given for a moment only, and a recall that has
    /// outlasted that is answered without the lock ([`NAMES_RUN_OUT`]). Changes are taken back at once where that can be
    /// had without harm: they fail with `ESTALE` ("walk the path again"), which frees the lock.
    Directory,
}

/// The kernel counts its time-outs from when it reads an answer: so much later than us, at most.
pub(crate) const KERNEL_LAG: Duration = Duration::from_secs(1);
/// For how long a kernel that cannot drop names without a lock may keep one.
pub(crate) const NAMES_KEPT: Duration = Duration::from_millis(500);
/// After this long without a new one it uses no name any more that it has not asked for again: counted by a clock that stands
/// still while the machine sleeps, as the kernel's time-outs do.
pub const NAMES_RUN_OUT: Duration = NAMES_KEPT.saturating_add(KERNEL_LAG);

/// Called on threads of the client's own with no lock held; may block. When a method returns, nothing that was handed
/// out before with a validity is used any more without asking the client again.
pub trait KernelHooks: Send + Sync + 'static {
    fn invalidate_attr(&self, fid: Fid);
    /// What a kernel uses of the attributes without asking for them when they are invalid: the owner, the group, the mode.
    fn invalidate_owner(&self, _fid: Fid) {}
    /// An end of `u64::MAX` means to the end of the file.
    fn invalidate_data(&self, fid: Fid, range: Range<u64>);
    /// With [`NamesLock::Directory`] never called for [`Names::All`].
    fn invalidate_names(&self, dir: Fid, names: &Names);
    /// Names of the directory were changed here, and the answers have been given: until the calls that made these changes have
    /// returned, a kernel may show others what was before. Afterwards what it has of names is right.
    fn settle_names(&self, dir: Fid);

    /// Whatever it keeps: the machine was suspended, and its time-outs stood still meanwhile.
    fn invalidate_everything(&self);

    /// A recall is about to wait for answers that are being handed on ([`crate::Answering`]), or does so for longer than that
    /// takes. Must not block.
    fn hurry(&self) {}

    /// Uses of an inode that the client does not know from its open files.
    fn in_use(&self, _fid: Fid) -> InUse {
        InUse::No
    }

    /// Called under locks of the client's: must not block.
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
    fn settle_names(&self, _dir: Fid) {}
    fn invalidate_everything(&self) {}
}
