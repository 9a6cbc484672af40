//! Requests of the kernel turned into calls of the client, and its answers into what the kernel may keep.
//!
//! The rules of the kernel's caches live here and in [`crate::notify`]:
//! - a time-out is what is left of the lease, or a little less, taken in an [`soda_client::Answering`] section around the
//!   write of the answer;
//! - a handle that can write is direct, so that no local reader sees a write before it is everybody's; one that can
//!   only read uses the kernel's pages while a lease covers the file;
//! - attributes are never handed out while the kernel may hold pages of another version of the data, and no page of an
//!   older version after them;
//! - what an own change makes wrong in the kernel's caches is dropped before the change is answered;
//! - attributes that another machine changed are believed from the second answer on ([`crate::believed`]);
//! - an answer that the kernel takes in whatever it was told meanwhile has no time-out for attributes
//!   ([`crate::nodes::Inode::Known`]).

mod answers;
mod attrs;
mod data;
mod dirs;
mod dispatch;
mod flags;
mod leaving;
mod locks;
mod moved;
mod names;
mod opens;
mod owners;
mod removed;
mod xattrs;

pub(crate) use leaving::HandedFiles;

use crate::handles::{DirHandle, FileHandle, Handles};
use crate::last_bytes::LastBytes;
use crate::nodes::Nodes;
use crate::notify::Notifier;
use crate::task::{Interrupted, Tasks};
use crate::wire::{Agreement, Handler, NodeId, Op, Reply, Request, Sink, Statfs};
use soda_client::{Client, Due};
use soda_types::{Errno, InUse};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One mounted volume.
#[derive(Debug, Clone)]
pub(crate) struct FileSystem(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) client: Arc<Client>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) notifier: Arc<Notifier>,
    last_bytes: Arc<LastBytes>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) files: Handles<FileHandle>,
    pub(crate) dirs: Handles<DirHandle>,
    record_owners: locks::RecordOwners,
    pub(crate) leaving: leaving::Leaving,
    pub(crate) requests: AtomicU64,
    moved: moved::Moved,
    agreement: Agreement,
}

impl FileSystem {
    pub(crate) fn new(
        client: Arc<Client>,
        nodes: Arc<Nodes>,
        notifier: Arc<Notifier>,
        agreement: Agreement,
        sink: Arc<dyn Sink>,
        runtime: tokio::runtime::Handle,
        mount_point: PathBuf,
    ) -> FileSystem {
        FileSystem(Arc::new(Inner {
            client,
            nodes,
            notifier,
            last_bytes: Arc::default(),
            tasks: Tasks::new(runtime, sink),
            files: Handles::new(),
            dirs: Handles::new(),
            record_owners: locks::RecordOwners::default(),
            leaving: leaving::Leaving::default(),
            requests: AtomicU64::new(0),
            moved: moved::Moved::new(mount_point),
            agreement,
        }))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Handler for FileSystem {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let fs = self.0.clone();
        fs.requests.fetch_add(1, Ordering::Relaxed);
        let header = request.header;
        let reply = reply.asked(self.0.nodes.asked(header.tid));
        match request.op {
            Op::Forget { lookups } => {
                fs.forget(header.node, lookups);
                reply.none();
            }
            Op::BatchForget { pairs } => {
                Op::forgets(pairs).for_each(|(node, lookups)| fs.forget(node, lookups));
                reply.none();
            }
            Op::Interrupt { unique } => fs.interrupt(unique, reply),
            Op::Destroy => reply.done(),
            Op::Init { .. } => reply.error(Errno::Io),
            op => fs.start(header, op, request.payload, reply),
        }
    }

    fn arrived(&self, due: Due) {
        self.0.client.arrived(due);
    }
}

impl Inner {
    fn interrupt(&self, unique: u64, reply: Reply) {
        match self.tasks.interrupt(unique) {
            Interrupted::Noted => reply.none(),
            // Being started on another thread, or already answered; the kernel asks again if it still waits.
            Interrupted::NotFound => reply.error(Errno::TryAgain),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let fid = self.nodes.fid_of(node);
        self.nodes.forget(node, lookups);
        self.client.forget(fid, lookups);
    }

    async fn statfs(self: Arc<Self>, reply: Reply) {
        const BLOCK: u64 = 4096;
        match self.client.statfs().await {
            Ok(stats) => reply.statfs(Statfs {
                block: BLOCK as u32,
                blocks: stats.total_bytes / BLOCK,
                free: stats.free_bytes / BLOCK,
                inodes: stats.total_inodes,
                free_inodes: stats.free_inodes,
            }),
            Err(error) => self.fail("statfs", &error, reply),
        }
    }

    /// Forgets everything: the mount is gone.
    pub(crate) fn clear(&self) {
        self.files.clear();
        self.dirs.clear();
        self.tasks.clear();
    }
}

/// A new inode that nobody holds open.
pub(crate) const NOT_OPEN: InUse = InUse::No;
