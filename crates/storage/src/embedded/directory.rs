//! A server's data directory: who it belongs to, in which format, and that one server uses it at a time.

use super::space::Promised;
use super::{EmbeddedData, EmbeddedMeta, journal, meta};
use crate::{StorageError, StorageResult, crash};
use rustix::fs::FlockOperation;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The version of the layout that this program reads and writes. Before a first release older ones are not converted.
pub const FORMAT_VERSION: u32 = 4;

/// Each tree may have as much in memory once more while that is written out.
const MEMTABLE: u64 = 32 << 20;

const MAGIC: &str = "soda data directory";
const FORMAT_FILE: &str = "FORMAT";
const FORMAT_NEW: &str = "FORMAT.new";
const LOCK_FILE: &str = "LOCK";
pub(super) const META_DIR: &str = "meta";
pub(super) const DATA_DIR: &str = "data";
/// New metadata on their way; what a crash leaves of them is begun anew.
pub(super) const META_NEW: &str = "meta.new";

#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Free bytes of the file system below which nothing that takes space is accepted.
    pub reserve: u64,
    /// Length at which a segment is sealed and the next begun, bytes.
    pub segment_len: u64,
    /// Memory for blocks of the metadata engine, bytes.
    pub meta_cache: u64,
    /// Bytes of a tree's changes in memory from which on they are written out as a sorted file.
    pub memtable: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        let (reserve, segment_len, meta_cache, memtable) = (64 << 20, 256 << 20, 128 << 20, MEMTABLE);
        StoreOptions { reserve, segment_len, meta_cache, memtable }
    }
}

/// An open data directory. Dropping it (and what was taken from it) unlocks the directory.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    pub meta: Arc<EmbeddedMeta>,
    pub data: Arc<EmbeddedData>,
}

impl DataDirectory {
    /// Opens a data directory that is there, for tools: makes nothing where there is none.
    pub fn open_existing(path: impl AsRef<Path>, options: StoreOptions) -> StorageResult<DataDirectory> {
        let path = path.as_ref();
        match path.join(FORMAT_FILE).exists() {
            true => DataDirectory::open(path, options),
            false if has_stores(path) && !path.join(FORMAT_NEW).exists() => {
                Err(bad_format(path, "it is missing"))
            }
            false => Err(StorageError::NoDataDirectory { path: path.to_owned() }),
        }
    }

    /// Opens a data directory; begins one where nothing or an empty directory is. It is one that is there as soon as what has
    /// to be in it from the start is: [`MetaStore::complete`](crate::MetaStore::complete).
    pub fn open(path: impl AsRef<Path>, options: StoreOptions) -> StorageResult<DataDirectory> {
        let path = path.as_ref();
        let io = |doing: &str, error| StorageError::io(format!("{doing} {}", path.display()), error);
        fs::create_dir_all(path).map_err(|error| io("creating the data directory", error))?;
        let path = &path.canonicalize().map_err(|error| io("finding the data directory", error))?;
        refuse_foreign(path)?;
        let lock = Arc::new(lock(path)?);
        shut(path);
        let initialisation = match fs::read(path.join(FORMAT_FILE)) {
            Ok(text) => {
                check_format(path, &String::from_utf8_lossy(&text))?;
                check_stores(path)?;
                None
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Some(Initialisation::begin(path)?),
            Err(error) => return Err(io("reading the format of", error)),
        };
        let promised = Arc::new(Promised::default());
        Ok(DataDirectory {
            path: path.clone(),
            meta: Arc::new(EmbeddedMeta::open(
                path.join(META_DIR),
                &options,
                promised.clone(),
                lock.clone(),
                initialisation,
            )?),
            data: Arc::new(EmbeddedData::open(path.join(DATA_DIR), &options, promised, lock)?),
        })
    }

    /// Opens what is there for those who only look, and changes nothing of it, the lock's owner excepted. Who reads a store
    /// also writes: the engine goes through its journal, and merges. So it does that in `shadow`, an empty directory, where it
    /// has copies of what it may write to, and links to what is never changed: mostly the journal is copied.
    pub fn open_to_look(
        path: impl AsRef<Path>,
        shadow: &Path,
        options: StoreOptions,
    ) -> StorageResult<DataDirectory> {
        let (path, lock) = begin_to_look(path.as_ref())?;
        check_stores(&path)?;
        let copied = mirror(&path.join(META_DIR), &shadow.join(META_DIR), "tables");
        copied.map_err(|error| not_copied(&path, shadow, error))?;
        mirror_data(&path, shadow)?;
        let options = StoreOptions { reserve: 0, ..options };
        let promised = Arc::new(Promised::default());
        let (meta, data) = (shadow.join(META_DIR), shadow.join(DATA_DIR));
        Ok(DataDirectory {
            path,
            meta: Arc::new(EmbeddedMeta::open(meta, &options, promised.clone(), lock.clone(), None)?),
            data: Arc::new(EmbeddedData::open(data, &options, promised, lock)?),
        })
    }

    pub(super) fn of(path: PathBuf, meta: EmbeddedMeta, data: EmbeddedData) -> DataDirectory {
        DataDirectory { path, meta: Arc::new(meta), data: Arc::new(data) }
    }

    /// Opens a data directory that has lost all of its data ([`StorageError::NoData`]), and begins new ones. What the metadata
    /// refer to reads as an error then.
    pub fn open_without_data(path: impl AsRef<Path>, options: StoreOptions) -> StorageResult<DataDirectory> {
        let path = path.as_ref();
        let io = |doing: &str, error| StorageError::io(format!("{doing} {}", path.display()), error);
        let path = &path.canonicalize().map_err(|error| io("finding the data directory", error))?;
        let lock = Arc::new(lock(path)?);
        let text = fs::read(path.join(FORMAT_FILE)).map_err(|error| io("reading the format of", error))?;
        check_format(path, &String::from_utf8_lossy(&text))?;
        match check_stores(path) {
            Err(StorageError::NoData { .. }) => {}
            Err(error) => return Err(error),
            Ok(()) => return Err(StorageError::InUse { path: path.to_owned() }),
        }
        let promised = Arc::new(Promised::default());
        let meta = path.join(META_DIR);
        let meta = Arc::new(EmbeddedMeta::open(meta, &options, promised.clone(), lock.clone(), None)?);
        let data = Arc::new(EmbeddedData::open(path.join(DATA_DIR), &options, promised, lock)?);
        let synced = sync_directory(&path.join(DATA_DIR)).and_then(|()| sync_directory(path));
        synced.map_err(|error| io("syncing", error))?;
        Ok(DataDirectory { path: path.clone(), meta, data })
    }

    /// Cuts a journal off where it is damaged ([`StorageError::DamagedJournal`]), and keeps a copy of what is behind. Returns how
    /// many batches of changes are lost at least.
    pub fn accept_lost_changes(path: impl AsRef<Path>) -> StorageResult<Option<u64>> {
        let path = path.as_ref();
        let io = |doing: &str, error| StorageError::io(format!("{doing} {}", path.display()), error);
        let path = &path.canonicalize().map_err(|error| io("finding the data directory", error))?;
        let _lock = lock(path)?;
        let text = fs::read(path.join(FORMAT_FILE)).map_err(|error| io("reading the format of", error))?;
        check_format(path, &String::from_utf8_lossy(&text))?;
        journal::accept_loss(&path.join(META_DIR))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks a directory that is there and has a format that is known, for those who change nothing of it.
pub(super) fn begin_to_look(path: &Path) -> StorageResult<(PathBuf, Arc<File>)> {
    let io = |doing: &str, error| StorageError::io(format!("{doing} {}", path.display()), error);
    let path = path.canonicalize().map_err(|error| io("finding the data directory", error))?;
    let text = match fs::read(path.join(FORMAT_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(match has_stores(&path) && !path.join(FORMAT_NEW).exists() {
                true => bad_format(&path, "it is missing"),
                false => StorageError::NoDataDirectory { path },
            });
        }
        Err(error) => return Err(io("reading the format of", error)),
    };
    let lock = Arc::new(lock_to_look(&path)?);
    check_format(&path, &String::from_utf8_lossy(&text))?;
    Ok((path, lock))
}

/// Links in `shadow` to the data of a directory.
pub(super) fn mirror_data(path: &Path, shadow: &Path) -> StorageResult<()> {
    let copied = mirror(&path.join(DATA_DIR), &shadow.join(DATA_DIR), DATA_DIR);
    copied.map_err(|error| not_copied(path, shadow, error))
}

fn not_copied(path: &Path, shadow: &Path, error: std::io::Error) -> StorageError {
    let (from, to) = (path.display(), shadow.display());
    StorageError::io(format!("copying to {to} what is to be looked at of {from}"), error)
}

/// The directories of a tree, links to what is in files of those directories that are called `linked`, and copies of all other
/// files. Empty ones are not linked: who opens a store takes an empty segment for its own.
fn mirror(from: &Path, to: &Path, linked: &str) -> std::io::Result<()> {
    fs::create_dir(to)?;
    let links = from.file_name().is_some_and(|name| name == linked);
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            mirror(&from, &to, linked)?;
        } else if links && entry.metadata()?.len() > 0 {
            std::os::unix::fs::symlink(&from, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

/// Refuses a directory with something in it that is not ours, before anything is written to it.
fn refuse_foreign(path: &Path) -> StorageResult<()> {
    if path.join(FORMAT_FILE).exists() {
        return Ok(());
    }
    let io = |error| StorageError::io(format!("listing {}", path.display()), error);
    let begun = path.join(FORMAT_NEW).exists();
    if !begun && has_stores(path) {
        return Err(bad_format(path, "it is missing"));
    }
    for entry in fs::read_dir(path).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        // What an initialisation that was cut short leaves. A file system of its own has `lost+found`.
        let ours = [LOCK_FILE, FORMAT_NEW, "lost+found"].iter().any(|known| name == *known);
        let stores = begun && [META_DIR, DATA_DIR].iter().any(|known| name == *known);
        if !ours && !stores {
            return Err(StorageError::NotOurs { path: path.to_owned() });
        }
    }
    Ok(())
}

/// What is in it is for the server's user only, whatever the modes in the volume say. A file system without modes of its own
/// cannot do that.
fn shut(path: &Path) {
    let is_open = |metadata: &fs::Metadata| metadata.permissions().mode() & 0o077 != 0;
    if fs::metadata(path).is_ok_and(|metadata| is_open(&metadata)) {
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
    }
}

fn lock(path: &Path) -> StorageResult<File> {
    let file = path.join(LOCK_FILE);
    flock(path, File::options().create(true).truncate(false).write(true).open(file))
}

/// As [`lock`], and makes nothing: a directory without the file is one that no server has, and that is locked itself.
fn lock_to_look(path: &Path) -> StorageResult<File> {
    flock(path, File::open(path.join(LOCK_FILE)).or_else(|_| File::open(path)))
}

fn flock(path: &Path, lock: std::io::Result<File>) -> StorageResult<File> {
    let io = |error| StorageError::io(format!("locking {}", path.join(LOCK_FILE).display()), error);
    let lock = lock.map_err(io)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StorageError::InUse { path: path.to_owned() }),
        Err(errno) => Err(io(errno.into())),
    }
}

/// The first line is the magic, the second the version.
fn check_format(path: &Path, text: &str) -> StorageResult<()> {
    let mut lines = text.lines();
    if lines.next() != Some(MAGIC) {
        return match has_stores(path) {
            true => Err(bad_format(path, "its first line is not ours")),
            false => Err(StorageError::NotOurs { path: path.to_owned() }),
        };
    }
    let version =
        lines.next().and_then(|line| line.strip_prefix("version ")).and_then(|text| text.parse().ok());
    match version {
        None => Err(bad_format(path, "it has no version")),
        Some(found) if found > FORMAT_VERSION => {
            Err(StorageError::TooNew { path: path.to_owned(), found, known: FORMAT_VERSION })
        }
        Some(found) if found < FORMAT_VERSION => {
            Err(StorageError::TooOld { path: path.to_owned(), found, known: FORMAT_VERSION })
        }
        Some(_) => Ok(()),
    }
}

/// Whether something is there that looks like a server's.
fn has_stores(path: &Path) -> bool {
    path.join(META_DIR).is_dir() && path.join(DATA_DIR).is_dir()
}

fn bad_format(path: &Path, problem: &'static str) -> StorageError {
    StorageError::BadFormat { path: path.join(FORMAT_FILE), problem, version: FORMAT_VERSION }
}

/// Refuses a directory that was initialised and has lost one of its stores. Both have files from the beginning; if they were
/// made anew, the names would be gone, and the data be taken for what nothing refers to.
pub(super) fn check_stores(path: &Path) -> StorageResult<()> {
    let has = |directory: &str, extension: &str| {
        fs::read_dir(path.join(directory)).is_ok_and(|entries| {
            entries
                .flatten()
                .any(|entry| Path::new(&entry.file_name()).extension().is_some_and(|it| it == extension))
        })
    };
    if !meta::is_store(&path.join(META_DIR)) || !has(META_DIR, "jnl") {
        return Err(StorageError::NoMetadata { path: path.to_owned() });
    }
    match has(DATA_DIR, "seg") {
        true => Ok(()),
        false => Err(StorageError::NoData { path: path.to_owned() }),
    }
}

/// A data directory on its way to be one. It has `FORMAT.new` from before anything else to after all else, so that what a
/// crash leaves of it is not taken for a directory that has lost something.
#[derive(Debug)]
pub(crate) struct Initialisation {
    path: PathBuf,
}

impl Initialisation {
    fn begin(path: &Path) -> StorageResult<Initialisation> {
        let io = |error| StorageError::io(format!("initialising {}", path.display()), error);
        let mut file = File::create(path.join(FORMAT_NEW)).map_err(io)?;
        write!(file, "{MAGIC}\nversion {FORMAT_VERSION}\n").map_err(io)?;
        file.sync_all().map_err(io)?;
        sync_directory(path).map_err(io)?;
        crash::point("format.begun");
        let meta = path.join(META_DIR);
        if meta.exists() && !meta::is_store(&meta) {
            // The engine does not go on with one that it has not made to the end.
            fs::remove_dir_all(&meta).map_err(io)?;
        }
        Ok(Initialisation { path: path.to_owned() })
    }

    /// Writes FORMAT last and by rename: a directory has it whole or not at all, and with all else.
    pub(crate) fn end(&self) -> StorageResult<()> {
        let io = |error| StorageError::io(format!("initialising {}", self.path.display()), error);
        sync_directory(&self.path.join(DATA_DIR)).map_err(io)?;
        sync_directory(&self.path).map_err(io)?;
        fs::rename(self.path.join(FORMAT_NEW), self.path.join(FORMAT_FILE)).map_err(io)?;
        sync_directory(&self.path).map_err(io)?;
        crash::point("format.written");
        Ok(())
    }
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path).and_then(|directory| directory.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Only what says that it is ours, in a version that is known, is opened.
        #[test]
        fn any_text_is_a_format_or_an_error(text in ".{0,60}", number in any::<u64>()) {
            let path = Path::new("/nowhere");
            prop_assert!(check_format(path, &text).is_err());
            let no_version = format!("{MAGIC}\n{text}");
            prop_assert!(check_format(path, &no_version).is_err());
            let versioned = format!("{MAGIC}\nversion {number}\n");
            prop_assert_eq!(check_format(path, &versioned).is_ok(), number == u64::from(FORMAT_VERSION));
        }
    }
}
