//! What a session has been told that its deep leases cover. It caches nothing else by them, so when its time is over, and
//! somebody needs something of which it has not heard, it loses nothing by a hole there: it need not be ended for that.
//!
//! The objects themselves would cost what deep leases save. So this is a Bloom filter (Bloom 1970) that grows by further ones
//! (Almeida et al. 2007): about two bytes for each object, what was told is always found, and of a hundred others some seem to
//! have been.

use soda_types::Fid;

/// Bits set for each object.
const MARKS: u64 = 4;
/// Bits for each object.
const BITS: usize = 12;
/// Objects of the first filter; each further one takes twice as many.
const FIRST: usize = 256;
/// With more than this the session is taken to have heard of everything.
const MOST: usize = 1_000_000;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Told {
    filters: Vec<Filter>,
    len: usize,
    everything: bool,
}

#[derive(Debug)]
struct Filter {
    bits: Box<[u64]>,
    free: usize,
}

impl Filter {
    fn with_room(objects: usize) -> Filter {
        Filter { bits: vec![0; (objects * BITS).div_ceil(64)].into(), free: objects }
    }

    fn places(&self, fid: Fid) -> impl Iterator<Item = (usize, u64)> + use<> {
        let hash = mixed(mixed(fid.ino.0) ^ u64::from(fid.volume.0));
        let (step, bits) = (mixed(hash) | 1, self.bits.len() as u64 * 64);
        (0..MARKS).map(move |mark| {
            let bit = hash.wrapping_add(mark.wrapping_mul(step)) % bits;
            ((bit / 64) as usize, 1_u64 << (bit % 64))
        })
    }

    fn has(&self, fid: Fid) -> bool {
        self.places(fid).all(|(at, bit)| self.bits[at] & bit != 0)
    }

    fn add(&mut self, fid: Fid) {
        for (at, bit) in self.places(fid) {
            self.bits[at] |= bit;
        }
        self.free -= 1;
    }
}

/// The finalizer of SplitMix64 (Steele et al. 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Told {
    /// False: the session has certainly not been told.
    pub(super) fn has(&self, fid: Fid) -> bool {
        self.everything || self.filters.iter().any(|filter| filter.has(fid))
    }

    pub(super) fn add(&mut self, fid: Fid) {
        if self.has(fid) {
            return;
        }
        if self.len >= MOST {
            return self.add_everything();
        }
        if self.filters.last().is_none_or(|filter| filter.free == 0) {
            self.filters.push(Filter::with_room(FIRST << self.filters.len()));
        }
        self.len += 1;
        if let Some(filter) = self.filters.last_mut() {
            filter.add(fid);
        }
    }

    /// What it was told nobody remembers.
    pub(super) fn add_everything(&mut self) {
        *self = Told { everything: true, ..Told::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    fn f(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    #[test]
    fn what_was_told_is_found_and_of_the_rest_little() {
        let mut told = Told::default();
        assert!(!told.has(f(1)));
        (0..50_000).for_each(|ino| told.add(f(ino)));
        assert!((0..50_000).all(|ino| told.has(f(ino))));
        let wrong = (50_000..150_000).filter(|ino| told.has(f(*ino))).count();
        assert!(wrong < 10_000, "{wrong} of 100,000");
        let bytes: usize = told.filters.iter().map(|filter| filter.bits.len() * 8).sum();
        assert!(bytes < 4 * 50_000, "{bytes}");
    }

    #[test]
    fn what_is_too_much_to_remember_is_everything() {
        let mut told = Told::default();
        (0..2 * MOST as u64).for_each(|ino| told.add(f(ino)));
        assert!(told.has(f(u64::MAX)) && told.filters.is_empty());
    }
}
