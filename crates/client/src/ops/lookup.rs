//! Names to inodes, attributes, targets of symbolic links, statfs.

use crate::cache::inode::Origin;
use crate::cache::names::Known;
use crate::cache::{is_directory, present};
use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::inner::Inner;
use crate::ops::Entry;
use crate::validity::{Cached, Validity};
use bytes::Bytes;
use soda_protocol::{Answer, Call, Node, XattrSummary};
use soda_types::{Attr, Fid, FsResult, FsStats, Name};
use std::sync::Arc;

impl Client {
    /// What a name means. An absent name is an answer too, not an error.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE if the directory is gone.
    pub async fn lookup(&self, parent: Fid, name: &Name) -> FsResult<Entry> {
        self.inner.stats.op_lookup.one();
        if let Some(entry) = self.inner.cached_entry(parent, name) {
            self.inner.stats.name_hits.one();
            return Ok(entry);
        }
        self.inner.stats.name_misses.one();
        self.inner.introduce(parent).await?;
        if self.inner.writes_behind() {
            self.inner.learn_names(parent);
        }
        let ticket = {
            let (mut state, now) = self.inner.locked();
            state.holder.begin_request(now)
        };
        let call = Call::Lookup { parent, name: name.clone() };
        let name = name.clone();
        let waiting = self.inner.send(Order::question(call, ticket), move |arrived, result| {
            let ticket = arrived.ticket;
            let (answer, _) = result?;
            let Answer::Found { parent: attr, node } = answer else { return unexpected(&answer) };
            let (state, now) = (&mut *arrived.state, arrived.now);
            state.learn_attr(now, ticket, parent, &attr);
            let known = node.as_ref().map_or(Known::Absent, present);
            state.learn_name(now, ticket, parent, &name, known);
            let names = state.name_validity(now, parent, &name, known);
            Ok(match node {
                None => (Entry { node: None, names, attr: Validity::NONE }, None),
                Some(node) => {
                    state.learn_node(now, ticket, &node);
                    if !is_directory(&node) {
                        state.met(node.fid, parent);
                    }
                    let outdated = state.is_outdated(&node).then_some(node.fid);
                    (state.entry(now, names, node), outdated)
                }
            })
        });
        let (mut entry, outdated) = waiting.result().await?;
        if let (Some(fid), Some(node)) = (outdated, &mut entry.node) {
            let now = self.getattr(fid).await?;
            (node.attr, entry.attr) = (now.value, now.valid);
        }
        Ok(entry)
    }

    /// What a name means, if the caches know. Asks nobody.
    pub fn cached(&self, parent: Fid, name: &Name) -> Option<Entry> {
        self.inner.cached_entry(parent, name)
    }

    /// # Errors
    /// ESTALE if the inode is gone.
    pub async fn getattr(&self, fid: Fid) -> FsResult<Cached<Attr>> {
        self.inner.stats.op_getattr.one();
        {
            let (mut state, now) = self.inner.locked();
            if let Some(cached) = state.attr(now, fid) {
                self.inner.stats.attr_hits.one();
                return Ok(cached);
            }
        }
        self.inner.stats.attr_misses.one();
        self.inner.flush(&[fid]).await?;
        self.inner.ask_attr(fid).result().await
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is none.
    pub async fn readlink(&self, fid: Fid) -> FsResult<Bytes> {
        self.inner.stats.op_readlink.one();
        if let Some(target) = self.inner.locked().0.target(fid) {
            return Ok(target);
        }
        let ticket = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            state.holder.begin_request(now)
        };
        let waiting =
            self.inner.send(Order::question(Call::ReadLink { fid }, ticket), move |arrived, result| {
                let ticket = arrived.ticket;
                let (answer, _) = result?;
                let Answer::Target(target) = answer else { return unexpected(&answer) };
                let target = Bytes::from(target);
                if arrived.state.enter(ticket, fid) {
                    arrived.state.set_target(arrived.now, fid, target.clone());
                }
                Ok(target)
            });
        waiting.result().await
    }

    /// Space of the volume; always asked for.
    pub async fn statfs(&self) -> FsResult<FsStats> {
        self.inner.stats.op_statfs.one();
        let ticket = {
            let (mut state, now) = self.inner.locked();
            state.holder.begin_request(now)
        };
        let call = Call::StatFs { fid: self.root() };
        let waiting = self.inner.send(Order::question(call, ticket), |arrived, result| match result?.0 {
            Answer::Stats(stats) => {
                let untold = arrived.state.behind.untold_bytes();
                Ok(FsStats { free_bytes: stats.free_bytes.saturating_sub(untold), ..stats })
            }
            other => unexpected(&other),
        });
        waiting.result().await
    }
}

impl Inner {
    fn cached_entry(&self, parent: Fid, name: &Name) -> Option<Entry> {
        let (mut state, now) = self.locked();
        let known = state.name(now, parent, name)?;
        match known.value {
            Known::Absent => Some(Entry { node: None, names: known.valid, attr: Validity::NONE }),
            Known::Present { fid, .. } => {
                let attr = state.attr(now, fid)?;
                // Whoever wants to know what it has will be told under the lease.
                let xattrs = state.existing(fid)?.summary().unwrap_or(XattrSummary::Some);
                let node = Node { fid, attr: attr.value, xattrs };
                Some(Entry { node: Some(node), names: known.valid, attr: attr.valid })
            }
        }
    }

    /// What a name means, if the caches know that it means something.
    pub(crate) fn meaning_here(&self, parent: Fid, name: &Name) -> Option<Fid> {
        let (mut state, now) = self.locked();
        match state.peek_name(now, parent, name)? {
            Known::Present { fid, .. } => Some(fid),
            Known::Absent => None,
        }
    }

    /// Sees to it that the server knows the inode.
    async fn introduce(self: &Arc<Inner>, fid: Fid) -> FsResult<()> {
        let here = self.locked().0.peek(fid).is_some_and(|inode| inode.log.origin == Origin::Here);
        if here { self.flush(&[fid]).await } else { Ok(()) }
    }

    /// Asks the server for attributes, which brings a lease.
    pub(crate) fn ask_attr(self: &Arc<Inner>, fid: Fid) -> crate::call::Waiting<Cached<Attr>> {
        let ticket = {
            let (mut state, now) = self.locked();
            state.holder.begin_request(now)
        };
        self.send(Order::question(Call::GetAttr { fid }, ticket), move |arrived, result| {
            let ticket = arrived.ticket;
            let (answer, _) = result?;
            let Answer::Node(node) = answer else { return unexpected(&answer) };
            arrived.state.learn_node(arrived.now, ticket, &node);
            let valid = arrived.state.attr_validity(arrived.now, fid, &node.attr);
            Ok(Cached { value: node.attr, valid })
        })
    }
}
