//! What the server's one lock guards: the lease table, the lock table, the sessions, who waits. State only; how it is
//! locked and what follows from the table's decisions is in `guard`.

use crate::clock;
use crate::link::{Line, Warned};
use crate::metrics::CallKind;
use crate::net::Outbox;
use crate::put_off::PutOff;
use crate::records::ServerRecord;
use crate::session::{Opens, ReplyTo, Session};
use soda_lease::locks::{Delegations, LockTable, WaitKey};
use soda_lease::table::{LeaseTable, OpKey};
use soda_protocol::{BacklogReport, Delegable, Node, OpId};
use soda_types::{Epoch, Fid, Lock, Monotonic, SessionId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Epochs of one run: at 100,000 grants a second enough for five years.
pub(crate) const EPOCHS_PER_START: u32 = 44;

/// The table's name for the server's own work, such as the deletion of orphans. Never given to a client.
pub(crate) const OWN_SESSION: SessionId = SessionId(u64::MAX);

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) table: LeaseTable,
    pub(crate) locks: LockTable,
    pub(crate) sessions: BTreeMap<SessionId, Entry>,
    pub(crate) opens: Opens,
    /// Inodes without a name, in the store.
    pub(crate) orphans: HashSet<Fid>,
    pub(crate) waiting: HashMap<OpKey, Waiting>,
    /// Who waits for what a holder says: the answer, or that there is none.
    pub(crate) inquiries: HashMap<OpKey, oneshot::Sender<Option<Node>>>,
    /// Lock requests that wait, by the key the lock table knows them by.
    pub(crate) lock_waits: HashMap<u64, LockWaiting>,
    /// Who decides about locks by itself.
    pub(crate) delegations: Delegations,
    /// Calls about locks that a session is asked to give back first.
    pub(crate) lock_calls: PutOff,
    next_key: u64,
    /// The number of the newest session.
    pub(crate) last_session: u64,
    /// Starts of the data directory, this one included.
    pub(crate) starts: u64,
    /// The longest term that some client may still count on.
    pub(crate) promised: Duration,
    /// When the core was last locked: at least once a second while the server runs.
    pub(crate) last_used: Monotonic,
}

/// A session and what hangs on it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: Arc<Session>,
    pub(crate) digests: Arc<Line>,
    pub(crate) control: Option<Arc<Outbox>>,
    pub(crate) data: Vec<Arc<Outbox>>,
    pub(crate) peer: String,
    pub(crate) standing: Standing,
    /// Since when it has no control connection.
    pub(crate) silent_since: Option<Monotonic>,
    /// What it has not told, and when it said so.
    pub(crate) backlog: Option<(BacklogReport, Monotonic)>,
}

impl Entry {
    pub(crate) fn new(session: Arc<Session>, standing: Standing, now: Monotonic) -> Entry {
        Entry {
            session,
            digests: Arc::default(),
            control: None,
            data: Vec::new(),
            peer: String::new(),
            standing,
            silent_since: Some(now),
            backlog: None,
        }
    }
}

/// Whether a session of an earlier run has told what it held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Current,
    Reclaiming,
}

/// An operation that was not admitted at once.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) session: SessionId,
    pub(crate) kind: CallKind,
    pub(crate) op: Option<OpId>,
    /// Tags of the requests that wait for it; more than one if it was sent again.
    pub(crate) tags: Vec<u64>,
    pub(crate) objects: Vec<Fid>,
    pub(crate) since: Monotonic,
    pub(crate) warned: Warned,
    pub(crate) wake: oneshot::Sender<Verdict>,
}

/// A lock that cannot be had yet.
#[derive(Debug)]
pub(crate) struct LockWaiting {
    pub(crate) session: SessionId,
    pub(crate) reply_to: ReplyTo,
    pub(crate) kind: CallKind,
    pub(crate) since: Monotonic,
    pub(crate) fid: Fid,
    pub(crate) lock: Lock,
    pub(crate) delegable: Delegable,
}

/// How the waiting of an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Admitted,
    SessionEnded,
    /// Of a covered operation: the lease that is missing.
    NotHeld(Fid),
    /// Of a covered operation: to be asked for again.
    Unplaced,
    /// Taken out of the queue on the client's wish.
    Cancelled,
}

impl Core {
    pub(crate) fn new(table: LeaseTable, locks: LockTable, server: &ServerRecord) -> Core {
        Core {
            table,
            locks,
            sessions: BTreeMap::new(),
            opens: Opens::default(),
            orphans: HashSet::new(),
            waiting: HashMap::new(),
            inquiries: HashMap::new(),
            lock_waits: HashMap::new(),
            delegations: Delegations::new(),
            lock_calls: PutOff::default(),
            next_key: 1,
            last_session: server.last_session,
            starts: server.starts,
            promised: server.term,
            last_used: clock::monotonic(),
        }
    }

    /// The server's own state as it is stored.
    pub(crate) fn record(&self) -> ServerRecord {
        ServerRecord { starts: self.starts, term: self.promised, last_session: self.last_session }
    }

    /// A number that was not used before; larger than all that were.
    pub(crate) fn new_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        key
    }

    /// A number that no run of the server uses again, for what a client may still answer after a restart.
    pub(crate) fn new_number(&mut self) -> u64 {
        (self.starts << EPOCHS_PER_START) + self.new_key()
    }

    /// An epoch for what is not in the lease table.
    pub(crate) fn new_lock_epoch(&mut self) -> Epoch {
        Epoch(self.new_number())
    }

    /// A session has ended: no lock is granted to it any more.
    pub(crate) fn forget_lock_waits_of(&mut self, session: SessionId) {
        self.lock_calls.forget(session, |_| true);
        self.forget_lock_waits_where(|waiting| waiting.session == session);
    }

    /// A connection has ended: who waited on it for a lock asks again on the next one.
    pub(crate) fn forget_lock_waits_on(&mut self, session: SessionId, connection: u64) {
        self.lock_calls.forget(session, |call| call.link.outbox.id() == connection);
        self.forget_lock_waits_where(|waiting| waiting.reply_to.outbox.id() == connection);
    }

    fn forget_lock_waits_where(&mut self, forget: impl Fn(&LockWaiting) -> bool) {
        let found = self.lock_waits.iter().filter(|(_, waiting)| forget(waiting));
        let keys: Vec<u64> = found.map(|(key, _)| *key).collect();
        for key in keys {
            self.locks.cancel(WaitKey(key));
            self.lock_waits.remove(&key);
        }
    }
}
