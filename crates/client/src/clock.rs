//! The lease clock, injected: tests bring their own.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use soda_types::{Monotonic, Timestamp};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::time::SystemTime;

/// Where `now` comes from. Leases must be counted on a clock that goes on in suspend.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    fn now(&self) -> Monotonic;
    /// Nanoseconds that the machine has spent suspended since its start. When it grows, the kernel's own time-outs
    /// (which stand still in suspend) are worth nothing.
    fn suspended(&self) -> u64;

    /// What changes are dated by as long as no server has said what its calendar says.
    fn calendar(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
    }
}

/// `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(nanos(ClockId::Boottime))
    }

    fn suspended(&self) -> u64 {
        let running = nanos(ClockId::Monotonic);
        nanos(ClockId::Boottime).saturating_sub(running)
    }
}

/// Which [`BootClock`] a process has: in each time namespace (time_namespaces(7)) it shows another time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WhichClock(Option<Vec<u8>>);

impl WhichClock {
    pub(crate) fn own() -> WhichClock {
        let namespace = fs::read_link("/proc/self/ns/time");
        WhichClock(namespace.ok().map(|namespace| namespace.into_os_string().into_vec()))
    }

    /// Whether both show the same time, for certain.
    pub(crate) fn is(&self, other: &WhichClock) -> bool {
        self.0.is_some() && self == other
    }
}

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    secs * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_which_nothing_is_known_is_no_other_one() {
        let own = WhichClock::own();
        assert!(own.is(&WhichClock::own()), "{own:?}: since Linux 5.6");
        assert!(!own.is(&WhichClock(Some(b"time:[1]".to_vec()))));
        assert!(!WhichClock(None).is(&WhichClock(None)));
    }
}
