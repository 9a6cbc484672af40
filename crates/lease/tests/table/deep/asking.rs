//! How much is asked of holders, how long they have for it, and what becomes of those who cannot be asked.

use super::*;

fn below(bench: &Bench, access: Access, above: &[u64]) -> Access {
    access.below(bench.table.tree_version(), above.iter().map(|ino| f(*ino)).collect())
}

#[test]
fn who_is_away_has_no_more_holes_than_others() {
    for mode in [Mode::Read, Mode::Write] {
        let mut bench = Bench::with_deep(mode);
        bench.pass(20.0, &[2]);
        for ino in [15, 16] {
            let access = bench.here(change(ino));
            assert_eq!(bench.request(2, ino, &[access]), [admit(ino)]);
            bench.end(ino, &TreeChanges::default());
        }
        // One that is there already needs no other.
        let access = bench.here(change(16));
        assert_eq!(bench.request(3, 1, &[access]), [recall(2, 16, 5)]);
        bench.cancel(1);
        let access = bench.here(change(17));
        assert_eq!(bench.request(2, 2, &[access]), [expired(1, 17), admit(2)]);
    }
}

#[test]
fn who_is_away_is_ended_when_others_have_made_too_much_in_its_lease() {
    let mut bench = Bench::with_deep(Mode::Write);
    bench.pass(20.0, &[2]);
    let access = bench.here(names(20));
    assert_eq!(bench.request(2, 1, &[access]), [admit(1)]);
    let made = |ino| Created { fid: f(ino), kind: FileKind::File, parent: Some(f(20)) };
    let created = TreeChanges { created: [50, 51].map(made).into(), ..TreeChanges::default() };
    bench.table.finish_tree(bench.now, OpKey(1), Outcome::Applied, &created);
    assert_eq!(bench.outputs(), [expired(1, 3)]);
    assert_eq!(bench.table.deep_lease(s(1), f(3)), None);
}

#[test]
fn what_is_gone_is_no_hole_wherever_it_lay() {
    for lies in ["here", "in several directories", "nobody knows where", "elsewhere"] {
        let mut bench = Bench::with_deep(Mode::Read);
        let access = bench.here(change(10));
        assert_eq!(bench.request(2, 1, &[access]), [asked(10, 4, None)]);
        assert_eq!(bench.ack(1, answer(10, 4, None)), [admit(1)]);
        let changes = match lies {
            "in several directories" => TreeChanges { relinked: vec![f(10)], ..TreeChanges::default() },
            "elsewhere" => {
                let moved = vec![Moved { fid: f(10), kind: FileKind::File, above: vec![f(1)] }];
                TreeChanges { moved, ..TreeChanges::default() }
            }
            _ => TreeChanges::default(),
        };
        let granted = bench.end(1, &changes);
        if lies == "nobody knows where" {
            bench.ack(2, gone(10, granted.leases[0].epoch.0));
            assert_eq!(bench.table.ancestors(f(10)), None, "put away");
        }
        assert_eq!(bench.table.holes(s(1), f(3)), [(f(10), Hole::Object)], "{lies}");
        bench.table.forget_holes_of(f(11));
        assert_eq!(bench.table.holes(s(1), f(3)).len(), 1, "{lies}");
        bench.table.forget_holes_of(f(10));
        assert_eq!(bench.table.holes(s(1), f(3)), [], "{lies}");
    }
}

/// It may have to tell much that nobody wanted before.
#[test]
fn who_is_asked_for_more_has_as_long_for_it_as_at_first() {
    let mut bench = Bench::with_deep(Mode::Write);
    let reads = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[reads]), [asked(10, 4, Some(Mode::Read))]);
    bench.cancel(1);
    bench.pass(25.0, &[1, 2, 3]);
    let changes = bench.here(change(10));
    assert_eq!(bench.request(3, 2, &[changes]), [asked(10, 5, None)]);
    let outputs = bench.pass(50.0, &[1, 2, 3]);
    assert!(!outputs.iter().any(|output| matches!(output, Output::Fence { .. })), "{outputs:?}");
    bench.renew(1);
    assert_eq!(bench.ack(1, answer(10, 5, None)), [admit(2)]);
}

/// What its holder moves about it is asked for anew each time.
#[test]
fn who_is_asked_anew_for_what_it_moves_has_longer_but_not_for_ever() {
    let mut bench = deep(16);
    assert_eq!(bench.go(1, names(3)).leases, [subtree(Mode::Write, 3, 1)]);
    // Directory 20 in 3, with 30 in it, goes to the root; so session 1 has a deep lease on it.
    let mut number = 100;
    let mut move_it = |bench: &mut Bench, above: &[u64]| {
        number += 1;
        let own = below(bench, names(20), &[3, 2, 1]);
        bench.request(1, number, &[own]);
        let above = above.iter().map(|ino| f(*ino)).collect();
        let moved = vec![Moved { fid: f(20), kind: FileKind::Directory, above }];
        let changes = TreeChanges { moved, ..TreeChanges::default() };
        bench.table.finish_tree(bench.now, OpKey(number), Outcome::Applied, &changes);
        bench.outputs()
    };
    move_it(&mut bench, &[1]);
    assert!(bench.table.deep_lease(s(1), f(20)).is_some());
    let access = below(&bench, read(30), &[20, 1]);
    let asks = bench.request(2, 1, &[access]);
    assert!(matches!(&asks[..], [Output::Recall { recall, .. }] if recall.fid == f(20)), "{asks:?}");
    let ended = (1..100_u32).find(|step| {
        let mut outputs = bench.pass(f64::from(*step), &[1, 2]);
        let above: &[u64] = if step % 2 == 0 { &[1] } else { &[3, 2, 1] };
        outputs.extend(move_it(&mut bench, above));
        outputs.iter().any(|output| matches!(output, Output::Fence { .. }))
    });
    let (asked_for, term) = (plain().recall_deadline.as_secs(), TERM.as_secs());
    let ended = u64::from(ended.expect("it waits for ever"));
    assert!(ended > asked_for + term + 5, "as if it had not been asked anew: after {ended} s");
    assert!(ended <= 2 * asked_for + term + 1, "after {ended} s");
}

#[test]
fn for_a_move_only_leases_of_those_are_looked_at_who_hold_something_in_what_moves() {
    let mut bench = deep(16);
    assert_eq!(bench.go(1, names(3)).leases, [subtree(Mode::Write, 3, 1)]);
    for ino in 1000..2000 {
        let access = below(&bench, read(ino), &[1]);
        assert_eq!(bench.request(4, ino, &[access]), [admit(ino)]);
        bench.end(ino, &TreeChanges::default());
    }
    // Session 2 has 30, in directory 20.
    let access = below(&bench, change(30), &[20, 3, 2, 1]);
    let asks = bench.request(2, 1, &[access]);
    let [Output::Recall { recall, .. }] = &asks[..] else { panic!("{asks:?}") };
    let ack = RecallAck { part: recall.part, ..answer(30, recall.epoch.0, None) };
    assert_eq!(bench.ack(1, ack), [admit(1)]);
    bench.end(1, &TreeChanges::default());
    let before = bench.table.counters().leases_examined;
    let own = below(&bench, names(20), &[3, 2, 1]);
    assert_eq!(bench.request(1, 2, &[own]), [admit(2)]);
    let moved = vec![Moved { fid: f(20), kind: FileKind::Directory, above: vec![f(1)] }];
    bench.end(2, &TreeChanges { moved, ..TreeChanges::default() });
    assert_eq!(bench.table.holes(s(1), f(20)), [(f(30), Hole::Object)]);
    assert!(bench.table.counters().leases_examined - before < 20);
}
