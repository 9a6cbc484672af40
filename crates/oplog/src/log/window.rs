//! How far a digest in the order of the log reaches.
//!
//! What is made and removed again within a digest is not told and makes room for what comes after it, so a digest may stand for
//! many more records than it holds. To see that they have to be looked at, under the lock of whoever owns the log. So what of
//! the log can cancel out is noted as it comes, and nothing is looked at that cannot bring a digest back within its limits.

use super::told::Told;
use super::{DigestLimits, Log};
use crate::{Change, Fate, Lsn};
use soda_types::Fid;
use std::collections::BTreeMap;

/// A digest stands for at most so many records; numbers that are not pending any more count.
pub(super) const WIDEST: usize = 8192;

/// Removals of what is made before them, both pending, and what is not told if they come into one digest.
#[derive(Debug, Default)]
pub(super) struct Removals(BTreeMap<Lsn, Cancelled>);

/// At most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Cancelled {
    records: usize,
    /// Bytes, as [`Change::weight`] counts them.
    bytes: u64,
}

/// What is pending of an inode.
#[derive(Debug, Default)]
pub(super) struct Life {
    made: Option<Lsn>,
    removed: Option<Lsn>,
    /// Bytes that all that is pending of it weighs.
    weight: u64,
}

/// The inode that a change makes.
fn makes(change: &Change) -> Option<Fid> {
    match change {
        Change::Create { fid, .. } | Change::TmpFile { fid, .. } => Some(*fid),
        _ => None,
    }
}

/// The inode that nothing need be told of after this change, if it was made in the same digest: as [`Told`] counts.
fn removes(change: &Change) -> Option<Fid> {
    match change {
        Change::Unlink { fid, then: Fate::Gone, .. } | Change::RemoveDirectory { fid, .. } => Some(*fid),
        _ => None,
    }
}

impl Removals {
    /// A record that touches an inode has come, or something else; `pending`: so many that do, with this one.
    pub(super) fn note(
        &mut self,
        lsn: Lsn,
        change: &Change,
        inode: Option<Fid>,
        life: &mut Life,
        pending: usize,
    ) {
        life.weight += change.weight();
        if inode.is_none() {
            return;
        }
        if makes(change) == inode {
            life.made = Some(lsn);
        }
        if removes(change) == inode && life.made.is_some() {
            life.removed = Some(lsn);
            self.0.insert(lsn, Cancelled { records: pending, bytes: life.weight });
        }
    }

    /// It is not pending any more.
    pub(super) fn forget(&mut self, lsn: Lsn, change: &Change, life: &mut Life) {
        life.weight -= change.weight();
        if life.made == Some(lsn) || life.removed == Some(lsn) {
            life.made = life.made.filter(|made| *made != lsn);
            if let Some(removed) = life.removed.take() {
                self.0.remove(&removed);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What those from one record on and before another leave out.
    fn between(&self, from: Lsn, before: Lsn) -> Cancelled {
        let each = self.0.range(from..before.max(from)).map(|(_, cancelled)| cancelled);
        each.fold(Cancelled::default(), |all, one| Cancelled {
            records: all.records + one.records,
            bytes: all.bytes + one.bytes,
        })
    }
}

/// The first of the pending records that make a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window {
    pub(super) records: usize,
    /// So many were looked at to find that out.
    pub(super) looked_at: usize,
}

impl Log {
    /// How many of the first pending records make a digest within the limits, not counting what is made and removed again among
    /// them: that makes room for what comes after it.
    pub(super) fn window(&self, limits: DigestLimits) -> Window {
        let end = Lsn(self.pending.keys().next().map_or(0, |first| first.0).saturating_add(WIDEST as u64));
        let (mut told, mut window) = (Told::default(), Window { records: 1, looked_at: 0 });
        // What is left out by those that come, from when there is more than fits.
        let mut to_come: Option<Cancelled> = None;
        for (lsn, pending) in self.pending.range(..end) {
            window.looked_at += 1;
            told.add(&pending.record.change);
            if let (Some(to_come), Some(cancelled)) = (&mut to_come, self.removals.0.get(lsn)) {
                to_come.records -= cancelled.records;
                to_come.bytes -= cancelled.bytes;
            }
            if told.records <= limits.records && told.fits(limits.bytes) {
                window.records = window.looked_at;
                continue;
            }
            let to_come = to_come.get_or_insert_with(|| self.removals.between(Lsn(lsn.0 + 1), end));
            let fewer = told.records.saturating_sub(to_come.records);
            if fewer > limits.records || !told.may_fit(limits.bytes, to_come.bytes + self.pending_replaced) {
                break;
            }
        }
        window
    }
}

#[cfg(test)]
mod tests;
