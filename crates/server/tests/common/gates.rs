//! Stores that can be held up.

use super::PATIENCE;
use super::watched::{WatchData, WatchMeta, WatchedData, WatchedMeta};
use soda_server::Stores;
use soda_storage::{
    Batch, Change, ChunkRef, DataStore, MemoryData, MemoryMeta, MetaStore, StorageResult, Table,
};
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
pub type Gated = WatchedMeta<Gates>;

/// Data whose appends can be held up, and its syncs.
pub type GatedData = WatchedData<Gates>;

#[derive(Debug, Default)]
pub struct Gates {
    pub gate: Gate,
    pub syncs: Gate,
}

impl WatchMeta for Gates {
    fn commit(&self, meta: &MemoryMeta, batch: Batch) -> StorageResult<()> {
        let is_reply = |change: &Change| matches!(change, Change::Put { table: Table::Reply, .. });
        let counts = if batch.changes.iter().any(is_reply) { Counts::Yes } else { Counts::No };
        self.gate.pass(counts);
        meta.commit(batch)
    }

    fn sync(&self, meta: &MemoryMeta) -> StorageResult<()> {
        self.syncs.pass(Counts::Yes);
        meta.sync()
    }
}

impl WatchData for Gates {
    fn append(&self, chunks: &MemoryData, data: &[u8]) -> StorageResult<ChunkRef> {
        self.gate.pass(Counts::Yes);
        chunks.append(data)
    }

    fn sync(&self, chunks: &MemoryData) -> StorageResult<()> {
        self.syncs.pass(Counts::Yes);
        chunks.sync()
    }
}
