//! Slow is not dead: a client that is reachable and works on recalls is not thrown out for silence, however long they
//! take it.

use super::{Property, Violation};
use crate::clock::Time;
use soda_lease::TableConfig;
use std::time::Duration;

/// How long a client must have been well to be safe: it hears of the recall by a resend, reports progress with its next
/// renewal, and a session that was condemned before that has at most a term left.
pub fn grace(table: &TableConfig) -> Duration {
    table.recall_resend + table.session_term * 2 + Duration::from_secs(1)
}

/// A client was fenced for silence that has been well since then.
pub fn check(client: usize, well_since: Time, now: Time, grace: Duration) -> Option<Violation> {
    if now.since(well_since) <= grace {
        return None;
    }
    let what = format!(
        "client{client} was thrown out for silence, but has been well for {:?}",
        now.since(well_since)
    );
    Some(Violation { property: Property::Patience, what })
}
