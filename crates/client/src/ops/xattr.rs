//! Extended attributes. All of an inode are cached together; most inodes have none, which comes with their attributes.

use crate::behind::attrs::NewXattr;
use crate::behind::here::Here;
use crate::cache::State;
use crate::cache::inode::{XattrList, Xattrs};
use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::inner::Inner;
use crate::ops::names::Did;
use bytes::Bytes;
use soda_protocol::{Answer, Call, SetXattr, XattrSummary};
use soda_types::acl::{self, Kept, NewList};
use soda_types::semantics::{check_xattr_name, is_access_list};
use soda_types::{Errno, Fid, FileKind, FsResult, KillPriv, Monotonic, Timestamp};
use std::sync::Arc;

impl Client {
    /// # Errors
    /// ENODATA if there is no such attribute, EINVAL or EOPNOTSUPP if there cannot be one.
    pub async fn getxattr(&self, fid: Fid, name: &[u8]) -> FsResult<Bytes> {
        self.inner.stats.op_xattr.one();
        let all = match self.all_xattrs(fid).await {
            // Too many for one answer: this one alone.
            Err(error) if error.errno == Errno::TooBig => return self.one_xattr(fid, name).await,
            all => all?,
        };
        let found = all.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        found.ok_or_else(|| check_xattr_name(name).err().unwrap_or_else(|| Errno::NoData.into()))
    }

    /// # Errors
    /// E2BIG if they do not fit one answer.
    pub async fn listxattr(&self, fid: Fid) -> FsResult<Vec<Vec<u8>>> {
        self.inner.stats.op_xattr.one();
        Ok(self.all_xattrs(fid).await?.iter().map(|(name, _)| name.clone()).collect())
    }

    /// # Errors
    /// EEXIST, ENODATA as `how` says; ENOSPC, E2BIG.
    pub async fn setxattr(
        &self,
        fid: Fid,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        kill: KillPriv,
    ) -> FsResult<()> {
        self.setxattr_if(fid, (name, value), how, kill, None).await
    }

    /// As [`Client::setxattr`]. `owner`: an access list only if this user owns the inode when it is done.
    ///
    /// # Errors
    /// EPERM if another one does.
    pub async fn setxattr_if(
        &self,
        fid: Fid,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
        kill: KillPriv,
        owner: Option<u32>,
    ) -> FsResult<()> {
        let owner = owner.filter(|_| is_access_list(name));
        let new = NewXattr { name, value, how, kill, owner };
        let set = self.here_with_xattrs(fid, |state, now, today| state.setxattr_here(now, today, fid, &new));
        if let Some(()) = set.await? {
            self.inner.stats.op_xattr.one();
            return Ok(());
        }
        let _through = self.inner.take_little(value.len()).await;
        let kill_sgid = kill.kills();
        let (key, new) = (name.to_vec(), value.to_vec());
        let call = Call::SetXattr { fid, name: key, value: new, how, kill_sgid, owner };
        let kept = match is_access_list(name) {
            // Of what, and whether it is one, the server says.
            true => acl::set_list(FileKind::Directory, 0, &NewList { name, list: value, kill_sgid })
                .map_or(Kept::No, |set| set.kept),
            false => Kept::Yes,
        };
        let (name, value) = (name.to_vec(), Bytes::copy_from_slice(value));
        self.change_xattrs(fid, call, move |list| {
            list.retain(|(known, _)| *known != name);
            if kept == Kept::Yes {
                list.push((name, value));
            }
        })
        .await
    }

    /// # Errors
    /// ENODATA if there is no such attribute.
    pub async fn removexattr(&self, fid: Fid, name: &[u8]) -> FsResult<()> {
        self.removexattr_if(fid, name, None).await
    }

    /// As [`Client::removexattr`]. `owner`: an access list only if this user owns the inode when it is done.
    ///
    /// # Errors
    /// EPERM if another one does.
    pub async fn removexattr_if(&self, fid: Fid, name: &[u8], owner: Option<u32>) -> FsResult<()> {
        let owner = owner.filter(|_| is_access_list(name));
        let work = |state: &mut State, now, today| state.removexattr_here(now, today, fid, name, owner);
        if let Some(()) = self.here_with_xattrs(fid, work).await? {
            self.inner.stats.op_xattr.one();
            return Ok(());
        }
        let name = name.to_vec();
        let call = Call::RemoveXattr { fid, name: name.clone(), owner };
        self.change_xattrs(fid, call, move |list| {
            list.retain(|(known, _)| *known != name);
        })
        .await
    }

    /// `edit` brings the cached list to what the server has now.
    async fn change_xattrs(
        &self,
        fid: Fid,
        call: Call,
        edit: impl FnOnce(&mut Vec<(Vec<u8>, Bytes)>) + Send + 'static,
    ) -> FsResult<()> {
        self.inner.stats.op_xattr.one();
        let slot = self.slot().await?;
        let (ticket, change, before, began) = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            let ticket = state.holder.begin_request(now);
            let change = state.begin_change(now, fid);
            // Until the answer only the server knows.
            let before = state.inode(fid).xattrs.clone();
            state.forget_xattrs(fid);
            let began = (state.inode(fid).holding, state.inode(fid).changes.count);
            (ticket, change, before, began)
        };
        let waiting =
            self.inner.send(Order::change(call, slot, ticket, vec![fid]), move |arrived, result| {
                let ticket = arrived.ticket;
                let (state, now) = (&mut *arrived.state, arrived.now);
                let inode = state.inode(fid);
                let alone = began == (inode.holding, inode.changes.count);
                state.end_change(change);
                let did = Did::from(result.map(|(answer, _)| answer))?;
                let enterable = state.enter(ticket, fid);
                if let Some(node) = &did.node {
                    state.learn_node(now, ticket, node);
                }
                state.changed(now, fid, None, None);
                let known = match before {
                    Xattrs::None => Some(Vec::new()),
                    Xattrs::All(list) => Some(Arc::unwrap_or_clone(list)),
                    Xattrs::Unknown => None,
                };
                if let Some(mut list) = known.filter(|_| alone && enterable) {
                    edit(&mut list);
                    state.set_xattrs(now, fid, Xattrs::All(Arc::new(list)));
                }
                Ok(())
            });
        waiting.result().await
    }

    /// Carries an operation out here, if that can be ([`Inner::here`]), one that has to know the extended attributes of the
    /// inode: they are asked for, once for all that comes after it.
    pub(super) async fn here_with_xattrs<T>(
        &self,
        fid: Fid,
        work: impl Fn(&mut State, Monotonic, Timestamp) -> Here<T> + Send + Sync,
    ) -> FsResult<Option<T>> {
        let done = self.inner.here(fid, &work).await?;
        let lacks_xattrs = || {
            let (state, now) = self.inner.locked();
            state.lacks_xattrs(now, fid)
        };
        if done.is_some()
            || !self.inner.writes_behind()
            || !lacks_xattrs()
            || self.all_xattrs(fid).await.is_err()
        {
            return Ok(done);
        }
        self.inner.here(fid, work).await
    }

    pub(super) async fn all_xattrs(&self, fid: Fid) -> FsResult<XattrList> {
        if let Some(list) = self.inner.cached_xattrs(fid) {
            self.inner.stats.xattr_hits.one();
            return Ok(list);
        }
        self.inner.stats.xattr_misses.one();
        // Whoever asks for attributes asks for these, too (`ls -l`), and mostly there are none.
        let hearsay = self.inner.locked().0.peek(fid).is_some_and(|inode| inode.hearsay);
        if hearsay && self.inner.stat(fid).await?.0.xattrs == XattrSummary::None {
            return Ok(XattrList::default());
        }
        let (ticket, changes) = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            let ticket = state.holder.begin_request(now);
            let changes = state.existing(fid).map_or(0, |inode| inode.changes.count);
            (ticket, changes)
        };
        let waiting =
            self.inner.send(Order::question(Call::GetXattrs { fid }, ticket), move |arrived, result| {
                let ticket = arrived.ticket;
                let (answer, _) = result?;
                let Answer::Xattrs(list) = answer else { return unexpected(&answer) };
                let list: XattrList =
                    Arc::new(list.into_iter().map(|(name, value)| (name, value.into())).collect());
                let state = &mut *arrived.state;
                if state.enter(ticket, fid) {
                    // No own change in between: its order against this answer is the server's.
                    if state.inode(fid).is_unchanged_since(changes) {
                        state.set_xattrs(arrived.now, fid, Xattrs::All(Arc::clone(&list)));
                    }
                }
                Ok(list)
            });
        waiting.result().await
    }

    async fn one_xattr(&self, fid: Fid, name: &[u8]) -> FsResult<Bytes> {
        let ticket = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            state.holder.begin_request(now)
        };
        let call = Call::GetXattr { fid, name: name.to_vec() };
        let waiting = self.inner.send(Order::question(call, ticket), |_, result| match result?.0 {
            Answer::Xattr(value) => Ok(value.into()),
            other => unexpected(&other),
        });
        waiting.result().await
    }
}

impl Inner {
    fn cached_xattrs(&self, fid: Fid) -> Option<XattrList> {
        let (mut state, now) = self.locked();
        state.served(now, fid)?;
        match &state.existing(fid)?.xattrs {
            Xattrs::Unknown => None,
            Xattrs::None => Some(XattrList::default()),
            Xattrs::All(list) => Some(Arc::clone(list)),
        }
    }
}
