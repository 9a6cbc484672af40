//! flock(2), fcntl(2) and OFD locks. The server decides; nothing is granted on this machine alone.

use super::Inner;
use crate::handles::FileHandle;
use crate::wire::abi::lock as abi_lock;
use crate::wire::{LockRequest, Reply};
use soda_client::LockWait;
use soda_types::{Errno, FsResult, Lock, LockFamily, LockMode, LockOwner};
use std::sync::Arc;

impl Inner {
    pub(super) async fn lock_test(
        self: Arc<Self>,
        file: Arc<FileHandle>,
        request: LockRequest,
        reply: Reply,
    ) {
        let Some(lock) = lock_of(&request) else { return reply.error(Errno::Invalid) };
        match self.client.lock_test(file.fid(), lock).await {
            Ok(Some(other)) => {
                let kind = match other.mode {
                    LockMode::Shared => abi_lock::READ,
                    LockMode::Exclusive => abi_lock::WRITE,
                };
                reply.lock(other.start, other.end.min(abi_lock::END), kind, other.pid);
            }
            Ok(None) => reply.lock(request.span.start, request.span.end, abi_lock::UNLOCK, 0),
            Err(error) => self.fail("getlk", &error, reply),
        }
    }

    pub(super) async fn lock_set(
        self: Arc<Self>,
        file: Arc<FileHandle>,
        request: LockRequest,
        wait: LockWait,
        reply: Reply,
    ) {
        let result = match lock_of(&request) {
            Some(lock) => {
                if lock.family == LockFamily::Record {
                    // Before it is set: whoever is interrupted meanwhile has it released with the handle.
                    file.owners().insert(lock.owner);
                }
                self.client.lock_set(&file.open, lock, wait).await
            }
            None => self.unlock(&file, &request).await,
        };
        self.finish("setlk", result, reply);
    }

    async fn unlock(&self, file: &FileHandle, request: &LockRequest) -> FsResult<()> {
        let range = Lock { mode: LockMode::Exclusive, ..range_of(request) };
        self.client.lock_release(file.fid(), range).await
    }

    /// close(2): POSIX gives up all record locks that the process has on the file.
    pub(super) async fn flush(self: Arc<Self>, file: Arc<FileHandle>, owner: u64, reply: Reply) {
        let owner = LockOwner(owner);
        file.owners().remove(&owner);
        let result = self.client.lock_release_owner(file.fid(), LockFamily::Record, owner).await;
        self.finish("flush", result, reply);
    }

    /// The last reference to the open file is gone.
    pub(super) async fn release(self: Arc<Self>, file: Arc<FileHandle>, flock: Option<u64>, reply: Reply) {
        let owners: Vec<_> = std::mem::take(&mut *file.owners()).into_iter().collect();
        let families = owners.into_iter().map(|owner| (LockFamily::Record, owner));
        let flocks = flock.map(|owner| (LockFamily::Flock, LockOwner(owner)));
        for (family, owner) in families.chain(flocks) {
            if let Err(error) = self.client.lock_release_owner(file.fid(), family, owner).await {
                tracing::warn!(%error, fid = %file.fid(), "locks of a closed file were not released");
            }
        }
        // close(2) has returned already: there is nobody to tell an error.
        drop(file);
        reply.done();
    }
}

fn range_of(request: &LockRequest) -> Lock {
    let family = match request.is_flock {
        true => LockFamily::Flock,
        false => LockFamily::Record,
    };
    let span = request.span;
    let end = if span.end >= abi_lock::END { u64::MAX } else { span.end };
    Lock {
        family,
        owner: LockOwner(request.owner),
        pid: span.pid,
        start: span.start,
        end,
        mode: LockMode::Shared,
    }
}

/// `None`: to be released.
fn lock_of(request: &LockRequest) -> Option<Lock> {
    let mode = match request.span.kind {
        abi_lock::READ => LockMode::Shared,
        abi_lock::WRITE => LockMode::Exclusive,
        _ => return None,
    };
    Some(Lock { mode, ..range_of(request) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::LockSpan;

    #[test]
    fn a_range_without_end_stays_one() {
        let span = LockSpan { start: 3, end: abi_lock::END, kind: abi_lock::WRITE, pid: 1 };
        let request = LockRequest { handle: 1, owner: 2, span, is_flock: false };
        let lock = lock_of(&request).unwrap();
        assert_eq!((lock.start, lock.end, lock.mode), (3, u64::MAX, LockMode::Exclusive));
        let unlock = LockRequest { span: LockSpan { kind: abi_lock::UNLOCK, ..span }, ..request };
        assert!(lock_of(&unlock).is_none());
    }
}
