//! The session: renewed by every answer, counted from when its request was sent.

use super::Holder;
use soda_types::{Coverage, Grant, Monotonic, SessionId};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Standing {
    pub(super) session: SessionId,
    /// What the client makes of the server's term.
    pub(super) usable: Duration,
    /// When the request was sent that was the last one answered.
    pub(super) renewed: Monotonic,
    pub(super) valid_until: Monotonic,
}

/// A request on its way. Keep it with the request, through retries over new connections, until
/// [`Holder::handle_reply`] or [`Holder::fail_request`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "what is begun and never ended keeps bars in place for ever"]
pub struct Ticket {
    pub(super) number: u64,
    pub(super) session: Option<SessionId>,
    sent_at: Monotonic,
}

impl Holder {
    /// The server has given a session, or goes on with it: `sent_at` is when Hello was sent, `term` what the server
    /// said. Another session than before ends that one: returns all that was held under it, whose caches are void.
    pub fn start_session(
        &mut self,
        _now: Monotonic,
        sent_at: Monotonic,
        session: SessionId,
        term: Duration,
    ) -> Vec<soda_types::Fid> {
        let usable = self.config.drift_margin.usable(term);
        let valid_until = sent_at + usable;
        if let Some(standing) = &mut self.standing
            && standing.session == session
        {
            standing.usable = usable;
            standing.renewed = standing.renewed.max(sent_at);
            standing.valid_until = standing.valid_until.max(valid_until);
            return Vec::new();
        }
        let lost = self.forget_everything();
        self.standing = Some(Standing { session, usable, renewed: sent_at, valid_until });
        lost
    }

    /// The server does not know the session any more. Returns all that was held: their caches are void.
    pub fn handle_session_lost(&mut self, _now: Monotonic) -> Vec<soda_types::Fid> {
        self.standing = None;
        self.forget_everything()
    }

    /// A request is about to be sent that may bring grants, or whose answer renews the session.
    pub fn begin_request(&mut self, now: Monotonic) -> Ticket {
        let number = self.tick();
        self.on_the_way.insert(number);
        Ticket { number, session: self.session(), sent_at: now }
    }

    /// The answer, with the leases that came with it. Renews the session and takes the leases that were not asked for,
    /// given back or replaced in the meantime.
    pub fn handle_reply(&mut self, now: Monotonic, ticket: Ticket, grants: &[Grant]) {
        self.handle_reply_covered(now, ticket, grants, &[]);
    }

    /// As [`Holder::handle_reply`], with what the server said of deep leases.
    pub fn handle_reply_covered(
        &mut self,
        now: Monotonic,
        ticket: Ticket,
        grants: &[Grant],
        covered: &[Coverage],
    ) {
        if ticket.session.is_some()
            && ticket.session == self.session()
            && self.on_the_way.contains(&ticket.number)
        {
            self.renew_from(ticket.sent_at);
            self.deep.begin_answer(ticket, grants);
            for grant in grants {
                self.accept(now, ticket, grant);
            }
            for covered in covered {
                self.accept_covered(ticket, covered);
            }
            self.raise_below(ticket);
            if !grants.is_empty() || !covered.is_empty() {
                self.deep.note_heard(ticket.number);
            }
        }
        let until = self.clock;
        self.deep.end_move(ticket.number, until);
        self.fail_request(ticket);
    }

    /// No answer will come (given up), or it was an error of the transport's. Nothing is renewed. A move that was given up may
    /// still be made.
    pub fn fail_request(&mut self, ticket: Ticket) {
        self.on_the_way.remove(&ticket.number);
        self.lift_bars();
    }

    pub fn session(&self) -> Option<SessionId> {
        self.standing.as_ref().map(|standing| standing.session)
    }

    /// Until when leases without a term of their own may be used, if nothing renews the session.
    pub fn session_valid_until(&self) -> Monotonic {
        self.session_end()
    }

    /// When to send a request just for renewal: after a third of the term. `NEVER` without a session.
    pub fn renew_at(&self) -> Monotonic {
        self.standing.as_ref().map_or(Monotonic::NEVER, |standing| standing.renewed + standing.usable / 3)
    }

    fn renew_from(&mut self, sent_at: Monotonic) {
        if let Some(standing) = &mut self.standing {
            standing.renewed = standing.renewed.max(sent_at);
            standing.valid_until = standing.valid_until.max(sent_at + standing.usable);
        }
    }

    pub(super) fn oldest_on_the_way(&self) -> u64 {
        self.on_the_way.first().copied().unwrap_or(u64::MAX)
    }
}

impl Ticket {
    pub fn sent_at(&self) -> Monotonic {
        self.sent_at
    }
}
