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
mod flags;
mod leaving;
mod locks;
mod moved;
mod names;
mod opens;
mod owners;
mod removed;
mod xattrs;

use crate::errno::{errno_of, errno_of_name};
pub(crate) use leaving::HandedFiles;

use crate::handles::{DirHandle, Durability, FileHandle, Handles, Placement};
use crate::last_bytes::LastBytes;
use crate::nodes::{Inode, Nodes, PageState, TakenIn};
use crate::notify::Notifier;
use crate::task::{Interrupted, Interruptible, Tasks};
use crate::wire::Agreement;
use crate::wire::{AttrOut, EntryOut, Handler, Header, NodeId, Op, Reply, Request, Sink, Statfs, Taken};
use soda_client::{Cached, Client, Due, Entry};
use soda_types::{Attr, Creds, Errno, Fid, FileKind, FsError, FsResult, InUse, Name};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

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

/// Runs an async method of `Inner` as the request's task.
macro_rules! run {
    ($fs:ident, $header:ident, $call:expr) => {{
        let (tasks, unique, tid) = ($fs.tasks.clone(), $header.unique, $header.tid);
        tasks.run(unique, tid, Interruptible::Death, $call)
    }};
}

/// The name, or the request is answered with what is wrong with it.
macro_rules! name {
    ($bytes:expr, $reply:ident) => {
        match Name::new($bytes) {
            Ok(name) => name,
            Err(error) => return $reply.error(errno_of_name(error)),
        }
    };
}

impl Inner {
    fn start(self: Arc<Self>, header: Header, op: Op<'_>, payload: bytes::Bytes, reply: Reply) {
        let fs = self;
        let fid = fs.nodes.fid_of(header.node);
        let creds = Creds { uid: header.uid, gid: header.gid, pid: header.tid };
        match op {
            // names
            Op::Lookup { name } => {
                let name = name!(name, reply);
                let tid = header.tid;
                run!(fs, header, async move { fs.lookup(tid, fid, name, reply).await })
            }
            Op::MkNod { name, mode, rdev, umask } => {
                let name = name!(name, reply);
                let Some(kind) = crate::wire::kind_of_mode(mode) else { return reply.error(Errno::Invalid) };
                let new = names::new_node(kind, mode, umask, creds);
                let new = soda_client::NewNode { rdev, ..new };
                run!(fs, header, async move { fs.make("mknod", fid, name, new, reply).await })
            }
            Op::MkDir { name, mode, umask } => {
                let name = name!(name, reply);
                let new = names::new_node(FileKind::Directory, mode, umask, creds);
                run!(fs, header, async move { fs.make("mkdir", fid, name, new, reply).await })
            }
            Op::Symlink { name, target } => {
                let name = name!(name, reply);
                let new = names::new_node(FileKind::Symlink, 0o777, 0, creds);
                let new = soda_client::NewNode { target: target.to_vec(), ..new };
                run!(fs, header, async move { fs.make("symlink", fid, name, new, reply).await })
            }
            Op::Link { node, name } => {
                let name = name!(name, reply);
                let target = fs.nodes.fid_of(node);
                run!(fs, header, async move { fs.link(target, fid, name, reply).await })
            }
            Op::Unlink { name } => {
                let name = name!(name, reply);
                run!(fs, header, async move {
                    let result = match fs.check_sticky(creds, fid, &name).await {
                        Ok(()) => fs.client.unlink(fid, &name).await,
                        refused => refused,
                    };
                    fs.entries_changed(fid);
                    fs.finish("unlink", result, reply)
                })
            }
            Op::RmDir { name } => {
                let name = name!(name, reply);
                run!(fs, header, async move {
                    let result = match fs.check_sticky(creds, fid, &name).await {
                        Ok(()) => fs.client.rmdir(fid, &name).await,
                        refused => refused,
                    };
                    fs.names_changed("rmdir", [fid, fid], result, reply)
                })
            }
            Op::Rename { name, new_parent, new_name, flags } => {
                let (name, new_name) = (name!(name, reply), name!(new_name, reply));
                let Some(how) = names::rename_how(flags, creds) else { return reply.error(Errno::Invalid) };
                let new_parent = fs.nodes.fid_of(new_parent);
                run!(fs, header, async move {
                    let result = fs.rename(creds, (fid, &name), (new_parent, &new_name), how).await;
                    fs.names_changed("rename", [fid, new_parent], result, reply)
                })
            }
            Op::Create { name, mode, umask, open } => {
                let name = name!(name, reply);
                let new = names::new_node(FileKind::File, mode, umask, creds);
                run!(fs, header, async move { fs.create(fid, name, new, open, reply).await })
            }
            Op::TmpFile { mode, umask, open } => {
                let new = names::new_node(FileKind::File, mode, umask, creds);
                run!(fs, header, async move { fs.tmpfile(fid, new, open, reply).await })
            }
            Op::OpenDir => run!(fs, header, async move { fs.opendir(fid, reply).await }),
            Op::ReadDir { handle, offset, len } => {
                let Some(dir) = fs.dirs.find(handle) else { return reply.error(Errno::BadHandle) };
                fs.notifier.listings().heard_of(dir.fid, handle);
                run!(fs, header, async move { fs.readdir((dir, handle), offset, len, reply).await })
            }
            Op::ReadDirPlus { handle, offset, len } => {
                let Some(dir) = fs.dirs.find(handle) else { return reply.error(Errno::BadHandle) };
                fs.notifier.listings().heard_of(dir.fid, handle);
                run!(fs, header, async move { fs.readdirplus((dir, handle), offset, len, reply).await })
            }
            Op::ReleaseDir { handle } => {
                fs.release_dir(handle);
                reply.done();
            }

            // attributes
            Op::GetAttr(request) => {
                run!(fs, header, async move { fs.getattr(fid, request.handle, reply).await })
            }
            Op::Statx(_) => run!(fs, header, async move { fs.statx(fid, reply).await }),
            Op::SetAttr(request) => {
                run!(fs, header, async move { fs.setattr(fid, creds, request, reply).await })
            }
            Op::ReadLink => run!(fs, header, async move { fs.readlink(fid, reply).await }),
            Op::StatFs => run!(fs, header, async move { fs.statfs(reply).await }),

            // xattrs
            Op::GetXattr { name, size } => {
                let name = name.to_vec();
                run!(fs, header, async move { fs.getxattr(fid, name, size, reply).await })
            }
            Op::ListXattr { size } => {
                run!(fs, header, async move { fs.listxattr(fid, creds, size, reply).await })
            }
            Op::SetXattr { name, value, flags, kill_sgid } => {
                let request = match xattrs::SetRequest::new(name, value, flags, kill_sgid) {
                    Ok(request) => request,
                    Err(errno) => return reply.error(errno),
                };
                run!(fs, header, async move { fs.setxattr(fid, creds, request, reply).await })
            }
            Op::RemoveXattr { name } => {
                let name = name.to_vec();
                run!(fs, header, async move { fs.removexattr(fid, creds, name, reply).await })
            }

            // data
            Op::Open(request) => run!(fs, header, async move { fs.open(fid, request, reply).await }),
            Op::FSyncDir => {
                run!(fs, header, async move { fs.finish("fsync", fs.client.fsync(fid).await, reply) })
            }
            Op::SyncFs => {
                run!(fs, header, async move { fs.finish("syncfs", fs.client.sync_all().await, reply) })
            }
            op => fs.start_on_file(header, op, payload, reply),
        }
    }

    fn start_on_file(self: Arc<Self>, header: Header, op: Op<'_>, payload: bytes::Bytes, reply: Reply) {
        let fs = self;
        let file = |handle| fs.files.find(handle).ok_or(Errno::BadHandle);
        macro_rules! file {
            ($handle:expr) => {
                match file($handle) {
                    Ok(file) => file,
                    Err(errno) => return reply.error(errno),
                }
            };
        }
        match op {
            Op::Read { handle, offset, len, into_page_cache } => {
                let file = file!(handle);
                let goal = match into_page_cache {
                    true => data::ReadGoal::Pages,
                    false => data::ReadGoal::Caller,
                };
                run!(fs, header, async move { fs.read(file, offset, len, goal, reply).await })
            }
            Op::Write { handle, offset, from_page_cache, kill_suid_sgid, flags } => {
                let file = file!(handle);
                let origin = match from_page_cache {
                    true => data::WriteOrigin::Pages,
                    false => data::WriteOrigin::Caller,
                };
                let write = data::WriteRequest {
                    offset,
                    data: payload,
                    origin,
                    placement: Placement::of(flags),
                    kill_suid_sgid,
                    durability: Durability::of(flags),
                };
                run!(fs, header, async move { fs.write(file, write, reply).await })
            }
            Op::Flush { handle, owner } => {
                let file = file!(handle);
                run!(fs, header, async move { fs.flush(file, owner, reply).await })
            }
            Op::Release { handle, .. } => {
                let Some(file) = fs.files.remove(handle) else { return reply.done() };
                run!(fs, header, async move { fs.release(file, handle, reply).await })
            }
            Op::FSync { handle, .. } => {
                let file = file!(handle);
                run!(fs, header, async move {
                    let result = fs.client.fsync_file(&file.open).await;
                    fs.finish("fsync", result, reply)
                })
            }
            Op::Allocate { handle, offset, len, mode } => {
                let file = file!(handle);
                let kill = data::privileges_of(header.uid);
                let range = offset..offset.saturating_add(len);
                run!(fs, header, async move { fs.fallocate(file, range, mode, kill, reply).await })
            }
            Op::Seek { handle, offset, whence } => {
                let file = file!(handle);
                run!(fs, header, async move { fs.seek(file, offset, whence, reply).await })
            }
            Op::CopyRange { handle, offset, to_handle, to_offset, len, wide, .. } => {
                let (from, to) = (file!(handle), file!(to_handle));
                let kill = data::privileges_of(header.uid);
                let copy = data::CopyRequest { offset, to_offset, len, kill, wide };
                run!(fs, header, async move { fs.copy_range(from, to, copy, reply).await })
            }
            Op::Ioctl { command, data, len } => flags::ioctl(command, data, len, reply),
            Op::GetLock(request) => {
                let file = file!(request.handle);
                run!(fs, header, async move { fs.lock_test(file, request, reply).await })
            }
            Op::SetLock { lock, wait } => {
                let file = file!(lock.handle);
                match wait {
                    true => {
                        let (tasks, signal) = (fs.tasks.clone(), Arc::<Notify>::default());
                        let how = Interruptible::AnySignal(signal.clone());
                        tasks.run(header.unique, header.tid, how, async move {
                            fs.lock_wait(header, file, lock, signal, reply).await
                        });
                    }
                    false => run!(fs, header, async move { fs.lock_set(file, lock, reply).await }),
                }
            }
            other => {
                tracing::error!(?other, "request without a handler");
                reply.error(Errno::NotImplemented);
            }
        }
    }

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
