//! What long terms cost: a write waits for the leases of readers who do not answer any more (SODA, section 2.3).

use super::{Found, Lab};
use crate::LabError;
use crate::cell::Cell;
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use soda_model::Rng;
use soda_model::load::{ModelError, Sharing, Term};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Machines that share the file, so a write meets none, one or two of them gone.
const MACHINES: usize = 3;
const OTHERS: usize = MACHINES - 1;
/// Of each machine, a second.
const READS: f64 = 20.0;
const WRITES: f64 = 1.0;
/// The chances that a machine is gone that have a curve.
const CHANCES: [f64; 3] = [0.1, 0.5, 1.0];
/// A machine that was away reads again within this, also on a busy computer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Seconds that writes waited, by how many of the others were gone.
type Waits = [Vec<f64>; MACHINES];

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let terms: Vec<f64> = lab.by_extent(vec![0.5], vec![0.5, 1.0, 2.0, 3.0]);
    let session = lab.by_extent(2.0, 3.0);
    let sharing = Sharing::new(MACHINES as f64, READS, WRITES)?;
    let head = [
        "leases last",
        "others gone",
        "writes",
        "waited on average (s)",
        "+- 2 standard errors",
        "shortest (s)",
        "longest (s)",
        "model (s)",
    ];
    let title = format!(
        "{MACHINES} machines, one file, R = {READS}/s, W = {WRITES}/s; so many of the others are frozen while one writes"
    );
    let mut table = Table::new(&title, head);
    let mut points = CHANCES.map(|_| (Vec::new(), Vec::new()));
    let mut longest = (0.0, 0.0);
    for term in terms.iter().copied() {
        (lab.progress)(&format!("leases of {term} s, machines that are gone"));
        let options = format!("sync,lease-term={}ms", term * 1e3);
        // As many as take about as long, whatever the term.
        let times = lab.by_extent(2, ((18.0 / term).round() as usize).min(30));
        // The server hears of no read that a kernel served, so by equation (8) it would give none.
        let waits = measure(lab, &["--term", "60s", "--equation-8", "off"], &options, times)?;
        let model = by_number(|chance| sharing.write_delay(Term::new(term)?, chance))?;
        rows(&mut table, &format!("{term} s"), &waits, &model);
        for ((points, spread), chance) in points.iter_mut().zip(CHANCES) {
            let (mean, error) = mixed(&waits, chance);
            points.push((term, mean));
            spread.push((mean - 2.0 * error, mean + 2.0 * error));
        }
        longest = (mixed(&waits, 0.5).0, expected(&model, 0.5));
    }
    (lab.progress)(&format!("leases as long as a session of {session} s, machines that are gone"));
    let session_term = format!("{session}s");
    let options = ["--term", session_term.as_str(), "--equation-8", "off"];
    let waits = measure(lab, &options, "sync", lab.by_extent(1, 6))?;
    let model = by_number(|chance| sharing.write_delay_of_sessions(Term::named("T", session)?, chance))?;
    rows(&mut table, &format!("as the session, {session} s"), &waits, &model);
    let most = terms.last().copied().unwrap_or_default();
    let curve = |chance: f64| -> Result<Vec<(f64, f64)>, LabError> {
        let steps = (0..=60).map(|step| f64::from(step) / 60.0 * most);
        steps.map(|t| Ok((t, sharing.write_delay(Term::new(t)?, chance)?))).collect()
    };
    let mut series = Vec::new();
    for (number, chance) in CHANCES.into_iter().enumerate() {
        let name = format!("model, f = {chance}");
        series.push(Series::new(name, Style::Line, curve(chance)?).looking(number, number));
    }
    for (number, ((points, spread), chance)) in points.into_iter().zip(CHANCES).enumerate() {
        let measured = Series::new(format!("measured, f = {chance}"), Style::Points, points);
        series.push(Series { spread, ..measured }.looking(number, number));
    }
    let (x, y) = (Axis::linear("lease term t (s)"), Axis::linear("seconds that a write waits on average"));
    let title = "Each of two others is gone with chance f when one writes; 3 machines, R = 20/s, W = 1/s";
    Ok(Found {
        paper: "If a client that holds a lease crashes or is cut off, the updates must wait until it has run out: the longer the \
                terms, the longer the wait. It has no figure for that.",
        why: format!(
            "{WHY} With leases of {most} s and f = 0.5 a write waited {} s on average, by the formula {} s; with leases as \
             long as a session of {session} s, and both others gone, {} s and {} s.",
            digits(longest.0),
            digits(longest.1),
            digits(mean_of(&waits[OTHERS]).0),
            digits(model[OTHERS])
        ),
        figures: vec![Figure {
            whiskers: "two standard errors".to_owned(),
            ..Figure::new("waits", title, x, y, series)
        }],
        tables: vec![table],
        files: Vec::new(),
        checks: vec![Check::timed(
            format!(
                "with leases of {most} s and f = 0.5 a write waits as long as the formula has it, to a half"
            ),
            (longest.0 - longest.1).abs() <= 0.5 * longest.1,
            format!("{} s, {} s", digits(longest.0), digits(longest.1)),
        )],
    })
}

pub(super) const WHY: &str = "A machine that is gone answers no recall, so a write waits for what is left of its \
    lease and no longer, as the formula has it. It can be a little more here: the server counts a lease from its answer, the \
    client from its question and gives it up early, so that who reads on has a new one before the old one is over; and \
    who writes has a lease from then on, not from its next read. Where leases last as long as the session, two thirds of \
    that are left at least, and nearly all of it of a machine that has just asked for something.";

/// Machines read and write one file at random, one at a time; while one writes, none, one or both of the others are frozen, by
/// turns, `times` each. Time stands still for the schedule while a write waits, as it does in the formula.
fn measure(lab: &Lab<'_>, server: &[&str], options: &str, times: usize) -> Result<Waits, LabError> {
    let mut cell = Cell::start(lab, server)?;
    cell.mount(MACHINES, options)?;
    let paths: Vec<_> = cell.mounts.iter().map(|mount| mount.root.join("shared")).collect();
    std::fs::write(&paths[0], [1; 1024]).map_err(LabError::io(&paths[0]))?;
    paths.iter().try_for_each(|path| read(path))?;
    let mut rng = Rng::new(times as u64);
    let mut waits = Waits::default();
    let (mut due, mut waited) = (Duration::ZERO, Duration::ZERO);
    let (began, mut turn) = (Instant::now(), 0);
    while turn < MACHINES * times {
        due += Duration::from_secs_f64(rng.exponential(MACHINES as f64 * (READS + WRITES)));
        std::thread::sleep((began + due + waited).saturating_duration_since(Instant::now()));
        let who = rng.below(MACHINES as u64) as usize;
        if rng.uniform() <= READS / (READS + WRITES) {
            read(&paths[who])?;
            continue;
        }
        let start = Instant::now();
        let file = OpenOptions::new().write(true).open(&paths[who]).map_err(LabError::io(&paths[who]))?;
        let gone = turn % MACHINES;
        let first = 1 + rng.below(OTHERS as u64) as usize;
        let others = [first, MACHINES - first].map(|step| (who + step) % MACHINES);
        let frozen = others[..gone].iter().map(|other| cell.mounts[*other].freeze());
        let frozen = frozen.collect::<Result<Vec<_>, _>>()?;
        let asked = Instant::now();
        file.write_all_at(&[2; 1024], 0).map_err(LabError::io(&paths[who]))?;
        waits[gone].push(asked.elapsed().as_secs_f64());
        drop(frozen);
        turn += 1;
        waited += start.elapsed();
    }
    Ok(waits)
}

/// Whose session has ended while it was away may be told so once or twice before it has a new one.
fn read(path: &Path) -> Result<(), LabError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match std::fs::read(path) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(LabError::io(path)(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// What the model has if none, one or two others are gone for certain, of what it has if each is with some chance: a polynomial
/// of that chance, D(f) = 2 f (1 - f) one + f^2 two.
fn by_number(delay: impl Fn(f64) -> Result<f64, ModelError>) -> Result<[f64; MACHINES], ModelError> {
    let (half, both) = (delay(0.5)?, delay(1.0)?);
    Ok([0.0, 2.0 * half - both / 2.0, both])
}

/// How often none, one or both are gone if each is with that chance.
fn weights(chance: f64) -> [f64; MACHINES] {
    let stays = 1.0 - chance;
    [stays * stays, 2.0 * chance * stays, chance * chance]
}

fn expected(by_number: &[f64; MACHINES], chance: f64) -> f64 {
    weights(chance).iter().zip(by_number).map(|(weight, delay)| weight * delay).sum()
}

/// What a write waits on average if each of the others is gone with that chance, and the standard error.
fn mixed(waits: &Waits, chance: f64) -> (f64, f64) {
    let parts = weights(chance).into_iter().zip(waits);
    let (mean, variance) = parts.fold((0.0, 0.0), |(sum, variance), (weight, waits)| {
        let (mean, error) = mean_of(waits);
        (sum + weight * mean, variance + (weight * error).powi(2))
    });
    (mean, variance.sqrt())
}

/// And the mean's standard error, 0 of a single number.
fn mean_of(waits: &[f64]) -> (f64, f64) {
    let count = waits.len() as f64;
    let mean = waits.iter().sum::<f64>() / count;
    let squares: f64 = waits.iter().map(|wait| (wait - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

fn rows(table: &mut Table, name: &str, waits: &Waits, model: &[f64; MACHINES]) {
    for (gone, (waits, model)) in waits.iter().zip(model).enumerate() {
        let (mean, error) = mean_of(waits);
        let (least, most) = waits
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(least, most), wait| (least.min(*wait), most.max(*wait)));
        table.row([
            name.into(),
            gone.into(),
            waits.len().into(),
            mean.into(),
            (2.0 * error).into(),
            least.into(),
            most.into(),
            (*model).into(),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_by_number_gone_is_put_together_as_the_model_has_it_for_a_chance() {
        let sharing = Sharing::new(3.0, READS, WRITES).expect("right");
        let delay = |chance| sharing.write_delay(Term::new(2.0)?, chance);
        let model = by_number(delay).expect("right");
        for chance in [0.0, 0.1, 0.3, 0.77, 1.0] {
            let whole = delay(chance).expect("right");
            assert!((expected(&model, chance) - whole).abs() < 1e-9, "{chance}: {model:?} {whole}");
            let waits = model.map(|delay| vec![delay; 4]);
            let (mean, error) = mixed(&waits, chance);
            assert!((mean - whole).abs() < 1e-9 && error == 0.0, "{chance}: {mean} {error}");
            assert!((weights(chance).iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
        assert!(model[0] == 0.0 && model[1] > 1.0 && model[2] > model[1] && model[2] < 2.0, "{model:?}");
    }

    #[test]
    fn errors_of_parts_count_by_their_weights() {
        let waits: Waits = [vec![0.0, 0.0], vec![1.0, 3.0], vec![2.0, 6.0]];
        assert_eq!([mean_of(&waits[1]), mean_of(&waits[2])], [(2.0, 1.0), (4.0, 2.0)]);
        assert_eq!(mean_of(&[5.0]), (5.0, 0.0));
        // A half of one, a quarter of both.
        assert_eq!(mixed(&waits, 0.5), (2.0, 0.5_f64.sqrt()));
        assert_eq!(mixed(&waits, 1.0), (4.0, 2.0));
    }
}
