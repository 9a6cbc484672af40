//! Advice for single files and directories: those that a lease had to be recalled of, for which the server keeps rates.

use super::AGE;
use crate::LabError;
use crate::figure::{Table, digits};
use serde::Serialize;
use soda_model::load::{Network, Sharing, Term};

/// Fewer recalls for each use: a deep lease on the directory can cover the object.
const SELDOM: f64 = 0.2;

/// How clients have used an object lately.
#[derive(Clone, PartialEq, Debug)]
pub struct Contended {
    /// Its path, or its number.
    pub object: String,
    /// Those that used it.
    pub clients: f64,
    /// Per second, of all of them.
    pub reads: f64,
    pub writes: f64,
    /// Whether the server gives leases on it at present.
    pub leased: bool,
}

/// What the model recommends for it. Messages are per second, changes included.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ObjectAdvice {
    pub object: String,
    pub clients: f64,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    /// `leases` or `asking`.
    pub present: &'static str,
    pub term: &'static str,
    pub mode: &'static str,
    pub granularity: &'static str,
    /// As things are, if changes go through.
    pub messages: f64,
    /// Of these, what the recommended would save.
    pub saved: f64,
}

impl Contended {
    /// Asks the model. `None`: hardly used any more.
    ///
    /// # Errors
    /// If a rate is no number the model knows.
    pub fn advise(self) -> Result<Option<ObjectAdvice>, LabError> {
        let clients = self.clients.max(1.0);
        let uses = self.reads + self.writes;
        if uses == 0.0 {
            return Ok(None);
        }
        let sharing = Sharing::new(clients, self.reads / clients, self.writes / clients)?;
        let asking = sharing.sprite_cost() + 2.0 * self.writes;
        let through = sharing.exact_lease_cost(Term::INFINITE, Network::Unicast) + 2.0 * self.writes;
        let behind = sharing.delayed_write_cost(AGE)?;
        let (present, messages) = if self.leased { ("leases", through) } else { ("asking", asking) };
        // What a lease there is asked back for, of all uses.
        let recalls = sharing.exact_holders(Term::INFINITE) * (clients - 1.0) * sharing.writes();
        let granularity = if recalls / uses < SELDOM { "deep" } else { "node" };
        let best = asking.min(through).min(behind);
        let (term, mode, granularity) = match best {
            _ if asking <= best => ("none", "write=through", "-"),
            _ if through <= best => ("session", "write=through", granularity),
            _ => ("session", "write=behind", granularity),
        };
        Ok(Some(ObjectAdvice {
            object: self.object,
            clients,
            reads_per_s: self.reads,
            writes_per_s: self.writes,
            present,
            term,
            mode,
            granularity,
            messages,
            saved: (messages - best).max(0.0),
        }))
    }
}

impl ObjectAdvice {
    pub(super) fn table(objects: &[ObjectAdvice]) -> Table {
        let head = [
            "object",
            "clients",
            "reads/s",
            "writes/s",
            "at present",
            "messages/s",
            "term",
            "mode",
            "lease",
            "saved/s",
        ];
        let mut table = Table::new("What clients contend for, the busiest first:", head);
        for advice in objects {
            table.row([
                advice.object.clone(),
                digits(advice.clients),
                digits(advice.reads_per_s),
                digits(advice.writes_per_s),
                advice.present.to_owned(),
                digits(advice.messages),
                advice.term.to_owned(),
                advice.mode.to_owned(),
                advice.granularity.to_owned(),
                digits(advice.saved),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(clients: f64, reads: f64, writes: f64, leased: bool) -> ObjectAdvice {
        let object = Contended { object: "/file".to_owned(), clients, reads, writes, leased };
        object.advise().expect("rates").expect("used")
    }

    #[test]
    fn each_object_has_advice_of_its_own() {
        // Read by all and hardly written: equation (8) holds by far.
        let read = advice(4.0, 100.0, 0.1, true);
        assert_eq!((read.term, read.granularity, read.present), ("session", "deep", "leases"));
        // All write as often as they read: R/W = 1 < N - 1.
        let written = advice(4.0, 10.0, 10.0, true);
        assert_eq!((written.term, written.mode, written.granularity), ("none", "write=through", "-"));
        // 2NR + 2NW; with leases equation (4) comes on top: S = N p, p = 10 / 20 / ... as the exact formula has it.
        assert!((written.messages - written.saved - 40.0).abs() < 1e-9, "{written:?}");
        assert!(written.saved > 0.0);
        // The server has seen that by itself.
        let known = advice(4.0, 10.0, 10.0, false);
        assert_eq!((known.present, known.messages, known.saved), ("asking", 40.0, 0.0));
        // One writes in bursts that hardly anybody looks at.
        let own = advice(1.0, 0.0, 50.0, true);
        assert_eq!((own.term, own.mode), ("session", "write=behind"));
        assert!(own.saved > 90.0, "{own:?}");
    }

    #[test]
    fn what_nobody_uses_has_none_and_nonsense_is_refused() {
        let of =
            |reads, writes| Contended { object: String::new(), clients: 2.0, reads, writes, leased: true };
        assert_eq!(of(0.0, 0.0).advise().expect("rates"), None);
        assert!(of(f64::NAN, 1.0).advise().is_err());
        assert!(of(-1.0, 2.0).advise().is_err());
    }

    #[test]
    fn the_table_has_a_line_for_each() {
        let table = ObjectAdvice::table(&[advice(4.0, 10.0, 10.0, false)]);
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.rows[0].len(), table.head.len());
    }
}
