//! Stores that can be held up.

use super::PATIENCE;
use bytes::Bytes;
use soda_server::Stores;
use soda_storage::{
    Batch, Change, ChunkRef, DataStore, MemoryData, MemoryMeta, MetaRead, MetaStore, Origin, SegmentId,
    SegmentInfo, Space, StorageResult, Table, Visit,
};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

/// Both, and what a server is started on with them.
pub fn gated() -> (Arc<Gated>, Arc<GatedData>, Stores) {
    let (meta, data) = (Arc::new(Gated::default()), Arc::new(GatedData::default()));
    let stores = Stores { meta: meta.clone(), data: data.clone(), path: "memory".into() };
    (meta, data, stores)
}

/// Where a store can be held up.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<GateState>,
    turned: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    /// Of those that count.
    waiting: usize,
}

/// Whether who waits at a gate is one that a test looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counts {
    Yes,
    No,
}

impl Gate {
    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.turned.notify_all();
    }

    pub fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }

    fn pass(&self, counts: Counts) {
        let counts = usize::from(counts == Counts::Yes);
        let mut state = self.state.lock().unwrap();
        state.waiting += counts;
        // A test that fails leaves it closed, and its server is to end all the same.
        let opened = self.turned.wait_timeout_while(state, PATIENCE * 2, |state| state.is_closed);
        opened.unwrap().0.waiting -= counts;
    }
}

/// Metadata whose commits can be held up, of which those count that have a reply; and the syncs of its journal.
#[derive(Debug, Default)]
pub struct Gated {
    pub meta: MemoryMeta,
    pub gate: Gate,
    pub syncs: Gate,
}

/// Data whose appends can be held up, and its syncs.
#[derive(Debug, Default)]
pub struct GatedData {
    data: MemoryData,
    pub gate: Gate,
    pub syncs: Gate,
}

impl DataStore for GatedData {
    fn begin_at(&self, segment: SegmentId) -> StorageResult<()> {
        self.data.begin_at(segment)
    }

    fn append(&self, data: &[u8]) -> StorageResult<ChunkRef> {
        self.gate.pass(Counts::Yes);
        self.data.append(data)
    }

    fn read_into(&self, chunk: &ChunkRef, data: &mut [u8]) -> StorageResult<()> {
        self.data.read_into(chunk, data)
    }

    fn restore(&self, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()> {
        self.data.restore(chunk, data)
    }

    fn sync(&self) -> StorageResult<()> {
        self.syncs.pass(Counts::Yes);
        self.data.sync()
    }

    fn sync_what_others_wrote(&self) -> StorageResult<()> {
        self.data.sync_what_others_wrote()
    }

    fn release_range(&self, segment: SegmentId, range: Range<u64>) -> StorageResult<()> {
        self.data.release_range(segment, range)
    }

    fn segments(&self) -> StorageResult<Vec<SegmentInfo>> {
        self.data.segments()
    }

    fn stored_ranges(&self, segment: SegmentId) -> StorageResult<Vec<Range<u64>>> {
        self.data.stored_ranges(segment)
    }

    fn space(&self) -> StorageResult<Space> {
        self.data.space()
    }
}

impl MetaRead for Gated {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.meta.get(table, key)
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.meta.scan(table, start, end, visit)
    }
}

impl MetaStore for Gated {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        let is_reply = |change: &Change| matches!(change, Change::Put { table: Table::Reply, .. });
        let counts = if batch.changes.iter().any(is_reply) { Counts::Yes } else { Counts::No };
        self.gate.pass(counts);
        self.meta.commit(batch)
    }

    fn sync(&self) -> StorageResult<()> {
        self.syncs.pass(Counts::Yes);
        self.meta.sync()
    }

    fn origin(&self) -> Origin {
        self.meta.origin()
    }

    fn complete(&self) -> StorageResult<()> {
        self.meta.complete()
    }

    fn snapshot(&self) -> Box<dyn MetaRead> {
        self.meta.snapshot()
    }
}
