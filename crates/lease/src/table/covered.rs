//! What a session did under its write leases and tells afterwards: nobody is asked for anything, and nothing is done unless the
//! session holds, at that moment, all the leases it did it under.
//!
//! That is the fence. A message of a session that has ended, or about something whose lease has been given away since, may be
//! as late as it likes: it is refused. A lease that is being recalled still counts, for this is how its holder
//! gets to the answer. Where it cannot be said at the moment whether a deep lease covers something, because another operation may
//! be moving it or what it lies in, it is refused for that, and may be asked for again.

use super::LeaseTable;
use super::admission::{OpState, Operation, Part, Terms, Verdict};
use super::deep::Placing;
use super::grants::Granted;
use super::index::ObjectId;
use super::output::{Access, Ancestors, Covered, Created, OpKey, Output, Refusal, TreeChanges};
use super::rates::Intent;
use soda_types::{Cause, Coverage, Fid, FileKind, Grant, Mode, Monotonic, Scope, SessionId, Term};

/// Whether a covered operation can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Clear,
    /// An admitted operation uses one of its objects.
    Busy,
    NotHeld(Fid),
}

impl LeaseTable {
    /// The session tells what it did under its leases. [`Output::Admit`] follows, at once or when admitted operations have
    /// finished, or [`Output::Refuse`]. It ends with [`LeaseTable::finish_covered`].
    pub fn request_covered(&mut self, now: Monotonic, session: SessionId, op: OpKey, covered: Covered) {
        debug_assert!(!self.ops.contains_key(&op), "{op:?} is in use");
        if !self.sessions.get(&session).is_some_and(|session| session.is_good()) {
            self.outputs.push_back(Output::Refuse(op, Refusal::SessionEnded));
            return;
        }
        let all = [(covered.made, Part::Made), (covered.alone, Part::Alone), (covered.held, Part::Held)];
        let mut all: Vec<(Fid, Part)> =
            all.into_iter().flat_map(|(fids, part)| fids.into_iter().map(move |fid| (fid, part))).collect();
        all.sort_unstable();
        all.dedup_by_key(|(fid, _)| *fid);
        let objects: Vec<ObjectId> = all.iter().map(|(fid, _)| self.store.find_or_insert(*fid)).collect();
        if let Some(fid) = self.place_covered(&covered.ancestors) {
            self.unsettled.extend(objects);
            self.outputs.push_back(Output::Refuse(op, Refusal::Unplaced(fid)));
            return self.settle(now);
        }
        let (accesses, parts) = all
            .into_iter()
            .map(|(fid, part)| (Access::change(fid, Cause::Data).without_lease(), part))
            .unzip();
        let operation = Operation {
            session,
            accesses,
            objects,
            arrived: now,
            state: OpState::Waiting,
            overtaken: false,
            terms: Terms::Covered(parts),
        };
        self.ops.insert(op, operation);
        self.enter(now, op);
    }

    /// Learns where the objects of a covered operation lie. Returns one of which that cannot be said now, if it matters: what
    /// covers it, and who has been told of what is below it.
    fn place_covered(&mut self, places: &[(Fid, Ancestors)]) -> Option<Fid> {
        let mut put_off = None;
        for (fid, ancestors) in places {
            let placing = self.store.find(*fid).map(|object| self.place(object, ancestors));
            if placing == Some(Placing::PutOff) {
                put_off.get_or_insert(*fid);
            }
        }
        put_off.filter(|_| self.store.deep_count() > 0)
    }

    /// By a node lease.
    fn holds_for_writing(&self, now: Monotonic, object: ObjectId, session: SessionId) -> bool {
        let lease = self.store.lease_of(object, session).and_then(|id| self.store.lease(id));
        lease.is_some_and(|lease| lease.mode == Mode::Write && lease.expires > now)
    }

    /// A covered operation is over. Its session gets write leases on those of what it made that exist, whatever policy says:
    /// it serves them as its own already, and nobody else can know them.
    pub fn finish_covered(&mut self, now: Monotonic, key: OpKey, made: &[Fid]) -> Vec<Grant> {
        let new = |fid: &Fid| Created { fid: *fid, kind: FileKind::File, parent: None };
        let created = made.iter().map(new).collect();
        self.finish_covered_tree(now, key, &TreeChanges { created, ..TreeChanges::default() }).leases
    }

    /// As [`LeaseTable::finish_covered`], with what the operation did to the tree. What the session made in reach of a deep write
    /// lease of its own that one covers; what it took out of the reach of one it has a node lease on, known or not.
    pub fn finish_covered_tree(&mut self, now: Monotonic, key: OpKey, changes: &TreeChanges) -> Granted {
        if self.ops.get(&key).is_none_or(|op| op.state != OpState::Admitted) {
            return Granted::default();
        }
        let Some(op) = self.ops.remove(&key) else { return Granted::default() };
        for object in &op.objects {
            if let Some(found) = self.store.object_mut(*object) {
                found.running.leave();
            }
            self.unsettled.push_back(*object);
        }
        let session = op.session;
        // Before the moves: what was made and moved as well gets leases there.
        let made: Vec<ObjectId> = changes.created.iter().map(|made| self.make_way(made.fid)).collect();
        // Things move into what was made.
        self.place_all_new(&changes.created);
        let leases = self.apply_to_tree(now, session, changes);
        let mut granted = Granted { leases, covered: Vec::new() };
        for (object, made) in made.into_iter().zip(&changes.created) {
            self.grant_covered_new(now, session, object, made.kind, &mut granted);
            self.unsettled.push_back(object);
        }
        self.note_told(session, &granted.covered);
        self.settle(now);
        // It had expired, and one that was waiting for it has ended it.
        if !self.sessions.contains_key(&session) {
            return Granted::default();
        }
        granted
    }

    /// Whoever guessed the number of something new has cached that there is nothing.
    fn make_way(&mut self, fid: Fid) -> ObjectId {
        let object = self.store.find_or_insert(fid);
        let guesses: Vec<_> = self.store.holders(object).collect();
        guesses.into_iter().for_each(|lease| self.end_lease(lease));
        object
    }

    /// Parents before what is in them.
    fn place_all_new(&mut self, created: &[Created]) {
        if self.store.ancestry().is_none() {
            return;
        }
        for made in created.iter().filter(|made| made.parent.is_none()) {
            let object = self.store.find_or_insert(made.fid);
            self.place_made(object, None);
        }
        let mut rest: Vec<(Fid, Fid)> =
            created.iter().filter_map(|made| Some((made.fid, made.parent?))).collect();
        loop {
            let new: std::collections::BTreeSet<Fid> = rest.iter().map(|(fid, _)| *fid).collect();
            let (later, ready): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|(_, parent)| new.contains(parent));
            if ready.is_empty() {
                return;
            }
            for (fid, parent) in ready {
                if let Some(object) = self.store.find(fid) {
                    self.store.place_new(object, parent);
                }
            }
            rest = later;
        }
    }

    fn grant_covered_new(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
        kind: FileKind,
        granted: &mut Granted,
    ) {
        let for_writing = |covered: &Coverage| covered.mode == Mode::Write;
        let mut covered = self.covered(session, object).filter(for_writing);
        let directory = kind == FileKind::Directory && self.store.nearest_branch(object).is_some();
        if covered.is_none() && directory && self.store.as_branch(object).is_some() {
            self.leave_out_new(object, session, kind);
            if let Some(deep) = self.grant_deep(now, session, object, Mode::Write) {
                granted.leases.push(deep);
                covered = self.covered(session, object).filter(for_writing);
            }
        }
        match covered {
            Some(covered) => granted.covered.push(covered),
            None if self.store.lease_of(object, session).is_some() => {}
            None => granted.leases.extend(self.grant_made(now, session, object)),
        }
    }

    /// What the session has on something that it made in an operation whose answer it has not got: a lease, or a deep lease that
    /// covers it. As it is, or a lease given again after a restart, if nobody else has come to know it. `ancestors`: where it
    /// lies, as the table may have forgotten it.
    pub fn made_before(
        &mut self,
        now: Monotonic,
        session: SessionId,
        fid: Fid,
        ancestors: &Ancestors,
    ) -> Granted {
        if let Some(grant) = self.lease(session, fid) {
            return Granted { leases: vec![grant], covered: Vec::new() };
        }
        let mut granted = Granted::default();
        let object = self.store.find_or_insert(fid);
        self.place(object, ancestors);
        let Some(found) = self.store.object(object) else { return granted };
        let unknown = !found.has_holders() && !self.is_excluded(object, session, Mode::Write);
        let is_free = unknown && found.running.lets_in(Intent::Change);
        match self.covered(session, object).filter(|covered| covered.mode == Mode::Write) {
            Some(covered) => granted.covered.push(covered),
            None if is_free => granted.leases.extend(self.grant_made(now, session, object)),
            None => {}
        }
        self.note_told(session, &granted.covered);
        self.unsettled.push_back(object);
        self.settle(now);
        granted
    }

    pub(super) fn grant_made(
        &mut self,
        now: Monotonic,
        session: SessionId,
        object: ObjectId,
    ) -> Option<Grant> {
        let fid = self.store.object(object)?.fid;
        // For what is too much, others are asked back.
        self.make_room(now, session);
        self.counters.write_grants += 1;
        let term = self.term_of(session, fid).term().unwrap_or(Term::Session);
        let grant = self.insert_lease(now, session, object, (Scope::Node, Mode::Write), term);
        self.leave_holes_for(object);
        grant
    }

    pub(super) fn standing_of(&self, now: Monotonic, op: &Operation, parts: &[Part]) -> Standing {
        let mut standing = Standing::Clear;
        for ((object, access), part) in op.objects.iter().zip(&op.accesses).zip(parts) {
            let held = self.holds_for_writing(now, *object, op.session)
                || self.is_covered_deep(*object, op.session, Intent::Change);
            if *part == Part::Held && !held {
                return Standing::NotHeld(access.fid);
            }
            if !self.store.object(*object).is_some_and(|found| found.running.lets_in(access.intent)) {
                standing = Standing::Busy;
            }
        }
        standing
    }

    pub(super) fn examine_told(&mut self, now: Monotonic, key: OpKey, standing: Standing) -> Verdict {
        match standing {
            Standing::Clear => {
                self.counters.admissions_covered += 1;
                self.admit(now, key)
            }
            Standing::Busy => Verdict::Waits,
            Standing::NotHeld(fid) => {
                self.remove_waiting(key);
                self.outputs.push_back(Output::Refuse(key, Refusal::NotHeld(fid)));
                Verdict::Gone
            }
        }
    }
}
