//! The connections: hello, the claims after a restart of the server, and only then requests.

use super::delayed::Delayed;
use super::{Asked, Client, Request, new_holder};
use crate::config::{Heirs, Order, TakeOver};
use crate::context::Context;
use crate::event::{ConnId, Event};
use crate::message::{Claim, Standing, Tag, ToServer};
use crate::network::Kind;
use crate::register::Object;
use crate::sabotage::Sabotage;
use soda_oplog::DigestId;
use soda_protocol::ReclaimStep;
use soda_types::{Fid, Grant, Lock, Monotonic, SessionId};
use std::time::Duration;

#[derive(Debug)]
pub(super) enum Link {
    Down,
    Greeting {
        conn: ConnId,
        tag: Tag,
        sent_at: Monotonic,
    },
    /// The server says which leases it gives anew: until then it is asked for nothing else.
    Claiming(ConnId),
    Up(ConnId),
}

impl Link {
    /// The session's connection: what asks for nothing goes on it, and recalls come.
    pub(super) fn control(&self) -> Option<ConnId> {
        match self {
            Link::Claiming(conn) | Link::Up(conn) => Some(*conn),
            Link::Down | Link::Greeting { .. } => None,
        }
    }

    /// The server has not said all that it has to say first.
    pub(super) fn is_beginning(&self, conn: ConnId) -> bool {
        match self {
            Link::Greeting { conn: one, .. } | Link::Claiming(one) => *one == conn,
            Link::Down | Link::Up(_) => false,
        }
    }
}

impl Client {
    pub(super) fn connect(&mut self, context: &mut Context) {
        if !matches!(self.link, Link::Down) || !self.is_on() {
            return;
        }
        let conn = context.network.open(self.number, Kind::Control);
        let (tag, sent_at) = (self.next_tag(), self.clock.read(context.now));
        let logged = self.delayed.as_ref().and_then(Delayed::session);
        let resume = self.holder.session().or(logged);
        let widest = self.widest(context);
        context.send_to_server(conn, ToServer::Hello { resume, life: self.life, widest, tag });
        self.link = Link::Greeting { conn, tag, sent_at };
        let patience = Duration::from_millis(500) + context.about(Duration::from_millis(500));
        context.after(patience, Event::ConnectGivesUp { client: self.number, life: self.life, conn });
    }

    pub(super) fn connect_data(&mut self, context: &mut Context) {
        let (Link::Up(_), None, Some(session)) = (&self.link, self.data, self.holder.session()) else {
            return;
        };
        let conn = context.network.open(self.number, Kind::Data);
        self.data = Some(conn);
        context.send_to_server(conn, ToServer::Attach { session });
        self.send_again(context, Kind::Data);
    }

    pub(super) fn handle_reset(&mut self, context: &mut Context, conn: ConnId) {
        let (client, life) = (self.number, self.life);
        if self.link.control() == Some(conn) || self.link.is_beginning(conn) {
            self.link = Link::Down;
            self.forget_renewals();
            let delay = Duration::from_millis(5) + context.about(Duration::from_millis(200));
            context.after(delay, Event::Connect { client, life });
        }
        if self.data == Some(conn) {
            self.data = None;
            let delay = context.about(Duration::from_millis(50));
            context.after(delay, Event::ConnectData { client, life });
        }
    }

    /// A renewal is not worth repeating; a reclaim is made anew from what is held then.
    pub(super) fn forget_renewals(&mut self) {
        let gone: Vec<Tag> = self
            .requests
            .iter()
            .filter(|(_, request)| matches!(request.what, Asked::Renew | Asked::Reclaim(..)))
            .map(|(tag, _)| *tag)
            .collect();
        for tag in gone {
            if let Some(request) = self.requests.remove(&tag) {
                self.holder.fail_request(request.ticket);
            }
        }
    }

    pub(super) fn welcome(
        &mut self,
        context: &mut Context,
        (conn, tag): (ConnId, Tag),
        session: SessionId,
        (standing, term): (Standing, Duration),
        (boot, stored): (u64, DigestId),
    ) {
        let Link::Greeting { conn: expected, tag: asked, sent_at } = self.link else { return };
        if (expected, asked) != (conn, tag) {
            return;
        }
        let now = self.clock.read(context.now);
        let is_new = self.holder.session() != Some(session);
        let sent_at = if context.config.sabotage == Sabotage::CountFromReply { now } else { sent_at };
        self.holder.start_session(now, sent_at, session, term);
        // After a crash of this client the session may still stand, and the log with it.
        if is_new && self.delayed.as_ref().and_then(Delayed::session) != Some(session) {
            self.after_session_lost(context);
        }
        self.welcomed(context, session, boot, stored);
        if let Some(old) = self.data.take() {
            context.break_connection(old);
        }
        if standing == Standing::Reclaim {
            self.link = Link::Claiming(conn);
            if context.config.sabotage != Sabotage::ReclaimWhole {
                self.holder.fall_back_to_nodes();
            }
            self.take_back_made(context);
            let claims = self.claims(context, now);
            let locks = self.claim_locks();
            self.claim(context, conn, (claims, locks), ReclaimStep::More);
            return;
        }
        if !is_new && context.config.heirs != Heirs::Never {
            self.pass_on(context, (session, sent_at, term));
        }
        self.go_on(context, conn);
    }

    /// Another process goes on, if nothing is under way but recalls, which the server asks it again. The kernel drops all that it
    /// was told before that one answers any.
    fn pass_on(&mut self, context: &mut Context, (session, sent_at, term): (SessionId, Monotonic, Duration)) {
        let is_told = self.delayed.as_ref().is_none_or(Delayed::is_durable);
        // An answer that waits for what it needs to be told is not begun once more here.
        let is_answered = self.delayed.is_none() || self.holder.recalling().is_empty();
        if !self.requests.is_empty() || !is_answered || !is_told {
            return;
        }
        let now = self.clock.read(context.now);
        let most = if context.rng.chance(1, 4) { 2 } else { usize::MAX };
        let mut heir = new_holder(&context.config);
        heir.start_session(now, sent_at, session, term);
        let handed = self.holder.hand_over(now, most);
        let early = self.written_down.replace((session, handed.clone()));
        let mistake = context.config.heirs;
        let early = early.filter(|_| mistake == Heirs::Mistaken(TakeOver::WrittenDownTooEarly));
        heir.take_over(early.filter(|(of, _)| *of == session).map_or(handed, |(_, early)| early));
        context.note(|| format!("client{}  is followed by another process", self.number));
        context.heirs += 1;
        self.process += 1;
        self.holder = heir;
        if mistake != Heirs::Mistaken(TakeOver::KernelKeeps) {
            self.caches.drop_all_of_kernel();
        }
    }

    fn claim(
        &mut self,
        context: &mut Context,
        conn: ConnId,
        (claims, locks): (Vec<Claim>, Vec<(Object, Lock)>),
        step: ReclaimStep,
    ) {
        let tag = self.ask(context, Kind::Control, Asked::Reclaim(claims.clone(), step));
        context.send_to_server(conn, ToServer::Reclaim { tag, claims, locks, step });
    }

    /// The session is what it was: whatever is not answered is asked for again.
    fn go_on(&mut self, context: &mut Context, conn: ConnId) {
        self.link = Link::Up(conn);
        // The word of that may have been lost. Where the order is not kept what is sent next could overtake it.
        let given_back = self.holder.given_back();
        if context.config.order == Order::Kept && !given_back.is_empty() {
            self.tell(context, ToServer::Release(given_back));
        }
        self.send_again(context, Kind::Control);
        self.connect_data(context);
    }

    pub(super) fn handle_reclaimed(&mut self, context: &mut Context, tag: Tag, answers: &[Option<Grant>]) {
        let Some(Request { ticket, what: Asked::Reclaim(asked, step), .. }) = self.requests.remove(&tag)
        else {
            return;
        };
        let now = self.clock.read(context.now);
        let held: Vec<Grant> = asked.iter().map(|claim| claim.grant).collect();
        for fid in self.holder.handle_reclaimed(now, ticket, &held, answers) {
            self.forget(fid);
        }
        let refused: Vec<Fid> = held
            .iter()
            .enumerate()
            .filter(|(at, _)| answers.get(*at).is_none_or(Option::is_none))
            .map(|(_, grant)| grant.fid)
            .collect();
        self.give_up(context, &refused);
        match (step, &self.link) {
            (ReclaimStep::More, Link::Claiming(conn)) => {
                let conn = *conn;
                self.claim(context, conn, (Vec::new(), Vec::new()), ReclaimStep::Last);
            }
            (ReclaimStep::Last, Link::Claiming(conn)) => {
                let conn = *conn;
                self.go_on(context, conn);
            }
            _ => {}
        }
    }
}
