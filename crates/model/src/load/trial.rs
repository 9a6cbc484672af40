//! A small Monte Carlo of what the formulas speak of, event by event, with nothing of the production protocol in it.

use super::{LARGEST, Network};
use crate::rng::Rng;
use proptest::prelude::*;

/// Rates per second, 0 and next to nothing among them.
pub(super) fn rates(most: f64) -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 1 => Just(1e-9), 6 => 0.0..most]
}

/// Seconds; nothing, for ever, and the longest that is not, among them.
pub(super) fn times(most: f64) -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 1 => Just(f64::INFINITY), 1 => Just(LARGEST), 6 => 0.0..most]
}

/// A rate that was measured, with the standard error of its mean.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) mean: f64,
    pub(super) error: f64,
}

impl Measured {
    /// Of measurements that have nothing to do with each other.
    pub(super) fn of(samples: &[f64]) -> Measured {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Measured { mean, error: (variance / n).sqrt() }
    }

    /// Five standard errors. The seeds are fixed, so a test that passes once passes for ever.
    pub(super) fn margin(&self) -> f64 {
        5.0 * self.error + 1e-9
    }

    pub(super) fn agrees_with(&self, expected: f64, what: &str) {
        assert!(self.error < 0.02 * self.mean.abs().max(0.05), "{what}: {self:?} says too little");
        let off = (self.mean - expected).abs();
        assert!(off <= self.margin(), "{what}: {} measured, {expected} expected", self.mean);
    }
}

/// Runs `batch` for forty seeds and takes what each returns for a measurement.
pub(super) fn batches(seed: u64, mut batch: impl FnMut(&mut Rng) -> f64) -> Measured {
    let mut rng = Rng::new(seed ^ 0x50da_1ab0);
    let samples: Vec<f64> = (0..40).map(|_| batch(&mut rng.fork())).collect();
    Measured::of(&samples)
}

/// The paper's protocol, a write ending all leases: messages per second.
pub(super) fn node_leases(
    seed: u64,
    clients: u32,
    (reads, writes): (f64, f64),
    term: f64,
    network: Network,
) -> Measured {
    subset(seed, clients, clients, (reads, writes), term, network)
}

/// The same where only the first `writers` clients write.
pub(super) fn subset(
    seed: u64,
    clients: u32,
    writers: u32,
    (reads, writes): (f64, f64),
    term: f64,
    network: Network,
) -> Measured {
    let (all_reads, all_writes) = (f64::from(clients) * reads, f64::from(writers) * writes);
    let duration = 20_000.0 / (all_reads + all_writes);
    batches(seed, |rng| {
        let mut expires = vec![f64::NEG_INFINITY; clients as usize];
        let (mut now, mut messages) = (0.0, 0.0);
        while now < duration {
            now += rng.exponential(all_reads + all_writes);
            if rng.uniform() * (all_reads + all_writes) <= all_reads {
                let reader = rng.below(u64::from(clients)) as usize;
                if expires[reader] <= now {
                    messages += 2.0;
                    expires[reader] = now + term;
                }
                continue;
            }
            let writer = rng.below(u64::from(writers)) as usize;
            let others = (0..expires.len())
                .filter(|client| *client != writer && expires[*client] > now)
                .count() as f64;
            messages += match network {
                Network::Unicast => 2.0 * others,
                Network::Multicast => 1.0 + others,
            };
            expires.fill(f64::NEG_INFINITY);
        }
        messages / now
    })
}
