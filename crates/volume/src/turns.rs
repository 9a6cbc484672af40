//! What only one may do at a time in a volume.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Held by a transaction that moves a directory to another parent, until it ends: two such moves at once, each fine by
/// itself, could put two directories into each other (Linux: `s_vfs_rename_mutex`).
#[derive(Debug, Default)]
pub(crate) struct RenameLock {
    taken: Mutex<bool>,
    freed: Condvar,
}

#[derive(Debug)]
pub(crate) struct RenameTurn(Arc<RenameLock>);

impl RenameLock {
    pub(crate) fn wait(lock: &Arc<RenameLock>) -> RenameTurn {
        let mut taken = lock.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            taken = lock.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
        RenameTurn(lock.clone())
    }
}

impl Drop for RenameTurn {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.freed.notify_one();
    }
}

/// Whose turn it is to be reclaimed.
#[derive(Debug, Default)]
pub(crate) struct ReclaimTurn {
    /// The key of the last one that failed, in this round.
    pub(crate) failed: Option<Vec<u8>>,
}
