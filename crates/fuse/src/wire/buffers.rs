//! Buffers for requests and for the data of writes.

use super::device::MAX_WRITE;
use crate::unpoisoned::Unpoisoned;
use bytes::Bytes;
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub(super) const BUFFER_LEN: usize = MAX_WRITE as usize + 4096;
/// Data up to this is copied out of the request's buffer; above, the buffer itself goes with it.
const COPY_LIMIT: usize = 32 << 10;
/// Spare buffers kept, each [`BUFFER_LEN`].
const SPARE_BUFFERS: usize = 16;

/// Buffers for requests. Zeroing a megabyte per write would cost as much as the write.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    pub(super) fn take(&self) -> Vec<u8> {
        let spare = self.spare.lock().unpoisoned().pop();
        spare.unwrap_or_else(|| vec![0; BUFFER_LEN])
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unpoisoned();
        if spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    }

    /// A part of the buffer as something that can be kept, and a buffer for the next request.
    pub(super) fn detach(self: &Arc<Self>, buffer: Vec<u8>, part: Range<usize>) -> (Bytes, Vec<u8>) {
        if part.len() <= COPY_LIMIT {
            return (Bytes::copy_from_slice(&buffer[part]), buffer);
        }
        let lent = Lent { buffer, part, pool: self.clone() };
        (Bytes::from_owner(lent), self.take())
    }

    /// A copy of data whose place is needed for something else.
    pub(super) fn copy(self: &Arc<Self>, data: &[u8]) -> Bytes {
        if data.len() <= COPY_LIMIT || data.len() > BUFFER_LEN {
            return Bytes::copy_from_slice(data);
        }
        let mut buffer = self.take();
        buffer[..data.len()].copy_from_slice(data);
        Bytes::from_owner(Lent { buffer, part: 0..data.len(), pool: self.clone() })
    }
}

/// A buffer that returns to its pool when the last reference to its data is gone.
struct Lent {
    buffer: Vec<u8>,
    part: Range<usize>,
    pool: Arc<BufferPool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.part.clone()]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_buffer_comes_back() {
        let pool = Arc::new(BufferPool::default());
        let mut buffer = pool.take();
        buffer[100] = 7;
        let (data, next) = pool.detach(buffer, 100..100 + COPY_LIMIT + 1);
        assert_eq!(data[0], 7);
        assert!(pool.spare.lock().unwrap().is_empty());
        drop(data);
        pool.give(next);
        assert_eq!(pool.spare.lock().unwrap().len(), 2);
    }

    #[test]
    fn copies_of_large_data_use_the_pools_buffers() {
        let pool = Arc::new(BufferPool::default());
        let data = vec![9; COPY_LIMIT + 1];
        let copy = pool.copy(&data);
        assert_eq!(copy, data);
        drop(copy);
        assert_eq!(pool.spare.lock().unwrap().len(), 1);
        assert_eq!(pool.copy(b"small"), &b"small"[..]);
    }
}
