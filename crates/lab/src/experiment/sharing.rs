//! Strata with leases, figures 5 and 6: machines that share one large file.

use super::spread::{self, Spread};
use super::{Found, Lab, at_once, times};
use crate::LabError;
use crate::cell::{Cell, count};
use crate::figure::{Axis, Figure, Series, Style, Table};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

/// Bytes of a read or write; of the second experiment, which is about waiting, not about bytes.
const BLOCK: usize = 128 << 10;
const SMALL_BLOCK: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Reader,
    Writer,
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (machines, size) = lab.by_extent((4, 4 << 20), (10, 100 << 20));
    let rounds = lab.by_extent(1, 5);
    let mut table = Table::new(
        &format!("{machines} machines, {} MiB", size >> 20),
        ["writers", "mode", "the last one (ms)", "the paper's (ms)"],
    );
    let mut order = Vec::new();
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
                // It has a number for this one only.
                let theirs =
                    if writers == machines { format!("{PAPER_ALL_WRITE:.0}") } else { "-".to_owned() };
                table.row([format!("{writers} of {machines}"), mode.to_owned(), millis.to_string(), theirs]);
            }
        }
        order.push(format!("with {mode} {}", slowest_last(&points)));
        series.push(spread::series(mode, &points));
    }
    let paper = vec![(100.0, PAPER_ALL_WRITE)];
    series.push(Series::new("Strata, ten processes write", Style::Points, paper).looking(6, 3));
    let (x, y) = (Axis::linear("machines that write (%)"), Axis::linear("until the last one is done (ms)"));
    let title = format!("Strata, figure 5: {machines} machines, each all of one file of {} MiB", size >> 20);
    Ok(Found {
        paper: "Ten processes, 100 MiB each: all reading is fastest, all writing takes some 680 ms, half and half is \
                the worst, \
                because each read waits for a digest.",
        why: format!("{WHY} Here, fastest first: {}.", order.join("; ")),
        figures: vec![Figure::new("runtime", &title, x, y, series)],
        tables: vec![table],
        files: Vec::new(),
    })
}

/// Milliseconds.
const PAPER_ALL_WRITE: f64 = 680.0;

pub(super) const WHY: &str = "Strata's processes write to a log in non-volatile memory of one machine and \
    may leave it undigested between writers, so that mixing is worst; here every byte goes to a server, through a \
    socket, so who writes waits for that in any mix, and whoever reads has the writer asked first.";

/// `all read 202, half write 289, all write 397 ms`.
fn slowest_last(points: &[(f64, Spread)]) -> String {
    let mut sorted = points.to_vec();
    sorted.sort_by(|one, other| one.1.middle.total_cmp(&other.1.middle));
    let name = |writers: f64| match writers {
        0.0 => "all read",
        100.0 => "all write",
        _ => "half write",
    };
    let parts = sorted.iter().map(|(writers, time)| format!("{} {:.0}", name(*writers), time.middle));
    format!("{} ms", parts.collect::<Vec<_>>().join(", "))
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
    let ended = at_once(&cell.mounts, |number, mount| {
        let role = if number < writers { Role::Writer } else { Role::Reader };
        let path = mount.root.join("shared");
        move || go_through(&path, role, size, block).map(|()| start.elapsed())
    })?;
    let last = ended.into_iter().max().unwrap_or_default();
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
    let mut most_asked = 0;
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
            if number == 0 && wait == waits.first().copied() {
                most_asked = asked;
            }
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
    let longest = polled[0].last().map_or(f64::NAN, |(_, time)| time.middle);
    let shortest = notified[0].first().map_or(f64::NAN, |(_, time)| *time);
    let mut series = Vec::new();
    for (number, (_, scenario)) in scenarios.iter().enumerate() {
        let name = format!("{scenario}, polling");
        series.push(spread::series(name, &polled[number]).looking(number, number));
    }
    // Of the same colour, dashed.
    for (number, (_, scenario)) in scenarios.iter().enumerate() {
        let name = format!("{scenario}, notified");
        let line = Series::new(name, Style::Line, std::mem::take(&mut notified[number]));
        series.push(line.looking(number, number));
    }
    let x = Axis::logarithmic("polling interval (ms)");
    let y = Axis::logarithmic("until the last one is done (ms)");
    let title =
        format!("Strata, figure 6: polling against notification; {machines} machines, {} MiB", size >> 20);
    Ok(Found {
        paper: "The time of the slowest process grows with the polling interval in each scenario; Strata has no notification \
                to compare with, because its kernel was not to keep track of who waits.",
        why: format!(
            "{WHY_POLLING} Asking every {} ms, all writing takes {} as long as with notification; asking every {} ms costs \
             {most_asked} questions in vain, of {} operations.",
            waits[waits.len() - 1],
            times(longest, shortest),
            waits[0],
            machines * (size / SMALL_BLOCK)
        ),
        figures: vec![Figure::new("polling", &title, x, y, series)],
        tables: vec![table],
        files: Vec::new(),
    })
}

pub(super) const WHY_POLLING: &str = "The same, where the interval is long: below, what is waited for \
    between two questions drowns in the rest, and short intervals cost questions in vain instead; and Strata \
    acquires and releases a lease for each operation, where here it stays until somebody asks for it, and the server \
    gives none on a file as contended as this one (equation 8).";

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
