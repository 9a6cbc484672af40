//! After a restart.

use crate::support::*;
use soda_lease::table::{FenceReason, LeaseTable, SessionEnded, TableConfig};
use soda_types::Mode;
use std::time::Duration;

/// A server that has just restarted and knows sessions 1 and 2 from its disk. Epochs go on at 1000.
fn restarted() -> Bench {
    let mut bench = Bench { table: LeaseTable::new(plain(), e(1000), secs(0.0)), now: secs(0.0) };
    bench.table.begin_grace(bench.now, [s(1), s(2)]);
    assert_eq!(bench.outputs(), []);
    bench
}

#[test]
fn nothing_is_admitted_until_all_are_back() {
    let mut bench = restarted();
    bench.table.open_session(bench.now, s(3));
    assert_eq!(bench.request(3, 1, &[read(7)]), []);
    assert_eq!(bench.request(1, 2, &[change(8)]), []);
    bench.table.finish_reclaim(bench.now, s(1));
    assert_eq!(bench.outputs(), []);
    bench.table.finish_reclaim(bench.now, s(2));
    assert_eq!(bench.outputs(), [admit(1), admit(2)], "early: all are back");
    assert_eq!(bench.table.grace_left(bench.now), None);
}

#[test]
fn leases_are_reclaimed_under_new_epochs() {
    let mut bench = restarted();
    let held = [grant(Mode::Read, 7, 5), grant(Mode::Write, 8, 6)];
    let now = bench.now;
    let answers = bench.table.handle_reclaim(now, s(1), &held);
    assert_eq!(answers, Ok(vec![Some(grant(Mode::Read, 7, 1000)), Some(grant(Mode::Write, 8, 1001))]));
    // The answer was lost: the batch comes again.
    let answers = bench.table.handle_reclaim(now, s(1), &held);
    assert_eq!(answers, Ok(vec![Some(grant(Mode::Read, 7, 1002)), Some(grant(Mode::Write, 8, 1003))]));
    assert_eq!(bench.table.len(), 2);
}

#[test]
fn what_a_reclaimed_lease_covers_runs_in_grace() {
    let mut bench = restarted();
    let held = [grant(Mode::Read, 7, 5), grant(Mode::Write, 8, 6)];
    bench.table.handle_reclaim(bench.now, s(1), &held).unwrap();
    assert_eq!(bench.request(1, 1, &[read(7)]), [admit(1)]);
    assert_eq!(bench.request(1, 2, &[change(8)]), [admit(2)]);
    assert_eq!(bench.request(1, 3, &[change(7)]), []);
}

#[test]
fn the_unknown_and_the_late_are_refused() {
    let mut bench = restarted();
    let held = [grant(Mode::Read, 7, 5)];
    let now = bench.now;
    assert_eq!(bench.table.handle_reclaim(now, s(3), &held), Err(SessionEnded));
    bench.table.open_session(now, s(3));
    assert_eq!(
        bench.table.handle_reclaim(now, s(3), &held),
        Ok(vec![None]),
        "it was not there before the restart"
    );
    bench.table.finish_reclaim(now, s(1));
    assert_eq!(bench.table.handle_reclaim(now, s(1), &held), Ok(vec![None]), "it had said that this was all");
}

#[test]
fn conflicting_reclaims_are_refused() {
    let mut bench = restarted();
    let now = bench.now;
    bench.table.handle_reclaim(now, s(1), &[grant(Mode::Read, 7, 5)]).unwrap();
    assert_eq!(bench.table.handle_reclaim(now, s(2), &[grant(Mode::Write, 7, 6)]), Ok(vec![None]));
    assert_eq!(
        bench.table.handle_reclaim(now, s(2), &[grant(Mode::Read, 7, 6)]).unwrap().iter().flatten().count(),
        1
    );
}

#[test]
fn epochs_that_no_earlier_start_can_have_given_are_refused_and_do_no_harm() {
    let mut bench = restarted();
    let now = bench.now;
    let held = [1000, 5000, u64::MAX].map(|epoch| grant(Mode::Read, epoch, epoch));
    assert_eq!(bench.table.handle_reclaim(now, s(1), &held), Ok(vec![None, None, None]));
    let last = [grant(Mode::Read, 7, 999)];
    assert_eq!(bench.table.handle_reclaim(now, s(1), &last), Ok(vec![Some(grant(Mode::Read, 7, 1000))]));
    assert_eq!(bench.table.last_epoch(), e(1000));
}

#[test]
fn who_does_not_come_back_is_fenced_at_the_end() {
    let mut bench = restarted();
    bench.table.finish_reclaim(bench.now, s(1));
    assert_eq!(bench.request(1, 1, &[change(7)]), []);
    assert_eq!(bench.pass(10.9, &[1]), []);
    assert_eq!(bench.pass(11.0, &[1]), [fence(2, FenceReason::NotReclaimed), admit(1)]);
    assert_eq!(bench.table.handle_traffic(bench.now, s(2)), Err(SessionEnded));
    assert_eq!(bench.table.counters().fences_after_grace, 1);
}

#[test]
fn who_came_back_but_did_not_finish_is_waited_out() {
    let mut bench = restarted();
    bench.table.finish_reclaim(bench.now, s(1));
    bench.request(1, 1, &[change(7)]);
    // Session 2 renews until the last moment: it believes in its leases for a term more.
    bench.pass(10.5, &[1]);
    bench.renew(2);
    assert_eq!(bench.pass(20.4, &[1]), []);
    assert_eq!(bench.table.handle_traffic(bench.now, s(2)), Err(SessionEnded), "nothing renews it any more");
    assert_eq!(bench.pass(20.5, &[1]), [fence(2, FenceReason::NotReclaimed), admit(1)]);
}

#[test]
fn goodbye_in_grace_counts_as_being_back() {
    let mut bench = restarted();
    bench.table.finish_reclaim(bench.now, s(1));
    bench.request(1, 1, &[change(7)]);
    bench.table.close_session(bench.now, s(2));
    assert_eq!(bench.outputs(), [admit(1)]);
}

#[test]
fn a_server_that_knows_nobody_has_no_grace_period() {
    let mut bench = Bench { table: LeaseTable::new(plain(), e(1), secs(0.0)), now: secs(0.0) };
    bench.table.begin_grace(bench.now, []);
    bench.table.open_session(bench.now, s(1));
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
}

#[test]
fn a_reclaim_without_a_restart_says_what_is_held() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    let now = bench.now;
    let answers = bench.table.handle_reclaim(now, s(1), &[grant(Mode::Read, 7, 1), grant(Mode::Read, 8, 1)]);
    assert_eq!(answers, Ok(vec![Some(grant(Mode::Read, 7, 2)), None]));
}

#[test]
fn a_long_reclaim_that_gets_on_is_not_cut_off() {
    let mut bench = restarted();
    bench.table.finish_reclaim(bench.now, s(1));
    bench.request(1, 1, &[change(7)]);
    for batch in 0..10_u32 {
        assert_eq!(bench.pass(2.0 * f64::from(batch + 1), &[1]), []);
        bench.renew(2);
        let held = [grant(Mode::Read, 100 + u64::from(batch), 5)];
        assert_eq!(bench.table.handle_reclaim(bench.now, s(2), &held).unwrap().iter().flatten().count(), 1);
    }
    bench.table.finish_reclaim(bench.now, s(2));
    assert_eq!(bench.outputs(), [admit(1)]);
    assert_eq!(bench.modes(100), [(2, Mode::Read)]);
}

#[test]
fn but_not_for_ever() {
    let mut bench = restarted();
    bench.table.finish_reclaim(bench.now, s(1));
    bench.request(1, 1, &[change(7)]);
    let mut outputs = Vec::new();
    for second in 1..=60 {
        outputs.extend(bench.pass(f64::from(second), &[1]));
        if bench.table.handle_traffic(bench.now, s(2)).is_ok() {
            let _ = bench.table.handle_reclaim(bench.now, s(2), &[]);
        }
        assert_eq!(outputs.is_empty(), second < 53, "four grace periods, and the term from its last renewal");
    }
    assert_eq!(outputs, [fence(2, FenceReason::NotReclaimed), admit(1)]);
}

#[test]
fn who_stops_in_the_middle_is_waited_out() {
    let mut bench = restarted();
    bench.table.finish_reclaim(bench.now, s(1));
    bench.request(1, 1, &[change(7)]);
    bench.pass(10.0, &[1]);
    bench.renew(2);
    bench.table.handle_reclaim(bench.now, s(2), &[grant(Mode::Read, 7, 5)]).unwrap();
    assert_eq!(bench.pass(19.9, &[1]), []);
    assert_eq!(bench.pass(20.0, &[1]), [fence(2, FenceReason::NotReclaimed), admit(1)]);
}

/// It conflicts with nothing, and there is no queue in which it would be found at the end.
#[test]
fn an_operation_without_accesses_does_not_wait() {
    let mut bench = restarted();
    assert_eq!(bench.request(1, 1, &[]), [admit(1)]);
}

/// A server's disk may name any, and the server must start with it.
#[test]
fn no_term_is_too_long_to_be_counted_with() {
    let table = LeaseTable::new(TableConfig::with_term(Duration::MAX), e(1000), secs(0.0));
    let mut bench = Bench { table, now: secs(0.0) };
    bench.table.begin_grace(bench.now, [s(1), s(2)]);
    bench.table.finish_reclaim(bench.now, s(1));
    bench.table.finish_reclaim(bench.now, s(2));
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    bench.finish(1);
    assert_eq!(bench.request(2, 2, &[change(7)]), [recall(1, 7, 1000)]);
}
