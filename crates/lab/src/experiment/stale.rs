//! What it costs to be right: mounts that believe for a time what they have cached, as NFS does, beside mounts with leases and
//! mounts that ask each time; stale reads are counted.

use super::{Found, Lab, at_once, counters, median_micros};
use crate::LabError;
use crate::cell::{Cell, Messages};
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use crate::sim::leases::{Setting, Use};
use crate::sim::{Outcome, System, run as simulate};
use crate::workload::{Arrivals, Workload};
use soda_model::Rng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const CLIENTS: u32 = 3;
/// Of each client, a second.
const READS: f64 = 50.0;
const WRITES: f64 = 2.5;
/// Of the file, bytes; the first of them are the version that it has.
const SIZE: usize = 1024;
/// Seconds that a read may lag behind more than it is allowed: the way of a question, on a machine that does other things.
const SLACK: f64 = 0.05;

/// How a mount knows whether what it has is right.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Leases,
    Asking,
    /// It believes it for so many seconds.
    Believing(f64),
}

impl Mode {
    fn name(self) -> String {
        match self {
            Mode::Leases => "leases".to_owned(),
            Mode::Asking => "asking at each read".to_owned(),
            Mode::Believing(time) => format!("believing for {time} s"),
        }
    }

    /// A mount's options. Who asks or believes would be given leases all the same, unless it wants none.
    fn options(self) -> String {
        match self {
            Mode::Leases => "sync".to_owned(),
            Mode::Asking => "consistency=verify,lease-term=0".to_owned(),
            Mode::Believing(time) => format!("consistency=ttl={}ms,lease-term=0", time * 1e3),
        }
    }

    fn simulated(self) -> System {
        match self {
            Mode::Leases => System::Leases(Setting::soda(Use::Through)),
            Mode::Asking => System::CheckEachRead,
            Mode::Believing(time) => System::Nfs { files: time, directories: time },
        }
    }

    fn may_be_stale(self) -> bool {
        matches!(self, Mode::Believing(_))
    }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let times = lab.by_extent(vec![0.1, 0.5], vec![0.05, 0.1, 0.3, 1.0, 2.0]);
    let length = Duration::from_secs(lab.by_extent(2, 10));
    let modes = [Mode::Leases, Mode::Asking].into_iter().chain(times.iter().copied().map(Mode::Believing));
    let title = format!(
        "{CLIENTS} mounts, one file of 1 KiB that all have open; R = {READS}/s, W = {WRITES}/s of each, {} s",
        length.as_secs()
    );
    let head = [
        "mode",
        "reads",
        "writes",
        "stale",
        "%",
        "simulated, %",
        "longest lag (s)",
        "messages per read",
        "simulated",
        "median read (us)",
    ];
    let mut table = Table::new(&title, head);
    let mut all = Vec::new();
    for mode in modes {
        (lab.progress)(&mode.name());
        let found = measure(lab, mode, length)?;
        // As often as was drawn here: in a short time chance is far from the mean.
        let often = |count: u64| count as f64 / f64::from(CLIENTS) / length.as_secs_f64();
        let rates = (often(found.reads.len() as u64), often(found.writes));
        let there = simulated(mode, rates, lab.by_extent(2000.0, 20_000.0))?;
        table.row([
            mode.name().into(),
            found.reads.len().into(),
            found.writes.into(),
            found.stale().into(),
            (100.0 * found.part()).into(),
            (100.0 * there.stale).into(),
            found.longest().into(),
            found.messages.into(),
            there.messages.into(),
            median_micros(found.reads.iter().map(|read| read.took).collect()).into(),
        ]);
        all.push((mode, found, there));
    }
    let believing = || {
        let of = |(mode, found, there): &(Mode, Measured, Simulated)| match mode {
            Mode::Believing(time) => Some((*time, found.part(), found.messages, *there)),
            _ => None,
        };
        all.iter().filter_map(of).collect::<Vec<_>>()
    };
    let points = |of: fn(&(f64, f64, f64, Simulated)) -> f64| -> Vec<(f64, f64)> {
        believing().iter().map(|at| (at.0, of(at))).collect()
    };
    let ends = [times.first(), times.last()].into_iter().flatten().copied().collect::<Vec<f64>>();
    let line = |at: usize| {
        let (mode, found, _) = &all[at];
        let points = ends.iter().map(|time| (*time, found.messages)).collect();
        Series::new(format!("{}, measured", mode.name()), Style::Line, points).looking(at + 2, at + 2)
    };
    let x = || Axis::logarithmic("time for which a mount believes what it has (s)");
    let longest = times.last().copied().unwrap_or_default();
    let at_longest = believing().last().map_or(f64::NAN, |at| 100.0 * at.1);
    Ok(Found {
        paper: "NFS gives no guarantee: other clients may not see a change for up to 6 seconds (the introduction), which \
                SODA was made to mend.",
        why: format!(
            "{WHY} Here {} % of the reads were stale with {longest} s, and a read took {} messages; {} with leases, {} for \
             who asks.",
            digits(at_longest),
            digits(believing().last().map_or(f64::NAN, |at| at.2)),
            digits(all[0].1.messages),
            digits(all[1].1.messages),
        ),
        figures: vec![
            Figure::new(
                "stale",
                "Stale reads of mounts that believe for a time; 3 clients, R = 50/s, W = 2.5/s",
                x(),
                Axis::linear("reads that are stale (%)"),
                vec![
                    Series::new("measured", Style::Points, points(|at| 100.0 * at.1)).looking(0, 0),
                    Series::new("NFS, simulated", Style::Line, points(|at| 100.0 * at.3.stale)).looking(1, 1),
                ],
            ),
            Figure::new(
                "messages",
                "Messages of mounts that believe for a time; 3 clients, R = 50/s, W = 2.5/s",
                x(),
                Axis::logarithmic("messages for each read"),
                vec![
                    Series::new("believing, measured", Style::Points, points(|at| at.2)).looking(0, 0),
                    Series::new("NFS, simulated", Style::Line, points(|at| at.3.messages)).looking(1, 1),
                    line(0),
                    line(1),
                ],
            ),
        ],
        tables: vec![table],
        checks: checks(&all),
        files: Vec::new(),
    })
}

pub(super) const WHY: &str = "Who believes for a time asks once in that time, however seldom the file changes, and does not see \
    what others write meanwhile; who has a lease is told, and asks after a change only. Where a file is written as often as \
    here, being told costs about as much as being wrong for a short time. A read is stale that returns something older \
    than the last write that had returned before the read began; so it is counted in the simulation, too.";

fn checks(all: &[(Mode, Measured, Simulated)]) -> Vec<Check> {
    let of = |may: bool| all.iter().filter(move |(mode, ..)| mode.may_be_stale() == may);
    let stale = |may: bool| -> usize { of(may).map(|(_, found, _)| found.stale()).sum() };
    let reads = |may: bool| -> usize { of(may).map(|(_, found, _)| found.reads.len()).sum() };
    let errors = of(true).map(|(mode, found, there)| (mode, 100.0 * (found.part() - there.stale)));
    let worst = errors.max_by(|one, other| one.1.abs().total_cmp(&other.1.abs()));
    let lag = |(mode, found, _): &(Mode, Measured, Simulated)| match mode {
        Mode::Believing(time) => found.longest() - time,
        _ => f64::NEG_INFINITY,
    };
    let late = of(true).map(lag).fold(f64::NEG_INFINITY, f64::max);
    vec![
        Check::counted(
            "No read is stale under leases, or for who asks each time",
            stale(false) == 0 && reads(false) > 0,
            format!("{} of {}", stale(false), reads(false)),
        ),
        Check::counted(
            "Who believes for a time what it has reads stale data",
            stale(true) > 0,
            format!("{} of {}", stale(true), reads(true)),
        ),
        Check::timed(
            "As many reads are stale as simulated, but for ten of a hundred",
            worst.is_some_and(|(_, error)| error.abs() <= 10.0),
            worst.map_or_else(String::new, |(mode, error)| format!("{error:+.1} % {}", mode.name())),
        ),
        Check::timed(
            "No read lags behind longer than its mount may believe, but for a twentieth of a second",
            late <= SLACK,
            format!("{late:+.3} s"),
        ),
    ]
}

/// One read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    took: Duration,
    /// How long before it began the first write had returned that it does not show; zero: it shows all that had.
    lag: Duration,
}

/// What was measured in one mode.
#[derive(Debug, Default)]
struct Measured {
    reads: Vec<Seen>,
    writes: u64,
    /// For consistency, of one read.
    messages: f64,
}

impl Measured {
    fn stale(&self) -> usize {
        self.reads.iter().filter(|read| !read.lag.is_zero()).count()
    }

    fn part(&self) -> f64 {
        self.stale() as f64 / self.reads.len().max(1) as f64
    }

    fn longest(&self) -> f64 {
        self.reads.iter().map(|read| read.lag).max().unwrap_or_default().as_secs_f64()
    }
}

/// Of one read, what the simulation has: the chance that it is stale, and messages.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Simulated {
    stale: f64,
    messages: f64,
}

/// With so many reads and writes a second of each client.
fn simulated(mode: Mode, rates: (f64, f64), duration: f64) -> Result<Simulated, LabError> {
    let workload = Workload { arrivals: Arrivals::Held, ..Workload::of_one_file(CLIENTS, rates, duration) };
    let outcome: Outcome = simulate(mode.simulated(), &workload, 0.0, 7)?;
    let reads = outcome.reads.max(1) as f64;
    let consistency = outcome.all().saturating_sub(outcome.changes()) as f64;
    Ok(Simulated { stale: outcome.stale_reads as f64 / reads, messages: consistency / reads })
}

/// When each version of the file was there for all to see: its write had returned.
#[derive(Debug, Default)]
struct Published(Mutex<Vec<Instant>>);

impl Published {
    fn add(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
    }

    fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// How long the write after this version had returned by then. Zero: it had not, or there is none.
    fn lag(&self, version: u64, began: Instant) -> Duration {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = usize::try_from(version).ok().and_then(|version| all.get(version));
        next.map_or(Duration::ZERO, |next| began.saturating_duration_since(*next))
    }
}

/// What the mounts of a measurement share outside the file system.
#[derive(Debug, Default)]
struct Shared {
    /// One writes at a time, so that versions come in the order of their numbers.
    writing: Mutex<()>,
    published: Published,
}

fn measure(lab: &Lab<'_>, mode: Mode, length: Duration) -> Result<Measured, LabError> {
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(CLIENTS as usize, &mode.options())?;
    let path = cell.mounts[0].root.join("shared");
    std::fs::write(&path, [0; SIZE]).map_err(LabError::io(&path))?;
    let shared = Arc::new(Shared::default());
    let handles =
        cell.mounts.iter().map(|mount| Handles::open(&mount.root)).collect::<Result<Vec<_>, _>>()?;
    // Everybody has looked at it before it counts.
    handles.iter().try_for_each(|handles| handles.version().map(drop))?;
    let before = counters(&cell)?;
    let found = at_once(&handles, |number, handles| {
        let (handles, shared) = (Arc::clone(handles), Arc::clone(&shared));
        move || client(&handles, &shared, number as u64, length)
    })?;
    let after = counters(&cell)?;
    let pairs = before.iter().zip(&after);
    let asked = pairs.map(|(before, after)| Messages::between(before, after)).sum::<Messages>();
    let reads: Vec<Seen> = found.into_iter().flatten().collect();
    let messages = asked.for_consistency() as f64 / reads.len().max(1) as f64;
    Ok(Measured { reads, writes: shared.published.count(), messages })
}

/// The file of a mount, open as long as it is measured.
#[derive(Debug)]
struct Handles {
    root: std::path::PathBuf,
    read: File,
    written: File,
}

impl Handles {
    fn open(root: &Path) -> Result<Arc<Handles>, LabError> {
        let path = root.join("shared");
        let open = |options: &OpenOptions| options.open(&path).map_err(LabError::io(&path));
        let (read, written) = (open(OpenOptions::new().read(true))?, open(OpenOptions::new().write(true))?);
        Ok(Arc::new(Handles { root: root.to_owned(), read, written }))
    }

    fn version(&self) -> Result<u64, LabError> {
        let mut block = [0; SIZE];
        self.read.read_exact_at(&mut block, 0).map_err(LabError::io(&self.root))?;
        let (number, _) = block.split_at(size_of::<u64>());
        Ok(number.try_into().map_or(0, u64::from_le_bytes))
    }

    fn write(&self, version: u64) -> Result<(), LabError> {
        let mut block = [7; SIZE];
        block[..size_of::<u64>()].copy_from_slice(&version.to_le_bytes());
        self.written.write_all_at(&block, 0).map_err(LabError::io(&self.root))
    }
}

/// Reads and writes at random for a while.
fn client(handles: &Handles, shared: &Shared, seed: u64, length: Duration) -> Result<Vec<Seen>, LabError> {
    let mut rng = Rng::new(seed);
    let (start, mut due, mut reads) = (Instant::now(), Duration::ZERO, Vec::new());
    loop {
        due += Duration::from_secs_f64(rng.exponential(READS + WRITES));
        if due > length {
            return Ok(reads);
        }
        std::thread::sleep((start + due).saturating_duration_since(Instant::now()));
        if rng.uniform() <= READS / (READS + WRITES) {
            let began = Instant::now();
            let version = handles.version()?;
            reads.push(Seen { took: began.elapsed(), lag: shared.published.lag(version, began) });
        } else {
            let _turn = shared.writing.lock().unwrap_or_else(PoisonError::into_inner);
            handles.write(shared.published.count() + 1)?;
            shared.published.add();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_lags_behind_the_first_write_that_it_does_not_show() {
        let published = Published::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        published.0.lock().expect("alone").extend([at(100), at(200)]);
        let lag = |version, began| published.lag(version, at(began)).as_millis();
        assert_eq!(published.count(), 2);
        // What had not returned when the read began need not be seen.
        assert_eq!([lag(0, 50), lag(0, 100), lag(0, 130), lag(0, 250)], [0, 0, 30, 150]);
        assert_eq!([lag(1, 150), lag(1, 250), lag(2, 250), lag(3, 250)], [0, 50, 0, 0]);
    }

    #[test]
    fn stale_reads_and_those_that_lag_too_far_are_found_out() {
        let reads = |lags: &[u64]| Measured {
            reads: lags
                .iter()
                .map(|lag| Seen { took: Duration::ZERO, lag: Duration::from_millis(*lag) })
                .collect(),
            writes: 2,
            messages: 1.0,
        };
        let holds = |leases: &[u64], believing: &[u64]| -> Vec<bool> {
            let there = |stale| Simulated { stale, messages: 1.0 };
            let all = [
                (Mode::Leases, reads(leases), there(0.0)),
                (Mode::Believing(1.0), reads(believing), there(0.5)),
            ];
            checks(&all).into_iter().map(|check| check.holds).collect()
        };
        assert_eq!(holds(&[0, 0], &[0, 900, 0, 400]), [true; 4]);
        assert_eq!(holds(&[0, 1], &[0, 900, 0, 400]), [false, true, true, true]);
        assert_eq!(holds(&[0, 0], &[0, 0, 0, 0]), [true, false, false, true]);
        assert_eq!(holds(&[0, 0], &[0, 1100, 0, 400]), [true, true, true, false]);
        assert_eq!(holds(&[], &[0, 900, 0, 400]), [false, true, true, true], "nothing was read");
    }

    #[test]
    fn the_simulation_has_stale_reads_only_for_who_believes() {
        let stale = |mode| simulated(mode, (READS, WRITES), 2000.0).expect("simulated").stale;
        assert_eq!([stale(Mode::Leases), stale(Mode::Asking), stale(Mode::Believing(0.0))], [0.0; 3]);
        // Two others write; of what is believed for t all reads but the first are at a random age.
        let others = 2.0 * WRITES;
        let expected = |t: f64| READS * (t - (1.0 - (-others * t).exp()) / others) / (1.0 + READS * t);
        let found = stale(Mode::Believing(0.05));
        assert!((found - expected(0.05)).abs() < 0.02, "{found}, {}", expected(0.05));
        assert!(stale(Mode::Believing(3.0)) > stale(Mode::Believing(0.3)));
    }
}
