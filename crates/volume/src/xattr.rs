//! Extended attributes.

use crate::acl::{Kept, NewList, set_list};
use crate::key;
use crate::record::Xattr;
use crate::txn::Txn;
use crate::view::View;
use crate::volume::Volume;
use crate::xattr_sizes::XattrSizes;
use bytes::Bytes;
use soda_storage::Table;
use soda_types::semantics::{check_xattr_name, is_access_list};
use soda_types::{
    Attr, Errno, Fid, FsError, FsResult, Ino, KillPriv, SetXattr, XATTR_CAPABILITY, XATTR_LIST_MAX,
    XATTR_NAME_MAX, XATTR_VALUE_MAX, XATTRS_MAX,
};
use std::ops::ControlFlow;

impl Volume {
    /// The value of an attribute; `NoData` if it has none of this name.
    pub fn get_xattr(&self, fid: Fid, name: &[u8]) -> FsResult<Bytes> {
        get_xattr(self, fid, name)
    }

    /// The names of all attributes, in their order.
    pub fn list_xattrs(&self, fid: Fid) -> FsResult<Vec<Bytes>> {
        list_xattrs(self, fid)
    }
}

fn get_xattr(view: &impl View, fid: Fid, name: &[u8]) -> FsResult<Bytes> {
    let inode = view.inode(fid)?;
    check_xattr_name(name)?;
    if inode.xattrs == 0 {
        return Err(Errno::NoData.into());
    }
    let xattr: Option<Xattr> = view.record(Table::Xattr, &key::xattr(view.volume_id(), fid.ino, name))?;
    xattr.map(|xattr| xattr.value).ok_or(Errno::NoData.into())
}

fn list_xattrs(view: &impl View, fid: Fid) -> FsResult<Vec<Bytes>> {
    let mut names = Vec::new();
    if view.inode(fid)?.xattrs > 0 {
        view.scan(Table::Xattr, &key::number_range(view.volume_id(), fid.ino.0), &mut |key, _| {
            names.push(Bytes::copy_from_slice(key::rest(key)));
            ControlFlow::Continue(())
        })?;
    }
    Ok(names)
}

impl Txn<'_> {
    /// Sets an attribute. `system.posix_acl_access` changes the permission bits with it; there
    /// [`KillPriv::Kill`] takes set-gid away.
    pub fn set_xattr(
        &mut self,
        fid: Fid,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
        privileges: KillPriv,
    ) -> FsResult<Attr> {
        self.atomically(|txn| {
            txn.takes_space();
            let inode = txn.inode(fid)?;
            check_xattr_name(name)?;
            if value.len() > XATTR_VALUE_MAX {
                return Err(Errno::TooBig.into());
            }
            let exists = txn.xattr(fid.ino, name)?.is_some();
            match (how, exists) {
                (SetXattr::Create, true) => return Err(Errno::Exists.into()),
                (SetXattr::Replace, false) => return Err(Errno::NoData.into()),
                _ => {}
            }
            let now = txn.now();
            let mut kept = Kept::Yes;
            if is_access_list(name) {
                let new = NewList { name, list: &value, kill_sgid: privileges.kills() };
                let set = set_list(inode.kind, inode.perm, &new)?;
                txn.inode_mut(fid.ino)?.perm = set.perm;
                kept = set.kept;
            }
            match kept {
                Kept::Yes => txn.put_xattr(fid.ino, name, value)?,
                Kept::No => txn.delete_xattr(fid.ino, name)?,
            }
            txn.change(fid.ino, |attr| attr.changed(now))
        })
    }

    /// Removes an attribute; `NoData` if it has none of this name.
    pub fn remove_xattr(&mut self, fid: Fid, name: &[u8]) -> FsResult<Attr> {
        self.atomically(|txn| {
            txn.inode(fid)?;
            check_xattr_name(name)?;
            if txn.xattr(fid.ino, name)?.is_none() {
                return Err(Errno::NoData.into());
            }
            txn.delete_xattr(fid.ino, name)?;
            let now = txn.now();
            txn.change(fid.ino, |attr| attr.changed(now))
        })
    }

    /// Takes file capabilities away, as every change of contents or owner does, whoever makes it (Linux: `file_remove_privs`,
    /// `cap_inode_killpriv`).
    pub(crate) fn drop_capabilities(&mut self, ino: Ino) -> FsResult<()> {
        match self.referred(ino)?.xattrs {
            0 => Ok(()),
            _ => self.delete_xattr(ino, XATTR_CAPABILITY),
        }
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> FsResult<Option<Bytes>> {
        match get_xattr(self, Fid::new(self.volume.id, ino), name) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.errno == Errno::NoData => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores an attribute without looking at what it means.
    pub(crate) fn put_xattr(&mut self, ino: Ino, name: &[u8], value: Bytes) -> FsResult<()> {
        let before = self.xattr(ino, name)?;
        let grows = before.as_ref().is_none_or(|before| before.len() < value.len());
        let one = XattrSizes::of(name, &value);
        let gone = before.map(|before| XattrSizes::of(name, &before));
        let count = self.referred(ino)?.xattrs as usize + usize::from(gone.is_none());
        // As many of the longest fit: most inodes have fewer.
        if grows && count * (XATTR_NAME_MAX + XATTR_VALUE_MAX) > XATTRS_MAX {
            let after = self.known_xattr_sizes(ino)?.exchange(gone, Some(one));
            if after.all > XATTRS_MAX {
                return Err(FsError::new(Errno::NoSpace, "the extended attributes would not fit one answer"));
            }
            if after.list > XATTR_LIST_MAX {
                return Err(FsError::new(
                    Errno::NoSpace,
                    "the names of the extended attributes would not fit a list",
                ));
            }
        }
        if gone.is_none() {
            self.inode_mut(ino)?.xattrs += 1;
        }
        self.exchange_xattr_sizes(ino, gone, Some(one));
        let key = key::xattr(self.volume.id, ino, name);
        self.put_record(Table::Xattr, &key, &Xattr { value });
        Ok(())
    }

    /// What all attributes take: counted once, because it costs more the more there are, and then kept up to date.
    fn known_xattr_sizes(&mut self, ino: Ino) -> FsResult<XattrSizes> {
        let changed = self.changed_xattr_sizes(ino);
        let ticket = match (changed, self.volume.xattr_sizes.get(&ino)) {
            (Some(Some(sizes)), _) | (None, Ok(sizes)) => return Ok(sizes),
            (None, Err(ticket)) => Some(ticket),
            (Some(None), _) => None,
        };
        let mut sizes = XattrSizes::default();
        self.scan(Table::Xattr, &key::number_range(self.volume.id, ino.0), &mut |key, record| {
            sizes = sizes.exchange(None, Some(XattrSizes::of_record(key::rest(key), record.len())));
            ControlFlow::Continue(())
        })?;
        match ticket {
            Some(ticket) => self.volume.xattr_sizes.fill(ino, sizes, 1, ticket),
            None => self.set_xattr_sizes(ino, Some(sizes)),
        }
        Ok(sizes)
    }

    /// An attribute goes, or comes, or both.
    fn exchange_xattr_sizes(&mut self, ino: Ino, gone: Option<XattrSizes>, new: Option<XattrSizes>) {
        let known = match self.changed_xattr_sizes(ino) {
            Some(changed) => changed,
            None => self.volume.xattr_sizes.get(&ino).ok(),
        };
        self.set_xattr_sizes(ino, known.map(|sizes| sizes.exchange(gone, new)));
    }

    /// Removes an attribute if it is there.
    pub(crate) fn delete_xattr(&mut self, ino: Ino, name: &[u8]) -> FsResult<()> {
        if let Some(value) = self.xattr(ino, name)? {
            self.exchange_xattr_sizes(ino, Some(XattrSizes::of(name, &value)), None);
            let inode = self.inode_mut(ino)?;
            inode.xattrs = inode.xattrs.saturating_sub(1);
            let key = key::xattr(self.volume.id, ino, name);
            self.set_record(Table::Xattr, &key, None);
        }
        Ok(())
    }
}
