//! The watch over free space. The metadata engine does not survive a full disk in the middle of a write, so nothing is
//! begun that could meet one: what takes space is refused while a reserve is still free, what leads to space being
//! given back may use most of the reserve.

use crate::{SpaceUse, StorageError, StorageResult};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Bytes that nothing may touch.
pub(crate) const FLOOR: u64 = 4 << 20;

/// The longest stretch of writing without asking anew what the engine will still write, bytes.
const RECHECK_MAX: u64 = 32 << 20;

/// Bytes that are going to be written because of what was accepted: the metadata engine's memory tables, and the copies it
/// makes while it merges files. Set by the metadata store, left free by both.
#[derive(Debug, Default)]
pub(crate) struct Promised(AtomicU64);

impl Promised {
    pub(crate) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct SpaceWatch {
    directory: PathBuf,
    reserve: u64,
    promised: Arc<Promised>,
    /// Bytes that may be written before the engine is asked again.
    allowance: AtomicI64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MediumSpace {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

impl SpaceWatch {
    pub(crate) fn new(directory: PathBuf, reserve: u64, promised: Arc<Promised>) -> SpaceWatch {
        SpaceWatch { directory, reserve, promised, allowance: AtomicI64::new(0) }
    }

    /// What has to stay free, bytes.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve.saturating_add(self.promised.0.load(Ordering::Relaxed))
    }

    pub(crate) fn medium(&self) -> StorageResult<MediumSpace> {
        let stat = rustix::fs::statvfs(&self.directory).map_err(|errno| {
            StorageError::io(format!("asking for the space of {}", self.directory.display()), errno.into())
        })?;
        Ok(MediumSpace { total: stat.f_blocks * stat.f_frsize, free: stat.f_bavail * stat.f_frsize })
    }

    /// Refuses what does not fit above the reserve. The file system is asked each time, since others may have filled it; `ask`,
    /// for what is promised, now and then.
    pub(crate) fn admit(
        &self,
        wanted: u64,
        space: SpaceUse,
        ask: impl FnOnce(&Promised),
    ) -> StorageResult<()> {
        let cost = i64::try_from(wanted).unwrap_or(i64::MAX);
        let is_due = self.allowance.fetch_sub(cost, Ordering::Relaxed) < cost;
        if is_due {
            ask(&self.promised);
        }
        let free = self.medium()?.free;
        let reserve = match space {
            SpaceUse::Takes => self.reserve(),
            SpaceUse::Releases => FLOOR.min(self.reserve),
        };
        let slack = free.saturating_sub(reserve);
        if slack < wanted {
            self.allowance.store(0, Ordering::Relaxed);
            return Err(StorageError::NoSpace { path: self.directory.clone(), free, reserve, wanted });
        }
        if is_due && space == SpaceUse::Takes {
            let allowance = ((slack - wanted) / 16).min(RECHECK_MAX);
            self.allowance.store(allowance as i64, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn promise(&self, bytes: u64) {
        self.promised.set(bytes);
    }

    /// Has the next admission ask the engine.
    pub(crate) fn recheck(&self) {
        self.allowance.store(0, Ordering::Relaxed);
    }
}
