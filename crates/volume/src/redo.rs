//! Chunks that are in the journal, too, until they are on the medium.
//!
//! *The problem.* A batch is in the journal before a sync has the chunks on the medium that it refers to, and the kernel, or
//! the engine, may write the journal out by chance. Then a power cut leaves the reference and takes the chunk. Where that
//! must not be, there were two answers: the medium is waited for before the commit, for all that was written until then, by
//! others, too; or nobody says that the change is there. The first is slow where somebody waits for the change, the second no
//! answer for data that was durable before and was only stored anew.
//!
//! *What is done.* The batch has the data with it, in a redo record beside the reference (what databases call a redo log, ext4
//! data journalling). They are durable together or not at all: a sync of the journal is enough for both. Whoever opens the volume
//! next writes what the records have into its places before anybody reads it. A sync of data that began after the commit has the
//! chunk on the medium: then the record goes; at the latest with the place, when that is released.
//!
//! *What it costs.* These bytes are written twice, thrice if the engine writes its table out before the record goes, and are in
//! its memory for a while. So it is for little data: what
//! somebody waits for, and what is gathered.

use crate::record::{self, RecordError, RedoRecord};
use crate::{key, view};
use bytes::Bytes;
use soda_storage::{Batch, ChunkRef, DataStore, MetaRead, MetaStore, Table, crash};
use soda_types::FsResult;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether chunks are in the journal, too, until they are on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redo {
    No,
    Yes,
}

/// A chunk that was appended for a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Appended {
    pub(crate) chunk: ChunkRef,
    pub(crate) safe: Safe,
}

/// What sees to it that a chunk is not lost where the batch that refers to it is there.
#[derive(Clone, Debug)]
pub(crate) enum Safe {
    /// The next sync, which has data on the medium before the journal.
    BySync,
    /// The batch brings its data along.
    InJournal(Bytes),
    /// The medium has it.
    OnMedium,
}

impl Safe {
    pub(crate) fn needs_sync(&self) -> bool {
        matches!(self, Safe::BySync)
    }
}

impl Appended {
    pub(crate) fn needs_sync(&self) -> bool {
        self.safe.needs_sync()
    }

    /// Puts its data into the batch that refers to it.
    pub(crate) fn put_redo(&self, batch: &mut Batch) -> Option<Kept> {
        let Safe::InJournal(data) = &self.safe else { return None };
        let record = RedoRecord { chunk: self.chunk, data: data.clone() };
        let kept = Kept { key: key::chunk(&self.chunk), bytes: record.data.len() as u64 };
        batch.put(Table::Redo, kept.key.clone(), record::encode(&record));
        Some(kept)
    }
}

/// A redo record in the journal.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    key: Bytes,
    /// Of data.
    bytes: u64,
}

/// The redo records of chunks that may not be on the medium.
#[derive(Debug, Default)]
pub(crate) struct RedoList {
    kept: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    kept: Vec<Kept>,
    /// Of data, of all.
    bytes: u64,
}

impl RedoList {
    /// Takes up records that are committed.
    pub(crate) fn committed(&self, kept: Vec<Kept>) {
        if !kept.is_empty() {
            let mut records = self.records();
            records.bytes += kept.iter().map(|kept| kept.bytes).sum::<u64>();
            records.kept.extend(kept);
        }
    }

    /// To be called before the sync after which they go.
    pub(crate) fn take(&self) -> Vec<Kept> {
        std::mem::take(&mut *self.records()).kept
    }

    /// Of data that is in the journal, too, and for which no sync has begun since.
    pub(crate) fn bytes(&self) -> u64 {
        self.records().bytes
    }

    /// The chunks of these records are on the medium. The journal has to be synced before one of them is released.
    pub(crate) fn end(&self, meta: &dyn MetaStore, ended: Vec<Kept>) {
        let mut batch = Batch::releasing();
        ended.iter().for_each(|kept| batch.delete(Table::Redo, kept.key.clone()));
        if let Err(error) = meta.commit(batch) {
            tracing::debug!(%error, "redo records stay until the next sync");
            self.committed(ended);
        }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedoRecord {
    /// Itself, if it is the one of this key and has the data of its chunk.
    pub(crate) fn check(self, key: &[u8]) -> Result<RedoRecord, RecordError> {
        let is_whole = key::chunk(&self.chunk) == key && self.chunk.verify(&self.data).is_ok();
        if is_whole { Ok(self) } else { Err(RecordError::Malformed) }
    }
}

/// Has every chunk of a redo record in its place again. Nothing must have been appended yet. One that cannot be there keeps
/// nobody from the others: reading it is an error, and the next opening tries again.
pub(crate) fn restore(meta: &dyn MetaRead, data: &dyn DataStore) -> FsResult<RedoList> {
    let mut kept = Vec::new();
    let mut lost = 0;
    meta.scan(Table::Redo, &[], &key::end_of_table(), &mut |key, value| {
        let record = match record::decode::<RedoRecord>(&value).and_then(|record| record.check(key)) {
            Ok(record) => record,
            Err(error) => {
                // Left for fsck, as is the chunk, if it is not there.
                tracing::warn!("{}", view::damaged(Table::Redo, key, error));
                return ControlFlow::Continue(());
            }
        };
        let was_lost = data.read(&record.chunk).is_err();
        // Also what is there: it may be in the kernel's memory only, and the next sync knows what was written by this process.
        match data.restore(&record.chunk, &record.data) {
            Ok(()) => {
                lost += usize::from(was_lost);
                kept.push(Kept { key: Bytes::copy_from_slice(key), bytes: record.data.len() as u64 });
            }
            Err(error) => {
                let chunk = record.chunk;
                tracing::warn!(?chunk, %error, "data that the journal has cannot be written into its place");
            }
        }
        ControlFlow::Continue(())
    })?;
    if lost > 0 {
        tracing::info!(chunks = lost, "data that a power cut took from its place was in the journal");
    }
    if !kept.is_empty() {
        crash::point("volume.redone");
    }
    let list = RedoList::default();
    list.committed(kept);
    Ok(list)
}
