//! What a holder may have to see done before it can answer goes first.

use crate::support::*;
use proptest::prelude::*;
use soda_lease::table::{Access, ObjectTerm, OpKey};
use soda_lease::{Intent, Output};
use soda_types::Recall;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[test]
fn an_operation_of_a_holder_goes_before_those_who_asked() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    // The kernel of session 1 holds the directory's lock for this one, and its answer waits for the lock.
    assert_eq!(bench.request(1, 2, &[change(7)]), [admit(2)]);
    assert_eq!(bench.finish(2), (vec![], vec![]), "no new promise while the old one is asked for");
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}

#[test]
fn it_waits_for_what_runs_and_for_other_holders() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(3, read(7));
    assert_eq!(bench.request(4, 1, &[read(7)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[change(7)]), [recall(1, 7, 1), recall(3, 7, 2)]);
    assert_eq!(bench.request(1, 3, &[change(7)]), [], "nobody is asked twice");
    let waiting = bench.table.waiting(bench.now, f(7));
    assert_eq!(waiting[1].blocked_by, [s(3), s(4)], "not session 2, which came before");
    assert_eq!(bench.finish(1), (vec![], vec![]));
    assert_eq!(bench.ack(3, gone(7, 2)), [admit(3)]);
    assert_eq!(bench.finish(3), (vec![], vec![]));
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(2)]);
}

#[test]
fn it_passes_whoever_waits_behind_those_who_asked() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    // Does not ask session 1 for anything, but waits for session 2.
    assert_eq!(bench.request(3, 2, &[read(7), change(9)]), []);
    assert_eq!(bench.request(1, 3, &[change(7)]), [admit(3)]);
}

#[test]
fn it_goes_first_on_all_its_objects() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(2, 1, &[read(7), read(8)]), [lower(1, 7, 1)]);
    // A rename out of a directory that session 1 is asked for, into one that it does not know.
    assert_eq!(bench.request(1, 2, &[change(7), change(8)]), [admit(2)]);
}

#[test]
fn an_answer_ends_the_precedence() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(3, read(8));
    assert_eq!(bench.request(2, 1, &[change(7), change(8)]), [recall(1, 7, 1), recall(3, 8, 2)]);
    assert_eq!(bench.ack(1, gone(7, 1)), []);
    assert_eq!(bench.request(1, 2, &[change(7)]), []);
    assert_eq!(bench.ack(3, gone(8, 2)), [admit(1)]);
    assert_eq!(bench.finish(1).1, [admit(2)]);
}

#[test]
fn of_two_holders_that_both_change_the_first_is_first() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(2, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    // Session 2 could not answer before its own operation is done: it is asked only when that runs.
    assert_eq!(bench.request(1, 2, &[change(7)]), []);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1), recall(2, 7, 2)]);
    assert_eq!(bench.finish(1), (vec![], vec![]));
    assert_eq!(bench.ack(2, gone(7, 2)), [admit(2)]);
}

/// Session 1 cannot answer before its own change is done, and that waits behind session 2's only for as long as session 2
/// has its lease, which runs out before anybody looks at the recall again.
#[test]
fn of_two_holders_the_first_is_first_until_its_lease_runs_out() {
    let mut bench = Bench::new();
    let term = Duration::from_millis(1500);
    bench.table.set_object_term(s(2), Some(ObjectTerm::For(term)));
    bench.run(1, read(7));
    bench.run(2, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.request(1, 2, &[change(7)]), []);
    assert_eq!(bench.pass(1.4, &[1, 2]), []);
    assert_eq!(bench.pass(1.5, &[1, 2]), [admit(2)]);
    assert_eq!(bench.finish(2), (vec![], vec![]));
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}

/// Session 1's kernel has a page to write back before it can drop it. Written behind the change that it is asked for, the whole
/// page would take that change back.
#[test]
fn pages_that_are_written_back_go_before_a_change_of_another_holder() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(2, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.request(1, 2, &[change(7).of_write_back()]), [recall(2, 7, 2)]);
    assert_eq!(bench.ack(2, gone(7, 2)), [admit(2)]);
    assert_eq!(bench.finish(2), (vec![], vec![]), "what waits gets no lease in its way");
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}

#[test]
fn of_two_write_backs_the_first_is_first() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(2, read(7));
    assert_eq!(bench.request(2, 1, &[change(7).of_write_back()]), [recall(1, 7, 1)]);
    assert_eq!(bench.request(1, 2, &[change(7).of_write_back()]), []);
    // A change that came later waits for both.
    assert_eq!(bench.request(3, 3, &[change(7)]), []);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1), recall(2, 7, 2)]);
    assert_eq!(bench.finish(1), (vec![], vec![]));
    assert_eq!(bench.ack(2, gone(7, 2)), [admit(2)]);
    assert_eq!(bench.finish(2).1, [admit(3)]);
}

#[test]
fn a_write_back_of_one_who_was_not_asked_waits_its_turn() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.request(3, 2, &[change(7).of_write_back()]), []);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
    assert_eq!(bench.finish(1).1, [admit(2)]);
}

#[test]
fn renames_of_two_holders_across_two_directories_are_not_recalled_in_a_circle() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(2, read(8));
    assert_eq!(bench.request(1, 1, &[change(7), change(8)]), [recall(2, 8, 2)]);
    assert_eq!(bench.request(2, 2, &[change(7), change(8)]), []);
    // Nothing is asked of session 1 before its operation is on its way.
    assert_eq!(bench.ack(2, gone(8, 2)), [admit(1), recall(1, 7, 1)]);
}

#[test]
fn nobody_goes_first_for_ever() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    let mut went_first = 0;
    for second in 1..=60_u32 {
        bench.pass(f64::from(second), &[1, 2, 3]);
        bench.table.handle_progress(bench.now, s(1), &[f(7)]);
        let op = 100 + u64::from(second);
        // The second object is never leased, so that none of them is covered.
        let outputs = bench.request(1, op, &[change(7), change(8).without_lease()]);
        if outputs.contains(&admit(op)) {
            went_first += 1;
            bench.finish(op);
        } else {
            bench.cancel(op);
        }
    }
    assert_eq!(went_first, 29, "until the recall's deadline of three terms");
}

#[test]
fn who_waits_already_when_its_session_is_asked_goes_first_from_then_on() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    bench.run(2, read(9));
    assert_eq!(bench.request(3, 1, &[change(8), change(9)]), [recall(2, 9, 2)]);
    // Behind the change of 8. Nobody has asked session 1 for anything so far.
    assert_eq!(bench.request(1, 2, &[read(7), read(8)]), []);
    assert_eq!(bench.request(2, 3, &[read(7)]), [lower(1, 7, 1), admit(2)]);
}

/// A world in which a session answers a recall only when it has no operation under way on the object, and in which nobody
/// waits for a session that waits for it: each object is cached by one session only.
struct World {
    bench: Bench,
    ops: BTreeMap<OpKey, (u64, Vec<u64>)>,
    last: u64,
    running: BTreeSet<OpKey>,
    recalls: BTreeMap<(u64, u64), Recall>,
}

const OBJECTS: u64 = 4;

/// Sessions 3 and 4 cache nothing.
fn cached_by(ino: u64) -> u64 {
    1 + ino % 2
}

impl World {
    fn request(&mut self, session: u64, accesses: &[(u64, Intent)]) {
        // Of what others cache one object at a time, or two could wait for each other.
        let caches = session <= 2;
        let foreign = |(ino, _): &(u64, Intent)| cached_by(*ino) != session;
        let accesses = if caches && accesses.iter().any(foreign) { &accesses[..1] } else { accesses };
        self.last += 1;
        let key = OpKey(self.last);
        self.ops.insert(key, (session, accesses.iter().map(|(ino, _)| *ino).collect()));
        let make = |(ino, intent): &(u64, Intent)| {
            let access = if *intent == Intent::Read { read(*ino) } else { change(*ino) };
            if cached_by(*ino) == session { access } else { access.without_lease() }
        };
        let accesses: Vec<Access> = accesses.iter().map(make).collect();
        let outputs = self.bench.request(session, key.0, &accesses);
        self.take(outputs);
    }

    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Admit(op) => drop(self.running.insert(op)),
                Output::Recall { session, recall } => {
                    self.recalls.insert((session.0, recall.fid.ino.0), recall);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn finish(&mut self, op: OpKey) {
        self.running.remove(&op);
        self.ops.remove(&op).expect("an operation that runs");
        let outputs = self.bench.finish(op.0).1;
        self.take(outputs);
    }

    fn answer_one(&mut self) -> bool {
        let busy = |session: u64, ino: u64| {
            self.ops.values().any(|(of, inos)| *of == session && inos.contains(&ino))
        };
        let found = self.recalls.keys().find(|(session, ino)| !busy(*session, *ino)).copied();
        let Some((session, ino)) = found else { return false };
        let recall = self.recalls.remove(&(session, ino)).expect("just found");
        let outputs =
            self.bench.ack(session, soda_types::RecallAck { kept: recall.to, ..gone(ino, recall.epoch.0) });
        self.take(outputs);
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Without a moment passing: so nobody is thrown out, and no answer has to be forced.
    #[test]
    fn no_answer_waits_for_itself(steps in prop::collection::vec(
        (1..=4_u64, prop::collection::btree_map(1..=OBJECTS, prop::bool::ANY, 1..=2), 0..4_u8), 1..60
    )) {
        let bench = Bench::new();
        let mut world =
            World { bench, ops: BTreeMap::new(), last: 0, running: BTreeSet::new(), recalls: BTreeMap::new() };
        for (session, objects, what) in steps {
            match what {
                0 if !world.running.is_empty() => {
                    let op = *world.running.first().expect("not empty");
                    world.finish(op);
                }
                1 => drop(world.answer_one()),
                _ => {
                    let intent = |change| if change { Intent::Change } else { Intent::Read };
                    let accesses: Vec<_> =
                        objects.into_iter().map(|(ino, change)| (ino, intent(change))).collect();
                    world.request(session, &accesses);
                }
            }
        }
        while !world.running.is_empty() || world.answer_one() {
            if let Some(op) = world.running.first().copied() {
                world.finish(op);
            }
        }
        prop_assert!(world.ops.is_empty(), "{:?} wait for {:?}", world.ops, world.recalls);
    }
}
