//! Stores in memory, and something of a test's that sees what is done with them, and may do otherwise.

use bytes::Bytes;
use soda_storage::{
    Batch, ChunkRef, DataStore, MemoryData, MemoryMeta, MetaRead, MetaStore, Origin, SegmentId, SegmentInfo,
    Space, StorageResult, Table, Visit,
};
use std::fmt::Debug;
use std::ops::{Deref, Range};

/// What becomes of changes of metadata.
pub trait WatchMeta: Debug + Send + Sync {
    fn commit(&self, meta: &MemoryMeta, batch: Batch) -> StorageResult<()> {
        meta.commit(batch)
    }

    fn sync(&self, meta: &MemoryMeta) -> StorageResult<()> {
        meta.sync()
    }
}

/// What becomes of changes of data.
pub trait WatchData: Debug + Send + Sync {
    fn append(&self, chunks: &MemoryData, data: &[u8]) -> StorageResult<ChunkRef> {
        chunks.append(data)
    }

    fn restore(&self, chunks: &MemoryData, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()> {
        chunks.restore(chunk, data)
    }

    fn sync(&self, chunks: &MemoryData) -> StorageResult<()> {
        chunks.sync()
    }

    fn sync_what_others_wrote(&self, chunks: &MemoryData) -> StorageResult<()> {
        chunks.sync_what_others_wrote()
    }
}

#[derive(Debug, Default)]
pub struct WatchedMeta<W> {
    pub meta: MemoryMeta,
    pub watch: W,
}

#[derive(Debug, Default)]
pub struct WatchedData<W> {
    pub chunks: MemoryData,
    pub watch: W,
}

impl<W> Deref for WatchedMeta<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.watch
    }
}

impl<W> Deref for WatchedData<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.watch
    }
}

impl<W: WatchMeta> MetaRead for WatchedMeta<W> {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.meta.get(table, key)
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.meta.scan(table, start, end, visit)
    }
}

impl<W: WatchMeta> MetaStore for WatchedMeta<W> {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        self.watch.commit(&self.meta, batch)
    }

    fn sync(&self) -> StorageResult<()> {
        self.watch.sync(&self.meta)
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

impl<W: WatchData> DataStore for WatchedData<W> {
    fn begin_at(&self, segment: SegmentId) -> StorageResult<()> {
        self.chunks.begin_at(segment)
    }

    fn append(&self, data: &[u8]) -> StorageResult<ChunkRef> {
        self.watch.append(&self.chunks, data)
    }

    fn read_into(&self, chunk: &ChunkRef, data: &mut [u8]) -> StorageResult<()> {
        self.chunks.read_into(chunk, data)
    }

    fn restore(&self, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()> {
        self.watch.restore(&self.chunks, chunk, data)
    }

    fn sync(&self) -> StorageResult<()> {
        self.watch.sync(&self.chunks)
    }

    fn sync_what_others_wrote(&self) -> StorageResult<()> {
        self.watch.sync_what_others_wrote(&self.chunks)
    }

    fn release_range(&self, segment: SegmentId, range: Range<u64>) -> StorageResult<()> {
        self.chunks.release_range(segment, range)
    }

    fn segments(&self) -> StorageResult<Vec<SegmentInfo>> {
        self.chunks.segments()
    }

    fn stored_ranges(&self, segment: SegmentId) -> StorageResult<Vec<Range<u64>>> {
        self.chunks.stored_ranges(segment)
    }

    fn space(&self) -> StorageResult<Space> {
        self.chunks.space()
    }
}
