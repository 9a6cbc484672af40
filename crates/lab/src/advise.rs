//! `soda lab advise`: what the model makes of a running server's counters.
//!
//! The server knows what came to it, and what holders of recalled leases said of their use. It does not know of what the kernels
//! served from their pages, nor of leases that nobody has asked for yet; so the reads are a lower bound, and what leases save is,
//! too.

mod objects;

pub use objects::{Contended, ObjectAdvice};

use crate::LabError;
use crate::figure::{Table, digits};
use serde::Serialize;
use soda_model::load::{Sharing, Term};
use std::collections::BTreeMap;

/// Calls that read, and calls that change something.
const READS: [&str; 8] =
    ["lookup", "getattr", "readlink", "readdir", "getxattrs", "getxattr", "read", "seek"];
const CHANGES: [&str; 10] = [
    "create",
    "link",
    "unlink",
    "rename",
    "tmpfile",
    "setattr",
    "write",
    "allocate",
    "setxattr",
    "removexattr",
];
/// Fewer operations say nothing.
const ENOUGH: f64 = 100.0;
/// Changes that recall so much less than one lease each are of files that nobody else uses.
const SELDOM: f64 = 0.2;

/// What a server has counted since its start, per second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Observed {
    /// Sessions at the moment.
    pub clients: f64,
    /// Reads that came to the server.
    pub misses: f64,
    /// Uses of caches that holders have reported.
    pub hits: f64,
    pub changes: f64,
    pub recalls: f64,
    /// Leases given to who had none.
    pub grants: f64,
    /// Deep leases among them.
    pub deep_grants: f64,
    pub digests: f64,
    /// Seconds.
    pub uptime: f64,
}

/// One recommendation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Advice {
    pub about: &'static str,
    pub recommended: String,
    pub because: String,
}

/// What is observed, and what follows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    pub observed: Observed,
    /// Messages per second if every read asked (term 0).
    pub asking: f64,
    /// Messages per second that leases cost now.
    pub leases: f64,
    pub advice: Vec<Advice>,
    /// Of single files and directories, the busiest first.
    pub objects: Vec<ObjectAdvice>,
}

impl Observed {
    /// From the counters of `soda stats` and the seconds that they took.
    ///
    /// # Errors
    /// If too little has happened to say anything.
    pub fn of(counters: &BTreeMap<String, u64>, clients: usize, uptime: f64) -> Result<Observed, LabError> {
        let count = |name: &str| counters.get(name).copied().unwrap_or(0) as f64;
        let calls = |names: &[&str]| names.iter().map(|name| count(&format!("calls.{name}"))).sum::<f64>();
        let (reads, changes) = (calls(&READS), calls(&CHANGES));
        if reads + changes < ENOUGH || uptime <= 0.0 || clients == 0 {
            return Err(LabError::Failed(format!(
                "the server has seen {} operations and {clients} clients: too little to advise on; ask again when it \
                 has been used",
                reads + changes
            )));
        }
        Ok(Observed {
            clients: clients as f64,
            misses: reads / uptime,
            hits: count("lease.reported_uses") / uptime,
            changes: changes / uptime,
            recalls: count("lease.recalls") / uptime,
            grants: (count("lease.read_grants") + count("lease.write_grants")) / uptime,
            deep_grants: count("lease.deep_grants") / uptime,
            digests: count("calls.digest") / uptime,
            uptime,
        })
    }

    /// Asks the model.
    ///
    /// # Errors
    /// If a counter is no number the model knows.
    pub fn advise(&self) -> Result<Report, LabError> {
        let reads = self.misses + self.hits;
        let asking = 2.0 * reads;
        let leases = 2.0 * (self.misses + self.recalls);
        let advice = vec![self.term(reads, asking, leases)?, self.mode(), self.granularity()];
        Ok(Report { observed: *self, asking, leases, advice, objects: Vec::new() })
    }

    fn term(&self, reads: f64, asking: f64, leases: f64) -> Result<Advice, LabError> {
        // As one file that all share: only changes that recalled something count as W.
        let conflicts = self.recalls / (self.clients - 1.0).max(1.0) / self.clients;
        let sharing = Sharing::new(self.clients, reads / self.clients, conflicts)?;
        let pays = sharing.leases_pay(Term::INFINITE, soda_model::load::Network::Unicast);
        let saved = asking - leases;
        let (recommended, because) = if pays && saved >= 0.0 {
            let enough = sharing.term_saving(0.99)?.secs();
            (
                "as long as the session (--object-term session)".to_owned(),
                format!(
                    "leases save at least {} of {} messages/s; R/W is above N - 1 = {} (equation 8), and then longer \
                     is better: {} s \
                     would save 99 % of it if all were one file",
                    digits(saved),
                    digits(asking),
                    digits(self.clients - 1.0),
                    digits(enough)
                ),
            )
        } else {
            (
                "none where files are contended (--equation-8 on does that file by file)".to_owned(),
                format!(
                    "leases cost {} messages/s, asking at each read would cost {}; but reads that the kernels served \
                     are not in \
                     these counts",
                    digits(leases),
                    digits(asking)
                ),
            )
        };
        Ok(Advice { about: "term", recommended, because })
    }

    fn mode(&self) -> Advice {
        let needed = if self.changes > 0.0 { self.recalls / self.changes } else { 0.0 };
        let (recommended, because) = if self.changes == 0.0 {
            ("write=through".to_owned(), "nothing was changed by a call of its own".to_owned())
        } else if needed < SELDOM {
            let saved = 2.0 * (self.changes - self.recalls).max(0.0);
            (
                "write=behind where a crash of a client may lose a second".to_owned(),
                format!(
                    "{} changes/s, and only {} recalls for each: others seldom need what is written; up to {} \
                     messages/s would be \
                     told in digests",
                    digits(self.changes),
                    digits(needed),
                    digits(saved)
                ),
            )
        } else {
            (
                "write=through".to_owned(),
                format!(
                    "{} recalls for each change: what is written is needed elsewhere at once, and a digest would come first",
                    digits(needed)
                ),
            )
        };
        Advice { about: "mode", recommended, because }
    }

    fn granularity(&self) -> Advice {
        let contended = if self.grants > 0.0 { self.recalls / self.grants } else { 1.0 };
        let (recommended, because) = if contended < SELDOM {
            (
                "deep leases (--deep-leases on)".to_owned(),
                format!(
                    "of {} leases/s given only {} % were ever asked back: one for a directory would do for most",
                    digits(self.grants),
                    digits(100.0 * contended)
                ),
            )
        } else {
            (
                "node leases".to_owned(),
                format!(
                    "{} % of the leases given were asked back: a lease on a whole directory would go as often",
                    { digits(100.0 * contended) }
                ),
            )
        };
        Advice { about: "granularity", recommended, because }
    }
}

/// Messages that only consistency needs: measured, and what the model has for as many uses and changes. Two for each exchange.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Consistency {
    /// Reads that came to the server, and recalls.
    pub measured: f64,
    /// By the exact formula with callbacks, if all clients shared all files alike: 2NR(1 - p) + 2S(N - 1)W.
    pub shared: f64,
    /// If every use asked: 2NR.
    pub asking: f64,
}

impl Consistency {
    /// From the counters of `soda stats`, of any time: with callbacks only the ratio of R and W counts, so numbers do for
    /// rates. `None`: nobody has read anything.
    pub fn of(counters: &BTreeMap<String, u64>, clients: u64) -> Option<Consistency> {
        let clients = clients as f64;
        let count = |name: &str| counters.get(name).copied().unwrap_or(0) as f64;
        let calls = |names: &[&str]| names.iter().map(|name| count(&format!("calls.{name}"))).sum::<f64>();
        let (misses, changes) = (calls(&READS), calls(&CHANGES));
        let uses = misses + count("lease.reported_uses");
        if uses == 0.0 {
            return None;
        }
        let sharing = Sharing::new(clients, uses / clients, changes / clients).ok()?;
        Some(Consistency {
            measured: 2.0 * (misses + count("lease.recalls")),
            shared: sharing.exact_lease_cost(Term::INFINITE, soda_model::load::Network::Unicast),
            asking: sharing.sprite_cost(),
        })
    }
}

impl Report {
    /// For people.
    pub fn table(&self) -> Table {
        let mut table = Table::new("Advice", ["about", "recommended", "because"]);
        for advice in &self.advice {
            table.row([advice.about.to_owned(), advice.recommended.clone(), advice.because.clone()]);
        }
        table
    }

    /// For people, too.
    pub fn objects_table(&self) -> Table {
        ObjectAdvice::table(&self.objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
        list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn advice(list: &[(&str, u64)], clients: usize) -> Vec<String> {
        let report = Observed::of(&counters(list), clients, 100.0).expect("enough").advise().expect("right");
        report.advice.into_iter().map(|advice| advice.recommended).collect()
    }

    #[test]
    fn machines_that_do_not_meet_want_long_deep_leases_and_delayed_writes() {
        let found = advice(
            &[
                ("calls.lookup", 1000),
                ("calls.write", 5000),
                ("lease.reported_uses", 9000),
                ("lease.recalls", 10),
                ("lease.read_grants", 1000),
                ("lease.write_grants", 500),
            ],
            4,
        );
        assert!(found[0].starts_with("as long") && found[1].starts_with("write=behind"), "{found:?}");
        assert!(found[2].starts_with("deep"), "{found:?}");
    }

    #[test]
    fn a_file_that_all_write_wants_none_of_them() {
        let found = advice(
            &[
                ("calls.read", 1000),
                ("calls.write", 1000),
                ("lease.recalls", 3000),
                ("lease.read_grants", 1000),
                ("lease.write_grants", 1000),
            ],
            4,
        );
        assert!(found[0].starts_with("none"), "{found:?}");
        assert_eq!(found[1..], ["write=through", "node leases"]);
    }

    #[test]
    fn what_is_predicted_is_what_the_formula_has_for_the_same_counts() {
        let of = |list: &[(&str, u64)], clients| Consistency::of(&counters(list), clients);
        assert_eq!(of(&[("calls.write", 10)], 3), None);
        assert_eq!(of(&[("calls.read", 10)], 0), None);
        let found = of(
            &[("calls.read", 100), ("lease.reported_uses", 900), ("calls.write", 100), ("lease.recalls", 50)],
            2,
        )
        .expect("reads");
        // R = 500, W = 50, p = 500 / 600; 4 * 500 / 6 and 2 * (2 * 5 / 6) * 50.
        assert_eq!((found.measured, found.asking), (300.0, 2000.0));
        assert!((found.shared - 500.0).abs() < 1e-9, "{}", found.shared);
    }

    #[test]
    fn too_little_is_said_to_be_too_little() {
        let error = Observed::of(&counters(&[("calls.read", 5)]), 1, 100.0).expect_err("too little");
        assert!(error.to_string().contains("5 operations"), "{error}");
        assert!(Observed::of(&counters(&[("calls.read", 500)]), 0, 100.0).is_err());
    }
}
