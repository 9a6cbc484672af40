//! Recalls, and leases that are given back: the caches come down first.

use super::Client;
use crate::config::Order;
use crate::context::Context;
use crate::event::{Dropping, Event, Recalled};
use crate::message::ToServer;
use crate::sabotage::Sabotage;
use soda_lease::RecallStep;
use soda_types::{Fid, InUse, LeasePart, Mode, Recall, RecallAck};
use std::time::Duration;

impl Client {
    pub(super) fn handle_recall(&mut self, context: &mut Context, recall: &Recall) {
        if !self.defers(recall) {
            self.look_at_recall(context, recall);
        }
    }

    /// When it is clear what is held here. With the answer the server would refuse what is to be told of what only the part that
    /// is asked for covers, as far as it knows, and nothing here: that goes first.
    pub(super) fn look_at_recall(&mut self, context: &mut Context, recall: &Recall) {
        let uncovered = recall.part.map(|part| self.uncovered_ahead(part)).unwrap_or_default();
        if !uncovered.is_empty() && context.config.sabotage != Sabotage::AnswerUncovered {
            return self.tell_uncovered(context, recall.clone(), uncovered);
        }
        self.begin_recall(context, recall);
    }

    /// Nothing is left that has to be told before the holder hears of it.
    pub(super) fn begin_recall(&mut self, context: &mut Context, recall: &Recall) {
        let now = self.clock.read(context.now);
        if context.config.sabotage == Sabotage::NoBarForLateGrants && self.holder.mode(recall.fid).is_none() {
            let Recall { fid, epoch, .. } = *recall;
            let ack = RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part: None };
            self.tell(context, ToServer::Acks(vec![ack]));
            return;
        }
        let process = self.process;
        let step = if recall.part.is_some() && !self.may_disown(recall.fid) {
            self.holder.handle_recall_in_part(now, recall)
        } else {
            self.holder.handle_recall(now, recall)
        };
        let dropping = match step {
            RecallStep::AlreadyGone(ack) if ack.part.is_some() => {
                return self.tell(context, ToServer::Acks(vec![ack]));
            }
            RecallStep::AlreadyGone(ack) => return self.nothing_held(context, ack),
            RecallStep::Working => return,
            RecallStep::Drop { fid, epoch, keep } => {
                self.look_too_early(context, fid);
                Dropping { process, of: Recalled::Node(fid), epoch, parts: vec![(fid, keep)] }
            }
            RecallStep::DropPart { lease, epoch, keep, inside } => {
                self.note_question(now, lease);
                // What a node lease covers besides may stay.
                let kept = |fid: Fid| (fid, keep.max(self.holder.node_mode(fid)));
                let lowered = |(_, keep): &(Fid, Option<Mode>)| *keep != Some(Mode::Write);
                let mut parts: Vec<(Fid, Option<Mode>)> =
                    inside.into_iter().map(kept).filter(lowered).collect();
                if context.config.sabotage == Sabotage::KeepBelow {
                    parts.retain(|(fid, _)| *fid == recall.asked());
                }
                Dropping { process, of: Recalled::Deep(lease), epoch, parts }
            }
        };
        let term = context.config.table.session_term;
        let slow = context.config.slow_recalls_percent;
        let mean = match context.rng.below(100) {
            drawn if drawn < slow => term * 2,
            drawn if drawn < slow + 5 => term / 10,
            _ => Duration::from_micros(300),
        };
        let delay = context.about(mean).min(term * 2);
        let (client, life) = (self.number, self.life);
        context.after(delay, Event::CachesDropped { client, life, dropping });
    }

    /// The caches go down, and the lease.
    pub(super) fn finish_recall(&mut self, context: &Context, dropping: &Dropping) -> RecallAck {
        for (fid, keep) in dropping.parts.iter().copied() {
            let changing = self.is_changing(fid);
            if context.config.sabotage != Sabotage::KernelKeeps && (keep.is_none() || changing) {
                self.caches.drop_kernel(fid);
            }
            if keep.is_none() || changing {
                self.caches.drop_daemon(fid);
            }
        }
        match dropping.of {
            Recalled::Node(fid) => {
                let now = self.clock.read(context.now);
                self.holder.finish_recall(now, fid, dropping.epoch, InUse::No)
            }
            Recalled::Deep(lease) => self.holder.finish_part(lease, dropping.epoch, InUse::No),
        }
    }

    pub(super) fn is_of_part(dropping: &Dropping) -> bool {
        matches!(dropping.of, Recalled::Deep(_))
    }

    pub(super) fn release_one(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        let roots = self.holder.idle_deep(now, Duration::ZERO);
        if !roots.is_empty() && context.rng.chance(1, 2) {
            let root = context.rng.pick(&roots);
            return self.release_deep(context, root);
        }
        let mut idle = self.holder.idle(now, Duration::ZERO);
        idle.retain(|fid| !self.is_logged(context, *fid));
        if idle.is_empty() {
            return;
        }
        let fid = context.rng.pick(&idle);
        self.forget(fid);
        let release = self.holder.release(now, fid);
        if let Some(release) = release {
            self.tell(context, ToServer::Release(vec![release]));
        }
    }

    /// Unless something is going on in what it covers. What a digest makes may be covered by it; and on a connection that keeps
    /// no order, what a digest will make that overtakes the word of this.
    fn release_deep(&mut self, context: &mut Context, root: Fid) {
        let covered = self.holder.covered_by(root);
        let busy = |fid: &Fid| self.is_logged(context, *fid) || self.is_changing(*fid);
        let overtakes = context.config.order == Order::Scrambled && self.has_made();
        let uncovered = !self.uncovered_ahead(LeasePart::tree(root)).is_empty();
        if self.is_sending() || overtakes || uncovered || covered.iter().any(busy) {
            return;
        }
        for fid in covered.into_iter().filter(|fid| self.holder.node_mode(*fid).is_none()).collect::<Vec<_>>()
        {
            self.forget(fid);
        }
        if let Some(release) = self.holder.release_deep(root) {
            context.note(|| format!("client{}  gives back {release:?}", self.number));
            self.tell(context, ToServer::Release(vec![release]));
        }
    }
}
