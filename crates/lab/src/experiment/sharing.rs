//! Strata with leases, figure 5: machines that share one large file.

use super::{Found, Lab};
use crate::LabError;
use crate::cell::Cell;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: usize = 128 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Reader,
    Writer,
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (machines, size) = lab.by_extent((4, 4 << 20), (10, 32 << 20));
    let mut table = Table::new(
        &format!("{machines} machines, {} MiB", size >> 20),
        ["writers", "mode", "the last one (ms)"],
    );
    let mut series = Vec::new();
    for (mode, options) in [("write=through", "sync,memory=64M"), ("write=behind", "write=behind,memory=64M")]
    {
        let mut cell = Cell::start(lab.program, &["--term", "60s"])?;
        cell.mount(machines, options)?;
        let path = cell.mounts[0].root.join("shared");
        std::fs::write(&path, vec![1; size]).map_err(LabError::io(&path))?;
        let mut points = Vec::new();
        for writers in [0, machines / 2, machines] {
            (lab.progress)(&format!("{mode}: {writers} of {machines} machines write"));
            let start = Instant::now();
            let threads: Vec<_> = cell
                .mounts
                .iter()
                .enumerate()
                .map(|(number, mount)| {
                    let role = if number < writers { Role::Writer } else { Role::Reader };
                    let path = mount.root.join("shared");
                    std::thread::spawn(move || go_through(&path, role, size).map(|()| start.elapsed()))
                })
                .collect();
            let mut last = Duration::ZERO;
            for thread in threads {
                let broken = |_| LabError::Failed("a process of the experiment broke down".into());
                last = last.max(thread.join().map_err(broken)??);
            }
            let millis = last.as_secs_f64() * 1e3;
            points.push((100.0 * writers as f64 / machines as f64, millis));
            table.row([format!("{writers} of {machines}"), mode.to_owned(), digits(millis)]);
        }
        series.push(Series::new(mode, Style::Both, points));
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
    })
}

fn go_through(path: &Path, role: Role, size: usize) -> Result<(), LabError> {
    let mut file =
        OpenOptions::new().read(true).write(role == Role::Writer).open(path).map_err(LabError::io(path))?;
    let mut block = vec![2; BLOCK];
    for _ in 0..size / BLOCK {
        match role {
            Role::Reader => file.read_exact(&mut block).map_err(LabError::io(path))?,
            Role::Writer => file.write_all(&block).map_err(LabError::io(path))?,
        }
    }
    Ok(())
}
