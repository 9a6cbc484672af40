//! How much of a journal is durable, in a file beside it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const NAME: &str = "synced";
const LEN: usize = 32;

/// So many batches of a journal are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Note {
    pub(super) number: u64,
    /// The engine's number of its first batch: a journal that was emptied and goes on has another.
    pub(super) first: u64,
    pub(super) batches: u64,
}

impl Note {
    pub(super) fn open(directory: &Path) -> io::Result<File> {
        File::options().create(true).truncate(false).write(true).open(directory.join(NAME))
    }

    pub(super) fn write(self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.encode(), 0)
    }

    pub(super) fn read(directory: &Path) -> Option<Note> {
        Note::decode(&fs::read(directory.join(NAME)).ok()?)
    }

    fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.batches.to_le_bytes());
        let sum = xxh3_64(&bytes[..24]);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if it is not what was written: then nothing is known to be durable.
    fn decode(bytes: &[u8]) -> Option<Note> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let note = Note { number: number(0)?, first: number(8)?, batches: number(16)? };
        (note.encode() == bytes).then_some(note)
    }
}

/// Nothing is noted any more, and that is durable.
pub(super) fn forget(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(NAME)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => File::open(directory)?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_what_was_written_or_none() {
        let note = Note { number: 7, first: 3, batches: 1 << 40 };
        let bytes = note.encode();
        assert_eq!(Note::decode(&bytes), Some(note));
        assert_eq!(Note::decode(&bytes[..LEN - 1]), None);
        assert_eq!(Note::decode(&[]), None);
        assert_eq!(Note::decode(&[0; LEN]), None);
        for at in 0..LEN {
            let mut wrong = bytes;
            wrong[at] ^= 4;
            assert_eq!(Note::decode(&wrong), None);
        }
    }
}
