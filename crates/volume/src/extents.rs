//! Which extents a file has, in memory.
//!
//! The metadata engine keeps what was deleted and overwritten until a merge meets it, and a scan passes all of it: a place
//! that is written again and again gets slower to look at with every write. So what a scan found is kept, a window of a file
//! at a time, and follows the commits; how many writes went before then does not matter any more.

use crate::cache::{Cache, CacheUse};
use crate::key;
use crate::record::{Extent, ExtentBody};
use crate::view::{Placed, damaged, placed};
use bytes::Bytes;
use soda_storage::{MetaRead, Table};
use soda_types::{FsResult, VolumeId};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// The extents of so many bytes of a file are kept together.
const WINDOW: u64 = 1 << 20;

/// What an extent takes in memory beside inline data, bytes, roughly.
const EXTENT_WEIGHT: usize = 96;

/// A part of a stream: which, counted from its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct WindowKey {
    stream: u64,
    number: u64,
}

/// The committed extents that hold data in a window, in order. One that reaches over an edge is in both windows.
#[derive(Clone, Debug, Default)]
struct Window {
    extents: Vec<Placed>,
    /// Bytes of memory.
    weight: usize,
}

impl Window {
    fn push(&mut self, placed: Placed) {
        self.weight += weight(&placed.extent);
        self.extents.push(placed);
    }

    /// Has the extent that ends at `end` be this one, or none.
    fn set(&mut self, end: u64, extent: Option<Placed>) {
        let at = self.extents.partition_point(|known| known.end < end);
        let known = self.extents.get(at).is_some_and(|known| known.end == end);
        if known {
            self.weight -= weight(&self.extents[at].extent);
        }
        self.weight += extent.as_ref().map_or(0, |placed| weight(&placed.extent));
        match (known, extent) {
            (true, Some(extent)) => self.extents[at] = extent,
            (true, None) => drop(self.extents.remove(at)),
            (false, Some(extent)) => self.extents.insert(at, extent),
            (false, None) => {}
        }
    }

    fn weight(&self) -> usize {
        EXTENT_WEIGHT + self.weight
    }
}

fn weight(extent: &Extent) -> usize {
    EXTENT_WEIGHT + extent.inline_len() as usize
}

/// Where the next extents are after a window.
enum Next {
    /// In this window.
    Window(u64),
    /// There are none.
    Nowhere,
    /// Nobody looked.
    Unknown,
}

/// The windows that are in memory: what was read of the store, and has followed the commits since.
#[derive(Debug)]
pub(crate) struct Windows {
    kept: Cache<WindowKey, Arc<Window>>,
}

impl Windows {
    /// `capacity`: bytes of memory.
    pub(crate) fn new(capacity: usize) -> Windows {
        Windows { kept: Cache::new(capacity) }
    }

    pub(crate) fn uses(&self) -> CacheUse {
        self.kept.uses()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.kept.clear();
    }

    /// Visits the committed extents that hold data in a range, in order.
    pub(crate) fn visit(
        &self,
        stored: &StoredExtents<'_>,
        stream: u64,
        range: &Range<u64>,
        visit: &mut dyn FnMut(&Placed) -> ControlFlow<()>,
    ) -> FsResult<()> {
        let first = range.start / WINDOW;
        let (mut number, mut seen) = (first, range.start);
        while number.saturating_mul(WINDOW) < range.end {
            let (window, next) = self.window(stored, WindowKey { stream, number }, first)?;
            let from = window.extents.partition_point(|placed| placed.end <= seen);
            for placed in &window.extents[from..] {
                if placed.start >= range.end || visit(placed).is_break() {
                    return Ok(());
                }
                seen = placed.end;
            }
            number = match next {
                Next::Window(number) => number,
                Next::Nowhere => break,
                Next::Unknown => number + 1,
            };
        }
        Ok(())
    }

    /// A window on the way through a file that began at window `first`. An empty one on the way is not kept: there are many
    /// in a sparse file.
    fn window(
        &self,
        stored: &StoredExtents<'_>,
        key: WindowKey,
        first: u64,
    ) -> FsResult<(Arc<Window>, Next)> {
        let ticket = match self.kept.get(&key) {
            Ok(window) => return Ok((window, Next::Unknown)),
            Err(ticket) => ticket,
        };
        let start = key.number * WINDOW;
        let (mut window, mut next) = (Window::default(), Next::Nowhere);
        stored.scan(key.stream, start, &mut |placed| {
            if placed.start >= start.saturating_add(WINDOW) {
                next = Next::Window(placed.start / WINDOW);
                return ControlFlow::Break(());
            }
            window.push(placed);
            ControlFlow::Continue(())
        })?;
        let window = Arc::new(window);
        if key.number == first || !window.extents.is_empty() {
            self.kept.fill(key, window.clone(), window.weight(), ticket);
        }
        Ok((window, next))
    }

    /// Has them show what was committed.
    pub(crate) fn committed(&self, changes: ExtentChanges) {
        for ((stream, end), change) in changes.0 {
            let now =
                change.now.map(|extent| Placed { start: end - extent.len, end, extent: unshared(extent) });
            for number in change.from / WINDOW..=end.saturating_sub(1) / WINDOW {
                let inside = now.clone().filter(|placed| placed.start / WINDOW <= number);
                self.kept.change(WindowKey { stream, number }, |mut window| {
                    Arc::make_mut(&mut window).set(end, inside);
                    let weight = window.weight();
                    (window, weight)
                });
            }
        }
    }
}

/// The committed extents of a volume in its store, past the memory: for streams that nobody is going to look at again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredExtents<'s> {
    pub(crate) meta: &'s dyn MetaRead,
    pub(crate) volume: VolumeId,
}

impl StoredExtents<'_> {
    /// Visits the extents that hold data at or after `offset`, in order.
    pub(crate) fn scan(
        &self,
        stream: u64,
        offset: u64,
        visit: &mut dyn FnMut(Placed) -> ControlFlow<()>,
    ) -> FsResult<()> {
        let mut failure = None;
        let range = key::extents_from(self.volume, stream, offset);
        self.meta.scan(
            Table::Extent,
            &range.start,
            &range.end,
            &mut |key, value| match placed(key, &value) {
                Ok(extent) => visit(extent),
                Err(error) => {
                    failure = Some(damaged(Table::Extent, key, error));
                    ControlFlow::Break(())
                }
            },
        )?;
        failure.map_or(Ok(()), Err)
    }
}

/// Inline data is often a few bytes of a large buffer, which must not be kept in memory for them.
fn unshared(mut extent: Extent) -> Extent {
    if let ExtentBody::Inline(data) = &mut extent.body {
        *data = Bytes::copy_from_slice(data);
    }
    extent
}

/// What a transaction does to extents, by stream and the end of the extent.
#[derive(Debug, Default)]
pub(crate) struct ExtentChanges(BTreeMap<(u64, u64), ExtentChange>);

#[derive(Clone, Debug)]
pub(crate) struct ExtentChange {
    /// No extent with this end began before here.
    from: u64,
    pub(crate) now: Option<Extent>,
}

impl ExtentChanges {
    /// Has an extent that begins at `start` be there or not. Returns what was known of its end.
    pub(crate) fn set(
        &mut self,
        (stream, end): (u64, u64),
        start: u64,
        now: Option<Extent>,
    ) -> Option<ExtentChange> {
        let known = self.0.remove(&(stream, end));
        let from = known.as_ref().map_or(start, |known| known.from.min(start));
        self.0.insert((stream, end), ExtentChange { from, now });
        known
    }

    /// Takes a step back.
    pub(crate) fn restore(&mut self, place: (u64, u64), before: Option<ExtentChange>) {
        match before {
            Some(before) => self.0.insert(place, before),
            None => self.0.remove(&place),
        };
    }

    pub(crate) fn get(&self, stream: u64, end: u64) -> Option<&ExtentChange> {
        self.0.get(&(stream, end))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(u64, u64), &ExtentChange)> {
        self.0.iter()
    }

    /// Visits the extents that hold data in a range: those of `committed`, changed.
    pub(crate) fn merged(
        &self,
        stream: u64,
        range: &Range<u64>,
        visit: &mut dyn FnMut(&Placed) -> ControlFlow<()>,
        committed: impl FnOnce(&mut dyn FnMut(&Placed) -> ControlFlow<()>) -> FsResult<()>,
    ) -> FsResult<()> {
        let own = self.0.range((stream, range.start.saturating_add(1))..=(stream, u64::MAX));
        let mut own = own.map(|((_, end), change)| (*end, &change.now)).peekable();
        let mut visit_own = |end: u64, extent: &Option<Extent>| match extent {
            Some(extent) if end - extent.len >= range.end => ControlFlow::Break(()),
            Some(extent) => visit(&Placed { start: end - extent.len, end, extent: extent.clone() }),
            None => ControlFlow::Continue(()),
        };
        let mut stopped = false;
        if own.peek().is_none() {
            return committed(visit);
        }
        committed(&mut |placed| {
            while let Some((end, extent)) = own.next_if(|(end, _)| *end <= placed.end) {
                if visit_own(end, extent).is_break() {
                    stopped = true;
                    return ControlFlow::Break(());
                }
                if end == placed.end {
                    return ControlFlow::Continue(());
                }
            }
            let flow = visit_own(placed.end, &Some(placed.extent.clone()));
            stopped = flow.is_break();
            flow
        })?;
        if !stopped {
            for (end, extent) in own {
                if visit_own(end, extent).is_break() {
                    break;
                }
            }
        }
        Ok(())
    }
}
