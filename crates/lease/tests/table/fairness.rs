//! Nobody starves.

use crate::support::*;
use soda_lease::Output;
use soda_types::RecallAck;
use std::collections::BTreeMap;

/// Sessions that answer every recall at once, operations that take one step, and a stream of new ones each step.
/// Returns after how many steps each operation ran.
fn stream(steps: u64, arrivals: impl Fn(u64) -> Vec<(u64, soda_lease::Access)>) -> BTreeMap<u64, (u64, u64)> {
    let mut bench = Bench::new();
    let mut op = 0;
    let mut running = Vec::new();
    let mut arrived = BTreeMap::new();
    let mut waited = BTreeMap::new();
    for step in 0..steps {
        let mut outputs = Vec::new();
        for (session, access) in arrivals(step) {
            op += 1;
            arrived.insert(op, step);
            outputs.extend(bench.request(session, op, &[access]));
        }
        for op in std::mem::take(&mut running) {
            outputs.extend(bench.finish(op).1);
        }
        while !outputs.is_empty() {
            match outputs.remove(0) {
                Output::Admit(op) => {
                    waited.insert(op.0, (arrived[&op.0], step - arrived[&op.0]));
                    running.push(op.0);
                }
                Output::Recall { session, recall } => {
                    let ack = RecallAck { kept: recall.to, ..gone(recall.fid.ino.0, recall.epoch.0) };
                    outputs.extend(bench.ack(session.0, ack));
                }
                other => panic!("{other:?}"),
            }
        }
        for session in 1..=4 {
            bench.renew(session);
        }
    }
    waited
}

#[test]
fn a_stream_of_readers_does_not_starve_a_writer() {
    let waited = stream(100, |step| {
        let mut arrivals = vec![(1 + step % 3, read(7)), (1 + (step + 1) % 3, read(7))];
        if step % 10 == 5 {
            arrivals.insert(1, (4, change(7)));
        }
        arrivals
    });
    assert!(waited.values().all(|(_, waited)| *waited <= 3), "{waited:?}");
    assert!(waited.len() > 200);
}

#[test]
fn a_stream_of_writers_does_not_starve_a_reader() {
    // A writer each second step; a reader now and then. What waits does not grow.
    let waited = stream(200, |step| match step % 10 {
        5 => vec![(4, read(7))],
        other if other % 2 == 0 => vec![(1 + step % 3, change(7))],
        _ => vec![],
    });
    assert!(waited.values().all(|(_, waited)| *waited <= 3), "{waited:?}");
}

/// A holder that changes the object again and again, two changes at a time, as several threads of one machine do. Each answer
/// is overtaken by the end of the next change.
#[test]
fn a_pipeline_of_covered_changes_does_not_starve_a_reader() {
    let mut bench = Bench::new();
    bench.run(1, change(7));
    assert_eq!(bench.request(1, 100, &[change(7)]), [admit(100)]);
    let mut asked: Vec<soda_types::Recall> = Vec::new();
    let mut outputs = bench.request(2, 1, &[read(7)]);
    for step in 1..500 {
        outputs.extend(bench.pass(f64::from(step) * 0.01, &[1, 2]));
        outputs.extend(bench.request(1, 100 + step as u64, &[change(7)]));
        outputs.extend(bench.finish(99 + step as u64).1);
        let late: Vec<_> = std::mem::take(&mut asked);
        for recall in late {
            outputs.extend(bench.ack(1, RecallAck { kept: recall.to, ..gone(7, recall.epoch.0) }));
        }
        for output in std::mem::take(&mut outputs) {
            match output {
                Output::Recall { recall, .. } => asked.push(recall),
                Output::Admit(op) if op.0 == 1 => {
                    assert!(step <= 20, "after {step} changes");
                    return;
                }
                Output::Admit(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("the reader never got its turn");
}

#[test]
fn an_operation_on_two_contended_objects_gets_its_turn() {
    let mut bench = Bench::new();
    let mut admitted = false;
    let mut running = vec![];
    let mut next = 10;
    for step in 0..50 {
        let mut outputs = Vec::new();
        for (session, ino) in [(1, 7), (2, 8)] {
            next += 1;
            outputs.extend(bench.request(session, next, &[change(ino)]));
        }
        if step == 10 {
            outputs.extend(bench.request(3, 1, &[change(7), change(8)]));
        }
        for op in std::mem::take(&mut running) {
            outputs.extend(bench.finish(op).1);
        }
        while !outputs.is_empty() {
            match outputs.remove(0) {
                Output::Admit(op) => {
                    admitted |= op.0 == 1;
                    running.push(op.0);
                }
                Output::Recall { session, recall } => {
                    outputs.extend(bench.ack(session.0, gone(recall.fid.ino.0, recall.epoch.0)));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(admitted);
}
