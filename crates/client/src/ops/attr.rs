//! setattr: chmod, chown, truncate, utimensat.

use crate::cache::State;
use crate::cache::inode::Xattrs;
use crate::call::Order;
use crate::client::Client;
use crate::ops::names::Did;
use crate::validity::Cached;
use soda_protocol::Call;
use soda_types::{Attr, Errno, Fid, FsError, FsResult, SetAttr};

impl Client {
    /// Changes attributes; with a size it truncates or extends with a hole.
    ///
    /// # Errors
    /// EFBIG, ENOSPC, EISDIR for the size of a directory.
    pub async fn setattr(&self, fid: Fid, set: SetAttr) -> FsResult<Cached<Attr>> {
        self.setattr_if(fid, set, None).await
    }

    /// As [`Client::setattr`]. `owner`: only if this user owns the inode when it is done, whatever the caller has seen of it.
    ///
    /// # Errors
    /// EPERM if another one does.
    pub async fn setattr_if(&self, fid: Fid, set: SetAttr, owner: Option<u32>) -> FsResult<Cached<Attr>> {
        self.inner.stats.op_setattr.one();
        let work = |state: &mut State, now, today| state.setattr_here(now, today, fid, &set, owner);
        let here = match set.perm {
            // An access list follows the permission bits.
            Some(_) => self.here_with_xattrs(fid, work).await?,
            None => self.inner.here(fid, work).await?,
        };
        if let Some(attr) = here {
            return Ok(attr);
        }
        let slot = self.slot().await?;
        let (ticket, data, change) = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            let ticket = state.holder.begin_request(now);
            // From the new end or the old one, whichever comes first, nothing cached can be trusted.
            let known = state.peek_attr(now, fid).map_or(0, |attr| attr.size);
            let data = set.size.map(|size| {
                let range = size.min(known)..u64::MAX;
                (state.memory.begin_write(fid, range.clone()), range)
            });
            let change = state.begin_change(now, fid);
            if set.drops_capabilities() {
                state.doubt_capabilities(fid);
            }
            (ticket, data, change)
        };
        let acl_may_change = set.perm.is_some() || set.kill_suid_sgid;
        let order = Order::change(Call::SetAttr { fid, set, owner }, slot, ticket, vec![fid]);
        let waiting = self.inner.send(order, move |arrived, result| {
            let ticket = arrived.ticket;
            use crate::cache::extents::WriteOutcome;
            let (state, now) = (&mut *arrived.state, arrived.now);
            state.end_change(change);
            let node = Did::from(result.map(|(answer, _)| answer)).and_then(|did| {
                did.node.ok_or_else(|| FsError::new(Errno::Io, "the server's answer lacks the inode"))
            });
            let node = match node {
                Ok(node) => node,
                Err(error) => {
                    if let Some((write, _)) = data {
                        state.memory.end_write(fid, write, WriteOutcome::Unknown);
                    }
                    return Err(error);
                }
            };
            let enterable = state.enter(ticket, fid) && state.caches_under_leases();
            state.learn_node(now, ticket, &node);
            let range = data.as_ref().map(|(_, range)| range.clone());
            if let Some((write, _)) = data {
                let changed = WriteOutcome::Changed { version: node.attr.data_version, data: None };
                state.memory.end_write(fid, write, if enterable { changed } else { WriteOutcome::Unknown });
            }
            if acl_may_change
                && state.existing(fid).is_some_and(|inode| !matches!(inode.xattrs, Xattrs::None))
            {
                // chmod changes the mask of an access control list.
                state.forget_xattrs(fid);
            }
            state.changed(now, fid, None, range);
            Ok(Cached { value: node.attr, valid: state.attr_validity(now, fid, &node.attr) })
        });
        waiting.result().await
    }
}
