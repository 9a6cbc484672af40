//! The table asks for exactly those leases that the pure rules ([`soda_lease::conflict`]) say are in the way.

use crate::support::*;
use proptest::prelude::*;
use soda_lease::Output;
use soda_lease::conflict::{Concession, Place, Reach, concession};
use soda_lease::table::{Access, Intent};
use soda_types::{Mode, Scope};
use std::collections::BTreeMap;

/// What the rules want of a holder, in the table's words: what it may keep. `None`: nothing is asked of it.
fn asked_of(held: Mode, place: Place, access: Mode) -> Option<Option<Mode>> {
    let node = |mode| Reach { scope: Scope::Node, mode };
    match concession(node(held), place, node(access)) {
        Concession::Nothing => None,
        Concession::LowerToRead => Some(Some(Mode::Read)),
        Concession::GiveUp => Some(None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Objects 7 and 8 stand for a directory and something in it: a node lease on one says nothing about the other.
    #[test]
    fn what_is_recalled_is_what_the_rules_say(
        readers in prop::collection::btree_set((1..=4_u64, 7..=8_u64), 0..=8),
        writers in prop::collection::btree_map(7..=8_u64, 1..=4_u64, 0..=2),
        asker in 1..=4_u64,
        asked in prop::collection::btree_map(7..=8_u64, prop::bool::ANY, 1..=2),
    ) {
        let mut bench = Bench::new();
        let mut held = BTreeMap::new();
        for (session, ino) in readers {
            if !writers.contains_key(&ino) {
                bench.run(session, read(ino));
                held.insert((session, ino), Mode::Read);
            }
        }
        for (ino, session) in writers {
            bench.run(session, change(ino));
            held.insert((session, ino), Mode::Write);
        }
        let accesses: Vec<Access> =
            asked.iter().map(|(ino, changes)| if *changes { change(*ino) } else { read(*ino) }).collect();
        let mut expected = BTreeMap::new();
        for ((session, ino), mode) in &held {
            for access in &accesses {
                let place = if access.fid == f(*ino) {
                    Place::Same
                } else if access.fid.ino.0 > *ino {
                    Place::Above
                } else {
                    Place::Below
                };
                let wanted = if access.intent == Intent::Change { Mode::Write } else { Mode::Read };
                if *session != asker && let Some(keep) = asked_of(*mode, place, wanted) {
                    expected.insert((*session, *ino), keep);
                }
            }
        }
        let outputs = bench.request(asker, 1, &accesses);
        let recalled: BTreeMap<_, _> = outputs.iter().filter_map(|output| match output {
            Output::Recall { session, recall } => Some(((session.0, recall.fid.ino.0), recall.to)),
            _ => None,
        }).collect();
        prop_assert_eq!(&recalled, &expected);
        prop_assert_eq!(outputs.contains(&admit(1)), expected.is_empty());
    }
}

#[test]
fn the_writers_own_lease_is_not_recalled() {
    for first in [read(7), change(7)] {
        let mut bench = Bench::new();
        bench.run(1, first);
        bench.run(1, change(7));
        bench.run(1, read(7));
        assert_eq!(bench.modes(7), [(1, Mode::Write)]);
    }
    // With other readers there, only these are asked.
    let mut bench = Bench::new();
    (1..=3).for_each(|session| drop(bench.run(session, read(7))));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1), recall(3, 7, 3)]);
}
