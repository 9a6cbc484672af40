//! Hierarchical control: what a build costs that is done far from its server.

use super::build::{Build, PHASES};
use super::openssh::Openssh;
use super::spread::{self, Spread};
use super::{Found, Lab};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages, count};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value, digits};
use crate::proxy::Proxy;
use crate::trace::Files;
use std::time::{Duration, Instant};

const MODES: [(&str, &str, &str); 4] = [
    ("node leases, write=through", "off", "deep-leases=off,sync"),
    ("node leases, write=behind", "off", "deep-leases=off,write=behind"),
    ("deep leases, write=through", "on", "deep-leases=on,sync"),
    ("deep leases, write=behind", "on", "deep-leases=on,write=behind"),
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let small = Build { sources: 8, headers: 4, probes: 3, thinks: Duration::ZERO };
    let large = Build { sources: 24, headers: 8, probes: 10, thinks: Duration::ZERO };
    let build = lab.by_extent(small, large);
    let trips = lab.by_extent(vec![0, 10], vec![0, 50, 100, 200]);
    let (mut series, mut farthest) = (Vec::new(), Vec::new());
    let of_rounds =
        lab.by_extent("", ", where the server is beside the middle of three runs (least to greatest)");
    let title = format!(
        "{} sources, {} headers, {} probes; seconds{of_rounds}",
        build.sources, build.headers, build.probes
    );
    // Of each mode, what each distance took.
    let mut costs: [Vec<Costs>; MODES.len()] = Default::default();
    let mut table = empty_table(&title);
    for ((mode, deep, options), costs) in MODES.into_iter().zip(&mut costs) {
        let mut points = Vec::new();
        for &trip in &trips {
            // Distance takes as long each time, what the machine takes does not.
            let rounds = if trip == 0 { lab.by_extent(1, 3) } else { 1 };
            (lab.progress)(&format!("{mode}: {trip} ms away"));
            let run = |_| built_at(lab, &build, (deep, options), trip);
            let mut runs = (0..rounds).map(run).collect::<Result<Vec<Run>, _>>()?;
            runs.sort_by(|one, other| one.all().total_cmp(&other.all()));
            let middle = runs[runs.len() / 2].costs;
            let Costs { messages, leases } = middle;
            costs.push(middle);
            let spread = |seconds: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(seconds).collect());
            let parts = (0..PHASES.len() + 1).map(|part| spread(&|run: &Run| run.seconds[part]));
            let all = spread(&Run::all);
            let row = [mode.into(), trip.into()].into_iter().chain(parts.chain([all]).map(Value::from));
            if let (Some(all), true) = (all, Some(&trip) == trips.last()) {
                farthest
                    .push(format!("{mode} {} s, {messages} messages, {leases} leases", digits(all.middle)));
            }
            points.extend(all.map(|all| (trip as f64, all)));
            table.rows.push(row.chain(middle.cells()).collect());
        }
        series.push(spread::series(mode, &points));
    }
    let most = trips.last().copied().unwrap_or_default();
    let mut why = format!("{WHY} {most} ms away: {}.", farthest.join("; "));
    let x = || Axis::linear("round trip to the server (ms)");
    let time = "unpack, configure, build, sync (s)";
    let title = "Hierarchical control, figure 3: a build by distance, one client";
    let whiskers = lab.by_extent("", "least and greatest of three").to_owned();
    let figure = Figure { whiskers, ..Figure::new("distance", title, x(), Axis::logarithmic(time), series) };
    let (mut figures, mut tables) = (vec![figure], vec![table]);
    let mut checks = checks(&costs);
    let foreign = super::foreign::run(lab, &lab.by_extent(vec![10], vec![0, 50, 200]))?;
    why.push_str(&foreign.why);
    figures.extend(foreign.figures);
    tables.push(foreign.table);
    checks.extend(foreign.checks);
    if !lab.is_quick() {
        let (series, table) = openssh(lab)?;
        if let (Some(local), Some(least), Some(most)) = ends_of(&series) {
            let [local, least, most] = [local, least, most].map(digits);
            why.push_str(&format!(
                " openssh took {least} to {most} s on mounts, {local} s on the local disk."
            ));
        }
        tables.push(table);
        if !series.is_empty() {
            let title = "Hierarchical control, figure 3: openssh, built on a mount; one run of each";
            figures.push(Figure::new("openssh", title, x(), Axis::linear(time), series));
        }
    }
    Ok(Found {
        paper: "SSH-Build over wide-area replicas: deep locks make the overhead of replication control negligible, even when \
                the servers are widely distributed.",
        why,
        figures,
        tables,
        checks,
        files: Vec::new(),
    })
}

/// That what is sent does not depend on distance, nor, of what is the builder's own, on how far leases reach; and what delays
/// and deep leases spare. Of each of [`MODES`], by distance.
fn checks(costs: &[Vec<Costs>; MODES.len()]) -> Vec<Check> {
    let [node_through, node_behind, deep_through, deep_behind] = costs;
    let ends = |of: &[&Vec<Costs>], what: fn(&Costs) -> u64| {
        let all = || of.iter().flat_map(|costs| costs.iter()).map(what);
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    };
    let through = ends(&[node_through, deep_through], |costs| costs.messages);
    let behind = ends(&[node_behind, deep_behind], |costs| costs.messages);
    let node = ends(&[node_through, node_behind], |costs| costs.leases);
    let deep = ends(&[deep_through, deep_behind], |costs| costs.leases);
    let span = |(least, most): (u64, u64)| format!("{least} to {most}");
    vec![
        Check::counted(
            "write=through: as many messages at any distance, with deep leases as without, but for a twentieth",
            through.0 > 0 && 20 * through.1 <= 21 * through.0,
            span(through),
        ),
        Check::counted(
            "write=behind: a third of these messages at most",
            behind.0 > 0 && 3 * behind.1 <= through.0,
            format!("{} of {}", span(behind), span(through)),
        ),
        Check::counted(
            "The server keeps a fifth of the leases at most where they are deep",
            deep.0 > 0 && 5 * deep.1 <= node.0,
            format!("{} of {}", span(deep), span(node)),
        ),
    ]
}

/// One build.
struct Run {
    /// Of each phase, and of the sync: the end is when the server has it, as for who writes through.
    seconds: [f64; PHASES.len() + 1],
    costs: Costs,
}

/// Messages of the only machine, and leases that the server keeps of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Costs {
    messages: u64,
    leases: u64,
}

impl Costs {
    fn of(cell: &Cell) -> Result<Costs, LabError> {
        let messages = Messages::between(&Counters::new(), &cell.mounts[0].counters()?).all;
        Ok(Costs { messages, leases: count(&cell.server_counters()?, "leases") })
    }

    fn cells(self) -> [Value; 2] {
        [self.messages, self.leases].map(Value::from)
    }
}

impl Run {
    fn all(&self) -> f64 {
        self.seconds.iter().sum()
    }
}

/// On a volume of its own, so many milliseconds away.
fn built_at(lab: &Lab<'_>, build: &Build, (deep, options): (&str, &str), trip: u64) -> Result<Run, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", deep])?;
    let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
    cell.mount_at(1, &proxy.address(), options)?;
    let [unpack, configure, make] = build.run(&Files::of(&cell.mounts[0].root))?;
    let start = Instant::now();
    cell.mounts[0].sync()?;
    let seconds = [unpack, configure, make, start.elapsed()].map(|time| time.as_secs_f64());
    let costs = Costs::of(&cell)?;
    // Before the proxy, which would let them wait.
    cell.mounts.clear();
    Ok(Run { seconds, costs })
}

/// Seconds on the local disk, and the least and the most on mounts.
fn ends_of(series: &[Series]) -> (Option<f64>, Option<f64>, Option<f64>) {
    let times = |series: &[Series]| -> Vec<f64> {
        series.iter().flat_map(|series| &series.points).map(|point| point.1).collect()
    };
    let (local, mounts) = series.split_at(series.len().min(1));
    let mounts = times(mounts);
    let least = mounts.iter().copied().reduce(f64::min);
    (times(local).first().copied(), least, mounts.iter().copied().reduce(f64::max))
}

fn empty_table(title: &str) -> Table {
    let head = ["mode", "round trip (ms)"].into_iter().chain(PHASES);
    let head = head.chain(["sync", "all (s)", "messages", "leases at the server"]);
    Table { title: title.to_owned(), head: head.map(str::to_owned).collect(), rows: Vec::new() }
}

/// Of what is far away, milliseconds; with writes that go through it would take hours.
const OPENSSH_TRIPS: [u64; 3] = [0, 50, 200];
const OPENSSH_MODES: [(&str, &str, &str); 2] = [MODES[1], MODES[3]];

/// The same of the real thing, which computes; with delayed writes only.
fn openssh(lab: &Lab<'_>) -> Result<(Vec<Series>, Table), LabError> {
    let mut table = empty_table(
        "openssh: unpacked, configured, built (ssh), compilers and all; seconds, one run of each",
    );
    let openssh = match Openssh::fetch(lab) {
        Ok(openssh) => openssh,
        Err(why) => {
            table.title = why;
            return Ok((Vec::new(), table));
        }
    };
    let mut series = Vec::new();
    let mut row =
        |mode: &str, trip: Option<u64>, times: [Duration; 3], synced: Duration, costs: [Value; 2]| {
            let all = (times.iter().sum::<Duration>() + synced).as_secs_f64();
            let mut row: Vec<Value> = vec![mode.into(), trip.into()];
            row.extend(times.iter().chain([&synced]).map(|time| Value::from(time.as_secs_f64())));
            row.push(all.into());
            row.extend(costs);
            table.rows.push(row);
            all
        };
    (lab.progress)("openssh on the local disk");
    let local = tempfile::tempdir_in(lab.scratch).map_err(LabError::io(lab.scratch))?;
    let times = openssh.run(lab, local.path())?;
    let local = row("local disk", None, times, Duration::ZERO, [Value::Missing, Value::Missing]);
    let ends = [OPENSSH_TRIPS[0], OPENSSH_TRIPS[OPENSSH_TRIPS.len() - 1]];
    series.push(Series::new("local disk", Style::Line, ends.map(|trip| (trip as f64, local)).to_vec()));
    for (mode, deep, options) in OPENSSH_MODES {
        let mut points = Vec::new();
        for trip in OPENSSH_TRIPS {
            (lab.progress)(&format!("openssh, {mode}: {trip} ms away"));
            let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", deep])?;
            let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
            cell.mount_at(1, &proxy.address(), options)?;
            let times = openssh.run(lab, &cell.mounts[0].root)?;
            let start = Instant::now();
            cell.mounts[0].sync()?;
            let all = row(mode, Some(trip), times, start.elapsed(), Costs::of(&cell)?.cells());
            points.push((trip as f64, all));
            cell.mounts.clear();
        }
        series.push(Series::new(mode, Style::Both, points));
    }
    Ok((series, table))
}

pub(super) const WHY: &str = "Distance costs who tells the server of each change, and hardly who delays \
    changes, with deep leases and without: what a machine makes is its own with the server's reply, so a lease on \
    one object costs no round trip of its own as a lock there does, and what deep leases save here is leases. Where the \
    tree is another machine's, what is read brings its lease with the answer, too, but what is changed (rm -r, objects \
    that are written again) takes an exchange for each object, unless a deep lease covers it, as in the paper; and where \
    another machine still reads the tree nobody has such a lease. The lab's own build has SSH-Build's shape, and no \
    compiler runs; where one does, it takes so long that distance hardly shows.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_distance_or_saves_nothing_is_found_out() {
        let costs = |messages, leases| Costs { messages, leases };
        let holds = |all: [[Costs; 2]; 4]| -> Vec<bool> {
            checks(&all.map(|of| of.to_vec())).into_iter().map(|check| check.holds).collect()
        };
        let well =
            [[costs(480, 68); 2], [costs(14, 68), costs(18, 66)], [costs(484, 3); 2], [costs(14, 3); 2]];
        assert_eq!(holds(well), [true, true, true]);
        let with = |mode: usize, one: Costs| {
            let mut all = well;
            all[mode][1] = one;
            holds(all)
        };
        assert_eq!(with(2, costs(540, 3)), [false, true, true], "one more lease for each object");
        assert_eq!(with(1, costs(200, 68)), [true, false, true]);
        assert_eq!(with(3, costs(14, 60)), [true, true, false]);
        assert_eq!(with(0, costs(0, 0)), [false, false, false], "nothing was counted");
    }
}
