//! A copy that one mount may be ahead of: what it has acknowledged and not told anybody it may still lose, if it says so.

use super::object::{Call, Object, Operation};
use super::state::State;

/// The state of an object between two operations, and what is left of it if a mount loses what it did last.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Branch {
    state: State,
    /// A mount, and what is left if all that it does from here on is lost.
    kept: Option<(u16, State)>,
    /// The losses that have happened, a bit for each.
    lost: u64,
}

impl Branch {
    pub(super) fn initial(object: Object) -> Branch {
        Branch { state: object.initial(), kept: None, lost: 0 }
    }

    /// As [`State::after`]. `mounts`: thread n works on mount n modulo this.
    pub(super) fn after(&self, call: &Call, mounts: u16) -> Option<Branch> {
        match call.operation {
            Operation::Ahead { mount, loss } => {
                let may_be = self.kept.is_none() && self.lost & (1 << loss) == 0;
                may_be.then(|| Branch { kept: Some((mount, self.state.clone())), ..self.clone() })
            }
            Operation::Lose { mount, loss } => {
                let mut after = Branch { lost: self.lost | 1 << loss, ..self.clone() };
                if let Some((_, kept)) = after.kept.take_if(|(ahead, _)| *ahead == mount) {
                    after.state = kept;
                }
                Some(after)
            }
            _ => {
                // Anybody else who uses the object has everything told first, and so has fsync. But stat asks who is ahead.
                let asks = call.operation == Operation::Read && call.object.is_shown_by_stat();
                let by_another = |ahead: u16| call.client % mounts != ahead && !asks;
                let tells = |ahead: u16| by_another(ahead) || call.operation == Operation::Sync;
                if self.kept.as_ref().is_some_and(|(ahead, _)| tells(*ahead)) {
                    return None;
                }
                Some(Branch { state: self.state.after(call)?, ..self.clone() })
            }
        }
    }
}
