//! The store in memory: for tests, and as the simplest statement of what the traits mean.

use crate::data::chunk_len;
use crate::{
    Batch, CHUNK_ALIGN, Change, ChunkRef, DataStore, MetaRead, MetaStore, Origin, SegmentId, SegmentInfo,
    SegmentState, Space, StorageError, StorageResult, Table, Visit,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

type Records = BTreeMap<(Table, Bytes), Bytes>;

/// Metadata in memory. Clones share it, so a "restart" is a clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryMeta {
    records: Arc<RwLock<Arc<Records>>>,
    complete: Arc<AtomicBool>,
}

impl MemoryMeta {
    pub fn new() -> MemoryMeta {
        MemoryMeta::default()
    }

    fn records(&self) -> Arc<Records> {
        self.records.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl MetaRead for MemoryMeta {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        Ok(records.get(&(table, Bytes::copy_from_slice(key))).cloned())
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        scan(&self.records(), table, start, end, visit);
        Ok(())
    }
}

impl MetaStore for MemoryMeta {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        let mut shared = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let records = Arc::make_mut(&mut shared);
        for change in batch.changes {
            match change {
                Change::Put { table, key, value } => records.insert((table, key), value),
                Change::Delete { table, key } => records.remove(&(table, key)),
            };
        }
        Ok(())
    }

    fn sync(&self) -> StorageResult<()> {
        Ok(())
    }

    fn origin(&self) -> Origin {
        if self.complete.load(Ordering::Acquire) { Origin::Kept } else { Origin::New }
    }

    fn complete(&self) -> StorageResult<()> {
        self.complete.store(true, Ordering::Release);
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn MetaRead> {
        Box::new(MemorySnapshot(self.records()))
    }
}

#[derive(Debug)]
struct MemorySnapshot(Arc<Records>);

impl MetaRead for MemorySnapshot {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        Ok(self.0.get(&(table, Bytes::copy_from_slice(key))).cloned())
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        scan(&self.0, table, start, end, visit);
        Ok(())
    }
}

fn scan(records: &Records, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) {
    if start >= end {
        return;
    }
    let key = |bytes: &[u8]| (table, Bytes::copy_from_slice(bytes));
    for ((_, key), value) in records.range(key(start)..key(end)) {
        if let ControlFlow::Break(()) = visit(key, value.clone()) {
            return;
        }
    }
}

/// Chunks in memory, with a limit that stands for the size of the medium. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryData {
    log: Arc<Mutex<MemoryLog>>,
    capacity: u64,
}

#[derive(Debug, Default)]
struct MemoryLog {
    segments: BTreeMap<SegmentId, BTreeMap<u64, Vec<u8>>>,
    active: SegmentId,
    end: u64,
    stored: u64,
}

/// Short, so that tests meet the edges of segments.
const MEMORY_SEGMENT_LEN: u64 = 4 << 20;

impl MemoryData {
    /// `capacity`: bytes, padding included, that fit.
    pub fn with_capacity(capacity: u64) -> MemoryData {
        let mut log = MemoryLog { active: SegmentId(1), ..MemoryLog::default() };
        log.segments.insert(SegmentId(1), BTreeMap::new());
        MemoryData { log: Arc::new(Mutex::new(log)), capacity }
    }

    pub fn new() -> MemoryData {
        MemoryData::with_capacity(u64::MAX)
    }

    fn log(&self) -> MutexGuard<'_, MemoryLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flips a bit of a stored chunk, as a bad medium would.
    pub fn corrupt(&self, chunk: &ChunkRef) {
        let mut log = self.log();
        let stored = log.segments.get_mut(&chunk.segment).and_then(|chunks| chunks.get_mut(&chunk.offset));
        if let Some(data) = stored {
            data[0] ^= 1;
        }
    }
}

impl Default for MemoryData {
    fn default() -> MemoryData {
        MemoryData::new()
    }
}

impl DataStore for MemoryData {
    fn begin_at(&self, segment: SegmentId) -> StorageResult<()> {
        let mut log = self.log();
        if segment > log.active {
            let before = std::mem::replace(&mut log.active, segment);
            log.end = 0;
            log.segments.retain(|id, chunks| *id != before || !chunks.is_empty());
            log.segments.entry(segment).or_default();
        }
        Ok(())
    }

    fn append(&self, data: &[u8]) -> StorageResult<ChunkRef> {
        let len = chunk_len(data)?;
        let padded = u64::from(len).next_multiple_of(CHUNK_ALIGN);
        let mut log = self.log();
        let free = self.capacity - log.stored;
        if free < padded {
            return Err(StorageError::NoSpace { path: "memory".into(), free, reserve: 0, wanted: padded });
        }
        if log.end > 0 && log.end + padded > MEMORY_SEGMENT_LEN {
            log.active = SegmentId(log.active.0 + 1);
            log.end = 0;
        }
        let chunk = ChunkRef { segment: log.active, offset: log.end, len, crc32c: crc32c::crc32c(data) };
        log.end += padded;
        log.stored += padded;
        log.segments.entry(chunk.segment).or_default().insert(chunk.offset, data.to_vec());
        Ok(chunk)
    }

    fn read_into(&self, chunk: &ChunkRef, data: &mut [u8]) -> StorageResult<()> {
        let log = self.log();
        let segment =
            log.segments.get(&chunk.segment).ok_or(StorageError::NoSegment { segment: chunk.segment })?;
        let stored = segment.get(&chunk.offset).map(Vec::as_slice).unwrap_or_default();
        chunk.verify(stored)?;
        data.copy_from_slice(stored);
        Ok(())
    }

    fn restore(&self, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()> {
        chunk.verify(data)?;
        if chunk.segment >= self.log().active {
            self.begin_at(SegmentId(chunk.segment.0.saturating_add(1)))?;
        }
        let mut log = self.log();
        let before = log.segments.entry(chunk.segment).or_default().insert(chunk.offset, data.to_vec());
        if before.is_none() {
            log.stored += u64::from(chunk.len).next_multiple_of(CHUNK_ALIGN);
        }
        Ok(())
    }

    fn sync(&self) -> StorageResult<()> {
        Ok(())
    }

    fn sync_what_others_wrote(&self) -> StorageResult<()> {
        Ok(())
    }

    fn release_range(&self, segment: SegmentId, range: Range<u64>) -> StorageResult<()> {
        let mut log = self.log();
        let active = log.active;
        let Some(chunks) = log.segments.get_mut(&segment) else {
            return Ok(());
        };
        let mut freed = 0;
        chunks.retain(|offset, data| {
            let inside = range.contains(offset);
            if inside {
                freed += (data.len() as u64).next_multiple_of(CHUNK_ALIGN);
            }
            !inside
        });
        if chunks.is_empty() && segment != active {
            log.segments.remove(&segment);
        }
        log.stored -= freed;
        Ok(())
    }

    fn segments(&self) -> StorageResult<Vec<SegmentInfo>> {
        let log = self.log();
        let info = |(id, chunks): (&SegmentId, &BTreeMap<u64, Vec<u8>>)| {
            let ranges = ranges(chunks);
            let state = if *id == log.active { SegmentState::Active } else { SegmentState::Sealed };
            SegmentInfo {
                id: *id,
                len: ranges.last().map_or(0, |range| range.end),
                stored: ranges.iter().map(|range| range.end - range.start).sum(),
                state,
            }
        };
        Ok(log.segments.iter().map(info).collect())
    }

    fn stored_ranges(&self, segment: SegmentId) -> StorageResult<Vec<Range<u64>>> {
        let log = self.log();
        let chunks = log.segments.get(&segment).ok_or(StorageError::NoSegment { segment })?;
        Ok(ranges(chunks))
    }

    fn space(&self) -> StorageResult<Space> {
        // A number that file systems can show where there is no limit.
        let total = self.capacity.min(1 << 50);
        Ok(Space { total, free: total.saturating_sub(self.log().stored) })
    }
}

fn ranges(chunks: &BTreeMap<u64, Vec<u8>>) -> Vec<Range<u64>> {
    let span = |(offset, data): (&u64, &Vec<u8>)| {
        *offset..(offset + data.len() as u64).next_multiple_of(CHUNK_ALIGN)
    };
    chunks.iter().map(span).collect()
}
