//! What the log hears of damaged metadata while the rest is served: whoever asks again hears the same error each time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Not more than one line in this time.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Complaints {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    said: Option<Instant>,
    unsaid: u64,
}

impl Complaints {
    /// Whether one that comes now is for the log: then how many since the last one were not.
    pub(super) fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.said.is_some_and(|said| now.saturating_duration_since(said) < PAUSE) {
            state.unsaid += 1;
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_second_and_the_others_are_counted() {
        let (complaints, begin) = (Complaints::default(), Instant::now());
        let due = |millis| complaints.due(begin + Duration::from_millis(millis));
        assert_eq!(
            [due(0), due(1), due(999), due(1000), due(1001), due(5000)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
