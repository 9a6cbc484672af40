//! Attributes and symbolic links' targets.

use super::Inner;
use crate::wire::{Reply, SetAttrRequest};
use soda_types::Fid;
use std::sync::Arc;

/// Which structure the kernel asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Attr,
    /// With the time of birth.
    Statx,
}

impl Inner {
    pub(super) async fn getattr(self: Arc<Self>, fid: Fid, reply: Reply) {
        match self.client.getattr(fid).await {
            Ok(attr) => self.answer_attr(fid, attr, Form::Attr, reply).await,
            Err(error) => self.fail("getattr", &error, reply),
        }
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
