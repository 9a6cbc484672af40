//! The Andrew benchmark (Howard et al. 1988): five phases on 70 files of 200 KB, by one to twenty machines at once.

use super::spread::{self, Spread};
use super::{Found, Lab, joined};
use crate::LabError;
use crate::cell::{Cell, Counters, Mount, count};
use crate::figure::{Axis, Figure, Table, digits};
use crate::trace::Files;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const DIRS: usize = 10;
const FILES: usize = 70;
const FILE_SIZE: usize = 200_000 / FILES;
/// Files that every "compilation" reads besides its own.
const HEADERS: usize = 10;

const PHASES: [&str; 5] = ["MakeDir", "Copy", "ScanDir", "ReadAll", "Make"];

/// The modes, and what the paper would call them.
const MODES: [(&str, &str); 4] = [
    ("asking (as AFS v1)", "consistency=verify,memory=32M"),
    ("leases of 10 s", "sync,lease-term=10s,memory=32M"),
    ("callbacks (as AFS v2)", "sync,lease-term=infinite,memory=32M"),
    ("callbacks, write=behind", "write=behind,memory=32M"),
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let loads = lab.by_extent(vec![1, 2], vec![1, 2, 5, 8, 10, 15, 20]);
    let rounds = lab.by_extent(1, 3);
    let mut head = vec!["mode", "load units", "all (ms)", "relative"];
    head.extend(PHASES);
    let mut times = Table {
        title: "Time of the benchmark, mean over the machines, median of the rounds (least to greatest), ms"
            .to_owned(),
        head: head.into_iter().map(str::to_owned).collect(),
        rows: Vec::new(),
    };
    let mut calls = Table::new("Calls to the server at one load unit", ["mode", "call", "count", "%"]);
    let mut hits = Table::new(
        "Hits of the daemon's caches at one load unit, %",
        ["mode", "names", "attributes", "file data"],
    );
    let mut series = Vec::new();
    for (mode, options) in MODES {
        let mut points: Vec<(f64, Spread)> = Vec::new();
        for &load in &loads {
            (lab.progress)(&format!("{mode}: {load} machines"));
            let mut found: Vec<[Duration; 5]> = Vec::new();
            for round in 0..rounds {
                let mut cell = Cell::start(lab, &["--term", "60s"])?;
                cell.mount(load, options)?;
                make_source(&Files::of(&cell.mounts[0].root))?;
                let before = counters(&cell)?;
                found.push(all_at_once(&cell)?);
                if load == 1 && round == 0 {
                    let after = counters(&cell)?;
                    add_calls(&mut calls, mode, &before, &after);
                    let ratio = |kind: &str| hit_ratio(&before, &after, kind);
                    hits.row([mode.to_owned(), ratio("name"), ratio("attr"), ratio("data")]);
                }
            }
            let millis = |time: Duration| time.as_secs_f64() * 1e3;
            let sums = found.iter().map(|phases| millis(phases.iter().sum())).collect();
            let Some(all) = Spread::of(sums) else { continue };
            points.push((load as f64, all));
            let relative = 100.0 * all.middle / points[0].1.middle;
            let mut row =
                vec![mode.to_owned(), load.to_string(), all.to_string(), format!("{relative:.0} %")];
            for phase in 0..PHASES.len() {
                let phase = Spread::of(found.iter().map(|phases| millis(phases[phase])).collect());
                row.extend(phase.map(|phase| digits(phase.middle)));
            }
            times.rows.push(row);
        }
        series.push(spread::series(mode, &points));
    }
    let (x, y) = (Axis::linear("load units (machines at once)"), Axis::linear("benchmark, all phases (ms)"));
    Ok(Found {
        paper: "AFS v1: 1789 s at load 1 (100 %), 106 % at 2, 154 % at 5, 287 % at 8, 410 % at 10. AFS v2: 949 s, 100 \
                %, 111 %, 117 %, 136 %, 160 % at 15 and 192 % at 20. TestAuth is 61.7 % of AFS v1's calls, GetFileStat \
                26.8 %; its caches hit in 81 % (files) and 82 % (status).",
        why: "All machines and the server share the processors of one computer here, and nobody computes: at load 20 the \
              benchmark is twenty times the work for the same processors, so every mode takes several times as long, up to \
              ten, and more where each call asks the server. In the paper each machine has a processor of its own, most of \
              the time is compiling, and only the server is shared: 192 % says how busy that was, here the figure says how \
              busy the whole computer is. What can be compared is the order of the modes. Make reads and writes what a \
              compiler would, and computes nothing. With write=behind nothing may have been told yet when the calls \
              are counted. Hits are those of the daemon: what the kernel answers by itself nobody counts.",
        figures: vec![Figure::new("load", "70 files, 200 KB, a copy for each machine", x, y, series)],
        tables: vec![times, calls, hits],
        files: Vec::new(),
    })
}

fn counters(cell: &Cell) -> Result<Counters, LabError> {
    cell.mounts[0].counters()
}

/// Of what was asked since `before`, the part that needed no server.
fn hit_ratio(before: &Counters, after: &Counters, kind: &str) -> String {
    let grown = |what: &str| {
        let name = format!("{kind}_{what}");
        count(after, &name).saturating_sub(count(before, &name)) as f64
    };
    let (hits, misses) = (grown("hits"), grown("misses"));
    if hits + misses == 0.0 { "-".to_owned() } else { format!("{:.0}", 100.0 * hits / (hits + misses)) }
}

fn add_calls(table: &mut Table, mode: &str, before: &Counters, after: &Counters) {
    let grown: BTreeMap<&str, u64> = after
        .iter()
        .filter_map(|(name, count)| {
            let kind = name.strip_prefix("msg_")?;
            Some((kind, count - before.get(name).copied().unwrap_or(0)))
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    let all: u64 = grown.values().sum();
    let mut sorted: Vec<_> = grown.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (kind, count) in sorted {
        let share = 100.0 * count as f64 / all as f64;
        table.row([mode.to_owned(), kind.to_owned(), count.to_string(), format!("{share:.1}")]);
    }
    table.row([mode.to_owned(), "all".to_owned(), all.to_string(), "100".to_owned()]);
}

fn name(number: usize) -> String {
    format!("dir{}/file{number}.c", number % DIRS)
}

pub(super) fn make_source(files: &Files) -> Result<(), LabError> {
    files.make_dir("source")?;
    (0..DIRS).try_for_each(|dir| files.make_dir(&format!("source/dir{dir}")))?;
    (0..FILES).try_for_each(|number| {
        files.create(&format!("source/{}", name(number)), &vec![number as u8; FILE_SIZE])
    })
}

/// The phases' times, the mean over the machines.
fn all_at_once(cell: &Cell) -> Result<[Duration; 5], LabError> {
    let start = |(number, mount): (usize, &Mount)| {
        let files = Files::of(&mount.root);
        std::thread::spawn(move || one_machine(&files, number))
    };
    let threads: Vec<_> = cell.mounts.iter().enumerate().map(start).collect();
    let count = u32::try_from(threads.len()).unwrap_or(1).max(1);
    let mut sum = [Duration::ZERO; 5];
    for thread in threads {
        for (sum, time) in sum.iter_mut().zip(joined(thread)?) {
            *sum += time;
        }
    }
    Ok(sum.map(|time| time / count))
}

/// The five phases, on a target of the machine's own.
pub(super) fn one_machine(files: &Files, machine: usize) -> Result<[Duration; 5], LabError> {
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
        assert_eq!(hit_ratio(&counters(100, 0), &counters(103, 1), "name"), "75");
        assert_eq!(hit_ratio(&counters(100, 0), &counters(100, 0), "name"), "-");
    }

    #[test]
    fn all_five_phases_are_done_on_a_copy_of_the_source() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = Files::of(dir.path());
        make_source(&files).expect("made");
        one_machine(&files, 3).expect("done");
        let program = std::fs::metadata(dir.path().join("target3/program")).expect("linked");
        assert_eq!(program.len(), (FILES * (FILE_SIZE + HEADERS * 16)) as u64);
    }
}
