//! How clients come, come back, reclaim what they held, and go.

use super::{NO_SESSION, Server};
use crate::context::Context;
use crate::event::ConnId;
use crate::layout::Tree;
use crate::message::{Claim, Standing, Tag, ToClient};
use crate::register::{Object, object_of};
use crate::sabotage::Sabotage;
use soda_lease::table::{Ancestors, OpKey, Outcome};
use soda_protocol::ReclaimStep;
use soda_types::{Grant, Lock, Scope, SessionId};

impl Server {
    /// Each lease is granted anew if the object is in the state in which the client takes it to be. If it is not, the client
    /// goes on using its caches until it hears of that: so the table keeps the lease, and it is free when the client
    /// answers a recall.
    pub(super) fn reclaim(
        &mut self,
        context: &mut Context,
        (conn, tag): (ConnId, Tag),
        session: SessionId,
        (claims, locks): (&[Claim], &[(Object, Lock)]),
        step: ReclaimStep,
    ) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let lenient = context.config.sabotage == Sabotage::ReclaimAnyState;
        let is_so = |claim: &Claim| {
            lenient || claim.believed.iter().all(|(at, stamp)| self.disk.value(*at).stamp == *stamp)
        };
        let (layout, as_of) = (context.config.layout(), running.table.tree_version());
        let placed = |claim: &Claim| match layout.tree {
            Tree::Deep => (claim.grant, self.disk.ancestors(object_of(claim.grant.fid), layout, as_of)),
            Tree::Flat => (claim.grant, Ancestors::Unknown),
        };
        let held: Vec<(Grant, Ancestors)> = claims.iter().map(placed).collect();
        let answers = running.traffic(context, now, session);
        let Ok(answers) = answers.and_then(|()| running.table.handle_reclaim_placed(now, session, &held))
        else {
            context.send_to_client(conn, ToClient::SessionEnded { tag });
            return;
        };
        // A copy that comes late tells of what may have been given up since.
        let is_now = running.control.get(&session) == Some(&conn) && running.reclaiming.contains(&session);
        let lost = if is_now { running.locks.reclaim(session, locks) } else { Vec::new() };
        if step == ReclaimStep::Last {
            running.reclaiming.remove(&session);
            running.table.finish_reclaim(now, session);
        }
        check_epochs(context, answers.iter().flatten());
        let answers =
            claims.iter().zip(answers).map(|(claim, answer)| answer.filter(|_| is_so(claim))).collect();
        context.send_to_client(conn, ToClient::Reclaimed { tag, answers, lost });
    }

    pub(super) fn hello(
        &mut self,
        context: &mut Context,
        (conn, tag): (ConnId, Tag),
        resume: Option<SessionId>,
        life: u64,
        widest: Scope,
    ) {
        let now = self.clock.read(context.now);
        if let Some(session) = resume {
            self.end_former_life(context, session, life);
        }
        let Some(running) = &mut self.running else { return };
        if resume.and_then(|session| running.lives.get(&session)).is_some_and(|known| *known > life) {
            return;
        }
        let known = resume.filter(|session| running.traffic(context, now, *session).is_ok());
        let (session, standing) = match known {
            Some(session) if running.table.grace_left(now).is_some() => {
                running.reclaiming.insert(session);
                (session, Standing::Reclaim)
            }
            Some(session) => {
                running.table.handle_reconnect(now, session);
                (session, Standing::Resumed)
            }
            None => {
                self.disk.last_session += 1;
                let session = SessionId(self.disk.last_session);
                self.disk.sessions.insert(session);
                running.lives.insert(session, life);
                running.table.open_session(now, session);
                (session, Standing::New)
            }
        };
        running.table.set_widest(session, widest);
        // Also the newer one, if the hellos come in the wrong order: then the client has to try again.
        if let Some(old) = running.control.insert(session, conn) {
            context.break_connection(old);
        }
        let Some(running) = &mut self.running else { return };
        running.session_of.insert(conn, session);
        if context.config.delayed().is_some() {
            running.table.note_delays(session);
        }
        if let Some(client) = context.network.client_of(conn) {
            running.client_of.insert(session, client);
        }
        let term = context.config.table.session_term;
        let boot = self.disk.starts;
        let stored = self.disk.stored(session);
        context.send_to_client(conn, ToClient::Welcome { tag, session, standing, term, boot, stored });
        self.recall_locks_again(context, session);
    }

    /// The client has started anew and goes on with its session: nothing that it asked for before may be done from now
    /// on, in between what it does next.
    fn end_former_life(&mut self, context: &mut Context, session: SessionId, life: u64) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let newest = running.lives.entry(session).or_insert(life);
        let former = std::mem::replace(newest, life.max(*newest));
        if former >= life || context.config.sabotage == Sabotage::KeepFormerLife {
            return;
        }
        running.session_of.values_mut().filter(|of| **of == session).for_each(|of| *of = NO_SESSION);
        let ended: Vec<OpKey> =
            running.ops.iter().filter(|(_, op)| op.session == session).map(|(key, _)| *key).collect();
        for key in ended {
            running.ops.remove(&key);
            running.table.cancel(now, key);
            let _ = running.table.finish(now, key, Outcome::Failed);
        }
        running.by_slot.retain(|(of, _), _| *of != session);
        running.lines.clear(session);
        // Its processes are gone.
        self.free_locks(context, session);
    }

    /// The session has ended, and that is on disk before anything else is done.
    pub(super) fn forget_session(&mut self, context: &mut Context, session: SessionId) {
        self.disk.forget(session);
        context.invariants.session_ended(session);
        if let Some(running) = &mut self.running {
            running.control.remove(&session);
            running.set_aside.forget(session, context.config.sabotage);
        }
        self.free_locks(context, session);
    }
}

pub(super) fn check_epochs<'a>(context: &mut Context, grants: impl Iterator<Item = &'a Grant>) {
    let grants: Vec<Grant> = grants.copied().collect();
    for grant in grants {
        context.invariants.granted(&grant);
    }
}
