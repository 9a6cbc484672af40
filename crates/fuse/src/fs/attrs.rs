//! Attributes and symbolic links' targets.

use super::Inner;
use crate::handles::{FileHandle, Path};
use crate::nodes::{Fill, Inode, PageState};
use crate::notify::Done;
use crate::wire::{Reply, SetAttrRequest};
use soda_client::{Cached, OpenFile, Validity};
use soda_types::{Attr, Creds, Fid};
use std::sync::Arc;

/// Which structure the kernel asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Attr,
    /// With the time of birth.
    Statx,
}

/// What attributes are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wants<'a> {
    Attributes,
    /// More will be asked of the inode.
    Lease,
    /// The same, of who has it open.
    Open(&'a OpenFile),
}

/// Whether the kernel knows the size of the newest data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    Yes,
    /// There is newer data by now, or the kernel does not take what it is told.
    NotYet,
}

/// So often a size is looked up again because the file has changed since. Each time somebody else has made progress.
const SIZE_TRIES: u32 = 16;

impl Inner {
    /// `handle`: whose read asks; stat and fstat have none.
    pub(super) async fn getattr(self: Arc<Self>, fid: Fid, handle: Option<u64>, reply: Reply) {
        let file = handle.and_then(|handle| self.files.find(handle));
        for tries in 1.. {
            // With a handle it is for a read, or to seek or append: these want the lease next.
            let wants = match (&file, handle) {
                (Some(file), _) => Wants::Open(&file.open),
                (None, Some(_)) => Wants::Lease,
                (None, None) => Wants::Attributes,
            };
            let attr = match self.attributes(fid, wants).await {
                Ok(attr) => attr,
                Err(error) => return self.fail("getattr", &error, reply),
            };
            // Whoever maps a file through a descriptor for both ways has pages, too. That these are dropped before the answer
            // makes the kernel throw the answer away.
            let has_old_pages = || self.nodes.page_state(fid, attr.value.data_version) == PageState::Outdated;
            let again = match &file {
                Some(file) if file.path == Path::Cached || has_old_pages() => {
                    self.show_size(file, &attr.value).await == Shown::NotYet
                }
                _ => false,
            };
            if !again || tries == SIZE_TRIES {
                return self.answer_attr(fid, attr, Form::Attr, Inode::Guarded, reply).await;
            }
        }
    }

    /// Makes sure that the kernel knows how long a file has become, before a read through its pages goes on.
    ///
    /// The answer that the read waits for is not sure to: the kernel throws it away when the inode was invalidated since it
    /// asked, by the recall for the next change, say, and then reads up to the old size. Nobody would see what another
    /// machine appended, although it was there before the read began. A stored byte is not thrown away.
    ///
    /// It must not be older than the page that it may find in the cache ([`crate::last_bytes`]).
    async fn show_size(&self, file: &FileHandle, attr: &Attr) -> Shown {
        let (fid, version) = (file.fid(), attr.data_version);
        let Some(last) = attr.size.checked_sub(1) else { return Shown::Yes };
        if self.nodes.is_size_shown(fid, attr.size) {
            return Shown::Yes;
        }
        self.freshen(fid, attr).await;
        // An error: then there is nothing to show, and the read asks for itself.
        let Ok(data) = self.client.read(&file.open, last, 1).await else { return Shown::Yes };
        let Some(byte) = data.chunks().iter().find_map(|chunk| chunk.first().copied()) else {
            return if data.version() == version { Shown::Yes } else { Shown::NotYet };
        };
        let byte = match self.last_bytes.announce((fid, self.nodes.node_of(fid)), last, byte) {
            Ok(byte) => byte,
            Err(error) => {
                tracing::error!(%error, %fid, "the kernel cannot be told how long a file has become");
                return Shown::Yes;
            }
        };
        if data.version() != version || self.nodes.fill_pages(fid, version) == Fill::Overtaken {
            return Shown::NotYet;
        }
        if self.notifier.last_byte_elsewhere(fid, byte).await == Done::No {
            return Shown::NotYet;
        }
        match self.nodes.size_shown(fid, version, attr.size) {
            Fill::Fits => Shown::Yes,
            Fill::Overtaken => {
                let _ = self.notifier.data_elsewhere(fid, last..attr.size).await;
                Shown::NotYet
            }
        }
    }

    pub(super) async fn statx(self: Arc<Self>, fid: Fid, reply: Reply) {
        match self.attributes(fid, Wants::Attributes).await {
            Ok(attr) => self.answer_attr(fid, attr, Form::Statx, Inode::Guarded, reply).await,
            Err(error) => self.fail("statx", &error, reply),
        }
    }

    pub(super) async fn setattr(
        self: Arc<Self>,
        fid: Fid,
        creds: Creds,
        request: SetAttrRequest,
        reply: Reply,
    ) {
        match self.set_attributes(fid, creds, request.set).await {
            Ok(attr) => {
                self.attributes_changed(fid);
                match request.set.size {
                    Some(_) => self.answer_truncated(fid, attr, reply).await,
                    None => self.answer_attr(fid, attr, Form::Attr, Inode::Known, reply).await,
                }
            }
            Err(error) => self.fail("setattr", &error, reply),
        }
    }

    /// Linux truncates its pages itself when it has the answer, and drops all of them if the length that it knew changes. It must
    /// not be told to before: until then it writes no page back (`fuse_set_nowrite`, `fs/fuse/dir.c`), and to drop one that a
    /// mapping has stored to waits for that.
    async fn answer_truncated(&self, fid: Fid, attr: Cached<Attr>, reply: Reply) {
        let version = attr.value.data_version;
        self.nodes.announce(fid, version, attr.value.size);
        self.nodes.pages_changed(fid, version);
        if self.nodes.page_state(fid, version) == PageState::Current {
            return self.tell_answered(fid, attr, Form::Attr, Inode::Known, reply);
        }
        // Pages of before what others have written: whoever reads asks first, until they are gone.
        let attr = Cached { valid: Validity::NONE, ..attr };
        self.tell_answered(fid, attr, Form::Attr, Inode::Known, reply);
        let _ = self.notifier.data_elsewhere(fid, 0..u64::MAX).await;
    }

    pub(super) async fn readlink(self: Arc<Self>, fid: Fid, reply: Reply) {
        match self.client.readlink(fid).await {
            Ok(target) => {
                reply.data(&[&target]);
            }
            Err(error) => self.fail("readlink", &error, reply),
        }
    }
}
