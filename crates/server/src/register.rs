//! The store's register of sessions: who may come back after a restart, and how long they have to be waited for.
//!
//! The end of a session is decided under the core's lock, where nothing may wait for the store. So it is noted there, and
//! written by whoever is next to depend on it: every commit comes after the ends that were decided before it, and so
//! do the locks that a session had and the answer to its goodbye. It need not be synced, unless there are locks to be
//! had: the journal is kept in order, so no change of another session can survive a power cut that brings the ended one back.
//!
//! A session whose end the store refuses keeps its locks, or it could come back after a restart and share them with the
//! next owner. Its end is tried again until it is written.

use crate::records::{self, ServerRecord, SessionRecord};
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
        self.write_all_ends();
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

    /// Also those that the store refused before. Returns when nobody is about to write any.
    pub(crate) fn write_all_ends(&self) -> Ends {
        let writing = self.register.writing();
        self.write_ends_locked(&writing);
        let refused = self.register.refused();
        if refused.is_empty() {
            return Ends::Written;
        }
        let still = self.store_ends(&refused);
        let written = refused.len() - still.len();
        if written > 0 {
            tracing::info!(written, "ends of sessions that had been refused are stored");
        }
        let ends = if still.is_empty() { Ends::Written } else { Ends::Refused };
        self.register.note_still_refused(still);
        ends
    }

    fn write_ends_locked(&self, _writing: &MutexGuard<'_, ()>) {
        let ended = self.register.take_ended();
        if ended.is_empty() {
            return;
        }
        let refused = self.store_ends(&ended);
        if !refused.is_empty() {
            tracing::error!(
                ?refused,
                "ends of sessions could not be stored: they keep their file locks until they are"
            );
        }
        self.register.note_refused(&refused);
        self.register.tried(ended.len());
    }

    /// Returns those whose end could not be written.
    fn store_ends(&self, ended: &[SessionId]) -> Vec<SessionId> {
        let meta = self.volume.meta();
        let (mut written, mut refused) = (Vec::new(), Vec::new());
        for session in ended {
            match forget_session(meta, *session) {
                Ok(()) => written.push(*session),
                Err(error) => {
                    tracing::debug!(%session, %error, "the end of a session could not be stored");
                    refused.push(*session);
                }
            }
        }
        let (with_locks, without): (Vec<_>, Vec<_>) = {
            let core = self.core();
            let may_have_any =
                |session: &SessionId| core.locks.count_of(*session) > 0 || core.delegations.has_any(*session);
            written.into_iter().partition(may_have_any)
        };
        // A lock leaves no trace in the journal: who gets it next must not lose it to one who comes back after a power cut.
        let synced = if with_locks.is_empty() { Ok(()) } else { meta.sync() };
        match synced {
            Ok(()) => {
                let mut core = self.core();
                with_locks.into_iter().chain(without).for_each(|session| core.free_locks(session));
                crash::point("server.locks-freed");
            }
            Err(error) => {
                tracing::debug!(%error, "ends of sessions could not be made durable");
                refused.extend(with_locks);
            }
        }
        self.sync.dirty();
        refused
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
        crash::point("server.grace-ended");
        self.sync.dirty();
        self.core().promised = self.config.term;
        Ok(())
    }
}

/// What the store has of sessions that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ends {
    Written,
    /// It refused some.
    Refused,
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
    let reserved = records::reservation_keys(meta, session);
    let reserved = reserved.map_err(|error| FsError::new(Errno::Io, error.to_string()))?;
    let mut batch = Batch::releasing();
    batch.delete(Table::Session, records::session_key(session));
    for key in reserved {
        batch.delete(Table::Reservation, key);
    }
    for key in replies {
        batch.delete(Table::Reply, key);
    }
    meta.commit(batch)?;
    crash::point("server.session-ended");
    Ok(())
}
