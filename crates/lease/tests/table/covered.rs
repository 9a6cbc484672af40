//! What a session did under its write leases, and tells afterwards.

use crate::support::*;
use soda_lease::table::{Ancestors, Covered, ObjectTerm, OpKey, Output, Refusal, TableConfig, WriteLeases};
use soda_types::{Fid, Grant, InUse, Mode, Monotonic, RecallAck};

fn told(held: &[u64], made: &[u64]) -> Covered {
    let fids = |inos: &[u64]| inos.iter().map(|ino| f(*ino)).collect::<Vec<Fid>>();
    Covered { held: fids(held), made: fids(made), ..Covered::default() }
}

fn not_held(op: u64, ino: u64) -> Output {
    Output::Refuse(OpKey(op), Refusal::NotHeld(f(ino)))
}

trait Tells {
    fn tell(&mut self, session: u64, op: u64, covered: Covered) -> Vec<Output>;
    fn finish_told(&mut self, op: u64, made: &[u64]) -> (Vec<Grant>, Vec<Output>);
    fn made_before(&mut self, session: u64, ino: u64) -> Vec<Grant>;
}

impl Tells for Bench {
    fn tell(&mut self, session: u64, op: u64, covered: Covered) -> Vec<Output> {
        self.table.request_covered(self.now, s(session), OpKey(op), covered);
        self.outputs()
    }

    fn finish_told(&mut self, op: u64, made: &[u64]) -> (Vec<Grant>, Vec<Output>) {
        let made: Vec<Fid> = made.iter().map(|ino| f(*ino)).collect();
        let grants = self.table.finish_covered(self.now, OpKey(op), &made);
        (grants, self.outputs())
    }

    fn made_before(&mut self, session: u64, ino: u64) -> Vec<Grant> {
        self.table.made_before(self.now, s(session), f(ino), &Ancestors::Unknown).leases
    }
}

#[test]
fn without_the_lease_nothing_is_done_and_nobody_is_asked() {
    let mut bench = Bench::new();
    assert_eq!(bench.tell(1, 1, told(&[7], &[])), [not_held(1, 7)]);
    bench.run(1, read(7));
    assert_eq!(bench.tell(1, 2, told(&[7], &[])), [not_held(2, 7)]);
    bench.run(1, change(8));
    assert_eq!(bench.tell(2, 3, told(&[8], &[])), [not_held(3, 8)]);
    assert_eq!(bench.tell(1, 4, told(&[8, 9], &[])), [not_held(4, 9)]);
    assert_eq!(bench.tell(1, 5, told(&[8], &[])), [admit(5)]);
}

#[test]
fn a_lease_that_is_asked_back_still_counts_and_one_that_was_given_back_does_not() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(2, 1, &[read(7)]), [lower(1, 7, 1)]);
    assert_eq!(bench.tell(1, 2, told(&[7], &[])), [admit(2)]);
    assert_eq!(bench.finish_told(2, &[]), (vec![], vec![]));
    // The same epoch: the caches of who tells showed the change before.
    assert_eq!(bench.ack(1, kept(7, 1)), [admit(1)]);
    assert_eq!(bench.tell(1, 3, told(&[7], &[])), [not_held(3, 7)]);
}

#[test]
fn it_waits_for_what_is_in_progress_and_is_refused_if_the_lease_goes_meanwhile() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(1, 1, &[change(7).without_lease()]), [admit(1)]);
    assert_eq!(bench.tell(1, 2, told(&[7], &[])), []);
    assert_eq!(bench.finish(1).1, [admit(2)]);
    bench.finish_told(2, &[]);

    assert_eq!(bench.request(1, 3, &[change(7).without_lease()]), [admit(3)]);
    assert_eq!(bench.tell(1, 4, told(&[7], &[])), []);
    let epoch = bench.table.lease(s(1), f(7)).unwrap().epoch.0;
    assert_eq!(bench.ack(1, gone(7, epoch)), [not_held(4, 7)]);
    assert_eq!(bench.finish(3).1, []);
}

#[test]
fn while_it_runs_nobody_else_does() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    let tree = Covered { alone: vec![f(0)], ..told(&[7], &[100]) };
    assert_eq!(bench.tell(1, 1, tree.clone()), [admit(1)]);
    assert_eq!(bench.request(1, 2, &[read(7)]), []);
    assert_eq!(bench.request(2, 3, &[read(100)]), []);
    assert_eq!(bench.tell(1, 4, tree), []);
    // It made number 100 and keeps the lease on it until it is asked.
    let (grants, outputs) = bench.finish_told(1, &[100]);
    assert_eq!(grants, [grant(Mode::Write, 100, 2)]);
    assert_eq!(outputs.len(), 2, "{outputs:?}");
    assert!(outputs.contains(&lower(1, 100, 2)), "{outputs:?}");
}

/// It has gone on writing to them since it told.
#[test]
fn what_was_made_belongs_to_its_maker_whatever_policy_says() {
    let config = TableConfig {
        max_leases_per_session: 2,
        write_leases: WriteLeases::OnlyToHolders,
        object_term: ObjectTerm::Session,
        ..plain()
    };
    let mut bench = Bench::with(config);
    bench.run(1, read(7));
    bench.run(1, change(7));
    assert_eq!(bench.tell(1, 1, told(&[7], &[100, 101])), [admit(1)]);
    let (grants, _) = bench.finish_told(1, &[100, 101]);
    let inos: Vec<u64> = grants.iter().map(|grant| grant.fid.ino.0).collect();
    assert_eq!(inos, [100, 101]);
    assert!(grants.iter().all(|grant| grant.mode == Mode::Write));
}

/// Whoever guessed the number has cached that there is nothing.
#[test]
fn a_lease_on_what_did_not_exist_is_in_nobodys_way() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    bench.run(2, read(100));
    assert_eq!(bench.tell(1, 1, told(&[7], &[100])), [admit(1)]);
    assert_eq!(bench.finish_told(1, &[100]).0.len(), 1);
    assert_eq!(bench.modes(100), [(1, Mode::Write)]);
}

#[test]
fn who_has_lost_the_answer_gets_the_leases_again_but_not_those_of_others() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.tell(1, 1, told(&[7], &[100, 101])), [admit(1)]);
    let (first, _) = bench.finish_told(1, &[100, 101]);
    assert_eq!(bench.made_before(1, 100), [first[0]]);
    let given_up = RecallAck { in_use: InUse::No, ..gone(101, first[1].epoch.0) };
    bench.ack(1, given_up);
    bench.run(2, change(101));
    assert_eq!(bench.made_before(1, 101), []);
    assert_eq!(bench.modes(101), [(2, Mode::Write)]);
    assert_eq!(bench.made_before(3, 100), []);
}

#[test]
fn after_a_restart_it_needs_what_was_reclaimed_only_and_no_end_of_the_grace_period() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    let held = bench.table.lease(s(1), f(7)).unwrap();
    let mut after = soda_lease::LeaseTable::new(plain(), e(1 << 44), Monotonic::ZERO);
    after.begin_grace(Monotonic::ZERO, [s(1), s(2)]);
    let mut bench = Bench { table: after, now: Monotonic::ZERO };
    assert_eq!(bench.tell(1, 1, told(&[7], &[100])), [not_held(1, 7)]);
    bench.table.handle_reclaim(bench.now, s(1), &[held]).unwrap();
    assert_eq!(bench.tell(1, 2, told(&[7], &[100])), [admit(2)]);
    assert_eq!(bench.finish_told(2, &[100]).0.len(), 1);
    // Told and answered before the restart.
    assert_eq!(bench.made_before(1, 200).len(), 1);
}

#[test]
fn of_a_session_that_has_ended_nothing_is_done() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    bench.pass(20.0, &[2]);
    assert_eq!(bench.request(2, 1, &[read(7)]), [expired(1, 7), admit(1)]);
    assert_eq!(bench.tell(1, 2, told(&[7], &[])), [refuse(2)]);
    assert_eq!(bench.tell(2, 3, Covered::default()), [admit(3)]);
}
