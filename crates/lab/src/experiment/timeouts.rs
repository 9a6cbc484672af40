//! Hierarchical control, figure 4: how long an idle machine keeps a lease on a whole tree.

use super::build::Build;
use super::openssh::Openssh;
use super::traces;
use super::{Found, Lab};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages, count};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value, digits};
use crate::proxy::Proxy;
use crate::sim::leases::{Setting, Use};
use crate::sim::{self, Kind, System};
use crate::trace::{Does, Files, Recording, Step, Trace};
use soda_protocol::CallKind;
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

/// How a build is done: what it is called, the mount's options, the simulation's words.
const MODES: [(&str, &str, Use); 2] =
    [("write=through", "sync", Use::Through), ("write=behind", "write=behind", Use::Behind { age: 1.0 })];

/// What is simulated of a mount with this time-out.
fn simulated(usage: Use, timeout: f64) -> Setting {
    Setting::soda(usage).deep(timeout).syncing()
}

fn name(timeout: f64) -> String {
    if timeout.is_finite() { digits(timeout) } else { "never".to_owned() }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    (lab.progress)("recording a build");
    let build = traces::build(lab);
    let trace = watched(&traces::recorded_build(lab, &build)?);
    let replay = trace.replay();
    let head = [
        "mode",
        "time-out (s)",
        "messages",
        "given back",
        "recalls",
        "50 ms away: waited (s)",
        "200 ms away",
    ];
    let title =
        format!("Simulated: a recorded build of {:.0} s, looked at every {LOOKS_EVERY} s", replay.duration);
    let mut table = Table::new(&title, head);
    let mut series = Vec::new();
    for (color, (mode, _, usage)) in MODES.into_iter().enumerate() {
        let mut row = |name: Value, setting: Setting| {
            let outcome = sim::replay(System::Leases(setting), &replay, 0.0);
            let waited = |trip: f64| {
                let outcome = sim::replay(System::Leases(setting), &replay, trip);
                Value::from(outcome.read_delay + outcome.write_delay)
            };
            let kind = |kind| outcome.messages.get(&kind).copied().unwrap_or(0);
            let counts = [outcome.all(), kind(Kind::Release), kind(Kind::Recall) / 2].map(Value::from);
            let row = [mode.into(), name].into_iter().chain(counts).chain([waited(0.05), waited(0.2)]);
            table.rows.push(row.collect());
            outcome.all() as f64
        };
        let points = TIMEOUTS.map(|timeout| (timeout, row(timeout.into(), simulated(usage, timeout))));
        row("node leases".into(), Setting::soda(usage).syncing());
        series.extend(curves(mode, &points, color));
    }
    let (x, y) =
        (Axis::logarithmic("time-out of a deep lease (s)"), Axis::logarithmic("messages of the build"));
    let Measured { mut curves, table: measured, checks, recalled, asked } = measured(lab)?;
    let mut tables = vec![table, measured];
    if !lab.is_quick() {
        let (openssh, points) = openssh(lab)?;
        tables.push(openssh);
        if !points.is_empty() {
            curves.push(Series::new("openssh, write=behind", Style::Both, points).looking(2, 2));
        }
    }
    let title = format!("Hierarchical control, figure 4: builds on a mount, {} ms away", trip(lab));
    let build_time = Axis::linear("build (s)");
    Ok(Found {
        paper: "Time-outs of 0.1, 1 and 2 s, of a build of SSH: approximately a couple of seconds captures most of the bursts \
                of updates.",
        why: format!(
            "{WHY} Here the compiler computed {} s at most, and the simulated build took, with write=behind, so many \
             messages: {}. Leases that were asked back on the mount: {}. What the mount asked for with {} s: {asked}.",
            digits(build.longest().as_secs_f64()),
            by_timeout(&series[series.len() - 2].points),
            recalled.join("; "),
            MEASURED[0]
        ),
        figures: vec![
            Figure::new(
                "messages",
                "Hierarchical control, figure 4: a recorded build, simulated",
                x.clone(),
                y,
                series,
            ),
            Figure::new("measured", &title, x, build_time, curves),
        ],
        tables,
        checks,
        files: Vec::new(),
    })
}

/// What finite time-outs cost, and a line for none.
fn curves(mode: &str, points: &[(f64, f64)], color: usize) -> [Series; 2] {
    let finite: Vec<(f64, f64)> = points.iter().filter(|point| point.0.is_finite()).copied().collect();
    let never = points.iter().find(|point| point.0.is_infinite()).map_or(f64::NAN, |point| point.1);
    let ends = [finite.first(), finite.last()].into_iter().flatten().map(|(at, _)| (*at, never)).collect();
    [
        Series::new(mode, Style::Both, finite).looking(color, color),
        Series::new(format!("{mode}, never"), Style::Line, ends).looking(color, color),
    ]
}

pub(super) const WHY: &str = "Where the time-out is longer than the compiler computes, the lease lasts through the build; \
    where it is shorter, what only the deep lease covered is asked for again and again. With write=behind leases on what \
    was changed stay until the server has it on its disk, whatever the time-out: a client has that done every other second. \
    Who never gives the lease back has it asked for when the other machine looks. A mount sends \
    more than is simulated: when all has gone back, the way to one file is a question for each name of its path, for its \
    attributes, and for lists of directories, where the simulation has one for each lease; the table has them by call.";

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

/// Milliseconds to the server and back.
fn trip(lab: &Lab<'_>) -> u64 {
    lab.by_extent(0, TRIP)
}

/// What was found on mounts.
struct Measured {
    curves: Vec<Series>,
    table: Table,
    checks: Vec<Check>,
    /// Leases that were asked back, in words; and what was asked for with the shortest time-out.
    recalled: Vec<String>,
    asked: String,
}

/// The same of the real system, which waits while the compiler computes: of each mode and time-out. What it did is recorded and
/// simulated as well.
fn measured(lab: &Lab<'_>) -> Result<Measured, LabError> {
    let (sources, headers, probes) = lab.by_extent((4, 2, 2), (24, 8, 10));
    let thinks = Duration::from_millis(lab.by_extent(200, 500));
    let build = Build { sources, headers, probes, thinks };
    let trip = trip(lab);
    let timeouts = lab.by_extent(&MEASURED[..1], &MEASURED);
    let head = [
        "mode",
        "lease-idle (s)",
        "time (s)",
        "messages",
        "simulated",
        "given back",
        "simulated",
        "recalls",
        "simulated",
        "measured, by call",
        "simulated, by kind",
    ];
    let title = format!(
        "Measured {trip} ms away, and what was recorded there simulated: {sources} sources, {probes} probes, a compiler \
         that takes {thinks:?} on average"
    );
    let mut found = Measured {
        curves: Vec::new(),
        table: Table::new(&title, head),
        checks: Vec::new(),
        recalled: Vec::new(),
        asked: String::new(),
    };
    let mut asked = Vec::new();
    for (color, (mode, options, usage)) in MODES.into_iter().enumerate() {
        let (mut points, mut recalled) = (Vec::new(), Vec::new());
        for timeout in timeouts.iter().copied().chain([f64::INFINITY]) {
            let idle = if timeout.is_finite() { format!("{}ms", timeout * 1e3) } else { "1h".to_owned() };
            (lab.progress)(&format!("lease-idle={idle}, {mode}, {trip} ms away"));
            let options = format!("{options},deep-leases=on,lease-idle={idle}");
            let recording = Recording::start();
            let work = |root: &Path| {
                let files = Files::recorded_live(root, &recording, 0);
                build.run(&files).map(|times| times.iter().sum())
            };
            let run = run_watched(lab, trip, &options, LOG, work)?;
            let replay = watched(&recording.end()).replay();
            let outcome = sim::replay(System::Leases(simulated(usage, timeout)), &replay, 0.0);
            let kind = |kind| outcome.messages.get(&kind).copied().unwrap_or(0);
            let counts = [
                (run.messages, outcome.all()),
                (run.given_back, kind(Kind::Release)),
                (run.recalls, kind(Kind::Recall) / 2),
            ];
            let counts = counts.into_iter().flat_map(|(here, there)| [here, there].map(Value::from));
            let row = [mode.into(), timeout.into(), run.seconds.into()].into_iter().chain(counts);
            let kinds: Vec<(&str, u64)> =
                outcome.messages.iter().map(|(kind, count)| (kind.name(), *count)).collect();
            found
                .table
                .rows
                .push(row.chain([listed(&run.by_call), listed(&kinds)].map(Value::from)).collect());
            asked.extend((timeout == MEASURED[0]).then(|| {
                let looks = Looks::of(&run.by_call);
                found.checks.push(looks.check(mode));
                format!("{mode}: {looks}")
            }));
            recalled.push(format!("{} with {}", run.recalls, name(timeout)));
            if timeout.is_infinite() {
                found.checks.push(Check::counted(
                    format!("With {mode} and no time-out no lease is given back"),
                    run.given_back == 0,
                    run.given_back.to_string(),
                ));
                found.checks.extend((usage == Use::Through).then(|| as_many(run.messages, outcome.all())));
            }
            points.push((timeout, run.seconds));
        }
        found.recalled.push(format!("{mode}: {}", recalled.join(", ")));
        found.curves.extend(curves(mode, &points, color));
    }
    found.asked = asked.join("; ");
    Ok(found)
}

/// That as many messages are simulated as were measured where no lease goes back: what goes through is there in both.
fn as_many(measured: u64, simulated: u64) -> Check {
    let factor = measured as f64 / simulated.max(1) as f64;
    Check::counted(
        "With write=through and no time-out as many messages are measured as simulated, but for a quarter",
        (0.75..=1.25).contains(&factor),
        format!("{measured} measured, {simulated} simulated"),
    )
}

/// What there was, and how often.
fn listed(counts: &[(&str, u64)]) -> String {
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// What a mount asks for apart that the simulation has as one exchange for each lease: the names on the way to a file, their
/// attributes, lists of directories, and data. Messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Looks {
    names: u64,
    attributes: u64,
    lists: u64,
    data: u64,
    /// All, changes and recalls as well.
    all: u64,
}

impl Looks {
    fn of(by_call: &[(&str, u64)]) -> Looks {
        let mut looks = Looks::default();
        for (call, count) in by_call {
            looks.all += count;
            match CallKind::named(call) {
                Some(CallKind::Lookup | CallKind::LookupStat) => looks.names += count,
                Some(CallKind::GetAttr | CallKind::Stat) => looks.attributes += count,
                Some(CallKind::ReadDir) => looks.lists += count,
                // What a mount has read before comes by `fetch`: lease, attributes and data. All of it counts as data.
                Some(CallKind::Read | CallKind::Fetch) => looks.data += count,
                _ => {}
            }
        }
        looks
    }

    /// That these are what a mount sends more: of a build whose leases went back while the compiler computed.
    fn check(self, mode: &str) -> Check {
        let Looks { names, attributes, lists, data, .. } = self;
        let but_data = names + attributes + lists;
        let claim = format!(
            "With {mode} and the shortest time-out most of what a mount reads again is not file data"
        );
        Check::counted(claim, but_data > data, self.to_string())
    }
}

impl std::fmt::Display for Looks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Looks { names, attributes, lists, data, all } = self;
        write!(f, "names {names}, attributes {attributes}, lists {lists}, data {data} of {all} messages")
    }
}

/// openssh, as in the paper, with delayed writes; and its seconds by time-out.
fn openssh(lab: &Lab<'_>) -> Result<(Table, Vec<(f64, f64)>), LabError> {
    let head = ["mode", "lease-idle (s)", "time (s)", "messages", "given back", "recalls"];
    let mut table = Table::new(&format!("Measured {TRIP} ms away: openssh, write=behind"), head);
    let mut points = Vec::new();
    let openssh = match Openssh::fetch(lab) {
        Ok(openssh) => openssh,
        Err(why) => {
            table.title = why;
            return Ok((table, points));
        }
    };
    for timeout in MEASURED {
        (lab.progress)(&format!("openssh, lease-idle={timeout}s, {TRIP} ms away"));
        let options = format!("write=behind,deep-leases=on,lease-idle={}ms", timeout * 1e3);
        let work = |root: &Path| openssh.run(lab, root).map(|times| times.iter().sum());
        let run = run_watched(lab, TRIP, &options, "openssh/config.log", work)?;
        let counts = [run.messages, run.given_back, run.recalls].map(Value::from);
        let row = ["write=behind".into(), timeout.into(), run.seconds.into()];
        table.rows.push(row.into_iter().chain(counts).collect());
        points.push((timeout, run.seconds));
    }
    Ok((table, points))
}

struct Run {
    seconds: f64,
    messages: u64,
    by_call: Vec<(&'static str, u64)>,
    given_back: u64,
    recalls: u64,
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
    let synced = cell.mounts[0].sync();
    let seconds = done.as_ref().map_or(0.0, |time| (*time + start.elapsed()).as_secs_f64());
    drop(end);
    let _ = watcher.join();
    done.and(synced)?;
    let counters = cell.mounts[0].counters()?;
    let of = |name: &str| count(&counters, name);
    let run = Run {
        seconds,
        messages: Messages::between(&Counters::new(), &counters).all,
        by_call: Messages::all_by_call(&[Counters::new()], std::slice::from_ref(&counters)),
        given_back: of("leases_released"),
        recalls: of("recalls"),
    };
    cell.mounts.clear();
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_out_is_a_line_across_the_others() {
        let [finite, never] = curves("m", &[(0.1, 9.0), (2.0, 5.0), (f64::INFINITY, 4.0)], 1);
        assert_eq!(finite.points, [(0.1, 9.0), (2.0, 5.0)]);
        assert_eq!(never.points, [(0.1, 4.0), (2.0, 4.0)]);
        assert_eq!((never.style, never.look), (Style::Line, finite.look));
    }

    #[test]
    fn what_a_mount_asks_for_apart_is_sorted_by_call() {
        let calls = [
            ("lookupstat", 40),
            ("read", 20),
            ("getattr", 12),
            ("fetch", 30),
            ("readdir", 6),
            ("digest", 4),
            ("release", 3),
        ];
        let looks = Looks::of(&calls);
        assert_eq!(looks, Looks { names: 40, attributes: 12, lists: 6, data: 50, all: 115 });
        assert!(looks.check("m").holds && !Looks { names: 32, ..looks }.check("m").holds);
        assert!(!Looks::of(&[("lookupstat", 10), ("fetch", 12)]).check("m").holds, "who reads again fetches");
        assert_eq!(listed(&calls[..2]), "lookupstat 40, read 20");
    }

    #[test]
    fn messages_that_are_not_simulated_are_found_out() {
        assert!(as_many(124, 118).holds);
        assert!(!as_many(150, 118).holds && !as_many(80, 118).holds && !as_many(5, 0).holds);
    }

    #[test]
    fn the_other_machine_looks_while_the_build_goes_on() {
        let trace = Trace::parse("0,0,make,tree\n1,0,write,tree/config.log\n20,0,read,tree/config.log\n");
        let looks = watched(&trace.expect("a trace")).steps.into_iter().filter(|step| step.client == 1);
        let at: Vec<f64> = looks.map(|step| step.at).collect();
        assert_eq!(at, [8.0, 15.0]);
    }
}
