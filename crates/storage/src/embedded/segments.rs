//! Chunks in append-only segment files, `data/<id in hex>.seg`.
//!
//! Only the newest segment grows. After a restart a new one is begun: what the end of an old one looks like after a
//! crash does not matter, nothing refers to it. Space is given back by punching holes; a sealed segment without a stored
//! block is deleted, except the newest of all, whose name keeps ids from being used twice.

use super::directory::StoreOptions;
use super::space::{Promised, SpaceWatch};
use crate::data::chunk_len;
use crate::{
    CHUNK_ALIGN, CHUNK_MAX, ChunkRef, DataStore, SegmentId, SegmentInfo, SegmentState, Space, SpaceUse,
    StorageError, StorageResult, crash,
};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Segment files kept open at most.
const OPEN_MAX: usize = 256;

/// Bytes that data leaves free above the reserve, so that a disk filled with data still takes new names.
const METADATA_SHARE: u64 = 16 << 20;

#[derive(Debug)]
pub struct EmbeddedData {
    directory: PathBuf,
    segment_len: u64,
    space: SpaceWatch,
    log: Mutex<Log>,
    /// Held through a sync: whoever finds nothing left to sync must not return before the one who took it is done.
    syncing: Mutex<()>,
    open: Mutex<BTreeMap<SegmentId, Arc<File>>>,
    _lock: Arc<File>,
}

#[derive(Debug)]
struct Log {
    active: SegmentId,
    file: Arc<File>,
    /// Where the next chunk goes.
    end: u64,
    /// Appends under way. Their segments are not dead, although nothing may be stored in them yet.
    appending: BTreeMap<SegmentId, usize>,
    /// Written to since their last sync.
    unsynced: BTreeMap<SegmentId, Arc<File>>,
    /// The segment's directory entry has to be synced as well.
    new_entry: NewEntry,
    failed: Option<String>,
}

/// A place at the end of the log, for a chunk that is about to be written.
#[derive(Debug)]
struct Place<'a> {
    store: &'a EmbeddedData,
    segment: SegmentId,
    offset: u64,
    file: Arc<File>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut log = self.store.log();
        if let Some(appending) = log.appending.get_mut(&self.segment) {
            *appending -= 1;
            if *appending == 0 {
                log.appending.remove(&self.segment);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NewEntry {
    Synced,
    Unsynced,
}

impl EmbeddedData {
    pub(crate) fn open(
        directory: PathBuf,
        options: &StoreOptions,
        promised: Arc<Promised>,
        lock: Arc<File>,
    ) -> StorageResult<EmbeddedData> {
        fs::create_dir_all(&directory).map_err(|error| io_error("creating", &directory, error))?;
        let newest = list(&directory)?.last().copied();
        // An empty newest one was never written to: it may be used, so that restarts do not leave a trail of files.
        let active = match newest {
            None => SegmentId(1),
            Some(id) if file_len(&directory, id)? == 0 => id,
            Some(id) => SegmentId(id.0 + 1),
        };
        let file = Arc::new(open_segment(&directory, active)?);
        crash::point("segment.created");
        let log = Log {
            active,
            file,
            end: 0,
            appending: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            new_entry: NewEntry::Unsynced,
            failed: None,
        };
        let store = EmbeddedData {
            space: SpaceWatch::new(
                directory.clone(),
                options.reserve.saturating_add(METADATA_SHARE),
                promised,
            ),
            directory,
            segment_len: options.segment_len,
            log: Mutex::new(log),
            syncing: Mutex::new(()),
            open: Mutex::default(),
            _lock: lock,
        };
        for segment in store.segments()? {
            store.delete_if_dead(segment.id)?;
        }
        Ok(store)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of a chunk at the end of the log.
    fn place(&self, len: u64) -> StorageResult<Place<'_>> {
        let mut log = self.log();
        if let Some(cause) = &log.failed {
            return Err(StorageError::Stopped(cause.clone()));
        }
        if log.end > 0 && log.end + len > self.segment_len {
            let next = SegmentId(log.active.0 + 1);
            log.file = Arc::new(open_segment(&self.directory, next)?);
            log.active = next;
            log.end = 0;
            log.new_entry = NewEntry::Unsynced;
            crash::point("segment.created");
        }
        let offset = log.end;
        log.end = (offset + len).next_multiple_of(CHUNK_ALIGN);
        let (segment, file) = (log.active, log.file.clone());
        *log.appending.entry(segment).or_default() += 1;
        Ok(Place { store: self, segment, offset, file })
    }

    fn file(&self, id: SegmentId) -> StorageResult<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&id) {
            return Ok(file.clone());
        }
        let path = segment_path(&self.directory, id);
        // Who only looks, at a disk that is read-only, must not take what is there for lost.
        let opened = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => File::open(&path),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => Arc::new(file),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(StorageError::NoSegment { segment: id });
            }
            Err(error) => return Err(io_error("opening", &path, error)),
        };
        if open.len() >= OPEN_MAX {
            open.pop_first();
        }
        open.insert(id, file.clone());
        Ok(file)
    }

    fn delete_if_dead(&self, id: SegmentId) -> StorageResult<()> {
        {
            let log = self.log();
            // Nobody begins to append to another one than the active one.
            if log.active == id || log.appending.contains_key(&id) {
                return Ok(());
            }
        }
        let path = segment_path(&self.directory, id);
        let dead = fs::metadata(&path).is_ok_and(|metadata| metadata.blocks() == 0);
        if dead {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            fs::remove_file(&path).map_err(|error| io_error("deleting", &path, error))?;
            crash::point("segment.deleted");
        }
        Ok(())
    }
}

impl DataStore for EmbeddedData {
    fn stopped(&self) -> Option<String> {
        self.log().failed.clone()
    }

    fn begin_at(&self, segment: SegmentId) -> StorageResult<()> {
        let mut log = self.log();
        if segment <= log.active {
            return Ok(());
        }
        log.file = Arc::new(open_segment(&self.directory, segment)?);
        log.end = 0;
        log.new_entry = NewEntry::Unsynced;
        let before = std::mem::replace(&mut log.active, segment);
        drop(log);
        crash::point("segment.created");
        self.delete_if_dead(before)
    }

    fn append(&self, data: &[u8]) -> StorageResult<ChunkRef> {
        let len = chunk_len(data)?;
        self.space.admit(u64::from(len).next_multiple_of(CHUNK_ALIGN), SpaceUse::Takes, |_| {})?;
        let crc32c = crc32c::crc32c(data);
        let place = self.place(u64::from(len))?;
        let (segment, offset) = (place.segment, place.offset);
        let chunk = ChunkRef { segment, offset, len, crc32c };
        if crash::is_next("segment.half-written") {
            let _ = place.file.write_all_at(&data[..data.len() / 2], offset);
        }
        crash::point("segment.half-written");
        if let Err(error) = place.file.write_all_at(data, offset) {
            drop(place);
            self.space.recheck();
            // The place is lost to the log, its space is not.
            let _ = self.release(&chunk);
            let path = segment_path(&self.directory, segment);
            return Err(match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StorageError::NoSpace {
                    path: self.directory.clone(),
                    free: 0,
                    reserve: self.space.reserve(),
                    wanted: u64::from(len),
                },
                _ => io_error("appending to", &path, error),
            });
        }
        self.log().unsynced.entry(segment).or_insert_with(|| place.file.clone());
        crash::point("segment.appended");
        Ok(chunk)
    }

    fn read_into(&self, chunk: &ChunkRef, data: &mut [u8]) -> StorageResult<()> {
        check_possible(chunk)?;
        let file = self.file(chunk.segment)?;
        match file.read_exact_at(data, chunk.offset) {
            Ok(()) => chunk.verify(data),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(StorageError::Corrupt { chunk: *chunk, problem: "it is past the end of its segment" })
            }
            Err(error) => Err(StorageError::io(format!("reading {chunk:?}"), error)),
        }
    }

    fn restore(&self, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()> {
        check_possible(chunk)?;
        chunk.verify(data)?;
        let Some(above) = chunk.segment.0.checked_add(1).filter(|above| *above < u64::MAX) else {
            return Err(StorageError::Corrupt { chunk: *chunk, problem: "no log gets that far" });
        };
        // The power cut may have taken the newest segments: what the log goes on in must not be what is written to here.
        if chunk.segment >= self.log().active {
            self.begin_at(SegmentId(above))?;
        }
        // It may have taken the whole file, if its name was new.
        let file = Arc::new(open_segment(&self.directory, chunk.segment)?);
        file.write_all_at(data, chunk.offset)
            .map_err(|error| io_error("restoring", &segment_path(&self.directory, chunk.segment), error))?;
        let mut log = self.log();
        log.new_entry = NewEntry::Unsynced;
        log.unsynced.insert(chunk.segment, file);
        Ok(())
    }

    fn sync(&self) -> StorageResult<()> {
        let _turn = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let (files, entry) = {
            let mut log = self.log();
            if let Some(cause) = &log.failed {
                return Err(StorageError::Stopped(cause.clone()));
            }
            if log.unsynced.is_empty() {
                return Ok(());
            }
            (std::mem::take(&mut log.unsynced), std::mem::replace(&mut log.new_entry, NewEntry::Synced))
        };
        let sync_all = || -> io::Result<()> {
            for file in files.values() {
                file.sync_data()?;
            }
            if entry == NewEntry::Unsynced {
                File::open(&self.directory)?.sync_all()?;
            }
            Ok(())
        };
        if let Err(error) = sync_all() {
            // The kernel has dropped the dirty pages: a second attempt would succeed without the data being there.
            self.log().failed = Some(format!("syncing file data: {error}"));
            return Err(io_error("syncing", &self.directory, error));
        }
        crash::point("segment.synced");
        Ok(())
    }

    /// All of the file system, the journal included: which segments it is about, only the process that is gone knew.
    fn sync_what_others_wrote(&self) -> StorageResult<()> {
        let sync = || -> io::Result<()> { Ok(rustix::fs::syncfs(File::open(&self.directory)?)?) };
        sync().map_err(|error| {
            self.log().failed = Some(format!("syncing what was written before: {error}"));
            io_error("syncing the file system of", &self.directory, error)
        })
    }

    fn release_range(&self, segment: SegmentId, range: Range<u64>) -> StorageResult<()> {
        let file = match self.file(segment) {
            Err(StorageError::NoSegment { .. }) => return Ok(()),
            other => other?,
        };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&*file, flags, range.start, len) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => {
                tracing::warn!(%segment, "this file system cannot punch holes: the space is not given back");
            }
            Err(errno) => {
                return Err(io_error("punching", &segment_path(&self.directory, segment), errno.into()));
            }
        }
        crash::point("segment.punched");
        self.space.recheck();
        self.delete_if_dead(segment)
    }

    fn segments(&self) -> StorageResult<Vec<SegmentInfo>> {
        let active = self.log().active;
        let mut segments = Vec::new();
        for id in list(&self.directory)? {
            let path = segment_path(&self.directory, id);
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("looking at", &path, error)),
            };
            let state = if id == active { SegmentState::Active } else { SegmentState::Sealed };
            segments.push(SegmentInfo { id, len: metadata.len(), stored: metadata.blocks() * 512, state });
        }
        Ok(segments)
    }

    fn stored_ranges(&self, segment: SegmentId) -> StorageResult<Vec<Range<u64>>> {
        // A file of its own: seeking moves the position of a shared one.
        let path = segment_path(&self.directory, segment);
        let file = File::open(&path).map_err(|error| io_error("opening", &path, error))?;
        let mut ranges = Vec::new();
        let mut at = 0;
        loop {
            let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => return Ok(ranges),
                Err(errno) => return Err(io_error("seeking in", &path, errno.into())),
            };
            let end = rustix::fs::seek(&file, SeekFrom::Hole(start))
                .map_err(|errno| io_error("seeking in", &path, errno.into()))?;
            ranges.push(start - start % CHUNK_ALIGN..end.next_multiple_of(CHUNK_ALIGN));
            at = end;
        }
    }

    fn space(&self) -> StorageResult<Space> {
        let medium = self.space.medium()?;
        Ok(Space { total: medium.total, free: medium.free.saturating_sub(self.space.reserve()) })
    }
}

/// A made-up reference must not lead anywhere.
fn check_possible(chunk: &ChunkRef) -> StorageResult<()> {
    let possible = (1..=CHUNK_MAX).contains(&(chunk.len as usize))
        && chunk.offset.is_multiple_of(CHUNK_ALIGN)
        && chunk.span().end <= i64::MAX as u64;
    match possible {
        true => Ok(()),
        false => Err(StorageError::Corrupt { chunk: *chunk, problem: "no such chunk can have been written" }),
    }
}

fn segment_path(directory: &Path, id: SegmentId) -> PathBuf {
    directory.join(segment_name(id))
}

fn segment_name(id: SegmentId) -> String {
    format!("{:016x}.seg", id.0)
}

fn open_segment(directory: &Path, id: SegmentId) -> StorageResult<File> {
    let path = segment_path(directory, id);
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|error| io_error("creating", &path, error))
}

fn file_len(directory: &Path, id: SegmentId) -> StorageResult<u64> {
    let path = segment_path(directory, id);
    Ok(fs::metadata(&path).map_err(|error| io_error("looking at", &path, error))?.len())
}

/// The id that a file's name stands for, if it is as we write them.
fn segment_id(name: &str) -> Option<SegmentId> {
    let id = name.strip_suffix(".seg").and_then(|hex| u64::from_str_radix(hex, 16).ok()).map(SegmentId)?;
    // No log gets that far, and there must be a next one.
    (segment_name(id) == name && id.0 < u64::MAX).then_some(id)
}

/// Ids of the segment files, ascending. Other files are left alone.
fn list(directory: &Path) -> StorageResult<Vec<SegmentId>> {
    let error = |error| io_error("listing", directory, error);
    let mut ids = Vec::new();
    for entry in fs::read_dir(directory).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        ids.extend(name.to_str().and_then(segment_id));
    }
    ids.sort_unstable();
    Ok(ids)
}

fn io_error(doing: &str, path: &Path, error: io::Error) -> StorageError {
    StorageError::io(format!("{doing} {}", path.display()), error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A writer that is held up between taking its place and writing there.
    #[test]
    fn a_segment_that_is_being_appended_to_is_not_deleted_with_the_last_that_was_stored_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Arc::new(File::create(directory.path().join("lock")).unwrap());
        let options = StoreOptions { reserve: 0, segment_len: 20_000, ..StoreOptions::default() };
        let store =
            EmbeddedData::open(directory.path().join("data"), &options, Arc::default(), lock).unwrap();
        let first = store.append(&[1; 5000]).unwrap();
        let place = store.place(5000).unwrap();
        let next = store.append(&[2; 15_000]).unwrap();
        assert!(place.segment == first.segment && next.segment > first.segment);
        store.release(&first).unwrap();
        place.file.write_all_at(&[3; 5000], place.offset).unwrap();
        let chunk = ChunkRef {
            segment: place.segment,
            offset: place.offset,
            len: 5000,
            crc32c: crc32c::crc32c(&[3; 5000]),
        };
        drop(place);
        // As after a restart: it is opened by its name.
        store.open.lock().unwrap().clear();
        assert_eq!(store.read(&chunk).unwrap()[..], [3; 5000]);
        store.release(&chunk).unwrap();
        let left: Vec<SegmentId> = store.segments().unwrap().iter().map(|segment| segment.id).collect();
        assert_eq!(left, [next.segment]);
    }

    /// References come from records that may be damaged, file names from anywhere.
    #[test]
    fn made_up_references_and_files_are_errors_and_take_no_memory() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Arc::new(File::create(directory.path().join("lock")).unwrap());
        let path = directory.path().join("data");
        fs::create_dir(&path).unwrap();
        for name in ["x.seg", "-1.seg", "+000000000000002.seg", "9.seg", "ffffffffffffffff.seg", "1", ".seg"]
        {
            fs::write(path.join(name), b"not ours").unwrap();
        }
        let options = StoreOptions { reserve: 0, ..StoreOptions::default() };
        let store = EmbeddedData::open(path, &options, Arc::default(), lock).unwrap();
        let good = store.append(&[7; 10_000]).unwrap();
        let small = |range: Range<u64>| prop_oneof![range, any::<u64>()];
        let parts = (
            small(0..3),
            small(0..4).prop_map(|block| block.wrapping_mul(2048)),
            small(0..20_000),
            any::<bool>(),
        );
        proptest!(|((segment, offset, len, right_sum) in parts)| {
            let crc32c = if right_sum { good.crc32c } else { 0 };
            let chunk = ChunkRef { segment: SegmentId(segment), offset, len: len as u32, crc32c };
            match store.read(&chunk) {
                Ok(data) => prop_assert!(chunk == good && data[..] == [7; 10_000]),
                Err(error) => prop_assert!(
                    matches!(error, StorageError::NoSegment { .. } | StorageError::Corrupt { .. }),
                    "{error}"
                ),
            }
        });
        let known: Vec<SegmentId> = store.segments().unwrap().iter().map(|segment| segment.id).collect();
        assert_eq!(known, [good.segment]);
    }
}
