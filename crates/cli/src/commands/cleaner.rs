//! A process that outlives the demo, or the lab, for a moment: when the pipe between them closes, for whatever reason, it
//! unmounts, ends the processes and removes the directories. There is no other way out, so the one after kill -9 is
//! well-trodden.

use crate::commands::this_program;
use crate::control;
use crate::error::CliError;
use rustix::process::{Pid, Signal, kill_process};
use soda_lab::setup::STARTED_FOR;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Asked politely, they have this long to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// How those are treated that are left when the pipe closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// What machines have not told yet is told, for the data may be kept.
    InOrder,
    /// Nothing there is of any worth, and what leads to the server may be gone.
    AtOnce,
}

const AT_ONCE: &str = "at-once";

/// What the program is called by then.
const NAME: &str = "soda-cleaner";

/// The end of it that whoever has it cleaned up keeps.
#[derive(Debug)]
pub(crate) struct Cleaner {
    child: Child,
    pipe: Option<ChildStdin>,
    scratch: PathBuf,
}

impl Cleaner {
    /// Makes a directory whose name begins so, which it will clean up: processes of this program that have it among their
    /// words, others that were started for it ([`STARTED_FOR`]), what is mounted below, and all that is in it.
    pub(crate) fn start(prefix: &str, manner: Manner) -> Result<Cleaner, CliError> {
        let failed = || CliError::io("a temporary directory");
        let made = tempfile::Builder::new().prefix(prefix).tempdir().map_err(failed())?;
        let scratch = made.path().canonicalize().map_err(failed())?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(&scratch).stdin(Stdio::piped()).stdout(Stdio::null());
        if manner == Manner::AtOnce {
            command.arg(AT_ONCE);
        }
        let started = command.process_group(0).spawn();
        let mut child = started.map_err(CliError::io("cannot start a process"))?;
        // From here on the cleaner removes it.
        let _ = made.keep();
        let pipe = child.stdin.take();
        Ok(Cleaner { child, pipe, scratch })
    }

    /// Without symbolic links.
    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch
    }

    pub(crate) fn begin(&mut self) {
        drop(self.pipe.take());
    }

    pub(crate) fn wait(&mut self) {
        let _ = self.child.wait();
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.begin();
        self.wait();
    }
}

pub(crate) fn is_meant(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|name| name == OsStr::new(NAME))
}

/// The cleaner's end of it.
pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let Some(scratch) = arguments.get(1).map(Path::new).filter(|scratch| scratch.is_absolute()) else {
        return ExitCode::FAILURE;
    };
    // Who is started holds the other end until it runs its own program, so nobody is missed below.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let manner = match arguments.get(2).is_some_and(|word| word == OsStr::new(AT_ONCE)) {
        true => Manner::AtOnce,
        false => Manner::InOrder,
    };
    match clean_up(scratch, manner) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soda: {error}");
            ExitCode::FAILURE
        }
    }
}

fn clean_up(scratch: &Path, manner: Manner) -> Result<(), CliError> {
    if manner == Manner::InOrder {
        in_order(scratch)?;
    }
    let deadline = Instant::now() + FAREWELL;
    loop {
        // Killed first: one that is just mounting must not be done with it after the mounts were looked at.
        let processes = processes_in(scratch)?;
        signal(&processes, Signal::KILL);
        while Instant::now() < deadline && processes.iter().any(|pid| belongs_to(*pid, scratch)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        for mount in mounts_below(scratch)? {
            umount(&mount, &["--force"])?;
        }
        // What is below a mount is not ours to remove.
        let is_free = mounts_below(scratch)?.is_empty();
        let removed = if is_free && scratch.exists() { fs::remove_dir_all(scratch) } else { Ok(()) };
        // Whoever is only asked to end may have started something meanwhile, or have made a file in what was empty just now.
        match (is_free && processes_in(scratch)?.is_empty() && !scratch.exists(), removed) {
            (true, _) => return Ok(()),
            (false, _) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            (false, Err(error)) => return Err(CliError::io(scratch.display().to_string())(error)),
            (false, Ok(())) => {
                let scratch = scratch.display();
                return Err(CliError::Failed(format!("cannot take away what is below {scratch}")));
            }
        }
    }
}

/// As their users would end them.
fn in_order(scratch: &Path) -> Result<(), CliError> {
    let processes = processes_in(scratch)?;
    signal(&processes, Signal::CONT);
    for mount in mounts_below(scratch)? {
        if !umount(&mount, &[])? {
            eprintln!("soda: {} is still in use: it is cut off", mount.display());
            umount(&mount, &["--force"])?;
        }
    }
    signal(&processes, Signal::TERM);
    let deadline = Instant::now() + FAREWELL;
    while Instant::now() < deadline && processes.iter().any(|pid| works_in(*pid, scratch)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether it is gone.
fn umount(mount: &Path, options: &[&str]) -> Result<bool, CliError> {
    let mut umount = this_program()?;
    umount.arg("umount").arg(mount).args(options).stderr(Stdio::null());
    Ok(umount.status().map_err(CliError::io("soda umount"))?.success())
}

fn mounts_below(scratch: &Path) -> Result<Vec<PathBuf>, CliError> {
    Ok(control::table()?.into_iter().map(|mount| mount.dir).filter(|dir| dir.starts_with(scratch)).collect())
}

/// This program's and those that were started for it, but not this process. Who only looks at a file there with a program of
/// another name is left alone.
fn processes_in(scratch: &Path) -> Result<Vec<Pid>, CliError> {
    let numbers = fs::read_dir("/proc").map_err(CliError::io("/proc"))?.flatten();
    let pids = numbers.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let own = rustix::process::getpid();
    Ok(pids.filter(|pid| *pid != own && belongs_to(*pid, scratch)).collect())
}

/// Whether this is still a process to be ended: a number may have been given to another since. One that has ended, but was not
/// waited for, has neither words nor an environment left.
fn belongs_to(pid: Pid, scratch: &Path) -> bool {
    is_this_program(pid) && works_in(pid, scratch) || was_started_for(pid, scratch)
}

/// A compiler of an experiment, which knows nothing of the directory, or what it has started.
fn was_started_for(pid: Pid, scratch: &Path) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
    let mark = [STARTED_FOR.as_bytes(), b"=", scratch.as_os_str().as_encoded_bytes()].concat();
    environment.split(|byte| *byte == 0).any(|word| word == mark)
}

fn is_this_program(pid: Pid) -> bool {
    let file = |pid: &str| fs::metadata(format!("/proc/{pid}/exe")).map(|file| (file.dev(), file.ino())).ok();
    file(&pid.as_raw_nonzero().to_string()).is_some_and(|other| Some(other) == file("self"))
}

/// Whether it has the directory among its words.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_another_name_that_were_started_for_it_are_ended_and_what_they_make_is_taken_away() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = parent.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        // As a build: a process of its own group, which has another, and both make files all the time.
        let makes = "i=0; while :; do i=$((i+1)); mkdir $1$i && : > $1$i/file; done";
        let script = format!("sh -c '{makes}' x a & set -- b; {makes}");
        let start = |mark: Option<&Path>| {
            let mut command = Command::new("sh");
            command.args(["-c", &script]).current_dir(&scratch).process_group(0).stderr(Stdio::null());
            if let Some(mark) = mark {
                command.env(STARTED_FOR, mark);
            }
            command.spawn().unwrap()
        };
        let mut meant = start(Some(&scratch));
        // Somebody else's, who has nothing to do with it but for where a shell of his stands.
        let mut other = Command::new("sleep").arg("60").current_dir(&scratch).spawn().unwrap();
        clean_up(&scratch, Manner::AtOnce).unwrap();
        assert!(!scratch.exists());
        assert!(other.try_wait().unwrap().is_none(), "it was ended, too");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!meant.wait().unwrap().success());
        assert_eq!(processes_in(&scratch).unwrap(), Vec::new());
    }
}
