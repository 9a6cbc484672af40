//! The metadata engine's journal, looked at from outside: for two things that the engine does not offer.
//!
//! *Syncing without holding everybody up.* The engine holds its writer's lock through a sync, so every commit waits for the
//! disk. Whoever syncs only needs what was committed before, and that is in the kernel: a sync through a descriptor of our
//! own does the same with no lock held.
//!
//! *A torn tail.* After a power cut the pages of the journal that were not synced may be there in any selection. The engine
//! takes a missing page for the end of the journal, unless it is in the middle of a value: then a check sum is wrong and it
//! refuses to open; or within the lengths of an item, which fails an assertion. Such a batch was never durable, so the
//! journal is cut there, as if the cut had come earlier (what RocksDB calls point-in-time recovery). The part that is cut off
//! is kept beside it.
//!
//! *Rot.* A byte that goes bad in what was synced looks the same. So how many batches of the journal are durable is noted after
//! each sync, in `synced`, without a sync of its own: a power cut leaves that note, an older one or none, never one that says
//! too much. A journal that has fewer is damaged and not opened, and nothing is cut off it unless somebody accepts the loss. So
//! is one that is not the newest and ends in anything but zeros: it was synced before the next was made.
//!
//! The format: files `<number>.jnl`, only the highest is written to; an older one is synced before the next is made. A
//! batch is `1, items: u32, seqno: u64`, then items and clears, then `3, xxh3 of the items and clears: u64, "FJL", 3`. An
//! item is `2, type: u8, compression: u8, tree: u64, key length: u16, length: u32, stored length: u32, key, value`, a clear
//! `4, tree: u64`. Numbers are little-endian.

mod note;

use crate::{StorageError, StorageResult};
use bytes::Bytes;
use note::Note;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::Xxh3;

const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];

/// The newest journal, open for syncing.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    newest: Mutex<Newest>,
    /// Commits that were begun, and those that are done.
    begun: AtomicU64,
    done: AtomicU64,
    /// `None` if it could not be opened: then a journal that rots is not told from one that was torn.
    note: Option<File>,
}

#[derive(Clone, Debug)]
struct Newest {
    number: u64,
    file: Arc<File>,
    /// It has as many batches as there are commits, or more, without so many.
    before: i64,
}

impl Newest {
    /// Goes on to the journal that is written to now. `begun`: the commits so far.
    fn follow(&mut self, directory: &Path, begun: &AtomicU64) -> StorageResult<()> {
        loop {
            // What is in an older one was synced when the next was made.
            let next = match open(directory, self.number + 1) {
                Ok(file) => Some((self.number + 1, file)),
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(io_error("opening the next journal in", directory, error));
                }
                // The next one may have come and gone; this one goes first.
                Err(_) if self.is_gone(directory)? => Some(Self::highest(directory, self.number)?),
                Err(_) => None,
            };
            let Some((number, file)) = next else { return Ok(()) };
            // The engine does so, too, but may fail at it: what is in there would be durable, and its name not.
            let named = File::open(directory).and_then(|directory| directory.sync_all());
            named.map_err(|error| io_error("syncing", directory, error))?;
            // Whoever begins from here on writes to this one, or to a later one.
            let before = begun.load(Ordering::SeqCst) as i64;
            *self = Newest { number, file: Arc::new(file), before };
        }
    }

    fn is_gone(&self, directory: &Path) -> StorageResult<bool> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(|error| io_error("looking at a journal in", directory, error))?.nlink() == 0)
    }

    /// The highest, which there has to be, later than this one.
    fn highest(directory: &Path, after: u64) -> StorageResult<(u64, File)> {
        // It may go between the two looks, as a later one comes.
        loop {
            let found = newest(directory).map_err(|error| io_error("listing", directory, error))?;
            let number = found.filter(|number| *number > after).ok_or_else(|| {
                io_error("looking for the journal in", directory, ErrorKind::NotFound.into())
            })?;
            match open(directory, number) {
                Ok(file) => return Ok((number, file)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("opening a journal in", directory, error)),
            }
        }
    }
}

/// What a journal was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    number: u64,
    batches: u64,
}

impl Journal {
    /// `None` if the directory has no journal by the names that are known. `found`: before the engine opened it.
    pub(crate) fn find(directory: &Path, found_before: Option<Found>) -> StorageResult<Option<Journal>> {
        let found = newest(directory).map_err(|error| io_error("listing", directory, error))?;
        let Some(number) = found else {
            return Ok(None);
        };
        let file =
            open(directory, number).map_err(|error| io_error("opening the journal in", directory, error))?;
        let file = Arc::new(file);
        let had = found_before.filter(|found| found.number == number).map_or(0, |found| found.batches);
        let note = Note::open(directory);
        let note = note.inspect_err(|error| {
            tracing::warn!(%error, "it cannot be noted how much of the journal is durable");
        });
        let before = -i64::try_from(had).unwrap_or(0);
        Ok(Some(Journal {
            directory: directory.to_owned(),
            newest: Mutex::new(Newest { number, file, before }),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            note: note.ok(),
        }))
    }

    /// Counts a commit, which is one batch.
    pub(crate) fn commit<T, E>(&self, commit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = commit()?;
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(result)
    }

    /// Makes everything durable that was handed to the kernel before.
    pub(crate) fn sync(&self) -> StorageResult<()> {
        // All of these are in the newest journal, as it is looked for later, or in older ones.
        let done = self.done.load(Ordering::SeqCst);
        let Newest { number, file, before } = {
            let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
            newest.follow(&self.directory, &self.begun)?;
            newest.clone()
        };
        file.sync_data().map_err(|error| io_error("syncing the journal in", &self.directory, error))?;
        if let (Some(note), Ok(batches @ 1..)) = (&self.note, u64::try_from(done as i64 - before)) {
            // An older note than could be is a true one.
            if let Err(error) =
                first_seqno(&file).and_then(|first| Note { number, first, batches }.write(note))
            {
                tracing::debug!(%error, "it is not noted how much of the journal is durable");
            }
        }
        Ok(())
    }
}

/// Empties the journal of an engine that has ended and has all of it in its trees. Not if there are several: the engine would do
/// what is in an older one over what came after. And it must not be removed: without one the engine would begin to count its
/// commits from the start.
pub(crate) fn empty_the_only(directory: &Path) -> StorageResult<()> {
    let error = |error| io_error("emptying the journal in", directory, error);
    let [number] = numbers(directory).map_err(error)?[..] else { return Ok(()) };
    note::forget(directory).map_err(error)?;
    let file = File::options().write(true).open(path(directory, number)).map_err(error)?;
    file.set_len(0).and_then(|()| file.sync_all()).map_err(error)
}

/// What was durable is not to be read any more, and that is accepted: the first journal that is damaged is cut off there, and
/// what came after it goes, too. The engine must not be open. Returns how many batches are lost at least; `None` if all is
/// there that has to be.
pub(crate) fn accept_loss(directory: &Path) -> StorageResult<Option<u64>> {
    let error = |error| io_error("mending the journal in", directory, error);
    let numbers = numbers(directory).map_err(error)?;
    let mut lost = None;
    for number in numbers {
        let mut file = writable(directory, number).map_err(error)?;
        let whole = whole_batches(&mut file).map_err(error)?;
        if lost.is_some() {
            cut(directory, number, &mut file, 0).map_err(error)?;
            lost = lost.map(|before| before + whole.batches);
        } else if let Some(synced) = damage(directory, number, &mut file, &whole).map_err(error)? {
            // Here, because what the engine takes for the end it cuts off without a copy.
            cut(directory, number, &mut file, whole.end).map_err(error)?;
            lost = Some(synced - whole.batches);
        }
    }
    if lost.is_some() {
        note::forget(directory).map_err(error)?;
    }
    Ok(lost)
}

/// A change that a journal has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JournalledChange {
    /// The engine's number of the tree.
    pub(crate) tree: u64,
    /// The engine's number of the batch.
    pub(crate) seqno: u64,
    pub(crate) key: Bytes,
    /// `None`: it was deleted.
    pub(crate) value: Option<Bytes>,
}

/// Hands on the changes of all whole batches, up to the first journal that is damaged, and changes nothing. Returns how many
/// batches are lost behind that, at least. The engine must not be open.
pub(crate) fn each_change(
    directory: &Path,
    mut visit: impl FnMut(JournalledChange),
) -> StorageResult<Option<u64>> {
    let error = |error| io_error("reading the journal in", directory, error);
    for number in numbers(directory).map_err(error)? {
        let mut file = open(directory, number).map_err(error)?;
        let whole = whole_batches(&mut file).map_err(error)?;
        let mut batches = vec![0; usize::try_from(whole.end).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut batches, 0).map_err(error)?;
        changes_of(&batches.into(), &mut visit).map_err(error)?;
        if let Some(synced) = damage(directory, number, &mut file, &whole).map_err(error)? {
            return Ok(Some(synced - whole.batches));
        }
    }
    Ok(None)
}

/// Of batches that are whole.
fn changes_of(batches: &Bytes, visit: &mut impl FnMut(JournalledChange)) -> io::Result<()> {
    let mut rest = &batches[..];
    let mut seqno = 0;
    while !rest.is_empty() {
        match take(&mut rest)? {
            [1] => {
                let _items: [u8; 4] = take(&mut rest)?;
                seqno = u64::from_le_bytes(take(&mut rest)?);
            }
            [2] => {
                let [kind, _compression] = take(&mut rest)?;
                let tree = u64::from_le_bytes(take(&mut rest)?);
                let key = usize::from(u16::from_le_bytes(take(&mut rest)?));
                let (_len, value): ([u8; 4], _) = (take(&mut rest)?, u32::from_le_bytes(take(&mut rest)?));
                let at = batches.len() - rest.len();
                let end = at + key + value as usize;
                if end > batches.len() {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                let value = (kind == 0).then(|| batches.slice(at + key..end));
                visit(JournalledChange { tree, seqno, key: batches.slice(at..at + key), value });
                rest = &batches[end..];
            }
            [3] => drop(take::<12>(&mut rest)?),
            // Trees are never cleared.
            _ => drop(take::<8>(&mut rest)?),
        }
    }
    Ok(())
}

/// If a journal has fewer batches than it has to have: how many that is, at least.
fn damage(directory: &Path, number: u64, file: &mut File, whole: &Whole) -> io::Result<Option<u64>> {
    let noted = Note::read(directory).filter(|note| note.number == number && note.batches > whole.batches);
    if let Some(note) = noted {
        // Another journal may have got the number since, from a program that makes no notes, or out of a backup.
        let is_another = match whole.batches {
            0 => is_zeros(file, 0)?,
            _ => first_seqno(file)? != note.first,
        };
        if !is_another {
            return Ok(Some(note.batches));
        }
    }
    let is_newest = newest(directory)? == Some(number);
    let is_whole = is_newest || (!whole.is_torn && is_zeros(file, whole.end)?);
    Ok((!is_whole).then_some(whole.batches + 1))
}

fn is_zeros(file: &mut File, from: u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(from))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(true),
            len if buffer[..len].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// What the engine counts its commits by, of the first batch.
fn first_seqno(file: &File) -> io::Result<u64> {
    let mut seqno = [0; 8];
    file.read_exact_at(&mut seqno, 1 + 4)?;
    Ok(u64::from_le_bytes(seqno))
}

fn writable(directory: &Path, number: u64) -> io::Result<File> {
    File::options().read(true).write(true).open(path(directory, number))
}

/// Cuts a batch with a wrong check sum, and all after it, off the newest journal, if there is one. The engine must not be open.
///
/// # Errors
/// [`StorageError::DamagedJournal`]: it was durable, or is in an older one.
pub(crate) fn cut_torn_tail(directory: &Path) -> StorageResult<Option<Found>> {
    let error = |error| io_error("mending the journal in", directory, error);
    let numbers = match numbers(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        numbers => numbers.map_err(error)?,
    };
    let mut found = None;
    for number in numbers {
        let mut file = writable(directory, number).map_err(error)?;
        let whole = whole_batches(&mut file).map_err(error)?;
        if let Some(synced) = damage(directory, number, &mut file, &whole).map_err(error)? {
            return Err(StorageError::DamagedJournal {
                path: path(directory, number),
                readable: whole.batches,
                synced,
            });
        }
        found = Some((number, file, whole));
    }
    let Some((number, mut file, Whole { batches, end, is_torn })) = found else { return Ok(None) };
    if is_torn {
        let kept = cut(directory, number, &mut file, end).map_err(error)?;
        tracing::warn!(
            journal = %path(directory, number).display(), end, kept = %kept.display(),
            "the journal's tail was torn, as a power cut does: changes that were not synced are lost"
        );
    }
    Ok(Some(Found { number, batches }))
}

/// Cuts a journal off. Returns where what was behind is kept.
fn cut(directory: &Path, number: u64, file: &mut File, end: u64) -> io::Result<PathBuf> {
    file.seek(SeekFrom::Start(end))?;
    let (kept, mut copy) = new_copy(directory, number)?;
    io::copy(file, &mut copy)?;
    copy.sync_all()?;
    File::open(directory)?.sync_all()?;
    file.set_len(end)?;
    file.sync_all()?;
    Ok(kept)
}

/// What was kept before stays.
fn new_copy(directory: &Path, number: u64) -> io::Result<(PathBuf, File)> {
    // Not called .jnl: the engine must not take it for a journal.
    let names =
        std::iter::once(format!("{number}.torn")).chain((2..).map(|copy| format!("{number}.{copy}.torn")));
    for name in names {
        let path = directory.join(name);
        match File::create_new(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            file => return Ok((path, file?)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// The batches of a journal from its beginning to the first that is not what was written.
struct Whole {
    batches: u64,
    end: u64,
    /// A batch with a wrong check sum follows. Else the engine sees the end by itself.
    is_torn: bool,
}

fn whole_batches(file: &mut File) -> io::Result<Whole> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut whole = Whole { batches: 0, end: 0, is_torn: false };
    loop {
        match read_batch(&mut reader) {
            Ok(Batch::Whole) => {
                whole.batches += 1;
                whole.end = reader.stream_position()?;
            }
            Ok(Batch::Torn) => return Ok(Whole { is_torn: true, ..whole }),
            Ok(Batch::None) => return Ok(whole),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(whole),
            Err(error) => return Err(error),
        }
    }
}

enum Batch {
    Whole,
    /// It looks like a batch but is not what was written.
    Torn,
    /// No batch begins here, or it has no end.
    None,
}

fn read_batch(reader: &mut impl Read) -> io::Result<Batch> {
    let [tag] = take(reader)?;
    if tag != 1 {
        return Ok(Batch::None);
    }
    let items = u32::from_le_bytes(take(reader)?);
    let _seqno: [u8; 8] = take(reader)?;
    let mut hash = Xxh3::default();
    let mut seen = 0u32;
    loop {
        let [tag] = take(reader)?;
        match tag {
            2 => {
                let head: [u8; 20] = take(reader)?;
                // The engine takes it for granted that what is not compressed has one length, without a look at the sum.
                if head[1] == 0 && head[12..16] != head[16..20] {
                    return Ok(Batch::Torn);
                }
                hash.update(&[tag]);
                hash.update(&head);
                let key = u16::from_le_bytes([head[10], head[11]]);
                let value = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
                hash_next(reader, u64::from(key) + u64::from(value), &mut hash)?;
                seen += 1;
            }
            4 => {
                let tree: [u8; 8] = take(reader)?;
                hash.update(&[tag]);
                hash.update(&tree);
                seen += 1;
            }
            3 => {
                let sum = u64::from_le_bytes(take(reader)?);
                let trailer: [u8; 4] = take(reader)?;
                let whole = sum == hash.digest() && seen == items && trailer == TRAILER;
                return Ok(if whole { Batch::Whole } else { Batch::Torn });
            }
            _ => return Ok(Batch::None),
        }
    }
}

fn take<const LEN: usize>(reader: &mut impl Read) -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn hash_next(reader: &mut impl Read, mut len: u64, hash: &mut Xxh3) -> io::Result<()> {
    let mut buffer = [0; 8192];
    while len > 0 {
        let part = len.min(buffer.len() as u64) as usize;
        reader.read_exact(&mut buffer[..part])?;
        hash.update(&buffer[..part]);
        len -= part as u64;
    }
    Ok(())
}

fn newest(directory: &Path) -> io::Result<Option<u64>> {
    Ok(numbers(directory)?.pop())
}

/// The least first.
fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(".jnl"));
        numbers.extend(stem.and_then(|stem| stem.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.jnl"))
}

fn open(directory: &Path, number: u64) -> io::Result<File> {
    File::open(path(directory, number))
}

fn io_error(doing: &str, path: &Path, error: io::Error) -> StorageError {
    StorageError::io(format!("{doing} {}", path.display()), error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
