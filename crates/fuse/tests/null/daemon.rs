//! A process of its own that serves a file system: the ignored test `daemon` of the same program, which does what it is told.

use super::{NullMount, Setting, UringOn, control, descriptors_in, wait_until};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use soda_fuse::wire::connection::{Transport, TransportChoice};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

/// Of its environment: where to mount, and over what.
pub(crate) const DIR: &str = "SODA_TEST_DAEMON_DIR";
const TRANSPORT: &str = "SODA_TEST_DAEMON_TRANSPORT";

/// What it says first, when it serves.
pub(crate) const READY: &str = "mounted";

/// In the daemon: mounts.
pub(crate) fn mount_at(dir: &Path, runtime: &tokio::runtime::Handle) -> NullMount {
    let transport = std::env::var(TRANSPORT).unwrap().parse::<TransportChoice>().unwrap();
    let _on = (transport == TransportChoice::Only(Transport::Uring)).then(|| UringOn::turn().unwrap());
    let setting = Setting { transport, dir: Some(dir), ..Setting::default() };
    NullMount::try_start(setting, runtime).unwrap()
}

/// In the daemon: until the test ends, whatever becomes of it.
pub(crate) fn obey(mut carry_out: impl FnMut(&str)) {
    for order in std::io::stdin().lines().map(Result::unwrap) {
        carry_out(&order);
        println!("{order}");
    }
}

pub(crate) struct Daemon<'a> {
    pub(crate) process: Child,
    said: Lines<BufReader<ChildStdout>>,
    pub(crate) dir: &'a Path,
}

impl Daemon<'_> {
    pub(crate) fn start(dir: &Path, transport: Transport) -> Daemon<'_> {
        Daemon::start_with(dir, &[(TRANSPORT, &transport.to_string())])
    }

    /// With these variables in its environment.
    pub(crate) fn start_with<'a>(dir: &'a Path, environment: &[(&str, &str)]) -> Daemon<'a> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "daemon", "--ignored", "--nocapture"]);
        command.env(DIR, dir).envs(environment.iter().copied());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut daemon = Daemon { process, said, dir };
        daemon.await_line(READY);
        daemon
    }

    pub(crate) fn await_line(&mut self, expected: &str) {
        assert!(self.said.by_ref().map(Result::unwrap).any(|line| line == expected), "never says {expected}");
    }

    /// Returns when it has done so.
    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.process.stdin.as_ref().unwrap(), "{order}").unwrap();
        self.await_line(order);
    }

    pub(crate) fn proc(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.process.id().to_string()).join(file)
    }

    /// How many it has of /dev/fuse.
    pub(crate) fn descriptors(&self) -> usize {
        descriptors_in(&self.proc("fd"))
    }

    /// Of its first thread, as /proc shows it.
    pub(crate) fn status(&self, name: &str) -> String {
        let status = std::fs::read_to_string(self.proc("status")).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = unmount(self.dir, UnmountFlags::DETACH);
        // One of which a thread is stuck does not end.
        if !thread::panicking() {
            let _ = self.process.wait();
        }
    }
}

/// Ends the calls if the test fails, so that it ends, too.
pub(crate) struct Rescue<'a> {
    /// Its number is nobody else's as long as it has not been waited for.
    pub(crate) process: Option<Pid>,
    pub(crate) dir: &'a Path,
}

impl Drop for Rescue<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.process.map(|process| kill_process(process, Signal::KILL));
            let _ = std::fs::write(control(self.dir).join("abort"), "1");
        }
    }
}

/// Not by force. A process that another test is just starting has our files until it runs.
pub(crate) fn unmount_at(dir: &Path) {
    wait_until("nothing is open", || match unmount(dir, UnmountFlags::empty()) {
        Err(Errno::BUSY) => false,
        unmounted => unmounted.map(|()| true).unwrap(),
    });
}
