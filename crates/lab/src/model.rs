//! `soda lab model`: the formulas, for one set of parameters or along a sweep of one of them.

use crate::LabError;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use serde::Serialize;
use soda_model::load::{GrayCheriton, Network, Sharing, Subtree, Term};

/// Table 1 of the SODA paper, and what its extensions need.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Parameters {
    /// N.
    pub clients: f64,
    /// R, per second and client.
    pub reads: f64,
    /// W, per second and client.
    pub writes: f64,
    /// t, seconds; infinite for a callback.
    pub term: f64,
    /// How many of the N write.
    pub writers: Option<f64>,
    /// S of Gray and Cheriton: caches that have the file when it is written. None: all.
    pub sharers: Option<f64>,
    /// k: files like this one that a client uses.
    pub files: f64,
    /// f: chance that a holder that is asked is dead.
    pub dead: f64,
    /// Seconds after which delayed writes are told.
    pub age: f64,
}

impl Default for Parameters {
    /// Figure 2 of the SODA paper.
    fn default() -> Parameters {
        Parameters {
            clients: 5.0,
            reads: 2.0,
            writes: 0.1,
            term: 10.0,
            writers: None,
            sharers: None,
            files: 1.0,
            dead: 0.0,
            age: 1.0,
        }
    }
}

/// One result of the model.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Quantity {
    /// Short and stable, for `--json` and `--csv`.
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    /// What it is, and where it comes from.
    pub meaning: &'static str,
}

/// A parameter that can be swept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    Clients,
    Reads,
    Writes,
    Term,
    Files,
    Dead,
}

/// A parameter, from where to where.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sweep {
    parameter: Parameter,
    from: f64,
    to: f64,
}

/// Points of a sweep.
const STEPS: u32 = 60;

const COSTS: [(&str, &str); 6] = [
    ("asking", "asking each time (Sprite)"),
    ("paper", "leases (paper, eq. 5)"),
    ("exact", "leases (exact)"),
    ("multicast", "leases, multicast (exact)"),
    ("gray_cheriton", "Gray and Cheriton"),
    ("session", "session leases"),
];

/// All that the model says of these parameters.
///
/// # Errors
/// If a parameter has no meaning, such as N = 0.
pub fn quantities(parameters: &Parameters) -> Result<Vec<Quantity>, LabError> {
    let sharing = Sharing::new(parameters.clients, parameters.reads, parameters.writes)?;
    let term = Term::new(parameters.term)?;
    let writers = parameters.writers.unwrap_or(parameters.clients);
    let sharers = parameters.sharers.unwrap_or(parameters.clients);
    let gray = GrayCheriton::new(sharing, sharers)?;
    let renewed = sharing.renewed_on_use(term);
    let tree =
        Subtree::new(parameters.files, parameters.reads, (parameters.clients - 1.0) * parameters.writes)?;
    let never = f64::INFINITY;
    let secs = |term: Option<Term>| term.map_or(never, Term::secs);
    let (unicast, multicast) = (Network::Unicast, Network::Multicast);
    let quantity = |(name, value, unit, meaning)| Quantity { name, value, unit, meaning };
    let list = [
        ("asking", sharing.sprite_cost(), "messages/s", "asking at each read: 2NR (section 3.4)"),
        ("holders", sharing.holders(term), "clients", "S, eq. 2: clients with a valid lease"),
        ("read_cost", sharing.read_cost(term), "messages/s", "C_R, eq. 3: leases given to readers"),
        (
            "write_cost",
            sharing.write_cost(term, unicast),
            "messages/s",
            "C_W, eq. 4: leases recalled for writers",
        ),
        ("paper", sharing.lease_cost(term, unicast), "messages/s", "C_total, eq. 5"),
        (
            "paper_multicast",
            sharing.lease_cost(term, multicast),
            "messages/s",
            "C_total with multicast, eq. 5",
        ),
        (
            "exact",
            sharing.exact_lease_cost(term, unicast),
            "messages/s",
            "the same, of leases that really last t",
        ),
        ("multicast", sharing.exact_lease_cost(term, multicast), "messages/s", "the same with multicast"),
        (
            "approximation_error",
            100.0 * sharing.approximation_error(term, unicast).cost,
            "%",
            "by how much eq. 5 is off",
        ),
        (
            "gray_cheriton",
            gray.cost(term, unicast),
            "messages/s",
            "Gray and Cheriton 1989, formula 1, unicast",
        ),
        ("benefit_factor", gray.benefit_factor(), "", "theirs: alpha = 2R/SW; above 1 leases can pay"),
        (
            "subset",
            sharing.subset_cost(writers, term, unicast)?,
            "messages/s",
            "only --writers of the N write",
        ),
        ("renewed", renewed.cost, "messages/s", "leases that are renewed if they were used"),
        ("renewed_waits", 100.0 * renewed.waiting_reads, "%", "... and reads that wait for the server then"),
        (
            "session",
            sharing.session_lease_cost(parameters.files, term, unicast)?,
            "messages/s",
            "session leases of term t for all k files",
        ),
        (
            "node_leases",
            parameters.files * sharing.exact_lease_cost(term, unicast),
            "messages/s",
            "a lease of its own for each of k files",
        ),
        (
            "deep",
            tree.deep_cost(term),
            "messages/s",
            "one client's deep lease on k objects, lost at each conflict",
        ),
        (
            "through",
            sharing.write_through_cost(term),
            "messages/s",
            "leases and the writes themselves, 2 each",
        ),
        (
            "delayed",
            sharing.delayed_write_cost(parameters.age)?,
            "messages/s",
            "delayed writes, data included",
        ),
        (
            "write_delay",
            sharing.write_delay(term, parameters.dead)?,
            "s",
            "how long a write waits for dead readers on average",
        ),
        (
            "break_even_clients",
            sharing.break_even_clients(),
            "clients",
            "from so many on leases do not pay, eq. 8",
        ),
        (
            "break_even_multicast",
            secs(sharing.break_even_term(multicast)),
            "s",
            "shortest term that pays by multicast",
        ),
        (
            "term_90",
            sharing.term_saving(0.9)?.secs(),
            "s",
            "term that saves 90 % of what an infinite one saves",
        ),
        ("term_99", sharing.term_saving(0.99)?.secs(), "s", "term that saves 99 %"),
    ];
    Ok(list.into_iter().map(quantity).collect())
}

/// The same as a table.
///
/// # Errors
/// As [`quantities`].
pub fn table(parameters: &Parameters) -> Result<Table, LabError> {
    let mut table = Table::new("What the model says", ["quantity", "value", "unit", "meaning"]);
    for Quantity { name, value, unit, meaning } in quantities(parameters)? {
        table.row([name.to_owned(), digits(value), unit.to_owned(), meaning.to_owned()]);
    }
    Ok(table)
}

impl Sweep {
    /// `t=0..60`, `n=1..80`: of n, r, w, t, k, f.
    ///
    /// # Errors
    /// If it says something else.
    pub fn parse(text: &str) -> Result<Sweep, LabError> {
        let wrong = || {
            LabError::Usage(format!("`{text}` is no sweep: say, such as t=0..60, one of n, r, w, t, k, f"))
        };
        let (name, range) = text.split_once('=').ok_or_else(wrong)?;
        let (from, to) = range.split_once("..").ok_or_else(wrong)?;
        let parameter = match name {
            "n" => Parameter::Clients,
            "r" => Parameter::Reads,
            "w" => Parameter::Writes,
            "t" => Parameter::Term,
            "k" => Parameter::Files,
            "f" => Parameter::Dead,
            _ => return Err(wrong()),
        };
        let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite());
        let (from, to) = (number(from).ok_or_else(wrong)?, number(to).ok_or_else(wrong)?);
        if from >= to {
            return Err(LabError::Usage(format!("`{text}`: a sweep goes from a number to a larger one")));
        }
        Ok(Sweep { parameter, from, to })
    }

    fn values(&self) -> Vec<f64> {
        if self.parameter == Parameter::Clients && self.to - self.from < f64::from(STEPS) * 4.0 {
            let all = (self.from.ceil() as u32)..=(self.to.floor() as u32);
            return all.map(f64::from).collect();
        }
        let at = |step| self.from + (self.to - self.from) * f64::from(step) / f64::from(STEPS);
        (0..=STEPS).map(at).collect()
    }

    fn label(&self) -> &'static str {
        match self.parameter {
            Parameter::Clients => "N (clients)",
            Parameter::Reads => "R (reads/s of each client)",
            Parameter::Writes => "W (writes/s of each client)",
            Parameter::Term => "t, lease term (s)",
            Parameter::Files => "k (files)",
            Parameter::Dead => "f (chance that a holder is dead)",
        }
    }

    fn at(&self, base: &Parameters, value: f64) -> Parameters {
        let mut at = *base;
        match self.parameter {
            Parameter::Clients => at.clients = value,
            Parameter::Reads => at.reads = value,
            Parameter::Writes => at.writes = value,
            Parameter::Term => at.term = value,
            Parameter::Files => at.files = value,
            Parameter::Dead => at.dead = value,
        }
        at
    }
}

/// Everything along the sweep: a row for each value.
///
/// # Errors
/// As [`quantities`], for the first value that has no meaning.
pub fn sweep(base: &Parameters, sweep: &Sweep) -> Result<Table, LabError> {
    let names = quantities(base)?.into_iter().map(|quantity| quantity.name.to_owned());
    let head = std::iter::once(sweep.label().to_owned()).chain(names).collect();
    let mut table = Table { title: "What the model says".to_owned(), head, rows: Vec::new() };
    for value in sweep.values() {
        let row = quantities(&sweep.at(base, value))?;
        table.rows.push(
            std::iter::once(value).chain(row.iter().map(|quantity| quantity.value)).map(plain).collect(),
        );
    }
    Ok(table)
}

/// Costs along the sweep, drawn; the delay where f is swept.
///
/// # Errors
/// As [`sweep`].
pub fn sweep_figure(base: &Parameters, sweep: &Sweep) -> Result<Figure, LabError> {
    let delay = [("write_delay", "mean wait of a write")];
    let (shown, unit) = match sweep.parameter {
        Parameter::Dead => (&delay[..], "wait for dead readers (s)"),
        Parameter::Files => {
            (&[("node_leases", "a lease for each file"), ("session", "session leases")][..], "messages/s")
        }
        _ => (&COSTS[..], "messages/s for consistency"),
    };
    let mut series: Vec<Series> =
        shown.iter().map(|(_, name)| Series::new(*name, Style::Line, Vec::new())).collect();
    for value in sweep.values() {
        let found = quantities(&sweep.at(base, value))?;
        for ((name, _), series) in shown.iter().zip(&mut series) {
            series.points.extend(
                found.iter().find(|quantity| quantity.name == *name).map(|found| (value, found.value)),
            );
        }
    }
    let title = format!(
        "N = {}, R = {}/s, W = {}/s, t = {} s",
        plain(base.clients),
        plain(base.reads),
        plain(base.writes),
        plain(base.term)
    );
    let x = Axis::linear(sweep.label());
    Ok(Figure::new("sweep", &title, x, Axis::linear(unit), series))
}

fn plain(value: f64) -> String {
    if value.is_infinite() { "infinite".to_owned() } else { format!("{value}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(parameters: &Parameters, name: &str) -> f64 {
        let found = quantities(parameters).expect("right").into_iter().find(|quantity| quantity.name == name);
        found.expect("known").value
    }

    #[test]
    fn the_papers_figure_2_at_twenty_seconds() {
        let parameters = Parameters { term: 20.0, ..Parameters::default() };
        assert!((value(&parameters, "paper") - 380.0 / 51.0).abs() < 1e-9);
        assert_eq!(value(&parameters, "asking"), 20.0);
        assert_eq!(value(&parameters, "break_even_clients"), 21.0);
    }

    #[test]
    fn sweeps_are_read() {
        let sweep = Sweep::parse("n=1..5").expect("right");
        assert_eq!(sweep.values(), [1.0, 2.0, 3.0, 4.0, 5.0]);
        for wrong in ["t", "t=1", "x=1..2", "t=5..1", "t=a..b", "t=0..inf", "n=1..1"] {
            assert!(Sweep::parse(wrong).is_err(), "{wrong}");
        }
        let zero = super::sweep(&Parameters::default(), &Sweep::parse("n=0..3").expect("right"));
        assert!(zero.is_err_and(|error| error.to_string().contains("at least one client")));
    }

    #[test]
    fn a_sweep_is_a_table_and_a_figure() {
        let sweep = Sweep::parse("t=0..60").expect("right");
        let table = super::sweep(&Parameters::default(), &sweep).expect("right");
        assert_eq!(table.rows.len(), 61);
        assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
        let figure = sweep_figure(&Parameters::default(), &sweep).expect("right");
        assert_eq!(figure.series.len(), COSTS.len());
        assert!(figure.series.iter().all(|series| series.points.len() == 61));
    }
}
