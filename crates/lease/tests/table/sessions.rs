//! Sessions open, renew, say goodbye and end.

use crate::support::*;
use soda_lease::table::SessionEnded;
use soda_types::Mode;

#[test]
fn the_unknown_are_refused() {
    let mut bench = Bench::new();
    assert_eq!(bench.table.handle_traffic(bench.now, s(9)), Err(SessionEnded));
    assert_eq!(bench.request(9, 1, &[read(7)]), [refuse(1)]);
    assert_eq!(bench.table.handle_reclaim(bench.now, s(9), &[]), Err(SessionEnded));
}

#[test]
fn one_renewal_is_for_all_leases() {
    let mut bench = Bench::new();
    (1..=100).for_each(|ino| drop(bench.run(1, read(ino))));
    bench.pass(9.0, &[]);
    bench.renew(1);
    assert_eq!(bench.request(2, 1, &[change(50)]), [recall(1, 50, 50)]);
    assert_eq!(bench.table.poll_timeout(), Some(secs(11.0)));
    assert_eq!(bench.table.counters().renewals, 1);
}

#[test]
fn renewal_never_shortens() {
    let mut bench = Bench::new();
    bench.now = secs(5.0);
    bench.renew(1);
    let left = |bench: &Bench| bench.table.sessions(secs(5.0))[0].left;
    assert_eq!(left(&bench), TERM);
    bench.table.open_session(secs(1.0), s(1));
    assert_eq!(left(&bench), TERM);
}

#[test]
fn goodbye_lets_others_in_at_once() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    bench.table.close_session(bench.now, s(1));
    assert_eq!(bench.outputs(), [admit(1)]);
    assert!(bench.table.is_empty());
}

#[test]
fn goodbye_ends_what_waits() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    bench.request(3, 2, &[read(7)]);
    bench.table.close_session(bench.now, s(2));
    assert_eq!(bench.outputs(), [refuse(1), admit(2)]);
}

#[test]
fn fencing_comes_before_what_it_makes_possible() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    bench.run(1, change(8));
    // Session 1 itself waits for something when it dies.
    bench.run(2, read(9));
    assert_eq!(bench.request(1, 1, &[change(9)]), [recall(2, 9, 3)]);
    assert_eq!(bench.request(3, 2, &[read(7)]), [lower(1, 7, 1)]);
    assert_eq!(bench.request(4, 3, &[read(8)]), [lower(1, 8, 2)]);
    let outputs: Vec<_> =
        bench.pass(10.0, &[2, 3, 4]).into_iter().skip_while(|o| *o != expired(1, 7)).collect();
    assert_eq!(outputs, [expired(1, 7), refuse(1), admit(2), admit(3)]);
}

#[test]
fn what_runs_when_its_session_ends_goes_on_and_gets_no_lease() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(1, 1, &[change(8)]), [admit(1)]);
    bench.pass(30.0, &[2]);
    assert_eq!(bench.request(2, 2, &[change(7)]), [expired(1, 7), admit(2)]);
    assert_eq!(bench.request(2, 3, &[read(8)]), [], "its change has not ended");
    assert_eq!(bench.finish(1), (vec![], vec![admit(3)]));
}

#[test]
fn sessions_can_be_listed() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    let listed = bench.table.sessions(bench.now);
    assert_eq!(listed.len(), 4);
    assert_eq!((listed[0].leases, listed[0].unanswered), (1, 1));
    assert_eq!(bench.table.lease(s(1), f(7)).map(|lease| lease.mode), Some(Mode::Read));
    assert_eq!(bench.table.lease(s(2), f(7)), None);
    assert_eq!(bench.table.leases(bench.now, 10).len(), 1);
}

#[test]
fn who_needs_something_else_of_an_expired_session_ends_it() {
    let mut bench = Bench::new();
    bench.run(1, read(8));
    bench.pass(4.0, &[2]);
    let now = bench.now;
    assert_eq!(bench.table.contest(now, s(1), f(7)), Some(TERM * 6 / 10));
    assert_eq!(bench.table.contest(now, s(9), f(7)), None);
    assert_eq!(bench.outputs(), []);
    bench.pass(10.0, &[2]);
    let now = bench.now;
    assert_eq!(bench.table.contest(now, s(1), f(7)), None);
    assert_eq!(bench.outputs(), [expired(1, 7)]);
    assert_eq!(bench.modes(8), []);
}

#[test]
fn nobody_is_taken_for_dead_because_the_server_stood_still() {
    let mut bench = Bench::new();
    bench.run(1, read(8));
    bench.pass(11.0, &[]);
    let now = bench.now;
    bench.table.handle_own_pause(now);
    assert_eq!(bench.table.contest(now, s(1), f(8)), Some(TERM));
    assert_eq!(bench.outputs(), []);
    assert_eq!(bench.modes(8).len(), 1);
}
