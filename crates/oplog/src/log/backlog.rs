//! How much waits.

use super::Log;
use soda_types::Monotonic;
use std::time::Duration;

/// What is not known to be on the server's disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Backlog {
    /// Records that the server has not applied.
    pub records: u64,
    /// Their weight in bytes.
    pub bytes: u64,
    /// How long the oldest of them has been waiting.
    pub age: Duration,
    /// Records that the server has applied and may lose in a power cut.
    pub not_durable: u64,
}

impl Log {
    pub fn backlog(&self, now: Monotonic) -> Backlog {
        let sent = self.sent.iter().flat_map(|sent| &sent.records);
        let (sent_records, sent_bytes) = sent
            .clone()
            .fold((0, 0), |(count, bytes), (_, pending)| (count + 1, bytes + pending.record.change.weight()));
        let oldest =
            self.pending.values().chain(sent.map(|(_, pending)| pending)).map(|pending| pending.since).min();
        Backlog {
            records: self.pending.len() as u64 + sent_records,
            bytes: self.pending_weight + sent_bytes,
            age: oldest.map_or(Duration::ZERO, |since| now.since(since)),
            not_durable: self.applied.records,
        }
    }
}
