//! `soda sync`: everything that mounts of this machine have done is on their servers' disks.

use crate::args::SyncArgs;
use crate::backlog::{self, Outcome, Synced, Until};
use crate::commands::{print, print_json};
use crate::control::{self, Daemon};
use crate::error::CliError;
use crate::units::{count, show_size};
use crate::within::in_mount;
use soda_fuse::MountEntry;
use std::path::Path;

pub(crate) fn run(arguments: &SyncArgs) -> Result<(), CliError> {
    let (daemons, stopped) = match &arguments.path {
        Some(path) => (vec![daemon_of(path)?], Vec::new()),
        None => all()?,
    };
    let mut synced = backlog::sync(daemons, Until::Durable);
    synced.extend(stopped.into_iter().map(Synced::no_answer));
    match arguments.json {
        true => print_json(&synced)?,
        false => print(&text(&synced))?,
    }
    synced.into_iter().try_for_each(Synced::into_result)
}

/// Those of this user that answer, and the mounts of those that are there and do not. Others can only be named: for whoever is
/// not their owner that is no failure.
fn all() -> Result<(Vec<Daemon>, Vec<MountEntry>), CliError> {
    let daemons = control::daemons();
    let silent = control::silent(daemons.iter().map(|daemon| &daemon.status))?;
    let (stopped, others) = silent.into_iter().partition::<Vec<_>, _>(control::has_socket);
    for mount in others {
        eprintln!("soda: {} is not synced: its daemon is dead, or another user's", mount.dir.display());
    }
    Ok((daemons, stopped))
}

/// Nothing in the mount is touched: its server may be gone.
fn daemon_of(path: &Path) -> Result<Daemon, CliError> {
    let mounts = control::table()?;
    let (mount, _) = in_mount(path, &mounts)?.ok_or_else(|| CliError::NotMounted(path.to_path_buf()))?;
    control::daemon_of(mount).ok_or_else(|| {
        CliError::Failed(format!(
            "the daemon of {} does not answer: it is dead, stopped, or another user's",
            mount.dir.display()
        ))
    })
}

fn text(synced: &[Synced]) -> String {
    if synced.is_empty() {
        return "No mounts here.\n".into();
    }
    let done = synced.iter().filter(|mount| mount.outcome == Outcome::Synced);
    done.map(|mount| {
        let waited = match mount.began.records + mount.began.not_durable {
            0 => String::new(),
            changes => {
                format!(" ({} waited, {})", count(changes, "change"), show_size(mount.began.bytes))
            }
        };
        format!("{}: everything is on the server's disk{waited}\n", mount.dir.display())
    })
    .collect()
}
