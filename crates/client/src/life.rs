//! The beginning of a client and its end.

use crate::behind::loss::Keep;
use crate::cache::State;
use crate::cache::disk::DiskCache;
use crate::call::Order;
use crate::client::Client;
use crate::clock::{BootClock, Clock};
use crate::config::ClientConfig;
use crate::connection::{Slots, TcpTransport, Transport};
use crate::error::ConnectError;
use crate::hooks::KernelHooks;
use crate::inner::{Gate, Inner, Link, Phase};
use crate::log::disk::OnDisk;
use crate::pool::Pool;
use crate::session::{self, Established, HandshakeError};
use crate::stats::Stats;
use crate::validity::Answers;
use soda_oplog::Applied;
use soda_protocol::Call;
use soda_types::{Errno, Fid, FsError};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, watch};

/// Threads that tell the kernel what it must drop.
const MOST_RECALL_THREADS: usize = 64;
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long the server may take at the end for the next digest, of what it has not heard of yet; looked at so often.
const LAST_DIGESTS: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(1);
/// How long the local disk may take at the end for what was lost just before.
const LAST_KEPT: Duration = Duration::from_secs(30);
/// After this the server is told again what it did not take.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a new client waits for its data connections before it goes on without.
const DATA_CONNECTIONS: Duration = Duration::from_secs(2);

impl Inner {
    pub(crate) fn new(
        config: ClientConfig,
        hooks: Arc<dyn KernelHooks>,
        clock: Arc<dyn Clock>,
        transport: Box<dyn Transport>,
        gate: Gate,
    ) -> Result<Arc<Inner>, ConnectError> {
        config.validate()?;
        let recall_pool = Pool::start("soda-recall", MOST_RECALL_THREADS).map_err(ConnectError::Threads)?;
        let answers = Arc::new(Answers::default());
        let state = State::new(
            &config.cache,
            config.consistency,
            config.write_policy(),
            Arc::clone(&answers),
            Arc::clone(&hooks),
        );
        Ok(Arc::new(Inner {
            link: Link::new(config.data_connections),
            clock,
            hooks,
            transport,
            state: Mutex::new(state),
            slots: Arc::new(Slots::default()),
            answers,
            stats: Stats::default(),
            runtime: Handle::current(),
            recall_pool,
            disk: OnceLock::new(),
            opening_disk: watch::Sender::new(false),
            root: OnceLock::new(),
            max_io: AtomicU32::new(soda_protocol::MAX_IO),
            losses: AtomicU64::new(0),
            holding: AtomicBool::new(false),
            session_ended: Notify::new(),
            making_room: tokio::sync::Mutex::default(),
            keeping: Mutex::default(),
            phase: watch::Sender::new(Phase::Connected),
            calendar: Mutex::new(None),
            key: Mutex::new(None),
            away: watch::Sender::new(false),
            gate,
            config,
        }))
    }

    /// Starts all that a client does by itself; returns when requests can be sent.
    pub(crate) async fn start(self: &Arc<Inner>, first: Established) {
        let inner = self;
        let root = first.welcome.root;
        let _ = inner.root.set(root);
        // Whoever keeps names keeps the root, and never says so.
        crate::lock(&inner.state).inode(root).kernel.refs += 1;
        crate::lock(&inner.state).repin(root);
        let joinable = watch::Sender::new(None);
        for _ in 0..inner.config.data_connections {
            tokio::spawn(session::keep_data_connection(Arc::clone(inner), joinable.subscribe()));
        }
        tokio::spawn(session::keep_house(Arc::clone(inner)));
        if inner.writes_behind() {
            tokio::spawn(crate::behind::digest::keep_log(Arc::clone(inner)));
            inner.pump();
        }
        tokio::spawn(session::watch_idle(Arc::clone(inner)));
        tokio::spawn(session::watch_overruns(Arc::clone(inner)));
        tokio::spawn(session::watch_suspend(Arc::clone(inner)));
        let mut restored = joinable.subscribe();
        tokio::spawn(session::supervise(Arc::clone(inner), first, joinable));
        // Leases that come with answers to questions from before the session's start would be refused.
        let _ = restored.wait_for(Option::is_some).await;
    }
}

impl Client {
    /// Connects and opens a session, inside a multi-thread runtime of tokio, which then also runs the client's tasks. Dropped
    /// before it is ready, it leaves nothing behind.
    ///
    /// # Errors
    /// [`ConnectError`]: the server is not there, is none, or refuses; there is no such runtime.
    pub async fn connect(
        config: ClientConfig,
        hooks: Box<dyn KernelHooks>,
    ) -> Result<Arc<Client>, ConnectError> {
        Client::connect_with(config, hooks, Arc::new(BootClock), Box::new(TcpTransport)).await
    }

    /// As [`Client::connect`], over a clock and a network of the caller's.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_with(
        config: ClientConfig,
        hooks: Box<dyn KernelHooks>,
        clock: Arc<dyn Clock>,
        transport: Box<dyn Transport>,
    ) -> Result<Arc<Client>, ConnectError> {
        let is_fit = |runtime: Handle| runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
        if !Handle::try_current().is_ok_and(is_fit) {
            return Err(ConnectError::Runtime);
        }
        let inner = Inner::new(config, Arc::from(hooks), clock, transport, Gate::open())?;
        let replayed = crate::replay::replay_left(&inner).await?;
        let first = session::open_control(&inner, None).await.map_err(|error| refused(&inner, error))?;
        // From here on dropping it ends what is started.
        let client = Arc::new(Client { inner: Arc::clone(&inner) });
        inner.start(first).await;
        client.open_disk_cache(replayed).await?;
        client.wait_for_data_connections().await;
        Ok(client)
    }

    /// Tells the server what it has not heard of, gives everything back and says goodbye. The last takes two seconds at most;
    /// the first as long as the server goes on taking it, and half a minute from when it does not: because it is gone, has no
    /// room, or its disk fails. What it has not taken then stays in the log on the local disk, if there is one, for the
    /// next client; else it is lost, and kept if [`ClientConfig::keep_lost_in`] says where. Afterwards every operation fails with
    /// EIO.
    pub async fn shutdown(&self) -> Untold {
        self.shutdown_unless(std::future::pending()).await
    }

    /// As [`Client::shutdown`]; when `enough` resolves the server is told nothing more.
    pub async fn shutdown_unless(&self, enough: impl Future<Output = ()>) -> Untold {
        let inner = &self.inner;
        if inner.is_closed() {
            return Untold::default();
        }
        let lost_before = inner.stats.lost_records.get();
        let is_told = tokio::select! {
            biased;
            is_told = self.tell_everything() => is_told,
            () = enough => false,
        };
        if !is_told && !self.leaves_a_log() {
            let lost = crate::lock(&inner.state).lose_log(Applied::Kept);
            inner.report_loss(lost, "the server did not take them before the end", Keep::AtOnce);
        }
        // The session is what lets the next client send what is left.
        if *inner.phase.borrow() == Phase::Connected && !self.leaves_a_log() {
            self.say_goodbye().await;
        }
        let left = self.close();
        self.everything_kept().await;
        Untold { left, lost: inner.stats.lost_records.get() - lost_before }
    }

    /// Ends the session. Until the answer is here the connection must not be closed: what a closed socket has not read yet has
    /// Linux reset the connection, and the goodbye may go with it (RFC 1122, 4.2.2.13).
    async fn say_goodbye(&self) {
        let ticket = {
            let mut state = crate::lock(&self.inner.state);
            state.holder.begin_request(self.inner.now())
        };
        let goodbye = Order::question(Call::Goodbye, ticket);
        let goodbye = self.inner.send(goodbye, |_, result| result.map(|_| ()));
        let _ = tokio::time::timeout(GOODBYE, goodbye.result()).await;
    }

    /// What the server has not heard of yet. Whether it has heard of everything now.
    async fn tell_everything(&self) -> bool {
        let has_backlog = || crate::lock(&self.inner.state).behind.has_backlog();
        if !has_backlog() {
            return true;
        }
        // Others may make room, and what a disk refuses once it may take later.
        let told = async {
            while let Err(error) = self.sync_all().await
                && has_backlog()
            {
                tracing::warn!(%error, "the server does not take the last delayed writes: trying again");
                tokio::time::sleep(AGAIN).await;
            }
        };
        let applied = || crate::lock(&self.inner.state).behind.applied();
        let patience = LAST_DIGESTS.as_secs() / LOOK.as_secs();
        while_it_gets_on(told, applied, || tokio::time::sleep(LOOK), patience).await.is_some()
    }

    /// What was lost before, and is nowhere else, is where it is kept; but a disk that hangs is not waited for.
    async fn everything_kept(&self) {
        let mut keeping = std::mem::take(&mut *crate::lock(&self.inner.keeping));
        let all = async { while keeping.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_KEPT, all).await;
    }

    /// Whether there is something on the local disk that the server may lack.
    fn leaves_a_log(&self) -> bool {
        let disk = crate::lock(&self.inner.state).behind.disk().cloned();
        // Also that nothing is left: should this process be killed before the log is removed.
        let is_written = disk.is_some_and(|disk| disk.write() == OnDisk::Yes);
        is_written && crate::lock(&self.inner.state).behind.has_backlog()
    }

    /// How many changes it leaves in the log on the local disk.
    fn close(&self) -> u64 {
        let leaves_a_log = self.leaves_a_log();
        self.inner.phase.send_replace(Phase::Closed);
        self.inner.slots.close();
        // Nothing is covered any more.
        let lost = {
            let mut state = crate::lock(&self.inner.state);
            let lost = state.lose_log(Applied::Kept);
            state.holder.handle_session_lost(self.inner.now());
            lost
        };
        let mut left = 0;
        match lost.disk.as_ref().filter(|_| leaves_a_log).and_then(|disk| disk.leave()) {
            Some(dir) => {
                left = lost.records.len() as u64;
                tracing::warn!(
                    records = left,
                    ?dir,
                    "the server has not taken all delayed writes: they are sent when this is mounted again with the same \
                     cache-dir"
                );
            }
            None => self.inner.report_loss(lost, "the client is shut down", Keep::AtOnce),
        }
        for (_, pending) in self.inner.link.close() {
            let error = FsError::new(Errno::Io, "the client is shut down");
            self.inner.complete(pending.ticket, pending.completion, Err(error));
        }
        if let Some(disk) = self.inner.disk.get() {
            disk.close();
        }
        left
    }

    /// `changed`: inodes of whose versions the server has another idea than the client that filled it.
    async fn open_disk_cache(&self, changed: BTreeSet<Fid>) -> Result<(), ConnectError> {
        let cache = &self.inner.config.cache;
        let Some(dir) = cache.dir.clone() else { return Ok(()) };
        let path = dir.display().to_string();
        let root = self.root();
        let asked = self.inner.ask_attr(root).result().await;
        let birth = match asked {
            Ok(attr) => attr.value.btime,
            Err(error) => {
                tracing::warn!(%error, "the cache directory is not used");
                return Ok(());
            }
        };
        let limit = cache.dir_bytes;
        let open = move || {
            let disk = DiskCache::open(&dir, root, birth, limit)?;
            disk.forget(&changed);
            Ok(disk)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked)));
        let disk = opened.map_err(|cause| ConnectError::CacheDir { path, cause })?;
        let _ = self.inner.disk.set(Arc::new(disk));
        Ok(())
    }

    /// So that the first reads do not wait for a handshake.
    pub(crate) async fn wait_for_data_connections(&self) {
        let all = self.inner.config.data_connections + 1;
        let up = async {
            while self.inner.link.connections() < all {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(DATA_CONNECTIONS, up).await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.inner.is_closed() {
            return;
        }
        // Another process may have the session.
        let is_away = *self.inner.away.borrow();
        if is_away || *self.inner.phase.borrow() != Phase::Connected || self.leaves_a_log() {
            self.close();
            return;
        }
        let ending = Ending(Client { inner: Arc::clone(&self.inner) });
        // Where the runtime ends meanwhile what is untold is lost, loudly, and the session ends with its term.
        self.inner.runtime.spawn(async move {
            ending.0.tell_everything().await;
            ending.0.say_goodbye().await;
        });
    }
}

/// A client that was dropped, while it says goodbye.
struct Ending(Client);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Delayed writes that the server had not taken when a client ended: how many changes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Untold {
    /// They are in the log on the local disk, for the next client with the same cache directory.
    pub left: u64,
    /// They are lost; what could be kept of them is put aside for recovery.
    pub lost: u64,
}

/// The result of the work; `None` if it has not got on for so many pauses.
async fn while_it_gets_on<T, P: Future<Output = ()>>(
    work: impl Future<Output = T>,
    progress: impl Fn() -> u64,
    pause: impl Fn() -> P,
    patience: u64,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let (mut last, mut in_vain) = (progress(), 0);
    while in_vain < patience {
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = pause() => {
                in_vain = if progress() == last { in_vain + 1 } else { 0 };
                last = progress();
            }
        }
    }
    None
}

pub(crate) fn refused(inner: &Inner, error: HandshakeError) -> ConnectError {
    let server = inner.config.server.clone();
    match error {
        HandshakeError::Io(cause) => ConnectError::Unreachable { server, cause },
        HandshakeError::NotSoda(reason) => ConnectError::NotSoda { server, reason },
        error @ (HandshakeError::Refused(_) | HandshakeError::SessionEnded) => {
            ConnectError::Refused { server, reason: error.to_string() }
        }
    }
}

#[cfg(test)]
mod hung_disk;

#[cfg(test)]
mod tests {
    use super::while_it_gets_on;
    use std::cell::Cell;
    use std::task::Poll;

    #[tokio::test]
    async fn work_has_time_as_long_as_it_gets_on() {
        let attempt = async |needed: u64, able: u64| {
            let (done, pauses) = (Cell::new(0), Cell::new(0));
            let work = std::future::poll_fn(|context| {
                done.set(able.min(done.get() + 1));
                context.waker().wake_by_ref();
                if done.get() == needed { Poll::Ready(()) } else { Poll::Pending }
            });
            let pause = || {
                pauses.set(pauses.get() + 1);
                std::future::ready(())
            };
            (while_it_gets_on(work, || done.get(), pause, 3).await, pauses.get())
        };
        assert_eq!(attempt(10, 10).await, (Some(()), 10));
        assert_eq!(attempt(10, 4).await, (None, 7), "three in vain after four that were not");
    }
}
