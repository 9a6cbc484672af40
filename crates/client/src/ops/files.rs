//! Open files: what keeps an inode that has no name any more.

use crate::cache::State;
use crate::cache::inode::Origin;
use crate::cache::readahead::Sequence;
use crate::cache::reading::Asks;
use crate::cache::unsynced::Heard;
use crate::call::Order;
use crate::client::Client;
use crate::config::{Consistency, Retry};
use crate::inner::{Arrived, Inner};
use crate::log::disk::OnDisk;
use crate::ops::Entry;
use crate::validity::Cached;
use crate::why::Why;
use serde::{Deserialize, Serialize};
use soda_protocol::{Call, Note};
use soda_types::{Attr, Errno, Fid, FsError, FsResult, InUse, Mode, Monotonic, ObjectTerm};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OpenMode {
    Read,
    Write,
    ReadWrite,
}

/// An open file. Closed when dropped.
#[derive(Debug)]
pub struct OpenFile {
    inner: Arc<Inner>,
    fid: Fid,
    mode: OpenMode,
    /// Sessions that had been lost when it was opened.
    losses: u64,
    /// Losses of its own changes that it need not be told of (any more).
    heard: Mutex<Heard>,
    pub(super) sequence: Mutex<Sequence>,
}

/// An open file on its way to another process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HandedFile {
    fid: Fid,
    mode: OpenMode,
    losses: u64,
    heard: Heard,
    at_server: InUse,
}

impl OpenFile {
    /// For the process that takes the client's session over ([`Client::let_go`]).
    pub fn hand_over(&self) -> HandedFile {
        let OpenFile { fid, mode, losses, .. } = *self;
        let at_server = crate::lock(&self.inner.state).inode(fid).uses.open_at_server;
        HandedFile { fid, mode, losses, heard: *crate::lock(&self.heard), at_server }
    }

    pub fn fid(&self) -> Fid {
        self.fid
    }

    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    /// What attributes are asked for by who has it open.
    pub(super) fn asks(&self) -> Asks {
        match self.mode {
            OpenMode::Read => Asks::Data,
            // It may be about to be cut to nothing (Linux says O_TRUNC apart): what followed the last time tells.
            OpenMode::Write | OpenMode::ReadWrite => Asks::Lease,
        }
    }

    /// Of an inode that the server has just been told is open.
    pub(super) fn registered(arrived: &mut Arrived<'_>, fid: Fid, mode: OpenMode) -> Arc<OpenFile> {
        let file = OpenFile::count(arrived.inner, arrived.state, fid, mode);
        arrived.state.inode(fid).uses.open_at_server = InUse::Yes;
        file
    }

    /// Of an inode that was made here.
    pub(super) fn opened_here(
        inner: &Arc<Inner>,
        state: &mut crate::cache::State,
        entry: Entry,
        mode: OpenMode,
    ) -> Result<(Entry, Arc<OpenFile>), Why> {
        let node = entry.node.ok_or(Why::Unknown)?;
        Ok((entry, OpenFile::count(inner, state, node.fid, mode)))
    }

    fn count(inner: &Arc<Inner>, state: &mut crate::cache::State, fid: Fid, mode: OpenMode) -> Arc<OpenFile> {
        state.begin_open(fid);
        let losses = inner.losses.load(Ordering::SeqCst);
        let heard = Mutex::new(state.unsynced.heard(fid));
        Arc::new(OpenFile { inner: Arc::clone(inner), fid, mode, losses, heard, sequence: Mutex::default() })
    }

    fn has_lost(&self, state: &mut crate::cache::State) -> bool {
        state.unsynced.take_lost_since(self.fid, &mut crate::lock(&self.heard))
    }

    /// What was lost while a change waited must not be missed by who made it, nor written over. The operation that fails says it:
    /// it ends with [`Client::heard_of_loss`].
    ///
    /// # Errors
    /// EIO.
    pub(super) fn check_changes(&self, state: &crate::cache::State) -> FsResult<()> {
        unless_lost(
            self.mode != OpenMode::Read && state.unsynced.has_lost_since(self.fid, *crate::lock(&self.heard)),
        )
    }

    /// Locks that were lost with a session must not be missed in silence: whoever relied on them gets an error.
    ///
    /// # Errors
    /// EIO.
    pub(super) fn check_locks(&self, state: &mut crate::cache::State) -> FsResult<()> {
        let lost = state.existing(self.fid).map_or(0, |inode| inode.uses.locks_lost);
        if lost > self.losses {
            return Err(FsError::new(
                Errno::Io,
                "file locks were lost with the session; open the file again",
            ));
        }
        Ok(())
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let mut state = crate::lock(&self.inner.state);
        if !state.end_open(self.fid) {
            return;
        }
        let inode = state.inode(self.fid);
        let by_log = inode.is_released_by_log();
        let registered = std::mem::take(&mut inode.uses.open_at_server) == InUse::Yes;
        let now = self.inner.now();
        if by_log && state.may_change_here(now, self.fid).is_ok() {
            state.release_here(now, self.inner.calendar(), self.fid);
        } else if by_log {
            // The answer to the digest that brings the last of it tells the server.
            if registered {
                state.inode(self.fid).uses.open_at_server = InUse::Yes;
            }
        } else if registered {
            state.note_told_closed(now, self.fid);
            let closed = Note::Closed(vec![self.fid]);
            // Under the lock: whoever opens it from now on says so behind this.
            match state.keeps_a_name(now, self.fid) {
                true => self.inner.note_soon(&closed),
                false => self.inner.note(&closed),
            }
        }
    }
}

impl Client {
    /// What another process had open in the session that this client took over.
    pub fn open_handed(&self, handed: HandedFile) -> Arc<OpenFile> {
        let HandedFile { fid, mode, losses, heard, at_server } = handed;
        {
            let mut state = crate::lock(&self.inner.state);
            state.begin_open(fid);
            // What is not known there is registered soon; until then the server asks before it removes anything.
            state.inode(fid).uses.open_at_server = at_server;
        }
        let (inner, heard) = (Arc::clone(&self.inner), Mutex::new(heard));
        Arc::new(OpenFile { inner, fid, mode, losses, heard, sequence: Mutex::default() })
    }

    /// Opens an inode: from now on it stays until it is closed, whatever happens to its names. Access rights are not
    /// checked here.
    ///
    /// # Errors
    /// ESTALE if it is gone; EROFS for writing on a read-only client.
    pub async fn open(&self, fid: Fid, mode: OpenMode) -> FsResult<Arc<OpenFile>> {
        self.open_asking(fid, mode).await.map(|(file, _)| file)
    }

    /// As [`Client::open`], with the attributes that [`Client::getattr_open`] has next.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open_with_attr(&self, fid: Fid, mode: OpenMode) -> FsResult<(Arc<OpenFile>, Cached<Attr>)> {
        match self.open_asking(fid, mode).await? {
            (file, Some(attr)) => Ok((file, attr)),
            (file, None) => {
                let attr = self.getattr_open(&file).await?;
                Ok((file, attr))
            }
        }
    }

    async fn open_asking(&self, fid: Fid, mode: OpenMode) -> FsResult<(Arc<OpenFile>, Option<Cached<Attr>>)> {
        self.inner.stats.op_open.one();
        if mode != OpenMode::Read && self.inner.config.access == crate::config::Access::ReadOnly {
            return Err(Errno::ReadOnly.into());
        }
        let (file, known, has_attr) = {
            let (mut state, now) = self.inner.locked();
            let file = OpenFile::count(&self.inner, &mut state, fid, mode);
            if let Consistency::Ttl(_) = self.inner.config.consistency {
                // Close-to-open, as NFS: what is cached is checked when a file is opened.
                state.inode(fid).fetched = Monotonic::ZERO;
            }
            let gone = state.inode(fid).attr.is_some_and(|attr| attr.nlink == 0);
            if gone && state.inode(fid).uses.opens == 1 && state.may_change_here(now, fid).is_ok() {
                // Its last name was removed here, and with it perhaps the inode.
                drop(state);
                return Err(FsError::new(Errno::Stale, "removed meanwhile"));
            }
            let known = self.inner.is_known_open(&mut state, now, fid);
            (file, known, known == InUse::No && state.peek_attr(now, fid).is_some())
        };
        if known == InUse::Yes {
            return Ok((file, None));
        }
        let mut attr = None;
        if !has_attr && self.inner.keeps_leases() {
            // What is opened is read, as a rule, and the lease that its data want is enough here, too.
            self.inner.flush(&[fid]).await?;
            let said = self.inner.ask(fid, file.asks()).result().await?;
            attr = Some(Cached { value: said.node.attr, valid: said.valid });
            let (mut state, now) = self.inner.locked();
            if self.inner.is_known_open(&mut state, now, fid) == InUse::Yes {
                drop(state);
                return Ok((file, attr));
            }
        }
        let ticket = {
            let (mut state, now) = self.inner.locked();
            state.holder.begin_request(now)
        };
        let waiting =
            self.inner.send(Order::question(Call::Opened { fid }, ticket), move |arrived, result| {
                result?;
                arrived.state.told_open(fid);
                Ok(())
            });
        waiting.result().await?;
        Ok((file, attr))
    }

    /// Makes everything durable that was answered before, to whatever machine: on the server's disk, not only in its memory;
    /// with [`Fsync::Local`](crate::config::Fsync::Local) here, where that is enough. Who has the inode open asks by
    /// [`Client::fsync_file`]: this one is silent about losses of which another one was told.
    ///
    /// # Errors
    /// EIO if a power cut of the server lost changes of this inode that it had acknowledged, and nobody was told.
    pub async fn fsync(&self, fid: Fid) -> FsResult<()> {
        self.fsync_for(fid, |state| state.take_lost(fid)).await
    }

    /// As [`Client::fsync`], for one of those who have the inode open.
    ///
    /// # Errors
    /// EIO if changes of it were lost that this one was not told of; after that, ESTALE if the server does not have it any more.
    pub async fn fsync_file(&self, file: &OpenFile) -> FsResult<()> {
        self.fsync_for(file.fid(), |state| file.has_lost(state)).await
    }

    async fn fsync_for(&self, fid: Fid, has_lost: impl Fn(&mut crate::cache::State) -> bool) -> FsResult<()> {
        self.inner.stats.op_fsync.one();
        let check = || unless_lost(has_lost(&mut crate::lock(&self.inner.state)));
        check()?;
        let alone = !self.may_be_ahead_elsewhere(fid);
        if alone && self.sync_log_here().await {
            self.inner.stats.fsyncs_local.one();
        } else if let Err(error) = self.fsync_with_others(fid).await {
            // Lost while this was on its way: now it is said.
            match error.errno {
                Errno::Io => drop(check()),
                Errno::Stale => check()?,
                _ => {}
            }
            return Err(error);
        }
        check()
    }

    /// Whether another machine may have changed the inode and not told the server: nothing here keeps it from that.
    fn may_be_ahead_elsewhere(&self, fid: Fid) -> bool {
        let (state, now) = self.inner.locked();
        let here = state.peek(fid).is_some_and(|inode| inode.log.origin == Origin::Here);
        !here && !state.is_ahead(&[fid]) && state.holder.valid_until(now, fid, Mode::Read).is_none()
    }

    /// Whoever asks what the inode is like has the server told of it by who has changed it.
    async fn fsync_with_others(&self, fid: Fid) -> FsResult<()> {
        if self.may_be_ahead_elsewhere(fid)
            && let Err(error) = self.inner.ask_attr(fid).result().await
            // Nobody has it any more: there is nothing to make durable, unless it went with what was lost.
            && (error.errno != Errno::Stale || crate::lock(&self.inner.state).unsynced.has_lost(fid))
        {
            return Err(error);
        }
        self.fsync_there(fid).await
    }

    /// Whether all that the server's disk may lack is in the log, and that is now on the local disk.
    async fn sync_log_here(&self) -> bool {
        let disk = {
            let (mut state, _) = self.inner.locked();
            // What went through to the server is not in the log; what is in the log may rest on it.
            if !state.behind.syncs_here() || state.unsynced.len() > 0 || !state.behind.promise() {
                return false;
            }
            state.behind.disk().cloned()
        };
        let Some(disk) = disk else { return false };
        disk.sync_in_turn(&self.inner.runtime).await == OnDisk::Yes
    }

    async fn fsync_there(&self, fid: Fid) -> FsResult<()> {
        loop {
            let losses = self.inner.locked().0.behind.losses();
            match self.inner.flush_to_disk(fid).await {
                Some(done) => done?,
                None => self.inner.sync(fid).result().await?,
            }
            // A server that came back with less has synced what it has, not what it is going to be told again.
            if self.inner.locked().0.behind.losses() == losses {
                return Ok(());
            }
        }
    }

    /// Tells the server everything that was done here, and has it made durable: sync(2).
    ///
    /// # Errors
    /// ENOSPC if the server has no room for it; EIO if changes of anything were lost, now or before, and nobody has heard of it.
    pub async fn sync_all(&self) -> FsResult<()> {
        let told = self.tell_all().await;
        if told.as_ref().is_err_and(|error| error.errno != Errno::Io) {
            return told;
        }
        let lost = self.check_all_losses();
        told.and(lost)
    }

    /// Says once that changes of anything were lost of which nobody has heard.
    ///
    /// # Errors
    /// EIO if they were.
    pub fn check_all_losses(&self) -> FsResult<()> {
        match crate::lock(&self.inner.state).unsynced.take_unheard() {
            true => Err(FsError::new(Errno::Io, "changes were lost")),
            false => Ok(()),
        }
    }

    /// As [`Client::sync_all`]; of what was lost before this says nothing.
    ///
    /// # Errors
    /// ENOSPC if the server has no room for it; EIO if it is lost before it is told.
    pub async fn tell_all(&self) -> FsResult<()> {
        self.inner.flush_all().await?;
        self.fsync_there(self.root()).await
    }

    /// Says once that changes of the file were lost, to who may have made them.
    ///
    /// # Errors
    /// EIO if they were.
    pub fn check_loss(&self, file: &OpenFile) -> FsResult<()> {
        if file.mode() == OpenMode::Read {
            return Ok(());
        }
        unless_lost(file.has_lost(&mut crate::lock(&self.inner.state)))
    }

    /// As [`Client::check_loss`] for a close of one of several references: who goes on with another one is told as well. A child
    /// that starts another program closes what its parent has open, and does not look at what that says.
    ///
    /// # Errors
    /// EIO if changes of the file were lost, and this was not said to a write or fsync.
    pub fn check_loss_at_close(&self, file: &OpenFile) -> FsResult<()> {
        if file.mode() == OpenMode::Read {
            return Ok(());
        }
        let mut heard = *crate::lock(&file.heard);
        unless_lost(crate::lock(&self.inner.state).unsynced.take_lost_since(file.fid(), &mut heard))
    }

    /// An operation on the file fails: if that is for changes that were lost, they need not be said to be lost once more.
    pub(super) fn heard_of_loss(&self, file: &OpenFile, error: FsError) -> FsError {
        if error.errno == Errno::Io {
            let _ = self.check_loss(file);
        }
        error
    }

    /// Whether operations wait for ever for a server that is gone.
    pub fn retry(&self) -> Retry {
        self.inner.config.retry
    }
}

impl Inner {
    /// Whether the server knows, or will ask before it matters, that the inode, counted already, is open.
    fn is_known_open(&self, state: &mut State, now: Monotonic, fid: Fid) -> InUse {
        // A lease is enough: its recall will ask whether the inode is in use. One that can run out on its own is not.
        let covered = self.config.consistency == Consistency::Lease
            && state.holder.lasts_until_recalled(now, fid)
            // An own unlink may be on its way that was told that nobody here has it open.
            && state.inode(fid).changes.unanswered == 0;
        let inode = state.inode(fid);
        let known = covered || inode.log.origin == Origin::Here || inode.uses.open_at_server == InUse::Yes;
        if known { InUse::Yes } else { InUse::No }
    }

    /// Whether leases are wanted.
    pub(super) fn keeps_leases(&self) -> bool {
        self.config.consistency == Consistency::Lease && self.config.lease_term != Some(ObjectTerm::None)
    }
}

fn unless_lost(lost: bool) -> FsResult<()> {
    if lost { Err(FsError::new(Errno::Io, "changes of this file were lost")) } else { Ok(()) }
}
