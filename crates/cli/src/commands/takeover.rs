//! `soda mount --takeover`: another process, of a newer version of the program, say, serves a mount that is there.

use crate::args::{LogArgs, MountArgs};
use crate::commands::mount::{self, Mounted, Plan};
use crate::commands::{EndRequests, runtime, this_program};
use crate::control::{self, Question};
use crate::error::CliError;
use crate::progress::Waiting;
use crate::takeover::{Claim, Daemon};
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
    uses_nothing_of(&entry)?;
    if arguments.foreground {
        return runtime()?.block_on(take_over(&running.socket, &entry, arguments.daemon));
    }
    let mut command = this_program()?;
    // The daemon must not stand in its own mount.
    command.arg("mount").arg("--takeover").arg(&entry.dir).current_dir("/");
    let waiting = || Waiting::new(format!("the daemon {} to hand over", running.status.pid));
    mount::await_daemon(command, log, &entry.dir, waiting(), waiting)
}

async fn take_over(socket: &Path, entry: &MountEntry, is_daemon: bool) -> Result<(), CliError> {
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
    mount::attend(mounted, plan, is_daemon, requests).await
}

async fn inherit(socket: &Path, entry: &MountEntry) -> Result<(Mounted, Plan), CliError> {
    let silent = || CliError::Silent(entry.dir.clone());
    let stream = control::asked(socket, &Question::TakeOver(Claim::own()), None).ok_or_else(silent)?;
    let mut daemon = Daemon::new(stream).map_err(CliError::io("the control socket"))?;
    let (estate, state, descriptors) = tokio::task::block_in_place(|| daemon.estate())?;
    let prepared = async {
        let plan = estate.plan().map_err(CliError::Failed)?;
        let heir = Heir::read(&state, descriptors).map_err(|error| CliError::Failed(error.to_string()))?;
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
    let (client, mount) = heir.begin(&plan.dir, &mount::mount_config(&plan)).await?;
    Ok((Mounted { client, mount }, plan))
}

/// A process that serves a mount and uses it would wait for itself: what its parent has left open, or its own program.
fn uses_nothing_of(entry: &MountEntry) -> Result<(), CliError> {
    let all = soda_fuse::list_mounts().map_err(CliError::io("/proc/self/mountinfo"))?;
    let shown: Vec<PathBuf> =
        all.into_iter().filter(|other| other.device == entry.device).map(|other| other.dir).collect();
    let is_inside = |path: &Path| shown.iter().any(|dir| path.starts_with(dir));
    let used = |path: PathBuf, what: &str| match is_inside(&path) {
        true => Err(CliError::Failed(format!(
            "{what} is {} in the mount itself, and the process that serves it must not use it",
            path.display()
        ))),
        false => Ok(()),
    };
    if let Ok(program) = std::fs::read_link("/proc/self/exe") {
        used(program, "this program")?;
    }
    for entry in std::fs::read_dir("/proc/self/fd").map_err(CliError::io("/proc/self/fd"))? {
        let Ok(entry) = entry else { continue };
        let number = entry.file_name().to_string_lossy().into_owned();
        // The first three are the daemon's own.
        let is_inherited = number.parse::<u32>().is_ok_and(|number| number > 2);
        if let Some(path) = std::fs::read_link(entry.path()).ok().filter(|_| is_inherited) {
            used(path, &format!("open descriptor {number}"))?;
        }
    }
    Ok(())
}
