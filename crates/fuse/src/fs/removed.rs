//! Directories that another machine has removed while a process of this one has them open or works in them.
//!
//! The server keeps nothing of them: they are empty, and nothing can be made in them. What is left is what the kernel was told
//! last. A directory that goes at this machine is marked by the kernel itself (S_DEAD); of one that goes elsewhere it hears
//! from us only.

use super::Inner;
use super::attrs::Wants;
use crate::nodes::Told;
use soda_client::{Cached, Validity};
use soda_types::{Attr, Errno, Fid, FsError, FsResult};

impl Inner {
    /// Attributes, also of a directory that was removed: then with no links, and to be asked for each time.
    pub(super) async fn attributes(&self, fid: Fid, wants: Wants<'_>) -> FsResult<Cached<Attr>> {
        let asked = match wants {
            Wants::Attributes => self.client.stat(fid).await,
            Wants::Lease => self.client.getattr(fid).await,
            Wants::Open(file) => self.client.getattr_open(file).await,
        };
        match asked {
            Err(error) if error.errno == Errno::Stale => {
                let attr = self.nodes.last_of_directory(fid).ok_or(error)?;
                Ok(Cached { value: Attr { nlink: 0, ..attr }, valid: Validity::NONE })
            }
            asked => asked,
        }
    }

    /// Whether `error` came because `dir` is a directory that was removed: a name in it is absent then.
    ///
    /// That is true for who walked a path, too, in which another directory has taken the place of this one since: at the
    /// moment when it did this one was empty.
    pub(super) async fn is_removed(&self, dir: Fid, error: &FsError) -> bool {
        error.errno == Errno::Stale
            && self.attributes(dir, Wants::Lease).await.is_ok_and(|attr| attr.value.nlink == 0)
    }

    /// What a change of names in `dir` failed with, for the kernel.
    ///
    /// The first time it hears ESTALE, and walks the path again: another directory may have the name now. Who comes with the
    /// removed one a second time holds it open or works in it.
    pub(super) async fn changing(&self, dir: Fid, error: FsError) -> FsError {
        if !self.is_removed(dir, &error).await || self.nodes.tell_removed(dir) == Told::No {
            return error;
        }
        FsError::new(Errno::NoEntry, "the directory was removed")
    }
}
