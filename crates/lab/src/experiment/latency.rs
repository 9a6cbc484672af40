//! CS739's measurements: system calls by size of the file, and small jobs by number of clients.

use super::cold::{Apart, Asked};
use super::spread::{self, Spread};
use super::{Found, Lab, at_once, counters};
use crate::LabError;
use crate::cell::{Cell, Counters, Messages, Mount, grown};
use crate::check::Check;
use crate::figure::{self, Axis, Figure, Table, Value, digits};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// open, read or write all, close.
type Calls = [Duration; 3];

/// Bytes of a file, how often it is read and written, and how many files are read for the first time.
fn sizes(lab: &Lab<'_>) -> Vec<(usize, usize, usize)> {
    let small = vec![(64, 10, 3), (4 << 10, 10, 3), (256 << 10, 10, 3)];
    let large =
        vec![(64, 100, 20), (4 << 10, 100, 20), (256 << 10, 100, 20), (16 << 20, 20, 5), (1 << 30, 3, 1)];
    lab.by_extent(small, large)
}

/// What is measured, and the colour of its curve.
const TESTS: [&str; 4] = ["read, first time", "read again", "write=through", "write=behind"];
/// The calls of [`Calls`], and which of [`TESTS`] have a curve there.
const CALLS: [(&str, &str, &[usize]); 4] = [
    ("open", "open", &[0, 1, 2, 3]),
    ("read", "read all", &[0, 1]),
    ("write", "write all", &[2, 3]),
    ("close", "close", &[0, 1, 2, 3]),
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let head = ["size", "bytes", "test", "files", "open (ms)", "read or write (ms)", "close (ms)"];
    let mut table = Table::new("Time of the calls: median (quartiles)", head);
    // Of each test: by call and size.
    let mut points: [[Vec<(f64, Spread)>; 3]; 4] = Default::default();
    let mut checks = Vec::new();
    for (size, times, firsts) in sizes(lab) {
        (lab.progress)(&format!("files of {}", figure::size(size as f64)));
        let (found, asked) = measure(lab, size, times, firsts)?;
        if size <= ONE_MESSAGE {
            checks.push(asked.check(&format!("First reads of {}", figure::size(size as f64)), firsts));
        }
        for (test, calls) in found.into_iter().enumerate() {
            let of =
                |call: usize| Spread::of(calls.iter().map(|calls| calls[call].as_secs_f64() * 1e3).collect());
            let spreads = [0, 1, 2].map(of);
            for (points, spread) in points[test].iter_mut().zip(&spreads) {
                points.extend(spread.map(|spread| (size as f64, spread)));
            }
            let row = [figure::size(size as f64).into(), size.into(), TESTS[test].into(), calls.len().into()];
            table.rows.push(row.into_iter().chain(spreads.map(Value::from)).collect());
        }
    }
    let figures = CALLS.map(|(name, label, tests)| {
        let call = match name {
            "open" => 0,
            "close" => 2,
            _ => 1,
        };
        let curve = |test: &usize| spread::series(TESTS[*test], &points[*test][call]).looking(*test, *test);
        let title = format!("CS739: {label}, by the size of the file");
        let (x, y) = (Axis::bytes("size of the file"), Axis::logarithmic(&format!("{label} (ms)")));
        Figure::new(name, &title, x, y, tests.iter().map(curve).collect())
    });
    let last = |test: usize, call: usize| points[test][call].last().map_or(f64::NAN, |(_, time)| time.middle);
    let largest = points[0][0].last().map_or(f64::NAN, |(size, _)| *size);
    let opens = || points[0][0].iter().map(|(_, time)| time.middle);
    let (least, most) = (opens().fold(f64::INFINITY, f64::min), opens().fold(0.0, f64::max));
    checks.push(Check::timed(
        "First opens of large files take at most four times as long as of small ones",
        most <= 4.0 * least,
        format!("{} to {} ms", digits(least), digits(most)),
    ));
    Ok(Found {
        paper: "The first open fetches the file and takes in proportion to its size; the next ones only ask whether it has \
                changed. Its basic version cannot transfer 16 MiB at all.",
        why: format!(
            "{WHY} Of {} the first open took {} ms, reading it then {} ms, and again {} ms; writing it {} ms with \
             write=through, {} ms with write=behind.",
            figure::size(largest),
            digits(last(0, 0)),
            digits(last(0, 1)),
            digits(last(1, 1)),
            digits(last(2, 1)),
            digits(last(3, 1))
        ),
        figures: figures.to_vec(),
        tables: vec![table],
        checks,
        files: Vec::new(),
    })
}

pub(super) const WHY: &str = "Data is fetched when it is read and not at open; nobody asks again under a lease, and a close \
    has nothing left to store. What is large gains nothing by write=behind, as all of it has to be told in the end. What is \
    read for the first time is in directories of their own, so that the client does not fetch it before.";

/// Bytes that one message brings, all of them.
const ONE_MESSAGE: usize = 4 << 10;

/// Of each of [`TESTS`], the times of its calls; what was asked for in the first reads.
fn measure(
    lab: &Lab<'_>,
    size: usize,
    times: usize,
    firsts: usize,
) -> Result<([Vec<Calls>; 4], Asked), LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(2, "sync")?;
    let data = Apart::new("data", firsts);
    data.make_by(&cell.mounts[0].root, |path| write(path, size).map(drop))?;
    // The other machine has not seen them.
    let other = cell.mounts[1].root.clone();
    data.look(&other)?;
    let before = Asked::by(&cell.mounts[1])?;
    let first = data.paths(&other).iter().map(|path| read(path, size)).collect::<Result<_, _>>()?;
    let mut asked = Asked::default();
    asked.add(before, Asked::by(&cell.mounts[1])?);
    let again = (0..times).map(|_| read(&data.path(&other, 0), size)).collect::<Result<_, _>>()?;
    let fresh = |cell: &Cell| {
        let fresh = |number: usize| {
            let path = cell.mounts[0].root.join(format!("new{number}"));
            let calls = write(&path, size)?;
            // Gigabytes would pile up.
            std::fs::remove_file(&path).map_err(LabError::io(&path))?;
            Ok(calls)
        };
        (0..times).map(fresh).collect::<Result<_, LabError>>()
    };
    let through = fresh(&cell)?;
    cell.mount(1, "write=behind")?;
    Ok(([first, again, through, fresh(&cell)?], asked))
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
    let head = ["clients", "mode", "a job (ms)", "messages of a job", "leases asked back"];
    let mut table = Table::new(title, head);
    let (mut series, mut grows) = (Vec::new(), Vec::new());
    let mut sent: [Vec<Sent>; MODES.len()] = Default::default();
    for ((mode, options), sent) in MODES.into_iter().zip(&mut sent) {
        let mut cell = Cell::start(lab, &["--term", "60s"])?;
        let mut points = Vec::new();
        for &count in &clients {
            (lab.progress)(&format!("{mode}: {count} clients"));
            cell.mount(count, options)?;
            let name = |round: usize| format!("{mode}-{count}-{round}");
            // The directory that theirs are in is the one thing that they share.
            make_dirs(&cell, (0..rounds).map(name))?;
            let before = counters(&cell)?;
            let times = (0..rounds).map(|round| all_work(&cell, &name(round), jobs));
            let times = times.collect::<Result<_, _>>()?;
            let of_jobs = Sent::between(&before, &counters(&cell)?, count * jobs * rounds);
            sent.push(of_jobs);
            if let Some(time) = Spread::of(times) {
                points.push((count as f64, time));
                table.row([
                    count.into(),
                    mode.into(),
                    time.into(),
                    of_jobs.messages.into(),
                    of_jobs.recalls.into(),
                ]);
            }
        }
        if let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) {
            grows.push(format!("{mode} {} to {} ms", digits(first.middle), digits(last.middle)));
        }
        series.push(spread::series(mode, &points));
    }
    let (x, y) = (Axis::linear("clients at once"), Axis::logarithmic("time of a job, seen by each (ms)"));
    let title = "CS739: a job by the number of clients, each in a directory of its own";
    Ok(Found {
        paper: "A job of four source files copied and made, 100 times; clients are processes of one machine. Its figure is not \
                at hand.",
        why: format!(
            "{WHY_SCALABILITY} From {} to {} clients: {}.",
            clients[0],
            clients[clients.len() - 1],
            grows.join(", ")
        ),
        figures: vec![Figure::new("jobs", title, x, y, series)],
        tables: vec![table],
        checks: of_strangers(&sent),
        files: Vec::new(),
    })
}

const MODES: [(&str, &str); 2] =
    [("write=through", "sync,memory=64M"), ("write=behind", "write=behind,memory=64M")];

/// What so many clients sent for their jobs.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Sent {
    /// Of one job.
    messages: f64,
    /// Leases that were asked back, of all.
    recalls: u64,
}

impl Sent {
    fn between(before: &[Counters], after: &[Counters], jobs: usize) -> Sent {
        let pairs = || before.iter().zip(after);
        let recalls = |(before, after)| grown(before, after, "recalls");
        let all: Messages = pairs().map(|(before, after)| Messages::between(before, after)).sum();
        Sent { messages: all.all as f64 / jobs.max(1) as f64, recalls: pairs().map(recalls).sum() }
    }
}

/// That clients that share nothing do not disturb each other: of each of [`MODES`], by the number of clients.
fn of_strangers(sent: &[Vec<Sent>; MODES.len()]) -> Vec<Check> {
    let [through, behind] = sent;
    let all = |of: &[Sent]| -> (f64, f64) {
        let messages = || of.iter().map(|sent| sent.messages);
        (messages().fold(f64::INFINITY, f64::min), messages().fold(0.0, f64::max))
    };
    let span = |(least, most): (f64, f64)| format!("{} to {}", digits(least), digits(most));
    let recalls: u64 = sent.iter().flatten().map(|sent| sent.recalls).sum();
    let (through, behind) = (all(through), all(behind));
    vec![
        Check::counted(
            "No lease is asked back of clients in directories of their own",
            recalls == 0,
            format!("{recalls} of all"),
        ),
        Check::counted(
            "write=through: a job takes as many messages however many clients there are, but for a twentieth",
            through.0 > 0.0 && through.1 <= 1.05 * through.0,
            span(through),
        ),
        Check::counted(
            "write=behind: a third of these at most",
            3.0 * behind.1 <= through.0,
            format!("{} of {}", span(behind), span(through)),
        ),
    ]
}

/// Those of all clients, each its own; all know then where theirs are.
fn make_dirs(cell: &Cell, names: impl Iterator<Item = String>) -> Result<(), LabError> {
    let dirs = |name: &String| -> Vec<PathBuf> {
        let own = |(number, mount): (usize, &Mount)| mount.root.join(format!("{name}-{number}"));
        cell.mounts.iter().enumerate().map(own).collect()
    };
    let all: Vec<PathBuf> = names.flat_map(|name| dirs(&name)).collect();
    all.iter().try_for_each(|dir| std::fs::create_dir(dir).map_err(LabError::io(dir)))?;
    all.iter().try_for_each(|dir| std::fs::read_dir(dir).map(drop).map_err(LabError::io(dir)))
}

pub(super) const WHY_SCALABILITY: &str = "All clients and the server share the processors of one computer \
    here as there, so a job takes longer with each client; no compiler runs here, so what is measured is the file \
    system alone.";

/// Milliseconds of a job.
fn all_work(cell: &Cell, name: &str, jobs: usize) -> Result<f64, LabError> {
    let start = Instant::now();
    at_once(&cell.mounts, |number, mount| {
        let dir = mount.root.join(format!("{name}-{number}"));
        move || work(&dir, jobs)
    })?;
    Ok(start.elapsed().as_secs_f64() * 1e3 / jobs as f64)
}

fn work(dir: &Path, jobs: usize) -> Result<(), LabError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_disturb_each_other_are_found_out() {
        let sent = |messages, recalls| Sent { messages, recalls };
        let well = [vec![sent(40.0, 0), sent(40.4, 0)], vec![sent(0.1, 0), sent(0.2, 0)]];
        let with = |mode: usize, one: Sent| -> Vec<bool> {
            let mut all = well.clone();
            all[mode][1] = one;
            of_strangers(&all).into_iter().map(|check| check.holds).collect()
        };
        assert_eq!(with(0, sent(41.0, 0)), [true, true, true]);
        assert_eq!(with(0, sent(40.0, 1)), [false, true, true]);
        assert_eq!(with(0, sent(43.0, 0)), [true, false, true], "two more by number");
        assert_eq!(with(1, sent(20.0, 0)), [true, true, false]);
    }

    #[test]
    fn messages_are_of_one_job_and_recalls_of_all() {
        let of = |list: &[(&str, u64)]| -> Counters {
            list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let before = [of(&[("msg_create", 3)]), of(&[])];
        let after = [of(&[("msg_create", 13), ("recalls", 1)]), of(&[("msg_unlink", 9)])];
        assert_eq!(Sent::between(&before, &after, 10), Sent { messages: 4.0, recalls: 1 });
    }
}
