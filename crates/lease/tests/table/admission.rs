//! Which operation may run when.

use crate::support::*;
use soda_lease::table::{OpKey, Outcome};
use soda_types::{Cause, Mode, Name};

#[test]
fn readers_run_together() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[read(7)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[read(7)]), [admit(2)]);
    assert_eq!(bench.finish(1), (vec![grant(Mode::Read, 7, 1)], vec![]));
    assert_eq!(bench.finish(2), (vec![grant(Mode::Read, 7, 2)], vec![]));
    assert_eq!(bench.modes(7), [(1, Mode::Read), (2, Mode::Read)]);
    assert_eq!(bench.table.poll_timeout(), None);
}

#[test]
fn changes_of_one_object_run_one_by_one() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert_eq!(bench.request(1, 2, &[change(7)]), []);
    assert_eq!(bench.request(1, 3, &[change(8)]), [admit(3)]);
    assert_eq!(bench.finish(1), (vec![grant(Mode::Write, 7, 1)], vec![admit(2)]));
}

#[test]
fn a_change_waits_for_a_read_that_runs() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[read(7)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[change(7)]), []);
    // The reader gets no lease that would have to be recalled at once.
    assert_eq!(bench.finish(1), (vec![], vec![admit(2)]));
}

#[test]
fn an_operation_without_accesses_runs() {
    assert_eq!(Bench::new().request(1, 1, &[]), [admit(1)]);
}

#[test]
fn accesses_to_one_object_count_as_the_strongest() {
    let mut bench = Bench::new();
    let names = |name: &str| Cause::Names(vec![Name::try_from(name).unwrap()]);
    let one = soda_lease::Access::change(f(7), names("a")).without_lease();
    let other = soda_lease::Access::change(f(7), names("b"));
    assert_eq!(bench.request(1, 1, &[read(7), one, other]), [admit(1)]);
    assert_eq!(bench.finish(1), (vec![grant(Mode::Write, 7, 1)], vec![]));
    // The holder hears of all names.
    let (one, other) =
        (soda_lease::Access::change(f(7), names("a")), soda_lease::Access::change(f(7), names("b")));
    let out = bench.request(2, 2, &[one, other]);
    let [soda_lease::Output::Recall { recall, .. }] = out.as_slice() else { panic!("{out:?}") };
    let Cause::Names(found) = &recall.cause else { panic!("{recall:?}") };
    assert_eq!(found.len(), 2);
}

#[test]
fn first_come_first_served() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[read(7)]), []);
    assert_eq!(bench.request(3, 3, &[read(7)]), []);
    assert_eq!(bench.request(4, 4, &[change(7)]), []);
    assert_eq!(bench.request(2, 5, &[read(7)]), []);
    // Nothing is granted to the writer: others wait.
    assert_eq!(bench.finish(1), (vec![], vec![admit(2), admit(3)]));
    assert_eq!(bench.finish(3), (vec![], vec![]));
    assert_eq!(bench.finish(2), (vec![], vec![admit(4)]));
    assert_eq!(bench.finish(4), (vec![], vec![admit(5)]));
    assert_eq!(bench.finish(5), (vec![grant(Mode::Read, 7, 1)], vec![]));
}

#[test]
fn renames_across_two_directories_do_not_deadlock() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[change(7), change(8)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[change(8), change(7)]), []);
    assert_eq!(bench.request(3, 3, &[change(7), change(8)]), []);
    assert_eq!(bench.finish(1), (vec![], vec![admit(2)]));
    assert_eq!(bench.finish(2), (vec![], vec![admit(3)]));
}

#[test]
fn an_operation_on_two_objects_waits_for_both() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(2, read(8));
    assert_eq!(bench.request(3, 1, &[change(7), change(8)]), [recall(1, 7, 1), recall(2, 8, 2)]);
    assert_eq!(bench.ack(2, gone(8, 2)), []);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}

#[test]
fn a_cancelled_operation_is_not_admitted() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[change(7)]), []);
    assert_eq!(bench.request(3, 3, &[read(7)]), []);
    assert_eq!(bench.cancel(2), []);
    assert_eq!(bench.finish(1), (vec![], vec![admit(3)]));
    // What runs is not stopped.
    assert_eq!(bench.cancel(3), []);
    assert_eq!(bench.finish(3).0.len(), 1);
}

#[test]
fn cancelling_the_one_in_front_lets_the_next_go() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.request(3, 2, &[read(7)]), []);
    assert_eq!(bench.cancel(1), [admit(2)]);
    // The holder may still answer.
    assert_eq!(bench.ack(1, gone(7, 1)), []);
}

#[test]
fn a_covered_operation_goes_ahead_of_the_queue() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 1)]);
    // The kernel of session 1 holds the directory's lock for this; its answer to the recall waits for it.
    assert_eq!(bench.request(1, 2, &[change(7)]), [admit(2)]);
    // Its result must show in the caches of session 1 before session 2 reads it: the recall gets a new epoch.
    assert_eq!(bench.finish(2), (vec![], vec![lower(1, 7, 2)]));
    assert_eq!(bench.ack(1, kept(7, 1)), [], "an answer given before the change");
    assert_eq!(bench.ack(1, kept(7, 2)), [admit(1)]);
    // From now on session 1 holds a read lease, and queues like everybody else.
    assert_eq!(bench.request(1, 3, &[change(7)]), []);
}

#[test]
fn a_covered_read_goes_ahead_of_a_waiting_change() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.request(1, 2, &[read(7)]), [admit(2)]);
    assert_eq!(bench.finish(2), (vec![], vec![]), "no new promise while the old one is asked for");
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
    assert_eq!(bench.request(1, 3, &[read(7)]), []);
}

#[test]
fn a_covered_operation_waits_for_what_runs() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert_eq!(bench.request(2, 2, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.request(1, 3, &[change(7)]), []);
    assert_eq!(bench.finish(1), (vec![], vec![admit(3)]), "ahead of session 2");
}

#[test]
fn a_failed_change_leaves_no_more_than_a_read() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    let grants = bench.table.finish(bench.now, OpKey(1), Outcome::Failed);
    assert_eq!(grants, [grant(Mode::Read, 7, 1)]);
}

#[test]
fn finishing_what_does_not_run_does_nothing() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.finish(1), (vec![], vec![]));
    assert_eq!(bench.finish(99), (vec![], vec![]));
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}

#[test]
fn who_waits_for_whom_can_be_seen() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    bench.request(3, 2, &[read(7)]);
    bench.pass(2.0, &[]);
    let waiting = bench.table.waiting(bench.now, f(7));
    let seen: Vec<_> = waiting.iter().map(|wait| (wait.op, wait.blocked_by.clone())).collect();
    assert_eq!(seen, [(OpKey(1), vec![s(1)]), (OpKey(2), vec![s(2)])]);
    assert_eq!(waiting[0].waited, std::time::Duration::from_secs(2));
    // If session 1 goes on renewing: three terms to the deadline, of which two seconds are over, and a term.
    assert_eq!(waiting[0].at_latest, Some(std::time::Duration::from_secs(38)));
    assert_eq!(bench.table.waiting_count(), 2);
}

#[test]
fn whether_a_read_would_run_at_once() {
    let mut bench = Bench::new();
    let at_once = |bench: &Bench, session| bench.table.reads_at_once(s(session), f(7));
    assert!(at_once(&bench, 1), "nobody knows the object");
    bench.run(1, read(7));
    assert!(at_once(&bench, 2));
    bench.run(1, change(7));
    assert!(at_once(&bench, 1) && !at_once(&bench, 2), "it would have to be recalled");
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert!(!at_once(&bench, 1), "a change runs");
    bench.finish(1);
    assert_eq!(bench.request(2, 2, &[change(7)]).len(), 1);
    assert!(!at_once(&bench, 1), "somebody waits");
}

#[test]
fn one_reader_more_of_many_looks_at_one_lease() {
    const READERS: u64 = 100;
    let mut bench = Bench::new();
    let examined = |bench: &Bench| bench.table.counters().leases_examined;
    for session in 1..=READERS {
        bench.table.open_session(bench.now, s(session));
        let before = examined(&bench);
        bench.run(session, read(7));
        assert!(examined(&bench) - before <= 1, "reader {session}");
    }
    assert_eq!(bench.modes(7).len() as u64, READERS);
    // A change has to ask each of them.
    let before = examined(&bench);
    assert_eq!(bench.request(1, 1, &[change(7)]).len() as u64, READERS - 1);
    assert_eq!(examined(&bench) - before, READERS);
}
