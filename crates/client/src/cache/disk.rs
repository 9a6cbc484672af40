//! File data on a local disk: survives a restart, and is used again when a lease comes back and the data version is still
//! the same. One file per extent, named by what it holds; a header that says the same and a check sum inside.
//!
//! Nothing here is needed: what is damaged, foreign or in the way is removed or ignored, and a disk that fails or is full
//! only ends the cache.

mod buffers;
#[cfg(test)]
mod damage;

use crate::cache::lru::{Lru, LruPlace};
use crate::cache::readahead::{RANDOM_UNIT, UNIT};
use crate::private;
use buffers::Buffers;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use rustix::fs::{Mode, OFlags};
use soda_types::{Fid, Ino, Timestamp, Version, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"SODAEXT1";
const HEADER: usize = 8 + 4 + 8 + 4 + 8 + 8 + 4 + 4;
/// Extents that wait to be written; more are not kept.
const MOST_WRITES: usize = 64;
/// File in each volume's directory whose lock says that it is in use.
const LOCK: &str = "lock";
/// Clients of one volume that can share a cache directory.
const MOST_CLIENTS: usize = 16;
/// Longest extent that is believed, without its header.
const MOST_BYTES: u32 = 4 << 20;
/// Shorter ones are fetched again with what is before and behind them, rather than cut a request in two.
const WORTH_A_REQUEST: u32 = RANDOM_UNIT as u32;
/// What disks give out at a time: of many small extents it is most of what they take.
const BLOCK: u64 = 4096;
/// The order of use after a restart is right but for this: to note each one would be a change on the disk for each read.
const USE_NOTED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct DiskCache {
    dir: PathBuf,
    /// Held as long as the cache is in use: no other client uses the same files.
    lock: Mutex<Option<fs::File>>,
    limit: u64,
    index: Mutex<Index>,
    buffers: Arc<Buffers>,
    writing: AtomicUsize,
    broken: AtomicBool,
}

#[derive(Debug, Default)]
struct Index {
    files: FxHashMap<Fid, BTreeMap<u64, Entry>>,
    lru: Lru<(Fid, u64)>,
    /// On the disk, in whole blocks.
    bytes: u64,
}

#[derive(Debug)]
struct Entry {
    version: Version,
    len: u32,
    place: LruPlace,
    /// Read in order before, and not kept in memory for that.
    passed: bool,
}

/// An extent that is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    fid: Fid,
    version: Version,
    offset: u64,
    len: u32,
}

impl Extent {
    pub(crate) fn fid(&self) -> Fid {
        self.fid
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.len)
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    fn file_len(&self) -> u64 {
        HEADER as u64 + u64::from(self.len)
    }

    fn space(&self) -> u64 {
        self.file_len().next_multiple_of(BLOCK)
    }
}

impl DiskCache {
    /// Opens the part of the directory that belongs to one volume of one server, told apart by the birth of its root, and
    /// makes an index of what is there. Blocks.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub(crate) fn open(dir: &Path, root: Fid, birth: Timestamp, limit: u64) -> io::Result<DiskCache> {
        let volume =
            format!("volume-{}-{}-{}.{}", root.volume.0, root.generation, birth.secs(), birth.nanos());
        let (dir, lock) = take_place(dir, &volume)?;
        DiskCache::open_locked(dir, lock, limit)
    }

    /// Where it lies, for a process that takes it over.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn to_pass_on(&self) -> io::Result<Option<(PathBuf, fs::File)>> {
        let lock = crate::lock(&self.lock);
        lock.as_ref().map(|lock| Ok((self.dir.clone(), lock.try_clone()?))).transpose()
    }

    /// Opens what nobody else uses, as the lock says. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn open_locked(dir: PathBuf, lock: fs::File, limit: u64) -> io::Result<DiskCache> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if entry.file_name() == LOCK {
                continue;
            }
            let extent = entry.file_name().to_str().and_then(parse_name);
            match extent.filter(|extent| meta.is_file() && meta.len() == extent.file_len()) {
                Some(extent) => found.push((meta.modified().ok(), extent)),
                None if meta.is_file() => drop(fs::remove_file(entry.path())),
                None => {}
            }
        }
        found.sort_by_key(|(used, _)| *used);
        let mut index = Index::default();
        let mut surplus = Vec::new();
        for (_, extent) in found {
            surplus.extend(index.insert(extent, limit));
        }
        for extent in surplus {
            let _ = fs::remove_file(dir.join(name_of(&extent)));
        }
        let (writing, broken) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (lock, index, buffers) = (Mutex::new(Some(lock)), Mutex::new(index), Arc::default());
        Ok(DiskCache { dir, lock, limit, index, buffers, writing, broken })
    }

    /// An extent of this version that has the byte. Does not touch the disk.
    pub(crate) fn find(&self, fid: Fid, version: Version, at: u64) -> Option<Extent> {
        let mut index = crate::lock(&self.index);
        let index = &mut *index;
        let (offset, entry) = index.files.get(&fid)?.range(..=at).next_back()?;
        let extent = Extent { fid, version, offset: *offset, len: entry.len };
        let found = entry.version == version && extent.range().contains(&at);
        if found {
            index.lru.touch(&entry.place);
        }
        found.then_some(extent)
    }

    /// The first extent of this version with bytes of the range that is worth a request less to the server for what is
    /// around it: a short one in the middle is not. Does not touch the disk.
    pub(crate) fn first_in(&self, fid: Fid, version: Version, range: &Range<u64>) -> Option<Extent> {
        if let Some(extent) = self.find(fid, version, range.start) {
            return Some(extent);
        }
        let mut index = crate::lock(&self.index);
        let index = &mut *index;
        let later = index.files.get(&fid)?.range(range.clone());
        let extents = later.filter(|(_, entry)| entry.version == version).map(|(offset, entry)| {
            let extent = Extent { fid, version, offset: *offset, len: entry.len };
            (extent, &entry.place)
        });
        let worth = |extent: &Extent| extent.len >= WORTH_A_REQUEST || extent.range().end >= range.end;
        let (extent, place) = extents.into_iter().find(|(extent, _)| worth(extent))?;
        index.lru.touch(place);
        Some(extent)
    }

    /// Reads and checks an extent; what is not as it should be is removed. Blocks.
    pub(crate) fn read(&self, extent: &Extent) -> Option<Bytes> {
        let path = self.dir.join(name_of(extent));
        let read = || -> io::Result<Option<Bytes>> {
            let file = open_regular(&path, OFlags::RDONLY)?;
            let meta = file.metadata()?;
            if meta.len() != extent.file_len() {
                return Ok(None);
            }
            note_use(&file, &meta, SystemTime::now());
            let (header, bytes) = self.buffers.read(&file, extent.len as usize)?;
            Ok((header_of(extent, &bytes) == header).then_some(bytes))
        };
        match read() {
            Ok(Some(bytes)) => Some(bytes),
            Ok(None) => {
                tracing::warn!(?path, "damaged file in the cache directory removed");
                self.remove(extent);
                None
            }
            Err(error) => {
                tracing::debug!(?path, %error, "not in the cache directory any more");
                self.remove(extent);
                None
            }
        }
    }

    /// Whether what a reader in order has had of it need not stay in memory, too: there each page would be a new one, and the
    /// kernel keeps the file's anyhow. Once; who comes for it again finds it in memory from then on. Short ones are not worth it.
    pub(crate) fn may_pass(&self, extent: &Extent) -> bool {
        let mut index = crate::lock(&self.index);
        let file = index.files.get_mut(&extent.fid).filter(|_| u64::from(extent.len) == UNIT);
        file.and_then(|file| file.get_mut(&extent.offset))
            .is_some_and(|entry| !std::mem::replace(&mut entry.passed, true))
    }

    /// Whether another extent may be written now.
    pub(crate) fn has_room(&self) -> bool {
        !self.broken.load(Ordering::Relaxed) && self.writing.load(Ordering::Relaxed) < MOST_WRITES
    }

    /// Keeps an extent. Returns what does the work, which blocks; `None` if there is too much to write already.
    pub(crate) fn keep(
        self: &Arc<DiskCache>,
        fid: Fid,
        version: Version,
        offset: u64,
        bytes: Bytes,
    ) -> Option<impl FnOnce() + Send + use<>> {
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len > 0 && *len < MOST_BYTES)?;
        let extent = Extent { fid, version, offset, len };
        if !self.has_room() || extent.space() > self.limit {
            return None;
        }
        self.writing.fetch_add(1, Ordering::Relaxed);
        let cache = Arc::clone(self);
        Some(move || {
            cache.write(&extent, &bytes);
            cache.writing.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Leaves the directory to the next one.
    pub(crate) fn close(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.forget_all();
        *crate::lock(&self.lock) = None;
    }

    /// Nothing that is there may be used any more.
    pub(crate) fn forget_all(&self) {
        *crate::lock(&self.index) = Index::default();
    }

    /// What is there of these inodes may not be used any more. Blocks.
    pub(crate) fn forget(&self, fids: &BTreeSet<Fid>) {
        let gone: Vec<Extent> = {
            let mut index = crate::lock(&self.index);
            let extents = |index: &Index, fid: &Fid| -> Vec<u64> {
                index.files.get(fid).map(|file| file.keys().copied().collect()).unwrap_or_default()
            };
            let all =
                fids.iter().flat_map(|fid| extents(&index, fid).into_iter().map(|offset| (*fid, offset)));
            let all: Vec<(Fid, u64)> = all.collect();
            all.into_iter().filter_map(|(fid, offset)| index.remove(fid, offset)).collect()
        };
        for extent in gone {
            let _ = fs::remove_file(self.dir.join(name_of(&extent)));
        }
    }

    fn write(&self, extent: &Extent, bytes: &[u8]) {
        if self.broken.load(Ordering::Relaxed) {
            return;
        }
        let temporary = self.dir.join(format!("{}.new", name_of(extent)));
        let write = || -> io::Result<()> {
            let mut file = open_regular(&temporary, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
            file.write_all(&header_of(extent, bytes))?;
            file.write_all(bytes)?;
            fs::rename(&temporary, self.dir.join(name_of(extent)))
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&temporary);
            if !self.broken.swap(true, Ordering::Relaxed) {
                tracing::warn!(dir = ?self.dir, %error, "the cache directory is not written to any more");
            }
            return;
        }
        let surplus = crate::lock(&self.index).insert(*extent, self.limit);
        for extent in surplus {
            let _ = fs::remove_file(self.dir.join(name_of(&extent)));
        }
    }

    fn remove(&self, extent: &Extent) {
        crate::lock(&self.index).remove(extent.fid, extent.offset);
        let _ = fs::remove_file(self.dir.join(name_of(extent)));
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        crate::lock(&self.index).bytes
    }
}

impl Index {
    /// Returns what has to go for it: older data in the same place, and the least recently used.
    fn insert(&mut self, extent: Extent, limit: u64) -> Vec<Extent> {
        let mut gone = Vec::new();
        let range = extent.range();
        let inside = |index: &Index| {
            let file = index.files.get(&extent.fid)?;
            let (offset, entry) = file.range(..range.end).next_back()?;
            (offset + u64::from(entry.len) > range.start).then_some(*offset)
        };
        while let Some(offset) = inside(self) {
            let old = self.remove(extent.fid, offset);
            // Written over by the rename if it has the same name.
            gone.extend(old.filter(|old| *old != extent));
        }
        let place = self.lru.insert((extent.fid, extent.offset));
        let entry = Entry { version: extent.version, len: extent.len, place, passed: false };
        self.files.entry(extent.fid).or_default().insert(extent.offset, entry);
        self.bytes += extent.space();
        while self.bytes > limit {
            let Some((fid, offset)) = self.lru.oldest().copied() else { break };
            gone.extend(self.remove(fid, offset));
        }
        gone
    }

    fn remove(&mut self, fid: Fid, offset: u64) -> Option<Extent> {
        let file = self.files.get_mut(&fid)?;
        let entry = file.remove(&offset)?;
        if file.is_empty() {
            self.files.remove(&fid);
        }
        self.lru.remove(entry.place);
        let extent = Extent { fid, version: entry.version, offset, len: entry.len };
        self.bytes -= extent.space();
        Some(extent)
    }
}

/// A directory for the volume that no other client uses: the second one on a machine gets one of its own.
fn take_place(parent: &Path, volume: &str) -> io::Result<(PathBuf, fs::File)> {
    for number in 0..MOST_CLIENTS {
        let name = if number == 0 { volume.to_owned() } else { format!("{volume}.client-{number}") };
        let dir = parent.join(name);
        private::make_dir(&dir)?;
        let lock = fs::File::options().create(true).append(true).open(dir.join(LOCK))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok((dir, lock)),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many clients use it"))
}

/// Neither waits for the other end of a FIFO nor follows a link that somebody put there.
fn open_regular(path: &Path, flags: OFlags) -> io::Result<fs::File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?.into())
}

fn name_of(extent: &Extent) -> String {
    let Extent { fid, version, offset, len } = extent;
    format!("{:x}-{:x}-{:x}-{:x}-{:x}-{:x}", fid.volume.0, fid.ino.0, fid.generation, version.0, offset, len)
}

fn parse_name(name: &str) -> Option<Extent> {
    let numbers: Vec<u64> =
        name.split('-').map(|part| u64::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    let [volume, ino, generation, version, offset, len] = *numbers.as_slice() else { return None };
    let fid = Fid {
        volume: VolumeId(u32::try_from(volume).ok()?),
        ino: Ino(ino),
        generation: u32::try_from(generation).ok()?,
    };
    let len = u32::try_from(len).ok().filter(|len| *len > 0 && *len < MOST_BYTES)?;
    offset.checked_add(u64::from(len))?;
    let extent = Extent { fid, version: Version(version), offset, len };
    (name_of(&extent) == name).then_some(extent)
}

fn header_of(extent: &Extent, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&extent.fid.volume.0.to_le_bytes());
    out.extend_from_slice(&extent.fid.ino.0.to_le_bytes());
    out.extend_from_slice(&extent.fid.generation.to_le_bytes());
    out.extend_from_slice(&extent.version.0.to_le_bytes());
    out.extend_from_slice(&extent.offset.to_le_bytes());
    out.extend_from_slice(&extent.len.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), bytes);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// For the order of use after a restart.
fn note_use(file: &fs::File, meta: &fs::Metadata, now: SystemTime) {
    let noted = meta.modified().ok().and_then(|noted| now.duration_since(noted).ok());
    if noted.is_none_or(|age| age >= USE_NOTED) {
        let _ = file.set_modified(now);
    }
}

#[cfg(test)]
mod tests;
