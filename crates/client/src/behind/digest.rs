//! Telling the server: digests, one after the other, and who waits for them.

use super::here::Origin;
use super::{Behind, Draining, STALL};
use crate::cache::State;
use crate::call::{Arrived, GiveUp, Order, unexpected};
use crate::config::WritePolicy;
use crate::inner::{Inner, Phase};
use bytes::Bytes;
use soda_oplog::{Change, Digest, DigestId, DigestLimits, Fate};
use soda_protocol::{Answer, Call};
use soda_types::{Attr, Errno, Fid, FsError, FsResult, Monotonic, Version};
use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;

/// Most of one digest: some milliseconds of the server's time, so that who waits for another one is not kept long.
pub(super) const LIMITS: DigestLimits = DigestLimits { records: 1000, bytes: 1 << 20 };
/// So long after the last digest the server is asked to make all durable, which lets the log forget.
const SYNC_AFTER: Duration = Duration::from_secs(2);

/// A digest without an answer.
#[derive(Debug)]
pub(super) struct UnderWay {
    id: DigestId,
    /// Inodes, as often as its records touch them.
    touched: Vec<Fid>,
    /// Inodes that lose their last name while a process has them open.
    kept: Vec<Fid>,
}

/// Somebody who waits until the server knows all of these inodes that it did not when the waiting began.
#[derive(Debug)]
pub(super) struct Waiter {
    fids: Vec<Fid>,
    /// The digest that brings the last of it, once it is under way.
    last: Option<DigestId>,
    done: oneshot::Sender<FsResult<()>>,
}

/// Version and data version of an inode, as they have been counted here.
type Counted = (Fid, Version, Version);

/// What is to be sent.
pub(super) struct Dispatch {
    order: Order,
    id: DigestId,
}

impl State {
    /// Takes the next digest out of the log, if one is due.
    fn next_digest(&mut self, now: Monotonic) -> Option<(Digest, Vec<Counted>)> {
        let behind = &mut self.behind;
        if behind.due_at().is_none_or(|due| due > now) {
            return None;
        }
        behind.waiting.retain(|waiter| !waiter.done.is_closed());
        let wanted: Vec<Fid> = behind.waiting.iter().flat_map(|waiter| waiter.fids.iter().copied()).collect();
        let digest = behind.log.take_for(&wanted, LIMITS).or_else(|| behind.log.take(LIMITS))?;
        for waiter in behind.waiting.iter_mut().filter(|waiter| waiter.last.is_none()) {
            if behind.log.needed_for(&waiter.fids).is_empty() {
                waiter.last = Some(digest.id);
            }
        }
        let mut under_way = UnderWay { id: digest.id, touched: Vec::new(), kept: Vec::new() };
        for record in behind.log.under_way_records() {
            under_way.touched.extend(Behind::inodes_of(&record.change));
            match &record.change {
                Change::Unlink { fid, then: Fate::Stays, .. }
                | Change::Rename { replaced: Some((fid, Fate::Stays)), .. } => under_way.kept.push(*fid),
                _ => {}
            }
        }
        let touched: BTreeSet<Fid> = under_way.touched.iter().copied().collect();
        let before = touched.iter().filter_map(|fid| Some((*fid, self.inodes_told(*fid)?))).collect();
        let behind = &mut self.behind;
        behind.before.insert(digest.id, before);
        behind.under_way = Some(under_way);
        let counted = |fid: Fid| {
            let inode = self.peek(fid)?;
            let known = inode.attr.map_or((inode.seen, Version(0)), |attr| (attr.version, attr.data_version));
            Some((fid, known.0, known.1))
        };
        Some((digest, touched.into_iter().filter_map(counted).collect()))
    }

    /// The server has applied the digest; leases on what it created have been accepted.
    fn digest_applied(&mut self, now: Monotonic, id: DigestId, attrs: &[(Fid, Attr)]) -> Vec<Fid> {
        let Some(under_way) = self.behind.under_way.take_if(|under_way| under_way.id == id) else {
            return Vec::new();
        };
        self.behind.log.handle_applied(id);
        for fid in &under_way.touched {
            let inode = self.inode(*fid);
            inode.records = inode.records.saturating_sub(1);
        }
        let mut kernel_is_wrong = Vec::new();
        for (fid, attr) in attrs {
            let holding = self.holder.holding(*fid);
            let inode = self.inode(*fid);
            if inode.origin == Origin::Here {
                inode.origin = if holding.is_some() { Origin::AtServer } else { Origin::Told };
                inode.holding = holding;
            }
            inode.told = attr.version;
            if inode.records == 0
                && let Some(known) = inode.attr
                && attr.version >= known.version
            {
                // Blocks in use are the server's to count.
                if *attr != (Attr { version: attr.version, data_version: attr.data_version, ..known })
                    && inode.kernel_holds_attr(now)
                {
                    kernel_is_wrong.push(*fid);
                }
                inode.attr = Some(*attr);
                inode.seen = inode.seen.max(attr.version);
                self.memory.rename_version(*fid, attr.data_version);
            }
        }
        for fid in under_way.touched.iter().collect::<BTreeSet<_>>() {
            // Made and gone within the digest: the server has never heard of it.
            let inode = self.inode(*fid);
            if inode.origin == Origin::Here && inode.records == 0 && inode.opens == 0 {
                inode.origin = Origin::AtServer;
                self.void(*fid);
            }
            self.repin(*fid);
        }
        for fid in under_way.kept {
            if self.peek(fid).is_some_and(|inode| inode.released == Released::No) {
                self.told_open(fid);
            }
        }
        self.behind.wake(|waiter| waiter.last.is_some_and(|last| last <= id), &Ok(()));
        kernel_is_wrong
    }

    /// The server could not apply the digest, and will not by itself.
    fn digest_refused(&mut self, now: Monotonic, id: DigestId, error: &FsError) -> Refused {
        if self.behind.under_way.as_ref().is_none_or(|under_way| under_way.id != id) {
            return Refused::Overtaken;
        }
        match error.errno {
            // Others may give space back.
            Errno::NoSpace => {
                self.digests_lost(id);
                self.behind.stalled_until = now + STALL;
                self.behind.wake(|_| true, &Err(error.clone()));
                Refused::Later
            }
            _ => {
                let touched = self.behind.under_way.take().map(|under_way| under_way.touched);
                self.digests_lost(id);
                Refused::ForGood(Refusal { touched: touched.unwrap_or_default() })
            }
        }
    }

    /// The server has neither this digest nor any later one: their records are pending again.
    pub(super) fn digests_lost(&mut self, from: DigestId) {
        self.behind.under_way = None;
        self.behind.log.handle_lost(from);
        for (_, before) in self.behind.before.split_off(&from).into_iter().rev() {
            before.into_iter().for_each(|(fid, version)| self.inode(fid).told = version);
        }
        self.count_records();
        self.behind.waiting.iter_mut().for_each(|waiter| waiter.last = None);
    }

    fn inodes_told(&self, fid: Fid) -> Option<Version> {
        self.peek(fid).map(|inode| inode.told)
    }

    /// Notes again which inodes the server lacks something of.
    pub(super) fn count_records(&mut self) {
        let changes: Vec<Change> = self.behind.log.pending().map(|record| record.change.clone()).collect();
        let ahead: Vec<Fid> =
            self.inodes().filter(|(_, inode)| inode.records > 0).map(|(fid, _)| *fid).collect();
        ahead.iter().for_each(|fid| self.inode(*fid).records = 0);
        for change in &changes {
            if let Change::Create { fid, .. } | Change::TmpFile { fid, .. } = change {
                let now_here = self.inode(*fid);
                now_here.origin = Origin::Here;
                now_here.holding = None;
                self.holder.forget(*fid);
            }
            for fid in Behind::inodes_of(change) {
                self.inode(fid).records += 1;
                self.repin(fid);
            }
        }
        ahead.iter().for_each(|fid| self.repin(*fid));
    }
}

/// What follows from the refusal of a digest.
#[derive(Debug)]
enum Refused {
    /// It is tried again.
    Later,
    /// The server will never apply it.
    ForGood(Refusal),
    /// The session has ended meanwhile, which settled it.
    Overtaken,
}

/// A digest that the server will never apply.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(super) touched: Vec<Fid>,
}

/// Whether the server is going to be told by the log that nobody has an inode without a name open any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Released {
    #[default]
    No,
    Yes,
}

impl Behind {
    fn wake(&mut self, which: impl Fn(&Waiter) -> bool, result: &FsResult<()>) {
        let (served, rest) = std::mem::take(&mut self.waiting).into_iter().partition(|waiter| which(waiter));
        self.waiting = rest;
        let served: Vec<Waiter> = served;
        for waiter in served {
            let _ = waiter.done.send(result.clone());
        }
    }

    /// All who wait are told that it will not be.
    pub(super) fn fail_waiting(&mut self, error: &FsError) {
        self.wake(|_| true, &Err(error.clone()));
    }

    pub(super) fn wait_for(&mut self, fids: Vec<Fid>) -> oneshot::Receiver<FsResult<()>> {
        let (done, is_done) = oneshot::channel();
        // What is not pending any more is on its way.
        let on_its_way = self.log.needed_for(&fids).is_empty();
        let last = if on_its_way { self.log.under_way() } else { None };
        self.waiting.push(Waiter { fids, last, done });
        is_done
    }

    /// The digest in which everything is that was logged so far and applied.
    pub(crate) fn applied_up_to(&self) -> DigestId {
        match self.log.under_way() {
            Some(DigestId(under_way)) => DigestId(under_way.saturating_sub(1)),
            None => self.log.last_digest(),
        }
    }

    /// The server's disk has what it had applied up to this digest.
    pub(crate) fn handle_durable(&mut self, id: DigestId) {
        self.before = self.before.split_off(&DigestId(id.0 + 1));
        self.log.handle_durable(id);
    }
}

impl Inner {
    /// Sends what is due. Called by whoever may have made it so, with no lock held.
    pub(crate) fn pump(self: &Arc<Inner>) {
        let (dispatch, reservation) = {
            let (mut state, now) = self.locked();
            let reservation = state.next_reservation(now);
            let next = self.slots.digest_slot().and_then(|_| state.next_digest(now));
            let dispatch = next.and_then(|(digest, versions)| {
                self.stats.digests.one();
                self.stats.digested.add(digest.lsns.len() as u64);
                self.stats.coalesced.add((digest.lsns.len() - digest.records.len()) as u64);
                let ticket = state.holder.begin_request(now);
                let call = Call::Digest { records: digest.records, versions };
                let slot = self.slots.digest(digest.id)?;
                let order = Order { give_up: GiveUp::Never, ..Order::change(call, slot, ticket, Vec::new()) };
                Some(Dispatch { order, id: digest.id })
            });
            (dispatch, reservation)
        };
        if let Some(order) = reservation {
            self.send_reservation(order);
        }
        if let Some(dispatch) = dispatch {
            self.send_digest(dispatch);
        }
    }

    fn send_digest(self: &Arc<Inner>, Dispatch { order, id }: Dispatch) {
        drop(self.send(order, move |arrived, result| handle_answer(arrived, id, result)));
    }

    /// The caches, when the server knows of all that was done here to these inodes: whatever is sent now comes after it.
    ///
    /// # Errors
    /// ENOSPC if the server has no room for it; EIO if it was lost with the session.
    pub(crate) async fn settled(
        self: &Arc<Inner>,
        fids: &[Fid],
    ) -> FsResult<(MutexGuard<'_, State>, Monotonic)> {
        loop {
            let waiting = {
                let (mut state, now) = self.locked();
                if !state.is_ahead(fids) {
                    return Ok((state, now));
                }
                GoingThrough::begin(self, &mut state, fids)
            };
            self.pump();
            waiting.wait().await?;
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
            state.behind.wait_for(fids.to_vec())
        };
        self.pump();
        received(receiver.await)
    }

    /// Waits until the server knows everything.
    ///
    /// # Errors
    /// As [`Inner::settled`].
    pub(crate) async fn flush_all(self: &Arc<Inner>) -> FsResult<()> {
        loop {
            let fids: Vec<Fid> = {
                let (mut state, _) = self.locked();
                state.behind.draining = Draining::Yes;
                state.inodes().filter(|(_, inode)| inode.records > 0).map(|(fid, _)| *fid).collect()
            };
            let flushed = if fids.is_empty() { Ok(()) } else { self.flush(&fids).await };
            let ended = fids.is_empty() || flushed.is_err();
            if ended {
                self.locked().0.behind.draining = Draining::No;
                return flushed;
            }
        }
    }

    /// Waits until there is room in the log.
    pub(crate) async fn wait_for_room(self: &Arc<Inner>) -> FsResult<()> {
        self.stats.log_full.one();
        let receiver = {
            let (mut state, _) = self.locked();
            let oldest =
                state.behind.log.pending().next().map(|record| Behind::inodes_of(&record.change).collect());
            let Some(fids) = oldest else { return Ok(()) };
            state.behind.wait_for(fids)
        };
        self.pump();
        received(receiver.await)
    }
}

/// Somebody is about to go through to the server with these inodes: they are not changed here until it has begun, so that
/// it ever does.
struct GoingThrough<'a> {
    inner: &'a Arc<Inner>,
    fids: Vec<Fid>,
    receiver: Option<oneshot::Receiver<FsResult<()>>>,
}

impl<'a> GoingThrough<'a> {
    fn begin(inner: &'a Arc<Inner>, state: &mut State, fids: &[Fid]) -> GoingThrough<'a> {
        fids.iter().for_each(|fid| state.inode(*fid).going_through += 1);
        let receiver = state.behind.wait_for(fids.to_vec());
        GoingThrough { inner, fids: fids.to_vec(), receiver: Some(receiver) }
    }

    async fn wait(mut self) -> FsResult<()> {
        match self.receiver.take() {
            Some(receiver) => received(receiver.await),
            None => Ok(()),
        }
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

fn received(result: Result<FsResult<()>, oneshot::error::RecvError>) -> FsResult<()> {
    result.unwrap_or_else(|_| Err(FsError::new(Errno::Io, "the client is shut down")))
}

fn handle_answer(arrived: &mut Arrived<'_>, id: DigestId, result: FsResult<(Answer, Bytes)>) -> FsResult<()> {
    let (inner, state, now) = (arrived.inner, &mut *arrived.state, arrived.now);
    let applied = result.and_then(|(answer, _)| match answer {
        Answer::Digested { attrs } => Ok(attrs),
        other => unexpected(&other),
    });
    match applied {
        Ok(attrs) => {
            let kernel_is_wrong = state.digest_applied(now, id, &attrs);
            if !kernel_is_wrong.is_empty() {
                let hooks = Arc::clone(&inner.hooks);
                let tell = move || kernel_is_wrong.iter().for_each(|fid| hooks.invalidate_attr(*fid));
                inner.recall_pool.run(Box::new(tell));
            }
        }
        Err(error) => match state.digest_refused(now, id, &error) {
            Refused::Later => {
                tracing::warn!(%error, "the server has no room for delayed writes: trying again")
            }
            Refused::ForGood(refusal) => {
                let (lost, inner) = (state.give_up_uncovered(Some(refusal)), Arc::clone(inner));
                // Under the lock of the caches nobody is told anything.
                inner.runtime.clone().spawn(async move { inner.report_loss(lost, &error.to_string()) });
            }
            Refused::Overtaken => {}
        },
    }
    let inner = Arc::clone(inner);
    // Under the lock of the caches nothing is sent.
    inner.runtime.clone().spawn(async move { inner.pump() });
    Ok(())
}

/// Sends digests as they become due. Runs until the client is closed.
pub(crate) async fn keep_log(inner: Arc<Inner>) {
    let mut phase = inner.phase.subscribe();
    let news = crate::lock(&inner.state).behind.news();
    let mut last_sync = inner.now();
    loop {
        let (due, undurable) = {
            let (state, _) = inner.locked();
            (state.behind.due_at(), state.behind.log.has_undurable())
        };
        let now = inner.now();
        let sync_at = undurable.then(|| last_sync + SYNC_AFTER);
        let pause =
            due.into_iter().chain(sync_at).min().map(|next| next.since(now).max(Duration::from_millis(1)));
        tokio::select! {
            () = news.notified() => {}
            () = pause_for(pause) => {}
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
        }
        inner.pump();
        if sync_at.is_some_and(|at| at <= inner.now()) {
            last_sync = inner.now();
            inner.forget_durable();
        }
    }
}

async fn pause_for(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

impl Inner {
    /// Has the server make everything durable, so that the log need not keep it.
    fn forget_durable(self: &Arc<Inner>) {
        let Some(root) = self.root.get().copied() else { return };
        let (ticket, mark, applied) = {
            let (mut state, now) = self.locked();
            (state.holder.begin_request(now), state.unsynced.mark(), state.behind.applied_up_to())
        };
        drop(self.send(Order::question(Call::Sync { fid: root }, ticket), move |arrived, result| {
            result?;
            arrived.state.unsynced.synced(mark);
            arrived.state.behind.handle_durable(applied);
            Ok(())
        }));
    }

    /// Whether writes are told to the server later.
    pub(crate) fn writes_behind(&self) -> bool {
        matches!(self.config.write, WritePolicy::Behind(_))
    }
}
