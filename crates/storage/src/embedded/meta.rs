//! Metadata in fjall, a log-structured merge tree with a journal.

use super::directory::StoreOptions;
use super::space::SpaceWatch;
use crate::{Batch, Change, MetaRead, MetaStore, StorageError, StorageResult, Table, Visit, crash};
use bytes::Bytes;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use std::fmt;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a table's changes in memory before they are written out as a sorted file.
const MEMTABLE: u64 = 32 << 20;

pub struct EmbeddedMeta {
    database: Database,
    tables: Vec<Keyspace>,
    space: SpaceWatch,
    _lock: Arc<File>,
}

impl EmbeddedMeta {
    pub(crate) fn open(
        path: PathBuf,
        options: &StoreOptions,
        lock: Arc<File>,
    ) -> StorageResult<EmbeddedMeta> {
        let database = Database::builder(&path)
            .cache_size(options.meta_cache)
            .journal_compression(CompressionType::None)
            .open()
            .map_err(|error| engine("opening", error))?;
        let tables = Table::ALL
            .iter()
            .map(|table| {
                let keyspace_options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE);
                database
                    .keyspace(table.name(), keyspace_options)
                    .map_err(|error| engine("opening a table", error))
            })
            .collect::<StorageResult<Vec<_>>>()?;
        Ok(EmbeddedMeta { database, tables, space: SpaceWatch::new(path, options.reserve), _lock: lock })
    }

    fn table(&self, table: Table) -> &Keyspace {
        &self.tables[table as usize]
    }
}

impl MetaRead for EmbeddedMeta {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        let value = self.table(table).get(key).map_err(|error| engine("reading", error))?;
        Ok(value.map(Bytes::from))
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        if start >= end {
            return Ok(());
        }
        drain(self.table(table).range(start..end), visit)
    }
}

impl MetaStore for EmbeddedMeta {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        if batch.is_empty() {
            return Ok(());
        }
        // What is in memory tables is going to be written a second time.
        self.space.admit(batch.size() * 2, self.database.write_buffer_size(), batch.space)?;
        crash::point("meta.commit.before");
        let mut writes = self.database.batch().durability(Some(PersistMode::Buffer));
        for change in batch.changes {
            match change {
                Change::Put { table, key, value } => writes.insert(self.table(table), key, value),
                Change::Delete { table, key } => writes.remove(self.table(table), key),
            }
        }
        writes.commit().map_err(|error| engine("committing", error))?;
        crash::point("meta.commit.after");
        Ok(())
    }

    fn sync(&self) -> StorageResult<()> {
        crash::point("meta.sync.before");
        self.database.persist(PersistMode::SyncData).map_err(|error| engine("syncing the journal", error))?;
        crash::point("meta.sync.after");
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn MetaRead> {
        Box::new(EmbeddedSnapshot { snapshot: self.database.snapshot(), tables: self.tables.clone() })
    }
}

impl fmt::Debug for EmbeddedMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedMeta").field("space", &self.space).finish_non_exhaustive()
    }
}

struct EmbeddedSnapshot {
    snapshot: fjall::Snapshot,
    tables: Vec<Keyspace>,
}

impl MetaRead for EmbeddedSnapshot {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        let keyspace = &self.tables[table as usize];
        let value = self.snapshot.get(keyspace, key).map_err(|error| engine("reading", error))?;
        Ok(value.map(Bytes::from))
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        if start >= end {
            return Ok(());
        }
        drain(self.snapshot.range(&self.tables[table as usize], start..end), visit)
    }
}

impl fmt::Debug for EmbeddedSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EmbeddedSnapshot")
    }
}

fn drain(items: fjall::Iter, visit: Visit<'_>) -> StorageResult<()> {
    for item in items {
        let (key, value) = item.into_inner().map_err(|error| engine("scanning", error))?;
        if let ControlFlow::Break(()) = visit(&key, value.into()) {
            break;
        }
    }
    Ok(())
}

fn engine(doing: &'static str, error: fjall::Error) -> StorageError {
    match error {
        fjall::Error::Poisoned => {
            StorageError::Stopped(format!("{doing}: the metadata engine had an input/output error"))
        }
        other => StorageError::Engine { doing, cause: format!("{other:?}") },
    }
}
