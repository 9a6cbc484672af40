//! The process that goes on with a mount which another one has served: see [`super::handover`].

use super::guard::Guarded;
use super::handover::{HandOverError, Handed};
use super::visitor::Program;
use super::{Hooks, Mount, MountConfig};
use crate::fs::HandedFiles;
use crate::notify;
use crate::wire::connection::Inherited;
use crate::wire::device::Device;
use crate::wire::{Readers, Spare};
use soda_client::handover::{HandedLocks, Successor};
use soda_client::pool::Pool;
use soda_client::{Client, ClientConfig, ConnectError};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio::runtime::Handle;

/// What another process has handed over, as [`Leaving`](super::Leaving) made it.
#[derive(Debug)]
pub struct Heir {
    handed: Handed,
    locks: HandedLocks,
    crew: Crew,
}

/// An heir that is connected to the server, and could begin. Dropped, it leaves mount and session alone.
#[derive(Debug)]
pub struct ReadyHeir {
    files: HandedFiles,
    successor: Successor,
    hooks: Hooks,
    crew: Crew,
}

/// Who serves the mount. To be there before the other process ends: nobody else would.
#[derive(Debug)]
struct Crew {
    connection: Inherited,
    forgets: Spare,
    notifying: Pool,
    guard: Option<fn() -> Command>,
    visitor: Program,
}

impl Crew {
    /// `clones`: further descriptors of `device`.
    fn start(
        device: OwnedFd,
        clones: Vec<OwnedFd>,
        handed: &Handed,
        config: &MountConfig,
    ) -> Result<Crew, HandOverError> {
        let readers = Readers { threads: config.threads, cores: config.cores };
        let (device, queues) = (Device::new(device), handed.queues.as_ref());
        let connection = Inherited::prepare(&device, clones, handed.agreement, readers, queues)?;
        let forgets = Spare::start("fuse-forget").map_err(HandOverError::Threads)?;
        let notifying = notify::threads().map_err(HandOverError::Threads)?;
        Ok(Crew { connection, forgets, notifying, guard: config.guard, visitor: config.visitor })
    }
}

impl Heir {
    /// Understands what was handed over, and starts the threads that are going to serve it.
    ///
    /// # Errors
    /// [`HandOverError`].
    pub fn read(
        state: &[u8],
        descriptors: Vec<OwnedFd>,
        config: &MountConfig,
    ) -> Result<Heir, HandOverError> {
        let handed = Handed::decode(state)?;
        let expected = handed.of_device.saturating_add(handed.client.descriptors());
        let found = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        match descriptors.next() {
            Some(device) if expected == found => {
                let clones = descriptors.by_ref().take(handed.of_device - 1).collect();
                let crew = Crew::start(device, clones, &handed, config)?;
                Ok(Heir { handed, locks: descriptors.collect(), crew })
            }
            _ => Err(HandOverError::Descriptors { expected, found }),
        }
    }

    /// Connects to the server, under the session that was handed over. To be called in a tokio runtime.
    ///
    /// # Errors
    /// As [`Successor::connect`].
    pub async fn connect(self, config: ClientConfig) -> Result<ReadyHeir, ConnectError> {
        let Heir { handed: Handed { client, files, .. }, locks, crew } = self;
        let hooks = Hooks::new();
        let successor = Successor::connect(config, Box::new(hooks.clone()), client, locks).await?;
        Ok(ReadyHeir { files, successor, hooks, crew })
    }
}

impl ReadyHeir {
    /// The mount on `dir` is this process's from now on.
    pub async fn begin(self, dir: &Path) -> (Arc<Client>, Mount) {
        let ReadyHeir { files, successor, hooks, crew } = self;
        let Crew { connection, forgets, notifying, guard, visitor } = crew;
        let client = successor.begin().await;
        let (device, agreement) = (connection.device().clone(), connection.agreement());
        let (kernel, answers) = ((&device, agreement), connection.answers());
        let fs = super::file_system(client.clone(), &hooks, kernel, answers, notifying, dir);
        let kept = fs.inner().take_over(files);
        let (inner, runtime) = (fs.inner().clone(), Handle::current());
        let guarded = Arc::new(Guarded::new(fs.clone(), &device, dir, (guard, visitor)));
        let served = connection.serve(guarded.clone(), &runtime);
        let mount = Mount::served(fs, agreement, (dir.to_path_buf(), visitor), guarded, served);
        inner.take_up_waits();
        let (notifier, forgotten) = (inner.notifier.clone(), client.clone());
        forgets.run(move || {
            let _context = runtime.enter();
            notifier.everything_from_before(&forgotten, &kept);
        });
        (client, mount)
    }
}
