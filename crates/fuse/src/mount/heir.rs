//! The process that goes on with a mount which another one has served: see [`super::handover`].

use super::handover::{HandOverError, Handed};
use super::{Hooks, Mount, MountConfig, MountError};
use crate::fs::HandedFiles;
use crate::wire::Agreement;
use crate::wire::connection::Connection;
use crate::wire::device::Device;
use soda_client::handover::{HandedLocks, Successor};
use soda_client::{Client, ClientConfig, ConnectError};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// What another process has handed over, as [`Leaving`](super::Leaving) made it.
#[derive(Debug)]
pub struct Heir {
    handed: Handed,
    device: OwnedFd,
    locks: HandedLocks,
}

/// An heir that is connected to the server, and could begin. Dropped, it leaves mount and session alone.
#[derive(Debug)]
pub struct ReadyHeir {
    agreement: Agreement,
    files: HandedFiles,
    device: OwnedFd,
    successor: Successor,
    hooks: Hooks,
}

impl Heir {
    /// # Errors
    /// [`HandOverError`].
    pub fn read(state: &[u8], descriptors: Vec<OwnedFd>) -> Result<Heir, HandOverError> {
        let handed = Handed::decode(state)?;
        let (expected, found) = (1 + handed.client.descriptors(), descriptors.len());
        let mut descriptors = descriptors.into_iter();
        match descriptors.next() {
            Some(device) if expected == found => Ok(Heir { handed, device, locks: descriptors.collect() }),
            _ => Err(HandOverError::Descriptors { expected, found }),
        }
    }

    /// Connects to the server, under the session that was handed over. To be called in a tokio runtime.
    ///
    /// # Errors
    /// As [`Successor::connect`].
    pub async fn connect(self, config: ClientConfig) -> Result<ReadyHeir, ConnectError> {
        let Heir { handed: Handed { agreement, client, files, .. }, device, locks } = self;
        let hooks = Hooks::new();
        let successor = Successor::connect(config, Box::new(hooks.clone()), client, locks).await?;
        Ok(ReadyHeir { agreement, files, device, successor, hooks })
    }
}

impl ReadyHeir {
    /// The mount on `dir` is this process's from now on.
    ///
    /// # Errors
    /// [`MountError::Threads`]: nobody serves the mount any more.
    pub async fn begin(self, dir: &Path, config: &MountConfig) -> Result<(Arc<Client>, Mount), MountError> {
        let ReadyHeir { agreement, files, device, successor, hooks } = self;
        let client = successor.begin().await;
        let device = Device::new(device);
        let connection = Connection::go_on(&device, agreement);
        let fs = super::file_system(client.clone(), &hooks, &device, &connection, dir);
        fs.inner().take_over(files);
        let mount = Mount::serve(fs, device, connection, dir.to_path_buf(), config)?;
        mount.fs.inner().take_up_waits();
        let (notifier, forgotten) = (mount.fs.inner().notifier.clone(), client.clone());
        let runtime = tokio::runtime::Handle::current();
        let forget = move || {
            let _context = runtime.enter();
            let names = forgotten.clone();
            notifier.everything_from_before(move || names.kernel_has_no_names());
            forgotten.kernel_has_forgotten();
        };
        std::thread::Builder::new().name("fuse-forget".into()).spawn(forget).map_err(MountError::Threads)?;
        Ok((client, mount))
    }
}
