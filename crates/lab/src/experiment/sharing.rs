//! Strata with leases, figures 5 and 6: machines that share one large file.

use super::spread::{self, Spread};
use super::{Found, Lab, joined};
use crate::LabError;
use crate::cell::{Cell, count};
use crate::figure::{Axis, Figure, Series, Style, Table};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a read or write; of the second experiment, which is about waiting, not about bytes.
const BLOCK: usize = 128 << 10;
const SMALL_BLOCK: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Reader,
    Writer,
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (machines, size) = lab.by_extent((4, 4 << 20), (10, 32 << 20));
    let rounds = lab.by_extent(1, 5);
    let mut table = Table::new(
        &format!("{machines} machines, {} MiB", size >> 20),
        ["writers", "mode", "the last one (ms)"],
    );
    let mut series = Vec::new();
    for (mode, options) in [("write=through", "sync,memory=64M"), ("write=behind", "write=behind,memory=64M")]
    {
        let mut cell = Cell::start(lab, &["--term", "60s"])?;
        cell.mount(machines, options)?;
        let mut points = Vec::new();
        for writers in [0, machines / 2, machines] {
            (lab.progress)(&format!("{mode}: {writers} of {machines} machines write"));
            let round = |_| anew(&cell, writers, size, BLOCK);
            let times = (0..rounds).map(round).collect::<Result<_, _>>()?;
            if let Some(millis) = Spread::of(times) {
                points.push((100.0 * writers as f64 / machines as f64, millis));
                table.row([format!("{writers} of {machines}"), mode.to_owned(), millis.to_string()]);
            }
        }
        series.push(spread::series(mode, &points));
    }
    let (x, y) = (Axis::linear("machines that write (%)"), Axis::linear("until the last one is done (ms)"));
    let title = format!("{machines} machines, each all of one file of {} MiB", size >> 20);
    Ok(Found {
        paper: "Ten processes, 100 MiB each: all reading is fastest, all writing takes some 680 ms, half and half is \
                the worst, \
                because each read waits for a digest.",
        why: "Strata's processes write to a log in non-volatile memory of one machine and may leave it undigested between \
              writers; here every byte goes to a server, through a socket, and whoever reads has the writer asked first.",
        figures: vec![Figure::new("runtime", &title, x, y, series)],
        tables: vec![table],
        files: Vec::new(),
    })
}

/// As [`last_of`], of a file that only the first machine has cached.
fn anew(cell: &Cell, writers: usize, size: usize, block: usize) -> Result<f64, LabError> {
    let path = cell.mounts[0].root.join("shared");
    std::fs::write(&path, vec![1; size]).map_err(LabError::io(&path))?;
    last_of(cell, writers, size, block)
}

/// All machines go through the file, so many of them writing. Milliseconds until the last one is done.
fn last_of(cell: &Cell, writers: usize, size: usize, block: usize) -> Result<f64, LabError> {
    let start = Instant::now();
    let threads: Vec<_> = cell
        .mounts
        .iter()
        .enumerate()
        .map(|(number, mount)| {
            let role = if number < writers { Role::Writer } else { Role::Reader };
            let path = mount.root.join("shared");
            std::thread::spawn(move || go_through(&path, role, size, block).map(|()| start.elapsed()))
        })
        .collect();
    let mut last = Duration::ZERO;
    for thread in threads {
        last = last.max(joined(thread)?);
    }
    Ok(last.as_secs_f64() * 1e3)
}

/// Strata's figure 6: a lease that others have is asked for again and again, or waited for in the server's queue.
pub(super) fn polling(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (machines, size) = lab.by_extent((4, 1 << 20), (10, 4 << 20));
    let rounds = lab.by_extent(1, 5);
    let waits: Vec<f64> = lab.by_extent(vec![1.0, 20.0], vec![0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    let mut table = Table::new(
        &format!("{machines} machines, each all of one file of {} MiB", size >> 20),
        ["writers", "waiting for a lease", "the last one (ms)", "asked again, of all machines"],
    );
    let all = machines;
    let scenarios = [(all, "all write"), (all / 2, "half write"), (0, "all read")];
    let mut polled: Vec<Vec<(f64, Spread)>> = vec![Vec::new(); scenarios.len()];
    let mut notified: Vec<Vec<(f64, f64)>> = vec![Vec::new(); scenarios.len()];
    let modes = std::iter::once(None).chain(waits.iter().map(|wait| Some(*wait)));
    for wait in modes {
        let (mode, options) = match wait {
            Some(millis) => {
                let micros = (millis * 1000.0) as u64;
                (format!("asks every {millis} ms"), format!("sync,memory=64M,lease-poll={micros}us"))
            }
            None => ("is notified".to_owned(), "sync,memory=64M".to_owned()),
        };
        let mut cell = Cell::start(lab, &["--term", "60s"])?;
        cell.mount(machines, &options)?;
        for (number, (writers, scenario)) in scenarios.iter().enumerate() {
            (lab.progress)(&format!("{scenario}, who waits {mode}"));
            let before = polls(&cell)?;
            let round = |_| anew(&cell, *writers, size, SMALL_BLOCK);
            let times = (0..rounds).map(round).collect::<Result<_, _>>()?;
            let asked = (polls(&cell)? - before) / rounds;
            let Some(millis) = Spread::of(times) else { continue };
            let waiting = [format!("{writers} of {machines}"), mode.clone(), millis.to_string()];
            table.rows.push(waiting.into_iter().chain([asked.to_string()]).collect());
            match wait {
                Some(wait) => polled[number].push((wait, millis)),
                // As wide as the figure.
                None => {
                    let ends = [waits[0], waits[waits.len() - 1]];
                    notified[number].extend(ends.map(|at| (at, millis.middle)));
                }
            }
        }
    }
    let mut series = Vec::new();
    for (number, (_, scenario)) in scenarios.iter().enumerate() {
        let name = format!("{scenario}, polling");
        series.push(spread::series(name, &polled[number]));
    }
    for (number, (_, scenario)) in scenarios.iter().enumerate() {
        let name = format!("{scenario}, notified");
        series.push(Series::new(name, Style::Line, std::mem::take(&mut notified[number])));
    }
    let x = Axis::logarithmic("polling interval (ms)");
    let y = Axis::logarithmic("until the last one is done (ms)");
    let title = format!("{machines} machines, one file of {} MiB", size >> 20);
    Ok(Found {
        paper: "The time of the slowest process grows with the polling interval in each scenario; Strata has no notification \
                to compare with, because its kernel was not to keep track of who waits.",
        why: WHY_POLLING,
        figures: vec![Figure::new("polling", &title, x, y, series)],
        tables: vec![table],
        files: Vec::new(),
    })
}

const WHY_POLLING: &str = "The same from some 20 ms on: at 100 ms all writing takes three times as long as with \
                           notification. Below, what is waited for between two questions drowns in the rest, and short intervals \
                           cost requests instead, hundreds of which are in vain. Strata acquires and releases a lease for each \
                           operation; here it stays until somebody asks for it, and where a file is as contended as this one \
                           the server gives none (equation 8), so of 2,560 operations only some hundred had to wait.";

/// How often all the mounts have asked again.
fn polls(cell: &Cell) -> Result<u64, LabError> {
    cell.mounts.iter().map(|mount| Ok(count(&mount.counters()?, "lease_polls"))).sum()
}

fn go_through(path: &Path, role: Role, size: usize, block: usize) -> Result<(), LabError> {
    let mut file =
        OpenOptions::new().read(true).write(role == Role::Writer).open(path).map_err(LabError::io(path))?;
    let mut block = vec![2; block];
    for _ in 0..size / block.len() {
        match role {
            Role::Reader => file.read_exact(&mut block).map_err(LabError::io(path))?,
            Role::Writer => file.write_all(&block).map_err(LabError::io(path))?,
        }
    }
    Ok(())
}
