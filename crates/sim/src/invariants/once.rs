//! Exactly once: however often a request is sent, its change is made at most once, and once if it was acknowledged.

use super::{Property, Violation};
use crate::register::{OpUid, Register, Value};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Once {
    applied: BTreeMap<(OpUid, Register), Value>,
}

impl Once {
    pub fn applied(&mut self, uid: OpUid, register: Register, value: Value) -> Option<Violation> {
        let before = self.applied.insert((uid, register), value)?;
        let what = format!("{uid:?} changed {register:?} twice: to {before} and to {value}");
        Some(Violation { property: Property::Once, what })
    }

    pub fn acknowledged(&self, uid: OpUid, registers: &[Register], values: &[Value]) -> Option<Violation> {
        let (register, told) = registers
            .iter()
            .zip(values)
            .find(|(register, told)| self.applied.get(&(uid, **register)) != Some(*told))?;
        let done = self.applied.get(&(uid, *register));
        let what = format!("{uid:?} was told that it made {told} of {register:?}, the store says {done:?}");
        Some(Violation { property: Property::Once, what })
    }
}
