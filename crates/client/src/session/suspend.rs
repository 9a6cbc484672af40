//! Notices that the machine was suspended.
//!
//! The kernel counts time-outs in jiffies, which stand still in suspend: after an hour's sleep it would go on to believe
//! names and attributes whose lease has long ended. So everything is dropped when the machine wakes. What was slept is read
//! from the client's clock; a timer on CLOCK_BOOTTIME, which goes on in suspend, makes it look at once after waking.

use crate::clock::Clock;
use crate::inner::{Inner, Phase};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;

/// How often to look; also the longest sleep that may go unnoticed.
const PERIOD: Duration = Duration::from_secs(1);
/// Clocks that drift apart by less did so between two readings.
const TOLERANCE: Duration = Duration::from_millis(100);

/// Runs until the client is closed.
pub(crate) async fn watch_suspend(inner: Arc<Inner>) {
    let mut phase = inner.phase.subscribe();
    let mut slept = Slept::until_now(&*inner.clock);
    let alarm = Alarm::new();
    loop {
        tokio::select! {
            () = alarm.next() => {}
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
        }
        if let Some(time) = slept.since_last(&*inner.clock) {
            tracing::info!(
                seconds = time.as_secs(),
                "the machine was suspended: the kernel's caches are dropped"
            );
            inner.drop_all_kernel_caches();
            let hooks = Arc::clone(&inner.hooks);
            inner.recall_pool.run(Box::new(move || hooks.invalidate_everything()));
        }
    }
}

/// What the clock said last about suspend.
#[derive(Debug)]
struct Slept(Duration);

impl Slept {
    fn until_now(clock: &dyn Clock) -> Slept {
        Slept(Duration::from_nanos(clock.suspended()))
    }

    /// `None`: the machine was awake all the while.
    fn since_last(&mut self, clock: &dyn Clock) -> Option<Duration> {
        let now = Slept::until_now(clock);
        let time = now.0.saturating_sub(self.0);
        *self = now;
        (time > TOLERANCE).then_some(time)
    }
}

#[derive(Debug)]
enum Alarm {
    /// Told by a thread, which goes when this is gone.
    BootTime(Arc<Notify>),
    /// Stands still in suspend, so it comes up to a period late.
    Running,
}

impl Alarm {
    fn new() -> Alarm {
        let went_off = Arc::new(Notify::new());
        let listener = Arc::downgrade(&went_off);
        let started = boot_timer().and_then(|timer| {
            let builder = thread::Builder::new().name("suspend".into());
            builder.spawn(move || tell(&timer, &listener))
        });
        match started {
            Ok(_) => Alarm::BootTime(went_off),
            Err(error) => {
                tracing::warn!(%error, "no timer that goes on in suspend: it is noticed up to {PERIOD:?} late");
                Alarm::Running
            }
        }
    }

    async fn next(&self) {
        match self {
            Alarm::BootTime(went_off) => went_off.notified().await,
            Alarm::Running => tokio::time::sleep(PERIOD).await,
        }
    }
}

fn tell(timer: &OwnedFd, listener: &Weak<Notify>) {
    while rustix::io::read(timer, &mut [0; 8]).is_ok() {
        match listener.upgrade() {
            Some(listener) => listener.notify_one(),
            None => return,
        }
    }
}

fn boot_timer() -> io::Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let period = Timespec { tv_sec: PERIOD.as_secs() as i64, tv_nsec: 0 };
    let every = Itimerspec { it_interval: period, it_value: period };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
    Ok(timer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::Monotonic;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Sleeps when the test says so.
    #[derive(Debug, Default)]
    struct SleepyClock(AtomicU64);

    impl Clock for SleepyClock {
        fn now(&self) -> Monotonic {
            Monotonic::from_nanos(self.suspended())
        }

        fn suspended(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn each_suspend_is_noticed_once_and_drift_never() {
        let clock = SleepyClock(AtomicU64::new(5_000_000_000));
        let mut slept = Slept::until_now(&clock);
        assert_eq!(slept.since_last(&clock), None);
        let hour = Duration::from_secs(3600);
        clock.0.fetch_add(hour.as_nanos() as u64, Ordering::Relaxed);
        assert_eq!(slept.since_last(&clock), Some(hour));
        assert_eq!(slept.since_last(&clock), None);
        for _ in 0..100 {
            clock.0.fetch_add(TOLERANCE.as_nanos() as u64, Ordering::Relaxed);
            assert_eq!(slept.since_last(&clock), None);
        }
        clock.0.fetch_sub(1, Ordering::Relaxed);
        assert_eq!(slept.since_last(&clock), None, "two clocks, read one after the other");
    }

    #[tokio::test]
    async fn the_alarm_goes_off_again_and_again() {
        let alarm = Alarm::new();
        assert!(matches!(alarm, Alarm::BootTime(_)));
        for _ in 0..2 {
            tokio::time::timeout(PERIOD * 60, alarm.next()).await.unwrap();
        }
    }
}
