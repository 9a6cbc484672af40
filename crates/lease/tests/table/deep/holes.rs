//! Holes heal: when contention has ended, what was taken out of a deep lease is under it again, without a message more.

use super::*;
use soda_lease::table::BackOff;
use std::time::Duration;

/// Session 2 changes an object inside of session 1's deep lease, which leaves a hole. Returns the epoch of session 2's lease.
fn take_out(bench: &mut Bench, ino: u64) -> u64 {
    change_inside(bench, ino).leases[0].epoch.0
}

fn change_inside(bench: &mut Bench, ino: u64) -> Granted {
    let op = 3_000_000 + bench.table.counters().admissions;
    let access = bench.here(change(ino));
    let asks = bench.request(2, op, &[access]);
    let [Output::Recall { session, recall }] = &asks[..] else { panic!("{asks:?}") };
    assert_eq!((*session, recall.part), (s(1), Some(LeasePart::object(f(ino)))));
    assert_eq!(bench.ack(1, answer(ino, recall.epoch.0, None)), [admit(op)]);
    bench.end(op, &TreeChanges::default())
}

fn holes(bench: &Bench) -> Vec<u64> {
    bench.table.holes(s(1), f(3)).iter().map(|(fid, _)| fid.ino.0).collect()
}

/// What session 1 is told when it comes by to read: (leases, the mode in which it is covered).
fn comes_by(bench: &mut Bench, access: Access) -> (usize, Option<Mode>) {
    let granted = bench.go(1, access);
    (granted.leases.len(), granted.covered.first().map(|covered| covered.mode))
}

#[test]
fn a_hole_heals_when_its_user_has_given_it_back_and_no_sooner() {
    for mode in [Mode::Read, Mode::Write] {
        let mut bench = Bench::with_deep(mode);
        let epoch = take_out(&mut bench, 10);
        assert_eq!(holes(&bench), [10]);
        // Session 2 still has it: session 1 would have to ask.
        let access = bench.here(read(10));
        assert_eq!(bench.request(1, 1, &[access]), [lower(2, 10, epoch)]);
        bench.cancel(1);
        bench.ack(2, gone(10, epoch));
        // That alone heals nothing: it is said object by object, to who comes by.
        assert_eq!((holes(&bench), bench.table.counters().holes_healed), (vec![10], 0));
        assert_eq!(comes_by(&mut bench, read(10)), (0, Some(mode)));
        assert_eq!((holes(&bench), bench.table.counters().holes_healed), (vec![], 1));
        // It is as any other object there.
        assert_eq!(comes_by(&mut bench, read(10)), comes_by(&mut bench, read(11)));
        let op = bench.here(change(10));
        let asks = bench.request(2, 2, &[op]);
        assert!(
            matches!(&asks[..], [Output::Recall { recall, .. }] if recall.part == Some(LeasePart::object(f(10)))),
            "{asks:?}"
        );
    }
}

#[test]
fn a_hole_heals_when_the_session_that_used_it_has_ended() {
    let mut bench = Bench::with_deep(Mode::Write);
    take_out(&mut bench, 10);
    bench.table.close_session(bench.now, s(2));
    bench.outputs();
    assert_eq!(comes_by(&mut bench, change(10)), (0, Some(Mode::Write)));
    assert_eq!(holes(&bench), []);
}

#[test]
fn a_hole_that_keeps_reading_heals_to_writing_when_nobody_reads_there() {
    let mut bench = Bench::with_deep(Mode::Write);
    let access = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[access]), [asked(10, 4, Some(Mode::Read))]);
    assert_eq!(bench.ack(1, answer(10, 4, Some(Mode::Read))), [admit(1)]);
    bench.end(1, &TreeChanges::default());
    assert_eq!(comes_by(&mut bench, read(10)), (0, Some(Mode::Read)), "as far as the hole lets it");
    assert_eq!(bench.table.holes(s(1), f(3)), [(f(10), Hole::KeepsReading)]);
    bench.ack(2, gone(10, 5));
    assert_eq!(comes_by(&mut bench, change(10)), (0, Some(Mode::Write)));
    assert_eq!(holes(&bench), []);
}

#[test]
fn a_hole_does_not_heal_while_somebody_waits_for_it() {
    let mut bench = Bench::with_deep(Mode::Write);
    let epoch = take_out(&mut bench, 10);
    bench.ack(2, gone(10, epoch));
    let own = bench.here(read(10));
    assert_eq!(bench.request(1, 1, &[own]), [admit(1)]);
    // Session 3 comes before that is over.
    let access = bench.here(change(10));
    assert_eq!(bench.request(3, 2, &[access]), []);
    let granted = bench.table.finish_tree(bench.now, OpKey(1), Outcome::Applied, &TreeChanges::default());
    assert_eq!((granted, bench.outputs()), (Granted::default(), vec![admit(2)]));
    assert_eq!(holes(&bench), [10]);
    let theirs = bench.end(2, &TreeChanges::default()).leases[0].epoch.0;
    bench.ack(3, gone(10, theirs));
    assert_eq!(comes_by(&mut bench, read(10)), (0, Some(Mode::Write)));
    assert_eq!(holes(&bench), []);
}

/// A new user of a directory may have taken what is below, too.
#[test]
fn a_hole_in_place_of_a_directory_heals_when_nobody_has_anything_below_and_from_the_top() {
    let mut bench = Bench::with_deep(Mode::Write);
    let inside = |bench: &Bench, access: Access| {
        access.below(bench.table.tree_version(), vec![f(20), f(3), f(2), f(1)])
    };
    let epoch = bench.take_out_tree(20).leases[0].epoch.0;
    let access = inside(&bench, change(30));
    assert_eq!(bench.request(2, 1, &[access]), [admit(1)]);
    let below = bench.end(1, &TreeChanges::default()).leases[0].epoch.0;
    bench.ack(2, gone(20, epoch));
    // The directory is free, what is below is not: session 1 gets a lease of its own on it, and nothing below is covered.
    assert_eq!(comes_by(&mut bench, change(20)), (1, None));
    let access = inside(&bench, read(31));
    assert_eq!(bench.request(1, 2, &[access]), [admit(2)]);
    let granted = bench.end(2, &TreeChanges::default());
    assert_eq!((granted.leases.len(), granted.covered.len(), holes(&bench)), (1, 0, vec![20]));
    bench.ack(2, gone(30, below));
    let access = inside(&bench, read(32));
    assert_eq!(bench.request(1, 3, &[access]), [admit(3)]);
    let granted = bench.end(3, &TreeChanges::default());
    assert_eq!((granted.leases.len(), granted.covered[0].mode, holes(&bench)), (0, Mode::Write, vec![]));
}

#[test]
fn what_has_healed_does_not_count_against_the_lease() {
    let mut bench = Bench::with_deep(Mode::Write);
    // Each time as many as it may have.
    for round in 0..20 {
        let taken = [10 + round % 2 * 4, 11 + round % 2 * 4].map(|ino| (ino, take_out(&mut bench, ino)));
        assert_eq!(holes(&bench).len(), 2, "in round {round}");
        for (ino, epoch) in taken {
            bench.ack(2, gone(ino, epoch));
            assert_eq!(comes_by(&mut bench, read(ino)), (0, Some(Mode::Write)), "in round {round}");
        }
    }
    assert_eq!(bench.table.counters().holes_healed, 40);
    assert!(bench.table.deep_lease(s(1), f(3)).is_some());
}

/// Not to be taken out again at once.
#[test]
fn while_back_off_lasts_a_hole_heals_for_reading_only() {
    let first = Duration::from_secs(2);
    let deep_leases = DeepLeases::On { after: 2, max_holes: 9 };
    let back_off = BackOff::On { first, longest: first * 8 };
    let mut bench = Bench::with(TableConfig { deep_leases, back_off, ..plain() });
    bench.go(1, change(12));
    assert_eq!(bench.go(1, change(13)).leases[1], subtree(Mode::Write, 3, 3));
    assert_eq!(comes_by(&mut bench, change(10)), (0, Some(Mode::Write)));
    // Nor is its other user given a lease.
    assert_eq!(change_inside(&mut bench, 10).leases, []);
    assert_eq!(holes(&bench), [10]);
    // Neither under the deep lease nor by a lease of its own: it goes through.
    assert_eq!(comes_by(&mut bench, change(10)), (0, None));
    assert_eq!(holes(&bench), [10]);
    bench.pass(first.as_secs_f64() - 0.1, &[1]);
    assert_eq!(comes_by(&mut bench, change(10)), (0, None));
    bench.pass(first.as_secs_f64() + 0.1, &[1]);
    assert_eq!(comes_by(&mut bench, change(10)), (0, Some(Mode::Write)));
    assert_eq!(holes(&bench), []);
}

/// One creation brings a lease on a whole directory. Who is cut off then loses nothing by what it has never looked at.
#[test]
fn who_is_away_has_holes_where_it_has_looked_at_nothing() {
    for mode in [Mode::Read, Mode::Write] {
        let mut bench = Bench::with_deep(mode);
        bench.pass(20.0, &[2]);
        let access = bench.here(change(15));
        assert_eq!(bench.request(2, 1, &[access]), [admit(1)]);
        let epoch = bench.end(1, &TreeChanges::default()).leases[0].epoch.0;
        assert_eq!((holes(&bench), bench.table.counters().holes_untold), (vec![15], 1));
        // It comes back, and goes on with what it has.
        bench.renew(1);
        assert_eq!(comes_by(&mut bench, read(11)), (0, Some(mode)));
        let access = bench.here(read(15));
        assert_eq!(bench.request(1, 2, &[access]), [lower(2, 15, epoch)]);
    }
}

#[test]
fn who_does_not_answer_about_what_it_has_not_looked_at_has_a_hole_when_its_time_is_over() {
    let mut bench = Bench::with_deep(Mode::Write);
    let access = bench.here(change(15));
    assert_eq!(bench.request(2, 1, &[access]), [asked(15, 4, None)]);
    let outputs = bench.pass(20.0, &[2]);
    assert_eq!(outputs.last(), Some(&admit(1)));
    assert!(!outputs.iter().any(|output| matches!(output, Output::Fence { .. })), "{outputs:?}");
    // Its answer comes all the same, and answers nothing any more.
    bench.renew(1);
    assert_eq!(bench.ack(1, answer(15, 4, None)), []);
    assert_eq!(holes(&bench), [15]);
}

/// Something may be known below what is asked for with all below it.
#[test]
fn who_is_away_loses_its_lease_if_all_below_is_asked_for() {
    let mut bench = Bench::with_deep(Mode::Write);
    bench.pass(20.0, &[2]);
    assert_eq!(bench.request(2, 1, &[change(15)]), [fence(1, FenceReason::Expired(f(15))), admit(1)]);
}

#[test]
fn what_does_not_exist_any_more_is_no_hole() {
    let mut bench = Bench::with_deep(Mode::Read);
    take_out(&mut bench, 10);
    bench.table.forget_holes_of(f(11));
    assert_eq!(holes(&bench), [10]);
    bench.table.forget_holes_of(f(10));
    assert_eq!(holes(&bench), []);
}

/// As where they make files.
#[test]
fn who_makes_many_directories_in_a_deep_lease_is_left_where_it_works_and_each_costs_the_same() {
    const MADE: u64 = 300;
    let deep_leases = DeepLeases::On { after: 2, max_holes: 1024 };
    let mut bench = Bench::with(TableConfig { deep_leases, ..plain() });
    bench.go(1, change(12));
    assert_eq!(bench.go(1, change(13)).leases[1], subtree(Mode::Write, 3, 3));
    change_inside(&mut bench, 20);
    let (mut asked, mut most) = (0, 0);
    for made in 0..MADE {
        let access = bench.here(change(20));
        assert_eq!(bench.request(2, made, &[access]), [admit(made)]);
        let created = Created { fid: f(1000 + made), kind: FileKind::Directory, parent: Some(f(20)) };
        let changes = TreeChanges { created: vec![created], ..TreeChanges::default() };
        bench.table.finish_tree(bench.now, OpKey(made), Outcome::Applied, &changes);
        most = most.max(holes(&bench).len());
        for output in bench.outputs() {
            let Output::Recall { recall, .. } = output else { panic!("{output:?}") };
            assert_eq!((recall.fid, recall.part), (f(3), Some(LeasePart::tree(f(20)))));
            assert_eq!(bench.ack(1, answer_tree(20, recall.epoch.0)), []);
            asked += 1;
        }
    }
    assert_eq!((asked, holes(&bench)), (1, vec![20]));
    let examined = bench.table.counters().holes_examined;
    assert!(
        most < 100 && examined < MADE,
        "{most} holes at most, {examined} looked at for {MADE} directories"
    );
}
