//! Two kinds of time that must never be mixed: the calendar's and the lease clock's.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// In a second.
const NANOS: u32 = 1_000_000_000;

/// Calendar time of an inode: seconds and nanoseconds since 1970, negative before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Timestamp {
    secs: i64,
    nanos: u32,
}

/// As it comes from elsewhere.
#[derive(Deserialize)]
struct Unchecked {
    secs: i64,
    nanos: u32,
}

impl TryFrom<Unchecked> for Timestamp {
    type Error = &'static str;

    fn try_from(Unchecked { secs, nanos }: Unchecked) -> Result<Timestamp, &'static str> {
        if nanos < NANOS {
            Ok(Timestamp { secs, nanos })
        } else {
            Err("a second has only so many nanoseconds")
        }
    }
}

impl Timestamp {
    /// # Panics
    /// `nanos` are a second or more.
    pub const fn new(secs: i64, nanos: u32) -> Timestamp {
        assert!(nanos < NANOS, "nanoseconds out of range");
        Timestamp { secs, nanos }
    }

    /// Seconds since 1970, rounded down.
    pub const fn secs(self) -> i64 {
        self.secs
    }

    /// Nanoseconds since then: 0..1_000_000_000.
    pub const fn nanos(self) -> u32 {
        self.nanos
    }

    /// The smallest later time; of the last one itself.
    pub fn successor(self) -> Timestamp {
        self.after(Duration::from_nanos(1))
    }

    /// So much later, or the last time that there is.
    pub fn after(self, duration: Duration) -> Timestamp {
        const LAST: Timestamp = Timestamp { secs: i64::MAX, nanos: NANOS - 1 };
        let (carry, nanos) = match self.nanos + duration.subsec_nanos() {
            nanos if nanos < NANOS => (0, nanos),
            nanos => (1, nanos - NANOS),
        };
        let secs = self.secs.checked_add_unsigned(duration.as_secs());
        match secs.and_then(|secs| secs.checked_add(carry)) {
            Some(secs) => Timestamp { secs, nanos },
            None => LAST,
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
        let last = Timestamp::new(i64::MAX, 999_999_999);
        assert_eq!(last.successor(), last);
    }

    #[test]
    fn what_is_later_than_the_last_time_is_the_last_time() {
        let after = |secs, nanos, time| Timestamp::new(secs, nanos).after(time);
        assert_eq!(after(-2, 700_000_000, Duration::new(1, 300_000_000)), Timestamp::new(0, 0));
        assert_eq!(after(i64::MIN, 0, Duration::from_secs(1 << 63)), Timestamp::new(0, 0));
        let last = Timestamp::new(i64::MAX, 999_999_999);
        assert_eq!(after(i64::MAX, 999_999_999, Duration::from_nanos(1)), last);
        assert_eq!(after(0, 0, Duration::MAX), last);
    }

    /// From the wire, and from a disk.
    #[test]
    fn a_time_that_is_none_is_not_read() {
        let read = |nanos: u32| {
            use serde::de::value::{Error, SeqDeserializer};
            let fields = SeqDeserializer::<_, Error>::new([5_u32, nanos].into_iter());
            Timestamp::deserialize(fields)
        };
        assert_eq!(read(999_999_999), Ok(Timestamp::new(5, 999_999_999)));
        assert!(read(1_000_000_000).is_err() && read(u32::MAX).is_err());
    }

    #[test]
    fn never_stays_never() {
        assert_eq!(Monotonic::NEVER + Duration::from_secs(1), Monotonic::NEVER);
        assert_eq!(Monotonic::ZERO - Duration::from_secs(1), Monotonic::ZERO);
    }
}
