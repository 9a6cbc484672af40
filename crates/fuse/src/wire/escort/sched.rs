//! What Linux's scheduler is asked and told (sched(7), proc_pid_stat(5)).

pub(super) use crate::wire::audited::{Policy, policy_of, set_policy};

use crate::caller::is_proc_ours;
use crate::wire::obstacle::Obstacle;
use rustix::thread::{CpuSet, Pid, gettid};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

/// What lets a thread come back from `SCHED_IDLE` (sched(7)).
const NICE: &str = "the daemon needs CAP_SYS_NICE, or a limit of nice that allows 0: `LimitNICE=+0` in a unit of systemd, for a \
                    user the line `USER - nice 0` in /etc/security/limits.conf";

/// The cores of the process.
static FREE: OnceLock<CpuSet> = OnceLock::new();

/// Takes back what this thread has, or inherited, of an escort. Does nothing in a process that has none.
pub(super) fn run_as_usual() {
    let Some(free) = FREE.get() else { return };
    if policy_of(gettid()).is_ok_and(|policy| policy == Policy::Idle) {
        let _ = set_policy(gettid(), Policy::Ordinary);
    }
    if rustix::thread::sched_getaffinity(None).is_ok_and(|cores| cores.count() == 1) {
        // Fails if the process was moved to other cores since: Linux has seen to its threads then.
        let _ = rustix::thread::sched_setaffinity(None, free);
    }
}

/// Whether this machine and what this process may do here allow for an escort; to be asked by a thread that has what all
/// threads have.
///
/// # Errors
/// Why not.
pub(in crate::wire) fn check() -> Result<(), Obstacle> {
    let failed = |what: &str, error: io::Error| Obstacle::new(format!("{what}: {error}"), "");
    let free = rustix::thread::sched_getaffinity(None).map_err(|error| failed("its cores", error.into()))?;
    if free.count() < 2 {
        return Err(Obstacle::new("there is one core for it", ""));
    }
    if policy_of(gettid()).map_err(|error| failed("its policy", error))? != Policy::Ordinary {
        return Err(Obstacle::new("the daemon is not scheduled as usual", "start it by `chrt --other 0`"));
    }
    if !is_proc_ours() {
        return Err(Obstacle::new("/proc is of another PID namespace", "mount /proc in the daemon's own"));
    }
    fs::metadata("/proc/self/schedstat").map_err(|error| failed("/proc/self/schedstat", error))?;
    let (tell, told) = channel();
    let (_stay, until) = channel::<()>();
    // With a thread that sleeps: one that runs might not get its core again for seconds.
    let sleeper = move || {
        let _ = tell.send(gettid());
        let _ = until.recv();
    };
    Builder::new().name("fuse-sleeper".into()).spawn(sleeper).map_err(|error| failed("a thread", error))?;
    let sleeper = told.recv().map_err(|_| Obstacle::new("a thread has ended", ""))?;
    set_policy(sleeper, Policy::Idle).map_err(|error| failed("SCHED_IDLE", error))?;
    set_policy(sleeper, Policy::Ordinary).map_err(|error| {
        let Obstacle { what, .. } = failed("there is no way back from SCHED_IDLE", error);
        Obstacle::new(what, NICE)
    })?;
    let _ = FREE.set(free);
    soda_client::threads::begin_with(run_as_usual);
    Ok(())
}

/// # Errors
/// `EINVAL`: not in this process's cpuset, or not there. `ESRCH`: the thread has ended.
pub(super) fn set_cores(thread: Pid, cores: &CpuSet) -> io::Result<()> {
    Ok(rustix::thread::sched_setaffinity(Some(thread), cores)?)
}

/// # Errors
/// `ESRCH`: the thread has ended.
pub(super) fn cores_of(thread: Pid) -> io::Result<CpuSet> {
    Ok(rustix::thread::sched_getaffinity(Some(thread))?)
}

/// A thread of any process, as /proc shows it.
#[derive(Debug)]
pub(super) struct Observed {
    stat: File,
    schedstat: File,
}

/// What a thread is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// It computes, or waits for its core.
    pub(super) is_runnable: bool,
    /// The core that it runs on, or ran on last.
    pub(super) core: usize,
    /// For how long it has been runnable and not running, since it began.
    pub(super) waited: Duration,
}

impl Observed {
    /// # Errors
    /// There is none, as of another PID namespace.
    pub(super) fn open(tid: u32) -> io::Result<Observed> {
        let open = |file: &str| File::open(format!("/proc/{tid}/task/{tid}/{file}"));
        Ok(Observed { stat: open("stat")?, schedstat: open("schedstat")? })
    }

    /// # Errors
    /// `ESRCH`: the thread has ended.
    pub(super) fn look(&self) -> io::Result<Seen> {
        let mut buffer = [0; 1024];
        let len = self.stat.read_at(&mut buffer, 0)?;
        let (is_runnable, core) = parse_stat(&buffer[..len]).ok_or(io::ErrorKind::InvalidData)?;
        let len = self.schedstat.read_at(&mut buffer, 0)?;
        let waited = parse_schedstat(&buffer[..len]).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Seen { is_runnable, core, waited })
    }
}

/// State and core. A program may have named itself with brackets and blanks.
fn parse_stat(stat: &[u8]) -> Option<(bool, usize)> {
    const CORE_AFTER_STATE: usize = 36;
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_ends + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    Some((state == "R", fields.nth(CORE_AFTER_STATE - 1)?.parse().ok()?))
}

/// The second number, nanoseconds.
fn parse_schedstat(schedstat: &[u8]) -> Option<Duration> {
    let waited = std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace().nth(1)?;
    Some(Duration::from_nanos(waited.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn random_words_of_proc_do_not_panic(
            words in proptest::collection::vec("[0-9RSZ() ]{0,24}|\\PC{0,6}", 0..60),
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40),
        ) {
            for said in [words.join(" ").as_bytes(), &bytes] {
                parse_stat(said);
                parse_schedstat(said);
            }
        }
    }

    #[test]
    fn what_proc_says_of_a_thread_is_read() {
        let fields = (4..=38).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let stat = |state: &str| format!("77 (a) R (b) {state} {fields} 5 0 0 0\n");
        assert_eq!(parse_stat(stat("R").as_bytes()), Some((true, 5)));
        assert_eq!(parse_stat(stat("S").as_bytes()), Some((false, 5)));
        assert_eq!(parse_stat(stat("Z").as_bytes()), None);
        assert_eq!(parse_stat(b"77 (a) R 1 2"), None);
        assert_eq!(parse_schedstat(b"1234 5678 9\n"), Some(Duration::from_nanos(5678)));
        assert_eq!(parse_schedstat(b""), None);
        let own = gettid();
        let seen = Observed::open(own.as_raw_nonzero().get() as u32).unwrap().look().unwrap();
        assert!(seen.is_runnable && cores_of(own).unwrap().is_set(seen.core));
        assert!(Observed::open(u32::MAX).is_err());
    }
}
