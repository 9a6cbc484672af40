//! Where file data is, and what it must look like there.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Chunks start at multiples of this many bytes, the block of the file systems below.
pub const CHUNK_ALIGN: u64 = 4096;
/// The longest chunk, bytes.
pub const CHUNK_MAX: usize = 4 << 20;

/// A file of the log that chunks are appended to. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SegmentId(pub u64);

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {:016x}", self.0)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Where a chunk is, and what it must look like.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkRef {
    pub segment: SegmentId,
    /// Bytes from the start of the segment, a multiple of [`CHUNK_ALIGN`].
    pub offset: u64,
    /// Bytes, 1 to [`CHUNK_MAX`].
    pub len: u32,
    /// CRC-32C of the data.
    pub crc32c: u32,
}

impl ChunkRef {
    /// The bytes of the segment that the chunk takes, padding included. Saturates: a made-up reference must not
    /// overflow.
    pub fn span(&self) -> Range<u64> {
        let end = self.offset.saturating_add(u64::from(self.len));
        self.offset..end.checked_next_multiple_of(CHUNK_ALIGN).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {:016x}+{:#x} ({} bytes)", self.segment.0, self.offset, self.len)
    }
}
