//! At least 100,000 simulated seconds with faults, all invariants watched.

use soda_sim::{Show, SimConfig, run};
use std::time::Duration;

const ENOUGH: Duration = Duration::from_secs(120_000);

#[test]
fn nothing_goes_wrong_in_a_hundred_thousand_seconds() {
    let mut simulated = Duration::ZERO;
    let mut seed = 1;
    while simulated < ENOUGH {
        let config = SimConfig::from_seed(seed);
        let report = run(config.clone(), Show::No);
        assert!(
            report.violations.is_empty(),
            "{:?}\nrepeat it with: {}",
            report.violations,
            config.command()
        );
        assert!(report.operations > 0, "seed {seed} did nothing");
        simulated += report.simulated;
        seed += 1;
    }
}

#[test]
fn nor_in_a_crowd() {
    for seed in 1..150 {
        let config = SimConfig::crowded(seed);
        let report = run(config.clone(), Show::No);
        assert!(
            report.violations.is_empty(),
            "{:?}\nrepeat it with: {}",
            report.violations,
            config.command()
        );
    }
}

/// A run that failed once is run for ever.
#[test]
fn seeds_that_found_something() {
    let usual = [
        // A read's answer was overtaken by the answer to an own change, and cached.
        3, 26, 2296, 22209,
        // Work on the recall of an earlier lease answered the recall of a later one.
        23, // A lease whose own term had ended was reclaimed.
        25, // A holder that reports progress was taken for silent.
        351,
    ];
    // 50: an answer to a recall, given before a change that overtook it, counted for the caches after it.
    let crowded = [50, 2276];
    let configs = usual.map(SimConfig::from_seed).into_iter().chain(crowded.map(SimConfig::crowded));
    for config in configs {
        let report = run(config.clone(), Show::No);
        assert!(
            report.violations.is_empty(),
            "{:?}\nrepeat it with: {}",
            report.violations,
            config.command()
        );
    }
}
