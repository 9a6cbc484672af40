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
//! too much. A journal that has fewer is damaged and not opened, and nothing is cut off it unless somebody accepts the loss.
//!
//! The format: files `<number>.jnl`, only the highest is written to; an older one is synced before the next is made. A
//! batch is `1, items: u32, seqno: u64`, then items and clears, then `3, xxh3 of the items and clears: u64, "FJL", 3`. An
//! item is `2, type: u8, compression: u8, tree: u64, key length: u16, length: u32, stored length: u32, key, value`, a clear
//! `4, tree: u64`. Numbers are little-endian.

use crate::{StorageError, StorageResult};
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];

/// Where it is noted how much is durable.
const NOTE: &str = "synced";

/// The newest journal, open for syncing.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    newest: Mutex<Newest>,
    /// Commits that were begun, and those that are done.
    begun: AtomicU64,
    done: AtomicU64,
    note: File,
}

#[derive(Clone, Debug)]
struct Newest {
    number: u64,
    file: Arc<File>,
    /// It has as many batches as there are commits, or more, without so many.
    before: i64,
}

/// What a journal was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    number: u64,
    batches: u64,
}

/// So many batches of a journal are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Note {
    number: u64,
    batches: u64,
}

impl Note {
    fn encode(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.batches.to_le_bytes());
        let sum = xxh3_64(&bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if it is not what was written: then nothing is known to be durable.
    fn decode(bytes: &[u8]) -> Option<Note> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let note = Note { number: number(0)?, batches: number(8)? };
        (note.encode() == bytes).then_some(note)
    }

    fn read(directory: &Path) -> Option<Note> {
        Note::decode(&fs::read(directory.join(NOTE)).ok()?)
    }
}

impl Journal {
    /// `None` if the directory has no journal by the names that are known. `found`: before the engine opened it.
    pub(crate) fn find(directory: &Path, found_before: Option<Found>) -> StorageResult<Option<Journal>> {
        let found = newest(directory).map_err(|error| io_error("listing", directory, error))?;
        let Some(number) = found else {
            return Ok(None);
        };
        let file = Arc::new(open(directory, number)?);
        let had = found_before.filter(|found| found.number == number).map_or(0, |found| found.batches);
        let note = File::options().create(true).truncate(false).write(true).open(directory.join(NOTE));
        let note = note.map_err(|error| io_error("making a note in", directory, error))?;
        let before = -i64::try_from(had).unwrap_or(0);
        Ok(Some(Journal {
            directory: directory.to_owned(),
            newest: Mutex::new(Newest { number, file, before }),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            note,
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
            // What is in an older one was synced when the next was made.
            while path(&self.directory, newest.number + 1).exists() {
                let number = newest.number + 1;
                let file = Arc::new(open(&self.directory, number)?);
                // Whoever begins from here on writes to this one.
                let before = self.begun.load(Ordering::SeqCst) as i64;
                *newest = Newest { number, file, before };
            }
            newest.clone()
        };
        file.sync_data().map_err(|error| io_error("syncing the journal in", &self.directory, error))?;
        if let Ok(batches @ 1..) = u64::try_from(done as i64 - before) {
            // An older note than could be is a true one.
            if let Err(error) = self.note.write_all_at(&Note { number, batches }.encode(), 0) {
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
    forget_note(directory).map_err(error)?;
    let file = File::options().write(true).open(path(directory, number)).map_err(error)?;
    file.set_len(0).and_then(|()| file.sync_all()).map_err(error)
}

/// What the journal said to be durable is not to be read any more, and that is accepted: with the next opening it is cut off.
/// The engine must not be open. Returns how many batches are lost at least; `None` if the journal has all that it has to have.
pub(crate) fn accept_loss(directory: &Path) -> StorageResult<Option<u64>> {
    let error = |error| io_error("mending the journal in", directory, error);
    let (Some(number), Some(note)) = (newest(directory).map_err(error)?, Note::read(directory)) else {
        return Ok(None);
    };
    let mut file = File::options().read(true).write(true).open(path(directory, number)).map_err(error)?;
    let Whole { batches, end, .. } = whole_batches(&mut file).map_err(error)?;
    if note.number != number || batches >= note.batches {
        return Ok(None);
    }
    // Here, because what the engine takes for the end it cuts off without a copy.
    cut(directory, number, &mut file, end).map_err(error)?;
    forget_note(directory).map_err(error)?;
    Ok(Some(note.batches - batches))
}

fn forget_note(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(NOTE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => File::open(directory)?.sync_all(),
    }
}

/// Cuts a batch with a wrong check sum, and all after it, off the newest journal, if there is one. The engine must not be open.
///
/// # Errors
/// [`StorageError::DamagedJournal`]: it was durable.
pub(crate) fn cut_torn_tail(directory: &Path) -> StorageResult<Option<Found>> {
    let error = |error| io_error("mending the journal in", directory, error);
    let number = match newest(directory) {
        Ok(Some(number)) => number,
        Ok(None) => return Ok(None),
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(error(cause)),
    };
    let mut file = File::options().read(true).write(true).open(path(directory, number)).map_err(error)?;
    let Whole { batches, end, is_torn } = whole_batches(&mut file).map_err(error)?;
    if let Some(note) = Note::read(directory).filter(|note| note.number == number && note.batches > batches) {
        let (path, synced) = (path(directory, number), note.batches);
        return Err(StorageError::DamagedJournal { path, readable: batches, synced });
    }
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
    // Not called .jnl: the engine must not take it for a journal.
    let kept = directory.join(format!("{number}.torn"));
    file.seek(SeekFrom::Start(end))?;
    let mut copy = File::create(&kept)?;
    io::copy(file, &mut copy)?;
    copy.sync_all()?;
    file.set_len(end)?;
    file.sync_all()?;
    Ok(kept)
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
    Ok(numbers(directory)?.into_iter().max())
}

fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(".jnl"));
        numbers.extend(stem.and_then(|stem| stem.parse::<u64>().ok()));
    }
    Ok(numbers)
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.jnl"))
}

fn open(directory: &Path, number: u64) -> StorageResult<File> {
    let path = path(directory, number);
    File::open(&path).map_err(|error| io_error("opening", &path, error))
}

fn io_error(doing: &str, path: &Path, error: io::Error) -> StorageError {
    StorageError::io(format!("{doing} {}", path.display()), error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// A batch as the engine writes it.
    fn batch(items: &[(Vec<u8>, Vec<u8>)], seqno: u64) -> Vec<u8> {
        let mut body = Vec::new();
        for (key, value) in items {
            body.extend([2, 0, 0]);
            body.extend(7u64.to_le_bytes());
            body.extend((key.len() as u16).to_le_bytes());
            body.extend((value.len() as u32).to_le_bytes());
            body.extend((value.len() as u32).to_le_bytes());
            body.extend(key);
            body.extend(value);
        }
        let mut bytes = vec![1];
        bytes.extend((items.len() as u32).to_le_bytes());
        bytes.extend(seqno.to_le_bytes());
        bytes.extend(&body);
        bytes.push(3);
        let mut hash = Xxh3::default();
        hash.update(&body);
        bytes.extend(hash.digest().to_le_bytes());
        bytes.extend(TRAILER);
        bytes
    }

    fn batches() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let bytes = |max| proptest::collection::vec(any::<u8>(), 0..max);
        let items = proptest::collection::vec((bytes(20), bytes(300)), 1..4);
        proptest::collection::vec((items, any::<u64>()).prop_map(|(items, seqno)| batch(&items, seqno)), 0..6)
    }

    fn torn(content: &[u8]) -> Option<u64> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.rewind().unwrap();
        let whole = whole_batches(&mut file).unwrap();
        whole.is_torn.then_some(whole.end)
    }

    #[test]
    fn a_note_is_what_was_written_or_none() {
        let note = Note { number: 7, batches: 1 << 40 };
        let bytes = note.encode();
        assert_eq!(Note::decode(&bytes), Some(note));
        assert_eq!(Note::decode(&bytes[..23]), None);
        assert_eq!(Note::decode(&[]), None);
        assert_eq!(Note::decode(&[0; 24]), None);
        for at in 0..bytes.len() {
            let mut wrong = bytes;
            wrong[at] ^= 4;
            assert_eq!(Note::decode(&wrong), None);
        }
    }

    /// A page that is missing from within the lengths of an item: the engine panics at that, before it sees the end.
    #[test]
    fn an_item_of_two_lengths_is_torn() {
        let (first, second) =
            (batch(&[(vec![1; 5], vec![2; 300])], 1), batch(&[(vec![3; 5], vec![4; 300])], 2));
        let stored_len = first.len() + 13 + 1 + 16;
        let mut content = [first.clone(), second].concat();
        assert_eq!(u32::from_le_bytes(content[stored_len..stored_len + 4].try_into().unwrap()), 300);
        content[stored_len..].fill(0);
        assert_eq!(torn(&content), Some(first.len() as u64));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn anything_has_an_end(content in proptest::collection::vec(any::<u8>(), 0..2000)) {
            if let Some(end) = torn(&content) {
                prop_assert!(end < content.len() as u64);
            }
        }

        /// Wherever a byte is wrong, what is cut begins with the batch that it is in: those before stay.
        #[test]
        fn only_the_batch_that_is_torn_and_those_after_go(
            batches in batches(),
            at in any::<prop::sample::Index>(),
            bits in 1u8..,
            zeros in 0usize..5000,
        ) {
            let mut content = batches.concat();
            prop_assert_eq!(torn(&content), None, "the format is not the one that this test writes");
            content.resize(content.len() + zeros, 0);
            prop_assert_eq!(torn(&content), None, "the engine writes into a file that is zeros");
            if batches.is_empty() {
                return Ok(());
            }
            let at = at.index(batches.concat().len());
            content[at] ^= bits;
            let mut begin = 0;
            for batch in &batches {
                if begin + batch.len() > at {
                    break;
                }
                begin += batch.len();
            }
            if let Some(end) = torn(&content) {
                prop_assert_eq!(end, begin as u64);
            }
        }
    }
}
