//! How an object is used, and what follows for the next lease on it.
//!
//! The SODA paper, section 3.4, equation (8): with N clients that each read a file R and write it W times a second,
//! leases cost fewer messages than asking at each read exactly when R/W > N - 1, whatever the term. That is for reads that
//! are independent of each other; where they come in sessions (open, several reads, close) leases pay long before. What
//! the inequality weighs can be counted whatever the reads are like: each read that a cache answers saves one exchange
//! with the server, each cache that is asked back costs one. A client that reads at the rate R, in between changes by
//! others at the rate (N-1)W, misses at the rate m = R (N-1)W / (R + (N-1)W), has R - m hits and is asked back m times:
//! hits exceed recalls exactly if R > (N-1)W. (Who changes the object keeps a copy, too, which may be asked back before it
//! is read; that is counted.) So the table keeps, for each object that clients contend for, decayed
//! counts of hits and recalls: of those that there were, or, while no leases are given, of those that there would have been.

use soda_types::{Monotonic, SessionId};
use std::time::Duration;

/// Decayed counts of one object. Kept only once a lease on it had to be recalled: without contention leases pay.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    reads: f32,
    writes: f32,
    updated: Monotonic,
    /// Who used it: a bit for each session's hash, in this half-life and the one before (linear counting, Whang et al.
    /// 1990: 64 bits tell up to some 100 clients apart well enough).
    users: [u64; 2],
    /// The same of those that changed it.
    writers: [u64; 2],
    users_since: Monotonic,
    /// Reads that a cache answered, or would have answered with a lease.
    hits: f32,
    /// Caches that changes asked back, or would have.
    recalls: f32,
    /// Whose cache has, or would have, the object as it is.
    fresh: Fresh,
    /// No new write lease for a session that holds none until then.
    back_off_until: Monotonic,
    back_off: Duration,
    /// The object is in the table's list of cold ones.
    pub(super) is_listed: bool,
}

/// The sessions that have seen the attributes or names, and the data, since another session changed them: a bit for each
/// session's hash. 256 bits take one client in eight for another where there are forty.
#[derive(Clone, Copy, Default, Debug)]
struct Fresh([[u64; 4]; 2]);

impl Fresh {
    fn place(session: SessionId) -> (usize, u64) {
        let hash = session.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        (hash as usize / 64, 1 << (hash % 64))
    }

    /// Whether the session has seen this before.
    fn see(&mut self, session: SessionId, what: Seen) -> bool {
        let (word, bit) = Fresh::place(session);
        let known = &mut self.0[what as usize][word];
        let before = *known & bit != 0;
        *known |= bit;
        before
    }

    /// Only the session that changes the object knows it now. Returns how many others did.
    fn change(&mut self, session: SessionId) -> u32 {
        let (word, bit) = Fresh::place(session);
        let [attributes, data] = self.0;
        let known = |at: usize| attributes[at] | data[at];
        let others: u32 =
            (0..4).map(|at| (known(at) & if at == word { !bit } else { !0 }).count_ones()).sum();
        let mut own = [0; 4];
        own[word] = bit;
        self.0 = [own; 2];
        others
    }
}

/// Which part of an object a read is about. With a lease each is asked for once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Attributes, and what a directory names.
    Attributes,
    Data,
}

/// A use of an object, as far as the server hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// By a session whose lease, if it has one, did not cover this.
    Read {
        what: Seen,
        is_leased: bool,
    },
    /// So many reads out of a cache.
    Hits(u32),
    Change,
    /// A lease is asked back: its holder knows the object.
    Holds,
}

/// What is known of an object's use.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Usage {
    /// Decayed count of reads over the last half-lives.
    pub reads: f64,
    /// Decayed count of changes.
    pub writes: f64,
    /// Reads per second.
    pub reads_per_s: f64,
    /// Changes per second.
    pub writes_per_s: f64,
    /// Reads per second that caches answer, or would answer if leases were given.
    pub hits_per_s: f64,
    /// Caches per second that changes ask back, or would.
    pub recalls_per_s: f64,
    /// Estimated number of clients that used it lately.
    pub clients: u32,
    /// Of these, those that changed it.
    pub writers: u32,
}

/// Whether an access reads or changes the object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Intent {
    Read,
    Change,
}

impl Rates {
    pub(super) fn new(now: Monotonic) -> Rates {
        Rates {
            reads: 0.0,
            writes: 0.0,
            updated: now,
            users: [0; 2],
            writers: [0; 2],
            users_since: now,
            hits: 0.0,
            recalls: 0.0,
            fresh: Fresh::default(),
            back_off_until: Monotonic::ZERO,
            back_off: Duration::ZERO,
            is_listed: false,
        }
    }

    pub(super) fn note(&mut self, now: Monotonic, half_life: Duration, session: SessionId, used: Use) {
        self.decay(now, half_life);
        let bit = 1 << (session.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
        match used {
            Use::Read { what, is_leased } => {
                self.reads += 1.0;
                // A lease that is held has not answered this; one that was not given might have.
                if self.fresh.see(session, what) && !is_leased {
                    self.hits += 1.0;
                }
            }
            Use::Hits(times) => {
                self.reads += times as f32;
                self.hits += times as f32;
            }
            Use::Change => {
                self.writes += 1.0;
                self.recalls += self.fresh.change(session) as f32;
                self.writers[0] |= bit;
            }
            Use::Holds => {
                self.fresh.see(session, Seen::Attributes);
            }
        }
        self.users[0] |= bit;
    }

    pub(super) fn decay(&mut self, now: Monotonic, half_life: Duration) {
        let half_lives = now.since(self.updated).as_secs_f32() / half_life.as_secs_f32().max(1e-3);
        // Many small steps would only lose precision.
        if half_lives > 0.001 {
            let factor = (-half_lives).exp2();
            self.reads *= factor;
            self.writes *= factor;
            self.hits *= factor;
            self.recalls *= factor;
            self.updated = now;
        }
        let age = now.since(self.users_since);
        if age >= half_life {
            for told_apart in [&mut self.users, &mut self.writers] {
                *told_apart = if age < half_life.saturating_mul(2) { [0, told_apart[0]] } else { [0; 2] };
            }
            self.users_since = now;
        }
    }

    /// Nothing worth remembering is left.
    pub(super) fn is_negligible(&self, now: Monotonic) -> bool {
        self.reads < 0.5 && self.writes < 0.5 && self.back_off_until <= now
    }

    pub(super) fn usage(&self, half_life: Duration) -> Usage {
        // A steady rate r has a decayed count of r * half_life / ln 2.
        let span = half_life.as_secs_f64().max(1e-3) / std::f64::consts::LN_2;
        let (reads, writes) = (f64::from(self.reads), f64::from(self.writes));
        Usage {
            reads,
            writes,
            reads_per_s: reads / span,
            writes_per_s: writes / span,
            hits_per_s: f64::from(self.hits) / span,
            recalls_per_s: f64::from(self.recalls) / span,
            clients: clients(self.users),
            writers: clients(self.writers),
        }
    }

    /// Equation (8): leases save more than they cost.
    pub(super) fn leases_pay(&self, min_writes: u32) -> bool {
        f64::from(self.writes) < f64::from(min_writes) || self.hits > self.recalls
    }

    /// A write lease was recalled: the next ones are refused for a while that doubles as long as this goes on.
    pub(super) fn contended(&mut self, now: Monotonic, back_off: BackOff) {
        let BackOff::On { first, longest } = back_off else { return };
        let calm = now.since(self.back_off_until) > self.back_off.saturating_mul(2);
        self.back_off = if calm || self.back_off.is_zero() {
            first
        } else {
            self.back_off.saturating_mul(2).min(longest)
        };
        self.back_off_until = now + self.back_off;
    }

    pub(super) fn backs_off(&self, now: Monotonic) -> Option<Duration> {
        (self.back_off_until > now).then(|| self.back_off_until.since(now))
    }
}

/// How many clients have set these bits.
fn clients([now, before]: [u64; 2]) -> u32 {
    let share = f64::from((now | before).count_zeros().max(1)) / 64.0;
    (-64.0 * share.ln()).round() as u32
}

/// Whether a write lease that was recalled is given anew at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackOff {
    Off,
    /// Not for `first` after a recall, twice as long after each further one, at most `longest`. Only for sessions that
    /// hold nothing on the object: one that reads it from its cache needs the write lease (see [`super`]).
    On {
        first: Duration,
        longest: Duration,
    },
}

/// Equation (8) of the SODA paper as a policy: no leases where caches are asked back more often than they answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Equation8 {
    Off,
    On {
        /// Time after which a past access counts half.
        half_life: Duration,
        /// Below this decayed count of changes too little is known, and leases are given.
        min_writes: u32,
    },
}

impl Equation8 {
    pub(super) fn half_life(self) -> Duration {
        match self {
            Equation8::Off => Duration::from_secs(10),
            Equation8::On { half_life, .. } => half_life,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Duration = Duration::from_secs(10);

    fn at(secs: u64) -> Monotonic {
        Monotonic::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn counts_halve() {
        let mut rates = Rates::new(at(0));
        rates.note(at(0), HALF, SessionId(1), Use::Hits(8));
        rates.decay(at(10), HALF);
        assert_eq!(rates.usage(HALF).reads, 4.0);
        rates.decay(at(30), HALF);
        assert_eq!(rates.usage(HALF).reads, 1.0);
    }

    #[test]
    fn a_steady_rate_is_found_again() {
        let mut rates = Rates::new(at(0));
        for second in 0..200 {
            (0..5).for_each(|_| rates.note(at(second), HALF, SessionId(1), Use::Change));
        }
        let found = rates.usage(HALF).writes_per_s;
        assert!((4.5..5.5).contains(&found), "{found}");
    }

    #[test]
    fn clients_are_told_apart_and_forgotten() {
        let mut rates = Rates::new(at(0));
        for session in 1..=20 {
            rates.note(at(0), HALF, SessionId(session), Use::Hits(1));
        }
        let clients = rates.usage(HALF).clients;
        assert!((16..=24).contains(&clients), "{clients}");
        rates.decay(at(25), HALF);
        assert_eq!(rates.usage(HALF).clients, 0);
    }

    #[test]
    fn those_that_write_are_among_them() {
        let mut rates = Rates::new(at(0));
        for session in 1..=4 {
            rates.note(at(0), HALF, SessionId(session), Use::Hits(1));
        }
        rates.note(at(0), HALF, SessionId(1), Use::Change);
        let of = |rates: &Rates| (rates.usage(HALF).clients, rates.usage(HALF).writers);
        assert_eq!(of(&rates), (4, 1));
        rates.note(at(15), HALF, SessionId(2), Use::Hits(1));
        assert_eq!(of(&rates), (4, 1), "in the half-life before");
        rates.note(at(40), HALF, SessionId(2), Use::Hits(1));
        assert_eq!(of(&rates), (1, 0));
    }

    /// Clients that use one object, each in sessions of `reads` reads or with one change, at independent moments. Returns
    /// whether leases pay in the end, and hits and recalls a second.
    fn after(seed: u64, clients: u64, sessions_per_write: u64, reads: u32, is_leased: bool) -> (bool, Usage) {
        let mut rates = Rates::new(at(0));
        let mut chance = seed;
        let mut below = |bound: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % bound
        };
        // Ten uses a second, for a thousand half-lives: the last of them decide.
        let long = Duration::from_secs(1000);
        let mut fresh = vec![false; clients as usize];
        for step in 0..100_000 {
            let now = Monotonic::ZERO + Duration::from_millis(step * 100);
            let client = below(clients) as usize;
            let session = SessionId(client as u64 + 1);
            if below(sessions_per_write + 1) == 0 {
                // With leases the caches that the change asks back have told of their hits.
                rates.note(now, long, session, Use::Change);
                fresh = vec![false; clients as usize];
                fresh[client] = true;
                continue;
            }
            for _ in 0..reads {
                match (is_leased, std::mem::replace(&mut fresh[client], true)) {
                    (true, true) => rates.note(now, long, session, Use::Hits(1)),
                    _ => rates.note(now, long, session, Use::Read { what: Seen::Data, is_leased: false }),
                }
            }
        }
        (rates.leases_pay(8), rates.usage(long))
    }

    #[test]
    fn equation_8_is_the_papers_inequality_for_independent_reads() {
        // R/W against N - 1, a third above and below it.
        for (clients, reads_per_write, pays) in [
            (2, 2, true),
            (4, 4, true),
            (4, 2, false),
            (10, 12, true),
            (10, 6, false),
            (30, 40, true),
            (30, 20, false),
        ] {
            for is_leased in [false, true] {
                let (found, usage) = after(clients, clients, reads_per_write, 1, is_leased);
                assert_eq!(found, pays, "{clients} clients, R/W {reads_per_write}, {is_leased}: {usage:?}");
            }
        }
    }

    #[test]
    fn leases_pay_early_where_reads_come_in_sessions() {
        // Two reads each time: R/W is 12. Independent reads would have to be 29 times as frequent as writes.
        for is_leased in [false, true] {
            let (pays, usage) = after(1, 30, 6, 2, is_leased);
            assert!(pays, "{is_leased}: {usage:?}");
        }
    }

    #[test]
    fn with_and_without_leases_the_same_is_counted() {
        for (clients, sessions, reads) in [(5, 3, 1), (20, 10, 1), (20, 3, 4)] {
            let ((_, without), (_, with)) =
                (after(3, clients, sessions, reads, false), after(3, clients, sessions, reads, true));
            assert!(
                (without.hits_per_s - with.hits_per_s).abs() < 0.1 * with.hits_per_s,
                "{without:?} {with:?}"
            );
            assert!((without.recalls_per_s - with.recalls_per_s).abs() < 0.1 * with.recalls_per_s);
        }
    }

    #[test]
    fn attributes_and_data_are_each_asked_for_once() {
        let mut rates = Rates::new(at(0));
        let mut read = |what, is_leased| {
            rates.note(at(0), HALF, SessionId(1), Use::Read { what, is_leased });
            rates.usage(HALF).hits_per_s > 0.0
        };
        // What polls a small file looks it up and reads it: no cache would have answered either.
        assert!(!read(Seen::Attributes, false));
        assert!(!read(Seen::Data, false));
        assert!(!read(Seen::Data, true), "a lease that was there did not help");
        assert!(read(Seen::Attributes, false));
    }

    #[test]
    fn back_off_grows_while_contention_lasts_and_starts_anew_after() {
        let policy = BackOff::On { first: Duration::from_secs(1), longest: Duration::from_secs(4) };
        let mut rates = Rates::new(at(0));
        rates.contended(at(0), policy);
        assert_eq!(rates.backs_off(at(0)), Some(Duration::from_secs(1)));
        rates.contended(at(1), policy);
        rates.contended(at(3), policy);
        rates.contended(at(7), policy);
        assert_eq!(rates.backs_off(at(7)), Some(Duration::from_secs(4)));
        assert_eq!(rates.backs_off(at(11)), None);
        rates.contended(at(60), policy);
        assert_eq!(rates.backs_off(at(60)), Some(Duration::from_secs(1)));
    }
}
