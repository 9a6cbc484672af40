//! What every node may use: true time for scheduling, the random source, the network, the invariants, the trace.

use crate::clock::Time;
use crate::config::{Fsync, SimConfig};
use crate::event::Event;
use crate::invariants::{Invariants, patience};
use crate::network::Network;
use crate::register::OpUid;
use soda_model::Rng;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

#[derive(Debug)]
pub struct Context {
    pub now: Time,
    pub rng: Rng,
    pub config: SimConfig,
    pub network: Network,
    pub invariants: Invariants,
    pub trace: Trace,
    /// Since when there are no faults any more.
    pub healed: Option<Time>,
    /// Since when each client has had no trouble of its own or with the server; later than now: it has some.
    well_since: Vec<Time>,
    /// Clients that have been followed by another process.
    pub heirs: u64,
    /// Digests that were taken while others had no answer.
    pub behind_others: u64,
    /// File locks that were taken, and those of them without the server.
    pub locks: u64,
    pub locks_here: u64,
    /// Operations that there was no room for.
    pub refused_for_space: u64,
    /// Inodes that clients have made by themselves, under numbers that were set aside for them.
    pub numbered_here: u64,
    /// fsyncs that the client's own disk was enough for.
    pub synced_here: u64,
    /// fsyncs that a sync along with their digest was enough for.
    pub synced_along: u64,
    uids: u64,
    queue: BTreeMap<(Time, u64), Event>,
    scheduled: u64,
}

impl Context {
    pub fn new(config: SimConfig, show: Show) -> Context {
        Context {
            now: Time::ZERO,
            rng: Rng::new(config.seed),
            network: Network::new(),
            invariants: Invariants::new(config.writes),
            trace: Trace { digest: 0xcbf2_9ce4_8422_2325, events: 0, show },
            healed: None,
            well_since: vec![Time::ZERO; config.clients],
            heirs: 0,
            behind_others: 0,
            locks: 0,
            locks_here: 0,
            refused_for_space: 0,
            numbered_here: 0,
            synced_here: 0,
            synced_along: 0,
            uids: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            config,
        }
    }

    pub fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.queue.insert((at.max(self.now), self.scheduled), event);
    }

    pub fn after(&mut self, span: Duration, event: Event) {
        self.schedule(self.now.after(span), event);
    }

    /// The next event, if one is due before `end`; moves the time.
    pub fn next(&mut self, end: Time) -> Option<Event> {
        let (key, _) = self.queue.first_key_value()?;
        if key.0 > end {
            return None;
        }
        let ((at, number), event) = self.queue.pop_first()?;
        self.now = at;
        self.trace.count(at, number);
        Some(event)
    }

    /// Something is wrong with the client, for this long.
    pub fn trouble(&mut self, client: usize, span: Duration) {
        let end = self.now.after(span);
        self.well_since[client] = self.well_since[client].max(end);
    }

    pub fn trouble_for_all(&mut self, span: Duration) {
        (0..self.config.clients).for_each(|client| self.trouble(client, span));
    }

    /// All is healed: whatever trouble was planned to last longer is over.
    pub fn end_of_trouble(&mut self) {
        self.healed = Some(self.now);
        let soon = self.now.after(Duration::from_secs(1));
        self.well_since.iter_mut().for_each(|since| *since = (*since).min(soon));
    }

    /// The server has thrown the client out for silence.
    pub fn fenced_for_silence(&mut self, client: usize) {
        let grace = patience::grace(&self.config.table);
        let found = patience::check(client, self.well_since[client], self.now, grace);
        self.invariants.report(found);
    }

    /// Whether fsync may be content with the client's disk.
    pub fn syncs_here(&self) -> bool {
        self.config.delayed().is_some_and(|behind| behind.fsync == Fsync::Local)
    }

    pub fn next_uid(&mut self) -> OpUid {
        self.uids += 1;
        OpUid(self.uids)
    }

    /// Operations that programs have called.
    pub fn operations(&self) -> u64 {
        self.uids
    }

    /// A time around `mean`: mostly shorter, sometimes much longer.
    pub fn about(&mut self, mean: Duration) -> Duration {
        let share = (self.rng.below(1_000_000) + 1) as f64 / 1_000_000.0;
        mean.mul_f64(-share.ln())
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.trace.show == Show::Yes {
            println!("{:>14.6} {}", self.now.0 as f64 / 1e9, line());
        }
    }
}

/// Whether the trace is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    Yes,
    No,
}

/// A digest of everything that happened: two runs are the same exactly when theirs are.
#[derive(Debug)]
pub struct Trace {
    digest: u64,
    events: u64,
    show: Show,
}

impl Trace {
    fn count(&mut self, at: Time, number: u64) {
        self.events += 1;
        self.mix(at.0);
        self.mix(number);
    }

    pub fn mix(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub fn digest(&self) -> Digest {
        Digest(self.digest)
    }

    pub fn events(&self) -> u64 {
        self.events
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
