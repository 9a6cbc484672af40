//! The model along one of its parameters.

use super::{Parameters, Quantity, found, quantities};
use crate::LabError;
use crate::figure::{Axis, Figure, Scale, Series, Style, Table, Value};

/// A parameter, from where to where.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sweep {
    parameter: Parameter,
    from: f64,
    to: f64,
    /// Logarithmic: each value is so many times the one before.
    scale: Scale,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parameter {
    Clients,
    Reads,
    Writes,
    Term,
    Session,
    Writers,
    Sharers,
    Files,
    Uses,
    Conflicts,
    Dead,
    Price,
    Age,
}

/// What a sweep is called on the command line, and on an axis.
const PARAMETERS: [(&str, Parameter, &str); 13] = [
    ("n", Parameter::Clients, "N (clients)"),
    ("r", Parameter::Reads, "R (reads/s of each client)"),
    ("w", Parameter::Writes, "W (writes/s of each client)"),
    ("t", Parameter::Term, "t, lease term (s)"),
    ("session", Parameter::Session, "T, session term (s)"),
    ("writers", Parameter::Writers, "M (clients that write)"),
    ("sharers", Parameter::Sharers, "S (caches with the file)"),
    ("k", Parameter::Files, "k (files)"),
    ("u", Parameter::Uses, "u (uses/s of each object)"),
    ("c", Parameter::Conflicts, "c (conflicts/s of each object)"),
    ("f", Parameter::Dead, "f (chance that a holder is dead)"),
    ("price", Parameter::Price, "messages that a second of waiting is worth"),
    ("age", Parameter::Age, "age at which writes are told (s)"),
];

/// What is drawn by another name than its own.
const LABELS: [(&str, &str); 17] = [
    ("asking", "asking each time (Sprite)"),
    ("paper", "leases (paper, eq. 5)"),
    ("exact", "leases (exact)"),
    ("multicast", "leases, multicast (exact)"),
    ("gray_cheriton", "Gray and Cheriton"),
    ("gray_cheriton_multicast", "the same, multicast"),
    ("subset", "leases, M write"),
    ("kept", "leases that writers keep (Soda)"),
    ("session", "session leases"),
    ("node_leases", "a lease for each file"),
    ("asking_through", "asking, and writes"),
    ("through", "leases, write-through"),
    ("delayed", "delayed writes"),
    ("tree_node", "a lease for each object"),
    ("tree_deep", "a deep lease"),
    ("tree_holes", "a deep lease with holes"),
    ("write_delay_session", "write_delay, sessions"),
];

/// Rows of a table.
const ROWS: u32 = 60;
/// Points of a curve, which bends where nobody would look for a row.
const POINTS: u32 = 300;

impl Sweep {
    /// `t=0..60`, `n=1..80`.
    ///
    /// # Errors
    /// If it says something else, or nothing is in between, or a logarithmic one does not begin above 0.
    pub fn parse(text: &str, scale: Scale) -> Result<Sweep, LabError> {
        let wrong = || {
            let names = PARAMETERS.map(|(name, ..)| name).join(", ");
            LabError::Usage(format!("`{text}` is no sweep: say, such as t=0..60, one of {names}"))
        };
        let (name, range) = text.split_once('=').ok_or_else(wrong)?;
        let (from, to) = range.split_once("..").ok_or_else(wrong)?;
        let (_, parameter, _) = *PARAMETERS.iter().find(|known| known.0 == name).ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite());
        let (from, to) = (number(from).ok_or_else(wrong)?, number(to).ok_or_else(wrong)?);
        if from >= to {
            return Err(LabError::Usage(format!("`{text}`: a sweep goes from a number to a larger one")));
        }
        if scale == Scale::Logarithmic && from <= 0.0 {
            let what = format!("`{text}`: a logarithmic sweep begins above 0, such as t=0.1..1000");
            return Err(LabError::Usage(what));
        }
        let sweep = Sweep { parameter, from, to, scale };
        if sweep.values(ROWS).is_empty() {
            return Err(LabError::Usage(format!("`{text}`: there is no whole number in between")));
        }
        Ok(sweep)
    }

    /// What is worth showing of everything along it, if nobody says what.
    fn usual(&self) -> Vec<String> {
        let names: &[&str] = match self.parameter {
            Parameter::Clients | Parameter::Reads | Parameter::Writes | Parameter::Term => {
                &["asking", "paper", "exact", "multicast", "gray_cheriton", "session"]
            }
            Parameter::Session | Parameter::Files => &["node_leases", "session"],
            Parameter::Writers => &["asking", "subset", "exact"],
            Parameter::Sharers => &["gray_cheriton", "gray_cheriton_multicast", "exact", "multicast"],
            Parameter::Uses | Parameter::Conflicts => &["tree_node", "tree_deep", "tree_holes"],
            Parameter::Dead => &["write_delay", "write_delay_session"],
            Parameter::Price => &["optimal_term"],
            Parameter::Age => &["asking_through", "through", "delayed"],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Of counts of people: whole numbers, each if they are not too many.
    pub(super) fn values(&self, steps: u32) -> Vec<f64> {
        let is_count = matches!(self.parameter, Parameter::Clients | Parameter::Writers | Parameter::Sharers);
        if is_count && self.scale == Scale::Linear && self.to - self.from < f64::from(ROWS) * 4.0 {
            let first = self.from.ceil();
            let all = (0..=ROWS * 4).map(|step| first + f64::from(step));
            return all.take_while(|value| *value <= self.to).collect();
        }
        let at = |step| match self.scale {
            _ if step == steps => self.to,
            Scale::Linear => self.from + (self.to - self.from) * f64::from(step) / f64::from(steps),
            Scale::Logarithmic | Scale::Bytes => {
                self.from * (self.to / self.from).powf(f64::from(step) / f64::from(steps))
            }
        };
        let mut all: Vec<f64> = (0..=steps).map(at).collect();
        if is_count {
            all = all.into_iter().map(f64::round).collect();
            all.dedup();
        }
        all
    }

    fn label(&self) -> &'static str {
        PARAMETERS.iter().find(|known| known.1 == self.parameter).map_or("", |known| known.2)
    }

    fn at(&self, base: &Parameters, value: f64) -> Parameters {
        let mut at = *base;
        match self.parameter {
            Parameter::Clients => at.clients = value,
            Parameter::Reads => at.reads = value,
            Parameter::Writes => at.writes = value,
            Parameter::Term => at.term = value,
            Parameter::Session => at.session = value,
            Parameter::Writers => at.writers = Some(value),
            Parameter::Sharers => at.sharers = Some(value),
            Parameter::Files => at.files = value,
            Parameter::Uses => at.uses = Some(value),
            Parameter::Conflicts => at.conflicts = Some(value),
            Parameter::Dead => at.dead = value,
            Parameter::Price => at.price = value,
            Parameter::Age => at.age = value,
        }
        at
    }

    /// A row for each value; these quantities of it, all if there is none.
    ///
    /// # Errors
    /// As [`quantities`], for the first value that has no meaning; if there is no such quantity.
    pub fn table(&self, base: &Parameters, show: &[String]) -> Result<Table, LabError> {
        let mut head = vec![self.label().to_owned()];
        let mut rows = Vec::new();
        for value in self.values(ROWS) {
            let shown = shown(base, self, value, show)?;
            if rows.is_empty() {
                head.extend(shown.iter().map(|quantity| quantity.name.to_owned()));
            }
            let cells = shown.into_iter().map(|quantity| quantity.value);
            rows.push([Value::Number(value)].into_iter().chain(cells).collect());
        }
        Ok(Table { title: "What the model says".to_owned(), head, rows })
    }

    /// The same for people: with those that are usual if there is none.
    ///
    /// # Errors
    /// As [`Sweep::table`].
    pub fn short_table(&self, base: &Parameters, show: &[String]) -> Result<Table, LabError> {
        let usual = self.usual();
        self.table(base, if show.is_empty() { &usual } else { show })
    }

    /// These quantities as curves; the usual ones if there is none.
    ///
    /// # Errors
    /// As [`Sweep::table`]; if they have not the same unit, or one is a yes or no.
    pub fn figure(&self, base: &Parameters, show: &[String]) -> Result<Figure, LabError> {
        let usual = self.usual();
        let show = if show.is_empty() { &usual } else { show };
        let mut series: Vec<Series> = Vec::new();
        let mut first: Option<Quantity> = None;
        for value in self.values(POINTS) {
            for (number, quantity) in shown(base, self, value, show)?.into_iter().enumerate() {
                let Value::Number(height) = quantity.value else {
                    let what = format!("{} is yes or no: that is no curve", quantity.name);
                    return Err(LabError::Usage(what));
                };
                let first = first.get_or_insert_with(|| quantity.clone());
                if first.unit != quantity.unit {
                    return Err(LabError::Usage(format!(
                        "{} is in {}, {} in {}: one figure has one unit",
                        first.name,
                        unit(first.unit),
                        quantity.name,
                        unit(quantity.unit)
                    )));
                }
                if series.len() <= number {
                    series.push(Series::new(label(quantity.name), Style::Line, Vec::new()));
                }
                series[number].points.push((value, height));
            }
        }
        let x = Axis { scale: self.scale, ..Axis::linear(self.label()) };
        let y = Axis { scale: self.scale, ..Axis::linear(first.map_or("", |quantity| unit(quantity.unit))) };
        Ok(Figure::new("sweep", &self.title(base), x, y, series))
    }

    /// What does not change along it.
    fn title(&self, base: &Parameters) -> String {
        let all = [
            (Parameter::Clients, "N", base.clients, ""),
            (Parameter::Reads, "R", base.reads, "/s"),
            (Parameter::Writes, "W", base.writes, "/s"),
            (Parameter::Term, "t", base.term, " s"),
            (Parameter::Files, "k", base.files, ""),
        ];
        let fixed = all.iter().filter(|(parameter, ..)| *parameter != self.parameter);
        let texts = fixed.map(|(_, name, value, unit)| format!("{name} = {}{unit}", Value::Number(*value)));
        texts.collect::<Vec<_>>().join(", ")
    }
}

fn shown(base: &Parameters, sweep: &Sweep, value: f64, show: &[String]) -> Result<Vec<Quantity>, LabError> {
    let all = quantities(&sweep.at(base, value))?;
    if show.is_empty() {
        return Ok(all);
    }
    show.iter().map(|name| found(&all, name).cloned()).collect()
}

fn label(name: &'static str) -> &'static str {
    LABELS.iter().find(|(known, _)| *known == name).map_or(name, |(_, label)| label)
}

fn unit(unit: &'static str) -> &'static str {
    match unit {
        "" => "a ratio",
        "s" => "seconds",
        "%" => "per cent",
        unit => unit,
    }
}
