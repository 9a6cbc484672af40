//! When to escort whom: what was seen comes in, decisions go out. Reads no clock and makes no system call.

use std::time::{Duration, Instant};

/// So many requests of one thread with none of another between them, in that time at most, are worth an escort. At 300 us for
/// each request a wake-up that is saved shows no more.
const RUN: u32 = 64;
const WITHIN: Duration = Duration::from_millis(20);

/// Who asks for nothing for so long is left: nobody looks at what sleeps.
const SILENCE: Duration = Duration::from_millis(20);

/// For how long a queue's thread is looked at before it lets others go first. Longer than a time slice of who computes.
const TRIAL: Duration = Duration::from_millis(10);

/// An escort that ended sooner was not worth it.
const SHORT: Duration = Duration::from_millis(200);
const MOST_DOUBLINGS: u32 = 6;

/// Requests of one thread in a row, while nobody is escorted.
#[derive(Debug)]
pub(super) struct Run {
    caller: u32,
    requests: u32,
    since: Instant,
    not_before: Instant,
}

impl Run {
    pub(super) fn new(now: Instant) -> Run {
        Run { caller: 0, requests: 0, since: now, not_before: now }
    }

    /// Whether the thread should be escorted. 0 is nobody: what the kernel asks for by itself.
    pub(super) fn request(&mut self, caller: u32, now: Instant) -> bool {
        if caller == 0 {
            return false;
        }
        if caller != self.caller {
            (self.caller, self.requests, self.since) = (caller, 0, now);
        }
        self.requests += 1;
        if self.requests < RUN {
            return false;
        }
        let is_worth_it = now.saturating_duration_since(self.since) <= WITHIN && now >= self.not_before;
        (self.requests, self.since) = (0, now);
        is_worth_it
    }

    /// From here on the run is a new one.
    pub(super) fn pause_until(&mut self, not_before: Instant) {
        (self.caller, self.not_before) = (0, not_before);
    }
}

/// Why an escort ends, or does not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// Somebody else asks, too, or another machine.
    Company,
    /// The caller has ended, or the mount.
    Gone,
    /// The caller asks for nothing.
    Silence,
    /// Others compute on its core.
    Crowd,
    /// A thread cannot be bound, or the caller is not to be found.
    Refused,
}

impl Reason {
    /// How long to wait before the next escort, if this one was short.
    fn pause(self) -> Duration {
        Duration::from_millis(match self {
            Reason::Gone | Reason::Silence => 0,
            Reason::Company => 2,
            Reason::Crowd | Reason::Refused => 50,
        })
    }
}

/// Back-off.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    short_ones: u32,
}

impl Pauses {
    /// How long to wait after an escort that has ended after `lasted`.
    pub(super) fn after(&mut self, reason: Reason, lasted: Duration) -> Duration {
        self.short_ones = match reason {
            Reason::Gone | Reason::Silence => self.short_ones,
            _ if lasted < SHORT => (self.short_ones + 1).min(MOST_DOUBLINGS),
            _ => 0,
        };
        reason.pause() * (1 << self.short_ones)
    }
}

/// What is seen of an escort at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The core that the caller runs on, or ran on last.
    pub(super) core: usize,
    /// For how long the caller has been kept waiting for its core, since it began.
    pub(super) waited: Duration,
    /// Requests of the caller that were read since the escort began.
    pub(super) requests: u64,
    /// A thread that answers wants to run.
    pub(super) is_held_up: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Stay,
    /// The caller is on this core now.
    Follow(usize),
    Leave(Reason),
}

/// Judges an escort from look to look.
#[derive(Debug)]
pub(super) struct Judge {
    core: usize,
    looked_at: Instant,
    waited: Duration,
    requests: u64,
    asked_at: Instant,
}

impl Judge {
    pub(super) fn new(core: usize, waited: Duration, now: Instant) -> Judge {
        Judge { core, looked_at: now, waited, requests: 0, asked_at: now }
    }

    pub(super) fn has_asked(&self, requests: u64) -> bool {
        self.requests != requests
    }

    pub(super) fn look(&mut self, look: &Look, now: Instant) -> Verdict {
        let since_last = now.saturating_duration_since(self.looked_at);
        let has_waited = look.waited.saturating_sub(self.waited);
        let has_asked = self.has_asked(look.requests);
        (self.looked_at, self.waited, self.requests) = (now, look.waited, look.requests);
        if has_asked {
            self.asked_at = now;
        }
        // All of a wait is counted when it is over: a program that had the core for a whole time slice shows as a jump.
        if has_waited > since_last || (look.is_held_up && !has_asked) {
            return Verdict::Leave(Reason::Crowd);
        }
        if now.saturating_duration_since(self.asked_at) >= SILENCE {
            return Verdict::Leave(Reason::Silence);
        }
        if look.core == self.core {
            return Verdict::Stay;
        }
        self.core = look.core;
        Verdict::Follow(look.core)
    }
}

/// Whether a queue's thread shares its core with none but those whom it answers.
#[derive(Debug)]
pub(super) struct Trial {
    began: Instant,
    waited: Duration,
}

impl Trial {
    /// `waited`: as in [`Look`], but of the queue's thread.
    pub(super) fn new(waited: Duration, now: Instant) -> Trial {
        Trial { began: now, waited }
    }

    /// `None`: it is too early to say.
    pub(super) fn passes(&self, waited: Duration, now: Instant) -> Option<bool> {
        let lasts = now.saturating_duration_since(self.began);
        // Those whom it answers go to sleep as soon as they have asked.
        (lasts >= TRIAL).then(|| waited.saturating_sub(self.waited) <= lasts / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn wishes(run: &mut Run, caller: u32, count: u32, start: Instant, apart: Duration) -> Vec<u32> {
        (0..count).filter(|number| run.request(caller, start + apart * *number)).collect()
    }

    #[test]
    fn a_run_of_one_thread_is_worth_an_escort() {
        let start = Instant::now();
        let mut run = Run::new(start);
        assert_eq!(wishes(&mut run, 7, 2 * RUN, start, MS / 10), [RUN - 1, 2 * RUN - 1]);
    }

    #[test]
    fn who_is_not_alone_or_slow_or_nobody_is_not_escorted() {
        let start = Instant::now();
        let mut run = Run::new(start);
        let nothing: [u32; 0] = [];
        assert_eq!(wishes(&mut run, 7, 10 * RUN, start, MS), nothing);
        assert_eq!(wishes(&mut run, 0, 10 * RUN, start, MS / 100), nothing);
        for number in 0..10 * RUN {
            assert!(!run.request(7 + number % 2, start + MS / 100 * number));
        }
        // What the kernel asks for by itself does not count against the caller.
        let with_nobody = |number: &u32| {
            run.request(0, start);
            run.request(9, start + MS / 10 * *number)
        };
        assert_eq!((0..RUN).filter(with_nobody).collect::<Vec<_>>(), [RUN - 1]);
    }

    #[test]
    fn nobody_is_escorted_during_a_pause() {
        let start = Instant::now();
        let mut run = Run::new(start);
        run.pause_until(start + 10 * MS);
        let wishes = wishes(&mut run, 7, 4 * RUN, start, MS / 10);
        assert_eq!(wishes, [2 * RUN - 1, 3 * RUN - 1, 4 * RUN - 1]);
    }

    #[test]
    fn pauses_become_longer_until_an_escort_lasts() {
        let mut pauses = Pauses::default();
        let crowds: Vec<_> = (0..3).map(|_| pauses.after(Reason::Crowd, MS)).collect();
        assert_eq!(crowds, [100 * MS, 200 * MS, 400 * MS]);
        assert_eq!(pauses.after(Reason::Gone, MS), Duration::ZERO);
        assert_eq!(pauses.after(Reason::Crowd, MS), 800 * MS);
        for reason in [Reason::Company, Reason::Gone, Reason::Silence, Reason::Crowd, Reason::Refused] {
            assert!((0..100).all(|_| pauses.after(reason, MS) <= 3200 * MS));
        }
        assert_eq!(pauses.after(Reason::Crowd, SHORT), 50 * MS);
        assert_eq!(pauses.after(Reason::Company, MS), 4 * MS);
    }

    fn look(requests: u64) -> Look {
        Look { core: 1, waited: 5 * MS, requests, is_held_up: false }
    }

    #[test]
    fn who_goes_on_asking_keeps_the_escort_and_who_does_not_loses_it() {
        let start = Instant::now();
        let mut judge = Judge::new(1, 5 * MS, start);
        assert!((1..100).all(|at| judge.look(&look(at.into()), start + MS * at) == Verdict::Stay));
        assert!((100..119).all(|at| judge.look(&look(99), start + MS * at) == Verdict::Stay));
        assert_eq!(judge.look(&look(99), start + MS * 119), Verdict::Leave(Reason::Silence));
    }

    #[test]
    fn a_core_on_which_others_compute_is_left() {
        let start = Instant::now();
        let mut judge = Judge::new(1, 5 * MS, start);
        // It shares the core with who answers it.
        let half = Look { waited: 6 * MS, ..look(9) };
        assert_eq!(judge.look(&half, start + 2 * MS), Verdict::Stay);
        let jump = Look { waited: 9 * MS, ..look(10) };
        assert_eq!(judge.look(&jump, start + 4 * MS), Verdict::Leave(Reason::Crowd));

        let mut judge = Judge::new(1, 5 * MS, start);
        let held_up = Look { is_held_up: true, ..look(10) };
        assert_eq!(judge.look(&held_up, start + 2 * MS), Verdict::Stay);
        assert_eq!(judge.look(&held_up, start + 4 * MS), Verdict::Leave(Reason::Crowd));
    }

    #[test]
    fn who_waits_for_its_core_does_not_let_others_go_first() {
        let start = Instant::now();
        let trial = Trial::new(5 * MS, start);
        assert_eq!(trial.passes(5 * MS, start + 9 * MS), None);
        assert_eq!(trial.passes(10 * MS, start + 10 * MS), Some(true));
        assert_eq!(trial.passes(11 * MS, start + 11 * MS), Some(false));
    }

    #[test]
    fn a_caller_that_moves_is_followed() {
        let start = Instant::now();
        let mut judge = Judge::new(1, 5 * MS, start);
        let mut at =
            |number: u32, core| judge.look(&Look { core, ..look(number.into()) }, start + MS * number);
        assert_eq!([at(1, 2), at(2, 2), at(3, 1)], [Verdict::Follow(2), Verdict::Stay, Verdict::Follow(1)]);
    }
}
