//! The same protocol with leases that really last t.
//!
//! The paper lets a lease's term run out as a Poisson event of rate 1/t. A lease lasts until its term is over *or* the next
//! write, whatever comes first: E(L) = (1 - exp(-NWt)) / NW. The rest of the paper's argument (a time with a lease and a time
//! without follow each other, so equation (1) holds) needs no Poisson expiry, so everything else stays as it is.
//!
//! What follows from that: E(L) is up to 1.298 times what the paper says (at NWt = 1.793), never less; both agree where writes
//! or expiry alone decide (NWt near 0 or large). Equation (8) does not depend on how long leases last, so it is exact.
//!
//! C_total by unicast is 2NR (1 + beta g) / (1 + rho g) with rho = R/NW, beta = (N-1)/N and g = NW E(L): 1 - exp(-x), x = NWt,
//! where the paper has x / (1 + x). So the paper's is too high exactly where leases pay (rho > beta, equation (8)), by up to
//! 29.8 % for one client, 21.2 % for two and 16.6 % for many (R far above NW), and too low where they do not, by up to 7.0 % for
//! two and 10.7 % for many (R far below NW); NWt is 1.4 to 2.3 there.

use super::{Network, Sharing, Term};

/// NWt at which the paper's E(L) is too small by most: where exp(x) = 1 + x + x^2.
pub const WORST_WRITES_PER_TERM: f64 = 1.793_282_132_894_008;
/// (1 - exp(-x)) (1 + x) / x there: the exact E(L), by the paper's.
pub const WORST_FACTOR: f64 = 1.298_425_607_525_639_3;

/// How far the Poisson approximation is off; 0.1 is ten per cent too much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Error {
    /// Of S, equation (2): never positive.
    pub holders: f64,
    /// Of C_total, equation (5).
    pub cost: f64,
}

impl Sharing {
    /// E(L), seconds: how long a lease lasts until its term or anybody's write ends it.
    pub fn exact_lease_length(&self, term: Term) -> f64 {
        lasting(self.clients * self.writes, term.0)
    }

    /// Equation (1) with the exact E(L): the part of the time in which a client has a valid lease.
    pub fn exact_leased_fraction(&self, term: Term) -> f64 {
        fraction(self.exact_lease_length(term), self.reads)
    }

    /// S with the exact E(L); compare equation (2).
    pub fn exact_holders(&self, term: Term) -> f64 {
        self.clients * self.exact_leased_fraction(term)
    }

    /// C_total with the exact E(L), messages per second; compare equation (5).
    pub fn exact_lease_cost(&self, term: Term, network: Network) -> f64 {
        let length = self.exact_lease_length(term);
        self.read_cost_at(length) + self.write_cost_at(length, network)
    }

    /// Whether leases cost less than asking at each read, with the exact E(L); compare [`Sharing::leases_pay`]. By unicast both
    /// say the same.
    pub fn exact_leases_pay(&self, term: Term, network: Network) -> bool {
        match network {
            Network::Unicast => self.leases_pay(term, network),
            Network::Multicast => self.reads > self.exact_multicast_break_even(term),
        }
    }

    /// The R above which leases pay by multicast with the exact E(L), reads per second: NW/4 (1 + sqrt(1 + 8 / (N^2 W E(L)))).
    /// The paper's condition is the same with its E(L); this one is never higher.
    pub fn exact_multicast_break_even(&self, term: Term) -> f64 {
        self.multicast_break_even_at(self.exact_lease_length(term))
    }

    /// What the paper's approximation makes of it.
    pub fn approximation_error(&self, term: Term, network: Network) -> Error {
        let relative =
            |approximate: f64, exact: f64| if exact == 0.0 { 0.0 } else { approximate / exact - 1.0 };
        Error {
            holders: relative(self.holders(term), self.exact_holders(term)),
            cost: relative(self.lease_cost(term, network), self.exact_lease_cost(term, network)),
        }
    }
}

/// Mean of the smaller of `term` and an exponential time of that rate: (1 - exp(-rate term)) / rate.
pub(crate) fn lasting(rate: f64, term: f64) -> f64 {
    let ends = rate * term;
    // Also where one is 0 and the other infinite, or their product too small for a number.
    if ends.is_nan() || ends < f64::EPSILON {
        return term;
    }
    -(-ends).exp_m1() / rate
}

/// Equation (1), E(L) / (E(L) + 1/R), for any E(L).
pub(crate) fn fraction(length: f64, reads: f64) -> f64 {
    if reads == 0.0 {
        return 0.0;
    }
    let hits = reads * length;
    if hits.is_infinite() { 1.0 } else { hits / (1.0 + hits) }
}

/// What is left of [`fraction`], 1 / (1 + R E(L)), also the part of all reads that finds no lease: digits are not lost where
/// it is small.
pub(crate) fn missing(length: f64, reads: f64) -> f64 {
    if reads == 0.0 { 1.0 } else { 1.0 / (1.0 + reads * length) }
}

#[cfg(test)]
mod tests {
    use super::super::trial;
    use super::*;
    use Network::{Multicast, Unicast};
    use proptest::prelude::*;

    #[test]
    fn the_approximation_is_worst_at_1_793_writes_a_term() {
        let factor = |x: f64| lasting(x, 1.0) * (1.0 + x);
        assert!((factor(WORST_WRITES_PER_TERM) - WORST_FACTOR).abs() < 1e-12);
        for step in 1..4000 {
            let x = f64::from(step) / 100.0;
            assert!((1.0 - 1e-12..=WORST_FACTOR).contains(&factor(x)), "{x}: {}", factor(x));
        }
        let x = WORST_WRITES_PER_TERM;
        assert!((x.exp() - (1.0 + x + x * x)).abs() < 1e-9);
    }

    #[test]
    fn the_papers_cost_is_too_high_where_leases_pay_and_too_low_where_not() {
        // (N, most that it is too low, most that it is too high), per cent: as docs/LAB.md has it.
        for (n, low, high) in [(1.0, 0.0, 29.8), (2.0, 7.0, 21.2), (1e6, 10.7, 16.6)] {
            let (mut lowest, mut highest) = (0.0_f64, 0.0_f64);
            for (x, power) in (1..400).flat_map(|x| (-30..=30).map(move |power| (x, power))) {
                let (x, rho) = (f64::from(x) / 50.0, 10_f64.powf(f64::from(power) / 5.0));
                let sharing = Sharing::new(n, rho, 1.0 / n).expect("right");
                let off = 100.0 * sharing.approximation_error(Term(x), Unicast).cost;
                if off.abs() > 1e-6 {
                    let pays = sharing.leases_pay(Term(x), Unicast);
                    assert_eq!(off > 0.0, pays, "N {n} NWt {x} R/NW {rho}: {off}");
                }
                (lowest, highest) = (lowest.min(off), highest.max(off));
            }
            assert!((lowest + low).abs() < 0.05 && (highest - high).abs() < 0.05, "{n}: {lowest} {highest}");
        }
    }

    #[test]
    fn equal_to_a_small_simulation() {
        for (at, (n, r, w, t)) in
            [(5, 2.0, 0.1, 20.0), (3, 1.0, 0.6, 1.0), (10, 0.2, 0.05, 4.0), (2, 4.0, 2.0, 0.3)]
                .into_iter()
                .enumerate()
        {
            let sharing = Sharing::new(f64::from(n), r, w).expect("right");
            for network in [Unicast, Multicast] {
                let found = trial::node_leases(at as u64, n, (r, w), t, network);
                let expected = sharing.exact_lease_cost(Term(t), network);
                found.agrees_with(expected, &format!("N {n} R {r} W {w} t {t} {network:?}"));
            }
        }
    }

    #[test]
    fn the_simulation_tells_the_approximation_from_the_exact_formula() {
        // NWt = 1.8: the trial must be able to fail.
        let sharing = Sharing::new(3.0, 1.0, 0.6).expect("right");
        let found = trial::node_leases(9, 3, (1.0, 0.6), 1.0, Unicast);
        assert!((found.mean - sharing.lease_cost(Term(1.0), Unicast)).abs() > found.margin());
    }

    proptest! {
        #[test]
        fn the_paper_never_overstates_holders(
            n in 1_u32..200, r in trial::rates(50.0), w in trial::rates(5.0), t in trial::times(1000.0)
        ) {
            let sharing = Sharing::new(f64::from(n), r, w).expect("right");
            let error = sharing.approximation_error(Term(t), Unicast);
            prop_assert!(error.holders <= 1e-9 && error.holders >= 1.0 / WORST_FACTOR - 1.0 - 1e-9, "{error:?}");
        }

        #[test]
        fn equation_8_is_exact(
            n in 2_u32..100, r in trial::rates(50.0), w in trial::rates(5.0), t in trial::times(1000.0)
        ) {
            let sharing = Sharing::new(f64::from(n), r, w).expect("right");
            let saved = sharing.sprite_cost() - sharing.exact_lease_cost(Term(t), Unicast);
            if saved.abs() > 1e-9 * sharing.sprite_cost() {
                prop_assert_eq!(sharing.leases_pay(Term(t), Unicast), saved > 0.0);
            }
        }

        #[test]
        fn by_multicast_the_exact_condition_is_the_exact_inequality(
            n in 1_u32..100, r in 0.01..50.0_f64, w in trial::rates(5.0), t in trial::times(1000.0)
        ) {
            let sharing = Sharing::new(f64::from(n), r, w).expect("right");
            let saved = sharing.sprite_cost() - sharing.exact_lease_cost(Term(t), Multicast);
            if saved.abs() > 1e-9 * sharing.sprite_cost() {
                prop_assert_eq!(sharing.exact_leases_pay(Term(t), Multicast), saved > 0.0);
            }
            // Just above and just below what it says.
            let edge = sharing.exact_multicast_break_even(Term(t));
            if edge > 0.0 && edge.is_finite() {
                for factor in [1.0 - 1e-4, 1.0 + 1e-4] {
                    let there = Sharing::new(f64::from(n), edge * factor, w).expect("right");
                    let saved = there.sprite_cost() - there.exact_lease_cost(Term(t), Multicast);
                    prop_assert_eq!(saved > 0.0, factor > 1.0, "R {} of {}: saved {}", there.reads(), edge, saved);
                }
            }
            let (exact, paper) = (sharing.exact_multicast_break_even(Term(t)), sharing.multicast_break_even(Term(t)));
            prop_assert!(exact <= paper * (1.0 + 1e-12), "{exact} {paper}");
            // As long as one lease lasts until somebody writes, it is as the shortest term that pays says.
            if let (true, Some(shortest)) = (t > 0.0, sharing.break_even_term(Multicast)) {
                let clear = (t / shortest.secs() - 1.0).abs() > 1e-6;
                prop_assert!(!clear || sharing.exact_leases_pay(Term(t), Multicast) == (t > shortest.secs()));
            }
        }

        #[test]
        fn where_one_alone_decides_both_agree(n in 1_u32..50, r in 0.01..9.0_f64, w in trial::rates(2.0)) {
            let sharing = Sharing::new(f64::from(n), r, w).expect("right");
            for term in [Term::ZERO, Term::INFINITE] {
                let error = sharing.approximation_error(term, Unicast);
                prop_assert!(error.cost.abs() < 1e-9 && error.holders.abs() < 1e-9, "{term:?} {error:?}");
            }
        }
    }
}
