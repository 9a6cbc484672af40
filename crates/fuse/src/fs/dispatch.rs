//! Which operation a request begins.

use super::{Inner, data, flags, names, xattrs};
use crate::errno::errno_of_name;
use crate::handles::{Durability, Placement};
use crate::task::Interruptible;
use crate::wire::{Header, Op, Reply};
use bytes::Bytes;
use soda_types::{Creds, Errno, Fid, FileKind, Name};
use std::sync::Arc;
use tokio::sync::Notify;

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
    /// Operations on names; all others go on.
    pub(super) fn start(self: Arc<Self>, header: Header, op: Op<'_>, payload: Bytes, reply: Reply) {
        let fs = self;
        let fid = fs.nodes.fid_of(header.node);
        let creds = Creds { uid: header.uid, gid: header.gid, pid: header.tid };
        match op {
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
            op => fs.start_on_directory((header, fid), op, payload, reply),
        }
    }

    /// Operations on open directories, and on the whole volume.
    fn start_on_directory(
        self: Arc<Self>,
        (header, fid): (Header, Fid),
        op: Op<'_>,
        payload: Bytes,
        reply: Reply,
    ) {
        let fs = self;
        match op {
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
            Op::FSyncDir => {
                run!(fs, header, async move { fs.finish("fsync", fs.client.fsync(fid).await, reply) })
            }
            Op::SyncFs => {
                run!(fs, header, async move { fs.finish("syncfs", fs.client.sync_all().await, reply) })
            }
            Op::StatFs => run!(fs, header, async move { fs.statfs(reply).await }),
            op => fs.start_on_inode((header, fid), op, payload, reply),
        }
    }

    /// Operations on inodes.
    fn start_on_inode(
        self: Arc<Self>,
        (header, fid): (Header, Fid),
        op: Op<'_>,
        payload: Bytes,
        reply: Reply,
    ) {
        let fs = self;
        let creds = Creds { uid: header.uid, gid: header.gid, pid: header.tid };
        match op {
            Op::GetAttr(request) => {
                run!(fs, header, async move { fs.getattr(fid, request.handle, reply).await })
            }
            Op::Statx(_) => run!(fs, header, async move { fs.statx(fid, reply).await }),
            Op::SetAttr(request) => {
                run!(fs, header, async move { fs.setattr(fid, creds, request, reply).await })
            }
            Op::ReadLink => run!(fs, header, async move { fs.readlink(fid, reply).await }),
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
            Op::Open(request) => run!(fs, header, async move { fs.open(fid, request, reply).await }),
            op => fs.start_on_file(header, op, payload, reply),
        }
    }

    /// Operations on open files.
    pub(super) fn start_on_file(self: Arc<Self>, header: Header, op: Op<'_>, payload: Bytes, reply: Reply) {
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
}
