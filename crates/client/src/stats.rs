//! What the client counts, for `soda stats`. Names are stable: tools and tests rely on them.

use crate::why::Why;
use serde::{Deserialize, Serialize};
use soda_oplog::Needed;
use soda_protocol::{Call, CallKind, Note};
use soda_types::Cause;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters since the start of the client.
        #[derive(Debug, Default)]
        pub(crate) struct Stats { $($(#[$doc])* pub(crate) $name: Counter),* , messages: Messages }

        impl Stats {
            fn plain(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get())),*].into_iter()
            }
        }
    };
}

counters! {
    op_lookup, op_getattr, op_setattr, op_readlink, op_create, op_unlink, op_rename, op_link, op_open, op_read, op_write,
    op_readdir, op_xattr, op_seek, op_allocate, op_copy, op_fsync, op_statfs, op_lock,
    name_hits, name_misses, attr_hits, attr_misses, data_hits, data_misses, disk_hits, xattr_hits, xattr_misses,
    bytes_read, bytes_written, bytes_sent, bytes_received, readahead_bytes,
    next_files, next_files_read, directories_ahead, fetched,
    notes_sent, replies, grace_waits, busy_waits, lease_polls,
    recalls, recalls_for_reading, recalls_for_names, recalls_for_attributes, recalls_for_data, recalls_for_reclaim,
    recalls_gone, recalls_kernel, recall_nanos, recall_nanos_max, recalls_forced, recalls_run_out,
    names_cancelled,
    recalls_flushed, recall_flush_nanos, recall_flush_nanos_max, recall_records, recall_collateral,
    through_flush_nanos, fsync_flush_nanos, log_full_nanos,
    here, digests, digests_refused, digested, coalesced, log_full, lost_records, kept_logs, replayed, fsyncs_local,
    reservations_idle,
    through_no_lease, through_recalled, through_contended, through_unknown, through_access_list, through_reservation,
    through_large, through_kind, through_local_disk,
    inquiries, inquiries_declined, described,
    locks_here, lock_recalls, lock_returns,
    leases_released, leases_lowered, reconnects, sessions_lost, reclaimed, reclaim_refused,
}

/// Messages sent, by kind.
#[derive(Debug)]
struct Messages {
    calls: [Counter; CallKind::ALL.len()],
    notes: [Counter; NOTES.len()],
}

impl Default for Messages {
    fn default() -> Messages {
        let zero = |_| Counter::default();
        Messages { calls: std::array::from_fn(zero), notes: std::array::from_fn(zero) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, time: Duration) {
        self.add(nanos(time));
    }

    pub(crate) fn at_least(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What is sent without an answer, as it is counted.
const NOTES: [&str; 4] = ["recallack", "release", "closed", "inquiryanswer"];

impl Stats {
    pub(crate) fn sent(&self, call: &Call, payload: usize) {
        self.messages.calls[CallKind::from(call) as usize].one();
        self.bytes_sent.add(payload as u64);
    }

    pub(crate) fn noted(&self, note: &Note) {
        self.notes_sent.one();
        let (at, count) = match note {
            Note::RecallAcks(acks) => (0, acks.len()),
            Note::Release(acks) => (1, acks.len()),
            Note::Closed(fids) => (2, fids.len()),
            Note::InquiryAnswers(answers) => (3, answers.len()),
            Note::RecallProgress(_) | Note::Cancel(_) | Note::Backlog(_) => return,
        };
        self.messages.notes[at].add(count as u64);
    }

    /// A change went to the server at once that might have been made here.
    pub(crate) fn through(&self, why: Why) {
        match why {
            Why::Policy => return,
            Why::NoLease => &self.through_no_lease,
            Why::Recalled => &self.through_recalled,
            Why::Contended => &self.through_contended,
            Why::Unknown => &self.through_unknown,
            Why::AccessList => &self.through_access_list,
            Why::Reservation => &self.through_reservation,
            Why::Large => &self.through_large,
            Why::Kind => &self.through_kind,
            Why::LocalDisk => &self.through_local_disk,
        }
        .one();
    }

    pub(crate) fn recalled(&self, cause: &Cause) {
        self.recalls.one();
        match cause {
            Cause::Read => &self.recalls_for_reading,
            Cause::Names(_) => &self.recalls_for_names,
            Cause::Attributes | Cause::Access => &self.recalls_for_attributes,
            Cause::Data => &self.recalls_for_data,
            Cause::Reclaim => &self.recalls_for_reclaim,
        }
        .one();
    }

    pub(crate) fn recall_took(&self, time: Duration) {
        self.recall_nanos.add_time(time);
        self.recall_nanos_max.at_least(nanos(time));
    }

    /// A recall waits until the server knows these changes.
    pub(crate) fn recall_flushes(&self, needed: Needed) {
        self.recalls_flushed.one();
        self.recall_records.add(needed.own as u64);
        self.recall_collateral.add(needed.besides as u64);
    }

    pub(crate) fn recall_flush_took(&self, time: Duration) {
        self.recall_flush_nanos.add_time(time);
        self.recall_flush_nanos_max.at_least(nanos(time));
    }

    pub(crate) fn snapshot(&self) -> StatsSnapshot {
        let calls = CallKind::ALL.iter().map(|kind| kind.name()).zip(&self.messages.calls);
        let sent = calls.chain(NOTES.into_iter().zip(&self.messages.notes));
        let messages = sent.map(|(name, counter)| (format!("msg_{name}"), counter.get()));
        let plain = self.plain().map(|(name, value)| (name.to_owned(), value));
        StatsSnapshot { counters: plain.chain(messages).collect() }
    }
}

/// The counters at one moment, by name: `op_*` operations asked for, `*_hits` and `*_misses` of the caches, `msg_*`
/// messages sent by kind, `recall_nanos` time from a recall's arrival to its answer, and totals. Of delayed writes: `here`
/// operations that were absorbed, `digested` changes that the server was told of, `coalesced` those that never travelled;
/// `recalls_for_*` by what the other wants, `recalls_flushed` those that had to wait until the server was told something:
/// `recall_records` changes of what was asked for, `recall_collateral` others that those depend on; `*_flush_nanos` the time
/// that recalls, operations that went through, and fsync waited for that, `log_full_nanos` that writers waited for room;
/// `fetched` small files whose data came with their attributes;
/// `inquiries` how often the server wanted attributes instead of a lease, `inquiries_declined` those that were not answered with
/// them, `described` attributes that another client gave in answer to ours. Of file locks: `locks_here` calls that were decided
/// without the server, `lock_recalls` files whose locks it asked back, `lock_returns` those given back, asked or not.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StatsSnapshot {
    pub counters: BTreeMap<String, u64>,
}

impl StatsSnapshot {
    /// Zero for a name that is not counted.
    pub fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Requests sent to the server, all kinds.
    pub fn requests(&self) -> u64 {
        self.counters.iter().filter(|(name, _)| name.starts_with("msg_")).map(|(_, count)| count).sum()
    }
}
