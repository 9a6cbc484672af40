//! Lines of the log that one cause would have written a thousand times a second: the first of a kind in a second is written, the
//! others are counted.

use soda_types::Monotonic;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two lines of a kind.
const PAUSE: Duration = Duration::from_secs(1);

/// Each kind by itself.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    pub(crate) no_space: Seldom,
    pub(crate) failed: Seldom,
    pub(crate) digests: Seldom,
    pub(crate) bad_frames: Seldom,
    pub(crate) refused: Seldom,
}

impl Troubles {
    /// What was counted of each kind of which there was no line lately, for a line of its own.
    pub(crate) fn left_out(&self, now: Monotonic) -> Vec<(&'static str, u64)> {
        let kinds = [
            ("operations refused for want of space", &self.no_space),
            ("operations failed", &self.failed),
            ("digests could not be applied", &self.digests),
            ("connections ended for frames that are none of ours", &self.bad_frames),
            ("connections refused", &self.refused),
        ];
        let counted = kinds.into_iter().map(|(what, seldom)| (what, seldom.left_out(now)));
        counted.filter(|(_, count)| *count > 0).collect()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Monotonic>,
    left_out: u64,
}

impl Seldom {
    /// Whether there may be a line now. If not it is counted.
    pub(crate) fn may_say(&self, now: Monotonic) -> bool {
        let mut state = self.state();
        let may = state.last.is_none_or(|last| now.since(last) >= PAUSE);
        match may {
            true => state.last = Some(now),
            false => state.left_out += 1,
        }
        may
    }

    /// What was counted since this was asked last, if the last line is old enough for another one, which this is then.
    fn left_out(&self, now: Monotonic) -> u64 {
        let mut state = self.state();
        if state.left_out == 0 || state.last.is_some_and(|last| now.since(last) < PAUSE) {
            return 0;
        }
        state.last = Some(now);
        std::mem::take(&mut state.left_out)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_two_lines_a_second_and_none_of_it_is_lost() {
        let troubles = Troubles::default();
        let mut now = Monotonic::from_nanos(5);
        let (mut said, mut counted, mut lines) = (0, 0, 0);
        for _ in 0..10 {
            for _ in 0..1000 {
                said += u64::from(troubles.no_space.may_say(now));
                now = now + Duration::from_millis(1);
            }
            for (what, count) in troubles.left_out(now) {
                assert!(what.contains("space"), "{what}");
                (counted, lines) = (counted + count, lines + 1);
            }
        }
        assert!(said + lines <= 12, "{said} and {lines} lines in ten seconds");
        now = now + PAUSE;
        counted += troubles.left_out(now).iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!(said + counted, 10_000);
        assert_eq!(troubles.left_out(now + PAUSE), []);
        assert!(troubles.no_space.may_say(now + PAUSE), "the next one is news again");
    }
}
