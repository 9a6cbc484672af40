//! The client's side. Exact answers; every message may come late, twice or never.

#![allow(unused_must_use, reason = "what the helpers here begin they end themselves")]

use super::leases::HeldState;
use super::*;
use soda_types::{
    Cause, Epoch, Grant, InUse, Ino, Mode, Recall, RecallAck, Scope, SessionId, Term, VolumeId,
};
use std::time::Duration;

const TERM: Duration = Duration::from_secs(10);
const ONE: SessionId = SessionId(1);

fn f(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

fn secs(secs: f64) -> Monotonic {
    Monotonic::ZERO + Duration::from_secs_f64(secs)
}

fn grant(mode: Mode, ino: u64, epoch: u64) -> Grant {
    Grant { fid: f(ino), scope: Scope::Node, mode, epoch: Epoch(epoch), term: Term::Session }
}

fn recall(ino: u64, epoch: u64, to: Option<Mode>) -> Recall {
    Recall { fid: f(ino), epoch: Epoch(epoch), to, cause: Cause::Data, part: None }
}

fn ack(ino: u64, epoch: u64, kept: Option<Mode>) -> RecallAck {
    RecallAck { fid: f(ino), epoch: Epoch(epoch), kept, in_use: InUse::No, uses: 0, part: None }
}

fn drop_to(ino: u64, epoch: u64, keep: Option<Mode>) -> RecallStep {
    RecallStep::Drop { fid: f(ino), epoch: Epoch(epoch), keep }
}

/// With a session since second 0, and no margin, so that times are round.
fn holder() -> Holder {
    let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
    assert_eq!(holder.start_session(secs(0.0), secs(0.0), ONE, TERM), []);
    holder
}

/// A request and its answer at the same moment.
fn get(holder: &mut Holder, at: f64, grants: &[Grant]) -> Ticket {
    let ticket = holder.begin_request(secs(at));
    holder.handle_reply(secs(at), ticket, grants);
    ticket
}

fn readable(holder: &Holder, at: f64, ino: u64) -> Option<Monotonic> {
    holder.valid_until(secs(at), f(ino), Mode::Read)
}

fn finish(holder: &mut Holder, ino: u64, epoch: u64) -> RecallAck {
    holder.finish_recall(secs(1.0), f(ino), Epoch(epoch), InUse::No)
}

#[test]
fn nothing_is_covered_without_a_session() {
    let mut holder = Holder::new(HolderConfig::default());
    let ticket = get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(readable(&holder, 0.0, 7), None);
    assert_eq!(holder.cacheable(ticket, f(7)), None);
    assert_eq!(holder.renew_at(), Monotonic::NEVER);
    assert_eq!(holder.session(), None);
}

#[test]
fn the_term_counts_from_the_moment_of_sending() {
    let mut holder = holder();
    let ticket = holder.begin_request(secs(3.0));
    holder.handle_reply(secs(7.0), ticket, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(readable(&holder, 7.0, 7), Some(secs(13.0)));
    assert_eq!(readable(&holder, 13.0, 7), None);
    assert_eq!(holder.session_valid_until(), secs(13.0));
    assert_eq!(holder.renew_at(), secs(3.0) + TERM / 3);
}

#[test]
fn the_drift_margin_is_given_up() {
    let mut holder = Holder::new(HolderConfig::default());
    holder.start_session(secs(0.0), secs(0.0), ONE, TERM);
    assert_eq!(holder.session_valid_until(), secs(10.0 - 0.010 - 0.050));
    // A term shorter than the margin is never used.
    holder.start_session(secs(0.0), secs(0.0), SessionId(2), Duration::from_millis(40));
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(readable(&holder, 0.0, 7), None);
}

#[test]
fn an_old_answer_does_not_shorten() {
    let mut holder = holder();
    let old = holder.begin_request(secs(1.0));
    get(&mut holder, 5.0, &[]);
    holder.handle_reply(secs(6.0), old, &[]);
    assert_eq!(holder.session_valid_until(), secs(15.0));
}

#[test]
fn no_answer_no_renewal() {
    let mut holder = holder();
    let ticket = holder.begin_request(secs(5.0));
    holder.fail_request(ticket);
    assert_eq!(holder.session_valid_until(), secs(10.0));
    // And an answer after all is not taken.
    holder.handle_reply(secs(6.0), ticket, &[grant(Mode::Read, 7, 1)]);
    assert_eq!((holder.session_valid_until(), holder.len()), (secs(10.0), 0));
}

#[test]
fn read_covers_reads_write_covers_both() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1), grant(Mode::Write, 8, 2)]);
    let writable = |ino| holder.valid_until(secs(1.0), f(ino), Mode::Write).is_some();
    assert_eq!((readable(&holder, 1.0, 7).is_some(), writable(7)), (true, false));
    assert_eq!((readable(&holder, 1.0, 8).is_some(), writable(8)), (true, true));
    assert_eq!(readable(&holder, 1.0, 9), None);
}

#[test]
fn a_lease_outlives_a_pause_if_the_session_did() {
    let mut holder = holder();
    let first = get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    let holding = holder.cacheable(first, f(7));
    assert_eq!(readable(&holder, 60.0, 7), None, "nobody could ask it");
    // The server had no need of it, kept it by courtesy and answers.
    get(&mut holder, 60.0, &[]);
    assert_eq!(readable(&holder, 60.0, 7), Some(secs(70.0)));
    assert_eq!(holder.holding(f(7)), holding, "what was cached is good");
}

#[test]
fn a_recall_is_answered_when_the_caches_are_dropped() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(holder.handle_recall(secs(1.0), &recall(7, 1, None)), drop_to(7, 1, None));
    assert!(readable(&holder, 1.0, 7).is_some(), "the server waits for the answer");
    assert_eq!(holder.promise_until(secs(1.0), f(7)), None, "but the kernel is told nothing new");
    assert_eq!(holder.recalling(), [f(7)]);
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, None));
    assert_eq!(readable(&holder, 1.0, 7), None);
    assert_eq!(holder.recalling(), []);
}

#[test]
fn a_write_lease_is_lowered_and_the_holding_goes_on() {
    let mut holder = holder();
    let ticket = get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1)]);
    let holding = holder.cacheable(ticket, f(7));
    assert_eq!(
        holder.handle_recall(secs(1.0), &recall(7, 1, Some(Mode::Read))),
        drop_to(7, 1, Some(Mode::Read))
    );
    assert_eq!(holder.valid_until(secs(1.0), f(7), Mode::Write), None, "no new writes under it");
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, Some(Mode::Read)));
    assert_eq!((holder.mode(f(7)), holder.holding(f(7))), (Some(Mode::Read), holding));
    // The recall comes again.
    let again = holder.handle_recall(secs(1.0), &recall(7, 1, Some(Mode::Read)));
    assert_eq!(again, RecallStep::AlreadyGone(ack(7, 1, Some(Mode::Read))));
}

#[test]
fn a_recall_that_comes_again_while_it_is_worked_on() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1)]);
    assert_eq!(holder.handle_recall(secs(1.0), &recall(7, 1, None)), drop_to(7, 1, None));
    assert_eq!(holder.handle_recall(secs(2.0), &recall(7, 1, None)), RecallStep::Working);
    assert_eq!(holder.handle_recall(secs(2.0), &recall(7, 1, Some(Mode::Read))), RecallStep::Working);
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, None));
    let again = holder.handle_recall(secs(3.0), &recall(7, 1, None));
    assert_eq!(again, RecallStep::AlreadyGone(ack(7, 1, None)));
}

/// Found by `tests/deep`: the server waits for the answer to the later one.
#[test]
fn a_late_recall_does_not_rename_the_work_on_a_later_one() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1)]);
    assert_eq!(
        holder.handle_recall(secs(1.0), &recall(7, 5, Some(Mode::Read))),
        drop_to(7, 5, Some(Mode::Read))
    );
    assert_eq!(holder.handle_recall(secs(1.0), &recall(7, 1, Some(Mode::Read))), RecallStep::Working);
    assert_eq!(finish(&mut holder, 7, 5), ack(7, 5, Some(Mode::Read)));
}

#[test]
fn asked_for_more_while_working() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1)]);
    assert_eq!(
        holder.handle_recall(secs(1.0), &recall(7, 1, Some(Mode::Read))),
        drop_to(7, 1, Some(Mode::Read))
    );
    assert_eq!(holder.handle_recall(secs(1.0), &recall(7, 1, None)), drop_to(7, 1, None));
    // One answer for each step; the first says no more than what the first step did.
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, Some(Mode::Read)));
    assert_eq!(holder.recalling(), [f(7)]);
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, None));
    assert!(holder.is_empty());
}

#[test]
fn a_recall_overtakes_its_grant() {
    let mut holder = holder();
    let ticket = holder.begin_request(secs(0.0));
    let step = holder.handle_recall(secs(0.1), &recall(7, 1, None));
    assert_eq!(step, RecallStep::AlreadyGone(ack(7, 1, None)));
    holder.handle_reply(secs(0.2), ticket, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(readable(&holder, 0.2, 7), None);
    assert_eq!(holder.cacheable(ticket, f(7)), None);
    // A later grant is news.
    get(&mut holder, 0.3, &[grant(Mode::Read, 7, 2)]);
    assert!(readable(&holder, 0.3, 7).is_some());
}

#[test]
fn a_bar_holds_for_every_request_that_was_on_the_way() {
    let mut holder = holder();
    let (one, other) = (holder.begin_request(secs(0.0)), holder.begin_request(secs(0.0)));
    let _ = holder.handle_recall(secs(0.1), &recall(7, 2, None));
    holder.handle_reply(secs(0.2), one, &[grant(Mode::Read, 7, 1)]);
    holder.handle_reply(secs(0.3), other, &[grant(Mode::Read, 7, 2)]);
    assert!(holder.is_empty());
    get(&mut holder, 0.4, &[]);
    assert!(
        holder.bars.is_empty() && holder.bar_order.is_empty(),
        "and is forgotten then: {:?}",
        holder.bars
    );
}

#[test]
fn a_recall_of_a_grant_on_the_way_means_the_lease_that_is_held() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    // Our change has made it a write lease at the server; its answer is on the way.
    let change = holder.begin_request(secs(0.5));
    assert_eq!(
        holder.handle_recall(secs(1.0), &recall(7, 2, Some(Mode::Read))),
        drop_to(7, 2, Some(Mode::Read))
    );
    assert_eq!(finish(&mut holder, 7, 2), ack(7, 2, Some(Mode::Read)));
    holder.handle_reply(secs(1.1), change, &[grant(Mode::Write, 7, 2)]);
    assert_eq!(holder.mode(f(7)), Some(Mode::Read), "it was lowered before it came");
}

#[test]
fn a_recall_of_the_past_is_answered_without_doing_anything() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 5)]);
    let step = holder.handle_recall(secs(1.0), &recall(7, 3, None));
    assert_eq!(step, RecallStep::AlreadyGone(ack(7, 3, None)));
    assert!(readable(&holder, 1.0, 7).is_some());
}

/// Found by the simulation with seed 23.
#[test]
fn work_on_an_old_recall_does_not_answer_a_new_one() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(holder.handle_recall(secs(1.0), &recall(7, 1, None)), drop_to(7, 1, None));
    // The server gave up waiting (nobody needed it any more) and granted anew.
    get(&mut holder, 2.0, &[grant(Mode::Write, 7, 9)]);
    assert_eq!(
        holder.handle_recall(secs(3.0), &recall(7, 9, Some(Mode::Read))),
        drop_to(7, 9, Some(Mode::Read))
    );
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, None), "stale for the server");
    assert_eq!(holder.recalling(), [f(7)]);
    assert_eq!(finish(&mut holder, 7, 9), ack(7, 9, Some(Mode::Read)));
}

#[test]
fn a_grant_during_a_recall_starts_a_new_holding() {
    let mut holder = holder();
    let first = get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    let old = holder.cacheable(first, f(7));
    let _ = holder.handle_recall(secs(1.0), &recall(7, 1, None));
    let stale = holder.begin_request(secs(1.0));
    let news = holder.begin_request(secs(1.0));
    holder.handle_reply(secs(1.1), stale, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(holder.recalling(), [f(7)], "not news");
    holder.handle_reply(secs(1.2), news, &[grant(Mode::Read, 7, 2)]);
    assert_ne!(holder.holding(f(7)), old);
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, None));
    assert!(readable(&holder, 1.3, 7).is_some());
}

#[test]
fn what_a_lease_given_again_covers_stays_cached() {
    let mut holder = holder();
    let first = get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    let holding = holder.cacheable(first, f(7));
    assert_eq!(holding, Some(Holding(Epoch(1))));
    let second = get(&mut holder, 1.0, &[grant(Mode::Write, 7, 4)]);
    assert_eq!(holder.cacheable(second, f(7)), holding);
    // An older grant that comes late does not set it back.
    get(&mut holder, 1.0, &[grant(Mode::Read, 7, 3)]);
    assert_eq!(holder.mode(f(7)), Some(Mode::Write));
}

#[test]
fn cacheable_is_what_was_covered_all_the_time() {
    let mut holder = holder();
    let before = holder.begin_request(secs(0.0));
    let other = holder.begin_request(secs(0.0));
    holder.handle_reply(secs(0.1), before, &[grant(Mode::Read, 7, 1)]);
    // Sent before the lease was held, and it brought none: it may be of before somebody's change.
    holder.handle_reply(secs(0.2), other, &[]);
    assert_eq!(holder.cacheable(other, f(7)), None);
    let during = get(&mut holder, 0.3, &[]);
    assert_eq!(holder.cacheable(during, f(7)), Some(Holding(Epoch(1))));
    // Not while the lease is asked for.
    let asked = holder.begin_request(secs(0.4));
    let _ = holder.handle_recall(secs(0.5), &recall(7, 1, None));
    holder.handle_reply(secs(0.6), asked, &[]);
    assert_eq!(holder.cacheable(asked, f(7)), None);
    // Nor after it was away in between.
    finish(&mut holder, 7, 1);
    let late = holder.begin_request(secs(0.7));
    get(&mut holder, 0.8, &[grant(Mode::Read, 7, 2)]);
    holder.handle_reply(secs(0.9), late, &[]);
    assert_eq!(holder.cacheable(late, f(7)), None);
}

#[test]
fn what_was_on_the_way_while_a_lease_was_lowered_is_not_cached() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1)]);
    let on_the_way = holder.begin_request(secs(0.5));
    let _ = holder.handle_recall(secs(1.0), &recall(7, 1, Some(Mode::Read)));
    finish(&mut holder, 7, 1);
    holder.handle_reply(secs(1.1), on_the_way, &[]);
    assert_eq!(holder.cacheable(on_the_way, f(7)), None);
    let after = get(&mut holder, 1.2, &[]);
    assert!(holder.cacheable(after, f(7)).is_some());
}

#[test]
fn a_release_bars_the_grant_that_it_crosses() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    let ticket = holder.begin_request(secs(1.0));
    assert_eq!(holder.release(secs(1.0), f(7)), Some(ack(7, 1, None)));
    assert_eq!(holder.release(secs(1.0), f(7)), None);
    holder.handle_reply(secs(1.1), ticket, &[grant(Mode::Read, 7, 1)]);
    assert!(holder.is_empty());
}

#[test]
fn a_lease_whose_recall_is_worked_on_is_not_released_besides() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    let _ = holder.handle_recall(secs(1.0), &recall(7, 1, None));
    assert_eq!(holder.release(secs(1.0), f(7)), None);
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, None));
}

#[test]
fn a_write_lease_is_lowered_unasked() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1), grant(Mode::Read, 8, 2)]);
    let before = holder.begin_request(secs(0.5));
    let holding = holder.holding(f(7));
    assert_eq!([7, 8, 9].map(|ino| holder.may_lower(f(ino))), [true, false, false]);
    assert_eq!(holder.lower(f(7)), Some(ack(7, 1, Some(Mode::Read))));
    assert_eq!((holder.mode(f(7)), holder.holding(f(7))), (Some(Mode::Read), holding));
    assert!(!holder.may_lower(f(7)));
    assert_eq!((holder.lower(f(7)), holder.lower(f(8)), holder.lower(f(9))), (None, None, None));
    assert!(readable(&holder, 1.0, 7).is_some());
    assert_eq!(holder.valid_until(secs(1.0), f(7), Mode::Write), None);
    // What was on the way may be of before a change that others can see now.
    assert_eq!(holder.cacheable(before, f(7)), None);
    // A recall that it crosses has its answer; the next change brings the write lease back.
    let crossed = holder.handle_recall(secs(1.0), &recall(7, 1, Some(Mode::Read)));
    assert_eq!(crossed, RecallStep::AlreadyGone(ack(7, 1, Some(Mode::Read))));
    get(&mut holder, 2.0, &[grant(Mode::Write, 7, 3)]);
    assert_eq!(holder.mode(f(7)), Some(Mode::Write));
}

#[test]
fn a_lease_whose_recall_is_worked_on_is_not_lowered_besides() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1)]);
    let _ = holder.handle_recall(secs(1.0), &recall(7, 1, None));
    assert!(!holder.may_lower(f(7)));
    assert_eq!(holder.lower(f(7)), None);
    assert_eq!(finish(&mut holder, 7, 1), ack(7, 1, None));
}

#[test]
fn changes_are_delayed_under_a_write_lease_that_lasts_as_long_as_the_session_and_is_not_asked_for() {
    let mut holder = holder();
    let short = Grant { term: Term::For(Duration::from_secs(2)), ..grant(Mode::Write, 9, 3) };
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1), grant(Mode::Read, 8, 2), short]);
    let may = |holder: &Holder, at: f64| [7, 8, 9].map(|ino| holder.may_delay_changes(secs(at), f(ino)));
    let exclusive = |holder: &Holder| [7, 8, 9].map(|ino| holder.is_exclusive(f(ino)));
    assert_eq!(may(&holder, 1.0), [true, false, false]);
    assert_eq!(may(&holder, 11.0), [false; 3]);
    assert_eq!(exclusive(&holder), [true, false, true]);
    let _ = holder.handle_recall(secs(1.0), &recall(7, 1, None));
    assert_eq!((may(&holder, 1.0), exclusive(&holder)), ([false; 3], [true, false, true]));
    finish(&mut holder, 7, 1);
    assert_eq!(exclusive(&holder), [false, false, true]);
}

#[test]
fn idle_leases_least_recently_used_first() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1), grant(Mode::Read, 8, 2), grant(Mode::Read, 9, 3)]);
    assert!(holder.touch(secs(2.0), f(7)).is_some());
    holder.note_uses(secs(1.0), f(9), 5);
    assert_eq!(holder.idle(secs(3.0), Duration::from_secs(2)), [f(8), f(9)]);
    assert_eq!(holder.idle(secs(3.0), Duration::ZERO), [f(8), f(9), f(7)]);
    assert_eq!(holder.release(secs(3.0), f(9)).map(|ack| ack.uses), Some(5));
}

#[test]
fn uses_are_reported_once() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 7, 1)]);
    (0..3).for_each(|_| assert!(holder.touch(secs(1.0), f(7)).is_some()));
    let _ = holder.handle_recall(secs(1.0), &recall(7, 1, Some(Mode::Read)));
    assert_eq!(finish(&mut holder, 7, 1).uses, 3);
    let _ = holder.handle_recall(secs(1.0), &recall(7, 1, None));
    assert_eq!(finish(&mut holder, 7, 1).uses, 0);
    assert_eq!(holder.touch(secs(1.0), f(7)), None);
}

#[test]
fn a_lost_session_takes_everything() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 8, 1), grant(Mode::Read, 7, 2)]);
    let ticket = holder.begin_request(secs(1.0));
    assert_eq!(holder.handle_session_lost(secs(1.0)), [f(7), f(8)]);
    assert_eq!(holder.start_session(secs(2.0), secs(2.0), SessionId(2), TERM), []);
    // An answer of the old session is no answer of the new one.
    holder.handle_reply(secs(3.0), ticket, &[grant(Mode::Read, 7, 3)]);
    assert_eq!((holder.len(), holder.session_valid_until()), (0, secs(12.0)));
}

#[test]
fn going_on_with_a_session_keeps_everything_and_another_one_nothing() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Read, 7, 1)]);
    assert_eq!(holder.start_session(secs(5.0), secs(4.0), ONE, TERM), []);
    assert_eq!(readable(&holder, 5.0, 7), Some(secs(14.0)));
    assert_eq!(holder.start_session(secs(6.0), secs(6.0), SessionId(2), TERM), [f(7)]);
}

#[test]
fn a_term_of_its_own_ends_before_the_session() {
    let mut holder = holder();
    let short = |epoch| Grant { term: Term::For(Duration::from_secs(3)), ..grant(Mode::Read, 7, epoch) };
    let first = get(&mut holder, 0.0, &[short(1)]);
    let holding = holder.cacheable(first, f(7));
    assert_eq!(readable(&holder, 1.0, 7), Some(secs(3.0)));
    // Renewed in time: the same holding. Renewed late: somebody may have changed it in between.
    get(&mut holder, 2.0, &[short(2)]);
    assert_eq!((readable(&holder, 3.0, 7), holder.holding(f(7))), (Some(secs(5.0)), holding));
    get(&mut holder, 6.0, &[short(3)]);
    assert_eq!(holder.holding(f(7)), Some(Holding(Epoch(3))));
}

#[test]
fn an_expired_term_is_not_lowered_but_gone() {
    let mut holder = holder();
    let short = Grant { term: Term::For(Duration::from_secs(3)), ..grant(Mode::Write, 7, 1) };
    get(&mut holder, 0.0, &[short]);
    assert_eq!(holder.handle_recall(secs(4.0), &recall(7, 2, Some(Mode::Read))), drop_to(7, 2, None));
}

#[test]
fn reclaiming_after_a_restart() {
    let mut holder = holder();
    let short = Grant { term: Term::For(Duration::from_secs(3)), ..grant(Mode::Read, 6, 4) };
    get(
        &mut holder,
        0.0,
        &[grant(Mode::Read, 7, 1), grant(Mode::Write, 8, 2), grant(Mode::Read, 9, 3), short],
    );
    let _ = holder.handle_recall(secs(1.0), &recall(9, 3, None));
    let holding = holder.holding(f(7));
    let list = holder.reclaim_list(secs(4.0));
    assert_eq!(list, [grant(Mode::Read, 7, 1), grant(Mode::Write, 8, 2), grant(Mode::Read, 9, 3)]);
    let ticket = holder.begin_request(secs(4.0));
    // While it is on the way, one lease is given back.
    assert!(holder.release(secs(4.0), f(7)).is_some());
    let answers = [Some(grant(Mode::Read, 7, 100)), None, Some(grant(Mode::Read, 9, 101))];
    assert_eq!(holder.handle_reclaimed(secs(5.0), ticket, &list, &answers), [f(8)]);
    assert_eq!(holder.holding(f(7)), None);
    assert_ne!(holding, None);
    assert_eq!(readable(&holder, 5.0, 9), Some(secs(14.0)));
    assert_eq!(readable(&holder, 5.0, 8), None);
}

#[test]
fn everything_held_can_be_listed() {
    let mut holder = holder();
    get(&mut holder, 0.0, &[grant(Mode::Write, 8, 2), grant(Mode::Read, 7, 1)]);
    let _ = holder.handle_recall(secs(1.0), &recall(8, 2, None));
    let seen: Vec<_> =
        holder.snapshot(secs(1.0)).iter().map(|held| (held.grant.to_string(), held.state)).collect();
    let expected = [("R 1:7 e1", HeldState::Held), ("W 1:8 e2", HeldState::Recalling)];
    assert_eq!(seen, expected.map(|(text, state)| (text.to_owned(), state)));
}
