//! File data as immutable, checksummed chunks.

use crate::chunk::{CHUNK_MAX, ChunkRef, SegmentId};
use crate::error::{StorageError, StorageResult};
use bytes::Bytes;
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    pub id: SegmentId,
    /// Bytes from its start to its end, released parts included.
    pub len: u64,
    /// Bytes it takes on the medium.
    pub stored: u64,
    pub state: SegmentState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// Chunks are being appended to it.
    Active,
    /// Never appended to again.
    Sealed,
}

/// Space of the medium that holds the data, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    pub total: u64,
    /// What may still be written: the reserve is left out.
    pub free: u64,
}

impl ChunkRef {
    /// Checks data that was read against the reference.
    pub fn verify(&self, data: &[u8]) -> StorageResult<()> {
        if data.len() != self.len as usize {
            return Err(StorageError::Corrupt { chunk: *self, problem: "it is shorter than it was written" });
        }
        if crc32c::crc32c(data) != self.crc32c {
            return Err(StorageError::Corrupt { chunk: *self, problem: "its check sum is wrong" });
        }
        Ok(())
    }
}

/// File data as immutable, checksummed chunks in an append-only log.
///
/// Chunks are never changed. Appends and reads from many threads at once are fine.
pub trait DataStore: Send + Sync + fmt::Debug {
    /// From here on chunks go to segments of this number or a higher one. For numbers that are surely new, whatever became of
    /// the segments that were there: the highest may be lost.
    fn begin_at(&self, segment: SegmentId) -> StorageResult<()>;

    /// Writes a chunk of 1 to [`CHUNK_MAX`] bytes. When it returns the data is in the hands of the operating system.
    fn append(&self, data: &[u8]) -> StorageResult<ChunkRef>;

    /// Reads a whole chunk into `data`, which has its length, and checks it. After an error anything may be in `data`.
    fn read_into(&self, chunk: &ChunkRef, data: &mut [u8]) -> StorageResult<()>;

    /// Reads a whole chunk and checks it.
    fn read(&self, chunk: &ChunkRef) -> StorageResult<Bytes> {
        if chunk.len as usize > CHUNK_MAX {
            return Err(StorageError::Corrupt { chunk: *chunk, problem: "no chunk is so long" });
        }
        let mut data = vec![0; chunk.len as usize];
        self.read_into(chunk, &mut data)?;
        Ok(data.into())
    }

    /// Writes a chunk that a power cut has taken into its place once more, from a copy of its data, which is checked. Not for one
    /// that was released. To be followed by a sync.
    fn restore(&self, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()>;

    /// Makes all chunks durable whose append, or restoration, returned before the call.
    fn sync(&self) -> StorageResult<()>;

    /// Makes everything durable that processes before this one appended and did not sync, as far as the kernel has it.
    fn sync_what_others_wrote(&self) -> StorageResult<()>;

    /// Gives the space of a chunk back. The caller has made the last reference's removal durable before. Releasing
    /// what is already released does nothing.
    fn release(&self, chunk: &ChunkRef) -> StorageResult<()> {
        self.release_range(chunk.segment, chunk.span())
    }

    /// Gives the space of whole blocks back, for repairs.
    fn release_range(&self, segment: SegmentId, range: Range<u64>) -> StorageResult<()>;

    /// All segments in the order of their ids.
    fn segments(&self) -> StorageResult<Vec<SegmentInfo>>;

    /// The parts of a segment that take space, in order, in multiples of [`CHUNK_ALIGN`](crate::CHUNK_ALIGN).
    fn stored_ranges(&self, segment: SegmentId) -> StorageResult<Vec<Range<u64>>>;

    fn space(&self) -> StorageResult<Space>;

    /// Why nothing is written any more until the store is opened anew, if it is so.
    fn stopped(&self) -> Option<String> {
        None
    }
}

/// The length of data that can be a chunk.
pub(crate) fn chunk_len(data: &[u8]) -> StorageResult<u32> {
    if data.is_empty() || data.len() > CHUNK_MAX {
        let cause = format!("a chunk has 1 to {CHUNK_MAX} bytes, not {}", data.len());
        return Err(StorageError::io("appending a chunk", io::Error::new(ErrorKind::InvalidInput, cause)));
    }
    Ok(data.len() as u32)
}
