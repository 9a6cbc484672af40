//! What operations leave behind.

use crate::support::*;
use soda_lease::table::{ObjectTerm, OpKey, Outcome, TableConfig, WriteLeases};
use soda_types::{Grant, Mode, SessionId, Term, VolumeId};
use std::time::Duration;

#[test]
fn a_lease_given_again_has_a_new_epoch() {
    let mut bench = Bench::new();
    assert_eq!(bench.run(1, read(7)), [grant(Mode::Read, 7, 1)]);
    assert_eq!(bench.run(1, read(7)), [grant(Mode::Read, 7, 2)]);
    assert_eq!(bench.run(1, change(7)), [grant(Mode::Write, 7, 3)]);
    assert_eq!(bench.run(1, read(7)), [grant(Mode::Write, 7, 4)], "the stronger one is kept");
    assert_eq!(bench.table.len(), 1);
}

#[test]
fn nobody_gets_what_he_does_not_want() {
    let mut bench = Bench::new();
    assert_eq!(bench.run(1, read(7).without_lease()), []);
    assert_eq!(bench.run(1, change(7).without_lease()), []);
    assert_eq!(bench.table.object_count(), 0, "and nothing is remembered");
}

#[test]
fn who_changes_what_it_caches_ends_with_a_write_lease_even_if_it_cannot_be_told() {
    for write_leases in [WriteLeases::Grant, WriteLeases::OnlyToHolders] {
        let mut bench = Bench::with(TableConfig { write_leases, ..plain() });
        bench.run(1, read(7));
        assert_eq!(bench.run(1, change(7).without_lease()), []);
        assert_eq!(bench.modes(7), [(1, Mode::Write)]);
        // So its caches are brought to the new state before anybody reads it.
        assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 2)]);
        assert_eq!(bench.ack(1, kept(7, 2)), [admit(1)]);
    }
}

#[test]
fn write_leases_only_for_holders() {
    let mut bench = Bench::with(TableConfig { write_leases: WriteLeases::OnlyToHolders, ..plain() });
    assert_eq!(bench.run(1, change(7)), []);
    bench.run(1, read(7));
    assert_eq!(bench.run(1, change(7)), [grant(Mode::Write, 7, 2)]);
}

#[test]
fn a_new_inode_belongs_to_its_maker() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    let grants = bench.table.finish_with(bench.now, OpKey(1), Outcome::Applied, &[f(100)]);
    assert_eq!(grants, [grant(Mode::Write, 7, 1), grant(Mode::Write, 100, 2)]);
}

#[test]
fn a_change_while_asked_for_the_lease_leaves_it_to_be_answered() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    // Somebody asked and went away; the recall is not answered.
    bench.request(2, 1, &[change(7)]);
    bench.cancel(1);
    assert_eq!(bench.run(1, change(7)), []);
    // The next reader has to wait for that answer: session 1 may cache what was before its change.
    assert_eq!(bench.request(3, 2, &[read(7)]), []);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(2)]);
}

#[test]
fn term_0_gives_nothing_and_still_keeps_order() {
    let mut bench = Bench::with(TableConfig { object_term: ObjectTerm::None, ..plain() });
    assert_eq!(bench.run(1, read(7)), []);
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[read(7)]), []);
    assert_eq!(bench.finish(1), (vec![], vec![admit(2)]));
    assert_eq!(bench.finish(2), (vec![], vec![]));
    assert!(bench.table.is_empty());
}

#[test]
fn a_term_of_its_own_ends_by_itself() {
    let term = Duration::from_secs(3);
    let mut bench = Bench::with(TableConfig { object_term: ObjectTerm::For(term), ..plain() });
    let lease = Grant { term: Term::For(term), ..grant(Mode::Read, 7, 1) };
    assert_eq!(bench.run(1, read(7)), [lease]);
    bench.pass(2.0, &[]);
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.table.poll_timeout(), Some(secs(3.0)));
    assert_eq!(bench.pass(3.0, &[]), [admit(1)], "no answer, and nobody is fenced");
    assert_eq!(bench.table.counters().expiries, 1);
    // When it is over before anybody asks, nobody is asked.
    bench.finish(1);
    bench.pass(7.0, &[]);
    assert_eq!(bench.request(3, 2, &[change(7)]), [admit(2)]);
}

#[test]
fn a_session_can_have_a_term_of_its_own() {
    let term = Duration::from_secs(3);
    let mut bench = Bench::new();
    bench.table.set_object_term(SessionId(1), Some(ObjectTerm::For(term)));
    bench.table.set_object_term(SessionId(2), Some(ObjectTerm::None));
    let lease = Grant { term: Term::For(term), ..grant(Mode::Read, 7, 1) };
    assert_eq!(bench.run(1, read(7)), [lease]);
    assert_eq!(bench.run(2, read(7)), []);
    assert_eq!(bench.run(3, read(7)), [grant(Mode::Read, 7, 2)], "the term of the others");
    let renewed = Grant { term: Term::For(term), ..grant(Mode::Read, 7, 3) };
    assert_eq!(bench.run(1, read(7)), [renewed]);
    // Over what policy says of the volume, too.
    let mut bench = Bench::with(TableConfig { object_term: ObjectTerm::None, ..plain() });
    bench.table.set_object_term(SessionId(1), Some(ObjectTerm::Session));
    assert_eq!(bench.run(1, read(7)), [grant(Mode::Read, 7, 1)]);
    bench.table.set_object_term(SessionId(1), None);
    assert_eq!(bench.run(1, read(8)), []);
}

#[test]
fn a_volume_can_have_a_term_of_its_own() {
    let mut config = plain();
    config.volume_terms.insert(VolumeId(1), ObjectTerm::None);
    assert_eq!(Bench::with(config).run(1, read(7)), []);
}

#[test]
fn the_least_recently_granted_lease_makes_room() {
    let mut bench = Bench::with(TableConfig { max_leases_per_session: 2, ..plain() });
    bench.run(1, read(7));
    bench.run(1, read(8));
    bench.run(1, read(7));
    // No room: this one is not given, and the oldest is asked for.
    assert_eq!(bench.request(1, 1, &[read(9)]), [admit(1)]);
    let (grants, outputs) = bench.finish(1);
    assert_eq!(grants, []);
    let [soda_lease::Output::Recall { session, recall }] = outputs.as_slice() else { panic!("{outputs:?}") };
    assert_eq!((*session, recall.fid, recall.cause.clone()), (s(1), f(8), soda_types::Cause::Reclaim));
    assert_eq!(bench.ack(1, gone(8, 2)), []);
    assert_eq!(bench.run(1, read(9)).len(), 1);
}

#[test]
fn a_full_table_makes_the_asking_session_pay() {
    let mut bench = Bench::with(TableConfig { max_leases: 2, ..plain() });
    bench.run(1, read(7));
    bench.run(2, read(7));
    assert_eq!(bench.request(3, 1, &[read(7)]), [admit(1)]);
    assert_eq!(bench.finish(1), (vec![], vec![]), "it has none to give");
    assert_eq!(bench.table.counters().refusals_full, 1);
}

#[test]
fn what_nobody_refers_to_is_forgotten() {
    let mut bench = Bench::new();
    for ino in 0..1000 {
        bench.run(1, read(ino));
    }
    assert_eq!(bench.table.object_count(), 1000);
    bench.table.close_session(bench.now, s(1));
    assert_eq!((bench.table.object_count(), bench.table.len()), (0, 0));
}
