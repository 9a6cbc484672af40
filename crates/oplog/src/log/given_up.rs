//! What is taken out of the log and not told.

use super::Log;
use crate::{Lsn, Object, Record, Touch};
use soda_types::Fid;
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Log {
    /// The server will never take what is pending of these inodes: a lease that covered it is gone, after a power cut of
    /// the server. Those records are taken out, and with them all that depend on them. Returns them in order, for
    /// recovery. What is under way is left alone: its outcome is not known.
    pub fn give_up(&mut self, fids: &[Fid]) -> Vec<Record> {
        let lost = fids.iter().map(|fid| (Object::Inode(*fid), Touch::Exclusive)).collect();
        self.give_up_where(|_, _| false, lost)
    }

    /// The server will never take this record. It is taken out, and with it all that depend on it. Returns them in order.
    pub fn give_up_record(&mut self, lsn: Lsn) -> Vec<Record> {
        self.give_up_where(|record, _| record == lsn, HashMap::new())
    }

    /// The server has lost changes of these inodes that it was told otherwise, each after the record that is named with it: what
    /// was done to them since was done on top of that. It is taken out, and with it all that depends on it. Names in a
    /// directory are not on top of each other.
    pub fn give_up_after(&mut self, changed: &[(Fid, Lsn)]) -> Vec<Record> {
        let on_top = |lsn: Lsn, touches: &[(Object, Touch)]| {
            let is = |(fid, after): &(Fid, Lsn)| {
                lsn > *after && touches.contains(&(Object::Inode(*fid), Touch::Exclusive))
            };
            changed.iter().any(is)
        };
        self.give_up_where(on_top, HashMap::new())
    }

    fn give_up_where(
        &mut self,
        first: impl Fn(Lsn, &[(Object, Touch)]) -> bool,
        mut lost: HashMap<Object, Touch>,
    ) -> Vec<Record> {
        let (mut given_up, mut kept) = (Vec::new(), BTreeMap::new());
        for (lsn, pending) in std::mem::take(&mut self.pending) {
            let touches = pending.record.change.touches();
            // Changes that share an object can be made without each other.
            let depends = |(object, touch): &(Object, Touch)| {
                lost.get(object).is_some_and(|lost| [*lost, *touch].contains(&Touch::Exclusive))
            };
            if !first(lsn, &touches) && !touches.iter().any(depends) {
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

    /// What is pending of an inode need not be told. It is taken out and returned in order; `None`, and all stays, if some of it
    /// is of names or of other inodes, too. On the rest nothing depends, so that is left as it is.
    pub fn take_out(&mut self, fid: Fid) -> Option<Vec<Record>> {
        let of_it_alone =
            |record: &Record| record.change.touches().iter().all(|(object, _)| *object == Object::Inode(fid));
        if !self.pending_of(fid).all(of_it_alone) {
            return None;
        }
        let lsns: Vec<Lsn> = self.pending_of(fid).map(|record| record.lsn).collect();
        // Nothing is left of what it was written.
        let mut written = BTreeSet::new();
        let taken = lsns.into_iter().filter_map(|lsn| self.take_pending(lsn, &mut written));
        Some(taken.map(|pending| pending.record).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Change;
    use crate::world::{fid, new, place};
    use soda_types::{FileKind, Monotonic, Timestamp};

    fn log_of(changes: impl IntoIterator<Item = Change>) -> Log {
        let mut log = Log::default();
        for change in changes {
            log.append(Monotonic::ZERO, Timestamp::new(1, 0), change);
        }
        log
    }

    fn write(ino: u64, len: usize) -> Change {
        Change::Write { fid: fid(ino), offset: 0, data: vec![0; len].into(), kill_suid_sgid: false }
    }

    fn numbers(records: &[Record]) -> Vec<u64> {
        records.iter().map(|record| record.lsn.0).collect()
    }

    #[test]
    fn what_is_of_one_inode_alone_is_taken_out_and_the_rest_is_not_looked_at() {
        let others = (100..20_100).map(|ino| write(ino, 10));
        // The second replaces the first.
        let changes = [write(2, 20), write(3, 5), write(2, 30)].into_iter().chain(others);
        let mut log = log_of(changes);
        let rest = log.pending_count() - 2;
        let (before, entered) = (log.looked_at(), log.entered);
        assert_eq!(numbers(&log.take_out(fid(2)).unwrap()), [1, 3]);
        assert!(log.looked_at() - before < 10, "{}", log.looked_at() - before);
        assert_eq!(
            (log.entered, log.pending_count(), log.has_pending_for(&[fid(2)])),
            (entered, rest, false)
        );
        let left = log_of(log.pending().map(|record| record.change.clone()).collect::<Vec<_>>());
        let counts = |log: &Log| (log.pending_bytes(), log.pending_data(), log.untold_space());
        assert_eq!(counts(&log), counts(&left));
        assert_eq!(log.take_out(fid(2)), Some(Vec::new()));
        assert_eq!(numbers(&log.take_out(fid(3)).unwrap()), [2]);
    }

    #[test]
    fn what_is_of_names_too_stays() {
        let create = Change::Create { place: place(fid(1), 1), fid: fid(2), new: new(FileKind::File) };
        let mut log = log_of([write(3, 1), create, write(2, 1)]);
        assert_eq!((log.take_out(fid(2)), log.take_out(fid(1)), log.pending_count()), (None, None, 3));
    }
}
