//! Waiting until the server knows what was done here.

use crate::cache::State;
use crate::inner::Inner;
use crate::log::Behind;
use crate::log::waiting::What;
use soda_protocol::Lsn;
use soda_types::{Errno, Fid, FsError, FsResult, Monotonic};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use tokio::sync::{Notify, oneshot};

/// What becomes of an operation for which changes were to be told that are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    GoesOn,
    Fails,
}

impl Inner {
    /// The caches, when the server knows of all that was done here to these inodes: whatever is sent now comes after it, or
    /// after its loss, which is said to who has written it ([`OpenFile`](crate::OpenFile)) and to nobody else.
    ///
    /// # Errors
    /// ENOSPC if the server has no room for it.
    pub(crate) async fn settled(
        self: &Arc<Inner>,
        fids: &[Fid],
    ) -> FsResult<(MutexGuard<'_, State>, Monotonic)> {
        self.settled_whatever_is(fids, Lost::GoesOn).await
    }

    /// As [`Inner::settled`], for what must not be done with what is left when changes were lost meanwhile: rename in place of a
    /// good file a new one whose contents were lost, copy from it.
    ///
    /// # Errors
    /// As [`Inner::settled`]; EIO if changes were lost.
    pub(crate) async fn settled_unless_lost(
        self: &Arc<Inner>,
        fids: &[Fid],
    ) -> FsResult<(MutexGuard<'_, State>, Monotonic)> {
        self.settled_whatever_is(fids, Lost::Fails).await
    }

    async fn settled_whatever_is(
        self: &Arc<Inner>,
        fids: &[Fid],
        lost: Lost,
    ) -> FsResult<(MutexGuard<'_, State>, Monotonic)> {
        let mut began = None;
        let mut heard = None;
        loop {
            let (_through, receiver) = {
                let (mut state, now) = self.locked();
                let heard = *heard.get_or_insert(state.unsynced.heard_of_all());
                if !state.is_ahead(fids) {
                    let is_lost = |fid: &Fid| state.unsynced.may_have_lost_since(*fid, heard);
                    if lost == Lost::Fails && fids.iter().any(is_lost) {
                        return Err(FsError::new(Errno::Io, "changes that this rests on were lost"));
                    }
                    if let Some(began) = began {
                        self.stats.through_flush_nanos.add_time(now.since(began));
                    }
                    return Ok((state, now));
                }
                began.get_or_insert(now);
                let receiver = state.behind.wait_for_inodes(fids);
                (GoingThrough::begin(self, &mut state, fids), receiver)
            };
            self.pump();
            let told = self.received(receiver).await;
            if lost == Lost::GoesOn && !self.locked().0.is_ahead(fids) {
                continue;
            }
            told?;
        }
    }

    /// Waits until the server knows all that was done here to these inodes until now.
    ///
    /// # Errors
    /// As [`Inner::settled`]; EIO if it was lost.
    pub(crate) async fn flush(self: &Arc<Inner>, fids: &[Fid]) -> FsResult<()> {
        let receiver = {
            let (mut state, _) = self.locked();
            if !state.is_ahead(fids) {
                return Ok(());
            }
            state.behind.wait_for_inodes(fids)
        };
        self.pump();
        self.received(receiver).await
    }

    /// As [`Inner::flush`], and until it is on the server's disk. `None`: the server knew all of it.
    ///
    /// # Errors
    /// As [`Inner::flush`]; EIO of the server's disk.
    pub(crate) async fn flush_to_disk(self: &Arc<Inner>, fid: Fid) -> Option<FsResult<()>> {
        let receiver = {
            let (mut state, now) = self.locked();
            if !state.is_ahead(&[fid]) {
                return None;
            }
            let receiver = state.behind.wait_for_synced(now, fid);
            if state.behind.due_at().is_some_and(|due| due > now) {
                // It is to be sent a little later: who sends it sleeps longer than that.
                state.behind.news.notify_one();
            }
            receiver
        };
        self.pump();
        Some(self.received(receiver).await)
    }

    /// Waits until the server knows everything that was done here until now.
    ///
    /// # Errors
    /// As [`Inner::flush`].
    pub(crate) async fn flush_all(self: &Arc<Inner>) -> FsResult<()> {
        let last = self.locked().0.behind.last_lsn();
        self.nothing_aside(last).await?;
        // What was taken back is behind all the rest.
        let last = self.locked().0.behind.last_lsn();
        self.told_up_to(last).await
    }

    /// Waits until nothing is set aside of what was done up to this record.
    ///
    /// # Errors
    /// EIO if it was lost with the session.
    async fn nothing_aside(&self, last: Lsn) -> FsResult<()> {
        if self.locked().0.behind.aside_up_to(last).is_none() {
            return Ok(());
        }
        let losses = || self.losses.load(Ordering::SeqCst);
        let before = losses();
        let settled = self.until_less_aside(|behind| behind.aside_up_to(last));
        match self.patience() {
            None => settled.await,
            Some(patience) => {
                let timed = {
                    let _context = self.runtime.enter();
                    tokio::time::timeout(patience, settled)
                };
                timed.await.map_err(timed_out)?;
            }
        }
        match losses() == before {
            true => Ok(()),
            false => Err(FsError::new(Errno::Io, "delayed writes were lost with the session")),
        }
    }

    /// Waits until nothing is set aside of what was done to these inodes: it is gone with its file, or to be told after all.
    pub(crate) async fn nothing_aside_of(&self, fids: &[Fid]) {
        self.until_less_aside(|behind| behind.aside_of(fids)).await;
    }

    async fn until_less_aside(&self, what_tells: impl Fn(&Behind) -> Option<Arc<Notify>>) {
        loop {
            let settled = what_tells(&self.locked().0.behind);
            let Some(settled) = settled else { return };
            let mut less = pin!(settled.notified());
            less.as_mut().enable();
            // It may have been settled before anybody listened.
            let is_left = what_tells(&self.locked().0.behind).is_some();
            if is_left {
                less.await;
            }
        }
    }

    /// Waits until the digests that are under way have their answers.
    ///
    /// # Errors
    /// As [`Inner::flush`].
    pub(crate) async fn answered(self: &Arc<Inner>) -> FsResult<()> {
        let receiver = {
            let (mut state, _) = self.locked();
            if state.behind.digest_under_way().is_none() {
                return Ok(());
            }
            // Of no inode anything is pending, so that waits for all that is under way, and for nothing else.
            state.behind.wait_for_inodes(&[])
        };
        self.received(receiver).await
    }

    /// Waits until the server knows everything up to this record.
    ///
    /// # Errors
    /// As [`Inner::flush`].
    async fn told_up_to(self: &Arc<Inner>, last: Lsn) -> FsResult<()> {
        match self.tell_up_to(last) {
            Some(receiver) => self.received(receiver).await,
            None => Ok(()),
        }
    }

    /// As [`Inner::told_up_to`], however long it takes: also with [`Retry::Soft`](crate::Retry::Soft).
    ///
    /// # Errors
    /// The server does not take it.
    pub(super) async fn told_at_last_up_to(self: &Arc<Inner>, last: Lsn) -> FsResult<()> {
        match self.tell_up_to(last) {
            Some(receiver) => told(receiver.await),
            None => Ok(()),
        }
    }

    fn tell_up_to(self: &Arc<Inner>, last: Lsn) -> Option<oneshot::Receiver<FsResult<()>>> {
        let receiver = {
            let (mut state, _) = self.locked();
            let log = &state.behind.log;
            if log.first_pending().is_none_or(|first| first > last) && log.under_way().is_none() {
                return None;
            }
            state.behind.wait_for(What::UpTo(last))
        };
        self.pump();
        Some(receiver)
    }

    /// Waits until there is room in the log.
    ///
    /// # Errors
    /// As [`Inner::flush`].
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
            let behind = &mut state.behind;
            let first = behind.first_untold().filter(|_| !behind.is_heavy());
            first.map(|first| behind.wait_for(What::UpTo(first)))
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
        told(timed.await.map_err(timed_out)?)
    }
}

fn timed_out(_: tokio::time::error::Elapsed) -> FsError {
    FsError::new(Errno::Io, "ETIMEDOUT: the server did not answer in time (soft)")
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
        for fid in fids {
            state.inode(*fid).log.going_through += 1;
            state.repin(*fid);
        }
        GoingThrough { inner, fids: fids.to_vec() }
    }
}

impl Drop for GoingThrough<'_> {
    fn drop(&mut self) {
        let mut state = crate::lock(&self.inner.state);
        for fid in &self.fids {
            let inode = state.inode(*fid);
            inode.log.going_through = inode.log.going_through.saturating_sub(1);
            state.repin(*fid);
        }
    }
}
