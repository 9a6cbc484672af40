//! Operations on data: blocks, whole files, logs.

use super::actor::Actor;
use super::layout::{BLOCK_STRIDE, BLOCKS, LOG_RECORDS, PAGES, WHOLE, data_name, log_name, whole_number};
use super::{Descriptors, Pieces};
use crate::linear::object::{Answer, Object, Operation};
use rustix::fs::{self, OFlags};
use rustix::io::{Errno, Result, pread, pwrite, write};

/// Bytes of a record of a log: its number and the complement.
const RECORD: usize = 16;
/// A block of which one part is of one write and another of another. Nobody writes this value.
pub(super) const TORN: u64 = u64::MAX;
const PAGE: usize = 4096;
const WORD: usize = 8;

impl Actor {
    /// What else is changed or synced: of a file that is changed as a whole its pages, which others read each by itself; of
    /// one that is synced all of it.
    pub(super) fn pages_of(&self, object: Object, operation: &Operation) -> Vec<Object> {
        match object {
            Object::Block { file, block } if *operation == Operation::Sync => {
                let others = (0..BLOCKS).filter(|other| *other != block);
                others.map(|block| Object::Block { file, block }).collect()
            }
            Object::Whole { file }
                if (operation.changes() || *operation == Operation::Sync) && self.pieces == Pieces::Calls =>
            {
                PAGES.iter().map(|block| Object::Block { file: whole_number(file), block: *block }).collect()
            }
            _ => Vec::new(),
        }
    }

    fn block_len(&self) -> usize {
        if self.pieces == Pieces::Words { WORD } else { PAGE }
    }

    fn whole_len(&self, file: u16) -> usize {
        if self.pieces == Pieces::Words { WORD } else { WHOLE[usize::from(file)] }
    }

    pub(super) fn block(&mut self, file: u16, block: u16, operation: &Operation) -> Result<Answer> {
        let (len, offset) = (self.block_len(), u64::from(block) * BLOCK_STRIDE as u64);
        if let Operation::Write(value) = operation {
            let flags = self.writable();
            return self.with_file(data_name(file), flags, |file| {
                let bytes = pattern(*value).repeat(len / 8);
                if pwrite(file, &bytes, offset)? == len { Ok(Answer::Done) } else { Err(Errno::IO) }
            });
        }
        if *operation == Operation::Sync {
            return self.sync(data_name(file));
        }
        let flags = self.readable(1, 4);
        let mut bytes = vec![0; len];
        self.with_file(data_name(file), flags, |file| {
            let read = pread(file, &mut bytes[..], offset)?;
            Ok(Answer::Value(value(&bytes[..read], len)))
        })
    }

    pub(super) fn whole(&mut self, file: u16, operation: &Operation) -> Result<Answer> {
        let (name, len) = (data_name(whole_number(file)), self.whole_len(file));
        match operation {
            Operation::Write(value) => {
                let flags = self.writable();
                self.with_file(name, flags, |file| {
                    let mut pages = Pages::new(len);
                    let bytes = pages.bytes();
                    bytes.copy_from_slice(&pattern(*value).repeat(len / 8));
                    if pwrite(file, &*bytes, 0)? == len { Ok(Answer::Done) } else { Err(Errno::IO) }
                })
            }
            Operation::Sync => self.sync(name),
            Operation::Truncate if self.rng.chance(1, 2) => {
                self.open(&name, OFlags::WRONLY | OFlags::TRUNC)?;
                Ok(Answer::Done)
            }
            Operation::Truncate => {
                let flags = self.writable();
                self.with_file(name, flags, |file| fs::ftruncate(file, 0).map(|()| Answer::Done))
            }
            _ => {
                let flags = self.readable(1, 1);
                self.with_file(name, flags, |file| {
                    let mut pages = Pages::new(len);
                    let bytes = pages.bytes();
                    let read = pread(file, &mut *bytes, 0)?;
                    Ok(Answer::Value(value(&bytes[..read], len)))
                })
            }
        }
    }

    pub(super) fn log(&mut self, file: u16, operation: &Operation) -> Result<Answer> {
        if let Operation::Append(record) = operation {
            let bytes = record_of(*record);
            return self.with_file(log_name(file), OFlags::WRONLY | OFlags::APPEND, |file| {
                if write(file, &bytes)? == RECORD { Ok(Answer::Done) } else { Err(Errno::IO) }
            });
        }
        if *operation == Operation::Sync {
            return self.sync(log_name(file));
        }
        let records = self.with_file(log_name(file), OFlags::RDONLY, |file| {
            let mut bytes = vec![0; RECORD * LOG_RECORDS * 4];
            let read = pread(file, &mut bytes[..], 0)?;
            Ok(records(&bytes[..read]))
        })?;
        self.log_len = records.len();
        Ok(Answer::Records(records))
    }

    fn sync(&mut self, name: String) -> Result<Answer> {
        self.with_file(name, OFlags::WRONLY, |file| fs::fsync(file).map(|()| Answer::Done))
    }

    fn writable(&mut self) -> OFlags {
        self.both_ways(1, 2).unwrap_or(OFlags::WRONLY)
    }

    /// In `times` of `of` cases also writable, if that may be.
    fn readable(&mut self, times: u64, of: u64) -> OFlags {
        self.both_ways(times, of).unwrap_or(OFlags::RDONLY)
    }

    fn both_ways(&mut self, times: u64, of: u64) -> Option<OFlags> {
        let chosen = self.rng.chance(times, of);
        (chosen && self.descriptors == Descriptors::Any).then_some(OFlags::RDWR)
    }
}

/// A buffer that begins at a page: else Linux cuts a call of 1 MiB in two (SEMANTICS 6).
struct Pages {
    memory: Vec<u8>,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Pages {
        Pages { memory: vec![0; len + PAGE], len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.memory.as_ptr().align_offset(PAGE);
        &mut self.memory[start..start + self.len]
    }
}

/// Eight bytes that stand for a value. Each of them depends on all of it: else a wrong byte that is 0 in every number would
/// not be seen.
fn pattern(value: u64) -> [u8; 8] {
    value.wrapping_mul(SPREAD).to_le_bytes()
}

fn value_of(pattern: [u8; 8]) -> u64 {
    u64::from_le_bytes(pattern).wrapping_mul(GATHER)
}

/// Odd, so that there is an inverse.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const GATHER: u64 = 0xf1de_83e1_9937_733d;

/// The value that a block of `len` bytes holds, 0 if nothing is there; [`TORN`] if it does not hold one.
fn value(bytes: &[u8], len: usize) -> u64 {
    let Some(first) = bytes.first_chunk() else { return 0 };
    let is_whole = bytes.len() == len && bytes.chunks_exact(8).all(|part| part == first);
    if is_whole { value_of(*first) } else { TORN }
}

fn record_of(number: u64) -> Vec<u8> {
    [pattern(number), pattern(!number)].concat()
}

/// The records of a log; one that is cut short, or has zeros in it, becomes [`TORN`].
fn records(bytes: &[u8]) -> Vec<u64> {
    let record = |part: &[u8]| {
        let number = part.first_chunk().map_or(TORN, |first| value_of(*first));
        if part == record_of(number) { number } else { TORN }
    };
    bytes.chunks(RECORD).map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_value_counts() {
        for number in [0, 1, 64, 1 << 40, TORN] {
            assert_eq!(value_of(pattern(number)), number);
        }
        let mut bytes = pattern(77).repeat(4);
        assert_eq!(value(&bytes, 32), 77);
        bytes[31] ^= 1;
        assert_eq!(value(&bytes, 32), TORN);
        assert_eq!(value(&bytes[..8], 32), TORN, "cut short");
        let mut log = [record_of(5), record_of(6)].concat();
        log[31] = 0;
        assert_eq!(records(&log), [5, TORN]);
    }
}
