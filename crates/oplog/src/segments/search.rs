//! Whole entries behind a place where there is none: looked for at every byte, as no length before them can be believed.
//!
//! Any four bytes may look like a length, so the sums of all that might be an entry, one by one, take a time that is quadratic in
//! the length of the file: hours, for content that is made so. A CRC is linear: that of a range follows from those of two
//! beginnings of the file in some tens of steps, however long the range is.
//!
//! Files are only appended to, are never allocated ahead and never used again: nothing older can stand there. What can is the
//! content of a user's file that is itself an operation log; most of that has numbers that were there before.

use super::{Entry, LONGEST_ENTRY};
use crate::Lsn;

/// A sum is kept for each beginning of so many bytes, more or less: memory is a sixteenth of the file.
const STEP: usize = 64;

/// Those from a byte on, in order. `last` is the record before them: none that comes later has a number as low.
pub(super) fn whole_entries(bytes: &[u8], from: usize, last: Lsn) -> Vec<Entry> {
    let rest = bytes.get(from..).unwrap_or_default();
    let sums = Sums::of(rest);
    let mut entries = Vec::new();
    let mut at = 0;
    while at < rest.len() {
        match sums.entry_at(at) {
            Some((entry, end)) if is_later(&entry, last) => {
                entries.push(entry);
                at = end;
            }
            _ => at += 1,
        }
    }
    entries
}

fn is_later(entry: &Entry, last: Lsn) -> bool {
    match entry {
        Entry::Record(record) => record.lsn > last,
        // What a file begins with is in it once, and says nothing of changes.
        Entry::Header(_) | Entry::Slots(_) | Entry::After { .. } => false,
        _ => true,
    }
}

/// What a sum becomes when zeros are appended, one column for each of its bits.
type Shift = [u32; 32];

struct Sums<'a> {
    bytes: &'a [u8],
    /// Of the beginnings.
    marks: Vec<u32>,
    /// For 1, 2, 4... zeros.
    shifts: Vec<Shift>,
}

impl<'a> Sums<'a> {
    fn of(bytes: &'a [u8]) -> Sums<'a> {
        let sums = bytes.chunks(STEP).scan(0, |sum, chunk| {
            *sum = crc32c::crc32c_append(*sum, chunk);
            Some(*sum)
        });
        let marks = std::iter::once(0).chain(sums).collect();
        let one: Shift = std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, 1));
        let twice = |shift: &Shift| Some(shift.map(|column| shifted(shift, column)));
        let needed = (usize::BITS - bytes.len().leading_zeros()) as usize;
        let shifts = std::iter::successors(Some(one), twice).take(needed).collect();
        Sums { bytes, marks, shifts }
    }

    /// A whole entry, and where it ends.
    fn entry_at(&self, at: usize) -> Option<(Entry, usize)> {
        let start = at + 8;
        let head = self.bytes.get(at..start)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let sum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let end = start + length as usize;
        if length == 0 || length as usize > LONGEST_ENTRY || end > self.bytes.len() {
            return None;
        }
        let before = crc32c::crc32c(&length.to_le_bytes());
        if self.sum(before, start, end) != sum {
            return None;
        }
        Some((postcard::from_bytes(&self.bytes[start..end]).ok()?, end))
    }

    /// That of a range, behind something of which it is `before`.
    fn sum(&self, before: u32, start: usize, end: usize) -> u32 {
        let shifts = self.shifts.iter().enumerate().filter(|(bit, _)| (end - start) >> bit & 1 == 1);
        let moved = shifts.fold(before ^ self.up_to(start), |sum, (_, shift)| shifted(shift, sum));
        moved ^ self.up_to(end)
    }

    fn up_to(&self, end: usize) -> u32 {
        let mark = end / STEP;
        crc32c::crc32c_append(self.marks[mark], &self.bytes[mark * STEP..end])
    }
}

fn shifted(shift: &Shift, sum: u32) -> u32 {
    let columns = shift.iter().enumerate();
    columns.fold(0, |all, (bit, column)| all ^ (column & (sum >> bit & 1).wrapping_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::{checksum, encode};
    use proptest::prelude::*;
    use soda_types::Sequence;
    use std::time::{Duration, Instant};

    proptest! {
        #[test]
        fn the_sum_of_a_range_is_that_of_its_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            one in any::<proptest::sample::Index>(),
            other in any::<proptest::sample::Index>(),
        ) {
            let (one, other) = (one.index(bytes.len() + 1), other.index(bytes.len() + 1));
            let (start, end) = (one.min(other), one.max(other));
            let length = (end - start) as u32;
            let before = crc32c::crc32c(&length.to_le_bytes());
            let sum = Sums::of(&bytes).sum(before, start, end);
            prop_assert_eq!(sum, checksum(length, &bytes[start..end]));
        }
    }

    /// Three of eight places look like the beginning of an entry of half a mebibyte: one by one, 1.6 terabytes to be summed up.
    #[test]
    fn content_that_looks_like_lengths_everywhere_does_not_take_long() {
        let mut bytes = [0, 0, 8, 0, 0, 8, 0, 8].repeat(1 << 20);
        let entry = Entry::Durable { up_to: Sequence(7) };
        encode(&entry, &mut bytes);
        let began = Instant::now();
        assert_eq!(whole_entries(&bytes, 1, Lsn(0)), [entry]);
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
}
