//! Reservations of space and numbers of inodes, with a server that is full now and then.

use soda_sim::{Show, SimConfig, run};
use std::time::Duration;

#[test]
fn nothing_goes_wrong_with_a_server_that_is_full() {
    const ENOUGH: Duration = Duration::from_secs(30_000);
    let (mut simulated, mut refused, mut made_here) = (Duration::ZERO, 0, 0);
    let mut seed = 1;
    while simulated < ENOUGH {
        let config = SimConfig::full(seed);
        let report = run(config.clone(), Show::No);
        let violations = &report.violations;
        assert!(violations.is_empty(), "{violations:?}\nrepeat it with: {}", config.command());
        assert!(report.operations > 0, "{} did nothing", config.command());
        simulated += report.simulated;
        refused += report.refused_for_space;
        made_here += report.numbered_here;
        seed += 1;
    }
    assert!(refused > 1000, "only {refused} operations that there was no room for");
    assert!(made_here > 1000, "only {made_here} inodes with a number that was set aside");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..20 {
        assert_eq!(run(SimConfig::full(seed), Show::No), run(SimConfig::full(seed), Show::No), "seed {seed}");
    }
}
