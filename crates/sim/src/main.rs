//! Repeats a run of the simulation by its seed, or runs many.
//!
//! `cargo run --release -p soda-sim -- --seed 7 [--count 100] [--sabotage NAME] [--drift-ppm N] [--trace]`, and for other shapes
//! `--crowded`, `--behind`, `--harsh`, `--cuts`, `--deep`, `--logged` or `--full`; `--plain` leaves out what a seed did not stand
//! for at first.

use soda_sim::{Extent, Sabotage, Show, SimConfig, run};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(options) => simulate(&options),
        Err(message) => {
            eprintln!(
                "{message}\nusage: soda-sim [--seed N] [--count N] [--sabotage NAME] [--drift-ppm N] \
                 [--crowded|--behind|--harsh|--cuts|--deep|--logged|--full] [--plain] [--trace]"
            );
            ExitCode::from(2)
        }
    }
}

#[derive(Debug)]
struct Options {
    seed: u64,
    count: u64,
    sabotage: Sabotage,
    drift_ppm: Option<u32>,
    show: Show,
    extent: Extent,
    /// What a seed stands for.
    shape: fn(u64) -> SimConfig,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        seed: 1,
        count: 1,
        sabotage: Sabotage::None,
        drift_ppm: None,
        show: Show::No,
        extent: Extent::All,
        shape: SimConfig::from_seed,
    };
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--trace" => {
                options.show = Show::Yes;
                continue;
            }
            "--plain" => {
                options.extent = Extent::Plain;
                continue;
            }
            "--crowded" => {
                options.shape = SimConfig::crowded;
                continue;
            }
            "--behind" => {
                options.shape = SimConfig::behind;
                continue;
            }
            "--harsh" => {
                options.shape = SimConfig::harsh;
                continue;
            }
            "--cuts" => {
                options.shape = SimConfig::cuts;
                continue;
            }
            "--deep" => {
                options.shape = SimConfig::deep;
                continue;
            }
            "--logged" => {
                options.shape = SimConfig::logged;
                continue;
            }
            "--full" => {
                options.shape = SimConfig::full;
                continue;
            }
            _ => {}
        }
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--seed" => options.seed = number()?,
            "--count" => options.count = number()?,
            "--drift-ppm" => options.drift_ppm = Some(number()? as u32),
            "--sabotage" => options.sabotage = value.parse().map_err(|error| format!("{error}"))?,
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(options)
}

fn simulate(options: &Options) -> ExitCode {
    let mut simulated = Duration::ZERO;
    let (mut events, mut operations) = (0, 0);
    for seed in options.seed..options.seed.saturating_add(options.count) {
        let config = (options.shape)(seed).with_sabotage(options.sabotage);
        let mut config = if options.extent == Extent::Plain { config.plain() } else { config };
        config.drift_ppm = options.drift_ppm.unwrap_or(config.drift_ppm);
        let report = run(config.clone(), options.show);
        for violation in &report.violations {
            println!("seed {seed}: {violation}\n  repeat it with: {}", config.command());
        }
        if !report.violations.is_empty() {
            return ExitCode::FAILURE;
        }
        simulated += report.simulated;
        events += report.events;
        operations += report.operations;
        if options.count == 1 {
            println!("seed {seed}: digest {:?}, {:?}", report.digest, report.counters);
        }
    }
    println!("{} s simulated, {events} events, {operations} operations: nothing wrong", simulated.as_secs());
    ExitCode::SUCCESS
}
