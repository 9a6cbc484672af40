//! What must hold in every run. Each has a module of its own.
//!
//! | property | source | module |
//! |---|---|---|
//! | two sessions never hold conflicting valid leases, each judged by its own clock at the same true time | design: "a promise by the server not to let anyone else change" | [`exclusive`] |
//! | no stale read: a read returns nothing older than what any operation had returned before it began | design, "One copy"; linearizability (Herlihy & Wing 1990) | [`fresh`] |
//! | no acknowledged write is lost, across crashes of the server | design, "Nothing lost in silence" | [`durable`] |
//! | an operation is carried out at most once; exactly once if it was acknowledged | design, "Exactly-once" | [`once`] |
//! | epochs only grow, across restarts | design, "epoch"; Chubby's sequencers | [`epochs`] |
//! | slow is not dead: nobody who is reachable and answers is thrown out for silence | design, "Failures"; Lustre evicted clients for one dropped message | [`patience`] |
//! | once all faults are healed, every operation ends within a bound | openraft's two-phase simulation | [`progress`] |
//! | the same seed gives the same run | slatedb: determinism is itself a test | `tests/determinism.rs` |

pub mod durable;
pub mod epochs;
pub mod exclusive;
pub mod fresh;
pub mod once;
pub mod patience;
pub mod progress;

use crate::message::{OpUid, Register, Value};
use soda_types::Epoch;
use std::collections::BTreeMap;
use std::fmt;

/// A property that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub property: Property,
    pub what: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Property {
    Exclusive,
    Fresh,
    Durable,
    Once,
    Epochs,
    Patience,
    Progress,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.property, self.what)
    }
}

/// The watchers of one run.
#[derive(Debug, Default)]
pub struct Invariants {
    fresh: fresh::Fresh,
    once: once::Once,
    epochs: epochs::Epochs,
    /// What the store has.
    stored: BTreeMap<Register, Value>,
    violations: Vec<Violation>,
}

impl Invariants {
    pub fn new() -> Invariants {
        Invariants::default()
    }

    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub fn report(&mut self, found: Option<Violation>) {
        self.violations.extend(found);
    }

    /// The store has changed the register for the operation.
    pub fn applied(&mut self, uid: OpUid, register: Register, value: Value) {
        self.stored.insert(register, value);
        let found = self.once.applied(uid, register, value);
        self.report(found);
    }

    /// A program calls.
    pub fn invoked(&mut self, uid: OpUid, registers: &[Register]) {
        self.fresh.invoked(uid, registers);
    }

    /// A read has returned to the program.
    pub fn read(&mut self, uid: OpUid, register: Register, value: Value) {
        self.returned(uid, register, value);
        self.fresh.ended(uid);
    }

    /// A change has returned to the program.
    pub fn changed(&mut self, uid: OpUid, registers: &[Register], values: &[Value]) {
        let found = self.once.acknowledged(uid, registers, values);
        self.report(found);
        for (register, value) in registers.iter().zip(values) {
            self.returned(uid, *register, *value);
        }
        self.fresh.ended(uid);
    }

    fn returned(&mut self, uid: OpUid, register: Register, value: Value) {
        let stored = self.stored.get(&register).copied().unwrap_or_default();
        let found = self.fresh.returned(uid, register, value, stored);
        self.report(found);
    }

    /// The program will never know.
    pub fn gave_up(&mut self, uid: OpUid) {
        self.fresh.ended(uid);
    }

    pub fn granted(&mut self, epoch: Epoch) {
        let found = self.epochs.granted(epoch);
        self.report(found);
    }

    /// What the store has now is at least what programs have been told.
    pub fn check_durable(&mut self, stored: impl Fn(Register) -> Value) {
        let found = durable::check(self.fresh.seen(), stored);
        self.report(found);
    }
}
