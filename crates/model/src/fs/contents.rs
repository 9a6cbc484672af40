//! The bytes of a file, holes included.

use std::collections::BTreeMap;

const BLOCK: u64 = 4096;

/// Bytes of a file. Blocks that are not stored read as zeros, so a file may be sparse and larger than memory.
///
/// Nothing is stored at or beyond the size but zeros: cutting and growing again shows zeros, as POSIX demands.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Contents {
    size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Contents {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from `offset` to the end of the file, at most `len`.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(len));
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let within = (at % BLOCK) as usize;
            let take = (BLOCK - at % BLOCK).min(end - at) as usize;
            match self.blocks.get(&(at / BLOCK)) {
                Some(block) => bytes.extend_from_slice(&block[within..within + take]),
                None => bytes.resize(bytes.len() + take, 0),
            }
            at += take as u64;
        }
        bytes
    }

    /// Puts `bytes` at `offset`; a gap between the old end and `offset` becomes a hole.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut left = bytes;
        while !left.is_empty() {
            let within = (at % BLOCK) as usize;
            let take = left.len().min(BLOCK as usize - within);
            let block = self.blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
            block[within..within + take].copy_from_slice(&left[..take]);
            at += take as u64;
            left = &left[take..];
        }
        if !bytes.is_empty() {
            self.size = self.size.max(at);
        }
    }

    /// The first byte from `offset` on, before the end, that is wanted.
    pub fn find(&self, offset: u64, is_wanted: impl Fn(u8) -> bool) -> Option<u64> {
        let mut at = offset;
        while at < self.size {
            let end = (at / BLOCK + 1) * BLOCK;
            let found = match self.blocks.get(&(at / BLOCK)) {
                Some(block) => {
                    let wanted = block[(at % BLOCK) as usize..].iter().position(|byte| is_wanted(*byte));
                    wanted.map(|skipped| at + skipped as u64)
                }
                None if is_wanted(0) => Some(at),
                // Over the whole gap at once: a sparse file has a million blocks that are not there.
                None => match self.blocks.range(end / BLOCK..).next() {
                    Some((next, _)) => {
                        at = next * BLOCK;
                        continue;
                    }
                    None => return None,
                },
            };
            if found.is_some() {
                return found.filter(|found| *found < self.size);
            }
            at = end;
        }
        None
    }

    /// Cuts, or extends with a hole.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Makes `len` bytes from `offset` read as zeros, without a change of the size.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<u64> =
            self.blocks.range(offset / BLOCK..=end / BLOCK).map(|(index, _)| *index).collect();
        for index in touched {
            let start = index * BLOCK;
            let from = offset.max(start);
            let to = end.min(start + BLOCK);
            if from >= to {
                continue;
            }
            if to - from == BLOCK {
                self.blocks.remove(&index);
            } else if let Some(block) = self.blocks.get_mut(&index) {
                block[(from - start) as usize..(to - start) as usize].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_read_as_zeros_and_cost_nothing() {
        let mut contents = Contents::default();
        contents.write(5 << 30, b"far");
        assert_eq!(contents.size(), (5 << 30) + 3);
        assert_eq!(contents.read((5 << 30) - 2, 100), b"\0\0far");
        assert_eq!(contents.blocks.len(), 1);
        assert!(contents.read(6 << 30, 10).is_empty());
    }

    #[test]
    fn cut_and_grown_again_shows_zeros() {
        let mut contents = Contents::default();
        contents.write(0, &[7; 10_000]);
        contents.resize(5000);
        contents.resize(9000);
        assert_eq!(contents.read(4998, 4), [7, 7, 0, 0]);
        assert!(contents.read(5000, 10_000).iter().all(|byte| *byte == 0));
        assert_eq!(contents.read(0, 100_000).len(), 9000);
    }

    #[test]
    fn zeroing_is_exact_at_both_ends() {
        let mut contents = Contents::default();
        contents.write(0, &[7; 20_000]);
        contents.zero(4095, 8194);
        let bytes = contents.read(0, 20_000);
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte == 0, (4095..4095 + 8194).contains(&at), "at {at}");
        }
    }

    #[test]
    fn an_empty_write_does_not_extend() {
        let mut contents = Contents::default();
        contents.write(100, b"");
        assert_eq!(contents.size(), 0);
    }

    /// Against the plainest model there is: a vector.
    #[test]
    fn like_a_vector() {
        let mut rng = crate::Rng::new(42);
        let (mut contents, mut plain) = (Contents::default(), Vec::new());
        for _ in 0..2000 {
            let at = rng.below(40_000) as usize;
            let len = rng.below(9000) as usize;
            match rng.below(4) {
                0 => {
                    contents.resize(at as u64);
                    plain.resize(at, 0);
                }
                1 => {
                    contents.zero(at as u64, len as u64);
                    let end = plain.len().min(at + len);
                    if at < end {
                        plain[at..end].fill(0);
                    }
                }
                _ => {
                    let byte = 1 + rng.below(255) as u8;
                    contents.write(at as u64, &vec![byte; len]);
                    if len > 0 {
                        plain.resize(plain.len().max(at + len), 0);
                        plain[at..at + len].fill(byte);
                    }
                }
            }
            assert_eq!(contents.size(), plain.len() as u64);
            let start = at.min(plain.len());
            assert_eq!(
                contents.read(at as u64, len as u64),
                plain[start..plain.len().min(start + len)].to_vec()
            );
        }
        assert_eq!(contents.read(0, u64::MAX), plain);
    }
}
