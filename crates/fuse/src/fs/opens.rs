//! open(2) and creat(2).

use super::Inner;
use crate::handles::{Durability, FileHandle, Path, Placement};
use crate::nodes::{Inode, PageState};
use crate::wire::abi::fopen;
use crate::wire::{EntryOut, OpenOut, OpenRequest, Reply, Taken};
use soda_client::{Cached, Entry, NewNode, OpenFile, OpenMode};
use soda_types::{Attr, Creds, Errno, Fid, FileKind, FsError, FsResult, Name, SetAttr};
use std::sync::Arc;

// Flags of open(2) on Linux, x86-64 and aarch64.
const O_ACCMODE: i32 = 3;
const O_WRONLY: i32 = 1;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;

/// How often a creation chases a name that others create and remove.
const CHASES: usize = 64;

fn open_mode(flags: i32) -> OpenMode {
    match flags & O_ACCMODE {
        0 => OpenMode::Read,
        O_WRONLY => OpenMode::Write,
        _ => OpenMode::ReadWrite,
    }
}

/// What the kernel is told of a handle. `pages`: what is asked, and done, of those that it has.
fn flags_of(path: Path, pages: impl FnOnce() -> PageState) -> u32 {
    match path {
        // Else Linux lets one writer of a file in at a time.
        Path::Direct => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
        Path::Cached => match pages() {
            PageState::Current => fopen::KEEP_CACHE,
            PageState::Outdated => 0,
        },
    }
}

impl Inner {
    pub(super) async fn open(self: Arc<Self>, fid: Fid, request: OpenRequest, reply: Reply) {
        match self.open_file(fid, request).await {
            Ok((open, attr)) => {
                let (handle, out) = self.add_handle(open, request.flags, &attr);
                if reply.opened(out) == Taken::No {
                    self.files.remove(handle);
                }
            }
            Err(error) => self.fail("open", &error, reply),
        }
    }

    async fn open_file(&self, fid: Fid, request: OpenRequest) -> FsResult<(Arc<OpenFile>, Cached<Attr>)> {
        let mode = open_mode(request.flags);
        if request.flags & O_TRUNC == 0 {
            return self.client.open_with_attr(fid, mode).await;
        }
        let open = self.client.open(fid, mode).await?;
        let attr = self.truncate(fid, request).await?;
        Ok((open, attr))
    }

    async fn truncate(&self, fid: Fid, request: OpenRequest) -> FsResult<Cached<Attr>> {
        let set = SetAttr { size: Some(0), kill_suid_sgid: request.kill_suid_sgid, ..SetAttr::default() };
        let attr = self.client.setattr(fid, set).await?;
        self.data_changed(fid, 0..u64::MAX, &attr.value).await;
        Ok(attr)
    }

    /// A handle of the kernel for an open file, and how it is to use it.
    fn add_handle(&self, open: Arc<OpenFile>, flags: i32, attr: &Cached<Attr>) -> (u64, OpenOut) {
        let fid = open.fid();
        let path = self.path_of(flags, attr);
        let version = attr.value.data_version;
        let pages = || {
            let state = self.nodes.page_state(fid, version);
            if state == PageState::Outdated {
                // The kernel drops what it has when the open returns.
                self.nodes.pages_restart(fid, version);
            }
            state
        };
        let out_flags = flags_of(path, pages);
        let handle = self.files.add(FileHandle { open, path, durability: Durability::of(flags) });
        (handle, OpenOut { handle, flags: out_flags })
    }

    fn path_of(&self, flags: i32, attr: &Cached<Attr>) -> Path {
        match open_mode(flags) {
            OpenMode::Write => Path::Direct,
            // Before Linux 6.6 a direct handle cannot be mapped shared. Programs that map for writing matter more than the
            // moment in which a local reader sees a write before the server has it.
            OpenMode::ReadWrite if self.agreement.has_direct_mmap() => Path::Direct,
            OpenMode::ReadWrite if Placement::of(flags) == Placement::AtEnd => Path::Direct,
            OpenMode::ReadWrite => Path::Cached,
            // Without a lease every read is to be asked for.
            OpenMode::Read if self.client.answer().remaining(attr.valid).is_zero() => Path::Direct,
            OpenMode::Read => Path::Cached,
        }
    }

    pub(super) async fn create(
        self: Arc<Self>,
        dir: Fid,
        name: Name,
        new: NewNode,
        request: OpenRequest,
        reply: Reply,
    ) {
        let creds = new.creds;
        for _ in 0..CHASES {
            let created = self.client.create_open(dir, &name, new.clone(), open_mode(request.flags)).await;
            match created {
                Ok((entry, open)) => {
                    self.entries_changed(dir);
                    return self.answer_created(entry, open, request, Inode::Guarded, reply).await;
                }
                Err(error) if error.errno == Errno::Exists && request.flags & O_EXCL == 0 => {}
                Err(error) => return self.fail("create", &self.changing(dir, error).await, reply),
            }
            // Made by another machine since the kernel looked.
            match self.open_existing(dir, &name, creds, request).await {
                Ok((entry, open)) => {
                    return self.answer_created(entry, open, request, Inode::Known, reply).await;
                }
                Err(error) if error.errno == Errno::NoEntry => {}
                Err(error) => return self.fail("create", &error, reply),
            }
        }
        self.fail("create", &FsError::new(Errno::Busy, "the name comes and goes"), reply);
    }

    /// The kernel does not check access to what a CREATE opens. Where the simple rules do not settle it, ESTALE makes
    /// it start again with a look-up, and check.
    async fn open_existing(
        &self,
        dir: Fid,
        name: &Name,
        creds: Creds,
        request: OpenRequest,
    ) -> FsResult<(Entry, Arc<OpenFile>)> {
        let entry = self.client.lookup(dir, name).await?;
        let node = entry.node.ok_or(Errno::NoEntry)?;
        if node.attr.kind != FileKind::File || !surely_allowed(&node.attr, creds, open_mode(request.flags)) {
            return Err(FsError::new(
                Errno::Stale,
                "made by another machine meanwhile: the kernel has to look again",
            ));
        }
        let (open, attr) = self.open_file(node.fid, request).await?;
        let node = soda_client::Node { attr: attr.value, ..node };
        Ok((Entry { node: Some(node), attr: attr.valid, ..entry }, open))
    }

    pub(super) async fn tmpfile(self: Arc<Self>, dir: Fid, new: NewNode, request: OpenRequest, reply: Reply) {
        match self.client.tmpfile(dir, new, open_mode(request.flags)).await {
            Ok((entry, open)) => self.answer_created(entry, open, request, Inode::Guarded, reply).await,
            Err(error) => self.fail("tmpfile", &self.changing(dir, error).await, reply),
        }
    }

    async fn answer_created(
        &self,
        entry: Entry,
        open: Arc<OpenFile>,
        request: OpenRequest,
        inode: Inode,
        reply: Reply,
    ) {
        let Some(node) = entry.node else {
            return self.fail("create", &FsError::new(Errno::Io, "created, but no inode came back"), reply);
        };
        self.freshen(node.fid, &node.attr).await;
        // Known before the handle, which notes what the kernel caches of it.
        self.nodes.remember(node.fid);
        self.client.remember(node.fid, 1);
        let cached = Cached { value: node.attr, valid: entry.attr };
        let (handle, out) = self.add_handle(open, request.flags, &cached);
        let answering = self.client.answer();
        let attr = self.tell_attr(node.fid, &node.attr, answering.remaining(entry.attr), inode, &reply);
        let names = answering.remaining(entry.names);
        let entry = EntryOut { attr, generation: node.fid.generation, valid: names };
        if reply.by(answering.due()).created(entry, out) == Taken::No {
            self.files.remove(handle);
            self.not_taken(node.fid);
        }
    }
}

/// Whether the permission bits alone allow it, without groups that only the kernel knows and without an access list (which
/// shows in the group's bits, so these are not used).
fn surely_allowed(attr: &Attr, creds: Creds, mode: OpenMode) -> bool {
    let bits = match creds.uid {
        0 => return true,
        uid if uid == attr.uid => attr.perm >> 6,
        _ => return false,
    };
    let wanted = match mode {
        OpenMode::Read => 4,
        OpenMode::Write => 2,
        OpenMode::ReadWrite => 6,
    };
    bits & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the numbers of `include/uapi/linux/fuse.h`: FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_PARALLEL_DIRECT_WRITES.
    #[test]
    fn writers_of_a_file_are_let_in_beside_each_other_and_pages_stay_that_are_current() {
        assert_eq!(flags_of(Path::Direct, || unreachable!("it has none")), 1 << 0 | 1 << 6);
        assert_eq!(flags_of(Path::Cached, || PageState::Current), 1 << 1);
        assert_eq!(flags_of(Path::Cached, || PageState::Outdated), 0);
    }

    #[test]
    fn access_modes_are_decoded() {
        assert_eq!(open_mode(0), OpenMode::Read);
        assert_eq!(open_mode(O_WRONLY | O_TRUNC), OpenMode::Write);
        assert_eq!(open_mode(2 | O_EXCL), OpenMode::ReadWrite);
    }
}
