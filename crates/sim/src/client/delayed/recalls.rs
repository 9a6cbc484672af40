//! Recalls: from the moment that one comes nothing new is done under the lease (the holder sees to that), what the object needs
//! is sent, and only then is it answered.

use super::Delayed;
use crate::client::Client;
use crate::context::Context;
use crate::deed::is_directory;
use crate::event::Dropping;
use crate::message::ToServer;
use crate::register::object_of;
use crate::sabotage::Sabotage;
use soda_oplog::DigestId;
use soda_types::{Fid, LeasePart, Recall, RecallAck};

/// An answer that waits until the server has what the objects need.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::client) enum Owed {
    /// The caches are down.
    Finish(Dropping),
    /// The holder knows of no lease: its grant is on the way, or a crash has taken the holder's memory and left the log.
    Gone(RecallAck),
    /// Part of a deep lease, and nothing covers these here. The server may take that for what does. The holder has not heard of
    /// the question.
    Uncovered(Recall, Vec<Fid>),
}

impl Owed {
    /// What is asked for by a question that the holder has not heard of.
    fn unheard(&self) -> Option<Fid> {
        match self {
            Owed::Uncovered(recall, _) => Some(recall.asked()),
            Owed::Finish(_) | Owed::Gone(_) => None,
        }
    }

    pub(in crate::client) fn fids(&self) -> Vec<Fid> {
        match self {
            Owed::Finish(dropping) => dropping.parts.iter().map(|(fid, _)| *fid).collect(),
            Owed::Gone(ack) => vec![ack.fid],
            Owed::Uncovered(_, fids) => fids.clone(),
        }
    }
}

impl Client {
    pub(in crate::client) fn caches_dropped(&mut self, context: &mut Context, dropping: Dropping) {
        self.owe(context, Owed::Finish(dropping));
    }

    /// No lease is held here.
    pub(in crate::client) fn nothing_held(&mut self, context: &mut Context, ack: RecallAck) {
        let fid = ack.fid;
        if let Some(delayed) = &mut self.delayed
            && delayed.kept.log.concerns(fid)
        {
            delayed.forget_made(object_of(fid));
        }
        self.owe(context, Owed::Gone(ack));
    }

    /// Once: what is told while the question is open has other leases.
    pub(in crate::client) fn tell_uncovered(
        &mut self,
        context: &mut Context,
        recall: Recall,
        fids: Vec<Fid>,
    ) {
        self.owe(context, Owed::Uncovered(recall, fids));
    }

    /// All of a deep lease may be disowned: it is held here, and then the question is about what was asked for, or nothing that
    /// has been made here can rest on it, as far as the server knows.
    pub(in crate::client) fn may_disown(&self, lease: Fid) -> bool {
        let rests_on_it = || self.is_sending() || !self.uncovered_ahead(LeasePart::tree(lease)).is_empty();
        self.holder.holds_deep(lease) || !rests_on_it()
    }

    /// Part of a deep lease is asked for, and answers to digests are not here yet. They may have been lost with a connection, and
    /// the server believe that the deep lease covers what the digest made.
    pub(in crate::client) fn defers(&mut self, recall: &Recall) -> bool {
        let Some(delayed) = self.delayed.as_mut().filter(|_| recall.part.is_some()) else { return false };
        let Some(last) = delayed.kept.sent().last().map(|sending| sending.digest.id) else { return false };
        if !delayed.deferred.iter().any(|(deferred, _)| deferred == recall) {
            delayed.deferred.push((recall.clone(), last));
        }
        true
    }

    /// Those that have come since are not waited for.
    pub(super) fn look_at_deferred(&mut self, context: &mut Context) {
        let Some(delayed) = &mut self.delayed else { return };
        let first = delayed.kept.sent().next().map(|sending| sending.digest.id);
        let is_ready = |(_, up_to): &mut (Recall, DigestId)| first.is_none_or(|first| first > *up_to);
        let ready: Vec<(Recall, DigestId)> = delayed.deferred.extract_if(.., is_ready).collect();
        ready.iter().for_each(|(recall, _)| self.look_at_recall(context, recall));
    }

    /// Objects whose recalls are not answered yet.
    pub(in crate::client) fn working_on(&self) -> Vec<Fid> {
        let mut fids = self.holder.recalling();
        if let Some(delayed) = &self.delayed {
            fids.extend(delayed.deferred.iter().map(|(recall, _)| recall.asked()));
            fids.extend(delayed.owed.iter().filter_map(Owed::unheard));
        }
        fids
    }

    pub(in crate::client) fn is_sending(&self) -> bool {
        self.delayed.as_ref().is_some_and(|delayed| delayed.kept.is_sending())
    }

    /// Something that the server has not heard of.
    pub(in crate::client) fn has_made(&self) -> bool {
        self.delayed.as_ref().is_some_and(|delayed| !delayed.made.is_empty())
    }

    fn owe(&mut self, context: &mut Context, owed: Owed) {
        match &mut self.delayed {
            Some(delayed) if !delayed.owed.contains(&owed) => delayed.owed.push(owed),
            Some(_) => {}
            None => self.answer(context, &owed),
        }
        self.answer_owed(context);
    }

    /// One of the mistakes: nothing has to be sent for a recall if nothing had to be when it came.
    pub(in crate::client) fn look_too_early(&mut self, context: &Context, fid: Fid) {
        if context.config.sabotage != Sabotage::ChangeWhileRecalled {
            return;
        }
        let Some(delayed) = &mut self.delayed else { return };
        if delayed.kept.log.concerns(fid) {
            delayed.looked_clean.remove(&fid);
        } else {
            delayed.looked_clean.insert(fid);
        }
    }

    pub(super) fn answer_owed(&mut self, context: &mut Context) {
        let hasty = context.config.sabotage == Sabotage::AnswerBeforeFlush;
        let Some(delayed) = &mut self.delayed else { return };
        let (log, clean) = (&delayed.kept.log, &delayed.looked_clean);
        let is_told = |fid: &Fid| !delayed.to_tell_first(*fid).iter().any(|fid| log.concerns(*fid));
        let careless = context.config.sabotage == Sabotage::HandOverPromised;
        let is_durable = |fid: &Fid| careless || !delayed.is_promised(*fid);
        let part_hasty = context.config.sabotage == Sabotage::AnswerPartBeforeFlush;
        let is_part = |owed: &Owed| matches!(owed, Owed::Finish(dropping) if Client::is_of_part(dropping));
        let is_ready = |owed: &Owed| {
            hasty
                || (part_hasty && is_part(owed))
                || owed.fids().iter().all(|fid| is_durable(fid) && (is_told(fid) || clean.contains(fid)))
        };
        let (ready, rest) = delayed.owed.iter().cloned().partition::<Vec<Owed>, _>(is_ready);
        delayed.owed = rest;
        for owed in ready {
            self.answer(context, &owed);
        }
    }

    fn answer(&mut self, context: &mut Context, owed: &Owed) {
        let ack = match owed {
            Owed::Gone(ack) => *ack,
            Owed::Uncovered(recall, fids) => {
                fids.iter().for_each(|fid| self.hand_over(context, *fid));
                return self.begin_recall(context, recall);
            }
            Owed::Finish(dropping) => self.finish_recall(context, dropping),
        };
        owed.fids().into_iter().for_each(|fid| self.hand_over(context, fid));
        self.tell(context, ToServer::Acks(vec![ack]));
    }

    /// Others can see the object from now on: what was done to it cannot be done again, should the server lose it.
    fn hand_over(&mut self, context: &mut Context, fid: Fid) {
        let object = object_of(fid);
        let Some(delayed) = &mut self.delayed else { return };
        let applied = delayed.kept.written.values_mut().filter(|written| written.digest.is_some());
        let mut uids = Vec::new();
        for written in applied.filter(|written| written.touches(object)) {
            written.handed_over = true;
            uids.push(written.uid);
        }
        context.invariants.handed_over(&uids);
    }

    /// The server's disk may lack something of the object's. Its lease is not given back unasked: what a power cut takes can
    /// only be sent again under it.
    pub(in crate::client) fn is_logged(&self, context: &Context, fid: Fid) -> bool {
        let Some(delayed) = &self.delayed else { return false };
        let untold = delayed.to_tell_first(fid).iter().any(|fid| delayed.kept.log.concerns(*fid));
        let undurable =
            untold || delayed.kept.written.values().any(|written| written.touches(object_of(fid)));
        match context.config.sabotage {
            Sabotage::ReleaseUnsynced => !undurable || delayed.kept.log.concerns(fid),
            _ => undurable,
        }
    }
}

impl Delayed {
    /// What the server has to be told all of before the lease on the inode may be given to others. That a directory could be
    /// moved here may have been decided by where those above it lie: they stay there until it is told.
    pub(super) fn to_tell_first(&self, fid: Fid) -> Vec<Fid> {
        let above = is_directory(object_of(fid));
        let moved = if above { self.kept.log.moved_directories() } else { Vec::new() };
        moved.into_iter().chain([fid]).collect()
    }
}
