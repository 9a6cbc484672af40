//! True time, which only the simulation knows, and the clocks of nodes, which start anywhere and drift.

use soda_types::Monotonic;
use std::time::Duration;

/// True time since the start of the run, nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    pub const ZERO: Time = Time(0);

    pub fn after(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A node's lease clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: u64,
    /// Fast if positive.
    drift_ppm: i64,
}

impl Clock {
    pub fn new(start: Duration, drift_ppm: i64) -> Clock {
        Clock { start: start.as_nanos() as u64, drift_ppm }
    }

    pub fn read(&self, now: Time) -> Monotonic {
        let drift = i128::from(now.0) * i128::from(self.drift_ppm) / 1_000_000;
        Monotonic::from_nanos(self.start + (i128::from(now.0) + drift) as u64)
    }

    /// The first true time at which the clock shows at least `local`.
    pub fn when(&self, local: Monotonic) -> Time {
        let span = i128::from(local.as_nanos().saturating_sub(self.start));
        let guess = span * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm));
        let mut time = Time(u64::try_from(guess.max(2) - 2).unwrap_or(u64::MAX / 2));
        while self.read(time) < local {
            time.0 += 1;
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_is_the_first_moment() {
        for drift in [-700, -1, 0, 1, 500, 1000] {
            let clock = Clock::new(Duration::from_secs(3), drift);
            for local in [3_000_000_000_u64, 3_000_000_001, 7_123_456_789, 900_000_000_007] {
                let local = Monotonic::from_nanos(local);
                let time = clock.when(local);
                assert!(clock.read(time) >= local);
                assert!(time == Time::ZERO || clock.read(Time(time.0 - 1)) < local, "{drift} {local:?}");
            }
        }
    }
}
