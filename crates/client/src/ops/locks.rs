//! File locks, kept by the server. The client remembers what it holds, to ask for it again after a restart of the server.
//!
//! A lock that is granted while its caller goes away is given back: what the owner had in its range before is had again.

use crate::cache::asked_locks::LockRequest;
use crate::cache::held_locks::{Owner, Undo};
use crate::call::{Order, Waiting, unexpected};
use crate::client::Client;
use crate::inner::{Arrived, Inner};
use crate::ops::OpenFile;
use soda_protocol::{Answer, Call, Lock, LockFamily, LockMode, LockWait};
use soda_types::{Errno, Fid, FsError, FsResult, LockOwner};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// What the server has to say whether a lock was granted that nobody waits for any more. Without an answer the caller goes, and
/// a grant that comes later is given back.
const PATIENCE: Duration = Duration::from_secs(1);

/// A request that has been sent.
#[derive(Debug)]
struct Asked {
    waiting: Waiting<Granted>,
    caller: Caller,
}

/// Who waits for a lock. Dropped before the answer is here, what is granted later is given back.
#[derive(Debug)]
struct Caller {
    inner: Arc<Inner>,
    request: LockRequest,
}

impl Drop for Caller {
    fn drop(&mut self) {
        crate::lock(&self.inner.state).asked_locks.abandon(self.request);
    }
}

/// A lock that the server has granted; given back when it is dropped before the caller has heard of it.
#[derive(Debug)]
struct Granted {
    inner: Arc<Inner>,
    request: LockRequest,
    /// What the owner had in its range.
    before: Option<Vec<Lock>>,
}

impl Granted {
    fn keep(mut self) {
        self.before = None;
        crate::lock(&self.inner.state).asked_locks.settle(self.request);
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            self.inner.give_lock_back(self.request, &before);
        }
    }
}

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

    /// Takes a lock. Dropping the future takes back what waits; a lock that was granted just then, or is later, is given back.
    ///
    /// # Errors
    /// EAGAIN if it is taken and `wait` says no; EDEADLK; EIO if locks of this file were lost with a session.
    pub async fn lock_set(&self, file: &OpenFile, lock: Lock, wait: LockWait) -> FsResult<()> {
        let Asked { waiting, caller } = self.ask_for_lock(file, lock, wait).await?;
        waiting.result().await?.keep();
        drop(caller);
        Ok(())
    }

    /// Takes a lock, and stops waiting for it when `interrupted` is ready: EINTR then, unless it was granted just before.
    ///
    /// # Errors
    /// As [`Client::lock_set`]; EINTR: nothing was changed, or will have been when the next request of the owner is answered.
    pub async fn lock_until(
        &self,
        file: &OpenFile,
        lock: Lock,
        interrupted: impl Future<Output = ()>,
    ) -> FsResult<()> {
        let mut interrupted = pin!(interrupted);
        let Asked { waiting, caller } = tokio::select! {
            biased;
            asked = self.ask_for_lock(file, lock, LockWait::Yes) => asked?,
            () = &mut interrupted => return Err(Errno::Interrupted.into()),
        };
        waiting.result_until(interrupted, PATIENCE).await?.keep();
        drop(caller);
        Ok(())
    }

    async fn ask_for_lock(&self, file: &OpenFile, lock: Lock, wait: LockWait) -> FsResult<Asked> {
        self.inner.stats.op_lock.one();
        let fid = file.fid();
        let (request, ticket) = loop {
            self.owner_settled((fid, lock.family, lock.owner)).await?;
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            if state.asked_locks.unsettled((fid, lock.family, lock.owner)).is_some() {
                continue;
            }
            file.check_locks(&mut state)?;
            let ticket = state.holder.begin_request(now);
            // It may wait for hours, and brings no leases.
            state.holder.fail_request(ticket);
            break (state.asked_locks.ask(fid, lock), ticket);
        };
        let caller = Caller { inner: Arc::clone(&self.inner), request };
        let order = Order::question(Call::LockSet { fid, lock, wait }, ticket);
        let waiting = self.inner.send(order, move |arrived, result| match result {
            Ok(_) => Ok(granted(arrived, request)),
            Err(error) => {
                if error.errno == Errno::TryAgain && lock.family == LockFamily::Flock {
                    // flock(2): what is refused is gone in its old mode, too.
                    arrived.state.locks.release(fid, lock);
                }
                arrived.state.asked_locks.settle(request);
                Err(error)
            }
        });
        Ok(Asked { waiting, caller })
    }

    /// Releases what the owner has in the range.
    ///
    /// # Errors
    /// EIO if the session ended meanwhile: it is released then, too.
    pub async fn lock_release(&self, fid: Fid, lock: Lock) -> FsResult<()> {
        self.inner.stats.op_lock.one();
        let has_any = || crate::lock(&self.inner.state).locks.overlaps(fid, lock);
        // What is about to be given back needs no release; what is about to be had again does.
        if has_any() {
            self.owner_settled((fid, lock.family, lock.owner)).await?;
        }
        if !has_any() {
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

    /// Until nothing is about to be given back for the owner.
    async fn owner_settled(&self, owner: Owner) -> FsResult<()> {
        loop {
            let Some(settled) = crate::lock(&self.inner.state).asked_locks.unsettled(owner) else {
                return Ok(());
            };
            let Some(timeout) = self.inner.patience() else {
                settled.await;
                continue;
            };
            let timed = {
                let _context = self.inner.runtime.enter();
                tokio::time::timeout(timeout, settled)
            };
            timed.await.map_err(|_| {
                FsError::new(Errno::Io, "ETIMEDOUT: a lock request before this was not answered (soft)")
            })?;
        }
    }
}

fn granted(arrived: &mut Arrived<'_>, request: LockRequest) -> Granted {
    let before = arrived.state.locks.within(request.fid, request.lock);
    arrived.state.locks.set(request.fid, request.lock);
    Granted { inner: Arc::clone(arrived.inner), request, before: Some(before) }
}

impl Inner {
    fn release_lock(self: &Arc<Inner>, fid: Fid, lock: Lock) -> Waiting<()> {
        let ticket = {
            let (mut state, now) = self.locked();
            // Not to be asked for again, whatever becomes of the answer.
            state.locks.release(fid, lock);
            state.holder.begin_request(now)
        };
        self.send(Order::question(Call::LockRelease { fid, lock }, ticket), |_, result| result.map(|_| ()))
    }

    fn give_lock_back(self: &Arc<Inner>, request: LockRequest, before: &[Lock]) {
        let fid = request.fid;
        let (steps, tickets) = {
            let (mut state, now) = self.locked();
            // The owner's other request is for this range as well: it goes with what that one gets.
            let steps = match state.asked_locks.is_asked_again(request) {
                true => Vec::new(),
                false => state.locks.undo(fid, request.lock, before),
            };
            let tickets: Vec<_> = steps.iter().map(|_| state.holder.begin_request(now)).collect();
            (steps, tickets)
        };
        tracing::debug!(%fid, ?steps, "a lock is given back that nobody waited for any more");
        for (step, ticket) in steps.into_iter().zip(tickets) {
            let call = match step {
                Undo::Release(lock) => Call::LockRelease { fid, lock },
                Undo::Set(lock) => Call::LockSet { fid, lock, wait: LockWait::No },
            };
            drop(self.send(Order::question(call, ticket), move |arrived, result| {
                if let (Err(_), Undo::Set(lock)) = (&result, step) {
                    // Somebody else got it first.
                    arrived.state.locks.release(fid, lock);
                }
                result.map(|_| ())
            }));
        }
        // What the owner asks for from now on goes behind these.
        crate::lock(&self.state).asked_locks.settle(request);
    }
}
