//! The two caches of a client: the daemon's, and the kernel's, which goes on serving while the daemon is frozen.

use crate::register::{Register, Value};
use soda_lease::Holding;
use soda_types::{Fid, Monotonic};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Caches {
    daemon: BTreeMap<Register, (Value, Holding)>,
    kernel: BTreeMap<Register, (Value, Monotonic)>,
    /// The newest value that any answer has shown. Answers overtake each other, and a change of our own may have been
    /// made and not yet answered: nothing older than this is cached.
    seen: BTreeMap<Register, Value>,
}

impl Caches {
    /// What the kernel answers without asking the daemon.
    pub(super) fn kernel(&self, now: Monotonic, register: Register) -> Option<Value> {
        self.kernel.get(&register).filter(|(_, until)| *until > now).map(|(value, _)| *value)
    }

    /// All that it answers like that.
    pub(super) fn all_of_kernel(&self, now: Monotonic) -> Vec<(Register, Value)> {
        let valid = self.kernel.iter().filter(|(_, (_, until))| *until > now);
        valid.map(|(register, (value, _))| (*register, *value)).collect()
    }

    /// What the daemon has, if it was cached in this holding.
    pub(super) fn daemon(&self, register: Register, holding: Option<Holding>) -> Option<Value> {
        self.daemon.get(&register).filter(|(_, of)| Some(*of) == holding).map(|(value, _)| *value)
    }

    pub(super) fn fill(&mut self, register: Register, value: Value, holding: Holding) {
        if self.seen.get(&register).is_none_or(|seen| *seen <= value) {
            self.daemon.insert(register, (value, holding));
        }
    }

    pub(super) fn fill_kernel(&mut self, register: Register, value: Value, until: Monotonic) {
        self.kernel.insert(register, (value, until));
    }

    /// An answer shows this value: what is older goes.
    pub(super) fn see(&mut self, register: Register, value: Value) {
        let seen = self.seen.entry(register).or_default();
        *seen = (*seen).max(value);
        if self.daemon.get(&register).is_some_and(|(cached, _)| *cached < value) {
            self.daemon.remove(&register);
        }
        if self.kernel.get(&register).is_some_and(|(cached, _)| *cached < value) {
            self.kernel.remove(&register);
        }
    }

    pub(super) fn drop_kernel(&mut self, fid: Fid) {
        self.kernel.retain(|register, _| register.fid() != fid);
    }

    pub(super) fn drop_all_of_kernel(&mut self) {
        self.kernel.clear();
    }

    pub(super) fn drop_daemon(&mut self, fid: Fid) {
        self.daemon.retain(|register, _| register.fid() != fid);
    }

    pub(super) fn drop_all(&mut self) {
        self.daemon.clear();
        self.kernel.clear();
    }
}
