//! AFS, table XIV: what the first byte of a file costs, by the size of the file.

use super::{Found, Lab, median_micros};
use crate::LabError;
use crate::cell::Cell;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::proxy::Proxy;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes; the paper's, and two that were large then.
const SIZES: [usize; 7] = [3, 1113, 4334, 10_278, 24_576, 262_144, 4 << 20];

/// What the paper's AFS took, milliseconds: cold by size. It has the others for the smallest file only.
const PAPER_COLD: [f64; 5] = [160.0, 148.0, 202.9, 310.0, 515.0];
const PAPER_WARM: f64 = 16.1;
const PAPER_NFS: f64 = 15.7;
const PAPER_ALONE: f64 = 5.1;

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let trips: Vec<u64> = lab.by_extent(vec![0, 10], vec![0, 10, 50]);
    let sizes = &SIZES[..lab.by_extent(5, SIZES.len())];
    let files = lab.by_extent(3, 15);
    let head = [
        "round trip (ms)",
        "size (bytes)",
        "cold (ms)",
        "warm (ms)",
        "asking each time (ms)",
        "local disk (ms)",
    ];
    let mut table = Table::new("open, read one byte, close: median", head);
    let (mut series, mut spans) = (Vec::new(), Vec::new());
    let farthest = trips.last().copied();
    for (color, trip) in trips.into_iter().enumerate() {
        (lab.progress)(&format!("first bytes, {trip} ms away"));
        let found = at_distance(lab, sizes, files, trip)?;
        let mut columns = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for (size, times) in sizes.iter().zip(found) {
            let millis = times.map(|micros| micros / 1e3);
            for (column, time) in columns.iter_mut().zip(millis) {
                column.push((*size as f64, time));
            }
            let [cold, warm, asking, local] = millis.map(digits);
            table.row([trip.to_string(), size.to_string(), cold, warm, asking, local]);
        }
        let [cold, warm, asking, local] = columns;
        spans.push(format!(
            "{trip} ms away {} ms cold, {} warm, {} asking each time",
            span(&cold),
            span(&warm),
            span(&asking)
        ));
        // Colours are distances, markers what is measured.
        series.push(Series::new(format!("cold, {trip} ms away"), Style::Both, cold).looking(color, 0));
        series
            .push(Series::new(format!("asking each time, {trip} ms"), Style::Both, asking).looking(color, 1));
        if Some(trip) == farthest {
            series.push(Series::new(format!("warm, {trip} ms away"), Style::Both, warm).looking(color, 2));
        }
        if trip == 0 {
            series.push(Series::new("local disk", Style::Both, local).looking(7, 3));
        }
    }
    series.push(Series::new("AFS in 1988, cold", Style::Paper, paper()).looking(6, 0));
    let constant = |time: f64| [SIZES[0], SIZES[4]].map(|size| (size as f64, time)).to_vec();
    series.push(Series::new("AFS, warm (NFS: the same)", Style::Paper, constant(PAPER_WARM)).looking(6, 2));
    series.push(Series::new("stand-alone in 1988", Style::Paper, constant(PAPER_ALONE)).looking(6, 3));
    let (x, y) = (Axis::bytes("size of the file"), Axis::logarithmic("open, first byte, close (ms)"));
    let title = "AFS, table XIV: the first byte, cold, warm, and asking, by distance";
    Ok(Found {
        paper: "AFS cold: 160 ms for 3 bytes, 203 for 4,334, 515 for 24,576; warm 16.1 ms; NFS 15.7 to 15.9; \
                stand-alone 5.1.",
        why: format!("{WHY} Here: {}.", spans.join("; ")),
        figures: vec![Figure::new("latency", title, x, y, series)],
        tables: vec![table, paper_table()],
        files: Vec::new(),
    })
}

pub(super) const WHY: &str = "AFS fetches the whole file at the open, so its cold time grows with the size; \
    here data is fetched when it is read, with a bounded read-ahead, and warm asks nobody at any distance, as with \
    AFS's callbacks.";

/// From the least to the greatest of all sizes.
fn span(points: &[(f64, f64)]) -> String {
    let times = || points.iter().map(|point| point.1);
    let (least, most) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    format!("{} to {}", digits(least), digits(most))
}

fn paper_table() -> Table {
    let head = ["size (bytes)", "AFS cold (ms)", "AFS warm (ms)", "NFS (ms)", "stand-alone (ms)"];
    let mut table = Table::new("The paper's table XIV", head);
    for (number, (size, cold)) in SIZES.iter().zip(PAPER_COLD).enumerate() {
        let first = |time: f64| if number == 0 { digits(time) } else { "-".to_owned() };
        let row = [size.to_string(), digits(cold), first(PAPER_WARM), first(PAPER_NFS), first(PAPER_ALONE)];
        table.row(row);
    }
    table
}

fn paper() -> Vec<(f64, f64)> {
    SIZES.iter().zip(PAPER_COLD).map(|(size, time)| (*size as f64, time)).collect()
}

/// For each size: cold, warm, asking each time, local; median microseconds.
fn at_distance(lab: &Lab<'_>, sizes: &[usize], files: usize, trip: u64) -> Result<Vec<[f64; 4]>, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
    cell.mount(1, "sync")?;
    let local = tempfile::tempdir_in(lab.scratch).map_err(LabError::io(lab.scratch))?;
    for dir in [local.path(), &cell.mounts[0].root] {
        make_files(dir, sizes, files)?;
    }
    cell.mount_at(1, &proxy.address(), "sync")?;
    let mut found = Vec::new();
    for size in sizes {
        // A directory's names are known from the first file on; that one is not counted.
        let root = cell.mounts[0].root.clone();
        let cold = first_bytes(&root, *size, files)?;
        let warm = first_bytes(&root, *size, files)?;
        found.push([cold, warm, f64::NAN, first_bytes(local.path(), *size, files)?]);
    }
    cell.mount_at(1, &proxy.address(), "consistency=verify")?;
    for (size, times) in sizes.iter().zip(&mut found) {
        let root = cell.mounts[0].root.clone();
        first_bytes(&root, *size, files)?;
        times[2] = first_bytes(&root, *size, files)?;
    }
    cell.mounts.clear();
    Ok(found)
}

fn make_files(root: &Path, sizes: &[usize], files: usize) -> Result<(), LabError> {
    for size in sizes {
        let dir = root.join(format!("size{size}"));
        std::fs::create_dir(&dir).map_err(LabError::io(&dir))?;
        for number in 0..=files {
            let path = dir.join(format!("file{number}"));
            std::fs::write(&path, vec![7; *size]).map_err(LabError::io(&path))?;
        }
    }
    Ok(())
}

fn first_bytes(root: &Path, size: usize, files: usize) -> Result<f64, LabError> {
    let dir = root.join(format!("size{size}"));
    let first_byte = |number: usize| {
        let path = dir.join(format!("file{number}"));
        let start = Instant::now();
        let mut file = File::open(&path).map_err(LabError::io(&path))?;
        file.read_exact(&mut [0]).map_err(LabError::io(&path))?;
        drop(file);
        Ok(start.elapsed())
    };
    first_byte(0)?;
    Ok(median_micros((1..=files).map(first_byte).collect::<Result<_, LabError>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_are_read_of_the_files_that_were_made() {
        let dir = tempfile::tempdir().expect("a directory");
        make_files(dir.path(), &[3, 10_278], 2).expect("made");
        assert!(first_bytes(dir.path(), 10_278, 2).expect("read") > 0.0);
        let error = first_bytes(dir.path(), 4, 2).expect_err("there are none of that size");
        assert!(error.to_string().contains("size4"), "{error}");
    }
}
