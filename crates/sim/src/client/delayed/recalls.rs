//! Recalls: from the moment that one comes nothing new is done under the lease (the holder sees to that), what the object needs
//! is sent, and only then is it answered.

use crate::client::Client;
use crate::config::Sabotage;
use crate::context::Context;
use crate::message::{ToServer, object_of};
use soda_types::{Epoch, Fid, Mode, RecallAck};

/// An answer that waits until the server has what the object needs.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::client) struct Owed {
    pub(in crate::client) fid: Fid,
    answer: Answer,
}

#[derive(Clone, PartialEq, Debug)]
enum Answer {
    /// The caches are down to `keep`.
    Finish { epoch: Epoch, keep: Option<Mode> },
    /// The holder knows of no lease: its grant is on the way, or a crash has taken the holder's memory and left the log.
    Gone(RecallAck),
}

impl Client {
    /// The caches are down to `keep`.
    pub(in crate::client) fn caches_dropped(
        &mut self,
        context: &mut Context,
        fid: Fid,
        epoch: Epoch,
        keep: Option<Mode>,
    ) {
        self.owe(context, Owed { fid, answer: Answer::Finish { epoch, keep } });
    }

    /// No lease is held here.
    pub(in crate::client) fn nothing_held(&mut self, context: &mut Context, ack: RecallAck) {
        let fid = ack.fid;
        if let Some(delayed) = &mut self.delayed
            && delayed.kept.log.concerns(fid)
        {
            delayed.forget_made(object_of(fid));
        }
        self.owe(context, Owed { fid, answer: Answer::Gone(ack) });
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
        let is_ready = |owed: &mut Owed| hasty || !log.concerns(owed.fid) || clean.contains(&owed.fid);
        let ready = delayed.owed.extract_if(.., is_ready).collect::<Vec<_>>();
        for owed in ready {
            self.answer(context, &owed);
        }
    }

    fn answer(&mut self, context: &mut Context, Owed { fid, answer }: &Owed) {
        let fid = *fid;
        let ack = match answer {
            Answer::Gone(ack) => *ack,
            Answer::Finish { epoch, keep } => self.finish_recall(context, fid, *epoch, *keep),
        };
        self.hand_over(context, fid);
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
        let undurable = delayed.kept.written.values().any(|written| written.touches(object_of(fid)));
        match context.config.sabotage {
            Sabotage::ReleaseUnsynced => !undurable || delayed.kept.log.concerns(fid),
            _ => undurable,
        }
    }
}
