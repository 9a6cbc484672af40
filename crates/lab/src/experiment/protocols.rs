//! Every protocol under the same workloads, simulated.

use super::{Found, Lab};
use crate::LabError;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::sim::leases::{Setting, Use};
use crate::sim::workload::{Arrivals, Popularity, Workload};
use crate::sim::{self, System};
use soda_model::load::Network;

/// Seconds; a local network.
const ROUND_TRIP: f64 = 0.0005;

fn systems() -> Vec<(&'static str, System)> {
    vec![
        ("leases of 10 s (paper)", System::Leases(Setting::paper(10.0, Network::Unicast))),
        ("... with multicast", System::Leases(Setting::paper(10.0, Network::Multicast))),
        ("Soda, write=through", System::Leases(Setting::soda(Use::Through))),
        ("Soda, write=behind", System::Leases(Setting::soda(Use::Behind { age: 1.0 }))),
        ("Sprite", System::Sprite),
        ("asking at each read", System::CheckEachRead),
        ("AFS v1", System::AfsV1),
        ("AFS v2", System::AfsV2),
        ("NFS, 3 s", System::Nfs { attributes: 3.0 }),
    ]
}

fn table_of(lab: &Lab<'_>, title: &str, workload: &Workload) -> Table {
    let head =
        ["protocol", "messages/s", "kB/s", "hits %", "read (us)", "write (us)", "stale reads", "of reads"];
    let mut table = Table::new(title, head);
    for (name, system) in systems() {
        (lab.progress)(&format!("simulating {name}: {title}"));
        let outcome = sim::run(system, workload, ROUND_TRIP, 7);
        table.row([
            name.to_owned(),
            digits(outcome.server_load().0),
            digits(outcome.bytes as f64 / outcome.duration / 1000.0),
            digits(100.0 * outcome.hit_ratio()),
            digits(1e6 * outcome.mean_read_delay()),
            digits(1e6 * outcome.mean_write_delay()),
            outcome.stale_reads.to_string(),
            outcome.reads.to_string(),
        ]);
    }
    table
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let base = Workload {
        clients: 10,
        files: 50,
        reads: 5.0,
        writes: 0.25,
        duration: lab.by_extent(300.0, 3000.0),
        arrivals: Arrivals::Poisson,
        popularity: Popularity::Zipf { exponent: 1.0 },
    };
    let bursty = Workload { arrivals: Arrivals::Bursty { work: 2.0, rest: 18.0 }, ..base };
    let sessions = Workload { arrivals: Arrivals::Sessions { operations: 10.0, gap: 0.1 }, ..base };
    let tables = vec![
        table_of(lab, "Independent reads and writes, Zipf over 50 files, 10 clients", &base),
        table_of(lab, "The same in bursts: 2 s of work, 18 s of rest", &bursty),
        table_of(lab, "Sessions: open, ten reads or writes 0.1 s apart, close", &sessions),
    ];
    let mut series: Vec<Series> =
        systems().iter().map(|(name, _)| Series::new(*name, Style::Both, Vec::new())).collect();
    for clients in [1, 2, 5, 10, 20, 40] {
        (lab.progress)(&format!("simulating {clients} clients in sessions"));
        let workload = Workload { clients, duration: base.duration / 3.0, ..sessions };
        for ((_, system), series) in systems().iter().zip(&mut series) {
            let load = sim::run(*system, &workload, ROUND_TRIP, 8).server_load().0;
            series.points.push((f64::from(clients), load / f64::from(clients)));
        }
    }
    let (x, y) = (Axis::logarithmic("clients"), Axis::linear("messages/s per client"));
    let title = "Sessions, Zipf over 50 files, R = 5/s, W = 0.25/s";
    Ok(Found {
        paper: "SODA's future work: Sprite with its opens and closes \"would present an ultimate comparison\"; AFS v2 exists \
                because AFS v1 asked the server 61.7 % of the time whether its caches were right.",
        why: "Sprite pays two messages for each open and close and loses its cache where files are shared; AFS and \
              NFS send few \
              messages and read stale data, which is counted; leases send few and are never stale.".to_owned(),
        figures: vec![Figure::new("load", title, x, y, series)],
        tables,
        files: Vec::new(),
    })
}
