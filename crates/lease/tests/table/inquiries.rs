//! What an object is like, asked of its holder instead of the lease.

use crate::support::*;
use soda_lease::table::{Access, DeepLeases, OpKey, Output, TableConfig};
use soda_types::{Cause, Mode, Scope, SessionId};

fn asks(session: u64, op: u64, ino: u64) -> Output {
    Output::Inquire { session: s(session), op: OpKey(op), fid: f(ino) }
}

fn not_described(op: u64) -> Output {
    Output::NotDescribed(OpKey(op))
}

trait Inquires {
    fn inquire(&mut self, session: u64, op: u64, ino: u64) -> Vec<Output>;
    fn describe(&mut self, session: u64, op: u64, describes: bool) -> (bool, Vec<Output>);
    fn behind(&mut self, session: u64);
}

impl Inquires for Bench {
    fn inquire(&mut self, session: u64, op: u64, ino: u64) -> Vec<Output> {
        let may = self.table.may_inquire(self.now, s(session), &read(ino));
        let asked = self.table.inquire(self.now, s(session), OpKey(op), &read(ino));
        assert_eq!(may, asked);
        let outputs = self.outputs();
        assert_eq!(asked, !outputs.is_empty());
        outputs
    }

    fn describe(&mut self, session: u64, op: u64, describes: bool) -> (bool, Vec<Output>) {
        let good = self.table.handle_inquiry_answer(s(session), OpKey(op), describes);
        (good, self.outputs())
    }

    fn behind(&mut self, session: u64) {
        self.table.note_delays(s(session));
    }
}

/// Session 1 delays changes and has a write lease on 7.
fn held() -> Bench {
    let mut bench = Bench::new();
    bench.behind(1);
    bench.run(1, change(7));
    bench
}

#[test]
fn the_holder_says_it_and_keeps_its_lease() {
    let mut bench = held();
    assert_eq!(bench.inquire(2, 10, 7), [asks(1, 10, 7)]);
    assert_eq!(bench.describe(1, 10, true), (true, vec![]));
    assert_eq!(bench.modes(7), [(1, Mode::Write)]);
    assert_eq!(bench.table.poll_timeout(), None);
    let counters = bench.table.counters();
    assert_eq!((counters.inquiries, counters.inquiries_declined, counters.recalls), (1, 0, 0));
}

#[test]
fn only_who_delays_changes_is_asked() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.inquire(2, 10, 7), []);
    bench.behind(1);
    assert_eq!(bench.inquire(2, 11, 7), [asks(1, 11, 7)]);
}

#[test]
fn nobody_is_asked_about_what_can_be_read_or_is_ones_own() {
    let mut bench = held();
    bench.run(1, read(8));
    for ino in [8, 9] {
        assert_eq!(bench.inquire(2, 10, ino), []);
    }
    assert_eq!(bench.inquire(1, 11, 7), []);
}

#[test]
fn a_lease_that_is_asked_back_already_is_waited_for() {
    let mut bench = held();
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 1)]);
    assert_eq!(bench.inquire(3, 10, 7), []);
    bench.cancel(1);
    assert_eq!(bench.inquire(3, 11, 7), [], "the recall has not been answered");
}

/// A digest, or a change that goes through: of that the holder knows that it is not answered.
#[test]
fn what_the_holder_does_at_the_server_meanwhile_is_no_obstacle() {
    let mut bench = held();
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert_eq!(bench.inquire(2, 10, 7), [asks(1, 10, 7)]);
    bench.finish(1);
    assert_eq!(bench.describe(1, 10, true), (true, vec![]));
}

#[test]
fn a_holder_that_declines_is_asked_for_the_lease() {
    let mut bench = held();
    bench.inquire(2, 10, 7);
    assert_eq!(bench.describe(1, 10, false), (false, vec![not_described(10)]));
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 1)]);
}

#[test]
fn only_the_answer_of_who_was_asked_counts_and_once() {
    let mut bench = held();
    bench.inquire(2, 10, 7);
    assert_eq!(bench.describe(3, 10, true), (false, vec![]));
    assert_eq!(bench.describe(1, 11, true), (false, vec![]));
    assert_eq!(bench.describe(1, 10, true), (true, vec![]));
    assert_eq!(bench.describe(1, 10, true), (false, vec![]));
}

#[test]
fn patience_ends_and_a_silent_session_is_not_asked_about_each_of_its_files() {
    let mut bench = held();
    bench.run(1, change(8));
    assert_eq!(bench.inquire(2, 10, 7), [asks(1, 10, 7)]);
    assert_eq!(bench.pass(0.249, &[]), []);
    assert_eq!(bench.pass(0.25, &[]), [not_described(10)]);
    assert_eq!(bench.describe(1, 10, true), (false, vec![]), "too late");
    assert_eq!(bench.inquire(2, 11, 8), []);
    assert_eq!(bench.pass(2.25, &[1, 2]), []);
    assert_eq!(bench.inquire(2, 12, 8), [asks(1, 12, 8)]);
}

#[test]
fn the_end_of_either_session_ends_the_inquiry() {
    let mut bench = held();
    bench.inquire(2, 10, 7);
    bench.table.close_session(bench.now, s(1));
    assert_eq!(bench.outputs(), [not_described(10)]);
    let mut bench = held();
    bench.inquire(2, 10, 7);
    bench.table.close_session(bench.now, s(2));
    assert_eq!(bench.outputs(), [not_described(10)]);
    assert_eq!(bench.describe(1, 10, true), (false, vec![]));
}

#[test]
fn one_that_is_given_up_has_no_answer_and_no_end() {
    let mut bench = held();
    bench.inquire(2, 10, 7);
    bench.table.cancel_inquiry(OpKey(10));
    assert_eq!(bench.describe(1, 10, true), (false, vec![]));
    assert_eq!(bench.pass(1.0, &[1, 2]), []);
}

#[test]
fn a_session_whose_lease_has_run_out_is_not_asked() {
    let mut bench = held();
    bench.pass(10.0, &[2]);
    assert_eq!(bench.inquire(2, 10, 7), []);
    assert_eq!(bench.request(2, 1, &[read(7)]), [expired(1, 7), admit(1)]);
}

#[test]
fn in_the_grace_period_nobody_is_asked() {
    let mut bench = Bench::new();
    bench.table.begin_grace(bench.now, [s(5)]);
    bench.behind(1);
    assert_eq!(bench.inquire(2, 10, 7), []);
}

/// A deep write lease of session 1 on directory 2 covers files that have no lease of their own.
#[test]
fn the_holder_of_a_deep_lease_is_asked_about_what_lies_below() {
    let mut bench = Bench::with(TableConfig { deep_leases: DeepLeases::DEFAULT_ON, ..plain() });
    let below = |access: Access, bench: &Bench| access.below(bench.table.tree_version(), vec![f(2), f(1)]);
    for ino in 10..30 {
        let access = below(Access::change(f(ino), Cause::Data), &bench);
        assert_eq!(bench.request(1, ino, &[access]), [admit(ino)]);
        bench.finish(ino);
    }
    let deep = bench.table.deep_lease(SessionId(1), f(2)).expect("given to who holds many below");
    assert_eq!((deep.scope, deep.mode), (Scope::Subtree, Mode::Write));
    bench.behind(1);
    let access = below(Access::read(f(99)), &bench);
    assert!(bench.table.inquire(bench.now, s(2), OpKey(100), &access));
    assert_eq!(bench.outputs(), [asks(1, 100, 99)]);
    // A hole is not the holder's any more.
    assert_eq!(bench.request(2, 101, std::slice::from_ref(&access)).len(), 1);
    assert!(!bench.table.may_inquire(bench.now, s(3), &access));
}
