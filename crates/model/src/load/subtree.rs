//! Deep leases (Zhang & Honeyman, "Hierarchical Replication Control"; Soda's subtree leases): one for a directory and all
//! below it, in place of one for each object.

use super::exact::{fraction, lasting, missing};
use super::variants::some;
use super::{ModelError, Term, amount};

/// One client at work in a directory, and others who come across it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Subtree {
    objects: f64,
    uses: f64,
    conflicts: f64,
}

impl Subtree {
    /// k objects; each is used u times a second by the client at work, and needed c times a second by others.
    ///
    /// # Errors
    /// If there is no object, a rate is negative, or something no number or too large.
    pub fn new(objects: f64, uses: f64, conflicts: f64) -> Result<Subtree, ModelError> {
        Ok(Subtree {
            objects: some("k", objects)?,
            uses: amount("u", uses)?,
            conflicts: amount("c", conflicts)?,
        })
    }

    /// Messages to begin with: a lease for each object.
    pub fn first_node_cost(&self) -> f64 {
        2.0 * self.objects
    }

    /// Messages to begin with if the server gives a deep lease after `after` node leases.
    ///
    /// # Errors
    /// If `after` is negative or no number.
    pub fn first_deep_cost(&self, after: f64) -> Result<f64, ModelError> {
        Ok(2.0 * self.objects.min(amount("after", after)? + 1.0))
    }

    /// Node leases, messages per second: each object on its own alternates between a lease, of length
    /// E(L) = (1 - exp(-ct)) / c, and none, until the next use. 2 for each grant, 2 for each lease that a conflict ends.
    pub fn node_cost(&self, term: Term) -> f64 {
        self.objects * alternating(self.uses, self.conflicts, term)
    }

    /// Deep leases that go as a whole with any conflict (Zhang & Honeyman): as one object that is used ku and needed kc times
    /// a second. No more than [`Subtree::node_cost`] while c <= u, no less while c >= u: both are 2ku (1 + x) / (1 + xu / c)
    /// with x = cE(L), the part of all leases that a conflict ends, and x grows with k.
    pub fn deep_cost(&self, term: Term) -> f64 {
        alternating(self.objects * self.uses, self.objects * self.conflicts, term)
    }

    /// Deep leases with holes: a conflict takes one object, which is asked for again when it is next used; the deep lease is
    /// renewed with each term and never lost, so it costs 2 / (t + 1/(ku)); each object on its own changes hands like a lease
    /// of infinite term. 2 / (t + 1/(ku)) + k 4uc / (u + c). Soda's deep leases are like that, with an infinite t: they hang on
    /// the session.
    ///
    /// Here it costs no less than [`Subtree::deep_cost`], because one use brings all of a lost lease back, and every object is
    /// used and needed alike. Holes are for what this leaves out: others who come for the same few objects again and again, and
    /// a server that gives the next deep lease as late as the first ([`Subtree::first_deep_cost`]).
    pub fn deep_with_holes_cost(&self, term: Term) -> f64 {
        let all = self.objects * self.uses;
        let renewal = 2.0 * all * missing(term.secs(), all);
        renewal + self.objects * alternating(self.uses, self.conflicts, Term::INFINITE)
    }

    /// How much of the time an object can be used without asking. False sharing is where a deep lease that goes as a whole covers
    /// less than node leases do.
    pub fn covered(&self, term: Term) -> Covered {
        let (k, secs) = (self.objects, term.secs());
        Covered {
            node: fraction(lasting(self.conflicts, secs), self.uses),
            deep: fraction(lasting(k * self.conflicts, secs), k * self.uses),
            holes: fraction(secs, k * self.uses)
                * fraction(lasting(self.conflicts, f64::INFINITY), self.uses),
        }
    }
}

/// Parts of the time, 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Covered {
    /// By a lease of its own: uE(L) / (1 + uE(L)) with E(L) = (1 - exp(-ct)) / c.
    pub node: f64,
    /// By a deep lease that goes as a whole: the same with ku and kc.
    pub deep: f64,
    /// By a deep lease, and no hole: kut / (1 + kut) times u / (u + c), as if one had nothing to do with the other. (A use renews
    /// the lease and fills a hole at once: of few objects a little more is covered.)
    pub holes: f64,
}

/// Messages per second of one object that is used and needed by others so often: 2u / (1 + uE(L)) for grants, and 2c for each
/// conflict that meets a lease.
fn alternating(uses: f64, conflicts: f64, term: Term) -> f64 {
    let length = lasting(conflicts, term.secs());
    2.0 * uses * missing(length, uses) + 2.0 * conflicts * fraction(length, uses)
}

#[cfg(test)]
mod tests {
    use super::super::trial::{self, batches};
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    fn subtree(k: u32, u: f64, c: f64) -> Subtree {
        Subtree::new(f64::from(k), u, c).expect("right")
    }

    #[derive(Clone, Copy)]
    enum Grain {
        Node,
        Deep,
        Holes,
    }

    /// Messages per second, and the part of all uses that need none.
    fn work(rng: &mut Rng, k: usize, (u, c): (f64, f64), t: f64, grain: Grain) -> (f64, f64) {
        let rate = k as f64 * (u + c);
        // Of each object; of the deep lease, in which `holes` are.
        let mut nodes = vec![f64::NEG_INFINITY; k];
        let (mut deep, mut holes) = (f64::NEG_INFINITY, vec![false; k]);
        let (mut now, mut messages, mut uses, mut free) = (0.0, 0.0, 0.0, 0.0);
        while now < 20_000.0 / rate {
            now += rng.exponential(rate);
            let object = rng.below(k as u64) as usize;
            let is_use = rng.uniform() <= u / (u + c);
            let before = messages;
            match (grain, is_use) {
                (Grain::Node, true) if nodes[object] <= now => {
                    messages += 2.0;
                    nodes[object] = now + t;
                }
                (Grain::Node, false) if nodes[object] > now => {
                    messages += 2.0;
                    nodes[object] = f64::NEG_INFINITY;
                }
                (Grain::Deep | Grain::Holes, true) if deep <= now => {
                    messages += 2.0;
                    deep = now + t;
                }
                (Grain::Deep, false) if deep > now => {
                    messages += 2.0;
                    deep = f64::NEG_INFINITY;
                }
                _ => {}
            }
            if let Grain::Holes = grain
                && holes[object] == is_use
            {
                messages += 2.0;
                holes[object] = !is_use;
            }
            if is_use {
                uses += 1.0;
                free += f64::from(u8::from(messages == before));
            }
        }
        (messages / now, free / uses)
    }

    #[test]
    fn equal_to_a_small_simulation() {
        for (at, (k, u, c, t)) in [(20, 0.5, 0.01, 5.0), (5, 1.0, 0.3, 2.0)].into_iter().enumerate() {
            let (tree, covered) = (subtree(k, u, c), subtree(k, u, c).covered(Term(t)));
            for (grain, cost, covered) in [
                (Grain::Node, tree.node_cost(Term(t)), covered.node),
                (Grain::Deep, tree.deep_cost(Term(t)), covered.deep),
                (Grain::Holes, tree.deep_with_holes_cost(Term(t)), covered.holes),
            ] {
                let (seed, what) = (150 + at as u64, format!("k {k} u {u} c {c} t {t}"));
                let found = batches(seed, |rng| work(rng, k as usize, (u, c), t, grain).0);
                found.agrees_with(cost, &what);
                // Uses are random, so they see what part of the time is covered.
                let found = batches(seed, |rng| work(rng, k as usize, (u, c), t, grain).1);
                match grain {
                    Grain::Node | Grain::Deep => found.agrees_with(covered, &what),
                    Grain::Holes => assert!((covered / found.mean - 1.0).abs() < 0.01, "{what}: {found:?}"),
                }
            }
        }
    }

    #[test]
    fn the_gain_is_in_beginning_and_in_renewal_the_loss_in_false_sharing() {
        let alone = subtree(1000, 0.1, 0.0);
        assert_eq!((alone.first_node_cost(), alone.first_deep_cost(16.0)), (2000.0, Ok(34.0)));
        assert!(alone.first_deep_cost(-1.0).is_err() && alone.first_deep_cost(f64::NAN).is_err());
        assert!(alone.deep_cost(Term(10.0)) < 0.01 * alone.node_cost(Term(10.0)));
        let calm = subtree(1000, 0.1, 0.001).covered(Term(100.0));
        assert!(calm.node > 0.85 && calm.deep > 0.98 && calm.holes > 0.98, "{calm:?}");
        assert!(Subtree::new(0.0, 1.0, 1.0).is_err() && Subtree::new(1.0, -1.0, 1.0).is_err());
        assert!(Subtree::new(1.0, 1.0, f64::NAN).is_err());
    }

    proptest! {
        #[test]
        fn one_object_is_no_tree(u in trial::rates(9.0), c in trial::rates(2.0), t in trial::times(100.0)) {
            let tree = subtree(1, u, c);
            prop_assert!((tree.node_cost(Term(t)) - tree.deep_cost(Term(t))).abs() < 1e-9);
        }

        #[test]
        fn holes_gain_nothing_where_all_objects_are_alike(
            k in 1_u32..5000, u in trial::rates(9.0), c in trial::rates(9.0), t in trial::times(1e4)
        ) {
            let tree = subtree(k, u, c);
            let (deep, holes) = (tree.deep_cost(Term(t)), tree.deep_with_holes_cost(Term(t)));
            prop_assert!(holes >= deep * (1.0 - 1e-9), "holes {holes} deep {deep}");
            let covered = tree.covered(Term(t));
            prop_assert!(covered.holes <= covered.deep + 1e-9, "{covered:?}");
        }

        #[test]
        fn deep_leases_cost_fewer_messages_where_the_client_at_work_needs_the_objects_more_often_than_others(
            k in 1_u32..5000, u in 0.001..9.0_f64, c in trial::rates(2.0), t in trial::times(1e4), often in prop::bool::ANY,
        ) {
            // As many with conflicts that are more frequent than uses as without.
            let (u, t) = if often { (u * c / 9.0, t / 1e3) } else { (u.max(c), t) };
            let tree = subtree(k, u, c);
            let (deep, node) = (tree.deep_cost(Term(t)), tree.node_cost(Term(t)));
            let (less, more) = if c <= u { (deep, node) } else { (node, deep) };
            prop_assert!(less <= more * (1.0 + 1e-9), "deep {deep} node {node}");
        }
    }
}
