//! Which inodes were changed since the last sync, and by which operations: whose fsync must fail if a power cut of the server
//! takes changes back that it had acknowledged.
//!
//! The server keeps the last reply of each slot in the batch of the change. A slot carries one operation at a time, so what
//! its store holds of a slot tells exactly which operations of that slot it has: those up to that sequence. Only
//! changes that were done are noted here, so an answer that the server does not store can never look like a loss.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use soda_protocol::{Lsn, OpId};
use soda_types::{Fid, Sequence, Slot};

/// Above this many a background sync is due, which empties the list.
pub(crate) const SYNC_ABOVE: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    /// At most one change for each slot: the last.
    changed: FxHashMap<Fid, Vec<Change>>,
    next: u64,
    /// The operation whose reply is being applied.
    answering: Option<OpId>,
    lost: FxHashMap<Fid, Loss>,
    losses: u64,
    /// Of which losses whoever has all synced has heard.
    said_of_all: Heard,
    /// The last loss that is not known any more ([`Unsynced::forget_told`]).
    forgotten: u64,
}

/// Changes of an inode were lost. Each open file that there was says so once; so does the first that is opened after it, if
/// nobody has heard of it by then (as errseq_t of Linux).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Loss {
    number: u64,
    told: Told,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Told {
    Nobody,
    Somebody,
}

/// Up to which loss a program has heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Heard(u64);

/// All that was lost, for a process that takes over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Losses {
    count: u64,
    lost: Vec<(Fid, Loss)>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    op: OpId,
    /// Its place in the order of answers.
    number: u64,
    /// The last that had been logged by then.
    after: Lsn,
}

/// A moment in the order of changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

impl Unsynced {
    /// What is noted from now on was done by this operation.
    pub(crate) fn answering(&mut self, op: Option<OpId>) {
        self.answering = op;
    }

    pub(crate) fn note(&mut self, fid: Fid, after: Lsn) {
        let Some(op) = self.answering else { return };
        self.next += 1;
        let change = Change { op, number: self.next, after };
        let changes = self.changed.entry(fid).or_default();
        match changes.iter_mut().find(|change| change.op.slot == op.slot) {
            Some(last) => *last = change,
            None => changes.push(change),
        }
    }

    /// Digests that the server has applied, and may not have on its disk, have changed these inodes: noted when their
    /// session ends, as the log forgets them then. `slot`: the digests'. To be followed by [`Unsynced::start_session`].
    pub(crate) fn note_digested(&mut self, fids: impl IntoIterator<Item = Fid>, slot: Slot, after: Lsn) {
        for fid in fids {
            self.answering = Some(OpId { slot, sequence: Sequence(0) });
            self.note(fid, after);
        }
        self.answering = None;
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(self.next)
    }

    /// Everything up to the mark is on the server's disk.
    pub(crate) fn synced(&mut self, mark: Mark) {
        self.keep(|change| change.number > mark.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.changed.len()
    }

    /// Another session begins, whose sequences start over. Its record comes after all these changes in the server's journal:
    /// as long as the server knows the new session, it has them.
    pub(crate) fn start_session(&mut self) {
        self.changed.values_mut().flatten().for_each(|change| change.op.sequence = Sequence(0));
    }

    /// The server has come back and cannot say what it kept. Returns how many inodes are concerned.
    pub(crate) fn lose(&mut self) -> usize {
        let lost = std::mem::take(&mut self.changed);
        let concerned = lost.len();
        lost.into_keys().for_each(|fid| self.note_lost(fid));
        concerned
    }

    /// The server has come back with these replies stored. Returns the inodes that have lost changes which were answered, each
    /// with the last that had been logged before the first of them.
    pub(crate) fn lose_after(&mut self, stored: impl Fn(Slot) -> Sequence) -> Vec<(Fid, Lsn)> {
        let is_lost = |change: &&Change| change.op.sequence > stored(change.op.slot);
        let first = |changes: &Vec<Change>| changes.iter().filter(is_lost).map(|change| change.after).min();
        let concerned: Vec<(Fid, Lsn)> =
            self.changed.iter().filter_map(|(fid, changes)| Some((*fid, first(changes)?))).collect();
        self.keep(|change| !is_lost(&change));
        concerned.iter().for_each(|(fid, _)| self.note_lost(*fid));
        concerned
    }

    /// The inode's changes were lost before the server heard of them.
    pub(crate) fn note_lost(&mut self, fid: Fid) {
        self.losses += 1;
        self.lost.insert(fid, Loss { number: self.losses, told: Told::Nobody });
    }

    /// What whoever opens the inode now need not be told.
    pub(crate) fn heard(&self, fid: Fid) -> Heard {
        match self.lost.get(&fid) {
            Some(Loss { number, told: Told::Nobody }) => Heard(number - 1),
            _ => Heard(self.losses),
        }
    }

    /// Every loss until now.
    pub(crate) fn heard_of_all(&self) -> Heard {
        Heard(self.losses)
    }

    /// Whether changes of the inode were lost, be it said or not; known while somebody has it open.
    pub(crate) fn has_lost(&self, fid: Fid) -> bool {
        self.lost.contains_key(&fid)
    }

    /// Whether changes of the inode were lost that the program has not heard of.
    pub(crate) fn has_lost_since(&self, fid: Fid, heard: Heard) -> bool {
        self.lost.get(&fid).is_some_and(|loss| loss.number > heard.0)
    }

    /// As [`Unsynced::has_lost_since`], of an inode that the program may not have open: what was lost may have been told and
    /// forgotten since. Then it may have been this one.
    pub(crate) fn may_have_lost_since(&self, fid: Fid, heard: Heard) -> bool {
        self.has_lost_since(fid, heard) || self.forgotten > heard.0
    }

    /// Nobody has the inode open: if somebody has heard of what was lost of it, nobody else will ask.
    pub(crate) fn forget_told(&mut self, fid: Fid) {
        if let Some(loss) = self.lost.get(&fid).filter(|loss| loss.told == Told::Somebody) {
            self.forgotten = self.forgotten.max(loss.number);
            self.lost.remove(&fid);
        }
    }

    /// As [`Unsynced::has_lost_since`]; says so once.
    pub(crate) fn take_lost_since(&mut self, fid: Fid, heard: &mut Heard) -> bool {
        let Some(loss) = self.lost.get_mut(&fid).filter(|loss| loss.number > heard.0) else { return false };
        *heard = Heard(loss.number);
        loss.told = Told::Somebody;
        true
    }

    /// As [`Unsynced::take_lost_since`] for one who has nothing open: only if nobody has heard of it.
    pub(crate) fn take_lost(&mut self, fid: Fid) -> bool {
        let mut heard = self.heard(fid);
        self.take_lost_since(fid, &mut heard)
    }

    /// For one who asks for no inode in particular: whether anything was lost since the last time that he asked, and nobody has
    /// heard of it (as the superblock's errseq_t). Who has it open hears of it all the same.
    pub(crate) fn take_unheard(&mut self) -> bool {
        let unheard = self.has_unheard();
        self.said_of_all = Heard(self.losses);
        unheard
    }

    /// As [`Unsynced::take_unheard`], without saying it.
    pub(crate) fn has_unheard(&self) -> bool {
        self.lost.values().any(|loss| loss.number > self.said_of_all.0 && loss.told == Told::Nobody)
    }

    pub(crate) fn losses(&self) -> Losses {
        Losses { count: self.losses, lost: self.lost.iter().map(|(fid, loss)| (*fid, *loss)).collect() }
    }

    pub(crate) fn take_over(&mut self, losses: Losses) {
        (self.losses, self.lost) = (losses.count, losses.lost.into_iter().collect());
    }

    fn keep(&mut self, keep: impl Fn(&Change) -> bool) {
        self.changed.retain(|_, changes| {
            changes.retain(&keep);
            !changes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    const A: Fid = Fid { volume: VolumeId(1), ino: Ino(1), generation: 0 };
    const B: Fid = Fid { volume: VolumeId(1), ino: Ino(2), generation: 0 };

    fn change(unsynced: &mut Unsynced, slot: u16, sequence: u64, fid: Fid) {
        unsynced.answering(Some(OpId { slot: Slot(slot), sequence: Sequence(sequence) }));
        unsynced.note(fid, Lsn(sequence));
        unsynced.answering(None);
    }

    #[test]
    fn loss_is_reported_once_and_only_for_what_was_not_synced() {
        let mut unsynced = Unsynced::default();
        change(&mut unsynced, 0, 1, A);
        let mark = unsynced.mark();
        change(&mut unsynced, 0, 2, B);
        unsynced.synced(mark);
        assert_eq!(unsynced.lose(), 1);
        assert!(!unsynced.take_lost(A));
        assert!(unsynced.take_lost(B));
        assert!(!unsynced.take_lost(B));
    }

    #[test]
    fn each_who_had_it_open_hears_of_a_loss_once() {
        let mut unsynced = Unsynced::default();
        unsynced.note_lost(B);
        let (mut one, mut other) = (unsynced.heard(A), unsynced.heard(A));
        assert!(!unsynced.take_lost_since(A, &mut one), "nothing yet");
        unsynced.note_lost(A);
        let mut opened_before_anybody_heard = unsynced.heard(A);
        for heard in [&mut one, &mut other, &mut opened_before_anybody_heard] {
            assert!(unsynced.take_lost_since(A, heard));
            assert!(!unsynced.take_lost_since(A, heard), "once");
        }
        let mut opened_after = unsynced.heard(A);
        assert!(!unsynced.take_lost_since(A, &mut opened_after));
        assert!(!unsynced.take_lost(A), "somebody has heard");
        unsynced.note_lost(A);
        assert!(unsynced.take_lost_since(A, &mut one) && unsynced.take_lost_since(A, &mut opened_after));
    }

    #[test]
    fn a_loss_is_known_until_somebody_has_heard_of_it_and_nobody_has_the_file_open() {
        let mut unsynced = Unsynced::default();
        let before = unsynced.heard_of_all();
        unsynced.note_lost(A);
        unsynced.forget_told(A);
        assert!(unsynced.has_lost_since(A, before), "nobody has heard of it");
        let mut opened = unsynced.heard(A);
        assert!(unsynced.take_lost_since(A, &mut opened));
        assert!(unsynced.lost.contains_key(&A));
        unsynced.forget_told(A);
        assert!(unsynced.lost.is_empty());
        assert!(unsynced.may_have_lost_since(A, before) && !unsynced.may_have_lost_since(A, opened));
        let mut opened_after = unsynced.heard(A);
        assert!(!unsynced.take_lost_since(A, &mut opened_after) && !unsynced.take_lost(A));
        unsynced.note_lost(A);
        assert!(unsynced.take_lost_since(A, &mut opened_after));
    }

    #[test]
    fn who_asks_for_all_hears_once_of_what_nobody_has_heard_of() {
        let mut unsynced = Unsynced::default();
        assert!(!unsynced.take_unheard());
        unsynced.note_lost(A);
        unsynced.note_lost(B);
        assert!(unsynced.take_lost(A));
        assert!(unsynced.has_unheard() && unsynced.take_unheard());
        assert!(!unsynced.has_unheard() && !unsynced.take_unheard());
        assert!(unsynced.take_lost(B), "as if nobody had asked for all");
        unsynced.note_lost(A);
        assert!(unsynced.take_lost(A) && !unsynced.take_unheard(), "it was said");
    }

    #[test]
    fn what_another_slot_stored_later_says_nothing_of_this_one() {
        let mut unsynced = Unsynced::default();
        change(&mut unsynced, 0, 1, A);
        change(&mut unsynced, 1, 2, B);
        let stored = |slot: Slot| Sequence(if slot == Slot(1) { 2 } else { 0 });
        assert_eq!(unsynced.lose_after(stored), [(A, Lsn(1))]);
        assert!(unsynced.take_lost(A));
        assert!(!unsynced.take_lost(B));
    }

    #[test]
    fn what_was_kept_can_still_be_lost_the_next_time() {
        let mut unsynced = Unsynced::default();
        change(&mut unsynced, 0, 1, A);
        assert!(unsynced.lose_after(|_| Sequence(1)).is_empty());
        assert_eq!(unsynced.len(), 1);
        assert_eq!(unsynced.lose(), 1);
        assert_eq!(unsynced.len(), 0);
    }

    #[test]
    fn changes_of_an_earlier_session_are_there_if_the_session_is() {
        let mut unsynced = Unsynced::default();
        change(&mut unsynced, 0, 500, A);
        unsynced.start_session();
        change(&mut unsynced, 0, 1, B);
        assert!(unsynced.lose_after(|_| Sequence(1)).is_empty());
        assert_eq!(unsynced.lose(), 2);
    }

    #[test]
    fn a_file_keeps_one_change_for_each_slot() {
        let mut unsynced = Unsynced::default();
        for sequence in 1..=100 {
            change(&mut unsynced, u16::try_from(sequence % 4).unwrap(), sequence, A);
        }
        assert_eq!(unsynced.changed[&A].len(), 4);
        // Only the last one of slot 0 is gone.
        let stored = |slot: Slot| Sequence(if slot == Slot(0) { 96 } else { 99 });
        assert_eq!(unsynced.lose_after(stored), [(A, Lsn(100))]);
        assert_eq!(unsynced.changed[&A].len(), 3);
    }
}
