//! The model that the SODA paper started from: C. Gray and D. Cheriton, "Leases: An Efficient Fault-Tolerant Mechanism for
//! Distributed File Cache Consistency", SOSP 1989, section 3.1.
//!
//! What is different: a lease always lasts its whole term (a write ends none, as far as reads are concerned), the number S of
//! caches that share a file is a parameter of its own, and who writes always has a lease, so S - 1 are asked.

use super::exact::missing;
use super::{ModelError, Network, Sharing, Term, amount};

/// The parameters of their Table 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GrayCheriton {
    sharing: Sharing,
    sharers: f64,
    propagation: f64,
    processing: f64,
    uncertainty: f64,
}

impl GrayCheriton {
    /// N clients with R and W each; S of them have the file in their caches when it is written. Times are zero until
    /// [`GrayCheriton::with_times`] says otherwise.
    ///
    /// # Errors
    /// If S is less than 1 or more than N.
    pub fn new(sharing: Sharing, sharers: f64) -> Result<GrayCheriton, ModelError> {
        if !(1.0..=sharing.clients).contains(&sharers) {
            return Err(ModelError::Sharers { sharers, clients: sharing.clients });
        }
        Ok(GrayCheriton { sharing, sharers, propagation: 0.0, processing: 0.0, uncertainty: 0.0 })
    }

    /// Seconds: `m_prop` for a message on the wire, `m_proc` to send or receive one, `epsilon` by which clocks may differ.
    ///
    /// # Errors
    /// If one is negative or no number.
    pub fn with_times(self, m_prop: f64, m_proc: f64, epsilon: f64) -> Result<GrayCheriton, ModelError> {
        Ok(GrayCheriton {
            propagation: amount("m_prop", m_prop)?,
            processing: amount("m_proc", m_proc)?,
            uncertainty: amount("epsilon", epsilon)?,
            ..self
        })
    }

    /// t_c: what is left of the term when the grant has arrived, max(0, t_s - (m_prop + 2 m_proc) - epsilon).
    pub fn client_term(&self, term: Term) -> f64 {
        (term.0 - (self.propagation + 2.0 * self.processing) - self.uncertainty).max(0.0)
    }

    /// Formula (1): messages per second that consistency costs, 2NR / (1 + R t_c) + NaW with a messages for an approval: S by
    /// multicast (one out, S - 1 replies), which is what they print; 2 (S - 1) by unicast. With term 0 there is nobody to ask.
    pub fn cost(&self, term: Term, network: Network) -> f64 {
        let Sharing { clients, reads, writes } = self.sharing;
        let approvals = if term > Term::ZERO { self.approval(network) } else { 0.0 };
        2.0 * clients * reads * self.miss(term) + clients * writes * approvals
    }

    /// Formula (2): seconds that consistency adds to an operation on average: a read that has to extend its lease waits for a
    /// round trip, 2 m_prop + 4 m_proc; a write for approval by multicast, 2 m_prop + (S + 2) m_proc.
    pub fn delay(&self, term: Term) -> f64 {
        let Sharing { reads, writes, .. } = self.sharing;
        if reads + writes == 0.0 {
            return 0.0;
        }
        let extension = 2.0 * self.propagation + 4.0 * self.processing;
        let asked = self.sharers > 1.0 && term.0 > 0.0;
        let approval =
            if asked { 2.0 * self.propagation + (self.sharers + 2.0) * self.processing } else { 0.0 };
        (reads * extension * self.miss(term) + writes * approval) / (reads + writes)
    }

    /// alpha, the benefit factor: leases can pay if it is larger than 1. 2R / SW by multicast, as they print it; R / (S-1)W by
    /// unicast. Infinite if a write asks nobody.
    pub fn benefit_factor(&self, network: Network) -> f64 {
        let Sharing { reads, writes, .. } = self.sharing;
        // Of nothing there is no benefit, either.
        if reads == 0.0 { 0.0 } else { 2.0 * reads / (self.approval(network) * writes) }
    }

    /// 1 / (R (alpha - 1)), seconds: a t_c that is longer costs less than asking each time. `None`: no term does.
    pub fn break_even_term(&self, network: Network) -> Option<f64> {
        let over = self.benefit_factor(network) - 1.0;
        (over > 0.0).then(|| 1.0 / (self.sharing.reads * over))
    }

    /// Messages for an approval: nobody is asked if only the writer has the file.
    fn approval(&self, network: Network) -> f64 {
        match network {
            _ if self.sharers <= 1.0 => 0.0,
            Network::Multicast => self.sharers,
            Network::Unicast => 2.0 * (self.sharers - 1.0),
        }
    }

    /// The part of reads that finds no valid lease, 1 / (1 + R t_c).
    fn miss(&self, term: Term) -> f64 {
        missing(self.client_term(term), self.sharing.reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Network::{Multicast, Unicast};

    /// Their Table 2, measured of the V system: R = 0.864/s, W = 0.040/s.
    fn v_system(sharers: f64) -> GrayCheriton {
        let sharing = Sharing::new(20.0, 0.864, 0.040).expect("right");
        GrayCheriton::new(sharing, sharers).expect("right")
    }

    fn term(secs: f64) -> Term {
        Term::new(secs).expect("right")
    }

    #[test]
    fn the_papers_claims_for_a_term_of_ten_seconds() {
        // "for S = 1, a term of 10 seconds reduces consistency traffic to 10 % of that for a zero term. [...] at a zero
        // term, consistency is 30 % of all traffic [...] reduces total traffic by 27 %, 4.5 % above that of infinite term".
        let (zero, ten) =
            (v_system(1.0).cost(Term::ZERO, Multicast), v_system(1.0).cost(term(10.0), Multicast));
        assert!((0.095..0.11).contains(&(ten / zero)), "{}", ten / zero);
        let consistency = 0.30;
        let total = 1.0 - consistency + consistency * ten / zero;
        assert!((0.265..0.275).contains(&(1.0 - total)), "{}", 1.0 - total);
        let above_infinite = total / (1.0 - consistency) - 1.0;
        assert!((0.04..0.05).contains(&above_infinite), "{above_infinite}");
    }

    #[test]
    fn the_benefit_factor_tells_where_leases_cost_as_much_as_asking() {
        for (sharers, network) in
            [2.0, 5.0, 10.0, 20.0].into_iter().flat_map(|s| [(s, Multicast), (s, Unicast)])
        {
            let model = v_system(sharers);
            let even = term(model.break_even_term(network).expect("alpha > 1"));
            let (leases, asking) = (model.cost(even, network), model.cost(Term::ZERO, network));
            assert!((leases / asking - 1.0).abs() < 1e-9, "S = {sharers} {network:?}: {leases} {asking}");
            assert!(model.cost(term(even.secs() * 2.0), network) < asking);
        }
        let hopeless = Sharing::new(50.0, 1.0, 0.05).expect("right");
        let hopeless = GrayCheriton::new(hopeless, 50.0).expect("right");
        assert_eq!([Multicast, Unicast].map(|network| hopeless.break_even_term(network)), [None, None]);
    }

    #[test]
    fn an_approval_is_as_many_messages_as_there_are() {
        // With an infinite term nothing else costs. S = 5: one out and four back; or four out and four back.
        let cost = |network| v_system(5.0).cost(Term::INFINITE, network) / (20.0 * 0.040);
        assert!((cost(Multicast) - 5.0).abs() < 1e-9 && (cost(Unicast) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn who_asks_nobody_gains_by_any_term_and_who_reads_nothing_by_none() {
        for network in [Multicast, Unicast] {
            assert_eq!(v_system(1.0).benefit_factor(network), f64::INFINITY);
            assert_eq!(v_system(1.0).break_even_term(network), Some(0.0));
            let idle = Sharing::new(3.0, 0.0, 0.0).expect("right");
            let idle = GrayCheriton::new(idle, 2.0).expect("right");
            assert_eq!((idle.benefit_factor(network), idle.break_even_term(network)), (0.0, None));
            assert_eq!(idle.cost(Term::INFINITE, network), 0.0);
        }
    }

    #[test]
    fn without_writes_both_papers_agree() {
        let sharing = Sharing::new(7.0, 2.0, 0.0).expect("right");
        let model = GrayCheriton::new(sharing, 7.0).expect("right");
        for secs in [0.0, 0.5, 10.0, 100.0] {
            let (theirs, soda) = (model.cost(term(secs), Unicast), sharing.lease_cost(term(secs), Unicast));
            assert!((theirs - soda).abs() < 1e-9, "{secs}: {theirs} {soda}");
        }
    }

    #[test]
    fn what_a_term_loses_on_the_way_and_what_it_costs_in_time() {
        let model = v_system(1.0).with_times(0.001, 0.0005, 0.1).expect("right");
        assert!((model.client_term(term(10.0)) - 9.898).abs() < 1e-9);
        assert_eq!(model.client_term(term(0.05)), 0.0);
        let asked_each_time = 0.864 / 0.904 * 0.004;
        assert!((model.delay(Term::ZERO) - asked_each_time).abs() < 1e-12);
        assert!(model.delay(term(10.0)) < asked_each_time / 9.0);
    }

    #[test]
    fn wrong_numbers_are_refused() {
        let sharing = Sharing::new(3.0, 1.0, 1.0).expect("right");
        for sharers in [0.0, 4.0, f64::NAN] {
            let refused = GrayCheriton::new(sharing, sharers).expect_err("S is from 1 to N").to_string();
            assert!(refused.starts_with(&format!("S is {sharers} of N = 3 clients")), "{refused}");
        }
        let model = GrayCheriton::new(sharing, 2.0).expect("right");
        assert!(model.with_times(-1.0, 0.0, 0.0).is_err() && model.with_times(0.0, 0.0, f64::NAN).is_err());
    }
}
