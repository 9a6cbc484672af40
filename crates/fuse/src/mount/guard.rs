//! A process beside a mount's daemon that ends the connection to the kernel when the daemon cannot.
//!
//! The kernel ends a connection when the last descriptor of /dev/fuse is closed. A daemon that is killed may never get there:
//! one of its threads may wait inside the kernel, where no signal reaches it, for a lock that is held for a request which this
//! very daemon has to answer (a directory's lock, to drop its names; a page's, to drop the page). Then the process is dead but
//! for that thread, the thread keeps the descriptor, and everybody who uses the mount waits for ever. No thread of the daemon
//! can mend that, since all of them die with it. So another process looks.
//!
//! Both of what it looks at and what it acts on are files that were opened while they were certainly the daemon's: a number
//! of a process or a connection that is used again later means nothing to it.
//!
//! | descriptor of the guard | what | why |
//! | --- | --- | --- |
//! | standard input | the connection's `abort`, open for writing | nobody writes there by mistake, as one does to the output |
//! | standard output | the *writing* end of a pipe to the daemon | an error is reported for it when the daemon has closed its end, or has died to the last thread: nothing is left to do |
//! | standard error | /dev/null | holds open nothing of whoever started the daemon |
//! | of its own | the daemon's `/proc/PID/status` | |

use super::table;
use super::visitor::{self, Program};
use crate::fs::FileSystem;
use crate::unpoisoned::Unpoisoned;
use crate::wire::device::Device;
use crate::wire::{Handler, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use soda_client::Due;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// How long those who wait for a dead daemon wait at most, and what it costs to look: 20 microseconds in each of these. No event
/// tells of it: a pidfd is silent while one thread lives, with `PIDFD_THREAD`, too (from Linux 6.15 on).
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Apart from the daemon's, so that `pkill -9 NAME` does not end both at once. At most 15 bytes.
const NAME: &std::ffi::CStr = c"fuse-guard";

/// Answers requests, with a guard beside it.
#[derive(Debug)]
pub(super) struct Guarded<H = FileSystem> {
    fs: H,
    dir: PathBuf,
    /// Ends the connection. Open from the start: later the mount may be nowhere, or another one in its place.
    abort: io::Result<File>,
    program: Option<fn() -> Command>,
    visitor: Program,
    lifeline: Mutex<Option<Lifeline>>,
}

impl<H> Guarded<H> {
    /// Starts the guard of the mount on `dir`. Without it the mount works, too.
    pub(super) fn new(
        fs: H,
        device: &Device,
        dir: &Path,
        (program, visitor): (Option<fn() -> Command>, Program),
    ) -> Guarded<H> {
        let abort = table::connection_of(device, dir).and_then(table::abort_knob);
        let guarded =
            Guarded { fs, dir: dir.to_path_buf(), abort, program, visitor, lifeline: Mutex::default() };
        guarded.start();
        guarded
    }

    /// Starts a guard, if there is none.
    pub(super) fn start(&self) {
        let mut lifeline = self.lifeline();
        if lifeline.is_some() {
            return;
        }
        let started = self.program.map(|program| Lifeline::start(&self.dir, self.abort()?, program()));
        *lifeline = started.and_then(|started| match started {
            Ok(lifeline) => Some(lifeline),
            Err(error) => {
                tracing::warn!(%error, "{} has no guard: {WITHOUT}", self.dir.display());
                None
            }
        });
    }

    /// Ends the guard: another process is going to serve the mount, with a guard of its own. Says whether it has ended, after
    /// this time at the most; one that is left would take the end of this process for the mount's.
    pub(super) fn end(&self, at_most: Duration) -> bool {
        let Some(Lifeline { wanted, pipe, awaited }) = self.lifeline().take() else { return true };
        drop(wanted);
        drop(pipe);
        let deadline = Instant::now() + at_most;
        while !awaited.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        awaited.is_finished()
    }

    fn abort(&self) -> io::Result<File> {
        match &self.abort {
            Ok(abort) => abort.try_clone(),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    fn lifeline(&self) -> MutexGuard<'_, Option<Lifeline>> {
        self.lifeline.lock().unpoisoned()
    }
}

const WITHOUT: &str =
    "if its daemon is killed in a bad moment, who waits for it may wait until `soda umount --force`";

impl<H: Handler> Handler for Guarded<H> {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.fs.handle(request, reply);
    }

    fn arrived(&self, due: Due) {
        self.fs.arrived(due);
    }

    fn look_up(&self, name: &str) {
        visitor::look_up(self.visitor, &self.dir, name);
    }

    fn abandon(&self) {
        if let Err(error) = self.abort().and_then(|mut abort| abort.write_all(b"1")) {
            let dir = self.dir.display();
            tracing::error!(%error, "the mount has to be ended and cannot: `soda umount --force {dir}`");
        }
    }
}

/// The daemon's end of the pipe. The guard ends with it.
#[derive(Debug)]
struct Lifeline {
    /// Gone before the guard ends for its sake.
    wanted: Arc<()>,
    pipe: ChildStdout,
    awaited: JoinHandle<()>,
}

impl Lifeline {
    fn start(dir: &Path, abort: File, mut program: Command) -> io::Result<Lifeline> {
        program.current_dir("/").stdin(abort).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guard = program.spawn()?;
        let pipe = guard.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        let dir = dir.to_path_buf();
        let thread = thread::Builder::new().name("guard".into());
        let awaited = thread.spawn(move || await_end(guard, &is_wanted, &dir))?;
        Ok(Lifeline { wanted, pipe, awaited })
    }
}

fn await_end(mut guard: Child, is_wanted: &Weak<()>, dir: &Path) {
    let ended = guard.wait();
    if is_wanted.upgrade().is_some() {
        tracing::warn!(?ended, "the guard of {} has ended: {WITHOUT}", dir.display());
    }
}

/// All that the process does which [`super::MountConfig::guard`] starts: returns when the mount or its daemon is gone.
///
/// # Errors
/// The daemon cannot be looked at, as without /proc.
pub fn guard() -> io::Result<()> {
    // Fails for the leader of a process group, which a child is not.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(NAME);
    outlast_requests_to_end()?;
    let Some(mut daemon) = Daemon::of_parent()? else { return Ok(()) };
    while !has_hung_up()? {
        match daemon.state()? {
            State::Lives => {}
            State::Gone => return Ok(()),
            State::Dying => {
                rustix::io::write(io::stdin().as_fd(), b"1")?;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What asks for an end goes to all processes of a service or a terminal; the guard's comes after the daemon's.
fn outlast_requests_to_end() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _context = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        // Its handler stays, whatever becomes of the runtime.
        let _ = signal(kind)?;
    }
    Ok(())
}

/// Waits until it is time to look again, or the daemon has closed its end of the pipe.
fn has_hung_up() -> io::Result<bool> {
    let output = io::stdout();
    let mut pipe = [PollFd::new(&output, PollFlags::empty())];
    match poll(&mut pipe, Some(&LOOK)) {
        Ok(_) | Err(Errno::INTR) => Ok(!pipe[0].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}

/// The process that started this one.
struct Daemon {
    status: File,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Lives,
    /// No thread of it will answer anything any more, but not all have ended.
    Dying,
    Gone,
}

impl Daemon {
    /// `None`: it has ended already.
    fn of_parent() -> io::Result<Option<Daemon>> {
        // Not getppid(2): the numbers have to be those of this /proc.
        let parent = parent()?;
        let status = File::open(format!("/proc/{parent}/status"))?;
        // Had it ended before the file was opened, this would have another parent by now.
        Ok((parent == self::parent()?).then_some(Daemon { status }))
    }

    fn state(&mut self) -> io::Result<State> {
        let mut status = Vec::new();
        self.status.rewind()?;
        match self.status.read_to_end(&mut status) {
            Ok(_) => Ok(state_of(&String::from_utf8_lossy(&status))),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(State::Gone),
            Err(error) => Err(error),
        }
    }
}

fn parent() -> io::Result<u32> {
    let status = std::fs::read("/proc/self/status")?;
    let status = String::from_utf8_lossy(&status);
    let parent = field(&status, "PPid").and_then(|number| number.parse().ok());
    parent.ok_or_else(|| io::Error::other("/proc names no parent"))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Of the process's first thread, which waits in the kernel itself if it was just unmounting: then SIGKILL, which spares no
/// thread, stays pending. One whose memory is being dumped waits for all of its threads before it ends.
fn state_of(status: &str) -> State {
    let is_zombie = field(status, "State").is_some_and(|state| state.starts_with(['Z', 'X']));
    let pending = field(status, "SigPnd").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let is_killed = pending & (1 << (Signal::KILL.as_raw() - 1)) != 0;
    let is_dumped = field(status, "CoreDumping") == Some("1");
    match is_zombie || is_killed || is_dumped {
        true => State::Dying,
        false => State::Lives,
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel;
    use super::*;
    use rustix::fs::{Mode, OFlags};

    /// Answers nothing.
    #[derive(Debug)]
    struct Nothing;

    impl Handler for Nothing {
        fn handle(&self, _: Request<'_>, _: Reply) {}
    }

    /// As after `umount -l` of what is in use: the mount has no place any more, and another one has it.
    #[test]
    fn who_gives_up_ends_its_own_connection_wherever_its_mount_is() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            assert!(std::env::var_os("SODA_TEST_REQUIRE").is_none(), "needs root and /dev/fuse");
            return println!("SKIPPED: needs root and /dev/fuse");
        }
        let dir = tempfile::tempdir().unwrap();
        let mount =
            || Device::new(kernel::mount("nothing", dir.path(), &kernel::MountFlags::default()).unwrap());
        let is_ended = |device: &Device| {
            let mut polled = [PollFd::new(device, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())).unwrap();
            polled[0].revents().contains(PollFlags::ERR)
        };
        let own = mount();
        let guarded = Guarded::new(Nothing, &own, dir.path(), (None, None));
        let in_use = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        kernel::detach(dir.path()).unwrap();
        let other = mount();
        assert!(!is_ended(&own) && !is_ended(&other));
        guarded.abandon();
        assert_eq!((is_ended(&own), is_ended(&other)), (true, false));
        kernel::detach(dir.path()).unwrap();
        drop(in_use);
    }

    const LIVES: &str = "Name:\tsoda\nUmask:\t0022\nState:\tS (sleeping)\nPPid:\t17\nCoreDumping:\t0\n\
        SigPnd:\t0000000000004000\nShdPnd:\t0000000000000100\n";

    #[test]
    fn who_is_zombie_killed_or_dumped_is_dying() {
        assert_eq!(state_of(LIVES), State::Lives);
        assert_eq!(state_of(&LIVES.replace("S (sleeping)", "T (stopped)")), State::Lives);
        for (was, is) in [
            ("S (sleeping)", "Z (zombie)"),
            ("SigPnd:\t0000000000004000", "SigPnd:\t0000000000004100"),
            ("CoreDumping:\t0", "CoreDumping:\t1"),
        ] {
            assert_eq!(state_of(&LIVES.replace(was, is)), State::Dying, "{is}");
        }
        // Of a kernel or a /proc that does not tell.
        assert_eq!(state_of(""), State::Lives);
    }

    #[test]
    fn a_parent_is_found_and_its_end_is_seen() {
        let parent = Daemon::of_parent().unwrap().unwrap().state().unwrap();
        assert_eq!(parent, State::Lives);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut daemon = Daemon { status: File::open(format!("/proc/{}/status", child.id())).unwrap() };
        assert_eq!(daemon.state().unwrap(), State::Lives);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(daemon.state().unwrap(), State::Gone);
    }
}
