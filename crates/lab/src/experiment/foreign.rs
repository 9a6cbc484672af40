//! Work in a tree that another machine has made: nothing there is the worker's own, so each object takes a lease of its own, or
//! one lease the whole tree. What is read brings its lease with the answer, which costs nothing; what is changed needs a lease
//! first, as the paper's locks do.

use super::build::Build;
use super::spread::{self, Spread};
use super::{Lab, times};
use crate::LabError;
use crate::cell::{Cell, Messages, count, grown};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value, digits};
use crate::proxy::Proxy;
use crate::trace::Files;
use std::path::Path;
use std::time::{Duration, Instant};

/// Names, whether the server gives deep leases, and the worker's options. All delay changes: who tells each at once waits for
/// that whatever leases there are.
const MODES: [(&str, &str, &str); 2] = [
    ("node leases", "off", "write=behind,deep-leases=off"),
    ("deep leases", "on", "write=behind,deep-leases=on"),
];

/// What the worker does in the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// `ls -lR` and `grep -r`.
    Scan,
    Build,
    /// Everything is compiled once more, over the objects that are there.
    BuildAgain,
    /// `rm -r`
    Remove,
}

/// The other machines when the work begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Others {
    /// Whoever made the tree has gone, and nobody holds anything of it.
    Gone,
    /// It is still there, and a third one has read all of it.
    Read,
}

const CASES: [(&str, Work, Others); 6] = [
    ("list, look, read", Work::Scan, Others::Gone),
    ("build", Work::Build, Others::Gone),
    ("build, others read", Work::Build, Others::Read),
    ("build again", Work::BuildAgain, Others::Gone),
    ("rm -r", Work::Remove, Others::Gone),
    ("rm -r, others read", Work::Remove, Others::Read),
];

/// What was found: figures, the table, a sentence, and claims.
pub(super) struct Foreign {
    pub(super) figures: Vec<Figure>,
    pub(super) table: Table,
    pub(super) why: String,
    pub(super) checks: Vec<Check>,
}

/// Of a case and a mode, by distance.
type Curve = Vec<(f64, Spread)>;

pub(super) fn run(lab: &Lab<'_>, trips: &[u64]) -> Result<Foreign, LabError> {
    let build = Build {
        sources: lab.by_extent(24, 36),
        headers: lab.by_extent(4, 8),
        probes: lab.by_extent(2, 3),
        thinks: Duration::ZERO,
    };
    let title = format!(
        "A tree of {} sources and {} headers that another machine has made, built (but for `build`) and told: work and sync; \
         write=behind, the median of three rounds where the server is beside",
        build.sources, build.headers
    );
    let head = [
        "work",
        "mode",
        "round trip (ms)",
        "all (s)",
        "messages",
        "for consistency",
        "leases given",
        "leases at the server",
        "messages by call",
    ];
    let mut table = Table::new(&title, head);
    let mut curves: [[Curve; 2]; CASES.len()] = Default::default();
    // The last of each, which is the farthest.
    let mut farthest: [[Option<Done>; 2]; CASES.len()] = Default::default();
    for (case, (name, work, others)) in CASES.into_iter().enumerate() {
        for trip in trips {
            // Distance takes as long each time, what the machine takes does not.
            let rounds = if *trip == 0 { lab.by_extent(1, 3) } else { 1 };
            // By turns, so that the machine's mood is the same for both.
            let mut found: [Vec<Done>; 2] = Default::default();
            for round in 0..rounds {
                for ((mode, deep, options), found) in MODES.into_iter().zip(&mut found) {
                    let round = round + 1;
                    (lab.progress)(&format!("{name}, {mode}: {trip} ms away, round {round} of {rounds}"));
                    found.push(done(lab, (work, others), &build, *trip, (deep, options))?);
                }
            }
            for (mode, found) in found.into_iter().enumerate() {
                let Some(all) = Spread::of(found.iter().map(|done| done.seconds).collect()) else { continue };
                curves[case][mode].push((*trip as f64, all));
                let Some(last) = found.into_iter().last() else { continue };
                let row = [name.into(), MODES[mode].0.into(), (*trip).into(), all.into()];
                table.rows.push(row.into_iter().chain(last.cells()).collect());
                farthest[case][mode] = Some(last);
            }
        }
    }
    let ends = |of: fn(&Done) -> f64| -> Vec<Series> {
        let of = |mode: usize| {
            let places = (1..).zip(&farthest);
            let points = places.filter_map(|(at, done)| Some((f64::from(at), of(done[mode].as_ref()?))));
            Series::new(MODES[mode].0, Style::Points, points.collect()).looking(mode, mode)
        };
        vec![of(0), of(1)]
    };
    let most = trips.last().copied().unwrap_or_default();
    let names = || Axis::named("", CASES.map(|(name, ..)| name));
    let title = "Hierarchical control, figure 3: work in a tree that another machine made";
    let messages = ends(|done| done.messages.all as f64);
    let seconds = ends(|done| done.seconds);
    let away = format!("{title}; {most} ms away");
    let mut figures = vec![
        Figure::new("tree-messages", &away, names(), Axis::linear("messages of the worker"), messages),
        Figure::new("tree-time", &away, names(), Axis::linear("work and sync (s)"), seconds),
    ];
    // One point would be no curve.
    if trips.len() > 1 {
        let (x, y) = (Axis::linear("round trip to the server (ms)"), Axis::linear("work and sync (s)"));
        let curves = Figure::new("tree-distance", title, x, y, by_distance(&curves));
        figures.push(Figure { whiskers: "least and greatest of three".to_owned(), ..curves });
    }
    Ok(Foreign {
        figures,
        table,
        why: said(&farthest, most),
        checks: checks(&CASES.map(|(name, work, others)| (name, work, others)), &farthest),
    })
}

/// Of what changes the tree. Dashed over solid: where both take as long both are seen.
fn by_distance(curves: &[[Curve; 2]; CASES.len()]) -> Vec<Series> {
    let changing = CASES.iter().zip(curves).filter(|((_, work, others), _)| {
        matches!(work, Work::BuildAgain | Work::Remove) && *others == Others::Gone
    });
    let both = changing.enumerate().flat_map(|(color, ((name, ..), [node, deep]))| {
        let of = |mode: usize, curve: &Curve| {
            spread::series(format!("{name}, {}", MODES[mode].0), curve).looking(color, mode)
        };
        [of(0, node), Series { style: Style::Line, ..of(1, deep) }]
    });
    both.collect()
}

/// What each kind of work took, in a sentence.
fn said(farthest: &[[Option<Done>; 2]; CASES.len()], trip: u64) -> String {
    let parts = CASES.iter().zip(farthest).filter_map(|((name, ..), [node, deep])| {
        let (node, deep) = (node.as_ref()?, deep.as_ref()?);
        let of = |done: &Done| format!("{} s, {} messages", digits(done.seconds), done.messages.all);
        Some(format!("{name}: {} and {}", of(node), of(deep)))
    });
    let parts: Vec<String> = parts.collect();
    format!(
        " In a tree that another machine made, {trip} ms away, with node leases and with deep ones: {}.",
        parts.join("; ")
    )
}

/// That deep leases spare the exchange that each changed object takes by itself; none where things are only read, or where
/// another machine reads them: below what others read the server gives no deep lease to write.
fn checks(cases: &[(&str, Work, Others)], found: &[[Option<Done>; 2]]) -> Vec<Check> {
    let pairs = cases.iter().zip(found).filter_map(|((name, work, others), [node, deep])| {
        let (node, deep) = (node.as_ref()?.messages, deep.as_ref()?.messages);
        let ratio = times(deep.all as f64, node.all as f64);
        let numbers = format!("{} of {}, {ratio}", deep.all, node.all);
        let check = match (work, others) {
            (Work::Remove, Others::Gone) => Check::counted(
                format!("{name}: with deep leases a third of the messages at most"),
                3 * deep.all <= node.all,
                numbers,
            ),
            (Work::BuildAgain, Others::Gone) => Check::counted(
                format!("{name}: with deep leases five sixths of the messages at most"),
                6 * deep.all <= 5 * node.all,
                numbers,
            ),
            _ => Check::counted(
                format!("{name}: with deep leases no more messages, but for a tenth"),
                10 * deep.all <= 11 * node.all,
                numbers,
            ),
        };
        Some(check)
    });
    pairs.collect()
}

/// One piece of work.
struct Done {
    seconds: f64,
    /// Of the worker, and what they are, by call.
    messages: Messages,
    by_call: Vec<(&'static str, u64)>,
    /// Leases that the server gave it while it worked, and those that it has in the end, of all.
    given: u64,
    leases: u64,
}

impl Done {
    fn cells(&self) -> [Value; 5] {
        let by_call: Vec<String> =
            self.by_call.iter().map(|(call, count)| format!("{call} {count}")).collect();
        let Messages { all, .. } = self.messages;
        let counts = [all, self.messages.for_consistency(), self.given, self.leases].map(Value::from);
        let [all, consistency, given, leases] = counts;
        [all, consistency, given, leases, by_call.join(", ").into()]
    }
}

fn done(
    lab: &Lab<'_>,
    (work, others): (Work, Others),
    build: &Build,
    trip: u64,
    (deep, options): (&str, &str),
) -> Result<Done, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", deep])?;
    let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
    cell.mount(2, "sync")?;
    let made = Files::of(&cell.mounts[0].root);
    build.unpack(&made)?;
    if work != Work::Build {
        build.configure(&made)?;
        build.make(&made)?;
    }
    cell.mounts[0].sync()?;
    match others {
        Others::Gone => cell.mounts.clear(),
        Others::Read => read_all(&cell.mounts[1].root)?,
    }
    cell.mount_another(&proxy.address(), options, None)?;
    let Some(worker) = cell.mounts.last() else {
        return Err(LabError::Failed("the worker has no mount".to_owned()));
    };
    let files = Files::of(&worker.root);
    let (server, before) = (cell.server_counters()?, worker.counters()?);
    let start = Instant::now();
    match work {
        Work::Scan => read_all(&worker.root)?,
        Work::Build => {
            build.configure(&files)?;
            build.make(&files)?;
        }
        Work::BuildAgain => build.make_again(&files)?,
        Work::Remove => {
            let tree = worker.root.join("tree");
            std::fs::remove_dir_all(&tree).map_err(LabError::io(&tree))?;
        }
    }
    worker.sync()?;
    let seconds = start.elapsed().as_secs_f64();
    let (after, counters) = (cell.server_counters()?, worker.counters()?);
    let given = ["lease.read_grants", "lease.write_grants"].map(|name| grown(&server, &after, name));
    // Before the proxy, which would let them wait.
    cell.mounts.clear();
    Ok(Done {
        seconds,
        messages: Messages::between(&before, &counters),
        by_call: Messages::all_by_call(&[before], &[counters]),
        given: given.iter().sum(),
        leases: count(&after, "leases"),
    })
}

/// Looks at every name below, and reads every file.
fn read_all(dir: &Path) -> Result<(), LabError> {
    for entry in std::fs::read_dir(dir).map_err(LabError::io(dir))? {
        let entry = entry.map_err(LabError::io(dir))?;
        let path = entry.path();
        if entry.metadata().map_err(LabError::io(&path))?.is_dir() {
            read_all(&path)?;
        } else {
            std::fs::read(&path).map_err(LabError::io(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done_with(all: u64) -> Option<Done> {
        let messages = Messages { all, changes: 2 };
        Some(Done { seconds: 1.0, messages, by_call: vec![("read", all)], given: 1, leases: 2 })
    }

    #[test]
    fn who_saves_nothing_where_something_is_changed_is_found_out() {
        let holds = |work: Work, others: Others, node: u64, deep: u64| {
            let checks = checks(&[("it", work, others)], &[[done_with(node), done_with(deep)]]);
            assert_eq!(checks.len(), 1);
            checks[0].holds
        };
        let gone = Others::Gone;
        assert!(holds(Work::Remove, gone, 300, 100) && !holds(Work::Remove, gone, 300, 101));
        assert!(holds(Work::BuildAgain, gone, 600, 500) && !holds(Work::BuildAgain, gone, 600, 501));
        assert!(holds(Work::Scan, gone, 100, 110) && !holds(Work::Build, gone, 100, 111));
        assert!(holds(Work::Remove, Others::Read, 100, 110) && !holds(Work::Remove, Others::Read, 100, 111));
    }

    #[test]
    fn calls_stand_with_their_counts() {
        let cells = done_with(7).expect("done").cells();
        assert_eq!(cells, [7_u64.into(), 5_u64.into(), 1_u64.into(), 2_u64.into(), "read 7".into()]);
    }
}
