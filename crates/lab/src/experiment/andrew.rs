//! The Andrew benchmark (Howard et al. 1988): five phases on 70 files of 200 KB, by one to twenty machines at once.

use super::spread::{self, Spread};
use super::{Found, Lab, at_once};
use crate::LabError;
use crate::cell::{Cell, Counters, grown};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value, digits};
use crate::trace::Files;
use soda_protocol::{CallKind, Purpose};
use std::time::{Duration, Instant};

const DIRS: usize = 10;
const FILES: usize = 70;
const FILE_SIZE: usize = 200_000 / FILES;
/// Files that every "compilation" reads besides its own.
const HEADERS: usize = 10;

const PHASES: [&str; 5] = ["MakeDir", "Copy", "ScanDir", "ReadAll", "Make"];

/// A mode, and whose it is in the paper.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    pub(super) name: &'static str,
    options: &'static str,
    paper: Option<Paper>,
    /// How long each compilation computes, while it asks for nothing.
    pub(super) computes: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Paper {
    V1,
    V2,
}

const ASKING: &str = "consistency=verify,memory=32M";
const CALLBACKS: &str = "sync,lease-term=infinite,memory=32M";
/// So that most of the time at load 1 is computing, as in the paper.
const COMPUTING: Duration = Duration::from_millis(10);

const MODES: [Mode; 6] = [
    Mode { name: "asking (as AFS v1)", options: ASKING, paper: Some(Paper::V1), computes: Duration::ZERO },
    Mode {
        name: "leases of 10 s",
        options: "sync,lease-term=10s,memory=32M",
        paper: None,
        computes: Duration::ZERO,
    },
    Mode {
        name: "callbacks (as AFS v2)",
        options: CALLBACKS,
        paper: Some(Paper::V2),
        computes: Duration::ZERO,
    },
    Mode {
        name: "callbacks, write=behind",
        options: "write=behind,memory=32M",
        paper: None,
        computes: Duration::ZERO,
    },
    Mode { name: "asking, compiler computes", options: ASKING, paper: Some(Paper::V1), computes: COMPUTING },
    Mode {
        name: "callbacks, compiler computes",
        options: CALLBACKS,
        paper: Some(Paper::V2),
        computes: COMPUTING,
    },
];

/// Those that ask each time, as AFS v1 did.
pub(super) const ASKING_MODES: [Mode; 2] = [MODES[0], MODES[4]];

/// Seconds of the paper's benchmark by load units: its tables III and VI.
const PAPER_V1: [(u32, f64); 5] = [(1, 1789.0), (2, 1894.0), (5, 2747.0), (8, 5129.0), (10, 7326.0)];
const PAPER_V2: [(u32, f64, [u32; 5]); 7] = [
    (1, 949.0, [14, 85, 64, 179, 608]),
    (2, 948.0, [14, 82, 65, 176, 611]),
    (5, 1050.0, [17, 125, 86, 186, 637]),
    (8, 1107.0, [22, 159, 78, 206, 641]),
    (10, 1293.0, [34, 209, 76, 200, 775]),
    (15, 1518.0, [45, 304, 81, 192, 896]),
    (20, 1823.0, [58, 433, 77, 192, 1063]),
];

/// Seconds without any file system of others, all and by phase: its table I. The times of v1 are to be seen beside those of the
/// first machine, those of v2 beside the second's.
const PAPER_ALONE: [(&str, u32, [u32; 5]); 2] = [
    ("stand-alone in 1988, Sun2 (as v1)", 1054, [16, 40, 70, 106, 822]),
    ("stand-alone in 1988, IBM RT/25 (as v2)", 798, [13, 37, 51, 132, 566]),
];

/// Names of what is done on the local disk, and how long each compilation computes.
const ALONE: [(&str, Duration); 2] =
    [("local disk", Duration::ZERO), ("local disk, compiler computes", COMPUTING)];

/// The calls of its table II, and the part that each was of AFS v1's, %.
const PAPER_CALLS: [(&str, f64); 7] = [
    ("TestAuth", 61.7),
    ("GetFileStat", 26.8),
    ("Fetch", 4.0),
    ("Store", 2.1),
    ("SetFileStat", 1.8),
    ("ListDir", 1.8),
    ("all others", 1.7),
];

/// Where a call stands in [`PAPER_CALLS`].
fn paper_call(kind: CallKind) -> usize {
    match kind {
        // Is what is cached still so?
        CallKind::GetAttr => 0,
        CallKind::Lookup | CallKind::LookupStat | CallKind::Stat => 1,
        CallKind::Read | CallKind::Fetch => 2,
        CallKind::Write | CallKind::Allocate | CallKind::CopyRange | CallKind::Digest => 3,
        CallKind::SetAttr => 4,
        CallKind::ReadDir => 5,
        _ => 6,
    }
}

impl Paper {
    /// Relative time at a load, %.
    fn relative(self) -> Vec<(f64, f64)> {
        let times: Vec<(u32, f64)> = match self {
            Paper::V1 => PAPER_V1.to_vec(),
            Paper::V2 => PAPER_V2.iter().map(|(load, all, _)| (*load, *all)).collect(),
        };
        times.iter().map(|(load, all)| (f64::from(*load), 100.0 * all / times[0].1)).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Paper::V1 => "AFS v1 in 1988",
            Paper::V2 => "AFS v2 in 1988",
        }
    }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let loads = lab.by_extent(vec![1, 2], vec![1, 2, 5, 8, 10, 15, 20]);
    let rounds = lab.by_extent(1, 3);
    let mut head = vec!["mode", "load units", "all (ms)", "relative, %", "the paper's, %"];
    head.extend(PHASES);
    let mut times = Table {
        title: "Time of the benchmark, mean over the machines, median of the rounds (least to greatest), ms"
            .to_owned(),
        head: head.into_iter().map(str::to_owned).collect(),
        rows: Vec::new(),
    };
    let mut calls = Table::new(
        "Calls to the server at one load unit, by the paper's table II",
        ["mode", "the paper's word", "calls here", "count", "%", "the paper's, %"],
    );
    let mut hits = Table::new(
        "Hits of the daemon's caches at one load unit, %",
        ["mode", "names", "attributes", "file data"],
    );
    let (mut absolute, mut relative, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let mut test_auth = 0.0;
    // By turns, so that the machine's mood is the same for all modes: of each and each load, the phases of the rounds.
    let mut all_found = vec![vec![Vec::<[Duration; 5]>::new(); loads.len()]; MODES.len()];
    let mut alone = ALONE.map(|_| Vec::new());
    for (at, &load) in loads.iter().enumerate() {
        for round in 0..rounds {
            for ((name, computes), alone) in ALONE.iter().zip(&mut alone).filter(|_| load == 1) {
                (lab.progress)(&format!("{name}, round {} of {rounds}", round + 1));
                alone.push(on_the_local_disk(lab, *computes)?);
            }
            for (mode, found) in MODES.iter().zip(&mut all_found) {
                (lab.progress)(&format!("{}: {load} machines, round {} of {rounds}", mode.name, round + 1));
                let cell = with_source(lab, load, mode)?;
                let before = counters(&cell)?;
                found[at].push(all_at_once(&cell, mode.computes)?);
                if load == 1 && round == 0 && mode.computes.is_zero() {
                    // What is not told yet is a call, too.
                    cell.mounts[0].sync()?;
                    let after = counters(&cell)?;
                    let parts = add_calls(&mut calls, mode, &before, &after);
                    if mode.paper == Some(Paper::V1) {
                        test_auth = parts[0];
                    }
                    let ratio = |kind: &str| hit_ratio(&before, &after, kind);
                    hits.row([mode.name.into(), ratio("name"), ratio("attr"), ratio("data")]);
                }
            }
        }
    }
    for (mode, all_found) in MODES.into_iter().zip(all_found) {
        let mut points: Vec<(f64, Spread)> = Vec::new();
        let paper = mode.paper.map(Paper::relative).unwrap_or_default();
        for (&load, found) in loads.iter().zip(all_found) {
            let Some(all) = sums_of(&found) else { continue };
            points.push((load as f64, all));
            let theirs = paper.iter().find(|(at, _)| *at == load as f64);
            let theirs = theirs.map(|(_, relative)| *relative);
            let ours = 100.0 * all.middle / points[0].1.middle;
            let row = [mode.name.into(), load.into(), all.into(), ours.into(), theirs.into()];
            times.rows.push(row.into_iter().chain(spreads(&found)).collect());
        }
        let Some((_, first)) = points.first().copied() else { continue };
        let parts: Vec<(f64, Spread)> =
            points.iter().map(|(load, all)| (*load, all.scaled(100.0 / first.middle))).collect();
        last.extend(parts.last().map(|(_, part)| format!("{} {:.0} %", mode.name, part.middle)));
        if mode.paper.is_some() {
            // Colours are protocols.
            let (color, marker) = (color_of(mode.paper), if mode.computes.is_zero() { 2 } else { 3 });
            relative.push(spread::series(mode.name, &parts).looking(color, marker));
        }
        absolute.push(spread::series(mode.name, &points));
    }
    let mut lasted = Vec::new();
    for ((name, _), found) in ALONE.iter().zip(&alone) {
        let Some(all) = sums_of(found) else { continue };
        let row = [(*name).into(), Value::Missing, all.into(), Value::Missing, Value::Missing];
        times.rows.push(row.into_iter().chain(spreads(found)).collect());
        lasted.push(format!("{} ms", digits(all.middle)));
    }
    hits.row([Paper::V1.name().into(), Value::Missing, 82.0.into(), 81.0.into()]);
    relative.extend([Paper::V1, Paper::V2].map(|paper| {
        let series = Series::new(paper.name(), Style::Paper, paper.relative());
        series.looking(color_of(Some(paper)), 0)
    }));
    let most = loads.last().copied().unwrap_or_default();
    let x = || Axis::linear("load units (machines at once)");
    Ok(Found {
        paper: "AFS v1: 1789 s at load 1 (100 %), 106 % at 2, 154 % at 5, 287 % at 8, 410 % at 10. AFS v2: 949 s, 100 \
                %, 111 %, 117 %, 136 %, 160 % at 15 and 192 % at 20. Stand-alone: 1054 s on the machines of \
                v1, 798 s on those of v2. TestAuth is 61.7 % of AFS v1's calls, GetFileStat 26.8 %; \
                its caches hit in 81 % (files) and 82 % (status).",
        why: format!(
            "{WHY} At {most} load units: {}, of their time at one. On the local disk: {}.",
            last.join(", "),
            lasted.join(", and where the compiler computes ")
        ),
        figures: vec![
            figure(
                "relative",
                "AFS, tables III and VI: time by load, relative to load 1",
                x(),
                RELATIVE,
                relative,
            ),
            figure(
                "load",
                "The Andrew benchmark: 70 files, 200 KB, a copy for each machine",
                x(),
                TIME,
                absolute,
            ),
        ],
        tables: vec![times, paper_times(), calls, hits],
        checks: vec![Check::counted(
            "Who asks each time asks mostly whether what is cached is still so (AFS v1: 61.7 % of the calls)",
            test_auth > 50.0,
            format!("{test_auth:.1} %"),
        )],
        files: Vec::new(),
    })
}

fn color_of(paper: Option<Paper>) -> usize {
    usize::from(paper == Some(Paper::V2))
}

const RELATIVE: &str = "time of the benchmark (% of that at load 1)";
const TIME: &str = "benchmark, all phases (ms)";

fn figure(name: &str, title: &str, x: Axis, y: &str, series: Vec<Series>) -> Figure {
    let whiskers = "least to greatest".to_owned();
    Figure { whiskers, ..Figure::new(name, title, x, Axis::logarithmic(y), series) }
}

pub(super) const WHY: &str = "All machines and the server share the processors of one computer, where in the \
    paper each had its own and only the server was shared, so times grow faster here; where the compiler computes \
    (it sleeps, which needs no processor), the relative times mean what the paper's do. A file that is open under a \
    lease that may run out is registered with the server (opened), which a callback spares. Hits are those of the \
    daemon: what the kernel answers by itself nobody counts.";

/// As the paper has it.
fn paper_times() -> Table {
    let head = ["system", "load units", "all"].into_iter().chain(PHASES);
    let mut table = Table {
        title: "The paper's times, s".to_owned(),
        head: head.map(str::to_owned).collect(),
        rows: Vec::new(),
    };
    for (load, all) in PAPER_V1 {
        let row = [Paper::V1.name().into(), load.into(), all.into()];
        table.rows.push(row.into_iter().chain(PHASES.map(|_| Value::Missing)).collect());
    }
    for (load, all, phases) in PAPER_V2 {
        let row = [Paper::V2.name().into(), load.into(), all.into()];
        table.rows.push(row.into_iter().chain(phases.map(Value::from)).collect());
    }
    for (name, all, phases) in PAPER_ALONE {
        let row = [name.into(), Value::Missing, all.into()];
        table.rows.push(row.into_iter().chain(phases.map(Value::from)).collect());
    }
    table
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// All phases together of several rounds, ms.
fn sums_of(found: &[[Duration; 5]]) -> Option<Spread> {
    Spread::of(found.iter().map(|phases| millis(phases.iter().sum())).collect())
}

/// Each phase of several rounds, ms.
fn spreads(found: &[[Duration; 5]]) -> impl Iterator<Item = Value> {
    let of = |phase: usize| Spread::of(found.iter().map(|phases| millis(phases[phase])).collect());
    (0..PHASES.len()).map(move |phase| of(phase).into())
}

/// One machine, without Soda and without a network: what the paper calls stand-alone.
fn on_the_local_disk(lab: &Lab<'_>, computes: Duration) -> Result<[Duration; 5], LabError> {
    let dir = tempfile::tempdir_in(lab.scratch).map_err(LabError::io(lab.scratch))?;
    let files = Files::of(dir.path());
    make_source(&files)?;
    one_machine(&files, 0, computes)
}

/// A cell in which a machine that is gone has made the source: who made it would have it cached.
pub(super) fn with_source(lab: &Lab<'_>, load: usize, mode: &Mode) -> Result<Cell, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(1, mode.options)?;
    make_source(&Files::of(&cell.mounts[0].root))?;
    cell.mounts[0].sync()?;
    cell.mount(load, mode.options)?;
    Ok(cell)
}

fn counters(cell: &Cell) -> Result<Counters, LabError> {
    cell.mounts[0].counters()
}

/// Of what was asked since `before`, the part that needed no server.
fn hit_ratio(before: &Counters, after: &Counters, kind: &str) -> Value {
    let grown = |what: &str| grown(before, after, &format!("{kind}_{what}")) as f64;
    let (hits, misses) = (grown("hits"), grown("misses"));
    // Of nothing it is no number.
    (100.0 * hits / (hits + misses)).into()
}

/// Returns the parts of all that the calls of [`PAPER_CALLS`] are, %.
fn add_calls(table: &mut Table, mode: &Mode, before: &Counters, after: &Counters) -> Vec<f64> {
    let grown = |kind: CallKind| grown(before, after, &format!("msg_{}", kind.name()));
    // Sessions, and what has no answer, are no calls of programs.
    let counted: Vec<(CallKind, u64)> = CallKind::ALL
        .iter()
        .filter(|kind| kind.purpose() != Purpose::Upkeep)
        .map(|kind| (*kind, grown(*kind)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let all: u64 = counted.iter().map(|(_, count)| count).sum();
    let part = |count: u64| 100.0 * count as f64 / all.max(1) as f64;
    let mut parts = Vec::new();
    for (place, (word, theirs)) in PAPER_CALLS.into_iter().enumerate() {
        let mut here: Vec<_> = counted.iter().filter(|(kind, _)| paper_call(*kind) == place).collect();
        here.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let names: Vec<String> =
            here.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
        let sum: u64 = here.iter().map(|(_, count)| count).sum();
        parts.push(part(sum));
        let theirs = (mode.paper == Some(Paper::V1)).then_some(theirs);
        let names = (!names.is_empty()).then(|| names.join(", "));
        let row = [mode.name.into(), word.into(), names.into(), sum.into(), part(sum).into(), theirs.into()];
        table.row(row);
    }
    let row = [mode.name.into(), "all".into(), Value::Missing, all.into(), part(all).into(), Value::Missing];
    table.row(row);
    parts
}

fn name(number: usize) -> String {
    format!("dir{}/file{number}.c", number % DIRS)
}

/// One of the source.
pub(super) const SOURCE_FILE: &str = "source/dir0/file0.c";

pub(super) fn make_source(files: &Files) -> Result<(), LabError> {
    files.make_dir("source")?;
    (0..DIRS).try_for_each(|dir| files.make_dir(&format!("source/dir{dir}")))?;
    (0..FILES).try_for_each(|number| {
        files.create(&format!("source/{}", name(number)), &vec![number as u8; FILE_SIZE])
    })
}

/// The phases' times, the mean over the machines.
fn all_at_once(cell: &Cell, computes: Duration) -> Result<[Duration; 5], LabError> {
    let found = at_once(&cell.mounts, |number, mount| {
        let files = Files::of(&mount.root);
        move || one_machine(&files, number, computes)
    })?;
    let count = u32::try_from(found.len()).unwrap_or(1).max(1);
    let mut sum = [Duration::ZERO; 5];
    for times in found {
        for (sum, time) in sum.iter_mut().zip(times) {
            *sum += time;
        }
    }
    Ok(sum.map(|time| time / count))
}

/// The five phases, on a target of the machine's own; a compilation computes for a while.
pub(super) fn one_machine(
    files: &Files,
    machine: usize,
    computes: Duration,
) -> Result<[Duration; 5], LabError> {
    let target = format!("target{machine}");
    let file = |number: usize| format!("{target}/{}", name(number));
    let object = |number: usize| format!("{target}/dir{}/file{number}.o", number % DIRS);
    let mut times = [Duration::ZERO; 5];
    let mut phase = |number: usize, work: &dyn Fn() -> Result<(), LabError>| {
        let start = Instant::now();
        work()?;
        times[number] = start.elapsed();
        Ok::<(), LabError>(())
    };
    phase(0, &|| {
        files.make_dir(&target)?;
        (0..DIRS).try_for_each(|dir| files.make_dir(&format!("{target}/dir{dir}")))
    })?;
    phase(1, &|| {
        let copy = |number| files.create(&file(number), &files.read(&format!("source/{}", name(number)))?);
        (0..FILES).try_for_each(copy)
    })?;
    phase(2, &|| {
        for dir in files.list(&target)? {
            let dir = format!("{target}/{dir}");
            for name in files.list(&dir)? {
                files.exists(&format!("{dir}/{name}"));
            }
        }
        Ok(())
    })?;
    phase(3, &|| (0..FILES).try_for_each(|number| files.read(&file(number)).map(drop)))?;
    phase(4, &|| {
        let mut program = Vec::new();
        for number in 0..FILES {
            let mut made = files.read(&file(number))?;
            for header in 0..HEADERS {
                made.extend(&files.read(&file(header))?[..16]);
            }
            if !computes.is_zero() {
                files.compute(computes);
            }
            files.create(&object(number), &made)?;
        }
        for number in 0..FILES {
            program.extend(files.read(&object(number))?);
        }
        files.create(&format!("{target}/program"), &program)
    })?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_ratio_is_of_what_happened_since() {
        let counters = |hits: u64, misses: u64| -> Counters {
            [("name_hits".to_owned(), hits), ("name_misses".to_owned(), misses)].into()
        };
        assert_eq!(hit_ratio(&counters(100, 0), &counters(103, 1), "name"), Value::Number(75.0));
        assert_eq!(hit_ratio(&counters(100, 0), &counters(100, 0), "name"), Value::Missing);
    }

    #[test]
    fn calls_are_sorted_as_in_the_paper_and_notes_are_none() {
        let after = [
            ("msg_getattr", 60),
            ("msg_lookup", 20),
            ("msg_lookupstat", 10),
            ("msg_read", 5),
            ("msg_create", 5),
        ];
        let notes = [("msg_closed", 1000), ("msg_renew", 1000)];
        let after = after.into_iter().chain(notes).map(|(name, count)| (name.to_owned(), count)).collect();
        let mut table = Table::new("t", ["mode", "word", "calls", "count", "%", "paper"]);
        let parts = add_calls(&mut table, &MODES[0], &[("msg_read".to_owned(), 1)].into(), &after);
        assert!(
            (parts[0] - 100.0 * 60.0 / 99.0).abs() < 1e-9 && parts.len() == PAPER_CALLS.len(),
            "{parts:?}"
        );
        let column = |at: usize| table.rows.iter().map(|row| row[at].rounded()).collect::<Vec<_>>();
        assert_eq!(column(3), ["60", "30", "4", "0", "0", "0", "5", "99"]);
        assert_eq!(column(2)[..3], ["getattr 60", "lookup 20, lookupstat 10", "read 4"]);
        assert_eq!(column(5)[..2], ["61.7", "26.8"]);
    }

    #[test]
    fn the_papers_relative_times_are_those_of_its_tables() {
        let percent =
            |paper: Paper| paper.relative().into_iter().map(|(_, part)| part.round()).collect::<Vec<_>>();
        assert_eq!(percent(Paper::V1), [100.0, 106.0, 154.0, 287.0, 410.0]);
        assert_eq!(percent(Paper::V2), [100.0, 100.0, 111.0, 117.0, 136.0, 160.0, 192.0]);
    }

    #[test]
    fn the_papers_machines_alone_take_what_their_phases_take() {
        for (name, all, phases) in PAPER_ALONE {
            // Its phases are rounded.
            assert!(all.abs_diff(phases.iter().sum()) <= 1, "{name}");
        }
        let row = paper_times().rows.pop().expect("rows");
        let all = [798.0, 13.0, 37.0, 51.0, 132.0, 566.0].map(Value::from);
        assert_eq!((&row[1], &row[2..]), (&Value::Missing, &all[..]));
    }

    #[test]
    fn all_five_phases_are_done_on_a_copy_of_the_source() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = Files::of(dir.path());
        make_source(&files).expect("made");
        assert!(dir.path().join(SOURCE_FILE).is_file());
        one_machine(&files, 3, Duration::ZERO).expect("done");
        let program = std::fs::metadata(dir.path().join("target3/program")).expect("linked");
        assert_eq!(program.len(), (FILES * (FILE_SIZE + HEADERS * 16)) as u64);
    }
}
