//! How an object is used, and what follows for the next lease on it.
//!
//! The SODA paper, section 3.4, equation (8): with N clients that each read a file R and write it W times a second,
//! leases cost fewer messages than asking at each read exactly when R/W > N - 1, whatever the term. So the table keeps,
//! for each object that clients contend for, decayed counts of reads (those that the server saw, and those that holders
//! report with their answers to recalls) and of changes, and an estimate of N.

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
    users_since: Monotonic,
    /// No new write lease for a session that holds none until then.
    back_off_until: Monotonic,
    back_off: Duration,
    /// The object is in the table's list of cold ones.
    pub(super) is_listed: bool,
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
    /// Estimated number of clients that used it lately.
    pub clients: u32,
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
            users_since: now,
            back_off_until: Monotonic::ZERO,
            back_off: Duration::ZERO,
            is_listed: false,
        }
    }

    pub(super) fn note(
        &mut self,
        now: Monotonic,
        half_life: Duration,
        session: SessionId,
        intent: Intent,
        times: u32,
    ) {
        self.decay(now, half_life);
        match intent {
            Intent::Read => self.reads += times as f32,
            Intent::Change => self.writes += times as f32,
        }
        self.users[0] |= 1 << (session.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
    }

    pub(super) fn decay(&mut self, now: Monotonic, half_life: Duration) {
        let half_lives = now.since(self.updated).as_secs_f32() / half_life.as_secs_f32().max(1e-3);
        // Many small steps would only lose precision.
        if half_lives > 0.001 {
            let factor = (-half_lives).exp2();
            self.reads *= factor;
            self.writes *= factor;
            self.updated = now;
        }
        let age = now.since(self.users_since);
        if age >= half_life {
            self.users = if age < half_life * 2 { [0, self.users[0]] } else { [0; 2] };
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
            clients: self.clients(),
        }
    }

    fn clients(&self) -> u32 {
        let unused = (self.users[0] | self.users[1]).count_zeros();
        let share = f64::from(unused.max(1)) / 64.0;
        (-64.0 * share.ln()).round() as u32
    }

    /// Equation (8): leases pay. Both rates are sums over the N clients, so their ratio is that of one client.
    pub(super) fn leases_pay(&self, min_writes: u32) -> bool {
        if f64::from(self.writes) < f64::from(min_writes) {
            return true;
        }
        let clients = self.clients().max(1);
        f64::from(self.reads) > f64::from(self.writes) * f64::from(clients - 1)
    }

    /// A write lease was recalled: the next ones are refused for a while that doubles as long as this goes on.
    pub(super) fn contended(&mut self, now: Monotonic, back_off: BackOff) {
        let BackOff::On { first, longest } = back_off else { return };
        let calm = now.since(self.back_off_until) > self.back_off * 2;
        self.back_off =
            if calm || self.back_off.is_zero() { first } else { (self.back_off * 2).min(longest) };
        self.back_off_until = now + self.back_off;
    }

    pub(super) fn backs_off(&self, now: Monotonic) -> Option<Duration> {
        (self.back_off_until > now).then(|| self.back_off_until.since(now))
    }
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

/// Equation (8) of the SODA paper as a policy.
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
        rates.note(at(0), HALF, SessionId(1), Intent::Read, 8);
        rates.decay(at(10), HALF);
        assert_eq!(rates.usage(HALF).reads, 4.0);
        rates.decay(at(30), HALF);
        assert_eq!(rates.usage(HALF).reads, 1.0);
    }

    #[test]
    fn a_steady_rate_is_found_again() {
        let mut rates = Rates::new(at(0));
        for second in 0..200 {
            rates.note(at(second), HALF, SessionId(1), Intent::Change, 5);
        }
        let found = rates.usage(HALF).writes_per_s;
        assert!((4.5..5.5).contains(&found), "{found}");
    }

    #[test]
    fn clients_are_told_apart_and_forgotten() {
        let mut rates = Rates::new(at(0));
        for session in 1..=20 {
            rates.note(at(0), HALF, SessionId(session), Intent::Read, 1);
        }
        let clients = rates.usage(HALF).clients;
        assert!((16..=24).contains(&clients), "{clients}");
        rates.decay(at(25), HALF);
        assert_eq!(rates.usage(HALF).clients, 0);
    }

    #[test]
    fn equation_8_is_the_papers_inequality() {
        // Three clients, so leases pay from R/W > 2 on.
        for (reads, writes, pays) in [(21, 10, true), (20, 10, false), (5, 10, false), (0, 3, true)] {
            let mut rates = Rates::new(at(0));
            for session in 1..=3 {
                rates.note(at(0), HALF, SessionId(session), Intent::Read, 0);
            }
            rates.note(at(0), HALF, SessionId(1), Intent::Read, reads);
            rates.note(at(0), HALF, SessionId(1), Intent::Change, writes);
            assert_eq!(rates.leases_pay(4), pays, "{reads} {writes}");
        }
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
