//! Open files and directories, by the numbers the kernel knows them by.

use crate::unpoisoned::Unpoisoned;
use serde::{Deserialize, Serialize};
use soda_client::{OpenDir, OpenFile};
use soda_types::Fid;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

const SHARDS: u64 = 16;

#[derive(Debug)]
pub(crate) struct Handles<T> {
    next: AtomicU64,
    shards: Vec<Mutex<HashMap<u64, Arc<T>>>>,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Handles<T> {
        Handles { next: AtomicU64::new(1), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, handle: u64) -> MutexGuard<'_, HashMap<u64, Arc<T>>> {
        let shard = &self.shards[(handle % SHARDS) as usize];
        shard.lock().unpoisoned()
    }

    pub(crate) fn add(&self, value: T) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(handle).insert(handle, Arc::new(value));
        handle
    }

    /// Under the number that another process has given it.
    pub(crate) fn add_at(&self, handle: u64, value: T) {
        self.next.fetch_max(handle + 1, Ordering::Relaxed);
        self.shard(handle).insert(handle, Arc::new(value));
    }

    /// The number of the next one: also those of handles that are gone are not used again.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn go_on_from(&self, next: u64) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    pub(crate) fn all(&self) -> Vec<(u64, Arc<T>)> {
        let of_shard = |shard: &Mutex<HashMap<u64, Arc<T>>>| {
            let shard = shard.lock().unpoisoned();
            shard.iter().map(|(handle, value)| (*handle, value.clone())).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    pub(crate) fn find(&self, handle: u64) -> Option<Arc<T>> {
        self.shard(handle).get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.shard(handle).remove(&handle)
    }

    pub(crate) fn len(&self) -> usize {
        let len = |shard: &Mutex<HashMap<_, _>>| shard.lock().unpoisoned().len();
        self.shards.iter().map(len).sum()
    }

    pub(crate) fn clear(&self) {
        for handle in 0..SHARDS {
            self.shard(handle).clear();
        }
    }
}

/// How reads and writes of a handle reach us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Path {
    /// Each as it is called.
    Direct,
    /// Through the kernel's pages.
    Cached,
}

#[derive(Debug)]
pub(crate) struct FileHandle {
    pub(crate) open: Arc<OpenFile>,
    pub(crate) path: Path,
    pub(crate) durability: Durability,
}

/// When a change has to be on the server's disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Durability {
    /// At the next fsync, or when the server syncs by itself.
    Later,
    /// Before the call returns: O_SYNC and O_DSYNC, RWF_SYNC and RWF_DSYNC.
    OnReturn,
}

impl Durability {
    /// O_DSYNC on x86-64 and aarch64; O_SYNC has its bit, too.
    const O_DSYNC: i32 = 0o1_0000;

    /// What these flags of an open file ask for, or those that came with one write.
    pub(crate) fn of(flags: i32) -> Durability {
        match flags & Durability::O_DSYNC {
            0 => Durability::Later,
            _ => Durability::OnReturn,
        }
    }
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    AtOffset,
    /// O_APPEND: where the file ends, which the kernel cannot know.
    AtEnd,
}

impl Placement {
    /// On x86-64 and aarch64.
    const O_APPEND: i32 = 0o2000;

    /// What these flags of an open file ask for. They are those of the moment: `F_SETFL` sets and clears this one.
    pub(crate) fn of(flags: i32) -> Placement {
        match flags & Placement::O_APPEND {
            0 => Placement::AtOffset,
            _ => Placement::AtEnd,
        }
    }
}

impl FileHandle {
    pub(crate) fn fid(&self) -> Fid {
        self.open.fid()
    }
}

#[derive(Debug)]
pub(crate) struct DirHandle {
    pub(crate) fid: Fid,
    pub(crate) open: Arc<OpenDir>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_found_until_it_is_removed() {
        let handles = Handles::new();
        let (a, b) = (handles.add("a"), handles.add("b"));
        assert_ne!(a, b);
        assert_eq!(handles.find(a).as_deref(), Some(&"a"));
        assert!(handles.remove(a).is_some());
        assert!(handles.find(a).is_none() && handles.find(b).is_some());
        assert_eq!(handles.len(), 1);
    }
}
