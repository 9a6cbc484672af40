//! The process that served a mount lets it go: see [`super::handover`].

use super::Mount;
use super::handover::{HandOverError, Handed};
use crate::wire::connection::Transport;
use crate::wire::{NotEmptied, Serving};
use rustix::io::fcntl_dupfd_cloexec;
use soda_types::FsError;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
/// How long it may take to look a name up before.
const DECOY: Duration = Duration::from_secs(1);

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
            self.show_decoy(serving).await;
        }
        let leaving =
            Leaving { mount: self, since: Instant::now(), state: Vec::new(), descriptors: Vec::new() };
        serving.begin_pause();
        let mut wakers = Wakers { dir: self.dir.clone(), running: Vec::new() };
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

    /// Has the kernel know a file, whatever is used of the mount.
    async fn show_decoy(&self, serving: &Serving) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!(".soda-takeover-{}-{now}", std::process::id());
        serving.put_out_decoy(&name);
        match looking_up(&self.dir, &name) {
            Ok(mut looking) => {
                let deadline = Instant::now() + DECOY;
                while !looking.has_ended() && Instant::now() < deadline {
                    tokio::time::sleep(LOOK).await;
                }
            }
            Err(error) => tracing::warn!(%error, "cannot start `stat`"),
        }
        serving.take_in_decoy();
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

/// Processes that ask for the mount's free space, each of which is a request that wakes a thread. Processes, for a thread of
/// this one that waits for an answer of its own could not be killed.
#[derive(Debug)]
struct Wakers {
    dir: PathBuf,
    running: Vec<Passing>,
}

impl Wakers {
    /// As many as there are threads to be woken.
    fn keep(&mut self, wanted: usize) {
        self.running.retain_mut(|waker| !waker.has_ended());
        for _ in self.running.len()..wanted {
            match ask_for_space(&self.dir) {
                Ok(waker) => self.running.push(Passing(Some(waker))),
                Err(error) => return tracing::warn!(%error, "cannot start `stat`"),
            }
        }
    }
}

/// A process that asks for something of the mount, and is killed when nobody wants that any more.
#[derive(Debug)]
struct Passing(Option<Child>);

impl Passing {
    fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            // It may wait for an answer that comes from the next process.
            std::thread::spawn(move || child.wait());
        }
    }
}

/// Another process looks up a name on the mount; not waited for longer than [`DECOY`].
pub(super) fn look_up(dir: &Path, name: &str) {
    match looking_up(dir, name) {
        Ok(mut looking) => {
            let deadline = Instant::now() + DECOY;
            while !looking.has_ended() && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
        }
        Err(error) => tracing::warn!(%error, "cannot start `stat`"),
    }
}

fn looking_up(dir: &Path, name: &str) -> std::io::Result<Passing> {
    let looking = quiet("stat").args(["--format=%s", "--"]).arg(dir.join(name)).spawn()?;
    Ok(Passing(Some(looking)))
}

fn ask_for_space(dir: &Path) -> std::io::Result<Child> {
    quiet("stat").args(["--file-system", "--"]).arg(dir).spawn()
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
