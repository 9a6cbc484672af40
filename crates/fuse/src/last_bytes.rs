//! How the kernel learns that a file has become longer, when it threw away the answer that said so.
//!
//! The last byte is put in place with [`STORE`]. It goes into whatever page the kernel has there by then, which may have been
//! filled with newer data since: a reader would see that page with one byte of the past. So the byte is not
//! copied into the message. The message is a memory file, handed over with splice(2); the kernel takes the byte from there
//! when it holds the page's lock, and who fills that page meanwhile, holding its lock, corrects the byte first.
//!
//! [`STORE`]: crate::wire::abi::notify::STORE

use crate::unpoisoned::Unpoisoned;
use crate::wire::NodeId;
use crate::wire::abi::{OUT_HEADER_LEN, Record};
use bytes::Bytes;
use rustix::fs::MemfdFlags;
use soda_types::Fid;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};

const RECORD_LEN: usize = 24;
/// Header, record, one byte.
pub(crate) const MESSAGE_LEN: usize = OUT_HEADER_LEN + RECORD_LEN + 1;

/// The last bytes that are on their way into the kernel.
#[derive(Debug, Default)]
pub(crate) struct LastBytes(Mutex<HashMap<Fid, Vec<Arc<LastByte>>>>);

#[derive(Debug)]
struct LastByte {
    offset: u64,
    message: File,
}

/// One of them; it cannot be corrected any more when this is dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    all: Arc<LastBytes>,
    fid: Fid,
    byte: Arc<LastByte>,
}

impl LastBytes {
    fn by_file(&self) -> MutexGuard<'_, HashMap<Fid, Vec<Arc<LastByte>>>> {
        self.0.lock().unpoisoned()
    }

    /// To be called before it is decided that `byte` is not too old to be sent.
    ///
    /// # Errors
    /// No more descriptors, or no memory.
    pub(crate) fn announce(
        self: &Arc<LastBytes>,
        (fid, node): (Fid, NodeId),
        offset: u64,
        byte: u8,
    ) -> io::Result<OnItsWay> {
        let message = File::from(rustix::fs::memfd_create("soda-last-byte", MemfdFlags::CLOEXEC)?);
        let record: [u8; RECORD_LEN] = Record::new().u64(node.0).u64(offset).u32(1).u32(0).done();
        message.write_all_at(&record, OUT_HEADER_LEN as u64)?;
        let byte = {
            let last = LastByte { offset, message };
            last.set(byte)?;
            Arc::new(last)
        };
        self.by_file().entry(fid).or_default().push(Arc::clone(&byte));
        Ok(OnItsWay { all: Arc::clone(self), fid, byte })
    }

    /// The kernel has asked for this range, into pages that it holds locked, and is about to be handed these bytes, from its
    /// beginning. To be called after the version that they are of was noted ([`crate::nodes::Nodes::fill_pages`]).
    pub(crate) fn correct(&self, fid: Fid, asked: Range<u64>, chunks: &[Bytes]) {
        let by_file = self.by_file();
        for last in by_file.get(&fid).into_iter().flatten().filter(|last| asked.contains(&last.offset)) {
            // What a short answer leaves of its pages the kernel makes zeros.
            let byte = byte_at(chunks, last.offset - asked.start).unwrap_or(0);
            if let Err(error) = last.set(byte) {
                tracing::error!(%error, %fid, "a byte that is on its way into the kernel cannot be corrected");
            }
        }
    }
}

impl LastByte {
    fn set(&self, byte: u8) -> io::Result<()> {
        self.message.write_all_at(&[byte], (OUT_HEADER_LEN + RECORD_LEN) as u64)
    }
}

impl OnItsWay {
    pub(crate) fn message(&self) -> &File {
        &self.byte.message
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let mut by_file = self.all.by_file();
        if let Some(bytes) = by_file.get_mut(&self.fid) {
            bytes.retain(|byte| !Arc::ptr_eq(byte, &self.byte));
            if bytes.is_empty() {
                by_file.remove(&self.fid);
            }
        }
    }
}

fn byte_at(chunks: &[Bytes], mut place: u64) -> Option<u8> {
    for chunk in chunks {
        match usize::try_from(place).ok().and_then(|place| chunk.get(place)) {
            Some(byte) => return Some(*byte),
            None => place -= chunk.len() as u64,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    fn byte_of(sent: &OnItsWay) -> u8 {
        let mut message = [0; MESSAGE_LEN];
        sent.message().read_exact_at(&mut message, 0).unwrap();
        assert_eq!(message[OUT_HEADER_LEN..][..8], 5u64.to_ne_bytes(), "the node");
        assert_eq!(message[OUT_HEADER_LEN + 8..][..8], 9000u64.to_ne_bytes(), "the offset");
        message[MESSAGE_LEN - 1]
    }

    #[test]
    fn what_fills_the_page_corrects_the_byte_that_waits_for_it() {
        let (all, fid) = (Arc::new(LastBytes::default()), Fid::new(VolumeId(1), Ino(5)));
        let first = all.announce((fid, NodeId(5)), 9000, 7).unwrap();
        let second = all.announce((fid, NodeId(5)), 9000, 8).unwrap();
        assert_eq!((byte_of(&first), byte_of(&second)), (7, 8));
        let page: Vec<u8> = (0..4096u32).map(|place| (place % 251) as u8).collect();
        let chunks = [Bytes::from(page[..100].to_vec()), Bytes::from(page[100..].to_vec())];
        all.correct(fid, 8192..12_288, &chunks);
        let at = page[9000 - 8192];
        assert_eq!((byte_of(&first), byte_of(&second)), (at, at));
        drop(second);
        all.correct(fid, 9001..13_097, &chunks);
        assert_eq!(byte_of(&first), at, "bytes behind it say nothing about it");
        all.correct(fid, 4096..8192, &chunks);
        assert_eq!(byte_of(&first), at, "nor does a page before it");
        all.correct(fid, 8192..12_288, &chunks[..1]);
        assert_eq!(byte_of(&first), 0, "the file has become shorter");
        drop(first);
        assert!(all.by_file().is_empty());
    }
}
