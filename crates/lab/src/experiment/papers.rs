//! SODA's figures 2 and 3: the paper's formula, the exact one, and the production lease core.

use super::{Found, Lab};
use crate::LabError;
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, Value, digits};
use crate::sim::leases::Setting;
use crate::sim::{INTERVAL, Outcome, System, run};
use crate::workload::Workload;
use soda_model::load::{Network, Sharing, Term};

const EXACT: &str = "The exact formula";
const UNICAST: Network = Network::Unicast;

/// Each point has a seed of its own: with one for all, all would be too high together, or too low.
fn simulate(
    lab: &Lab<'_>,
    (clients, reads, writes): (u32, f64, f64),
    term: f64,
    seed: u64,
) -> Result<Outcome, LabError> {
    let duration = lab.by_extent(1e5, 1e6) / (f64::from(clients) * (reads + writes));
    let workload = Workload::of_one_file(clients, (reads, writes), duration);
    run(System::Leases(Setting::paper(term, UNICAST)), &workload, 0.0, seed)
}

/// Points with their confidence intervals.
pub(super) fn simulated(name: &str, points: Vec<(f64, f64, f64)>) -> Series {
    let spread = points.iter().map(|(_, mean, margin)| (mean - margin, mean + margin)).collect();
    let points = points.into_iter().map(|(x, mean, _)| (x, mean)).collect();
    Series { spread, ..Series::new(name, Style::Points, points) }
}

/// Of each simulated point: its mean, half of its interval, and what the formula has.
pub(super) type Point = (f64, f64, f64);

/// That the simulation agrees with a formula: intervals of 99 % miss once in a hundred times. Of few points none may.
pub(super) fn agreement(formula: &str, points: &[Point]) -> Check {
    let outside = points.iter().filter(|(mean, margin, exact)| (mean - exact).abs() > *margin).count();
    let may_be = (points.len() / 4).min(2);
    Check::counted(
        format!("{formula} is within the interval of every simulated point but {may_be} at most"),
        outside <= may_be && !points.is_empty(),
        format!("{outside} of {} outside", points.len()),
    )
}

pub(super) const WHY_2: &str = "The same shape; the paper lets terms end at random (a Poisson event), real ones last exactly \
    as long as they are, so a lease lives longer than it has it, and who has leases sends less.";

pub(super) const WHY_3: &str = "That condition does not depend on how long leases last, so it is exact for any term; how far \
    below and above it the curves are does.";

pub(super) fn figure_2(lab: &Lab<'_>) -> Result<Found, LabError> {
    let sharing = Sharing::new(5.0, 2.0, 0.1)?;
    let curve = |cost: &dyn Fn(Term) -> f64| -> Result<Vec<(f64, f64)>, LabError> {
        (0..=120).map(|half| f64::from(half) / 2.0).map(|t| Ok((t, cost(Term::new(t)?)))).collect()
    };
    let mut table =
        Table::new("Messages per second", ["t (s)", "paper, eq. 5", "exact", "simulated", "+- (99 %)"]);
    let (mut points, mut compared) = (Vec::new(), Vec::new());
    for (seed, t) in (1..).zip([0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0]) {
        (lab.progress)(&format!("simulating a term of {t} s"));
        let (mean, margin) = simulate(lab, (5, 2.0, 0.1), t, seed)?.consistency_rate();
        points.push((t, mean, margin));
        let (paper, exact) =
            (sharing.lease_cost(Term::new(t)?, UNICAST), sharing.exact_lease_cost(Term::new(t)?, UNICAST));
        compared.push((mean, margin, exact));
        table.row([t, paper, exact, mean, margin].map(Value::from));
    }
    let series = vec![
        Series::new("paper, equation 5", Style::Line, curve(&|t| sharing.lease_cost(t, UNICAST))?),
        Series::new("exact", Style::Line, curve(&|t| sharing.exact_lease_cost(t, UNICAST))?),
        Series::new("asking each time (Sprite)", Style::Line, curve(&|_| sharing.sprite_cost())?),
        simulated("lease core, simulated", points),
    ];
    let (x, y) = (Axis::linear("lease term t (s)"), Axis::linear("messages/s for consistency"));
    let title = "SODA, figure 2: 5 clients, R = 2/s, W = 0.1/s each";
    Ok(Found {
        paper: "No optimal term: the longer, the fewer messages; 60 s gain little over 20 s.",
        why: WHY_2.to_owned(),
        figures: vec![Figure {
            whiskers: INTERVAL.to_owned(),
            ..Figure::new("messages", title, x, y, series)
        }],
        tables: vec![table],
        checks: vec![agreement(EXACT, &compared)],
        files: Vec::new(),
    })
}

pub(super) fn figure_3(lab: &Lab<'_>) -> Result<Found, LabError> {
    let (reads, writes) = (2.0, 0.05);
    let mut series = Vec::new();
    // Longer ones could not be told from 20 s.
    for t in [0.5, 2.0, 20.0] {
        let ratio = |n: u32| -> Result<(f64, f64), LabError> {
            let sharing = Sharing::new(f64::from(n), reads, writes)?;
            Ok((f64::from(n), sharing.lease_cost(Term::new(t)?, UNICAST) / sharing.sprite_cost()))
        };
        let points = (1..=80).map(ratio).collect::<Result<_, _>>()?;
        series.push(Series::new(format!("paper, t = {t} s"), Style::Line, points));
    }
    let head = ["clients", "paper", "exact", "simulated", "+- (99 %)"];
    let mut table = Table::new("Leases by asking, t = 20 s", head);
    let exact = |n: f64| -> Result<f64, LabError> {
        let sharing = Sharing::new(n, reads, writes)?;
        Ok(sharing.exact_lease_cost(Term::new(20.0)?, UNICAST) / sharing.sprite_cost())
    };
    let curve =
        (1..=80).map(|n| Ok((f64::from(n), exact(f64::from(n))?))).collect::<Result<_, LabError>>()?;
    series.push(Series::new("exact, t = 20 s", Style::Line, curve));
    let (mut points, mut compared, mut even) = (Vec::new(), Vec::new(), Vec::new());
    for (seed, n) in (1..).zip([1, 5, 10, 20, 30, 41, 60, 80]) {
        (lab.progress)(&format!("simulating {n} clients"));
        let sharing = Sharing::new(f64::from(n), reads, writes)?;
        let (mean, margin) = simulate(lab, (n, reads, writes), 20.0, seed)?.consistency_rate();
        let asking = sharing.sprite_cost();
        points.push((f64::from(n), mean / asking, margin / asking));
        let paper = sharing.lease_cost(Term::new(20.0)?, UNICAST) / asking;
        let exact = exact(f64::from(n))?;
        compared.push((mean / asking, margin / asking, exact));
        if (f64::from(n) - (reads + writes) / writes).abs() < 1e-9 {
            even.push(Check::counted(
                format!("With {n} clients = (R + W) / W the simulated core costs what asking costs"),
                (mean / asking - 1.0).abs() <= margin / asking,
                format!("{} +- {} times", digits(mean / asking), digits(margin / asking)),
            ));
        }
        table.row([f64::from(n), paper, exact, mean / asking, margin / asking].map(Value::from));
    }
    series.push(Series::new("asking each time (Sprite)", Style::Line, vec![(1.0, 1.0), (80.0, 1.0)]));
    series.push(simulated("lease core, t = 20 s", points));
    let (x, y) = (Axis::linear("clients N"), Axis::linear("messages of leases / messages of asking"));
    let title = "SODA, figure 3: R = 2/s, W = 0.05/s each; above 1 leases do not pay";
    Ok(Found {
        paper: "Leases pay while N < (R + W) / W = 41, whatever the term.",
        why: WHY_3.to_owned(),
        figures: vec![Figure { whiskers: INTERVAL.to_owned(), ..Figure::new("ratio", title, x, y, series) }],
        tables: vec![table],
        checks: std::iter::once(agreement(EXACT, &compared)).chain(even).collect(),
        files: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulation_that_is_off_is_found_out() {
        let points: Vec<Point> = (1..=9).map(|n| (f64::from(n), 0.1, f64::from(n) + 0.05)).collect();
        assert!(agreement(EXACT, &points).holds);
        let off: Vec<Point> =
            points.iter().map(|(mean, margin, exact)| (*mean, *margin, exact * 1.1)).collect();
        assert!(!agreement(EXACT, &off).holds, "{}", agreement(EXACT, &off));
        assert!(!agreement(EXACT, &[]).holds);
        let one_off = |of: &[Point]| agreement(EXACT, &[&off[8..], of].concat()).holds;
        assert!(one_off(&points[..8]) && !one_off(&points[..2]), "one of few is too many");
    }
}
