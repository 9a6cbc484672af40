//! Small files that are going to be read: who reads those of a directory one after the other, whole, reads the next ones, too.
//! Far from the server each would cost a round trip; fetched before they are asked for, many share one.
//!
//! *What order?* That of the names, which is the one of listings, or that of the inode numbers, which is the one of who sorts
//! a large listing first (fts(3) of gnulib: `cp -r`, `grep -r`). Some names may be left out. Both are looked for at the same
//! time.
//!
//! *How many?* Bytes are fetched on credit, which only reading in order gives: so never more was fetched for nothing than was
//! read in order. Within that the window grows with the run, to some dozens of files. What is fetched and read gives its
//! credit back. Credit is the client's, not the directory's: who goes through a tree need not begin anew in each directory.
//!
//! *For whom?* Only what is known under a lease that is here already is fetched. A listing brings these for what nobody else
//! may change. So no lease is asked for, and nobody has one recalled, for a file that is not read.
//!
//! *What does it take?* The order of each directory that is read so, some 100 bytes for a file of it. It counts as metadata, and
//! where there is little room for that no order is looked for in large directories.

use super::State;
use super::inode::Origin;
use super::names::Listed;
use rustc_hash::FxHashMap;
use soda_types::{Attr, Fid, FileKind, Monotonic};

/// Larger files have a read-ahead of their own, bytes.
pub(crate) const SMALL: u64 = 256 << 10;
/// What a file counts beside its bytes.
const EACH: u64 = 1 << 10;
/// So many reads in order are one.
const IN_ORDER: u32 = 3;
/// A read may leave so many names out, or come so many late, and still be in order.
const APART: u32 = 8;
/// Most files that are fetched and not read, of one directory.
const MOST_FILES: usize = 64;
/// Most bytes that are fetched and not read, and most credit.
const MOST_BYTES: u64 = 2 << 20;
/// Who has so much credit is believed in the next directory from the first file on, and for so many.
const TRUSTED: u64 = 64 << 10;
const FIRST_FILES: usize = 8;
/// In larger directories no order is looked for.
const MOST_NAMES: usize = 1 << 14;
/// Directories that are read at the same time.
const MOST_WALKS: usize = 8;

/// Where a read found its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Had {
    InMemory,
    /// Somebody fetches them.
    UnderWay,
    Nothing,
}

/// All that is read in order.
#[derive(Debug, Default)]
pub(crate) struct NextFiles {
    /// The one that was read last is the last.
    walks: Vec<Walk>,
    /// Bytes.
    credit: u64,
    /// What the walks take in memory, bytes.
    bytes: u64,
}

/// Somebody's way through a directory.
#[derive(Debug)]
struct Walk {
    dir: Fid,
    /// What was read before the listing was looked at, or since it turned out to be an old one, with what it counts.
    before: Vec<(Fid, u64)>,
    order: Option<Orders>,
    /// Misses until the listing is looked at.
    patience: u32,
    by_name: Run,
    by_number: Run,
    along: Along,
    /// How long a run has to be to be believed.
    enough: u32,
    /// The first position that was not considered.
    considered: u32,
    /// Fetched and not read, with what it counts.
    ahead: FxHashMap<Fid, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Along {
    Names,
    Numbers,
}

/// The files of a directory.
#[derive(Debug)]
struct Orders {
    by_name: Vec<Fid>,
    by_number: Vec<Fid>,
    places: FxHashMap<Fid, (u32, u32)>,
}

impl Orders {
    fn of(listed: &[Listed]) -> Orders {
        let files = listed.iter().filter(|listed| listed.kind == FileKind::File);
        let by_name: Vec<Fid> = files.map(|listed| listed.fid).collect();
        let mut by_number = by_name.clone();
        by_number.sort_unstable();
        let mut places: FxHashMap<Fid, (u32, u32)> = FxHashMap::default();
        for (place, fid) in (0..).zip(&by_name) {
            places.insert(*fid, (place, 0));
        }
        for (place, fid) in (0..).zip(&by_number) {
            if let Some(places) = places.get_mut(fid) {
                places.1 = place;
            }
        }
        Orders { by_name, by_number, places }
    }

    /// In memory, roughly.
    fn bytes(&self) -> u64 {
        const PLACE: usize = size_of::<(Fid, (u32, u32))>() + 1;
        let lists = (self.by_name.capacity() + self.by_number.capacity()) * size_of::<Fid>();
        // Of the places in the table an eighth stays free.
        (lists + self.places.capacity() * PLACE * 8 / 7) as u64
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    last: u32,
    len: u32,
}

impl Run {
    /// Whether a read of the file at this place is in order.
    fn note(&mut self, place: u32) -> bool {
        let in_order =
            self.len > 0 && place != self.last && place + APART >= self.last && place <= self.last + APART;
        *self = match in_order {
            true => Run { last: self.last.max(place), len: self.len + 1 },
            false => Run { last: place, len: 1 },
        };
        in_order
    }
}

impl Walk {
    /// `enough`: reads that are believed to be in order.
    fn new(dir: Fid, enough: u32) -> Walk {
        Walk {
            dir,
            before: Vec::new(),
            order: None,
            patience: enough,
            enough,
            by_name: Run::default(),
            by_number: Run::default(),
            along: Along::Names,
            considered: 0,
            ahead: FxHashMap::default(),
        }
    }

    /// Notes a file whose place is known. Says whether it is in order.
    fn note(&mut self, (by_name, by_number): (u32, u32)) -> bool {
        let is_first = self.by_name.len == 0;
        let in_order = (self.by_name.note(by_name), self.by_number.note(by_number));
        let along = if self.by_number.len > self.by_name.len { Along::Numbers } else { Along::Names };
        if along != self.along || in_order == (false, false) {
            self.along = along;
            self.considered = 0;
        }
        if !is_first && in_order == (false, false) {
            self.enough = IN_ORDER;
        }
        in_order.0 || in_order.1
    }

    /// In memory, roughly.
    fn bytes(&self) -> u64 {
        let noted = self.before.capacity() + self.ahead.capacity();
        self.order.as_ref().map_or(0, Orders::bytes) + (noted * size_of::<(Fid, u64)>()) as u64
    }

    fn run(&self) -> Run {
        match self.along {
            Along::Names => self.by_name,
            Along::Numbers => self.by_number,
        }
    }

    /// What was left out, or never got to, will not be read any more.
    fn forget_passed(&mut self, in_order: bool) {
        let (Some(order), last, along) = (&self.order, self.run().last, self.along) else { return };
        self.ahead.retain(|fid, _| {
            let place = order.places.get(fid).map(|(name, number)| match along {
                Along::Names => *name,
                Along::Numbers => *number,
            });
            in_order && place.is_some_and(|place| place + APART >= last)
        });
    }

    /// Which to fetch now. `small`: the size of a file that is to be had and not here.
    fn next(
        &mut self,
        credit: &mut u64,
        most_bytes: u64,
        mut small: impl FnMut(Fid) -> Option<u64>,
    ) -> Vec<Fid> {
        let Some(order) = &self.order else { return Vec::new() };
        let run = self.run();
        let window = match run.len {
            few if few < self.enough => 0,
            len if self.enough < IN_ORDER => FIRST_FILES.max(2 * len as usize),
            len => 2 * len as usize,
        };
        let window = window.min(MOST_FILES);
        let mut next = Vec::new();
        if self.ahead.len() > window / 2 {
            return next;
        }
        let files = match self.along {
            Along::Names => &order.by_name,
            Along::Numbers => &order.by_number,
        };
        let mut bytes: u64 = self.ahead.values().sum();
        let first = self.considered.max(run.last + 1);
        // A file that is here already is not looked at again, and of those not too many at once.
        for fid in files.iter().skip(first as usize).take(2 * MOST_FILES) {
            if self.ahead.len() >= window {
                break;
            }
            if let Some(size) = small(*fid) {
                let cost = size + EACH;
                if bytes + cost > most_bytes || cost > *credit {
                    break;
                }
                *credit -= cost;
                bytes += cost;
                self.ahead.insert(*fid, cost);
                next.push(*fid);
            }
            self.considered = self.considered.max(run.last + 1) + 1;
        }
        next
    }
}

impl NextFiles {
    /// What it takes in memory, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn weigh(&mut self) {
        self.bytes = self.walks.iter().map(Walk::bytes).sum();
    }

    /// The walk through this directory, as the last of all.
    fn walk(&mut self, dir: Fid) -> &mut Walk {
        let walk = match self.walks.iter().position(|walk| walk.dir == dir) {
            Some(at) => self.walks.remove(at),
            None => Walk::new(dir, if self.credit >= TRUSTED { 1 } else { IN_ORDER }),
        };
        if self.walks.len() >= MOST_WALKS {
            self.walks.remove(0);
        }
        let last = self.walks.len();
        self.walks.push(walk);
        &mut self.walks[last]
    }

    fn is_ahead(&self, dir: Fid, fid: Fid) -> bool {
        self.walks.iter().any(|walk| walk.dir == dir && walk.ahead.contains_key(&fid))
    }

    /// A small file of this directory is read. `listing`: all of its names, if they are known.
    fn note(
        &mut self,
        (dir, fid, size): (Fid, Fid, u64),
        had: Had,
        listing: impl FnOnce() -> Option<Orders>,
    ) -> Foreseen {
        let walk = self.walk(dir);
        let cost = size + EACH;
        let fetched = walk.ahead.remove(&fid);
        let mut earned = 0;
        if walk.order.as_ref().is_none_or(|order| !order.places.contains_key(&fid)) {
            walk.before.push((fid, cost));
            walk.patience = walk.patience.saturating_sub(1);
            if walk.patience > 0 {
                return Foreseen::No;
            }
            let Some(order) = listing() else {
                *walk = Walk { patience: MOST_FILES as u32, ..Walk::new(dir, IN_ORDER) };
                return Foreseen::No;
            };
            // Where names come all the time it is not made anew for every few of them.
            walk.patience = IN_ORDER.max(u32::try_from(order.by_name.len() / 16).unwrap_or(u32::MAX));
            (walk.by_name, walk.by_number, walk.considered) = Default::default();
            let places = |(fid, cost)| Some((*order.places.get(&fid)?, cost));
            let before: Vec<_> = std::mem::take(&mut walk.before).into_iter().filter_map(places).collect();
            walk.order = Some(order);
            earned +=
                before.into_iter().filter(|(place, _)| walk.note(*place)).map(|(_, cost)| cost).sum::<u64>();
        } else if let Some(place) = walk.order.as_ref().and_then(|order| order.places.get(&fid).copied()) {
            let in_order = walk.note(place);
            walk.forget_passed(in_order);
            earned += if in_order { cost } else { 0 };
        }
        let read = match (fetched, had) {
            (Some(cost), Had::InMemory | Had::UnderWay) => {
                earned += cost;
                Foreseen::Yes
            }
            // Its room was needed, or it could not be fetched: no more of this.
            (Some(_), Had::Nothing) => {
                (walk.by_name, walk.by_number) = Default::default();
                walk.enough = IN_ORDER;
                walk.ahead.clear();
                self.credit = 0;
                return Foreseen::No;
            }
            (None, _) => Foreseen::No,
        };
        self.credit = (self.credit + earned).min(MOST_BYTES);
        read
    }
}

/// Whether what is read was fetched for that before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Foreseen {
    Yes,
    No,
}

impl State {
    /// A small file is read from its beginning. Returns whether it was fetched for that, and which ones to fetch now.
    pub(crate) fn next_files(
        &mut self,
        now: Monotonic,
        (fid, attr): (Fid, &Attr),
        had: Had,
    ) -> (Foreseen, Vec<(Fid, Attr)>) {
        let nothing = (Foreseen::No, Vec::new());
        let Some(dir) = self.peek(fid).and_then(|inode| inode.parent) else { return nothing };
        if had == Had::InMemory && !self.next_files.is_ahead(dir, fid) {
            return nothing;
        }
        let mut next_files = std::mem::take(&mut self.next_files);
        let read = next_files.note((dir, fid, attr.size), had, || {
            self.served(now, dir)?;
            let many = self.peek(dir)?.dir.as_ref()?.len();
            if many > MOST_NAMES || !self.room.is_large_for(many as u64) {
                return None;
            }
            Some(Orders::of(&self.existing(dir)?.dir.as_mut()?.list()?.listed))
        });
        let most_bytes = MOST_BYTES.min(self.memory.limit() / 8);
        let mut found = Vec::new();
        let NextFiles { walks, credit, .. } = &mut next_files;
        if let Some(walk) = walks.last_mut() {
            walk.next(credit, most_bytes, |fid| {
                let attr = self.small_file_to_fetch(now, fid)?;
                found.push((fid, attr));
                Some(attr.size)
            });
            found.retain(|(fid, _)| walk.ahead.contains_key(fid));
        }
        next_files.weigh();
        self.next_files = next_files;
        (read, found)
    }

    /// The attributes of a small file that nothing is cached of, if a lease covers them. That counts as no use of it.
    fn small_file_to_fetch(&self, now: Monotonic, fid: Fid) -> Option<Attr> {
        let inode = self.peek(fid)?;
        let attr =
            inode.attr.filter(|attr| attr.kind == FileKind::File && (1..=SMALL).contains(&attr.size))?;
        let quiet = inode.log.origin == Origin::AtServer
            && inode.log.records == 0
            && inode.changes.unanswered == 0
            && inode.kernel.recalling == 0;
        let covered = self.holder.promise_until(now, fid).is_some()
            && inode.holding.is_some()
            && self.holder.holding(fid) == inode.holding;
        let whole = 0..attr.size;
        (quiet && covered && self.memory.missing(fid, whole.clone()) == [whole]).then_some(attr)
    }
}

#[cfg(test)]
mod tests;
