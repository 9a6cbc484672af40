//! What is pending: dependencies, digests, and what the server is known to have. Sans-IO.

mod backlog;
mod given_up;
mod told;
mod wanted;
mod window;

use crate::coalesce::coalesce;
use crate::{Change, Lsn, Object, Record, Touch};
use soda_types::{Fid, Monotonic, Timestamp};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use told::{Told, Writes};
use window::{Life, Removals, WIDEST};

pub use backlog::Backlog;
pub use wanted::{Needed, Wanted};

/// Of what gives space back, and may bring data along, so much is judged for one digest.
const MOST_JUDGED: usize = 64;

/// Number of a digest; digests are numbered in the order in which the server applies them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct DigestId(pub u64);

/// What is sent to the server at once, and applied there whole or not at all.
#[derive(Clone, PartialEq, Debug)]
pub struct Digest {
    pub id: DigestId,
    /// The records it stands for, before those that cancel out were left out; ascending.
    pub lsns: Vec<Lsn>,
    pub records: Vec<Record>,
}

/// How large a digest may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DigestLimits {
    /// Those of a digest that nobody waits for are counted without what cancels out.
    pub records: usize,
    /// Bytes, as [`Change::weight`] counts them, without writes that a later one of the digest replaces. One record alone may be
    /// more.
    pub bytes: u64,
}

/// What is known of what the server has applied and not made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// It is the same server: it has it.
    Kept,
    /// It is another run, which may have less.
    MayBeLost,
}

/// See the [crate]. Digests that are under way together are applied in their order, and none of them after one that was not.
#[derive(Debug, Default)]
pub struct Log {
    last_lsn: u64,
    last_digest: u64,
    pending: BTreeMap<Lsn, Pending>,
    pending_weight: u64,
    pending_space: u64,
    /// Bytes of pending writes that later ones, pending, too, replace.
    pending_replaced: u64,
    objects: HashMap<Object, Uses>,
    removals: Removals,
    /// Digests under way, in their order.
    sent: VecDeque<Sent>,
    applied: Undurable,
    /// Of what gives space back the last that was judged: the next time others come first.
    judged: Lsn,
    /// How often all that is pending was entered anew: what [`Wanted`] knows of it is so until then.
    entered: u64,
    looked_at: Cell<u64>,
}

#[derive(Debug)]
struct Pending {
    record: Record,
    since: Monotonic,
    /// Records that must be applied before this one; those that are not pending any more have been.
    after: Vec<Lsn>,
    /// Bytes that the server's disk may need for it.
    space: u64,
}

/// Pending records that touch an object: what the next one has to come after.
#[derive(Debug, Default)]
struct Uses {
    exclusive: Option<Lsn>,
    /// Since then.
    shared: BTreeSet<Lsn>,
    /// All of them.
    all: VecDeque<Lsn>,
    life: Life,
    /// Of a file.
    writes: Writes,
    /// Bytes of these that others of them replace.
    replaced: u64,
}

#[derive(Debug)]
struct Sent {
    id: DigestId,
    records: Vec<(Lsn, Pending)>,
    /// Bytes.
    weight: u64,
    /// Bytes that are left of that without what cancels out.
    told: u64,
    /// Bytes that the server's disk may need for them.
    space: u64,
}

/// What the server has applied and its disk is not known to have.
#[derive(Debug, Default)]
struct Undurable {
    digests: BTreeMap<DigestId, Sent>,
    records: u64,
    /// Bytes.
    weight: u64,
}

impl Undurable {
    fn insert(&mut self, sent: Sent) {
        self.records += sent.records.len() as u64;
        self.weight += sent.weight;
        self.digests.insert(sent.id, sent);
    }

    /// This digest and all later ones.
    fn take_from(&mut self, id: DigestId) -> Vec<Sent> {
        let taken: Vec<Sent> = self.digests.split_off(&id).into_values().collect();
        for sent in &taken {
            self.records -= sent.records.len() as u64;
            self.weight -= sent.weight;
        }
        taken
    }
}

impl Log {
    /// A log that goes on after this digest of its session.
    pub fn after(last: DigestId) -> Log {
        Log { last_digest: last.0, ..Log::default() }
    }

    /// Adds a change. Its number is larger than all before.
    pub fn append(&mut self, now: Monotonic, at: Timestamp, change: Change) -> Lsn {
        let space = change.space();
        self.append_with(now, at, change, space)
    }

    /// The same of one for which the server's disk may need more than [`Change::space`] can tell: for lists that are inherited.
    pub fn append_with(&mut self, now: Monotonic, at: Timestamp, change: Change, space: u64) -> Lsn {
        let record = Record { lsn: Lsn(self.last_lsn + 1), at, change };
        self.last_lsn = record.lsn.0;
        let lsn = record.lsn;
        self.enter(record, now, space);
        lsn
    }

    /// Adds a record that has its number already: one that was read from disk. In ascending order only.
    pub fn restore(&mut self, now: Monotonic, record: Record) {
        debug_assert!(record.lsn.0 > self.last_lsn, "{:?} after lsn{}", record.lsn, self.last_lsn);
        self.last_lsn = record.lsn.0;
        let space = record.change.space();
        self.enter(record, now, space);
    }

    fn enter(&mut self, record: Record, since: Monotonic, space: u64) {
        let lsn = record.lsn;
        let mut after = BTreeSet::new();
        for (object, touch) in record.change.touches() {
            let inode = if let Object::Inode(fid) = &object { Some(*fid) } else { None };
            let uses = self.objects.entry(object).or_default();
            uses.all.push_back(lsn);
            self.removals.note(lsn, &record.change, inode, &mut uses.life, uses.all.len());
            match touch {
                Touch::Shared => {
                    after.extend(uses.exclusive);
                    uses.shared.insert(lsn);
                }
                Touch::Exclusive => {
                    // Those that share it come after the exclusive one themselves.
                    if uses.shared.is_empty() {
                        after.extend(uses.exclusive);
                    }
                    after.append(&mut uses.shared);
                    uses.exclusive = Some(lsn);
                    let replaced = uses.writes.note(&record.change);
                    uses.replaced += replaced;
                    self.pending_replaced += replaced;
                }
            }
        }
        self.pending_weight += record.change.weight();
        self.pending_space += space;
        self.pending.insert(lsn, Pending { record, since, after: after.into_iter().collect(), space });
    }

    /// Directories that have got another parent, as far as the server does not know: the last of those not in a digest yet, which
    /// comes after the others, and those in digests under way.
    pub fn moved_directories(&self) -> Vec<Fid> {
        let last = self.objects.get(&Object::Tree).and_then(|uses| self.pending.get(&uses.exclusive?));
        let pending = last.map(|pending| &pending.record).into_iter();
        pending.chain(self.under_way_records()).flat_map(|record| record.change.moved_directories()).collect()
    }

    /// Records that are not in a digest yet.
    pub fn pending(&self) -> impl Iterator<Item = &Record> {
        self.pending.values().map(|pending| &pending.record).inspect(|_| self.look())
    }

    /// Those of them that touch an inode, in order.
    pub fn pending_of(&self, fid: Fid) -> impl Iterator<Item = &Record> {
        let all = self.objects.get(&Object::Inode(fid)).into_iter().flat_map(|uses| &uses.all);
        let pending = all.filter_map(|lsn| self.pending.get(lsn));
        pending.map(|pending| &pending.record).inspect(|_| self.look())
    }

    /// Records of the digests that are under way, with those that cancelled out.
    pub fn under_way_records(&self) -> impl Iterator<Item = &Record> {
        let sent = self.sent.iter().flat_map(|sent| &sent.records);
        sent.map(|(_, pending)| &pending.record).inspect(|_| self.look())
    }

    /// Those of one of these digests, and of those after it.
    pub fn under_way_records_from(&self, id: DigestId) -> impl Iterator<Item = &Record> {
        let sent = self.sent.iter().filter(move |sent| sent.id >= id).flat_map(|sent| &sent.records);
        sent.map(|(_, pending)| &pending.record)
    }

    /// How many records, and inodes that somebody waits for, were looked at one by one: for tests of how that grows with the log.
    pub fn looked_at(&self) -> u64 {
        self.looked_at.get()
    }

    fn look(&self) {
        self.looked_at.set(self.looked_at.get() + 1);
    }

    /// The first record that is not in a digest yet.
    pub fn first_pending(&self) -> Option<Lsn> {
        self.pending.keys().next().copied()
    }

    /// The last record.
    pub fn last_lsn(&self) -> Lsn {
        Lsn(self.last_lsn)
    }

    /// How many [`Log::pending`] are.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Bytes that [`Log::pending`] weigh, as [`Change::weight`] counts them.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_weight
    }

    /// Bytes of data, names and values in what is pending, without writes that a later one replaces: more is not told, if all
    /// goes in one digest.
    pub fn pending_data(&self) -> u64 {
        self.pending_weight - self.pending.len() as u64 * Change::RECORD_WEIGHT - self.pending_replaced
    }

    /// Records of one digest that is under way, with those that cancelled out.
    pub fn records_of(&self, id: DigestId) -> impl Iterator<Item = &Record> {
        let sent = self.sent.iter().filter(move |sent| sent.id == id);
        sent.flat_map(|sent| &sent.records).map(|(_, pending)| &pending.record)
    }

    /// Bytes that the digests under way weigh.
    pub fn under_way_bytes(&self) -> u64 {
        self.sent.iter().map(|sent| sent.weight).sum()
    }

    /// Bytes that the digests under way tell, without what cancelled out.
    pub fn under_way_told(&self) -> u64 {
        self.sent.iter().map(|sent| sent.told).sum()
    }

    /// Bytes that the server's disk may need for what is pending and under way.
    pub fn untold_space(&self) -> u64 {
        self.pending_space + self.under_way_space()
    }

    /// The same of the digests under way.
    pub fn under_way_space(&self) -> u64 {
        self.sent.iter().map(|sent| sent.space).sum()
    }

    /// The same of one of them.
    pub fn space_of(&self, id: DigestId) -> u64 {
        self.sent.iter().find(|sent| sent.id == id).map_or(0, |sent| sent.space)
    }

    /// Bytes of all that is kept: pending, under way, or applied and not known to be on the server's disk.
    pub fn kept_bytes(&self) -> u64 {
        self.pending_weight + self.under_way_bytes() + self.applied.weight
    }

    /// Records that were applied and that the server's disk is not known to have, with those that cancelled out.
    pub fn undurable_records(&self) -> impl Iterator<Item = &Record> {
        self.undurable_by_digest().map(|(_, record)| record)
    }

    /// The same, each with the digest in which it was applied.
    pub fn undurable_by_digest(&self) -> impl Iterator<Item = (DigestId, &Record)> {
        let sent = self.applied.digests.values();
        sent.flat_map(|sent| sent.records.iter().map(|(_, pending)| (sent.id, &pending.record)))
    }

    /// How many records were applied that the server's disk is not known to have.
    pub fn undurable_count(&self) -> u64 {
        self.applied.records
    }

    /// Whether anything was applied that the server's disk is not known to have.
    pub fn has_undurable(&self) -> bool {
        !self.applied.digests.is_empty()
    }

    /// Whether this digest or a later one was applied and is not known to be on the server's disk.
    pub fn has_undurable_from(&self, id: DigestId) -> bool {
        self.applied.digests.range(id..).next().is_some()
    }

    /// The session is over and with it what the log was for: forgets everything, and returns what the server does not have,
    /// in order. Numbers are not used again.
    pub fn abandon(&mut self, applied: Applied) -> Vec<Record> {
        if applied == Applied::Kept {
            self.applied = Undurable::default();
        }
        let left = self.unsaved().cloned().collect();
        *self = Log {
            last_lsn: self.last_lsn,
            last_digest: self.last_digest,
            entered: self.entered + 1,
            ..Log::default()
        };
        left
    }

    /// Whether the server lacks anything of the inode, or, for a directory, of its names.
    pub fn concerns(&self, fid: Fid) -> bool {
        self.objects.contains_key(&Object::Inode(fid))
            || self
                .sent
                .iter()
                .any(|sent| sent.records.iter().any(|(_, pending)| touches(&pending.record, fid)))
    }

    /// The next digest in the order of the log: as many records as the limits allow. `None` if there are none.
    pub fn take(&mut self, limits: DigestLimits) -> Option<Digest> {
        let window = self.window(limits).records;
        self.take_these(self.pending.keys().copied().take(window).collect())
    }

    /// The next digest of those that give space back and bring no data: what would make room at a full server must not
    /// stand behind what that has no room for. `None` if there are none.
    pub fn take_freeing(&mut self, limits: DigestLimits) -> Option<Digest> {
        let (mut lsns, mut to_judge) = (BTreeSet::new(), Vec::new());
        let freeing = self.pending.iter().filter(|(_, pending)| pending.record.change.frees_space());
        for (lsn, pending) in freeing.take(WIDEST) {
            // What comes after nothing else brings nothing along: as a rule, the removal of what the server knows.
            let is_plain = |before: &Lsn| lsns.contains(before) || !self.pending.contains_key(before);
            if !pending.after.iter().all(is_plain) || pending.record.change.brings_data() {
                to_judge.push(*lsn);
            } else if lsns.len() < limits.records {
                lsns.insert(*lsn);
            }
        }
        let first = to_judge.partition_point(|lsn| *lsn <= self.judged);
        to_judge.rotate_left(first);
        to_judge.truncate(MOST_JUDGED);
        self.judged = to_judge.last().copied().unwrap_or_default();
        for lsn in to_judge {
            let needed = self.closed_under_dependencies(vec![lsn]);
            let records =
                needed.iter().filter_map(|lsn| Some(self.pending.get(lsn)?.record.clone())).collect();
            let brings_data = coalesce(records).iter().any(|record| record.change.brings_data());
            if !brings_data && lsns.len() + needed.len() <= limits.records {
                lsns.extend(needed);
            }
        }
        // Of data nothing is left.
        self.take_these(lsns.into_iter().collect())
    }

    /// The beginning of a list that makes a digest within the limits: if the list is closed under dependencies and ascending, so
    /// is that.
    fn within(&self, mut lsns: Vec<Lsn>, limits: DigestLimits) -> Vec<Lsn> {
        let mut told = Told::default();
        let mut fits = |lsn: &Lsn| {
            self.pending.get(lsn).into_iter().for_each(|pending| told.add(&pending.record.change));
            told.fits(limits.bytes)
        };
        let most = lsns.iter().take(limits.records).take_while(|lsn| fits(lsn)).count();
        lsns.truncate(most.max(1));
        lsns
    }

    fn take_these(&mut self, lsns: Vec<Lsn>) -> Option<Digest> {
        if lsns.is_empty() {
            return None;
        }
        let mut written = BTreeSet::new();
        let taken = lsns.into_iter().filter_map(|lsn| Some((lsn, self.take_pending(lsn, &mut written)?)));
        let taken: Vec<(Lsn, Pending)> = taken.collect();
        written.into_iter().for_each(|fid| self.count_replaced(fid));
        let weight = taken.iter().map(|(_, pending)| pending.record.change.weight()).sum();
        let space = taken.iter().map(|(_, pending)| pending.space).sum();
        self.last_digest += 1;
        let id = DigestId(self.last_digest);
        let lsns = taken.iter().map(|(lsn, _)| *lsn).collect();
        let records = coalesce(taken.iter().map(|(_, pending)| pending.record.clone()).collect());
        let told = records.iter().map(|record| record.change.weight()).sum();
        self.sent.push_back(Sent { id, records: taken, weight, told, space });
        Some(Digest { id, lsns, records })
    }

    /// The file whose writes are to be counted anew, if some are left of it, is added to `written`.
    fn take_pending(&mut self, lsn: Lsn, written: &mut BTreeSet<Fid>) -> Option<Pending> {
        let pending = self.pending.remove(&lsn)?;
        self.pending_weight -= pending.record.change.weight();
        self.pending_space -= pending.space;
        written.extend(self.forget_uses(lsn, &pending.record.change));
        Some(pending)
    }

    /// The server has applied the digest. It is kept until the server's disk has it, too.
    ///
    /// Answers to digests that are not under way (any more), or not the first of those that are, are ignored.
    pub fn handle_applied(&mut self, id: DigestId) {
        if let Some(sent) = self.sent.pop_front_if(|sent| sent.id == id) {
            self.applied.insert(sent);
        }
    }

    /// The server's disk has everything that it had applied up to this digest: it is forgotten. Returns the highest
    /// number below which nothing is needed any more, for the files on the local disk.
    pub fn handle_durable(&mut self, id: DigestId) -> Lsn {
        let later = self.applied.take_from(DigestId(id.0 + 1));
        self.applied = Undurable::default();
        later.into_iter().for_each(|sent| self.applied.insert(sent));
        self.floor()
    }

    /// The server does not have this digest nor any later one: the connection broke, or a power cut took them. Their
    /// records are pending again.
    pub fn handle_lost(&mut self, id: DigestId) {
        let mut lost: Vec<(Lsn, Pending)> =
            self.applied.take_from(id).into_iter().flat_map(|sent| sent.records).collect();
        let first = self.sent.partition_point(|sent| sent.id < id);
        lost.extend(self.sent.split_off(first).into_iter().flat_map(|sent| sent.records));
        if lost.is_empty() {
            return;
        }
        // What was appended meanwhile does not know that it comes after these: all are entered anew, in their order.
        let mut all = std::mem::take(&mut self.pending);
        all.extend(lost);
        self.enter_anew(all);
    }

    fn enter_anew(&mut self, pending: BTreeMap<Lsn, Pending>) {
        self.entered += 1;
        self.objects.clear();
        self.removals.clear();
        (self.pending_weight, self.pending_space, self.pending_replaced) = (0, 0, 0);
        for pending in pending.into_values() {
            self.enter(pending.record, pending.since, pending.space);
        }
    }

    /// The last of the digests that are under way.
    pub fn under_way(&self) -> Option<DigestId> {
        self.sent.back().map(|sent| sent.id)
    }

    /// The first of the digests that are under way.
    pub fn first_under_way(&self) -> Option<DigestId> {
        self.sent.front().map(|sent| sent.id)
    }

    /// The last digest that the server has applied or is about to.
    pub fn last_digest(&self) -> DigestId {
        DigestId(self.last_digest)
    }

    /// When the oldest record that is not under way was made.
    pub fn oldest_pending(&self) -> Option<Monotonic> {
        // Numbers ascend with time, except after a loss, when the lost ones are the oldest and come first, too.
        self.pending.values().next().map(|pending| pending.since)
    }

    /// What the server is not known to have on disk, in order: for recovery, when the session is lost.
    pub fn unsaved(&self) -> impl Iterator<Item = &Record> {
        let sent = self.sent.iter().flat_map(|sent| &sent.records);
        let applied = self.applied.digests.values().flat_map(|sent| &sent.records);
        let all: BTreeMap<Lsn, &Record> = applied
            .chain(sent)
            .map(|(lsn, pending)| (*lsn, &pending.record))
            .chain(self.pending.iter().map(|(lsn, pending)| (*lsn, &pending.record)))
            .collect();
        all.into_values()
    }

    /// No record below it is needed.
    fn floor(&self) -> Lsn {
        let pending = self.pending.keys().next();
        let sent = self.sent.iter().flat_map(|sent| sent.records.first()).map(|(lsn, _)| lsn);
        let applied =
            self.applied.digests.values().filter_map(|sent| sent.records.first()).map(|(lsn, _)| lsn);
        applied.chain(sent).chain(pending).min().copied().unwrap_or(Lsn(self.last_lsn + 1))
    }

    /// Returns the file whose writes are to be counted anew, if some are left of it.
    fn forget_uses(&mut self, lsn: Lsn, change: &Change) -> Option<Fid> {
        let mut written = None;
        for (object, _) in change.touches() {
            if let Some(uses) = self.objects.get_mut(&object) {
                if uses.exclusive == Some(lsn) {
                    uses.exclusive = None;
                }
                uses.shared.remove(&lsn);
                self.removals.forget(lsn, change, &mut uses.life);
                if uses.replaced == 0 {
                    uses.writes.forget(change);
                } else {
                    // What is left of a file's writes replaces nothing of these.
                    self.pending_replaced -= std::mem::take(&mut uses.replaced);
                    if let Object::Inode(fid) = object
                        && !std::mem::take(&mut uses.writes).is_empty()
                    {
                        written = Some(fid);
                    }
                }
                if let Ok(place) = uses.all.binary_search(&lsn) {
                    uses.all.remove(place);
                }
                if uses.exclusive.is_none() && uses.shared.is_empty() {
                    self.objects.remove(&object);
                }
            }
        }
        written
    }

    fn count_replaced(&mut self, fid: Fid) {
        let Some(uses) = self.objects.get_mut(&Object::Inode(fid)) else { return };
        for pending in uses.all.iter().take(WIDEST).filter_map(|lsn| self.pending.get(lsn)) {
            uses.replaced += uses.writes.note(&pending.record.change);
        }
        self.pending_replaced += uses.replaced;
    }
}

fn touches(record: &Record, fid: Fid) -> bool {
    record.change.touches().iter().any(|(object, _)| *object == Object::Inode(fid))
}

#[cfg(test)]
mod tests;
