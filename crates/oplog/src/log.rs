//! What is pending: dependencies, digests, and what the server is known to have. Sans-IO.

use crate::coalesce::coalesce;
use crate::{Change, Lsn, Object, Record, Touch};
use soda_types::{Fid, Monotonic, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

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
    pub records: usize,
    /// Bytes, as [`Change::weight`] counts them. One record alone may be more.
    pub bytes: u64,
}

/// What is not known to be on the server's disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Backlog {
    /// Records that the server has not applied.
    pub records: u64,
    /// Their weight in bytes.
    pub bytes: u64,
    /// How long the oldest of them has been waiting.
    pub age: Duration,
    /// Records that the server has applied and may lose in a power cut.
    pub not_durable: u64,
}

/// What is known of what the server has applied and not made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// It is the same server: it has it.
    Kept,
    /// It is another run, which may have less.
    MayBeLost,
}

/// See the [crate]. One digest is under way at a time: the next one is taken when it is answered.
#[derive(Debug, Default)]
pub struct Log {
    last_lsn: u64,
    last_digest: u64,
    pending: BTreeMap<Lsn, Pending>,
    pending_weight: u64,
    objects: HashMap<Object, Uses>,
    sent: Option<Sent>,
    applied: BTreeMap<DigestId, Vec<(Lsn, Pending)>>,
}

#[derive(Debug)]
struct Pending {
    record: Record,
    since: Monotonic,
    /// Records that must be applied before this one; those that are not pending any more have been.
    after: Vec<Lsn>,
}

/// Pending records that touch an object: what the next one has to come after.
#[derive(Debug, Default)]
struct Uses {
    exclusive: Option<Lsn>,
    /// Since then.
    shared: BTreeSet<Lsn>,
}

#[derive(Debug)]
struct Sent {
    id: DigestId,
    records: Vec<(Lsn, Pending)>,
}

impl Log {
    /// Adds a change. Its number is larger than all before.
    pub fn append(&mut self, now: Monotonic, at: Timestamp, change: Change) -> Lsn {
        let lsn = Lsn(self.last_lsn + 1);
        self.restore(now, Record { lsn, at, change });
        lsn
    }

    /// Adds a record that has its number already: one that was read from disk. In ascending order only.
    pub fn restore(&mut self, now: Monotonic, record: Record) {
        debug_assert!(record.lsn.0 > self.last_lsn, "{:?} after lsn{}", record.lsn, self.last_lsn);
        self.last_lsn = record.lsn.0;
        self.enter(record, now);
    }

    fn enter(&mut self, record: Record, since: Monotonic) {
        let lsn = record.lsn;
        let mut after = BTreeSet::new();
        for (object, touch) in record.change.touches() {
            let uses = self.objects.entry(object).or_default();
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
                }
            }
        }
        self.pending_weight += record.change.weight();
        self.pending.insert(lsn, Pending { record, since, after: after.into_iter().collect() });
    }

    /// Records that are not in a digest yet.
    pub fn pending(&self) -> impl Iterator<Item = &Record> {
        self.pending.values().map(|pending| &pending.record)
    }

    /// Records of the digest that is under way, with those that cancelled out.
    pub fn under_way_records(&self) -> impl Iterator<Item = &Record> {
        self.sent.iter().flat_map(|sent| &sent.records).map(|(_, pending)| &pending.record)
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

    /// Whether anything was applied that the server's disk is not known to have.
    pub fn has_undurable(&self) -> bool {
        !self.applied.is_empty()
    }

    /// The session is over and with it what the log was for: forgets everything, and returns what the server does not have,
    /// in order. Numbers are not used again.
    pub fn abandon(&mut self, applied: Applied) -> Vec<Record> {
        if applied == Applied::Kept {
            self.applied.clear();
        }
        let left = self.unsaved().cloned().collect();
        *self = Log { last_lsn: self.last_lsn, last_digest: self.last_digest, ..Log::default() };
        left
    }

    /// Whether the server lacks anything of the inode, or, for a directory, of its names.
    pub fn concerns(&self, fid: Fid) -> bool {
        self.objects.contains_key(&Object::Inode(fid))
            || self
                .sent
                .as_ref()
                .is_some_and(|sent| sent.records.iter().any(|(_, pending)| touches(pending, fid)))
    }

    /// The next digest in the order of the log: as many records as the limits allow. `None` if there are none, or one
    /// digest is under way.
    pub fn take(&mut self, limits: DigestLimits) -> Option<Digest> {
        let lsns: Vec<Lsn> = self.pending.keys().copied().collect();
        self.take_these(lsns, limits)
    }

    /// The next digest of those that somebody who waits for these inodes needs, dependencies first. `None` if nothing of
    /// theirs is pending (any more), or one digest is under way.
    pub fn take_for(&mut self, fids: &[Fid], limits: DigestLimits) -> Option<Digest> {
        let lsns = self.needed_for(fids);
        self.take_these(lsns, limits)
    }

    /// The pending records that [`Log::take_for`] would take, without limits.
    pub fn needed_for(&self, fids: &[Fid]) -> Vec<Lsn> {
        let tips = fids.iter().filter_map(|fid| self.objects.get(&Object::Inode(*fid)));
        let mut to_visit: Vec<Lsn> =
            tips.flat_map(|uses| uses.exclusive.into_iter().chain(uses.shared.iter().copied())).collect();
        let mut found = BTreeSet::new();
        while let Some(lsn) = to_visit.pop() {
            if let Some(pending) = self.pending.get(&lsn)
                && found.insert(lsn)
            {
                to_visit.extend(&pending.after);
            }
        }
        found.into_iter().collect()
    }

    fn take_these(&mut self, lsns: Vec<Lsn>, limits: DigestLimits) -> Option<Digest> {
        if self.sent.is_some() || lsns.is_empty() {
            return None;
        }
        let mut taken: Vec<(Lsn, Pending)> = Vec::new();
        let mut bytes = 0;
        // A beginning of a list that is closed under dependencies and ascending is closed, too.
        for lsn in lsns {
            let Some(pending) = self.pending.get(&lsn) else { continue };
            bytes += pending.record.change.weight();
            let full = taken.len() >= limits.records || bytes > limits.bytes;
            if full && !taken.is_empty() {
                break;
            }
            taken.extend(self.pending.remove(&lsn).map(|pending| (lsn, pending)));
        }
        for (lsn, pending) in &taken {
            self.pending_weight -= pending.record.change.weight();
            self.forget_uses(*lsn, &pending.record.change);
        }
        self.last_digest += 1;
        let id = DigestId(self.last_digest);
        let lsns = taken.iter().map(|(lsn, _)| *lsn).collect();
        let records = coalesce(taken.iter().map(|(_, pending)| pending.record.clone()).collect());
        self.sent = Some(Sent { id, records: taken });
        Some(Digest { id, lsns, records })
    }

    /// The server has applied the digest. It is kept until the server's disk has it, too.
    ///
    /// Answers to digests that are not under way (any more) are ignored.
    pub fn handle_applied(&mut self, id: DigestId) {
        if let Some(sent) = self.sent.take_if(|sent| sent.id == id) {
            self.applied.insert(id, sent.records);
        }
    }

    /// The server's disk has everything that it had applied up to this digest: it is forgotten. Returns the highest
    /// number below which nothing is needed any more, for the files on the local disk.
    pub fn handle_durable(&mut self, id: DigestId) -> Lsn {
        self.applied = self.applied.split_off(&DigestId(id.0 + 1));
        self.floor()
    }

    /// The server does not have this digest nor any later one: the connection broke, or a power cut took them. Their
    /// records are pending again.
    pub fn handle_lost(&mut self, id: DigestId) {
        let mut lost: Vec<(Lsn, Pending)> = self.applied.split_off(&id).into_values().flatten().collect();
        lost.extend(self.sent.take_if(|sent| sent.id >= id).into_iter().flat_map(|sent| sent.records));
        if lost.is_empty() {
            return;
        }
        // What was appended meanwhile does not know that it comes after these: all are entered anew, in their order.
        let mut all = std::mem::take(&mut self.pending);
        all.extend(lost);
        self.enter_anew(all);
    }

    /// The server will never take what is pending of these inodes: a lease that covered it is gone, after a power cut of
    /// the server. Those records are taken out, and with them all that depend on them. Returns them in order, for
    /// recovery. What is under way is left alone: its outcome is not known.
    pub fn give_up(&mut self, fids: &[Fid]) -> Vec<Record> {
        let lost = fids.iter().map(|fid| (Object::Inode(*fid), Touch::Exclusive)).collect();
        self.give_up_from(None, lost)
    }

    /// The server will never take this record. It is taken out, and with it all that depend on it. Returns them in order.
    pub fn give_up_record(&mut self, lsn: Lsn) -> Vec<Record> {
        self.give_up_from(Some(lsn), HashMap::new())
    }

    fn give_up_from(&mut self, first: Option<Lsn>, mut lost: HashMap<Object, Touch>) -> Vec<Record> {
        let (mut given_up, mut kept) = (Vec::new(), BTreeMap::new());
        for (lsn, pending) in std::mem::take(&mut self.pending) {
            let touches = pending.record.change.touches();
            // Changes that share an object can be made without each other.
            let depends = |(object, touch): &(Object, Touch)| {
                lost.get(object).is_some_and(|lost| [*lost, *touch].contains(&Touch::Exclusive))
            };
            if first != Some(lsn) && !touches.iter().any(depends) {
                kept.insert(lsn, pending);
                continue;
            }
            for (object, touch) in touches {
                let lost = lost.entry(object).or_insert(touch);
                if touch == Touch::Exclusive {
                    *lost = touch;
                }
            }
            given_up.push(pending.record);
        }
        self.enter_anew(kept);
        given_up
    }

    fn enter_anew(&mut self, pending: BTreeMap<Lsn, Pending>) {
        self.objects.clear();
        self.pending_weight = 0;
        for pending in pending.into_values() {
            self.enter(pending.record, pending.since);
        }
    }

    /// The digest that is under way.
    pub fn under_way(&self) -> Option<DigestId> {
        self.sent.as_ref().map(|sent| sent.id)
    }

    /// The last digest that the server has applied or is about to.
    pub fn last_digest(&self) -> DigestId {
        DigestId(self.last_digest)
    }

    pub fn backlog(&self, now: Monotonic) -> Backlog {
        let sent = self.sent.iter().flat_map(|sent| &sent.records);
        let (sent_records, sent_bytes) = sent
            .clone()
            .fold((0, 0), |(count, bytes), (_, pending)| (count + 1, bytes + pending.record.change.weight()));
        let oldest =
            self.pending.values().chain(sent.map(|(_, pending)| pending)).map(|pending| pending.since).min();
        Backlog {
            records: self.pending.len() as u64 + sent_records,
            bytes: self.pending_weight + sent_bytes,
            age: oldest.map_or(Duration::ZERO, |since| now.since(since)),
            not_durable: self.applied.values().map(|records| records.len() as u64).sum(),
        }
    }

    /// When the oldest record that is not under way was made.
    pub fn oldest_pending(&self) -> Option<Monotonic> {
        // Numbers ascend with time, except after a loss, when the lost ones are the oldest and come first, too.
        self.pending.values().next().map(|pending| pending.since)
    }

    /// What the server is not known to have on disk, in order: for recovery, when the session is lost.
    pub fn unsaved(&self) -> impl Iterator<Item = &Record> {
        let sent = self.sent.iter().flat_map(|sent| &sent.records);
        let applied = self.applied.values().flatten();
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
        let applied = self.applied.values().filter_map(|records| records.first()).map(|(lsn, _)| lsn);
        applied.chain(sent).chain(pending).min().copied().unwrap_or(Lsn(self.last_lsn + 1))
    }

    fn forget_uses(&mut self, lsn: Lsn, change: &Change) {
        for (object, _) in change.touches() {
            if let Some(uses) = self.objects.get_mut(&object) {
                if uses.exclusive == Some(lsn) {
                    uses.exclusive = None;
                }
                uses.shared.remove(&lsn);
                if uses.exclusive.is_none() && uses.shared.is_empty() {
                    self.objects.remove(&object);
                }
            }
        }
    }
}

fn touches(pending: &Pending, fid: Fid) -> bool {
    pending.record.change.touches().iter().any(|(object, _)| *object == Object::Inode(fid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Tree, fid, history, new, place};
    use bytes::Bytes;
    use proptest::prelude::*;
    use soda_types::FileKind;

    const ALL: DigestLimits = DigestLimits { records: usize::MAX, bytes: u64::MAX };

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn numbers(lsns: &[Lsn]) -> Vec<u64> {
        lsns.iter().map(|lsn| lsn.0).collect()
    }

    /// mkdir 2, creat 2/a = 3, write 3, creat 1/b = 4, write 4.
    fn two_branches() -> Log {
        let mut log = Log::default();
        let create = |directory, number, ino, kind| Change::Create {
            place: place(fid(directory), number),
            fid: fid(ino),
            new: new(kind),
        };
        let write = |ino| Change::Write {
            fid: fid(ino),
            offset: 0,
            data: Bytes::from_static(b"data"),
            kill_suid_sgid: false,
        };
        let changes = [
            create(1, 0, 2, FileKind::Directory),
            create(2, 0, 3, FileKind::File),
            write(3),
            create(1, 1, 4, FileKind::File),
            write(4),
        ];
        for (second, change) in (1..).zip(changes) {
            log.append(at(second), Timestamp::new(second as i64, 0), change);
        }
        log
    }

    #[test]
    fn who_waits_for_a_file_gets_what_it_depends_on_and_no_more() {
        let mut log = two_branches();
        assert_eq!(numbers(&log.needed_for(&[fid(4)])), [4, 5]);
        assert_eq!(numbers(&log.needed_for(&[fid(3)])), [1, 2, 3]);
        // Who reads the root sees both names in it, but not yet what is in them.
        assert_eq!(numbers(&log.needed_for(&[fid(1)])), [1, 4]);
        let digest = log.take_for(&[fid(4)], ALL).unwrap();
        assert_eq!(numbers(&digest.lsns), [4, 5]);
        assert!(log.take(ALL).is_none(), "one at a time");
        assert!(log.concerns(fid(4)));
        log.handle_applied(digest.id);
        assert!(!log.concerns(fid(4)) && log.concerns(fid(3)));
        assert_eq!(numbers(&log.take(ALL).unwrap().lsns), [1, 2, 3]);
    }

    #[test]
    fn the_backlog_is_what_the_server_lacks() {
        let mut log = two_branches();
        assert_eq!((log.backlog(at(11)).records, log.backlog(at(11)).age), (5, Duration::from_secs(10)));
        let digest = log.take(DigestLimits { records: 2, bytes: u64::MAX }).unwrap();
        assert_eq!(log.backlog(at(11)).records, 5);
        log.handle_applied(digest.id);
        let backlog = log.backlog(at(11));
        assert_eq!((backlog.records, backlog.not_durable, backlog.age), (3, 2, Duration::from_secs(8)));
        assert_eq!(log.handle_durable(digest.id), Lsn(3));
        assert_eq!(log.backlog(at(11)).not_durable, 0);
    }

    #[test]
    fn what_a_power_cut_took_is_sent_again_first() {
        let mut log = two_branches();
        let limits = DigestLimits { records: 2, bytes: u64::MAX };
        let one = log.take(limits).unwrap();
        log.handle_applied(one.id);
        let two = log.take(limits).unwrap();
        log.handle_applied(two.id);
        assert_eq!(log.unsaved().count(), 5);
        log.handle_lost(two.id);
        assert_eq!(
            numbers(&log.needed_for(&[fid(4)])),
            [4, 5],
            "dependencies of what was appended before the loss"
        );
        assert_eq!(numbers(&log.take(ALL).unwrap().lsns), [3, 4, 5]);
        assert_eq!(log.handle_durable(one.id), Lsn(3));
    }

    #[test]
    fn a_record_that_is_refused_takes_only_what_depends_on_it_along() {
        let mut log = two_branches();
        let numbers = |records: Vec<Record>| records.iter().map(|record| record.lsn.0).collect::<Vec<_>>();
        assert_eq!(numbers(log.give_up_record(Lsn(2))), [2, 3], "its directory stays");
        assert_eq!(numbers(log.give_up_record(Lsn(5))), [5]);
        assert_eq!(log.pending_count(), 2);
    }

    #[test]
    fn what_is_given_up_takes_along_what_depends_on_it() {
        let mut log = two_branches();
        let given_up = |log: &mut Log, ino| {
            log.give_up(&[fid(ino)]).iter().map(|record| record.lsn.0).collect::<Vec<_>>()
        };
        assert_eq!(given_up(&mut log, 2), [1, 2, 3], "the directory, the file in it, and its data");
        assert_eq!(log.needed_for(&[fid(1)]).len(), 1, "names beside it stay");
        assert_eq!(numbers(&log.take(ALL).unwrap().lsns), [4, 5]);
        assert_eq!(given_up(&mut log, 4), [0_u64; 0], "its outcome is not known");

        let mut log = two_branches();
        let remove = Change::RemoveDirectory { place: place(fid(1), 0), fid: fid(2) };
        log.append(at(6), Timestamp::new(6, 0), remove);
        assert_eq!(given_up(&mut log, 3), [2, 3, 6], "a directory cannot go before the names in it");
        assert_eq!(log.backlog(at(6)).records, 3);
    }

    /// What a test does with a log between appends.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Take(usize),
        TakeFor(u64),
        Applied,
        Lost,
        PowerCut,
        Durable,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (1usize..20).prop_map(Event::Take),
            (1u64..20).prop_map(Event::TakeFor),
            Just(Event::Applied),
            Just(Event::Applied),
            Just(Event::Lost),
            Just(Event::PowerCut),
            Just(Event::Durable),
        ]
    }

    /// A server: what it has applied, and what of that is on its disk.
    struct Server {
        durable: (DigestId, Tree),
        state: (DigestId, Tree),
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever goes ahead and whatever is lost, each digest is legal where it is applied (the tree panics
        /// otherwise), who was waited for is served, and in the end the server has the state that the client has.
        #[test]
        fn the_server_can_follow(
            dice in prop::collection::vec(any::<[u8; 5]>(), 1..100),
            events in prop::collection::vec((0usize..6, event()), 0..60),
        ) {
            let (start, records, end) = history(&dice);
            let mut server = Server {
                durable: (DigestId(0), start.clone()),
                state: (DigestId(0), start),
            };
            let mut log = Log::default();
            let mut under_way: Option<Digest> = None;
            let mut records = records.into_iter();
            for (appends, event) in events {
                for record in records.by_ref().take(appends) {
                    log.append(at(1), record.at, record.change);
                }
                match event {
                    Event::Take(records) => {
                        under_way = log.take(DigestLimits { records, bytes: u64::MAX }).or(under_way);
                    }
                    Event::TakeFor(ino) => under_way = log.take_for(&[fid(ino)], ALL).or(under_way),
                    Event::Applied => {
                        if let Some(digest) = under_way.take() {
                            digest.records.iter().for_each(|record| server.state.1.apply(record));
                            server.state.0 = digest.id;
                            log.handle_applied(digest.id);
                        }
                    }
                    Event::Lost => {
                        if let Some(digest) = under_way.take() {
                            log.handle_lost(digest.id);
                        }
                    }
                    Event::PowerCut => {
                        under_way = None;
                        server.state = server.durable.clone();
                        log.handle_lost(DigestId(server.state.0.0 + 1));
                    }
                    Event::Durable => {
                        server.durable = server.state.clone();
                        log.handle_durable(server.durable.0);
                    }
                }
            }
            if let Some(digest) = under_way.take() {
                log.handle_lost(digest.id);
            }
            for record in records {
                log.append(at(1), record.at, record.change);
            }
            while let Some(digest) = log.take(DigestLimits { records: 7, bytes: u64::MAX }) {
                digest.records.iter().for_each(|record| server.state.1.apply(record));
                log.handle_applied(digest.id);
            }
            prop_assert_eq!(server.state.1.without_times(), end.without_times());
            prop_assert_eq!(log.backlog(at(1)).records, 0);
        }
    }
}
