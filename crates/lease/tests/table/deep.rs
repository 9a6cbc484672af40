//! Deep leases: who gets one, what is asked of its holder, what comes to lie in its reach.
//!
//! The tree of these tests: 1 is the root, 2 a directory in it, 3 one in that; everything else is in 3.

mod asking;
mod holes;
mod moves;

use crate::support::*;
use soda_lease::table::{
    Access, Covered, Created, DeepLeases, FenceReason, Granted, Hole, Moved, OpKey, Outcome, Output, Refusal,
    TableConfig, TreeChanges, TreeVersion,
};
use soda_types::{Cause, FileKind, Grant, InUse, LeasePart, Mode, Recall, RecallAck, Scope, SessionId};

fn deep(after: u32) -> Bench {
    let deep_leases = DeepLeases::On { after, max_holes: 2 };
    Bench::with(TableConfig { deep_leases, ..plain() })
}

fn place(access: Access, as_of: TreeVersion) -> Access {
    let chain = match access.fid.ino.0 {
        1 => vec![],
        2 => vec![f(1)],
        3 => vec![f(2), f(1)],
        _ => vec![f(3), f(2), f(1)],
    };
    access.below(as_of, chain)
}

impl Bench {
    fn here(&self, access: Access) -> Access {
        place(access, self.table.tree_version())
    }

    fn go(&mut self, session: u64, access: Access) -> Granted {
        let op = 2_000_000 + self.table.counters().admissions;
        let access = self.here(access);
        assert_eq!(self.request(session, op, &[access]), [admit(op)]);
        self.end(op, &TreeChanges::default())
    }

    /// Session 2 takes a directory out of session 1's lease with all that is below: it cannot say where it lies.
    fn take_out_tree(&mut self, ino: u64) -> Granted {
        let op = 4_000_000;
        let asks = self.request(2, op, &[change(ino)]);
        let epoch = self.table.last_epoch();
        assert_eq!(asks, [asked_tree(ino, epoch.0)]);
        assert_eq!(self.ack(1, answer_tree(ino, epoch.0)), [admit(op)]);
        self.end(op, &TreeChanges::default())
    }

    fn end(&mut self, op: u64, changes: &TreeChanges) -> Granted {
        let granted = self.table.finish_tree(self.now, OpKey(op), Outcome::Applied, changes);
        assert_eq!(self.outputs(), []);
        granted
    }

    /// Session 1 has a deep lease on directory 3 and has read 10 and 11 under it, 12 and 13 before.
    fn with_deep(mode: Mode) -> Bench {
        let mut bench = deep(2);
        let access = |ino| if mode == Mode::Read { read(ino) } else { change(ino) };
        bench.go(1, access(12));
        let granted = bench.go(1, access(13));
        assert_eq!(granted.leases[1], subtree(mode, 3, 3));
        for ino in [10, 11] {
            let granted = bench.go(1, read(ino));
            assert_eq!((granted.leases.len(), granted.covered[0].mode), (0, mode));
        }
        bench
    }
}

fn subtree(mode: Mode, ino: u64, epoch: u64) -> Grant {
    Grant { scope: Scope::Subtree, ..grant(mode, ino, epoch) }
}

fn asked(ino: u64, epoch: u64, to: Option<Mode>) -> Output {
    let cause = if to.is_some() { Cause::Read } else { Cause::Data };
    let recall = Recall { fid: f(3), epoch: e(epoch), to, cause, part: Some(LeasePart::object(f(ino))) };
    Output::Recall { session: s(1), recall }
}

fn answer(ino: u64, epoch: u64, kept: Option<Mode>) -> RecallAck {
    // Of directory 3 itself these tests speak with all below only: that is the whole lease.
    let part = Some(if ino == 3 { LeasePart::tree(f(3)) } else { LeasePart::object(f(ino)) });
    RecallAck { fid: f(3), epoch: e(epoch), kept, in_use: InUse::No, uses: 0, part }
}

fn asked_tree(ino: u64, epoch: u64) -> Output {
    let (to, cause) = (None, Cause::Data);
    let recall = Recall { fid: f(3), epoch: e(epoch), to, cause, part: Some(LeasePart::tree(f(ino))) };
    Output::Recall { session: s(1), recall }
}

fn answer_tree(ino: u64, epoch: u64) -> RecallAck {
    RecallAck { part: Some(LeasePart::tree(f(ino))), ..answer(ino, epoch, None) }
}

#[test]
fn who_reads_much_gets_a_deep_read_lease() {
    let mut bench = deep(3);
    assert_eq!(bench.go(1, read(10)).leases, [grant(Mode::Read, 10, 1)]);
    assert_eq!(bench.go(1, read(11)).leases, [grant(Mode::Read, 11, 2)]);
    assert_eq!(bench.go(1, read(12)).leases, [grant(Mode::Read, 12, 3), subtree(Mode::Read, 3, 4)]);
    // From now on it costs the table nothing.
    assert_eq!(bench.go(1, read(13)).leases, []);
    assert_eq!(bench.table.len(), 4);
    // Another reader gets one, too.
    (10..=12).for_each(|ino| drop(bench.go(2, read(ino))));
    assert_eq!(bench.table.deep_lease(s(2), f(3)).map(|lease| lease.mode), Some(Mode::Read));
}

#[test]
fn not_where_somebody_else_may_write() {
    let mut bench = deep(2);
    bench.go(2, change(19));
    for ino in 10..=13 {
        assert_eq!(bench.go(1, read(ino)).leases.len(), 1);
    }
    // Nor below a directory that somebody else covers.
    let mut bench = Bench::with_deep(Mode::Write);
    let access = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[access]), [asked(10, 4, Some(Mode::Read))]);
    assert_eq!(bench.ack(1, answer(10, 4, Some(Mode::Read))), [admit(1)]);
    assert_eq!(bench.end(1, &TreeChanges::default()).leases, [grant(Mode::Read, 10, 5)]);
}

#[test]
fn who_is_alone_in_a_subtree_gets_it_for_writing() {
    let mut bench = deep(2);
    bench.go(1, change(10));
    assert_eq!(bench.go(1, change(11)).leases, [grant(Mode::Write, 11, 2), subtree(Mode::Write, 3, 3)]);
    let mut bench = deep(2);
    bench.go(2, read(19));
    bench.go(1, change(10));
    assert_eq!(bench.go(1, change(11)).leases.len(), 1, "somebody reads there");
}

#[test]
fn a_new_directory_is_its_makers() {
    let mut bench = deep(16);
    let access = bench.here(change(3));
    assert_eq!(bench.request(1, 1, &[access]), [admit(1)]);
    let made = Created { fid: f(20), kind: FileKind::Directory, parent: Some(f(3)) };
    let granted = bench.end(1, &TreeChanges { created: vec![made], ..TreeChanges::default() });
    assert_eq!(granted.leases, [grant(Mode::Write, 3, 1), subtree(Mode::Write, 20, 2)]);
    assert_eq!((granted.covered[0].fid, granted.covered[0].mode), (f(20), Mode::Write));
}

#[test]
fn a_conflict_takes_one_object_out() {
    let mut bench = Bench::with_deep(Mode::Read);
    let access = bench.here(change(10));
    assert_eq!(bench.request(2, 1, &[access]), [asked(10, 4, None)]);
    assert_eq!(bench.ack(1, answer(10, 4, None)), [admit(1)]);
    assert_eq!(bench.end(1, &TreeChanges::default()).leases, [grant(Mode::Write, 10, 5)]);
    assert_eq!(bench.table.holes(s(1), f(3)), [(f(10), Hole::Object)]);
    // The rest stays, and the next conflict there is none.
    let access = bench.here(change(10));
    assert_eq!(bench.request(2, 2, &[access]), [admit(2)]);
    assert!(!bench.go(1, read(11)).covered.is_empty());
}

#[test]
fn too_many_holes_and_the_lease_is_given_up() {
    let mut bench = Bench::with_deep(Mode::Read);
    for (op, ino) in [(1, 10), (2, 11)] {
        let access = bench.here(change(ino));
        let asks = bench.request(2, op, &[access]);
        let [Output::Recall { recall, .. }] = asks.as_slice() else { panic!("{asks:?}") };
        assert_eq!(bench.ack(1, answer(ino, recall.epoch.0, None)), [admit(op)]);
        bench.end(op, &TreeChanges::default());
    }
    let access = bench.here(change(15));
    bench.request(2, 3, &[access]);
    let epoch = bench.table.last_epoch();
    let outputs = bench.ack(1, answer(15, epoch.0, None));
    let whole = Recall {
        fid: f(3),
        epoch: e(epoch.0 + 1),
        to: None,
        cause: Cause::Reclaim,
        part: Some(LeasePart::tree(f(3))),
    };
    assert!(outputs.contains(&Output::Recall { session: s(1), recall: whole }), "{outputs:?}");
    bench.ack(1, answer(3, epoch.0 + 1, None));
    assert_eq!(bench.table.deep_lease(s(1), f(3)), None);
}

#[test]
fn who_wants_more_asks_anew() {
    let mut bench = Bench::with_deep(Mode::Write);
    let reads = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[reads]), [asked(10, 4, Some(Mode::Read))]);
    // The reader goes, a writer comes.
    bench.cancel(1);
    let changes = bench.here(change(10));
    assert_eq!(bench.request(3, 2, &[changes]), [asked(10, 5, None)]);
    assert_eq!(bench.ack(1, answer(10, 4, Some(Mode::Read))), [], "an answer of before");
    assert_eq!(bench.ack(1, answer(10, 5, None)), [admit(2)]);
}

#[test]
fn after_an_own_change_an_earlier_answer_does_not_count() {
    let mut bench = Bench::with_deep(Mode::Write);
    let reads = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[reads]), [asked(10, 4, Some(Mode::Read))]);
    // The holder's own change goes first, and its caches may not show it when it answers the question that it knows.
    let changes = bench.here(change(10));
    assert_eq!(bench.request(1, 2, &[changes]), [admit(2)]);
    let granted = bench.table.finish_tree(bench.now, OpKey(2), Outcome::Applied, &TreeChanges::default());
    assert_eq!((granted, bench.outputs()), (Granted::default(), vec![asked(10, 5, Some(Mode::Read))]));
    assert_eq!(bench.ack(1, answer(10, 4, Some(Mode::Read))), []);
    assert_eq!(bench.ack(1, answer(10, 5, Some(Mode::Read))), [admit(1)]);
}

#[test]
fn a_holder_that_is_gone_is_fenced() {
    let mut bench = Bench::with_deep(Mode::Write);
    bench.pass(20.0, &[2]);
    let access = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[access]), [fence(1, FenceReason::Expired(f(10))), admit(1)]);
}

#[test]
fn a_lease_that_ends_answers_all_that_was_asked() {
    let mut bench = Bench::with_deep(Mode::Write);
    for (op, ino, epoch) in [(1, 10, 4), (2, 11, 5)] {
        let access = bench.here(read(ino));
        assert_eq!(bench.request(2, op, &[access]), [asked(ino, epoch, Some(Mode::Read))]);
    }
    let release = answer(3, 3, None);
    assert_eq!(bench.ack(1, release), [admit(1), admit(2)]);
    assert_eq!(bench.table.poll_timeout(), None);
}

#[test]
fn an_object_of_unknown_place_is_asked_of_all() {
    let mut bench = Bench::with_deep(Mode::Write);
    assert_eq!(bench.request(2, 1, &[read(99)]), [asked(99, 4, Some(Mode::Read))]);
    assert_eq!(bench.ack(1, answer(99, 4, Some(Mode::Read))), [admit(1)]);
    assert_eq!(bench.end(1, &TreeChanges::default()).leases, [grant(Mode::Read, 99, 5)]);
    // And while it is held nobody can say that a subtree is free of it.
    bench.go(3, change(2));
    assert_eq!(bench.table.deep_lease(s(3), f(1)), None);
}

#[test]
fn hard_links_need_leases_of_their_own() {
    let mut bench = Bench::with_deep(Mode::Write);
    let planned = bench.table.tree_version();
    let linked = change(10).not_deep(planned);
    assert_eq!(bench.request(2, 1, &[linked]), [admit(1)], "the deep lease does not cover it");
    bench.end(1, &TreeChanges::default());
    // A file with one name when the read of it was planned, and two when it is carried out.
    let (link, plan) = (bench.here(change(11)), bench.here(read(11)));
    assert_eq!(bench.request(1, 2, &[link]), [admit(2)]);
    assert_eq!(bench.request(1, 3, &[plan]), []);
    let linked = TreeChanges { relinked: vec![f(11)], ..TreeChanges::default() };
    bench.table.finish_tree(bench.now, OpKey(2), Outcome::Applied, &linked);
    assert_eq!(bench.outputs(), [admit(3)]);
    let granted = bench.end(3, &TreeChanges::default());
    assert_eq!((granted.leases.len(), granted.covered.len()), (1, 0));
}

/// A temporary file, or one with two names from the start, is nowhere in particular, not anywhere.
#[test]
fn what_is_made_in_no_directory_is_in_nobodys_way() {
    for told in [false, true] {
        let mut bench = Bench::with_deep(Mode::Read);
        let created = vec![Created { fid: f(50), kind: FileKind::File, parent: None }];
        let changes = TreeChanges { created, ..TreeChanges::default() };
        let granted = if told {
            let covered = Covered { made: vec![f(50)], ..Covered::default() };
            bench.table.request_covered(bench.now, s(2), OpKey(1), covered);
            assert_eq!(bench.outputs(), [admit(1)]);
            let granted = bench.table.finish_covered_tree(bench.now, OpKey(1), &changes);
            assert_eq!(bench.outputs(), []);
            granted
        } else {
            assert_eq!(bench.request(2, 1, &[]), [admit(1)]);
            bench.end(1, &changes)
        };
        assert_eq!(granted.leases.len(), 1);
        assert_eq!(bench.table.counters().holes, 0, "in the lease of another, for ever");
        // Nor does it keep anybody from a lease of his own.
        let made = Created { fid: f(60), kind: FileKind::Directory, parent: Some(f(2)) };
        let access = bench.here(names(2));
        assert_eq!(bench.request(3, 2, &[access]), [admit(2)]);
        let granted = bench.end(2, &TreeChanges { created: vec![made], ..TreeChanges::default() });
        assert!(granted.leases.iter().any(|grant| grant.scope == Scope::Subtree), "{granted:?}");
    }
}

#[test]
fn the_root_is_in_no_deep_lease() {
    let mut bench = deep(3);
    for ino in [20, 21, 22, 23, 24] {
        let access = read(ino).below(bench.table.tree_version(), vec![f(1)]);
        assert_eq!(bench.request(1, ino, &[access]), [admit(ino)]);
        let granted = bench.end(ino, &TreeChanges::default());
        assert!(granted.leases.iter().all(|grant| grant.scope == Scope::Node), "{granted:?}");
    }
}

#[test]
fn to_write_is_not_said_of_what_somebody_reads_at_the_moment() {
    let mut bench = Bench::with_deep(Mode::Write);
    let (mine, theirs) = (bench.here(read(10)), bench.here(read(10)));
    assert_eq!(bench.request(2, 1, &[theirs]), [asked(10, 4, Some(Mode::Read))]);
    assert_eq!(bench.ack(1, answer(10, 4, Some(Mode::Read))), [admit(1)]);
    assert_eq!(bench.request(1, 2, &[mine]), [admit(2)]);
    assert_eq!(bench.end(2, &TreeChanges::default()).covered[0].mode, Mode::Read);
    // Who read it gets no lease with what it has read.
    assert_eq!(bench.end(1, &TreeChanges::default()), Granted::default());
}

/// Its holder writes at once what it knows there, and the lease may be lowered again before the reader has its own.
#[test]
fn not_for_writing_while_somebody_reads_there() {
    let mut bench = deep(2);
    let theirs = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[theirs]), [admit(1)]);
    assert_eq!(bench.go(1, names(3)).leases, [grant(Mode::Write, 3, 1)]);
    bench.table.finish_tree(bench.now, OpKey(1), Outcome::Failed, &TreeChanges::default());
    let read = bench.table.lease(s(2), f(10)).unwrap();
    bench.ack(2, gone(10, read.epoch.0));
    assert_eq!(bench.go(1, names(3)).leases[0].scope, Scope::Subtree);
}

#[test]
fn after_a_restart_holes_are_where_others_reclaim() {
    for deep_first in [true, false] {
        let config = TableConfig { deep_leases: DeepLeases::On { after: 2, max_holes: 9 }, ..plain() };
        let mut table = soda_lease::LeaseTable::new(config, e(1000), secs(0.0));
        table.begin_grace(secs(0.0), [s(1), s(2)]);
        let as_of = table.tree_version();
        let placed = |grant: Grant| (grant, place(Access::read(grant.fid), as_of).ancestors);
        let wide = placed(subtree(Mode::Write, 3, 7));
        let narrow = [placed(grant(Mode::Read, 10, 8)), placed(grant(Mode::Write, 11, 9))];
        let mut reclaim =
            |session, held: &[_]| table.handle_reclaim_placed(secs(1.0), s(session), held).unwrap();
        let answers = if deep_first {
            let first = reclaim(1, std::slice::from_ref(&wide));
            [first, reclaim(2, &narrow)].concat()
        } else {
            let first = reclaim(2, &narrow);
            [reclaim(1, std::slice::from_ref(&wide)), first].concat()
        };
        assert!(answers.iter().all(Option::is_some), "{answers:?}");
        assert_eq!(table.holes(s(1), f(3)), [(f(10), Hole::KeepsReading), (f(11), Hole::Object)]);
    }
}

#[test]
fn a_holder_that_keeps_reading_unasked_spares_the_next_questions() {
    let mut bench = Bench::with_deep(Mode::Write);
    let access = bench.here(read(10));
    assert_eq!(bench.request(2, 1, &[access]), [asked(10, 4, Some(Mode::Read))]);
    // Who waits for one object waits for what its holder says of that one.
    assert_eq!(bench.ack(1, answer(3, 3, Some(Mode::Read))), []);
    assert_eq!(bench.table.deep_lease(s(1), f(3)).map(|lease| lease.mode), Some(Mode::Read));
    assert_eq!(bench.ack(1, answer(10, 4, Some(Mode::Read))), [admit(1)]);
    bench.end(1, &TreeChanges::default());
    assert_eq!(bench.table.holes(s(1), f(3)), []);
    assert_eq!(bench.go(2, read(11)).leases, [grant(Mode::Read, 11, 6)]);
    // One of the past, of another lease, says nothing.
    assert_eq!(bench.ack(1, answer(3, 2, Some(Mode::Read))), []);
    assert_eq!(bench.table.counters().stale_acks, 1);
}

/// The table has forgotten it meanwhile, and another session has a deep lease elsewhere.
#[test]
fn who_has_lost_the_answer_is_told_again_of_the_deep_lease_that_covers_what_it_made() {
    let mut bench = Bench::with_deep(Mode::Write);
    let made = Created { fid: f(60), kind: FileKind::Directory, parent: Some(f(2)) };
    let access = bench.here(change(2));
    assert_eq!(bench.request(2, 1, &[access]), [admit(1)]);
    bench.end(1, &TreeChanges { created: vec![made], ..TreeChanges::default() });
    assert!(bench.table.deep_lease(s(2), f(60)).is_some());

    let held = vec![f(3)];
    let ancestors = held.iter().map(|fid| (*fid, bench.here(read(fid.ino.0)).ancestors)).collect();
    let told = soda_lease::table::Covered { held, made: vec![f(50)], alone: vec![], ancestors };
    bench.table.request_covered(bench.now, s(1), OpKey(2), told);
    assert_eq!(bench.outputs(), [admit(2)]);
    let created = vec![Created { fid: f(50), kind: FileKind::File, parent: Some(f(3)) }];
    let changes = TreeChanges { created, ..TreeChanges::default() };
    let first = bench.table.finish_covered_tree(bench.now, OpKey(2), &changes);
    assert_eq!((first.leases.len(), first.covered.len()), (0, 1));
    let place = bench.here(read(50)).ancestors;
    assert_eq!(bench.table.made_before(bench.now, s(1), f(50), &place), first);
}

/// Its holder has just lowered a deep lease for who reads there: that one gets a deep lease at once, to read.
#[test]
fn back_off_is_for_those_who_write() {
    let long = std::time::Duration::from_secs(100);
    let back_off = soda_lease::table::BackOff::On { first: long, longest: long };
    let deep_leases = DeepLeases::On { after: 2, max_holes: 2 };
    let mut bench = Bench::with(TableConfig { deep_leases, back_off, ..plain() });
    let made = Created { fid: f(3), kind: FileKind::Directory, parent: Some(f(2)) };
    let access = bench.here(change(2));
    assert_eq!(bench.request(1, 1, &[access]), [admit(1)]);
    bench.end(1, &TreeChanges { created: vec![made], ..TreeChanges::default() });
    let lease = bench.table.deep_lease(s(1), f(3)).unwrap();
    bench.ack(1, answer(3, lease.epoch.0, Some(Mode::Read)));
    bench.go(2, read(10));
    assert_eq!(bench.go(2, read(11)).leases.len(), 2);
    assert_eq!(bench.table.deep_lease(s(2), f(3)).map(|lease| lease.mode), Some(Mode::Read));
}

fn names(ino: u64) -> Access {
    Access::change(f(ino), Cause::Names(Vec::new()))
}

#[test]
fn who_changes_names_where_nobody_else_is_gets_all_below() {
    let mut bench = deep(16);
    let granted = bench.go(1, names(3));
    assert_eq!(granted.leases, [subtree(Mode::Write, 3, 1)]);
    assert_eq!((granted.covered[0].fid, granted.covered[0].mode), (f(3), Mode::Write));
    // The next names cost nothing more.
    assert_eq!(bench.go(1, names(3)).leases, []);
    // The root's names are everybody's.
    assert_eq!(bench.go(1, names(1)).leases, [grant(Mode::Write, 1, 2)]);
    // Not where somebody reads something below.
    let mut bench = deep(16);
    bench.go(2, read(10));
    assert_eq!(bench.go(1, names(3)).leases, [grant(Mode::Write, 3, 2)]);
}

#[test]
fn a_listing_brings_one_lease_for_all_that_is_in_it() {
    let mut bench = deep(3);
    let page: Vec<Access> = [3, 10, 11, 12, 13].map(|ino| bench.here(read(ino))).into();
    assert_eq!(bench.request(1, 1, &page), [admit(1)]);
    let granted = bench.end(1, &TreeChanges::default());
    assert_eq!(granted.leases, [subtree(Mode::Read, 3, 1)]);
    assert_eq!(granted.covered.len(), 5);
    assert_eq!(bench.go(1, read(14)).leases, []);
}

/// Two that change names by turns hand that one directory to each other; what is below stays with who has it.
#[test]
fn who_changes_names_by_turns_leaves_what_is_below() {
    let (first, longest) = (std::time::Duration::from_secs(1), std::time::Duration::from_secs(8));
    let deep_leases = DeepLeases::On { after: 16, max_holes: 2 };
    let back_off = soda_lease::table::BackOff::On { first, longest };
    let mut bench = Bench::with(TableConfig { deep_leases, back_off, ..plain() });
    let mut given = Vec::new();
    for second in 0..16_u32 {
        bench.pass(f64::from(second), &[1, 2]);
        for session in [1, 2] {
            let op = u64::from(second) * 10 + session;
            let access = bench.here(names(3));
            let mut asked = bench.request(session, op, &[access]);
            while let Some(Output::Recall { session, recall }) = asked.first().cloned() {
                let Recall { fid, epoch, part, .. } = recall;
                let ack = RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part };
                asked.remove(0);
                asked.extend(bench.ack(session.0, ack));
            }
            let granted =
                bench.table.finish_tree(bench.now, OpKey(op), Outcome::Applied, &TreeChanges::default());
            bench.outputs();
            given.extend(granted.leases.iter().any(|grant| grant.scope == Scope::Subtree).then_some(second));
        }
    }
    assert_eq!(given, [0], "given in these seconds");
    let held = bench.table.deep_lease(s(1), f(3)).is_some();
    assert!(held && bench.go(1, read(10)).covered[0].mode == Mode::Write);
}
