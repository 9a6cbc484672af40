//! What the server counts, for `soda stats` and for Prometheus.

mod histogram;
mod http;
mod text;

pub(crate) use histogram::Histogram;
pub(crate) use http::serve;
pub(crate) use soda_protocol::CallKind;
pub(crate) use text::Text;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct CallMetrics {
    /// From the arrival of the request to its reply, waiting included.
    pub(crate) latency: Histogram,
    pub(crate) failed: Counter,
}

/// All counters. Shared by all threads, never locked.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Vec<CallMetrics>,
    /// Time operations waited for admission; those admitted at once are not in it.
    pub(crate) admission_wait: Histogram,
    /// Plans that did not hold any more when the operation was admitted.
    pub(crate) replans: Counter,
    /// Requests answered with the reply of an earlier one.
    pub(crate) retries: Counter,
    /// Requests for which there was no memory, to come again.
    pub(crate) turned_away: Counter,
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    pub(crate) connections: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) bad_frames: Counter,
    pub(crate) sessions_opened: Counter,
    pub(crate) sessions_resumed: Counter,
    pub(crate) sessions_closed: Counter,
    pub(crate) sessions_fenced: Counter,
    pub(crate) commits: Counter,
    pub(crate) digests: Counter,
    pub(crate) digest_records: Counter,
    pub(crate) digest_bytes: Counter,
    pub(crate) digest_syncs: Counter,
    pub(crate) orphans_dropped: Counter,
    pub(crate) recalls_pushed: Counter,
    pub(crate) lock_recalls_pushed: Counter,
    sync_rounds: Histogram,
    sync_waiters: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            calls: CallKind::ALL.iter().map(|_| CallMetrics::default()).collect(),
            admission_wait: Histogram::default(),
            replans: Counter::default(),
            retries: Counter::default(),
            turned_away: Counter::default(),
            bytes_read: Counter::default(),
            bytes_written: Counter::default(),
            connections: Counter::default(),
            connections_refused: Counter::default(),
            bad_frames: Counter::default(),
            sessions_opened: Counter::default(),
            sessions_resumed: Counter::default(),
            sessions_closed: Counter::default(),
            sessions_fenced: Counter::default(),
            commits: Counter::default(),
            digests: Counter::default(),
            digest_records: Counter::default(),
            digest_bytes: Counter::default(),
            digest_syncs: Counter::default(),
            orphans_dropped: Counter::default(),
            recalls_pushed: Counter::default(),
            lock_recalls_pushed: Counter::default(),
            sync_rounds: Histogram::default(),
            sync_waiters: Counter::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn call(&self, kind: CallKind) -> &CallMetrics {
        &self.calls[kind as usize]
    }

    pub(crate) fn group_synced(&self, waiters: usize, took: Duration) {
        self.sync_rounds.record(took);
        self.sync_waiters.add(waiters as u64);
    }

    /// Every plain counter with its name and what it counts.
    pub(crate) fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        vec![
            ("replans", "Plans that no longer held when their operation was admitted", self.replans.value()),
            ("retries", "Requests answered with the stored reply", self.retries.value()),
            ("turned_away", "Requests to come again: too much waited for the disk", self.turned_away.value()),
            ("bytes_read", "Bytes of file data sent to clients", self.bytes_read.value()),
            ("bytes_written", "Bytes of file data written by clients", self.bytes_written.value()),
            ("connections", "Connections accepted", self.connections.value()),
            ("connections_refused", "Connections refused", self.connections_refused.value()),
            ("bad_frames", "Connections ended for damaged or foreign bytes", self.bad_frames.value()),
            ("sessions_opened", "Sessions begun", self.sessions_opened.value()),
            ("sessions_resumed", "Sessions gone on with", self.sessions_resumed.value()),
            ("sessions_closed", "Sessions ended by their client", self.sessions_closed.value()),
            ("sessions_fenced", "Sessions ended by the server", self.sessions_fenced.value()),
            ("commits", "Batches of changes committed to the journal", self.commits.value()),
            ("digests", "Digests applied", self.digests.value()),
            ("digest_records", "Records in the digests applied", self.digest_records.value()),
            ("digest_bytes", "Bytes of file data in the digests applied", self.digest_bytes.value()),
            ("digest_syncs", "Digests that waited until file data was durable", self.digest_syncs.value()),
            ("orphans_dropped", "Deleted inodes freed after their last close", self.orphans_dropped.value()),
            ("recalls_pushed", "Recalls sent, repeats included", self.recalls_pushed.value()),
            (
                "lock_recalls_pushed",
                "Files whose locks were asked back, repeats included",
                self.lock_recalls_pushed.value(),
            ),
            ("sync_rounds", "Times the journal was made durable", self.sync_rounds.count()),
            ("sync_waiters", "Calls of sync answered by these", self.sync_waiters.value()),
        ]
    }

    /// Everything for Prometheus, but the gauges.
    pub(crate) fn render(&self, text: &mut Text) {
        for (name, help, value) in self.counters() {
            text.counter(name, help, value);
        }
        text.head("soda_call_seconds", "histogram", "Time from a request to its reply, by call");
        for kind in CallKind::ALL {
            let latency = &self.call(*kind).latency;
            if latency.count() > 0 {
                text.histogram("soda_call_seconds", &format!("call=\"{}\"", kind.name()), latency);
            }
        }
        text.head("soda_calls_failed_total", "counter", "Requests answered with a failure, by call");
        for kind in CallKind::ALL {
            let labels = format!("call=\"{}\"", kind.name());
            text.sample("soda_calls_failed_total", &labels, self.call(*kind).failed.value());
        }
        text.head("soda_admission_wait_seconds", "histogram", "Time operations waited for admission");
        text.histogram("soda_admission_wait_seconds", "", &self.admission_wait);
        text.head("soda_sync_seconds", "histogram", "Time one round of group commit took");
        text.histogram("soda_sync_seconds", "", &self.sync_rounds);
    }
}
