//! A mounted volume: from mount(2) to umount(2).

mod guard;
mod handover;
mod heir;
mod kernel;
mod leave;
mod table;
mod visitor;

pub use guard::guard;
pub use handover::{HANDOVER_FORMAT, HandOverError};
pub use heir::{Heir, ReadyHeir};
pub use kernel::{MountAccess, MountFlags, remount};
pub use leave::{Leaving, StayError};
pub use table::{MountEntry, abort_connection, find_mount, list_mounts, unescape};
pub use visitor::visit;

use crate::fs::FileSystem;
use crate::nodes::Nodes;
use crate::notify::{self, Hooks, Notifier};
use crate::wire::connection::{ConnectError, Connection, Transport, TransportChoice};
use crate::wire::device::Device;
use crate::wire::{Agreement, Cores, QueueMemory, Readers, RequestTimeout, Serving, Sink};
use guard::Guarded;
use serde::Serialize;
use soda_client::Client;
use soda_client::pool::Pool;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use visitor::Program;

/// Type of the mount in /proc/self/mountinfo.
pub const FILE_SYSTEM_TYPE: &str = "fuse.soda";
/// Read-ahead of the kernel: one request of the largest size after the other. The mount itself caps it at 128 KiB.
const READ_AHEAD_KIB: u32 = 1024;

#[derive(Clone, Debug)]
pub struct MountConfig {
    /// Shown as the device in the table of mounts.
    pub source: String,
    pub flags: MountFlags,
    /// Threads that take requests from the device.
    pub threads: usize,
    /// Where these run. With [`Cores::Follow`] the threads of the runtime must begin with `soda_client::threads::started`.
    pub cores: Cores,
    pub transport: TransportChoice,
    /// How to start a process that calls [`guard()`] and does nothing else; it must be a child of this one. It sees to it that
    /// those who wait for the mount get an error if this process is killed, even where Linux keeps a thread of it alive.
    /// Without one (`None`) they may have to wait until somebody aborts the connection.
    pub guard: Option<fn() -> Command>,
    /// How to start a process that calls [`visit`] with the arguments that are added, and does nothing else. It asks for
    /// something of the mount, as a take-over needs. Without one (`None`) the mount cannot be handed over, and over io_uring
    /// more who wait on a core than its queue has room for may have to wait for the first of them.
    pub visitor: Option<fn() -> Command>,
}

impl MountConfig {
    pub fn new(source: impl Into<String>) -> MountConfig {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        MountConfig {
            source: source.into(),
            flags: MountFlags::default(),
            threads: cores.clamp(2, 8) + 1,
            cores: Cores::default(),
            transport: TransportChoice::default(),
            guard: None,
            visitor: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{path} is not a directory that can be mounted on: {cause}")]
    MountPoint { path: PathBuf, cause: io::Error },
    #[error("cannot open /dev/fuse: {0}. {hint}", hint = device_hint(.0))]
    NoDevice(io::Error),
    #[error("cannot mount on {path}: {cause}")]
    Mount { path: PathBuf, cause: io::Error },
    #[error("cannot mount through fusermount3, as who is not root must: {0}")]
    Helper(String),
    #[error("the kernel and this program do not agree on FUSE's protocol: {0}")]
    Negotiation(io::Error),
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    #[error("transport=uring is not possible: {0}. transport=auto does without.")]
    NoUring(String),
}

fn device_hint(error: &io::Error) -> &'static str {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::ACCESS) => {
            "Its mode keeps this user from it: `chmod a+rw /dev/fuse` as root, as udev does"
        }
        // A container's list of devices.
        Some(rustix::io::Errno::PERM) => "This container has to be given the device",
        _ => "Load the kernel's module with `modprobe fuse`; in a container, pass the device in",
    }
}

impl MountError {
    fn of(error: ConnectError, otherwise: fn(io::Error) -> MountError) -> MountError {
        match error {
            ConnectError::NoUring(why) => MountError::NoUring(why),
            ConnectError::Negotiation(error) => otherwise(error),
        }
    }
}

/// A mount that is served until it is unmounted. Dropping it detaches the mount.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    visitor: Program,
    fs: FileSystem,
    serving: Option<Serving>,
    transport: Transport,
    agreement: Agreement,
    guarded: Arc<Guarded>,
}

impl Mount {
    /// Mounts on `dir`. The mount can be used when this returns. `hooks` must be the ones that `client` was connected
    /// with. To be called in a tokio runtime.
    ///
    /// # Errors
    /// [`MountError`]; nothing stays mounted.
    pub fn start(
        client: Arc<Client>,
        hooks: &Hooks,
        dir: &Path,
        config: &MountConfig,
    ) -> Result<Mount, MountError> {
        let dir = kernel::check_mount_point(dir)?;
        let fd = kernel::mount(&config.source, &dir, &config.flags)?;
        let undo = DetachOnDrop(Some(dir.clone()));
        let notifying = notify::threads().map_err(MountError::Threads)?;
        let device = Device::new(fd);
        // Threads follow over the device only.
        let transport = match (config.transport, config.cores) {
            (TransportChoice::Auto, Cores::Follow) => TransportChoice::Only(Transport::Dev),
            (transport, _) => transport,
        };
        let readers = Readers { threads: config.threads, cores: config.cores };
        let connection = Connection::negotiate(&device, transport, readers)
            .map_err(|error| MountError::of(error, MountError::Negotiation))?;
        let agreement = connection.agreement();
        tracing::debug!(?agreement, "agreed with the kernel");
        if let Some(timeout) = RequestTimeout::of_this_machine() {
            tracing::warn!("{timeout}; {}", timeout.advice());
        }
        let fs = file_system(client, hooks, (&device, agreement), connection.answers(), notifying, &dir);
        let guarded = Arc::new(Guarded::new(fs.clone(), &device, &dir, (config.guard, config.visitor)));
        let served = connection.serve(guarded.clone(), &Handle::current());
        let (serving, transport) = served.map_err(|error| MountError::of(error, MountError::Threads))?;
        let placed = (dir.clone(), config.visitor);
        let mount = Mount::served(fs, agreement, placed, guarded, (serving, transport));
        if let Err(error) = table::set_read_ahead(&dir, READ_AHEAD_KIB) {
            tracing::info!(%error, "read-ahead stays at the kernel's default");
        }
        undo.keep();
        Ok(mount)
    }

    /// Requests are read.
    fn served(
        fs: FileSystem,
        agreement: Agreement,
        (dir, visitor): (PathBuf, Program),
        guarded: Arc<Guarded>,
        (serving, transport): (Serving, Transport),
    ) -> Mount {
        serving.hurry().into_iter().for_each(|hurry| fs.inner().notifier.attach(hurry));
        let (readers, descriptors) = (serving.readers(), serving.descriptors().count());
        tracing::info!(%transport, readers, descriptors, "the mount answers the kernel");
        if transport == Transport::Uring {
            fs.inner().tasks.start_looking_around();
        }
        Mount { dir, visitor, fs, serving: Some(serving), transport, agreement, guarded }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Resolves when the mount is gone, by [`Mount::detach`] or from outside.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let ended = self.serving.as_ref().map(Serving::ended);
        async move {
            if let Some(ended) = ended {
                ended.await;
            }
        }
    }

    /// A handle for counters that outlives the mount.
    pub fn monitor(&self) -> Monitor {
        let serving = self.serving.as_ref();
        Monitor {
            fs: self.fs.clone(),
            readers: serving.map_or(0, Serving::readers),
            descriptors: serving.map_or(0, |serving| serving.descriptors().count()),
            queues: serving.and_then(Serving::queue_memory),
        }
    }

    /// Takes the mount out of the tree of names. Who still uses it may go on; [`Mount::ended`] resolves when nobody does.
    ///
    /// # Errors
    /// umount(2)'s.
    pub fn detach(&self) -> io::Result<()> {
        kernel::detach(&self.dir)
    }

    /// Waits for the threads after [`Mount::ended`].
    pub fn join(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.join();
        }
        self.fs.inner().clear();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            // Once it is gone, what is mounted there is somebody else's.
            if !serving.has_ended() {
                let _ = kernel::detach(&self.dir);
            }
            self.fs.inner().clear();
        }
    }
}

fn file_system(
    client: Arc<Client>,
    hooks: &Hooks,
    (device, agreement): (&Arc<Device>, Agreement),
    answers: Arc<dyn Sink>,
    notifying: Pool,
    dir: &Path,
) -> FileSystem {
    let nodes = Arc::new(Nodes::new(client.root()));
    let notifier = Arc::new(Notifier::new(device.clone(), agreement, nodes.clone(), notifying));
    hooks.attach(notifier.clone());
    FileSystem::new(client, nodes, notifier, agreement, answers, Handle::current(), dir.to_path_buf())
}

/// Removes a mount that could not be put to use.
struct DetachOnDrop(Option<PathBuf>);

impl DetachOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            let _ = kernel::detach(dir);
        }
    }
}

/// What a mount does, for tools.
#[derive(Clone, Debug)]
pub struct Monitor {
    fs: FileSystem,
    readers: usize,
    descriptors: usize,
    queues: Option<QueueMemory>,
}

/// Counters of a mount's kernel side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MountStats {
    /// Threads that read /dev/fuse.
    pub readers: usize,
    /// Descriptors of /dev/fuse.
    pub descriptors: usize,
    /// Requests of the kernel since the start.
    pub requests: u64,
    /// Requests that wait for something now.
    pub waiting: usize,
    /// Inodes that the kernel holds.
    pub inodes: usize,
    pub open_files: usize,
    pub open_directories: usize,
    /// Notifications to the kernel since the start.
    pub dropped_attributes: u64,
    pub dropped_data: u64,
    pub dropped_names: u64,
    /// All names of the mount made void at once.
    pub dropped_all_names: u64,
    /// A directory was locked when its names were to be dropped.
    pub lock_waits: u64,
    /// Over io_uring: so many requests there is room for now.
    pub entries: Option<usize>,
    /// Memory that they have, at most, bytes.
    pub entry_bytes: Option<usize>,
}

impl Monitor {
    pub fn stats(&self) -> MountStats {
        let fs = self.fs.inner();
        let of_queues = |count: fn(&QueueMemory) -> usize| self.queues.as_ref().map(count);
        let notified = fs.notifier.counters();
        MountStats {
            readers: self.readers,
            descriptors: self.descriptors,
            requests: fs.requests.load(Ordering::Relaxed),
            waiting: fs.tasks.len(),
            inodes: fs.nodes.len(),
            open_files: fs.files.len(),
            open_directories: fs.dirs.len(),
            dropped_attributes: notified.attributes.load(Ordering::Relaxed),
            dropped_data: notified.data.load(Ordering::Relaxed),
            dropped_names: notified.names.load(Ordering::Relaxed),
            dropped_all_names: notified.epochs.load(Ordering::Relaxed),
            lock_waits: notified.lock_waits.load(Ordering::Relaxed),
            entries: of_queues(QueueMemory::entries),
            entry_bytes: of_queues(QueueMemory::bytes),
        }
    }
}
