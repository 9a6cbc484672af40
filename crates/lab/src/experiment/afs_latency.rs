//! AFS, table XIV: what the first byte of a file costs, by the size of the file. And its table III: see [`test_auth`].

use super::cold::{Apart, Asked};
use super::{Found, Lab, median_micros, test_auth};
use crate::LabError;
use crate::cell::Cell;
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value, digits};
use crate::proxy::Proxy;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes; the paper's, and two that were large then.
const SIZES: [usize; 7] = [3, 1113, 4334, 10_278, 24_576, 262_144, 4 << 20];

/// What the paper's AFS took, milliseconds: cold by size. Warm and alone it has for the smallest file only, NFS for the smallest
/// and the largest.
const PAPER_COLD: [f64; 5] = [160.0, 148.0, 202.9, 310.0, 515.0];
const PAPER_WARM: f64 = 16.1;
const PAPER_NFS: [(usize, f64); 2] = [(3, 15.7), (24_576, 15.9)];
const PAPER_ALONE: f64 = 5.1;
/// Files of the table that is about read-ahead, bytes.
const SMALL: usize = 1113;

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
    let title =
        format!("Files of {SMALL} bytes: those that nobody foresees, and in the order of their directory");
    let mut ahead = Table::new(&title, ["round trip (ms)", "apart: cold (ms)", "in order, first time (ms)"]);
    let (mut series, mut spans, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    let farthest = trips.last().copied();
    for (color, trip) in trips.into_iter().enumerate() {
        (lab.progress)(&format!("first bytes, {trip} ms away"));
        let At { found, ordered, asked } = at_distance(lab, sizes, files, trip)?;
        ahead.row([trip.into(), (found[1][0] / 1e3).into(), (ordered / 1e3).into()]);
        let small = sizes.iter().filter(|size| **size <= ONE_MESSAGE).count();
        checks.push(asked.check(&format!("Cold, {trip} ms away, up to {ONE_MESSAGE} bytes"), small * files));
        let least = found.iter().map(|[cold, ..]| cold / 1e3).fold(f64::INFINITY, f64::min);
        checks.push(Check::counted(
            format!("A cold first byte {trip} ms away takes no less than the way to the server and back"),
            least >= trip as f64,
            format!("{} ms at least", digits(least)),
        ));
        let mut columns = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for (size, times) in sizes.iter().zip(found) {
            let millis = times.map(|micros| micros / 1e3);
            for (column, time) in columns.iter_mut().zip(millis) {
                column.push((*size as f64, time));
            }
            let [cold, warm, asking, local] = millis.map(Value::from);
            table.row([trip.into(), (*size).into(), cold, warm, asking, local]);
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
    let smallest = |time: f64| vec![(SIZES[0] as f64, time)];
    let nfs = PAPER_NFS.map(|(size, time)| (size as f64, time)).to_vec();
    series.push(Series::new("NFS in 1988", Style::Paper, nfs).looking(6, 1));
    series.push(Series::new("AFS in 1988, warm", Style::Paper, smallest(PAPER_WARM)).looking(6, 2));
    series.push(Series::new("stand-alone in 1988", Style::Paper, smallest(PAPER_ALONE)).looking(6, 3));
    let (x, y) = (Axis::bytes("size of the file"), Axis::logarithmic("open, first byte, close (ms)"));
    let title = "AFS, table XIV: the first byte, cold, warm, and asking, by distance";
    let asked = test_auth::run(lab)?;
    checks.push(asked.check);
    Ok(Found {
        paper: "AFS cold: 160 ms for 3 bytes, 203 for 4,334, 515 for 24,576; warm 16.1 ms; NFS 15.7 to 15.9; \
                stand-alone 5.1. A TestAuth call of AFS v1 took 87 ms at one load unit, 118 at 2, 259 at 5, 670 at 8, 1050 at \
                10 (100, 136, 298, 770, 1207 %).",
        why: format!("{WHY} Here: {}. {}.", spans.join("; "), asked.said),
        figures: vec![Figure::new("latency", title, x, y, series), asked.figure],
        tables: vec![table, ahead, paper_table(), asked.table],
        checks,
        files: Vec::new(),
    })
}

pub(super) const WHY: &str = "AFS fetches the whole file at the open, so its cold time grows with the size; \
    here data is fetched when it is read, with a bounded read-ahead, and warm asks nobody at any distance, as with \
    AFS's callbacks. Each of these files is in a directory of its own: of files that are read in the order of one \
    directory the next ones are on the way before they are asked for, which has a table of its own. TestAuth is asked while \
    machines do the Andrew benchmark; they share the server's processors, where the paper's had their own.";

/// Bytes that one message brings, all of them.
const ONE_MESSAGE: usize = 24_576;

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
        let first = |time: f64| Value::from((number == 0).then_some(time));
        let nfs = PAPER_NFS.iter().find(|(of, _)| of == size);
        let nfs = nfs.map(|(_, time)| *time).into();
        table.row([(*size).into(), cold.into(), first(PAPER_WARM), nfs, first(PAPER_ALONE)]);
    }
    table
}

fn paper() -> Vec<(f64, f64)> {
    SIZES.iter().zip(PAPER_COLD).map(|(size, time)| (*size as f64, time)).collect()
}

/// What was found at one distance; median microseconds.
#[derive(Debug)]
struct At {
    /// For each size: cold, warm, asking each time, local.
    found: Vec<[f64; 4]>,
    /// Files of [`SMALL`] bytes in the order of one directory, for the first time.
    ordered: f64,
    /// Of the cold ones up to [`ONE_MESSAGE`].
    asked: Asked,
}

fn at_distance(lab: &Lab<'_>, sizes: &[usize], files: usize, trip: u64) -> Result<At, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
    cell.mount(1, "sync")?;
    let local = tempfile::tempdir_in(lab.scratch).map_err(LabError::io(lab.scratch))?;
    for dir in [local.path(), &cell.mounts[0].root] {
        sizes.iter().try_for_each(|size| apart(*size, files).make(dir, &vec![7; *size]))?;
    }
    make_in_order(&cell.mounts[0].root, files)?;
    cell.mount_at(1, &proxy.address(), "sync")?;
    let root = cell.mounts[0].root.clone();
    let (mut found, mut asked) = (Vec::new(), Asked::default());
    for size in sizes {
        let of = apart(*size, files);
        of.look(&root)?;
        let before = Asked::by(&cell.mounts[0])?;
        let cold = first_bytes(&of.paths(&root))?;
        if *size <= ONE_MESSAGE {
            asked.add(before, Asked::by(&cell.mounts[0])?);
        }
        let warm = first_bytes(&of.paths(&root))?;
        found.push([cold, warm, f64::NAN, first_bytes(&of.paths(local.path()))?]);
    }
    let ordered = first_bytes(&in_order(&root, files))?;
    cell.mount_at(1, &proxy.address(), "consistency=verify")?;
    for (size, times) in sizes.iter().zip(&mut found) {
        let paths = apart(*size, files).paths(&cell.mounts[0].root);
        first_bytes(&paths)?;
        times[2] = first_bytes(&paths)?;
    }
    cell.mounts.clear();
    Ok(At { found, ordered, asked })
}

fn apart(size: usize, files: usize) -> Apart {
    Apart::new(&format!("size{size}"), files)
}

/// Four times as many: the window of what is fetched ahead grows with the run.
fn in_order(root: &Path, files: usize) -> Vec<PathBuf> {
    (0..4 * files).map(|number| root.join("in-order").join(format!("file{number:04}"))).collect()
}

fn make_in_order(root: &Path, files: usize) -> Result<(), LabError> {
    let dir = root.join("in-order");
    std::fs::create_dir(&dir).map_err(LabError::io(&dir))?;
    in_order(root, files)
        .iter()
        .try_for_each(|path| std::fs::write(path, [7; SMALL]).map_err(LabError::io(path)))
}

/// The median time of open, first byte, close.
fn first_bytes(paths: &[PathBuf]) -> Result<f64, LabError> {
    let first_byte = |path: &PathBuf| {
        let start = Instant::now();
        let mut file = File::open(path).map_err(LabError::io(path))?;
        file.read_exact(&mut [0]).map_err(LabError::io(path))?;
        drop(file);
        Ok(start.elapsed())
    };
    Ok(median_micros(paths.iter().map(first_byte).collect::<Result<_, LabError>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_are_read_of_the_files_that_were_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = apart(10_278, 2);
        of.make(dir.path(), &[7; 10_278]).expect("made");
        assert!(first_bytes(&of.paths(dir.path())).expect("read") > 0.0);
        make_in_order(dir.path(), 2).expect("made");
        assert!(first_bytes(&in_order(dir.path(), 2)).expect("read") > 0.0);
        let error = first_bytes(&apart(4, 2).paths(dir.path())).expect_err("there are none of that size");
        assert!(error.to_string().contains("size4"), "{error}");
    }

    #[test]
    fn the_papers_table_has_nfs_for_the_smallest_and_the_largest_file() {
        let nfs: Vec<Value> = paper_table().rows.into_iter().map(|row| row[3].clone()).collect();
        assert_eq!(nfs, [Some(15.7), None, None, None, Some(15.9)].map(Value::from));
    }
}
