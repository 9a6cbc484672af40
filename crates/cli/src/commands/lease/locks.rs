//! File locks: who has which, and who waits for one.

use crate::table::Table;
use crate::units::{count, show_duration};
use soda_protocol::{DelegateInfo, LockHolder, LockWaitInfo, LocksInfo, WhyInfo};
use soda_types::{Lock, LockFamily, LockMode};

/// Who waits, and who is in the way.
pub(super) fn lock_waits_text(locks: &LocksInfo, info: &WhyInfo) -> String {
    let mut out: String = locks.waiting.iter().map(|wait| wait_text(wait, info)).collect();
    if locks.more_waiting > 0 {
        out.push_str(&format!("and {} more for its file locks\n", count(locks.more_waiting, "request")));
    }
    out
}

fn wait_text(wait: &LockWaitInfo, info: &WhyInfo) -> String {
    let LockWaitInfo { name, wants, waited, .. } = wait;
    let what = match wait.operation.as_str() {
        "locktest" => "to be told who is in the way of",
        _ => "for",
    };
    let in_the_way = match (&wait.in_the_way, &info.lock_delegate) {
        (Some(LockHolder { name, lock, .. }), _) => {
            format!("{name} (process {} there) has {}.", lock.pid, with_article(lock))
        }
        (None, Some(delegate)) => {
            let name = &delegate.name;
            let asked = delegate.recalled_for.map_or_else(
                || "is about to be asked".to_owned(),
                |time| format!("was asked {} ago", show_duration(time)),
            );
            format!("{name} decides about its file locks, and {asked} to tell the server of them.")
        }
        (None, None) => "Nobody is in its way any more.".to_owned(),
    };
    format!(
        "{name} (process {} there) waits {what} {}: {} so far.\n  {in_the_way}\n",
        wants.pid,
        with_article(wants),
        show_duration(*waited)
    )
}

/// Nothing where nobody has one.
pub(super) fn held_text(locks: &LocksInfo) -> String {
    if locks.held.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["file lock", "bytes", "holder", "process", "session"]);
    for LockHolder { session, name, lock } in &locks.held {
        table.row([
            format!("{} {}", mode(lock), kind(lock)),
            bytes(lock),
            name.clone(),
            lock.pid.to_string(),
            session.to_string(),
        ]);
    }
    let more = match locks.more_held {
        0 => String::new(),
        more => format!("and {} more\n", count(more, "lock")),
    };
    format!("\n{table}{more}")
}

/// Who decides about them in place of the server.
pub(super) fn delegate_text(delegate: &DelegateInfo) -> String {
    let asked = match delegate.recalled_for {
        Some(time) => format!("; the server asked for that back {} ago", show_duration(time)),
        None => ", until somebody else asks for one: which it has is known there only".into(),
    };
    format!("{} takes and releases its file locks without asking{asked}", delegate.name)
}

/// `an exclusive flock`, `a shared fcntl lock on bytes 0-9`.
pub(super) fn with_article(lock: &Lock) -> String {
    let article = match lock.mode {
        LockMode::Shared => "a",
        LockMode::Exclusive => "an",
    };
    let what = match lock.family {
        LockFamily::Flock => "flock".to_owned(),
        LockFamily::Record => format!("fcntl lock on {}", bytes_in_words(lock)),
    };
    format!("{article} {} {what}", mode(lock))
}

fn bytes_in_words(lock: &Lock) -> String {
    match (lock.start, lock.end) {
        (0, u64::MAX) => "all of it".into(),
        (start, u64::MAX) => format!("all from byte {start} on"),
        (start, end) => format!("bytes {start}-{end}"),
    }
}

fn bytes(lock: &Lock) -> String {
    match (lock.start, lock.end) {
        (0, u64::MAX) => "all".into(),
        (start, u64::MAX) => format!("{start}-"),
        (start, end) => format!("{start}-{end}"),
    }
}

/// Of record locks it is not told which are a process's and which an open file's (OFD).
fn kind(lock: &Lock) -> &'static str {
    match lock.family {
        LockFamily::Flock => "flock",
        LockFamily::Record => "fcntl",
    }
}

fn mode(lock: &Lock) -> &'static str {
    match lock.mode {
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Explained;
    use super::super::tests::{explained, why};
    use super::*;
    use soda_types::{LockOwner, SessionId};
    use std::time::Duration;

    pub(crate) fn flock(pid: u32) -> Lock {
        let (family, mode) = (LockFamily::Flock, LockMode::Exclusive);
        Lock { family, owner: LockOwner(u64::from(pid)), pid, start: 0, end: u64::MAX, mode }
    }

    fn record(pid: u32, start: u64, end: u64) -> Lock {
        Lock { family: LockFamily::Record, mode: LockMode::Shared, start, end, ..flock(pid) }
    }

    fn holder(session: u64, name: &str, lock: Lock) -> LockHolder {
        LockHolder { session: SessionId(session), name: name.into(), lock }
    }

    fn wait(wants: Lock, in_the_way: Option<LockHolder>) -> LockWaitInfo {
        LockWaitInfo {
            session: SessionId(2),
            name: "two:/mnt".into(),
            operation: "lockset".into(),
            wants,
            waited: Duration::from_secs(3),
            in_the_way,
        }
    }

    #[test]
    fn who_has_a_file_lock_and_who_waits_for_it() {
        let one = holder(1, "one:/mnt", flock(12));
        let locks = LocksInfo {
            waiting: vec![wait(flock(77), Some(one.clone()))],
            more_waiting: 2,
            held: vec![
                one,
                holder(1, "one:/mnt", record(12, 0, 9)),
                holder(3, "three:/x", record(5, 7, u64::MAX)),
            ],
            more_held: 1,
        };
        let text = Explained { file_locks: Some(locks), ..explained(why(), None) }.text();
        let expected = "\
/f (file 1:3, 2.0 KiB)

two:/mnt (process 77 there) waits for an exclusive flock: 3.0 s so far.
  one:/mnt (process 12 there) has an exclusive flock.
and 2 requests more for its file locks

Nobody holds a lease on it: whoever reads it asks the server.

FILE LOCK        BYTES  HOLDER    PROCESS  SESSION
exclusive flock  all    one:/mnt       12  s1
shared fcntl     0-9    one:/mnt       12  s1
shared fcntl     7-     three:/x        5  s3
and 1 lock more

lately  3.00 reads/s and 0.00 writes/s came to the server, from 1 client
policy  leases are given
";
        assert_eq!(text, expected);
    }

    #[test]
    fn locks_that_another_machine_decides_about_are_known_there() {
        let delegate = |recalled_for| {
            Some(DelegateInfo { session: SessionId(1), name: "one:/mnt".into(), recalled_for })
        };
        let asked = WhyInfo { lock_delegate: delegate(Some(Duration::from_secs(1))), ..why() };
        let locks = LocksInfo { waiting: vec![wait(record(77, 0, u64::MAX), None)], ..LocksInfo::default() };
        let text = Explained { file_locks: Some(locks), ..explained(asked, None) }.text();
        let waits = "two:/mnt (process 77 there) waits for a shared fcntl lock on all of it: 3.0 s so far.\n  one:/mnt decides \
                     about its file locks, and was asked 1.0 s ago to tell the server of them.\n";
        assert!(text.contains(waits), "{text}");
        let end = "\nlocks   one:/mnt takes and releases its file locks without asking; the server asked for that back 1.0 s \
                   ago\n";
        assert!(text.ends_with(end), "{text}");
        let alone = explained(WhyInfo { lock_delegate: delegate(None), ..why() }, None).text();
        assert!(
            alone.contains("\nNobody waits for it.\n")
                && alone.ends_with(": which it has is known there only\n"),
            "{alone}"
        );
    }

    #[test]
    fn a_server_that_does_not_tell_of_locks_is_not_said_to_have_none() {
        let text = Explained { file_locks: None, ..explained(why(), None) }.text();
        assert!(text.contains("\nThe server is of a version that does not tell of file locks.\n"), "{text}");
    }
}
