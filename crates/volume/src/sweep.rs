//! Finding the space that a crash leaked.
//!
//! Chunks are stored before the transaction that refers to them. If the process dies in between, nobody knows of them any
//! more. Only segments that were written to since the last sweep can have such chunks, so each opening of a volume
//! begins a sweep of these: all extents, as they were at the opening, are looked through in small steps in the
//! background. Segments that are sealed by then get no new chunks, so what is stored in them and not referred to at the
//! opening never will be. What the last run left to be released is compared with the same extents
//! ([`release`](crate::release)).

use crate::key::{self, KeyRange};
use crate::record::{self, ExtentBody, Released, Swept};
use crate::release::ReleaseQueue;
use crate::view;
use soda_storage::{Batch, ChunkRef, DataStore, MetaRead, MetaStore, SegmentId, SegmentState, Table, crash};
use soda_types::FsResult;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Sweep {
    state: Mutex<Option<State>>,
}

struct State {
    /// The records as they were when the volume was opened.
    before: Box<dyn MetaRead>,
    suspects: BTreeSet<SegmentId>,
    /// Suspect, or with something to be released.
    looked_at: BTreeSet<SegmentId>,
    /// Chunks in these segments that are in use, or on their way to be released.
    known: Vec<ChunkRef>,
    /// Where to go on in the table of extents.
    at: Vec<u8>,
    /// Segments below this one are swept once the work is done.
    end: SegmentId,
}

impl Sweep {
    /// Finds out what there is to sweep. Nothing must have been written yet, nor released.
    pub(crate) fn begin(
        meta: &dyn MetaStore,
        data: &dyn DataStore,
        releases: &ReleaseQueue,
    ) -> FsResult<Sweep> {
        let from = swept(meta)?;
        let segments = data.segments()?;
        let sealed =
            segments.iter().filter(|segment| segment.state == SegmentState::Sealed && segment.id >= from);
        let suspects: BTreeSet<SegmentId> = sealed.map(|segment| segment.id).collect();
        let looked_at: BTreeSet<SegmentId> = suspects.union(&releases.unchecked()).copied().collect();
        if looked_at.is_empty() {
            return Ok(Sweep::default());
        }
        let end = suspects.last().map_or(from, |last| SegmentId(last.0 + 1));
        let (before, known, at) = (meta.snapshot(), Vec::new(), Vec::new());
        let state = State { before, suspects, looked_at, known, at, end };
        Ok(Sweep { state: Mutex::new(Some(state)) })
    }

    /// Begins anew, when records were changed past the transactions and still nothing was written to segments.
    pub(crate) fn begin_again(
        &self,
        meta: &dyn MetaStore,
        data: &dyn DataStore,
        releases: &ReleaseQueue,
    ) -> FsResult<()> {
        let new =
            Sweep::begin(meta, data, releases)?.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Looks through some more extents. Returns how many it was; 0 when there is nothing to sweep.
    pub(crate) fn go_on(
        &self,
        meta: &dyn MetaStore,
        data: &dyn DataStore,
        releases: &ReleaseQueue,
        limit: usize,
    ) -> FsResult<usize> {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = guard.as_mut() else {
            return Ok(0);
        };
        let result = match state.look_at_extents(limit) {
            Ok(seen) if seen > 0 => return Ok(seen),
            Ok(_) => state.finish(meta, data, releases),
            Err(error) => Err(error),
        };
        // Also after a failure: what cannot be read is not going to be readable in a minute.
        *guard = None;
        result.map(|()| 1)
    }
}

/// The first segment that was not swept.
pub(crate) fn swept(meta: &dyn MetaRead) -> FsResult<SegmentId> {
    let key = key::swept();
    match meta.get(Table::Meta, &key)? {
        None => Ok(SegmentId::default()),
        Some(value) => {
            let swept: Swept =
                record::decode(&value).map_err(|error| view::damaged(Table::Meta, &key, error))?;
            Ok(swept.before)
        }
    }
}

impl State {
    fn look_at_extents(&mut self, limit: usize) -> FsResult<usize> {
        let mut seen = 0;
        let mut failure = None;
        let (looked_at, known, at) = (&self.looked_at, &mut self.known, &mut self.at);
        let range = KeyRange { start: at.clone(), end: key::end_of_table() };
        self.before.scan(Table::Extent, &range.start, &range.end, &mut |key, value| {
            match view::placed(key, &value) {
                Ok(placed) => {
                    if let ExtentBody::Chunk { chunk, .. } = placed.extent.body
                        && looked_at.contains(&chunk.segment)
                    {
                        known.push(chunk);
                    }
                }
                // It may refer to anything: nothing is known to be leaked.
                Err(error) => failure = Some(view::damaged(Table::Extent, key, error)),
            }
            seen += 1;
            key.clone_into(at);
            at.push(0);
            if seen == limit || failure.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        failure.map_or(Ok(seen), Err)
    }

    /// Gives back what nothing refers to, now that all extents were looked through.
    fn finish(
        &mut self,
        meta: &dyn MetaStore,
        data: &dyn DataStore,
        releases: &ReleaseQueue,
    ) -> FsResult<()> {
        self.known.sort_unstable();
        releases.checked(&self.known);
        if self.suspects.is_empty() {
            return Ok(());
        }
        self.look_at_releases()?;
        self.known.sort_unstable();
        let mut leaked = 0;
        for segment in &self.suspects {
            let Ok(stored) = data.stored_ranges(*segment) else {
                // All of it was released meanwhile.
                continue;
            };
            let spans = spans_of(&self.known, *segment);
            for range in stored.into_iter().flat_map(|range| subtract(range, &spans)) {
                leaked += range.end - range.start;
                data.release_range(*segment, range)?;
            }
        }
        if leaked > 0 {
            tracing::info!(bytes = leaked, "space that the last crash had leaked was given back");
        }
        let mut batch = Batch::releasing();
        batch.put(Table::Meta, key::swept(), record::encode(&Swept { before: self.end }));
        meta.commit(batch)?;
        crash::point("volume.swept");
        Ok(())
    }

    fn look_at_releases(&mut self) -> FsResult<()> {
        let known = &mut self.known;
        self.before.scan(Table::Release, &[], &key::end_of_table(), &mut |_, value| {
            // One that does not decode is not going to be released otherwise.
            known.extend(record::decode::<Released>(&value).map(|released| released.chunk));
            ControlFlow::Continue(())
        })?;
        Ok(())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("suspects", &self.suspects)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// What the chunks of one segment cover; `chunks` are in order.
pub(crate) fn spans_of(chunks: &[ChunkRef], segment: SegmentId) -> Vec<Range<u64>> {
    let from = chunks.partition_point(|chunk| chunk.segment < segment);
    let to = chunks.partition_point(|chunk| chunk.segment <= segment);
    chunks[from..to].iter().map(ChunkRef::span).collect()
}

/// What of `range` is in none of `spans`, which are in order.
pub(crate) fn subtract(range: Range<u64>, spans: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut at = range.start;
    let first = spans.partition_point(|span| span.end <= range.start);
    for span in spans[first..].iter().take_while(|span| span.start < range.end) {
        if span.start > at {
            rest.push(at..span.start);
        }
        at = at.max(span.end);
    }
    if at < range.end {
        rest.push(at..range.end);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtraction_leaves_what_no_span_covers() {
        assert_eq!(subtract(0..10, &[]), vec![0..10]);
        assert_eq!(subtract(2..10, &[0..5, 5..10]), vec![]);
        assert_eq!(subtract(0..10, &[2..4, 3..5, 8..20]), vec![0..2, 5..8]);
        assert_eq!(subtract(10..20, &[0..5, 5..10, 12..13, 25..30]), vec![10..12, 13..20]);
    }
}
