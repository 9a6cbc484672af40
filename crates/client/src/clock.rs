//! The lease clock, injected: tests bring their own.

use rustix::time::{ClockId, clock_gettime};
use soda_types::{Monotonic, Timestamp};
use std::fmt;
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

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    secs * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
