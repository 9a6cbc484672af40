//! The kernel's switch of FUSE over io_uring.

use std::fs::File;

/// The kernel's switch stays where it was turned while this lives: only as long as it takes to mount.
#[derive(Debug)]
pub(crate) struct UringOn {
    _lock: File,
    was: String,
}

impl UringOn {
    /// `None`: the kernel has no such switch, or is not ours to change.
    pub(crate) fn turn() -> Option<UringOn> {
        UringOn::set("Y")
    }

    /// As long as it lives nobody turns it on.
    pub(crate) fn turn_off() -> Option<UringOn> {
        UringOn::set("N")
    }

    fn set(value: &str) -> Option<UringOn> {
        let path = soda_fuse::URING_SWITCH;
        let lock = File::open(path).ok()?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).ok()?;
        let was = std::fs::read_to_string(path).ok()?;
        std::fs::write(path, value).ok()?;
        Some(UringOn { _lock: lock, was })
    }
}

impl Drop for UringOn {
    fn drop(&mut self) {
        let _ = std::fs::write(soda_fuse::URING_SWITCH, self.was.trim());
    }
}
