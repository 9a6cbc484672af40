//! The store under a volume: two narrow traits, an embedded implementation on a local directory, one in memory, and the
//! conformance suite that every implementation passes.
//!
//! [`MetaStore`] keeps ordered records and changes them in atomic batches; [`DataStore`] keeps file data in immutable,
//! checksummed chunks. Neither knows what a file is. The layout on disk: `docs/ON_DISK.md`.

mod chunk;
pub mod conformance;
pub mod crash;
mod data;
mod embedded;
mod error;
mod memory;
mod meta;

pub use chunk::{CHUNK_ALIGN, CHUNK_MAX, ChunkRef, SegmentId};
pub use data::{DataStore, SegmentInfo, SegmentState, Space};
pub use embedded::{
    DamagedMetadata, DataDirectory, EmbeddedData, EmbeddedMeta, FORMAT_VERSION, LostRange, OldRecord,
    Salvage, Salvaged, StoreOptions,
};
pub use error::{StorageError, StorageResult};
pub use memory::{MemoryData, MemoryMeta};
pub use meta::{Batch, Change, MetaRead, MetaStore, Origin, SpaceUse, Table, Visit};
