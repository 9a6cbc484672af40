//! Answers that are heard after something that was said, or done here, later than they were given.

use super::*;

/// 5 lies in 3. An answer that says so was given before 3 was moved here, and is heard late.
fn said_of_5() -> Coverage {
    Coverage { above: vec![f(3), f(1)], ..covered(Mode::Write, 5) }
}

#[test]
fn what_was_said_before_an_own_move_is_void_if_the_new_place_was_asked_for_since() {
    for (asked, ends) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut holder = holder();
        let late = holder.begin_request(secs(0));
        let number = holder.begin_own_move(f(3), Some(f(2)));
        if ends {
            holder.end_own_move(number);
        }
        if asked {
            assert_eq!(holder.handle_recall(secs(0), &question(2, 7, None)), drop_part(7, None, &[2, 3, 4]));
            holder.finish_part(f(1), Epoch(7), InUse::No);
        }
        holder.handle_reply_covered(secs(0), late, &[], &[said_of_5()]);
        assert_eq!(may(&holder, 5), if asked { None } else { W }, "{asked} {ends}");
    }
}

/// What is below a directory that was moved out of reach of the lease has another one behind it.
#[test]
fn what_was_said_before_an_own_move_is_void_if_a_lease_was_lowered_or_given_back_since() {
    for lowers in [true, false] {
        let mut holder = holder();
        let late = holder.begin_request(secs(0));
        let ticket = holder.begin_request(secs(0));
        holder.begin_move(ticket, f(3), Some(f(9)));
        let moved = Grant { fid: f(3), ..deep(Mode::Write, 8) };
        holder.handle_reply_covered(secs(0), ticket, &[moved], &[]);
        let word = if lowers { holder.lower_deep(f(3)) } else { holder.release_deep(f(3)) };
        assert!(word.is_some());
        holder.handle_reply_covered(secs(0), late, &[], &[said_of_5()]);
        assert_eq!(may(&holder, 5), None, "{lowers}");
    }
}

#[test]
fn what_was_said_before_a_lease_was_lowered_is_not_written_under_the_next() {
    let mut holder = holder();
    let late = holder.begin_request(secs(0));
    assert!(holder.lower_deep(f(1)).is_some());
    let raised = get(&mut holder, &[deep(Mode::Write, 12)], &[covered(Mode::Write, 6)]);
    holder.handle_reply_covered(secs(0), late, &[], &[said_of_5()]);
    assert_eq!((may(&holder, 5), may(&holder, 6)), (R, W), "{raised:?}");
}

/// Others have moved 3 into 2, and what is said of that comes before the question for what is below it.
#[test]
fn what_is_said_to_be_elsewhere_than_before_is_taken_for_its_own_nowhere() {
    let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
    holder.start_session(secs(0), secs(0), SessionId(1), TERM);
    let below = Coverage { above: vec![f(3), f(1)], ..covered(Mode::Read, 4) };
    get(&mut holder, &[deep(Mode::Read, 5)], &[covered(Mode::Read, 2), below]);
    let elsewhere = Coverage { above: vec![f(2), f(1)], ..covered(Mode::Read, 3) };
    get(&mut holder, &[], &[elsewhere]);
    get(&mut holder, &[deep(Mode::Write, 12)], &[]);
    assert_eq!([2, 3, 4].map(|ino| may(&holder, ino)), [W, R, R]);
}

/// Session 1 has the lease on 3 because it has moved it, with a hole for 4; the answer that brought it was lost.
#[test]
fn what_is_said_to_be_read_with_a_lease_is_not_written_under_it() {
    let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
    holder.start_session(secs(0), secs(0), SessionId(1), TERM);
    get(&mut holder, &[deep(Mode::Read, 5)], &[covered(Mode::Read, 3), covered(Mode::Read, 4)]);
    let lease = Grant { fid: f(3), ..deep(Mode::Write, 6) };
    let hole = Coverage { root: f(3), above: vec![f(3)], ..covered(Mode::Read, 4) };
    get(&mut holder, &[lease], &[hole]);
    assert_eq!(may(&holder, 4), R);
}

/// The object was moved out of reach of the deep lease: only the node lease that came with that is behind it.
#[test]
fn what_is_asked_for_by_its_own_lease_is_not_written_under_a_deep_one_meanwhile() {
    let mut holder = holder();
    get(&mut holder, &[node(Mode::Write, 4, 7)], &[]);
    assert!(holder.may_delay_changes(secs(0), f(4)));
    let recall = Recall { fid: f(4), part: None, ..question(4, 7, R) };
    assert!(matches!(holder.handle_recall(secs(0), &recall), RecallStep::Drop { .. }));
    assert_eq!((may(&holder, 4), holder.may_delay_changes(secs(0), f(4))), (R, false));
}

/// It came with an own move, all of it is asked for before its grant is heard of, and with the answer it ends.
#[test]
fn a_lease_that_is_asked_for_before_its_grant_comes_is_not_taken_when_that_comes() {
    let mut holder = holder();
    let late = holder.begin_request(secs(0));
    let moved = Recall { fid: f(3), ..question(3, 9, None) };
    let step = RecallStep::DropPart { lease: f(3), epoch: Epoch(9), keep: None, inside: vec![f(3), f(4)] };
    assert_eq!(holder.handle_recall(secs(0), &moved), step);
    holder.finish_part(f(3), Epoch(9), InUse::No);
    holder.handle_reply_covered(secs(0), late, &[Grant { fid: f(3), ..deep(Mode::Write, 8) }], &[]);
    assert_eq!(holder.release_deep(f(3)), None);
}

/// A directory is asked for with all below; what was made there is told first, and stays covered by the lease above.
#[test]
fn what_is_said_to_be_covered_while_its_directory_is_asked_for_lies_where_it_was_said_to() {
    let mut holder = holder();
    assert_eq!(holder.handle_recall(secs(1), &question(4, 9, None)), drop_part(9, None, &[4]));
    let made = Coverage { fid: f(5), root: f(1), mode: Mode::Write, above: vec![f(4), f(3), f(1)] };
    get(&mut holder, &[], &[made]);
    holder.finish_part(f(1), Epoch(9), InUse::No);
    assert_eq!((may(&holder, 4), may(&holder, 5)), (None, W));
    assert_eq!(holder.handle_recall(secs(1), &question(3, 10, None)), drop_part(10, None, &[3, 5]));
}

/// The first question came twice, and its copy is worked on for long; the second one was answered first, and the server has said
/// again what the lease covers. That is cached since.
#[test]
fn what_is_covered_again_stays_when_an_older_question_is_answered() {
    let mut holder = holder();
    assert_eq!(holder.handle_recall(secs(0), &question(4, 7, None)), drop_part(7, None, &[4]));
    assert_eq!(holder.handle_recall(secs(0), &question(4, 8, None)), drop_part(8, None, &[4]));
    holder.finish_part(f(1), Epoch(8), InUse::No);
    get(&mut holder, &[], &[covered(Mode::Write, 4)]);
    // And is asked for.
    assert_eq!(holder.handle_recall(secs(0), &question(4, 9, None)), drop_part(9, None, &[4]));
    holder.finish_part(f(1), Epoch(7), InUse::No);
    assert_eq!(may(&holder, 4), R, "it may be read until that is answered, and not be written");
    holder.finish_part(f(1), Epoch(9), InUse::No);
    assert_eq!(may(&holder, 4), None);
}
