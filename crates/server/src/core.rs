//! The server's one lock: the lease table, the lock table, the sessions, who waits.
//!
//! Every method of the table is followed by [`CoreGuard::settle`], which carries out what the table decided, in its order:
//! recalls are queued, sessions fenced, waiting operations woken. Replies with grants are queued under the same lock, so
//! what a client receives has the order of the decisions. Nothing under the lock waits for the network or the store.

use crate::clock;
use crate::metrics::CallKind;
use crate::net::Outbox;
use crate::server::Shared;
use crate::session::records::ServerRecord;
use crate::session::{Opens, ReplyTo, Session};
use soda_lease::locks::LockTable;
use soda_lease::table::{Access, OpKey, Output, Refusal, Table};
use soda_protocol::{Frame, FrameKind, OpId, Push};
use soda_types::{Fid, InUse, Lock, Monotonic, Recall, RecallAck, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Recalls that leave together in one message.
const RECALLS_PER_PUSH: usize = 1024;
/// Connections that the deciding thread writes to itself; more are left to their own tasks.
const FLUSH_MAX: usize = 4;
/// The core is used every second; if it was not for this long, the whole server stood still.
const OWN_PAUSE: Duration = Duration::from_millis(1800);

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) table: Table,
    pub(crate) locks: LockTable,
    pub(crate) sessions: BTreeMap<SessionId, Entry>,
    pub(crate) opens: Opens,
    /// Inodes without a name, in the store.
    pub(crate) orphans: HashSet<Fid>,
    pub(crate) waiting: HashMap<OpKey, Waiting>,
    /// Lock requests that wait, by the key the lock table knows them by.
    pub(crate) lock_waits: HashMap<u64, LockWaiting>,
    next_key: u64,
    /// The number of the newest session.
    pub(crate) last_session: u64,
    /// Starts of the data directory, this one included.
    pub(crate) starts: u64,
    /// The longest term that some client may still count on.
    pub(crate) promised: Duration,
    /// When the core was last locked: at least once a second while the server runs.
    last_used: Monotonic,
}

/// A session and what hangs on it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: Arc<Session>,
    pub(crate) control: Option<Arc<Outbox>>,
    pub(crate) data: Vec<Arc<Outbox>>,
    pub(crate) peer: String,
    pub(crate) standing: Standing,
    /// Since when it has no control connection.
    pub(crate) silent_since: Option<Monotonic>,
}

impl Entry {
    pub(crate) fn new(session: Arc<Session>, standing: Standing, now: Monotonic) -> Entry {
        Entry {
            session,
            control: None,
            data: Vec::new(),
            peer: String::new(),
            standing,
            silent_since: Some(now),
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

/// Whether the log has said that it waits long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Warned {
    NotYet,
    Already,
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
}

/// How the waiting of an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Admitted,
    SessionEnded,
    /// Taken out of the queue on the client's wish.
    Cancelled,
}

/// What asking for admission led to.
#[derive(Debug)]
pub(crate) enum Admission {
    Admitted(OpKey),
    Waits(OpKey, oneshot::Receiver<Verdict>),
    SessionEnded,
}

/// Who asks for admission, for logs and for `Cancel`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) session: SessionId,
    pub(crate) kind: CallKind,
    pub(crate) op: Option<OpId>,
    pub(crate) tag: u64,
}

impl Core {
    pub(crate) fn new(table: Table, locks: LockTable, server: &ServerRecord) -> Core {
        Core {
            table,
            locks,
            sessions: BTreeMap::new(),
            opens: Opens::default(),
            orphans: HashSet::new(),
            waiting: HashMap::new(),
            lock_waits: HashMap::new(),
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
}

/// The locked core. Letting go of it sends what was queued.
pub(crate) struct CoreGuard<'s> {
    shared: &'s Shared,
    core: Option<MutexGuard<'s, Core>>,
    pub(crate) now: Monotonic,
    admitted: BTreeSet<OpKey>,
    refused: BTreeSet<OpKey>,
    touched: Vec<Arc<Outbox>>,
}

impl Shared {
    pub(crate) fn core(&self) -> CoreGuard<'_> {
        let mut core = self.core_mutex().lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic();
        let pause = now.since(core.last_used);
        if pause > OWN_PAUSE {
            tracing::warn!(?pause, "the server was not running; its clients' sessions get a new term");
            core.table.handle_own_pause(now);
        }
        core.last_used = now;
        CoreGuard {
            shared: self,
            core: Some(core),
            now,
            admitted: BTreeSet::new(),
            refused: BTreeSet::new(),
            touched: Vec::new(),
        }
    }
}

impl<'s> CoreGuard<'s> {
    pub(crate) fn shared(&self) -> &'s Shared {
        self.shared
    }

    /// Asks the table to admit an operation.
    pub(crate) fn admit(&mut self, asker: Asker, accesses: Vec<Access>) -> Admission {
        let key = OpKey(self.new_key());
        let objects = accesses.iter().map(|access| access.fid).collect();
        let now = self.now;
        self.table.request(now, asker.session, key, accesses);
        self.settle();
        if self.admitted.remove(&key) {
            return Admission::Admitted(key);
        }
        if self.refused.remove(&key) {
            return Admission::SessionEnded;
        }
        let (wake, verdict) = oneshot::channel();
        let waiting = Waiting {
            session: asker.session,
            kind: asker.kind,
            op: asker.op,
            tags: vec![asker.tag],
            objects,
            since: now,
            warned: Warned::NotYet,
            wake,
        };
        self.waiting.insert(key, waiting);
        Admission::Waits(key, verdict)
    }

    /// Takes the operation that a request waits for out of the queue.
    pub(crate) fn cancel(&mut self, session: SessionId, tag: u64) {
        let found = self
            .waiting
            .iter()
            .find(|(_, waiting)| waiting.session == session && waiting.tags.contains(&tag));
        if let Some(key) = found.map(|(key, _)| *key) {
            let now = self.now;
            self.table.cancel(now, key);
            self.wake(key, Verdict::Cancelled);
            self.settle();
        }
    }

    /// What is left of the grace period.
    pub(crate) fn grace_left(&self) -> Option<Duration> {
        self.table.grace_left(self.now)
    }

    /// Forgets a session's lease on an inode that does not exist any more.
    pub(crate) fn give_up_lease(&mut self, session: SessionId, fid: Fid) {
        if let Some(grant) = self.table.lease(session, fid) {
            let now = self.now;
            let given_up = RecallAck { fid, epoch: grant.epoch, kept: None, in_use: InUse::No, uses: 0 };
            self.table.handle_release(now, session, &[given_up]);
        }
    }

    /// Takes an operation out of the queue whose asker does not wait.
    pub(crate) fn withdraw(&mut self, key: OpKey) {
        if self.waiting.remove(&key).is_some() {
            let now = self.now;
            self.table.cancel(now, key);
            self.settle();
        }
    }

    /// A waiting operation was sent again under another tag.
    pub(crate) fn join(&mut self, session: SessionId, op: OpId, tag: u64) {
        let same = |waiting: &&mut Waiting| waiting.session == session && waiting.op == Some(op);
        if let Some(waiting) = self.waiting.values_mut().find(same) {
            waiting.tags.push(tag);
        }
    }

    /// Carries out everything the table has decided.
    pub(crate) fn settle(&mut self) {
        let mut recalls: Vec<(SessionId, Vec<Recall>)> = Vec::new();
        while let Some(output) = self.table.poll_output() {
            match output {
                Output::Admit(key) => {
                    if !self.wake(key, Verdict::Admitted) {
                        self.admitted.insert(key);
                    }
                }
                Output::Refuse(key, Refusal::SessionEnded) => {
                    if !self.wake(key, Verdict::SessionEnded) {
                        self.refused.insert(key);
                    }
                }
                Output::Recall { session, recall } => match recalls.iter_mut().find(|(to, _)| *to == session)
                {
                    Some((_, list)) => list.push(recall),
                    None => recalls.push((session, vec![recall])),
                },
                Output::Fence { session, reason } => {
                    let name = self.sessions.get(&session).map(|entry| entry.session.record.name.as_str());
                    tracing::warn!(%session, name, %reason, "session fenced");
                    self.shared.metrics.sessions_fenced.add(1);
                    self.end_session(session);
                }
                Output::SessionInUse { session, fid } => {
                    let order = self.new_key();
                    self.opens.add(session, fid, order);
                }
            }
        }
        for (session, recalls) in recalls {
            self.push_recalls(session, &recalls);
        }
    }

    /// Wakes a waiting operation; false if it is not one of those that wait.
    fn wake(&mut self, key: OpKey, verdict: Verdict) -> bool {
        let Some(waiting) = self.waiting.remove(&key) else { return false };
        let waited = self.now.since(waiting.since);
        self.shared.metrics.admission_wait.record(waited);
        if waiting.warned == Warned::Already {
            tracing::warn!(session = %waiting.session, op = waiting.kind.name(), ?waited, ?verdict,
                "an operation that waited long goes on");
        }
        // The other end is gone only while the server stops; then nobody is to be told.
        let _ = waiting.wake.send(verdict);
        true
    }

    fn push_recalls(&mut self, session: SessionId, recalls: &[Recall]) {
        // A client without a connection gets them again when it has one.
        let Some(outbox) = self.sessions.get(&session).and_then(|entry| entry.control.clone()) else {
            return;
        };
        for recalls in recalls.chunks(RECALLS_PER_PUSH) {
            self.shared.metrics.recalls_pushed.add(recalls.len() as u64);
            self.push(&outbox, &Push::Recalls(recalls.to_vec()));
        }
    }

    pub(crate) fn push(&mut self, outbox: &Arc<Outbox>, push: &Push) {
        match Frame::new(FrameKind::Push, 0, push, bytes::Bytes::new()) {
            Ok(frame) => self.send(outbox, frame),
            Err(error) => tracing::error!(%error, "a push could not be encoded"),
        }
    }

    /// Queues a frame in the order of the table's decisions.
    pub(crate) fn send(&mut self, outbox: &Arc<Outbox>, frame: Frame) {
        outbox.push(frame);
        if !self.touched.iter().any(|known| known.id() == outbox.id()) {
            self.touched.push(outbox.clone());
        }
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;
    fn deref(&self) -> &Core {
        self.core.as_deref().expect("only taken when the guard is dropped")
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_deref_mut().expect("only taken when the guard is dropped")
    }
}

impl Drop for CoreGuard<'_> {
    fn drop(&mut self) {
        let timeout = self.core.as_ref().and_then(|core| core.table.poll_timeout());
        self.core = None;
        if let Some(timeout) = timeout {
            self.shared.wake_timer_at(timeout);
        }
        let direct = self.touched.len().min(FLUSH_MAX);
        for outbox in self.touched.drain(direct..) {
            outbox.flush_later();
        }
        for outbox in &self.touched {
            outbox.flush();
        }
    }
}
