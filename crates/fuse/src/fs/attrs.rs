//! Attributes and symbolic links' targets.

use super::Inner;
use crate::handles::{FileHandle, Path};
use crate::wire::{Reply, SetAttrRequest};
use soda_types::{Attr, Fid};
use std::sync::Arc;

/// Which structure the kernel asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Attr,
    /// With the time of birth.
    Statx,
}

impl Inner {
    /// `handle`: whose read or stat asks.
    pub(super) async fn getattr(self: Arc<Self>, fid: Fid, handle: Option<u64>, reply: Reply) {
        match self.client.getattr(fid).await {
            Ok(attr) => {
                let file = handle.and_then(|handle| self.files.find(handle));
                if let Some(file) = file.filter(|file| file.path == Path::Cached) {
                    self.show_size(&file, &attr.value).await;
                }
                self.answer_attr(fid, attr, Form::Attr, reply).await;
            }
            Err(error) => self.fail("getattr", &error, reply),
        }
    }

    /// Makes sure that the kernel knows how long a file has become, before a read through its pages goes on.
    ///
    /// The answer that the read waits for is not sure to: the kernel throws it away when the inode was invalidated since it
    /// asked, by the recall for the next change, say, and then reads up to the old size. Nobody would see what another
    /// machine appended, although it was there before the read began. A stored byte is not thrown away.
    async fn show_size(&self, file: &FileHandle, attr: &Attr) {
        let fid = file.fid();
        let Some(last) = attr.size.checked_sub(1) else { return };
        if self.nodes.is_size_shown(fid, attr.data_version) {
            return;
        }
        self.freshen(fid, attr.data_version).await;
        // An error, or a file that was cut meanwhile: then there is nothing to show, and the read asks for itself.
        let Ok(data) = self.client.read(&file.open, last, 1).await else { return };
        let Some(byte) = data.chunks().iter().find_map(|chunk| chunk.first().copied()) else { return };
        self.nodes.pages_filled(fid, Some(attr.data_version));
        self.notifier.size_elsewhere(fid, attr.size, byte).await;
        self.nodes.size_shown(fid, attr.data_version);
    }

    pub(super) async fn statx(self: Arc<Self>, fid: Fid, reply: Reply) {
        match self.client.getattr(fid).await {
            Ok(attr) => self.answer_attr(fid, attr, Form::Statx, reply).await,
            Err(error) => self.fail("statx", &error, reply),
        }
    }

    pub(super) async fn setattr(self: Arc<Self>, fid: Fid, request: SetAttrRequest, reply: Reply) {
        match self.client.setattr(fid, request.set).await {
            Ok(attr) => {
                match request.set.size {
                    Some(size) => self.data_changed(fid, size..u64::MAX, &attr.value).await,
                    None => self.attributes_changed(fid),
                }
                self.answer_attr(fid, attr, Form::Attr, reply).await;
            }
            Err(error) => self.fail("setattr", &error, reply),
        }
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
