//! Nothing is begun for a session that has ended. (What had been admitted before may end: others waited for it, and its client
//! was told that it may be done or not.)

use super::{Property, Violation};
use crate::register::OpUid;
use soda_types::SessionId;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct Fenced {
    ended: BTreeSet<SessionId>,
}

impl Fenced {
    pub fn ended(&mut self, session: SessionId) {
        self.ended.insert(session);
    }

    /// The server begins to carry the operation out.
    pub fn begun(&self, uid: OpUid, session: SessionId) -> Option<Violation> {
        let what = || format!("{uid:?} was begun after the end of its session {session}");
        self.ended.contains(&session).then(|| Violation { property: Property::Fenced, what: what() })
    }
}
