//! Advice for single files and directories: those that a lease had to be recalled of, for which the server keeps rates.

use super::{AGE, Waiting};
use crate::LabError;
use crate::figure::Table;
use serde::Serialize;
use soda_model::load::{Sharing, Term};

/// Fewer recalls for each use: a deep lease on the directory can cover the object.
const SELDOM: f64 = 0.2;

/// How clients have used an object lately.
#[derive(Clone, PartialEq, Debug)]
pub struct Contended {
    /// Its path, or its number.
    pub object: String,
    /// Those that used it.
    pub clients: f64,
    /// Those that changed it, if the server tells.
    pub writers: Option<f64>,
    /// Per second, of all of them.
    pub reads: f64,
    pub writes: f64,
    /// Whether the server gives leases on it at present.
    pub leased: bool,
}

/// What the model recommends for it. Messages are per second, changes included, and waiting for dead clients at its price.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ObjectAdvice {
    pub object: String,
    pub clients: f64,
    /// Those that write; all alike where the server does not tell.
    pub writers: f64,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    /// `leases` or `asking`.
    pub present: &'static str,
    /// `none`, `session`, or as `soda serve --object-term` takes it.
    pub term: String,
    pub mode: &'static str,
    pub granularity: &'static str,
    /// As things are, if changes go through.
    pub messages: f64,
    /// Of these, what the recommended would save.
    pub saved: f64,
    /// The same if one client alone writes and delays its writes. For leases and asking only the sum of all writes matters, and
    /// delayed ones cost most if all clients write alike.
    pub saved_if_one_writes: f64,
}

impl Contended {
    /// Asks the model; `dead` is the chance that a holder that is asked is dead, as counted. `None`: hardly used any more.
    ///
    /// # Errors
    /// If a rate, or what is said of waiting, is no number the model knows.
    pub fn advise(self, waiting: &Waiting, dead: f64) -> Result<Option<ObjectAdvice>, LabError> {
        let clients = self.clients.max(1.0);
        let uses = self.reads + self.writes;
        if uses == 0.0 {
            return Ok(None);
        }
        let sharing = Sharing::new(clients, self.reads / clients, self.writes / clients)?;
        let choice = waiting.choose(&sharing, dead)?;
        let asking = sharing.sprite_cost() + 2.0 * self.writes;
        let through = choice.cost + 2.0 * self.writes;
        // Who delays writes has leases as long as the session; not more of these writes wait than if they went through.
        let delayed = |writers: f64| -> Result<f64, LabError> {
            let some = Sharing::new(clients, self.reads / clients, self.writes / writers)?;
            Ok(some.delayed_subset_cost(writers, AGE)? + choice.session_worth(&sharing))
        };
        // Counts that are estimated: not fewer clients than writers, nor writes of nobody.
        let writers = self.writers.map_or(clients, |writers| writers.clamp(1.0, clients));
        let (behind, of_one) = (delayed(writers)?, delayed(1.0)?);
        let (present, messages) = match self.leased {
            true => ("leases", choice.session_cost + 2.0 * self.writes),
            false => ("asking", asking),
        };
        // What a lease there is asked back for, of all uses.
        let recalls = sharing.exact_holders(Term::INFINITE) * (clients - 1.0) * sharing.writes();
        let granularity = if recalls / uses < SELDOM { "deep" } else { "node" };
        let best = asking.min(through).min(behind);
        let (term, mode, granularity) = match best {
            _ if asking <= best => ("none".to_owned(), "write=through", "-"),
            _ if through <= best => (choice.lasting.word(), "write=through", granularity),
            _ => ("session".to_owned(), "write=behind", granularity),
        };
        Ok(Some(ObjectAdvice {
            object: self.object,
            clients,
            writers,
            reads_per_s: self.reads,
            writes_per_s: self.writes,
            present,
            term,
            mode,
            granularity,
            messages,
            saved: (messages - best).max(0.0),
            saved_if_one_writes: (messages - best.min(of_one)).max(0.0),
        }))
    }
}

impl ObjectAdvice {
    pub(super) fn table(objects: &[ObjectAdvice]) -> Table {
        let head = [
            "object",
            "clients",
            "writers",
            "reads/s",
            "writes/s",
            "at present",
            "messages/s",
            "term",
            "mode",
            "lease",
            "saved/s",
            "if one writes",
        ];
        let mut table = Table::new("What clients contend for, the busiest first:", head);
        for advice in objects {
            table.row([
                advice.object.clone().into(),
                advice.clients.into(),
                advice.writers.into(),
                advice.reads_per_s.into(),
                advice.writes_per_s.into(),
                advice.present.into(),
                advice.messages.into(),
                advice.term.clone().into(),
                advice.mode.into(),
                advice.granularity.into(),
                advice.saved.into(),
                advice.saved_if_one_writes.into(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(clients: f64, reads: f64, writes: f64, leased: bool) -> ObjectAdvice {
        advice_with(clients, None, reads, writes, leased)
    }

    fn advice_with(
        clients: f64,
        writers: Option<f64>,
        reads: f64,
        writes: f64,
        leased: bool,
    ) -> ObjectAdvice {
        let object = Contended { object: "/file".to_owned(), clients, writers, reads, writes, leased };
        object.advise(&Waiting::default(), 0.0).expect("rates").expect("used")
    }

    #[test]
    fn who_writes_decides_whether_writes_are_delayed() {
        // A log of one machine that three others read now and then.
        let with = |writers| advice_with(4.0, writers, 10.0, 50.0, false);
        let (unknown, all, one) = (with(None), with(Some(4.0)), with(Some(1.0)));
        assert_eq!((unknown.mode, unknown.writers), ("write=through", 4.0));
        assert_eq!(all, unknown);
        assert_eq!((one.mode, one.term.as_str(), one.writers), ("write=behind", "session", 1.0), "{one:?}");
        assert_eq!(one.saved, one.saved_if_one_writes);
        assert!(one.saved > with(Some(2.0)).saved, "{one:?}");
        // Estimates may contradict each other.
        assert_eq!(with(Some(0.0)), one);
        assert_eq!(with(Some(7.0)), all);
    }

    #[test]
    fn each_object_has_advice_of_its_own() {
        // Read by all and hardly written: equation (8) holds by far.
        let read = advice(4.0, 100.0, 0.1, true);
        assert_eq!((read.term.as_str(), read.granularity, read.present), ("session", "deep", "leases"));
        // All write as often as they read: R/W = 1 < N - 1.
        let written = advice(4.0, 10.0, 10.0, true);
        assert_eq!(
            (written.term.as_str(), written.mode, written.granularity),
            ("none", "write=through", "-")
        );
        // 2NR + 2NW; with leases equation (4) comes on top: S = N p, p = 10 / 20 / ... as the exact formula has it.
        assert!((written.messages - written.saved - 40.0).abs() < 1e-9, "{written:?}");
        assert!(written.saved > 0.0);
        // The server has seen that by itself.
        let known = advice(4.0, 10.0, 10.0, false);
        assert_eq!((known.present, known.messages, known.saved), ("asking", 40.0, 0.0));
        // One writes in bursts that hardly anybody looks at.
        let own = advice(1.0, 0.0, 50.0, true);
        assert_eq!((own.term.as_str(), own.mode), ("session", "write=behind"));
        assert!(own.saved > 90.0, "{own:?}");
        // Four use it, and it is written as often as it is read: if one of them writes, it need not tell each write at once.
        let log = advice(4.0, 10.0, 50.0, false);
        assert_eq!((log.term.as_str(), log.saved), ("none", 0.0), "{log:?}");
        let only = Sharing::new(4.0, 2.5, 50.0).expect("rates");
        let delayed = only.delayed_subset_cost(1.0, AGE).expect("rates");
        assert!(
            (log.saved_if_one_writes - (log.messages - delayed)).abs() < 1e-9 && delayed < 70.0,
            "{log:?}"
        );
    }

    #[test]
    fn where_clients_die_a_contended_file_has_a_term_of_some_seconds() {
        let (object, reads, writes) = ("/file".to_owned(), 100.0, 1.0);
        let of = |dead, price| {
            let object = object.clone();
            let file = Contended { object, clients: 4.0, writers: None, reads, writes, leased: true };
            file.advise(&Waiting { price, ..Waiting::default() }, dead).expect("rates").expect("used")
        };
        let calm = of(0.0, 1000.0);
        assert_eq!((calm.term.as_str(), calm.saved), ("session", 0.0), "{calm:?}");
        let dying = of(0.01, 1000.0);
        let term = dying.term.trim_end_matches("ms").parse::<f64>().expect("milliseconds");
        assert!((100.0..1000.0).contains(&term), "{dying:?}");
        // What writes wait for the dead is in both.
        assert!(dying.messages > calm.messages + 100.0 && dying.saved > 100.0, "{dying:?}");
        assert_eq!(of(0.01, 0.0).term, "session", "nobody minds");
        assert_eq!(of(0.01, 1e7).term, "none", "nobody would wait for a lease");
    }

    #[test]
    fn what_nobody_uses_has_none_and_nonsense_is_refused() {
        let of = |reads, writes| {
            let object = String::new();
            Contended { object, clients: 2.0, writers: None, reads, writes, leased: true }
        };
        let advise = |object: Contended| object.advise(&Waiting::default(), 0.0);
        assert_eq!(advise(of(0.0, 0.0)).expect("rates"), None);
        assert!(advise(of(f64::NAN, 1.0)).is_err());
        assert!(advise(of(-1.0, 2.0)).is_err());
        assert!(of(1.0, 2.0).advise(&Waiting { price: -1.0, ..Waiting::default() }, 0.0).is_err());
    }

    #[test]
    fn the_table_has_a_line_for_each() {
        let table = ObjectAdvice::table(&[advice(4.0, 10.0, 10.0, false)]);
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.rows[0].len(), table.head.len());
    }
}
