//! What can be saved of damaged metadata: read below the engine, and put into a new store beside the old one.
//!
//! *The problem.* The engine gives up at the first wrong check sum. Where one block of a table is damaged, a scan ends there;
//! where it is what the engine needs to open a table, or its list of tables, nothing is read at all, and a tree that looks
//! unfinished to it is removed.
//!
//! *What is done.* All tables and journals are read here, block by block (`tree`, `table`, `block`), and merged as the engine
//! would: of each key the newest change counts. A damaged block leaves a gap: keys of which something may be lost. It may also
//! have had what is newer than what other tables have of these keys. The filter of a table, where it is whole, says which ones:
//! 99 of 100 keys of a gap that are not in the block are known not to be.
//!
//! *What is kept.* What is known to be the newest. Of an inode also what is older, since without one its name and its data
//! would be lost; and where no filter says anything, what may be older, since most of it is not. Both are named. Nothing older
//! is kept of what the server or the volume counts by: to have none of these is safe, to have an old one is not.
//!
//! Nothing is changed in the damaged directory until the new one is whole: then they change names ([`Salvage::install`]).

mod archive;
mod block;
mod lost;
mod table;
mod tree;

pub use lost::{LostRange, OldRecord, Salvaged};

use super::directory::{self, DataDirectory, StoreOptions};
use super::journal;
use super::meta::{self, EmbeddedMeta, TREES};
use super::space::Promised;
use super::{EmbeddedData, directory::META_NEW};
use crate::{Batch, DataStore, MetaStore, StorageError, StorageResult, Table};
use bytes::Bytes;
use lost::{Kept, kept};
use rustix::fs::{CWD, RenameFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tree::{Found, Journalled, Tree};

/// Bytes of a batch into the new store.
const BATCH: u64 = 1 << 20;

/// Metadata of which not all is what was written, in a directory that is locked.
#[derive(Debug)]
pub struct DamagedMetadata {
    path: PathBuf,
    lock: Arc<File>,
    /// The engine's own, of its trees.
    engine: Tree,
    /// As [`TREES`].
    trees: Vec<Tree>,
    /// By which the engine knows that a store is one of its own.
    marker: Option<PathBuf>,
}

/// New metadata for a directory whose own are damaged, with all that could be read of them.
#[derive(Debug)]
pub struct Salvage {
    /// With the new metadata, and the data as they are.
    pub directory: DataDirectory,
    pub found: Salvaged,
    path: PathBuf,
    _lock: Arc<File>,
}

impl DataDirectory {
    /// Reads all tables of the metadata of a directory that no server uses. `None`: each is what was written.
    ///
    /// # Errors
    /// As [`DataDirectory::open_to_look`], but for what is damaged of the metadata or their journal.
    pub fn damaged_metadata(path: impl AsRef<Path>) -> StorageResult<Option<DamagedMetadata>> {
        let (path, lock) = directory::begin_to_look(path.as_ref())?;
        match directory::check_stores(&path) {
            Ok(()) | Err(StorageError::NoData { .. }) => {}
            Err(error) => return Err(error),
        }
        let meta = path.join(directory::META_DIR);
        let keyspaces = meta.join("keyspaces");
        let open = |number: u64| {
            let path = keyspaces.join(number.to_string());
            Tree::open(&path).map_err(|error| StorageError::io(format!("reading {}", path.display()), error))
        };
        let engine = open(0)?;
        let numbers = numbers_of_trees(&engine);
        let trees = numbers.into_iter().map(open).collect::<StorageResult<Vec<_>>>()?;
        let marker = Some(meta.join(meta::ENGINE_MARKER)).filter(|path| {
            // Its first bytes, and its version.
            !fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"FJL\x03"))
        });
        let damaged = DamagedMetadata { path, lock, engine, trees, marker };
        let is_sound =
            damaged.marker.is_none() && damaged.engine.is_sound() && damaged.trees.iter().all(Tree::is_sound);
        Ok((!is_sound).then_some(damaged))
    }
}

impl DamagedMetadata {
    /// Whether all records can be read, and only the engine is in want of something.
    pub fn has_all_records(&self) -> bool {
        self.trees.iter().all(|tree| tree.gaps().next().is_none())
    }

    /// For those who only look: the new metadata, and links to the data, are in `shadow`, an empty directory.
    pub fn salvage_to_look(self, shadow: &Path, options: StoreOptions) -> StorageResult<Salvage> {
        directory::check_stores(&self.path)?;
        directory::mirror_data(&self.path, shadow)?;
        let options = StoreOptions { reserve: 0, ..options };
        let (meta, data) = (shadow.join(directory::META_DIR), shadow.join(directory::DATA_DIR));
        self.salvage_into(&meta, data, &options)
    }

    /// Makes the new metadata beside the old ones. What an attempt before this one has left of them goes.
    pub fn salvage(self, options: &StoreOptions) -> StorageResult<Salvage> {
        let (meta, data) = (self.path.join(META_NEW), self.path.join(directory::DATA_DIR));
        match fs::remove_dir_all(&meta) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(StorageError::io(format!("removing {}", meta.display()), error));
            }
            _ => {}
        }
        self.salvage_into(&meta, data, options)
    }

    fn salvage_into(self, meta: &Path, data: PathBuf, options: &StoreOptions) -> StorageResult<Salvage> {
        let promised = Arc::new(Promised::default());
        let store = EmbeddedMeta::open(meta.to_owned(), options, promised.clone(), self.lock.clone(), None)?;
        let found = self.copy(&store)?;
        let data = EmbeddedData::open(data, options, promised, self.lock.clone())?;
        let directory = DataDirectory::of(self.path.clone(), store, data);
        Ok(Salvage { directory, found, path: self.path, _lock: self.lock })
    }

    fn copy(&self, to: &EmbeddedMeta) -> StorageResult<Salvaged> {
        let mut batch = Batch::new();
        let salvaged = self.each(|table, key, value| {
            batch.put(table, key, value);
            match batch.size() >= BATCH {
                true => to.commit(std::mem::take(&mut batch)),
                false => Ok(()),
            }
        })?;
        to.commit(batch)?;
        to.sync()?;
        Ok(salvaged)
    }

    /// Hands on all records that are kept.
    fn each(&self, mut put: impl FnMut(Table, Bytes, Bytes) -> StorageResult<()>) -> StorageResult<Salvaged> {
        let mut salvaged = self.found();
        let mut journalled: Vec<Journalled> = vec![BTreeMap::new(); self.trees.len()];
        let numbers = numbers_of_trees(&self.engine).into_iter().enumerate();
        let places: BTreeMap<u64, usize> = numbers.map(|(place, number)| (number, place)).collect();
        salvaged.lost_batches = journal::each_change(&self.path.join(directory::META_DIR), |change| {
            let Some(place) = places.get(&change.tree) else { return };
            let newest = (change.seqno, change.value);
            match journalled[*place].get(&change.key) {
                Some((seqno, _)) if *seqno > change.seqno => {}
                _ => drop(journalled[*place].insert(change.key, newest)),
            }
        })?;
        for (place, (tree, journalled)) in self.trees.iter().zip(&journalled).enumerate() {
            tree.each(journalled, |Found { key, value, age }| {
                let (Some(value), Some((table, key))) = (value, meta::table_of(place, &key)) else {
                    return Ok(());
                };
                match kept(table, age) {
                    Kept::No => return Ok(()),
                    Kept::Yes => {}
                    Kept::Named => salvaged.old.push(OldRecord { table, key: key.clone() }),
                }
                salvaged.records += 1;
                put(table, key, value)
            })?;
        }
        Ok(salvaged)
    }

    /// What is damaged, and what is lost by it.
    fn found(&self) -> Salvaged {
        let mut found = Salvaged::default();
        let parts = |tree: &Tree| -> Vec<String> {
            tree.damaged_parts.iter().map(|(file, part)| format!("{}: {part}", tree.name_of(file))).collect()
        };
        found.damaged.extend(self.marker.iter().map(|path| format!("{}: all of it", file_name(path))));
        found.damaged.extend(parts(&self.engine));
        let of_engine = self.engine.gaps().map(|(file, _)| {
            format!("{}: what the engine keeps of its trees (it is made anew)", self.engine.name_of(file))
        });
        found.damaged.extend(of_engine);
        for (number, tree) in self.trees.iter().enumerate() {
            found.damaged.extend(parts(tree));
            for (file, gap) in tree.gaps() {
                let file = tree.name_of(file);
                found.lost.extend(lost::ranges(number, &gap, &file));
            }
        }
        found
    }
}

impl Salvage {
    /// Puts the new metadata into the place of the old ones, durably. These are kept, as `meta.damaged-<date>`: returns where.
    /// Nobody else may have the stores any more.
    pub fn install(self, date: &str) -> StorageResult<PathBuf> {
        let Salvage { directory, path, _lock, .. } = self;
        let io = |error| StorageError::io(format!("changing the metadata of {}", path.display()), error);
        directory.meta.checkpoint()?;
        directory.meta.sync()?;
        directory.data.sync()?;
        let DataDirectory { meta, data, .. } = directory;
        // The engine must have ended.
        if Arc::into_inner(meta).is_none() {
            return Err(io(ErrorKind::ResourceBusy.into()));
        }
        drop(data);
        let (new, old) = (path.join(META_NEW), path.join(directory::META_DIR));
        let sync = |path: &Path| File::open(path).and_then(|directory| directory.sync_all()).map_err(io);
        sync(&new)?;
        let kept = free_name(&path, date);
        // Under the name that is not removed by the next attempt, whichever of them a crash leaves there.
        fs::rename(&new, &kept).map_err(io)?;
        match rustix::fs::renameat_with(CWD, &kept, CWD, &old, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // Not every file system can: then there is a moment with none.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                fs::rename(&kept, &new).map_err(io)?;
                fs::rename(&old, &kept).map_err(io)?;
                fs::rename(&new, &old).map_err(io)?;
            }
            Err(error) => return Err(io(error.into())),
        }
        sync(&path)?;
        Ok(kept)
    }
}

fn free_name(path: &Path, date: &str) -> PathBuf {
    let names = std::iter::once(format!("meta.damaged-{date}"))
        .chain((2..).map(|number| format!("meta.damaged-{date}-{number}")));
    names.map(|name| path.join(name)).find(|path| !path.exists()).unwrap_or_else(|| path.join(date))
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.display().to_string()).unwrap_or_default()
}

/// The engine's numbers of [`TREES`]. It gives them in that order; what it has noted of them counts.
fn numbers_of_trees(engine: &Tree) -> Vec<u64> {
    let mut noted: BTreeMap<Bytes, u64> = BTreeMap::new();
    let read = engine.each(&Journalled::new(), |Found { key, value, .. }| {
        if let (Some((b'n', number)), Some(name)) = (key.split_first(), value)
            && let Ok(number) = number.try_into().map(u64::from_be_bytes)
        {
            noted.insert(name, number);
        }
        Ok::<(), std::convert::Infallible>(())
    });
    match read {
        Ok(()) => {}
    }
    let number =
        |(place, name): (usize, &&str)| noted.get(name.as_bytes()).copied().unwrap_or(place as u64 + 1);
    TREES.iter().enumerate().map(number).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
