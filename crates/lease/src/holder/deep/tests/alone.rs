//! A directory asked for alone: what is below it stays, and may be moved by others with it.

use super::*;

#[test]
fn a_directory_alone_leaves_what_is_below() {
    let mut holder = holder();
    let alone = Recall { part: Some(LeasePart::object(f(3))), ..question(3, 9, None) };
    assert_eq!(holder.handle_recall(secs(1), &alone), drop_part(9, None, &[3]));
    let answer = RecallAck { part: alone.part, ..answer(3, 9, None) };
    assert_eq!(holder.finish_part(f(1), Epoch(9), InUse::No), answer);
    assert_eq!(all(&holder), [W, W, None, W]);
    // The lease's own directory is one object, too.
    let alone = Recall { part: Some(LeasePart::object(f(1))), ..question(1, 10, None) };
    assert_eq!(holder.handle_recall(secs(1), &alone), drop_part(10, None, &[1]));
    holder.finish_part(f(1), Epoch(10), InUse::No);
    assert_eq!((all(&holder), holder.is_empty()), ([None, W, None, W], false));
}

/// The server has given this client a deep lease on it that it never heard of, for what it has below.
#[test]
fn what_others_have_moved_is_asked_for_with_all_below_as_of_a_lease_on_it() {
    let mut holder = holder();
    let alone = Recall { part: Some(LeasePart::object(f(3))), ..question(3, 9, None) };
    let _ = holder.handle_recall(secs(1), &alone);
    holder.finish_part(f(1), Epoch(9), InUse::No);
    let late = holder.begin_request(secs(1));
    let moved = Recall { fid: f(3), ..question(3, 11, None) };
    let step = RecallStep::DropPart { lease: f(3), epoch: Epoch(11), keep: None, inside: vec![f(4)] };
    assert_eq!(holder.handle_recall(secs(1), &moved), step);
    let ack = holder.finish_part(f(3), Epoch(11), InUse::No);
    assert_eq!((ack.fid, ack.part, ack.kept), (f(3), Some(LeasePart::tree(f(3))), None));
    assert_eq!(all(&holder), [W, W, None, None]);
    // What was said of it before, and comes now, is void; it may be said anew, wherever it lies now.
    let said = Coverage { above: vec![f(3), f(1)], ..covered(Mode::Write, 4) };
    holder.handle_reply_covered(secs(1), late, &[], std::slice::from_ref(&said));
    assert_eq!(may(&holder, 4), None);
    get(&mut holder, &[], &[said]);
    assert_eq!(may(&holder, 4), W);
}

/// Under a new write lease on what is above: it may lie elsewhere by now.
#[test]
fn what_was_asked_for_alone_is_not_taken_for_its_own_with_what_is_below() {
    for asked in [false, true] {
        let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
        holder.start_session(secs(0), secs(0), SessionId(1), TERM);
        let below = Coverage { above: vec![f(3), f(1)], ..covered(Mode::Read, 4) };
        let both = [covered(Mode::Read, 3), below];
        get(&mut holder, &[deep(Mode::Read, 5)], &both);
        if asked {
            let alone = Recall { part: Some(LeasePart::object(f(3))), ..question(3, 9, None) };
            let _ = holder.handle_recall(secs(1), &alone);
            holder.finish_part(f(1), Epoch(9), InUse::No);
            get(&mut holder, &[], &both[..1]);
        }
        get(&mut holder, &[deep(Mode::Write, 12)], &[]);
        assert_eq!(may(&holder, 4), if asked { R } else { W });
    }
}

/// An own change is on the way that the caches have to show before anybody else sees it.
#[test]
fn to_keep_reading_the_caches_come_down_under_an_unknown_lease_too() {
    let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
    holder.start_session(secs(0), secs(0), SessionId(1), TERM);
    get(&mut holder, &[deep(Mode::Read, 5)], &[covered(Mode::Read, 3)]);
    let unknown = Recall { fid: f(30), ..question(3, 9, R) };
    let step = RecallStep::DropPart { lease: f(30), epoch: Epoch(9), keep: R, inside: vec![f(3)] };
    assert_eq!(holder.handle_recall(secs(1), &unknown), step);
    assert_eq!(holder.finish_part(f(30), Epoch(9), InUse::No).kept, R);
    assert_eq!(may(&holder, 3), R);
}

/// What a deep lease was said to cover before an own move, and is heard of after the node lease that came with it has been
/// lowered.
#[test]
fn what_was_said_before_a_node_lease_was_asked_for_is_void() {
    let mut holder = holder();
    let late = holder.begin_request(secs(0));
    get(&mut holder, &[node(Mode::Write, 3, 7)], &[]);
    let recall = Recall { fid: f(3), part: None, ..question(3, 7, R) };
    let _ = holder.handle_recall(secs(1), &recall);
    holder.finish_recall(secs(1), f(3), Epoch(7), InUse::No);
    holder.handle_reply_covered(secs(1), late, &[], &[covered(Mode::Write, 3)]);
    assert_eq!(may(&holder, 3), R);
}

/// The grant of the node lease that is asked for, and what was said before of the deep one, are both on the way.
#[test]
fn what_was_said_before_a_node_lease_that_never_came_is_void() {
    let mut holder = holder();
    let late = holder.begin_request(secs(0));
    let recall = Recall { fid: f(7), part: None, ..question(7, 9, R) };
    assert!(matches!(holder.handle_recall(secs(1), &recall), RecallStep::AlreadyGone(_)));
    holder.handle_reply_covered(secs(1), late, &[], &[covered(Mode::Write, 7)]);
    assert_eq!(may(&holder, 7), None);
}
