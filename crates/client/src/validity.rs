//! How long an answer may be kept, and how it is handed on without a race against a recall.
//!
//! The problem: an answer with "valid for 8 s" is computed, a recall comes in and invalidates the kernel's caches, and
//! only then the answer reaches the kernel, which keeps it. So an answer is handed on inside an [`Answering`] section:
//! validities computed before a recall are worth nothing in a section that starts after it, and a recall waits for the
//! sections that started before it (the idea of RCU) before it invalidates anything.

use crate::clock::Clock;
use crate::hooks::KernelHooks;
use soda_types::Monotonic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Something that may be kept for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached<T> {
    pub value: T,
    pub valid: Validity,
}

/// Until when the lease that covers a value surely holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    until: Monotonic,
    /// Number of recalls that the client had seen.
    stamp: u64,
}

impl Validity {
    /// Must not be kept at all.
    pub const NONE: Validity = Validity { until: Monotonic::ZERO, stamp: 0 };

    /// As [`Validity::NONE`]; and the server has not heard of it yet, and may never do.
    pub const UNTOLD: Validity = Validity { until: Monotonic::ZERO, stamp: u64::MAX };

    pub fn is_untold(self) -> bool {
        self == Validity::UNTOLD
    }

    pub(crate) fn new(until: Monotonic, stamp: u64) -> Validity {
        Validity { until, stamp }
    }

    pub(crate) fn at_most(self, until: Monotonic) -> Validity {
        Validity { until: self.until.min(until), ..self }
    }

    /// The end of the lease as it was known when the value was computed. To keep the value, see [`Answering`].
    pub fn until(self) -> Option<Monotonic> {
        (self.until > Monotonic::ZERO).then_some(self.until)
    }
}

/// Counts recalls and the sections in which answers are handed on.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    stamp: AtomicU64,
    phase: AtomicUsize,
    inside: [AtomicUsize; 2],
    /// One waiter at a time: each needs a phase of its own.
    waiting: Mutex<()>,
    /// A section lasted so long (the process was stopped in it) that what it handed on may outlive its lease.
    pub(crate) overrun: Notify,
}

/// A section that lasts longer may be harmful, unless less was handed on than was left. Less than the constant part of the
/// holder's drift margin.
const LONGEST_SECTION: Duration = Duration::from_millis(40);

/// What is handed on of what is left of a lease: all but this part (1/n), and at most [`MOST_SPARED`] less. A section may last so
/// much longer. On a machine with many more threads to run than cores one in a thousand waits for its core for over 40 ms; and
/// to drop all that a kernel has been told takes seconds where that is a million files.
const SPARED: u32 = 8;
const MOST_SPARED: Duration = Duration::from_secs(1);

impl Answers {
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::SeqCst)
    }

    /// A recall began: validities from before are worth nothing from now on.
    pub(crate) fn bump(&self) {
        self.stamp.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn none_inside(&self) -> bool {
        self.inside.iter().all(|count| count.load(Ordering::SeqCst) == 0)
    }

    /// Blocks until all sections that have begun before are over.
    pub(crate) fn wait(&self, hooks: &dyn KernelHooks) {
        hooks.hurry();
        let _one = crate::lock(&self.waiting);
        let phase = self.phase.load(Ordering::SeqCst);
        self.wait_for(phase + 1, hooks);
        self.phase.store(phase + 1, Ordering::SeqCst);
        self.wait_for(phase, hooks);
    }

    fn wait_for(&self, phase: usize, hooks: &dyn KernelHooks) {
        const YIELDS: u32 = 64;
        const SLEEPS_BETWEEN: u32 = 16;
        let mut rounds = 0u32;
        while self.inside[phase % 2].load(Ordering::SeqCst) != 0 {
            // A section lasts one write to /dev/fuse, or to the memory of a request over io_uring.
            if rounds >= YIELDS && rounds.is_multiple_of(SLEEPS_BETWEEN) {
                hooks.hurry();
            }
            if rounds < YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
            rounds = rounds.saturating_add(1);
        }
    }

    /// What a section handed on by way of somebody else is with the kernel now.
    pub(crate) fn arrived(&self, clock: &dyn Clock, due: Due) {
        if clock.now() > due.0 {
            self.overrun.notify_one();
        }
    }

    pub(crate) fn enter<'a>(&'a self, clock: &'a dyn Clock) -> Answering<'a> {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            self.inside[phase % 2].fetch_add(1, Ordering::SeqCst);
            if self.phase.load(Ordering::SeqCst) == phase {
                return Answering { answers: self, clock, phase, ends: AtomicU64::new(u64::MAX) };
            }
            self.inside[phase % 2].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// By when the kernel has to have what was handed on in a section, for that not to outlive a lease. For who hands it to another
/// thread, which gives it to the kernel after the section: see [`crate::Client::arrived`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Due(Monotonic);

impl Due {
    /// For tests of who carries it.
    pub fn at(time: Monotonic) -> Due {
        Due(time)
    }

    /// The earlier one.
    pub fn earliest(one: Option<Due>, other: Option<Due>) -> Option<Due> {
        one.into_iter().chain(other).min()
    }
}

/// A section in which an answer is handed on. Keep it short: a recall waits for it.
#[derive(Debug)]
pub struct Answering<'a> {
    answers: &'a Answers,
    clock: &'a dyn Clock,
    phase: usize,
    /// When it has to be over for what was handed on in it not to outlive a lease.
    ends: AtomicU64,
}

impl Answering<'_> {
    /// For how long the value may be kept from now on; zero if not at all. A little less than what is left of its lease.
    pub fn remaining(&self, valid: Validity) -> Duration {
        if valid.until == Monotonic::ZERO || valid.stamp != self.answers.stamp() {
            return Duration::ZERO;
        }
        let now = self.clock.now();
        let left = valid.until.since(now);
        if left.is_zero() {
            return left;
        }
        let spared = (left / SPARED).min(MOST_SPARED);
        self.ends.fetch_min((now + spared + LONGEST_SECTION).as_nanos(), Ordering::Relaxed);
        left - spared
    }

    /// By when the kernel has to have all that was asked about so far; `None`: whenever.
    pub fn due(&self) -> Option<Due> {
        let ends = self.ends.load(Ordering::Relaxed);
        (ends != u64::MAX).then(|| Due(Monotonic::from_nanos(ends)))
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        if self.clock.now().as_nanos() > self.ends.load(Ordering::Relaxed) {
            self.answers.overrun.notify_one();
        }
        self.answers.inside[self.phase % 2].fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::BootClock;
    use crate::hooks::{Names, NoKernel};
    use soda_types::Fid;
    use std::ops::Range;
    use std::task::{Context, Waker};

    #[test]
    fn a_validity_does_not_outlive_a_recall() {
        let answers = Answers::default();
        let valid = Validity::new(BootClock.now() + Duration::from_secs(5), answers.stamp());
        assert!(answers.enter(&BootClock).remaining(valid) > Duration::from_secs(4));
        answers.bump();
        assert_eq!(answers.enter(&BootClock).remaining(valid), Duration::ZERO);
        assert_eq!(answers.enter(&BootClock).remaining(Validity::NONE), Duration::ZERO);
    }

    /// Goes on when the test says so.
    #[derive(Debug, Default)]
    struct TestClock(AtomicU64);

    impl Clock for TestClock {
        fn now(&self) -> Monotonic {
            Monotonic::from_nanos(self.0.load(Ordering::Relaxed))
        }

        fn suspended(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_section_in_which_the_process_was_stopped_is_noticed() {
        let (answers, clock) = (Answers::default(), TestClock::default());
        let longer = Duration::from_nanos(1);
        // What is left of the lease, how much of that is handed on, and how long the section lasts.
        let second = Duration::from_secs(1);
        let most = LONGEST_SECTION + second / 2;
        for (left, handed, pause, is_harmful) in [
            (second * 4, second * 7 / 2, Duration::ZERO, false),
            (second * 4, second * 7 / 2, most, false),
            (second * 4, second * 7 / 2, most + longer, true),
            (second * 3600, second * 3599, LONGEST_SECTION + second, false),
            (second * 3600, second * 3599, LONGEST_SECTION + second + longer, true),
            (Duration::ZERO, Duration::ZERO, LONGEST_SECTION + longer, false),
        ] {
            let valid = Validity::new(clock.now() + left, answers.stamp());
            let section = answers.enter(&clock);
            assert_eq!(section.remaining(valid), handed);
            clock.0.fetch_add(pause.as_nanos() as u64, Ordering::Relaxed);
            drop(section);
            let notified = std::pin::pin!(answers.overrun.notified());
            let noticed = notified.poll(&mut Context::from_waker(Waker::noop())).is_ready();
            assert_eq!(noticed, is_harmful, "{pause:?}");
        }
    }

    #[test]
    fn what_reaches_the_kernel_too_late_after_its_section_is_noticed() {
        let (answers, clock) = (Answers::default(), TestClock::default());
        let second = Duration::from_secs(1);
        let section = answers.enter(&clock);
        assert_eq!(section.due(), None, "nothing was handed on");
        section.remaining(Validity::new(clock.now() + second * 8, answers.stamp()));
        section.remaining(Validity::new(clock.now() + second * 4, answers.stamp()));
        let due = section.due();
        assert_eq!(due, Some(Due(clock.now() + second / 2 + LONGEST_SECTION)), "the shorter lease");
        assert_eq!(Due::earliest(due, Some(Due(Monotonic::NEVER))), due);
        assert_eq!((Due::earliest(None, due), Due::earliest(None, None)), (due, None));
        drop(section);
        let noticed = || {
            let notified = std::pin::pin!(answers.overrun.notified());
            notified.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        clock.0.store(due.unwrap().0.as_nanos(), Ordering::Relaxed);
        answers.arrived(&clock, due.unwrap());
        assert!(!noticed());
        clock.0.fetch_add(1, Ordering::Relaxed);
        answers.arrived(&clock, due.unwrap());
        assert!(noticed());
    }

    /// Notes that it was told to hurry.
    #[derive(Default)]
    struct Slow(AtomicUsize);

    impl KernelHooks for Slow {
        fn invalidate_attr(&self, _fid: Fid) {}
        fn invalidate_data(&self, _fid: Fid, _range: Range<u64>) {}
        fn invalidate_names(&self, _dir: Fid, _names: &Names) {}
        fn settle_names(&self, _dir: Fid) {}
        fn invalidate_everything(&self) {}

        fn hurry(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_recall_waits_for_sections_from_before_only() {
        let (answers, kernel) = (Answers::default(), Slow::default());
        let section = answers.enter(&BootClock);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| answers.wait(&kernel));
            while kernel.0.load(Ordering::Relaxed) < 3 {
                std::thread::yield_now();
            }
            assert!(!waiter.is_finished());
            let later = answers.enter(&BootClock);
            drop(section);
            waiter.join().unwrap();
            drop(later);
        });
        answers.wait(&NoKernel);
        assert!(answers.none_inside());
    }
}
