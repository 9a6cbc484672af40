//! Digests: one under way at a time, for somebody who waits, by age, or by size. And what waits for them.

use super::local::touched;
use super::{Delayed, Sending, Settling};
use crate::client::{Asked, Client, Link};
use crate::config::Sabotage;
use crate::context::Context;
use crate::message::{
    Call, Content, DigestCall, Leases, Object, Register, Stamp, Tag, ToServer, fid_of, object_of,
};
use crate::network::Kind;
use soda_oplog::{Digest, DigestId, DigestLimits, Log};
use soda_types::{Fid, Monotonic};
use std::collections::BTreeMap;

impl Client {
    /// Goes on with whatever can go on. After every event.
    pub(in crate::client) fn pump_delayed(&mut self, context: &mut Context) {
        let Some(delayed) = &self.delayed else { return };
        let waiting: Vec<Tag> = delayed.held_back.iter().copied().collect();
        for tag in waiting {
            if !self.must_wait(context, tag) {
                if let Some(delayed) = &mut self.delayed {
                    delayed.held_back.remove(&tag);
                }
                self.send_op(context, tag);
            }
        }
        self.look_at_deferred(context);
        self.answer_owed(context);
        let (Link::Up(conn), Some(session)) = (&self.link, self.holder.session()) else { return };
        let conn = *conn;
        self.take_digest(context);
        self.settle(context);
        let Some(sending) = self.delayed.as_ref().and_then(|delayed| delayed.kept.sending.as_ref()) else {
            return;
        };
        if sending.sent_on == Some(conn) {
            return;
        }
        // The same one again, over each new connection: a packet of an old one may still be applied.
        let tag = sending.request;
        let tag = tag.unwrap_or_else(|| self.ask(context, Kind::Control, Asked::Digest));
        let Some(sending) = self.delayed.as_mut().and_then(|delayed| delayed.kept.sending.as_mut()) else {
            return;
        };
        (sending.request, sending.sent_on) = (Some(tag), Some(conn));
        let digest = sending.digest.clone();
        context.send_to_server(conn, ToServer::Digest { tag, session, digest });
    }

    fn take_digest(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        let mut wanted: Vec<Fid> = self.holder.recalling();
        let held_back = self.delayed.iter().flat_map(|delayed| &delayed.held_back);
        wanted.extend(held_back.flat_map(|tag| self.depends_on(*tag)).map(fid_of));
        let Some(delayed) = &mut self.delayed else { return };
        if delayed.kept.sending.is_some() {
            return;
        }
        wanted.extend(delayed.owed.iter().flat_map(|owed| owed.fids()));
        let first: Vec<Fid> = wanted.iter().flat_map(|fid| delayed.to_tell_first(*fid)).collect();
        wanted.extend(first);
        let limits = DigestLimits { records: delayed.config.largest, bytes: u64::MAX };
        let mut ahead = true;
        let mut digest = delayed.kept.log.take_for(&wanted, limits);
        if digest.is_none() && delayed.is_due(now) {
            ahead = false;
            digest = delayed.kept.log.take(limits);
        }
        let Some(mut digest) = digest else { return };
        if ahead && context.config.sabotage == Sabotage::SendPart && digest.records.len() > 1 {
            digest.records.remove(0);
        }
        context.note(|| format!("client{}  {:?} {:?} ahead: {ahead}", self.number, digest.id, digest.lsns));
        delayed.begin_sending(digest);
    }

    /// After a crash: when all that was left has been told, it is made durable, and then programs begin.
    fn settle(&mut self, context: &mut Context) {
        let Some(delayed) = self.delayed.as_mut().filter(|delayed| delayed.is_settling()) else { return };
        if delayed.kept.written.is_empty() {
            context.note(|| format!("client{}  goes on", self.number));
            delayed.settling = Settling::No;
        } else if delayed.is_clean()
            && !self.requests.values().any(|request| matches!(request.what, Asked::Settle))
        {
            let tag = self.ask(context, Kind::Control, Asked::Settle);
            self.send_op(context, tag);
        }
    }

    /// What the request must not overtake. Whether a directory may be moved depends on where others have been moved.
    fn depends_on(&self, tag: Tag) -> Vec<Object> {
        let log = self.delayed.as_ref().map(|delayed| &delayed.kept.log);
        let moved = || log.into_iter().flat_map(Log::moved_directories).map(object_of);
        match self.requests.get(&tag).map(|request| &request.what) {
            Some(Asked::Op { call: call @ Call::Do(deed), .. }) if deed.reshapes().is_some() => {
                touched(call).into_iter().chain(moved()).collect()
            }
            Some(Asked::Op { call, .. }) => touched(call),
            Some(Asked::Sync { object, .. }) => vec![*object],
            _ => Vec::new(),
        }
    }

    /// The server lacks something that the request depends on.
    pub(in crate::client) fn must_wait(&self, context: &Context, tag: Tag) -> bool {
        let is_sync =
            matches!(self.requests.get(&tag).map(|request| &request.what), Some(Asked::Sync { .. }));
        match context.config.sabotage {
            Sabotage::SyncBeforeFlush if is_sync => return false,
            Sabotage::ThroughBeforeFlush if !is_sync => return false,
            _ => {}
        }
        let Some(delayed) = &self.delayed else { return false };
        self.depends_on(tag).into_iter().any(|object| delayed.kept.log.concerns(fid_of(object)))
    }

    pub(in crate::client) fn handle_digested(&mut self, context: &mut Context, tag: Tag, leases: &Leases) {
        let Some(request) = self.requests.remove(&tag) else { return };
        self.take_answer(context, request.ticket, leases);
        let Some(delayed) = &mut self.delayed else { return };
        let Some(sending) = delayed.kept.sending.take_if(|sending| sending.request == Some(tag)) else {
            return;
        };
        delayed.kept.log.handle_applied(sending.digest.id);
        // What it made is like any other inode from now on.
        let made: Vec<Object> =
            sending.lsns.iter().filter_map(|lsn| delayed.kept.written.get(lsn)?.makes).collect();
        for object in made {
            if !delayed.made.remove(&object) {
                continue;
            }
            let holding = self.holder.cacheable(request.ticket, fid_of(object));
            let values = delayed.values.extract_if(.., |register, _| register.object == object);
            for (register, value) in values {
                self.caches.see(register, value);
                if let Some(holding) = holding {
                    self.caches.fill(register, value, holding);
                }
            }
        }
        let told = sending.lsns.iter().filter_map(|lsn| delayed.kept.written.get(lsn));
        let gone =
            told.flat_map(|written| &written.effects).filter(|(_, value)| value.content == Content::Gone);
        gone.for_each(|(register, _)| self.holder.forget(register.fid()));
        self.end_own_moves(sending.lsns);
    }

    /// No lease covers it any more.
    pub(in crate::client) fn handle_digest_refused(&mut self, context: &mut Context, tag: Tag) {
        let Some(request) = self.requests.remove(&tag) else { return };
        self.holder.fail_request(request.ticket);
        let Some(delayed) = &mut self.delayed else { return };
        let Some(sending) = delayed.kept.sending.take_if(|sending| sending.request == Some(tag)) else {
            return;
        };
        context.note(|| format!("client{}  {:?} was refused", self.number, sending.digest.id));
        let fids = sending
            .lsns
            .iter()
            .filter_map(|lsn| delayed.kept.written.get(lsn))
            .flat_map(|written| &written.changes)
            .map(|object| fid_of(*object))
            .collect::<Vec<_>>();
        delayed.kept.lost(sending.digest.id);
        self.begin_lost_moves(context);
        let uncovered = self.uncovered();
        self.give_up(context, if uncovered.is_empty() { &fids } else { &uncovered });
    }

    pub(in crate::client) fn handle_durable(&mut self, durable: DigestId) {
        if let Some(delayed) = &mut self.delayed {
            // It may be heard of before the answer to the digest, which is still needed then.
            let answered = delayed.kept.sending.as_ref().map_or(durable.0, |sending| sending.digest.id.0 - 1);
            let durable = durable.min(DigestId(answered));
            delayed.kept.log.handle_durable(durable);
            delayed.kept.written.retain(|_, written| written.digest.is_none_or(|digest| digest > durable));
        }
    }

    /// When the log wants to be sent.
    pub(in crate::client) fn digest_due(&self) -> Option<Monotonic> {
        let delayed = self.delayed.as_ref()?;
        let is_free = delayed.kept.sending.is_none();
        is_free.then(|| delayed.kept.log.oldest_pending()).flatten().map(|oldest| oldest + delayed.config.age)
    }
}

impl Delayed {
    fn is_due(&self, now: Monotonic) -> bool {
        let old = self.kept.log.oldest_pending().is_some_and(|oldest| oldest + self.config.age <= now);
        self.is_settling() || old || self.kept.log.backlog(now).records >= self.config.records
    }

    fn begin_sending(&mut self, digest: Digest) {
        let mut stamps: BTreeMap<Register, Stamp> = BTreeMap::new();
        let mut uids = Vec::new();
        for lsn in &digest.lsns {
            if let Some(written) = self.kept.written.get_mut(lsn) {
                written.digest = Some(digest.id);
                uids.push(written.uid);
                stamps.extend(written.effects.iter().map(|(register, value)| (*register, value.stamp)));
            }
        }
        let Digest { id, lsns, records } = digest;
        let digest = DigestCall { id, records, stamps: stamps.into_iter().collect(), uids };
        self.kept.sending = Some(Sending { digest, lsns, request: None, sent_on: None });
    }
}
