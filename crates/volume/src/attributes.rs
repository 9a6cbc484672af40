//! Changing attributes.

use crate::acl;
use crate::txn::Txn;
use crate::view::View;
use soda_types::{Attr, Fid, FileKind, FsResult, SetAttr};

impl Txn<'_> {
    /// Changes attributes; permission to do so was checked by the caller.
    pub fn set_attr(&mut self, fid: Fid, set: &SetAttr) -> FsResult<Attr> {
        self.atomically(|txn| {
            if *set == SetAttr::default() {
                return txn.attr(fid);
            }
            let kind = txn.inode(fid)?.kind;
            if let Some(size) = set.size {
                txn.file(fid)?;
                txn.resize(fid.ino, size)?;
            } else {
                txn.takes_space();
            }
            let now = txn.now();
            let attr = txn.change(fid.ino, |attr| attr.set(set, now))?;
            if set.drops_capabilities() && kind != FileKind::Directory {
                txn.drop_capabilities(fid.ino)?;
            }
            if set.perm.is_some() && txn.inode(fid)?.xattrs > 0 {
                acl::follow_chmod(txn, fid.ino, attr.perm)?;
            }
            txn.attr(fid)
        })
    }
}
