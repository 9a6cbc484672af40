//! Once all faults are healed, every operation ends within a bound.

use super::{Property, Violation};
use crate::register::OpUid;
use soda_lease::TableConfig;
use std::time::Duration;

/// The longest that an operation may take, from its call or from the healing, whichever is later: a holder that says
/// nothing is condemned at the recall's deadline and has a term left then; a restart just before the healing costs
/// the grace period, and a term more if a session comes back late in it; another holder may be as bad.
pub fn bound(table: &TableConfig) -> Duration {
    2 * (table.recall_deadline + table.session_term)
        + table.grace
        + table.session_term
        + Duration::from_secs(5)
}

pub fn check(uid: OpUid, took: Duration, bound: Duration) -> Option<Violation> {
    if took <= bound {
        return None;
    }
    let what = format!("{uid:?} has waited {took:?} in a healthy world, at most {bound:?} is right");
    Some(Violation { property: Property::Progress, what })
}
