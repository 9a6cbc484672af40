//! The only place of the server that reads a clock.

use rustix::time::{ClockId, clock_gettime};
use soda_types::{Monotonic, Timestamp};

/// The lease clock: goes on while the machine is suspended, never jumps.
pub(crate) fn monotonic() -> Monotonic {
    let now = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Monotonic::from_nanos(secs * 1_000_000_000 + nanos)
}

/// The calendar, for the times of inodes.
pub(crate) fn calendar() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    Timestamp::new(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}
