//! The same seed gives the same run, event by event; another one does not.

use soda_sim::{Show, SimConfig, run};

#[test]
fn same_seed_same_run() {
    for seed in 1..40 {
        let (one, other) =
            (run(SimConfig::from_seed(seed), Show::No), run(SimConfig::from_seed(seed), Show::No));
        assert_eq!(one, other, "seed {seed}");
        let (one, other) = (run(SimConfig::behind(seed), Show::No), run(SimConfig::behind(seed), Show::No));
        assert_eq!(one, other, "seed {seed}, delayed writes");
    }
}

#[test]
fn another_seed_another_run() {
    let digest = |seed| run(SimConfig::from_seed(seed), Show::No).digest;
    assert_ne!(digest(1), digest(2));
}
