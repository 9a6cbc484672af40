//! SODA's figures 5, 6 and 7 and its two ratios, of the real system.

use super::spread::{self, Spread};
use super::{Found, Lab, at_once, median_micros, micros, times};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages};
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use soda_model::Rng;
use soda_model::load::{Network, Sharing, Term};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much faster than in the paper everything happens: rates times this, terms by this. Costs of an operation stay the same,
/// and an experiment of ten minutes takes less than one.
const FASTER: f64 = 20.0;
/// The same where terms are short: [`MARGIN`] would be most of them.
const LESS_FAST: f64 = 5.0;
/// Of the paper's seconds.
const SHORT: f64 = 5.0;
/// Clients give a lease up so early, seconds, for clocks that drift.
const MARGIN: f64 = 0.05;
const CLIENTS: u32 = 3;
const BLOCK: usize = 1024;

/// What the clients saw: when a call came, and how long it took.
#[derive(Debug, Default)]
struct Times {
    reads: Vec<(Duration, Duration)>,
    writes: Vec<(Duration, Duration)>,
}

/// The files of a mount, open as long as they are measured: opening is no part of it.
#[derive(Debug)]
struct Handles {
    root: PathBuf,
    /// What is open for reading and writing would be read through the daemon each time, cached or not.
    read: Vec<File>,
    written: Vec<File>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    None,
    Some,
}

/// Opens so many files on each mount.
fn open(cell: &Cell, files: u32, writes: Writes) -> Result<Vec<Arc<Handles>>, LabError> {
    let all = |root: &Path, options: &OpenOptions| -> Result<Vec<File>, LabError> {
        let path = |number: u32| root.join(format!("shared{number}"));
        (0..files).map(|number| options.open(path(number)).map_err(LabError::io(path(number)))).collect()
    };
    let of = |mount: &crate::cell::Mount| {
        let root = mount.root.as_path();
        let read = all(root, OpenOptions::new().read(true))?;
        let written = match writes {
            Writes::Some => all(root, OpenOptions::new().write(true))?,
            Writes::None => Vec::new(),
        };
        Ok(Arc::new(Handles { root: root.to_owned(), read, written }))
    };
    cell.mounts.iter().map(of).collect()
}

/// Each mount reads and writes its files at random, R and W times a second (of each file), for a while.
fn share(mounts: &[Arc<Handles>], (reads, writes): (f64, f64), length: Duration) -> Result<Times, LabError> {
    let found = at_once(mounts, |number, handles| {
        let handles = Arc::clone(handles);
        move || client(&handles, number as u64, (reads, writes), length)
    })?;
    let mut all = Times::default();
    for times in found {
        all.reads.extend(times.reads);
        all.writes.extend(times.writes);
    }
    Ok(all)
}

fn client(
    handles: &Handles,
    seed: u64,
    (reads, writes): (f64, f64),
    length: Duration,
) -> Result<Times, LabError> {
    let Handles { root, read, written } = handles;
    let mut rng = Rng::new(seed);
    let rate = (reads + writes) * read.len() as f64;
    let (began, mut due, mut times) = (Instant::now(), 0.0, Times::default());
    let mut block = [7; BLOCK];
    loop {
        due += -((rng.below(1 << 40) + 1) as f64 / (1_u64 << 40) as f64).ln() / rate;
        if due > length.as_secs_f64() {
            return Ok(times);
        }
        std::thread::sleep((began + Duration::from_secs_f64(due)).saturating_duration_since(Instant::now()));
        let number = rng.below(read.len() as u64) as usize;
        let is_read = rng.below(1 << 40) as f64 / (1_u64 << 40) as f64 <= reads / (reads + writes);
        let start = Instant::now();
        if is_read {
            read[number].read_exact_at(&mut block, 0).map_err(LabError::io(root))?;
            times.reads.push((start - began, start.elapsed()));
        } else {
            written[number].write_all_at(&block, 0).map_err(LabError::io(root))?;
            times.writes.push((start - began, start.elapsed()));
        }
    }
}

fn fill(root: &Path, files: u32) -> Result<(), LabError> {
    for number in 0..files {
        let path = root.join(format!("shared{number}"));
        std::fs::write(&path, [1; BLOCK]).map_err(LabError::io(&path))?;
    }
    Ok(())
}

fn counters(cell: &Cell) -> Result<Vec<Counters>, LabError> {
    cell.mounts.iter().map(crate::cell::Mount::counters).collect()
}

/// Files, and of each client R and W of each file.
const LOAD: (u32, f64, f64) = (10, 2.0, 0.01);

/// Messages for each read, in three ways.
#[derive(Clone, Copy)]
struct Predicted {
    /// By the formula.
    exact: f64,
    /// By the formula of what is left of the term at the client.
    left: f64,
    /// And with the exclusive lease of a writer, which the next who reads has lowered: two messages for each write that another
    /// reads before that lease ends.
    lowered: f64,
}

fn predict(t: f64, faster: f64) -> Result<Predicted, LabError> {
    let (_, reads, writes) = LOAD;
    let sharing = Sharing::new(f64::from(CLIENTS), reads, writes)?;
    let cost = |t: f64| -> Result<f64, LabError> {
        Ok(sharing.exact_lease_cost(Term::new(t)?, Network::Unicast) / (f64::from(CLIENTS) * reads))
    };
    let is_left = (t - MARGIN * faster).max(0.0);
    let (exact, left) = (cost(t)?, cost(is_left)?);
    let meets_a_reader = 1.0 - (-f64::from(CLIENTS - 1) * reads * is_left).exp();
    Ok(Predicted { exact, left, lowered: left + 2.0 * writes / reads * meets_a_reader })
}

/// How much faster than in the paper a term is measured.
fn faster(t: f64) -> f64 {
    if t > 0.0 && t <= SHORT { LESS_FAST } else { FASTER }
}

pub(super) fn figure_5(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (files, reads, writes) = LOAD;
    let length = lab.by_extent(Duration::from_secs(2), Duration::from_secs(20));
    let terms = lab.by_extent(vec![0.0, 2.0, 20.0], vec![0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0]);
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(1, "sync")?;
    fill(&cell.mounts[0].root, files)?;
    let (mut cpu, mut messages, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    let head = [
        "t (s)",
        "server's processor (us) per read",
        "of one processor at the paper's rates (%)",
        "messages per read",
        "model",
        "of what is left at the client",
        "and with a writer's lease lowered",
    ];
    let mut table = Table::new("The server's load", head);
    let last = terms.last().copied().unwrap_or_default();
    for t in terms {
        (lab.progress)(&format!("a term of {t} s, {} clients", CLIENTS));
        let faster = faster(t);
        cell.mount(CLIENTS as usize, &format!("sync,lease-term={}", t / faster))?;
        // Everybody has looked at everything before it counts.
        let handles = open(&cell, files, Writes::Some)?;
        share(&handles, (reads * faster, 0.0), length / 4)?;
        let (before, cpu_before) = (counters(&cell)?, cell.server_cpu());
        let times = share(&handles, (reads * faster, writes * faster), length)?;
        let cpu_after = cell.server_cpu();
        let after = counters(&cell)?;
        let pairs = before.iter().zip(&after);
        let asked = pairs.map(|(before, after)| Messages::between(before, after)).sum::<Messages>();
        let asked = asked.for_consistency();
        let reads_done = times.reads.len().max(1) as f64;
        let load = micros(cpu_after.saturating_sub(cpu_before)) / reads_done;
        let percent = load * f64::from(CLIENTS * files) * reads / 1e4;
        let predicted = predict(t, faster)?;
        cpu.push((t, percent));
        messages.push((t, asked as f64 / reads_done));
        expected.push((t, predicted.lowered));
        let Predicted { exact, left, lowered } = predicted;
        table.row([t, load, percent, asked as f64 / reads_done, exact, left, lowered].map(digits));
    }
    let curve = (0..=240).map(|quarter| f64::from(quarter) / 4.0).filter(|t| *t <= last);
    let curve = curve.map(|t| Ok((t, predict(t, faster(t))?.exact))).collect::<Result<_, LabError>>()?;
    let (first, long) = (cpu.first().map_or(f64::NAN, |at| at.1), cpu.last().map_or(f64::NAN, |at| at.1));
    let sent = messages.last().map_or(f64::NAN, |at| at.1);
    let model = predict(last, faster(last))?;
    let axis = || Axis::linear("lease term t (s)");
    Ok(Found {
        paper: "The graph of the server's processor load has a shape similar to what the model predicts.",
        why: format!(
            "{WHY_5} Here the load at {last} s is {:.0} % of that without leases; {} messages for each read, where the \
             formula has {}, and with what Soda does besides {}.",
            100.0 * long / first,
            digits(sent),
            digits(model.exact),
            digits(model.lowered)
        ),
        figures: vec![
            Figure::new(
                "messages",
                "SODA, figure 5: messages against the term; 3 clients, 10 files, R = 2/s, W = 0.01/s",
                axis(),
                Axis::logarithmic("messages for each read"),
                vec![
                    Series::new("measured", Style::Points, messages),
                    Series::new("model (exact)", Style::Line, curve),
                    // Not a curve: how early a lease is given up depends on how fast it is measured.
                    Series::new("model of what Soda does", Style::Points, expected).looking(2, 3),
                ],
            ),
            Figure::new(
                "cpu",
                "SODA, figure 5: the server's load against the term",
                axis(),
                Axis::linear("of one processor at the paper's rates (%)"),
                vec![Series::new("measured", Style::Both, cpu)],
            ),
        ],
        tables: vec![table],
        files: Vec::new(),
    })
}

pub(super) const WHY_5: &str = "The same shape, with more messages than the formula has: clients give a \
    lease up a moment early, for clocks that drift, which is a large part of a short term; and who writes has the \
    file for itself then, which the next reader has lowered, two messages more for each write. Everything happens \
    faster than in the paper, which does not change the number of messages for each read.";

pub(super) fn figures_6_and_7(lab: &Lab<'_>) -> Result<Found, LabError> {
    let length = lab.by_extent(Duration::from_millis(1500), Duration::from_secs(10));
    let rates = lab.by_extent(vec![0.0, 0.3, 0.7], vec![0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]);
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    let mut reading = Vec::new();
    let mut writing = Vec::new();
    let head = ["mode", "W (1/s)", "mean read (us)", "median read (us)", "mean write (us)"];
    let title = "Time of one system call; means: the median of those of nine stretches, and the quartiles";
    let mut table = Table::new(title, head);
    for (name, options) in
        [("Soda (leases)", "sync"), ("asking at each read (sSPRITE)", "consistency=verify")]
    {
        cell.mount(CLIENTS as usize, options)?;
        fill(&cell.mounts[0].root, 1)?;
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for w in &rates {
            (lab.progress)(&format!("{name}, W = {w}/s"));
            let handles = open(&cell, 1, if *w > 0.0 { Writes::Some } else { Writes::None })?;
            let times = share(&handles, (FASTER, w * FASTER), length)?;
            let read = Spread::of_means(&times.reads, length);
            let write = Spread::of_means(&times.writes, length);
            reads.extend(read.map(|read| (*w, read)));
            writes.extend(write.map(|write| (*w, write)));
            let shown = |spread: Option<Spread>| spread.map_or("-".to_owned(), |spread| spread.to_string());
            let all = times.reads.into_iter().map(|(_, took)| took).collect();
            table.row([name.to_owned(), digits(*w), shown(read), digits(median_micros(all)), shown(write)]);
        }
        reading.push(spread::series(name, &reads));
        writing.push(spread::series(name, &writes));
    }
    let first = |of: &Series| of.points.first().map_or(f64::NAN, |point| point.1);
    let last = |of: &Series| of.points.last().map_or(f64::NAN, |point| point.1);
    // Of leases by asking.
    let compared = |series: &[Series], at: &dyn Fn(&Series) -> f64| match series {
        [leases, asking] => (at(leases), at(asking)),
        _ => (f64::NAN, f64::NAN),
    };
    let (low, high) = (compared(&reading, &first), compared(&reading, &last));
    let (rare, most) = (compared(&writing, &first), compared(&writing, &last));
    let axis = || Axis::linear("W, writes/s of each client");
    Ok(Found {
        paper: "Reads: SODA is many times faster than sSPRITE while W is low, and both tend to the same as W grows. Writes: \
                faster in sSPRITE, which never has leases to invalidate.",
        why: format!(
            "{WHY_6_7} Here reads under leases are {} as fast as asking where nobody writes, {} where all write most; \
             writes take {} as long where they are rare, {} where they are most.",
            times(low.1, low.0),
            times(high.1, high.0),
            times(rare.0, rare.1),
            times(most.0, most.1)
        ),
        figures: vec![
            Figure::new(
                "fig6",
                "SODA, figure 6: time to read 1 KiB; 3 clients, one file, R = 1/s",
                axis(),
                Axis::logarithmic("mean time to read 1 KiB (us)"),
                reading,
            ),
            Figure::new(
                "fig7",
                "SODA, figure 7: time to write 1 KiB; 3 clients, one file, R = 1/s",
                axis(),
                Axis::linear("mean time to write 1 KiB (us)"),
                writing,
            ),
        ],
        tables: vec![table],
        files: Vec::new(),
    })
}

pub(super) const WHY_6_7: &str = "The same directions: what is cached never leaves the kernel, and a write \
    waits until each reader has given its lease up. Where all write nearly as often as they read Soda gives no \
    leases (equation 8), which the paper recommends and did not build; so reads ask, and writes have nobody to \
    recall and get faster as W grows.";

pub(super) fn cached_reads(lab: &Lab<'_>) -> Result<Found, LabError> {
    let files = lab.by_extent(200, 2000);
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(1, "sync")?;
    fill(&cell.mounts[0].root, files)?;
    let mut table =
        Table::new("Median time to read 1 KiB", ["read", "time (us)", "times a cached one", "the paper's"]);
    (lab.progress)("reads from the cache and from the server");
    let read_all = |root: &Path| -> Result<Vec<Duration>, LabError> {
        let read = |number: u32| {
            let path = root.join(format!("shared{number}"));
            let file = File::open(&path).map_err(LabError::io(&path))?;
            let start = Instant::now();
            file.read_exact_at(&mut [0; BLOCK], 0).map_err(LabError::io(&path))?;
            Ok(start.elapsed())
        };
        (0..files).map(read).collect()
    };
    let (mut with, mut without, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    // By turns, so that the machine's mood is the same for both; the first time is for the server's own cache.
    for round in 0..lab.by_extent(3, 8) {
        for (options, times) in [("", &mut with), ("lease-term=0", &mut without)] {
            cell.mount(1, options)?;
            let found = read_all(&cell.mounts[0].root)?;
            if round > 0 {
                times.extend(found);
            }
            if options.is_empty() {
                warm.extend(read_all(&cell.mounts[0].root)?);
            }
        }
    }
    let (with_lease, without, cached) = (median_micros(with), median_micros(without), median_micros(warm));
    cell.mount(1, "consistency=verify")?;
    read_all(&cell.mounts[0].root)?;
    let verified = median_micros(read_all(&cell.mounts[0].root)?);
    for (name, time, theirs) in [
        ("cached, under a lease", cached, "1"),
        ("cached, the server asked each time", verified, "-"),
        ("from the server, with a lease", with_lease, "at least 13"),
        ("from the server, no lease given", without, "13 / 1.2"),
    ] {
        table.row([name.to_owned(), digits(time), digits(time / cached), theirs.to_owned()]);
    }
    Ok(Found {
        paper: "A cached read is at least 13 times as fast as one from the server; a server's read with leases is 20 % \
                slower than plain NFS.",
        why: format!(
            "{WHY_CACHED} Here a cached read is {} as fast as one from the server, and a lease makes that one {} % slower.",
            times(with_lease, cached),
            digits(100.0 * (with_lease / without - 1.0))
        ),
        figures: Vec::new(),
        tables: vec![table],
        files: Vec::new(),
    })
}

pub(super) const WHY_CACHED: &str = "Cached reads never leave the kernel here, so the factor is larger even \
    on loopback, where the network costs next to nothing; for the same reason what a lease adds at both ends is a \
    part of a read that can be seen.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writers_lease_costs_two_messages_for_each_write_that_others_read_after() {
        let long = predict(60.0, FASTER).expect("a term");
        assert!((long.lowered - long.left - 2.0 * 0.01 / 2.0).abs() < 1e-9, "two for each write, R/W = 200");
        assert!(long.exact < long.left, "a shorter lease saves less");
        // Nothing is left of a term that is no longer than the margin.
        let none = predict(MARGIN * FASTER, FASTER).expect("a term");
        assert_eq!((none.left, none.lowered), (2.0, 2.0));
        assert!(faster(0.5) * MARGIN < 0.5, "the shortest term measured is no lease");
    }
}
