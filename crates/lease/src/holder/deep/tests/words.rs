//! What was given back, and what is new.

use super::*;

fn lease_on(ino: u64, mode: Mode, epoch: u64) -> Grant {
    Grant { fid: f(ino), ..deep(mode, epoch) }
}

fn of_its_own(ino: u64, mode: Mode) -> Coverage {
    Coverage { fid: f(ino), root: f(ino), mode, above: vec![] }
}

/// Who has read everything, by a deep lease on 1.
fn reader(covered_too: &[u64]) -> Holder {
    let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
    holder.start_session(secs(0), secs(0), SessionId(1), TERM);
    let all: Vec<Coverage> = covered_too.iter().map(|ino| covered(Mode::Read, *ino)).collect();
    get(&mut holder, &[deep(Mode::Read, 5)], &all);
    holder
}

#[test]
fn what_was_on_its_way_while_a_thousand_others_were_given_back_is_taken() {
    let mut holder = holder();
    let late = holder.begin_request(secs(0));
    for number in 0..1100 {
        get(&mut holder, &[lease_on(1000 + number, Mode::Read, 100 + number)], &[]);
        assert!(holder.release_deep(f(1000 + number)).is_some());
    }
    assert_eq!(holder.given_back().len(), 1000);
    // The answer that brought it has been lost; the next one names it.
    get(&mut holder, &[lease_on(7, Mode::Write, 50)], &[of_its_own(7, Mode::Write)]);
    assert_eq!(may(&holder, 7), W);
    // But an answer of before may name any that has been given back, also one that nobody remembers.
    for ino in [1000, 2099] {
        let over = [lease_on(ino, Mode::Read, ino - 900)];
        holder.handle_reply_covered(secs(0), late, &over, &[of_its_own(ino, Mode::Read)]);
        assert_eq!(may(&holder, ino), None);
    }
}

#[test]
fn what_was_given_back_is_said_again_until_the_server_has_heard_it() {
    let mut holder = holder();
    let many: Vec<Grant> =
        (0..1500).map(|number| lease_on(1000 + number, Mode::Read, 100 + number)).collect();
    get(&mut holder, &many, &[]);
    many.iter().for_each(|lease| assert!(holder.release_deep(lease.fid).is_some()));
    assert_eq!(holder.given_back().len(), 1500);
    // An answer without leases may have come by another connection.
    get(&mut holder, &[], &[]);
    assert_eq!(holder.given_back().len(), 1500);
    get(&mut holder, &[], &[covered(Mode::Write, 2)]);
    assert_eq!(holder.given_back().len(), 1000);
}

#[test]
fn a_lease_is_not_disowned_for_a_question_about_part_of_it_if_something_may_rest_on_it() {
    let mut holder = reader(&[]);
    let asked = Recall { fid: f(3), ..question(4, 9, None) };
    let answer = RecallAck { fid: f(3), ..answer(4, 9, None) };
    assert_eq!(holder.handle_recall_in_part(secs(1), &asked), RecallStep::AlreadyGone(answer));
    assert!(!holder.holds_deep(f(3)) && holder.given_back().is_empty());
    get(&mut holder, &[lease_on(3, Mode::Write, 8)], &[of_its_own(3, Mode::Write)]);
    assert!(holder.holds_deep(f(3)) && may(&holder, 3) == W);
    // Of all of it there is nothing to keep.
    let whole = Recall { fid: f(2), ..question(2, 10, None) };
    assert!(matches!(holder.handle_recall_in_part(secs(1), &whole), RecallStep::AlreadyGone(_)));
    get(&mut holder, &[lease_on(2, Mode::Write, 7)], &[of_its_own(2, Mode::Write)]);
    assert_eq!((holder.holds_deep(f(2)), may(&holder, 2)), (false, None));
}

/// Others have been let in since it was given.
#[test]
fn a_lease_whose_answer_was_lost_raises_nothing() {
    let mut holder = reader(&[1, 2, 3, 4]);
    let asked = Recall { fid: f(3), part: Some(LeasePart::object(f(4))), ..question(4, 9, R) };
    assert!(matches!(holder.handle_recall(secs(1), &asked), RecallStep::DropPart { .. }));
    assert_eq!(holder.finish_part(f(3), Epoch(9), InUse::No).kept, R);
    get(&mut holder, &[lease_on(3, Mode::Write, 8)], &[of_its_own(3, Mode::Write)]);
    assert_eq!(all(&holder), [R, R, W, R]);
    // A new one does.
    get(&mut holder, &[lease_on(1, Mode::Write, 10)], &[]);
    assert_eq!(all(&holder), [R, W, W, W]);
}

/// It has holes that this client does not know.
#[test]
fn a_lease_that_was_given_with_a_move_raises_nothing_if_the_answer_was_lost() {
    for heard in [false, true] {
        let mut holder = reader(&[1]);
        let ticket = holder.begin_request(secs(0));
        holder.begin_move(ticket, f(3), Some(f(1)));
        holder.handle_reply(secs(0), ticket, &[]);
        // Links to it came with other answers since.
        get(&mut holder, &[], &[covered(Mode::Read, 3), covered(Mode::Read, 4)]);
        if heard {
            get(&mut holder, &[node(Mode::Read, 9, 20)], &[]);
        }
        let epoch = if heard { 21 } else { 8 };
        get(&mut holder, &[lease_on(3, Mode::Write, epoch)], &[of_its_own(3, Mode::Write)]);
        assert_eq!((may(&holder, 3), may(&holder, 4)), (W, if heard { W } else { R }));
    }
}

#[test]
fn after_a_move_a_lease_that_comes_with_a_later_one_on_an_object_is_new() {
    let mut holder = reader(&[1]);
    let ticket = holder.begin_request(secs(0));
    holder.begin_move(ticket, f(3), Some(f(1)));
    holder.handle_reply(secs(0), ticket, &[]);
    get(&mut holder, &[], &[covered(Mode::Read, 3), covered(Mode::Read, 4)]);
    get(&mut holder, &[node(Mode::Write, 9, 20), lease_on(3, Mode::Write, 21)], &[]);
    assert_eq!(may(&holder, 4), W);
}
