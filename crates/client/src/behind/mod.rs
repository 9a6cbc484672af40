//! Delayed writes: what this client does by itself under its write leases, and tells the server afterwards (the delayed-write
//! leases of the SODA paper; the operation log and the digests of Strata).
//!
//! # Here or through
//! An operation is carried out *here* when nobody else can see what it touches: each inode is covered by a write lease that
//! nobody has asked for, or was made here and is not known to the server yet; and when everything is known that decides
//! its outcome. Then it changes the caches and becomes a record of the [log](soda_oplog::Log). Everything else goes
//! *through*: to the server at once, after what the server has to know before (`Inner::settled`).
//!
//! # Digests
//! Records travel in digests, one under way at a time, in a slot of their own, so that no operation which waits at the server
//! can keep the flush waiting that it waits for. They are sent for those who wait (recalls, fsync, operations that go
//! through) before all others, else by age and size.
//!
//! # What is made here
//! An inode that the server does not know is covered by the session: nobody else can reach it. The answer to the digest that
//! creates it brings its own write lease.
//!
//! # The parts
//! `here` says what may be done here; `names`, `data` and `attrs` do it; `digest` tells the server, `wait` is for those who need
//! that done, `reserve` sets aside what it will need, `loss` is about sessions that end, and servers that come back with less.
//! `doomed` is for files that are removed while the server is full.
//! `disk` is the log on the local disk, which hears of everything that happens to the one in memory.

pub(crate) mod attrs;
pub(crate) mod data;
pub(crate) mod digest;
pub(crate) mod disk;
pub(crate) mod doomed;
pub(crate) mod here;
pub(crate) mod loss;
pub(crate) mod moves;
pub(crate) mod names;
pub(crate) mod reserve;
pub(crate) mod wait;

use crate::config::{Fsync, WriteBehind, WritePolicy};
use digest::{Room, UnderWay};
use disk::DiskLog;
use reserve::Reserve;
use soda_oplog::{DigestId, Log, Needed};
use soda_protocol::Lsn;
use soda_types::{Fid, Monotonic, Timestamp, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use wait::Waiting;

/// The operation log of the client and what goes with it; under the lock of the caches.
#[derive(Debug)]
pub(crate) struct Behind {
    policy: WritePolicy,
    log: Log,
    /// The log on the local disk, if there is to be one.
    disk: Option<Arc<DiskLog>>,
    reserve: Reserve,
    under_way: Option<UnderWay>,
    waiting: Waiting,
    /// For digests that the server's disk may not have: the versions that it had before each of them.
    before: BTreeMap<DigestId, Vec<(Fid, Version)>>,
    /// The server's disk has what it was told up to this digest.
    durable: DigestId,
    /// The lowest version that a change may give.
    first_version: Version,
    /// The time of the last record: each one is later.
    last_at: Timestamp,
    /// The server did not take a digest: nothing is sent before that.
    stalled_until: Monotonic,
    room: Room,
    /// When the last digest was sent that nobody had asked for, and before when the next one is not.
    unasked_at: Monotonic,
    quiet_until: Monotonic,
    /// When the last digest was sent that somebody had asked for.
    wanted_at: Monotonic,
    /// The record that a digest is refused for, while its answer is worked on.
    refused: Option<Lsn>,
    /// The server has lost something up to this record: until it has been told that again it is told nothing else.
    restoring: Option<Lsn>,
    /// Grows when a server turns out to have less than it had been told.
    losses: u64,
    /// Names that were moved here and that the server has not been told of, as the lease holder knows them.
    moves: Vec<(Lsn, u64)>,
    /// Something is in the log that was not.
    news: Arc<Notify>,
}

impl Behind {
    pub(crate) fn new(policy: WritePolicy) -> Behind {
        Behind {
            policy,
            log: Log::default(),
            disk: None,
            reserve: Reserve::default(),
            under_way: None,
            waiting: Waiting::default(),
            before: BTreeMap::new(),
            durable: DigestId::default(),
            first_version: Version(0),
            last_at: Timestamp::new(0, 0),
            stalled_until: Monotonic::ZERO,
            room: Room::default(),
            unasked_at: Monotonic::ZERO,
            quiet_until: Monotonic::ZERO,
            wanted_at: Monotonic::ZERO,
            refused: None,
            restoring: None,
            losses: 0,
            moves: Vec::new(),
            news: Arc::default(),
        }
    }

    /// What tells that something is in the log that was not.
    pub(crate) fn news(&self) -> Arc<Notify> {
        Arc::clone(&self.news)
    }

    /// When the next digest is due if nobody asks for one; `None`: the log is empty, or one is under way, whose answer
    /// sends the next.
    pub(crate) fn due_at(&self) -> Option<Monotonic> {
        let WritePolicy::Behind(behind) = &self.policy else { return None };
        if self.under_way.is_some() {
            return None;
        }
        let oldest = self.log.oldest_pending()?;
        let due = if !self.waiting.is_empty() {
            Monotonic::ZERO
        } else if self.is_long() || self.room != Room::Enough {
            self.quiet_until
        } else {
            (oldest + behind.max_age).max(self.quiet_until)
        };
        Some(due.max(self.stalled_until))
    }

    /// So much is pending that the server can as well begin.
    fn is_long(&self) -> bool {
        self.log.pending_count() >= digest::LIMITS.records || self.log.pending_bytes() >= digest::LIMITS.bytes
    }

    /// Whether as much is pending as may be, with a change for which the server needs so many bytes.
    fn is_full(&self, space: u64) -> bool {
        let WritePolicy::Behind(behind) = &self.policy else { return false };
        self.untold_bytes() >= behind.max_bytes
            || self.log.untold_space() + space > self.reserve.bytes()
            || self.log.pending_count() >= behind.max_records
            || self.is_heavy()
    }

    /// The last record.
    pub(crate) fn last_lsn(&self) -> Lsn {
        self.log.last_lsn()
    }

    /// What the server is going to be told.
    pub(crate) fn untold_bytes(&self) -> u64 {
        self.log.pending_bytes() + self.log.under_way_bytes()
    }

    /// The server has to make durable what it has before more is kept in memory for it.
    fn is_heavy(&self) -> bool {
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

    /// The last digest that was taken out of the log.
    pub(crate) fn last_digest(&self) -> DigestId {
        self.log.last_digest()
    }

    /// Whether anything is not known to be on the server's disk.
    pub(crate) fn has_backlog(&self) -> bool {
        self.log.first_pending().is_some() || self.log.under_way().is_some() || self.log.has_undurable()
    }

    /// Whether the server has to be told again what it lost, before anything else.
    pub(crate) fn is_restoring(&self) -> bool {
        self.restoring.is_some()
    }

    /// The digest without an answer.
    pub(crate) fn digest_under_way(&self) -> Option<DigestId> {
        self.log.under_way().filter(|_| self.under_way.is_some())
    }

    /// What the server would be told first for who waits for these inodes.
    pub(crate) fn needed_for(&self, fids: &[Fid]) -> Needed {
        self.log.count_needed_for(fids)
    }

    /// For `soda status`.
    pub(crate) fn backlog(&self, now: Monotonic) -> soda_oplog::Backlog {
        self.log.backlog(now)
    }
}

/// How long the log waits after the server did not take a digest.
const STALL: Duration = Duration::from_millis(500);
