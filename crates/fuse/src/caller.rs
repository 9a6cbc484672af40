//! What /proc says of the thread that asks. Read only where the answer matters: it takes some microseconds.
//!
//! Of some threads it says nothing: of those of another PID namespace than the daemon's, as where that runs in a container and
//! its mount is used outside. Linux gives 0 for their number (`pid_nr_ns`).

use rustix::io::Errno;
use rustix::process::{Pid, getpgid};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// What there is to see of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// `/proc/TID/status`.
    Status(String),
    /// There is no such thread any more.
    Gone,
    /// Nobody here can say: it is of another PID namespace, or /proc hides it (`hidepid`), or is not this process' own.
    Unknown,
}

/// Looks a thread up that made a request.
pub(crate) fn look_at(tid: u32) -> Seen {
    if tid == 0 || !is_proc_ours() {
        return Seen::Unknown;
    }
    match fs::read_to_string(format!("/proc/{tid}/status")) {
        Ok(status) => Seen::Status(status),
        Err(_) if is_there(tid) => Seen::Unknown,
        Err(_) => Seen::Gone,
    }
}

/// Whether numbers in /proc mean what they mean to this process: not where it was put into a PID namespace and /proc was not.
pub(crate) fn is_proc_ours() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    *OURS.get_or_init(|| fs::read_link("/proc/self").is_ok_and(|own| is_number_of(&own, std::process::id())))
}

fn is_number_of(link: &Path, process: u32) -> bool {
    link.to_str().is_some_and(|number| number == process.to_string())
}

/// By a system call, from which /proc's options hide nothing.
fn is_there(tid: u32) -> bool {
    let thread = i32::try_from(tid).ok().and_then(Pid::from_raw);
    thread.is_some_and(|thread| getpgid(Some(thread)) != Err(Errno::SRCH))
}

/// Whether a fatal signal is pending for the thread: the kernel then marks SIGKILL, whatever the signal was. `None`: nobody can
/// say.
pub(crate) fn is_dying(tid: u32) -> Option<bool> {
    match look_at(tid) {
        Seen::Status(status) => Some(Signals::of(&status).is_fatal()),
        Seen::Gone => Some(true),
        Seen::Unknown => None,
    }
}

/// Of a thread, a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signals {
    pending: u64,
    blocked: u64,
    ignored: u64,
}

impl Signals {
    /// `status`: as /proc shows it.
    pub(crate) fn of(status: &str) -> Signals {
        let mask = |name: &str| {
            let masks = status.lines().filter_map(|line| line.strip_prefix(name));
            masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).fold(0, |all, mask| all | mask)
        };
        Signals {
            pending: mask("SigPnd:") | mask("ShdPnd:"),
            blocked: mask("SigBlk:"),
            ignored: mask("SigIgn:"),
        }
    }

    pub(crate) fn is_fatal(self) -> bool {
        const SIGKILL: u64 = 1 << 8;
        self.pending & SIGKILL != 0
    }

    pub(crate) fn is_heard(self) -> bool {
        self.pending & !self.blocked & !self.ignored != 0
    }
}

/// A number of capabilities(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capability {
    /// Does what only an owner may.
    FileOwner = 3,
    /// Sets set-group-id for groups that it is not in.
    SetGroupId = 4,
    Administration = 21,
}

/// Whether the thread has a capability that counts here. In a user namespace of its own anybody has all of them, for what is in
/// there. `None`: nobody can say.
pub(crate) fn has_capability(tid: u32, capability: Capability) -> Option<bool> {
    let Seen::Status(status) = look_at(tid) else { return None };
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    if namespace(&tid.to_string())? != namespace("self")? {
        return Some(false);
    }
    Some(effective(&status) & (1 << capability as u32) != 0)
}

/// Whether the group is among the thread's supplementary ones, as far as anybody can say.
pub(crate) fn is_in_group(tid: u32, gid: u32) -> bool {
    matches!(look_at(tid), Seen::Status(status) if is_member(&status, gid))
}

fn is_member(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

/// The effective capabilities, a bit each.
fn effective(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        assert_eq!(effective("Name:\tx\nCapPrm:\tff\nCapEff:\t0000000000000008\n"), 8);
        assert_eq!(effective("Name:\tx\n"), 0);
        assert!(is_member("Gid:\t7\nGroups:\t4 24 \n", 24) && !is_member("Groups:\t4 24 \n", 2));
    }

    #[test]
    fn signals_are_heard_unless_they_are_blocked_or_ignored() {
        let pending =
            Signals::of("SigPnd:\t0000000000000000\nShdPnd:\t0000000000002000\nSigBlk:\t0\nSigIgn:\t0\n");
        assert!(pending.is_heard() && !pending.is_fatal());
        assert!(!Signals { blocked: 0x2000, ..pending }.is_heard());
        assert!(!Signals { ignored: 0x2000, ..pending }.is_heard());
        assert!(Signals::of("SigPnd:\t0000000000000100\n").is_fatal());
    }

    proptest::proptest! {
        #[test]
        fn random_words_of_proc_do_not_panic(
            said in "((SigPnd|ShdPnd|SigBlk|SigIgn|CapEff|Groups):[\t 0-9a-g]{0,20}\n|\\PC{0,9}){0,8}",
        ) {
            effective(&said);
            is_member(&said, 7);
            let signals = Signals::of(&said);
            proptest::prop_assert!(signals.pending != 0 || !signals.is_heard() && !signals.is_fatal());
        }
    }

    #[test]
    fn who_cannot_be_seen_is_not_gone() {
        let own = std::process::id();
        assert!(matches!(look_at(own), Seen::Status(status) if status.contains("SigPnd:")));
        assert_eq!((look_at(0), look_at(u32::MAX)), (Seen::Unknown, Seen::Gone));
        assert_eq!((has_capability(0, Capability::FileOwner), is_in_group(0, 0)), (None, false));
        assert!(is_there(own) && !is_there(i32::MAX as u32));
    }

    #[test]
    fn the_proc_of_another_namespace_is_known_by_this_process_number_there() {
        assert!(is_number_of(Path::new("77"), 77));
        assert!(!is_number_of(Path::new("4077"), 77) && !is_number_of(Path::new("1"), 77));
    }
}
