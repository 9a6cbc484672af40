//! `soda umount`: also with the server gone, or the daemon.
//!
//! As umount(8) it never takes a mount from those who use it: in use is an error. What can only be waited for in vain is cut
//! off by itself: a mount whose server is silent for longer than the session's lease and the patience of this command.
//!
//! A bind mount is taken away by itself: what it was made of, and the daemon, stay.

use crate::answer::MountStatus;
use crate::args::UmountArgs;
use crate::backlog::{self, Outcome, Until, show_changes};
use crate::binds;
use crate::control::{self, Daemon};
use crate::ending::{Heard, LastWords, all_told};
use crate::error::CliError;
use crate::progress::Waiting;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use soda_client::Untold;
use soda_fuse::MountEntry;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(200);
/// A dead mount says so at once; any other answer may take for ever.
const PROBE: Duration = Duration::from_secs(1);
/// The daemon gives its leases back before it ends.
const FAREWELL: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &UmountArgs) -> Result<(), CliError> {
    let failed = || CliError::io(format!("cannot unmount {}", arguments.dir.display()));
    let mount = soda_fuse::find_mount(&arguments.dir).map_err(failed())?;
    let mount = mount.ok_or_else(|| CliError::NotMounted(arguments.dir.clone()))?;
    let start = Instant::now();
    let mut daemon = control::daemon_of(&mount);
    let status = daemon.as_ref().map(|daemon| &daemon.status);
    if status.is_some_and(is_elsewhere) || binds::is_bind(&mount, &control::table()?, status) {
        return unmount_bind(&mount.dir, arguments);
    }
    let is_plain = !arguments.force && !arguments.lazy;
    let mut lost_earlier = status.filter(|_| !arguments.lazy).map_or(Ok(()), none_lost);
    let mut lost = 0;
    if let Some(before) = daemon.clone().filter(|daemon| is_plain && may_have_to_tell(&daemon.status)) {
        let lost_before = before.status.count("lost_records");
        lost_earlier = lost_earlier.and(tell_first(before)?);
        // What is told and what is lost by now.
        if let Some(now) = control::daemon_of(&mount) {
            lost = now.status.count("lost_records").saturating_sub(lost_before);
            daemon = Some(now);
        }
    }
    both(lost_earlier, unmount_told(arguments, mount, daemon, lost, start))
}

/// Whether somebody has heard of all that the mount has lost.
fn none_lost(daemon: &MountStatus) -> Result<(), CliError> {
    match daemon.session.unheard_losses {
        true => Err(backlog::lost(&daemon.dir, daemon.log.as_ref().map(|log| log.file.as_str()))),
        false => Ok(()),
    }
}

/// What was lost before is no reason to leave it mounted, and is said whatever comes of that: nobody else hears of it.
fn both(lost_earlier: Result<(), CliError>, unmounted: Result<(), CliError>) -> Result<(), CliError> {
    match (lost_earlier, unmounted) {
        (Err(lost), Err(error)) => {
            eprintln!("soda: {lost}");
            Err(error)
        }
        (lost_earlier, unmounted) => lost_earlier.and(unmounted),
    }
}

/// `lost`: so many changes were lost while it was waited for that all is told. `start`: when the command began.
fn unmount_told(
    arguments: &UmountArgs,
    mount: MountEntry,
    daemon: Option<Daemon>,
    lost: u64,
    start: Instant,
) -> Result<(), CliError> {
    let failed = || CliError::io(format!("cannot unmount {}", arguments.dir.display()));
    let is_plain = !arguments.force && !arguments.lazy;
    // It may be stopped: what it has not told it can say to nobody.
    let is_silent = is_plain && daemon.is_none() && control::has_socket(&mount);
    let words = daemon.as_ref().and_then(|daemon| control::last_words(&daemon.socket));
    let daemon = daemon.map(|daemon| daemon.status);
    if arguments.force {
        // Whoever waits in the mount goes on with an error, so nothing keeps it busy for long.
        abort(&mount, daemon.as_ref());
        detach(&mount.dir).map_err(failed())?;
    } else if arguments.lazy {
        return detach(&mount.dir).map_err(failed());
    } else {
        unmount_or_give_up(&mount, daemon.as_ref(), start, arguments.patience)?;
    }
    let Some(daemon) = daemon else {
        return if is_silent { Err(CliError::SilentDaemon(mount.dir)) } else { Ok(()) };
    };
    let still_there = control::table()?.into_iter().find(|entry| entry.device == mount.device);
    match still_there {
        Some(entry) if !arguments.force => eprintln!(
            "soda: it is still mounted on {dir}, so its daemon goes on; `soda umount {dir}` takes that away, too",
            dir = entry.dir.display()
        ),
        _ => {
            let heard = heard_last(&daemon, words, lost);
            wait_for_end(daemon.pid);
            return heard;
        }
    }
    Ok(())
}

/// A server that is gone is not waited for where there is nothing that it lacks.
fn may_have_to_tell(daemon: &MountStatus) -> bool {
    daemon.writes_behind() && (daemon.is_connected() || daemon.session.backlog.records > 0)
}

/// The daemon says how it ended. Who works with the mount until then, it also tells its server of what was done last. `lost`: so
/// many changes were lost while it was waited for.
fn heard_last(daemon: &MountStatus, words: Option<LastWords>, lost: u64) -> Result<(), CliError> {
    let Some(words) = words.filter(|_| daemon.writes_behind()) else { return Ok(()) };
    let heard = {
        let server = &daemon.session.server;
        let _waiting = Waiting::new(format!(
            "the server {server} to be told the rest; Ctrl-C leaves that to the mount's daemon"
        ));
        words.wait()
    };
    let why = match heard {
        Heard::Untold(untold) => {
            return all_told(&daemon.dir, Untold { lost: untold.lost + lost, ..untold });
        }
        Heard::NoWord => "has ended without a word",
        Heard::Silence => "does not answer",
    };
    let backlog = &daemon.session.backlog;
    if backlog.records + backlog.not_durable == 0 {
        return all_told(&daemon.dir, Untold { left: 0, lost });
    }
    let text = format!(
        "the daemon of {} {why}: what it had not told its server {}",
        daemon.dir.display(),
        fate(daemon)
    );
    match daemon.option("cache-dir") {
        Some(_) => eprintln!("soda: {text}"),
        None => return Err(CliError::Failed(text)),
    }
    Ok(())
}

/// Whether the daemon is in another namespace of mounts: what is mounted in this one is a copy of what it has mounted there.
fn is_elsewhere(daemon: &MountStatus) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let (here, there) = (namespace("self"), namespace(&daemon.pid.to_string()));
    there.is_some() && here != there
}

/// Nobody is cut off, as everybody would be who uses the mount elsewhere; and nobody but its users can keep it busy.
fn unmount_bind(dir: &Path, arguments: &UmountArgs) -> Result<(), CliError> {
    let result = match arguments.force || arguments.lazy {
        true => detach(dir),
        false => unmount_now(dir),
    };
    match result {
        Err(error) if is_busy(&error) => Err(CliError::Busy(dir.to_path_buf())),
        result => result.map_err(CliError::io(format!("cannot unmount {}", dir.display()))),
    }
}

/// While the mount is there: it is easier to wait for than its daemon afterwards, and may stay. What could not be told and is not
/// lost is tried again when the daemon ends, whose last words say what came of it. The inner result: whether changes were lost
/// of which nobody has heard.
///
/// # Errors
/// The mount has to stay.
fn tell_first(daemon: Daemon) -> Result<Result<(), CliError>, CliError> {
    let fate = fate(&daemon.status);
    for told in backlog::sync(vec![daemon], Until::Told) {
        let dir = told.dir.display();
        match &told.outcome {
            // Unmounted, it could only lose what the server has no room for.
            Outcome::NoRoom => return told.into_result().map(Ok),
            Outcome::Lost => return Ok(told.into_result()),
            // What there was has been dropped meanwhile, with its files.
            Outcome::ServerGone if told.left.records == 0 => {}
            Outcome::ServerGone => eprintln!(
                "soda: the server of {dir} is gone: unless it comes back soon, what it has not heard of, {}, {fate}",
                show_changes(&told.left)
            ),
            Outcome::Failed(why) => {
                eprintln!(
                    "soda: not everything of {dir} is at the server yet, its daemon tries again: {why}"
                );
            }
            Outcome::Synced | Outcome::Told | Outcome::DaemonEnded | Outcome::NoAnswer => {}
        }
    }
    Ok(Ok(()))
}

/// What becomes of what the server does not hear of before the end.
fn fate(daemon: &MountStatus) -> &'static str {
    match daemon.option("cache-dir") {
        Some(_) => "stays in the log in its cache-dir, to be told when it is mounted again with that",
        None => "is lost",
    }
}

/// `start`: when the command began, which its patience is counted from.
fn unmount_or_give_up(
    mount: &MountEntry,
    daemon: Option<&MountStatus>,
    start: Instant,
    patience: Duration,
) -> Result<(), CliError> {
    let failed = || CliError::io(format!("cannot unmount {}", mount.dir.display()));
    let _waiting = Waiting::new(format!("{}, or for its server", mount.dir.display()));
    let mut attempt = Attempt::start(&mount.dir);
    loop {
        let attempted = match attempt.result() {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) if is_busy(&error) => Attempted::InUse,
            Some(Err(error)) => return Err(failed()(error)),
            None => Attempted::Waiting,
        };
        match next_step(attempted, health(mount), start.elapsed(), patience) {
            Step::Wait => {}
            Step::Refuse(Reason::InUse) => return Err(CliError::Busy(mount.dir.clone())),
            Step::Refuse(Reason::Silent) => return Err(CliError::BusyAndSilent(mount.dir.clone())),
            Step::Detach => return detach(&mount.dir).map_err(failed()),
            Step::CutOff => {
                eprintln!(
                    "soda: the server of {} is gone: the mount is cut off. What used it gets errors (ENOTCONN), and \
                     stores to mapped memory that were not synced are lost",
                    mount.dir.display()
                );
                abort(mount, daemon);
                return detach(&mount.dir).map_err(failed());
            }
        }
        if attempted == Attempted::InUse {
            std::thread::sleep(PAUSE);
            attempt = Attempt::start(&mount.dir);
        }
    }
}

/// umount(2) on a thread of its own: it may wait in the kernel.
struct Attempt(Receiver<std::io::Result<()>>);

impl Attempt {
    fn start(dir: &Path) -> Attempt {
        let (done, is_done) = mpsc::channel();
        let path = dir.to_path_buf();
        std::thread::spawn(move || done.send(unmount_now(&path)));
        Attempt(is_done)
    }

    /// `None`: not yet.
    fn result(&self) -> Option<std::io::Result<()>> {
        match self.0.recv_timeout(PAUSE) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(std::io::Error::other("its thread ended"))),
        }
    }
}

fn unmount_now(dir: &Path) -> std::io::Result<()> {
    match unmount(dir, UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => with_helper(dir, &["-u"]),
        result => Ok(result?),
    }
}

fn is_busy(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempted {
    InUse,
    /// Still in the kernel, which writes back what is mapped into memory.
    Waiting,
}

/// What stands behind a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Connected,
    /// The session's lease still runs: a server that restarts is back before it ends.
    Away,
    /// Silent for longer than the session's lease.
    Gone,
    /// The daemon does not answer: stopped, or another user's.
    Silent,
    /// No daemon.
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Wait,
    Refuse(Reason),
    /// Nothing can be lost by it.
    Detach,
    CutOff,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    InUse,
    Silent,
}

fn next_step(attempted: Attempted, health: Health, waited: Duration, patience: Duration) -> Step {
    match (health, attempted) {
        (Health::Dead, _) => Step::Detach,
        (Health::Gone, _) if waited >= patience => Step::CutOff,
        (Health::Gone | Health::Away, _) | (_, Attempted::Waiting) => Step::Wait,
        (Health::Connected, Attempted::InUse) => Step::Refuse(Reason::InUse),
        (Health::Silent, Attempted::InUse) => Step::Refuse(Reason::Silent),
    }
}

fn health(mount: &MountEntry) -> Health {
    match control::mount_of(mount) {
        Some(daemon) if daemon.is_connected() => Health::Connected,
        Some(daemon) if daemon.session.left.is_zero() => Health::Gone,
        Some(_) => Health::Away,
        None if is_dead(&mount.dir) => Health::Dead,
        None => Health::Silent,
    }
}

/// Whether the kernel has lost the daemon. statfs(2) is never answered from a cache.
fn is_dead(dir: &Path) -> bool {
    let (done, is_done) = mpsc::channel();
    let path: PathBuf = dir.into();
    std::thread::spawn(move || done.send(rustix::fs::statfs(&path).err()));
    is_done.recv_timeout(PROBE) == Ok(Some(Errno::NOTCONN))
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

/// For users other than root, whose own mounts these have to be.
fn with_helper(dir: &Path, flags: &[&str]) -> std::io::Result<()> {
    let mount = soda_fuse::find_mount(dir)?;
    if let Some(owner) = mount.as_ref().and_then(control::stranger) {
        let others = if owner == "root" { "" } else { " and root" };
        return Err(std::io::Error::new(
            std::io::ErrorKind::PermissionDenied,
            format!(
                "it belongs to {owner}; only {owner}{others} can unmount it: `sudo soda umount {}`",
                dir.display()
            ),
        ));
    }
    unmount_with(Command::new("fusermount3").args(flags).arg("--").arg(dir))
}

/// It says why not in words only, which are strerror(3)'s: those of `C` are the ones that are known here.
fn unmount_with(helper: &mut Command) -> std::io::Result<()> {
    let output = helper.env("LC_ALL", "C").env_remove("LANGUAGE").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if said.trim_end().ends_with("Device or resource busy") => Err(Errno::BUSY.into()),
        false => Err(std::io::Error::other(said.trim().to_string())),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::mount_status;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn a_helper_is_understood_whatever_language_its_user_speaks() {
        let unmount =
            |script: &str| unmount_with(Command::new("sh").env("LANGUAGE", "de").args(["-c", script]));
        // fuse 3.17, util/fusermount.c
        let speaks =
            "if [ \"$LC_ALL$LANGUAGE\" = C ]; then why='Device or resource busy'; else why='belegt'; fi
            echo \"fusermount3: failed to unmount /mnt: $why\" >&2; exit 1";
        assert_eq!(unmount(speaks).unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
        let elsewhere = "echo 'fusermount3: /mnt/busy not mounted' >&2; exit 1";
        assert_eq!(unmount(elsewhere).unwrap_err().to_string(), "fusermount3: /mnt/busy not mounted");
        unmount("exit 0").unwrap();
    }

    #[test]
    fn a_server_that_is_gone_is_not_told_nothing() {
        let mut daemon = mount_status();
        daemon.options = "hard,write=behind".into();
        assert!(may_have_to_tell(&daemon), "what is told may not be durable");
        daemon.session.standing = soda_client::ClientStanding::Disconnected;
        assert!(!may_have_to_tell(&daemon));
        daemon.session.backlog.records = 1;
        assert!(may_have_to_tell(&daemon));
        daemon.options = "hard,write=through".into();
        assert!(!may_have_to_tell(&daemon));
    }

    #[test]
    fn what_nobody_has_heard_of_is_said_by_the_unmount() {
        let mut daemon = mount_status();
        assert!(none_lost(&daemon).is_ok());
        daemon.session.unheard_losses = true;
        let error = none_lost(&daemon).unwrap_err();
        assert!(error.code() == 1 && error.to_string().contains("`soda recover ls`"), "{error}");
    }

    #[test]
    fn what_was_lost_before_is_a_failure_of_the_unmount_too() {
        let failed = |text: &str| Err(CliError::Failed(text.into()));
        let said = |result: Result<(), CliError>| result.map_err(|error| error.to_string());
        assert_eq!(said(both(Ok(()), Ok(()))), Ok(()));
        assert_eq!(said(both(failed("lost"), Ok(()))), Err("lost".into()));
        assert_eq!(said(both(failed("lost"), failed("in use"))), Err("in use".into()));
        assert_eq!(said(both(Ok(()), failed("in use"))), Err("in use".into()));
    }

    #[test]
    fn nothing_is_cut_off_that_may_go_on() {
        for waited in [Duration::ZERO, PATIENCE, PATIENCE * 100] {
            let step = |attempted, health| next_step(attempted, health, waited, PATIENCE);
            assert_eq!(step(Attempted::InUse, Health::Connected), Step::Refuse(Reason::InUse));
            assert_eq!(step(Attempted::Waiting, Health::Connected), Step::Wait, "a slow server");
            assert_eq!(step(Attempted::InUse, Health::Away), Step::Wait, "a restart of the server");
            assert_eq!(step(Attempted::Waiting, Health::Away), Step::Wait);
            assert_eq!(step(Attempted::InUse, Health::Silent), Step::Refuse(Reason::Silent));
            assert_eq!(step(Attempted::Waiting, Health::Silent), Step::Wait);
            assert_eq!(step(Attempted::InUse, Health::Dead), Step::Detach);
        }
    }

    #[test]
    fn a_server_that_is_gone_is_waited_for_with_patience() {
        for attempted in [Attempted::InUse, Attempted::Waiting] {
            assert_eq!(next_step(attempted, Health::Gone, PATIENCE - PAUSE, PATIENCE), Step::Wait);
            assert_eq!(next_step(attempted, Health::Gone, PATIENCE, PATIENCE), Step::CutOff);
        }
    }
}
