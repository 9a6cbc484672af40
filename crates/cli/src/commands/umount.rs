//! `soda umount`: also with the server gone, or the daemon.

use crate::args::UmountArgs;
use crate::control::{self, MountStatus};
use crate::error::CliError;
use crate::progress::Waiting;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use soda_fuse::MountEntry;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// umount(2) may wait for pages of a shared mapping on their way to a server that is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// The daemon gives its leases back before it ends.
const FAREWELL: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &UmountArgs) -> Result<(), CliError> {
    let failed = || CliError::io(format!("cannot unmount {}", arguments.dir.display()));
    let mount = soda_fuse::find_mount(&arguments.dir).map_err(failed())?;
    let mount = mount.ok_or_else(|| CliError::NotMounted(arguments.dir.clone()))?;
    let daemon = control::mount_on(&mount.dir);
    if arguments.force {
        // Whoever waits in the mount goes on with an error, so nothing keeps it busy for long.
        abort(&mount, daemon.as_ref());
        detach(&mount.dir).map_err(failed())?;
    } else if arguments.lazy {
        return detach(&mount.dir).map_err(failed());
    } else {
        match unmount_in_time(&mount.dir) {
            Outcome::Done => {}
            Outcome::Busy if daemon.as_ref().is_some_and(MountStatus::is_connected) => {
                return Err(CliError::Busy(mount.dir));
            }
            Outcome::Busy | Outcome::Stuck => {
                tracing::info!("the server or the daemon is gone: cut off");
                abort(&mount, daemon.as_ref());
                detach(&mount.dir).map_err(failed())?;
            }
            Outcome::Failed(error) => return Err(failed()(error)),
        }
    }
    if let Some(daemon) = daemon {
        wait_for_end(daemon.pid);
    }
    Ok(())
}

enum Outcome {
    Done,
    Busy,
    /// Still waiting in the kernel.
    Stuck,
    Failed(std::io::Error),
}

fn unmount_in_time(dir: &Path) -> Outcome {
    let _waiting = Waiting::new(format!("{} to write back what is mapped into memory", dir.display()));
    let (done, is_done) = mpsc::channel();
    let path = dir.to_path_buf();
    std::thread::spawn(move || {
        let result = match unmount(&path, UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => with_helper(&path, &["-u"]),
            result => result.map_err(std::io::Error::from),
        };
        let _ = done.send(result);
    });
    match is_done.recv_timeout(PATIENCE) {
        Ok(Ok(())) => Outcome::Done,
        Ok(Err(error)) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Outcome::Busy,
        Ok(Err(error)) => Outcome::Failed(error),
        Err(_) => Outcome::Stuck,
    }
}

/// Ends the connection between kernel and daemon. Not fatal: without privilege the detaching alone has to do.
fn abort(mount: &MountEntry, daemon: Option<&MountStatus>) {
    let Err(error) = soda_fuse::abort_connection(mount) else { return };
    tracing::info!(%error, "cannot abort the connection: its daemon is ended");
    if let Some(pid) = daemon.and_then(|daemon| rustix::process::Pid::from_raw(daemon.pid.cast_signed()))
        && is_mount_daemon(daemon.map_or(0, |daemon| daemon.pid))
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn detach(dir: &Path) -> std::io::Result<()> {
    match unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Err(Errno::PERM) => with_helper(dir, &["-u", "-z"]),
        result => Ok(result?),
    }
}

/// For users other than root.
fn with_helper(dir: &Path, flags: &[&str]) -> std::io::Result<()> {
    let output = Command::new("fusermount3").args(flags).arg("--").arg(dir).output()?;
    match output.status.success() {
        true => Ok(()),
        false if String::from_utf8_lossy(&output.stderr).contains("busy") => Err(Errno::BUSY.into()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string())),
    }
}

fn wait_for_end(pid: u32) {
    let _waiting = Waiting::new("the mount's daemon to give its leases back");
    let deadline = Instant::now() + FAREWELL;
    // The daemon of a mount inside of this process tree (`soda demo`) does not end with it.
    while Instant::now() < deadline && is_mount_daemon(pid) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_mount_daemon(pid: u32) -> bool {
    let is_zombie = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
    };
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).nth(1) == Some(b"mount") && !is_zombie()
}
