//! The same workloads for every protocol: made from a seed, before the first message is sent.

use soda_model::Rng;
use std::collections::BinaryHeap;

/// What clients do, and how often.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    pub clients: u32,
    pub files: u32,
    /// Reads and writes per second of each client, of all files together.
    pub reads: f64,
    pub writes: f64,
    /// Seconds.
    pub duration: f64,
    pub arrivals: Arrivals,
    pub popularity: Popularity,
}

/// When operations come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// Independent of each other, as the models have it.
    Poisson,
    /// Each client works and rests by turns, exponential times of these means (seconds); the rates are those over both.
    Bursty { work: f64, rest: f64 },
    /// open, reads and writes, close: this many operations a session on average, this many seconds apart on average.
    Sessions { operations: f64, gap: f64 },
}

/// Which file is used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Popularity {
    Uniform,
    /// The n-th file in proportion to n^-exponent.
    Zipf {
        exponent: f64,
    },
}

/// One system call of one client.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Event {
    /// Seconds from the start.
    pub at: f64,
    pub client: usize,
    pub file: usize,
    pub call: SystemCall,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemCall {
    Open(OpenFor),
    Read,
    Write,
    Close,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenFor {
    Reading,
    Writing,
}

impl Workload {
    /// All events, in order of time; the same for the same seed.
    pub fn events(&self, seed: u64) -> Vec<Event> {
        let mut rng = Rng::new(seed);
        let ranks = self.ranks();
        let mut all = BinaryHeap::new();
        for client in 0..self.clients as usize {
            let mut own = rng.fork();
            let mut add = |event: Event| all.push(Ordered(event, all.len()));
            match self.arrivals {
                Arrivals::Poisson => {
                    self.steady(&mut own, client, &ranks, (0.0, self.duration), 1.0, &mut add)
                }
                Arrivals::Bursty { work, rest } => {
                    let mut now = 0.0;
                    while now < self.duration {
                        let until = (now + exponential(&mut own, 1.0 / work)).min(self.duration);
                        self.steady(&mut own, client, &ranks, (now, until), (work + rest) / work, &mut add);
                        now = until + exponential(&mut own, 1.0 / rest);
                    }
                }
                Arrivals::Sessions { operations, gap } => {
                    self.sessions(&mut own, client, &ranks, (operations, gap), &mut add);
                }
            }
        }
        all.into_sorted_vec().into_iter().map(|ordered| ordered.0).collect()
    }

    /// Reads and writes between two times, `factor` times as often.
    fn steady(
        &self,
        rng: &mut Rng,
        client: usize,
        ranks: &[f64],
        (from, to): (f64, f64),
        factor: f64,
        add: &mut impl FnMut(Event),
    ) {
        let rate = (self.reads + self.writes) * factor;
        if rate <= 0.0 {
            return;
        }
        let mut at = from + exponential(rng, rate);
        while at < to {
            let (file, call) = (choose(rng, ranks), self.call(rng));
            add(Event { at, client, file, call });
            at += exponential(rng, rate);
        }
    }

    fn sessions(
        &self,
        rng: &mut Rng,
        client: usize,
        ranks: &[f64],
        (operations, gap): (f64, f64),
        add: &mut impl FnMut(Event),
    ) {
        let rate = (self.reads + self.writes) / operations;
        if rate <= 0.0 {
            return;
        }
        // Writers open for writing from the start; only they write. So writing sessions are as many as make W.
        let writes = self.writes / (self.reads + self.writes);
        let mut at = exponential(rng, rate);
        while at < self.duration {
            let file = choose(rng, ranks);
            let mode =
                if uniform(rng) <= (2.0 * writes).min(1.0) { OpenFor::Writing } else { OpenFor::Reading };
            let mut now = at;
            add(Event { at: now, client, file, call: SystemCall::Open(mode) });
            loop {
                now += exponential(rng, 1.0 / gap);
                let half = uniform(rng) <= 0.5_f64.max(writes);
                let call =
                    if mode == OpenFor::Writing && half { SystemCall::Write } else { SystemCall::Read };
                add(Event { at: now, client, file, call });
                if uniform(rng) <= 1.0 / operations {
                    break;
                }
            }
            now += exponential(rng, 1.0 / gap);
            add(Event { at: now, client, file, call: SystemCall::Close });
            // One after the other.
            at = now + exponential(rng, rate);
        }
    }

    fn call(&self, rng: &mut Rng) -> SystemCall {
        let reads = self.reads / (self.reads + self.writes);
        if uniform(rng) <= reads { SystemCall::Read } else { SystemCall::Write }
    }

    /// For each file the chance that it or one before it is used.
    fn ranks(&self) -> Vec<f64> {
        let weight = |file: u32| match self.popularity {
            Popularity::Uniform => 1.0,
            Popularity::Zipf { exponent } => f64::from(file + 1).powf(-exponent),
        };
        let total: f64 = (0..self.files).map(weight).sum();
        let sums = (0..self.files).scan(0.0, |sum, file| {
            *sum += weight(file) / total;
            Some(*sum)
        });
        sums.collect()
    }
}

fn choose(rng: &mut Rng, ranks: &[f64]) -> usize {
    let at = uniform(rng);
    ranks.partition_point(|sum| *sum < at).min(ranks.len() - 1)
}

/// In (0, 1].
fn uniform(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

fn exponential(rng: &mut Rng, rate: f64) -> f64 {
    -uniform(rng).ln() / rate
}

/// By time, then in the order in which they were made.
#[derive(PartialEq)]
struct Ordered(Event, usize);

impl Eq for Ordered {}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> std::cmp::Ordering {
        self.0.at.total_cmp(&other.0.at).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(arrivals: Arrivals) -> Workload {
        Workload {
            clients: 4,
            files: 10,
            reads: 2.0,
            writes: 0.5,
            duration: 2000.0,
            arrivals,
            popularity: Popularity::Zipf { exponent: 1.0 },
        }
    }

    #[test]
    fn rates_are_what_was_asked_for() {
        for arrivals in [Arrivals::Poisson, Arrivals::Bursty { work: 5.0, rest: 15.0 }] {
            let events = workload(arrivals).events(3);
            let rate = |call| events.iter().filter(|event| event.call == call).count() as f64 / 2000.0 / 4.0;
            assert!(
                (rate(SystemCall::Read) / 2.0 - 1.0).abs() < 0.1,
                "{arrivals:?} {}",
                rate(SystemCall::Read)
            );
            assert!(
                (rate(SystemCall::Write) / 0.5 - 1.0).abs() < 0.15,
                "{arrivals:?} {}",
                rate(SystemCall::Write)
            );
            assert!(events.windows(2).all(|pair| pair[0].at <= pair[1].at));
        }
    }

    #[test]
    fn the_first_file_is_the_most_popular() {
        let events = workload(Arrivals::Poisson).events(4);
        let share = events.iter().filter(|event| event.file == 0).count() as f64 / events.len() as f64;
        // 1 / (1 + 1/2 + ... + 1/10).
        assert!((share - 0.341).abs() < 0.02, "{share}");
    }

    #[test]
    fn sessions_open_and_close() {
        let events = workload(Arrivals::Sessions { operations: 10.0, gap: 0.02 }).events(5);
        for client in 0..4 {
            let mut open = None;
            for event in events.iter().filter(|event| event.client == client) {
                match event.call {
                    SystemCall::Open(mode) => assert_eq!(open.replace((event.file, mode)), None),
                    SystemCall::Close => assert_eq!(open.take().map(|(file, _)| file), Some(event.file)),
                    SystemCall::Write => assert_eq!(open, Some((event.file, OpenFor::Writing))),
                    SystemCall::Read => assert_eq!(open.map(|(file, _)| file), Some(event.file)),
                }
            }
        }
        let reads = events.iter().filter(|event| event.call == SystemCall::Read).count();
        let writes = events.iter().filter(|event| event.call == SystemCall::Write).count();
        let share = writes as f64 / (reads + writes) as f64;
        assert!((share - 0.2).abs() < 0.03, "{share}");
    }
}
