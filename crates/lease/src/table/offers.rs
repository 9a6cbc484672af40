//! Who gets a deep lease unasked: whoever holds many leases in one place, reads many objects of it at once, or changes names
//! where nobody else is.

use super::LeaseTable;
use super::ancestry::{Branch, Position};
use super::config::{DeepLeases, WriteLeases};
use super::index::ObjectId;
use super::rates::Intent;
use super::sessions::Session;
use soda_types::{Grant, Mode, Monotonic, ObjectTerm, Scope, SessionId, Term};

impl LeaseTable {
    /// The session has got a new lease on the object, or is about to get so many to read beside it. If it holds many in one
    /// subtree, a deep one will spare it the next.
    pub(super) fn offer_deep(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        beside: u32,
    ) -> Option<Grant> {
        let DeepLeases::On { after, .. } = self.config.deep_leases else { return None };
        let ancestry = self.store.ancestry()?;
        let parent = match self.store.position(object) {
            Position::Is(branch) => ancestry.get(branch)?.up,
            _ => self.store.nearest_branch(object),
        };
        let weight = after.div_ceil(4).max(1);
        let score = |leases: u32, deep: u32| leases + deep.min(leases) * (weight - 1);
        let mut candidate = None;
        for (_, branch) in ancestry.up_from(parent) {
            let (own, others) = (branch.below.of(session), branch.below.of_others(session));
            // Who is in the way here is so further up.
            if others.conflicts(Mode::Read) || is_top(branch) {
                break;
            }
            if !others.conflicts(Mode::Write) && score(own.writes, own.deep) >= after {
                candidate = Some((branch.object, Mode::Write));
            } else if score(own.reads + beside, own.deep) >= after {
                candidate = Some((branch.object, Mode::Read));
            }
            if candidate.is_some() {
                break;
            }
        }
        let (object, mode) = candidate?;
        self.grant_deep(now, session, object, mode)
    }

    /// Many objects of one directory are read at once, as a listing does: one lease for all of them, rather than many.
    pub(super) fn offer_deep_for_all(
        &mut self,
        now: Monotonic,
        session: SessionId,
        read: &[ObjectId],
    ) -> Option<Grant> {
        let DeepLeases::On { after, .. } = self.config.deep_leases else { return None };
        if (read.len() as u32) < after {
            return None;
        }
        let place = |object: &ObjectId| match self.store.position(*object) {
            Position::In(branch) => Some(branch),
            _ => None,
        };
        let parent = read.iter().find_map(place)?;
        let inside: Vec<ObjectId> =
            read.iter().copied().filter(|object| place(object) == Some(parent)).collect();
        let known = |object: &&ObjectId| self.own_reach(**object, session).is_none();
        let new = inside.iter().filter(known).count();
        let first = *inside.first()?;
        if new as u32 >= after { self.offer_deep(now, session, first, new as u32) } else { None }
    }

    /// The session has changed names of a directory. If nobody else has anything there, the next changes shall cost it nothing.
    pub(super) fn offer_names(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
    ) -> Option<Grant> {
        let alone = self.store.nearest_branch(object).is_some()
            && self.own_reach(object, session) != Some(Mode::Write);
        if !alone || self.config.deep_leases == DeepLeases::Off {
            return None;
        }
        let branch = self.store.as_branch(object)?;
        if is_top(self.store.ancestry()?.get(branch)?) {
            return None;
        }
        self.grant_deep(now, session, object, Mode::Write)
    }

    /// A deep lease, if nothing is in its way.
    pub(super) fn grant_deep(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        mode: Mode,
    ) -> Option<Grant> {
        let fid = self.store.object(object)?.fid;
        let wanted = self.term_of(session, fid) == ObjectTerm::Session
            && (mode == Mode::Read || self.config.write_leases == WriteLeases::Grant);
        let takes = |session: &Session| session.is_good() && session.widest == Scope::Subtree;
        let good = self.sessions.get(&session).is_some_and(takes);
        if !wanted || !good || !self.nobody_minds(now, session, object, Scope::Subtree, mode) {
            return None;
        }
        // The session writes at once what it knows there, and who reads it at this moment may get a lease with what was read.
        if mode == Mode::Write && self.others_work_below(session, object, Intent::Read) {
            return None;
        }
        if let Some(id) = self.store.deep_lease_of(object, session) {
            let busy = self.store.deep(id).is_none_or(|deep| deep.questions().next().is_some());
            if busy || self.store.lease(id)?.mode >= mode {
                return None;
            }
            // The stronger one takes its place, so there is room.
            self.end_lease(id);
        } else if !self.make_room(now, session) {
            self.counters.refusals_full += 1;
            return None;
        }
        self.counters.deep_grants += 1;
        self.insert_lease(now, session, object, (Scope::Subtree, mode), Term::Session)
    }
}

/// The root's names are changed by everybody: each time all of its lease would go.
fn is_top(branch: &Branch) -> bool {
    branch.up.is_none()
}
