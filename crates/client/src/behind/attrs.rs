//! Attributes and extended attributes, here.

use super::here::{Here, NotHere};
use crate::cache::State;
use crate::cache::inode::{XattrList, Xattrs};
use crate::validity::Cached;
use crate::why::Why;
use bytes::Bytes;
use soda_oplog::Change;
use soda_protocol::SetXattr;
use soda_types::acl::{self, Kept, NewList};
use soda_types::semantics::{self, check_xattr_name, is_access_list};
use soda_types::{
    Attr, Errno, Fid, FileKind, KillPriv, Monotonic, SetAttr, Timestamp, XATTR_ACCESS_LIST, XATTR_LIST_MAX,
    XATTR_VALUE_MAX,
};
use std::sync::Arc;

/// All attributes of an inode in memory, bytes: each change copies the list of them, and of what comes near the server's limit
/// ([`XATTRS_MAX`](soda_types::XATTRS_MAX)) the server keeps the accounts.
const LARGEST_LIST: u64 = 256 << 10;

/// What setxattr(2) asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewXattr<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) how: SetXattr,
    pub(crate) kill: KillPriv,
    /// Who has to own the inode, if that is asked.
    pub(crate) owner: Option<u32>,
}

impl State {
    pub(crate) fn setattr_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        fid: Fid,
        set: &SetAttr,
        owner: Option<u32>,
    ) -> Here<Cached<Attr>> {
        let mut attr = self.attr_here(now, fid)?;
        attr.check_owner(owner).map_err(NotHere::Fails)?;
        if *set == SetAttr::default() {
            return Err(Why::Kind.into());
        }
        // An access list follows the permission bits. What is dropped of these beside is not in it.
        let list = if set.perm.is_some() { self.xattrs_here(fid)? } else { XattrList::default() };
        let access = list.iter().position(|(name, _)| name == XATTR_ACCESS_LIST);
        if let Some(size) = set.size {
            if attr.kind != FileKind::File {
                return Err(Why::Kind.into());
            }
            semantics::checked_end(size, 0).map_err(NotHere::Fails)?;
        }
        if set.size.is_none_or(|size| size > attr.size) {
            self.room_here(now, access.map_or(0, |at| list[at].1.len()))?;
        } else {
            self.room_to_free()?;
        }
        let moment = self.moment(calendar, &[&attr]);
        let before = attr.size;
        attr.set(set, moment);
        if let Some(at) = access {
            let mut list = list.to_vec();
            list[at].1 = acl::after_chmod(&list[at].1, attr.perm).map_err(|_| Why::AccessList)?;
            self.set_xattrs(now, fid, Xattrs::All(Arc::new(list)));
        }
        if let Some(size) = set.size {
            // Exact for a file without holes; the server's answer to the digest says how it is.
            attr.allocated = attr.allocated.min(size);
            self.memory.cut(fid, size.min(before), attr.data_version);
            self.memory.zero(fid, before..size, attr.data_version);
        }
        self.set_attr_here(now, fid, attr);
        if set.drops_capabilities() && attr.kind != FileKind::Directory {
            self.drop_capabilities(now, fid);
        }
        self.log_change(now, moment, Change::SetAttr { fid, set: *set });
        self.changed(now, fid, None, set.size.map(|size| size.min(before)..u64::MAX));
        Ok(Cached { value: attr, valid: self.attr_validity(now, fid, &attr) })
    }

    pub(crate) fn setxattr_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        fid: Fid,
        new: &NewXattr<'_>,
    ) -> Here<()> {
        let NewXattr { name, value, how, kill, owner } = *new;
        let mut attr = self.attr_here(now, fid)?;
        attr.check_owner(owner).map_err(NotHere::Fails)?;
        let mut list = self.list_here(fid, name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::TooBig.into());
        }
        let present = list.iter().any(|(known, _)| known == name);
        match how {
            SetXattr::Create if present => return Err(Errno::Exists.into()),
            SetXattr::Replace if !present => return Err(Errno::NoData.into()),
            _ => {}
        }
        let kill_sgid = kill.kills();
        let mut kept = Kept::Yes;
        if is_access_list(name) {
            let new = NewList { name, list: value, kill_sgid };
            let set = acl::set_list(attr.kind, attr.perm, &new).map_err(NotHere::Fails)?;
            attr.perm = set.perm;
            kept = set.kept;
        }
        let value = Bytes::copy_from_slice(value);
        list.retain(|(known, _)| known != name);
        if kept == Kept::Yes {
            list.push((name.to_vec(), value.clone()));
        }
        let names: usize = list.iter().map(|(name, _)| name.len() + 1).sum();
        let list = Xattrs::All(Arc::new(list));
        if kept == Kept::Yes && (list.bytes() > LARGEST_LIST || names > XATTR_LIST_MAX) {
            return Err(Why::Large.into());
        }
        self.room_here(now, name.len() + value.len())?;
        let moment = self.moment(calendar, &[&attr]);
        attr.changed(moment);
        let (name, how) = (name.to_vec(), SetXattr::Either);
        self.xattrs_changed(now, fid, attr, list);
        self.log_change(now, moment, Change::SetXattr { fid, name, value, how, kill_sgid });
        Ok(())
    }

    pub(crate) fn removexattr_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        fid: Fid,
        name: &[u8],
        owner: Option<u32>,
    ) -> Here<()> {
        let mut attr = self.attr_here(now, fid)?;
        attr.check_owner(owner).map_err(NotHere::Fails)?;
        let mut list = self.list_here(fid, name)?;
        let before = list.len();
        list.retain(|(known, _)| known != name);
        if list.len() == before {
            return Err(Errno::NoData.into());
        }
        self.room_here(now, 0)?;
        let moment = self.moment(calendar, &[&attr]);
        attr.changed(moment);
        self.xattrs_changed(now, fid, attr, Xattrs::All(Arc::new(list)));
        self.log_change(now, moment, Change::RemoveXattr { fid, name: name.to_vec() });
        Ok(())
    }

    fn xattrs_changed(&mut self, now: Monotonic, fid: Fid, attr: Attr, list: Xattrs) {
        self.set_attr_here(now, fid, attr);
        self.set_xattrs(now, fid, list);
        self.changed(now, fid, None, None);
    }

    /// All extended attributes, one of which is to be set or removed.
    fn list_here(&self, fid: Fid, name: &[u8]) -> Here<Vec<(Vec<u8>, Bytes)>> {
        // The server says what is wrong with it.
        check_xattr_name(name).map_err(|_| Why::Kind)?;
        Ok(self.xattrs_here(fid)?.to_vec())
    }
}
