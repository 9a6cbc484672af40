//! What /proc says of the thread that asks. Read only where the answer matters: it takes some microseconds.

use std::fs;

/// A number of capabilities(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Capability {
    /// Does what only an owner may.
    FileOwner = 3,
    /// Sets set-group-id for groups that it is not in.
    SetGroupId = 4,
    Administration = 21,
}

/// Whether the thread has a capability that counts here. In a user namespace of its own anybody has all of them, for what is in
/// there. `None`: nobody can say, as of a thread of another PID namespace.
pub(super) fn has_capability(tid: u32, capability: Capability) -> Option<bool> {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    if namespace(&tid.to_string())? != namespace("self")? {
        return Some(false);
    }
    Some(effective(&status(tid)?) & (1 << capability as u32) != 0)
}

/// Whether the group is among the thread's supplementary ones.
pub(super) fn is_in_group(tid: u32, gid: u32) -> bool {
    status(tid).is_some_and(|status| is_member(&status, gid))
}

fn status(tid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{tid}/status")).ok()
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
}
