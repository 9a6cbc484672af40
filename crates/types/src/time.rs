//! Two kinds of time that must never be mixed: the calendar's and the lease clock's.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Calendar time of an inode: seconds and nanoseconds since 1970, negative before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp {
    pub secs: i64,
    /// 0..1_000_000_000
    pub nanos: u32,
}

impl Timestamp {
    pub fn new(secs: i64, nanos: u32) -> Timestamp {
        assert!(nanos < 1_000_000_000, "nanoseconds out of range: {nanos}");
        Timestamp { secs, nanos }
    }

    /// The smallest later time.
    pub fn successor(self) -> Timestamp {
        if self.nanos == 999_999_999 {
            Timestamp { secs: self.secs + 1, nanos: 0 }
        } else {
            Timestamp { secs: self.secs, nanos: self.nanos + 1 }
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.secs, self.nanos)
    }
}

/// A reading of the lease clock of one machine: nanoseconds of `CLOCK_BOOTTIME`, which goes on while the machine is
/// suspended (Rust's `Instant` does not). Readings of two machines, or of two boots, must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Monotonic(u64);

impl Monotonic {
    pub const ZERO: Monotonic = Monotonic(0);
    /// Later than every reading: "never".
    pub const NEVER: Monotonic = Monotonic(u64::MAX);

    pub fn from_nanos(nanos: u64) -> Monotonic {
        Monotonic(nanos)
    }

    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Monotonic {
    type Output = Monotonic;
    fn add(self, rhs: Duration) -> Monotonic {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Monotonic(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Monotonic {
    type Output = Monotonic;
    fn sub(self, rhs: Duration) -> Monotonic {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Monotonic(self.0.saturating_sub(nanos))
    }
}

impl fmt::Debug for Monotonic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Monotonic::NEVER {
            return f.write_str("never");
        }
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_carries_into_seconds() {
        assert_eq!(Timestamp::new(1, 999_999_999).successor(), Timestamp::new(2, 0));
        assert_eq!(Timestamp::new(-1, 5).successor(), Timestamp::new(-1, 6));
    }

    #[test]
    fn never_stays_never() {
        assert_eq!(Monotonic::NEVER + Duration::from_secs(1), Monotonic::NEVER);
        assert_eq!(Monotonic::ZERO - Duration::from_secs(1), Monotonic::ZERO);
    }
}
