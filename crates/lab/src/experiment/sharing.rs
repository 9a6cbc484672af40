//! Strata with leases, figures 5 and 6: machines that share one large file.

use super::spread::{self, Spread};
use super::{Found, Lab, at_once, times};
use crate::LabError;
use crate::cell::{Cell, count};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table};
use std::fs::{File, OpenOptions};
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
    let modes = [("write=through", "sync,memory=64M"), ("write=behind", "write=behind,memory=64M")];
    let scenarios = [(0, "all read"), (machines / 2, "half write"), (machines, "all write")];
    let mut cells = Vec::new();
    for (_, options) in modes {
        let mut cell = Cell::start(lab, &["--term", "60s"])?;
        cell.mount(machines, options)?;
        cells.push(cell);
    }
    // By turns, so that the machine's mood is the same for all: of each mode and scenario, the times.
    let mut times: [[Vec<f64>; 3]; 2] = Default::default();
    for round in 0..rounds {
        for (at, (writers, scenario)) in scenarios.iter().enumerate() {
            for (number, (mode, _)) in modes.iter().enumerate() {
                (lab.progress)(&format!("{mode}, {scenario}: round {} of {rounds}", round + 1));
                times[number][at].push(anew(&cells[number], *writers, size, BLOCK)?);
            }
        }
    }
    // All have written last; the first has made the file anew before that.
    let mut found = Vec::new();
    for cell in &cells {
        for mount in cell.mounts.first().into_iter().chain(cell.mounts.last()) {
            found.push(written(&mount.root.join("shared"))?);
        }
    }
    let mut order = Vec::new();
    let mut series = Vec::new();
    for ((mode, _), times) in modes.into_iter().zip(times) {
        let mut points = Vec::new();
        for ((place, (writers, scenario)), times) in (1..).zip(scenarios).zip(times) {
            let Some(millis) = Spread::of(times) else { continue };
            points.push((f64::from(place), scenario, millis));
            // It has a number for this one only.
            let theirs = (writers == machines).then_some(PAPER_ALL_WRITE);
            table.row([writers.into(), mode.into(), millis.into(), theirs.into()]);
        }
        order.push(format!("with {mode} {}", slowest_last(&points)));
        let middles = points.iter().map(|(place, _, millis)| (*place, millis.middle)).collect();
        series.push(Series::new(mode, Style::Points, middles));
    }
    series.push(Series::new("the paper", Style::Points, vec![(3.0, PAPER_ALL_WRITE)]).looking(6, 3));
    let x = Axis::named("", scenarios.map(|(_, scenario)| scenario));
    let y = Axis::linear("until the last one is done (ms)");
    let title = format!("Strata, figure 5: {machines} machines, each all of one file of {} MiB", size >> 20);
    Ok(Found {
        paper: "Ten processes, 100 MiB each: all reading is fastest, all writing takes some 680 ms, half and half is \
                the worst, \
                because each read waits for a digest.",
        why: format!("{WHY} Here, fastest first: {}.", order.join("; ")),
        figures: vec![Figure::new("runtime", &title, x, y, series)],
        tables: vec![table],
        checks: vec![all_written(&found, size)],
        files: Vec::new(),
    })
}

/// Milliseconds.
const PAPER_ALL_WRITE: f64 = 680.0;

pub(super) const WHY: &str = "Strata's processes write to a log in non-volatile memory of one machine and \
    may leave it undigested between writers, so that mixing is worst; here every byte goes to a server, through a \
    socket, so who writes waits for that in any mix, and whoever reads has the writer asked first.";

/// What writers write.
const WRITTEN: u8 = 2;

/// Bytes of a file that writers have written.
fn written(path: &Path) -> Result<usize, LabError> {
    let mut file = File::open(path).map_err(LabError::io(path))?;
    let (mut block, mut all) = (vec![0; BLOCK], 0);
    loop {
        let count = file.read(&mut block).map_err(LabError::io(path))?;
        if count == 0 {
            return Ok(all);
        }
        all += block[..count].iter().filter(|byte| **byte == WRITTEN).count();
    }
}

/// That whoever looks, in any mode, finds what all have written.
fn all_written(found: &[usize], size: usize) -> Check {
    let right = found.iter().filter(|bytes| **bytes == size).count();
    Check::counted(
        "After all have written, the first and the last machine read what was written in every byte, in either mode",
        right == found.len() && right > 0,
        format!("{right} of {} times", found.len()),
    )
}

/// `all read 202, half write 289, all write 397 ms`.
fn slowest_last(points: &[(f64, &str, Spread)]) -> String {
    let mut sorted = points.to_vec();
    sorted.sort_by(|one, other| one.2.middle.total_cmp(&other.2.middle));
    let parts = sorted.iter().map(|(_, scenario, time)| format!("{scenario} {:.0}", time.middle));
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
    let modes: Vec<Option<f64>> = std::iter::once(None).chain(waits.iter().map(|wait| Some(*wait))).collect();
    // Of each mode and scenario: the times of the rounds, and how often somebody asked again in all of them.
    let mut measured = vec![vec![(Vec::new(), 0); scenarios.len()]; modes.len()];
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    // By turns, so that the machine's mood is the same for all.
    for round in 0..rounds {
        for (wait, times) in modes.iter().zip(&mut measured) {
            (lab.progress)(&format!("who waits {}: round {} of {rounds}", named(*wait), round + 1));
            let options = match wait {
                Some(millis) => format!("sync,memory=64M,lease-poll={}us", (millis * 1000.0) as u64),
                None => "sync,memory=64M".to_owned(),
            };
            cell.mount(machines, &options)?;
            // Nobody is new to the file.
            anew(&cell, 0, size, SMALL_BLOCK)?;
            for ((writers, _), (times, asked)) in scenarios.iter().zip(times) {
                let before = polls(&cell)?;
                times.push(anew(&cell, *writers, size, SMALL_BLOCK)?);
                *asked += polls(&cell)? - before;
            }
        }
    }
    let mut polled: Vec<Vec<(f64, Spread)>> = vec![Vec::new(); scenarios.len()];
    let mut notified: Vec<Vec<(f64, f64)>> = vec![Vec::new(); scenarios.len()];
    let (mut most_asked, mut told_and_asked) = (0, 0);
    for (wait, times) in modes.into_iter().zip(measured) {
        for (number, ((writers, _), (times, asked))) in scenarios.iter().zip(times).enumerate() {
            let asked_each = asked / rounds;
            if number == 0 && wait == waits.first().copied() {
                most_asked = asked_each;
            }
            let Some(millis) = Spread::of(times) else { continue };
            table.row([(*writers).into(), named(wait).into(), millis.into(), asked_each.into()]);
            match wait {
                Some(wait) => polled[number].push((wait, millis)),
                // As wide as the figure.
                None => {
                    told_and_asked += asked;
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
        checks: vec![
            Check::counted(
                "Who is notified never asks again",
                told_and_asked == 0,
                format!("{told_and_asked} questions"),
            ),
            Check::timed(
                format!("All writing takes longer if who waits asks every {} ms", waits[waits.len() - 1]),
                longest > shortest,
                format!("{longest:.0} and {shortest:.0} ms"),
            ),
        ],
        files: Vec::new(),
    })
}

pub(super) const WHY_POLLING: &str = "Where the interval is short, what is waited for between two questions drowns in the \
    rest, and it costs questions in vain instead. Strata acquires and releases a lease for each operation, where here it \
    stays until somebody asks for it.";

/// How somebody waits for a lease: asks again after so many milliseconds, or is told.
fn named(wait: Option<f64>) -> String {
    wait.map_or("is notified".to_owned(), |millis| format!("asks every {millis} ms"))
}

/// How often all the mounts have asked again.
fn polls(cell: &Cell) -> Result<u64, LabError> {
    cell.mounts.iter().map(|mount| Ok(count(&mount.counters()?, "lease_polls"))).sum()
}

fn go_through(path: &Path, role: Role, size: usize, block: usize) -> Result<(), LabError> {
    let mut file =
        OpenOptions::new().read(true).write(role == Role::Writer).open(path).map_err(LabError::io(path))?;
    let mut block = vec![WRITTEN; block];
    for _ in 0..size / block.len() {
        match role {
            Role::Reader => file.read_exact(&mut block).map_err(LabError::io(path))?,
            Role::Writer => file.write_all(&block).map_err(LabError::io(path))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_are_said_fastest_first() {
        let spread = |middle| Spread { middle, low: middle, high: middle };
        let points = [
            (1.0, "all read", spread(202.0)),
            (2.0, "half write", spread(397.4)),
            (3.0, "all write", spread(289.0)),
        ];
        assert_eq!(slowest_last(&points), "all read 202, all write 289, half write 397 ms");
    }

    #[test]
    fn a_machine_goes_through_all_of_the_file_in_its_role() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("shared");
        std::fs::write(&path, vec![1; 4 * SMALL_BLOCK]).expect("written");
        go_through(&path, Role::Reader, 4 * SMALL_BLOCK, SMALL_BLOCK).expect("read");
        assert!(go_through(&path, Role::Reader, 5 * SMALL_BLOCK, SMALL_BLOCK).is_err(), "there is no more");
        go_through(&path, Role::Writer, 4 * SMALL_BLOCK, SMALL_BLOCK).expect("written");
        assert!(std::fs::read(&path).expect("read").iter().all(|byte| *byte == 2));
        assert_eq!(written(&path).expect("read"), 4 * SMALL_BLOCK);
    }

    #[test]
    fn a_byte_that_was_lost_is_found_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("shared");
        std::fs::write(&path, [WRITTEN, WRITTEN, 1, WRITTEN]).expect("written");
        let found = written(&path).expect("read");
        assert_eq!(found, 3);
        assert!(all_written(&[4, 4], 4).holds);
        assert!(!all_written(&[4, found], 4).holds && !all_written(&[], 4).holds);
    }
}
