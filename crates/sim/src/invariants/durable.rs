//! No acknowledged write is lost: what programs have been told, the store has, after every start of the server and at
//! the end.

use super::{Property, Violation};
use crate::register::{Register, Value};
use std::collections::BTreeMap;

pub fn check(told: &BTreeMap<Register, Value>, stored: impl Fn(Register) -> Value) -> Option<Violation> {
    let (register, value) = told.iter().find(|(register, value)| stored(**register) < **value)?;
    let what = format!("programs have seen {value} of {register:?}, the store has {}", stored(*register));
    Some(Violation { property: Property::Durable, what })
}
