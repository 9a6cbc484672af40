//! Digests: applied whole or not at all, exactly once, only under the session's write leases, and none without the one that it
//! comes after.

use super::disk::Disk;
use super::places::Watched;
use super::sessions::check_epochs;
use super::syncs::Sync;
use super::{Operation, Server, Work, room};
use crate::context::Context;
use crate::event::ConnId;
use crate::invariants;
use crate::layout::Tree;
use crate::message::{DigestCall, Tag, ToClient, Undone};
use crate::register::{Object, OpUid, TREE, fid_of, object_of};
use crate::sabotage::Sabotage;
use soda_lease::table::{Ancestors, Covered, Granted, OpKey, Outcome, Refusal, TreeChanges};
use soda_oplog::{Change, DigestId, Moved, Object as Touched};
use soda_types::{Epoch, Fid, Sequence, SessionId, Slot};
use std::collections::{BTreeMap, VecDeque};

impl Server {
    pub(super) fn digest(
        &mut self,
        context: &mut Context,
        reply_to: (ConnId, Tag),
        session: SessionId,
        digest: DigestCall,
    ) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let careless = context.config.sabotage == Sabotage::ApplyWithoutLeases;
        if running.session_of.get(&reply_to.0) != Some(&session) && !careless {
            return;
        }
        if running.traffic(context, now, session).is_err() && !careless {
            context.send_to_client(reply_to.0, ToClient::SessionEnded { tag: reply_to.1 });
            return;
        }
        if let Some(known) =
            running.ops.values_mut().find(|operation| operation.is_digest(session, digest.id))
        {
            known.reply_to.push(reply_to);
            return;
        }
        let slot = slot_of(context, digest.id);
        let refused = running.lines.refused(session, slot);
        let stored = self.disk.digest(session, slot).map_or(DigestId(0), |(id, _)| *id);
        match refused.max(stored) {
            last if last > digest.id => return,
            last if last == digest.id && refused == last => {
                return context.send_to_client(reply_to.0, ToClient::DigestRefused { tag: reply_to.1 });
            }
            last if last == digest.id => return self.answer_again(context, reply_to, session, slot),
            _ => {}
        }
        running.last_op += 1;
        let key = OpKey(running.last_op);
        let operation = Operation {
            session,
            uid: OpUid(0),
            op: None,
            work: Work::Digest(digest),
            reply_to: vec![reply_to],
            values: Vec::new(),
            outcome: Outcome::Applied,
            via: None,
            tree: TreeChanges::default(),
            taking: None,
        };
        running.ops.insert(key, operation);
        if running.lines.enter(session, key) {
            self.begin_digest(context, session, key);
        }
    }

    /// Its turn has come.
    fn begin_digest(&mut self, context: &mut Context, session: SessionId, key: OpKey) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let Some(Operation { work: Work::Digest(digest), .. }) = running.ops.get(&key) else {
            return self.end_turn(context, session);
        };
        let careless = context.config.sabotage == Sabotage::ApplyWithoutLeases;
        let applied = |before| running.lines.has_applied(context, &self.disk, session, before);
        let in_turn = digest.after.is_none_or(applied);
        if !in_turn && context.config.sabotage != Sabotage::ApplyOutOfTurn {
            context.note(|| format!("server > {session:?} {:?} is not in turn", digest.id));
            let reply_to = running.ops.remove(&key).map(|operation| operation.reply_to);
            for (conn, tag) in reply_to.into_iter().flatten() {
                context.send_to_client(conn, ToClient::DigestUndone { tag, why: Undone::OutOfTurn });
            }
            return self.end_turn(context, session);
        }
        let digest = digest.clone();
        let taking = self.take_space_for_digest(context, session, &digest);
        let Some(running) = &mut self.running else { return };
        if let Some(operation) = running.ops.get_mut(&key) {
            operation.taking = taking;
        }
        let (layout, as_of) = (context.config.layout(), running.table.tree_version());
        let held = if careless { Vec::new() } else { existing(&digest) };
        let place = |fid: &Fid| (*fid, self.disk.ancestors(object_of(*fid), layout, as_of));
        let covered = Covered {
            ancestors: held.iter().filter(|_| layout.tree == Tree::Deep).map(place).collect(),
            held,
            made: made(&digest).into_iter().map(fid_of).collect(),
            alone: if reshapes(&digest) { vec![TREE] } else { Vec::new() },
        };
        if careless && !running.table.has_session(session) {
            self.apply_digest(context, key);
            return self.end_turn(context, session);
        }
        running.table.request_covered(now, session, key, covered);
    }

    /// The one whose turn it was is over: the syncs that have waited for it, and the next.
    fn end_turn(&mut self, context: &mut Context, session: SessionId) {
        self.go_on_with_syncs(context, session);
        let next = self.running.as_mut().and_then(|running| running.lines.next(session));
        if let Some(key) = next {
            self.begin_digest(context, session, key);
        }
    }

    /// The table does not let it in.
    pub(super) fn digest_refused(
        &mut self,
        context: &mut Context,
        id: DigestId,
        operation: &Operation,
        refusal: Refusal,
    ) {
        let session = operation.session;
        if let Refusal::NotHeld(_) = refusal {
            self.note_refused(context, session, id);
        }
        for (conn, tag) in operation.reply_to.iter().copied() {
            let answer = match refusal {
                Refusal::SessionEnded => ToClient::SessionEnded { tag },
                Refusal::NotHeld(_) => ToClient::DigestRefused { tag },
                Refusal::Unplaced(_) => ToClient::DigestUndone { tag, why: Undone::Busy },
            };
            context.send_to_client(conn, answer);
        }
        self.end_turn(context, session);
    }

    /// It will not be applied any more, nor will those that come after it.
    fn note_refused(&mut self, context: &Context, session: SessionId, id: DigestId) {
        if let Some(running) = &mut self.running {
            running.lines.refused.insert((session, slot_of(context, id)), id);
        }
    }

    /// It has been applied, and the answer may have been lost: its leases are given again.
    fn answer_again(
        &mut self,
        context: &mut Context,
        reply_to: (ConnId, Tag),
        session: SessionId,
        slot: Slot,
    ) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let objects = Object::from(context.config.objects);
        let made = self.disk.digest(session, slot).map(|(_, made)| made.clone()).unwrap_or_default();
        let exist = made.into_iter().filter(|object| self.disk.exists(*object, objects));
        let forgetful = context.config.sabotage == Sabotage::NoLeasesOnMade;
        let (layout, as_of) = (context.config.layout(), running.table.tree_version());
        let mut all = Granted::default();
        for object in exist.filter(|_| !forgetful) {
            let fid = fid_of(object);
            let held = running.table.lease(session, fid);
            let place = match layout.tree {
                Tree::Flat => Ancestors::Unknown,
                Tree::Deep => self.disk.ancestors(object, layout, as_of),
            };
            let Granted { leases, covered } = running.table.made_before(now, session, fid, &place);
            // What is held already is said again.
            check_epochs(context, leases.iter().filter(|grant| held != Some(**grant)));
            all.leases.extend(leases);
            all.covered.extend(covered);
        }
        let leases = running.leases(session, all);
        context.note(|| format!("server > {session:?} the same digest again: {leases:?}"));
        context.send_to_client(reply_to.0, ToClient::Digested { tag: reply_to.1, leases });
    }

    pub(super) fn apply_digest(&mut self, context: &mut Context, key: OpKey) {
        let Some((session, digest)) = self.running.as_ref().and_then(|running| {
            let operation = running.ops.get(&key)?;
            match &operation.work {
                Work::Digest(digest) => Some((operation.session, digest.clone())),
                Work::Call(_) => None,
            }
        }) else {
            return;
        };
        // The session may have ended since it was admitted.
        let careless = context.config.sabotage == Sabotage::ApplyWithoutLeases;
        let stands = careless || self.disk.sessions.contains(&session);
        let (bytes, used) = (room::space_of(&digest), self.disk.used());
        if stands && !self.has_room(context, bytes) {
            context.invariants.report(Some(invariants::room::refused(session, digest.id, bytes)));
        }
        let numbers = if stands { self.take_numbers(context, session, &digest).ok() } else { None };
        let layout = context.config.layout();
        let applied = numbers.and_then(|numbers| Some((self.disk.apply(&digest, layout).ok()?, numbers)));
        let is_applied = applied.is_some();
        context.note(|| format!("server   {key:?} {session:?} {:?} applied: {is_applied}", digest.id));
        let operation = self.running.as_mut().and_then(|running| running.ops.get_mut(&key));
        if let Some((tree, numbers)) = applied {
            let taking = operation.map(|operation| {
                operation.tree = tree.clone();
                &operation.taking
            });
            if context.config.room.is_some() {
                self.disk.note_taken(bytes, used);
                let sabotage = context.config.sabotage;
                taking.into_iter().flatten().for_each(|taking| self.disk.take(session, taking, sabotage));
                self.numbers_taken(context, session, &digest, numbers);
            }
            context.trace.mix(digest.id.0);
            if context.config.sabotage != Sabotage::ForgetDigests {
                let slot = (session, slot_of(context, digest.id));
                self.disk.set_digest(slot, digest.id, made(&digest));
            }
            let disk = &self.disk;
            context.invariants.digested(session, &digest.uids, |register| disk.value(register));
        } else if let Some(operation) = operation {
            operation.outcome = Outcome::Failed;
        }
    }

    pub(super) fn finish_digest(&mut self, context: &mut Context, key: OpKey, operation: &Operation) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let (session, refused) = (operation.session, operation.outcome == Outcome::Failed);
        let mut tree = operation.tree.clone();
        let layout = context.config.layout();
        let mut gone = Vec::new();
        if let Work::Digest(digest) = &operation.work
            && !refused
        {
            let exist = |object: &Object| self.disk.exists(*object, layout.objects);
            let made = made(digest).into_iter().filter(exist);
            tree.created.extend(made.map(|object| self.disk.created(object, layout)));
            gone.extend(existing(digest).into_iter().filter(|fid| !exist(&object_of(*fid))));
        }
        if context.config.sabotage == Sabotage::NoLeasesOnMade {
            tree.created.clear();
        }
        Watched::sabotage(&mut tree, context.config.sabotage);
        let granted = running.table.finish_covered_tree(now, key, &tree);
        check_epochs(context, granted.leases.iter());
        gone.iter().for_each(|fid| running.give_up_lease(now, session, *fid));
        if let Work::Digest(digest) = &operation.work
            && !refused
            && self.disk.sessions.contains(&session)
        {
            let exist = |object: &Object| self.disk.exists(*object, layout.objects);
            let decided = digest.locks.iter().copied().filter(exist);
            running.locks.enter_made(session, decided, Epoch(digest.id.0));
        }
        let leases = running.leases(operation.session, granted);
        context.note(|| {
            format!("server > {:?} digest {key:?} refused: {refused} {leases:?}", operation.session)
        });
        for (conn, tag) in operation.reply_to.iter().copied() {
            let reply = if refused {
                ToClient::DigestRefused { tag }
            } else {
                ToClient::Digested { tag, leases: leases.clone() }
            };
            context.send_to_client(conn, reply);
        }
        if let Work::Digest(digest) = &operation.work
            && refused
        {
            self.note_refused(context, session, digest.id);
        }
        self.end_turn(context, session);
    }
}

/// The digests of each session, which are carried out one at a time in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The first is the one whose turn it is.
    waiting: BTreeMap<SessionId, VecDeque<OpKey>>,
    /// Syncs, each with the digest that it waits for.
    pub(super) syncs: Vec<(DigestId, Sync)>,
    /// The last one of each slot that was refused, in this run of the server.
    refused: BTreeMap<(SessionId, Slot), DigestId>,
}

impl Lines {
    /// Whether it is its turn at once.
    fn enter(&mut self, session: SessionId, key: OpKey) -> bool {
        let line = self.waiting.entry(session).or_default();
        line.push_back(key);
        line.len() == 1
    }

    /// The first is over. Returns the one behind it.
    fn next(&mut self, session: SessionId) -> Option<OpKey> {
        let line = self.waiting.get_mut(&session)?;
        line.pop_front();
        line.front().copied()
    }

    /// The client of the session has started anew: those that wait are not asked for any more.
    pub(super) fn clear(&mut self, session: SessionId) {
        self.waiting.remove(&session);
        self.syncs.retain(|(_, sync)| sync.session != session);
    }

    /// Whether it was the last one of its slot, and carried out.
    pub(super) fn has_applied(
        &self,
        context: &Context,
        disk: &Disk,
        session: SessionId,
        digest: DigestId,
    ) -> bool {
        let slot = slot_of(context, digest);
        let stored = disk.digest(session, slot).map(|(id, _)| *id);
        stored == Some(digest) && self.refused(session, slot) < digest
    }

    fn refused(&self, session: SessionId, slot: Slot) -> DigestId {
        self.refused.get(&(session, slot)).copied().unwrap_or_default()
    }
}

impl Operation {
    pub(super) fn is_digest(&self, session: SessionId, id: DigestId) -> bool {
        self.session == session && matches!(&self.work, Work::Digest(digest) if digest.id == id)
    }
}

fn slot_of(context: &Context, id: DigestId) -> Slot {
    context.config.digest_slots().op(Sequence(id.0)).slot
}

/// It gives a directory another parent.
fn reshapes(digest: &DigestCall) -> bool {
    digest.records.iter().any(|record| matches!(record.change, Change::Rename { what: Moved::Subtree, .. }))
}

/// The inodes that a digest makes and does not remove.
pub(super) fn made(digest: &DigestCall) -> Vec<Object> {
    let of = |change: &Change| match change {
        Change::Create { fid, .. } => Some(object_of(*fid)),
        _ => None,
    };
    digest.records.iter().filter_map(|record| of(&record.change)).collect()
}

/// The inodes that it changes and does not make.
fn existing(digest: &DigestCall) -> Vec<Fid> {
    let made = made(digest);
    let mut fids: Vec<Fid> = digest
        .records
        .iter()
        .flat_map(|record| record.change.touches())
        .filter_map(|(touched, _)| match touched {
            Touched::Inode(fid) => Some(fid),
            Touched::Name(_) | Touched::Tree => None,
        })
        .filter(|fid| !made.contains(&object_of(*fid)))
        .collect();
    fids.sort_unstable();
    fids.dedup();
    fids
}
