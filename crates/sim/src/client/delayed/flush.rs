//! Digests: for somebody who waits, by age, or by size; some of them without waiting for the answer to the one before. And what
//! waits for them.

use super::local::touched;
use super::{Chosen, Delayed, Kept, Sending, Settling};
use crate::client::{Asked, Client, Link};
use crate::context::Context;
use crate::event::ConnId;
use crate::message::{Call, DigestCall, Tag, ToServer};
use crate::network::Kind;
use crate::register::{Object, Register, Stamp, fid_of, object_of};
use crate::sabotage::Sabotage;
use soda_oplog::{Digest, DigestId, DigestLimits, Log};
use soda_protocol::DigestSlots;
use soda_types::{Epoch, Fid, Monotonic, SessionId};
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
        self.pursue_all(context);
        self.look_at_deferred(context);
        self.answer_owed(context);
        self.lower_leases(context);
        self.look_after_space(context);
        let (Link::Up(conn), Some(session)) = (&self.link, self.holder.session()) else { return };
        let conn = *conn;
        while self.take_digest(context) == Taken::Some {}
        self.settle(context);
        self.sync_what_is_asked_back(context);
        self.send_digests(context, conn, session);
        self.send_along(context, conn);
    }

    /// The same ones again, in their order, over each new connection: a packet of an old one may still be applied.
    fn send_digests(&mut self, context: &mut Context, conn: ConnId, session: SessionId) {
        let now = self.clock.read(context.now);
        let count = self.delayed.as_ref().map_or(0, |delayed| delayed.kept.sent().count());
        for at in 0..count {
            let Some(delayed) = &self.delayed else { return };
            let Some(sending) = delayed.kept.sent().nth(at) else { return };
            if sending.sent_on == Some(conn) || sending.answer.is_some() {
                continue;
            }
            // Those behind it would be out of turn. Who tells what a former life has left has one at a time.
            if sending.not_before > now || (delayed.is_settling() && at > 0) {
                return;
            }
            let tag = sending.request;
            let tag = tag.unwrap_or_else(|| self.ask(context, Kind::Control, Asked::Digest));
            let Some(delayed) = &mut self.delayed else { return };
            let Some(sending) = delayed.kept.sent_mut().nth(at) else { return };
            (sending.request, sending.sent_on) = (Some(tag), Some(conn));
            let digest = sending.digest.clone();
            // That the server may have it is on the local disk before.
            if context.syncs_here() {
                delayed.sync_here();
            }
            context.send_to_server(conn, ToServer::Digest { tag, session, digest });
            self.send_along(context, conn);
        }
    }

    /// Takes the next digest out of the log, if there may be one.
    fn take_digest(&mut self, context: &mut Context) -> Taken {
        let now = self.clock.read(context.now);
        let slots = context.config.digest_slots();
        if !self.delayed.as_ref().is_some_and(|delayed| delayed.has_slot(slots)) {
            return Taken::None;
        }
        let mut wanted: Vec<Fid> = self.holder.recalling();
        let held_back = self.delayed.iter().flat_map(|delayed| delayed.unserved());
        wanted.extend(held_back.flat_map(|tag| self.depends_on(*tag)).map(fid_of));
        wanted.extend(self.locks.wished_for().map(fid_of));
        let all = self.tells_for_room(context);
        let Some(delayed) = &mut self.delayed else { return Taken::None };
        wanted.extend(delayed.owed.iter().flat_map(|owed| owed.fids()));
        let first: Vec<Fid> = wanted.iter().flat_map(|fid| delayed.to_tell_first(*fid)).collect();
        wanted.extend(first);
        let asked = if delayed.kept.log.has_pending_for(&wanted) { Asking::Yes } else { Asking::No };
        if !delayed.goes_behind_others(now, asked) {
            return Taken::None;
        }
        let limits = DigestLimits { records: delayed.config.largest, bytes: u64::MAX };
        let mut chosen = Chosen::Wanted;
        let mut digest = delayed.kept.log.take_for(&wanted, limits);
        if digest.is_none() && (all || delayed.is_due(now)) {
            chosen = Chosen::InOrder;
            digest = delayed.kept.log.take(limits);
        }
        let Some(mut digest) = digest else { return Taken::None };
        let ahead = chosen == Chosen::Wanted;
        if ahead && context.config.sabotage == Sabotage::SendPart && digest.records.len() > 1 {
            digest.records.remove(0);
        }
        context.note(|| format!("client{}  {:?} {:?} ahead: {ahead}", self.number, digest.id, digest.lsns));
        context.behind_others += u64::from(!delayed.kept.under_way.is_empty());
        let epoch = Epoch(digest.id.0);
        let made = digest.records.iter().filter_map(|record| record.change.creates());
        let locks: Vec<Object> =
            made.filter(|fid| self.locks.delegate.tell(*fid, epoch)).map(object_of).collect();
        let locks = if context.config.sabotage == Sabotage::TellWithoutLocks { Vec::new() } else { locks };
        let id = digest.id;
        delayed.begin_sending(digest, chosen, locks);
        self.ask_along(context, id);
        Taken::Some
    }

    /// After a crash: when all that was left has been told, it is made durable, and then programs begin.
    fn settle(&mut self, context: &mut Context) {
        let Some(delayed) = self.delayed.as_mut().filter(|delayed| delayed.is_settling()) else { return };
        if delayed.kept.written.is_empty() {
            context.note(|| format!("client{}  goes on", self.number));
            delayed.settling = Settling::No;
        } else if delayed.is_clean()
            && !self.requests.values().any(|request| matches!(request.what, Asked::Settle(_)))
        {
            self.settle_now(context);
        }
    }

    /// Has the server make durable what it has.
    pub(super) fn settle_now(&mut self, context: &mut Context) {
        let Some(delayed) = &self.delayed else { return };
        let mark = delayed.mark();
        let tag = self.ask(context, Kind::Control, Asked::Settle(mark));
        self.send_op(context, tag);
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
        if let Some(Asked::Sync { object, up_to, .. }) = self.requests.get(&tag).map(|request| &request.what)
        {
            return delayed.is_served_along(tag) || delayed.is_untold(*object, *up_to);
        }
        self.lacks_room(context, tag)
            || self.depends_on(tag).into_iter().any(|object| delayed.kept.log.concerns(fid_of(object)))
    }

    pub(in crate::client) fn handle_durable(&mut self, durable: DigestId) {
        if let Some(delayed) = &mut self.delayed {
            // It may be heard of before the answer to the digest, which is still needed then.
            let first = delayed.kept.under_way.front();
            let answered = first.map_or(durable.0, |sending| sending.digest.id.0 - 1);
            let durable = durable.min(DigestId(answered));
            delayed.kept.log.handle_durable(durable);
            delayed.kept.written.retain(|_, written| written.digest.is_none_or(|digest| digest > durable));
        }
    }

    /// When the log wants to be sent.
    pub(in crate::client) fn digest_due(&self) -> Option<Monotonic> {
        let delayed = self.delayed.as_ref()?;
        let oldest = || delayed.kept.log.oldest_pending().map(|oldest| oldest + delayed.config.age);
        let by_age = if delayed.kept.is_sending() { None } else { oldest() };
        let turned_away = delayed.kept.sent().find(|sending| sending.sent_on.is_none());
        by_age.into_iter().chain(turned_away.map(|sending| sending.not_before)).min()
    }
}

/// Whether somebody waits for what is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asking {
    Yes,
    No,
}

/// Whether there was a digest to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    Some,
    None,
}

impl Delayed {
    fn is_due(&self, now: Monotonic) -> bool {
        let old = self.kept.log.oldest_pending().is_some_and(|oldest| oldest + self.config.age <= now);
        let wanted = self.is_settling() || !self.lowering.is_empty();
        wanted || old || self.kept.log.backlog(now).records >= self.config.records
    }

    /// Whether another digest may be under way at all.
    fn has_slot(&self, slots: DigestSlots) -> bool {
        let Some(first) = self.kept.under_way.front() else { return self.kept.doomed.is_empty() };
        let open = (self.kept.log.last_digest().0 + 1).saturating_sub(first.digest.id.0);
        self.kept.doomed.is_empty() && !self.is_settling() && open < slots.most_open() as u64
    }

    /// Behind one another go those of which there is much, and what somebody waits for goes behind what nobody does.
    fn goes_behind_others(&self, now: Monotonic, asked: Asking) -> bool {
        let under_way = &self.kept.under_way;
        let Some(last) = under_way.back() else { return true };
        let goes_on = last.lsns.len() >= self.config.largest
            || under_way.iter().all(|sending| sending.chosen == Chosen::InOrder);
        self.kept.log.backlog(now).records >= self.config.records || (goes_on && asked == Asking::Yes)
    }

    fn begin_sending(&mut self, digest: Digest, chosen: Chosen, locks: Vec<Object>) {
        let mut stamps: BTreeMap<Register, Stamp> = BTreeMap::new();
        let mut uids = Vec::new();
        for lsn in &digest.lsns {
            if let Some(written) = self.kept.written.get_mut(lsn) {
                written.digest = Some(digest.id);
                uids.push(written.uid);
                self.told.extend(written.makes);
                stamps.extend(written.effects.iter().map(|(register, value)| (*register, value.stamp)));
            }
        }
        let Digest { id, lsns, records } = digest;
        let after = self.kept.under_way.back().map(|before| before.digest.id);
        let stamps = stamps.into_iter().collect();
        let made = records.iter().filter_map(|record| record.change.creates()).map(object_of);
        let number = |object| {
            lsns.iter()
                .filter_map(|lsn| self.kept.written.get(lsn))
                .find_map(|written| written.number.filter(|_| written.makes == Some(object)))
        };
        let numbers = made.filter_map(number).collect();
        let digest = DigestCall { id, after, records, numbers, locks, stamps, uids };
        let (request, sent_on, not_before, answer) = (None, None, Monotonic::ZERO, None);
        self.kept.under_way.push_back(Sending { digest, lsns, chosen, request, sent_on, not_before, answer });
    }
}

impl Kept {
    pub(super) fn is_sending(&self) -> bool {
        !self.under_way.is_empty() || !self.doomed.is_empty()
    }

    /// All that have no answer.
    pub(super) fn sent(&self) -> impl Iterator<Item = &Sending> {
        self.doomed.iter().chain(&self.under_way)
    }

    pub(super) fn sent_mut(&mut self) -> impl Iterator<Item = &mut Sending> {
        self.doomed.iter_mut().chain(&mut self.under_way)
    }
}
