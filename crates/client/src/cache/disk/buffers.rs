//! Memory for extents of the usual length that are read from the local disk one after the other.

use super::HEADER;
use crate::cache::readahead::UNIT;
use bytes::Bytes;
use std::io::{self, Read};
use std::sync::{Arc, Mutex};

/// Spare buffers kept, each of [`UNIT`] bytes: about as many as are on their way to one reader.
const MOST_SPARE: usize = 8;

/// Buffers that were used before. To touch new memory for the first time, page by page, takes longer than what is read into it.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Header and data of a file that has so many bytes of these.
    ///
    /// # Errors
    /// Those of the file; it is shorter.
    pub(super) fn read(
        self: &Arc<Buffers>,
        mut file: impl Read,
        len: usize,
    ) -> io::Result<([u8; HEADER], Bytes)> {
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        // No buffer is longer than its data: what they take counts by the length of these.
        if len as u64 != UNIT {
            let mut data = vec![0; len];
            file.read_exact(&mut data)?;
            return Ok((header, data.into()));
        }
        let spare = crate::lock(&self.spare).pop();
        let mut lent = Lent { data: spare.unwrap_or_else(|| vec![0; len]), pool: Arc::clone(self) };
        file.read_exact(&mut lent.data)?;
        Ok((header, Bytes::from_owner(lent)))
    }
}

/// A buffer that returns to its pool when the last reference to its data is gone.
struct Lent {
    data: Vec<u8>,
    pool: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut spare = crate::lock(&self.pool.spare);
        if spare.len() < MOST_SPARE {
            spare.push(std::mem::take(&mut self.data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = UNIT as usize;

    fn file(header: u8, data: u8, len: usize) -> Vec<u8> {
        [vec![header; HEADER], vec![data; len]].concat()
    }

    fn spare(buffers: &Buffers) -> usize {
        crate::lock(&buffers.spare).len()
    }

    #[test]
    fn a_buffer_comes_back_when_nobody_has_its_data_any_more() {
        let buffers = Arc::new(Buffers::default());
        let (header, data) = buffers.read(&*file(1, 2, LEN), LEN).unwrap();
        assert_eq!((header, &data[..]), ([1; HEADER], &[2; LEN][..]));
        let (place, part) = (data.as_ptr(), data.slice(LEN - 1..));
        drop(data);
        assert_eq!((spare(&buffers), part[0]), (0, 2));
        drop(part);
        assert_eq!(spare(&buffers), 1);
        let (_, data) = buffers.read(&*file(3, 4, LEN), LEN).unwrap();
        assert_eq!((data.as_ptr(), &data[..]), (place, &[4; LEN][..]));
        drop(data);
        buffers.read(&*file(3, 4, LEN - 1), LEN).unwrap_err();
        assert_eq!(spare(&buffers), 1, "also after a file that is too short");
    }

    #[test]
    fn spare_ones_are_few_and_data_of_other_lengths_have_their_own_memory() {
        let buffers = Arc::new(Buffers::default());
        for len in [0, 5, LEN - 1, LEN + 1] {
            let (_, data) = buffers.read(&*file(1, 2, len), len).unwrap();
            assert_eq!(data, vec![2; len]);
        }
        assert_eq!(spare(&buffers), 0);
        let read = |_| buffers.read(&*file(1, 2, LEN), LEN).unwrap();
        let lent: Vec<_> = (0..MOST_SPARE + 3).map(read).collect();
        drop(lent);
        assert_eq!(spare(&buffers), MOST_SPARE);
    }
}
