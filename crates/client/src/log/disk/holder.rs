//! Who has locked a log: written into its lock, so that who finds it locked can tell a client that runs from one that was killed
//! and has not ended yet. Such a one may take seconds to give its memory back, and longer where one of its threads is stuck in
//! the kernel; until then its locks are there.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Of a thread's flags in `/proc/PID/stat` (Linux, include/linux/sched.h): it exits (PF_EXITING), or was killed by a signal
/// (PF_SIGNALED).
const ENDING: u64 = 0x4 | 0x400;
/// SIGKILL among the signals that wait for a thread.
const KILLED: u64 = 1 << 8;

/// What is known of a process that has a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    Alive,
    /// It was killed, and its locks go with it.
    Ending,
    /// It has not named itself, or lives in another PID namespace.
    Unknown,
}

/// Names this process in a lock that it has, and its client, for people. Without room for that it stays unknown.
pub(super) fn note(mut lock: &File, client: &str) {
    let started = process("self").map_or_else(|| "-".to_owned(), |process| process.started);
    let namespace = namespace().unwrap_or_else(|| "-".to_owned());
    let client = client.replace('\n', " ");
    let _ = writeln!(lock, "{} {started} {namespace} {client}", std::process::id());
}

/// Of a lock that somebody has.
pub(super) fn of(lock: &Path) -> Holder {
    let text = fs::read_to_string(lock).unwrap_or_default();
    let [Some(pid), Some(started), Some(found), _] = words(&text) else { return Holder::Unknown };
    if namespace().is_none_or(|own| own != found) {
        return Holder::Unknown;
    }
    match process(pid) {
        Some(process) if process.started == started && !process.is_ending => Holder::Alive,
        // Gone, or its number is another's: the lock is about to go.
        _ => Holder::Ending,
    }
}

/// The client that has, or had, a lock.
pub(super) fn client_of(lock: &Path) -> Option<String> {
    let text = fs::read_to_string(lock).ok()?;
    let [.., client] = words(&text);
    client.filter(|client| !client.is_empty()).map(str::to_owned)
}

fn words(text: &str) -> [Option<&str>; 4] {
    let mut words = text.lines().last().unwrap_or_default().splitn(4, ' ');
    std::array::from_fn(|_| words.next())
}

struct Process {
    is_ending: bool,
    /// In clock ticks since the machine's start.
    started: String,
}

/// From proc_pid_stat(5).
fn process(pid: &str) -> Option<Process> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    // Behind the name, which may hold anything: the third field and on.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    let number = |at: usize| field(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let is_ending =
        matches!(field(3)?, "Z" | "X" | "x") || number(9) & ENDING != 0 || number(31) & KILLED != 0;
    Some(Process { is_ending, started: field(22)?.to_owned() })
}

fn namespace() -> Option<String> {
    fs::read_link("/proc/self/ns/pid").ok()?.to_str().map(str::to_owned)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    use std::process::{Command, Stdio};
    use std::sync::{PoisonError, RwLock, RwLockReadGuard};

    /// A process that is being started has all open files of this one until it has become its program, and with them the locks of
    /// other tests.
    static STARTING: RwLock<()> = RwLock::new(());

    /// While this lives nobody starts a process, so what is let go is free at once.
    pub(in super::super) fn nobody_starts() -> RwLockReadGuard<'static, ()> {
        STARTING.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(lock: &Path, pid: u32) {
        let Process { started, .. } = process(&pid.to_string()).unwrap();
        fs::write(lock, format!("{pid} {started} {}\n", namespace().unwrap())).unwrap();
    }

    #[test]
    fn who_was_killed_is_told_from_who_runs() {
        let lock = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(of(lock.path()), Holder::Unknown, "nobody has written anything");
        note(lock.as_file(), "host:/a b");
        assert_eq!(of(lock.path()), Holder::Alive, "this process");
        assert_eq!(client_of(lock.path()).unwrap(), "host:/a b");
        let starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(starting);
        named(lock.path(), child.id());
        assert_eq!(of(lock.path()), Holder::Alive);
        child.kill().unwrap();
        // A zombie: nobody has asked for its end. Just before, between the signal that waits and the exit, Linux has a moment in
        // which neither can be seen.
        let id = WaitId::Pid(Pid::from_child(&child));
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert_eq!(of(lock.path()), Holder::Ending);
        child.wait().unwrap();
        assert_eq!(of(lock.path()), Holder::Ending, "it is gone");
        fs::write(lock.path(), format!("{} 1 {}\n", std::process::id(), namespace().unwrap())).unwrap();
        assert_eq!(of(lock.path()), Holder::Ending, "another process has its number");
        fs::write(lock.path(), format!("{} 1 pid:[1]\n", std::process::id())).unwrap();
        assert_eq!(of(lock.path()), Holder::Unknown, "its number means nothing here");
    }
}
