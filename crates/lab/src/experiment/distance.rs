//! Hierarchical control: what a build costs that is done far from its server.

use super::build::{Build, PHASES};
use super::{Found, Lab};
use crate::LabError;
use crate::cell::{Cell, count};
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::proxy::Proxy;
use crate::trace::Files;
use std::path::Path;
use std::time::{Duration, Instant};

const MODES: [(&str, &str, &str); 4] = [
    ("node leases, write=through", "off", "deep-leases=off,sync"),
    ("node leases, write=behind", "off", "deep-leases=off,write=behind"),
    ("deep leases, write=through", "on", "deep-leases=on,sync"),
    ("deep leases, write=behind", "on", "deep-leases=on,write=behind"),
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let small = Build { sources: 8, headers: 4, probes: 3, thinks: Duration::ZERO };
    let large = Build { sources: 24, headers: 8, probes: 10, thinks: Duration::ZERO };
    let build = lab.by_extent(small, large);
    let trips = lab.by_extent(vec![0, 10], vec![0, 50, 100, 200]);
    let mut series = Vec::new();
    let mut head = vec!["mode", "round trip (ms)"];
    head.extend(PHASES);
    head.extend(["sync", "all (s)", "messages", "leases held"]);
    let title =
        format!("{} sources, {} headers, {} probes; seconds", build.sources, build.headers, build.probes);
    let head = head.into_iter().map(str::to_owned).collect();
    let mut table = Table { title, head, rows: Vec::new() };
    for (mode, deep, options) in MODES {
        let mut points = Vec::new();
        for &trip in &trips {
            (lab.progress)(&format!("{mode}: {trip} ms away"));
            let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", deep])?;
            let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
            cell.mount_at(1, &proxy.address(), options)?;
            let times = build.run(&Files::of(&cell.mounts[0].root))?;
            let start = Instant::now();
            // The end is when the server has it, as for who writes through.
            sync(lab.program, &cell.mounts[0].root)?;
            let synced = start.elapsed();
            let all = (times.iter().sum::<Duration>() + synced).as_secs_f64();
            let counters = cell.mounts[0].counters()?;
            let messages: u64 =
                counters.iter().filter(|(name, _)| name.starts_with("msg_")).map(|(_, count)| count).sum();
            points.push((trip as f64, all));
            let mut row = vec![mode.to_owned(), trip.to_string()];
            row.extend(times.iter().chain([&synced]).map(|time| digits(time.as_secs_f64())));
            row.extend([digits(all), messages.to_string(), count(&counters, "held_leases").to_string()]);
            table.rows.push(row);
            cell.mounts.clear();
        }
        series.push(Series::new(mode, Style::Both, points));
    }
    let x = Axis::linear("round trip to the server (ms)");
    let y = Axis::logarithmic("unpack, configure, build, sync (s)");
    Ok(Found {
        paper: "SSH-Build over wide-area replicas: with locks on single objects the time grows with the round trip, with deep \
                locks the overhead is negligible at any distance.",
        why: WHY,
        figures: vec![Figure::new("distance", "One client, a proxy that delays every byte", x, y, series)],
        tables: vec![table],
        files: Vec::new(),
    })
}

const WHY: &str = "Distance costs who tells the server of each change (334 messages for 24 sources, 50 s at 200 ms), and hardly \
                   who delays changes (15 messages, 1.7 s), with deep leases and without: what a machine makes is its own with \
                   the server's reply, so a lease on one object costs no round trip of its own as a lock there does. What deep \
                   leases save here is leases: 2 in place of 68 to 98. The build is the lab's own, of SSH-Build's shape; no \
                   compiler runs.";

pub(super) fn sync(program: &Path, root: &Path) -> Result<(), LabError> {
    let output =
        std::process::Command::new(program).arg("sync").arg(root).output().map_err(LabError::io(program))?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::Failed(format!("soda sync: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
