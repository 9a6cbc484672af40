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
//! - an answer that the kernel takes in whatever it was told meanwhile has no time-out for attributes ([`Inode::Known`]).

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

use crate::errno::errno_of;
use crate::handles::{DirHandle, FileHandle, Handles};
use crate::last_bytes::LastBytes;
use crate::nodes::{Inode, Nodes, PageState, TakenIn};
use crate::notify::Notifier;
use crate::task::{Interrupted, Tasks};
use crate::wire::Agreement;
use crate::wire::{AttrOut, EntryOut, Handler, NodeId, Op, Reply, Request, Sink, Statfs, Taken};
use soda_client::{Cached, Client, Due, Entry};
use soda_types::{Attr, Errno, Fid, FileKind, FsError, FsResult, InUse, Name};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

/// An operation's failure with its name, for the log.
type Operation = &'static str;

/// A name that the kernel is about to be told.
#[derive(Clone, Copy, Debug)]
struct Named<'a> {
    dir: Fid,
    name: &'a Name,
    taken_in: TakenIn,
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

    // ------------------------------------------------------------ answers

    fn fail(&self, operation: Operation, error: &FsError, reply: Reply) {
        reply.error(errno_of(operation, error));
    }

    fn finish(&self, operation: Operation, result: FsResult<()>, reply: Reply) {
        match result {
            Ok(()) => reply.done(),
            Err(error) => self.fail(operation, &error, reply),
        }
    }

    /// Drops the kernel's pages if they are not of this version of the data. To be called before attributes are handed out:
    /// while these are believed, pages are used without a question.
    async fn freshen(&self, fid: Fid, attr: &Attr) {
        if self.nodes.announce(fid, attr.data_version, attr.size) == PageState::Outdated {
            let _ = self.notifier.data_elsewhere(fid, 0..u64::MAX).await;
        }
    }

    /// The same for attributes that the server may never hear of. Data of their version may never come, so they keep no other
    /// data from the kernel; what it has of others goes all the same.
    async fn freshen_for(&self, fid: Fid, attr: Cached<Attr>) {
        if !attr.valid.is_untold() {
            return self.freshen(fid, &attr.value).await;
        }
        self.nodes.size_may_be(fid, attr.value.size);
        if self.nodes.page_state(fid, attr.value.data_version) == PageState::Outdated {
            let _ = self.notifier.data_elsewhere(fid, 0..u64::MAX).await;
        }
    }

    /// What an own change made wrong in the kernel: attributes. Cheap, and nothing if it has none.
    fn attributes_changed(&self, fid: Fid) {
        if self.nodes.take_attr_told(fid) {
            self.notifier.attributes(fid);
        }
    }

    /// What the creation or removal of a file made wrong in what the kernel holds of `dir`.
    ///
    /// Under a write lease nothing has to be done: the kernel itself forgets the directory's attributes when it has the
    /// answer (so it asks for them with the next name), and before another machine can see the change its recall takes
    /// them back.
    fn entries_changed(&self, dir: Fid) {
        if !self.client.holds_write_lease(dir) {
            self.attributes_changed(dir);
        }
    }

    async fn answer_entry(&self, named: Named<'_>, entry: Entry, inode: Inode, reply: Reply) {
        if let Some(node) = &entry.node {
            self.freshen_for(node.fid, Cached { value: node.attr, valid: entry.attr }).await;
        }
        let answering = self.client.answer();
        let mut names = answering.remaining(entry.names);
        let Some(node) = entry.node else { return reply.by(answering.due()).negative(names) };
        names = self.directory_names(named, node.attr.kind, names);
        self.remember((named.dir, named.name), node.fid, &node.attr);
        let valid = answering.remaining(entry.attr);
        let attr = self.tell_attr(node.fid, &node.attr, valid, inode, &reply);
        let out = EntryOut { attr, generation: node.fid.generation, valid: names };
        if reply.by(answering.due()).entry(out) == Taken::No {
            self.not_taken(node.fid);
        }
    }

    /// How long the kernel may believe a name that may be a directory's.
    fn directory_names(&self, named: Named<'_>, kind: FileKind, valid: Duration) -> Duration {
        if kind != FileKind::Directory || valid.is_zero() {
            return valid;
        }
        // Where the kernel can only cut a name off, not let it expire, processes that work in the directory would
        // lose their path with every recall: such a name is asked for each time.
        if !self.agreement.has_expire_only() {
            return Duration::ZERO;
        }
        self.nodes.tell_subdirectory(named.dir, named.name.as_bytes(), named.taken_in);
        valid
    }

    /// Counts a look-up that is about to be answered.
    fn remember(&self, (dir, name): (Fid, &Name), fid: Fid, attr: &Attr) {
        self.nodes.remember(fid);
        self.nodes.keep_directory(fid, attr);
        if attr.kind == FileKind::Directory {
            self.nodes.tell_place(fid, dir, name.as_bytes());
        }
        self.client.remember(fid, 1);
    }

    /// `valid`: what is left of the lease.
    fn tell_attr<'a>(
        &self,
        fid: Fid,
        attr: &'a Attr,
        valid: Duration,
        inode: Inode,
        reply: &Reply,
    ) -> AttrOut<'a> {
        let out = AttrOut { node: self.nodes.node_of(fid).0, attr, valid: inode.attributes(valid) };
        AttrOut { valid: self.nodes.tell_attr(fid, out, reply.who_asked(), inode), ..out }
    }

    /// The kernel did not take an answer with a look-up.
    fn not_taken(&self, fid: Fid) {
        self.nodes.attr_not_taken(fid);
        self.forget(self.nodes.node_of(fid), 1);
    }

    async fn answer_attr(&self, fid: Fid, attr: Cached<Attr>, form: attrs::Form, inode: Inode, reply: Reply) {
        self.freshen_for(fid, attr).await;
        self.tell_answered(fid, attr, form, inode, reply);
    }

    /// The kernel has no pages that are older than these attributes, or does not believe them.
    fn tell_answered(&self, fid: Fid, attr: Cached<Attr>, form: attrs::Form, inode: Inode, reply: Reply) {
        self.nodes.keep_directory(fid, &attr.value);
        let answering = self.client.answer();
        let out = self.tell_attr(fid, &attr.value, answering.remaining(attr.valid), inode, &reply);
        let reply = reply.by(answering.due());
        let taken = match form {
            attrs::Form::Attr => reply.attr(out),
            attrs::Form::Statx => reply.statx(out),
        };
        if taken == Taken::No {
            self.nodes.attr_not_taken(fid);
        }
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
