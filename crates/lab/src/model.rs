//! `soda lab model`: the formulas, for one set of parameters or along a sweep of one of them.

mod rows;
mod sweep;
#[cfg(test)]
mod tests;
mod verdict;

pub use sweep::Sweep;

use crate::LabError;
use crate::figure::{Table, Value};
use serde::Serialize;
use soda_model::load::{GrayCheriton, Sharing, Subtree, Term};
use std::fmt::{self, Display, Formatter};

/// Table 1 of the SODA paper, and what its extensions need.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameters {
    /// N.
    pub clients: f64,
    /// R, per second and client.
    pub reads: f64,
    /// W, per second and client.
    pub writes: f64,
    /// t, seconds; infinite for a callback.
    pub term: f64,
    /// T, seconds: term of a session, for leases that last as long as one.
    pub session: f64,
    /// M: how many of the N write. None: all.
    pub writers: Option<f64>,
    /// S of Gray and Cheriton: caches that have the file when it is written. None: all.
    pub sharers: Option<f64>,
    /// m_prop of Gray and Cheriton: seconds of a message on the wire.
    pub propagation: f64,
    /// m_proc of theirs: seconds to send or to receive one.
    pub processing: f64,
    /// epsilon of theirs: seconds by which clocks may differ.
    pub uncertainty: f64,
    /// k: files like this one that a client uses, objects in a directory.
    pub files: f64,
    /// u: uses per second of an object by the client at work in the directory. None: R.
    pub uses: Option<f64>,
    /// c: how often a second others need an object there. None: (N-1)W.
    pub conflicts: Option<f64>,
    /// f: chance that a holder that is asked is dead.
    pub dead: f64,
    /// Messages that a second is worth for which a write waits.
    pub price: f64,
    /// a: seconds after which delayed writes are told; infinite for never.
    pub age: f64,
}

impl Default for Parameters {
    /// Figure 2 of the SODA paper; sessions as `soda serve` has them.
    fn default() -> Parameters {
        Parameters {
            clients: 5.0,
            reads: 2.0,
            writes: 0.1,
            term: 10.0,
            session: 10.0,
            writers: None,
            sharers: None,
            propagation: 0.0,
            processing: 0.0,
            uncertainty: 0.0,
            files: 1.0,
            uses: None,
            conflicts: None,
            dead: 0.0,
            price: 0.0,
            age: 1.0,
        }
    }
}

/// What a quantity is said of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    File,
    Conditions,
    GrayCheriton,
    Variants,
    Directory,
    Terms,
}

impl Group {
    const ALL: [Group; 6] = [
        Group::File,
        Group::Conditions,
        Group::GrayCheriton,
        Group::Variants,
        Group::Directory,
        Group::Terms,
    ];

    fn name(self) -> &'static str {
        match self {
            Group::File => "file",
            Group::Conditions => "conditions",
            Group::GrayCheriton => "gray_cheriton",
            Group::Variants => "variants",
            Group::Directory => "directory",
            Group::Terms => "terms",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Group::File => "One file, all N clients: what its consistency costs",
            Group::Conditions => "When leases pay",
            Group::GrayCheriton => "The model of Gray and Cheriton (1989), all N clients",
            Group::Variants => "Other sharing and other leases, all N clients",
            Group::Directory => "A directory of k objects: one client at work, and others who need them",
            Group::Terms => "How long a term",
        }
    }
}

/// One result of the model.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Quantity {
    pub group: Group,
    /// Short and stable, for `--json`, `--csv`, `--show`. docs/LAB.md has the formula of each.
    pub name: &'static str,
    pub value: Value,
    pub unit: &'static str,
    /// What it is, and where it comes from.
    pub meaning: &'static str,
}

/// All that the model says of some parameters.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Answer {
    pub quantities: Vec<Quantity>,
    /// The same in sentences.
    pub verdict: Vec<String>,
}

/// Parameters of which the model has made sense.
struct Case<'a> {
    parameters: &'a Parameters,
    sharing: Sharing,
    term: Term,
    session: Term,
    writers: f64,
    gray: GrayCheriton,
    tree: Subtree,
}

/// All that the model says of these parameters.
///
/// # Errors
/// If a parameter has no meaning, such as N = 0.
pub fn answer(parameters: &Parameters) -> Result<Answer, LabError> {
    let case = Case::of(parameters)?;
    Ok(Answer { quantities: case.quantities()?, verdict: verdict::sentences(&case)? })
}

/// The numbers of [`answer`] alone.
///
/// # Errors
/// Likewise.
pub fn quantities(parameters: &Parameters) -> Result<Vec<Quantity>, LabError> {
    Case::of(parameters)?.quantities()
}

impl Case<'_> {
    fn of(parameters: &Parameters) -> Result<Case<'_>, LabError> {
        let Parameters { clients, reads, writes, .. } = *parameters;
        let sharing = Sharing::new(clients, reads, writes)?;
        let term = Term::new(parameters.term)?;
        let gray = GrayCheriton::new(sharing, parameters.sharers.unwrap_or(clients))?;
        Ok(Case {
            parameters,
            sharing,
            term,
            session: Term::named("T, the session's term,", parameters.session)?,
            writers: parameters.writers.unwrap_or(clients),
            gray: gray.with_times(parameters.propagation, parameters.processing, parameters.uncertainty)?,
            tree: Subtree::new(
                parameters.files,
                parameters.uses.unwrap_or(reads),
                parameters.conflicts.unwrap_or((clients - 1.0) * writes),
            )?,
        })
    }
}

impl Answer {
    /// Only these of the quantities, and no sentences.
    ///
    /// # Errors
    /// If there is none of such a name.
    pub fn only(self, names: &[String]) -> Result<Answer, LabError> {
        let mut quantities = Vec::new();
        for name in names {
            quantities.push(found(&self.quantities, name)?.clone());
        }
        Ok(Answer { quantities, verdict: Vec::new() })
    }

    /// For programs.
    pub fn table(&self) -> Table {
        let mut table = Table::new("What the model says", ["group", "quantity", "value", "unit", "meaning"]);
        for Quantity { group, name, value, unit, meaning } in &self.quantities {
            table.row([
                group.name().into(),
                (*name).into(),
                value.clone(),
                (*unit).into(),
                (*meaning).into(),
            ]);
        }
        table
    }
}

/// Group by group; the sentences last, where a terminal shows them.
impl Display for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = |cell: &dyn Fn(&Quantity) -> usize| self.quantities.iter().map(cell).max().unwrap_or(0);
        let (name, unit) = (width(&|row| row.name.len()), width(&|row| row.unit.len()));
        let value = width(&|row| row.value.rounded().len());
        for group in Group::ALL {
            let mut rows = self.quantities.iter().filter(|row| row.group == group).peekable();
            if rows.peek().is_some() {
                writeln!(f, "{}", group.title())?;
                for row in rows {
                    let rounded = row.value.rounded();
                    writeln!(
                        f,
                        "  {:<name$}  {rounded:>value$} {:<unit$}  {}",
                        row.name, row.unit, row.meaning
                    )?;
                }
                writeln!(f)?;
            }
        }
        self.verdict.iter().try_for_each(|sentence| writeln!(f, "{sentence}"))
    }
}

fn found<'a>(quantities: &'a [Quantity], name: &str) -> Result<&'a Quantity, LabError> {
    let unknown = || {
        let names: Vec<&str> = quantities.iter().map(|quantity| quantity.name).collect();
        LabError::Usage(format!("there is no quantity `{name}`; there are: {}", names.join(", ")))
    };
    quantities.iter().find(|quantity| quantity.name == name).ok_or_else(unknown)
}
