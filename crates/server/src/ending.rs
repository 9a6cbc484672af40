//! The end of a session: what it held goes.

use crate::core::CoreGuard;
use soda_types::SessionId;

impl CoreGuard<'_> {
    /// Ends a session that the table does not know any more: its connections, its open files, what it waited for. Its record
    /// and replies in the store, and its file locks, go when the register is written ([`crate::register`]).
    pub(crate) fn end_session(&mut self, session: SessionId) {
        let Some(entry) = self.sessions.remove(&session) else { return };
        entry.session.end();
        for outbox in entry.control.iter().chain(&entry.data) {
            outbox.close();
        }
        self.forget_lock_waits_of(session);
        self.shared().register.note_end(session);
        let freed = self.opens.remove_session(session);
        for fid in freed {
            self.drop_if_unused(fid);
        }
    }

    /// An orphan that nobody has open any more is to be deleted.
    pub(crate) fn drop_if_unused(&mut self, fid: soda_types::Fid) {
        if self.orphans.contains(&fid) && !self.opens.is_used(fid) {
            self.shared().janitor.enqueue(fid);
        }
    }
}
