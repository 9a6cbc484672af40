//! `soda mount --takeover`: another process, of a newer version of the program, say, serves a mount that is there.

use crate::answer::MountStatus;
use crate::args::{LogArgs, MountArgs};
use crate::commands::mount::{self, Mounted};
use crate::commands::{EndRequests, runtime, this_program};
use crate::control::{self, ControlSocket, Question};
use crate::error::CliError;
use crate::log::LogView;
use crate::options::MountOptions;
use crate::plan::Plan;
use crate::progress::Waiting;
use crate::takeover::{Claim, Daemon};
use rustix::fs::{major, minor};
use soda_fuse::{Heir, MountEntry};
use std::path::{Path, PathBuf};

pub(crate) fn run(dir: &Path, arguments: &MountArgs, log: &LogArgs) -> Result<(), CliError> {
    let entry = soda_fuse::find_mount(dir).map_err(CliError::io(dir.display().to_string()))?;
    let entry = entry.ok_or_else(|| CliError::NotMounted(dir.to_path_buf()))?;
    let running = control::daemon_of(&entry).ok_or_else(|| CliError::Silent(entry.dir.clone()))?;
    if !running.status.made(&entry) {
        let (bind, dir) = (entry.dir.display(), running.status.dir.display());
        return Err(CliError::Failed(format!("{bind} is a bind mount of {dir}: take that one over")));
    }
    if arguments.foreground {
        uses_nothing_of(&entry, &running.status, arguments, log)?;
        let log = LogView::of(log);
        return runtime()?.block_on(take_over(&running.socket, &entry, log, arguments.daemon));
    }
    let log = &running.status.log.clone().map_or_else(|| log.clone(), |view| view.kept(log));
    uses_nothing_of(&entry, &running.status, arguments, log)?;
    let mut command = this_program()?;
    // The daemon must not stand in its own mount.
    command.arg("mount").arg("--takeover").arg(&entry.dir).current_dir("/");
    let waiting = || Waiting::new(format!("the daemon {} to hand over", running.status.pid));
    mount::await_daemon(command, log, &entry.dir, waiting(), waiting)
}

async fn take_over(
    socket: &Path,
    entry: &MountEntry,
    log: Option<LogView>,
    is_daemon: bool,
) -> Result<(), CliError> {
    if is_daemon {
        // Fails for the leader of a process group, which a daemon is not.
        let _ = rustix::process::setsid();
    }
    let _ = rustix::process::chdir("/");
    // From the moment on in which the mount is this process's.
    let requests = EndRequests::listen()?;
    let (mounted, plan) = match inherit(socket, entry).await {
        Ok(inherited) => inherited,
        Err(error) => {
            if is_daemon {
                println!("{} {error}", error.code());
            }
            return Err(error);
        }
    };
    mount::attend(mounted, plan, log, is_daemon, requests).await
}

async fn inherit(socket: &Path, entry: &MountEntry) -> Result<(Mounted, Plan), CliError> {
    // What can fail comes first: when the daemon has gone nobody else would serve the mount.
    let control = ControlSocket::bind(Some(entry.device))?;
    let silent = || CliError::Silent(entry.dir.clone());
    let stream = control::asked(socket, &Question::TakeOver(Claim::own()), None).ok_or_else(silent)?;
    let mut daemon = Daemon::new(stream).map_err(CliError::io("the control socket"))?;
    let (estate, state, descriptors) = tokio::task::block_in_place(|| daemon.estate())?;
    let prepared = async {
        let plan = estate.plan().map_err(CliError::Failed)?;
        let heir = Heir::read(&state, descriptors, &mount::mount_config(&plan));
        let heir = heir.map_err(|error| CliError::Failed(error.to_string()))?;
        let heir = heir.connect(mount::client_config(&plan)).await?;
        Ok::<_, CliError>((plan, heir))
    };
    let (plan, heir) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => {
            daemon.refuse(&error);
            return Err(error);
        }
    };
    tokio::task::block_in_place(|| daemon.ready())?;
    let (client, mount) = heir.begin(&plan.dir).await;
    Ok((Mounted { client, mount, control }, plan))
}

/// A process that serves a mount and uses it would wait for itself: what its parent has left open, its own program, where it
/// writes its log, the mount's cache directory.
fn uses_nothing_of(
    entry: &MountEntry,
    running: &MountStatus,
    arguments: &MountArgs,
    log: &LogArgs,
) -> Result<(), CliError> {
    let refused = |what: &str, path: &Path| {
        Err(CliError::Failed(format!(
            "{what} is {} in the mount itself, and the process that serves it must not use it",
            path.display()
        )))
    };
    // First: it is open by now, and among descriptors it has no name.
    let log = match &log.file {
        Some(path) => Some(path.clone()),
        None if arguments.foreground => None,
        None => Some(control::log_path(&entry.dir)?),
    };
    if let Some(path) = log.filter(|path| leads_into(path, entry)) {
        return refused("the log file", &path);
    }
    let mut options = MountOptions::default();
    // One that is not understood the daemon is told of when it hands over.
    if options.add(&running.options).is_ok()
        && let Some(dir) = options.cache_dir.filter(|dir| leads_into(dir, entry))
    {
        return refused("the cache directory", &dir);
    }
    let all = soda_fuse::list_mounts().map_err(CliError::io("/proc/self/mountinfo"))?;
    let shown: Vec<PathBuf> =
        all.into_iter().filter(|other| other.device == entry.device).map(|other| other.dir).collect();
    let is_inside = |path: &Path| shown.iter().any(|dir| path.starts_with(dir));
    if let Ok(program) = std::fs::read_link("/proc/self/exe")
        && is_inside(&program)
    {
        return refused("this program", &program);
    }
    // A daemon has others in the place of the first three.
    let first_inherited = if arguments.foreground && !arguments.daemon { 0 } else { 3 };
    for entry in std::fs::read_dir("/proc/self/fd").map_err(CliError::io("/proc/self/fd"))? {
        let Ok(entry) = entry else { continue };
        let number = entry.file_name().to_string_lossy().into_owned();
        let is_inherited = number.parse::<u32>().is_ok_and(|number| number >= first_inherited);
        if let Some(path) = std::fs::read_link(entry.path()).ok().filter(|_| is_inherited)
            && is_inside(&path)
        {
            return refused(&format!("open descriptor {number}"), &path);
        }
    }
    Ok(())
}

/// Whether a file is the mount's, by whatever path; of one that is not there, the directory that it would be in.
fn leads_into(path: &Path, entry: &MountEntry) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let there = path.ancestors().find_map(|path| rustix::fs::stat(path).ok());
    let device_of = |there: rustix::fs::Stat| (major(there.st_dev), minor(there.st_dev));
    there.map(device_of) == Some(entry.device)
}
