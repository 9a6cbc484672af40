//! Bytes that are replaced within the digest, and writes that continue each other.

use crate::{Change, Record};
use soda_protocol::Data;
use soda_types::{Fid, SetAttr};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Writes are joined up to this many bytes.
const LARGEST_WRITE: usize = 1 << 20;
/// Pieces of so many bytes on the average are left as they are: others are cheaper to copy than to keep apart.
const LONG_PIECE: usize = 16 << 10;

/// Trims from each write what later writes and truncations of the digest replace.
pub(super) fn without_replaced(records: Vec<Record>) -> Vec<Record> {
    let mut later: HashMap<Fid, Later> = HashMap::new();
    let mut kept: Vec<Record> = Vec::with_capacity(records.len());
    for mut record in records.into_iter().rev() {
        match &mut record.change {
            Change::Write { fid, offset, data, kill_suid_sgid } => {
                let later = later.entry(*fid).or_default();
                let range = *offset..*offset + data.len() as u64;
                let left = later.replaced.rest_of(&range);
                if left.is_empty()
                    && let Some(heir) = later.heir.and_then(|heir| kept.get_mut(heir))
                {
                    inherit_kill(&mut heir.change, *kill_suid_sgid);
                    continue;
                }
                if !left.is_empty() {
                    *data =
                        data.slice((left.start - range.start) as usize..(left.end - range.start) as usize);
                    *offset = left.start;
                }
                later.replaced.add(range);
                later.heir = Some(kept.len());
            }
            Change::SetAttr { fid, set } => match (is_truncation(set), only_times(set)) {
                (Some(size), _) => {
                    let later = later.entry(*fid).or_default();
                    later.replaced.add(size..u64::MAX);
                    later.heir = Some(kept.len());
                }
                (None, true) => {}
                (None, false) => drop(later.remove(fid)),
            },
            Change::Allocate { fid, .. } | Change::SetXattr { fid, .. } | Change::RemoveXattr { fid, .. } => {
                drop(later.remove(fid))
            }
            _ => {}
        }
        kept.push(record);
    }
    kept.reverse();
    kept
}

/// What comes after, up to the next change that can tell the difference.
#[derive(Default)]
struct Later {
    replaced: Ranges,
    /// The next record that replaces bytes: it also has to do what else a write does that is left out.
    heir: Option<usize>,
}

/// The size, if that is all that the change sets, times aside.
pub(crate) fn is_truncation(set: &SetAttr) -> Option<u64> {
    set.size.filter(|_| set.perm.is_none() && set.uid.is_none() && set.gid.is_none())
}

/// Whether it sets times alone.
pub(crate) fn only_times(set: &SetAttr) -> bool {
    *set == SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() }
}

fn inherit_kill(change: &mut Change, kill: bool) {
    match change {
        Change::Write { kill_suid_sgid, .. } => *kill_suid_sgid |= kill,
        Change::SetAttr { set, .. } => set.kill_suid_sgid |= kill,
        _ => {}
    }
}

/// Joins writes to a file that continue each other. The joined write stands where the last of them stood.
pub(super) fn join(records: Vec<Record>) -> Vec<Record> {
    let mut slots: Vec<Option<Record>> = records.into_iter().map(Some).collect();
    let mut open: HashMap<Fid, Run> = HashMap::new();
    let mut runs: Vec<Run> = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        let Some(record) = slot else { continue };
        match &record.change {
            Change::Write { fid, offset, data, .. } => {
                let end = offset + data.len() as u64;
                match open.get_mut(fid) {
                    Some(run) if run.end == *offset && run.len + data.len() <= LARGEST_WRITE => {
                        run.members.push(at);
                        run.len += data.len();
                        run.end = end;
                    }
                    _ => runs.extend(open.insert(*fid, Run { members: vec![at], len: data.len(), end })),
                }
            }
            Change::SetAttr { fid, set } if !only_times(set) => runs.extend(open.remove(fid)),
            Change::Allocate { fid, .. } | Change::SetXattr { fid, .. } | Change::RemoveXattr { fid, .. } => {
                runs.extend(open.remove(fid))
            }
            _ => {}
        }
    }
    for run in runs.into_iter().chain(open.into_values()).filter(|run| run.members.len() > 1) {
        run.join(&mut slots);
    }
    slots.into_iter().flatten().collect()
}

struct Run {
    members: Vec<usize>,
    len: usize,
    end: u64,
}

impl Run {
    fn join(self, slots: &mut [Option<Record>]) {
        let mut all = Data::new();
        let mut kill = false;
        let mut start = None;
        for at in &self.members {
            let slot = &mut slots[*at];
            if let Some(Record { change: Change::Write { offset, data, kill_suid_sgid, .. }, .. }) = slot {
                start.get_or_insert(*offset);
                all.append(std::mem::take(data));
                kill |= *kill_suid_sgid;
            }
            if Some(at) != self.members.last() {
                *slot = None;
            }
        }
        let last = self.members.last().and_then(|at| slots[*at].as_mut());
        if let Some(Record { change: Change::Write { offset, data, kill_suid_sgid, .. }, .. }) = last {
            *offset = start.unwrap_or(*offset);
            *data = if all.pieces().len() * LONG_PIECE <= all.len() { all } else { all.to_bytes().into() };
            *kill_suid_sgid = kill;
        }
    }
}

/// A set of byte offsets: disjoint ranges that do not touch, by their start.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut union = range;
        while let Some((&start, &end)) = self.0.range(..=union.end).next_back() {
            if end < union.start {
                break;
            }
            self.0.remove(&start);
            union = union.start.min(start)..union.end.max(end);
        }
        self.0.insert(union.start, union.end);
    }

    /// The smallest range that holds what of `range` is not in the set.
    fn rest_of(&self, range: &Range<u64>) -> Range<u64> {
        let mut rest = range.clone();
        if let Some((_, &end)) = self.0.range(..=rest.start).next_back() {
            rest.start = rest.start.max(end);
        }
        if let Some((&start, &end)) = self.0.range(..rest.end).next_back()
            && end >= rest.end
        {
            rest.end = rest.end.min(start);
        }
        if rest.start >= rest.end { range.start..range.start } else { rest }
    }
}
