//! A time limit for requests that the administrator has set for every FUSE mount (Linux 6.15 and later,
//! Documentation/admin-guide/sysctl/fs.rst). A mount does not survive it if a program waits for longer, which is nothing unusual
//! here: for a lock, or for a server that is away. Of the two limits one is for daemons that ask for none: where it is set this
//! one asks for the longest that there is.

use std::fmt;
use std::path::Path;
use std::time::Duration;

const SWITCHES: &str = "/proc/sys/fs/fuse";
/// For daemons that ask for none.
const DEFAULT: &str = "default_request_timeout";
/// For all.
const MOST: &str = "max_request_timeout";
/// Linux looks so often, and takes no less (`FUSE_TIMEOUT_TIMER_FREQ` in fs/fuse/fuse_i.h).
const LEAST: Duration = Duration::from_secs(15);

/// The longest that a daemon can ask for: seconds, in the 16 bits of `request_timeout` in `struct fuse_init_out`.
pub(super) const LONGEST: u16 = u16::MAX;

/// Whether to ask for [`LONGEST`]: not to ask would bring less.
pub(super) fn is_to_be_asked_for() -> bool {
    seconds(Path::new(SWITCHES), DEFAULT).is_some()
}

/// `None`: no limit.
fn seconds(switches: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(switches.join(name)).ok()?;
    text.trim().parse().ok().filter(|seconds| *seconds != 0)
}

/// After this time without an answer to a request Linux ends the whole mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestTimeout {
    pub after: Duration,
    /// The sysctls that say so.
    pub set_by: Vec<String>,
}

impl RequestTimeout {
    /// What mounts of this machine get that are made now; `None`: none, which is what Linux does by itself.
    pub fn of_this_machine() -> Option<RequestTimeout> {
        RequestTimeout::read(Path::new(SWITCHES))
    }

    /// As `init_server_timeout` in fs/fuse/inode.c counts.
    fn read(switches: &Path) -> Option<RequestTimeout> {
        let asked = seconds(switches, DEFAULT).map(|_| u64::from(LONGEST));
        let set = [(DEFAULT, asked), (MOST, seconds(switches, MOST))];
        let least = set.iter().filter_map(|(_, seconds)| *seconds).min()?;
        let is_set = |(name, seconds): &(&str, Option<u64>)| seconds.map(|_| format!("fs.fuse.{name}"));
        let after = Duration::from_secs(least).max(LEAST);
        Some(RequestTimeout { after, set_by: set.iter().filter_map(is_set).collect() })
    }

    /// What to do about it.
    pub fn advice(&self) -> String {
        let off: Vec<String> = self.set_by.iter().map(|name| format!("{name}=0")).collect();
        format!(
            "programs may wait for longer, for locks and for a server that is away: `sysctl -w {}` as root, and mount again",
            off.join(" ")
        )
    }
}

impl fmt::Display for RequestTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (after, set_by) = (self.after, self.set_by.join(", "));
        write!(
            f,
            "Linux ends a FUSE mount as soon as one of its requests has waited for {after:?} ({set_by})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(switches: &[(&str, &str)]) -> Option<(u64, Vec<String>)> {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in switches {
            std::fs::write(dir.path().join(name), value).unwrap();
        }
        RequestTimeout::read(dir.path()).map(|timeout| (timeout.after.as_secs(), timeout.set_by))
    }

    #[test]
    fn the_limit_for_all_counts_and_instead_of_the_other_one_the_longest_that_can_be_asked_for() {
        assert_eq!(read(&[]), None, "before Linux 6.15");
        assert_eq!(read(&[(DEFAULT, "0\n"), (MOST, "0\n")]), None);
        let of_default = vec!["fs.fuse.default_request_timeout".to_owned()];
        let of_most = vec!["fs.fuse.max_request_timeout".to_owned()];
        assert_eq!(read(&[(DEFAULT, "60\n"), (MOST, "0\n")]), Some((65_535, of_default.clone())));
        assert_eq!(read(&[(DEFAULT, "0\n"), (MOST, "3\n")]), Some((15, of_most.clone())));
        let both = [of_default, of_most].concat();
        assert_eq!(read(&[(DEFAULT, "15\n"), (MOST, "30\n")]), Some((30, both.clone())));
        assert_eq!(read(&[(DEFAULT, "15\n"), (MOST, "100000\n")]), Some((65_535, both)));
    }

    #[test]
    fn it_says_what_to_do() {
        let set_by = vec!["fs.fuse.max_request_timeout".to_owned()];
        let timeout = RequestTimeout { after: Duration::from_secs(60), set_by };
        assert!(timeout.to_string().contains("waited for 60s (fs.fuse.max_request_timeout)"), "{timeout}");
        assert!(timeout.advice().contains("sysctl -w fs.fuse.max_request_timeout=0"), "{}", timeout.advice());
    }
}
