//! SODA's two ratios, of the real system: what a cache is worth, and what a lease adds to a read that misses.

use super::cold::{Apart, Asked};
use super::{Found, Lab, median_micros, times};
use crate::LabError;
use crate::cell::Cell;
use crate::check::Check;
use crate::figure::{Table, digits};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of each file.
const SIZE: usize = 1024;

/// Files of one directory, in the order of their names: those that the client foresees.
fn in_order(root: &Path, files: usize) -> Vec<PathBuf> {
    (0..files).map(|number| root.join("in-order").join(format!("file{number:06}"))).collect()
}

/// The time of each read; the file is open by then.
fn read_all(paths: &[PathBuf]) -> Result<Vec<Duration>, LabError> {
    let read = |path: &PathBuf| {
        let file = File::open(path).map_err(LabError::io(path))?;
        let start = Instant::now();
        file.read_exact_at(&mut [0; SIZE], 0).map_err(LabError::io(path))?;
        Ok(start.elapsed())
    };
    paths.iter().map(read).collect()
}

/// What a mount has read in one way, and how often it asked for data meanwhile.
#[derive(Debug, Default)]
struct Way {
    times: Vec<Duration>,
    asked: Asked,
}

impl Way {
    fn add(&mut self, cell: &Cell, paths: &[PathBuf]) -> Result<(), LabError> {
        let before = Asked::by(&cell.mounts[0])?;
        self.times.extend(read_all(paths)?);
        self.asked.add(before, Asked::by(&cell.mounts[0])?);
        Ok(())
    }

    /// Of these, what was asked for before, %.
    fn foreseen(&self) -> f64 {
        100.0 * self.asked.foreseen as f64 / self.times.len().max(1) as f64
    }

    fn median(&self) -> f64 {
        median_micros(self.times.clone())
    }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let files = lab.by_extent(200, 2000);
    let apart = Apart::new("cold", files);
    let mut cell = Cell::start(lab, &["--term", "60s"])?;
    cell.mount(1, "sync")?;
    let made = cell.mounts[0].root.clone();
    apart.make(&made, &[1; SIZE])?;
    std::fs::create_dir(made.join("in-order")).map_err(LabError::io(&made))?;
    in_order(&made, files)
        .iter()
        .try_for_each(|path| std::fs::write(path, [1; SIZE]).map_err(LabError::io(path)))?;
    (lab.progress)("reads from the cache and from the server");
    let [mut with, mut without, mut cached, mut ahead, mut verified]: [Way; 5] = Default::default();
    // By turns, so that the machine's mood is the same for both; the first time is for the server's own cache.
    for round in 0..lab.by_extent(3, 8) {
        for (options, way) in [("", &mut with), ("lease-term=0", &mut without)] {
            cell.mount(1, options)?;
            let root = cell.mounts[0].root.clone();
            let paths = apart.paths(&root);
            if round == 0 {
                read_all(&paths)?;
                continue;
            }
            way.add(&cell, &paths)?;
            if options.is_empty() {
                cached.add(&cell, &paths)?;
                ahead.add(&cell, &in_order(&root, files))?;
            }
        }
    }
    cell.mount(1, "consistency=verify")?;
    let paths = apart.paths(&cell.mounts[0].root);
    read_all(&paths)?;
    verified.add(&cell, &paths)?;
    let mut table = Table::new(
        "Median time to read 1 KiB",
        ["read", "time (us)", "times a cached one", "the paper's, at least", "foreseen (%)"],
    );
    for (name, way, theirs) in [
        ("cached, under a lease", &cached, Some(1.0)),
        ("cached, the server asked each time", &verified, None),
        ("from the server, with a lease", &with, Some(13.0)),
        ("from the server, no lease given", &without, Some(13.0 / 1.2)),
        ("first time, but in the directory's order: foreseen", &ahead, None),
    ] {
        let (time, part) = (way.median(), way.median() / cached.median());
        table.row([name.into(), time.into(), part.into(), theirs.into(), way.foreseen().into()]);
    }
    let price = 100.0 * (with.median() / without.median() - 1.0);
    Ok(Found {
        paper: "A cached read is at least 13 times as fast as one from the server; a server's read with leases is 20 % \
                slower than plain NFS.",
        why: format!(
            "{WHY} Here a cached read is {} as fast as one from the server, {}. Of files that are read in the order of \
             their directory {} % were fetched before they were asked for, and a read takes {} us.",
            times(with.median(), cached.median()),
            priced(price),
            digits(ahead.foreseen()),
            digits(ahead.median())
        ),
        figures: Vec::new(),
        tables: vec![table],
        checks: vec![
            with.asked.check("Read for the first time, with a lease", with.times.len()),
            without.asked.check("With none", without.times.len()),
            Check::counted(
                "What is cached under a lease asks for no data",
                cached.asked == Asked::default(),
                format!("{} reads, {} messages", cached.times.len(), cached.asked.data),
            ),
            Check::counted(
                "Of files that are read in order most are fetched before they are asked for",
                ahead.foreseen() > 50.0,
                format!("{} of {}", ahead.asked.foreseen, ahead.times.len()),
            ),
            Check::timed(
                "A cached read is at least 13 times as fast as one from the server, as in the paper",
                with.median() >= 13.0 * cached.median(),
                times(with.median(), cached.median()),
            ),
            Check::timed(
                "A lease makes a read from the server at most twice as slow, and not faster by a third",
                (-30.0..=100.0).contains(&price),
                priced(price),
            ),
        ],
        files: Vec::new(),
    })
}

/// What a lease adds to a read from the server, %, in words.
fn priced(percent: f64) -> String {
    let word = if percent < 0.0 { "faster" } else { "slower" };
    format!("which a lease makes {} % {word}", digits(percent.abs()))
}

pub(super) const WHY: &str = "A cached read never leaves the kernel; one from the server crosses loopback only, where the \
    network costs next to nothing. Each file is in a \
    directory of its own: in the order of one directory the client would bring them before they are asked for. The paper's \
    price of a lease is what SODA adds to Linux's NFS of the time, whose clients had no cache at all; here it is what a \
    lease adds to the same client with the same cache, which asks for one or not.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_a_lease_has_a_word_for_its_sign() {
        assert_eq!(priced(20.0), "which a lease makes 20.0 % slower");
        assert_eq!(priced(-78.3), "which a lease makes 78.3 % faster");
    }
}
