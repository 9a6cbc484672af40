//! A deep lease is asked for, or part of it: what has to be dropped before the answer, and what it leaves.

use super::{Deep, Holder};
use crate::holder::RecallStep;
use crate::holder::recall::IfUnknown;
use soda_types::{Epoch, Fid, InUse, LeasePart, Mode, Monotonic, Recall, RecallAck, Scope};

/// A recall that is being worked on.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) answer: RecallAck,
    /// Members, as they were numbered when it began.
    inside: Vec<(Fid, u64)>,
    /// All of the lease that began then.
    whole: Option<u64>,
}

impl Deep {
    /// Members of the part that do more than may be kept, sorted, by whatever lease: what was moved may be asked for under
    /// another one than it was said to be covered by.
    fn lowered_by(&self, part: LeasePart, to: Option<Mode>) -> Vec<Fid> {
        let lowered = |fid: &Fid| self.members.get(fid).is_some_and(|member| Some(member.mode) > to);
        match part.scope {
            Scope::Subtree => self.certainly_or_perhaps_below(part.fid).into_iter().filter(lowered).collect(),
            Scope::Node => Some(part.fid).filter(lowered).into_iter().collect(),
        }
    }

    /// Also what has been said to be covered there since it was asked for: that lies where it was said to, and is found by who
    /// asks for what is above.
    fn has_members_below(&self, fid: Fid) -> bool {
        self.links.below(fid).iter().any(|fid| self.members.contains_key(fid))
    }

    /// Members to be brought down for a question.
    fn concerned(&self, part: LeasePart, to: Option<Mode>) -> Vec<Fid> {
        let inside = self.lowered_by(part, to);
        // The server takes it for written: an own change may be on the way that the caches have to show.
        let is_alone = inside.is_empty() && part.scope == Scope::Node && self.members.contains_key(&part.fid);
        if is_alone { vec![part.fid] } else { inside }
    }

    /// What recalls are being worked on for.
    pub(in crate::holder) fn recalling(&self) -> impl Iterator<Item = Fid> {
        self.work.values().map(|work| work.answer.asked())
    }
}

impl Holder {
    /// The server asks for part of a deep lease, or all of it.
    pub(in crate::holder) fn handle_part_recall(
        &mut self,
        now: Monotonic,
        recall: &Recall,
        part: LeasePart,
        unknown: IfUnknown,
    ) -> RecallStep {
        let Recall { fid: lease, epoch, to, .. } = *recall;
        let answer = RecallAck { fid: lease, epoch, kept: to, in_use: InUse::No, uses: 0, part: Some(part) };
        if self.deep.work.contains_key(&epoch) {
            return RecallStep::Working;
        }
        let until = self.clock;
        self.deep.bar(part.fid, until, part.scope);
        if part.scope == Scope::Subtree {
            self.deep.narrowed = until;
        }
        if to.is_none() {
            self.deep.strayed.insert(part.fid);
        }
        let all_of_it = part == LeasePart::tree(lease) && to.is_none();
        let Some(root) = self.deep.roots.get_mut(&lease) else {
            let inside = self.deep.concerned(part, to);
            if all_of_it && let Some(bar) = self.deep.bars.get_mut(&lease) {
                // Its grant may be on the way, and it ends with the answer.
                bar.epoch = bar.epoch.max(epoch);
            }
            if !inside.is_empty() {
                // It moved, and the server speaks of the lease that it gave with the move.
                return self.start_work(epoch, answer, inside, None);
            }
            let keeps = unknown == IfUnknown::Keep && !all_of_it;
            if keeps || !self.deep.lowered_by(LeasePart::tree(lease), None).is_empty() {
                // Other things are, or may be, that it is all that stands behind.
                return RecallStep::AlreadyGone(answer);
            }
            // Perhaps its grant is on the way: refuse it when it comes, and say so.
            self.deep.bar(lease, until, Scope::Subtree);
            self.deep.over.add(lease, epoch, until);
            return RecallStep::AlreadyGone(RecallAck {
                kept: None,
                part: Some(LeasePart::tree(lease)),
                ..answer
            });
        };
        let whole = (all_of_it && epoch > root.grant.epoch).then_some(root.began);
        root.is_asked |= whole.is_some();
        if whole.is_some()
            && let Some(bar) = self.deep.bars.get_mut(&lease)
        {
            bar.epoch = bar.epoch.max(epoch);
        }
        if to.is_some() {
            root.questions.note(now);
        }
        let mut inside = self.deep.concerned(part, to);
        if whole.is_some() {
            inside.extend(self.deep.members_of(lease));
            inside.sort_unstable();
            inside.dedup();
        }
        if inside.is_empty() {
            if whole.is_some() {
                self.deep.remove_root(lease, Vec::new());
            }
            return RecallStep::AlreadyGone(answer);
        }
        self.start_work(epoch, answer, inside, whole)
    }

    /// A node lease is recalled that this client has not heard of; but a deep one covers the object, and what was cached
    /// under that has to show this client's own change before anybody else sees it.
    pub(in crate::holder) fn handle_recall_of_member(&mut self, recall: &Recall) -> Option<RecallStep> {
        let Recall { fid, epoch, to, .. } = *recall;
        self.deep.members.get(&fid)?;
        if self.deep.work.contains_key(&epoch) {
            return Some(RecallStep::Working);
        }
        let answer = RecallAck { fid, epoch, kept: to, in_use: InUse::No, uses: 0, part: None };
        let until = self.clock;
        self.deep.bar(fid, until, Scope::Node);
        Some(self.start_work(epoch, answer, vec![fid], None))
    }

    fn start_work(
        &mut self,
        epoch: Epoch,
        answer: RecallAck,
        fids: Vec<Fid>,
        whole: Option<u64>,
    ) -> RecallStep {
        let mut inside = Vec::with_capacity(fids.len());
        for fid in &fids {
            if let Some(member) = self.deep.members.get_mut(fid) {
                member.recalls += 1;
                inside.push((*fid, member.number));
            }
        }
        self.deep.work.insert(epoch, Work { answer, inside, whole });
        RecallStep::DropPart { lease: answer.fid, epoch, keep: answer.kept, inside: fids }
    }

    /// The caches of all objects that [`RecallStep::DropPart`] named are down to what it said. The answer to send. `in_use` is
    /// about the object that was asked for.
    pub fn finish_part(&mut self, lease: Fid, epoch: Epoch, in_use: InUse) -> RecallAck {
        let began = self.tick();
        let Some(work) = self.deep.work.remove(&epoch) else {
            // Of a session before this one.
            return RecallAck {
                fid: lease,
                epoch,
                kept: None,
                in_use,
                uses: 0,
                part: Some(LeasePart::tree(lease)),
            };
        };
        let mut uses = 0_u32;
        for (fid, number) in &work.inside {
            // Another question may have been answered first, and what covers the object since is not what this one was about.
            let as_it_was = self.deep.members.get_mut(fid).filter(|member| member.number == *number);
            let Some(member) = as_it_was else { continue };
            member.recalls = member.recalls.saturating_sub(1);
            uses = uses.saturating_add(std::mem::take(&mut member.uses));
            match work.answer.kept {
                // What is on the way may be of before a change of our own that others can see from now on.
                Some(mode) => (member.mode, member.began) = (member.mode.min(mode), began),
                None => drop(self.deep.remove_member(*fid)),
            }
        }
        if let (Some(LeasePart { fid, scope: Scope::Subtree }), None) = (work.answer.part, work.answer.kept)
            && !self.deep.has_members_below(fid)
        {
            // Nothing of it is left here, and where it lies is said anew with what is.
            self.deep.links.cut(fid);
        }
        let ends = self.deep.roots.get(&lease).is_some_and(|root| work.whole == Some(root.began));
        if ends {
            let members = self.deep.members_of(lease);
            self.deep.remove_root(lease, members);
        }
        RecallAck { in_use, uses, ..work.answer }
    }
}
