//! At least 50,000 simulated seconds in which clients' leases pass to other processes, with all faults: a lease that passes has
//! one holder at any time.

use soda_sim::{Heirs, Property, Show, SimConfig, TakeOver, run};
use std::time::Duration;

const ENOUGH: Duration = Duration::from_secs(50_000);

/// How much time was simulated, and how often another process went on.
fn is_sound(shape: fn(u64) -> SimConfig, seed: u64) -> (Duration, u64) {
    let config = SimConfig { heirs: Heirs::AtQuietConnections, ..shape(seed) };
    let report = run(config.clone(), Show::No);
    let violations = report.violations;
    assert!(violations.is_empty(), "{violations:?}\nrepeat it, with heirs, as: {}", config.command());
    (report.simulated, report.heirs)
}

#[test]
fn nothing_goes_wrong_when_another_process_goes_on() {
    let shapes = [SimConfig::from_seed, SimConfig::crowded, SimConfig::behind, SimConfig::deep];
    let (mut simulated, mut heirs) = (Duration::ZERO, 0);
    let mut seed = 1;
    while simulated < ENOUGH {
        for shape in shapes {
            let (span, more) = is_sound(shape, seed);
            simulated += span;
            heirs += more;
        }
        seed += 1;
    }
    assert!(heirs > 100, "only {heirs} heirs");
}

#[test]
fn mistakes_in_take_overs_are_found() {
    // Who believes that it has a lease writes under it, or reads what is old, whichever comes first.
    const TOO_LONG: &[Property] = &[Property::Exclusive, Property::Fresh];
    for (mistake, expected) in
        [(TakeOver::KernelKeeps, &[Property::Fresh][..]), (TakeOver::WrittenDownTooEarly, TOO_LONG)]
    {
        let found = (1..500).find_map(|seed| {
            let heirs = Heirs::Mistaken(mistake);
            let report = run(SimConfig { heirs, ..SimConfig::from_seed(seed) }, Show::No);
            report.violations.first().map(|violation| (seed, violation.property))
        });
        let Some((seed, property)) = found else { panic!("{mistake:?} was not found") };
        assert!(expected.contains(&property), "{mistake:?} showed as {property:?} with seed {seed}");
    }
}
