//! When a handle reads in order, what it will want next is fetched before it asks.

use std::ops::Range;

/// What is fetched at once, and where it is cut, bytes.
pub(crate) const UNIT: u64 = 1 << 20;
/// What a read out of order fetches at least.
pub(crate) const RANDOM_UNIT: u64 = 128 << 10;
/// Most bytes ahead of the reader.
const WINDOW: u64 = 8 << 20;
/// Reads of one handle may overtake each other by this much and still count as in order: the kernel sends several at once.
const TOLERANCE: u64 = 2 << 20;

#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// End of the furthest read of the run.
    next: u64,
    /// Bytes read in order.
    run: u64,
    /// Up to where was asked for ahead.
    ahead: u64,
}

impl Sequence {
    /// Notes a read and says what to fetch: the stretch around it if it is missing, and the stretch ahead.
    pub(crate) fn plan(&mut self, read: Range<u64>, size: u64) -> Plan {
        let in_order = read.start <= self.next + TOLERANCE && read.end + TOLERANCE >= self.next;
        let len = read.end - read.start;
        if !in_order {
            *self = Sequence { next: read.end, run: len, ahead: read.end };
            return Plan { around: align(&read, RANDOM_UNIT, size), ahead: read.end..read.end };
        }
        self.run += len;
        self.next = self.next.max(read.end);
        // The first read of a file is in order by luck: wait for a second one.
        let window = if self.run <= len { 0 } else { (self.run * 2).clamp(UNIT, WINDOW) };
        let unit = if window == 0 { RANDOM_UNIT } else { UNIT };
        let around = if size <= UNIT { 0..size } else { align(&read, unit, size) };
        let from = self.ahead.max(around.end);
        let until = (self.next + window).next_multiple_of(UNIT).min(size);
        let ahead = if window > 0 && from < until { from..until } else { from..from };
        self.ahead = self.ahead.max(ahead.end);
        Plan { around, ahead }
    }
}

/// What to fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// If any of the read itself is missing.
    pub(crate) around: Range<u64>,
    /// In any case.
    pub(crate) ahead: Range<u64>,
}

fn align(read: &Range<u64>, unit: u64, size: u64) -> Range<u64> {
    let start = read.start - read.start % unit;
    start..read.end.next_multiple_of(unit).min(size).max(read.end)
}

/// Where the unit ends that has this byte.
pub(crate) fn unit_end(at: u64) -> u64 {
    (at + 1).next_multiple_of(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_window_grows_with_the_run_and_everything_is_asked_for_once() {
        let size = 100 * MIB;
        let mut sequence = Sequence::default();
        let mut ahead = Vec::new();
        for read in 0..400u64 {
            let at = read * (128 << 10);
            let plan = sequence.plan(at..at + (128 << 10), size);
            if !plan.ahead.is_empty() {
                ahead.push(plan.ahead.clone());
            }
            assert!(plan.ahead.end <= at + (128 << 10) + WINDOW + UNIT);
        }
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "{ahead:?}");
        assert!(ahead.last().unwrap().end > 50 * MIB);
    }

    #[test]
    fn random_reads_fetch_little() {
        let mut sequence = Sequence::default();
        for at in [50 * MIB, 7 * MIB + 5, 90 * MIB] {
            let plan = sequence.plan(at..at + 4096, 100 * MIB);
            assert!(plan.ahead.is_empty());
            assert_eq!(plan.around.end - plan.around.start, RANDOM_UNIT);
        }
    }

    #[test]
    fn a_small_file_comes_whole_and_units_end_at_multiples() {
        assert_eq!(Sequence::default().plan(10..20, 70_000).around, 0..70_000);
        assert_eq!([MIB / 2, MIB - 1, MIB].map(unit_end), [MIB, MIB, 2 * MIB]);
    }
}
