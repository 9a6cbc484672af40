//! What becomes of a digest. Answers are read in the order of the digests, whichever comes first.

use super::{Answer, Sending};
use crate::client::Client;
use crate::context::Context;
use crate::message::{Leases, Tag, Undone};
use crate::register::{Content, Object, fid_of};
use soda_oplog::DigestId;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long one that was turned away waits before it goes again.
const PAUSE: Duration = Duration::from_millis(5);

impl Client {
    pub(in crate::client) fn handle_digested(&mut self, context: &mut Context, tag: Tag, leases: &Leases) {
        self.digest_answered(context, tag, Answer::Applied(leases.clone()));
    }

    /// No lease covers it any more.
    pub(in crate::client) fn handle_digest_refused(&mut self, context: &mut Context, tag: Tag) {
        self.digest_answered(context, tag, Answer::Refused);
    }

    fn digest_answered(&mut self, context: &mut Context, tag: Tag, answer: Answer) {
        let Some(delayed) = &mut self.delayed else { return };
        let sending = delayed.kept.under_way.iter_mut().find(|sending| sending.request == Some(tag));
        match sending {
            Some(sending) => sending.answer = Some(answer),
            None => self.forget_doomed(tag),
        }
        while let Some(first) = self
            .delayed
            .as_mut()
            .and_then(|delayed| delayed.kept.under_way.pop_front_if(|sending| sending.answer.is_some()))
        {
            self.digest_over(context, first);
        }
    }

    fn digest_over(&mut self, context: &mut Context, mut sending: Sending) {
        let request = sending.request.and_then(|tag| self.requests.remove(&tag));
        let (Some(request), Some(answer)) = (request, sending.answer.take()) else { return };
        match answer {
            Answer::Applied(leases) => {
                self.take_answer(context, request.ticket, &leases);
                let Some(delayed) = &mut self.delayed else { return };
                let space = delayed.kept.log.space_of(sending.digest.id);
                delayed.space.reserve.note_used(space);
                delayed.kept.log.handle_applied(sending.digest.id);
                delayed.note_told(sending.digest.id);
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
                let makes: Vec<Object> = told.clone().filter_map(|written| written.makes).collect();
                let gone = told
                    .flat_map(|written| &written.effects)
                    .filter(|(_, value)| value.content == Content::Gone);
                let gone: BTreeSet<Object> = gone.map(|(register, _)| register.object).collect();
                gone.iter().for_each(|object| self.holder.forget(fid_of(*object)));
                self.end_own_moves(sending.lsns);
                self.locks_of_made_told(context, &makes, &gone, sending.digest.id);
            }
            Answer::Refused => {
                self.holder.fail_request(request.ticket);
                self.refused(context, &sending);
            }
        }
    }

    fn refused(&mut self, context: &mut Context, sending: &Sending) {
        let Some(delayed) = &mut self.delayed else { return };
        context.note(|| format!("client{}  {:?} was refused", self.number, sending.digest.id));
        let fids = sending
            .lsns
            .iter()
            .filter_map(|lsn| delayed.kept.written.get(lsn))
            .flat_map(|written| &written.changes)
            .map(|object| fid_of(*object))
            .collect::<Vec<_>>();
        delayed.lose_digests(sending.digest.id);
        self.locks.lose_digests(sending.digest.id);
        let behind = std::mem::take(&mut delayed.kept.under_way);
        delayed.kept.doomed.extend(behind.into_iter().filter(|sending| sending.request.is_some()));
        self.begin_lost_moves(context);
        let uncovered = self.uncovered();
        self.give_up(context, if uncovered.is_empty() { &fids } else { &uncovered });
    }

    /// Nothing was done.
    pub(in crate::client) fn handle_digest_undone(&mut self, context: &Context, tag: Tag, why: Undone) {
        let now = self.clock.read(context.now);
        let Some(delayed) = &mut self.delayed else { return };
        // Again, behind the one before it; under another tag, so that a copy of this answer counts for nothing.
        if let Some(sending) = delayed.kept.under_way.iter_mut().find(|sending| sending.request == Some(tag))
        {
            // A copy of the request came out of turn, and another one did not. What became of that was heard first.
            if sending.answer.is_some() {
                return;
            }
            (sending.request, sending.sent_on) = (None, None);
            if why == Undone::Busy {
                sending.not_before = now + PAUSE;
            }
        }
        self.forget_doomed(tag);
    }

    /// It has its answer; if it was sent behind one that was refused, that is its last.
    fn forget_doomed(&mut self, tag: Tag) {
        let Some(request) = self.requests.remove(&tag) else { return };
        self.holder.fail_request(request.ticket);
        if let Some(delayed) = &mut self.delayed {
            delayed.kept.doomed.retain(|sending| sending.request != Some(tag));
        }
    }

    /// Those without an answer are not sent again, from this one on.
    pub(super) fn stop_sending_from(&mut self, first: DigestId) {
        let Some(delayed) = &mut self.delayed else { return };
        let mut stopped = Vec::new();
        for sent in [&mut delayed.kept.doomed, &mut delayed.kept.under_way] {
            stopped.extend(sent.split_off(sent.partition_point(|sending| sending.digest.id < first)));
        }
        for tag in stopped.into_iter().filter_map(|sending: Sending| sending.request) {
            if let Some(request) = self.requests.remove(&tag) {
                self.holder.fail_request(request.ticket);
            }
        }
    }
}
