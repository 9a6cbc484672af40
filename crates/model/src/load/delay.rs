//! How long writes wait for readers who do not answer any more: what long terms cost (section 2.3 of the SODA paper, "the
//! updates must wait a longer period").
//!
//! A holder that is asked is dead with chance f; then the write waits until its lease has run out. Of several dead ones the
//! longest counts. That holders are independent of each other is the paper's assumption in equation (2). It is exact for two
//! clients; with more, the last write was the same for all of them, so they hold leases together more often than that.

use super::exact::lasting;
use super::{ModelError, Sharing, Term, part};

/// Steps of the integrals below (Simpson): more than six digits for these smooth curves.
const STEPS: u32 = 400;

impl Sharing {
    /// Seconds that a write waits on average if each lease on the file has a term of its own.
    ///
    /// E(delay) = integral from 0 to t of 1 - (1 - f p P(X > x))^(N-1), where p is the chance that a client holds a lease and
    /// X what is left of it: P(X > x) = E(min(t - x, next write)) / E(L). Infinite for an infinite term, if f > 0.
    ///
    /// # Errors
    /// If f is not between 0 and 1.
    pub fn write_delay(&self, term: Term, dead: f64) -> Result<f64, ModelError> {
        let reached = part("f", dead)? * self.exact_leased_fraction(term);
        let writes = self.clients * self.writes;
        let whole = lasting(writes, term.0);
        self.longest(reached, term.0, |left| lasting(writes, term.0 - left) / whole)
    }

    /// The same with session leases: the client renewed its session at some time in the third of a term before it died, so two
    /// thirds to all of the session's term are left.
    ///
    /// # Errors
    /// If f is not between 0 and 1.
    pub fn write_delay_of_sessions(&self, session: Term, dead: f64) -> Result<f64, ModelError> {
        let reached = part("f", dead)? * self.exact_leased_fraction(Term::INFINITE);
        self.longest(reached, session.0, |left| ((session.0 - left) / (session.0 / 3.0)).min(1.0))
    }

    /// The mean of the longest of N - 1 waits, each of which happens with chance `reached` and is longer than x with chance
    /// `longer(x)`; none is longer than `most`.
    fn longest(&self, reached: f64, most: f64, longer: impl Fn(f64) -> f64) -> Result<f64, ModelError> {
        if reached == 0.0 || most == 0.0 || self.clients == 1.0 {
            return Ok(0.0);
        }
        if most.is_infinite() {
            return Ok(f64::INFINITY);
        }
        // 1 - (1 - q)^(N-1), also of a q that is lost beside 1.
        let value = |at: f64| {
            let one = (reached * longer(at)).clamp(0.0, 1.0);
            -((self.clients - 1.0) * (-one).ln_1p()).exp_m1()
        };
        let step = most / f64::from(STEPS);
        let inner: f64 =
            (1..STEPS).map(|at| if at % 2 == 1 { 4.0 } else { 2.0 } * value(f64::from(at) * step)).sum();
        Ok(step / 3.0 * (value(0.0) + inner + value(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::batches;
    use super::*;
    use crate::rng::Rng;

    /// Seconds that a write waits, each holder being dead with chance f when it is asked.
    fn waiting(rng: &mut Rng, n: usize, (r, w): (f64, f64), t: f64, dead: f64) -> f64 {
        let rate = n as f64 * (r + w);
        let mut expires = vec![0.0; n];
        let (mut now, mut waited, mut writes) = (0.0, 0.0, 0.0);
        while writes < 20_000.0 {
            now += rng.exponential(rate);
            let who = rng.below(n as u64) as usize;
            if rng.uniform() <= r / (r + w) {
                if expires[who] <= now {
                    expires[who] = now + t;
                }
                continue;
            }
            writes += 1.0;
            let others = (0..n).filter(|other| *other != who && expires[*other] > now);
            let dead = others.filter(|_| rng.uniform() <= dead).map(|other| expires[other] - now);
            waited += dead.collect::<Vec<f64>>().into_iter().fold(0.0, f64::max);
            expires.fill(0.0);
        }
        waited / writes
    }

    #[test]
    fn two_clients_are_exact() {
        for (at, (r, w, t, dead)) in [(1.0, 0.05, 10.0, 0.5), (0.2, 0.4, 3.0, 1.0)].into_iter().enumerate() {
            let sharing = Sharing::new(2.0, r, w).expect("right");
            let found = batches(120 + at as u64, |rng| waiting(rng, 2, (r, w), t, dead));
            found.agrees_with(
                sharing.write_delay(Term(t), dead).expect("right"),
                &format!("{r} {w} {t} {dead}"),
            );
        }
    }

    #[test]
    fn more_clients_are_close() {
        let sharing = Sharing::new(6.0, 1.0, 0.02).expect("right");
        let found = batches(130, |rng| waiting(rng, 6, (1.0, 0.02), 10.0, 0.3));
        let expected = sharing.write_delay(Term(10.0), 0.3).expect("right");
        assert!((expected / found.mean - 1.0).abs() < 0.1, "{expected} {found:?}");
    }

    #[test]
    fn sessions_wait_two_thirds_of_their_term_at_least() {
        // Everybody holds it, everybody is dead: the largest of four uniform numbers is 4/5 on average.
        let sharing = Sharing::new(5.0, 1.0, 0.0).expect("right");
        let delay = sharing.write_delay_of_sessions(Term(9.0), 1.0).expect("right");
        assert!((delay - (6.0 + 3.0 * 0.8)).abs() < 1e-3, "{delay}");
    }

    #[test]
    fn the_ends() {
        let sharing = Sharing::new(5.0, 1.0, 0.1).expect("right");
        assert_eq!(sharing.write_delay(Term(10.0), 0.0), Ok(0.0));
        assert_eq!(sharing.write_delay(Term::ZERO, 1.0), Ok(0.0));
        assert_eq!(sharing.write_delay(Term::INFINITE, 0.1), Ok(f64::INFINITY));
        for dead in [-0.1, 1.1, f64::NAN] {
            assert!(sharing.write_delay(Term(1.0), dead).is_err(), "{dead}");
        }
        // A very small f is not lost among many: next to nobody dies, so it is in proportion to f.
        let crowd = Sharing::new(1e6, 1.0, 0.0).expect("right");
        let delay = |dead| crowd.write_delay(Term(10.0), dead).expect("right");
        assert!((delay(1e-18) / delay(1e-12) - 1e-6).abs() < 1e-9);
        let longer = sharing.write_delay(Term(20.0), 0.1).expect("right");
        assert!(longer > sharing.write_delay(Term(10.0), 0.1).expect("right") && longer < 20.0);
    }
}
