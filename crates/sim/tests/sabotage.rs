//! The harness finds mistakes: each one that is put in on purpose breaks the property that it has to, within a few seeds. What
//! breaks another one before does not count.

use soda_sim::{Behind, Fsync, LogPlace, Property, Sabotage, Show, SimConfig, Writes, run};
use std::time::Duration;

/// The first violation in the first seeds.
fn found(change: impl Fn(SimConfig) -> SimConfig) -> Option<(u64, Property)> {
    found_in(SimConfig::from_seed, change)
}

fn found_in(
    shape: impl Fn(u64) -> SimConfig,
    change: impl Fn(SimConfig) -> SimConfig,
) -> Option<(u64, Property)> {
    (1..500).find_map(|seed| {
        let report = run(change(shape(seed)), Show::No);
        report.violations.first().map(|violation| (seed, violation.property))
    })
}

/// Each of them breaks its own property in one of the first seeds.
fn are_found(all: &[Sabotage], shape: impl Fn(u64) -> SimConfig) {
    for sabotage in all {
        let is_it = |seed: &u64| {
            let report = run(shape(*seed).with_sabotage(*sabotage), Show::No);
            report.violations.first().map(|violation| violation.property) == sabotage.breaks()
        };
        let found = (1..500).find(is_it);
        assert!(found.is_some(), "{sabotage} did not show as {:?}", sabotage.breaks());
    }
}

/// Delayed writes, with servers of all kinds.
fn behind(seed: u64) -> SimConfig {
    match seed % 3 {
        0 => SimConfig::behind(seed / 3),
        1 => SimConfig::harsh(seed / 3 + 1),
        _ => SimConfig::cuts(seed / 3 + 1),
    }
}

/// Clients whose own disks are enough for fsync, which they call often; and many faults.
fn with_local_fsync(seed: u64) -> SimConfig {
    let config = SimConfig::behind(seed);
    let writes = match config.writes {
        Writes::Through => Writes::Through,
        Writes::Behind(behind) => {
            Writes::Behind(Behind { log: LogPlace::Disk, fsync: Fsync::Local, ..behind })
        }
    };
    let fault_every = config.table.session_term / 5;
    let (server_crashes_percent, changes_percent, fsync_every) = (20, 80, 4);
    SimConfig { fault_every, server_crashes_percent, changes_percent, fsync_every, writes, ..config }
}

/// Clients that call fsync while others of their threads do, and a server that loses its power again and again.
fn with_many_fsyncs(seed: u64) -> SimConfig {
    let config = SimConfig::cuts(seed);
    let writes = match config.writes {
        Writes::Through => Writes::Through,
        Writes::Behind(behind) => Writes::Behind(Behind { fsync: Fsync::Server, ..behind }),
    };
    let think = Duration::from_millis(10);
    SimConfig { processes: 4, fsync_every: 6, think, writes, ..config }
}

#[test]
fn nothing_goes_wrong_with_many_fsyncs() {
    assert_eq!((1..100).find(|seed| !run(with_many_fsyncs(*seed), Show::No).violations.is_empty()), None);
}

#[test]
fn every_mistake_is_found() {
    are_found(&Sabotage::ALL, SimConfig::from_seed);
}

#[test]
fn every_mistake_with_delayed_writes_is_found() {
    are_found(&Sabotage::BEHIND[..9], |seed| behind(seed).plain());
}

#[test]
fn every_other_mistake_with_delayed_writes_is_found() {
    are_found(&Sabotage::BEHIND[9..], |seed| behind(seed).plain());
}

#[test]
fn every_mistake_with_several_digests_is_found() {
    are_found(&Sabotage::DIGESTS, behind);
}

#[test]
fn every_mistake_with_syncs_along_with_digests_is_found() {
    are_found(&Sabotage::ALONG, with_many_fsyncs);
}

#[test]
fn every_mistake_with_file_locks_is_found() {
    are_found(&Sabotage::LOCKS, behind);
}

#[test]
fn every_mistake_with_reservations_is_found() {
    are_found(&Sabotage::ROOM, SimConfig::full);
}

#[test]
fn every_mistake_with_local_fsync_is_found() {
    are_found(&Sabotage::LOCAL[..3], with_local_fsync);
    are_found(&Sabotage::LOCAL[3..], behind);
}

#[test]
fn nothing_goes_wrong_with_local_fsync() {
    assert_eq!((1..150).find(|seed| !run(with_local_fsync(*seed), Show::No).violations.is_empty()), None);
}

/// Much is made and moved in a small tree.
fn with_many_moves(seed: u64) -> SimConfig {
    let (think, processes) = (Duration::from_millis(20), 4);
    SimConfig { objects: 4, cells: 2, changes_percent: 90, processes, think, ..SimConfig::deep(seed) }
}

#[test]
fn every_mistake_with_deep_leases_is_found() {
    are_found(&Sabotage::DEEP[..7], SimConfig::deep);
    are_found(&Sabotage::DEEP[7..], with_many_moves);
}

#[test]
fn nothing_goes_wrong_with_a_harsh_server() {
    assert_eq!(found_in(SimConfig::harsh, |config| config), None);
}

#[test]
fn nor_with_one_power_cut_after_the_other() {
    assert_eq!(found_in(SimConfig::cuts, |config| config), None);
}

/// The margin is what keeps drifting clocks safe: beyond it they are not.
#[test]
fn drift_beyond_the_margin_is_found() {
    let found = found(|config| SimConfig { drift_ppm: 50_000, ..config });
    assert!(matches!(found, Some((_, Property::Exclusive | Property::Fresh))), "{found:?}");
}

/// The same drift with a margin for it is safe.
#[test]
fn a_margin_for_the_drift_is_safe() {
    let found = found(|mut config| {
        config.drift_ppm = 50_000;
        // Slowest client against fastest server: 1 - 0.95 / 1.05.
        config.margin.drift_ppm = 96_000;
        // Grace has to cover the slowest clocks too.
        config.table.grace = config.table.session_term * 13 / 10;
        config
    });
    assert_eq!(found, None);
}
