//! Telling the server: digests, one after the other, some of them without waiting for the answer to the one before.

use super::loss::Keep;
use crate::cache::State;
use crate::cache::held_locks::IDLE_BEHIND;
use crate::cache::inode::{Inode, Keeping, Origin};
use crate::call::{Enlisted, GiveUp, Order, Waiting, unexpected};
use crate::config::WritePolicy;
use crate::crash;
use crate::inner::{Arrived, Inner, Phase};
use crate::log::Behind;
use crate::log::disk::OnDisk;
use crate::log::next::{Chosen, Filled, ServerRoom, UnderWay};
use crate::log::waiting::ToSync;
use bytes::Bytes;
use soda_oplog::segments::{Entry, Safety};
use soda_oplog::{Change, Digest, DigestId, Fate};
use soda_protocol::digest::split_data;
use soda_protocol::{Answer, Call, Lsn, OpId};
use soda_types::{Attr, Epoch, Errno, Fid, FsError, FsResult, InUse, Monotonic, Sequence, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// So long after the last digest the server is asked to make all durable, which lets the log forget.
const SYNC_AFTER: Duration = Duration::from_secs(2);
/// Or after so many records: until then the log keeps them.
const SYNC_RECORDS: u64 = 50_000;
/// Digests between two syncs at least.
const BETWEEN_SYNCS: u64 = 16;
/// How long the log waits after the server did not take a digest.
const STALL: Duration = Duration::from_millis(500);

/// Version and data version of an inode, as they have been counted here.
type Counted = (Fid, Version, Version);

/// A digest that is about to be sent.
struct Next {
    digest: Digest,
    versions: Vec<Counted>,
    /// The one before it, if that has no answer.
    after: Option<DigestId>,
    /// What it makes of which this client decides about the locks.
    locks: Vec<Fid>,
}

impl State {
    /// Takes the next digest out of the log, if one is due.
    fn next_digest(&mut self, now: Monotonic) -> Option<Next> {
        let behind = &mut self.behind;
        if behind.due_at().is_none_or(|due| due > now) {
            return None;
        }
        let after = behind.digest_under_way();
        let (digest, chosen) = behind.choose(now)?;
        let filled = behind.filled(&digest);
        behind.note_sent(now, chosen, filled);
        if let Some(disk) = &behind.disk {
            disk.push_sent(digest.id, after, digest.lsns.clone());
        }
        behind.waiting.note_taken(&behind.log, digest.id);
        let mut under_way = UnderWay { id: digest.id, chosen, filled, ..UnderWay::default() };
        let epoch = epoch_of(digest.id);
        let made = digest.records.iter().filter_map(|record| record.change.creates());
        let locks = made
            .filter(|fid| {
                if self.locks.count_of(*fid) == 0 {
                    self.delegate.forget_unused(now, *fid, IDLE_BEHIND);
                }
                self.delegate.tell(*fid, epoch)
            })
            .collect();
        for record in behind.log.records_of(digest.id) {
            under_way.made.extend(record.change.creates().filter(|fid| self.delegate.is_made(*fid)));
            under_way.touched.extend(Behind::inodes_of(&record.change));
            under_way.gone.extend(Behind::removed_by(&record.change));
            if let Change::TmpFile { fid, .. }
            | Change::Unlink { fid, then: Fate::Stays, .. }
            | Change::Rename { replaced: Some((fid, Fate::Stays)), .. }
            | Change::Whiteout { replaced: Some((fid, Fate::Stays)), .. } = &record.change
            {
                under_way.kept.push(*fid);
            }
        }
        let touched: BTreeSet<Fid> = under_way.touched.iter().copied().collect();
        let before = touched.iter().filter_map(|fid| Some((*fid, self.inodes_told(*fid)?))).collect();
        touched.iter().for_each(|fid| self.inode(*fid).log.told_in = digest.id);
        let behind = &mut self.behind;
        behind.before.insert(digest.id, before);
        behind.under_way.push_back(under_way);
        behind.unanswered.insert(digest.id);
        let counted = |fid: Fid| {
            let inode = self.peek(fid)?;
            let known = inode.attr.map_or((inode.seen, Version(0)), |attr| (attr.version, attr.data_version));
            // Without a version it is among what the digest is about all the same.
            let reserve = &self.behind.reserve;
            Some((fid, reserve.told(known.0), reserve.told(known.1)))
        };
        let versions = touched.into_iter().filter_map(counted).collect();
        Some(Next { digest, versions, after, locks })
    }

    /// The server has applied the digest; leases on what it created have been accepted.
    fn digest_applied(
        &mut self,
        now: Monotonic,
        sent_at: Monotonic,
        id: DigestId,
        attrs: &[(Fid, Attr)],
    ) -> Vec<Fid> {
        let Some(under_way) = self.behind.under_way.pop_front_if(|under_way| under_way.id == id) else {
            return Vec::new();
        };
        if under_way.filled == Filled::Full {
            self.behind.window.note_digest(now, sent_at);
        }
        let told = self.behind.log.records_of(id).map(|record| record.lsn).max();
        self.behind.handle_applied(now, &under_way);
        self.end_moves(told.unwrap_or_default());
        if let Some(disk) = &self.behind.disk {
            let versions = attrs.iter().map(|(fid, attr)| (*fid, attr.version)).collect();
            disk.push(Entry::AppliedAs { sequence: Sequence(id.0), versions });
        }
        for fid in &under_way.touched {
            let inode = self.inode(*fid);
            inode.log.records = inode.log.records.saturating_sub(1);
        }
        let mut kernel_is_wrong = Vec::new();
        for (fid, attr) in attrs {
            let holding = self.holder.holding(*fid);
            let known = self.peek(*fid).and_then(|inode| inode.attr);
            let is_beyond = known.is_some_and(|known| self.behind.reserve.is_beyond(known.version));
            let inode = self.inode(*fid);
            if inode.log.origin == Origin::Here {
                inode.log.origin = if holding.is_some() { Origin::AtServer } else { Origin::Told };
                inode.holding = holding;
            }
            inode.told = attr.version;
            // Those that were sent before this answer find the inode as it leaves it.
            for before in self.behind.before.range_mut(DigestId(id.0 + 1)..).map(|(_, before)| before) {
                if let Ok(place) = before.binary_search_by_key(fid, |(fid, _)| *fid) {
                    before[place].1 = attr.version;
                }
            }
            let inode = self.inode(*fid);
            if inode.log.records == 0
                && let Some(known) = inode.attr
                && (attr.version >= known.version || is_beyond)
            {
                // Blocks in use are the server's to count.
                if *attr != (Attr { version: attr.version, data_version: attr.data_version, ..known })
                    && inode.kernel_holds_attr(now)
                {
                    kernel_is_wrong.push(*fid);
                }
                inode.seen = match attr.version >= known.version {
                    true => inode.seen.max(attr.version),
                    false => attr.version,
                };
                inode.attr = Some(*attr);
                self.memory.rename_version(*fid, attr.data_version);
            }
        }
        let alive: BTreeSet<Fid> = attrs.iter().map(|(fid, _)| *fid).collect();
        for fid in under_way.gone.iter().filter(|fid| !alive.contains(*fid)) {
            let inode = self.inode(*fid);
            if inode.log.records == 0 {
                inode.log.origin = Origin::AtServer;
                self.void(*fid);
                self.holder.forget(*fid);
                self.inode(*fid).log.deleted = true;
            }
        }
        // Closed meanwhile, which could not be logged: now nothing comes after it.
        let closed = |inode: &Inode| {
            inode.log.records == 0 && inode.uses.opens == 0 && inode.uses.open_at_server == InUse::Yes
        };
        for fid in touched_once(&under_way) {
            if self.peek(fid).is_some_and(closed) {
                self.told_open(fid);
            }
        }
        under_way.touched.iter().for_each(|fid| self.repin(*fid));
        let nameless = |inode: &Inode| inode.attr.is_some_and(|attr| attr.nlink == 0);
        for fid in under_way.kept {
            if self.peek(fid).is_some_and(|inode| inode.log.keeping != Keeping::Closed && nameless(inode)) {
                self.told_open(fid);
            }
        }
        self.behind.waiting.note_applied(now, id);
        kernel_is_wrong
    }

    /// The server could not apply the digest, and will not by itself.
    fn digest_refused(&mut self, now: Monotonic, id: DigestId, error: &FsError) -> Refused {
        let refused = self.behind.refused.take();
        let place = self.behind.under_way.iter().position(|under_way| under_way.id == id);
        let Some(under_way) = place.and_then(|place| self.behind.under_way.remove(place)) else {
            return Refused::Overtaken;
        };
        match (error.errno, refused) {
            // The one before it was not applied, or comes again: nothing is wrong with this one.
            (Errno::TryAgain, None) if place > Some(0) => {
                self.digests_lost(now, id);
                Refused::Later
            }
            (Errno::NoSpace, _) if self.behind.room == ServerRoom::Enough => {
                self.behind.room = ServerRoom::Short;
                self.digests_lost(now, id);
                Refused::Later
            }
            // Others may give space back; and what a disk refuses once it may take later.
            (Errno::NoSpace | Errno::Io, _) | (_, None) => {
                if self.behind.room != ServerRoom::Enough {
                    let freeing = under_way.chosen == Chosen::Freeing;
                    self.behind.room = if freeing { ServerRoom::None } else { ServerRoom::Short };
                }
                self.behind.waiting.note_failed(id, error);
                self.digests_lost(now, id);
                self.behind.stalled_until = now + STALL;
                Refused::Later
            }
            // Who waits for what is not given up with it waits on.
            (_, Some(record)) => {
                self.digests_lost(now, id);
                Refused::ForGood(Refusal { record, touched: under_way.touched })
            }
        }
    }

    /// The server has neither this digest nor any later one: their records are pending again.
    pub(super) fn digests_lost(&mut self, now: Monotonic, from: DigestId) {
        self.behind.under_way.retain(|under_way| under_way.id < from);
        if self.behind.log.has_undurable_from(from) {
            self.behind.losses += 1;
        }
        self.behind.log.handle_lost(from);
        self.delegate.handle_lost(epoch_of(from));
        for (_, before) in self.behind.before.split_off(&from).into_iter().rev() {
            before.into_iter().for_each(|(fid, version)| self.inode(fid).told = version);
        }
        self.begin_lost_moves();
        if let Some(disk) = &self.behind.disk {
            disk.push(Entry::Lost { from: Sequence(from.0) });
        }
        self.count_records();
        self.behind.waiting.note_lost(now, &self.behind.log, from);
        self.behind.news.notify_one();
    }

    fn inodes_told(&self, fid: Fid) -> Option<Version> {
        self.peek(fid).map(|inode| inode.told)
    }

    /// Notes again which inodes the server lacks something of.
    pub(super) fn count_records(&mut self) {
        let log = &self.behind.log;
        let under_way = log.under_way_records().flat_map(|record| Behind::inodes_of(&record.change));
        let under_way: Vec<Fid> = under_way.collect();
        let pending = log.pending().flat_map(|record| Behind::inodes_of(&record.change));
        let pending: Vec<Fid> = pending.collect();
        let made: Vec<Fid> = log.pending().filter_map(|record| record.change.creates()).collect();
        let ahead: Vec<Fid> =
            self.inodes().filter(|(_, inode)| inode.log.records > 0).map(|(fid, _)| *fid).collect();
        ahead.iter().for_each(|fid| self.inode(*fid).log.records = 0);
        for fid in made {
            let now_here = self.inode(fid);
            now_here.log.origin = Origin::Here;
            now_here.holding = None;
            self.holder.forget(fid);
        }
        for fid in under_way {
            self.inode(fid).log.records += 1;
        }
        for fid in pending {
            self.inode(fid).log.records += 1;
            self.repin(fid);
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
    /// Because of this one.
    pub(super) record: Lsn,
    pub(super) touched: Vec<Fid>,
}

/// The digest's sequence: under which the server enters who decides about locks of what it makes.
fn epoch_of(id: DigestId) -> Epoch {
    Epoch(id.0)
}

fn touched_once(under_way: &UnderWay) -> BTreeSet<Fid> {
    under_way.touched.iter().copied().collect()
}

impl Inner {
    /// Sends what is due. Called by whoever may have made it so, with no lock held.
    pub(crate) fn pump(self: &Arc<Inner>) {
        while self.pump_one() == Pumped::Digest {}
    }

    fn pump_one(self: &Arc<Inner>) -> Pumped {
        let (to_sync, dispatch, reservation) = {
            let (mut state, now) = self.locked();
            let to_sync = self.take_to_sync(&mut state, now);
            let reservation = state.next_reservation(now);
            let slots = self.slots.digest_slots();
            let next = slots.and_then(|slots| Some((slots, state.next_digest(now)?)));
            let dispatch = next.and_then(|(slots, Next { mut digest, versions, after, locks })| {
                self.stats.digests.one();
                self.stats.digested.add(digest.lsns.len() as u64);
                self.stats.coalesced.add((digest.lsns.len() - digest.records.len()) as u64);
                let ticket = state.holder.begin_request(now);
                let after = after.map(|before| slots.op(Sequence(before.0)));
                let (data, payload) = split_data(&mut digest.records);
                let call = Call::Digest { records: digest.records, data, versions, after, locks };
                let slot = self.slots.digest(digest.id)?;
                let op = slot.op;
                let order = Order {
                    payload,
                    give_up: GiveUp::Never,
                    ..Order::change(call, slot, ticket, Vec::new())
                };
                let disk = state.behind.disk.clone();
                // Whoever ends the session from here on finds it in the list.
                let id = digest.id;
                let digest = self.enlist(order, move |arrived, result| handle_answer(arrived, id, result));
                let fid = state.behind.waiting.sync_along(now, id);
                let sync = fid.map(|fid| self.enlist_sync(&mut state, now, fid, (id, op)));
                Some((digest, sync, disk))
            });
            (to_sync, dispatch, reservation)
        };
        self.sync_for(to_sync);
        if let Some(order) = reservation {
            drop(self.send_reservation(order));
        }
        let Some((digest, sync, disk)) = dispatch else { return Pumped::Nothing };
        // Should this machine crash, it is known that the server may have it. The disk may be slow: not under the lock of the
        // caches.
        let disk = disk.filter(|disk| disk.write() == OnDisk::Yes);
        crash::point("client.digest-noted");
        self.report_rest();
        match disk.filter(|disk| disk.safety() == Safety::PowerCut) {
            Some(disk) => {
                let inner = Arc::clone(self);
                drop(self.runtime.spawn_blocking(move || {
                    let _ = disk.sync();
                    inner.send_enlisted(digest, sync);
                }));
            }
            None => self.send_enlisted(digest, sync),
        }
        Pumped::Digest
    }
}

/// What was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pumped {
    /// No digest.
    Nothing,
    Digest,
}

/// They hear what became of their sync; who waited for its end has his turn.
fn end_sync(state: &mut State, waiting: Vec<ToSync>, result: &FsResult<()>) {
    state.behind.news.notify_one();
    waiting.into_iter().for_each(|who| drop(who.done.send(result.clone())));
}

fn handle_answer(arrived: &mut Arrived<'_>, id: DigestId, result: FsResult<(Answer, Bytes)>) -> FsResult<()> {
    let (inner, state, now, sent_at) =
        (arrived.inner, &mut *arrived.state, arrived.now, arrived.ticket.sent_at());
    state.behind.unanswered.remove(&id);
    let overtakes = state.behind.is_under_way(DigestId(id.0.saturating_sub(1)));
    let applied = result.and_then(|(answer, _)| match answer {
        Answer::Digested { .. } if overtakes => {
            Err(FsError::new(Errno::Io, "a digest is answered before the one that it comes after"))
        }
        Answer::Digested { attrs } => Ok(attrs),
        other => unexpected(&other),
    });
    match applied {
        Ok(attrs) => {
            crash::point("client.digest-answered");
            state.behind.stalled_until = Monotonic::ZERO;
            let made = state.behind.made_in(id);
            let kernel_is_wrong = state.digest_applied(now, sent_at, id, &attrs);
            for fid in made {
                let exists = attrs.iter().any(|(known, _)| *known == fid);
                inner.handle_made_told(state, fid, exists.then(|| epoch_of(id)));
            }
            crash::point("client.digest-applied");
            if !kernel_is_wrong.is_empty() {
                let hooks = Arc::clone(&inner.hooks);
                let tell = move || kernel_is_wrong.iter().for_each(|fid| hooks.invalidate_attr(*fid));
                inner.recall_pool.run(Box::new(tell));
            }
        }
        Err(error) => {
            inner.stats.digests_refused.one();
            match state.digest_refused(now, id, &error) {
                Refused::Later => {
                    tracing::warn!(%error, "the server does not take delayed writes now: trying again")
                }
                Refused::ForGood(refusal) => {
                    let (lost, inner) = (state.give_up_uncovered(Some(&refusal)), Arc::clone(inner));
                    // Under the lock of the caches nobody is told anything.
                    let runtime = inner.runtime.clone();
                    runtime.spawn(async move { inner.report_loss(lost, &error.to_string(), Keep::Aside) });
                }
                Refused::Overtaken => {}
            }
        }
    }
    // Under the lock of the caches nothing is sent: `keep_log` does that.
    state.behind.news.notify_one();
    Ok(())
}

/// Sends digests as they become due. Runs until the client is closed.
pub(crate) async fn keep_log(inner: Arc<Inner>) {
    let mut phase = inner.phase.subscribe();
    let news = crate::lock(&inner.state).behind.news();
    let mut last_sync = inner.now();
    let mut synced = DigestId(0);
    loop {
        let (due, undurable, much, digest, now) = {
            let (state, now) = inner.locked();
            let (behind, log) = (&state.behind, &state.behind.log);
            let much = behind.is_heavy() || log.undurable_count() >= SYNC_RECORDS;
            (behind.due_at(), log.has_undurable(), much, log.last_digest(), now)
        };
        // The sync before may be under way still.
        let many = much && digest.0 >= synced.0 + BETWEEN_SYNCS;
        let sync_at = undurable.then(|| if many { now } else { last_sync + SYNC_AFTER });
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
            synced = digest;
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
        drop(self.make_durable());
    }

    /// As [`Inner::forget_durable`], for who waits for it. `None`: there is no server yet.
    pub(crate) fn make_durable(self: &Arc<Inner>) -> Option<Waiting<()>> {
        let root = self.root.get().copied()?;
        Some(self.sync(root))
    }

    /// Asks for all that the server knows by now to be on its disk.
    pub(crate) fn sync(self: &Arc<Inner>, fid: Fid) -> Waiting<()> {
        self.sync_then(fid, |_, _| ())
    }

    /// Those who have waited until the server knows what they wait for: for [`Inner::sync_for`].
    pub(crate) fn take_to_sync(&self, state: &mut State, now: Monotonic) -> Vec<ToSync> {
        let to_sync = state.behind.waiting.take_to_sync(now);
        self.note_flushed(&to_sync);
        to_sync
    }

    fn note_flushed(&self, waiting: &[ToSync]) {
        waiting.iter().for_each(|who| self.stats.fsync_flush_nanos.add_time(who.flushed));
    }

    /// The same for several who have waited until the server knows what they wait for.
    pub(crate) fn sync_for(self: &Arc<Inner>, waiting: Vec<ToSync>) {
        let Some(fid) = waiting.first().map(|who| who.fid) else { return };
        drop(self.sync_then(fid, move |state, result| {
            state.behind.waiting.note_synced();
            end_sync(state, waiting, result);
        }));
    }

    /// A sync for those who wait for this digest: to be sent along with it, when it is in the list.
    fn enlist_sync(
        self: &Arc<Inner>,
        state: &mut State,
        now: Monotonic,
        fid: Fid,
        (id, op): (DigestId, OpId),
    ) -> Enlisted {
        let (ticket, mark) = (state.holder.begin_request(now), state.unsynced.mark());
        let order = Order::question(Call::Sync { fid, after: Some(op) }, ticket);
        self.enlist(order, move |Arrived { inner, state, .. }, result| {
            let result = result.map(|_| {
                state.unsynced.synced(mark);
                // The answer to the digest may come later, over another connection.
                let told = state.behind.applied_up_to();
                state.behind.handle_durable(id.min(told));
            });
            let waiting = state.behind.waiting.end_along(id, &result);
            inner.note_flushed(&waiting);
            end_sync(state, waiting, &result);
            result
        })
    }

    fn sync_then(
        self: &Arc<Inner>,
        fid: Fid,
        then: impl FnOnce(&mut State, &FsResult<()>) + Send + 'static,
    ) -> Waiting<()> {
        let (ticket, mark, applied) = {
            let (mut state, now) = self.locked();
            (state.holder.begin_request(now), state.unsynced.mark(), state.behind.applied_up_to())
        };
        self.send(Order::question(Call::Sync { fid, after: None }, ticket), move |arrived, result| {
            let result = result.map(|_| {
                arrived.state.unsynced.synced(mark);
                arrived.state.behind.handle_durable(applied);
            });
            then(arrived.state, &result);
            result
        })
    }

    /// Whether writes are told to the server later.
    pub(crate) fn writes_behind(&self) -> bool {
        matches!(self.config.write_policy(), WritePolicy::Behind(_))
    }
}

#[cfg(test)]
mod tests;
