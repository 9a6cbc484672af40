//! Hierarchical control: what a tree costs that is unpacked far from its server.

use super::{Found, Lab};
use crate::LabError;
use crate::cell::Cell;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::proxy::Proxy;
use std::path::Path;
use std::time::{Duration, Instant};

const MODES: [(&str, &str, &str); 4] = [
    ("node leases, write=through", "off", "deep-leases=off,sync"),
    ("node leases, write=behind", "off", "deep-leases=off,write=behind"),
    ("deep leases, write=through", "on", "deep-leases=on,sync"),
    ("deep leases, write=behind", "on", "deep-leases=on,write=behind"),
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (dirs, files) = lab.by_extent((2, 10), (10, 200));
    let trips = lab.by_extent(vec![0, 20], vec![0, 10, 50, 100, 200]);
    let mut series = Vec::new();
    let head = ["mode", "round trip (ms)", "unpack, to the server's disk (s)", "scan and read (s)"];
    let mut table = Table::new(&format!("{files} files of 4 KiB in {dirs} directories"), head);
    for (mode, deep, options) in MODES {
        let mut points = Vec::new();
        for &trip in &trips {
            (lab.progress)(&format!("{mode}: {trip} ms away"));
            let mut cell = Cell::start(lab.program, &["--term", "60s", "--deep-leases", deep])?;
            let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
            cell.mount_at(1, &proxy.address(), options)?;
            let root = cell.mounts[0].root.join("tree");
            let start = Instant::now();
            unpack(&root, dirs, files)?;
            // The end is when the server has it, as for who writes through.
            sync(lab.program, &cell.mounts[0].root)?;
            let unpacked = start.elapsed().as_secs_f64();
            let start = Instant::now();
            scan(&root)?;
            let scanned = start.elapsed().as_secs_f64();
            points.push((trip as f64, unpacked + scanned));
            table.row([mode.to_owned(), trip.to_string(), digits(unpacked), digits(scanned)]);
            cell.mounts.clear();
        }
        series.push(Series::new(mode, Style::Both, points));
    }
    let (x, y) =
        (Axis::linear("round trip to the server (ms)"), Axis::linear("unpack, sync, scan, read (s)"));
    Ok(Found {
        paper: "Building ssh over wide-area replicas: with locks on single objects the time grows with the round \
                trip, with deep locks \
                it hardly does.",
        why: "The same for delayed writes, with deep leases and without: Soda's leases travel with replies, so a \
              lease on one object \
              costs no round trip of its own as a lock there does. Who writes through pays a round trip for each \
              change, whatever \
              the lease. A tree is unpacked and read here, no compiler runs.",
        figures: vec![Figure::new("distance", "One client, a proxy that delays every byte", x, y, series)],
        tables: vec![table],
    })
}

fn unpack(root: &Path, dirs: usize, files: usize) -> Result<(), LabError> {
    for dir in 0..dirs {
        let path = root.join(format!("dir{dir}"));
        std::fs::create_dir_all(&path).map_err(LabError::io(&path))?;
    }
    for file in 0..files {
        let path = root.join(format!("dir{}", file % dirs)).join(format!("file{file}"));
        std::fs::write(&path, [5; 4096]).map_err(LabError::io(&path))?;
    }
    Ok(())
}

fn scan(root: &Path) -> Result<(), LabError> {
    for dir in std::fs::read_dir(root).map_err(LabError::io(root))? {
        let dir = dir.map_err(LabError::io(root))?.path();
        for file in std::fs::read_dir(&dir).map_err(LabError::io(&dir))? {
            let path = file.map_err(LabError::io(&dir))?.path();
            std::fs::read(&path).map_err(LabError::io(&path))?;
        }
    }
    Ok(())
}

fn sync(program: &Path, root: &Path) -> Result<(), LabError> {
    let output =
        std::process::Command::new(program).arg("sync").arg(root).output().map_err(LabError::io(program))?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::Failed(format!("soda sync: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
