//! Two sessions never hold conflicting valid leases. Valid is what a holder itself takes for valid by its own clock:
//! that is what its caches, and its kernel while it is frozen, go by.

use super::{Property, Violation};
use crate::register::Register;
use soda_types::Mode;

/// What each client may do with one object at this moment.
pub fn check(object: Register, modes: &[(usize, Option<Mode>)]) -> Option<Violation> {
    let writers: Vec<usize> =
        modes.iter().filter(|(_, mode)| *mode == Some(Mode::Write)).map(|(client, _)| *client).collect();
    let holders: Vec<usize> =
        modes.iter().filter(|(_, mode)| mode.is_some()).map(|(client, _)| *client).collect();
    if writers.is_empty() || holders.len() < 2 {
        return None;
    }
    let what = format!("clients {writers:?} may write and clients {holders:?} may use {}", object.fid());
    Some(Violation { property: Property::Exclusive, what })
}
