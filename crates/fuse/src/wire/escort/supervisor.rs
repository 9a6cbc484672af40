//! The thread that begins an escort, looks after it, and ends it.

use super::policy::{Judge, Look, Pauses, Reason, Verdict};
use super::sched::{self, Observed};
use super::{Escort, Reader, TICK, lock};
use crate::unpoisoned::Unpoisoned;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Returns when the mount is gone, or at once where an escort is not possible.
pub(super) fn run(escort: &Escort) {
    if let Err(why) = sched::check() {
        tracing::warn!(%why, "cores=follow is not possible");
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
        orders = escort.ordered.wait(orders).unpoisoned();
    }
}

/// One escort. Whatever ends it, it leaves no reader beside anybody.
pub(super) struct Duty<'a> {
    escort: &'a Escort,
    caller: u32,
    seen: Observed,
    judge: Judge,
    /// Requests of those who were escorted before.
    requests_before: u64,
}

impl Duty<'_> {
    pub(super) fn begin(escort: &Escort, caller: u32) -> io::Result<Duty<'_>> {
        let seen = Observed::open(caller)?;
        let first = seen.look()?;
        let judge = Judge::new(first.core, first.waited, Instant::now());
        let duty = Duty { escort, caller, seen, judge, requests_before: requests(escort) };
        // Whoever ends it finds all that is done here, or it is done after that, and taken back within a tick.
        escort.caller.store(caller, Ordering::Release);
        duty.bring(first.core)?;
        tracing::debug!(caller, core = first.core, "a caller is escorted");
        Ok(duty)
    }

    fn bring(&self, core: usize) -> io::Result<()> {
        self.escort.readers.iter().try_for_each(|reader| lock(&reader.place).bring(core))
    }

    pub(super) fn run(mut self) -> Reason {
        loop {
            if has_ended_within_tick(self.escort) {
                return Reason::Gone;
            }
            if self.escort.caller.load(Ordering::Acquire) != self.caller {
                return Reason::Company;
            }
            let Some(look) = self.look() else { return Reason::Gone };
            match self.judge.look(&look, Instant::now()) {
                Verdict::Stay => {}
                Verdict::Follow(core) => {
                    if let Err(error) = self.bring(core) {
                        tracing::debug!(%error, core, "the caller cannot be followed");
                        return Reason::Refused;
                    }
                    if self.escort.caller.load(Ordering::Acquire) != self.caller {
                        return Reason::Company;
                    }
                }
                Verdict::Leave(reason) => return reason,
            }
        }
    }

    /// `None`: the caller has ended.
    fn look(&self) -> Option<Look> {
        let seen = self.seen.look().ok()?;
        let requests = requests(self.escort) - self.requests_before;
        let is_held_up = !self.judge.has_asked(requests) && self.escort.readers.iter().any(wants_to_run);
        Some(Look { core: seen.core, waited: seen.waited, requests, is_held_up })
    }
}

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        self.escort.caller.store(0, Ordering::Release);
        self.escort.free_all();
    }
}

fn requests(escort: &Escort) -> u64 {
    escort.readers.iter().map(|reader| reader.requests.load(Ordering::Relaxed)).sum()
}

pub(super) fn wants_to_run(reader: &Reader) -> bool {
    let thread = lock(&reader.place).thread;
    let seen =
        thread.and_then(|thread| Observed::open(thread.as_raw_nonzero().get() as u32).ok()?.look().ok());
    seen.is_some_and(|seen| seen.is_runnable)
}

/// Waits until it is time to look, or something has happened.
fn has_ended_within_tick(escort: &Escort) -> bool {
    let orders = lock(&escort.orders);
    if orders.has_ended {
        return true;
    }
    let waited = escort.ordered.wait_timeout(orders, TICK);
    let (orders, _) = waited.unpoisoned();
    orders.has_ended
}
