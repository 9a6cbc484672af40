//! The two caches of a client: the daemon's, and the kernel's, which goes on serving while the daemon is frozen.

use crate::message::{Register, Value};
use soda_lease::Holding;
use soda_types::{Fid, Monotonic};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Caches {
    daemon: BTreeMap<Register, (Value, Holding)>,
    kernel: BTreeMap<Register, (Value, Monotonic)>,
}

impl Caches {
    /// What the kernel answers without asking the daemon.
    pub(super) fn kernel(&self, now: Monotonic, register: Register) -> Option<Value> {
        self.kernel.get(&register).filter(|(_, until)| *until > now).map(|(value, _)| *value)
    }

    /// What the daemon has, if it was cached in this holding.
    pub(super) fn daemon(&self, register: Register, holding: Option<Holding>) -> Option<Value> {
        self.daemon.get(&register).filter(|(_, of)| Some(*of) == holding).map(|(value, _)| *value)
    }

    /// Answers overtake each other: the newer value stays.
    pub(super) fn fill(&mut self, register: Register, value: Value, holding: Holding) {
        let entry = self.daemon.entry(register).or_insert((value, holding));
        if entry.1 != holding || entry.0 < value {
            *entry = (value, holding);
        }
    }

    pub(super) fn fill_kernel(&mut self, register: Register, value: Value, until: Monotonic) {
        self.kernel.insert(register, (value, until));
    }

    /// The register has this value now and may not be cached: what is older goes.
    pub(super) fn outdate(&mut self, register: Register, value: Value) {
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

    pub(super) fn drop_daemon(&mut self, fid: Fid) {
        self.daemon.retain(|register, _| register.fid() != fid);
    }

    pub(super) fn drop_all(&mut self) {
        self.daemon.clear();
        self.kernel.clear();
    }
}
