//! The Andrew benchmark (Howard et al. 1988): five phases on 70 files of 200 KB, by one to twenty machines at once.

use super::{Found, Lab};
use crate::LabError;
use crate::cell::{Cell, Counters};
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
        title: "Time of the benchmark, mean over the machines, ms".to_owned(),
        head: head.into_iter().map(str::to_owned).collect(),
        rows: Vec::new(),
    };
    let mut calls = Table::new("Calls to the server at one load unit", ["mode", "call", "count", "%"]);
    let mut series = Vec::new();
    for (mode, options) in MODES {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for &load in &loads {
            (lab.progress)(&format!("{mode}: {load} machines"));
            let mut sum = [Duration::ZERO; 5];
            for round in 0..rounds {
                let mut cell = Cell::start(lab.program, &["--term", "60s"])?;
                cell.mount(load, options)?;
                make_source(&cell.mounts[0].root)?;
                let before = counters(&cell)?;
                for (sum, time) in sum.iter_mut().zip(all_at_once(&cell)?) {
                    *sum += time;
                }
                if load == 1 && round == 0 {
                    add_calls(&mut calls, mode, &before, &counters(&cell)?);
                }
            }
            let millis: Vec<f64> =
                sum.iter().map(|time| time.as_secs_f64() * 1e3 / f64::from(rounds)).collect();
            let all: f64 = millis.iter().sum();
            points.push((load as f64, all));
            let relative = 100.0 * all / points[0].1;
            let mut row = vec![mode.to_owned(), load.to_string(), digits(all), format!("{relative:.0} %")];
            row.extend(millis.into_iter().map(digits));
            times.rows.push(row);
        }
        series.push(Series::new(mode, Style::Both, points));
    }
    let (x, y) = (Axis::linear("load units (machines at once)"), Axis::linear("benchmark, all phases (ms)"));
    Ok(Found {
        paper: "AFS v1: 1789 s at load 1 (100 %), 106 % at 2, 154 % at 5, 287 % at 8, 410 % at 10. AFS v2: 949 s, 100 \
                %, 111 %, \
                117 %, 136 %, 160 % at 15 and 192 % at 20. TestAuth is 61.7 % of AFS v1's calls, GetFileStat 26.8 %.",
        why: "All machines and the server share two processors here, so every mode slows down with load, much more \
              than with a \
              workstation for each; what remains is the order of the modes. Make reads and writes what a compiler would, and \
              computes nothing. With write=behind nothing may have been told yet when the calls are counted.",
        figures: vec![Figure::new("load", "70 files, 200 KB, a copy for each machine", x, y, series)],
        tables: vec![times, calls],
    })
}

fn counters(cell: &Cell) -> Result<Counters, LabError> {
    cell.mounts[0].counters()
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

fn name(number: usize) -> PathBuf {
    PathBuf::from(format!("dir{}", number % DIRS)).join(format!("file{number}.c"))
}

fn make_source(root: &Path) -> Result<(), LabError> {
    let source = root.join("source");
    for dir in 0..DIRS {
        let path = source.join(format!("dir{dir}"));
        std::fs::create_dir_all(&path).map_err(LabError::io(&path))?;
    }
    for number in 0..FILES {
        let path = source.join(name(number));
        std::fs::write(&path, vec![number as u8; FILE_SIZE]).map_err(LabError::io(&path))?;
    }
    Ok(())
}

/// The phases' times, the mean over the machines.
fn all_at_once(cell: &Cell) -> Result<[Duration; 5], LabError> {
    let threads: Vec<_> = cell
        .mounts
        .iter()
        .enumerate()
        .map(|(number, mount)| {
            let (source, target) = (mount.root.join("source"), mount.root.join(format!("target{number}")));
            std::thread::spawn(move || one_machine(&source, &target))
        })
        .collect();
    let count = u32::try_from(threads.len()).unwrap_or(1).max(1);
    let mut sum = [Duration::ZERO; 5];
    for thread in threads {
        let times = thread
            .join()
            .map_err(|_| LabError::Failed("a machine of the experiment broke down".into()))??;
        for (sum, time) in sum.iter_mut().zip(times) {
            *sum += time;
        }
    }
    Ok(sum.map(|time| time / count))
}

fn one_machine(source: &Path, target: &Path) -> Result<[Duration; 5], LabError> {
    let read = |path: PathBuf| std::fs::read(&path).map_err(LabError::io(path));
    let write = |path: PathBuf, bytes: &[u8]| std::fs::write(&path, bytes).map_err(LabError::io(path));
    let mut times = [Duration::ZERO; 5];
    let mut phase = |number: usize, work: &dyn Fn() -> Result<(), LabError>| {
        let start = Instant::now();
        work()?;
        times[number] = start.elapsed();
        Ok::<(), LabError>(())
    };
    phase(0, &|| {
        for dir in 0..DIRS {
            let path = target.join(format!("dir{dir}"));
            std::fs::create_dir_all(&path).map_err(LabError::io(path))?;
        }
        Ok(())
    })?;
    phase(1, &|| {
        (0..FILES).try_for_each(|number| write(target.join(name(number)), &read(source.join(name(number)))?))
    })?;
    phase(2, &|| {
        for dir in std::fs::read_dir(target).map_err(LabError::io(target))? {
            let dir = dir.map_err(LabError::io(target))?.path();
            for file in std::fs::read_dir(&dir).map_err(LabError::io(&dir))? {
                let file = file.map_err(LabError::io(&dir))?;
                file.metadata().map_err(LabError::io(&dir))?;
            }
        }
        Ok(())
    })?;
    phase(3, &|| (0..FILES).try_for_each(|number| read(target.join(name(number))).map(drop)))?;
    phase(4, &|| {
        let mut program = Vec::new();
        for number in 0..FILES {
            let mut object = read(target.join(name(number)))?;
            for header in 0..HEADERS {
                object.extend(&read(target.join(name(header)))?[..16]);
            }
            write(target.join(name(number)).with_extension("o"), &object)?;
        }
        for number in 0..FILES {
            program.extend(read(target.join(name(number)).with_extension("o"))?);
        }
        write(target.join("program"), &program)
    })?;
    Ok(times)
}
