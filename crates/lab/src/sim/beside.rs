//! All protocols under rates of one's own, simulated with several seeds, beside the formulas: `soda lab simulate`.

use super::compare::systems;
use super::leases::{Setting, Use};
use super::{BATCHES, Outcome, System, Tree, carry_out, protocol};
use crate::LabError;
use crate::figure::{Table, Value, amount, digits};
use crate::workload::{Event, Workload};
use serde::Serialize;
use soda_model::load::{Network, Sharing, Term};
use std::fmt::{self, Display, Formatter};

/// Most clients: each event looks at all of them.
const CLIENTS: f64 = 1000.0;
/// Most reads and writes of a run, all of which are made before it begins.
const OPERATIONS: u32 = 10_000_000;
/// Most reads or writes a second of a client: the simulation's clock counts nanoseconds.
const RATE: f64 = 1e6;
/// Seconds; as long as a session of the simulation lasts.
const LONGEST: f64 = 1e9;
/// Student's t for 2, 3, 4, ... seeds: their mean is within so many of its standard errors 99 % of the time.
const STUDENT: [f64; 29] = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756,
];

/// What is simulated, and how often.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Runs {
    /// N.
    pub clients: f64,
    /// R, per second and client.
    pub reads: f64,
    /// W, per second and client.
    pub writes: f64,
    /// t, seconds; infinite for a callback.
    pub term: f64,
    /// Seconds after which delayed writes are told.
    pub age: f64,
    /// Reads and writes of a run, of all clients together, on average.
    pub operations: u32,
    /// Runs: one for each of the seeds 1, 2, 3, ...
    pub seeds: u32,
}

impl Default for Runs {
    /// Figure 2 of the SODA paper, at ten seconds.
    fn default() -> Runs {
        Runs { clients: 5.0, reads: 2.0, writes: 0.1, term: 10.0, age: 1.0, operations: 50_000, seeds: 10 }
    }
}

/// What came of it, and what the formulas have.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Beside {
    pub clients: u32,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    pub term_s: Value,
    pub age_s: Value,
    pub seeds: u32,
    /// Seconds that each run simulates.
    pub duration_s: f64,
    pub protocols: Vec<Row>,
    /// What the numbers come to, and what to mind.
    pub notes: Vec<String>,
}

/// One protocol.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    pub protocol: String,
    /// Messages a second that only consistency needs.
    pub consistency: Rate,
    /// All messages a second, writes included.
    pub all: Rate,
    pub hits_percent: f64,
    pub stale_reads: u64,
    pub reads: u64,
}

/// A rate that was simulated with several seeds. What has just begun is not in it: the first twentieth of each run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rate {
    pub mean: f64,
    /// Standard deviation of the seeds.
    pub deviation: f64,
    /// The mean would be right to within this 99 % of the time.
    pub margin: f64,
    /// Of each seed.
    pub seeds: Vec<f64>,
    /// What the model has; nothing where it has no formula.
    pub formula: Option<f64>,
}

impl Rate {
    fn of(seeds: Vec<f64>, formula: Option<f64>) -> Rate {
        let count = seeds.len() as f64;
        let mean = seeds.iter().sum::<f64>() / count;
        let variance = seeds.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let student = STUDENT.get(seeds.len().saturating_sub(2)).copied().unwrap_or(STUDENT[0]);
        let deviation = variance.sqrt();
        Rate { mean, deviation, margin: student * deviation / count.sqrt(), seeds, formula }
    }

    /// Whether the formula's is as near as chance has it 99 % of the time.
    fn agrees(&self) -> Option<bool> {
        // Rates that are the same for each seed differ in the last digits.
        self.formula.map(|formula| (self.mean - formula).abs() <= self.margin + 1e-9 * formula)
    }

    /// Mean, deviation, formula, and by how many per cent the mean is above that.
    fn cells(&self) -> [Value; 4] {
        let off =
            self.formula.filter(|formula| *formula > 0.0).map(|formula| 100.0 * (self.mean / formula - 1.0));
        [self.mean.into(), self.deviation.into(), self.formula.into(), off.into()]
    }
}

/// A protocol, and what the model has for it: for consistency, and in all.
struct Known {
    name: String,
    system: System,
    consistency: Option<f64>,
    all: Option<f64>,
}

impl Runs {
    /// Simulates all protocols.
    ///
    /// # Errors
    /// If a number has no meaning, or is more than can be simulated.
    pub fn run(&self) -> Result<Beside, LabError> {
        let known = self.known()?;
        let workload = self.workload()?;
        let mut outcomes: Vec<Vec<Outcome>> = known.iter().map(|_| Vec::new()).collect();
        for seed in 1..=u64::from(self.seeds) {
            let events = workload.events(seed)?;
            for (known, outcomes) in known.iter().zip(&mut outcomes) {
                outcomes.push(simulate(known.system, &workload, &events));
            }
        }
        let protocols: Vec<Row> =
            known.into_iter().zip(outcomes).map(|(known, runs)| known.row(&runs)).collect();
        Ok(Beside {
            clients: workload.clients,
            reads_per_s: self.reads,
            writes_per_s: self.writes,
            term_s: self.term.into(),
            age_s: self.age.into(),
            seeds: self.seeds,
            duration_s: workload.duration,
            notes: self.notes(&protocols, workload.duration),
            protocols,
        })
    }

    fn workload(&self) -> Result<Workload, LabError> {
        let refused = |what: String| Err(LabError::Usage(what));
        let Runs { clients, reads, writes, operations, seeds, .. } = *self;
        if clients.fract() != 0.0 || clients > CLIENTS {
            return refused(format!(
                "N is {clients}: a whole number of clients, {CLIENTS} at most, can be simulated"
            ));
        }
        if reads + writes == 0.0 {
            return refused(
                "R and W are 0: nobody reads or writes, so there is nothing to simulate".to_owned(),
            );
        }
        if reads.max(writes) > RATE {
            let most = amount(RATE);
            return refused(format!(
                "R is {reads}, W is {writes}: {most} a second and client at most can be simulated"
            ));
        }
        if operations == 0 || operations > OPERATIONS {
            return refused(format!("{operations} operations: 1 to {OPERATIONS} are expected"));
        }
        if !(2..=STUDENT.len() as u32 + 1).contains(&seeds) {
            let most = STUDENT.len() + 1;
            return refused(format!(
                "{seeds} seeds: 2 to {most} are expected, as one says nothing of chance"
            ));
        }
        let duration = f64::from(operations) / (clients * (reads + writes));
        if duration > LONGEST / 2.0 {
            return refused(format!(
                "{operations} operations at these rates take {duration:e} s, too long to simulate"
            ));
        }
        Ok(Workload::of_one_file(clients as u32, (reads, writes), duration))
    }

    fn known(&self) -> Result<Vec<Known>, LabError> {
        let sharing = Sharing::new(self.clients, self.reads, self.writes)?;
        let term = Term::new(self.term)?;
        let delayed = sharing.delayed_write_cost(self.age)?;
        let written = 2.0 * self.clients * self.writes;
        // No run is as long: what does not end in one is infinite.
        let longest = |time: f64| if time >= LONGEST { f64::INFINITY } else { time };
        let (secs, age) = (longest(self.term), longest(self.age));
        let soda = |usage| Setting { term: secs, ..Setting::soda(usage) };
        let behind = Setting::soda(Use::Behind { age });
        let of = |name: String, system: System, consistency: Option<f64>| Known {
            name,
            system,
            consistency,
            all: consistency.map(|cost| cost + written),
        };
        let leases = |name: &str, setting: Setting, cost: Option<f64>| {
            of(name.to_owned(), System::Leases(setting), cost)
        };
        let exact = |network| Some(sharing.exact_lease_cost(term, network));
        let mut all = vec![
            leases("leases (paper)", Setting::paper(secs, Network::Unicast), exact(Network::Unicast)),
            leases(
                "leases, by multicast",
                Setting::paper(secs, Network::Multicast),
                exact(Network::Multicast),
            ),
            leases(
                "Soda, through, no eq. 8",
                soda(Use::Through).without_policy(),
                Some(sharing.kept_lease_cost(term)),
            ),
            Known { all: Some(delayed), ..leases("Soda, behind, no eq. 8", behind.without_policy(), None) },
            leases("Soda, write=through", soda(Use::Through), None),
            leases("Soda, write=behind", behind, None),
        ];
        let others = systems().into_iter().filter(|(_, system)| !matches!(system, System::Leases(_)));
        all.extend(others.map(|(name, system)| {
            let cost = (system == System::CheckEachRead).then(|| sharing.sprite_cost());
            of(name.to_owned(), system, cost)
        }));
        Ok(all)
    }

    fn notes(&self, protocols: &[Row], duration: f64) -> Vec<String> {
        let judged = |rates: fn(&Row) -> &Rate| protocols.iter().map(move |row| (row, rates(row)));
        let all = judged(|row| &row.consistency).chain(judged(|row| &row.all));
        let all: Vec<(&Row, bool)> = all.filter_map(|(row, rate)| Some((row, rate.agrees()?))).collect();
        let mut outside: Vec<&str> =
            all.iter().filter(|(_, agrees)| !agrees).map(|(row, _)| row.protocol.as_str()).collect();
        outside.dedup();
        let within = all.iter().filter(|(_, agrees)| *agrees).count();
        let mut said =
            format!("{within} of {} formulas are within the 99 % interval of their simulation", all.len());
        if !outside.is_empty() {
            said.push_str(&format!("; not within: {}", outside.join(", ")));
        }
        let mut notes = vec![format!("{said}.")];
        // How long it takes until a lease ends.
        let ends = self.term.min(1.0 / (self.clients * self.writes));
        let begins = duration / BATCHES as f64;
        if ends.is_finite() && ends > begins {
            notes.push(format!(
                "A run simulates {} s, which is short beside leases that last some {}: it may not have settled when it is \
                 counted, after {} s (--operations).",
                digits(duration),
                digits(ends),
                digits(begins)
            ));
        }
        notes
    }
}

fn simulate(system: System, workload: &Workload, events: &[Event]) -> Outcome {
    carry_out(protocol(system, workload, &Tree::flat(workload.files as usize)), workload, events, 0.0)
}

/// Messages a second, but for those of the first stretch.
fn settled(batches: &[u64], duration: f64) -> f64 {
    let later = batches.get(1..).unwrap_or_default();
    later.iter().sum::<u64>() as f64 / (duration * later.len() as f64 / batches.len() as f64)
}

impl Known {
    fn row(self, runs: &[Outcome]) -> Row {
        let rate = |batches: fn(&Outcome) -> &[u64], formula| {
            Rate::of(runs.iter().map(|run| settled(batches(run), run.duration)).collect(), formula)
        };
        let sum = |count: fn(&Outcome) -> u64| runs.iter().map(count).sum::<u64>();
        let reads = sum(|run| run.reads);
        Row {
            protocol: self.name,
            consistency: rate(|run| &run.batches, self.consistency),
            all: rate(|run| &run.all_batches, self.all),
            hits_percent: 100.0 * sum(|run| run.hits) as f64 / reads.max(1) as f64,
            stale_reads: sum(|run| run.stale_reads),
            reads,
        }
    }
}

impl Beside {
    /// A row for each protocol.
    pub fn table(&self) -> Table {
        let head = [
            "messages/s",
            "consistency",
            "+-",
            "formula",
            "off %",
            "all",
            "all: +-",
            "all: formula",
            "all: off %",
            "hits %",
            "stale reads",
            "of reads",
        ];
        let mut table = Table::new("Simulated, beside the formulas", head);
        for row in &self.protocols {
            let mut cells = vec![Value::from(row.protocol.clone())];
            cells.extend(row.consistency.cells());
            cells.extend(row.all.cells());
            cells.extend([row.hits_percent.into(), row.stale_reads.into(), row.reads.into()]);
            table.rows.push(cells);
        }
        table
    }
}

/// What was simulated, the table, and what it comes to.
impl Display for Beside {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Beside { clients, reads_per_s, writes_per_s, term_s, age_s, seeds, duration_s, .. } = self;
        writeln!(
            f,
            "N = {clients}, R = {reads_per_s}/s, W = {writes_per_s}/s, t = {term_s} s, delayed writes told after {age_s} s; \
             {seeds} seeds of {} s each; +- is their standard deviation",
            digits(*duration_s)
        )?;
        write!(f, "{}", self.table())?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<'a>(found: &'a Beside, name: &str) -> &'a Row {
        found.protocols.iter().find(|row| row.protocol == name).expect("there is one")
    }

    #[test]
    fn the_papers_numbers_are_simulated_beside_its_formula_and_the_exact_one() {
        // Figure 2 at ten seconds: equation 5 has 7.69 messages a second, leases that really last t cost 7.22.
        let runs = Runs::default();
        let found = runs.run().expect("simulated");
        let rate = &row(&found, "leases (paper)").consistency;
        assert_eq!(rate.agrees(), Some(true), "{rate:?}");
        assert!((rate.formula.expect("exact") - 7.22).abs() < 0.005 && rate.margin < 0.2, "{rate:?}");
        let paper = Sharing::new(5.0, 2.0, 0.1).expect("right");
        let paper = paper.lease_cost(Term::new(10.0).expect("right"), Network::Unicast);
        assert!((paper - 7.69).abs() < 0.005);
        let equation_5 = Rate { formula: Some(paper), ..rate.clone() };
        assert_eq!(equation_5.agrees(), Some(false), "{rate:?}");
        // Section 3.4: asking at each read costs 2NR.
        let asking = &row(&found, "asking at each read").consistency;
        assert_eq!((asking.formula, asking.agrees()), (Some(20.0), Some(true)), "{asking:?}");
        assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
        assert!(found.notes[0].starts_with("9 of 9"), "{:?}", found.notes);
        assert_eq!(found, runs.run().expect("simulated"), "it repeats");
    }

    #[test]
    fn where_figure_3_crosses_leases_cost_what_asking_costs() {
        let runs = Runs { clients: 41.0, writes: 0.05, term: 20.0, operations: 20_000, ..Runs::default() };
        let found = runs.run().expect("simulated");
        let Rate { mean, margin, .. } = row(&found, "leases (paper)").consistency;
        assert!((mean / (2.0 * 41.0 * 2.0) - 1.0).abs() < 0.02 && margin < 0.05 * mean, "{mean} +- {margin}");
    }

    #[test]
    fn leases_that_writers_keep_cost_what_their_formula_says() {
        for (n, r, w, t) in [
            (3.0, 2.0, 0.01, 60.0),
            (2.0, 0.5, 0.5, f64::INFINITY),
            (6.0, 0.2, 0.4, 3.0),
            (1.0, 1.0, 0.5, 2.0),
        ] {
            let runs = Runs { clients: n, reads: r, writes: w, term: t, ..Runs::default() };
            let found = runs.run().expect("simulated");
            let rate = &row(&found, "Soda, through, no eq. 8").consistency;
            assert!(rate.agrees() == Some(true) && rate.margin < 0.05 * rate.mean, "{runs:?}: {rate:?}");
        }
    }

    #[test]
    fn what_nobody_writes_costs_nothing_for_good_once_everybody_has_it() {
        let runs = Runs { writes: 0.0, term: f64::INFINITY, operations: 5000, ..Runs::default() };
        let found = runs.run().expect("simulated");
        let rate = &row(&found, "leases (paper)").consistency;
        assert_eq!((rate.mean, rate.formula, rate.agrees()), (0.0, Some(0.0), Some(true)));
        assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
        let json = serde_json::to_value(&found).expect("JSON");
        assert_eq!(
            (&json["term_s"], &json["protocols"][0]["consistency"]["formula"]),
            (&"inf".into(), &0.0.into())
        );
    }

    #[test]
    fn runs_that_are_short_beside_a_lease_are_said_to_be() {
        let runs = Runs { writes: 0.0, term: 3600.0, operations: 5000, seeds: 2, ..Runs::default() };
        let found = runs.run().expect("simulated");
        assert!(found.to_string().contains("(--operations)"), "{found}");
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_in_words() {
        let usual = Runs::default();
        for (runs, words) in [
            (Runs { clients: 0.0, ..usual }, "N is 0"),
            (Runs { clients: 2.5, ..usual }, "N is 2.5: a whole number"),
            (Runs { clients: 1e6, ..usual }, "1000 at most"),
            (Runs { reads: -1.0, ..usual }, "R is -1"),
            (Runs { writes: f64::NAN, ..usual }, "W is NaN"),
            (Runs { term: -1.0, ..usual }, "t is -1"),
            (Runs { age: f64::NAN, ..usual }, "age is NaN"),
            (Runs { reads: 0.0, writes: 0.0, ..usual }, "nobody reads or writes"),
            (Runs { reads: 1e9, ..usual }, "1000000 a second"),
            (Runs { reads: 1e-9, writes: 0.0, ..usual }, "too long"),
            (Runs { seeds: 1, ..usual }, "2 to 30"),
            (Runs { seeds: 31, ..usual }, "2 to 30"),
            (Runs { operations: 0, ..usual }, "1 to 10000000"),
        ] {
            let said = runs.run().expect_err("refused").to_string();
            assert!(said.contains(words), "{runs:?}: {said}");
        }
    }
}
