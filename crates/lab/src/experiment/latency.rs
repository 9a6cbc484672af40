//! CS739's measurements: system calls by size of the file, and small jobs by number of clients.

use super::spread::{self, Spread};
use super::{Found, Lab, joined, median_micros, micros};
use crate::LabError;
use crate::cell::Cell;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// open, read or write all, close.
type Calls = [Duration; 3];

fn sizes(lab: &Lab<'_>) -> Vec<(usize, usize)> {
    let small = vec![(64, 10), (4 << 10, 10), (256 << 10, 10)];
    let large = vec![(64, 100), (4 << 10, 100), (256 << 10, 100), (16 << 20, 20), (1 << 30, 3)];
    lab.by_extent(small, large)
}

fn size_name(size: usize) -> String {
    match size {
        0..1024 => format!("{size} B"),
        0x400..0x10_0000 => format!("{} KiB", size >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", size >> 20),
        _ => format!("{} GiB", size >> 30),
    }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let head = ["size", "test", "open (us)", "read or write (us)", "close (us)"];
    let mut table = Table::new("Time of the calls", head);
    let names = ["read, first time", "read, median", "write=through, median", "write=behind, median"];
    let mut series: Vec<Series> =
        names.iter().map(|name| Series::new(*name, Style::Both, Vec::new())).collect();
    for (size, times) in sizes(lab) {
        (lab.progress)(&format!("files of {}", size_name(size)));
        let mut cell = Cell::start(lab, &["--term", "60s"])?;
        cell.mount(2, "sync")?;
        let data = cell.mounts[0].root.join("data");
        write(&data, size)?;
        let mut found = Vec::new();
        // The other machine has not seen it.
        let reader = cell.mounts[1].root.join("data");
        found.push((names[0], vec![read(&reader, size)?]));
        found.push((names[1], (0..times).map(|_| read(&reader, size)).collect::<Result<_, _>>()?));
        let fresh =
            |cell: &Cell, number: usize| write(&cell.mounts[0].root.join(format!("new{number}")), size);
        let few = times.min(if size >= 1 << 30 { 1 } else { times });
        found.push((names[2], (0..few).map(|number| fresh(&cell, number)).collect::<Result<_, _>>()?));
        cell.mount(1, "write=behind")?;
        found.push((names[3], (0..few).map(|number| fresh(&cell, number + few)).collect::<Result<_, _>>()?));
        for ((name, calls), series) in found.into_iter().zip(&mut series) {
            let calls: Vec<Calls> = calls;
            let median = |at: usize| median_micros(calls.iter().map(|calls| calls[at]).collect());
            let all = median_micros(calls.iter().map(|calls| calls.iter().sum()).collect());
            series.points.push((size as f64, all));
            table.row([
                size_name(size),
                name.to_owned(),
                digits(median(0)),
                digits(median(1)),
                digits(median(2)),
            ]);
        }
    }
    let (x, y) = (Axis::logarithmic("size of the file (bytes)"), Axis::logarithmic("open to close (us)"));
    Ok(Found {
        paper: "The first open fetches the file and takes in proportion to its size; the next ones only ask whether \
                it has changed. \
                Its basic version cannot transfer 16 MiB at all.",
        why: "Opens do not grow with the size, as data is fetched when it is read and not at open; nobody asks again under a \
              lease, and a close has nothing left to store.",
        figures: vec![Figure::new("calls", "open, read or write, close", x, y, series)],
        tables: vec![table],
        files: Vec::new(),
    })
}

fn read(path: &Path, size: usize) -> Result<Calls, LabError> {
    let begin = Instant::now();
    let mut file = File::open(path).map_err(LabError::io(path))?;
    let opened = begin.elapsed();
    let mut block = vec![0; size.min(1 << 20)];
    let mut left = size;
    while left > 0 {
        let part = left.min(block.len());
        file.read_exact(&mut block[..part]).map_err(LabError::io(path))?;
        left -= part;
    }
    finish(file, begin, opened)
}

fn write(path: &Path, size: usize) -> Result<Calls, LabError> {
    let begin = Instant::now();
    let mut file = File::create(path).map_err(LabError::io(path))?;
    let opened = begin.elapsed();
    let block = vec![7; size.min(1 << 20)];
    let mut left = size;
    while left > 0 {
        let part = left.min(block.len());
        file.write_all(&block[..part]).map_err(LabError::io(path))?;
        left -= part;
    }
    finish(file, begin, opened)
}

fn finish(file: File, begin: Instant, opened: Duration) -> Result<Calls, LabError> {
    let transferred = begin.elapsed();
    drop(file);
    Ok([opened, transferred - opened, begin.elapsed() - transferred])
}

pub(super) fn scalability(lab: &Lab<'_>) -> Result<Found, LabError> {
    let clients = lab.by_extent(vec![1, 2, 4], vec![1, 2, 4, 6, 8, 10]);
    let (jobs, rounds) = lab.by_extent((10, 1), (50, 5));
    let title = "A job: four files of 5 KiB written, read, removed; median of the rounds, and the quartiles";
    let mut table = Table::new(title, ["clients", "mode", "a job (us)"]);
    let mut series = Vec::new();
    for (mode, options) in [("write=through", "sync,memory=64M"), ("write=behind", "write=behind,memory=64M")]
    {
        let mut cell = Cell::start(lab, &["--term", "60s"])?;
        let mut points = Vec::new();
        for &count in &clients {
            (lab.progress)(&format!("{mode}: {count} clients"));
            cell.mount(count, options)?;
            let round = |round| all_work(&cell, &format!("{mode}-{count}-{round}"), jobs);
            let times = (0..rounds).map(round).collect::<Result<_, _>>()?;
            if let Some(time) = Spread::of(times) {
                points.push((count as f64, time));
                table.row([count.to_string(), mode.to_owned(), time.to_string()]);
            }
        }
        series.push(spread::series(mode, &points));
    }
    let (x, y) = (Axis::linear("clients at once"), Axis::linear("time of a job, seen by each (us)"));
    Ok(Found {
        paper: "A job of four source files copied and made, 100 times; clients are processes of one machine, and time \
                grows with \
                their number.",
        why: "All clients and the server share two processors here as there, so a job takes longer with each client; \
              no compiler \
              runs here, so what is measured is the file system alone.",
        figures: vec![Figure::new("jobs", "Each client in a directory of its own", x, y, series)],
        tables: vec![table],
        files: Vec::new(),
    })
}

/// Microseconds of a job.
fn all_work(cell: &Cell, name: &str, jobs: usize) -> Result<f64, LabError> {
    let start = Instant::now();
    let threads: Vec<_> = cell
        .mounts
        .iter()
        .enumerate()
        .map(|(number, mount)| {
            let dir = mount.root.join(format!("{name}-{number}"));
            std::thread::spawn(move || work(&dir, jobs))
        })
        .collect();
    for thread in threads {
        joined(thread)?;
    }
    Ok(micros(start.elapsed()) / jobs as f64)
}

fn work(dir: &Path, jobs: usize) -> Result<(), LabError> {
    std::fs::create_dir(dir).map_err(LabError::io(dir))?;
    for _ in 0..jobs {
        let paths: Vec<_> = (0..4).map(|number| dir.join(format!("file{number}.c"))).collect();
        for path in &paths {
            std::fs::write(path, [b' '; 5 << 10]).map_err(LabError::io(path))?;
        }
        for path in &paths {
            std::fs::read(path).map_err(LabError::io(path))?;
        }
        for path in &paths {
            std::fs::remove_file(path).map_err(LabError::io(path))?;
        }
    }
    Ok(())
}
