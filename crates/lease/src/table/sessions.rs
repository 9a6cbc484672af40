//! Sessions: their short lease, renewed by any traffic, and their end.

use super::output::{FenceReason, Output, Refusal, SessionEnded};
use super::store::{LeaseId, LeaseList};
use super::told::Told;
use super::{LeaseTable, OpKey};
use soda_types::{Fid, Monotonic, ObjectTerm, Scope, SessionId};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Session {
    /// End of the session's lease if no traffic renews it. What it holds beyond is courtesy.
    pub(super) expires: Monotonic,
    pub(super) standing: SessionStanding,
    /// Its own policy, before that of the volume.
    object_term: Option<ObjectTerm>,
    /// What it takes.
    pub(super) widest: Scope,
    pub(super) leases: LeaseList,
    /// By deep leases.
    pub(super) told: Told,
    /// It has told of changes afterwards, or prepares to.
    pub(super) delays: bool,
    /// It has left an inquiry unanswered: no more of them until then.
    pub(super) not_asked_until: Monotonic,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionStanding {
    Good,
    /// Ends as soon as its lease has run out, which nothing renews any more.
    Condemned(FenceReason),
}

impl Session {
    pub(super) fn is_good(&self) -> bool {
        self.standing == SessionStanding::Good
    }
}

impl LeaseTable {
    /// A new session, or one that goes on over a new connection (which renews it).
    pub fn open_session(&mut self, now: Monotonic, id: SessionId) {
        let expires = now + self.config.session_term;
        match self.sessions.get_mut(&id) {
            Some(session) if session.is_good() => session.expires = session.expires.max(expires),
            Some(_) => {}
            None => {
                self.counters.sessions_opened += 1;
                let (standing, leases) = (SessionStanding::Good, LeaseList::new());
                let widest = Scope::Subtree;
                let session = Session {
                    expires,
                    standing,
                    object_term: None,
                    widest,
                    leases,
                    told: Told::default(),
                    delays: false,
                    not_asked_until: Monotonic::ZERO,
                };
                self.sessions.insert(id, session);
            }
        }
    }

    /// The term that the session wants for its leases on objects from now on, whatever the policy for others is; `None`: as
    /// for others.
    pub fn set_object_term(&mut self, id: SessionId, term: Option<ObjectTerm>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.object_term = term;
        }
    }

    /// The widest leases that the session takes from now on. One that knows nothing of deep leases gets none.
    pub fn set_widest(&mut self, id: SessionId, widest: Scope) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.widest = widest;
        }
    }

    pub(super) fn term_of(&self, session: SessionId, fid: Fid) -> ObjectTerm {
        let own = self.sessions.get(&session).and_then(|session| session.object_term);
        own.unwrap_or_else(|| self.config.term_of(fid.volume))
    }

    /// A message of the session has been received: renews its lease and all that hangs on it. Call it before the
    /// message is looked at.
    ///
    /// # Errors
    /// The session has ended, or is about to: it is not renewed and nothing may be done for it.
    pub fn handle_traffic(&mut self, now: Monotonic, id: SessionId) -> Result<(), SessionEnded> {
        let session = self.sessions.get_mut(&id).ok_or(SessionEnded)?;
        if !session.is_good() {
            return Err(SessionEnded);
        }
        session.expires = session.expires.max(now + self.config.session_term);
        self.counters.renewals += 1;
        Ok(())
    }

    /// The server itself was not running for a while (stopped, suspended, stalled): what its clients sent meanwhile has
    /// not been looked at yet. Gives every session a whole term from now, and as long as at first for what was asked of it,
    /// so that none is taken for dead or silent because of the server's own pause. Always safe: waiting longer than was
    /// promised breaks no promise.
    pub fn handle_own_pause(&mut self, now: Monotonic) {
        for session in self.sessions.values_mut().filter(|session| session.is_good()) {
            session.expires = session.expires.max(now + self.config.session_term);
        }
        self.recalls.put_off_deadlines(now, self.config.recall_deadline);
    }

    /// Somebody needs something of the session's that is no lease, such as a file lock on `fid`. If the session's lease has
    /// run out, it ends ([`Output::Fence`] follows) and the answer is `None`; else it is what is left of the lease.
    pub fn contest(&mut self, now: Monotonic, id: SessionId, fid: Fid) -> Option<Duration> {
        self.contest_for(now, id, FenceReason::Expired(fid))
    }

    /// As [`LeaseTable::contest`], of space that the session has set aside.
    pub fn contest_space(&mut self, now: Monotonic, id: SessionId) -> Option<Duration> {
        self.contest_for(now, id, FenceReason::ExpiredWithSpace)
    }

    fn contest_for(&mut self, now: Monotonic, id: SessionId, expired: FenceReason) -> Option<Duration> {
        let session = self.sessions.get(&id)?;
        if session.expires > now {
            return Some(session.expires.since(now));
        }
        let reason = match session.standing {
            SessionStanding::Good => expired,
            SessionStanding::Condemned(reason) => reason,
        };
        self.fence(id, reason);
        self.end_grace_if_complete(now);
        self.settle(now);
        None
    }

    /// Whether the session's lease has run out: it is there by courtesy.
    pub fn is_expired(&self, now: Monotonic, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.expires <= now)
    }

    /// The session renews its lease, but does not give back what was asked of it for longer than it may: its lease is not
    /// renewed any more.
    pub fn condemn(&mut self, id: SessionId, fid: Fid) {
        if let Some(session) = self.sessions.get_mut(&id).filter(|session| session.is_good()) {
            session.standing = SessionStanding::Condemned(FenceReason::Silent(fid));
        }
    }

    /// How long it may take to give back what was asked for.
    pub fn recall_deadline(&self) -> Duration {
        self.config.recall_deadline
    }

    /// The client says goodbye: it caches nothing any more.
    pub fn close_session(&mut self, now: Monotonic, id: SessionId) {
        if self.drop_session(id) {
            self.counters.sessions_closed += 1;
            self.end_grace_if_complete(now);
            self.settle(now);
        }
    }

    /// The session's lease must have run out.
    pub(super) fn fence(&mut self, id: SessionId, reason: FenceReason) {
        if !self.sessions.contains_key(&id) {
            return;
        }
        self.counters.fences += 1;
        match reason {
            FenceReason::Expired(_) | FenceReason::ExpiredWithSpace => {}
            FenceReason::Silent(_) => self.counters.fences_for_silence += 1,
            FenceReason::NotReclaimed => self.counters.fences_after_grace += 1,
        }
        self.outputs.push_back(Output::Fence { session: id, reason });
        self.drop_session(id);
    }

    /// Forgets the session with its leases and the operations of it that wait. What is admitted goes on.
    fn drop_session(&mut self, id: SessionId) -> bool {
        let Some(mut session) = self.sessions.remove(&id) else { return false };
        while let Some(lease) = session.leases.oldest() {
            self.forget_lease(&mut session.leases, lease);
        }
        let waiting: Vec<OpKey> = self
            .ops
            .iter()
            .filter(|(_, op)| op.session == id && op.is_waiting())
            .map(|(key, _)| *key)
            .collect();
        for key in waiting {
            self.remove_waiting(key);
            self.outputs.push_back(Output::Refuse(key, Refusal::SessionEnded));
        }
        self.end_inquiries(id);
        if let Some(grace) = &mut self.grace {
            grace.missing.remove(&id);
        }
        true
    }

    /// Removes a lease whose session is taken out of the table at the moment.
    fn forget_lease(&mut self, list: &mut super::store::LeaseList, id: LeaseId) {
        self.end_questions(id);
        if let Some(lease) = self.store.remove_lease(list, id) {
            self.after_lease_gone(&lease);
        }
    }
}
