//! The process that served a mount lets it go: see [`super::handover`].

use super::Mount;
use super::handover::{HandOverError, Handed};
use super::visitor::{self, Program, Visitor};
use crate::wire::connection::Transport;
use crate::wire::{NotEmptied, Serving};
use rustix::io::fcntl_dupfd_cloexec;
use soda_types::FsError;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the server may need for what it has not been told; programs do not wait for that.
const TELLING: Duration = Duration::from_secs(30);
/// How long the threads that read requests may take to stop.
const PAUSE: Duration = Duration::from_secs(2);
/// How long requests under way may take then.
const SETTLE: Duration = Duration::from_secs(1);
/// So often that is tried: what is under way may wait for the kernel, which waits for a request that is not read.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_millis(100);
/// How long the server may need for the rest.
const LETTING_GO: Duration = Duration::from_secs(5);
/// How long the guard may take to end.
const GUARD: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);
/// How long the kernel may take to use up the entries of queues.
const EMPTY: Duration = Duration::from_secs(2);

/// Why the mount is not let go.
#[derive(Debug, thiserror::Error)]
pub enum StayError {
    #[error("the server has not been told everything: {0}")]
    Untold(FsError),
    #[error("the server does not take what it has not been told in {TELLING:?}")]
    Slow,
    #[error(
        "its threads do not come to rest: {0} still wait for requests. Is something else mounted over it?"
    )]
    Restless(usize),
    #[error("{0} requests are under way and do not end; is the server there?")]
    UnderWay(usize),
    #[error(transparent)]
    Queues(#[from] NotEmptied),
    #[error("the server does not answer in {LETTING_GO:?}")]
    Silent,
    #[error("the process that looks after this one does not end")]
    Guard,
    #[error(transparent)]
    Encoding(#[from] HandOverError),
    #[error("no descriptor for the device: {0}")]
    Device(std::io::Error),
    #[error("it is not mounted any more")]
    Ended,
}

/// A mount whose requests nobody reads, and whose client has let its session go. Dropped, both go on.
#[derive(Debug)]
pub struct Leaving<'a> {
    mount: &'a Mount,
    since: Instant,
    state: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Mount {
    /// Prepares for another process to serve the mount. Programs that use it wait from some point in this until the
    /// [`Leaving`] is dropped, or the other process serves.
    ///
    /// # Errors
    /// [`StayError`]: it is served as before.
    pub async fn leave(&self) -> Result<Leaving<'_>, StayError> {
        let serving = self.serving.as_ref().filter(|serving| !serving.has_ended()).ok_or(StayError::Ended)?;
        let client = &self.fs.inner().client;
        let told = tokio::time::timeout(TELLING, async {
            client.cache_is_open().await;
            client.tell_all().await
        });
        let told = told.await;
        told.map_err(|_| StayError::Slow)?.map_err(StayError::Untold)?;
        let mut leaving = self.come_to_rest(serving).await?;
        let fs = self.fs.inner();
        let let_go = tokio::time::timeout(LETTING_GO, fs.client.let_go()).await;
        let (client, locks) = let_go.map_err(|_| StayError::Silent)?.map_err(StayError::Untold)?;
        let queues = serving.hand_over_queues()?;
        let of_device: Result<Vec<_>, _> =
            serving.descriptors().map(|descriptor| fcntl_dupfd_cloexec(descriptor, 3)).collect();
        let of_device = of_device.map_err(|error| StayError::Device(error.into()))?;
        let handed = Handed::new(self.agreement, of_device.len(), client, fs.hand_over().await, queues);
        leaving.state = handed.encode()?;
        leaving.descriptors = of_device.into_iter().chain(locks).collect();
        tracing::info!(took = ?leaving.since.elapsed(), bytes = leaving.state.len(), "ready to be taken over");
        Ok(leaving)
    }

    async fn come_to_rest(&self, serving: &Serving) -> Result<Leaving<'_>, StayError> {
        let mut result = Err(StayError::UnderWay(0));
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(AGAIN).await;
            }
            result = self.try_to_rest(serving).await;
            match &result {
                Ok(_) => break,
                Err(error) => tracing::debug!(%error, attempt, "not at rest"),
            }
        }
        result
    }

    async fn try_to_rest(&self, serving: &Serving) -> Result<Leaving<'_>, StayError> {
        if self.transport == Transport::Uring {
            // Whatever is used of the mount, the kernel is to know a file.
            let look_up = |name: &str| visitor::look_up(self.visitor, &self.dir, name);
            tokio::task::block_in_place(|| serving.show_decoy(look_up));
        }
        let leaving =
            Leaving { mount: self, since: Instant::now(), state: Vec::new(), descriptors: Vec::new() };
        serving.begin_pause();
        let mut wakers = Wakers { dir: self.dir.clone(), visitor: self.visitor, running: Vec::new() };
        let deadline = Instant::now() + PAUSE;
        loop {
            let reading = tokio::task::block_in_place(|| serving.reading(LOOK));
            if reading == 0 {
                break;
            }
            if Instant::now() > deadline {
                return Err(StayError::Restless(reading));
            }
            // Other threads are called, see the page of `wire/pause.rs`.
            if self.transport == Transport::Dev {
                wakers.keep(reading);
            }
        }
        let fs = self.fs.inner();
        fs.give_up_waits();
        let deadline = Instant::now() + SETTLE;
        while fs.tasks.len() > 0 {
            if Instant::now() > deadline {
                return Err(StayError::UnderWay(fs.tasks.len()));
            }
            tokio::time::sleep(LOOK).await;
        }
        tokio::task::block_in_place(|| serving.empty_queues(EMPTY))?;
        match serving.has_ended() {
            true => Err(StayError::Ended),
            false => Ok(leaving),
        }
    }
}

impl Leaving<'_> {
    /// For [`Heir::read`](super::Heir::read), with [`Leaving::descriptors`].
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.descriptors
    }

    /// The other process is about to be told that the mount is its own: afterwards the end of this one is not the mount's.
    ///
    /// # Errors
    /// The guard does not end; something was answered since the state was written down.
    pub fn end_guard(&self) -> Result<(), StayError> {
        if let Some(serving) = &self.mount.serving {
            serving.check_queues()?;
        }
        match tokio::task::block_in_place(|| self.mount.guarded.end(GUARD)) {
            true => Ok(()),
            false => Err(StayError::Guard),
        }
    }

    /// How long programs have been waiting.
    pub fn waiting_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// The mount is the other process's. Nothing that this one still holds of it is to be cleaned up: it has to end now.
    pub fn gone(self) {
        std::mem::forget(self);
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Leaving { mount, .. } = self;
        mount.guarded.start();
        mount.fs.inner().client.go_on();
        mount.fs.inner().take_up_waits();
        if let Some(serving) = &mount.serving {
            serving.end_pause();
        }
    }
}

/// Those who ask for the mount's free space, each of which is a request that wakes a thread.
#[derive(Debug)]
struct Wakers {
    dir: PathBuf,
    visitor: Program,
    running: Vec<Visitor>,
}

impl Wakers {
    /// As many as there are threads to be woken.
    fn keep(&mut self, wanted: usize) {
        self.running.retain_mut(|waker| !waker.has_ended());
        for _ in self.running.len()..wanted {
            match Visitor::ask_for_space(self.visitor, &self.dir) {
                Ok(waker) => self.running.push(waker),
                Err(error) => return tracing::warn!(%error, "nobody can be sent to wake a thread"),
            }
        }
    }
}
