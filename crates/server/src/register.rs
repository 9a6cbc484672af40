//! The store's register of sessions: who may come back after a restart, and how long they have to be waited for.
//!
//! The end of a session is decided under the core's lock, where nothing may wait for the store. So it is noted there, and
//! written by whoever is next to depend on it: every commit comes after the ends that were decided before it, and so
//! do the locks that a session had and the answer to its goodbye. It need not be synced: the journal is kept in order, so no
//! change of another session can survive a power cut that brings the ended one back.

use crate::session::records::{self, ServerRecord, SessionRecord};
use crate::shared::Shared;
use soda_storage::{Batch, MetaStore, StorageError, Table, crash};
use soda_types::{Errno, FsError, FsResult, SessionId};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the register is looked at without being asked.
const LOOK: Duration = Duration::from_secs(1);

impl Shared {
    /// Writes everything that nobody else has written yet.
    pub(crate) fn bring_up_to_date(&self) {
        self.write_ends();
        if let Err(error) = self.forget_former_terms() {
            tracing::warn!(%error, "the end of the grace period could not be stored; the next one may be longer");
        }
    }

    /// Writes the ends of sessions that were decided before. Waits for the store; not to be called under the core's lock.
    pub(crate) fn write_ends(&self) {
        if self.register.is_behind() {
            self.write_ends_locked(&self.register.writing());
        }
    }

    fn write_ends_locked(&self, _writing: &MutexGuard<'_, ()>) {
        let ended = self.register.take_ended();
        if ended.is_empty() {
            return;
        }
        for session in &ended {
            if let Err(error) = forget_session(self.volume.meta(), *session) {
                tracing::error!(%session, %error, "the end of a session could not be stored; it may come back after a restart");
            }
        }
        self.register.deleted(ended.len());
        self.sync.dirty();
        let mut core = self.core();
        for session in ended {
            core.free_locks(session);
        }
    }

    /// Gives a new session its number and writes its record: it is in the journal when this returns. The number is used up
    /// in the same batch.
    pub(crate) fn register_session(&self, record: &SessionRecord) -> Result<SessionId, StorageError> {
        let writing = self.register.writing();
        self.write_ends_locked(&writing);
        let (id, server) = {
            let mut core = self.core();
            core.last_session += 1;
            (SessionId(core.last_session), core.record())
        };
        let mut batch = Batch::releasing();
        batch.put(Table::Session, records::session_key(id), records::encode(record));
        batch.put(Table::Server, records::server_key(), records::encode(&server));
        self.volume.meta().commit(batch)?;
        crash::point("server.session-stored");
        self.sync.dirty();
        Ok(id)
    }

    /// When a grace period is completed, all clients that are left have heard of this run's term.
    fn forget_former_terms(&self) -> FsResult<()> {
        let _writing = self.register.writing();
        let server = {
            let core = self.core();
            if core.grace_left().is_some() || core.promised == self.config.term {
                return Ok(());
            }
            ServerRecord { term: self.config.term, ..core.record() }
        };
        let mut batch = Batch::releasing();
        batch.put(Table::Server, records::server_key(), records::encode(&server));
        self.volume.meta().commit(batch)?;
        self.sync.dirty();
        self.core().promised = self.config.term;
        Ok(())
    }
}

/// The thread that writes what nobody else does.
pub(crate) fn start_writer(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    let of_thread = shared.clone();
    let thread = std::thread::Builder::new().name("soda-register".to_owned()).spawn(move || {
        while !of_thread.is_stopping() {
            of_thread.bring_up_to_date();
            std::thread::park_timeout(LOOK);
        }
    })?;
    shared.register.set_writer(thread.thread().clone());
    Ok(thread)
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
