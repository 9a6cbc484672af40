//! No stale read. Values count the changes of a register, and the store numbers them in the order in which it makes
//! them; so a history is linearizable exactly when no operation returns a value older than one that some operation
//! had returned before it was called, or newer than the store's.

use super::{Property, Violation};
use crate::register::{OpUid, Register, Value};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Fresh {
    /// The newest value that any program has been told.
    seen: BTreeMap<Register, Value>,
    /// What that was when an operation was called.
    floors: BTreeMap<OpUid, Vec<(Register, Value)>>,
}

impl Fresh {
    pub fn invoked(&mut self, uid: OpUid, registers: &[Register]) {
        let floor = |register: &Register| (*register, self.seen.get(register).copied().unwrap_or_default());
        self.floors.insert(uid, registers.iter().map(floor).collect());
    }

    pub fn returned(
        &mut self,
        uid: OpUid,
        register: Register,
        value: Value,
        stored: Value,
    ) -> Option<Violation> {
        let floors = self.floors.get(&uid).into_iter().flatten();
        let floor =
            floors.filter(|(of, _)| *of == register).map(|(_, floor)| *floor).max().unwrap_or_default();
        let seen = self.seen.entry(register).or_default();
        *seen = (*seen).max(value);
        let what = if value < floor {
            format!(
                "{uid:?} returned {value} of {register:?}, but {floor} had been seen before it was called"
            )
        } else if value > stored {
            format!("{uid:?} returned {value} of {register:?}, but the store has only {stored}")
        } else {
            return None;
        };
        Some(Violation { property: Property::Fresh, what })
    }

    pub fn ended(&mut self, uid: OpUid) {
        self.floors.remove(&uid);
    }

    pub fn seen(&self) -> &BTreeMap<Register, Value> {
        &self.seen
    }
}
