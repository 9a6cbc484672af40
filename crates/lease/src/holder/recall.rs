//! Answering recalls.

use super::Holder;
use super::leases::{Asked, Held};
use soda_types::{Epoch, Fid, InUse, Mode, Monotonic, Recall, RecallAck};

/// What to do about a recall.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum RecallStep {
    /// Nothing cached depends on it (any more): send this at once.
    AlreadyGone(RecallAck),
    /// Bring the caches down to `keep` (the kernel's first), then call [`Holder::finish_recall`] with this epoch and
    /// send its answer. Until then what is cached may be read, but nothing new may be cached.
    Drop { fid: Fid, epoch: Epoch, keep: Option<Mode> },
    /// Part of the deep lease on `lease`, or all of it: bring the caches of all these objects down to `keep`, then call
    /// [`Holder::finish_part`] and send its answer. What a node lease covers besides may stay.
    DropPart { lease: Fid, epoch: Epoch, keep: Option<Mode>, inside: Vec<Fid> },
    /// It came again, and is being worked on.
    Working,
}

/// What becomes of a deep lease that is not held here when part of it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IfUnknown {
    /// All of it is said not to be held.
    Disown,
    Keep,
}

impl Holder {
    /// The server asks for a lease. Recalls may come twice, late, and before the grant they mean.
    pub fn handle_recall(&mut self, now: Monotonic, recall: &Recall) -> RecallStep {
        self.deep.note_recall(recall.epoch);
        if let Some(part) = recall.part {
            return self.handle_part_recall(now, recall, part, IfUnknown::Disown);
        }
        if !self.leases.contains_key(&recall.fid)
            && let Some(step) = self.handle_recall_of_member(recall)
        {
            self.bar(recall.fid, recall.epoch);
            return step;
        }
        let Recall { fid, epoch, to, .. } = *recall;
        let gone = RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part: None };
        let Some(held) = self.leases.get_mut(&fid) else {
            // Perhaps its grant is on the way: refuse it when it comes.
            self.bar(fid, epoch);
            return RecallStep::AlreadyGone(gone);
        };
        if epoch < held.epoch {
            // Of the past: what it asked for was given back, or replaced by the lease held now.
            return RecallStep::AlreadyGone(gone);
        }
        if epoch == held.epoch && held.recall.is_none() && Some(held.mode) <= to {
            // Asked twice, and answered before.
            return RecallStep::AlreadyGone(RecallAck { kept: Some(held.mode), ..gone });
        }
        // A recall of a later grant than the one held means this one too: the server replaced it by the later one.
        // What has expired by its own term is not to be used again under that one.
        let keep = if held.own_end <= now { None } else { to };
        let (keep, step) = match held.recall {
            None => (keep, RecallStep::Drop { fid, epoch, keep }),
            Some(asked) if keep < asked.to => (keep, RecallStep::Drop { fid, epoch, keep }),
            Some(asked) => (asked.to, RecallStep::Working),
        };
        let steps = held.recall.map_or(0, |asked| asked.steps) + u32::from(step != RecallStep::Working);
        let first = held.recall.map_or(epoch, |asked| asked.first);
        // One that comes late, of before an own change, is not what the server waits for.
        let latest = held.recall.map_or(epoch, |asked| asked.epoch.max(epoch));
        held.recall = Some(Asked { epoch: latest, first, to: keep, steps });
        self.bar(fid, epoch);
        step
    }

    /// As [`Holder::handle_recall`] for part of a deep lease, which stays the server's word where it is not known here: own
    /// changes that are on the way may rest on it, as their answers will tell.
    pub fn handle_recall_in_part(&mut self, now: Monotonic, recall: &Recall) -> RecallStep {
        self.deep.note_recall(recall.epoch);
        match recall.part {
            Some(part) => self.handle_part_recall(now, recall, part, IfUnknown::Keep),
            None => self.handle_recall(now, recall),
        }
    }

    /// A recall tells of a write lease whose grant was lost with a connection; everything else about the object shows that
    /// this client has been going on under it. Call it before [`Holder::handle_recall`].
    pub fn adopt(&mut self, now: Monotonic, recall: &Recall) {
        if !self.leases.contains_key(&recall.fid) {
            self.leases.insert(recall.fid, Held::adopted(now, recall.epoch, self.clock));
        }
    }

    /// The caches, the kernel's included, are down to what [`RecallStep::Drop`] said. The answer to send; one for each
    /// such step.
    ///
    /// If the server has asked for more in the meantime, this answers for the first step only.
    pub fn finish_recall(&mut self, _now: Monotonic, fid: Fid, epoch: Epoch, in_use: InUse) -> RecallAck {
        let began = self.tick();
        let gone = RecallAck { fid, epoch, kept: None, in_use, uses: 0, part: None };
        // If the lease that was asked for is gone, or replaced by a newer one, what a deep lease is said to cover was said since,
        // and rests on nothing that is given up here: it stays, as what is cached of it does.
        let Some(held) = self.leases.get_mut(&fid) else { return gone };
        let Some(asked) = held.recall.filter(|asked| asked.first <= epoch) else {
            let kept = if epoch == held.epoch { Some(held.mode) } else { None };
            return RecallAck { kept, ..gone };
        };
        let uses = std::mem::take(&mut held.uses);
        let kept = match asked.to {
            // Only one step can come before giving up: lowering to read.
            _ if asked.steps > 1 => {
                held.mode = Mode::Read;
                held.recall = Some(Asked { steps: asked.steps - 1, ..asked });
                Some(Mode::Read)
            }
            None => {
                self.leases.remove(&fid);
                None
            }
            Some(mode) => {
                held.mode = held.mode.min(mode);
                held.epoch = held.epoch.max(asked.epoch);
                held.recall = None;
                // What is on the way may be of before a change of our own that others can see from now on.
                held.began = began;
                Some(held.mode)
            }
        };
        self.lower_member(fid, kept);
        RecallAck { epoch: asked.epoch, kept, uses, ..gone }
    }

    /// Objects whose recall is being worked on: to be reported as progress while it takes long.
    pub fn recalling(&self) -> Vec<Fid> {
        let mut fids = self.sorted_fids(|held| held.recall.is_some());
        fids.extend(self.deep.recalling());
        fids.sort_unstable();
        fids.dedup();
        fids
    }
}
