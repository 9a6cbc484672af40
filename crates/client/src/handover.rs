//! A session that passes from this process to another one, of a newer version of the program, say.
//!
//! What passes is what nobody could ask the server for: who the client is, the secret of its session, how far sequences and
//! digests have been counted, which file locks and files programs hold, and what they were not told yet that is lost. What was
//! done here is told first, and is on the server's disk: the log is empty. Leases pass, too, with the metadata that they cover
//! (`cache/handed.rs`): what was warm costs no message.
//!
//! *Why that is sound.* Of a lease there is one holder at any time. What passes is read when the old client has no connection any
//! more: nothing that it does from then on reaches the server, and no recall reaches it. One that it has not answered the server
//! asks again, and the new client answers; where it was being worked on, the lease has not passed. The server has the session go
//! on ([`Standing::Resumed`]), so it has given none of its leases to others, and what the old connection still holds it does not
//! look at any more. If the old client goes on after all, it has all as before.
//!
//! *The kernel.* The new client answers no recall before the kernel has dropped what the old one told it: all names, and the
//! inode that is asked for, or all inodes where a deep lease is ([`Client::kernel_has_forgotten`]). So what the kernel believes
//! is covered by leases that the server counts, whether they passed or not. Only pages stay of which the new client knows that a
//! lease which passed covers them ([`Client::kernel_may_keep_pages`]): they go with that.
//!
//! Two steps: the new client connects while the old one only rests ([`Client::let_go`]), and if that fails, or is given up, the
//! old one goes on with the session ([`Client::go_on`]) as after a connection that broke.

use crate::behind::loss::Keep;
use crate::cache::disk::DiskCache;
use crate::cache::handed::HandedCaches;
use crate::cache::unsynced::Losses;
use crate::call::Order;
use crate::client::Client;
use crate::clock::{BootClock, WhichClock};
use crate::config::ClientConfig;
use crate::connection::TcpTransport;
use crate::crash;
use crate::error::ConnectError;
use crate::hooks::KernelHooks;
use crate::inner::{Gate, Inner, Phase};
use crate::life::refused;
use crate::log::disk::place::Place;
use crate::session::{Established, exchange, open_control};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use soda_oplog::{DigestId, Log};
use soda_protocol::{Call, Lock, SessionKey, Standing};
use soda_types::{ClientId, Errno, Fid, FsError, FsResult, Version};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// So often it is looked whether nothing is under way.
const LOOK: Duration = Duration::from_millis(2);
/// How long the old client waits for its own connections to be closed.
const CLOSING: Duration = Duration::from_secs(1);

/// A client's part of what passes. Its form may change with each version of the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedClient {
    client: ClientId,
    key: SessionKey,
    next_sequence: u64,
    last_digest: u64,
    sessions_lost: u64,
    losses: Losses,
    locks: Vec<(Fid, Lock)>,
    locks_lost: Vec<(Fid, u64)>,
    cache_place: Option<Vec<u8>>,
    log_place: Option<Vec<u8>>,
    caches: HandedCaches,
    /// By which the times in these were written down.
    clock: WhichClock,
}

/// The locks of the directories on the local disk, as far as [`HandedClient::descriptors`] says that there are any, in this
/// order: of file data, of the log.
pub type HandedLocks = Vec<OwnedFd>;

/// What was handed over has another form.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(#[from] postcard::Error);

/// A part of what is handed over, as bytes.
///
/// # Errors
/// It cannot be written down.
pub fn encode<T: Serialize>(part: &T) -> Result<Vec<u8>, Unreadable> {
    Ok(postcard::to_stdvec(part)?)
}

/// # Errors
/// Another version has written it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    match postcard::take_from_bytes(bytes)? {
        (part, []) => Ok(part),
        // Longer than what it was taken for.
        _ => Err(postcard::Error::DeserializeBadEncoding.into()),
    }
}

impl HandedClient {
    /// Whether all that it counts can be counted on: whoever takes it over cannot refuse it any more.
    pub fn can_go_on(&self) -> bool {
        const FAR: u64 = 1 << 62;
        [self.next_sequence, self.last_digest, self.sessions_lost].into_iter().all(|count| count < FAR)
    }

    /// How many descriptors belong to it.
    pub fn descriptors(&self) -> usize {
        usize::from(self.cache_place.is_some()) + usize::from(self.log_place.is_some())
    }
}

impl Client {
    /// Tells the server everything, waits until nothing is under way but what only fetches data, and disconnects. Nothing may
    /// be asked of the client until [`Client::go_on`]; who serves a kernel has stopped before. Whoever drops the future calls
    /// that, too.
    ///
    /// # Errors
    /// The server cannot be told, or asked; no more descriptors.
    pub async fn let_go(&self) -> FsResult<(HandedClient, HandedLocks)> {
        let inner = &self.inner;
        self.cache_is_open().await;
        loop {
            self.tell_all().await?;
            // Each time: the answer to a request that is under way may leave more of them to this client.
            self.leave_all_locks_to_server()?;
            self.settle().await;
            // Behind the notes on their way: the server looks at what comes on another connection when it has seen these.
            self.renew().await?;
            if self.rest()? == Rest::Yes {
                break;
            }
        }
        let closed = async {
            let mut phase = inner.phase.subscribe();
            let _ = phase.wait_for(|phase| *phase != Phase::Connected).await;
            while inner.link.connections() > 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        let closed = tokio::time::timeout(CLOSING, closed).await;
        crash::point_of_handover("client.let-go");
        // A connection that is left may take what is said of leases from now on.
        self.to_pass_on(if closed.is_ok() { Leases::Pass } else { Leases::Stay })
    }

    /// Until a cache directory that another process has handed over can be handed on.
    pub async fn cache_is_open(&self) {
        // The sender is here.
        let _ = self.inner.opening_disk.subscribe().wait_for(|opening| !opening).await;
    }

    /// The session stays here after all.
    pub fn go_on(&self) {
        self.inner.away.send_replace(false);
    }

    fn leave_all_locks_to_server(&self) -> FsResult<()> {
        let (mut state, now) = self.inner.locked();
        for fid in state.delegate.idle(now, Duration::ZERO) {
            self.inner.leave_locks_to_server(&mut state, fid)?;
        }
        Ok(())
    }

    /// Until every request is answered that has to be, and every note sent.
    async fn settle(&self) {
        self.inner.link.send_held();
        while self.inner.link.to_be_settled() > 0 {
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn renew(&self) -> FsResult<()> {
        let ticket = crate::lock(&self.inner.state).holder.begin_request(self.inner.now());
        self.inner.send(Order::question(Call::Renew, ticket), |_, result| result.map(|_| ())).result().await
    }

    /// Disconnects, if there is nothing that the server has to be told or asked.
    fn rest(&self) -> FsResult<Rest> {
        if *self.inner.phase.borrow() != Phase::Connected {
            return Err(FsError::new(Errno::Io, "there is no connection to the server"));
        }
        let state = crate::lock(&self.inner.state);
        let is_told = !state.behind.has_backlog() && state.unsynced.len() == 0 && state.delegate.is_empty();
        if !is_told || self.inner.link.to_be_settled() > 0 {
            return Ok(Rest::NotYet);
        }
        self.inner.away.send_replace(true);
        Ok(Rest::Yes)
    }

    fn to_pass_on(&self, leases: Leases) -> FsResult<(HandedClient, HandedLocks)> {
        let inner = &self.inner;
        let failed = |error: std::io::Error| FsError::new(Errno::Io, error.to_string());
        let cache = inner.disk.get().map(|disk| disk.to_pass_on()).transpose().map_err(failed)?.flatten();
        // Not under the lock of the caches: it waits for who writes to the disk.
        let log = crate::lock(&inner.state).behind.disk().cloned();
        let log = log.map(|log| log.to_pass_on()).transpose().map_err(failed)?.flatten();
        let state = crate::lock(&inner.state);
        let key = *crate::lock(&inner.key);
        let key = key.ok_or_else(|| FsError::new(Errno::Io, "there is no session"))?;
        let lost = |(fid, inode): (&Fid, &crate::cache::inode::Inode)| (*fid, inode.uses.locks_lost);
        let handed = HandedClient {
            client: inner.config.client_id,
            key,
            next_sequence: inner.slots.next(),
            last_digest: state.behind.last_digest().0,
            sessions_lost: inner.losses.load(Ordering::SeqCst),
            losses: state.unsynced.losses(),
            locks: state.locks.all(),
            locks_lost: state.inodes().map(lost).filter(|(_, loss)| *loss > 0).collect(),
            cache_place: cache.as_ref().map(|(dir, _)| bytes_of(dir)),
            log_place: log.as_ref().map(|(dir, _)| bytes_of(dir)),
            caches: match leases {
                Leases::Pass => state.hand_over(inner.now()),
                Leases::Stay => state.hand_over(inner.now()).without_times(inner.now()),
            },
            clock: WhichClock::own(),
        };
        let locks = [cache, log].into_iter().flatten().map(|(_, lock)| OwnedFd::from(lock)).collect();
        Ok((handed, locks))
    }

    /// Pages of these the kernel may keep beyond [`Client::kernel_has_forgotten`], which is to be called next: recalls of them
    /// go on to wait until each is dropped ([`Client::kernel_has_dropped`]).
    pub fn kernel_still_has(&self, fids: impl IntoIterator<Item = Fid>) {
        self.inner.gate.keep_for(fids);
    }

    /// The kernel has pages of the inode, all of this version of its data. Whether it may keep them for good: a lease that passed
    /// covers them as long as the session lasts, and whoever asks for it has them dropped. To be called before the first
    /// request.
    pub fn kernel_may_keep_pages(&self, fid: Fid, version: Version) -> bool {
        let (state, now) = self.inner.locked();
        state.may_keep_pages(now, fid, version)
    }

    pub fn kernel_has_dropped(&self, fid: Fid) {
        self.inner.gate.pages_are_gone(fid);
    }

    /// The kernel holds nothing any more of what the process before this one had told it: recalls that came since are answered.
    pub fn kernel_has_forgotten(&self) {
        self.inner.handle_passed(self.inner.gate.let_through());
    }

    /// The kernel uses no name any more of those that it was told then. To be called before
    /// [`Client::kernel_has_forgotten`]: recalls are answered from now on as soon as it has dropped the inode in question.
    pub fn kernel_has_no_names(&self) {
        self.inner.handle_passed(self.inner.gate.names_are_gone());
    }
}

/// Whether leases pass to the new client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leases {
    Pass,
    Stay,
}

/// Whether the client has disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    Yes,
    NotYet,
}

/// A client that has connected to a session which another process still counts as its own. Dropped, it leaves it alone.
pub struct Successor {
    inner: Arc<Inner>,
    first: Established,
    handed: HandedClient,
    locks: HandedLocks,
}

impl std::fmt::Debug for Successor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Successor").field("handed", &self.handed).finish_non_exhaustive()
    }
}

impl Successor {
    /// Connects, and changes nothing. `config` has to be the old client's, but for its identity, which is handed over.
    ///
    /// # Errors
    /// [`ConnectError`]: the server is not there, refuses, or has ended the session.
    pub async fn connect(
        config: ClientConfig,
        hooks: Box<dyn KernelHooks>,
        handed: HandedClient,
        locks: HandedLocks,
    ) -> Result<Successor, ConnectError> {
        let config = ClientConfig { client_id: handed.client, ..config };
        let clock = Arc::new(BootClock);
        let inner = Inner::new(config, Arc::from(hooks), clock, Box::new(TcpTransport), Gate::shut())?;
        let opened = open_control(&inner, Some(handed.key)).await;
        let mut first = opened.map_err(|error| refused(&inner, error))?;
        if first.welcome.standing == Standing::Resumed {
            crash::point_of_handover("client.heir-connected");
            return Ok(Successor { inner, first, handed, locks });
        }
        if first.welcome.standing == Standing::New {
            // Nobody goes on with that one.
            let _ = exchange(&inner, &mut first.reader, &first.writer, Call::Goodbye).await;
        }
        first.writer.close();
        let reason = "it has restarted, or the session has ended".to_owned();
        Err(ConnectError::Refused { server: inner.config.server.clone(), reason })
    }

    /// The session is this client's from now on: the old one has let go for good.
    pub async fn begin(self) -> Arc<Client> {
        let Successor { inner, first, handed, locks } = self;
        let mut locks = locks.into_iter().map(File::from);
        let mut place = |bytes: Option<Vec<u8>>| Some((path_of(bytes?), locks.next()?));
        let (cache, log) = (place(handed.cache_place), place(handed.log_place));
        inner.slots.start_session(first.welcome.slots);
        inner.slots.go_on_from(handed.next_sequence);
        inner.losses.store(handed.sessions_lost, Ordering::SeqCst);
        let caches = match handed.clock.is(&WhichClock::own()) {
            true => handed.caches,
            false => handed.caches.without_times(inner.now()),
        };
        {
            let mut state = crate::lock(&inner.state);
            let session = first.welcome.key.session;
            state.holder.start_session(inner.now(), first.sent_at, session, first.welcome.term);
            state.take_over(inner.now(), caches);
            state.behind.durable = DigestId(handed.last_digest);
            state.behind.log = Log::after(state.behind.durable);
            state.unsynced.take_over(handed.losses);
            handed.locks.into_iter().for_each(|(fid, lock)| state.locks.set(fid, lock));
            handed.locks_lost.into_iter().for_each(|(fid, loss)| state.note_lost_locks(fid, loss));
        }
        inner.begin_disk_log(&first.welcome, Keep::AtOnce);
        crash::point_of_handover("client.heir-begun");
        if let Some((dir, lock)) = log {
            // It is empty; but as long as it is there, who finds it ends the session that it names.
            Place::taken_over(dir, lock).remove();
        }
        inner.start(first).await;
        if let Some((dir, lock)) = cache {
            inner.opening_disk.send_replace(true);
            tokio::spawn(open_cache(Arc::clone(&inner), dir, lock));
        }
        Arc::new(Client { inner })
    }
}

/// Looks at every file in it, which nobody has to wait for: until then the server is asked.
async fn open_cache(inner: Arc<Inner>, dir: PathBuf, lock: File) {
    let opening = Opening(Arc::clone(&inner));
    let limit = inner.config.cache.dir_bytes;
    let opened = tokio::task::spawn_blocking(move || DiskCache::open_locked(dir, lock, limit)).await;
    match opened.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked))) {
        Ok(disk) => drop(inner.disk.set(Arc::new(disk))),
        Err(error) => tracing::warn!(%error, "the cache directory is not used"),
    }
    drop(opening);
}

/// Nobody waits for it any more when this is gone.
struct Opening(Arc<Inner>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening_disk.send_replace(false);
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}
