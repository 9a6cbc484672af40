//! The thread that begins an escort, looks after it, and ends it.

use super::policy::{Judge, Look, Pauses, Reason, Verdict};
use super::sched::{self, Observed};
use super::{Escort, Reader, TICK, lock};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Returns when the mount is gone, or at once where an escort is not possible.
pub(super) fn run(escort: &Escort) {
    if let Err(why) = sched::check() {
        tracing::debug!(%why, "the threads that answer do not follow who asks");
        return;
    }
    escort.is_possible.store(true, Ordering::Relaxed);
    let mut pauses = Pauses::default();
    while let Some(caller) = next_caller(escort) {
        let began = Instant::now();
        let reason = match Duty::begin(escort, caller) {
            Ok(duty) => duty.run(),
            Err(error) => {
                tracing::debug!(caller, %error, "a caller cannot be escorted");
                Reason::Refused
            }
        };
        let now = Instant::now();
        let pause = pauses.after(reason, now - began);
        tracing::debug!(caller, lasted = ?(now - began), ?reason, ?pause, "a caller is not escorted any more");
        lock(&escort.run).pause_until(now + pause);
        lock(&escort.orders).wanted = None;
    }
}

/// Waits for one to escort. `None`: the mount is gone.
fn next_caller(escort: &Escort) -> Option<u32> {
    let mut orders = lock(&escort.orders);
    loop {
        if orders.has_ended {
            return None;
        }
        if let Some(caller) = orders.wanted.take() {
            return Some(caller);
        }
        orders = escort.ordered.wait(orders).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
}

/// One escort. Whatever ends it, it leaves nobody bound and nobody in `SCHED_IDLE`.
struct Duty<'a> {
    escort: &'a Escort,
    caller: u32,
    seen: Observed,
    judge: Judge,
    core: usize,
    /// Requests of those who were escorted before.
    requests_before: u64,
}

impl Duty<'_> {
    fn begin(escort: &Escort, caller: u32) -> io::Result<Duty<'_>> {
        let seen = Observed::open(caller)?;
        let first = seen.look()?;
        let judge = Judge::new(first.core, first.waited, Instant::now());
        let requests_before = requests(escort);
        let duty = Duty { escort, caller, seen, judge, core: first.core, requests_before };
        escort.readers.iter().try_for_each(|reader| lock(&reader.place).bind(duty.core))?;
        escort.caller.store(caller, Ordering::SeqCst);
        tracing::debug!(caller, core = duty.core, "a caller is escorted");
        Ok(duty)
    }

    fn run(mut self) -> Reason {
        loop {
            if has_ended_within_tick(self.escort) {
                return Reason::Gone;
            }
            if self.escort.caller.load(Ordering::SeqCst) != self.caller {
                return Reason::Company;
            }
            let Some(look) = self.look() else { return Reason::Gone };
            match self.judge.look(&look, Instant::now()) {
                Verdict::Stay => {}
                Verdict::Follow(core) => self.core = core,
                Verdict::Leave(reason) => return reason,
            }
            let mut readers = self.escort.readers.iter();
            let tended = readers.try_for_each(|reader| {
                lock(&reader.place).tend(reader.handovers.load(Ordering::SeqCst), self.core)
            });
            if let Err(error) = tended {
                tracing::debug!(%error, core = self.core, "a thread cannot follow its caller");
                return Reason::Refused;
            }
        }
    }

    /// `None`: the caller has ended.
    fn look(&self) -> Option<Look> {
        let seen = self.seen.look().ok()?;
        let requests = requests(self.escort) - self.requests_before;
        let may_be_held_up = !seen.is_runnable && !self.judge.has_asked(requests);
        let is_held_up = may_be_held_up && self.escort.readers.iter().any(is_waiting_for_core);
        Some(Look { core: seen.core, waited: seen.waited, requests, is_held_up })
    }
}

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        self.escort.caller.store(0, Ordering::SeqCst);
        let readers = &self.escort.readers;
        readers.iter().for_each(Reader::rescue_if_handing_over);
        readers.iter().for_each(|reader| lock(&reader.place).free());
        while readers.iter().any(Reader::is_handing_over) {
            has_ended_within_tick(self.escort);
            readers.iter().for_each(Reader::rescue_if_handing_over);
        }
    }
}

fn requests(escort: &Escort) -> u64 {
    escort.readers.iter().map(|reader| reader.requests.load(Ordering::Relaxed)).sum()
}

fn is_waiting_for_core(reader: &Reader) -> bool {
    let thread = lock(&reader.place).thread;
    let seen =
        thread.and_then(|thread| Observed::open(thread.as_raw_nonzero().get() as u32).ok()?.look().ok());
    seen.is_some_and(|seen| seen.is_runnable)
}

fn has_ended_within_tick(escort: &Escort) -> bool {
    let orders = lock(&escort.orders);
    let waited = escort.ordered.wait_timeout_while(orders, TICK, |orders| !orders.has_ended);
    let (orders, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
    orders.has_ended
}
