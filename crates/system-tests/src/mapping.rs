//! Loads and stores through shared mappings.

// Mapped memory is only reached through pointers.
#![allow(unsafe_code)]

use rustix::fs;
use rustix::mm::{self, MapFlags, MsyncFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::OwnedFd;

const PAGE: u64 = 4096;

/// A mapping of whole pages, those that hold a range of a file before its end.
#[derive(Debug)]
struct Mapping {
    start: *mut c_void,
    mapped: usize,
    /// Where the range begins in it.
    skipped: usize,
    len: usize,
}

impl Mapping {
    /// `None`: nothing of the range lies before the end of the file; a load there would be a SIGBUS.
    fn new(file: &OwnedFd, offset: u64, len: usize, how: ProtFlags) -> rustix::io::Result<Option<Mapping>> {
        let size = fs::fstat(file)?.st_size as u64;
        let len = size.saturating_sub(offset).min(len as u64) as usize;
        if len == 0 {
            return Ok(None);
        }
        let skipped = (offset % PAGE) as usize;
        let mapped = skipped + len;
        // SAFETY: a new mapping at an address that the kernel chooses; nobody else cuts the file meanwhile.
        let start = unsafe {
            mm::mmap(std::ptr::null_mut(), mapped, how, MapFlags::SHARED, file, offset - skipped as u64)?
        };
        Ok(Some(Mapping { start, mapped, skipped, len }))
    }

    fn range(&self) -> *mut u8 {
        self.start.cast::<u8>().wrapping_add(self.skipped)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference into it is left.
        let _ = unsafe { mm::munmap(self.start, self.mapped) };
    }
}

/// What a mapping shows of the range, as far as the file goes.
///
/// # Errors
/// Those of fstat(2) and mmap(2).
pub fn load(file: &OwnedFd, offset: u64, len: usize) -> rustix::io::Result<Vec<u8>> {
    let Some(mapping) = Mapping::new(file, offset, len, ProtFlags::READ)? else { return Ok(Vec::new()) };
    let mut bytes = vec![0; mapping.len];
    // SAFETY: the range is mapped for reading, and `bytes` is as long.
    unsafe { std::ptr::copy_nonoverlapping(mapping.range(), bytes.as_mut_ptr(), mapping.len) };
    Ok(bytes)
}

/// Stores as many of the bytes as lie before the end of the file, and waits until they are written back (MS_SYNC).
///
/// # Errors
/// Those of fstat(2), mmap(2) and msync(2).
pub fn store(file: &OwnedFd, offset: u64, bytes: &[u8]) -> rustix::io::Result<u64> {
    let how = ProtFlags::READ | ProtFlags::WRITE;
    let Some(mapping) = Mapping::new(file, offset, bytes.len(), how)? else { return Ok(0) };
    // SAFETY: the range is mapped for writing, and no longer than `bytes`.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapping.range(), mapping.len);
        mm::msync(mapping.start, mapping.mapped, MsyncFlags::SYNC)?;
    }
    Ok(mapping.len as u64)
}
