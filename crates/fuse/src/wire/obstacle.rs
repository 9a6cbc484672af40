//! What keeps FUSE over io_uring from the mounts of a process, and what to do about it.

use super::uring;
use io_uring::IoUring;
use io_uring::squeue::Entry128;
use rustix::io::Errno;
use std::fmt;
use std::io;

/// The switch of the kernel's module.
pub const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Who may have rings: 0, all; 1, a group and who has CAP_SYS_ADMIN; 2, nobody (Documentation/admin-guide/sysctl/kernel.rst).
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Something that stands in the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    pub what: String,
    /// How to have it out of the way; empty: not at all, on this machine.
    pub mend: String,
}

impl Obstacle {
    pub(super) fn new(what: impl Into<String>, mend: impl Into<String>) -> Obstacle {
        Obstacle { what: what.into(), mend: mend.into() }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mend.as_str() {
            "" => f.write_str(&self.what),
            mend => write!(f, "{} ({mend})", self.what),
        }
    }
}

/// What is known of the kernel's side: by its INIT, or before any mount by what it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KernelSide {
    pub(super) offers_uring: bool,
    /// Of the release series that the tests passed on.
    pub(super) is_tested: bool,
}

impl KernelSide {
    /// `offers_uring`: by its INIT.
    pub(super) fn saying(offers_uring: bool) -> KernelSide {
        KernelSide { offers_uring, is_tested: is_tested(&release()) }
    }

    fn of_this_machine() -> KernelSide {
        let is_on = std::fs::read_to_string(URING_SWITCH).is_ok_and(|value| switched_off(&value).is_none());
        KernelSide::saying(is_on)
    }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Of a release such as `6.18.44-1-amd64`. Neither older nor newer ones: nudges, the take-over and the end of a daemon that is
/// killed rest on what this series does inside ([`super::uring`]), which no other promises to do. The version of the protocol
/// does not tell: not each release has another.
fn is_tested(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    (next(), next()) == (Some(6), Some(18))
}

/// Why `transport=auto` takes /dev/fuse for a mount of this process whose `cores` are free: all of it, so that nobody finds the
/// second thing after the first was mended. Empty: it takes io_uring.
pub fn auto_obstacles() -> Vec<Obstacle> {
    against_auto(KernelSide::of_this_machine())
}

/// What `auto` decides by; where there is nothing it takes io_uring.
pub(super) fn against_auto(kernel: KernelSide) -> Vec<Obstacle> {
    let mut all = machine_obstacles(kernel.offers_uring);
    if all.iter().any(|obstacle| obstacle.mend.is_empty()) {
        return all;
    }
    if !kernel.is_tested {
        let what = format!(
            "this kernel ({}) is not one of Linux 6.18, the only ones that it is tested with, and rests on what these do inside \
             (`transport=uring` is for who wants to test it)",
            release()
        );
        all.push(Obstacle::new(what, ""));
    }
    all.extend(uring::drawback());
    all
}

/// What no mount of this process gets past.
pub(super) fn machine_obstacles(offers_uring: bool) -> Vec<Obstacle> {
    let switch = match std::fs::read_to_string(URING_SWITCH) {
        Ok(value) => switched_off(&value),
        Err(_) => {
            return vec![Obstacle::new(
                "the kernel has no FUSE over io_uring (Linux 6.14 and later have, if built with CONFIG_FUSE_IO_URING)",
                "",
            )];
        }
    };
    let disabled = std::fs::read_to_string(DISABLED).unwrap_or_default();
    let obstacles: Vec<Obstacle> = [switch, no_ring(try_ring(), &disabled)].into_iter().flatten().collect();
    match obstacles.is_empty() && !offers_uring {
        true => vec![Obstacle::new("the kernel does not offer it", "")],
        false => obstacles,
    }
}

fn switched_off(value: &str) -> Option<Obstacle> {
    (value.trim() == "N").then(|| {
        let mend = format!(
            "`echo Y > {URING_SWITCH}` as root, and for the next start of the machine the line `options fuse enable_uring=1` in \
             /etc/modprobe.d/fuse.conf, or `fuse.enable_uring=1` on the kernel's command line"
        );
        Obstacle::new("it is switched off", mend)
    })
}

/// Makes a ring as those of a mount are, and drops it.
fn try_ring() -> io::Result<()> {
    let ring: IoUring<Entry128> =
        IoUring::builder().setup_single_issuer().setup_coop_taskrun().setup_r_disabled().build(1)?;
    drop(ring);
    Ok(())
}

/// `disabled`: what is in [`DISABLED`].
fn no_ring(made: io::Result<()>, disabled: &str) -> Option<Obstacle> {
    let error = made.err()?;
    let for_all = "`sysctl -w kernel.io_uring_disabled=0` as root";
    Some(match (Errno::from_io_error(&error), disabled.trim()) {
        (Some(Errno::PERM), "1") => Obstacle::new(
            "the kernel makes rings only for who has CAP_SYS_ADMIN or is in the group `kernel.io_uring_group` \
             (kernel.io_uring_disabled is 1)",
            for_all,
        ),
        (Some(Errno::PERM), "2") => {
            Obstacle::new("the kernel makes rings for nobody (kernel.io_uring_disabled is 2)", for_all)
        }
        (Some(Errno::PERM), _) => Obstacle::new(
            "a seccomp filter forbids io_uring, as that of most containers does",
            "the daemon needs one that allows io_uring_setup, io_uring_enter and io_uring_register",
        ),
        (Some(Errno::NOSYS), _) => Obstacle::new(
            "the kernel was built without io_uring, or a seccomp filter of a container hides it",
            "",
        ),
        _ => Obstacle::new(format!("a ring cannot be made: {error}"), ""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_is_off_is_told_with_how_to_have_it_on_for_good() {
        let off = switched_off("N\n").unwrap();
        assert!(off.mend.contains("echo Y > /sys/module/fuse") && off.mend.contains("modprobe.d"), "{off}");
        assert_eq!(switched_off("Y\n"), None);
    }

    #[test]
    fn who_gets_no_ring_hears_who_forbids_it() {
        let why = |errno: Errno, disabled: &str| no_ring(Err(errno.into()), disabled).unwrap().to_string();
        assert!(why(Errno::PERM, "2\n").contains("io_uring_disabled is 2"));
        assert!(why(Errno::PERM, "1\n").contains("kernel.io_uring_group"));
        assert!(why(Errno::PERM, "0\n").contains("seccomp") && why(Errno::PERM, "").contains("seccomp"));
        assert!(why(Errno::NOSYS, "0\n").contains("built without"));
        assert!(why(Errno::NOMEM, "0\n").contains("a ring cannot be made: "));
        assert_eq!(no_ring(Ok(()), "0\n"), None);
    }

    #[test]
    fn kernels_that_it_was_tested_with_are_known_by_their_release() {
        assert!(["6.18.44-1-amd64", "6.18.0-rc1", "6.18"].into_iter().all(is_tested));
        assert!(
            !["6.17.9", "5.19", "6.19.0", "6.180", "7.0", "7.18", "strange", ""].into_iter().any(is_tested)
        );
    }

    /// Whatever this machine has: what the kernel lacks altogether is all that is said, else that it was not tried is, too.
    #[test]
    fn all_that_is_in_the_way_is_told_at_once() {
        let with = |offers_uring, is_tested| against_auto(KernelSide { offers_uring, is_tested });
        let is_untried = |obstacle: &Obstacle| obstacle.what.contains("is not one of Linux 6.18");
        let is_hopeless = machine_obstacles(true).iter().any(|obstacle| obstacle.mend.is_empty());
        assert_eq!(with(true, false).iter().any(is_untried), !is_hopeless);
        assert!(!with(true, true).iter().any(is_untried));
        assert!(!with(false, true).is_empty(), "it was not offered");
    }
}
