//! What the kernel was told of a mount and counts on, for a process that serves it next (`mount/leave.rs`).

use super::Inner;
use crate::handles::{DirHandle, Durability, FileHandle, Path};
use crate::nodes::HandedNode;
use crate::unpoisoned::Unpoisoned;
use crate::wire::{Header, LockRequest, Op, Reply};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use soda_client::{HandedDir, HandedFile, OpenDir};
use soda_types::{Fid, LockOwner};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// Waits for locks that are given up, and begun once more by whoever serves the mount next.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Changed under the lock of `waits`.
    begun: watch::Sender<bool>,
    waits: Mutex<Vec<Wait>>,
}

/// Whether a wait is begun once more by somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Noted {
    Yes,
    /// The mount stays, and all that had been noted by then have been begun once more.
    TooLate,
}

/// A request for a lock, unanswered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Wait {
    pub(super) header: Header,
    pub(super) request: LockRequest,
}

impl Leaving {
    fn waits(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.waits.lock().unpoisoned()
    }

    pub(super) async fn begun(&self) {
        // The sender is here.
        let _ = self.begun.subscribe().wait_for(|begun| *begun).await;
    }

    /// A server may be long in saying whether a lock was granted that is not waited for any more.
    pub(super) fn note(&self, wait: Wait) -> Noted {
        let mut waits = self.waits();
        if !*self.begun.borrow() {
            return Noted::TooLate;
        }
        waits.push(wait);
        Noted::Yes
    }

    fn begin(&self) {
        let _waits = self.waits();
        self.begun.send_replace(true);
    }

    /// What was noted.
    fn end(&self) -> Vec<Wait> {
        let mut waits = self.waits();
        self.begun.send_replace(false);
        std::mem::take(&mut *waits)
    }
}

/// All of it. Requests that are under way are not part of it, but for the waits for locks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedFiles {
    pub(crate) nodes: Vec<HandedNode>,
    pub(crate) files: Vec<(u64, HandedFile, Path, Durability)>,
    pub(crate) next_file: u64,
    dirs: Vec<(u64, HandedDir)>,
    pub(crate) next_dir: u64,
    record_owners: Vec<(Fid, LockOwner, u64)>,
    /// Handles of directories whose names the kernel may be taking in.
    listings: Vec<(Fid, u64)>,
    waits: Vec<Wait>,
    requests: u64,
}

/// What is counted one by one never comes here: so nothing that is counted on from below it ends.
const FAR: u64 = 1 << 48;

impl HandedFiles {
    /// Whoever takes it over cannot refuse it any more.
    ///
    /// # Errors
    /// What of it cannot be true.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let of_files = self.files.iter().map(|(handle, ..)| *handle);
        let of_dirs = self.dirs.iter().map(|(handle, _)| *handle);
        let fids: HashSet<Fid> = self.nodes.iter().map(HandedNode::fid).collect();
        if !were_given(of_files, self.next_file) || !were_given(of_dirs, self.next_dir) {
            return Err("handles that were never given");
        }
        if fids.len() < self.nodes.len() {
            return Err("an inode that is there twice");
        }
        match self.nodes.iter().any(|node| node.lookups() >= FAR) || self.requests >= FAR {
            true => Err("counts that nobody comes to"),
            false => Ok(()),
        }
    }
}

/// Each once, before `next`.
fn were_given(handles: impl Iterator<Item = u64>, next: u64) -> bool {
    let mut seen = HashSet::new();
    next < FAR && handles.into_iter().all(|handle| handle < next && seen.insert(handle))
}

impl Inner {
    /// From now on nobody waits for a lock: who does is to be asked for again.
    pub(crate) fn give_up_waits(&self) {
        self.leaving.begin();
    }

    /// Asks for all locks again that were waited for.
    pub(crate) fn take_up_waits(self: &Arc<Self>) {
        for Wait { header, request } in self.leaving.end() {
            let reply = Reply::new(header.unique, self.tasks.sink());
            let op = Op::SetLock { lock: request, wait: true };
            self.clone().start_on_file(header, op, Bytes::new(), reply);
        }
    }

    /// To be called when nothing is under way.
    pub(crate) async fn hand_over(&self) -> HandedFiles {
        let file = |(handle, file): (u64, Arc<FileHandle>)| {
            (handle, file.open.hand_over(), file.path, file.durability)
        };
        let mut dirs = Vec::new();
        for (handle, dir) in self.dirs.all() {
            dirs.push((handle, dir.open.hand_over().await));
        }
        HandedFiles {
            nodes: self.nodes.hand_over(),
            files: self.files.all().into_iter().map(file).collect(),
            next_file: self.files.next(),
            dirs,
            next_dir: self.dirs.next(),
            record_owners: self.record_owners.hand_over(),
            listings: self.notifier.listings().all(),
            waits: self.leaving.waits().clone(),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }

    /// Before the first request. Returns the inodes whose pages the kernel may keep.
    pub(crate) fn take_over(&self, handed: HandedFiles) -> HashSet<Fid> {
        let mut kept = HashSet::new();
        for node in handed.nodes {
            let fid = node.fid();
            self.client.remember(fid, node.lookups());
            if node.pages().is_some_and(|version| self.client.kernel_may_keep_pages(fid, version)) {
                kept.insert(fid);
            }
            self.nodes.take_over(node);
        }
        for (handle, file, path, durability) in handed.files {
            let open = self.client.open_handed(file);
            self.files.add_at(handle, FileHandle { open, path, durability });
        }
        self.files.go_on_from(handed.next_file);
        for (handle, dir) in handed.dirs {
            let open = Arc::new(OpenDir::handed(dir));
            self.dirs.add_at(handle, DirHandle { fid: open.fid(), open });
        }
        self.dirs.go_on_from(handed.next_dir);
        self.record_owners.take_over(handed.record_owners);
        handed.listings.into_iter().for_each(|(dir, handle)| self.notifier.listings().give(dir, handle));
        *self.leaving.waits() = handed.waits;
        self.requests.store(handed.requests, Ordering::Relaxed);
        kept
    }
}

#[cfg(test)]
impl HandedFiles {
    /// As [`Inner::take_over`], but for what is the client's.
    pub(crate) fn try_out(self) {
        let nodes = crate::nodes::Nodes::new(Fid::new(soda_types::VolumeId(1), soda_types::Ino(1)));
        for node in self.nodes {
            let fid = node.fid();
            nodes.take_over(node);
            nodes.remember(fid);
        }
        let (files, dirs) = (crate::handles::Handles::new(), crate::handles::Handles::new());
        self.files.into_iter().for_each(|(handle, file, ..)| files.add_at(handle, Some(file)));
        files.go_on_from(self.next_file);
        self.dirs.into_iter().for_each(|(handle, dir)| dirs.add_at(handle, Some(OpenDir::handed(dir))));
        dirs.go_on_from(self.next_dir);
        let (len, handle) = (files.len(), files.add(None));
        assert!(handle >= self.next_file && files.len() == len + 1, "a handle was given twice");
        let (len, handle) = (dirs.len(), dirs.add(None));
        assert!(handle >= self.next_dir && dirs.len() == len + 1, "a handle was given twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{LockSpan, NodeId};

    #[test]
    fn a_wait_that_ends_when_nobody_takes_it_up_any_more_is_not_noted() {
        let leaving = Leaving::default();
        let wait = |unique| {
            let header = Header { unique, node: NodeId(5), uid: 0, gid: 0, tid: 1 };
            let span = LockSpan { start: 0, end: 9, kind: 1, pid: 1 };
            Wait { header, request: LockRequest { handle: 1, owner: 2, span, is_flock: true } }
        };
        assert_eq!(leaving.note(wait(1)), Noted::TooLate);
        leaving.begin();
        assert_eq!(leaving.note(wait(2)), Noted::Yes);
        let taken_up: Vec<_> = leaving.end().iter().map(|wait| wait.header.unique).collect();
        assert_eq!(taken_up, [2]);
        assert_eq!(leaving.note(wait(3)), Noted::TooLate, "it would be waited for by nobody");
        assert!(leaving.waits().is_empty());
    }
}
