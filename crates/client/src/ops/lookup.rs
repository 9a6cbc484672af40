//! Names to inodes, attributes, targets of symbolic links, statfs.

use crate::cache::inode::Origin;
use crate::cache::names::Known;
use crate::cache::reading::Asks;
use crate::cache::{State, is_directory, present};
use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::inner::Inner;
use crate::ops::fetch::{Age, Said};
use crate::ops::{Entry, OpenFile};
use crate::validity::{Cached, Validity};
use bytes::Bytes;
use soda_protocol::{Answer, Call, Node, XattrSummary};
use soda_types::{Attr, Errno, Fid, FileKind, FsResult, FsStats, Name};
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
        self.inner.list_ahead(parent);
        let alone = self.inner.attributes_alone();
        if alone && let Some((fid, names)) = self.inner.known_file(parent, name) {
            match self.inner.stat(fid).await {
                Ok((node, attr)) => return Ok(Entry { node: Some(node), names, attr }),
                Err(error) if error.errno == Errno::Stale => {}
                Err(error) => return Err(error),
            }
        }
        let mut call = Call::Lookup { parent, name: name.clone() };
        if alone {
            call = Call::LookupStat { parent, name: name.clone() };
        }
        let (entry, unsaid) = self.inner.ask_name(parent, name, call).await?;
        let Some(fid) = unsaid else { return Ok(entry) };
        let asked = match entry.node {
            // What is known here is newer than what the server said.
            Some(node) => self.stat(fid).await.map(|now| (Node { attr: now.value, ..node }, now.valid)),
            None => self.inner.stat(fid).await,
        };
        match asked {
            Ok((node, attr)) => Ok(Entry { node: Some(node), attr, ..entry }),
            // Gone meanwhile, and the name with it.
            Err(error) if error.errno == Errno::Stale => {
                let call = Call::Lookup { parent, name: name.clone() };
                let (mut entry, unsaid) = self.inner.ask_name(parent, name, call).await?;
                if let (Some(fid), Some(node)) = (unsaid, &mut entry.node) {
                    let now = self.getattr(fid).await?;
                    (node.attr, entry.attr) = (now.value, now.valid);
                }
                Ok(entry)
            }
            Err(error) => Err(error),
        }
    }

    /// What a name means, if the caches know. Asks nobody.
    pub fn cached(&self, parent: Fid, name: &Name) -> Option<Entry> {
        self.inner.cached_entry(parent, name)
    }

    /// What is known of an inode's attributes, if they may be used. Asks nobody.
    pub fn cached_attr(&self, fid: Fid) -> Option<Cached<Attr>> {
        let (mut state, now) = self.inner.locked();
        state.attr(now, fid)
    }

    /// # Errors
    /// ESTALE if the inode is gone.
    pub async fn getattr(&self, fid: Fid) -> FsResult<Cached<Attr>> {
        self.attr_for(fid, Asks::Lease).await
    }

    /// As [`Client::getattr`], of who has it open, and goes on to read if that is possible: then the data of a small file come
    /// with the attributes.
    ///
    /// # Errors
    /// As [`Client::getattr`].
    pub async fn getattr_open(&self, file: &OpenFile) -> FsResult<Cached<Attr>> {
        self.attr_for(file.fid(), file.asks()).await
    }

    async fn attr_for(&self, fid: Fid, asks: Asks) -> FsResult<Cached<Attr>> {
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
        self.inner
            .ask(fid, asks)
            .result()
            .await
            .map(|said| Cached { value: said.node.attr, valid: said.valid })
    }

    /// As [`Client::getattr`], of who wants to know these attributes and no more: where another client has changed the inode and
    /// not told the server yet, that one may be asked for them, and goes on without being held up. What it says is true, but may
    /// be lost with it ([`Validity::UNTOLD`]).
    ///
    /// # Errors
    /// As [`Client::getattr`].
    pub async fn stat(&self, fid: Fid) -> FsResult<Cached<Attr>> {
        if !self.inner.attributes_alone() {
            return self.getattr(fid).await;
        }
        self.inner.stats.op_getattr.one();
        {
            let (mut state, now) = self.inner.locked();
            if let Some(cached) = state.attr(now, fid) {
                self.inner.stats.attr_hits.one();
                return Ok(cached);
            }
        }
        self.inner.stats.attr_misses.one();
        let (node, valid) = self.inner.stat(fid).await?;
        Ok(Cached { value: node.attr, valid })
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
                let behind = &arrived.state.behind;
                Ok(less_untold(stats, behind.untold_bytes(), behind.untold_inodes()))
            }
            other => unexpected(&other),
        });
        waiting.result().await
    }
}

/// What the server has, less what it has not been told of: as it is going to be.
fn less_untold(stats: FsStats, bytes: u64, inodes: u64) -> FsStats {
    let free_bytes = stats.free_bytes.saturating_sub(bytes);
    // The server's inodes are bounded by its space alone.
    let in_space =
        u128::from(stats.free_inodes) * u128::from(free_bytes) / u128::from(stats.free_bytes.max(1));
    let in_space = u64::try_from(in_space).unwrap_or(stats.free_inodes).min(stats.free_inodes);
    let total_inodes = stats.total_inodes.saturating_sub(stats.free_inodes - in_space);
    FsStats { free_bytes, free_inodes: in_space.saturating_sub(inodes), total_inodes, ..stats }
}

impl Inner {
    fn cached_entry(&self, parent: Fid, name: &Name) -> Option<Entry> {
        let (mut state, now) = self.locked();
        let known = state.name(now, parent, name)?;
        state.note_name_found(parent);
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

    /// Whether attributes may be asked for without a lease.
    fn attributes_alone(&self) -> bool {
        crate::lock(&self.state).caches_under_leases()
    }

    /// What a name means, if it is known to mean something that is no directory.
    fn known_file(&self, parent: Fid, name: &Name) -> Option<(Fid, Validity)> {
        let (mut state, now) = self.locked();
        let known = state.name(now, parent, name)?;
        match known.value {
            Known::Present { fid, kind } if kind != FileKind::Directory => Some((fid, known.valid)),
            _ => None,
        }
    }

    /// Sees to it that the server's answer about a name is not older than what was done here: names of the directory were changed
    /// here and not told, and the caches cannot answer, since its lease has run out (the session has not: whoever was cut off
    /// goes on where nobody needed it), or lack what the name means.
    async fn tell_names_unheld(self: &Arc<Inner>, dir: Fid, name: &Name) -> FsResult<()> {
        let would_be_old = {
            let (mut state, now) = self.locked();
            let unheld = |state: &mut State| state.served(now, dir).is_none();
            let changed_here = |state: &mut State| state.peek_name(now, dir, name).is_some();
            state.is_ahead(&[dir]) && (unheld(&mut state) || changed_here(&mut state))
        };
        if would_be_old {
            drop(self.settled(&[dir]).await?);
        }
        Ok(())
    }

    /// Asks the server what a name means. With the answer comes the inode that it means if its attributes have still to be asked
    /// for: the entry's are not to be used then.
    async fn ask_name(
        self: &Arc<Inner>,
        parent: Fid,
        name: &Name,
        call: Call,
    ) -> FsResult<(Entry, Option<Fid>)> {
        self.tell_names_unheld(parent, name).await?;
        let ticket = {
            let (mut state, now) = self.locked();
            state.holder.begin_request(now)
        };
        let name = name.clone();
        let waiting = self.send(Order::question(call, ticket), move |arrived, result| {
            let (answer, _) = result?;
            let (attr, node, named) = match answer {
                Answer::Found { parent, node } => (parent, node, None),
                Answer::Named { parent, fid, kind } => (parent, None, Some((fid, kind))),
                other => return unexpected(&other),
            };
            let (state, now, ticket) = (&mut *arrived.state, arrived.now, arrived.ticket);
            state.learn_attr(now, ticket, parent, &attr);
            let known = match named {
                Some((fid, kind)) => Known::Present { fid, kind },
                None => node.as_ref().map_or(Known::Absent, present),
            };
            state.learn_name(now, ticket, parent, &name, known);
            let names = state.name_validity(now, parent, &name, known);
            let Some(node) = node else {
                return Ok((Entry { node: None, names, attr: Validity::NONE }, named.map(|(fid, _)| fid)));
            };
            state.learn_node(now, ticket, &node);
            if !is_directory(&node) {
                state.met(node.fid, parent);
            }
            let outdated = state.is_outdated(&node).then_some(node.fid);
            Ok((state.entry(now, names, node), outdated))
        });
        waiting.result().await
    }

    /// What an inode is like, as the server or the holder of a write lease says.
    pub(crate) async fn stat(self: &Arc<Inner>, fid: Fid) -> FsResult<(Node, Validity)> {
        self.flush(&[fid]).await?;
        let Said { node, valid, age } = self.ask(fid, Asks::Attributes).result().await?;
        if age == Age::Current {
            return Ok((node, valid));
        }
        let Cached { value: attr, valid } = self.ask_attr(fid).result().await?;
        let xattrs = self.locked().0.peek(fid).and_then(|inode| inode.summary());
        Ok((Node { fid, attr, xattrs: xattrs.unwrap_or(XattrSummary::Some) }, valid))
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
