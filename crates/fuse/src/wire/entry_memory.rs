//! What the entries of a queue over io_uring take in memory, and when it is too much.
//!
//! Linux (6.18) gives the next request to the entry that was handed over last (`fuse_uring_ent_avail`). So after a crowd of large
//! requests most entries are not used again for long, while their pages would stay. An entry's pages can be given back only
//! before its answer is handed over: from then on the kernel may write the next request to them at any time. Therefore:
//! - while the entries of a queue have more than [`LIMIT`], those that are answered give back what the answer does not need;
//! - while more requests are under way, a large answer is put on a file in memory ([`EntryMemory::write`]), and the entry's
//!   pages become private copies of those of the file. When it is handed over, a hole is made in the file: that takes the pages
//!   away, but for those that the kernel has written to meanwhile, which are not the file's any more.
//!
//! The last of a crowd keep their pages, and are the ones that are used next. So a queue on which no more requests are under
//! way at a time than that pays nothing. What it costs beyond is that of new pages, 0.4 ms for 1 MiB.

use super::device::MAX_WRITE;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Of an entry, bytes: the header has a page of its own, the payload begins with the next.
pub(super) const HEADER_SPACE: usize = 4096;
/// Of an entry, bytes of payload that are not worth to be counted or given back.
pub(super) const SMALL: usize = 16 << 10;
/// Of a queue, bytes of payloads of more than [`SMALL`]: from here on memory is given back.
const LIMIT: usize = 64 << 20;
/// Of a queue, requests under way: so many large answers may have pages of their own.
const CROWD: usize = LIMIT / MAX_WRITE as usize;

/// Of the entries of one queue, wherever they are.
#[derive(Debug, Default)]
pub(super) struct EntryMemory {
    entries: AtomicUsize,
    /// Bytes of payloads of more than [`SMALL`].
    large: AtomicUsize,
    file: OnceLock<Option<File>>,
}

impl EntryMemory {
    fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Upper bound, bytes.
    fn bytes(&self) -> usize {
        self.large.load(Ordering::Relaxed) + self.entries() * (HEADER_SPACE + SMALL)
    }

    /// Whether an answer of so many bytes, while so many requests are under way, had better leave no pages behind.
    pub(super) fn is_passing(&self, len: usize, under_way: usize) -> bool {
        len > SMALL && (under_way > CROWD || self.is_too_much())
    }

    pub(super) fn is_too_much(&self) -> bool {
        self.large.load(Ordering::Relaxed) > LIMIT
    }

    pub(super) fn entry_came(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn entry_went(&self) {
        self.entries.fetch_sub(1, Ordering::Relaxed);
    }

    /// So much of the payload of one entry may have pages, instead of so much: bytes.
    pub(super) fn changed(&self, was: usize, is: usize) {
        let counted = |bytes: usize| if bytes > SMALL { bytes } else { 0 };
        match (counted(was), counted(is)) {
            (was, is) if was < is => self.large.fetch_add(is - was, Ordering::Relaxed),
            (was, is) if was > is => self.large.fetch_sub(was - is, Ordering::Relaxed),
            (same, _) => same,
        };
    }
}

/// Answers on a file in memory, each where its entry has its payload.
impl EntryMemory {
    /// # Errors
    /// There is no such file, as where files are limited in their length; no memory.
    pub(super) fn write(&self, place: u64, parts: &[&[u8]]) -> io::Result<&File> {
        let file = self.file.get_or_init(|| new_file().ok()).as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let mut at = place;
        for part in parts {
            file.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(file)
    }

    /// Makes the hole.
    pub(super) fn take_away(&self, place: u64) {
        let Some(Some(file)) = self.file.get() else { return };
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = fallocate(file, how, place, MAX_WRITE.into()) {
            tracing::warn!(%error, "memory of an answer that stays");
        }
    }
}

/// As long as addresses are high: what is beyond the end of a file cannot be written to where it is mapped.
fn new_file() -> io::Result<File> {
    const LEN: u64 = 1 << 48;
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < LEN) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file = File::from(memfd_create("soda-answers", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, LEN)?;
    Ok(file)
}

/// Of the entries of all queues of a mount.
#[derive(Clone, Default, Debug)]
pub(crate) struct QueueMemory(Vec<Arc<EntryMemory>>);

impl QueueMemory {
    pub(super) fn of(queues: impl Iterator<Item = Arc<EntryMemory>>) -> QueueMemory {
        QueueMemory(queues.collect())
    }

    pub(crate) fn entries(&self) -> usize {
        self.0.iter().map(|queue| queue.entries()).sum()
    }

    /// Upper bound, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|queue| queue.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_payloads_count() {
        let memory = EntryMemory::default();
        memory.entry_came();
        memory.changed(0, SMALL);
        assert_eq!((memory.entries(), memory.bytes()), (1, HEADER_SPACE + SMALL));
        memory.changed(SMALL, SMALL + 1);
        memory.changed(SMALL + 1, LIMIT);
        assert_eq!((memory.bytes(), memory.is_too_much()), (HEADER_SPACE + SMALL + LIMIT, false));
        memory.changed(LIMIT, LIMIT + 1);
        assert!(memory.is_too_much());
        memory.changed(LIMIT + 1, 8);
        memory.entry_went();
        assert_eq!((memory.entries(), memory.bytes()), (0, 0));
    }
}
