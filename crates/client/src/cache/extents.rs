//! File data in memory: extents of bytes as they came from the server, each an allocation of its own where possible, so
//! that a read is answered with a slice of it.
//!
//! The data of a file carry the data version that they belong to. What own writes in flight touch is not in the cache,
//! and no read that overlaps one is entered: until the write is answered only the server knows the truth.

use crate::cache::lru::{Lru, LruPlace};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use soda_types::{Fid, Version};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use tokio::sync::oneshot;

/// Slices shorter than this are copied rather than keep a large buffer alive.
const COPY_BELOW: usize = 16 << 10;
/// The same for what own writes bring, whose buffers are a program's and of any size.
pub(crate) const COPY_WRITES_BELOW: usize = 512 << 10;
/// Own writes further on in a file are not kept: whoever writes so much streams.
const KEEP_WRITES_BELOW: u64 = 64 << 20;
/// Neighbours that are no longer than this together become one: what is written in a few bytes at a time would cost a hundred for
/// each piece otherwise, and an answer to the kernel a slice each.
const JOIN_UP_TO: usize = 4 << 10;
/// What zeros are slices of: they cost no memory, and do not count.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// More zeros at once are not kept: whoever leaves such gaps makes a sparse file, and does not read them.
const MOST_ZEROS: u64 = 1 << 20;
/// A file that random writes have cut into more pieces is dropped.
const MOST_EXTENTS: usize = 8192;
/// Extents that have been read through and stay nevertheless: the kernel's requests overtake each other.
const MOST_PASSED: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct FileData {
    /// The data version that all extents belong to.
    pub(crate) version: Version,
    extents: BTreeMap<u64, Extent>,
    fetches: Vec<Fetch>,
    /// Own changes of the data that are not answered.
    writes: Vec<Write>,
}

#[derive(Debug)]
struct Write {
    id: WriteId,
    range: Range<u64>,
    /// Whether it was ever in flight together with another one of the same bytes: their order is the server's.
    contended: bool,
}

#[derive(Debug)]
struct Extent {
    bytes: Bytes,
    place: LruPlace,
    stay: Stay,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stay {
    UntilRoomIsNeeded,
    UntilReadThrough,
    ReadThrough,
}

#[derive(Debug)]
struct Fetch {
    id: FetchId,
    range: Range<u64>,
    /// Overlaps an own write, or the lease went: its bytes must not be entered.
    spoiled: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FetchId(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WriteId(u64);

/// Data of all files and the order of their use.
#[derive(Debug)]
pub(crate) struct Memory {
    files: FxHashMap<Fid, FileData>,
    lru: Lru<(Fid, u64)>,
    bytes: u64,
    limit: u64,
    next_id: u64,
    /// Where extents were read through that then may go, the oldest first.
    passed: VecDeque<(Fid, u64)>,
}

/// What the cache has of a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All of it, in order.
    All(Vec<Bytes>),
    /// The first stretch that is missing.
    Missing(Range<u64>),
}

impl Memory {
    pub(crate) fn new(limit: u64) -> Memory {
        let (files, lru, passed) = (FxHashMap::default(), Lru::default(), VecDeque::new());
        Memory { files, lru, bytes: 0, limit, next_id: 0, passed }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The data version of what is cached of a file, if that is all from its beginning on, as far as can be told without its
    /// size: no gap shows.
    pub(crate) fn version_of_all(&self, fid: Fid) -> Option<Version> {
        let file = self.files.get(&fid)?;
        let mut end = 0;
        let unbroken = file.extents.iter().all(|(start, extent)| {
            let follows = *start <= end;
            end = start + extent.bytes.len() as u64;
            follows
        });
        (unbroken && end > 0).then_some(file.version)
    }

    pub(crate) fn find(&mut self, fid: Fid, range: Range<u64>) -> Found {
        let Some(file) = self.files.get_mut(&fid) else { return Found::Missing(range) };
        let mut chunks = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some((start, extent)) = file.extents.range_mut(..=at).next_back() else {
                return Found::Missing(at..file.next_extent(at, range.end));
            };
            let end = start + extent.bytes.len() as u64;
            if end <= at {
                return Found::Missing(at..file.next_extent(at, range.end));
            }
            let until = end.min(range.end);
            chunks.push(extent.bytes.slice((at - start) as usize..(until - start) as usize));
            self.lru.touch(&extent.place);
            if until == end && extent.stay == Stay::UntilReadThrough {
                extent.stay = Stay::ReadThrough;
                self.passed.push_back((fid, *start));
            }
            at = until;
        }
        self.drop_passed();
        Found::All(chunks)
    }

    /// What was entered there goes soon after it has been read to its end: it can be had again as cheaply.
    pub(crate) fn let_pass(&mut self, fid: Fid, offset: u64) {
        let extent = self.files.get_mut(&fid).and_then(|file| file.extents.get_mut(&offset));
        if let Some(extent) = extent {
            extent.stay = Stay::UntilReadThrough;
        }
    }

    fn drop_passed(&mut self) {
        while self.passed.len() > MOST_PASSED {
            let Some((fid, offset)) = self.passed.pop_front() else { return };
            let extent = self.files.get(&fid).and_then(|file| file.extents.get(&offset));
            // Others may be in its place by now.
            if extent.is_some_and(|extent| extent.stay == Stay::ReadThrough) {
                self.remove_extent(fid, offset);
            }
        }
    }

    /// All missing stretches of the range that nobody is fetching.
    pub(crate) fn missing(&self, fid: Fid, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(file) = self.files.get(&fid) else { return vec![range] };
        let from = file.extents.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let known = file.extents.range(from..range.end.max(from));
        let mut taken: Vec<Range<u64>> =
            known.map(|(start, extent)| *start..start + extent.bytes.len() as u64).collect();
        taken.extend(file.fetches.iter().map(|fetch| fetch.range.clone()));
        taken.sort_by_key(|have| have.start);
        let mut missing = Vec::new();
        let mut at = range.start;
        for have in taken {
            if have.start.min(range.end) > at {
                missing.push(at..have.start.min(range.end));
            }
            at = at.max(have.end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// Announces a read from the server (or the disk) whose bytes shall be entered.
    pub(crate) fn begin_fetch(&mut self, fid: Fid, range: Range<u64>) -> FetchId {
        let id = FetchId(self.next_id());
        let file = self.files.entry(fid).or_default();
        let spoiled = file.writes.iter().any(|write| overlap(&write.range, &range));
        file.fetches.push(Fetch { id, range, spoiled, waiting: Vec::new() });
        id
    }

    /// Waits for each fetch that overlaps the range.
    pub(crate) fn join_fetches(&mut self, fid: Fid, range: &Range<u64>) -> Vec<oneshot::Receiver<()>> {
        let Some(file) = self.files.get_mut(&fid) else { return Vec::new() };
        let fetches = file.fetches.iter_mut().filter(|fetch| !fetch.spoiled && overlap(&fetch.range, range));
        let join = |fetch: &mut Fetch| {
            let (sender, receiver) = oneshot::channel();
            fetch.waiting.push(sender);
            receiver
        };
        fetches.map(join).collect()
    }

    /// The fetch is over. `bytes`: what came, with its version, if the lease allows to keep it.
    pub(crate) fn end_fetch(&mut self, fid: Fid, id: FetchId, bytes: Option<(Version, Bytes)>) -> Kept {
        let Some(file) = self.files.get_mut(&fid) else { return Kept::No };
        let Some(at) = file.fetches.iter().position(|fetch| fetch.id == id) else { return Kept::No };
        let fetch = file.fetches.swap_remove(at);
        let kept = match bytes {
            Some((version, bytes)) if !fetch.spoiled && version >= file.version => {
                file.version = version;
                let bytes = if bytes.len() < COPY_BELOW { Bytes::copy_from_slice(&bytes) } else { bytes };
                self.insert(fid, fetch.range.start, bytes);
                Kept::Yes
            }
            _ => {
                self.drop_if_empty(fid);
                Kept::No
            }
        };
        for waiter in fetch.waiting {
            let _ = waiter.send(());
        }
        kept
    }

    /// An own change of the data is about to be sent: what it touches is forgotten until it is answered.
    pub(crate) fn begin_write(&mut self, fid: Fid, range: Range<u64>) -> WriteId {
        let id = WriteId(self.next_id());
        self.remove_range(fid, range.clone());
        let file = self.files.entry(fid).or_default();
        for fetch in &mut file.fetches {
            fetch.spoiled |= overlap(&fetch.range, &range);
        }
        let mut contended = false;
        for other in file.writes.iter_mut().filter(|other| overlap(&other.range, &range)) {
            other.contended = true;
            contended = true;
        }
        file.writes.push(Write { id, range, contended });
        id
    }

    /// The change is answered. `data`: what the file has there now, and its version, if the lease allows to keep it.
    pub(crate) fn end_write(&mut self, fid: Fid, id: WriteId, outcome: WriteOutcome) {
        let Some(file) = self.files.get_mut(&fid) else { return };
        let Some(at) = file.writes.iter().position(|write| write.id == id) else { return };
        let write = file.writes.swap_remove(at);
        match outcome {
            WriteOutcome::Unchanged => {}
            WriteOutcome::Unknown => self.clear(fid),
            WriteOutcome::Changed { version, data } => {
                file.version = file.version.max(version);
                let near = |offset: u64| offset < KEEP_WRITES_BELOW;
                if let Some((offset, bytes)) = data.filter(|(offset, _)| !write.contended && near(*offset)) {
                    let short = bytes.len() < COPY_WRITES_BELOW;
                    self.insert(fid, offset, if short { Bytes::copy_from_slice(&bytes) } else { bytes });
                }
            }
        }
        self.drop_if_empty(fid);
    }

    /// A change that was made here: the file has these bytes there now, and is at this version.
    pub(crate) fn write(&mut self, fid: Fid, offset: u64, bytes: Bytes, version: Version) {
        let range = offset..offset + bytes.len() as u64;
        self.spoil(fid, &range);
        self.files.entry(fid).or_default().version = version;
        self.insert(fid, offset, bytes);
    }

    /// A change that was made here: what is cached from `end` on is gone, and the file is at this version.
    pub(crate) fn cut(&mut self, fid: Fid, end: u64, version: Version) {
        self.punch(fid, end..u64::MAX, version);
    }

    /// A change that was made here: what is cached of the range is gone, and the file is at this version.
    pub(crate) fn punch(&mut self, fid: Fid, range: Range<u64>, version: Version) {
        self.spoil(fid, &range);
        self.remove_range(fid, range);
        self.rename_version(fid, version);
    }

    /// A change that was made here: the file has zeros in this range now, and is at this version.
    pub(crate) fn zero(&mut self, fid: Fid, range: Range<u64>, version: Version) {
        if range.is_empty() {
            return;
        }
        self.punch(fid, range.clone(), version);
        if range.end - range.start > MOST_ZEROS || range.start >= KEEP_WRITES_BELOW {
            return;
        }
        self.files.entry(fid).or_default().version = version;
        for start in range.clone().step_by(ZEROS.len()) {
            let len = (range.end - start).min(ZEROS.len() as u64) as usize;
            self.insert(fid, start, Bytes::from_static(&ZEROS[..len]));
        }
    }

    /// What is cached belongs to this version: nobody else has changed the file.
    pub(crate) fn rename_version(&mut self, fid: Fid, version: Version) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.version = version;
        }
    }

    /// Fetches that overlap the range bring what was there before.
    fn spoil(&mut self, fid: Fid, range: &Range<u64>) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.fetches.iter_mut().for_each(|fetch| fetch.spoiled |= overlap(&fetch.range, range));
        }
    }

    pub(crate) fn write_in_flight(&self, fid: Fid, range: &Range<u64>) -> bool {
        self.files.get(&fid).is_some_and(|file| file.writes.iter().any(|write| overlap(&write.range, range)))
    }

    /// The file is at this data version now, and what is cached belongs to it if it was at the same one.
    pub(crate) fn revalidate(&mut self, fid: Fid, version: Version) {
        if self.files.get(&fid).is_some_and(|file| file.version != version) {
            self.drop_extents(fid);
            if let Some(file) = self.files.get_mut(&fid) {
                file.version = version;
            }
        }
    }

    fn drop_extents(&mut self, fid: Fid) {
        let Some(file) = self.files.get_mut(&fid) else { return };
        for (_, extent) in std::mem::take(&mut file.extents) {
            self.bytes -= cost(&extent.bytes);
            self.lru.remove(extent.place);
        }
        self.drop_if_empty(fid);
    }

    /// Forgets the data; what is on its way is not entered either.
    pub(crate) fn clear(&mut self, fid: Fid) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.fetches.iter_mut().for_each(|fetch| fetch.spoiled = true);
        }
        self.drop_extents(fid);
    }

    /// Files with anything cached or on its way.
    pub(crate) fn files(&self) -> Vec<Fid> {
        self.files.keys().copied().collect()
    }

    pub(crate) fn clear_all(&mut self) {
        self.files().into_iter().for_each(|fid| self.clear(fid));
    }

    pub(crate) fn remove_range(&mut self, fid: Fid, range: Range<u64>) {
        let Some(file) = self.files.get_mut(&fid) else { return };
        let first = file.extents.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let touched: Vec<u64> =
            file.extents.range(first..range.end.max(first)).map(|(start, _)| *start).collect();
        for start in touched {
            let Some(extent) = file.extents.get(&start) else { continue };
            let have = start..start + extent.bytes.len() as u64;
            if !overlap(&have, &range) {
                continue;
            }
            let Some(extent) = file.extents.remove(&start) else { continue };
            self.bytes -= cost(&extent.bytes);
            self.lru.remove(extent.place);
            let before = have.start..range.start.max(have.start);
            let after = range.end.min(have.end)..have.end;
            for piece in [before, after] {
                if !piece.is_empty() {
                    let bytes =
                        extent.bytes.slice((piece.start - start) as usize..(piece.end - start) as usize);
                    self.bytes += cost(&bytes);
                    let place = self.lru.insert((fid, piece.start));
                    file.extents.insert(piece.start, Extent { bytes, place, stay: Stay::UntilRoomIsNeeded });
                }
            }
        }
    }

    fn insert(&mut self, fid: Fid, offset: u64, bytes: Bytes) {
        if bytes.is_empty() || bytes.len() as u64 > self.limit {
            self.drop_if_empty(fid);
            return;
        }
        self.remove_range(fid, offset..offset + bytes.len() as u64);
        if self.files.get(&fid).is_some_and(|file| file.extents.len() >= MOST_EXTENTS) {
            self.clear(fid);
        }
        let (offset, bytes) = self.join_neighbours(fid, offset, bytes);
        self.bytes += cost(&bytes);
        let place = self.lru.insert((fid, offset));
        let file = self.files.entry(fid).or_default();
        file.extents.insert(offset, Extent { bytes, place, stay: Stay::UntilRoomIsNeeded });
        while self.bytes > self.limit {
            let Some((fid, offset)) = self.lru.oldest().copied() else { break };
            if !self.remove_extent(fid, offset) {
                break;
            }
        }
    }

    /// Whether there was one.
    fn remove_extent(&mut self, fid: Fid, offset: u64) -> bool {
        let extent = self.files.get_mut(&fid).and_then(|file| file.extents.remove(&offset));
        let Some(extent) = extent else { return false };
        self.bytes -= cost(&extent.bytes);
        self.lru.remove(extent.place);
        self.drop_if_empty(fid);
        true
    }

    /// Takes the neighbours out that are short enough to be one extent with these bytes, and returns that extent.
    fn join_neighbours(&mut self, fid: Fid, offset: u64, bytes: Bytes) -> (u64, Bytes) {
        let Some(file) = self.files.get_mut(&fid) else { return (offset, bytes) };
        let end = offset + bytes.len() as u64;
        let before =
            file.extents.range(..offset).next_back().map(|(start, extent)| (*start, extent.bytes.len()));
        let before =
            before.filter(|(start, len)| start + *len as u64 == offset && len + bytes.len() <= JOIN_UP_TO);
        let so_far = before.map_or(0, |(_, len)| len) + bytes.len();
        let after =
            file.extents.get(&end).filter(|extent| so_far + extent.bytes.len() <= JOIN_UP_TO).map(|_| end);
        let mut take = |start: u64| {
            let extent = file.extents.remove(&start)?;
            self.bytes -= cost(&extent.bytes);
            self.lru.remove(extent.place);
            Some(extent.bytes)
        };
        let start = before.map_or(offset, |(start, _)| start);
        let before = before.and_then(|(start, _)| take(start));
        let after = after.and_then(&mut take);
        if before.is_none() && after.is_none() {
            return (offset, bytes);
        }
        let pieces = [before.unwrap_or_default(), bytes, after.unwrap_or_default()];
        (start, pieces.concat().into())
    }

    fn drop_if_empty(&mut self, fid: Fid) {
        let empty =
            |file: &FileData| file.extents.is_empty() && file.fetches.is_empty() && file.writes.is_empty();
        if self.files.get(&fid).is_some_and(empty) {
            self.files.remove(&fid);
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// Whether the bytes of a fetch were entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    Yes,
    No,
}

/// What an own change of data did.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// It failed: nothing.
    Unchanged,
    /// Nothing cached of the file can be trusted.
    Unknown,
    /// Only this: what is cached of the rest belongs to the new version.
    Changed { version: Version, data: Option<(u64, Bytes)> },
}

impl FileData {
    fn next_extent(&self, at: u64, end: u64) -> u64 {
        self.extents.range(at..end.max(at)).next().map_or(end, |(start, _)| *start)
    }
}

/// Bytes of memory that an extent takes.
fn cost(bytes: &Bytes) -> u64 {
    if ZEROS.as_ptr_range().contains(&bytes.as_ptr()) { 0 } else { bytes.len() as u64 }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests;
