//! Every protocol under the same workloads, simulated.

use super::{Found, Lab, times};
use crate::LabError;
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value};
use crate::sim::compare::{Compared, systems};
use crate::sim::leases::{Setting, Use};
use crate::sim::{INTERVAL, System, run as simulate};
use crate::workload::{Arrivals, Popularity, Sizes, Workload};
use soda_model::load::Network;

/// Seconds; a local network.
const ROUND_TRIP: f64 = 0.0005;
/// Not in the figure, where they would hide others: multicast, and what is not Soda's default.
const NOT_DRAWN: [&str; 4] =
    ["leases, by multicast", "Soda, behind, no eq. 8", "Soda, behind, deep leases", "NFS, 6 s, names 60 s"];

fn compare(lab: &Lab<'_>, title: &str, workload: &Workload, seed: u64) -> Result<Compared, LabError> {
    let outcome = |(name, system): (&str, System)| {
        (lab.progress)(&format!("simulating {name}: {title}"));
        Ok((name.to_owned(), simulate(system, workload, ROUND_TRIP, seed)?))
    };
    let rows = systems().into_iter().map(outcome).collect::<Result<_, LabError>>()?;
    Ok(Compared::new(title, rows))
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
        sizes: Sizes::Between { least: 1024.0, most: 1_048_576.0 },
    };
    let with = |arrivals| Workload { arrivals, ..base };
    let sessions = with(Arrivals::Sessions { operations: 10.0, gap: 0.1 });
    let workloads = [
        ("Independent, each with an open and a close", base),
        ("The same in bursts: 2 s of work, 18 s of rest", with(Arrivals::Bursty { work: 2.0, rest: 18.0 })),
        ("Sessions: open, ten reads or writes 0.1 s apart, close", sessions),
        ("Independent, of files that all have open all the time", with(Arrivals::Held)),
    ];
    let (mut tables, mut stale) = (Vec::new(), 0);
    for (seed, (title, workload)) in (1..).zip(workloads) {
        let compared = compare(lab, title, &workload, seed)?;
        stale += compared.stale_where_none_may_be();
        tables.extend(compared.rates());
    }
    let (table, said) = policy(lab, base)?;
    tables.push(table);
    let drawn = systems().into_iter().filter(|(name, _)| !NOT_DRAWN.contains(name));
    let mut series: Vec<_> =
        drawn.map(|(name, system)| (system, Series::new(name, Style::Both, Vec::new()))).collect();
    for (seed, clients) in (11..).zip([1, 2, 5, 10, 20, 40]) {
        (lab.progress)(&format!("simulating {clients} clients in sessions"));
        let workload = Workload { clients, duration: base.duration / 3.0, ..sessions };
        for (system, series) in &mut series {
            let (load, margin) = simulate(*system, &workload, ROUND_TRIP, seed)?.server_load();
            let each = |load: f64| load / f64::from(clients);
            series.points.push((f64::from(clients), each(load)));
            series.spread.push((each(load - margin), each(load + margin)));
        }
    }
    let series = series.into_iter().map(|(_, series)| series).collect();
    let (x, y) = (Axis::logarithmic("clients"), Axis::linear("messages/s per client"));
    let title = "Sessions, Zipf over 50 files, R = 5/s, W = 0.25/s";
    Ok(Found {
        paper: "SODA's future work: Sprite with its opens and closes \"would present an ultimate comparison\"; AFS v2 exists \
                because AFS v1 asked the server 61.7 % of the time whether its caches were right.",
        why: format!("{WHY} {said}"),
        figures: vec![Figure { whiskers: INTERVAL.to_owned(), ..Figure::new("load", title, x, y, series) }],
        tables,
        checks: vec![Check::counted(
            "No read is stale with leases, with Sprite, or for who asks at each read",
            stale == 0,
            format!("{stale} are"),
        )],
        files: Vec::new(),
    })
}

/// What equation (8) saves where reads are independent, and what it costs or saves in sessions; and that in words.
fn policy(lab: &Lab<'_>, base: Workload) -> Result<(Table, String), LabError> {
    let title = "Equation (8): messages/s of each client, and between what they are 99 % of the time; R = 5/s, W = 0.25/s";
    let systems = [
        ("leases of 10 s (paper)", System::Leases(Setting::paper(10.0, Network::Unicast))),
        ("Soda, write=through", System::Leases(Setting::soda(Use::Through))),
        ("the same, no eq. 8", System::Leases(Setting::soda(Use::Through).without_policy())),
        ("asking at each read", System::CheckEachRead),
    ];
    let mut table = Table::new(title, ["reads", "clients"]);
    table.head.extend(systems.iter().map(|(name, _)| (*name).to_owned()));
    let mut said = Vec::new();
    let sessions = |operations| Arrivals::Sessions { operations, gap: 0.1 };
    let arrivals = [
        ("independent", Arrivals::Poisson),
        ("in sessions of 2", sessions(2.0)),
        ("in sessions of 5", sessions(5.0)),
        ("in sessions of 10", sessions(10.0)),
    ];
    for (name, arrivals) in arrivals {
        for clients in [20, 40, MOST] {
            (lab.progress)(&format!("simulating equation (8), {clients} clients, reads {name}"));
            let workload = Workload { clients, duration: lab.by_extent(60.0, 300.0), arrivals, ..base };
            let mut row: Vec<Value> = vec![name.into(), clients.into()];
            let mut loads = Vec::new();
            for (_, system) in systems {
                let (load, margin) = simulate(system, &workload, ROUND_TRIP, 5)?.server_load();
                loads.push(load);
                let each = |load: f64| load / f64::from(clients);
                row.push(Value::within(each(load), each(margin)));
            }
            table.rows.push(row);
            if clients == MOST {
                said.push(format!("{} where reads are {name}", times(loads[1], loads[2])));
            }
        }
    }
    let said = said.join(", ");
    Ok((table, format!("With {MOST} clients messages with the policy are, of those without: {said}.")))
}

/// Clients of the sentence on the policy.
const MOST: u32 = 80;

pub(super) const WHY: &str = "Sprite pays two messages for each open and close, and loses its cache where files are shared: \
    where all have them open it asks at each read, as SODA's model has it. AFS and NFS send few messages in sessions and read \
    stale data, which is counted; AFS moves whole files. Leases are never stale, and send least where few share a file. Where \
    many do, the server may withhold them (equation (8), as its policy has it), which saves messages where each read would \
    be asked back. It counts the reads that caches answer and the caches that are asked back, so in sessions, where one lease \
    spares many reads a question, it gives leases: the last table has both.";
