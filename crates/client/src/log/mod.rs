//! The operation log, with what goes with it: what is under way, who waits for it, what the server has set aside, and a copy on
//! the local disk, which hears of everything that happens to the one in memory. It knows nothing of the caches: what a change
//! does to both is in [`crate::behind`].

pub(crate) mod disk;
pub(crate) mod next;
mod pace;
pub(crate) mod streams;
pub(crate) mod waiting;
mod window;

use crate::config::{Fsync, WriteBehind, WritePolicy};
use disk::DiskLog;
use disk::keeper::Keeper;
use next::{ServerRoom, UnderWay};
use pace::Pace;
use soda_oplog::reserve::{Most, Reserve, Room};
use soda_oplog::{Change, DigestId, Fate, Log, Needed, Record};
use soda_protocol::Lsn;
use soda_types::{Fid, Monotonic, Timestamp, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use streams::Streams;
use tokio::sync::Notify;
use waiting::Waiters;
use window::Window;

/// The operation log of the client and what goes with it; under the lock of the caches.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(crate) policy: WritePolicy,
    pub(crate) log: Log,
    /// The log on the local disk, if there is to be one.
    pub(crate) disk: Option<Arc<DiskLog>>,
    /// Without that: keeps what the session loses, if it is to be kept.
    pub(crate) keeper: Option<Arc<Keeper>>,
    pub(crate) reserve: Reserve,
    /// Digests under way, in their order.
    pub(crate) under_way: VecDeque<UnderWay>,
    /// Digests that were sent and have no answer: those under way, and those that are counted as lost with one before them.
    pub(crate) unanswered: BTreeSet<DigestId>,
    pub(crate) window: Window,
    streams: Streams,
    pub(crate) waiting: Waiters,
    /// For digests that the server's disk may not have: the versions that it had before each of them.
    pub(crate) before: BTreeMap<DigestId, Vec<(Fid, Version)>>,
    /// The server's disk has what it was told up to this digest.
    pub(crate) durable: DigestId,
    /// With [`Fsync::Local`]: fsync has returned, or is about to, as the local disk has the log up to this record. `Lsn(0)`: the
    /// server's disk has all of that.
    promised: Lsn,
    /// Others were let in to what the server was told up to this digest.
    shared: DigestId,
    /// The time of the last record: each one is later.
    pub(crate) last_at: Timestamp,
    /// The server did not take a digest: nothing is sent before that.
    pub(crate) stalled_until: Monotonic,
    pub(crate) room: ServerRoom,
    pace: Pace,
    /// Digests that the server has applied.
    applied: u64,
    /// The record that a digest is refused for, while its answer is worked on.
    pub(crate) refused: Option<Lsn>,
    /// The server has lost something up to this record: until it has been told that again it is told nothing else.
    pub(crate) restoring: Option<Lsn>,
    /// Grows when a server turns out to have less than it had applied; not when it refuses a digest.
    pub(crate) losses: u64,
    /// Names that were moved here and that the server has not been told of, as the lease holder knows them.
    pub(crate) moves: Vec<(Lsn, u64)>,
    /// Something is in the log that was not.
    pub(crate) news: Arc<Notify>,
    /// What was taken out of the log for the removal of a file that is under way, by the first record of it: it is in the log
    /// again if that fails, and lost with the log.
    pub(crate) aside: BTreeMap<Lsn, Vec<Record>>,
    /// Tells those who wait for it that there is less of it.
    settled: Arc<Notify>,
}

/// What the server is asked to set aside.
pub(crate) fn most_reserved(policy: &WriteBehind) -> Most {
    Most { inodes: 16_384, bytes: policy.space() }
}

impl Behind {
    pub(crate) fn new(policy: WritePolicy) -> Behind {
        Behind {
            policy,
            log: Log::default(),
            disk: None,
            keeper: None,
            reserve: Reserve::default(),
            under_way: VecDeque::new(),
            unanswered: BTreeSet::new(),
            window: Window::default(),
            streams: Streams::default(),
            waiting: Waiters::default(),
            before: BTreeMap::new(),
            durable: DigestId::default(),
            promised: Lsn(0),
            shared: DigestId::default(),
            last_at: Timestamp::new(0, 0),
            stalled_until: Monotonic::ZERO,
            room: ServerRoom::default(),
            pace: Pace::default(),
            applied: 0,
            refused: None,
            restoring: None,
            losses: 0,
            moves: Vec::new(),
            news: Arc::default(),
            aside: BTreeMap::new(),
            settled: Arc::default(),
        }
    }

    /// What tells that something is in the log that was not.
    pub(crate) fn news(&self) -> Arc<Notify> {
        Arc::clone(&self.news)
    }

    /// When the next digest is due if nobody asks for one; `None`: the log is empty, or it waits for the answer of one that is
    /// under way.
    pub(crate) fn due_at(&self) -> Option<Monotonic> {
        let WritePolicy::Behind(behind) = &self.policy else { return None };
        let may = self.may_send_from()?;
        let oldest = self.log.oldest_pending()?;
        let due = if self.is_long(behind.digest_bytes) || self.room != ServerRoom::Enough {
            self.pace.quiet_until()
        } else {
            (oldest + behind.max_age).max(self.pace.quiet_until())
        };
        let due = self.waiting.due_at().map_or(due, |asked| asked.min(due));
        Some(due.max(self.stalled_until).max(may))
    }

    /// So much is pending that the server can as well begin. One of the largest writes is not: what replaces it may come.
    fn is_long(&self, bytes: u64) -> bool {
        self.log.pending_count() as u64 >= bytes >> 10 || self.log.pending_data() > bytes
    }

    /// Whether as much is pending as may be, with a change for which the server needs so many bytes.
    pub(crate) fn is_full(&self, space: u64) -> bool {
        let WritePolicy::Behind(behind) = &self.policy else { return false };
        self.untold_bytes() >= behind.max_bytes
            || self.room_for(space) != Room::Enough
            || self.log.pending_count() >= behind.max_records
            || self.is_heavy()
    }

    /// Whether there is room in what the server has set aside for a change for which it needs so many bytes.
    pub(crate) fn room_for(&self, space: u64) -> Room {
        self.reserve.room_for(space, self.log.untold_space())
    }

    /// Whether there is something to tell the server, or to ask it for.
    pub(crate) fn wants_attention(&self, now: Monotonic) -> bool {
        let WritePolicy::Behind(policy) = &self.policy else { return false };
        self.reserve.is_low(now, most_reserved(policy)) || self.due_at().is_some_and(|due| due <= now)
    }

    /// Whether so much is kept in memory that nothing may come on top of it, not even what gives space back. Up to here that is
    /// logged beyond what is full: a server without room has to be told of it.
    pub(crate) fn is_overfull(&self) -> bool {
        let WritePolicy::Behind(behind) = &self.policy else { return false };
        self.log.pending_count() >= behind.max_records.saturating_mul(2)
            || self.log.kept_bytes() >= behind.max_bytes.saturating_mul(3)
    }

    /// The last record.
    pub(crate) fn last_lsn(&self) -> Lsn {
        self.log.last_lsn()
    }

    /// The first record that is not in a digest yet, or else the first of the digests that are under way.
    pub(crate) fn first_untold(&self) -> Option<Lsn> {
        let under_way = || self.log.records_of(self.log.first_under_way()?).next().map(|record| record.lsn);
        self.log.first_pending().or_else(under_way)
    }

    /// What the server is going to be told.
    pub(crate) fn untold_bytes(&self) -> u64 {
        self.log.pending_bytes() + self.log.under_way_bytes()
    }

    /// Inodes that the server is going to be told of, but for those that are gone again by then.
    pub(crate) fn untold_inodes(&self) -> u64 {
        let untold = self.log.pending().chain(self.log.under_way_records());
        untold.filter_map(|record| record.change.creates()).count() as u64
    }

    /// The server has to make durable what it has before more is kept in memory for it.
    pub(crate) fn is_heavy(&self) -> bool {
        let WritePolicy::Behind(behind) = &self.policy else { return false };
        self.log.has_undurable() && self.log.kept_bytes() >= behind.max_bytes.saturating_mul(2)
    }

    /// A session begins, and with it its log on the local disk.
    pub(crate) fn begin_disk(&mut self, disk: Option<Arc<DiskLog>>) {
        self.disk = disk;
    }

    pub(crate) fn disk(&self) -> Option<&Arc<DiskLog>> {
        self.disk.as_ref()
    }

    /// Whether fsync is to be content with the log on the local disk.
    pub(crate) fn syncs_here(&self) -> bool {
        matches!(self.policy, WritePolicy::Behind(WriteBehind { fsync: Fsync::Local, .. }))
    }

    /// fsync is going to be content with the log as it is. `false`: it must not, as others were let in to something that the
    /// server's disk may lack: under their leases this client cannot tell it again.
    pub(crate) fn promise(&mut self) -> bool {
        let may = self.shared <= self.durable;
        if may {
            self.promised = self.log.last_lsn();
        }
        may
    }

    /// Whether fsync has returned for something in the log that the server's disk may lack.
    pub(crate) fn has_promised(&self) -> bool {
        self.promised > Lsn(0)
    }

    /// Nothing in the log is needed for that any more, or will do for it: the session is over, or the server's disk fails.
    pub(crate) fn break_promises(&mut self) {
        self.promised = Lsn(0);
    }

    /// Others are let in to an inode of which this digest was the last to tell.
    pub(crate) fn note_shared(&mut self, told_in: DigestId) {
        self.shared = self.shared.max(told_in);
    }

    /// The last digest that was taken out of the log.
    pub(crate) fn last_digest(&self) -> DigestId {
        self.log.last_digest()
    }

    /// Whether anything is not known to be on the server's disk.
    pub(crate) fn has_backlog(&self) -> bool {
        self.log.first_pending().is_some()
            || self.log.under_way().is_some()
            || self.log.has_undurable()
            || !self.aside.is_empty()
    }

    /// What was set aside under this number; `None`: nothing, or it is lost.
    pub(crate) fn take_aside(&mut self, first: Option<Lsn>) -> Option<Vec<Record>> {
        let records = self.aside.remove(&first?);
        self.settled.notify_waiters();
        records
    }

    /// All that is set aside: nobody brings it back.
    pub(crate) fn lose_aside(&mut self) -> Vec<Record> {
        self.settled.notify_waiters();
        std::mem::take(&mut self.aside).into_values().flatten().collect()
    }

    /// What tells that less is set aside of what was done to these inodes; `None`: nothing is.
    pub(crate) fn aside_of(&self, fids: &[Fid]) -> Option<Arc<Notify>> {
        let mut set_aside =
            self.aside.values().flatten().flat_map(|record| Behind::inodes_of(&record.change));
        set_aside.any(|fid| fids.contains(&fid)).then(|| Arc::clone(&self.settled))
    }

    /// What tells that less is set aside of what was done up to this record; `None`: nothing is.
    pub(crate) fn aside_up_to(&self, last: Lsn) -> Option<Arc<Notify>> {
        self.aside.range(..=last).next().map(|_| Arc::clone(&self.settled))
    }

    /// Whether the server has to be told again what it lost, before anything else.
    pub(crate) fn is_restoring(&self) -> bool {
        self.restoring.is_some()
    }

    /// The last digest under way.
    pub(crate) fn digest_under_way(&self) -> Option<DigestId> {
        self.under_way.back().map(|under_way| under_way.id)
    }

    /// Whether this digest, or one before it, is under way.
    pub(crate) fn is_under_way(&self, id: DigestId) -> bool {
        self.under_way.front().is_some_and(|first| first.id <= id)
    }

    /// What the server would be told first for who waits for these inodes.
    pub(crate) fn needed_for(&self, fids: &[Fid]) -> Needed {
        self.log.count_needed_for(fids)
    }

    /// For `soda status`.
    pub(crate) fn backlog(&self, now: Monotonic) -> soda_oplog::Backlog {
        let mut backlog = self.log.backlog(now);
        for record in self.aside.values().flatten() {
            backlog.records += 1;
            backlog.bytes += record.change.weight();
        }
        backlog
    }

    /// Inodes that a change touches; each once.
    pub(crate) fn inodes_of(change: &Change) -> impl Iterator<Item = Fid> {
        disk::inodes_of(change)
    }

    /// The inode that is there no more after the change.
    pub(crate) fn removed_by(change: &Change) -> Option<Fid> {
        match change {
            Change::Unlink { fid, then: Fate::Gone, .. }
            | Change::Rename { replaced: Some((fid, Fate::Gone)), .. }
            | Change::Whiteout { replaced: Some((fid, Fate::Gone)), .. }
            | Change::RemoveDirectory { fid, .. }
            | Change::Release { fid } => Some(*fid),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
