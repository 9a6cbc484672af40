//! One `soda mount`.

use super::server::spawn;
use super::{PATIENCE, soda_binary, tail};
use crate::wait;
use rustix::mount::MountFlags;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// Where the kernel shows its connections to daemons.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A mounted client. Unmounted and killed when dropped, whatever its state.
#[derive(Debug)]
pub struct Mount {
    /// `None` while it is down.
    child: Option<Child>,
    words: Vec<String>,
    /// What takes it over.
    heir: PathBuf,
    root: PathBuf,
    log: PathBuf,
}

impl Mount {
    pub(super) fn new(
        dir: &Path,
        number: usize,
        address: &str,
        prefix: Vec<String>,
        transport: &str,
        options: &[&str],
    ) -> Mount {
        let root = dir.join(format!("mount{number}"));
        if let Err(error) = std::fs::create_dir(&root) {
            panic!("{}: {error}", root.display());
        }
        let mut words = prefix;
        words.push(soda_binary().display().to_string());
        words.push("mount".to_owned());
        words.push(format!("{address}/main"));
        words.push(root.display().to_string());
        words.push("--foreground".to_owned());
        words.extend(["-o".to_owned(), format!("transport={transport}")]);
        words.extend(options.iter().map(|option| (*option).to_owned()));
        Mount { child: None, words, heir: soda_binary(), root, log: dir.join(format!("mount{number}.log")) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Id of the process that serves the mount.
    ///
    /// # Panics
    /// If it is down.
    pub fn process(&self) -> u32 {
        match &self.child {
            Some(child) => child.id(),
            None => panic!("{} is not mounted", self.root.display()),
        }
    }

    /// Id of the process that looks after the daemon, if it is there.
    ///
    /// # Panics
    /// If the mount is down.
    pub fn guard(&self) -> Option<u32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process())).into_iter().flatten();
        let children =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
        let children: String = children.collect();
        let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid| name(pid) == "fuse-guard\n")
    }

    /// What ends the connection between the kernel and the daemon when something is written to it.
    ///
    /// # Panics
    /// If nothing is mounted, or the kernel does not show it.
    pub fn abort_knob(&self) -> File {
        let knob = self.connection().join("abort");
        File::options().write(true).open(&knob).unwrap_or_else(|error| panic!("{}: {error}", knob.display()))
    }

    /// Requests of the kernel that have no answer yet.
    ///
    /// # Panics
    /// As [`Mount::abort_knob`].
    pub fn waiting(&self) -> u64 {
        let file = self.connection().join("waiting");
        let waiting = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        waiting.unwrap_or_else(|| panic!("{} cannot be read", file.display()))
    }

    /// Where the kernel shows the connection.
    fn connection(&self) -> PathBuf {
        let entry = mount_entry(&self.root).unwrap_or_default();
        let minor = entry.split(' ').nth(2).and_then(|device| device.split_once(':'));
        let minor = minor.map_or("none", |(_, minor)| minor);
        if std::fs::read_dir(CONNECTIONS).is_ok_and(|mut entries| entries.next().is_none()) {
            // Fails if somebody else has meanwhile.
            let _ = rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", MountFlags::empty(), None);
        }
        Path::new(CONNECTIONS).join(minor)
    }

    /// Mounts; returns when the root directory answers.
    ///
    /// # Panics
    /// If that takes longer than [`PATIENCE`].
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} is mounted", self.root.display());
        self.child = Some(spawn(&self.words, &self.log));
        let ready = wait::until(PATIENCE, || self.has_ended() || is_mounted(&self.root));
        let status = self.child.as_mut().map(Child::try_wait);
        let (ended, root, log) = (self.has_ended(), self.root.display(), tail(&self.log, 40));
        assert!(ready, "{}: {root} was not mounted\n{log}", wait::TIMED_OUT);
        assert!(!ended, "{root} was not mounted: {status:?}\n{log}");
        // Asked by a process that can be killed, not by the test.
        wait::run(Command::new("stat").arg(&self.root), PATIENCE).expect_success("the new mount");
    }

    /// `soda mount --takeover`: another process serves from now on.
    ///
    /// # Panics
    /// If it does not, or the process before it does not end well.
    pub fn take_over(&mut self) {
        self.take_over_with(&[]);
    }

    /// From now on this program is what takes the mount over.
    pub fn set_heir(&mut self, program: &Path) {
        program.clone_into(&mut self.heir);
    }

    /// As [`Mount::take_over`], by a process with these variables in its environment, as `NAME=value`.
    ///
    /// # Panics
    /// As [`Mount::take_over`].
    pub fn take_over_with(&mut self, environment: &[&str]) {
        let heir = spawn(&self.heir(environment), &self.log);
        let mut before = self.child.replace(heir);
        let before = before.as_mut().unwrap_or_else(|| panic!("{} is not mounted", self.root.display()));
        let mut status = None;
        let ended = wait::until(PATIENCE * 3, || {
            status = before.try_wait().ok().flatten();
            status.is_some() || self.has_ended()
        });
        let (failed, root, log) = (self.has_ended(), self.root.display(), tail(&self.log, 40));
        assert!(ended, "{}: {root} was not taken over\n{log}", wait::TIMED_OUT);
        assert!(!failed, "{root} was not taken over: {:?}\n{log}", self.child.as_mut().map(Child::try_wait));
        assert!(status.is_some_and(|status| status.success()), "who had {root}: {status:?}\n{log}");
        self.await_control();
    }

    /// As [`Mount::take_over`], where a daemon that is nobody's child has served since.
    ///
    /// # Panics
    /// If it is not served by a process of the test's then.
    pub fn take_over_from_daemon(&mut self) {
        // What was this test's child has ended.
        self.child.take().map(|mut child| child.wait());
        self.child = Some(spawn(&self.heir(&[]), &self.log));
        self.await_control();
    }

    /// Until the process that takes the mount over can be asked something.
    fn await_control(&self) {
        let socket = format!("mount-{}-", self.process());
        let runtime = std::env::var_os("SODA_RUNTIME_DIR").map_or("/run/soda".into(), PathBuf::from);
        let is_there = || {
            let sockets = std::fs::read_dir(&runtime).into_iter().flatten().flatten();
            // The one that listens has another name before it answers.
            let is_ours = |name: &str| name.starts_with(&socket) && name.ends_with(".sock");
            sockets.into_iter().any(|entry| is_ours(&entry.file_name().to_string_lossy()))
        };
        let (there, root) = (wait::until(PATIENCE * 3, is_there), self.root.display());
        assert!(there, "{}: {root} was not taken over\n{}", wait::TIMED_OUT, tail(&self.log, 40));
        wait::run(Command::new("stat").arg(&self.root), PATIENCE).expect_success("the mount");
    }

    /// Has a process try to take the mount over, and waits for its end.
    pub fn try_to_take_over(&self, environment: &[&str]) -> wait::Finish {
        let words = self.heir(environment);
        wait::run(Command::new(&words[0]).args(&words[1..]), PATIENCE * 3)
    }

    fn heir(&self, environment: &[&str]) -> Vec<String> {
        let soda = soda_binary().display().to_string();
        let mut words: Vec<String> = vec!["env".to_owned()];
        words.extend(environment.iter().map(|variable| (*variable).to_owned()));
        words.extend(self.words.iter().take_while(|word| **word != soda).cloned());
        words.extend([self.heir.display().to_string(), "mount".to_owned(), "--takeover".to_owned()]);
        words.extend([self.root.display().to_string(), "--foreground".to_owned()]);
        words
    }

    /// `soda umount`.
    ///
    /// # Panics
    /// If it fails, or the client is still there afterwards.
    pub fn unmount(&mut self) {
        wait::run(Command::new(soda_binary()).arg("umount").arg(&self.root), PATIENCE)
            .expect_success("soda umount");
        assert!(!is_mounted(&self.root), "still mounted after soda umount");
        let ended = wait::until(PATIENCE, || self.has_ended());
        assert!(ended, "{}: the client goes on after the unmount\n{}", wait::TIMED_OUT, tail(&self.log, 40));
        self.child = None;
    }

    /// kill -9, and takes the dead mount away.
    pub fn crash(&mut self) {
        self.kill();
        self.detach();
    }

    /// kill -9. The dead mount stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            wait::signal(&child, Signal::KILL);
            let _ = child.wait();
        }
    }

    /// SIGSTOP: as a machine that is suspended or swaps.
    pub fn freeze(&self) {
        if let Some(child) = &self.child {
            wait::freeze(child);
        }
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// One of the counters that `soda stats` shows.
    ///
    /// # Panics
    /// If there is no such counter, or the client does not tell.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.counters();
        counters.get(name).copied().unwrap_or_else(|| panic!("no counter {name}: {counters:?}"))
    }

    /// All of them, by name.
    ///
    /// # Panics
    /// If the client does not tell.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut stats = Command::new(soda_binary());
        stats.arg("stats").arg(&self.root).args(["--once", "--json"]);
        let output = wait::run(&mut stats, PATIENCE).expect_success("soda stats");
        let counters: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let of_mount = counters.as_object().and_then(|mounts| mounts.values().next()?.as_object());
        let each = of_mount.into_iter().flatten();
        each.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect()
    }

    /// Messages of the daemon's that ask what a scan may need to know.
    ///
    /// # Panics
    /// As [`Mount::counter`].
    pub fn questions(&self) -> u64 {
        let kinds = [
            "lookup",
            "getattr",
            "readdir",
            "getxattrs",
            "getxattr",
            "stat",
            "lookupstat",
            "opened",
            "fetch",
        ];
        kinds.iter().map(|kind| self.counter(&format!("msg_{kind}"))).sum()
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            wait::signal(child, signal);
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    fn detach(&self) {
        let limit = Duration::from_secs(5);
        while is_mounted(&self.root) {
            let finish = wait::run(Command::new("umount").arg("-l").arg(&self.root), limit);
            if !matches!(finish, wait::Finish::Exited(ref output) if output.status.success()) {
                eprintln!("umount -l {}: {finish:?}", self.root.display());
                return;
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.crash();
    }
}

/// What mounts are told unless a test tells them something else: `dev`, or what `SODA_TEST_TRANSPORT` says. What another test
/// switches on in the kernel must make no difference.
pub fn transport() -> String {
    std::env::var("SODA_TEST_TRANSPORT").unwrap_or_else(|_| "dev".to_owned())
}

/// As [`transport`], where mounts take the kernel for `kernel`: before Linux 6.14 there is no io_uring for them.
pub(super) fn transport_on(kernel: Option<&str>) -> String {
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
    let mut parts = kernel.unwrap_or_default().split('.');
    match (number(parts.next()), number(parts.next())) {
        (Some(major), Some(minor)) if (major, minor) < (6, 14) => "dev".to_owned(),
        _ => transport(),
    }
}

/// Whether something is mounted exactly there. Reads the kernel's table; asks no file system.
pub fn is_mounted(path: &Path) -> bool {
    mount_entry(path).is_some()
}

/// The line about it in /proc/self/mountinfo.
pub fn mount_entry(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().find(|line| line.split(' ').nth(4) == path.to_str()).map(str::to_owned)
}
