//! File locks, kept by the server. The client remembers what it holds, to ask for it again after a restart of the server.

use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::inner::Inner;
use crate::ops::OpenFile;
use soda_protocol::{Answer, Call, Lock, LockFamily, LockMode, LockWait};
use soda_types::{Fid, FsResult, LockOwner};
use std::sync::Arc;

impl Client {
    /// The lock that is in the way, if any (F_GETLK).
    ///
    /// # Errors
    /// ESTALE.
    pub async fn lock_test(&self, fid: Fid, lock: Lock) -> FsResult<Option<Lock>> {
        self.inner.stats.op_lock.one();
        let ticket = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            state.holder.begin_request(now)
        };
        let call = Call::LockTest { fid, lock };
        let waiting = self.inner.send(Order::question(call, ticket), |_, result| match result?.0 {
            Answer::Conflict(conflict) => Ok(conflict),
            other => unexpected(&other),
        });
        waiting.result().await
    }

    /// Takes a lock. Dropping the future takes back what waits; a lock that was just granted then is released, unless the
    /// owner has another one in its range.
    ///
    /// # Errors
    /// EAGAIN if it is taken and `wait` says no; EDEADLK; EIO if locks of this file were lost with a session.
    pub async fn lock_set(&self, file: &OpenFile, lock: Lock, wait: LockWait) -> FsResult<()> {
        self.inner.stats.op_lock.one();
        let fid = file.fid();
        let ticket = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            file.check_locks(&mut state)?;
            let ticket = state.holder.begin_request(now);
            // It may wait for hours, and brings no leases.
            state.holder.fail_request(ticket);
            ticket
        };
        let order = Order::question(Call::LockSet { fid, lock, wait }, ticket);
        let waiting = self.inner.send(order, move |arrived, result| {
            result?;
            // What the owner had before is still to be released by it, and this with that; unless that has happened already.
            if arrived.wanted || arrived.state.locks.overlaps(fid, lock) {
                arrived.state.locks.set(fid, lock);
            } else {
                let inner = Arc::clone(arrived.inner);
                arrived.inner.runtime.spawn(async move { inner.release_lock(fid, lock) });
            }
            Ok(())
        });
        waiting.result().await
    }

    /// Releases what the owner has in the range.
    ///
    /// # Errors
    /// EIO if the session ended meanwhile: it is released then, too.
    pub async fn lock_release(&self, fid: Fid, lock: Lock) -> FsResult<()> {
        self.inner.stats.op_lock.one();
        if !crate::lock(&self.inner.state).locks.overlaps(fid, lock) {
            return Ok(());
        }
        self.inner.release_lock(fid, lock).result().await
    }

    /// Releases all that the owner has on the inode: on close of a record lock's file, on the last close of a flock's.
    ///
    /// # Errors
    /// As [`Client::lock_release`].
    pub async fn lock_release_owner(&self, fid: Fid, family: LockFamily, owner: LockOwner) -> FsResult<()> {
        if !crate::lock(&self.inner.state).locks.owner_has_any(fid, family, owner) {
            return Ok(());
        }
        let all = Lock { family, owner, pid: 0, start: 0, end: u64::MAX, mode: LockMode::Shared };
        self.lock_release(fid, all).await
    }
}

impl Inner {
    fn release_lock(self: &Arc<Inner>, fid: Fid, lock: Lock) -> crate::call::Waiting<()> {
        let ticket = {
            let (mut state, now) = self.locked();
            // Not to be asked for again, whatever becomes of the answer.
            state.locks.release(fid, lock);
            state.holder.begin_request(now)
        };
        self.send(Order::question(Call::LockRelease { fid, lock }, ticket), |_, result| result.map(|_| ()))
    }
}
