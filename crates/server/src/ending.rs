//! The end of a session: what it held goes, durably, before anybody who waited for it goes on.

use crate::core::CoreGuard;
use crate::session::records;
use soda_storage::{Batch, MetaStore, Table, crash};
use soda_types::{Errno, FsError, FsResult, SessionId};

impl CoreGuard<'_> {
    /// Ends a session that the table does not know any more: its record and replies in the store, its connections,
    /// locks, open files.
    ///
    /// The record's deletion is in the journal when this returns. It need not be synced: whatever becomes durable later
    /// comes after it in the journal, so no change of another session can survive a power cut that brings this session
    /// back.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        let Some(entry) = self.sessions.remove(&session) else { return };
        entry.session.end();
        if let Err(error) = forget_session(self.shared().volume.meta(), session) {
            tracing::error!(%session, %error, "the end of a session could not be stored; it may come back after a restart");
        }
        self.shared().sync.dirty();
        for outbox in entry.control.iter().chain(&entry.data) {
            outbox.close();
        }
        let freed = self.opens.remove_session(session);
        for fid in freed {
            self.drop_if_unused(fid);
        }
        self.end_locks(session);
    }

    /// An orphan that nobody has open any more is to be deleted.
    pub(crate) fn drop_if_unused(&mut self, fid: soda_types::Fid) {
        if self.orphans.contains(&fid) && !self.opens.is_used(fid) {
            self.shared().janitor.enqueue(fid);
        }
    }
}

/// Deletes what the store has of a session.
fn forget_session(meta: &dyn MetaStore, session: SessionId) -> FsResult<()> {
    let replies = records::reply_keys(meta, session);
    let replies = replies.map_err(|error| FsError::new(Errno::Io, error.to_string()))?;
    let mut batch = Batch::releasing();
    batch.delete(Table::Session, records::session_key(session));
    for key in replies {
        batch.delete(Table::Reply, key);
    }
    meta.commit(batch)?;
    crash::point("server.session-ended");
    Ok(())
}
