//! SODA's figures 5, 6 and 7 and its two ratios, of the real system.

use super::spread::{self, Spread};
use super::{Found, Lab, median_micros, micros};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages};
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use soda_model::Rng;
use soda_model::load::{Network, Sharing, Term};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much faster than in the paper everything happens: rates times this, terms by this. Costs of an operation stay the same,
/// and an experiment of ten minutes takes less than one.
const FASTER: f64 = 20.0;
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

/// Each mount reads and writes its files at random, R and W times a second (of each file), for a while.
fn share(cell: &Cell, files: u32, (reads, writes): (f64, f64), length: Duration) -> Result<Times, LabError> {
    let workers: Vec<_> = cell
        .mounts
        .iter()
        .enumerate()
        .map(|(number, mount)| {
            let root = mount.root.clone();
            std::thread::spawn(move || client(&root, number as u64, files, (reads, writes), length))
        })
        .collect();
    let mut all = Times::default();
    for worker in workers {
        let times =
            worker.join().map_err(|_| LabError::Failed("a client of the experiment broke down".into()))??;
        all.reads.extend(times.reads);
        all.writes.extend(times.writes);
    }
    Ok(all)
}

fn client(
    root: &Path,
    seed: u64,
    files: u32,
    (reads, writes): (f64, f64),
    length: Duration,
) -> Result<Times, LabError> {
    let open = |number: u32| {
        let path = root.join(format!("shared{number}"));
        OpenOptions::new().read(true).write(true).open(&path).map_err(LabError::io(&path))
    };
    let files: Vec<File> = (0..files).map(open).collect::<Result<_, _>>()?;
    let mut rng = Rng::new(seed);
    let rate = (reads + writes) * files.len() as f64;
    let (began, mut due, mut times) = (Instant::now(), 0.0, Times::default());
    let mut block = [7; BLOCK];
    loop {
        due += -((rng.below(1 << 40) + 1) as f64 / (1_u64 << 40) as f64).ln() / rate;
        if due > length.as_secs_f64() {
            return Ok(times);
        }
        std::thread::sleep((began + Duration::from_secs_f64(due)).saturating_duration_since(Instant::now()));
        let file = &files[rng.below(files.len() as u64) as usize];
        let is_read = rng.below(1 << 40) as f64 / (1_u64 << 40) as f64 <= reads / (reads + writes);
        let start = Instant::now();
        if is_read {
            file.read_exact_at(&mut block, 0).map_err(LabError::io(root))?;
            times.reads.push((start - began, start.elapsed()));
        } else {
            file.write_all_at(&block, 0).map_err(LabError::io(root))?;
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

pub(super) fn figure_5(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (files, reads, writes) = (10, 2.0, 0.01);
    let length = lab.by_extent(Duration::from_secs(2), Duration::from_secs(20));
    let terms = lab.by_extent(vec![0.0, 2.0, 20.0], vec![0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0]);
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(1, "sync")?;
    fill(&cell.mounts[0].root, files)?;
    let sharing = Sharing::new(f64::from(CLIENTS), reads, writes)?;
    let (mut cpu, mut messages) = (Vec::new(), Vec::new());
    let (mut predicted, mut left) = (Vec::new(), Vec::new());
    let head = [
        "t (s)",
        "server's processor (us) per read",
        "messages per read",
        "model",
        "of what is left at the client",
    ];
    let mut table = Table::new("The server's load", head);
    for t in terms {
        (lab.progress)(&format!("a term of {t} s, {} clients", CLIENTS));
        cell.mount(CLIENTS as usize, &format!("sync,lease-term={}", t / FASTER))?;
        // Everybody has looked at everything before it counts.
        share(&cell, files, (reads * FASTER, 0.0), length / 4)?;
        let (before, cpu_before) = (counters(&cell)?, cell.server_cpu());
        let times = share(&cell, files, (reads * FASTER, writes * FASTER), length)?;
        let (after, cpu_after) = (counters(&cell)?, cell.server_cpu());
        let pairs = before.iter().zip(&after);
        let asked = pairs.map(|(before, after)| Messages::between(before, after)).sum::<Messages>();
        let asked = asked.for_consistency();
        let reads_done = times.reads.len().max(1) as f64;
        let load = micros(cpu_after.saturating_sub(cpu_before)) / reads_done;
        let model = |t: f64| -> Result<f64, LabError> {
            let cost = sharing.exact_lease_cost(Term::new(t)?, Network::Unicast);
            Ok(cost / (f64::from(CLIENTS) * reads))
        };
        let (model, model_of_left) = (model(t)?, model((t - MARGIN * FASTER).max(0.0))?);
        left.push((t, model_of_left));
        cpu.push((t, load));
        messages.push((t, asked as f64 / reads_done));
        predicted.push((t, model));
        table.row([t, load, asked as f64 / reads_done, model, model_of_left].map(digits));
    }
    let title = "3 clients, 10 files, R = 2/s, W = 0.01/s each, twenty times as fast";
    let axis = || Axis::linear("lease term t (s)");
    Ok(Found {
        paper: "The server's load falls steeply with the first seconds of term and hardly after 20 s, as the model says.",
        why: "The same shape. Clients give a lease up 50 ms early, for clocks that drift: of terms that are a \
              twentieth of the paper's that is a large part, so short ones cost more, as the formula says of what is left. The \
              processor time is given \
              for each read, as machines today are so much faster.",
        figures: vec![
            Figure::new(
                "messages",
                title,
                axis(),
                Axis::linear("messages for each read"),
                vec![
                    Series::new("measured", Style::Both, messages),
                    Series::new("model (exact)", Style::Line, predicted),
                    Series::new("model, given up 50 ms early", Style::Line, left),
                ],
            ),
            Figure::new(
                "cpu",
                title,
                axis(),
                Axis::linear("server's processor time for each read (us)"),
                vec![Series::new("measured", Style::Both, cpu)],
            ),
        ],
        tables: vec![table],
        files: Vec::new(),
    })
}

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
            let times = share(&cell, 1, (FASTER, w * FASTER), length)?;
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
    let title = "3 clients, one file, R = 1/s each, twenty times as fast";
    let axis = || Axis::linear("W, writes/s of each client");
    Ok(Found {
        paper: "Reads: SODA is many times faster than sSPRITE while W is low, equal when W is near R. Writes: SODA is \
                slower, \
                because it has leases to invalidate.",
        why: "The same directions. Here a round trip is some 0.1 ms, not milliseconds of Ethernet, so what differs is \
              smaller; and \
              from R/W <= N-1 on (W >= 0.5) Soda gives no leases, which the paper recommends and did not build.",
        figures: vec![
            Figure::new("fig6", title, axis(), Axis::linear("mean time to read 1 KiB (us)"), reading),
            Figure::new("fig7", title, axis(), Axis::linear("mean time to write 1 KiB (us)"), writing),
        ],
        tables: vec![table],
        files: Vec::new(),
    })
}

pub(super) fn cached_reads(lab: &Lab<'_>) -> Result<Found, LabError> {
    let files = lab.by_extent(200, 2000);
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(1, "sync")?;
    fill(&cell.mounts[0].root, files)?;
    let mut table = Table::new("Median time to read 1 KiB", ["read", "time (us)", "times a cached one"]);
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
    for (name, time) in [
        ("cached, under a lease", cached),
        ("cached, the server asked each time", verified),
        ("from the server, with a lease", with_lease),
        ("from the server, no lease given", without),
    ] {
        table.row([name.to_owned(), digits(time), digits(time / cached)]);
    }
    Ok(Found {
        paper: "A cached read is at least 13 times as fast as one from the server; a server's read with leases is 20 \
                % slower than \
                plain NFS.",
        why: "Cached reads never leave the kernel here, so the factor is larger even on loopback, where the network \
              costs next to \
              nothing; for the same reason what a lease adds at both ends is a larger part of a read: a fifth to a third.",
        figures: Vec::new(),
        tables: vec![table],
        files: Vec::new(),
    })
}
