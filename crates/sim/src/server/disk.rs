//! What survives a crash of the server; and what of that survives a power cut: all up to the last sync.

use super::places::Watched;
use crate::deed::{CELL_BYTES, is_directory, moved_by, register_at};
use crate::layout::{Layout, Tree};
use crate::message::DigestCall;
use crate::register::{Content, Object, OpUid, Register, Stamp, Value, object_of};
use crate::sabotage::Sabotage;
use soda_lease::numbers::{Numbers, NumbersRecord};
use soda_lease::space::Taking;
use soda_lease::table::TreeChanges;
use soda_oplog::{Change, DigestId, Fate, Record};
use soda_types::{FileKind, Ino, Sequence, SessionId, Slot};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Disk {
    /// These are made durable before anything that depends on them is done.
    pub(super) starts: u64,
    pub(super) sessions: BTreeSet<SessionId>,
    pub(super) last_session: u64,
    registers: BTreeMap<Register, Value>,
    /// Where each inode has its names; follows from the registers.
    names: BTreeSet<(Object, Register)>,
    /// The last reply of each slot.
    replies: BTreeMap<(SessionId, usize), Reply>,
    /// The last digest of each slot, and what it made.
    digests: BTreeMap<(SessionId, Slot), (DigestId, Vec<Object>)>,
    /// The last digest of each session that is on the medium.
    durable: BTreeMap<SessionId, DigestId>,
    /// Bytes that are set aside for each session.
    reservations: BTreeMap<SessionId, u64>,
    /// Blocks of numbers of inodes that are set aside, by the first of each.
    numbers: BTreeMap<(SessionId, Ino), NumbersRecord>,
    usage: Usage,
    /// What was before, for everything since the last sync.
    undo: Vec<Undo>,
    /// How many of these syncs have taken off.
    synced: usize,
}

/// How much of it is taken, bytes.
#[derive(Debug, Default)]
struct Usage {
    /// By what there is.
    there: u64,
    /// By what was written meanwhile, and what it replaced: each with how many changes had been made by then. A sync gives it
    /// back.
    spent: VecDeque<(usize, u64)>,
}

impl Usage {
    fn total(&self) -> u64 {
        self.there + self.spent.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }
}

/// What is left of a change takes less than the change may take at most; writes to all of a small file that are told as one, too.
fn bytes_of(value: Option<Value>) -> u64 {
    match value.map(|value| value.content) {
        Some(Content::Data(_)) => 256,
        // An inode.
        Some(Content::Names(_)) => 512,
        _ => 0,
    }
}

/// What a sync makes durable that began at some moment.
#[derive(Debug)]
pub(super) struct UpTo {
    changes: usize,
    digests: Vec<(SessionId, DigestId)>,
}

pub(super) type Reply = (Sequence, Vec<Value>);

#[derive(Debug)]
enum Undo {
    Register(Register, Option<Value>),
    Reply((SessionId, usize), Option<Reply>),
    Digest((SessionId, Slot), Option<(DigestId, Vec<Object>)>),
    Reservation(SessionId, Option<u64>),
    Numbers((SessionId, Ino), Option<NumbersRecord>),
}

/// The record cannot be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Impossible;

impl Disk {
    pub(super) fn value(&self, register: Register) -> Value {
        self.registers.get(&register).copied().unwrap_or_default()
    }

    /// What a client is told.
    pub(super) fn found(&self, register: Register, objects: Object) -> Value {
        let first = Register { cell: 0, ..register };
        let is_known = register.object < objects || self.registers.contains_key(&first);
        if is_known { self.value(register) } else { Value::MISSING }
    }

    /// `objects`: those that have been there from the start.
    pub(super) fn exists(&self, object: Object, objects: Object) -> bool {
        let first = Register { object, cell: 0 };
        (object < objects || self.registers.contains_key(&first))
            && self.value(first).content != Content::Gone
    }

    pub(super) fn reply(&self, session: SessionId, slot: usize) -> Option<&Reply> {
        self.replies.get(&(session, slot))
    }

    pub(super) fn digest(&self, session: SessionId, slot: Slot) -> Option<&(DigestId, Vec<Object>)> {
        self.digests.get(&(session, slot))
    }

    /// The last digest of the session that it has.
    pub(super) fn stored(&self, session: SessionId) -> DigestId {
        let of_session = self.digests.range((session, Slot(0))..=(session, Slot(u16::MAX)));
        of_session.map(|(_, (id, _))| *id).max().unwrap_or_default()
    }

    pub(super) fn durable(&self, session: SessionId) -> DigestId {
        self.durable.get(&session).copied().unwrap_or(DigestId(0))
    }

    /// Where the inode has its names.
    pub(super) fn names_of(&self, object: Object) -> impl Iterator<Item = Register> {
        let all = (object, Register::default())..(object + 1, Register::default());
        self.names.range(all).map(|(_, at)| *at)
    }

    pub(super) fn set(&mut self, register: Register, value: Value) {
        let before = self.put(register, Some(value));
        self.undo.push(Undo::Register(register, before));
    }

    fn put(&mut self, register: Register, value: Option<Value>) -> Option<Value> {
        let before = match value {
            Some(value) => self.registers.insert(register, value),
            None => self.registers.remove(&register),
        };
        self.usage.there = self.usage.there + bytes_of(value) - bytes_of(before);
        let named = |value: Option<Value>| match value.map(|value| value.content) {
            Some(Content::Names(object)) => Some(object),
            _ => None,
        };
        if let Some(object) = named(before) {
            self.names.remove(&(object, register));
        }
        self.names.extend(named(value).map(|object| (object, register)));
        before
    }

    pub(super) fn set_reply(&mut self, session: SessionId, slot: usize, reply: Reply) {
        let before = self.replies.insert((session, slot), reply);
        self.undo.push(Undo::Reply((session, slot), before));
    }

    pub(super) fn set_digest(&mut self, slot: (SessionId, Slot), id: DigestId, made: Vec<Object>) {
        let before = self.digests.insert(slot, (id, made));
        self.undo.push(Undo::Digest(slot, before));
    }

    /// Bytes that are taken.
    pub(super) fn used(&self) -> u64 {
        self.usage.total()
    }

    /// A change has been made for which so many bytes were taken, `used` before.
    pub(super) fn note_taken(&mut self, bytes: u64, used: u64) {
        let spent = (used + bytes).saturating_sub(self.used());
        self.usage.spent.push_back((self.synced + self.undo.len(), spent));
    }

    pub(super) fn set_reservation(&mut self, session: SessionId, bytes: u64) {
        let before = self.reservations.insert(session, bytes);
        self.undo.push(Undo::Reservation(session, before));
    }

    pub(super) fn set_numbers(&mut self, session: SessionId, first: Ino, block: NumbersRecord) {
        let before = self.numbers.insert((session, first), block);
        self.undo.push(Undo::Numbers((session, first), before));
    }

    pub(super) fn forget_numbers(&mut self, session: SessionId, first: Ino) {
        let before = self.numbers.remove(&(session, first));
        self.undo.push(Undo::Numbers((session, first), before));
    }

    pub(super) fn numbers(&self) -> BTreeMap<SessionId, Numbers> {
        let mut all: BTreeMap<SessionId, Numbers> = BTreeMap::new();
        for ((session, first), block) in &self.numbers {
            all.entry(*session).or_default().add(*first, block.clone());
        }
        all
    }

    /// What is used up of what is set aside goes with what uses it.
    pub(super) fn take(&mut self, session: SessionId, taking: &Taking, sabotage: Sabotage) {
        if let Some(left) = taking.left().filter(|_| sabotage != Sabotage::KeepUsedUp) {
            self.set_reservation(session, left);
        }
        taking.used();
    }

    pub(super) fn reservations(&self) -> &BTreeMap<SessionId, u64> {
        &self.reservations
    }

    /// All or nothing. Returns what has moved in the tree.
    ///
    /// # Errors
    /// A record does not fit the state; nothing was done.
    pub(super) fn apply(&mut self, digest: &DigestCall, layout: Layout) -> Result<TreeChanges, Impossible> {
        let start = self.undo.len();
        let mut tree = TreeChanges::default();
        for record in &digest.records {
            let watched =
                Watched::before(self, layout, moved_by(&record.change).into_iter().map(|(fid, _)| fid));
            if let Err(impossible) = self.apply_record(record, layout) {
                self.roll_back(start);
                return Err(impossible);
            }
            watched.note_moves(self, layout, &mut tree);
        }
        for (register, stamp) in &digest.stamps {
            let found = self.value(*register).content;
            // Perhaps it has come and gone within the digest.
            let content = if stamp.count == u32::MAX { Content::Gone } else { found };
            self.set(*register, Value { stamp: *stamp, content });
        }
        Ok(tree)
    }

    fn apply_record(&mut self, record: &Record, layout: Layout) -> Result<(), Impossible> {
        let exists = |disk: &Disk, object: Object| disk.exists(object, layout.objects);
        let named = |disk: &Disk, at: Register, expected: Content| {
            let is_so = exists(disk, at.object) && disk.value(at).content == expected;
            is_so.then_some(()).ok_or(Impossible)
        };
        match &record.change {
            Change::Create { place, fid, new } => {
                let (at, object) = (register_at(place), object_of(*fid));
                named(self, at, Content::Blank)?;
                if exists(self, object) || (new.kind == FileKind::Directory) != is_directory(object) {
                    return Err(Impossible);
                }
                self.become_content(at, Content::Names(object));
                layout.cells_of(object).for_each(|register| self.become_content(register, Content::Blank));
                if layout.tree == Tree::Deep {
                    let directory = Content::Under(at.object);
                    let attributes = if is_directory(object) { directory } else { Content::Links(1) };
                    self.become_content(Register::attributes(object), attributes);
                }
            }
            Change::Link { fid, place } => {
                let (at, attributes) = (register_at(place), Register::attributes(object_of(*fid)));
                named(self, at, Content::Blank)?;
                let Content::Links(names) = self.value(attributes).content else { return Err(Impossible) };
                self.become_content(at, Content::Names(attributes.object));
                self.become_content(attributes, Content::Links(names + 1));
            }
            Change::Unlink { place, fid, then } => {
                let (at, object) = (register_at(place), object_of(*fid));
                named(self, at, Content::Names(object))?;
                self.become_content(at, Content::Blank);
                self.lose_name(object, *then, layout)?;
            }
            Change::RemoveDirectory { place, fid } => {
                let (at, object) = (register_at(place), object_of(*fid));
                named(self, at, Content::Names(object))?;
                if !layout.cells_of(object).all(|register| self.value(register).content == Content::Blank) {
                    return Err(Impossible);
                }
                self.become_content(at, Content::Blank);
                self.lose_name(object, Fate::Gone, layout)?;
            }
            Change::Rename { from, to, moved, replaced, .. } => {
                let (from, to, moved) = (register_at(from), register_at(to), object_of(*moved));
                named(self, from, Content::Names(moved))?;
                let there = replaced.map(|(fid, _)| object_of(fid));
                named(self, to, there.map_or(Content::Blank, Content::Names))?;
                if is_directory(moved) && from.object != to.object {
                    let above = self.path(to.object, layout).ok_or(Impossible)?;
                    if above.contains(&moved) {
                        return Err(Impossible);
                    }
                    self.become_content(Register::attributes(moved), Content::Under(to.object));
                }
                self.become_content(from, Content::Blank);
                self.become_content(to, Content::Names(moved));
                if let Some((fid, then)) = replaced {
                    self.lose_name(object_of(*fid), *then, layout)?;
                }
            }
            Change::Write { fid, offset, data, .. } => {
                let object = object_of(*fid);
                if !exists(self, object) {
                    return Err(Impossible);
                }
                let data = data.to_bytes();
                for (cell, bytes) in (offset / CELL_BYTES..).zip(data.chunks_exact(CELL_BYTES as usize)) {
                    let mut number = [0; CELL_BYTES as usize];
                    number.copy_from_slice(bytes);
                    let written = Content::Data(OpUid(u64::from_le_bytes(number)));
                    self.become_content(Register { object, cell: cell as u8 }, written);
                }
            }
            // Times, which nobody looks at here.
            _ => {}
        }
        Ok(())
    }

    fn lose_name(&mut self, object: Object, then: Fate, layout: Layout) -> Result<(), Impossible> {
        let attributes = Register::attributes(object);
        let names = match self.value(attributes).content {
            Content::Links(names) => names,
            _ => 1,
        };
        match (then, names) {
            (Fate::Gone, 1) => {
                layout.registers_of(object).for_each(|register| self.become_content(register, Content::Gone))
            }
            (Fate::Stays, 2..) => self.become_content(attributes, Content::Links(names - 1)),
            _ => return Err(Impossible),
        }
        Ok(())
    }

    fn become_content(&mut self, register: Register, content: Content) {
        let stamp: Stamp = self.value(register).stamp;
        self.set(register, Value { stamp, content });
    }

    /// The session has ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.sync();
        self.sessions.remove(&session);
        self.replies.retain(|(of, _), _| *of != session);
        self.digests.retain(|(of, _), _| *of != session);
        self.reservations.remove(&session);
        self.numbers.retain(|(of, _), _| *of != session);
        self.durable.remove(&session);
    }

    pub(super) fn sync(&mut self) {
        self.end_sync(self.begin_sync());
    }

    pub(super) fn begin_sync(&self) -> UpTo {
        let digests = self.digests.iter().map(|((session, _), (id, _))| (*session, *id)).collect();
        UpTo { changes: self.synced + self.undo.len(), digests }
    }

    pub(super) fn end_sync(&mut self, UpTo { changes, digests }: UpTo) {
        let more = changes.saturating_sub(self.synced);
        self.undo.drain(..more);
        self.synced += more;
        while self.usage.spent.pop_front_if(|(changes, _)| *changes <= self.synced).is_some() {}
        for (session, id) in digests.into_iter().filter(|(session, _)| self.sessions.contains(session)) {
            let durable = self.durable.entry(session).or_default();
            *durable = (*durable).max(id);
        }
    }

    /// Whatever was not synced is gone.
    pub(super) fn power_cut(&mut self) {
        self.roll_back(0);
        self.usage.spent.clear();
    }

    fn roll_back(&mut self, to: usize) {
        for undo in self.undo.split_off(to).into_iter().rev() {
            match undo {
                Undo::Register(register, before) => drop(self.put(register, before)),
                Undo::Reply(slot, before) => put_back(&mut self.replies, slot, before),
                Undo::Digest(slot, before) => put_back(&mut self.digests, slot, before),
                Undo::Reservation(session, before) => put_back(&mut self.reservations, session, before),
                Undo::Numbers(block, before) => put_back(&mut self.numbers, block, before),
            }
        }
    }
}

fn put_back<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, before: Option<V>) {
    match before {
        Some(before) => drop(map.insert(key, before)),
        None => drop(map.remove(&key)),
    }
}
