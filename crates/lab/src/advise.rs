//! `soda lab advise`: what the model makes of a running server's counters.
//!
//! The server knows what came to it, and what holders of recalled leases said of their use. It does not know of what the kernels
//! served from their pages, nor of leases that nobody has asked for yet; so the reads are a lower bound, and what leases save is,
//! too.

mod objects;
mod waiting;

pub use objects::{Contended, ObjectAdvice};
pub use waiting::Waiting;

use crate::LabError;
use crate::figure::{Table, digits};
use serde::Serialize;
use soda_lease::table::DeepLeases;
use soda_model::load::{ModelError, Network, Sharing, Subtree, Term};
use soda_protocol::{CallKind, Purpose};
use std::collections::BTreeMap;
use waiting::{Choice, Lasting, option, percent};

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

    /// Messages that consistency took, as the lab counts them of mounts: two for each call that is for it and each recall,
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
    /// Sessions that were ended because somebody waited for their leases, and they did not answer any more.
    pub dead: f64,
    /// Leases that clients hold at the moment.
    pub held: f64,
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

/// How long writes wait for clients that are gone, by the model.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Waits {
    /// Chance, 0 to 1, that a holder that is asked for its lease is dead.
    pub dead: f64,
    /// Messages that a second of waiting is taken for worth.
    pub price: f64,
    /// Seconds on average, if leases last as recommended.
    pub recommended_s: f64,
    /// The same if they last as long as the session.
    pub session_s: f64,
}

/// What is observed, and what follows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    pub observed: Observed,
    /// Messages per second if every read asked (term 0).
    pub asking: f64,
    /// Messages per second that leases cost now.
    pub leases: f64,
    pub waits: Waits,
    pub advice: Vec<Advice>,
    /// Of single files and directories, the busiest first.
    pub objects: Vec<ObjectAdvice>,
}

impl Observed {
    /// From what the counters of `soda stats` have grown by, and the seconds that it took; `leases` is how many there are.
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
            dead: rate("lease.fences"),
            // A level, not a count.
            held: count(counters, "leases"),
            grants: rate("lease.read_grants") + rate("lease.write_grants"),
            deep_grants: rate("lease.deep_grants"),
            digests: asked.digests / seconds,
            seconds,
        })
    }

    /// Asks the model.
    ///
    /// # Errors
    /// If a counter, or what is said of waiting, is no number the model knows.
    pub fn advise(&self, waiting: &Waiting) -> Result<Report, LabError> {
        let reads = self.misses + self.hits;
        let asking = 2.0 * reads;
        let leases = self.consistency;
        let (term, choice) = self.term(reads, asking, leases, waiting)?;
        let waits = Waits {
            dead: choice.dead,
            price: waiting.price,
            recommended_s: choice.wait,
            session_s: choice.session_wait,
        };
        let advice = vec![term, self.mode()?, self.granularity()?];
        Ok(Report { observed: *self, asking, leases, waits, advice, objects: Vec::new() })
    }

    /// The chance that a holder that is asked for its lease is dead, as counted.
    pub fn chance_of_dead(&self) -> f64 {
        if self.recalls > 0.0 { (self.dead / self.recalls).min(1.0) } else { 0.0 }
    }

    fn term(
        &self,
        reads: f64,
        asking: f64,
        leases: f64,
        waiting: &Waiting,
    ) -> Result<(Advice, Choice), LabError> {
        // Only changes that recalled something count as W. All leases are taken for alike: one that is never lost has to be
        // renewed as well when a term ends, and the more there are, the less often each is used.
        let alike = (self.held / self.clients).max(1.0);
        let conflicts = self.recalls / (self.clients - 1.0).max(1.0) / self.clients;
        let sharing = Sharing::new(self.clients, reads / self.clients / alike, conflicts / alike)?;
        let saved = asking - leases;
        let pays = sharing.leases_pay(Term::INFINITE, Network::Unicast) && saved >= 0.0;
        let choice = waiting.choose(&sharing, self.chance_of_dead())?;
        let choice = if pays { choice } else { Choice { lasting: Lasting::None, wait: 0.0, ..choice } };
        let dead = self.said_of_dead(waiting, &choice);
        let priced = format!(
            "a second of waiting is taken for worth {} messages (--waiting-price)",
            digits(waiting.price)
        );
        let (recommended, because, saved) = match choice.lasting {
            Lasting::Session => {
                let enough = sharing.term_saving(0.99)?.secs();
                let waits = match choice.session_wait {
                    0.0 => String::new(),
                    wait => format!(
                        ", so that a write waits {} s on average; {priced}, and a shorter term would cost more than \
                         that",
                        digits(wait)
                    ),
                };
                let because = format!(
                    "leases save at least {} of {} messages/s; R/W is above N - 1 = {} (equation 8), and then longer is \
                     better: {} s would save 99 % of it if all leases were alike; {dead}{waits}",
                    digits(saved),
                    digits(asking),
                    digits(self.clients - 1.0),
                    digits(enough)
                );
                ("as long as the session (--object-term session)".to_owned(), because, saved)
            }
            Lasting::Seconds(term) => {
                let because = format!(
                    "{dead}, and {priced}: with leases of {term} s a write waits {} s on average, with leases as long as \
                     the session ({} s) {} s, which is worth more than the messages that longer leases save",
                    digits(choice.wait),
                    digits(waiting.session),
                    digits(choice.session_wait)
                );
                let option = option(term);
                let saved = alike * (choice.session_cost - choice.cost);
                (format!("{option} (--object-term {option})"), because, saved)
            }
            Lasting::None if pays => {
                let because = format!(
                    "{dead}, and {priced}: with leases as long as the session a write waits {} s on average, which is \
                     worth more than the {} messages/s that leases save",
                    digits(choice.session_wait),
                    digits(saved)
                );
                let saved = alike * (choice.session_cost - choice.cost);
                ("none (--object-term 0)".to_owned(), because, saved)
            }
            Lasting::None => {
                let because = format!(
                    "leases cost {} messages/s, asking at each read would cost {}; but reads that the kernels served are \
                     not in these counts",
                    digits(leases),
                    digits(asking)
                );
                let none = "none where files are contended (--equation-8 on does that file by file)";
                (none.to_owned(), because, saved.abs())
            }
        };
        let advice = Advice { about: "term", recommended, because, saved_messages_per_s: saved };
        Ok((advice, choice))
    }

    fn said_of_dead(&self, waiting: &Waiting, choice: &Choice) -> String {
        let whole = |rate: f64| format!("{:.0}", rate * self.seconds);
        match waiting.dead {
            Some(dead) => format!("{} of the holders that are asked are dead (--dead)", percent(dead)),
            None if self.recalls == 0.0 => "nobody was asked for a lease".to_owned(),
            None if choice.dead == 0.0 => {
                format!("none of {} recalls met a client that was dead", whole(self.recalls))
            }
            None => format!(
                "{} of {} recalls met a client that was dead ({})",
                whole(self.dead),
                whole(self.recalls),
                percent(choice.dead)
            ),
        }
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
                "deep leases (which --deep-leases off turns off)"
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
    pub fn objects_table(&self) -> Table {
        ObjectAdvice::table(&self.objects)
    }
}

#[cfg(test)]
mod tests;
