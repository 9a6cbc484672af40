//! Attributes and extended attributes, here.

use super::here::{Here, NotHere};
use crate::cache::State;
use crate::cache::inode::{XattrList, Xattrs};
use crate::interface::KillPriv;
use crate::validity::Cached;
use crate::why::Why;
use bytes::Bytes;
use soda_oplog::Change;
use soda_protocol::SetXattr;
use soda_types::semantics::{self, check_xattr_name, is_access_list};
use soda_types::{Attr, Errno, Fid, FileKind, Monotonic, SetAttr, Timestamp, XATTR_ACCESS_LIST, acl};
use std::sync::Arc;

/// The server's limits are larger; what could come near them is its business. Bytes.
const LARGEST_VALUE: usize = 4096;
const LARGEST_LIST: usize = 32 << 10;

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
        // An access list follows the permission bits.
        let list = match set.perm.is_some() || set.kill_suid_sgid {
            true => self.xattrs_here(fid)?,
            false => XattrList::default(),
        };
        let access = list.iter().position(|(name, _)| name == XATTR_ACCESS_LIST);
        if set.kill_suid_sgid && list.iter().any(|(name, _)| is_access_list(name)) {
            return Err(Why::AccessList.into());
        }
        if let Some(size) = set.size {
            if attr.kind != FileKind::File {
                return Err(Why::Kind.into());
            }
            semantics::checked_end(size, 0).map_err(NotHere::Fails)?;
        }
        if set.size.is_none_or(|size| size > attr.size) {
            self.room_here(now, access.map_or(0, |at| list[at].1.len()))?;
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
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
        kill: KillPriv,
    ) -> Here<()> {
        let mut attr = self.attr_here(now, fid)?;
        let mut list = self.list_here(fid, name)?;
        if kill == KillPriv::Kill {
            return Err(Why::AccessList.into());
        }
        if value.len() > LARGEST_VALUE {
            return Err(Why::Large.into());
        }
        let present = list.iter().any(|(known, _)| known == name);
        match how {
            SetXattr::Create if present => return Err(Errno::Exists.into()),
            SetXattr::Replace if !present => return Err(Errno::NoData.into()),
            _ => {}
        }
        let value = Bytes::copy_from_slice(value);
        list.retain(|(known, _)| known != name);
        list.push((name.to_vec(), value.clone()));
        if list.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > LARGEST_LIST {
            return Err(Why::Large.into());
        }
        self.room_here(now, name.len() + value.len())?;
        let moment = self.moment(calendar, &[&attr]);
        attr.changed(moment);
        let (name, how) = (name.to_vec(), SetXattr::Either);
        let change = Change::SetXattr { fid, name, value, how, kill_sgid: false };
        self.xattrs_changed(now, fid, attr, list);
        self.log_change(now, moment, change);
        Ok(())
    }

    pub(crate) fn removexattr_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        fid: Fid,
        name: &[u8],
    ) -> Here<()> {
        let mut attr = self.attr_here(now, fid)?;
        let mut list = self.list_here(fid, name)?;
        let before = list.len();
        list.retain(|(known, _)| known != name);
        if list.len() == before {
            return Err(Errno::NoData.into());
        }
        self.room_here(now, 0)?;
        let moment = self.moment(calendar, &[&attr]);
        attr.changed(moment);
        self.xattrs_changed(now, fid, attr, list);
        self.log_change(now, moment, Change::RemoveXattr { fid, name: name.to_vec() });
        Ok(())
    }

    fn xattrs_changed(&mut self, now: Monotonic, fid: Fid, attr: Attr, list: Vec<(Vec<u8>, Bytes)>) {
        self.set_attr_here(now, fid, attr);
        self.set_xattrs(now, fid, Xattrs::All(Arc::new(list)));
        self.changed(now, fid, None, None);
    }

    /// All extended attributes, to be edited; the name is one whose meaning the server does not interpret.
    fn list_here(&self, fid: Fid, name: &[u8]) -> Here<Vec<(Vec<u8>, Bytes)>> {
        if is_access_list(name) {
            return Err(Why::AccessList.into());
        }
        // The server says what is wrong with it.
        check_xattr_name(name).map_err(|_| Why::Kind)?;
        Ok(self.xattrs_here(fid)?.to_vec())
    }
}
