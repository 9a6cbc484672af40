//! No two processes have locks that exclude each other, as long as each of them counts on its own: its client's session lasts by
//! its own clock, and it is not about to release or change the lock.

use super::{Property, Violation};
use crate::register::Object;
use soda_types::Lock;

/// A process of a client, by their numbers.
pub type Process = (usize, usize);

/// Both count on their locks of the file, which exclude each other.
pub fn check(object: Object, (one, lock): (Process, &Lock), (other, rival): (Process, &Lock)) -> Violation {
    let shown = |lock: &Lock| format!("{:?} {}..={}", lock.mode, lock.start, lock.end);
    let (lock, rival) = (shown(lock), shown(rival));
    let what = format!("of {object} client and process {one:?} have {lock}, {other:?} {rival}");
    Violation { property: Property::Locked, what }
}

/// In the end somebody still waits for a lock, or the server has one that nobody has.
pub fn left(what: String) -> Violation {
    Violation { property: Property::Locked, what }
}
