//! What somebody waits for.

use super::{Digest, DigestId, DigestLimits, Log, Sent};
use crate::{Lsn, Object, Record};
use soda_types::Fid;
use std::collections::{BTreeSet, HashSet, VecDeque};

/// Inodes that somebody waits for, as they were when he came: what is done to them later is not his business, or he who
/// waits would wait for ever beside somebody who goes on.
#[derive(Clone, Debug)]
pub struct Wanted {
    fids: Vec<Fid>,
    up_to: Lsn,
    rest: Rest,
}

/// What is left of it, as far as somebody has looked: who waits for much is served by many digests, and for none of them all that
/// he waits for is looked through.
#[derive(Clone, Default, Debug)]
struct Rest {
    /// When that was: another time, all is to be looked at anew.
    entered: u64,
    /// Of the first so many inodes nothing is pending.
    told: usize,
    /// All that he needs, ascending, but for the first that are not pending any more.
    needed: Option<VecDeque<Lsn>>,
}

impl Wanted {
    /// What was done to these inodes up to a record, which is there already.
    pub fn new(fids: Vec<Fid>, up_to: Lsn) -> Wanted {
        Wanted { fids, up_to, rest: Rest::default() }
    }

    /// As if nobody had looked.
    #[cfg(test)]
    pub(super) fn anew(&self) -> Wanted {
        Wanted::new(self.fids.clone(), self.up_to)
    }
}

/// Records that somebody who waits for some inodes needs told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Needed {
    /// They change these inodes themselves.
    pub own: usize,
    /// They do not: those before depend on them.
    pub besides: usize,
}

/// Records for a digest, closed under dependencies.
#[derive(Debug, Default)]
struct Selected {
    lsns: BTreeSet<Lsn>,
    /// Bytes.
    weight: u64,
}

impl Log {
    /// The next digest of those that somebody who waits for these inodes needs, dependencies first. `None` if nothing of
    /// theirs is pending (any more).
    pub fn take_for(&mut self, fids: &[Fid], limits: DigestLimits) -> Option<Digest> {
        self.take_these(self.within(self.needed_for(fids), limits))
    }

    /// The next digest for those who wait: for `due` first, in part if he waits for more than the limits allow, and for all
    /// others, in their order, who are served by it whole. If nobody is, the first one is served in part. `None` if nothing
    /// of theirs is pending (any more).
    pub fn take_wanted(
        &mut self,
        due: Option<&mut Wanted>,
        others: &mut [&mut Wanted],
        limits: DigestLimits,
    ) -> Option<Digest> {
        let mut selected = Selected::default();
        if let Some(due) = due {
            self.select_part(&mut selected, due, limits);
        }
        others.iter_mut().for_each(|wanted| self.select(&mut selected, wanted, limits));
        if selected.lsns.is_empty()
            && let Some(first) =
                others.iter_mut().find_map(|wanted| self.has_pending(wanted).then_some(wanted))
        {
            self.select_part(&mut selected, first, limits);
        }
        self.take_these(self.within(selected.lsns.into_iter().collect(), limits))
    }

    /// Adds the first of what somebody waits for, dependencies, too: no fewer records than the limits allow, if there are so
    /// many.
    fn select_part(&self, selected: &mut Selected, wanted: &mut Wanted, limits: DigestLimits) {
        if !self.has_pending(wanted) {
            return;
        }
        let mut needed = wanted.rest.needed.take().unwrap_or_else(|| {
            self.closed_under_dependencies(self.tips(wanted).collect()).into_iter().collect()
        });
        while needed.front().is_some_and(|lsn| !self.pending.contains_key(lsn)) {
            needed.pop_front();
        }
        for lsn in &needed {
            self.look();
            if let Some(pending) = self.pending.get(lsn) {
                selected.lsns.insert(*lsn);
                selected.weight += pending.record.change.weight();
            }
            if selected.lsns.len() >= limits.records {
                break;
            }
        }
        wanted.rest.needed = Some(needed);
    }

    /// Adds what somebody waits for, dependencies, too; nothing, if that would be more than the limits allow.
    fn select(&self, selected: &mut Selected, wanted: &mut Wanted, limits: DigestLimits) {
        if !self.has_pending(wanted) {
            return;
        }
        let (mut added, weight) = (BTreeSet::new(), selected.weight);
        let mut to_visit = Vec::new();
        for tip in self.tips(wanted) {
            to_visit.push(tip);
            while let Some(lsn) = to_visit.pop() {
                self.look();
                let Some(pending) = self.pending.get(&lsn).filter(|_| selected.lsns.insert(lsn)) else {
                    continue;
                };
                added.insert(lsn);
                selected.weight += pending.record.change.weight();
                if selected.lsns.len() > limits.records || selected.weight > limits.bytes {
                    selected.lsns.retain(|lsn| !added.contains(lsn));
                    selected.weight = weight;
                    return;
                }
                to_visit.extend(&pending.after);
            }
        }
    }

    /// Whether [`Log::take_for`] would take any.
    pub fn has_pending_for(&self, fids: &[Fid]) -> bool {
        fids.iter().any(|fid| self.objects.contains_key(&Object::Inode(*fid)))
    }

    /// Whether [`Log::take_wanted`] would take any.
    pub fn has_pending(&self, wanted: &mut Wanted) -> bool {
        let Wanted { fids, up_to, rest } = wanted;
        if rest.entered != self.entered {
            *rest = Rest { entered: self.entered, ..Rest::default() };
        }
        let first = |fid: &Fid| self.objects.get(&Object::Inode(*fid))?.all.front().copied();
        let is_told = |fid: &Fid| {
            self.look();
            first(fid).is_none_or(|first| first > *up_to)
        };
        rest.told += fids[rest.told..].iter().take_while(|fid| is_told(fid)).count();
        rest.told < fids.len()
    }

    /// The last digest under way with anything that [`Log::has_pending`] asks for.
    pub fn under_way_for(&self, wanted: &Wanted) -> Option<DigestId> {
        let fids: HashSet<Fid> = wanted.fids.iter().copied().collect();
        let concerns = |record: &Record| {
            self.look();
            let touches = record.change.touches();
            touches.iter().any(|(object, _)| matches!(object, Object::Inode(fid) if fids.contains(fid)))
        };
        self.last_under_way(|record| record.lsn <= wanted.up_to && concerns(record))
    }

    /// The last digest under way with a record that is not after this one.
    pub fn under_way_up_to(&self, lsn: Lsn) -> Option<DigestId> {
        self.last_under_way(|record| record.lsn <= lsn)
    }

    fn last_under_way(&self, holds: impl Fn(&Record) -> bool) -> Option<DigestId> {
        let holds = |sent: &&Sent| sent.records.iter().any(|(_, pending)| holds(&pending.record));
        self.sent.iter().rev().find(holds).map(|sent| sent.id)
    }

    /// Inodes that records after one and up to another touch, of what the server has not applied; each once.
    pub fn touched_by(&self, after: Lsn, up_to: Lsn) -> BTreeSet<Fid> {
        let records = self.pending().chain(self.under_way_records());
        let records = records.filter(|record| after < record.lsn && record.lsn <= up_to);
        let inode = |(object, _)| match object {
            Object::Inode(fid) => Some(fid),
            Object::Name(_) | Object::Tree => None,
        };
        records.flat_map(|record| record.change.touches()).filter_map(inode).collect()
    }

    /// How many pending records [`Log::take_for`] would take, without limits.
    pub fn count_needed_for(&self, fids: &[Fid]) -> Needed {
        let of_them = fids.iter().flat_map(|fid| self.pending_of(*fid)).map(|record| record.lsn);
        let own: HashSet<Lsn> = of_them.collect();
        Needed { own: own.len(), besides: self.needed_for(fids).len() - own.len() }
    }

    /// The pending records that [`Log::take_for`] would take, without limits.
    pub fn needed_for(&self, fids: &[Fid]) -> Vec<Lsn> {
        let tips = fids.iter().filter_map(|fid| self.objects.get(&Object::Inode(*fid)));
        let tips = tips.flat_map(|uses| uses.exclusive.into_iter().chain(uses.shared.iter().copied()));
        self.closed_under_dependencies(tips.collect()).into_iter().collect()
    }

    /// Pending records that touch the inodes themselves, but those that are known to have none.
    fn tips<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = Lsn> + 'a {
        let uses = wanted.fids[wanted.rest.told..].iter().filter_map(|fid| {
            self.look();
            self.objects.get(&Object::Inode(*fid))
        });
        uses.flat_map(|uses| uses.all.iter().copied().take_while(|lsn| *lsn <= wanted.up_to))
    }

    pub(super) fn closed_under_dependencies(&self, mut to_visit: Vec<Lsn>) -> BTreeSet<Lsn> {
        let mut found = BTreeSet::new();
        while let Some(lsn) = to_visit.pop() {
            self.look();
            if let Some(pending) = self.pending.get(&lsn)
                && found.insert(lsn)
            {
                to_visit.extend(&pending.after);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
