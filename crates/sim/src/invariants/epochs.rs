//! Epochs only grow: each grant has a larger one than all before it, restarts included.

use super::{Property, Violation};
use soda_types::Epoch;

#[derive(Debug, Default)]
pub struct Epochs {
    /// The largest so far. Grants of one reply come in the order in which they were made.
    last: Epoch,
}

impl Epochs {
    pub fn granted(&mut self, epoch: Epoch) -> Option<Violation> {
        if epoch > self.last {
            self.last = epoch;
            return None;
        }
        let what = format!("{epoch} was granted after {}", self.last);
        Some(Violation { property: Property::Epochs, what })
    }
}
