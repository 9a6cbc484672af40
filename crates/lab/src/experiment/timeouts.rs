//! Hierarchical control, figure 4: how long an idle machine keeps a lease on a whole tree.

use super::build::Build;
use super::traces;
use super::{Found, Lab};
use crate::LabError;
use crate::cell::{Cell, count};
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::proxy::Proxy;
use crate::sim::leases::{Setting, Use};
use crate::sim::{self, Kind, Outcome, System};
use crate::trace::{Does, Files, Step, Trace};
use std::time::{Duration, Instant};

/// Seconds; the paper's, and some around them.
const TIMEOUTS: [f64; 8] = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, f64::INFINITY];
/// Of what is measured, milliseconds.
const TRIP: u64 = 50;
/// The other machine looks at the build's log so often, in seconds.
const LOOKS_EVERY: f64 = 7.0;

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    (lab.progress)("recording a build");
    let build = traces::build(lab);
    let trace = watched(&traces::recorded_build(lab, &build)?);
    let replay = trace.replay();
    let head = [
        "time-out (s)",
        "messages",
        "given back",
        "recalls",
        "0 ms away: waited (s)",
        "50 ms away",
        "200 ms away",
    ];
    let title = format!(
        "Simulated, write=through: a recorded build of {:.0} s, looked at every {LOOKS_EVERY} s",
        replay.duration
    );
    let mut table = Table::new(&title, head);
    let mut points = [Vec::new(), Vec::new()];
    let row = |table: &mut Table, name: String, setting: Setting| {
        let waited = |trip: f64| {
            let outcome = sim::replay(System::Leases(setting), &replay, trip);
            digits(outcome.read_delay + outcome.write_delay)
        };
        let outcome = sim::replay(System::Leases(setting), &replay, 0.0);
        let kind = |kind| outcome.messages.get(&kind).copied().unwrap_or(0);
        table.row([
            name,
            total(&outcome).to_string(),
            kind(Kind::Release).to_string(),
            (kind(Kind::Recall) / 2).to_string(),
            waited(0.0),
            waited(0.05),
            waited(0.2),
        ]);
        total(&outcome) as f64
    };
    for (points, usage) in points.iter_mut().zip([Use::Through, Use::Behind { age: 1.0 }]) {
        for timeout in TIMEOUTS {
            let setting = Setting::soda(usage).deep(timeout);
            let name = if timeout.is_finite() { digits(timeout) } else { "never".to_owned() };
            let name = if usage == Use::Through { name } else { format!("{name}, write=behind") };
            let messages = row(&mut table, name, setting);
            if timeout.is_finite() {
                points.push((timeout, messages));
            }
        }
        let name = if usage == Use::Through { "node leases" } else { "node leases, write=behind" };
        row(&mut table, name.to_owned(), Setting::soda(usage));
    }
    let [through, behind] = points;
    let series = vec![
        Series::new("write=through", Style::Both, through),
        Series::new("write=behind", Style::Both, behind),
    ];
    let (x, y) = (Axis::logarithmic("time-out of a deep lease (s)"), Axis::linear("messages of the build"));
    let mut tables = vec![table];
    if !lab.is_quick() {
        tables.push(measured(lab)?);
    }
    Ok(Found {
        paper: "Time-outs of 0.1, 1 and 2 s: a couple of seconds captures most of the bursts of updates of a build of SSH; with \
                0.1 s the servers elect anew again and again.",
        why: WHY,
        figures: vec![Figure::new(
            "messages",
            "A recorded build under the production lease core",
            x,
            y,
            series,
        )],
        tables,
        files: Vec::new(),
    })
}

const WHY: &str = "The same: where the time-out is longer than the compiler computes (here 1.7 s at most), the lease lasts \
                   through the build; where it is shorter, what only the deep lease covered is asked for again and again. With \
                   write=behind that is most of what a build costs at all, because changes go through where there is no lease. \
                   Who never gives the lease back pays for it with a recall each time that the other machine looks. The real \
                   client looks for idle leases every ten seconds, so short time-outs are simulated only.";

fn total(outcome: &Outcome) -> u64 {
    outcome.messages.values().sum()
}

/// The same with a second machine that looks at what configure has written.
fn watched(trace: &Trace) -> Trace {
    let path = "tree/config.log";
    let made = trace.steps.iter().find(|step| step.path == path).map_or(0.0, |step| step.at);
    let looks = (1..)
        .map(|number| made + f64::from(number) * LOOKS_EVERY)
        .take_while(|at| *at < trace.length())
        .map(|at| Step { at, client: 1, does: Does::Read, path: path.to_owned(), to: None });
    let mut steps: Vec<Step> = trace.steps.iter().cloned().chain(looks).collect();
    steps.sort_by(|one, other| one.at.total_cmp(&other.at));
    Trace { steps }
}

/// Of the real system, which looks for idle leases every ten seconds: what a build costs after a pause in which its lease went
/// back, or did not.
fn measured(lab: &Lab<'_>) -> Result<Table, LabError> {
    let build = Build { sources: 24, headers: 8, probes: 10, thinks: Duration::ZERO };
    let pause = Duration::from_secs(12);
    let head =
        ["lease-idle", "mode", "round trip (ms)", "build after the pause (s)", "messages", "given back"];
    let mut table = Table::new("Measured: unpack and configure, a pause of 12 s, then build", head);
    for (mode, options) in [("write=through", "sync"), ("write=behind", "write=behind")] {
        for idle in ["100ms", "2s", "10m"] {
            (lab.progress)(&format!("lease-idle={idle}, {mode}, {TRIP} ms away"));
            let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", "on"])?;
            let proxy = Proxy::start(cell.address(), Duration::from_millis(TRIP))?;
            cell.mount_at(1, &proxy.address(), &format!("{options},deep-leases=on,lease-idle={idle}"))?;
            let files = Files::of(&cell.mounts[0].root);
            build.unpack(&files)?;
            build.configure(&files)?;
            let before = cell.mounts[0].counters()?;
            std::thread::sleep(pause);
            let paused = cell.mounts[0].counters()?;
            let start = Instant::now();
            build.make(&files)?;
            super::distance::sync(lab.program, &cell.mounts[0].root)?;
            let time = start.elapsed().as_secs_f64();
            let after = cell.mounts[0].counters()?;
            let asked = |counters: &crate::cell::Counters| -> u64 {
                let calls = counters.iter().filter(|(name, _)| name.starts_with("msg_"));
                calls.map(|(_, count)| count).sum()
            };
            let released =
                count(&paused, "leases_released").saturating_sub(count(&before, "leases_released"));
            table.row([
                idle.to_owned(),
                mode.to_owned(),
                TRIP.to_string(),
                digits(time),
                (2 * (asked(&after) - asked(&paused))).to_string(),
                released.to_string(),
            ]);
            cell.mounts.clear();
        }
    }
    Ok(table)
}
