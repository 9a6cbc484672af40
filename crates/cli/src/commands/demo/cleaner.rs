//! A process that outlives the demo for a moment: when the pipe between them closes, for whatever reason, it unmounts,
//! ends the processes and removes the directories. There is no other way out, so the one after kill -9 is well-trodden.

use crate::commands::this_program;
use crate::control;
use crate::error::CliError;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

/// Asked politely, a process has this long to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// The demo's end of it.
#[derive(Debug)]
pub(super) struct Cleaner {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Cleaner {
    pub(super) fn start(scratch: &Path) -> Result<Cleaner, CliError> {
        let mut command = this_program()?;
        command.args(["demo", "--cleaner"]).arg(scratch).stdin(Stdio::piped()).stdout(Stdio::null());
        let failed = || CliError::io("cannot start a process");
        let mut child = command.process_group(0).spawn().map_err(failed())?;
        let pipe = child.stdin.take();
        Ok(Cleaner { child, pipe })
    }

    /// One more process that must not outlive the demo.
    pub(super) fn look_after(&mut self, pid: u32) {
        if let Some(pipe) = &mut self.pipe {
            let _ = writeln!(pipe, "{pid}");
        }
    }

    pub(super) fn begin(&mut self) {
        drop(self.pipe.take());
    }

    pub(super) fn wait(&mut self) {
        let _ = self.child.wait();
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.begin();
        self.wait();
    }
}

/// The cleaner's end of it.
pub(super) fn run(scratch: &Path) -> Result<(), CliError> {
    let mut words = String::new();
    let _ = std::io::stdin().read_to_string(&mut words);
    let pids: Vec<Pid> = words.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
    let processes: Vec<Pid> = pids.into_iter().filter(|pid| works_in(*pid, scratch)).collect();
    signal(&processes, Signal::CONT);
    for mount in mounts_below(scratch)? {
        let in_use = |force: &[&str]| -> Result<bool, CliError> {
            let mut umount = this_program()?;
            umount.arg("umount").arg(&mount).args(force).stderr(Stdio::null());
            Ok(!umount.status().map_err(CliError::io("soda umount"))?.success())
        };
        if in_use(&[])? {
            eprintln!("soda: {} is still in use: it is cut off", mount.display());
            in_use(&["--force"])?;
        }
    }
    signal(&processes, Signal::TERM);
    let deadline = Instant::now() + FAREWELL;
    while Instant::now() < deadline && processes.iter().any(|pid| works_in(*pid, scratch)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let stubborn: Vec<Pid> = processes.into_iter().filter(|pid| works_in(*pid, scratch)).collect();
    signal(&stubborn, Signal::KILL);
    // What is below a mount is not ours to remove.
    match mounts_below(scratch)?.is_empty() {
        true => fs::remove_dir_all(scratch).map_err(CliError::io(scratch.display().to_string())),
        false => Err(CliError::Failed(format!("cannot unmount what is below {}", scratch.display()))),
    }
}

fn mounts_below(scratch: &Path) -> Result<Vec<PathBuf>, CliError> {
    Ok(control::table()?.into_iter().map(|mount| mount.dir).filter(|dir| dir.starts_with(scratch)).collect())
}

/// Whether this is still a process of the demo: a number may have been given to another since. One that has ended, but was
/// not waited for, has no words left.
fn works_in(pid: Pid, scratch: &Path) -> bool {
    let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let scratch = scratch.as_os_str().as_encoded_bytes();
    words.windows(scratch.len()).any(|window| window == scratch)
}

fn signal(processes: &[Pid], signal: Signal) {
    for pid in processes {
        let _ = kill_process(*pid, signal);
    }
}
