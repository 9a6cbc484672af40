//! What can go wrong below a volume.

use crate::chunk::{ChunkRef, SegmentId};
use soda_types::{Errno, FsError};
use std::path::PathBuf;

pub type StorageResult<T> = Result<T, StorageError>;

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The medium is full down to the reserve. Nothing was changed; the store stays usable.
    #[error(
        "no space left on the file system of {path}: {free} bytes are free, {} are needed, of which {reserve} stay free as a \
         reserve. Make room there, or make it larger", reserve.saturating_add(*.wanted)
    )]
    NoSpace { path: PathBuf, free: u64, reserve: u64, wanted: u64 },

    /// What was read is not what was written.
    #[error("{chunk:?} is corrupt: {problem}")]
    Corrupt { chunk: ChunkRef, problem: &'static str },

    #[error("{segment} does not exist")]
    NoSegment { segment: SegmentId },

    #[error("{doing}: {source}")]
    Io { doing: String, source: std::io::Error },

    /// The metadata engine failed.
    #[error("metadata engine, {doing}: {cause}")]
    Engine { doing: &'static str, cause: String },

    /// An earlier write or sync failed, so what is on the medium is not known: no more changes until a restart.
    #[error("the store stopped after an earlier failure ({0}); restart the server to recover")]
    Stopped(String),

    #[error("{path} is in use by a running server; stop that one first, or give another directory")]
    InUse { path: PathBuf },

    #[error("{path} is not empty and not a Soda data directory; give an empty or new directory")]
    NotOurs { path: PathBuf },

    #[error("{path} is not a data directory of a Soda server: give the one that `soda serve --data` uses")]
    NoDataDirectory { path: PathBuf },

    #[error("{path} has format {found}, this program reads {known}: use a newer `soda`")]
    TooNew { path: PathBuf, found: u32, known: u32 },

    #[error(
        "{path} has format {found}, this program reads {known}: copy the files out with the `soda` that made it"
    )]
    TooOld { path: PathBuf, found: u32, known: u32 },

    #[error(
        "{path} is damaged: {problem}. Restore it from a copy: two lines, `soda data directory` and `version N`, where this \
         program has version {version}. Nothing was changed"
    )]
    BadFormat { path: PathBuf, problem: &'static str, version: u32 },

    /// It was initialised, so there were some.
    #[error("the metadata of {path} are missing: restore them from a copy; nothing was changed")]
    NoMetadata { path: PathBuf },

    /// It was initialised, so there were some.
    #[error(
        "the data of {path} are missing: restore them from a copy; nothing was changed. Where there is no copy, `soda fsck \
         --repair --discard-lost` keeps what the metadata have: all names, and small files; the others read as zeros then"
    )]
    NoData { path: PathBuf },

    /// What a power cut leaves of changes that were not synced is not that.
    #[error(
        "the journal {path} is damaged: of at least {synced} batches of changes that were synced only the first {readable} can \
         be read. Restore the directory from a copy; nothing was changed. Where there is no copy, `soda fsck --repair \
         --discard-lost` gives up the changes from there on, and keeps a copy of that part of the journal beside it"
    )]
    DamagedJournal { path: PathBuf, readable: u64, synced: u64 },

    #[error(
        "the metadata are damaged: {path}, {doing}: {cause}. Stop the server, if it runs: `soda fsck` says what is lost. Restore \
         the directory from a copy; where there is none, `soda fsck --repair --discard-lost` keeps all that can be read"
    )]
    DamagedMetadata { path: PathBuf, doing: &'static str, cause: String },
}

impl StorageError {
    pub(crate) fn io(doing: impl Into<String>, source: std::io::Error) -> StorageError {
        StorageError::Io { doing: doing.into(), source }
    }
}

impl From<StorageError> for FsError {
    fn from(error: StorageError) -> FsError {
        let errno = match &error {
            StorageError::NoSpace { .. } => Errno::NoSpace,
            _ => Errno::Io,
        };
        FsError::new(errno, error.to_string())
    }
}
