//! Which term to choose.
//!
//! The paper finds that "there is no optimal value for the lease term": counted in messages, longer is better. There are two
//! ways to an answer all the same: the shortest term that saves almost as much as an infinite one, and the term at which
//! messages and the waiting for dead readers together cost least.

use super::{ModelError, Network, Sharing, Term, amount, part};

impl Sharing {
    /// The shortest term that saves `share` (0 to 1) of what an infinite one saves, by unicast.
    ///
    /// The saving is in proportion to p, the part of the time with a lease. With p' = share * p(infinite) the lease has to last
    /// E(L) = p' / (R (1 - p')), so t = -ln(1 - NW E(L)) / NW; that is E(L) if nobody writes.
    ///
    /// # Errors
    /// If the share is not between 0 and 1.
    pub fn term_saving(&self, share: f64) -> Result<Term, ModelError> {
        let wanted = part("share", share)? * self.exact_leased_fraction(Term::INFINITE);
        Ok(self.term_leasing(wanted))
    }

    /// The term from which on leases cost less than asking each time, with the exact E(L); `None`: no term does. By unicast it
    /// does not depend on the term (equation (8)). By multicast p must be more than W / (2R - (N-1)W): this is
    /// [`Sharing::exact_leases_pay`], solved for t.
    pub fn break_even_term(&self, network: Network) -> Option<Term> {
        match network {
            Network::Unicast => self.leases_pay(Term::INFINITE, network).then_some(Term::ZERO),
            Network::Multicast => {
                let margin = 2.0 * self.reads - (self.clients - 1.0) * self.writes;
                let wanted = self.writes / margin;
                (margin > 0.0 && wanted < self.exact_leased_fraction(Term::INFINITE))
                    .then(|| self.term_leasing(wanted))
            }
        }
    }

    /// What terms cost if a second for which a write waits is worth `price` messages and a holder that is asked is dead with
    /// chance `dead`: C_total + price NW E(delay), messages per second, of [`Sharing::exact_lease_cost`] and
    /// [`Sharing::write_delay`].
    ///
    /// # Errors
    /// If `dead` is no part of a whole, or the price is negative or no number.
    pub fn cost_with_waiting(
        &self,
        term: Term,
        network: Network,
        price: f64,
        dead: f64,
    ) -> Result<f64, ModelError> {
        let worth = self.worth(price, dead, || self.write_delay(term, dead))?;
        Ok(self.exact_lease_cost(term, network) + worth)
    }

    /// The same of leases that last as long as a session, of [`Sharing::write_delay_of_sessions`].
    ///
    /// # Errors
    /// As [`Sharing::cost_with_waiting`].
    pub fn session_cost_with_waiting(
        &self,
        session: Term,
        network: Network,
        price: f64,
        dead: f64,
    ) -> Result<f64, ModelError> {
        let worth = self.worth(price, dead, || self.write_delay_of_sessions(session, dead))?;
        Ok(self.exact_lease_cost(Term::INFINITE, network) + worth)
    }

    /// Messages per second that the waiting of all writes is worth.
    fn worth(
        &self,
        price: f64,
        dead: f64,
        delay: impl Fn() -> Result<f64, ModelError>,
    ) -> Result<f64, ModelError> {
        let waited = self.clients * self.writes * amount("price", price)?;
        part("f", dead)?;
        // 0 of something infinite is nothing.
        if waited == 0.0 { Ok(0.0) } else { Ok(waited * delay()?) }
    }

    /// The term that costs least if a second for which a write waits is worth `price` messages and a holder that is asked is
    /// dead with chance `dead`: the least [`Sharing::cost_with_waiting`]. Found by trying terms from 1 ms to four months, to one
    /// per cent.
    ///
    /// # Errors
    /// If `dead` is no part of a whole, or the price is negative or no number.
    pub fn optimal_term(&self, network: Network, price: f64, dead: f64) -> Result<Term, ModelError> {
        let worth = |term: Term| self.cost_with_waiting(term, network, price, dead);
        let best = |terms: &mut dyn Iterator<Item = Term>| -> Result<Term, ModelError> {
            let mut best = (Term::ZERO, f64::INFINITY);
            for term in terms {
                let cost = worth(term)?;
                // Beyond some length nothing changes in any digit: the longest of those.
                if cost <= best.1 * (1.0 + 1e-12) {
                    best = (term, cost);
                }
            }
            Ok(best.0)
        };
        let power = |step: i32| Term((f64::from(step) / 100.0).exp());
        let rough = (-690..=1610).step_by(10).map(power);
        let about = best(&mut [Term::ZERO].into_iter().chain(rough).chain([Term::INFINITE]))?;
        if about == Term::ZERO || about == Term::INFINITE {
            return Ok(about);
        }
        best(&mut (-10..=10).map(|step| Term(about.0 * power(step).0)))
    }

    /// The term with which a client has a lease for this part of the time.
    fn term_leasing(&self, wanted: f64) -> Term {
        if wanted <= 0.0 {
            return Term::ZERO;
        }
        let length = wanted / (self.reads * (1.0 - wanted));
        let writes = self.clients * self.writes;
        let ends = writes * length;
        // Nobody writes, or next to nobody in so short a time.
        if writes == 0.0 || ends < f64::EPSILON {
            return Term(length);
        }
        if ends >= 1.0 - 1e-12 { Term::INFINITE } else { Term(-(-ends).ln_1p() / writes) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial;
    use super::*;
    use Network::{Multicast, Unicast};
    use proptest::prelude::*;

    fn figure_2() -> Sharing {
        Sharing::new(5.0, 2.0, 0.1).expect("right")
    }

    #[test]
    fn figure_2_twenty_seconds_are_enough() {
        // "60 second leases do not provide any significant gain compared to 20 second leases": almost all is saved by then.
        let term = figure_2().term_saving(0.99).expect("right");
        assert!(term.secs() < 20.0, "{term:?}");
        assert_eq!(figure_2().term_saving(0.0), Ok(Term::ZERO));
        assert_eq!(figure_2().term_saving(1.0), Ok(Term::INFINITE));
        assert!(figure_2().term_saving(1.5).is_err());
    }

    #[test]
    fn without_a_price_longer_is_better_and_with_one_there_is_an_optimum() {
        assert_eq!(figure_2().optimal_term(Unicast, 0.0, 0.1), Ok(Term::INFINITE));
        assert_eq!(figure_2().optimal_term(Unicast, 100.0, 0.0), Ok(Term::INFINITE));
        let optimum = |price| figure_2().optimal_term(Unicast, price, 0.01).expect("right").secs();
        assert!(
            optimum(1000.0) < optimum(100.0) && optimum(100.0) < 1000.0,
            "{} {}",
            optimum(1000.0),
            optimum(100.0)
        );
        // Nobody gains by a lease that costs more than asking: none is the best.
        let hopeless = Sharing::new(5.0, 0.1, 1.0).expect("right");
        assert_eq!(hopeless.optimal_term(Unicast, 10.0, 0.1), Ok(Term::ZERO));
        assert!(figure_2().optimal_term(Unicast, -1.0, 0.1).is_err());
        assert!(figure_2().optimal_term(Unicast, 1.0, 2.0).is_err());
    }

    #[test]
    fn what_waiting_costs_is_what_all_writes_wait_at_its_price() {
        let (price, dead) = (100.0, 0.1);
        let alone = figure_2().exact_lease_cost(Term(10.0), Unicast);
        let cost = figure_2().cost_with_waiting(Term(10.0), Unicast, price, dead).expect("right");
        // NW = 0.5 writes/s.
        let waits = figure_2().write_delay(Term(10.0), dead).expect("right");
        assert!((cost - alone - price * 0.5 * waits).abs() < 1e-9, "{cost}");
        let session =
            |dead| figure_2().session_cost_with_waiting(Term(10.0), Unicast, price, dead).expect("right");
        assert_eq!(session(0.0), figure_2().exact_lease_cost(Term::INFINITE, Unicast), "nobody waits");
        let waits = figure_2().write_delay_of_sessions(Term(10.0), dead).expect("right");
        assert!((session(dead) - session(0.0) - price * 0.5 * waits).abs() < 1e-9, "{}", session(dead));
        // Nobody writes, so nobody waits, however long a lease lasts; what is no chance is refused all the same.
        let read_only = Sharing::new(5.0, 2.0, 0.0).expect("right");
        assert_eq!(read_only.cost_with_waiting(Term::INFINITE, Unicast, price, 1.0), Ok(0.0));
        assert!(read_only.cost_with_waiting(Term::INFINITE, Unicast, price, 1.5).is_err());
    }

    #[test]
    fn no_other_term_costs_less_than_the_optimum() {
        for (price, dead) in [(10.0, 0.01), (100.0, 0.1), (1.0, 0.5), (1000.0, 0.001)] {
            let cost = |term| figure_2().cost_with_waiting(term, Unicast, price, dead).expect("right");
            let best = figure_2().optimal_term(Unicast, price, dead).expect("right");
            for step in -200..300 {
                let other = Term((f64::from(step) / 30.0).exp());
                assert!(cost(best) <= cost(other) * (1.0 + 1e-4), "{price} {dead}: {best:?}, not {other:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_wanted_is_saved(
            n in 1_u32..40, r in 0.01..20.0_f64, w in trial::rates(2.0), share in 0.01..0.99_f64
        ) {
            let sharing = Sharing::new(f64::from(n), r, w).expect("right");
            let asking = sharing.sprite_cost();
            let most = asking - sharing.exact_lease_cost(Term::INFINITE, Unicast);
            let term = sharing.term_saving(share).expect("right");
            let saved = asking - sharing.exact_lease_cost(term, Unicast);
            prop_assert!((saved - share * most).abs() <= 1e-6 * asking, "{saved} {most} {term:?}");
        }

        #[test]
        fn at_the_break_even_term_both_cost_the_same(n in 2_u32..40, r in 0.01..20.0_f64, w in trial::rates(2.0)) {
            let sharing = Sharing::new(f64::from(n), r, w).expect("right");
            let asking = sharing.sprite_cost();
            match sharing.break_even_term(Multicast) {
                Some(term) => {
                    let cost = sharing.exact_lease_cost(term, Multicast);
                    prop_assert!((cost / asking - 1.0).abs() < 1e-6, "{term:?} {cost} {asking}");
                }
                None => prop_assert!(sharing.exact_lease_cost(Term::INFINITE, Multicast) >= asking * (1.0 - 1e-9)),
            }
        }
    }
}
