//! What was made under a reservation has room at the server when it is told, and a number that is the session's and nobody
//! else's; what is taken and what is set aside have room side by side; and what is set aside for who is away, others get before
//! they are told that there is no room.

use super::{Property, Violation};
use crate::register::Object;
use soda_oplog::DigestId;
use soda_types::{FsError, Ino, SessionId};
use std::collections::BTreeMap;

fn violation(what: String) -> Violation {
    Violation { property: Property::Room, what }
}

/// Which inode each number has been given to; whoever has cached one takes the other for it.
#[derive(Debug, Default)]
pub struct Numbers(BTreeMap<Ino, Object>);

impl Numbers {
    /// The server has taken the number for an inode, perhaps once more after a power cut.
    pub fn numbered(&mut self, number: Ino, object: Object) -> Option<Violation> {
        let first = *self.0.entry(number).or_insert(object);
        (first != object).then(|| violation(format!("{first} and {object} both have the number {number}")))
    }
}

/// All in bytes.
pub fn check(capacity: u64, used: u64, reserved: u64) -> Option<Violation> {
    let what = || violation(format!("{used} bytes are taken and {reserved} set aside, of {capacity}"));
    (used.saturating_add(reserved) > capacity).then(what)
}

/// A digest was refused for want of space.
pub fn refused(session: SessionId, digest: DigestId, bytes: u64) -> Violation {
    violation(format!("{digest:?} of {session:?} is refused: there is no room for its {bytes} bytes"))
}

/// A digest was refused for the number of something that it makes.
pub fn refused_number(session: SessionId, digest: DigestId, error: &FsError) -> Violation {
    violation(format!("{digest:?} of {session:?} is refused: {error}"))
}

/// The session has ended, or its lease has run out when somebody else is told that there is no room.
pub fn set_aside_for_nobody((session, bytes): (SessionId, u64)) -> Violation {
    violation(format!("{bytes} bytes are set aside for {session:?}, which is away"))
}
