//! Asking for leases, and being answered, late, twice, or not at all.

use crate::support::*;
use soda_lease::table::{FenceReason, OpKey, Outcome, Output, TableConfig};
use soda_types::{InUse, Mode, RecallAck};

#[test]
fn a_reader_is_asked_before_a_writer_goes_on() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
    assert_eq!(bench.finish(1), (vec![grant(Mode::Write, 7, 2)], vec![]));
    assert_eq!(bench.modes(7), [(2, Mode::Write)]);
}

#[test]
fn a_writer_keeps_reading_when_somebody_reads() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 1)]);
    assert_eq!(bench.ack(1, kept(7, 1)), [admit(1)]);
    assert_eq!(bench.finish(1), (vec![grant(Mode::Read, 7, 2)], vec![]));
    assert_eq!(bench.modes(7), [(1, Mode::Read), (2, Mode::Read)]);
}

#[test]
fn a_writer_may_give_up_more_than_it_is_asked_for() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 1)]);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
    assert_eq!(bench.modes(7), []);
}

#[test]
fn keeping_more_than_allowed_is_no_answer() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.ack(1, kept(7, 1)), []);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}

#[test]
fn a_sessions_own_lease_is_not_asked_for() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(1, 1, &[change(7)]), [admit(1)]);
    assert_eq!(bench.finish(1), (vec![grant(Mode::Write, 7, 2)], vec![]));
}

#[test]
fn the_last_of_many_answers_lets_the_writer_in() {
    let mut bench = Bench::new();
    (1..=3).for_each(|session| drop(bench.run(session, read(7))));
    assert_eq!(bench.request(4, 1, &[change(7)]), [recall(1, 7, 1), recall(2, 7, 2), recall(3, 7, 3)]);
    assert_eq!(bench.ack(2, gone(7, 2)), []);
    assert_eq!(bench.ack(1, gone(7, 1)), []);
    assert_eq!(bench.ack(3, gone(7, 3)), [admit(1)]);
}

#[test]
fn an_unanswered_recall_is_sent_again() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.table.poll_timeout(), Some(secs(2.0)));
    assert_eq!(bench.pass(1.9, &[1]), []);
    assert_eq!(bench.pass(2.0, &[1]), [recall(1, 7, 1)]);
    assert_eq!(bench.pass(6.5, &[1]), [recall(1, 7, 1), recall(1, 7, 1)]);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
    assert_eq!(bench.pass(20.0, &[1]), []);
}

#[test]
fn a_new_connection_hears_of_its_recalls_at_once() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(3, read(7));
    bench.request(2, 1, &[change(7)]);
    bench.table.handle_reconnect(bench.now, s(1));
    assert_eq!(bench.outputs(), [recall(1, 7, 1)]);
}

#[test]
fn answers_of_the_past_do_nothing() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
    assert_eq!(bench.finish(1), (vec![grant(Mode::Write, 7, 2)], vec![]));
    assert_eq!(bench.ack(1, gone(7, 1)), [], "twice");
    assert_eq!(bench.ack(3, gone(7, 2)), [], "of somebody who holds nothing");
    assert_eq!(bench.ack(2, gone(7, 1)), [], "of an old epoch");
    assert_eq!(bench.ack(2, gone(9, 1)), [], "of an unknown object");
    assert_eq!(bench.modes(7), [(2, Mode::Write)]);
    assert_eq!(bench.table.counters().stale_acks, 4);
}

#[test]
fn a_release_crosses_a_new_grant() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    // The client gave epoch 1 back, but before that arrives it is granted anew: it will refuse or take the new one.
    assert_eq!(bench.run(1, read(7)), [grant(Mode::Read, 7, 2)]);
    bench.table.handle_release(bench.now, s(1), &[gone(7, 1)]);
    assert_eq!(bench.modes(7), [(1, Mode::Read)]);
}

#[test]
fn a_write_lease_lowered_unasked_lets_readers_in_at_once() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    bench.table.handle_release(bench.now, s(1), &[kept(7, 1)]);
    assert_eq!(bench.modes(7), [(1, Mode::Read)]);
    assert_eq!(bench.request(2, 1, &[read(7)]), [admit(1)]);
}

#[test]
fn a_change_that_overtakes_a_lowering_makes_it_void() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    // Lowered at epoch 1, then written: the machine's caches may not show that yet.
    assert_eq!(bench.run(1, change(7)), [grant(Mode::Write, 7, 2)]);
    bench.table.handle_release(bench.now, s(1), &[kept(7, 1)]);
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 2)]);
}

#[test]
fn a_release_crosses_a_recall() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    bench.table.handle_release(bench.now, s(1), &[gone(7, 1)]);
    assert_eq!(bench.outputs(), [admit(1)]);
}

#[test]
fn a_dead_reader_costs_a_writer_one_term_at_most() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.pass(4.0, &[2]);
    assert_eq!(bench.request(2, 1, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.pass(9.999, &[2]), [recall(1, 7, 1), recall(1, 7, 1)]);
    assert_eq!(bench.pass(10.0, &[2]), [expired(1, 7), admit(1)], "a term after its last sign of life");
    assert!(!bench.table.has_session(s(1)));
}

#[test]
fn slow_is_not_dead_progress_moves_the_deadline() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    bench.request(2, 1, &[read(7)]);
    for until in [25.0, 50.0, 75.0, 100.0] {
        let outputs = bench.pass(until, &[1, 2]);
        assert!(outputs.iter().all(|output| *output == lower(1, 7, 1)), "{outputs:?}");
        bench.table.handle_progress(bench.now, s(1), &[f(7), f(8)]);
    }
    assert_eq!(bench.ack(1, kept(7, 1)), [admit(1)]);
    assert_eq!(bench.table.counters().fences, 0);
}

// SEMANTICS 36
#[test]
fn a_holder_that_renews_and_says_nothing_ends_after_the_deadline_and_its_term() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    let resends = |outputs: &[Output]| outputs.iter().all(|output| *output == recall(1, 7, 1));
    assert!(resends(&bench.pass(29.9, &[1, 2])));
    bench.renew(1);
    // From the deadline on nothing renews it; but it believes in its lease until that has run out.
    let outputs = bench.pass(39.8, &[1, 2]);
    assert!(resends(&outputs), "{outputs:?}");
    assert!(bench.table.handle_traffic(bench.now, s(1)).is_err());
    assert_eq!(bench.request(1, 9, &[read(8)]), [refuse(9)]);
    assert_eq!(bench.pass(39.9, &[2]), [fence(1, FenceReason::Silent(f(7))), admit(1)]);
    assert_eq!(bench.table.counters().fences_for_silence, 1);
}

/// What the holder answered meanwhile lies in the server's socket.
#[test]
fn nobody_is_taken_for_silent_because_the_server_stood_still() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    bench.now = bench.now + TERM * 360;
    bench.table.handle_own_pause(bench.now);
    bench.table.handle_timeout(bench.now);
    assert_eq!(bench.table.handle_traffic(bench.now, s(1)), Ok(()));
    bench.outputs();
    // What it may need for its answer goes before the one who waits for that.
    assert_eq!(bench.request(1, 2, &[change(7)]), [admit(2)]);
    bench.table.finish(bench.now, OpKey(2), Outcome::Failed);
    bench.outputs();
    let deadline = 3600.0 + 30.0;
    bench.pass(deadline - 0.1, &[1, 2]);
    assert_eq!(bench.table.handle_traffic(bench.now, s(1)), Ok(()), "it has as long as at first");
    bench.pass(deadline + 0.1, &[1, 2]);
    assert!(bench.table.handle_traffic(bench.now, s(1)).is_err());
}

#[test]
fn even_a_condemned_holder_may_answer() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    bench.pass(31.0, &[1, 2]);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}

#[test]
fn asked_for_more_before_the_first_answer() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 1)]);
    assert_eq!(bench.cancel(1), []);
    assert_eq!(bench.request(3, 2, &[change(7)]), [recall(1, 7, 1)]);
    assert_eq!(bench.ack(1, kept(7, 1)), [], "the answer to the first");
    assert_eq!(bench.modes(7), [(1, Mode::Write)]);
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(2)]);
}

#[test]
fn an_inode_in_use_is_reported_before_the_unlink_goes_on() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    let ack = RecallAck { in_use: InUse::Yes, ..gone(7, 1) };
    assert_eq!(bench.ack(1, ack), [Output::SessionInUse { session: s(1), fid: f(7) }, admit(1)]);
}

#[test]
fn a_holder_that_expired_is_fenced_without_being_asked() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.run(1, read(8));
    bench.pass(30.0, &[2]);
    assert_eq!(bench.modes(8), [(1, Mode::Read)], "kept by courtesy");
    assert_eq!(bench.request(2, 1, &[change(7)]), [expired(1, 7), admit(1)]);
    assert_eq!(bench.modes(8), []);
}

#[test]
fn a_recall_that_nobody_needs_any_more_fences_nobody() {
    let mut bench = Bench::new();
    bench.run(1, read(7));
    bench.request(2, 1, &[change(7)]);
    bench.cancel(1);
    let outputs = bench.pass(60.0, &[2]);
    assert!(outputs.iter().all(|output| *output == recall(1, 7, 1)), "{outputs:?}");
    assert!(bench.table.has_session(s(1)));
    assert_eq!(bench.table.poll_timeout(), None);
    // It comes back from its long sleep and goes on.
    bench.renew(1);
    assert_eq!(bench.run(1, read(7)), [grant(Mode::Read, 7, 2)]);
}

#[test]
fn an_answer_to_keep_reading_does_not_count_when_all_is_wanted() {
    // Its answer is sent twice, because it is asked twice. In between the lease is asked for as a whole, and session 1 makes
    // a change which its answer says nothing of.
    let mut bench = Bench::with(TableConfig { max_leases_per_session: 1, ..plain() });
    bench.run(1, change(7));
    bench.run(4, change(8));
    assert_eq!(bench.request(2, 1, &[read(7), read(8)]), [lower(1, 7, 1), lower(4, 8, 2)]);
    assert_eq!(bench.ack(1, kept(7, 1)), []);
    // No room for another lease: the table asks for the only one.
    assert_eq!(bench.request(1, 2, &[read(10)]), [admit(2)]);
    let reclaim = soda_types::Recall {
        fid: f(7),
        epoch: e(1),
        to: None,
        cause: soda_types::Cause::Reclaim,
        part: None,
    };
    let reclaim = soda_lease::Output::Recall { session: s(1), recall: reclaim };
    assert_eq!(bench.finish(2), (vec![], vec![reclaim]));
    assert_eq!(bench.request(1, 3, &[change(7)]), [admit(3)]);
    assert_eq!(bench.finish(3), (vec![], vec![]));
    assert_eq!(bench.ack(4, kept(8, 2)), [], "session 1 has a write lease");
    assert_eq!(bench.ack(1, kept(7, 1)), [], "session 2 would see what session 1 does not show yet");
    assert_eq!(bench.ack(1, gone(7, 1)), [admit(1)]);
}
