//! What somebody waits for.

use super::{Digest, DigestId, DigestLimits, Log, Sent, touches};
use crate::{Lsn, Object, Record};
use soda_types::Fid;
use std::collections::BTreeSet;

/// Inodes that somebody waits for, as they were when he came: what is done to them later is not his business, or he who
/// waits would wait for ever beside somebody who goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub fids: Vec<Fid>,
    pub up_to: Lsn,
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
        due: Option<&Wanted>,
        others: &[Wanted],
        limits: DigestLimits,
    ) -> Option<Digest> {
        const ALL: DigestLimits = DigestLimits { records: usize::MAX, bytes: u64::MAX };
        let mut selected = Selected::default();
        if let Some(due) = due {
            self.select(&mut selected, due, ALL);
        }
        others.iter().for_each(|wanted| self.select(&mut selected, wanted, limits));
        if selected.lsns.is_empty()
            && let Some(first) = others.iter().find(|wanted| self.has_pending(wanted))
        {
            self.select(&mut selected, first, ALL);
        }
        self.take_these(self.within(selected.lsns.into_iter().collect(), limits))
    }

    /// Adds what somebody waits for, dependencies, too; nothing, if that would be more than the limits allow.
    fn select(&self, selected: &mut Selected, wanted: &Wanted, limits: DigestLimits) {
        let (mut added, weight) = (BTreeSet::new(), selected.weight);
        let mut to_visit = Vec::new();
        for tip in self.tips(wanted) {
            to_visit.push(tip);
            while let Some(lsn) = to_visit.pop() {
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
    pub fn has_pending(&self, wanted: &Wanted) -> bool {
        let first = |fid: &Fid| self.objects.get(&Object::Inode(*fid))?.all.front().copied();
        wanted.fids.iter().filter_map(first).any(|first| first <= wanted.up_to)
    }

    /// The last digest under way with anything that [`Log::has_pending`] asks for.
    pub fn under_way_for(&self, wanted: &Wanted) -> Option<DigestId> {
        let concerns = |record: &Record| wanted.fids.iter().any(|fid| touches(record, *fid));
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
        let needed = self.needed_for(fids);
        let own = |lsn: &&Lsn| {
            let touched = self.pending.get(lsn).map(|pending| pending.record.change.touches());
            let asked = |object: &Object| matches!(object, Object::Inode(fid) if fids.contains(fid));
            touched.is_some_and(|touched| touched.iter().any(|(object, _)| asked(object)))
        };
        let own = needed.iter().filter(own).count();
        Needed { own, besides: needed.len() - own }
    }

    /// The pending records that [`Log::take_for`] would take, without limits.
    pub fn needed_for(&self, fids: &[Fid]) -> Vec<Lsn> {
        let tips = fids.iter().filter_map(|fid| self.objects.get(&Object::Inode(*fid)));
        let tips = tips.flat_map(|uses| uses.exclusive.into_iter().chain(uses.shared.iter().copied()));
        self.closed_under_dependencies(tips.collect()).into_iter().collect()
    }

    /// Pending records that touch the inodes themselves.
    fn tips<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = Lsn> + 'a {
        let uses = wanted.fids.iter().filter_map(|fid| self.objects.get(&Object::Inode(*fid)));
        uses.flat_map(|uses| uses.all.iter().copied().take_while(|lsn| *lsn <= wanted.up_to))
    }

    pub(super) fn closed_under_dependencies(&self, mut to_visit: Vec<Lsn>) -> BTreeSet<Lsn> {
        let mut found = BTreeSet::new();
        while let Some(lsn) = to_visit.pop() {
            if let Some(pending) = self.pending.get(&lsn)
                && found.insert(lsn)
            {
                to_visit.extend(&pending.after);
            }
        }
        found
    }
}
