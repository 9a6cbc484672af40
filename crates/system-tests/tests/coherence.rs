//! One copy: random operations on several mounts, with faults, and a check that the history could have happened on one
//! local file system. Zero stale reads, zero lost acknowledged changes.

use soda_system_tests::cell::{Cell, Network, PATIENCE, TERM, prerequisites};
use soda_system_tests::linear::assert_linearizable;
use soda_system_tests::workload::{Pieces, Progress, Run, Workload, seed};
use std::thread::sleep;
use std::time::Duration;

/// Longer than any lease of a client that was frozen or cut off lives.
const PAST_TERM: Duration = Duration::from_secs(TERM.as_secs() * 2);

fn workload(seed: u64, operations: u64, pause: Duration) -> Workload {
    Workload { seed, threads_per_mount: 2, operations, pieces: Pieces::Calls, pause, readers: 0 }
}

/// Runs with faults for as long as they take: a few thousand operations, not as many as possible.
fn with_faults(test: &str, seed: u64, cell: &mut Cell, faults: impl FnOnce(&mut Cell, &Progress)) -> Run {
    let roots = cell.roots();
    workload(seed, 20_000, Duration::from_millis(4)).run(test, &roots, |progress| {
        progress.advance(400, PATIENCE);
        faults(cell, progress);
        progress.advance(400, PATIENCE);
    })
}

fn assert_no_errors(run: &Run) {
    for (mount, errors) in run.errors.iter().enumerate() {
        assert!(
            errors.is_empty(),
            "mount {mount}: {} errors, first {:?}",
            errors.len(),
            &errors[..errors.len().min(5)]
        );
    }
}

#[test]
fn two_mounts_are_one_copy() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 2);
    let run = workload(seed(11), 2500, Duration::from_micros(200)).run(
        "two_mounts_are_one_copy",
        &cell.roots(),
        |progress| {
            progress.complete(Duration::from_secs(120));
        },
    );
    assert_no_errors(&run);
    assert_linearizable(&run.history);
}

#[test]
fn four_mounts_are_one_copy() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start(Network::Loopback, 4);
    let run = workload(seed(12), 1500, Duration::from_micros(200)).run(
        "four_mounts_are_one_copy",
        &cell.roots(),
        |progress| {
            progress.complete(Duration::from_secs(120));
        },
    );
    assert_no_errors(&run);
    assert_linearizable(&run.history);
}

/// What was acknowledged is there after kill -9 of the server; clients go on by themselves, without an error, with the files
/// and locks they had.
#[test]
fn server_crashes_lose_nothing_and_show_nothing_stale() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 2);
    let run = with_faults(
        "server_crashes_lose_nothing_and_show_nothing_stale",
        seed(13),
        &mut cell,
        |cell, progress| {
            for _ in 0..3 {
                cell.server.kill();
                sleep(Duration::from_millis(200));
                cell.server.restart();
                progress.advance(400, PATIENCE);
            }
        },
    );
    assert_no_errors(&run);
    assert_linearizable(&run.history);
}

#[test]
fn client_crashes_lose_nothing_and_show_nothing_stale() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 2);
    let run = with_faults(
        "client_crashes_lose_nothing_and_show_nothing_stale",
        seed(14),
        &mut cell,
        |cell, progress| {
            for _ in 0..3 {
                cell.crash_client(1);
                progress.advance(400, PATIENCE);
            }
        },
    );
    assert!(run.errors[0].is_empty(), "the other client saw errors: {:?}", run.errors[0].first());
    assert_linearizable(&run.history);
}

/// A client stops (SIGSTOP, as a suspended machine) for longer than its lease. The other goes on after at most that; when the
/// first wakes up it must not use what it cached.
#[test]
fn a_frozen_client_shows_nothing_stale() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 2);
    let run = with_faults("a_frozen_client_shows_nothing_stale", seed(15), &mut cell, |cell, progress| {
        for frozen in [0, 1] {
            cell.mounts[frozen].freeze();
            sleep(PAST_TERM);
            progress.advance(100, PATIENCE);
            cell.mounts[frozen].thaw();
            progress.advance(400, PATIENCE);
        }
    });
    assert!(
        run.errors.iter().all(|errors| errors.len() < 50),
        "{} errors, first {:?}",
        run.errors[0].len(),
        run.errors
    );
    assert_linearizable(&run.history);
}

/// A client's cable is pulled for longer than its lease, then put back.
#[test]
fn a_client_that_is_cut_off_shows_nothing_stale() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Namespaces, 2);
    let run =
        with_faults("a_client_that_is_cut_off_shows_nothing_stale", seed(16), &mut cell, |cell, progress| {
            for client in [0, 1] {
                cell.cut(client);
                sleep(PAST_TERM);
                progress.advance(100, PATIENCE);
                cell.heal(client);
                progress.advance(400, PATIENCE);
            }
        });
    assert_linearizable(&run.history);
}

/// The server stops for a while (swapping, say): nobody may believe in a lease that it gives away when it wakes up.
#[test]
fn a_frozen_server_shows_nothing_stale() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 2);
    let run = with_faults("a_frozen_server_shows_nothing_stale", seed(17), &mut cell, |cell, progress| {
        cell.server.freeze();
        sleep(PAST_TERM);
        cell.server.thaw();
        progress.advance(400, PATIENCE);
    });
    // All sessions ran out meanwhile: who comes first may have the others fenced, and these are told with EIO.
    assert!(run.errors.iter().all(|errors| errors.len() < 50), "{:?}", run.errors);
    assert_linearizable(&run.history);
}
