//! The same workloads for every protocol: made from a seed, before the first message is sent.

use crate::LabError;
use soda_model::Rng;
use std::collections::BinaryHeap;

/// What a call moves of a file that is not read or written as a whole, bytes.
pub(crate) const BLOCK: u64 = 4096;

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
    pub sizes: Sizes,
}

/// When operations come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// Independent of each other, as the models have it. Each is a session of its own: open, read or write, close.
    Poisson,
    /// As independent, of files that every client has open all the time: the SODA paper's concurrent write sharing (section 3.4).
    Held,
    /// Each client works and rests by turns, exponential times of these means (seconds); the rates are those over both.
    Bursty { work: f64, rest: f64 },
    /// open, reads and writes, close: this many operations a session on average, this many seconds apart on average. A client's
    /// sessions follow each other, with as much time between them as makes the rates.
    Sessions { operations: f64, gap: f64 },
}

/// How large files are. One operation reads or writes the first [`BLOCK`] of one, or all of a smaller one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sizes {
    /// All as large as a block.
    Block,
    /// As many in each power of two between these numbers of bytes, whatever their popularity.
    Between { least: f64, most: f64 },
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
    /// Bytes of the whole file, and those that the call reads or writes.
    pub size: u64,
    pub part: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemCall {
    Open(OpenFor),
    Read,
    Write,
    Close,
    /// Attributes or names are read, without an open.
    Look,
    /// Names are changed, without an open.
    Change,
    /// The file has lost its last name, by a change of its directory that comes before this: what is asked of the server for it
    /// was counted there.
    Gone,
}

impl SystemCall {
    pub(crate) fn is_change(self) -> bool {
        matches!(self, SystemCall::Write | SystemCall::Change)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenFor {
    Reading,
    /// Reads as well.
    Writing,
    /// Writes all of it, and needs nothing of what was there.
    Replacing,
}

impl Workload {
    /// As the models have it: so many clients share one file of a block, each reading and writing so often a second,
    /// independently, for so many seconds.
    pub fn of_one_file(clients: u32, (reads, writes): (f64, f64), duration: f64) -> Workload {
        Workload {
            clients,
            files: 1,
            reads,
            writes,
            duration,
            arrivals: Arrivals::Poisson,
            popularity: Popularity::Uniform,
            sizes: Sizes::Block,
        }
    }

    /// All events, in order of time; the same for the same seed.
    ///
    /// # Errors
    /// If sessions take longer than the rates leave them.
    pub fn events(&self, seed: u64) -> Result<Vec<Event>, LabError> {
        let mut rng = Rng::new(seed);
        let ranks = self.ranks();
        let mut all = BinaryHeap::new();
        for client in 0..self.clients as usize {
            let mut own = rng.fork();
            let mut put = |event: Event| all.push(Ordered(event, all.len()));
            // A read or write that is not part of a session is one of its own.
            let mut add = |event: Event| match self.arrivals {
                Arrivals::Poisson | Arrivals::Bursty { .. } => {
                    let mode = if event.call.is_change() { OpenFor::Writing } else { OpenFor::Reading };
                    let session = [SystemCall::Open(mode), event.call, SystemCall::Close];
                    session.into_iter().for_each(|call| put(Event { call, ..event }));
                }
                Arrivals::Held | Arrivals::Sessions { .. } => put(event),
            };
            match self.arrivals {
                Arrivals::Poisson => {
                    self.steady(&mut own, client, &ranks, (0.0, self.duration), 1.0, &mut add);
                }
                Arrivals::Held => {
                    let mode = if self.writes > 0.0 { OpenFor::Writing } else { OpenFor::Reading };
                    for file in 0..self.files as usize {
                        add(self.event(0.0, client, file, SystemCall::Open(mode)));
                    }
                    self.steady(&mut own, client, &ranks, (0.0, self.duration), 1.0, &mut add);
                }
                Arrivals::Bursty { work, rest } => {
                    let mut now = 0.0;
                    while now < self.duration {
                        let until = (now + own.exponential(1.0 / work)).min(self.duration);
                        self.steady(&mut own, client, &ranks, (now, until), (work + rest) / work, &mut add);
                        now = until + own.exponential(1.0 / rest);
                    }
                }
                Arrivals::Sessions { operations, gap } => {
                    let pause = self.pause(operations, gap)?;
                    self.sessions(&mut own, client, &ranks, (operations, gap, pause), &mut add);
                }
            }
        }
        Ok(all.into_sorted_vec().into_iter().map(|ordered| ordered.0).collect())
    }

    /// Seconds from the end of a session to the beginning of the next, on average.
    fn pause(&self, operations: f64, gap: f64) -> Result<f64, LabError> {
        let each = operations / (self.reads + self.writes);
        // One gap before each operation, and one before close.
        let takes = (operations + 1.0) * gap;
        if each > takes {
            return Ok(each - takes);
        }
        Err(LabError::Usage(format!(
            "sessions of {operations} operations {gap} s apart take {takes} s; {} reads and {} writes a second leave {each} s \
             for each",
            self.reads, self.writes
        )))
    }

    fn event(&self, at: f64, client: usize, file: usize, call: SystemCall) -> Event {
        let size = match self.sizes {
            Sizes::Block => BLOCK,
            Sizes::Between { least, most } => {
                // Multiples of the golden ratio fill an interval evenly, however many there are.
                let place = (0.5 + file as f64 * 0.618_033_988_749_895).fract();
                (least * (most / least).powf(place)) as u64
            }
        };
        Event { at, client, file, call, size, part: size.min(BLOCK) }
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
        let mut at = from + rng.exponential(rate);
        while at < to {
            let (file, call) = (choose(rng, ranks), self.call(rng));
            add(self.event(at, client, file, call));
            at += rng.exponential(rate);
        }
    }

    fn sessions(
        &self,
        rng: &mut Rng,
        client: usize,
        ranks: &[f64],
        (operations, gap, pause): (f64, f64, f64),
        add: &mut impl FnMut(Event),
    ) {
        // Writers open for writing from the start; only they write. So writing sessions are as many as make W.
        let writes = self.writes / (self.reads + self.writes);
        let mut at = rng.exponential(1.0 / pause);
        while at < self.duration {
            let file = choose(rng, ranks);
            let mode =
                if rng.uniform() <= (2.0 * writes).min(1.0) { OpenFor::Writing } else { OpenFor::Reading };
            let mut now = at;
            add(self.event(now, client, file, SystemCall::Open(mode)));
            loop {
                now += rng.exponential(1.0 / gap);
                let half = rng.uniform() <= 0.5_f64.max(writes);
                let call =
                    if mode == OpenFor::Writing && half { SystemCall::Write } else { SystemCall::Read };
                add(self.event(now, client, file, call));
                if rng.uniform() <= 1.0 / operations {
                    break;
                }
            }
            now += rng.exponential(1.0 / gap);
            add(self.event(now, client, file, SystemCall::Close));
            // One after the other.
            at = now + rng.exponential(1.0 / pause);
        }
    }

    fn call(&self, rng: &mut Rng) -> SystemCall {
        let reads = self.reads / (self.reads + self.writes);
        if rng.uniform() <= reads { SystemCall::Read } else { SystemCall::Write }
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
    let at = rng.uniform();
    ranks.partition_point(|sum| *sum < at).min(ranks.len() - 1)
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
        let popularity = Popularity::Zipf { exponent: 1.0 };
        Workload { files: 10, arrivals, popularity, ..Workload::of_one_file(4, (2.0, 0.5), 2000.0) }
    }

    #[test]
    fn rates_are_what_was_asked_for() {
        let sessions = Arrivals::Sessions { operations: 10.0, gap: 0.2 };
        for arrivals in
            [Arrivals::Poisson, Arrivals::Held, Arrivals::Bursty { work: 5.0, rest: 15.0 }, sessions]
        {
            let events = workload(arrivals).events(3).expect("right");
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
    fn sessions_that_do_not_fit_into_the_rates_are_refused() {
        // 2.5 operations a second are 4 s for ten; eleven gaps of 0.37 s are longer.
        let refused =
            workload(Arrivals::Sessions { operations: 10.0, gap: 0.37 }).events(3).expect_err("too long");
        assert!(refused.to_string().contains("take 4.07 s"), "{refused}");
        assert!(workload(Arrivals::Sessions { operations: 10.0, gap: 0.36 }).events(3).is_ok());
    }

    #[test]
    fn sizes_are_spread_evenly_over_powers_of_two() {
        let sizes = Sizes::Between { least: 1024.0, most: 1_048_576.0 };
        let workload = Workload { files: 1000, sizes, ..workload(Arrivals::Poisson) };
        let sizes: Vec<u64> =
            (0..1000).map(|file| workload.event(0.0, 0, file, SystemCall::Read).size).collect();
        for power in 10..20 {
            let count = sizes.iter().filter(|size| (1 << power..2 << power).contains(*size)).count();
            assert!((98..=102).contains(&count), "{count} of 2^{power} and more");
        }
        let parts = (0..1000).map(|file| workload.event(0.0, 0, file, SystemCall::Read).part);
        assert!(parts.zip(&sizes).all(|(part, size)| part == *size.min(&BLOCK)));
    }

    #[test]
    fn the_first_file_is_the_most_popular() {
        let events = workload(Arrivals::Poisson).events(4).expect("right");
        let share = events.iter().filter(|event| event.file == 0).count() as f64 / events.len() as f64;
        // 1 / (1 + 1/2 + ... + 1/10).
        assert!((share - 0.341).abs() < 0.02, "{share}");
    }

    #[test]
    fn sessions_open_and_close() {
        let events = workload(Arrivals::Sessions { operations: 10.0, gap: 0.02 }).events(5).expect("right");
        for client in 0..4 {
            let mut open = None;
            for event in events.iter().filter(|event| event.client == client) {
                match event.call {
                    SystemCall::Open(mode) => assert_eq!(open.replace((event.file, mode)), None),
                    SystemCall::Close => assert_eq!(open.take().map(|(file, _)| file), Some(event.file)),
                    SystemCall::Write => assert_eq!(open, Some((event.file, OpenFor::Writing))),
                    SystemCall::Read => assert_eq!(open.map(|(file, _)| file), Some(event.file)),
                    SystemCall::Look | SystemCall::Change | SystemCall::Gone => {
                        panic!("{event:?} is of traces")
                    }
                }
            }
        }
        let reads = events.iter().filter(|event| event.call == SystemCall::Read).count();
        let writes = events.iter().filter(|event| event.call == SystemCall::Write).count();
        let share = writes as f64 / (reads + writes) as f64;
        assert!((share - 0.2).abs() < 0.03, "{share}");
    }
}
