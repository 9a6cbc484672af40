//! Changes of names: create, link, unlink.

use crate::behind::names::At;
use crate::cache::names::Known;
use crate::cache::{OwnChange, State, is_directory, present};
use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::hooks::NamesLock;
use crate::inner::Arrived;
use crate::ops::{Entry, OpenFile, OpenMode};
use crate::validity::Validity;
use soda_lease::holder::Ticket;
use soda_protocol::{Answer, Call, NewNode, Node, Unlink};
use soda_types::{Attr, Errno, Fid, FsError, FsResult, InUse, Monotonic, Name, Timestamp};
use std::sync::Arc;

/// Own changes of names in progress.
pub(super) struct NamesInFlight {
    names: Vec<(Fid, Name)>,
    changes: Vec<OwnChange>,
}

/// What a change of names did: the inode it was about, and the attributes of others.
pub(super) struct Did {
    pub(super) node: Option<Node>,
    pub(super) others: Vec<(Fid, Attr)>,
}

impl State {
    /// `inodes`: those whose attributes change with it, as far as they are known.
    pub(super) fn begin_names(
        &mut self,
        now: Monotonic,
        names: &[(Fid, &Name)],
        inodes: &[Fid],
    ) -> NamesInFlight {
        let mut fids: Vec<Fid> = names.iter().map(|(dir, _)| *dir).chain(inodes.iter().copied()).collect();
        fids.sort_unstable();
        fids.dedup();
        let changes = fids.into_iter().map(|fid| self.begin_change(now, fid)).collect();
        for (dir, name) in names {
            self.with_names(now, *dir, |names| names.begin_change(now, name));
        }
        NamesInFlight { names: names.iter().map(|(dir, name)| (*dir, (*name).clone())).collect(), changes }
    }

    /// The name still means what it meant before its inode was settled, as far as is known here. Where writes are delayed, no
    /// other change of it may be under way: it could be another inode by then that this one removes, and that inode be
    /// changed here meanwhile. (The kernel makes changes of one directory one by one.)
    ///
    /// # Errors
    /// ESTALE: another program has changed it meanwhile. The kernel walks the path again.
    pub(super) fn check_meaning(&mut self, now: Monotonic, at: At<'_>, means: Option<Fid>) -> FsResult<()> {
        let known = self.peek_name(now, at.dir, at.name);
        let now_means = known.map(|known| match known {
            Known::Present { fid, .. } => Some(fid),
            Known::Absent => None,
        });
        let names = self.peek(at.dir).and_then(|inode| inode.dir.as_ref());
        let changing = self.writes_behind() && names.is_some_and(|names| names.is_changing(at.name));
        match now_means {
            _ if changing => Err(FsError::new(Errno::Stale, "the name is being changed")),
            Some(other) if other != means => {
                Err(FsError::new(Errno::Stale, "the name was changed meanwhile"))
            }
            _ => Ok(()),
        }
    }

    /// The change is answered. `outcomes`: what each name is now, in order; missing ones are not known.
    pub(super) fn end_names(
        &mut self,
        now: Monotonic,
        ticket: Ticket,
        flight: NamesInFlight,
        outcomes: &[Option<Known>],
        did: Option<&Did>,
    ) {
        flight.changes.into_iter().for_each(|change| self.end_change(change));
        if let Some(did) = did {
            self.learn_others(now, ticket, &did.others);
            if let Some(node) = &did.node {
                self.learn_node(now, ticket, node);
                let known = flight.names.iter().zip(outcomes).filter(|_| !is_directory(node));
                let here = |outcome: &Option<Known>| *outcome == Some(present(node));
                if let Some(((dir, _), _)) = known.into_iter().find(|(_, outcome)| here(outcome)) {
                    self.met(node.fid, *dir);
                }
                self.changed(now, node.fid, None, None);
            }
        }
        for (at, (dir, name)) in flight.names.iter().enumerate() {
            let outcome = outcomes.get(at).copied().flatten().filter(|_| self.enter(ticket, *dir));
            self.with_names(now, *dir, |names| names.end_change(now, name, outcome));
            if did.is_some() {
                self.changed(now, *dir, Some(name), None);
            }
        }
    }
}

impl Did {
    /// # Errors
    /// The failure, or EIO for an answer of another kind.
    pub(super) fn from(result: FsResult<Answer>) -> FsResult<Did> {
        match result? {
            Answer::Changed { node, others } => Ok(Did { node, others }),
            other => unexpected(&other),
        }
    }

    fn node(&self) -> FsResult<Node> {
        self.node.ok_or_else(|| FsError::new(Errno::Io, "the server's answer lacks the new inode"))
    }
}

impl Client {
    /// mkdir, mknod, symlink, creat: a new inode under a name. With [`soda_protocol::IfExists::Open`] an existing file
    /// is as good.
    ///
    /// # Errors
    /// EEXIST, ENOENT if the directory is removed, ENOSPC.
    pub async fn create(&self, parent: Fid, name: &Name, new: NewNode) -> FsResult<Entry> {
        let new = NewNode { open: InUse::No, ..new };
        let at = At { dir: parent, name };
        let make =
            |state: &mut State, now: Monotonic, today: Timestamp| state.create_here(now, today, at, &new);
        if let Some(entry) = self.here_with_xattrs(parent, make).await? {
            self.inner.stats.op_create.one();
            return Ok(entry);
        }
        self.create_node(parent, name, new, |_, _| ()).await.map(|(entry, ())| entry)
    }

    /// open(O_CREAT): creates a regular file and opens it.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub async fn create_open(
        &self,
        parent: Fid,
        name: &Name,
        new: NewNode,
        mode: OpenMode,
    ) -> FsResult<(Entry, Arc<OpenFile>)> {
        let new = NewNode { open: InUse::Yes, ..new };
        let at = At { dir: parent, name };
        let make = |state: &mut State, now: Monotonic, today: Timestamp| {
            let entry = state.create_here(now, today, at, &new)?;
            Ok(OpenFile::opened_here(&self.inner, state, entry, mode)?)
        };
        if let Some(made) = self.here_with_xattrs(parent, make).await? {
            self.inner.stats.op_create.one();
            return Ok(made);
        }
        let open = move |arrived: &mut Arrived<'_>, fid| OpenFile::registered(arrived, fid, mode);
        self.create_node(parent, name, new, open).await
    }

    async fn create_node<T: Send + 'static>(
        &self,
        parent: Fid,
        name: &Name,
        new: NewNode,
        open: impl FnOnce(&mut Arrived<'_>, Fid) -> T + Send + 'static,
    ) -> FsResult<(Entry, T)> {
        self.inner.stats.op_create.one();
        let _through = self.inner.take_little(new.target.len()).await;
        let slot = self.slot().await?;
        let (ticket, flight) = {
            let (mut state, now) = self.inner.settled(&[parent]).await?;
            self.names_may_change(&mut state, now, &[parent])?;
            let ticket = state.holder.begin_request(now);
            let flight = state.begin_names(now, &[(parent, name)], &[]);
            (ticket, flight)
        };
        let call = Call::Create { parent, name: name.clone(), new };
        let order = Order { names_of: vec![parent], ..Order::change(call, slot, ticket, vec![parent]) };
        let name = name.clone();
        let waiting = self.inner.send(order, move |arrived, result| {
            let ticket = arrived.ticket;
            let now = arrived.now;
            let did = Did::from(result.map(|(answer, _)| answer)).and_then(|did| Ok((did.node()?, did)));
            let (node, did) = match did {
                Ok(did) => did,
                Err(error) => {
                    arrived.state.end_names(now, ticket, flight, &[], None);
                    return Err(error);
                }
            };
            let known = present(&node);
            arrived.state.end_names(now, ticket, flight, &[Some(known)], Some(&did));
            if is_directory(&node) {
                arrived.state.learn_new_directory(ticket, node.fid, parent);
            }
            let names = arrived.state.name_validity(now, parent, &name, known);
            let entry = arrived.state.entry(now, names, node);
            Ok((entry, open(arrived, node.fid)))
        });
        let made = waiting.result().await;
        if self.inner.writes_behind() {
            // So that the next one need not go through. Not before: it would be asked while the names change.
            self.inner.learn_names(parent);
        }
        made
    }

    /// O_TMPFILE: a file without a name, open.
    ///
    /// # Errors
    /// ENOSPC.
    pub async fn tmpfile(
        &self,
        parent: Fid,
        new: NewNode,
        mode: OpenMode,
    ) -> FsResult<(Entry, Arc<OpenFile>)> {
        self.inner.stats.op_create.one();
        let new = NewNode { open: InUse::Yes, ..new };
        let make = |state: &mut State, now: Monotonic, today: Timestamp| {
            let entry = state.tmpfile_here(now, today, parent, &new)?;
            Ok(OpenFile::opened_here(&self.inner, state, entry, mode)?)
        };
        if let Some(made) = self.here_with_xattrs(parent, make).await? {
            return Ok(made);
        }
        let _through = self.inner.take_little(0).await;
        let slot = self.slot().await?;
        let ticket = {
            let (mut state, now) = self.inner.settled(&[parent]).await?;
            state.holder.begin_request(now)
        };
        let order = Order::change(Call::TmpFile { parent, new }, slot, ticket, Vec::new());
        let waiting = self.inner.send(order, move |arrived, result| {
            let ticket = arrived.ticket;
            let node = Did::from(result.map(|(answer, _)| answer))?.node()?;
            arrived.state.learn_node(arrived.now, ticket, &node);
            arrived.state.changed(arrived.now, node.fid, None, None);
            let entry = arrived.state.entry(arrived.now, Validity::NONE, node);
            Ok((entry, OpenFile::registered(arrived, node.fid, mode)))
        });
        waiting.result().await
    }

    /// Whether nobody else can see an own change of the inode before a recall has come and been answered here.
    pub fn holds_write_lease(&self, fid: Fid) -> bool {
        let (state, now) = self.inner.locked();
        state.covered_for_writing(now, fid)
    }

    /// Another name for an inode.
    ///
    /// # Errors
    /// EEXIST, EMLINK, EPERM for directories.
    pub async fn link(&self, fid: Fid, parent: Fid, name: &Name) -> FsResult<Entry> {
        self.inner.stats.op_link.one();
        let at = At { dir: parent, name };
        let here = self.inner.here(parent, |state, now, today| state.link_here(now, today, fid, at));
        if let Some(entry) = here.await? {
            return Ok(entry);
        }
        let _through = self.inner.take_little(0).await;
        let slot = self.slot().await?;
        let (ticket, flight) = {
            let (mut state, now) = self.inner.settled(&[fid, parent]).await?;
            self.names_may_change(&mut state, now, &[parent])?;
            let ticket = state.holder.begin_request(now);
            state.holder.begin_move(ticket, fid, None);
            let flight = state.begin_names(now, &[(parent, name)], &[fid]);
            (ticket, flight)
        };
        let call = Call::Link { fid, parent, name: name.clone() };
        let order = Order { names_of: vec![parent], ..Order::change(call, slot, ticket, vec![parent, fid]) };
        let name = name.clone();
        let waiting = self.inner.send(order, move |arrived, result| {
            let ticket = arrived.ticket;
            let (state, now) = (&mut *arrived.state, arrived.now);
            let did = Did::from(result.map(|(answer, _)| answer)).and_then(|did| Ok((did.node()?, did)));
            match did {
                Ok((node, did)) => {
                    let known = present(&node);
                    state.end_names(now, ticket, flight, &[Some(known)], Some(&did));
                    let names = state.name_validity(now, parent, &name, known);
                    Ok(state.entry(now, names, node))
                }
                Err(error) => {
                    state.end_names(now, ticket, flight, &[], None);
                    Err(error)
                }
            }
        });
        waiting.result().await
    }

    /// # Errors
    /// ENOENT, EISDIR.
    pub async fn unlink(&self, parent: Fid, name: &Name) -> FsResult<()> {
        if let Some(fid) = self.inner.meaning_here(parent, name) {
            let (at, found) = (At { dir: parent, name }, (fid, self.inner.hooks.in_use(fid)));
            let here = self.inner.here(parent, |state, now, today| state.unlink_here(now, today, at, found));
            if let Some(()) = here.await? {
                self.inner.stats.op_unlink.one();
                return Ok(());
            }
        }
        self.remove(parent, name, |in_use| Unlink::File { in_use }).await
    }

    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY.
    pub async fn rmdir(&self, parent: Fid, name: &Name) -> FsResult<()> {
        let at = At { dir: parent, name };
        let here = self.inner.here(parent, |state, now, today| state.rmdir_here(now, today, at));
        if let Some(()) = here.await? {
            self.inner.stats.op_unlink.one();
            return Ok(());
        }
        self.remove(parent, name, |_| Unlink::Directory).await
    }

    async fn remove(&self, parent: Fid, name: &Name, what: impl Fn(InUse) -> Unlink + Send) -> FsResult<()> {
        self.inner.stats.op_unlink.one();
        let slot = self.slot().await?;
        let fid = self.meaning(parent, name).await?.ok_or(Errno::NoEntry)?;
        let asked_hooks = self.inner.hooks.in_use(fid);
        let at = At { dir: parent, name };
        let (in_use, ticket, flight, aside) = {
            let (mut state, now) = self.inner.settled_to_remove(parent, fid, asked_hooks).await?;
            state.check_meaning(now, at, Some(fid))?;
            self.names_may_change(&mut state, now, &[parent])?;
            let in_use = state.in_use(fid, asked_hooks);
            let aside = state.set_data_aside(now, fid);
            let ticket = state.holder.begin_request(now);
            state.holder.begin_move(ticket, fid, None);
            let flight = state.begin_names(now, &[(parent, name)], &[fid]);
            (in_use, ticket, flight, aside)
        };
        let what = if aside.is_none() { what(in_use) } else { Unlink::Untold };
        let call = Call::Unlink { parent, name: name.clone(), what };
        let order = Order { names_of: vec![parent], ..Order::change(call, slot, ticket, vec![parent, fid]) };
        let waiting = self.inner.send(order, move |arrived, result| {
            let ticket = arrived.ticket;
            let (state, now) = (&mut *arrived.state, arrived.now);
            match Did::from(result.map(|(answer, _)| answer)) {
                Ok(did) => {
                    if in_use == InUse::Yes {
                        state.told_open(fid);
                    }
                    state.forget_data_aside(fid, aside);
                    state.end_names(now, ticket, flight, &[Some(Known::Absent)], Some(&did));
                    Ok(())
                }
                Err(error) => {
                    state.end_names(now, ticket, flight, &[], None);
                    state.take_data_back(now, fid, aside);
                    Err(error)
                }
            }
        });
        waiting.result().await
    }

    /// Which inode a name means, from the caches or the server: to know whether it is in use here.
    pub(super) async fn meaning(&self, parent: Fid, name: &Name) -> FsResult<Option<Fid>> {
        let known = {
            let (mut state, now) = self.inner.locked();
            state.name(now, parent, name).map(|known| known.value)
        };
        match known {
            Some(Known::Present { fid, .. }) => Ok(Some(fid)),
            _ => Ok(self.lookup(parent, name).await?.node.map(|node| node.fid)),
        }
    }

    /// A change of a directory whose names the kernel is just told to drop would wait at the server for that, holding
    /// the lock which the kernel needs for it. Once in a while the caller is sent back to walk the path again.
    pub(super) fn names_may_change(&self, state: &mut State, now: Monotonic, dirs: &[Fid]) -> FsResult<()> {
        if self.inner.hooks.names_lock() == NamesLock::None {
            return Ok(());
        }
        for dir in dirs {
            let recalling = state.existing(*dir).is_some_and(|inode| inode.kernel.recalling > 0);
            if recalling && state.send_back(now) {
                return Err(FsError::new(Errno::Stale, "its directory is being recalled"));
            }
        }
        Ok(())
    }
}
