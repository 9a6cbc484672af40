//! When no lease is given although nothing conflicts.

use crate::support::*;
use soda_lease::table::{BackOff, Equation8, Policy, TableConfig};
use soda_types::{Mode, RecallAck};
use std::time::Duration;

const HALF_LIFE: Duration = Duration::from_secs(100);

fn equation_8() -> Bench {
    let on = Equation8::On { half_life: HALF_LIFE, min_writes: 4 };
    Bench::with(TableConfig { equation_8: on, ..plain() })
}

/// An operation that first recalls what is in its way.
fn forced(bench: &mut Bench, session: u64, access: soda_lease::Access, uses: u32) -> usize {
    let op = 5_000 + bench.table.counters().admissions;
    let mut outputs = bench.request(session, op, &[access]);
    while let Some(soda_lease::Output::Recall { session, recall }) = outputs.first().cloned() {
        let ack = RecallAck { kept: recall.to, uses, ..gone(recall.fid.ino.0, recall.epoch.0) };
        outputs.remove(0);
        outputs.extend(bench.ack(session.0, ack));
    }
    assert_eq!(outputs, [admit(op)]);
    bench.finish(op).0.len()
}

#[test]
fn many_writes_and_few_reads_end_the_leases() {
    let mut bench = equation_8();
    // Three clients, each reads as often as it writes: R/W = 1 <= N-1 = 2.
    let mut given = Vec::new();
    for _ in 0..8 {
        for session in 1..=3 {
            given.push(forced(&mut bench, session, read(7), 0));
            given.push(forced(&mut bench, session, change(7), 0));
        }
    }
    assert_eq!(given[..4].iter().sum::<usize>(), 4, "too little is known at first: {given:?}");
    assert_eq!(given[30..].iter().sum::<usize>(), 0, "then every lease would be recalled unused: {given:?}");
    assert!(matches!(bench.table.policy(bench.now, f(7)), Policy::TooManyWrites(_)));
    assert!(bench.table.counters().refusals_equation_8 > 0);
    // Other objects are not concerned.
    assert_eq!(bench.run(1, read(8)).len(), 1);
}

#[test]
fn reads_that_caches_served_count() {
    let mut bench = equation_8();
    // The same, but every recalled lease had served ten reads.
    let mut last = 0;
    for _ in 0..8 {
        for session in 1..=3 {
            last = forced(&mut bench, session, read(7), 10);
            forced(&mut bench, session, change(7), 10);
        }
    }
    assert_eq!(last, 1);
    assert_eq!(bench.table.policy(bench.now, f(7)), Policy::Grants);
    let usage = bench.table.rates(bench.now, f(7)).unwrap();
    assert!(usage.reads > 5.0 * usage.writes, "{usage:?}");
    assert_eq!(usage.clients, 3);
}

#[test]
fn leases_come_back_when_the_writes_stop() {
    let mut bench = equation_8();
    for _ in 0..8 {
        for session in 1..=3 {
            forced(&mut bench, session, change(7), 0);
        }
    }
    assert_eq!(forced(&mut bench, 1, read(7), 0), 0);
    bench.pass(400.0, &[1, 2, 3, 4]);
    assert_eq!(forced(&mut bench, 1, read(7), 0), 1);
}

#[test]
fn one_client_alone_always_gets_leases() {
    let mut bench = equation_8();
    for _ in 0..100 {
        assert_eq!(bench.run(1, change(7)).len(), 1);
    }
    assert_eq!(bench.table.rates(bench.now, f(7)), None, "nothing is counted without contention");
    assert_eq!(bench.table.busiest(bench.now, 10), []);
}

#[test]
fn after_a_recall_no_new_write_lease_for_a_while() {
    let back_off = BackOff::On { first: Duration::from_secs(1), longest: Duration::from_secs(8) };
    let mut bench = Bench::with(TableConfig { back_off, ..plain() });
    assert_eq!(bench.run(1, change(7)), [grant(Mode::Write, 7, 1)]);
    assert_eq!(forced(&mut bench, 2, change(7), 0), 0, "the other's was recalled a moment ago");
    // So the two go on without a recall each time.
    assert_eq!(bench.run(1, change(7)), []);
    assert_eq!(bench.run(2, change(7)), []);
    assert_eq!(bench.table.counters().recalls, 1);
    assert_eq!(bench.table.policy(bench.now, f(7)), Policy::BacksOff(Duration::from_secs(1)));
    // Reading is not concerned, and who reads needs the write lease when it changes.
    assert_eq!(bench.run(1, read(7)).len(), 1);
    assert_eq!(bench.run(1, change(7)).len(), 1);
    bench.pass(1.5, &[1, 2]);
    assert_eq!(forced(&mut bench, 2, change(7), 0), 0);
    bench.pass(30.0, &[1, 2]);
    assert_eq!(bench.run(2, change(7)).len(), 1, "the contention has ended");
}

#[test]
fn rates_of_cold_objects_are_forgotten() {
    let on = Equation8::On { half_life: Duration::from_secs(1), min_writes: 4 };
    let mut bench = Bench::with(TableConfig { equation_8: on, ..plain() });
    for ino in 0..100 {
        forced(&mut bench, 1, change(ino), 0);
        forced(&mut bench, 2, change(ino).without_lease(), 0);
    }
    let remembered = bench.table.object_count();
    assert_eq!(remembered, 100);
    bench.pass(100.0, &[1, 2]);
    for _ in 0..100 {
        forced(&mut bench, 1, change(1000), 0);
        forced(&mut bench, 2, change(1000).without_lease(), 0);
    }
    assert!(bench.table.object_count() < 10, "{} objects", bench.table.object_count());
}

#[test]
fn the_busiest_objects_are_told_in_order() {
    let mut bench = equation_8();
    for round in 0..6 {
        for session in 1..=2 {
            forced(&mut bench, session, change(7), 0);
            if round < 3 {
                forced(&mut bench, session, change(8), 20);
                forced(&mut bench, session, change(9), 0);
            }
        }
    }
    let fids = |limit| -> Vec<_> {
        let found = bench.table.busiest(bench.now, limit).into_iter();
        found.map(|(fid, usage)| (fid, usage.clients)).collect()
    };
    assert_eq!(fids(10), [(f(8), 2), (f(7), 2), (f(9), 2)], "reads of caches count");
    assert_eq!(fids(1), [(f(8), 2)]);
}
