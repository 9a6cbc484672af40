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
use soda_lease::table::DeepLeases;
use soda_model::load::{ModelError, Network, Sharing, Subtree, Term};
use soda_protocol::{CallKind, Purpose};
use std::collections::BTreeMap;

/// Fewer operations say nothing.
const ENOUGH: f64 = 100.0;
/// Seconds after which a client with `write=behind` tells what it has changed, unless it is told otherwise.
const AGE: f64 = 1.0;

/// What clients have asked of a server, by what it does to caches.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Asked {
    reads: f64,
    /// Changes that came by calls of their own, and that came in digests.
    alone: f64,
    told: f64,
    digests: f64,
    /// Files that were opened under a lease which may run out, and byte-range locks.
    kept: f64,
}

impl Asked {
    fn of(counters: &BTreeMap<String, u64>) -> Asked {
        let calls = |purpose: Purpose| -> f64 {
            let kinds = CallKind::ALL.iter().filter(|kind| kind.purpose() == purpose);
            kinds.map(|kind| count(counters, &format!("calls.{}", kind.name()))).sum()
        };
        Asked {
            reads: calls(Purpose::Read),
            alone: calls(Purpose::Change),
            told: count(counters, "digest_records"),
            digests: calls(Purpose::Digest),
            kept: calls(Purpose::Open) + calls(Purpose::Lock),
        }
    }

    /// Messages that consistency took, as the lab counts them of mounts: two for each call that is for it and for each recall,
    /// one for each lease that went back unasked.
    fn for_consistency(&self, counters: &BTreeMap<String, u64>) -> f64 {
        2.0 * (self.reads + self.kept + count(counters, "lease.recalls")) + count(counters, "lease.releases")
    }
}

fn count(counters: &BTreeMap<String, u64>, name: &str) -> f64 {
    counters.get(name).copied().unwrap_or(0) as f64
}

/// Objects of a directory that a client has leases on before the server gives it a deep one.
fn deep_after() -> f64 {
    match DeepLeases::DEFAULT_ON {
        DeepLeases::On { after, .. } => f64::from(after),
        DeepLeases::Off => f64::INFINITY,
    }
}

/// What a server has counted, per second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Observed {
    /// Sessions at the moment.
    pub clients: f64,
    /// Reads that came to the server.
    pub misses: f64,
    /// Files opened under a lease that may run out, which the server has to know (`--object-term session` spares that), and
    /// byte-range locks.
    pub kept: f64,
    /// Messages that consistency took.
    pub consistency: f64,
    /// Uses of caches that holders have reported.
    pub hits: f64,
    /// Changes, those in digests included.
    pub changes: f64,
    /// Of these, in digests.
    pub told: f64,
    pub recalls: f64,
    /// Leases given to who had none.
    pub grants: f64,
    /// Deep leases among them.
    pub deep_grants: f64,
    pub digests: f64,
    /// Seconds in which this was counted.
    pub seconds: f64,
}

/// One recommendation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    pub about: &'static str,
    pub recommended: String,
    pub because: String,
    /// What it saves against the other choice, by the model, whether or not it is so already; not negative.
    pub saved_messages_per_s: f64,
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
    /// From what the counters of `soda stats` have grown by, and the seconds that it took.
    ///
    /// # Errors
    /// If too little has happened to say anything.
    pub fn of(counters: &BTreeMap<String, u64>, clients: usize, seconds: f64) -> Result<Observed, LabError> {
        let asked = Asked::of(counters);
        let changes = asked.alone + asked.told;
        if asked.reads + changes < ENOUGH || seconds <= 0.0 || clients == 0 {
            return Err(LabError::Failed(format!(
                "the server has seen {} operations and {clients} clients in {} s: too little to advise on; ask again \
                 when it has been used",
                asked.reads + changes,
                digits(seconds)
            )));
        }
        let rate = |name: &str| count(counters, name) / seconds;
        Ok(Observed {
            clients: clients as f64,
            misses: asked.reads / seconds,
            kept: asked.kept / seconds,
            consistency: asked.for_consistency(counters) / seconds,
            hits: rate("lease.reported_uses"),
            changes: changes / seconds,
            told: asked.told / seconds,
            recalls: rate("lease.recalls"),
            grants: rate("lease.read_grants") + rate("lease.write_grants"),
            deep_grants: rate("lease.deep_grants"),
            digests: asked.digests / seconds,
            seconds,
        })
    }

    /// Asks the model.
    ///
    /// # Errors
    /// If a counter is no number the model knows.
    pub fn advise(&self) -> Result<Report, LabError> {
        let reads = self.misses + self.hits;
        let asking = 2.0 * reads;
        let leases = self.consistency;
        let advice = vec![self.term(reads, asking, leases)?, self.mode()?, self.granularity()?];
        Ok(Report { observed: *self, asking, leases, advice, objects: Vec::new() })
    }

    fn term(&self, reads: f64, asking: f64, leases: f64) -> Result<Advice, LabError> {
        // As one file that all share: only changes that recalled something count as W.
        let conflicts = self.recalls / (self.clients - 1.0).max(1.0) / self.clients;
        let sharing = Sharing::new(self.clients, reads / self.clients, conflicts)?;
        let pays = sharing.leases_pay(Term::INFINITE, Network::Unicast);
        let saved = asking - leases;
        let (recommended, because) = if pays && saved >= 0.0 {
            let enough = sharing.term_saving(0.99)?.secs();
            (
                "as long as the session (--object-term session)".to_owned(),
                format!(
                    "leases save at least {} of {} messages/s; R/W is above N - 1 = {} (equation 8), and then longer is \
                     better: {} s would save 99 % of it if all were one file",
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
                    "leases cost {} messages/s, asking at each read would cost {}; but reads that the kernels served are \
                     not in these counts",
                    digits(leases),
                    digits(asking)
                ),
            )
        };
        Ok(Advice { about: "term", recommended, because, saved_messages_per_s: saved.abs() })
    }

    /// Messages per second that changes take: told one by one, and delayed, in digests.
    fn modes(&self) -> Result<(f64, f64), ModelError> {
        let through = 2.0 * (self.changes + self.recalls);
        // What nobody else asks for each client changes alone; of the rest, others need it as often as something was recalled.
        let contended = self.recalls.min(self.changes);
        let alone = Sharing::new(1.0, 0.0, (self.changes - contended) / self.clients)?;
        let others = (self.clients - 1.0).max(1.0);
        let writes = contended / self.clients;
        let shared = Sharing::new(self.clients, (self.recalls / others - writes).max(0.0), writes)?;
        Ok((through, self.clients * alone.delayed_write_cost(AGE)? + shared.delayed_write_cost(AGE)?))
    }

    fn mode(&self) -> Result<Advice, LabError> {
        let (through, behind) = self.modes()?;
        let saved = (through - behind).abs();
        let (recommended, because) = if self.changes == 0.0 {
            ("write=through".to_owned(), "nothing was changed".to_owned())
        } else {
            let seen = format!(
                "{} changes/s ({} % of them come in digests now), {} recalls for each; told one by one they take {} \
                 messages/s, delayed {}",
                digits(self.changes),
                digits(100.0 * self.told / self.changes),
                digits(self.recalls / self.changes),
                digits(through),
                digits(behind)
            );
            match behind < through {
                true => (
                    "write=behind where a crash of a client may lose a second".to_owned(),
                    format!("{seen}: others seldom need what is written"),
                ),
                false => (
                    "write=through".to_owned(),
                    format!(
                        "{seen}: what is written is needed elsewhere at once, and a digest would come first"
                    ),
                ),
            }
        };
        Ok(Advice { about: "mode", recommended, because, saved_messages_per_s: saved })
    }

    fn granularity(&self) -> Result<Advice, LabError> {
        // Objects that a client had not met: other leases were given again after a conflict.
        let met = (self.grants - self.recalls).max(0.0) * self.seconds / self.clients;
        let uses = self.misses + self.hits + self.changes;
        let objects = met.max(1.0);
        let each = |rate: f64| rate / self.clients / objects;
        let tree = Subtree::new(objects, each(uses), each(self.recalls))?;
        // While conflicts are rarer than uses a deep lease costs no more, and is one in place of many to begin with.
        let first = tree.first_node_cost() - tree.first_deep_cost(deep_after())?;
        let saved = self.clients * first / self.seconds;
        let asked_back = if self.grants > 0.0 { 100.0 * self.recalls / self.grants } else { 100.0 };
        let (recommended, because, saved) = if saved > 0.0 && self.recalls < uses {
            let known = if self.deep_grants > 0.0 {
                "deep leases, as there are"
            } else {
                "deep leases (--deep-leases on)"
            };
            let why = format!(
                "{} uses/s, and {} recalls/s: conflicts are rarer than uses, so one lease for a directory costs no more, and \
                 is one in place of {} that each client took first",
                digits(uses),
                digits(self.recalls),
                digits(objects)
            );
            (known.to_owned(), why, saved)
        } else {
            let why = format!(
                "{} % of the leases given were asked back: a lease on a whole directory would go as often",
                digits(asked_back)
            );
            ("node leases".to_owned(), why, 0.0)
        };
        Ok(Advice { about: "granularity", recommended, because, saved_messages_per_s: saved })
    }
}

/// Messages that only consistency needs: measured, and what the model has for as many uses and changes. Two for each exchange.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Consistency {
    /// Calls that read, open or lock, recalls, and leases that went back unasked.
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
        let asked = Asked::of(counters);
        let changes = asked.alone + asked.told;
        let uses = asked.reads + count(counters, "lease.reported_uses");
        if uses == 0.0 {
            return None;
        }
        let sharing = Sharing::new(clients, uses / clients, changes / clients).ok()?;
        Some(Consistency {
            measured: asked.for_consistency(counters),
            shared: sharing.exact_lease_cost(Term::INFINITE, Network::Unicast),
            asking: sharing.sprite_cost(),
        })
    }
}

impl Report {
    /// For people.
    pub fn table(&self) -> Table {
        let mut table = Table::new("Advice", ["about", "recommended", "saves (messages/s)", "because"]);
        for advice in &self.advice {
            let saved = digits(advice.saved_messages_per_s);
            table.row([advice.about.to_owned(), advice.recommended.clone(), saved, advice.because.clone()]);
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
    fn changes_that_come_in_digests_are_changes() {
        // Names are asked for with their attributes, and all that is written is told later: what a default mount does.
        let list = [
            ("calls.lookupstat", 100),
            ("calls.stat", 50),
            ("calls.digest", 10),
            ("digest_records", 5000),
            ("lease.reported_uses", 9000),
            ("lease.recalls", 10),
        ];
        let observed = Observed::of(&counters(&list), 4, 100.0).expect("enough");
        let found = [observed.misses, observed.changes, observed.told, observed.digests];
        assert_eq!(found, [1.5, 50.0, 50.0, 0.1]);
        let mode = &observed.advise().expect("right").advice[1];
        assert!(mode.recommended.starts_with("write=behind"), "{mode:?}");
        assert!(mode.because.contains("(100 % of them come in digests now)"), "{mode:?}");
        let consistency = Consistency::of(&counters(&list), 4).expect("reads");
        // N = 4 that share: with W = 0 the model had nothing to recall.
        assert_eq!((consistency.measured, consistency.asking), (320.0, 18_300.0));
        assert!(consistency.shared > 4.0 * 5000.0, "{consistency:?}");
    }

    #[test]
    fn what_advice_saves_is_what_the_model_has_for_the_other_choice() {
        // One client, 50 changes a second: told each, or in digests, a second after the first of them.
        let list = [("calls.write", 5000), ("calls.read", 100), ("lease.read_grants", 300)];
        let report = Observed::of(&counters(&list), 1, 100.0).expect("enough").advise().expect("right");
        let [term, mode, granularity] = &report.advice[..] else { panic!("{:?}", report.advice) };
        assert_eq!(term.saved_messages_per_s, 0.0, "all reads came to the server");
        let delayed = 2.0 / (1.0 + 1.0 / 50.0);
        assert!((mode.saved_messages_per_s - (100.0 - delayed)).abs() < 1e-9, "{mode:?}");
        // 300 leases of one object each, or the first 16 and one for the rest.
        assert!(
            (granularity.saved_messages_per_s - 2.0 * (300.0 - 17.0) / 100.0).abs() < 1e-9,
            "{granularity:?}"
        );
        assert_eq!(report.table().rows[1][2], "98.0");
        let deep = [list[0], list[1], list[2], ("lease.deep_grants", 1)];
        let report = Observed::of(&counters(&deep), 1, 100.0).expect("enough").advise().expect("right");
        assert_eq!(report.advice[2].recommended, "deep leases, as there are");
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
    fn what_terms_cost_besides_reads_is_counted_as_the_lab_counts_it_of_a_mount() {
        let of_server = counters(&[
            ("calls.read", 100),
            ("calls.opened", 900),
            ("calls.lockset", 20),
            ("calls.write", 5000),
            ("calls.sync", 7),
            ("lease.recalls", 50),
            ("lease.releases", 30),
        ]);
        let of_mount = counters(&[
            ("msg_read", 100),
            ("msg_opened", 900),
            ("msg_lockset", 20),
            ("msg_write", 5000),
            ("msg_sync", 7),
            ("recalls", 50),
            ("msg_release", 30),
        ]);
        let lab = crate::cell::Messages::between(&BTreeMap::new(), &of_mount).for_consistency();
        let measured = Consistency::of(&of_server, 2).expect("reads").measured;
        assert_eq!((measured, lab), (2170.0, 2170));
        let observed = Observed::of(&of_server, 2, 10.0).expect("enough");
        assert_eq!((observed.kept, observed.consistency), (92.0, 217.0));
    }

    #[test]
    fn too_little_is_said_to_be_too_little() {
        let error = Observed::of(&counters(&[("calls.read", 5)]), 1, 100.0).expect_err("too little");
        assert!(error.to_string().contains("5 operations"), "{error}");
        assert!(Observed::of(&counters(&[("calls.read", 500)]), 0, 100.0).is_err());
    }
}
