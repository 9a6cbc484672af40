//! What fsync has returned for because the client's own disk has it: neither a crash nor a power cut of the client takes it. The
//! server gets it, or it is kept for recovery.

use super::{Ahead, Found, State, violation};
use crate::property::Property;
use crate::register::OpUid;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct Here {
    synced: BTreeSet<OpUid>,
    kept: BTreeSet<OpUid>,
}

impl Here {
    /// The log that has it may have been put aside for recovery: the client hears before the server that its session is over.
    pub(super) fn is_on_the_server_alone(&self, uid: OpUid) -> bool {
        self.synced.contains(&uid) && !self.kept.contains(&uid)
    }
}

impl Ahead {
    pub(in crate::invariants) fn synced_here(&mut self, uids: &[OpUid]) {
        self.here.synced.extend(uids);
    }

    pub(in crate::invariants) fn kept(&mut self, uids: &[OpUid]) {
        self.here.kept.extend(uids);
    }

    pub(in crate::invariants) fn lost_here(&mut self, uids: &[OpUid]) -> Found {
        if let Some(uid) = uids.iter().find(|uid| self.here.synced.contains(uid)) {
            let what = format!("a power cut of its client has taken {uid:?}, for which fsync had returned");
            return violation(Property::Synced, what);
        }
        self.take_back(uids)
    }

    pub(super) fn check_synced_here(&self) -> Found {
        let is_applied = |uid: &OpUid| self.ops.get(uid).is_some_and(|op| op.state == State::Applied);
        let lost = self.here.synced.difference(&self.here.kept).find(|uid| !is_applied(uid))?;
        let what = format!("{lost:?}, for which fsync had returned, is neither at the server nor kept");
        violation(Property::Synced, what)
    }
}
