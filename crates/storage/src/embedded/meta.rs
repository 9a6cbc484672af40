//! Metadata in fjall, a log-structured merge tree with a journal.

use super::complaints::Complaints;
use super::directory::{Initialisation, StoreOptions};
use super::journal::{self, Journal};
use super::sealing::{Sealed, Sealing, wait_for_writing_out, wait_until};
use super::space::{FLOOR, Promised, SpaceWatch};
use crate::{Batch, Change, MetaRead, MetaStore, Origin, StorageError, StorageResult, Table, Visit, crash};
use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use std::error::Error as _;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Bytes of a sorted file. Merging rewrites one with all that it overlaps on the next level, some ten.
const TABLE: u64 = 32 << 20;

/// What merges take for the moment at most, bytes, with some merges at once. A whole tree is only compacted where it fits.
const MERGE_MAX: u64 = 1 << 30;

/// So many deletions are worth a compaction when space is short.
const TIDY_MIN: u64 = 1000;

/// How many times to see whether the engine has removed journals that it does not need.
const JOURNAL_POLLS: u32 = 100;

/// More commits than there will be: nothing was written out on purpose.
const NOTHING: u64 = u64::MAX;

/// Files of trees kept open at most.
const OPEN_MAX: usize = 256;

/// What the engine writes last when it makes a store.
pub(super) const ENGINE_MARKER: &str = "version";

/// The busy tables have a tree each, the others share one, where a key starts with the table's number: every tree costs
/// files, and syncs when it is made.
pub(super) const TREES: [&str; 5] = ["inode", "dirent", "extent", "reply", "other"];
const OTHER: usize = TREES.len() - 1;

pub struct EmbeddedMeta {
    database: Database,
    trees: Trees,
    journal: Option<Journal>,
    sealing: Sealing,
    /// Why nothing can be relied on any more.
    failed: OnceLock<String>,
    /// What is left to do until the directory is one that is kept.
    initialisation: Mutex<Option<Initialisation>>,
    space: SpaceWatch,
    /// Deletions since the trees were last compacted for their sake.
    deletions: AtomicU64,
    /// Dropped after the engine.
    end: End,
    _lock: Arc<File>,
}

/// What is left to do when the engine has ended.
#[derive(Debug)]
struct End {
    path: PathBuf,
    commits: AtomicU64,
    /// How many of the commits are in sorted files, all that were made before them included, when that was last asked for.
    written_out: AtomicU64,
}

impl Drop for End {
    /// A journal that has nothing to tell is not left for the next start to read.
    fn drop(&mut self) {
        let all = self.commits.load(Ordering::Acquire) == self.written_out.load(Ordering::Acquire);
        if all && let Err(error) = journal::empty_the_only(&self.path) {
            tracing::warn!(%error, "the next start reads a journal that it does not need");
        }
    }
}

impl EmbeddedMeta {
    pub(crate) fn open(
        path: PathBuf,
        options: &StoreOptions,
        promised: Arc<Promised>,
        lock: Arc<File>,
        initialisation: Option<Initialisation>,
    ) -> StorageResult<EmbeddedMeta> {
        let engine = |doing, error| engine(&path, doing, error);
        // One that is made anew for a directory that is kept has no trees yet.
        let is_kept = initialisation.is_none() && is_store(&path);
        if is_kept && let Some(tree) = unfinished_tree(&path) {
            let cause = format!("{} has no list of its tables", tree.display());
            return Err(StorageError::DamagedMetadata { path, doing: "opening", cause });
        }
        // Before the engine sees it: that refuses some torn tails, and others are bugs to it.
        let found = journal::cut_torn_tail(&path)?;
        let database = Database::builder(&path)
            .cache_size(options.meta_cache)
            .journal_compression(CompressionType::None)
            // As with the tables in memory: see `sealing`.
            .max_journaling_size(u64::MAX)
            .max_cached_files(Some(OPEN_MAX))
            .open()
            .map_err(|error| engine("opening", error))?;
        if is_kept && TREES.iter().any(|name| !database.keyspace_exists(name)) {
            let cause = "a tree is missing".to_owned();
            return Err(StorageError::DamagedMetadata { path, doing: "opening", cause });
        }
        let tree = |name| {
            let strategy = || Arc::new(Leveled::default().with_table_target_size(TABLE));
            let tree_options = || {
                KeyspaceCreateOptions::default().max_memtable_size(u64::MAX).compaction_strategy(strategy())
            };
            database.keyspace(name, tree_options).map_err(|error| engine("opening a tree", error))
        };
        let trees = Trees {
            trees: TREES.into_iter().map(tree).collect::<StorageResult<_>>()?,
            path: path.as_path().into(),
            damage: Arc::default(),
            complaints: Arc::default(),
        };
        Ok(EmbeddedMeta {
            database,
            trees,
            journal: Journal::find(&path, found)?,
            sealing: Sealing::new(options.memtable),
            failed: OnceLock::new(),
            initialisation: Mutex::new(initialisation),
            deletions: AtomicU64::new(0),
            space: SpaceWatch::new(path.clone(), options.reserve, promised),
            end: End { path, commits: AtomicU64::new(0), written_out: AtomicU64::new(NOTHING) },
            _lock: lock,
        })
    }
}

impl EmbeddedMeta {
    /// Bytes the engine may still write without anything being asked of it.
    fn upkeep(&self) -> u64 {
        let stored: u64 = self.trees.trees.iter().map(Keyspace::disk_space).sum();
        self.database.write_buffer_size().saturating_add(stored.min(MERGE_MAX))
    }

    /// Writes out what is in memory, so that journals can go. The engine does it in the background. False: it does not get there.
    fn write_out(&self) -> StorageResult<bool> {
        let trees = &self.trees.trees;
        let sealed = self.sealing.seal_all(trees);
        let sealed = sealed.map_err(|error| self.failure("writing out a tree", error))?;
        Ok(sealed == Sealed::All && wait_for_writing_out(trees))
    }

    /// Has trees written out that have grown. What was committed stays so, whatever comes of that.
    fn seal<'a>(&self, changed: impl Iterator<Item = &'a Keyspace>) {
        if let Err(error) = self.sealing.committed(&self.database, &self.trees.trees, changed) {
            let error = self.failure("writing out a tree", error);
            tracing::error!(%error, "the store stops");
            self.failed.get_or_init(|| error.to_string());
        }
    }

    /// What was found damaged since the opening, in words.
    pub fn damage(&self) -> Option<&str> {
        self.trees.damage.get().map(String::as_str)
    }

    fn failure(&self, doing: &'static str, error: fjall::Error) -> StorageError {
        let error = self.trees.failure(doing, error);
        if let StorageError::Stopped(cause) = &error {
            self.failed.get_or_init(|| cause.clone());
        }
        error
    }

    fn check_failed(&self) -> StorageResult<()> {
        self.failed.get().map_or(Ok(()), |cause| Err(StorageError::Stopped(cause.clone())))
    }
}

#[derive(Clone)]
struct Trees {
    trees: Vec<Keyspace>,
    path: Arc<Path>,
    /// The first damage that was met.
    damage: Arc<OnceLock<String>>,
    complaints: Arc<Complaints>,
}

impl Trees {
    /// A read that failed at this key of a table, or behind it.
    fn unreadable(
        &self,
        doing: &'static str,
        (table, key): (Table, &[u8]),
        error: fjall::Error,
    ) -> StorageError {
        let error = self.failure(doing, error);
        if let StorageError::DamagedMetadata { cause, .. } = &error
            && let Some(unsaid) = self.complaints.due(Instant::now())
        {
            tracing::error!(
                table = table.name(), key = %hex(key), cause, unsaid,
                "{doing} the metadata failed (EIO): they are damaged at this key or behind it. `soda fsck` says, when the server \
                 is stopped, which files are concerned"
            );
        }
        error
    }

    fn failure(&self, doing: &'static str, error: fjall::Error) -> StorageError {
        let error = engine(&self.path, doing, error);
        if let StorageError::DamagedMetadata { .. } = error {
            self.damage.get_or_init(|| error.to_string());
        }
        error
    }

    /// The place of a table's tree in [`TREES`].
    fn index(table: Table) -> usize {
        match table {
            Table::Inode => 0,
            Table::Dirent => 1,
            Table::Extent => 2,
            Table::Reply => 3,
            _ => OTHER,
        }
    }

    /// The tree of a table, and what its keys start with there.
    fn place(&self, table: Table) -> (&Keyspace, Option<u8>) {
        let index = Trees::index(table);
        (&self.trees[index], (index == OTHER).then_some(table as u8))
    }

    fn get(
        &self,
        table: Table,
        key: &[u8],
        read: impl FnOnce(&Keyspace, &[u8]) -> fjall::Result<Option<fjall::Slice>>,
    ) -> StorageResult<Option<Bytes>> {
        let (tree, prefix) = self.place(table);
        let value = match prefix {
            None => read(tree, key),
            Some(prefix) => read(tree, &prefixed(prefix, key)),
        };
        Ok(value.map_err(|error| self.unreadable("reading", (table, key), error))?.map(Bytes::from))
    }

    fn scan(
        &self,
        table: Table,
        (start, end): (&[u8], &[u8]),
        visit: Visit<'_>,
        open: impl FnOnce(&Keyspace, &[u8], &[u8]) -> fjall::Iter,
    ) -> StorageResult<()> {
        if start >= end {
            return Ok(());
        }
        let (tree, prefix) = self.place(table);
        let items = match prefix {
            None => open(tree, start, end),
            Some(prefix) => open(tree, &prefixed(prefix, start), &prefixed(prefix, end)),
        };
        let skip = usize::from(prefix.is_some());
        let mut passed = start.to_vec();
        for item in items {
            let (key, value) =
                item.into_inner().map_err(|error| self.unreadable("scanning", (table, &passed), error))?;
            passed.clear();
            passed.extend_from_slice(&key[skip..]);
            if visit(&key[skip..], value.into()).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// As in all messages.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn prefixed(prefix: u8, key: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(key.len() + 1);
    whole.push(prefix);
    whole.extend_from_slice(key);
    whole
}

impl MetaRead for EmbeddedMeta {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.trees.get(table, key, |tree, key| tree.get(key))
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.trees.scan(table, (start, end), visit, |tree, start, end| tree.range(start..end))
    }
}

impl MetaStore for EmbeddedMeta {
    fn stopped(&self) -> Option<String> {
        self.failed.get().cloned()
    }

    fn commit(&self, batch: Batch) -> StorageResult<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.check_failed()?;
        // What is in memory tables is going to be written a second time.
        self.space.admit(batch.size() * 2, batch.space, |promised| promised.set(self.upkeep()))?;
        crash::point("meta.commit.before");
        let mut writes = self.database.batch().durability(Some(PersistMode::Buffer));
        let deletions = batch.changes.iter().filter(|change| matches!(change, Change::Delete { .. })).count();
        self.deletions.fetch_add(deletions as u64, Ordering::Relaxed);
        let mut changed = [false; TREES.len()];
        for change in batch.changes {
            let (Change::Put { table, key, .. } | Change::Delete { table, key }) = &change;
            let (tree, prefix) = self.trees.place(*table);
            changed[Trees::index(*table)] = true;
            let key = prefix.map_or_else(|| key.clone(), |prefix| prefixed(prefix, key).into());
            match change {
                Change::Put { value, .. } => writes.insert(tree, key, value),
                Change::Delete { .. } => writes.remove(tree, key),
            }
        }
        let committed = match &self.journal {
            Some(journal) => journal.commit(|| writes.commit()),
            None => writes.commit(),
        };
        self.end.commits.fetch_add(1, Ordering::AcqRel);
        committed.map_err(|error| self.failure("committing", error))?;
        crash::point("meta.commit.after");
        let trees = self.trees.trees.iter().zip(changed);
        self.seal(trees.filter_map(|(tree, changed)| changed.then_some(tree)));
        Ok(())
    }

    fn sync(&self) -> StorageResult<()> {
        crash::point("meta.sync.before");
        self.check_failed()?;
        let synced = match &self.journal {
            Some(journal) => journal.sync(),
            None => {
                self.database.persist(PersistMode::SyncData).map_err(|error| self.failure("syncing", error))
            }
        };
        if let Err(error) = synced {
            // The kernel has dropped the dirty pages: a second attempt would succeed without the data being there.
            self.failed.get_or_init(|| error.to_string());
            return Err(error);
        }
        crash::point("meta.sync.after");
        Ok(())
    }

    /// A deletion is one more record until a merge brings it together with what it deletes. Merges come with growth, so on a
    /// medium that is nearly full they have to be asked for: else what is deleted would never make space.
    fn tidy(&self) -> StorageResult<()> {
        if self.deletions.load(Ordering::Relaxed) < TIDY_MIN {
            return Ok(());
        }
        let reserve = self.space.reserve();
        let free = self.space.medium()?.free;
        // The memory tables are written out first. Where others have left no room for them, nothing can be done yet.
        let needed = self.database.write_buffer_size().saturating_add(FLOOR);
        if free > reserve.saturating_mul(2) || free < needed {
            return Ok(());
        }
        self.check_failed()?;
        self.deletions.store(0, Ordering::Relaxed);
        self.write_out()?;
        for tree in &self.trees.trees {
            // The merged files are written before the old ones go.
            if tree.disk_space() > 0 && self.space.medium()?.free > tree.disk_space() + FLOOR {
                tree.major_compact().map_err(|error| self.failure("compacting", error))?;
            }
        }
        self.space.recheck();
        self.space.promise(self.upkeep());
        Ok(())
    }

    fn checkpoint(&self) -> StorageResult<()> {
        self.check_failed()?;
        // Counted when they are in the memory tables: one that is not among these may miss the writing out.
        let commits = self.end.commits.load(Ordering::Acquire);
        let is_written_out = self.write_out()?;
        // The engine takes the older journals away a moment later.
        wait_until(JOURNAL_POLLS, || self.database.journal_count() == 1);
        if is_written_out {
            self.end.written_out.store(commits, Ordering::Release);
        }
        Ok(())
    }

    fn origin(&self) -> Origin {
        match &*self.initialisation.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(_) => Origin::New,
            None => Origin::Kept,
        }
    }

    fn complete(&self) -> StorageResult<()> {
        let mut left = self.initialisation.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(initialisation) = &*left {
            initialisation.end()?;
        }
        *left = None;
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn MetaRead> {
        Box::new(EmbeddedSnapshot { snapshot: self.database.snapshot(), trees: self.trees.clone() })
    }
}

impl fmt::Debug for EmbeddedMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedMeta").field("space", &self.space).finish_non_exhaustive()
    }
}

struct EmbeddedSnapshot {
    snapshot: fjall::Snapshot,
    trees: Trees,
}

impl MetaRead for EmbeddedSnapshot {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.trees.get(table, key, |tree, key| self.snapshot.get(tree, key))
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.trees.scan(table, (start, end), visit, |tree, start, end| self.snapshot.range(tree, start..end))
    }
}

impl fmt::Debug for EmbeddedSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EmbeddedSnapshot")
    }
}

fn engine(path: &Path, doing: &'static str, error: fjall::Error) -> StorageError {
    match error {
        fjall::Error::Poisoned => {
            StorageError::Stopped(format!("{doing}: the metadata engine had an input/output error"))
        }
        other if is_damage(&other) => {
            let text = format!("{other:?}");
            // The sums themselves tell nobody anything.
            let cause =
                if text.contains("ChecksumMismatch") { "a check sum is wrong".to_owned() } else { text };
            StorageError::DamagedMetadata { path: path.to_owned(), doing, cause }
        }
        other => StorageError::Engine { doing, cause: format!("{other:?}") },
    }
}

/// Whether what is on the medium cannot be what was written.
fn is_damage(error: &fjall::Error) -> bool {
    let medium = match error {
        fjall::Error::Locked | fjall::Error::KeyspaceDeleted => return false,
        fjall::Error::Io(error) => Some(error),
        // The trees' errors have a source only where the system had one.
        fjall::Error::Storage(error) => error.source().and_then(|source| source.downcast_ref()),
        _ => None,
    };
    medium.is_none_or(|error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidData)
    })
}

/// A tree that the engine would take for one that it has not made to the end, and remove.
fn unfinished_tree(path: &Path) -> Option<PathBuf> {
    let trees = std::fs::read_dir(path.join("keyspaces")).into_iter().flatten().flatten();
    trees.map(|tree| tree.path()).find(|tree| tree.is_dir() && !tree.join("current").exists())
}

/// The tables of a tree, and what their keys begin with there.
pub(super) fn tables_of(tree: usize) -> impl Iterator<Item = (Table, Option<u8>)> {
    let tables = Table::ALL.iter().copied().filter(move |table| Trees::index(*table) == tree);
    tables.map(move |table| (table, (tree == OTHER).then_some(table as u8)))
}

/// The table of a tree's key, and the key there.
pub(super) fn table_of(tree: usize, key: &Bytes) -> Option<(Table, Bytes)> {
    let mut tables = tables_of(tree);
    match tree {
        OTHER => {
            let prefix = *key.first()?;
            tables.find(|(_, own)| *own == Some(prefix)).map(|(table, _)| (table, key.slice(1..)))
        }
        _ => tables.next().map(|(table, _)| (table, key.clone())),
    }
}

/// Whether the engine has made a store there, to the end.
pub(crate) fn is_store(path: &Path) -> bool {
    path.join(ENGINE_MARKER).exists()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
