//! Epochs only grow: each grant has a larger one than all before it, restarts included. A deep lease keeps its epoch; it
//! may be said again, or later than others.

use super::{Property, Violation};
use soda_types::{Epoch, Grant, Scope};

#[derive(Debug, Default)]
pub struct Epochs {
    /// The largest so far. Grants of one reply come in the order in which they were made.
    last: Epoch,
}

impl Epochs {
    pub fn granted(&mut self, grant: &Grant) -> Option<Violation> {
        let epoch = grant.epoch;
        if epoch > self.last || grant.scope == Scope::Subtree {
            self.last = self.last.max(epoch);
            return None;
        }
        let what = format!("{epoch} was granted after {}", self.last);
        Some(Violation { property: Property::Epochs, what })
    }
}
