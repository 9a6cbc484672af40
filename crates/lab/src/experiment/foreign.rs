//! A build in a tree that another machine has unpacked and a third has read: nothing there is the builder's own, so each file
//! takes a lease of its own, or one lease the whole tree.

use super::Lab;
use super::build::Build;
use super::distance::sync;
use super::spread::{self, Spread};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages, count};
use crate::figure::{Axis, Figure, Series, Style, Table};
use crate::proxy::Proxy;
use crate::trace::Files;
use std::path::Path;
use std::time::{Duration, Instant};

/// Names, whether the server gives deep leases, and the builder's options. All delay changes: who tells each at once waits for
/// that whatever leases there are.
const MODES: [(&str, &str, &str); 2] = [
    ("node leases", "off", "write=behind,deep-leases=off"),
    ("deep leases", "on", "write=behind,deep-leases=on"),
];

/// What was found: the figure, the table, and a sentence.
pub(super) struct Foreign {
    pub(super) figure: Figure,
    pub(super) table: Table,
    pub(super) why: String,
}

pub(super) fn run(lab: &Lab<'_>, trips: &[u64]) -> Result<Foreign, LabError> {
    let build = Build {
        sources: lab.by_extent(8, 96),
        headers: lab.by_extent(4, 16),
        probes: lab.by_extent(2, 5),
        thinks: Duration::ZERO,
    };
    let rounds = lab.by_extent(1, 3);
    let title = format!(
        "A tree of {} sources and {} headers that another machine unpacked and a third has read: configure, build and sync; \
         write=behind, median of {rounds} rounds",
        build.sources, build.headers
    );
    let head = [
        "mode",
        "round trip (ms)",
        "all (s)",
        "messages",
        "for consistency",
        "leases given",
        "leases at the server",
    ];
    let mut table = Table::new(&title, head);
    let mut points: [Vec<(f64, Spread)>; 2] = Default::default();
    let mut farthest = Vec::new();
    for trip in trips {
        // By turns, so that the machine's mood is the same for both.
        let mut found: [Vec<Built>; 2] = Default::default();
        for round in 0..rounds {
            for ((mode, deep, options), found) in MODES.iter().zip(&mut found) {
                (lab.progress)(&format!(
                    "a foreign tree, {mode}: {trip} ms away, round {} of {rounds}",
                    round + 1
                ));
                found.push(built(lab, &build, *trip, deep, options)?);
            }
        }
        for (((mode, ..), found), points) in MODES.iter().zip(&found).zip(&mut points) {
            let Some(all) = Spread::of(found.iter().map(|built| built.seconds).collect()) else { continue };
            points.push((*trip as f64, all));
            let middle = |of: fn(&Built) -> u64| {
                let counts = found.iter().map(|built| of(built) as f64).collect();
                Spread::of(counts).map_or("-".to_owned(), |spread| format!("{:.0}", spread.middle))
            };
            let counts = [
                middle(|built| built.messages.all),
                middle(|built| built.messages.for_consistency()),
                middle(|built| built.given),
                middle(|built| built.leases),
            ];
            if Some(trip) == trips.last() {
                farthest.push(format!("{mode} {all} s, {} messages", counts[0]));
            }
            let row = [(*mode).to_owned(), trip.to_string(), all.to_string()];
            table.rows.push(row.into_iter().chain(counts).collect());
        }
    }
    // Dashed over solid: where both take as long both are seen.
    let [node, deep] = points;
    let deep = Series { style: Style::Line, ..spread::series(MODES[1].0, &deep).looking(1, 1) };
    let series = vec![spread::series(MODES[0].0, &node).looking(0, 0), deep];
    let (x, y) = (Axis::linear("round trip to the server (ms)"), Axis::linear("configure, build, sync (s)"));
    let title = "Hierarchical control, figure 3: a build in a tree that another machine made";
    let most = trips.last().copied().unwrap_or_default();
    Ok(Foreign {
        figure: Figure::new("foreign", title, x, y, series),
        table,
        why: format!(" In a tree that another machine made, {most} ms away: {}.", farthest.join("; ")),
    })
}

/// One build.
struct Built {
    seconds: f64,
    /// Of the builder.
    messages: Messages,
    /// Leases that the server gave it while it built, and those that it has in the end, of all.
    given: u64,
    leases: u64,
}

fn built(lab: &Lab<'_>, build: &Build, trip: u64, deep: &str, options: &str) -> Result<Built, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s", "--deep-leases", deep])?;
    let proxy = Proxy::start(cell.address(), Duration::from_millis(trip))?;
    cell.mount(2, "sync")?;
    build.unpack(&Files::of(&cell.mounts[0].root))?;
    sync(lab.program, &cell.mounts[0].root)?;
    read_all(&cell.mounts[1].root)?;
    cell.mount_another(&proxy.address(), options, None)?;
    let files = Files::of(&cell.mounts[2].root);
    let given =
        |counters: &Counters| count(counters, "lease.read_grants") + count(counters, "lease.write_grants");
    let (server, before) = (cell.server_counters()?, cell.mounts[2].counters()?);
    let start = Instant::now();
    build.configure(&files)?;
    build.make(&files)?;
    sync(lab.program, &cell.mounts[2].root)?;
    let seconds = start.elapsed().as_secs_f64();
    let (after, messages) = (cell.server_counters()?, cell.mounts[2].counters()?);
    cell.mounts.clear();
    Ok(Built {
        seconds,
        messages: Messages::between(&before, &messages),
        given: given(&after).saturating_sub(given(&server)),
        leases: count(&after, "leases"),
    })
}

/// Every file below.
fn read_all(dir: &Path) -> Result<(), LabError> {
    for entry in std::fs::read_dir(dir).map_err(LabError::io(dir))? {
        let path = entry.map_err(LabError::io(dir))?.path();
        if path.is_dir() {
            read_all(&path)?;
        } else {
            std::fs::read(&path).map_err(LabError::io(&path))?;
        }
    }
    Ok(())
}
