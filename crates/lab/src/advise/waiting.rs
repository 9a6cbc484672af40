//! How long a term, where a writer may have to wait for a client that is gone.
//!
//! Counted in messages, longer is always better. What a long term costs are writes that wait for holders who have died, until
//! their leases have run out; what a second of that is worth is for the user to say.

use crate::figure::digits;
use serde::Serialize;
use soda_model::load::{ModelError, Network, Sharing, Term};

const UNICAST: Network = Network::Unicast;
/// Seconds. Clients give leases up 50 ms early, for clocks that drift: of shorter ones nothing is left.
const SHORTEST: f64 = 0.1;

/// What waiting costs, and how often it happens.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Waiting {
    /// Messages that a second is worth for which a write waits for a dead client.
    pub price: f64,
    /// Chance, 0 to 1, that a holder that is asked for its lease is dead. `None`: as often as the server has found one.
    pub dead: Option<f64>,
    /// Seconds that a session lasts without traffic: what leases last that have no term of their own.
    pub session: f64,
}

impl Default for Waiting {
    /// Whoever waits for an answer on a local network could have had some 500 of them in a second, of two messages each; sessions
    /// as `soda serve` has them.
    fn default() -> Waiting {
        Waiting { price: 1000.0, dead: None, session: 10.0 }
    }
}

/// How long leases should last.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Lasting {
    /// Not at all: asking at each read costs less.
    None,
    /// So many seconds.
    Seconds(f64),
    /// As long as the session.
    Session,
}

/// What is best for a file, with waiting at its price.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Choice {
    pub(super) lasting: Lasting,
    /// Messages per second of it, and of leases as long as the session.
    pub(super) cost: f64,
    pub(super) session_cost: f64,
    /// Seconds that a write waits on average, of both.
    pub(super) wait: f64,
    pub(super) session_wait: f64,
    /// The chance that was counted with.
    pub(super) dead: f64,
}

impl Choice {
    /// Messages per second that the waiting is worth with leases as long as the session.
    pub(super) fn session_worth(&self, sharing: &Sharing) -> f64 {
        self.session_cost - sharing.exact_lease_cost(Term::INFINITE, UNICAST)
    }
}

impl Waiting {
    /// Asks the model: no term, one of so many seconds, or the session's.
    pub(super) fn choose(&self, sharing: &Sharing, counted: f64) -> Result<Choice, ModelError> {
        let dead = self.dead.unwrap_or(counted);
        let session = Term::named("T", self.session)?;
        let session_cost = sharing.session_cost_with_waiting(session, UNICAST, self.price, dead)?;
        let session_wait = sharing.write_delay_of_sessions(session, dead)?;
        let best = rounded(sharing.optimal_term(UNICAST, self.price, dead)?.secs().max(SHORTEST));
        let term = Term::new(best)?;
        let cost = sharing.cost_with_waiting(term, UNICAST, self.price, dead)?;
        let choice = Choice {
            lasting: Lasting::Session,
            cost: session_cost,
            session_cost,
            wait: session_wait,
            session_wait,
            dead,
        };
        let asking = sharing.sprite_cost();
        if asking <= cost.min(session_cost) {
            return Ok(Choice { lasting: Lasting::None, cost: asking, wait: 0.0, ..choice });
        }
        // One that is longer than the session ends with it.
        if cost < session_cost && best < self.session {
            let wait = sharing.write_delay(term, dead)?;
            return Ok(Choice { lasting: Lasting::Seconds(best), cost, wait, ..choice });
        }
        Ok(choice)
    }
}

impl Lasting {
    /// In a word, for a table.
    pub(super) fn word(self) -> String {
        match self {
            Lasting::None => "none".to_owned(),
            Lasting::Seconds(term) => option(term),
            Lasting::Session => "session".to_owned(),
        }
    }
}

/// As `soda serve --object-term` takes it.
pub(super) fn option(term: f64) -> String {
    if term < 1.0 { format!("{}ms", (term * 1e3).round()) } else { format!("{term}s") }
}

/// Two digits of it: the model knows no better.
fn rounded(secs: f64) -> f64 {
    if secs.is_infinite() {
        return secs;
    }
    let unit = 10_f64.powf(secs.log10().floor() - 1.0);
    // Divided by a whole number: 2.3, not 2.3000000000000003.
    if unit < 1.0 { (secs / unit).round() / (1.0 / unit).round() } else { (secs / unit).round() * unit }
}

/// `1 %`, of a chance.
pub(super) fn percent(chance: f64) -> String {
    let percent = 100.0 * chance;
    if percent < 0.01 { format!("{} %", digits(percent)) } else { format!("{percent:.2} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(price: f64, dead: f64) -> Choice {
        let figure_2 = Sharing::new(5.0, 2.0, 0.1).expect("right");
        Waiting { price, ..Waiting::default() }.choose(&figure_2, dead).expect("right")
    }

    #[test]
    fn who_never_waits_or_has_no_price_for_it_keeps_leases_as_long_as_the_session() {
        for (price, dead) in [(1000.0, 0.0), (0.0, 0.5)] {
            let found = choice(price, dead);
            assert_eq!((found.lasting, found.cost), (Lasting::Session, found.session_cost), "{price} {dead}");
        }
    }

    #[test]
    fn the_more_waiting_costs_the_shorter_is_the_term_until_none_is_best() {
        let seconds = |price: f64| match choice(price, 0.01).lasting {
            Lasting::Seconds(term) => term,
            Lasting::None => 0.0,
            Lasting::Session => f64::INFINITY,
        };
        let terms = [1.0, 30.0, 100.0, 1e5].map(seconds);
        assert!(terms.is_sorted_by(|longer, shorter| longer > shorter), "{terms:?}");
        assert_eq!((terms[0], terms[3]), (f64::INFINITY, 0.0), "{terms:?}");
        let found = choice(100.0, 0.01);
        assert!(found.cost < found.session_cost && found.wait < found.session_wait, "{found:?}");
    }

    #[test]
    fn nothing_that_the_model_has_costs_less_than_what_is_chosen() {
        let figure_2 = Sharing::new(5.0, 2.0, 0.1).expect("right");
        for (price, dead) in [(30.0, 0.01), (100.0, 0.01), (1e5, 0.01), (1.0, 0.3), (1000.0, 1e-4)] {
            let found = choice(price, dead);
            let cost = |term| figure_2.cost_with_waiting(term, UNICAST, price, dead).expect("right");
            let terms = (4..400).map(|step| cost(Term::new(f64::from(step) / 40.0).expect("a term")));
            let least = terms.fold(found.session_cost.min(figure_2.sprite_cost()), f64::min);
            // Terms are rounded to two digits.
            assert!(found.cost <= least * 1.01, "{price} {dead}: {found:?}, {least}");
        }
    }

    #[test]
    fn what_the_user_says_counts_in_place_of_what_was_counted_and_nonsense_is_refused() {
        let figure_2 = Sharing::new(5.0, 2.0, 0.1).expect("right");
        let of = |waiting: Waiting| waiting.choose(&figure_2, 0.0);
        let told = of(Waiting { price: 100.0, dead: Some(0.01), ..Waiting::default() }).expect("right");
        assert_eq!(told, choice(100.0, 0.01));
        for wrong in [
            Waiting { price: -1.0, ..Waiting::default() },
            Waiting { price: f64::NAN, ..Waiting::default() },
            Waiting { dead: Some(1.5), ..Waiting::default() },
            Waiting { session: -1.0, ..Waiting::default() },
        ] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn terms_are_written_as_the_server_takes_them() {
        let written = [0.1, 0.456, 1.0, 2.345, 23.45, 1234.0].map(|secs| option(rounded(secs)));
        assert_eq!(written, ["100ms", "460ms", "1s", "2.3s", "23s", "1200s"]);
        assert_eq!(rounded(f64::INFINITY), f64::INFINITY);
    }
}
