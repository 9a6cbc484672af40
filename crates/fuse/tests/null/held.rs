//! Requests that wait until they are told to go on, or are interrupted.

use super::Null;
use soda_fuse::wire::Reply;
use soda_types::Errno;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

#[derive(Debug, Default)]
pub(super) struct Held {
    is_holding: bool,
    holds_writes: bool,
    /// Not even an INTERRUPT ends what waits.
    is_deaf: bool,
    waiting: HashMap<u64, (Waits, Reply)>,
    /// INTERRUPTs that came before their request.
    early: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Waits {
    Read,
    /// Of a name that is no number.
    Lookup,
    /// Of so many bytes.
    Write(u32),
}

impl Null {
    /// From here on reads wait, and look-ups of what is not there; an INTERRUPT ends these.
    pub(crate) fn hold(&self) {
        self.held.lock().unwrap().is_holding = true;
    }

    /// From here on writes wait.
    pub(crate) fn hold_writes(&self) {
        self.held.lock().unwrap().holds_writes = true;
    }

    /// As [`Null::hold`], and no INTERRUPT ends them.
    pub(crate) fn hold_fast(&self) {
        let mut held = self.held.lock().unwrap();
        (held.is_holding, held.is_deaf) = (true, true);
    }

    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().waiting.len()
    }

    pub(crate) fn release(&self) {
        let mut held = self.held.lock().unwrap();
        (held.is_holding, held.holds_writes) = (false, false);
        let waiting = std::mem::take(&mut held.waiting);
        drop(held);
        for (what, reply) in waiting.into_values() {
            match what {
                Waits::Read => drop(reply.data(&[&[0; 1]])),
                Waits::Lookup => reply.error(Errno::NoEntry),
                Waits::Write(bytes) => reply.written(bytes),
            }
        }
    }

    /// Numbers of the reads that wait.
    pub(crate) fn held_reads(&self) -> Vec<u64> {
        let held = self.held.lock().unwrap();
        let reads = held.waiting.iter().filter(|(_, (what, _))| *what == Waits::Read);
        reads.map(|(number, _)| *number).collect()
    }

    pub(super) fn puts_off_interrupt(&self) -> bool {
        let next = |left: u64| left.checked_sub(1);
        self.put_off.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    pub(super) fn interrupt(&self, unique: u64) {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        let mut held = self.held.lock().unwrap();
        if held.is_deaf {
            return;
        }
        match held.waiting.remove(&unique) {
            Some((_, reply)) => {
                drop(held);
                reply.error(Errno::Interrupted);
            }
            None => held.early.push(unique),
        }
    }

    /// Gives back what need not wait.
    pub(super) fn hold_back(&self, what: Waits, reply: Reply) -> Option<Reply> {
        let mut held = self.held.lock().unwrap();
        let is_to_wait = match what {
            Waits::Read | Waits::Lookup => held.is_holding,
            Waits::Write(_) => held.holds_writes,
        };
        if !is_to_wait {
            return Some(reply);
        }
        if held.early.contains(&reply.unique()) {
            drop(held);
            reply.error(Errno::Interrupted);
        } else {
            held.waiting.insert(reply.unique(), (what, reply));
        }
        None
    }
}
