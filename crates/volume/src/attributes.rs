//! Changing attributes.

use crate::acl;
use crate::txn::Txn;
use crate::view::View;
use soda_types::{Attr, Fid, FsResult, SetAttr, SetTime, Timestamp, mode};

impl Txn<'_> {
    /// Changes attributes; permission to do so was checked by the caller. A size that is given counts as a change of the
    /// data even if it is the one there was, as `ftruncate(2)` has it.
    pub fn set_attr(&mut self, fid: Fid, set: &SetAttr) -> FsResult<Attr> {
        self.atomically(|txn| {
            if *set == SetAttr::default() {
                return txn.attr(fid);
            }
            txn.inode(fid)?;
            if let Some(size) = set.size {
                txn.file(fid)?;
                txn.resize(fid.ino, size)?;
            } else {
                txn.takes_space();
            }
            let now = txn.now();
            let inode = txn.inode_mut(fid.ino)?;
            match set.size {
                Some(_) => inode.data_changed(now),
                None => inode.changed(now),
            }
            if set.kill_suid_sgid {
                inode.drop_privileges();
            }
            if let Some(perm) = set.perm {
                inode.perm = perm & mode::ALL;
            }
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            let time = |time: SetTime, ctime: Timestamp| match time {
                SetTime::Now => ctime,
                SetTime::At(time) => time,
            };
            if let Some(atime) = set.atime {
                inode.atime = time(atime, inode.ctime);
            }
            if let Some(mtime) = set.mtime {
                inode.mtime = time(mtime, inode.ctime);
            }
            let (perm, has_xattrs) = (inode.perm, inode.xattrs > 0);
            if set.perm.is_some() && has_xattrs {
                acl::follow_chmod(txn, fid.ino, perm)?;
            }
            txn.attr(fid)
        })
    }
}
