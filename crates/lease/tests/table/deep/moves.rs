//! Names that move: what a plan of before is worth, and what its mover takes along.

use super::*;

#[test]
fn a_plan_of_before_a_move_is_not_believed() {
    let mut bench = Bench::with_deep(Mode::Write);
    let planned = bench.table.tree_version();
    // 10 moves to the root, by its holder; the parents are not told of here.
    let own = bench.here(change(10));
    assert_eq!(bench.request(1, 1, &[own]), [admit(1)]);
    let moved = vec![Moved { fid: f(10), kind: FileKind::Directory, above: vec![f(1)] }];
    bench.end(1, &TreeChanges { moved, ..TreeChanges::default() });
    let late = read(98).below(planned, vec![f(10), f(3), f(2), f(1)]);
    assert!(bench.table.is_out_of_date(f(98), &late.ancestors));
    assert_eq!(bench.request(1, 2, &[late]), [admit(2)]);
    let granted = bench.end(2, &TreeChanges::default());
    assert_eq!((granted.leases.len(), granted.covered.len()), (1, 0), "a lease of its own");
    // What has not moved is where it was.
    let beside = place(read(99), planned);
    assert_eq!(bench.request(1, 3, &[beside]), [admit(3)]);
    let granted = bench.end(3, &TreeChanges::default());
    assert_eq!((granted.leases.len(), granted.covered.len()), (0, 1));
}

/// What lies in a hole its mover takes nowhere: others have leases there.
#[test]
fn a_directory_that_moves_out_of_a_hole_takes_no_deep_lease_along() {
    let mut bench = Bench::with_deep(Mode::Write);
    // Directory 10, below 3, is taken out of session 1's lease with all below; session 2 makes 11 in it, and gives 10 back.
    let below = |bench: &Bench, access: Access| {
        access.below(bench.table.tree_version(), vec![f(10), f(3), f(2), f(1)])
    };
    bench.take_out_tree(10);
    let made = below(&bench, change(20));
    assert_eq!(bench.request(2, 2, &[made]), [admit(2)]);
    assert_eq!(bench.end(2, &TreeChanges::default()).leases.len(), 1);
    let names = bench.here(change(10));
    let [Output::Recall { recall, .. }] = &bench.request(1, 3, &[names])[..] else { panic!("not asked") };
    assert_eq!(bench.ack(2, gone(10, recall.epoch.0)), [admit(3)]);
    let moved = vec![Moved { fid: f(10), kind: FileKind::Directory, above: vec![f(1)] }];
    let granted = bench.end(3, &TreeChanges { moved, ..TreeChanges::default() });
    assert!(granted.leases.iter().all(|grant| grant.scope == Scope::Node), "{granted:?}");
    assert_eq!((bench.table.deep_lease(s(1), f(10)), bench.modes(20)), (None, vec![(2, Mode::Write)]));
}

/// There was a hole in the lease that reaches both places.
#[test]
fn what_its_holder_moves_into_a_hole_it_takes_along() {
    let mut bench = deep(2);
    bench.go(1, change(12));
    assert_eq!(bench.go(1, change(13)).leases[1], subtree(Mode::Write, 3, 3));
    // Session 2 takes directory 20 out of it, with all that will be below.
    bench.take_out_tree(20);
    // Session 1 moves directory 10 there.
    let (own, to) = (bench.here(change(10)), bench.here(change(20)));
    let [Output::Recall { recall, .. }] = &bench.request(1, 2, &[own, to])[..] else { panic!("2 is asked") };
    assert_eq!(bench.ack(2, gone(20, recall.epoch.0)), [admit(2)]);
    let above = vec![f(20), f(3), f(2), f(1)];
    let moved = vec![Moved { fid: f(10), kind: FileKind::Directory, above }];
    bench.end(2, &TreeChanges { moved, ..TreeChanges::default() });
    assert_eq!(bench.table.lease(s(1), f(10)).map(|grant| grant.mode), Some(Mode::Write));
    assert_eq!(bench.table.deep_lease(s(1), f(10)).map(|grant| grant.mode), Some(Mode::Write));
}

/// The holder has heard the question before, and answers for what was there then.
#[test]
fn what_its_holder_moves_into_what_is_being_asked_for_it_takes_along() {
    let mut bench = deep(2);
    bench.go(1, change(12));
    assert_eq!(bench.go(1, change(13)).leases[1], subtree(Mode::Write, 3, 3));
    assert_eq!(bench.request(2, 1, &[change(20)]), [asked_tree(20, 4)]);
    // Session 1 moves directory 10 into 21, which is in 20.
    let above = vec![f(21), f(20), f(3), f(2), f(1)];
    let (own, to) =
        (bench.here(change(10)), change(21).below(bench.table.tree_version(), above[1..].to_vec()));
    assert_eq!(bench.request(1, 2, &[own, to]), [admit(2)]);
    let moved = vec![Moved { fid: f(10), kind: FileKind::Directory, above }];
    bench.end(2, &TreeChanges { moved, ..TreeChanges::default() });
    assert_eq!(bench.ack(1, answer_tree(20, 4)), [admit(1)]);
    assert_eq!(bench.table.lease(s(1), f(10)).map(|grant| grant.mode), Some(Mode::Write));
    assert_eq!(bench.table.deep_lease(s(1), f(10)).map(|grant| grant.mode), Some(Mode::Write));
}

#[test]
fn what_a_digest_makes_and_moves_has_the_leases_that_its_maker_is_told_of() {
    let mut bench = Bench::with_deep(Mode::Write);
    let held = vec![f(3)];
    let ancestors = held.iter().map(|fid| (*fid, bench.here(read(fid.ino.0)).ancestors)).collect();
    let told = soda_lease::table::Covered { held, made: vec![f(50)], alone: vec![], ancestors };
    bench.table.request_covered(bench.now, s(1), OpKey(1), told);
    assert_eq!(bench.outputs(), [admit(1)]);
    let created = vec![Created { fid: f(50), kind: FileKind::File, parent: Some(f(1)) }];
    let moved = vec![Moved { fid: f(50), kind: FileKind::File, above: vec![f(1)] }];
    let changes = TreeChanges { created, moved, ..TreeChanges::default() };
    let granted = bench.table.finish_covered_tree(bench.now, OpKey(1), &changes);
    for grant in &granted.leases {
        assert_eq!(bench.table.lease(s(1), grant.fid), Some(*grant));
    }
    assert_eq!((granted.leases.len(), granted.covered.len()), (1, 0));
}

/// Who asks next is told by the volume where things are, before the table hears that they have moved.
#[test]
fn what_its_holder_moves_while_somebody_asks_it_takes_along() {
    for known in [false, true] {
        let mut bench = Bench::with_deep(Mode::Write);
        let as_of = bench.table.tree_version();
        let file = if known { bench.here(change(10)) } else { change(10) };
        let own = [bench.here(change(2)), file];
        assert_eq!(bench.request(1, 1, &own), [admit(1)]);
        bench.request(2, 2, &[change(10).not_deep(as_of)]);
        let linked = TreeChanges { relinked: vec![f(10)], ..TreeChanges::default() };
        bench.table.finish_tree(bench.now, OpKey(1), Outcome::Applied, &linked);
        assert!(bench.table.lease(s(1), f(10)).is_some(), "known: {known}");
    }
}

/// As above, to another directory.
#[test]
fn what_its_holder_moves_out_while_somebody_asks_it_takes_along() {
    let mut bench = Bench::with_deep(Mode::Write);
    let as_of = bench.table.tree_version();
    let own = [bench.here(change(2)), change(10)];
    assert_eq!(bench.request(1, 1, &own), [admit(1)]);
    let above = vec![f(2), f(1)];
    bench.request(2, 2, &[change(10).below(as_of, above.clone())]);
    let moved = TreeChanges {
        moved: vec![Moved { fid: f(10), kind: FileKind::File, above }],
        ..TreeChanges::default()
    };
    bench.table.finish_tree(bench.now, OpKey(1), Outcome::Applied, &moved);
    assert!(bench.table.lease(s(1), f(10)).is_some());
}

#[test]
fn a_directory_of_unknown_place_that_its_holder_moves_it_takes_along_with_all_below() {
    let mut bench = Bench::with_deep(Mode::Write);
    let own = [bench.here(change(3)), change(20), bench.here(change(2))];
    assert_eq!(bench.request(1, 1, &own), [admit(1)]);
    let moved = vec![Moved { fid: f(20), kind: FileKind::Directory, above: vec![f(2), f(1)] }];
    bench.end(1, &TreeChanges { moved, ..TreeChanges::default() });
    assert_eq!(bench.table.deep_lease(s(1), f(20)).map(|grant| grant.mode), Some(Mode::Write));
}

#[test]
fn what_its_holder_moves_from_an_unknown_place_into_a_hole_it_takes_along() {
    let mut bench = Bench::with_deep(Mode::Write);
    bench.take_out_tree(20);
    let lease = bench.table.lease(s(2), f(20)).unwrap();
    bench.ack(2, gone(20, lease.epoch.0));
    // What keeps the hole: somebody reads something there.
    let above = vec![f(20), f(3), f(2), f(1)];
    let inside = read(30).below(bench.table.tree_version(), above.clone());
    assert_eq!(bench.request(2, 2, &[inside]), [admit(2)]);
    bench.end(2, &TreeChanges::default());
    let own = [bench.here(change(3)), change(10).without_lease(), bench.here(change(20))];
    assert_eq!(bench.request(1, 3, &own), [admit(3)]);
    let moved = vec![Moved { fid: f(10), kind: FileKind::File, above }];
    bench.end(3, &TreeChanges { moved, ..TreeChanges::default() });
    assert_eq!(bench.table.lease(s(1), f(10)).map(|grant| grant.mode), Some(Mode::Write));
}

/// A deep read lease of its on what it moves as well, or none: after a restart it claims what it has been told.
#[test]
fn who_moves_a_directory_out_is_told_of_the_deep_lease_that_it_has_there() {
    for read_before in [false, true] {
        let mut bench = deep(2);
        for ino in [30, 31].into_iter().filter(|_| read_before) {
            let inside = read(ino).below(bench.table.tree_version(), vec![f(20), f(3), f(2), f(1)]);
            assert_eq!(bench.request(1, ino, &[inside]), [admit(ino)]);
            bench.end(ino, &TreeChanges::default());
        }
        let before = bench.table.deep_lease(s(1), f(20));
        assert_eq!(before.map(|grant| grant.mode), read_before.then_some(Mode::Read));
        bench.go(1, change(12));
        assert_eq!(bench.go(1, change(13)).leases[1].mode, Mode::Write);
        let own = [bench.here(change(3)), bench.here(change(20)), bench.here(change(2))];
        assert_eq!(bench.request(1, 1, &own), [admit(1)]);
        let moved = vec![Moved { fid: f(20), kind: FileKind::Directory, above: vec![f(2), f(1)] }];
        let granted = bench.end(1, &TreeChanges { moved, ..TreeChanges::default() });
        let deep = granted.leases.iter().copied().find(|grant| grant.scope == Scope::Subtree);
        assert_eq!(deep, bench.table.deep_lease(s(1), f(20)), "read before: {read_before}");
        assert!(deep.is_some_and(|deep| deep.mode == Mode::Write && deep.epoch > e(3)));
    }
}

/// Its mover goes on without another word, so what its holder knows below it is asked for, under another name.
#[test]
fn what_another_session_moves_is_asked_for_with_all_below() {
    for mode in [Mode::Read, Mode::Write] {
        let mut bench = Bench::with_deep(mode);
        let inside = read(30).below(bench.table.tree_version(), vec![f(20), f(3), f(2), f(1)]);
        assert_eq!(bench.request(1, 1, &[inside]), [admit(1)]);
        assert_eq!(bench.end(1, &TreeChanges::default()).covered[0].above, [f(20), f(3)]);
        // Session 2 moves directory 20 out of 3. Both are asked for alone.
        let theirs = [bench.here(change(3)), bench.here(change(20)), bench.here(change(2))];
        let asks = bench.request(2, 2, &theirs);
        let asked: Vec<Recall> = asks
            .into_iter()
            .map(|ask| if let Output::Recall { recall, .. } = ask { recall } else { panic!("{ask:?}") })
            .collect();
        let alone = [3, 20].map(|ino| Some(LeasePart::object(f(ino))));
        assert_eq!(asked.iter().map(|recall| recall.part).collect::<Vec<_>>(), alone);
        for Recall { fid, epoch, part, .. } in asked {
            let ack = RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part };
            bench.ack(1, ack);
        }
        let moved = vec![Moved { fid: f(20), kind: FileKind::Directory, above: vec![f(2), f(1)] }];
        let changes = TreeChanges { moved, ..TreeChanges::default() };
        bench.table.finish_tree(bench.now, OpKey(2), Outcome::Applied, &changes);
        let [Output::Recall { session, recall }] = &bench.outputs()[..] else { panic!("not asked") };
        let all = (s(1), f(20), None, Some(LeasePart::tree(f(20))));
        assert_eq!((*session, recall.fid, recall.to, recall.part), all);
        let deep = bench.table.deep_lease(s(1), f(20)).map(|grant| grant.mode);
        assert_eq!(
            (deep, bench.table.deep_lease(s(1), f(3)).map(|grant| grant.mode)),
            (Some(mode), Some(mode))
        );
        // Until it has answered, who changes something there has it asked for that, too.
        let inside = change(30).below(bench.table.tree_version(), vec![f(20), f(2), f(1)]);
        assert!(matches!(&bench.request(2, 3, &[inside])[..], [Output::Recall { recall, .. }]
            if recall.fid == f(20) && recall.part == Some(LeasePart::object(f(30)))));
        let Recall { fid, epoch, part, .. } = *recall;
        let ack = RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part };
        assert_eq!(bench.ack(1, ack), [admit(3)]);
        assert_eq!(bench.table.deep_lease(s(1), f(20)), None);
    }
}

/// Nobody has told its holder of them.
#[test]
fn a_directory_that_another_session_makes_is_a_hole_with_all_below() {
    let mut bench = Bench::with_deep(Mode::Read);
    let theirs = bench.here(change(3));
    assert_eq!(bench.request(2, 1, &[theirs]), [asked(3, 4, None)]);
    let alone = RecallAck { part: Some(LeasePart::object(f(3))), ..answer(3, 4, None) };
    assert_eq!(bench.ack(1, alone), [admit(1)]);
    let created = vec![Created { fid: f(20), kind: FileKind::Directory, parent: Some(f(3)) }];
    let granted = bench.end(1, &TreeChanges { created, ..TreeChanges::default() });
    assert!(granted.leases.iter().any(|grant| (grant.fid, grant.scope) == (f(20), Scope::Subtree)));
    assert_eq!(bench.table.holes(s(1), f(3)), [(f(3), Hole::Object), (f(20), Hole::Tree)]);
}

/// What another session makes is a hole each.
#[test]
fn a_directory_with_many_holes_is_asked_for_with_all_below() {
    let deep_leases = DeepLeases::On { after: 2, max_holes: 1000 };
    let mut bench = Bench::with(TableConfig { deep_leases, ..plain() });
    bench.go(1, read(12));
    assert_eq!(bench.go(1, read(13)).leases[1], subtree(Mode::Read, 3, 3));
    let theirs = bench.here(change(20));
    assert!(matches!(&bench.request(2, 1, &[theirs])[..], [Output::Recall { .. }]));
    let epoch = bench.table.last_epoch();
    assert_eq!(bench.ack(1, answer(20, epoch.0, None)), [admit(1)]);
    let file = |ino| Created { fid: f(ino), kind: FileKind::File, parent: Some(f(20)) };
    let created = (100..108).map(file).collect();
    bench.end(1, &TreeChanges { created, ..TreeChanges::default() });
    assert_eq!(bench.table.holes(s(1), f(3)).len(), 9);
    let more = bench.here(change(20));
    assert_eq!(bench.request(2, 2, &[more]), [admit(2)]);
    let changes = TreeChanges { created: vec![file(108)], ..TreeChanges::default() };
    bench.table.finish_tree(bench.now, OpKey(2), Outcome::Applied, &changes);
    let [Output::Recall { recall, .. }] = &bench.outputs()[..] else { panic!("not asked") };
    assert_eq!((recall.fid, recall.part), (f(3), Some(LeasePart::tree(f(20)))));
    bench.ack(1, answer_tree(20, recall.epoch.0));
    assert_eq!(bench.table.holes(s(1), f(3)), [(f(20), Hole::Tree)]);
}

/// Session 1 may read below 21 by its lease on 2, and has none to write there: session 2 has made it.
#[test]
fn what_its_mover_may_only_read_below_a_directory_of_others_it_goes_on_reading() {
    let deep_leases = DeepLeases::On { after: 2, max_holes: 1000 };
    let mut bench = Bench::with(TableConfig { deep_leases, ..plain() });
    let at = |bench: &Bench, access: Access, above: &[u64]| {
        access.below(bench.table.tree_version(), above.iter().map(|ino| f(*ino)).collect())
    };
    let run = |bench: &mut Bench, session: u64, op: u64, access: Access| match &bench.request(
        session,
        op,
        &[access],
    )[..]
    {
        [Output::Admit(_)] => bench.end(op, &TreeChanges::default()),
        other => panic!("{other:?}"),
    };
    for ino in [40, 41] {
        let access = at(&bench, read(ino), &[2, 1]);
        run(&mut bench, 1, ino, access);
    }
    for ino in [12, 13] {
        let access = at(&bench, change(ino), &[3, 2, 1]);
        run(&mut bench, 1, ino, access);
    }
    let modes = [2, 3].map(|ino| bench.table.deep_lease(s(1), f(ino)).map(|grant| grant.mode));
    assert_eq!(modes, [Some(Mode::Read), Some(Mode::Write)]);
    // Session 2 makes directory 21 in 20, and keeps reading there.
    let names = at(&bench, change(20), &[3, 2, 1]);
    for ask in bench.request(2, 1, &[names]) {
        let Output::Recall { recall: Recall { fid, epoch, part, .. }, .. } = ask else { panic!("{ask:?}") };
        bench.ack(1, RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part });
    }
    let created = vec![Created { fid: f(21), kind: FileKind::Directory, parent: Some(f(20)) }];
    bench.end(1, &TreeChanges { created, ..TreeChanges::default() });
    let lease = bench.table.deep_lease(s(2), f(21)).expect("its maker's");
    let lowered = RecallAck {
        fid: f(21),
        epoch: lease.epoch,
        kept: Some(Mode::Read),
        in_use: InUse::No,
        uses: 0,
        part: Some(LeasePart::tree(f(21))),
    };
    bench.ack(2, lowered);
    let inside = at(&bench, read(30), &[21, 20, 3, 2, 1]);
    let covered = run(&mut bench, 1, 2, inside).covered;
    assert_eq!((covered[0].root, covered[0].mode), (f(2), Mode::Read));
    // Session 1 moves 20 out of the reach of both.
    let names =
        [at(&bench, change(3), &[2, 1]), at(&bench, change(20), &[3, 2, 1]), at(&bench, change(1), &[])];
    let asks = bench.request(1, 3, &names);
    let [Output::Recall { recall, .. }] = &asks[..] else { panic!("{asks:?}") };
    assert_eq!(bench.ack(2, gone(20, recall.epoch.0)), [admit(3)]);
    let moved = vec![Moved { fid: f(20), kind: FileKind::Directory, above: vec![f(1)] }];
    let granted = bench.end(3, &TreeChanges { moved, ..TreeChanges::default() });
    let deep = |grant: &&Grant| grant.scope == Scope::Subtree;
    let deep: Vec<_> = granted.leases.iter().filter(deep).map(|grant| (grant.fid, grant.mode)).collect();
    assert_eq!(deep, [(f(21), Mode::Read), (f(20), Mode::Write)]);
    // Who changes what it has read has to ask it.
    let theirs = at(&bench, change(30), &[21, 20, 1]);
    let asks = bench.request(3, 4, &[theirs]);
    let mut asked: Vec<SessionId> = asks
        .iter()
        .map(|ask| if let Output::Recall { session, .. } = ask { *session } else { panic!("{ask:?}") })
        .collect();
    asked.sort_unstable();
    assert_eq!(asked, [s(1), s(2)]);
}

/// The server cannot say where 20 lies while it is being changed: it may be moving.
#[test]
fn what_is_told_below_something_whose_place_is_not_known_yet_is_told_again() {
    let mut bench = Bench::with_deep(Mode::Write);
    assert_eq!(bench.request(1, 1, &[change(20)]), [admit(1)]);
    let tell = |bench: &mut Bench, op: u64| {
        let place = read(21).below(bench.table.tree_version(), vec![f(20), f(3), f(2), f(1)]).ancestors;
        let ancestors = vec![(f(21), place)];
        let told = Covered { held: vec![f(21)], ancestors, ..Covered::default() };
        bench.table.request_covered(bench.now, s(1), OpKey(op), told);
        bench.outputs()
    };
    assert_eq!(tell(&mut bench, 2), [Output::Refuse(OpKey(2), Refusal::Unplaced(f(21)))]);
    bench.end(1, &TreeChanges::default());
    assert_eq!(tell(&mut bench, 3), [admit(3)]);
}

/// It was asked for alone before, so there is a hole for it; and who changes it may move it.
#[test]
fn what_is_changed_without_its_place_being_known_is_asked_for_with_all_below_though_there_is_a_hole() {
    let mut bench = Bench::with_deep(Mode::Write);
    let inside = read(30).below(bench.table.tree_version(), vec![f(20), f(3), f(2), f(1)]);
    assert_eq!(bench.request(1, 1, &[inside]), [admit(1)]);
    assert_eq!(bench.end(1, &TreeChanges::default()).covered[0].mode, Mode::Write);
    let names = bench.here(change(20));
    let [Output::Recall { recall, .. }] = &bench.request(2, 2, &[names])[..] else { panic!("not asked") };
    assert_eq!(recall.part, Some(LeasePart::object(f(20))));
    assert_eq!(bench.ack(1, answer(20, recall.epoch.0, None)), [admit(2)]);
    let lease = bench.end(2, &TreeChanges::default()).leases[0];
    bench.ack(2, gone(20, lease.epoch.0));
    assert_eq!(bench.table.ancestors(f(20)), None, "forgotten");
    let asks = bench.request(2, 3, &[change(20)]);
    let epoch = bench.table.last_epoch().0;
    assert_eq!(asks, [asked_tree(20, epoch)]);
    assert_eq!(bench.ack(1, answer_tree(20, epoch)), [admit(3)]);
    // Session 1 knows nothing there any more.
    assert_eq!(bench.table.holes(s(1), f(3)), [(f(20), Hole::Tree)]);
}

/// Its answer that it has nothing there is on the way, or its word that it gives the lease back. Then it is told of something
/// below by another lease, whose reach the directory leaves.
#[test]
fn what_a_lease_comes_to_stand_for_does_not_end_with_an_answer_of_before() {
    for asked in [true, false] {
        let deep_leases = DeepLeases::On { after: 2, max_holes: 1000 };
        let mut bench = Bench::with(TableConfig { deep_leases, max_leases_per_session: 3, ..plain() });
        // Session 1 makes directory 20 in 3, and holds all of 3.
        let names = bench.here(change(3));
        assert_eq!(bench.request(1, 1, &[names]), [admit(1)]);
        let created = vec![Created { fid: f(20), kind: FileKind::Directory, parent: Some(f(3)) }];
        let granted = bench.end(1, &TreeChanges { created, ..TreeChanges::default() });
        bench.ack(1, gone(3, granted.leases[0].epoch.0));
        let old = bench.table.deep_lease(s(1), f(20)).expect("its maker's");
        bench.go(1, change(12));
        bench.go(1, change(13));
        assert_eq!(bench.table.deep_lease(s(1), f(3)).map(|grant| grant.mode), Some(Mode::Write));
        let mut epoch = old.epoch;
        if asked {
            // It has too many leases.
            let full = bench.request(1, 2, &[read(90).not_deep(bench.table.tree_version())]);
            assert_eq!(full, [admit(2)]);
            bench.table.finish(bench.now, OpKey(2), Outcome::Applied);
            let question = bench.outputs().into_iter().find_map(|output| match output {
                Output::Recall { recall, .. } if recall.fid == f(20) => Some(recall),
                _ => None,
            });
            epoch = question.expect("its oldest lease is asked for").epoch;
        }
        let inside = read(30).below(bench.table.tree_version(), vec![f(20), f(3), f(2), f(1)]);
        assert_eq!(bench.request(1, 3, &[inside]), [admit(3)]);
        bench.table.finish_tree(bench.now, OpKey(3), Outcome::Applied, &TreeChanges::default());
        // It moves 20 to 2, and goes on below it.
        let names = [bench.here(change(3)), bench.here(change(20)), bench.here(change(2))];
        bench.outputs();
        assert_eq!(bench.request(1, 4, &names), [admit(4)]);
        let moved = vec![Moved { fid: f(20), kind: FileKind::Directory, above: vec![f(2), f(1)] }];
        let changes = TreeChanges { moved, ..TreeChanges::default() };
        bench.table.finish_tree(bench.now, OpKey(4), Outcome::Applied, &changes);
        bench.outputs();
        let word = RecallAck { fid: f(20), epoch, kept: None, in_use: InUse::No, uses: 0, part: None };
        bench.ack(1, RecallAck { part: Some(LeasePart::tree(f(20))), ..word });
        let lease = bench.table.deep_lease(s(1), f(20));
        assert_eq!(lease.map(|grant| grant.mode), Some(Mode::Write), "asked: {asked}");
    }
}
