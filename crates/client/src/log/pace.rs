//! How soon the next digest goes, and beside how many: the server carries out a session's digests one at a time, and whoever
//! waits for another one, on this machine or on others, waits for the end of those before it.

use super::next::{Chosen, Filled};
use soda_types::Monotonic;
use std::time::Duration;

/// So long after somebody asked others are expected to.
const ASKED_LATELY: Duration = Duration::from_secs(2);
/// Who has asked for something asks for more: for so long nothing else is sent that he would have to wait for...
const QUIET: Duration = Duration::from_millis(2);
/// ... but not if nothing else has been sent for so long.
const LONGEST_QUIET: Duration = Duration::from_millis(20);

/// What is pending beside a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    Little,
    Much,
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last digest was sent that nobody had asked for.
    unasked_at: Monotonic,
    /// When somebody last waited for little of much that the server is told, or another machine for any of it.
    hurried_at: Option<Monotonic>,
    /// Before that nothing is sent that nobody asks for.
    quiet_until: Monotonic,
    /// Whether the last digest was for who waits for inodes.
    was_wanted: bool,
}

impl Pace {
    /// What the next digest holds has been chosen.
    pub(super) fn note_chosen(&mut self, chosen: Chosen) {
        self.was_wanted = chosen == Chosen::Wanted;
    }

    /// It is about to be sent.
    pub(super) fn note_sent(&mut self, now: Monotonic, chosen: Chosen, filled: Filled, left: Left) {
        match (chosen, filled, left) {
            (Chosen::InOrder, ..) => self.unasked_at = now,
            // Who waits for much himself, or for the end of it, has nothing else in his way.
            (Chosen::Wanted, Filled::InPart, Left::Much) => self.hurry(now),
            _ => {}
        }
    }

    /// The server has applied one.
    pub(super) fn note_applied(&mut self, now: Monotonic, chosen: Chosen) {
        if chosen == Chosen::Wanted && now.since(self.unasked_at) < LONGEST_QUIET {
            self.quiet_until = now + QUIET;
        }
    }

    /// Somebody waits who is not to wait for more than one digest of others.
    pub(super) fn hurry(&mut self, now: Monotonic) {
        self.hurried_at = Some(now);
    }

    pub(super) fn quiet_until(&self) -> Monotonic {
        self.quiet_until
    }

    pub(super) fn was_wanted(&self) -> bool {
        self.was_wanted
    }

    /// Whether others are likely to ask for something: then what they wait for is to be over soon.
    pub(super) fn is_among_others(&self, now: Monotonic) -> bool {
        self.hurried_at.is_some_and(|hurried| now.since(hurried) < ASKED_LATELY)
    }

    /// From when on the server may have one more digest than its round trip takes.
    pub(super) fn one_more_from(&self) -> Monotonic {
        self.hurried_at.map_or(Monotonic::ZERO, |hurried| hurried + ASKED_LATELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn who_has_asked_is_given_time_to_ask_for_more_but_not_for_ever() {
        let mut pace = Pace::default();
        pace.note_sent(at(100), Chosen::InOrder, Filled::Full, Left::Much);
        pace.note_applied(at(110), Chosen::InOrder);
        assert_eq!(pace.quiet_until(), Monotonic::ZERO, "nobody has asked");
        pace.note_applied(at(115), Chosen::Wanted);
        assert_eq!(pace.quiet_until(), at(117));
        pace.note_applied(at(120), Chosen::Wanted);
        assert_eq!(pace.quiet_until(), at(117), "others have waited for 20 ms");
    }

    #[test]
    fn who_waits_for_little_is_to_wait_for_no_stream() {
        let mut pace = Pace::default();
        assert_eq!(pace.one_more_from(), Monotonic::ZERO);
        pace.note_sent(at(5), Chosen::Wanted, Filled::InPart, Left::Little);
        assert_eq!(pace.one_more_from(), Monotonic::ZERO, "nothing is in his way");
        pace.note_sent(at(10), Chosen::Wanted, Filled::Full, Left::Much);
        assert_eq!(pace.one_more_from(), Monotonic::ZERO, "he waits for much himself");
        assert!(!pace.is_among_others(at(11)));
        pace.note_sent(at(20), Chosen::Wanted, Filled::InPart, Left::Much);
        assert_eq!(pace.one_more_from(), at(2020));
        assert!(pace.is_among_others(at(2019)) && !pace.is_among_others(at(2020)));
        pace.hurry(at(30));
        assert_eq!(pace.one_more_from(), at(2030));
    }
}
