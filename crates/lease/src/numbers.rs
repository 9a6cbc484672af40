//! Inode numbers that a session may give to what it creates: each once, in any order.
//!
//! The server keeps them with the session in its store, one record for each block, in the batch that uses some of them. A
//! client may tell of its creations much later, after a restart of the server too, so the store has to know whose a number is
//! and whether it was used: a number that came twice would be taken for the inode it was before by whoever has cached that.

use serde::{Deserialize, Serialize};
use soda_types::{Errno, FsError, FsResult, Ino};
use std::collections::BTreeMap;

/// Numbers in a block.
pub const BLOCK_MAX: u32 = 16_384;
/// Blocks of a session. Of what was created and removed again before it was told, nobody hears: the numbers stay unused, and the
/// oldest blocks are forgotten when there are too many. Four million creations later no log holds one that is still to be told.
const BLOCKS_MAX: usize = 256;

/// A block of numbers; the first is its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NumbersRecord {
    count: u32,
    /// A bit for each that was used, up to the last one.
    used: Vec<u64>,
}

#[derive(Debug, Default)]
pub struct Numbers {
    blocks: BTreeMap<u64, NumbersRecord>,
}

/// Blocks as they are once a transaction is committed.
#[derive(Debug, Default)]
pub struct Taken {
    blocks: BTreeMap<u64, NumbersRecord>,
}

impl NumbersRecord {
    pub fn new(count: u32) -> NumbersRecord {
        NumbersRecord { count, used: Vec::new() }
    }

    /// Whether it can have been written by a server: what is used of a block costs memory by its count.
    pub fn is_sound(&self) -> bool {
        let words = self.count.div_ceil(64) as usize;
        let beyond = match self.count % 64 {
            0 => 0,
            bits => u64::MAX << bits,
        };
        (1..=BLOCK_MAX).contains(&self.count)
            && self.used.len() <= words
            && self.used.get(words - 1).is_none_or(|last| last & beyond == 0)
    }

    fn take(&mut self, offset: u64) -> bool {
        let Ok(word) = usize::try_from(offset / 64) else { return false };
        if offset >= u64::from(self.count) {
            return false;
        }
        if self.used.len() <= word {
            self.used.resize(word + 1, 0);
        }
        let bit = 1 << (offset % 64);
        let free = self.used[word] & bit == 0;
        self.used[word] |= bit;
        free
    }
}

impl Numbers {
    pub fn restore(blocks: impl IntoIterator<Item = (u64, NumbersRecord)>) -> Numbers {
        Numbers { blocks: blocks.into_iter().collect() }
    }

    /// A new block. Returns the one that is forgotten for it.
    pub fn add(&mut self, first: Ino, block: NumbersRecord) -> Option<Ino> {
        self.blocks.insert(first.0, block);
        let surplus = self.blocks.len() > BLOCKS_MAX;
        surplus.then(|| self.blocks.pop_first().map(|(first, _)| Ino(first))).flatten()
    }

    /// Notes that a number is used.
    ///
    /// # Errors
    /// It is not the session's, or was used before.
    pub fn take(&self, taken: &mut Taken, ino: Ino) -> FsResult<()> {
        let not_reserved =
            || FsError::new(Errno::Invalid, format!("number {ino} is not reserved for the session"));
        let (first, known) = self.blocks.range(..=ino.0).next_back().ok_or_else(not_reserved)?;
        if ino.0 - first >= u64::from(known.count) {
            return Err(not_reserved());
        }
        match taken.blocks.entry(*first).or_insert_with(|| known.clone()).take(ino.0 - first) {
            true => Ok(()),
            false => Err(FsError::new(Errno::Exists, format!("number {ino} was used before"))),
        }
    }

    /// The transaction is committed.
    pub fn committed(&mut self, taken: Taken) {
        self.blocks.extend(taken.blocks);
    }
}

impl Taken {
    pub fn blocks(&self) -> impl Iterator<Item = (Ino, &NumbersRecord)> {
        self.blocks.iter().map(|(first, block)| (Ino(*first), block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(numbers: &mut Numbers, ino: u64) -> Result<(), Errno> {
        let mut taken = Taken::default();
        let result = numbers.take(&mut taken, Ino(ino)).map_err(|error| error.errno);
        numbers.committed(taken);
        result
    }

    #[test]
    fn each_number_is_good_once_and_only_those_of_the_block() {
        let mut numbers = Numbers::default();
        numbers.add(Ino(100), NumbersRecord::new(70));
        for good in [169, 100, 130] {
            assert_eq!(take(&mut numbers, good), Ok(()));
            assert_eq!(take(&mut numbers, good), Err(Errno::Exists));
        }
        for foreign in [0, 99, 170, 1000, u64::MAX] {
            assert_eq!(take(&mut numbers, foreign), Err(Errno::Invalid));
        }
    }

    #[test]
    fn a_block_that_no_server_wrote_is_not_sound() {
        let is_sound = |count, used: &[u64]| NumbersRecord { count, used: used.to_vec() }.is_sound();
        for (count, used) in [(1, &[][..]), (64, &[u64::MAX]), (70, &[u64::MAX, 63]), (BLOCK_MAX, &[7; 256])]
        {
            assert!(is_sound(count, used), "{count}: {used:x?}");
        }
        for (count, used) in [
            (0, &[][..]),
            (BLOCK_MAX + 1, &[]),
            (u32::MAX, &[]),
            (1, &[2]),
            (70, &[0, 64]),
            (64, &[0, 0]),
            (BLOCK_MAX, &[0; 257]),
        ] {
            assert!(!is_sound(count, used), "{count}: {used:x?}");
        }
    }

    #[test]
    fn what_was_not_committed_was_not_used() {
        let mut numbers = Numbers::default();
        numbers.add(Ino(100), NumbersRecord::new(10));
        let mut taken = Taken::default();
        numbers.take(&mut taken, Ino(101)).unwrap();
        assert!(numbers.take(&mut taken, Ino(101)).is_err());
        drop(taken);
        assert_eq!(take(&mut numbers, 101), Ok(()));
    }

    #[test]
    fn the_oldest_block_is_forgotten() {
        let mut numbers = Numbers::default();
        let forgotten: Vec<Ino> = (0..BLOCKS_MAX as u64 + 2)
            .filter_map(|block| numbers.add(Ino(block * 100 + 1), NumbersRecord::new(100)))
            .collect();
        assert_eq!(forgotten, [Ino(1), Ino(101)]);
        assert_eq!(take(&mut numbers, 150), Err(Errno::Invalid));
        assert_eq!(take(&mut numbers, 250), Ok(()));
    }
}
