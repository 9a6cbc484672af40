//! Listings that the kernel may still be taking in.
//!
//! What READDIRPLUS says of names is entered one by one by the thread that asked, when it gets to run, and each name counts
//! as told after the last [`crate::wire::abi::notify::INC_EPOCH`], even if the answer was written before that one (Linux 6.18,
//! `fuse_direntplus_link`). So names of a directory are surely taken back only once such a thread has let go of the directory's
//! lock, which it holds while it reads.

use crate::unpoisoned::Unpoisoned;
use soda_types::Fid;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// By directory, the handles that were given names and have not been heard of since: the next call with a handle comes after
/// the one before has been taken in.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    given: Mutex<HashMap<Fid, HashSet<u64>>>,
    handles: AtomicUsize,
}

impl Listings {
    fn given(&self) -> MutexGuard<'_, HashMap<Fid, HashSet<u64>>> {
        self.given.lock().unpoisoned()
    }

    /// Names of `dir` are about to be written, as the answer to a call with this handle.
    pub(crate) fn give(&self, dir: Fid, handle: u64) {
        if self.given().entry(dir).or_default().insert(handle) {
            self.handles.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Another call with the handle has come, or the kernel did not take the names.
    pub(crate) fn heard_of(&self, dir: Fid, handle: u64) {
        if self.handles.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut given = self.given();
        let Some(handles) = given.get_mut(&dir) else { return };
        if handles.remove(&handle) {
            self.handles.fetch_sub(1, Ordering::SeqCst);
        }
        if handles.is_empty() {
            given.remove(&dir);
        }
    }

    /// All handles that were given names and have not been heard of since.
    pub(crate) fn all(&self) -> Vec<(Fid, u64)> {
        let given = self.given();
        let of_dir = |(dir, handles): (&Fid, &HashSet<u64>)| {
            handles.iter().map(|handle| (*dir, *handle)).collect::<Vec<_>>()
        };
        given.iter().flat_map(of_dir).collect()
    }

    /// Whether the kernel may still be taking in names of `dir`.
    pub(crate) fn are_out(&self, dir: Fid) -> bool {
        self.handles.load(Ordering::SeqCst) > 0 && self.given().contains_key(&dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    #[test]
    fn a_listing_is_out_until_its_handle_is_heard_of() {
        let (listings, dir) = (Listings::default(), |ino| Fid::new(VolumeId(1), Ino(ino)));
        listings.heard_of(dir(1), 7);
        assert!(!listings.are_out(dir(1)));
        for handle in [7, 8, 7] {
            listings.give(dir(1), handle);
        }
        assert!(listings.are_out(dir(1)) && !listings.are_out(dir(2)));
        listings.heard_of(dir(1), 7);
        listings.heard_of(dir(2), 8);
        assert!(listings.are_out(dir(1)));
        listings.heard_of(dir(1), 8);
        listings.heard_of(dir(1), 8);
        assert!(!listings.are_out(dir(1)));
        assert_eq!(listings.handles.load(Ordering::SeqCst), 0);
    }
}
