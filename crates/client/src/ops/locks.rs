//! File locks, kept by the server. The client remembers what it holds, to ask for it again after a restart of the server.
//!
//! Of a file that nobody else locks the server lets the client decide ([`soda_lease::locks::Delegate`]): what it remembers is
//! the truth then. So it is of a file that was made here and that the server does not know. Whoever has to wait for a lock waits
//! at the server, so that circles are found.
//!
//! A lock that is granted while its caller goes away is given back: what the owner had in its range before is had again.

use crate::cache::State;
use crate::cache::asked_locks::LockRequest;
use crate::cache::held_locks::{MOST_HERE, Owner, Undo};
use crate::cache::inode::{Inode, Origin};
use crate::call::{Order, Waiting, unexpected};
use crate::client::Client;
use crate::config::Locks;
use crate::inner::{Arrived, Inner};
use crate::ops::OpenFile;
use soda_oplog::DigestId;
use soda_protocol::{Answer, Call, Delegable, Lock, LockFamily, LockMode, LockWait};
use soda_types::{Errno, Fid, FsError, FsResult, LockOwner, Monotonic};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// What the server has to say whether a lock was granted that nobody waits for any more. Without an answer the caller goes, and
/// a grant that comes later is given back.
const PATIENCE: Duration = Duration::from_secs(1);

/// Files about whose locks it does.
const MOST_FILES: usize = 1 << 15;

/// What became of a request.
#[derive(Debug)]
enum Asked {
    /// It was granted without the server.
    Here,
    Sent {
        waiting: Waiting<Granted>,
        caller: Caller,
    },
}

/// Whether a lock was taken without the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decided {
    Here,
    NotHere,
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
            if let Some(conflict) = self.inner.lock_test_here(fid, lock)? {
                return Ok(conflict);
            }
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            // What was decided here is not asked of the server.
            self.inner.leave_locks_to_server(&mut state, fid)?;
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
        if let Asked::Sent { waiting, caller } = self.ask_for_lock(file, lock, wait).await? {
            waiting.result().await?.keep();
            drop(caller);
        }
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
        let asked = tokio::select! {
            biased;
            asked = self.ask_for_lock(file, lock, LockWait::Yes) => asked?,
            () = &mut interrupted => return Err(Errno::Interrupted.into()),
        };
        if let Asked::Sent { waiting, caller } = asked {
            waiting.result_until(interrupted, PATIENCE).await?.keep();
            drop(caller);
        }
        Ok(())
    }

    async fn ask_for_lock(&self, file: &OpenFile, lock: Lock, wait: LockWait) -> FsResult<Asked> {
        self.inner.stats.op_lock.one();
        let fid = file.fid();
        let (request, ticket, delegable) = loop {
            self.owner_settled((fid, lock.family, lock.owner)).await?;
            if self.lock_here(file, lock, wait)? == Decided::Here {
                return Ok(Asked::Here);
            }
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            if state.asked_locks.unsettled((fid, lock.family, lock.owner)).is_some()
                || state.delegate.decides(fid)
            {
                continue;
            }
            file.check_locks(&mut state)?;
            let ticket = state.holder.begin_request(now);
            // It may wait for hours, and brings no leases.
            state.holder.fail_request(ticket);
            state.delegate.asked(fid);
            break (state.asked_locks.ask(fid, lock), ticket, self.inner.delegable(&state, fid));
        };
        let caller = Caller { inner: Arc::clone(&self.inner), request };
        let order = Order::question(Call::LockSet { fid, lock, wait, delegable }, ticket);
        let waiting = self.inner.send(order, move |arrived, result| {
            let given = match &result {
                Ok((Answer::Delegated(epoch), _)) => Some(*epoch),
                _ => None,
            };
            let result = match result {
                Ok(_) => Ok(granted(arrived, request)),
                Err(error) => {
                    if error.errno == Errno::TryAgain && lock.family == LockFamily::Flock {
                        // flock(2): what is refused is gone in its old mode, too.
                        arrived.state.locks.release(fid, lock);
                    }
                    if error.errno == Errno::Interrupted && lock.family == LockFamily::Flock {
                        let inner = Arc::clone(arrived.inner);
                        inner.drop_old_flock(arrived.state, fid, lock);
                    }
                    arrived.state.asked_locks.settle(request);
                    Err(error)
                }
            };
            arrived.inner.lock_answered(arrived.state, fid, given);
            result
        });
        Ok(Asked::Sent { waiting, caller })
    }

    /// Takes the lock without the server, if it is for this client to decide and nobody here is in the way of one who waits.
    fn lock_here(&self, file: &OpenFile, lock: Lock, wait: LockWait) -> FsResult<Decided> {
        let fid = file.fid();
        let (mut state, now) = self.inner.locked();
        if state.asked_locks.unsettled((fid, lock.family, lock.owner)).is_some()
            || !self.inner.decides_now(&mut state, now, fid)?
        {
            return Ok(Decided::NotHere);
        }
        file.check_locks(&mut state)?;
        if lock.end < lock.start {
            return Err(FsError::new(Errno::Invalid, "the range ends before it starts"));
        }
        let busy = state.locks.in_the_way(fid, lock).is_some();
        if (busy && wait == LockWait::Yes) || state.locks.count_of(fid) >= MOST_HERE {
            self.inner.leave_locks_to_server(&mut state, fid)?;
            return Ok(Decided::NotHere);
        }
        self.inner.stats.locks_here.one();
        state.delegate.used(now, fid);
        if busy {
            if lock.family == LockFamily::Flock {
                // flock(2): what is refused is gone in its old mode, too.
                state.locks.release(fid, lock);
            }
            return Err(FsError::new(Errno::TryAgain, "another owner has a conflicting lock"));
        }
        state.locks.set(fid, lock);
        Ok(Decided::Here)
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
        let is_all = (lock.start, lock.end) == (0, u64::MAX);
        if !is_all && self.inner.has_too_many_untold(fid) {
            // Each hole may leave one more, and all have to be told at once. If this cannot be told now, later.
            let _ = self.inner.flush(&[fid]).await;
        }
        match self.inner.release_lock(fid, lock) {
            Some(waiting) => waiting.result().await,
            None => Ok(()),
        }
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

impl State {
    /// Whether the file was made here and the server was never told of it: nobody else has a lock on it, or asks for one.
    fn is_known_here_alone(&self, fid: Fid) -> bool {
        let unheard_of = |inode: &Inode| {
            inode.log.origin == Origin::Here
                && inode.log.records > 0
                && inode.log.told_in == DigestId::default()
        };
        self.peek(fid).is_some_and(unheard_of)
    }
}

impl Inner {
    /// Whether this client may be let decide about further locks of the file.
    fn delegable(&self, state: &State, fid: Fid) -> Delegable {
        let wanted = self.config.locks() == Locks::Delegated
            && state.delegate.len() < MOST_FILES
            && state.locks.count_of(fid) < MOST_HERE / 2;
        if wanted { Delegable::Yes } else { Delegable::No }
    }

    /// Whether there are so many locks on what was made here that the server has to be told before there are more.
    fn has_too_many_untold(&self, fid: Fid) -> bool {
        let state = crate::lock(&self.state);
        state.delegate.is_made(fid) && state.locks.count_of(fid) >= MOST_HERE
    }

    /// Who waited to change its flock and stopped has none: the old one went when the waiting began (flock(2)), or goes now, if
    /// it had not begun.
    fn drop_old_flock(self: &Arc<Inner>, state: &mut State, fid: Fid, lock: Lock) {
        if !state.locks.overlaps(fid, lock) {
            return;
        }
        state.locks.release(fid, lock);
        if !state.delegate.decides(fid) {
            state.delegate.asked(fid);
            let sent = self.send_in(state, Call::LockRelease { fid, lock }, move |arrived, result| {
                arrived.inner.lock_answered(arrived.state, fid, None);
                result.map(|_| ())
            });
            if sent.is_err() {
                // The client is closed: its session ends, and all locks with it.
                state.delegate.answered(self.now(), fid, None);
            }
        }
    }

    /// Whether this client decides about locks of the file, which takes a session that lasts. If that may be over the server
    /// is told first what was decided. What was made here it is told of first.
    fn decides_now(self: &Arc<Inner>, state: &mut State, now: Monotonic, fid: Fid) -> FsResult<bool> {
        let lasts = now < state.holder.session_valid_until();
        if lasts && state.is_known_here_alone(fid) && self.delegable(state, fid) == Delegable::Yes {
            state.delegate.begin_made(now, fid);
        }
        if !state.delegate.decides(fid) {
            return Ok(false);
        }
        if !lasts {
            self.leave_locks_to_server(state, fid)?;
        }
        Ok(lasts)
    }

    /// What is in the way of a lock, if it is for this client to say.
    fn lock_test_here(self: &Arc<Inner>, fid: Fid, lock: Lock) -> FsResult<Option<Option<Lock>>> {
        let (mut state, now) = self.locked();
        Ok(self.decides_now(&mut state, now, fid)?.then(|| {
            self.stats.locks_here.one();
            state.locks.in_the_way(fid, lock)
        }))
    }

    /// `None`: it is done, without the server.
    fn release_lock(self: &Arc<Inner>, fid: Fid, lock: Lock) -> Option<Waiting<()>> {
        let ticket = {
            let (mut state, now) = self.locked();
            // Not to be asked for again, whatever becomes of the answer.
            state.locks.release(fid, lock);
            // However old the session is: nobody else gets what is released before they ask for it.
            if state.delegate.decides(fid) {
                self.stats.locks_here.one();
                state.delegate.used(now, fid);
                // A hole in the middle of a lock makes two of one.
                self.limit_locks_here(&mut state, fid);
                return None;
            }
            state.delegate.asked(fid);
            state.holder.begin_request(now)
        };
        let order = Order::question(Call::LockRelease { fid, lock }, ticket);
        Some(self.send(order, move |arrived, result| {
            arrived.inner.lock_answered(arrived.state, fid, None);
            result.map(|_| ())
        }))
    }

    fn give_lock_back(self: &Arc<Inner>, request: LockRequest, before: &[Lock]) {
        let fid = request.fid;
        let (steps, tickets) = {
            let (mut state, now) = self.locked();
            if state.locks.count_of(fid) + before.len() > MOST_HERE {
                // What it had comes back in as many pieces. If the server cannot be told, the session has ended.
                let _ = self.leave_locks_to_server(&mut state, fid);
            }
            // The owner's other request is for this range as well: it goes with what that one gets.
            let mut steps = match state.asked_locks.is_asked_again(request) {
                true => Vec::new(),
                false => state.locks.undo(fid, request.lock, before),
            };
            if state.delegate.decides(fid) {
                for step in std::mem::take(&mut steps) {
                    // Somebody else got it first.
                    if let Undo::Set(lock) = step
                        && state.locks.in_the_way(fid, lock).is_some()
                    {
                        state.locks.release(fid, lock);
                    }
                }
            }
            steps.iter().for_each(|_| state.delegate.asked(fid));
            let tickets: Vec<_> = steps.iter().map(|_| state.holder.begin_request(now)).collect();
            (steps, tickets)
        };
        tracing::debug!(%fid, ?steps, "a lock is given back that nobody waited for any more");
        for (step, ticket) in steps.into_iter().zip(tickets) {
            let call = match step {
                Undo::Release(lock) => Call::LockRelease { fid, lock },
                Undo::Set(lock) => Call::LockSet { fid, lock, wait: LockWait::No, delegable: Delegable::No },
            };
            drop(self.send(Order::question(call, ticket), move |arrived, result| {
                if let (Err(_), Undo::Set(lock)) = (&result, step) {
                    // Somebody else got it first.
                    arrived.state.locks.release(fid, lock);
                }
                arrived.inner.lock_answered(arrived.state, fid, None);
                result.map(|_| ())
            }));
        }
        // What the owner asks for from now on goes behind these.
        crate::lock(&self.state).asked_locks.settle(request);
    }
}
