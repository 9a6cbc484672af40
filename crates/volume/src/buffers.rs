//! Memory that long reads are put into, used again and again.
//!
//! Memory that comes fresh from the kernel is zeroed a page at a time as it is first written, on a virtual machine with a
//! detour through the host; what was used a moment ago is still in the processor's caches.

use bytes::Bytes;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shorter reads are left to the allocator, which keeps memory of their size itself.
const POOLED_MIN: usize = 128 << 10;
/// Lengths are rounded up to a multiple of this, so that reads of nearly the same length share buffers.
const ROUND: usize = 64 << 10;
/// Bytes of unused buffers kept.
const UNUSED_MAX: usize = 32 << 20;

/// Buffers not in use; cheap to clone, all clones are the same pool.
#[derive(Clone, Default)]
pub(crate) struct Buffers(Arc<Mutex<Unused>>);

#[derive(Default)]
struct Unused {
    /// The one used last is at the back.
    buffers: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Buffers {
    /// `len` bytes, filled by `fill`, which must not count on what is in them before. They come back to the pool when the
    /// last reference to them is gone.
    pub(crate) fn filled<E>(
        &self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Bytes, E> {
        if len < POOLED_MIN {
            let mut data = vec![0; len];
            fill(&mut data)?;
            return Ok(data.into());
        }
        let rounded = len.next_multiple_of(ROUND);
        let data = self.unused().take(rounded).unwrap_or_else(|| vec![0; rounded].into_boxed_slice());
        let mut lent = Lent { data, len, pool: self.clone() };
        fill(&mut lent.data[..len])?;
        Ok(Bytes::from_owner(lent))
    }

    fn unused(&self) -> MutexGuard<'_, Unused> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unused {
    fn take(&mut self, len: usize) -> Option<Box<[u8]>> {
        let place = self.buffers.iter().rposition(|buffer| buffer.len() == len)?;
        self.bytes -= len;
        self.buffers.remove(place)
    }

    fn give_back(&mut self, buffer: Box<[u8]>) {
        self.bytes += buffer.len();
        self.buffers.push_back(buffer);
        while self.bytes > UNUSED_MAX {
            self.bytes -= self.buffers.pop_front().map_or(self.bytes, |oldest| oldest.len());
        }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("unused_bytes", &self.unused().bytes).finish()
    }
}

/// A buffer on loan.
struct Lent {
    data: Box<[u8]>,
    len: usize,
    pool: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.unused().give_back(std::mem::take(&mut self.data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn of(pool: &Buffers, len: usize, byte: u8) -> Bytes {
        let Ok(data) = pool.filled(len, |data| -> Result<(), Infallible> {
            data.fill(byte);
            Ok(())
        });
        data
    }

    #[test]
    fn a_buffer_is_used_again_when_nobody_looks_at_it_any_more() {
        let pool = Buffers::default();
        let first = of(&pool, 1 << 20, 1);
        let place = first.as_ptr();
        let part = first.slice(5..10);
        drop(first);
        let second = of(&pool, 1 << 20, 2);
        assert_ne!(second.as_ptr(), place, "a part of the first is still referred to");
        assert_eq!(&part[..], [1; 5]);
        drop(part);
        let third = of(&pool, (1 << 20) - 7, 3);
        assert_eq!(third.as_ptr(), place);
        assert_eq!(third.len(), (1 << 20) - 7);
        assert!(third.iter().all(|&byte| byte == 3));
    }

    #[test]
    fn what_could_not_be_filled_goes_back_too() {
        let pool = Buffers::default();
        assert_eq!(pool.filled(1 << 20, |_| Err("no")), Err("no"));
        assert_eq!(pool.unused().bytes, 1 << 20);
    }

    #[test]
    fn only_so_much_is_kept() {
        let pool = Buffers::default();
        let lent: Vec<Bytes> = (0..64).map(|n| of(&pool, 1 << 20, n)).collect();
        let last = lent[63].as_ptr();
        drop(lent);
        assert_eq!(pool.unused().bytes, UNUSED_MAX);
        assert_eq!(of(&pool, 1 << 20, 0).as_ptr(), last, "the newest are kept");
    }

    #[test]
    fn short_ones_are_left_to_the_allocator() {
        let pool = Buffers::default();
        drop(of(&pool, POOLED_MIN - 1, 1));
        assert_eq!(pool.unused().bytes, 0);
    }
}
