//! Waiting until the server knows what was done here.

use super::Behind;
use crate::cache::State;
use crate::inner::Inner;
use soda_oplog::{DigestId, Log};
use soda_protocol::Lsn;
use soda_types::{Errno, Fid, FsError, FsResult, Monotonic};
use std::sync::{Arc, MutexGuard};
use tokio::sync::oneshot;

/// Those who wait, and for what.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<Waiter>);

#[derive(Debug)]
struct Waiter {
    what: What,
    /// The digest that brings the last of it, once it is under way.
    last: Option<DigestId>,
    /// The server has no room for all, and this waiter was chosen to see whether it has room for him.
    tried: Tried,
    done: oneshot::Sender<FsResult<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tried {
    No,
    Now,
    In(DigestId),
}

#[derive(Debug)]
enum What {
    /// All that was done to these inodes.
    Inodes(Vec<Fid>),
    /// Everything up to this record.
    UpTo(Lsn),
}

impl What {
    fn is_pending(&self, log: &Log) -> bool {
        match self {
            What::Inodes(fids) => log.has_pending_for(fids),
            What::UpTo(lsn) => log.first_pending().is_some_and(|first| first <= *lsn),
        }
    }
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Inodes that somebody waits for.
    pub(super) fn wanted(&mut self) -> Vec<Fid> {
        self.0.retain(|waiter| !waiter.done.is_closed());
        let fids = |waiter: &Waiter| match &waiter.what {
            What::Inodes(fids) => fids.clone(),
            What::UpTo(_) => Vec::new(),
        };
        self.0.iter().flat_map(fids).collect()
    }

    /// Inodes that the first one waits for, of those whose records are pending; none, if he waits for all that came before.
    pub(super) fn wanted_by_one(&mut self, log: &Log) -> Vec<Fid> {
        self.0.retain(|waiter| !waiter.done.is_closed());
        let mut pending = self.0.iter_mut().filter(|waiter| waiter.last.is_none());
        let Some(waiter) = pending.find(|waiter| waiter.what.is_pending(log)) else { return Vec::new() };
        waiter.tried = Tried::Now;
        match &waiter.what {
            What::Inodes(fids) => fids.clone(),
            What::UpTo(_) => Vec::new(),
        }
    }

    /// This digest is for whoever was chosen.
    pub(super) fn note_sent(&mut self, id: DigestId) {
        for waiter in self.0.iter_mut().filter(|waiter| waiter.tried == Tried::Now) {
            waiter.tried = Tried::In(id);
        }
    }

    fn add(&mut self, what: What, log: &Log) -> oneshot::Receiver<FsResult<()>> {
        let (done, is_done) = oneshot::channel();
        // What is not pending any more is on its way.
        let last = if what.is_pending(log) { None } else { log.under_way() };
        self.0.push(Waiter { what, last, tried: Tried::No, done });
        is_done
    }

    /// This digest is under way, with what the log does not have any more.
    pub(super) fn note_taken(&mut self, log: &Log, id: DigestId) {
        for waiter in self.0.iter_mut().filter(|waiter| waiter.last.is_none()) {
            if !waiter.what.is_pending(log) {
                waiter.last = Some(id);
            }
        }
    }

    pub(super) fn note_applied(&mut self, id: DigestId) {
        self.wake(|waiter| waiter.last.is_some_and(|last| last <= id), &Ok(()));
    }

    /// The server did not take this digest: who waits for others waits on.
    pub(super) fn note_failed(&mut self, id: DigestId, error: &FsError) {
        let concerned = |waiter: &Waiter| waiter.last == Some(id) || waiter.tried == Tried::In(id);
        self.wake(concerned, &Err(error.clone()));
    }

    /// What was under way or applied is pending again.
    pub(super) fn note_lost(&mut self) {
        self.0.iter_mut().for_each(|waiter| waiter.last = None);
    }

    /// Records were given up: whose are not there any more waits for nothing.
    pub(super) fn note_given_up(&mut self, log: &Log) {
        let error = FsError::new(Errno::Io, "delayed writes were lost");
        let idle = log.under_way().is_none();
        self.wake(|waiter| idle && !waiter.what.is_pending(log), &Err(error));
    }

    pub(super) fn fail_all(&mut self, error: &FsError) {
        self.wake(|_| true, &Err(error.clone()));
    }

    fn wake(&mut self, which: impl Fn(&Waiter) -> bool, result: &FsResult<()>) {
        let (served, rest): (Vec<Waiter>, _) =
            std::mem::take(&mut self.0).into_iter().partition(|waiter| which(waiter));
        self.0 = rest;
        for waiter in served {
            let _ = waiter.done.send(result.clone());
        }
    }
}

impl Behind {
    fn wait_for(&mut self, what: What) -> oneshot::Receiver<FsResult<()>> {
        self.waiting.add(what, &self.log)
    }
}

impl Inner {
    /// The caches, when the server knows of all that was done here to these inodes: whatever is sent now comes after it.
    ///
    /// # Errors
    /// ENOSPC if the server has no room for it; EIO if it was lost.
    pub(crate) async fn settled(
        self: &Arc<Inner>,
        fids: &[Fid],
    ) -> FsResult<(MutexGuard<'_, State>, Monotonic)> {
        let mut began = None;
        loop {
            let (_through, receiver) = {
                let (mut state, now) = self.locked();
                if !state.is_ahead(fids) {
                    if let Some(began) = began {
                        self.stats.through_flush_nanos.add_time(now.since(began));
                    }
                    return Ok((state, now));
                }
                began.get_or_insert(now);
                let receiver = state.behind.wait_for(What::Inodes(fids.to_vec()));
                (GoingThrough::begin(self, &mut state, fids), receiver)
            };
            self.pump();
            self.received(receiver).await?;
        }
    }

    /// Waits until the server knows all that was done here to these inodes until now.
    ///
    /// # Errors
    /// As [`Inner::settled`].
    pub(crate) async fn flush(self: &Arc<Inner>, fids: &[Fid]) -> FsResult<()> {
        let receiver = {
            let (mut state, _) = self.locked();
            if !state.is_ahead(fids) {
                return Ok(());
            }
            state.behind.wait_for(What::Inodes(fids.to_vec()))
        };
        self.pump();
        self.received(receiver).await
    }

    /// Waits until the server knows everything that was done here until now.
    ///
    /// # Errors
    /// As [`Inner::settled`].
    pub(crate) async fn flush_all(self: &Arc<Inner>) -> FsResult<()> {
        let last = self.locked().0.behind.last_lsn();
        self.told_up_to(last).await
    }

    /// Waits until the server knows everything up to this record.
    ///
    /// # Errors
    /// As [`Inner::settled`].
    pub(super) async fn told_up_to(self: &Arc<Inner>, last: Lsn) -> FsResult<()> {
        let receiver = {
            let (mut state, _) = self.locked();
            let log = &state.behind.log;
            if log.first_pending().is_none_or(|first| first > last) && log.under_way().is_none() {
                return Ok(());
            }
            state.behind.wait_for(What::UpTo(last))
        };
        self.pump();
        self.received(receiver).await
    }

    /// Waits until there is room in the log.
    ///
    /// # Errors
    /// As [`Inner::settled`].
    pub(crate) async fn wait_for_room(self: &Arc<Inner>) -> FsResult<()> {
        self.stats.log_full.one();
        let began = self.now();
        let waited = self.until_room().await;
        self.stats.log_full_nanos.add_time(self.now().since(began));
        waited
    }

    async fn until_room(self: &Arc<Inner>) -> FsResult<()> {
        let receiver = {
            let (mut state, _) = self.locked();
            let first = state.behind.log.first_pending().filter(|_| !state.behind.is_heavy());
            first.map(|first| state.behind.wait_for(What::UpTo(first)))
        };
        if let Some(receiver) = receiver {
            self.pump();
            return self.received(receiver).await;
        }
        match self.make_durable() {
            Some(durable) => durable.result().await,
            None => Ok(()),
        }
    }

    async fn received(&self, receiver: oneshot::Receiver<FsResult<()>>) -> FsResult<()> {
        let Some(patience) = self.patience() else { return told(receiver.await) };
        let timed = {
            let _context = self.runtime.enter();
            tokio::time::timeout(patience, receiver)
        };
        let timed_out = |_| FsError::new(Errno::Io, "ETIMEDOUT: the server did not answer in time (soft)");
        told(timed.await.map_err(timed_out)?)
    }
}

fn told(result: Result<FsResult<()>, oneshot::error::RecvError>) -> FsResult<()> {
    result.unwrap_or_else(|_| Err(FsError::new(Errno::Io, "the client is shut down")))
}

/// Somebody is about to go through to the server with these inodes: they are not changed here until it has begun, so that
/// it ever does.
struct GoingThrough<'a> {
    inner: &'a Arc<Inner>,
    fids: Vec<Fid>,
}

impl<'a> GoingThrough<'a> {
    fn begin(inner: &'a Arc<Inner>, state: &mut State, fids: &[Fid]) -> GoingThrough<'a> {
        fids.iter().for_each(|fid| state.inode(*fid).going_through += 1);
        GoingThrough { inner, fids: fids.to_vec() }
    }
}

impl Drop for GoingThrough<'_> {
    fn drop(&mut self) {
        let mut state = crate::lock(&self.inner.state);
        for fid in &self.fids {
            let inode = state.inode(*fid);
            inode.going_through = inode.going_through.saturating_sub(1);
        }
    }
}
