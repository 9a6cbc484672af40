//! Deep leases in a small world of clients with caches: see `world`. `SEED` repeats one run, `SEEDS` says how many; both: how
//! many from that one on.

mod checks;
mod clients;
mod moves;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Mistake, World};

const STEPS: usize = 2500;

fn run(seed: u64, mistake: Mistake) -> World {
    let mut world = World::new(seed, mistake);
    (0..STEPS).for_each(|_| world.step());
    world.wind_up();
    world
}

#[test]
fn nobody_reads_what_is_old_and_nobody_waits_for_ever() {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, count) = (number("SEED"), number("SEEDS"));
    let seeds = first.map_or(0..count.unwrap_or(100), |seed| seed..seed + count.unwrap_or(1));
    let (mut reads, mut writes, mut deep, mut holes, mut healed, mut lowered) = (0, 0, 0, 0, 0, 0);
    let (mut told, mut refused) = (0, Vec::new());
    for seed in seeds {
        let done = catch_unwind(AssertUnwindSafe(|| run(seed, Mistake::None)));
        let world = done.unwrap_or_else(|_| panic!("SEED={seed} cargo test -p soda-lease --test deep"));
        reads += world.cached_reads;
        writes += world.local_writes;
        deep += world.deep_grants;
        holes += world.holes;
        healed += world.healed;
        lowered += world.lowered;
        told += world.told;
        refused.extend((world.refused > 0).then_some(seed));
    }
    println!(
        "{reads} reads from caches, {writes} local writes, {deep} deep leases, {holes} holes, {healed} healed, \
         {lowered} lowered, {told} moves told"
    );
    assert!(refused.is_empty(), "moves were refused in the runs of these seeds: {refused:?}");
    if first.is_none() {
        assert!(reads > 1000 && writes > 1000 && deep > 300 && holes > 300 && healed > 20 && lowered > 100);
        assert!(told > 50);
    }
}

/// A run that failed once is run for ever.
#[test]
fn seeds_that_found_something() {
    let found = [
        24_528, // What was moved below a lease ended with an answer about that lease of before.
    ];
    for seed in found {
        assert_eq!(run(seed, Mistake::None).refused, 0, "seed {seed}");
    }
}

/// The world would notice: each mistake breaks a promise before long.
#[test]
fn mistakes_are_caught() {
    are_caught(&[
        Mistake::MovesUntold,
        Mistake::StalePlans,
        Mistake::AnswersEarly,
        Mistake::AnswersUnflushed,
    ]);
}

#[test]
#[ignore = "not found in 6,000 runs: the world does not provoke them often enough"]
fn mistakes_that_matter_for_a_moment_are_caught() {
    are_caught(&[Mistake::MovesUnsaid, Mistake::LowersUnflushed, Mistake::LowersAtWork]);
}

fn are_caught(mistakes: &[Mistake]) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = |mistake: Mistake| {
        (0..1500).find(|seed| catch_unwind(AssertUnwindSafe(|| run(*seed, mistake))).is_err())
    };
    let caught: Vec<_> = mistakes.iter().map(|mistake| (*mistake, found(*mistake))).collect();
    std::panic::set_hook(hook);
    let missed: Vec<_> = caught.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?} of {caught:?}");
}
