//! Notices that the machine slept.
//!
//! The kernel counts time-outs in jiffies, which stand still in suspend: after an hour's sleep it would go on to believe
//! names and attributes whose lease has long ended. CLOCK_BOOTTIME goes on, CLOCK_MONOTONIC does not: when they drift apart,
//! everything is dropped. A timer on the former goes off at once when the machine wakes.

use crate::notify::Notifier;
use rustix::fd::OwnedFd;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// How often to look; also the longest sleep that may go unnoticed.
const PERIOD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Clocks that drift apart by less than this did so between two readings.
const TOLERANCE: Duration = Duration::from_millis(200);

/// Watches until it is dropped.
#[derive(Debug)]
pub(super) struct SleepWatch {
    /// The thread goes when this is gone.
    _alive: Arc<()>,
}

impl SleepWatch {
    pub(super) fn start(notifier: Arc<Notifier>) -> SleepWatch {
        let alive = Arc::new(());
        let watched = Arc::downgrade(&alive);
        let started = timer().and_then(|timer| {
            let builder = thread::Builder::new().name("fuse-sleep".into());
            builder.spawn(move || watch(&timer, &watched, &notifier))
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot watch for suspend: caches may be believed for a lease's time after one");
        }
        SleepWatch { _alive: alive }
    }
}

fn timer() -> std::io::Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let every = Itimerspec { it_interval: PERIOD, it_value: PERIOD };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
    Ok(timer)
}

fn watch(timer: &OwnedFd, alive: &Weak<()>, notifier: &Arc<Notifier>) {
    let mut before = slept();
    let mut expirations = [0; 8];
    while rustix::io::read(timer, &mut expirations).is_ok() && alive.strong_count() > 0 {
        let now = slept();
        if now.saturating_sub(before) > TOLERANCE {
            tracing::info!(
                seconds = (now - before).as_secs(),
                "the machine slept: the kernel's caches are dropped"
            );
            notifier.everything();
        }
        before = now;
    }
}

/// Time spent in suspend since the start of the machine.
fn slept() -> Duration {
    let since_boot = duration(clock_gettime(ClockId::Boottime));
    since_boot.saturating_sub(duration(clock_gettime(ClockId::Monotonic)))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
