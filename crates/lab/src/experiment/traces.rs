//! What real programs asked of a real mount, as a workload of every protocol.

use super::build::Build;
use super::{Found, Lab, andrew, at_once, counters, times};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value};
use crate::sim;
use crate::sim::compare::{systems, under_trace};
use crate::trace::{Files, Recording, Trace};
use std::time::Duration;

/// The modes that are measured, and the simulated ones that they are beside.
const MEASURED: [(&str, &str, &str, &str); 3] = [
    ("Soda, write=through", "write=through", "off", "sync"),
    ("Soda, write=behind", "write=behind", "off", "write=behind,deep-leases=off"),
    ("Soda, behind, deep leases", "behind, deep", "on", "write=behind,deep-leases=on"),
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let machines = lab.by_extent(2, 5);
    // Nobody computes where messages are compared, as nobody waited for that when they were counted.
    let quick = Build { thinks: Duration::ZERO, ..build(lab) };
    let mut measured = Table::new(
        "Measured while it was recorded, and simulated: messages",
        ["workload", "mode", "measured", "of these changes", "simulated", "of these changes"],
    );
    let mut points: Vec<(&str, Vec<(f64, f64)>)> =
        ["Andrew, measured", "Andrew, simulated", "build, measured", "build, simulated"]
            .map(|name| (name, Vec::new()))
            .to_vec();
    let (mut files, mut tables, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (name, mode, deep, options)) in MEASURED.into_iter().enumerate() {
        (lab.progress)(&format!("recording an Andrew run and a build, {mode}"));
        let system = systems().into_iter().find(|(known, _)| *known == name).map(|(_, system)| system);
        let system = system.ok_or_else(|| LabError::Failed(format!("{name} is not simulated")))?;
        let recorded = [
            ("Andrew", record_andrew(lab, machines, deep, options)?),
            ("build", record_build(lab, &quick, deep, options)?),
        ];
        for (kind, (trace, counted)) in recorded {
            let outcome = sim::replay(system, &trace.replay(), 0.0);
            let simulated = (outcome.all(), outcome.changes());
            if mode == MEASURED[0].1 {
                checks.push(same_changes(kind, counted.1, simulated.1));
            }
            let counts = [counted.0, counted.1, simulated.0, simulated.1].map(Value::from);
            measured.rows.push([kind, mode].map(Value::from).into_iter().chain(counts).collect());
            let first = if kind == "Andrew" { 0 } else { 2 };
            points[first].1.push((at as f64 + 1.0, counted.0 as f64));
            points[first + 1].1.push((at as f64 + 1.0, simulated.0 as f64));
            if kind == "Andrew" && at == 0 {
                let title =
                    format!("Andrew, {machines} machines, one source: {} calls; 0.5 ms", trace.steps.len());
                tables.extend(under_trace(&title, &trace, ROUND_TRIP, &[]).totals());
                files.push(("andrew.csv", trace.csv()));
            }
        }
    }
    tables.insert(0, measured);
    let trace = recorded_build(lab, &build(lab))?;
    let title =
        format!("A build of {:.0} s by one machine: {} calls; 0.5 ms", trace.length(), trace.steps.len());
    tables.extend(under_trace(&title, &trace, ROUND_TRIP, &[]).totals());
    files.push(("build.csv", trace.csv()));
    let series =
        points.iter().map(|(name, points)| Series::new(*name, Style::Points, points.clone())).collect();
    let x = Axis::named("", ["write=through", "write=behind", "behind, with deep leases"]);
    let y = Axis::logarithmic("messages");
    Ok(Found {
        paper: "AFS measured its prototype with real users' workloads: 61.7 % of the calls were TestAuth, which callbacks \
                then took away. SODA leaves Sprite with opens and closes under real workloads to future work.",
        why: format!("{WHY} {}", agreement(&points)),
        figures: vec![Figure::new(
            "messages",
            "Messages of an Andrew run and a build, measured and simulated",
            x,
            y,
            series,
        )],
        tables,
        checks,
        files,
    })
}

/// That changes, which go through one by one, are as many.
fn same_changes(kind: &str, measured: u64, simulated: u64) -> Check {
    let claim =
        format!("{kind}, write=through: as many changes are simulated as were measured, but for a tenth");
    let holds = simulated > 0 && (measured as f64 / simulated as f64 - 1.0).abs() <= 0.1;
    Check::counted(claim, holds, format!("{measured} messages measured, {simulated} simulated"))
}

pub(super) const WHY: &str = "AFS v1 asks at each open and AFS v2 does not, as in the paper, and only \
    delayed writes spare what AFS, NFS and write=through send for each change; for a file that it has not seen the \
    real client asks twice, for its name with attributes and for its data, where the simulation counts one exchange \
    for all that a lease covers.";

/// Seconds.
const ROUND_TRIP: f64 = 0.0005;

/// With a compiler that takes half a second on average.
pub(super) fn build(lab: &Lab<'_>) -> Build {
    let thinks = Duration::from_millis(500);
    let (sources, headers, probes) = lab.by_extent((16, 6, 4), (60, 16, 24));
    Build { sources, headers, probes, thinks }
}

/// By how much the simulation errs with writes that go through, in a sentence.
fn agreement(points: &[(&str, Vec<(f64, f64)>)]) -> String {
    let first =
        |at: usize| points.get(at).and_then(|(_, points)| points.first()).map_or(f64::NAN, |point| point.1);
    format!(
        "With write=through the mounts sent {} (Andrew) and {} (build) as many messages as simulated.",
        times(first(0), first(1)),
        times(first(2), first(3))
    )
}

type Recorded = (Trace, (u64, u64));

fn record_andrew(lab: &Lab<'_>, machines: usize, deep: &str, options: &str) -> Result<Recorded, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", deep])?;
    cell.mount(machines, options)?;
    andrew::make_source(&Files::of(&cell.mounts[0].root))?;
    cell.mounts[0].sync()?;
    // Who made the source would have it cached.
    cell.mount(machines, options)?;
    let before = counters(&cell)?;
    let recording = Recording::start();
    at_once(&cell.mounts, |number, mount| {
        let files = Files::recorded(&mount.root, &recording, number);
        move || andrew::one_machine(&files, number, Duration::ZERO)
    })?;
    for mount in &cell.mounts {
        mount.sync()?;
    }
    Ok((recording.end(), messages(&before, &counters(&cell)?)))
}

fn record_build(lab: &Lab<'_>, build: &Build, deep: &str, options: &str) -> Result<Recorded, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", deep])?;
    cell.mount(2, options)?;
    let before = counters(&cell)?;
    let recording = Recording::start();
    build.run(&Files::recorded(&cell.mounts[0].root, &recording, 0))?;
    cell.mounts[0].sync()?;
    Ok((recording.end(), messages(&before, &counters(&cell)?)))
}

/// What is recorded here once, for the simulation alone.
pub(super) fn recorded_build(lab: &Lab<'_>, build: &Build) -> Result<Trace, LabError> {
    Ok(record_build(lab, build, "off", "write=behind")?.0)
}

fn messages(before: &[Counters], after: &[Counters]) -> (u64, u64) {
    let pairs = before.iter().zip(after);
    let sum: Messages = pairs.map(|(before, after)| Messages::between(before, after)).sum();
    (sum.all, sum.changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_more_or_less_is_as_many() {
        let holds = |measured, simulated| same_changes("build", measured, simulated).holds;
        assert!(holds(1108, 1062) && holds(100, 100));
        assert!(!holds(1200, 1062) && !holds(900, 1062) && !holds(0, 0));
    }
}
