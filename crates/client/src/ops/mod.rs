//! The operations, as POSIX calls them, on inodes.
//!
//! Every operation first looks into the caches; if they can answer, its future is ready at the first poll. Otherwise it
//! sends its request at once, from the polling thread, and is completed by the task that reads the reply.

mod attr;
mod dir;
mod files;
mod locks;
mod lookup;
mod names;
mod read;
mod rename;
mod write;
mod xattr;

pub use dir::{DirEntry, OpenDir};
pub use files::{OpenFile, OpenMode};
pub use read::ReadData;
pub use rename::RenameHow;
pub use write::{KillPriv, Written};

use crate::cache::State;
use crate::client::Client;
use crate::config::Access;
use crate::connection::SlotGuard;
use crate::inner::Inner;
use crate::validity::Validity;
use soda_protocol::Node;
use soda_types::{Attr, Errno, Fid, FsError, FsResult, Monotonic};
use std::sync::MutexGuard;

/// A name and what it means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// `None`: there is no such name.
    pub node: Option<Node>,
    /// How long the name may be kept, absent ones too.
    pub names: Validity,
    /// How long the inode's attributes may be kept.
    pub attr: Validity,
}

impl Client {
    /// A slot for a change, if changes are allowed.
    async fn slot(&self) -> FsResult<SlotGuard> {
        if self.inner.config.access == Access::ReadOnly {
            return Err(Errno::ReadOnly.into());
        }
        if let Some(slot) = self.inner.slots.try_acquire() {
            return Ok(slot);
        }
        let patience = self.inner.patience();
        let acquired = match patience {
            None => self.inner.slots.acquire().await,
            Some(timeout) => {
                let timed = {
                    let _context = self.inner.runtime.enter();
                    tokio::time::timeout(timeout, self.inner.slots.acquire())
                };
                timed
                    .await
                    .map_err(|_| FsError::new(Errno::Io, "ETIMEDOUT: no request could be sent (soft)"))?
            }
        };
        acquired.ok_or_else(|| FsError::new(Errno::Io, "the client is shut down"))
    }
}

impl Inner {
    /// The caches and the time. The lock is never held across a wait.
    fn locked(&self) -> (MutexGuard<'_, State>, Monotonic) {
        let state = crate::lock(&self.state);
        // Looked at after the lock was taken, which may have needed a while.
        let now = self.clock.now();
        (state, now)
    }

    fn patience(&self) -> Option<std::time::Duration> {
        match self.config.retry {
            crate::config::Retry::Hard => None,
            crate::config::Retry::Soft { timeout } => Some(timeout),
        }
    }
}

impl State {
    /// The entry for a node that was just learned under a name.
    fn entry(&mut self, now: Monotonic, names: Validity, node: Node) -> Entry {
        let attr = self.attr_validity(now, node.fid, &node.attr);
        Entry { node: Some(node), names, attr }
    }

    fn learn_others(&mut self, now: Monotonic, ticket: soda_lease::holder::Ticket, others: &[(Fid, Attr)]) {
        for (fid, attr) in others {
            self.learn_attr(now, ticket, *fid, attr);
        }
    }
}
