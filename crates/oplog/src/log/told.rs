//! How much a digest tells of its records: at most, as it is counted before they are coalesced.

use crate::coalesce::{is_truncation, only_times};
use crate::{Change, Fate, Object};
use soda_types::Fid;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// So many writes are looked at for one that may replace them.
const MOST_REPLACED: usize = 64;

/// The writes to one file, in their order, that no later one replaces as a whole: those that a digest of all of them tells.
#[derive(Debug, Default)]
pub(super) struct Writes(BTreeSet<(u64, u64)>);

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the next change of the file. Returns how many bytes of the writes before it need not be told if it is: no more than
    /// [`coalesce()`](crate::coalesce()) leaves out.
    pub(super) fn note(&mut self, change: &Change) -> u64 {
        match change {
            Change::Write { offset, data, .. } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                let replaced = self.take_within(&range);
                self.0.insert((range.start, range.end));
                replaced
            }
            Change::SetAttr { set, .. } => match (is_truncation(set), only_times(set)) {
                (Some(size), _) => self.take_within(&(size..u64::MAX)),
                (None, true) => 0,
                (None, false) => self.keep_all(),
            },
            Change::Allocate { .. } | Change::SetXattr { .. } | Change::RemoveXattr { .. } => self.keep_all(),
            _ => 0,
        }
    }

    /// The first change of the file goes, and had nothing to replace: what it wrote cannot be replaced any more.
    pub(super) fn forget(&mut self, change: &Change) {
        if let Change::Write { offset, data, .. } = change {
            self.0.remove(&(*offset, offset.saturating_add(data.len() as u64)));
        }
    }

    /// The change can tell what was there before it.
    fn keep_all(&mut self) -> u64 {
        self.0.clear();
        0
    }

    fn take_within(&mut self, range: &Range<u64>) -> u64 {
        let begin_in_it = self.0.range((range.start, 0)..(range.end, 0)).take(MOST_REPLACED);
        let within: Vec<_> = begin_in_it.filter(|(_, end)| *end <= range.end).copied().collect();
        let replaced = |(start, end)| if self.0.remove(&(start, end)) { end - start } else { 0 };
        within.into_iter().map(replaced).sum()
    }
}

/// What a digest of some records, in their order, tells at most.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) records: usize,
    /// Bytes, as [`Change::weight`] counts them.
    bytes: u64,
    /// Bytes of data, names and values of the first record.
    first: u64,
    of: HashMap<Fid, OfInode>,
}

#[derive(Debug, Default)]
struct OfInode {
    /// Made in the digest: if it is removed in it, too, nothing is told of it.
    is_new: bool,
    records: usize,
    bytes: u64,
    writes: Writes,
}

impl Told {
    /// Whether it is within this limit. One record alone may be more, and what replaces it goes with it.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.may_fit(bytes, 0)
    }

    /// The same if up to `left_out` bytes of it turned out not to be told.
    pub(super) fn may_fit(&self, bytes: u64, left_out: u64) -> bool {
        let data = self.bytes - Change::RECORD_WEIGHT * self.records as u64;
        self.bytes <= bytes.saturating_add(left_out) || data <= self.first + left_out
    }

    pub(super) fn add(&mut self, change: &Change) {
        let weight = change.weight();
        if self.of.is_empty() && self.records == 0 {
            self.first = weight - Change::RECORD_WEIGHT;
        }
        self.records += 1;
        self.bytes += weight;
        match change {
            Change::Create { fid, .. } | Change::TmpFile { fid, .. } => {
                let of = OfInode { is_new: true, records: 1, bytes: weight, ..OfInode::default() };
                self.of.insert(*fid, of);
            }
            Change::Unlink { fid, then: Fate::Gone, .. } | Change::RemoveDirectory { fid, .. } => {
                if self.of.get(fid).is_some_and(|of| of.is_new)
                    && let Some(of) = self.of.remove(fid)
                {
                    self.records -= of.records + 1;
                    self.bytes -= of.bytes + weight;
                }
            }
            // What is moved is told although it may go in the end: see `without_dead`.
            Change::Whiteout { moved, .. } => {
                if let Some(of) = self.of.get_mut(moved) {
                    of.is_new = false;
                }
            }
            _ => {
                if let [(Object::Inode(fid), _)] = change.touches()[..] {
                    let of = self.of.entry(fid).or_default();
                    let replaced = of.writes.note(change);
                    of.records += 1;
                    of.bytes = of.bytes + weight - replaced;
                    self.bytes -= replaced;
                }
            }
        }
    }
}
