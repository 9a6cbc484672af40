//! AFS, table III: how long "is what I have still right?" takes, while more and more machines do the Andrew benchmark.

use super::spread::{self, Spread};
use super::{Lab, andrew, at_once, joined};
use crate::LabError;
use crate::cell::{Counters, Messages, Mount, grown};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::trace::Files;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Milliseconds that a TestAuth call took in the paper, by load units.
const PAPER: [(usize, f64); 5] = [(1, 87.0), (2, 118.0), (5, 259.0), (8, 670.0), (10, 1050.0)];
/// Each machine asks so often besides what it does, which is little beside that.
const EVERY: Duration = Duration::from_millis(5);
/// So many machines' work at least is measured at each load, in rounds: that of one alone is short.
const MACHINES: usize = 5;
/// How many questions are counted before there is any load.
const COUNTED: u64 = 20;

/// When a question was asked, and how long the answer took.
type Asked = (Duration, Duration);

/// What came of it.
pub(super) struct TestAuth {
    pub(super) table: Table,
    pub(super) figure: Figure,
    pub(super) check: Check,
    /// In a sentence.
    pub(super) said: String,
}

pub(super) fn run(lab: &Lab<'_>) -> Result<TestAuth, LabError> {
    let loads = lab.by_extent(&PAPER[..2], &PAPER[..]);
    let head = [
        "mode",
        "load units",
        "question and answer (us)",
        "relative, %",
        "of it in the server (us)",
        "the paper's (ms)",
        "the paper's, %",
    ];
    let title = "Time of a TestAuth call (fstat of a mount that asks each time): the median of the means of nine stretches";
    let mut table = Table::new(title, head);
    let (mut series, mut said, mut exchanges) = (Vec::new(), Vec::new(), Vec::new());
    for mode in andrew::ASKING_MODES {
        let mut points: Vec<(f64, Spread)> = Vec::new();
        for (load, theirs) in loads {
            (lab.progress)(&format!("TestAuth, {}: {load} machines", mode.name));
            let cell = andrew::with_source(lab, *load, &mode)?;
            exchanges.push(exchanges_of(&cell.mounts[0])?);
            let before = cell.server_counters()?;
            let asked = in_rounds(lab.by_extent(1, MACHINES.div_ceil(*load)), |round| {
                under_load(&cell.mounts, round, mode.computes)
            })?;
            let inside = in_server(&before, &cell.server_counters()?);
            let length = asked.iter().map(|(at, _)| *at).max().unwrap_or_default();
            let Some(time) = Spread::of_means(&asked, length.max(EVERY)) else { continue };
            points.push((*load as f64, time));
            table.row([
                mode.name.into(),
                (*load).into(),
                time.into(),
                (100.0 * time.middle / points[0].1.middle).into(),
                inside.into(),
                (*theirs).into(),
                relative(*theirs).into(),
            ]);
        }
        let Some((_, first)) = points.first().copied() else { continue };
        let parts: Vec<_> =
            points.iter().map(|(load, time)| (*load, time.scaled(100.0 / first.middle))).collect();
        said.extend(points.last().zip(parts.last()).map(|((load, _), (_, part))| {
            format!(
                "{} {} us, {:.0} % of that at {load} load units",
                mode.name,
                digits(first.middle),
                part.middle
            )
        }));
        series.push(spread::series(mode.name, &parts));
    }
    let theirs = loads.iter().map(|(load, time)| (*load as f64, relative(*time))).collect();
    series.push(Series::new("AFS v1 in 1988", Style::Paper, theirs).looking(6, 0));
    let (x, y) = (
        Axis::linear("load units (machines at once)"),
        Axis::logarithmic("time of TestAuth (% of that at load 1)"),
    );
    let title = "AFS, table III: the time of a TestAuth call, relative to load 1";
    Ok(TestAuth {
        table,
        figure: Figure::new("testauth", title, x, y, series),
        check: one_each(&exchanges),
        said: format!("A TestAuth call: {}", said.join("; ")),
    })
}

/// The paper's, in per cent of that at one load unit.
fn relative(time: f64) -> f64 {
    100.0 * time / PAPER[0].1
}

/// That each question is one exchange with the server, and no other call. By call: messages.
fn one_each(exchanges: &[Vec<(&'static str, u64)>]) -> Check {
    let is_one = |calls: &Vec<(&str, u64)>| *calls == [("getattr", 2 * COUNTED)];
    let mut said: Vec<String> = exchanges.iter().map(|calls| format!("{calls:?}")).collect();
    said.dedup();
    Check::counted(
        format!(
            "{COUNTED} questions whether what is cached is still so are {} messages of getattr, and nothing else",
            2 * COUNTED
        ),
        !exchanges.is_empty() && exchanges.iter().all(is_one),
        said.join("; "),
    )
}

/// What a mount and the server say to each other for so many questions.
fn exchanges_of(mount: &Mount) -> Result<Vec<(&'static str, u64)>, LabError> {
    let path = mount.root.join(andrew::SOURCE_FILE);
    let file = File::open(&path).map_err(LabError::io(&path))?;
    let before = mount.counters()?;
    for _ in 0..COUNTED {
        file.metadata().map_err(LabError::io(&path))?;
    }
    Ok(Messages::all_by_call(&[before], &[mount.counters()?]))
}

/// One round after the other; times go on.
fn in_rounds(
    rounds: usize,
    mut one: impl FnMut(usize) -> Result<Vec<Asked>, LabError>,
) -> Result<Vec<Asked>, LabError> {
    let mut all: Vec<Asked> = Vec::new();
    for round in 0..rounds {
        let before = all.iter().map(|(at, _)| *at).max().unwrap_or_default();
        all.extend(one(round)?.into_iter().map(|(at, took)| (before + at, took)));
    }
    Ok(all)
}

/// All machines do the benchmark, each with a target of its own in each round; what each asks meanwhile.
fn under_load(mounts: &[Mount], round: usize, computes: Duration) -> Result<Vec<Asked>, LabError> {
    let machines = mounts.len();
    let found = at_once(mounts, |number, mount| {
        let (files, path) = (Files::of(&mount.root), mount.root.join(andrew::SOURCE_FILE));
        move || {
            let is_over = Arc::new(AtomicBool::new(false));
            let heard = Arc::clone(&is_over);
            let asks = std::thread::spawn(move || ask(&path, &heard));
            let done = andrew::one_machine(&files, round * machines + number, computes);
            is_over.store(true, Ordering::Relaxed);
            let asked = joined(asks)?;
            done.map(|_| asked)
        }
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// Once at least.
fn ask(path: &Path, is_over: &AtomicBool) -> Result<Vec<Asked>, LabError> {
    let file = File::open(path).map_err(LabError::io(path))?;
    let (began, mut asked) = (Instant::now(), Vec::new());
    loop {
        let start = Instant::now();
        file.metadata().map_err(LabError::io(path))?;
        asked.push((start - began, start.elapsed()));
        if is_over.load(Ordering::Relaxed) {
            return Ok(asked);
        }
        std::thread::sleep(EVERY);
    }
}

/// Microseconds of such a call in the server, on average.
fn in_server(before: &Counters, after: &Counters) -> f64 {
    let grown = |name: &str| grown(before, after, name) as f64;
    grown("calls.getattr.total_us") / grown("calls.getattr").max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(list: &[(&str, u64)]) -> Counters {
        list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn the_papers_relative_times_are_those_of_its_table() {
        let percent: Vec<f64> = PAPER.iter().map(|(_, time)| relative(*time).round()).collect();
        assert_eq!(percent, [100.0, 136.0, 298.0, 770.0, 1207.0]);
    }

    #[test]
    fn a_question_that_asks_nobody_or_twice_is_found_out() {
        let right = vec![("getattr", 2 * COUNTED)];
        assert!(one_each(&[right.clone(), right.clone()]).holds);
        for wrong in [
            Vec::new(),
            vec![("getattr", 4 * COUNTED)],
            vec![("lookupstat", 2 * COUNTED)],
            vec![("getattr", 2 * COUNTED), ("lookup", 2)],
        ] {
            let check = one_each(&[right.clone(), wrong]);
            assert!(!check.holds, "{check}");
        }
        assert!(!one_each(&[]).holds);
    }

    #[test]
    fn the_servers_part_is_of_the_calls_since() {
        let before = counters(&[("calls.getattr", 10), ("calls.getattr.total_us", 1000)]);
        let after = counters(&[("calls.getattr", 14), ("calls.getattr.total_us", 1010)]);
        assert_eq!(in_server(&before, &after), 2.5);
        assert_eq!(in_server(&before, &before), 0.0);
    }

    #[test]
    fn rounds_follow_each_other() {
        let millis = Duration::from_millis;
        let rounds = [vec![(millis(0), millis(1)), (millis(9), millis(2))], vec![(millis(4), millis(3))]];
        let asked = in_rounds(2, |round| Ok(rounds[round].clone())).expect("asked");
        assert_eq!(asked, [(millis(0), millis(1)), (millis(9), millis(2)), (millis(13), millis(3))]);
    }

    #[test]
    fn who_asks_asks_once_at_least() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(ask(file.path(), &AtomicBool::new(true)).expect("asked").len(), 1);
        assert!(ask(Path::new("/none/there"), &AtomicBool::new(true)).is_err());
    }
}
