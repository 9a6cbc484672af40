//! Hierarchical control, figure 4: how long an idle machine keeps a lease on a whole tree.

use super::build::Build;
use super::openssh::Openssh;
use super::traces;
use super::{Found, Lab};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages, count};
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::proxy::Proxy;
use crate::sim::leases::{Setting, Use};
use crate::sim::{self, Kind, System};
use crate::trace::{Does, Files, Step, Trace};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Seconds; the paper's, and some around them.
const TIMEOUTS: [f64; 8] = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, f64::INFINITY];
/// Of what is measured, milliseconds.
const TRIP: u64 = 50;
/// The other machine looks at the build's log so often, in seconds.
const LOOKS_EVERY: f64 = 7.0;
const LOG: &str = "tree/config.log";
/// The paper's time-outs, seconds.
const MEASURED: [f64; 3] = [0.1, 1.0, 2.0];

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
            outcome.all().to_string(),
            kind(Kind::Release).to_string(),
            (kind(Kind::Recall) / 2).to_string(),
            waited(0.0),
            waited(0.05),
            waited(0.2),
        ]);
        outcome.all() as f64
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
    let (x, y) =
        (Axis::logarithmic("time-out of a deep lease (s)"), Axis::logarithmic("messages of the build"));
    let (figure, measured) = measured(lab)?;
    let mut tables = vec![table, measured];
    if !lab.is_quick() {
        tables.push(openssh(lab)?);
    }
    Ok(Found {
        paper: "Time-outs of 0.1, 1 and 2 s: a couple of seconds captures most of the bursts of updates of a build of SSH; with \
                0.1 s the servers elect anew again and again.",
        why: format!(
            "{WHY} Here the compiler computed {} s at most, and the build took, with write=behind, so many messages: {}.",
            digits(build.longest().as_secs_f64()),
            by_timeout(&series[1].points)
        ),
        figures: vec![
            Figure::new(
                "messages",
                "Hierarchical control, figure 4: a recorded build, simulated",
                x,
                y,
                series.clone(),
            ),
            figure,
        ],
        tables,
        files: Vec::new(),
    })
}

pub(super) const WHY: &str = "The same: where the time-out is longer than the compiler computes, the lease \
    lasts through the build; where it is shorter, what only the deep lease covered is asked for again and again, and \
    with write=behind that is most of what a build costs at all, because changes go through where there is no lease. \
    Who never gives the lease back pays for it with a recall when the other machine looks.";

/// What each time-out cost, in words.
fn by_timeout(points: &[(f64, f64)]) -> String {
    let parts = points.iter().map(|(timeout, messages)| format!("{messages:.0} with {timeout} s"));
    parts.collect::<Vec<_>>().join(", ")
}

/// The same with a second machine that looks at what configure has written.
fn watched(trace: &Trace) -> Trace {
    let path = LOG;
    let made = trace.steps.iter().find(|step| step.path == path).map_or(0.0, |step| step.at);
    let looks = (1..)
        .map(|number| made + f64::from(number) * LOOKS_EVERY)
        .take_while(|at| *at < trace.length())
        .map(|at| Step { at, client: 1, does: Does::Read, bytes: None, path: path.to_owned(), to: None });
    let mut steps: Vec<Step> = trace.steps.iter().cloned().chain(looks).collect();
    steps.sort_by(|one, other| one.at.total_cmp(&other.at));
    Trace { steps }
}

/// The same of the real system, which waits while the compiler computes: of each mode and time-out.
fn measured(lab: &Lab<'_>) -> Result<(Figure, Table), LabError> {
    let (sources, headers, probes) = lab.by_extent((4, 2, 2), (24, 8, 10));
    let thinks = Duration::from_millis(lab.by_extent(200, 500));
    let build = Build { sources, headers, probes, thinks };
    let trip = lab.by_extent(0, TRIP);
    let timeouts = lab.by_extent(&MEASURED[..1], &MEASURED);
    let head = ["lease-idle", "mode", "time (s)", "messages", "given back", "recalls"];
    let title = format!(
        "Measured {trip} ms away: {sources} sources, {probes} probes, a compiler that takes {thinks:?} on average"
    );
    let mut table = Table::new(&title, head);
    let mut series = Vec::new();
    for (mode, options) in [("write=through", "sync"), ("write=behind", "write=behind")] {
        let mut points = Vec::new();
        for timeout in timeouts.iter().map(|timeout| Some(*timeout)).chain([None]) {
            let idle = timeout.map_or("1h".to_owned(), |seconds| format!("{}ms", seconds * 1e3));
            (lab.progress)(&format!("lease-idle={idle}, {mode}, {trip} ms away"));
            let options = format!("{options},deep-leases=on,lease-idle={idle}");
            let work = |root: &Path| build.run(&Files::of(root)).map(|times| times.iter().sum());
            let run = run_watched(lab, trip, &options, LOG, work)?;
            let name = timeout.map_or("never".to_owned(), digits);
            table.row([
                name,
                mode.to_owned(),
                digits(run.seconds),
                run.messages,
                run.given_back,
                run.recalls,
            ]);
            points.extend(timeout.map(|timeout| (timeout, run.seconds)));
        }
        series.push(Series::new(mode, Style::Both, points));
    }
    let (x, y) = (Axis::logarithmic("time-out of a deep lease (s)"), Axis::linear("build (s)"));
    let title = format!("Hierarchical control, figure 4: the lab's build on a mount, {trip} ms away");
    Ok((Figure::new("measured", &title, x, y, series), table))
}

/// openssh, as in the paper, with delayed writes.
fn openssh(lab: &Lab<'_>) -> Result<Table, LabError> {
    let head = ["lease-idle", "mode", "time (s)", "messages", "given back", "recalls"];
    let mut table = Table::new(&format!("Measured {TRIP} ms away: openssh, write=behind"), head);
    let openssh = match Openssh::fetch(lab) {
        Ok(openssh) => openssh,
        Err(why) => {
            table.title = why;
            return Ok(table);
        }
    };
    for timeout in MEASURED {
        (lab.progress)(&format!("openssh, lease-idle={timeout}s, {TRIP} ms away"));
        let options = format!("write=behind,deep-leases=on,lease-idle={}ms", timeout * 1e3);
        let work = |root: &Path| openssh.run(lab, root).map(|times| times.iter().sum());
        let run = run_watched(lab, TRIP, &options, "openssh/config.log", work)?;
        let row = [digits(timeout), "write=behind".to_owned(), digits(run.seconds)];
        table.rows.push(row.into_iter().chain([run.messages, run.given_back, run.recalls]).collect());
    }
    Ok(table)
}

struct Run {
    seconds: f64,
    messages: String,
    given_back: String,
    recalls: String,
}

/// Work on a far mount, while a near one looks at a file that the work makes. Over when the server has all of it.
fn run_watched(
    lab: &Lab<'_>,
    trip: u64,
    options: &str,
    looks_at: &str,
    work: impl Fn(&Path) -> Result<Duration, LabError>,
) -> Result<Run, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", "on"])?;
    let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
    let near = cell.address().to_owned();
    cell.mount_at(1, &proxy.address(), options)?;
    cell.mount_another(&near, "sync", None)?;
    let looked_at = cell.mounts[1].root.join(looks_at);
    let (end, ended) = mpsc::channel::<()>();
    let watcher = std::thread::spawn(move || {
        let every = Duration::from_secs_f64(LOOKS_EVERY);
        while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            // It may not be there yet.
            let _ = std::fs::read(&looked_at);
        }
    });
    let done = work(&cell.mounts[0].root);
    let start = Instant::now();
    let synced = super::distance::sync(lab.program, &cell.mounts[0].root);
    let seconds = done.as_ref().map_or(0.0, |time| (*time + start.elapsed()).as_secs_f64());
    drop(end);
    let _ = watcher.join();
    done.and(synced)?;
    let counters = cell.mounts[0].counters()?;
    let of = |name: &str| count(&counters, name).to_string();
    let run = Run {
        seconds,
        messages: Messages::between(&Counters::new(), &counters).all.to_string(),
        given_back: of("leases_released"),
        recalls: of("recalls"),
    };
    cell.mounts.clear();
    Ok(run)
}
