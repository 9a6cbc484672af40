//! What the file system tells the kernel.

use super::{NullMount, ROOT};
use soda_fuse::wire::Sink;

impl NullMount {
    /// Drops what the kernel has of a file's pages and attributes.
    pub(crate) fn invalidate(&self, number: u64) -> std::io::Result<()> {
        const INVAL_INODE: i32 = 2;
        let mut record = [0; 24];
        record[..8].copy_from_slice(&(number + 2).to_ne_bytes());
        self.device.send(0, INVAL_INODE, &[&record])
    }

    /// Gives the kernel the beginning of a file, as it is.
    pub(crate) fn store(&self, number: u64, len: usize) -> std::io::Result<()> {
        const STORE: i32 = 4;
        let mut record = [0; 24];
        record[..8].copy_from_slice(&(number + 2).to_ne_bytes());
        record[16..20].copy_from_slice(&(len as u32).to_ne_bytes());
        self.device.send(0, STORE, &[&record, &vec![number as u8 + 2; len]])
    }

    /// Drops a name, and with it the last that holds its inode.
    pub(crate) fn invalidate_name(&self, number: u64) -> std::io::Result<()> {
        const INVAL_ENTRY: i32 = 3;
        let name = number.to_string();
        let mut record = [0; 16];
        record[..8].copy_from_slice(&ROOT.to_ne_bytes());
        record[8..12].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        self.device.send(0, INVAL_ENTRY, &[&record, name.as_bytes(), &[0]])
    }
}
