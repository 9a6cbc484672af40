//! Access control lists where they are stored: as extended attributes.

use crate::record::Inode;
use crate::txn::Txn;
use soda_types::{FileKind, FsResult, Ino};

#[cfg(test)]
pub(crate) use soda_types::acl::Acl;
pub(crate) use soda_types::acl::{Inherited, Kept, NewList, set_list};

pub(crate) const ACCESS: &[u8] = soda_types::XATTR_ACCESS_LIST;
pub(crate) const DEFAULT: &[u8] = soda_types::XATTR_DEFAULT_LIST;

/// Permissions and lists of something new: from the parent's default list if it has one, else from the umask.
pub(crate) fn inherit(
    txn: &Txn<'_>,
    parent: Ino,
    parent_inode: &Inode,
    perm: u16,
    umask: u16,
    kind: FileKind,
) -> FsResult<Inherited> {
    let default = match parent_inode.xattrs {
        0 => None,
        _ => txn.xattr(parent, DEFAULT)?,
    };
    match default {
        Some(default) => Inherited::from_default(&default, perm, kind),
        None => Ok(Inherited::plain(perm, umask)),
    }
}

/// Has an access list follow a change of the permission bits.
pub(crate) fn follow_chmod(txn: &mut Txn<'_>, ino: Ino, perm: u16) -> FsResult<()> {
    if let Some(value) = txn.xattr(ino, ACCESS)? {
        txn.put_xattr(ino, ACCESS, soda_types::acl::after_chmod(&value, perm)?)?;
    }
    Ok(())
}
