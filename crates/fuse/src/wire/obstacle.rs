//! What keeps this machine from FUSE over io_uring, as far as it can be seen without mounting, and what to do about it.

use io_uring::IoUring;
use io_uring::squeue::Entry128;
use rustix::io::Errno;
use std::io;

/// The switch of the kernel's module.
pub const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Who may have rings: 0, all; 1, a group and who has CAP_SYS_ADMIN; 2, nobody (Documentation/admin-guide/sysctl/kernel.rst).
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// What stands in the way; all of it, so that nobody finds the second thing after the first was mended.
pub fn uring_obstacle() -> Option<String> {
    let switch = match std::fs::read_to_string(URING_SWITCH) {
        Ok(value) => switched_off(&value),
        Err(_) => return Some("the kernel has no FUSE over io_uring (Linux 6.14 and later have)".into()),
    };
    let disabled = std::fs::read_to_string(DISABLED).unwrap_or_default();
    let obstacles: Vec<String> = [switch, no_ring(try_ring(), &disabled)].into_iter().flatten().collect();
    (!obstacles.is_empty()).then(|| obstacles.join("; "))
}

fn switched_off(value: &str) -> Option<String> {
    (value.trim() == "N").then(|| {
        format!(
            "it is switched off: `echo Y > {URING_SWITCH}` as root, and for the next start of the machine the line `options fuse \
             enable_uring=1` in /etc/modprobe.d/fuse.conf, or `fuse.enable_uring=1` on the kernel's command line"
        )
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
fn no_ring(made: io::Result<()>, disabled: &str) -> Option<String> {
    let error = made.err()?;
    let mend = "`sysctl -w kernel.io_uring_disabled=0` as root";
    Some(match (Errno::from_io_error(&error), disabled.trim()) {
        (Some(Errno::PERM), "1") => format!(
            "the kernel makes rings only for who has CAP_SYS_ADMIN or is in the group `kernel.io_uring_group` \
             (kernel.io_uring_disabled is 1): {mend}"
        ),
        (Some(Errno::PERM), "2") => {
            format!("the kernel makes rings for nobody (kernel.io_uring_disabled is 2): {mend}")
        }
        (Some(Errno::PERM), _) => {
            "a seccomp filter forbids io_uring, as that of most containers does: the daemon needs one that \
             allows io_uring_setup, io_uring_enter and io_uring_register"
                .into()
        }
        (Some(Errno::NOSYS), _) => {
            "the kernel was built without io_uring, or a seccomp filter of a container hides it".into()
        }
        _ => format!("a ring cannot be made: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_is_off_is_told_with_how_to_have_it_on_for_good() {
        let why = switched_off("N\n").unwrap();
        assert!(why.contains("echo Y > /sys/module/fuse") && why.contains("modprobe.d"), "{why}");
        assert_eq!(switched_off("Y\n"), None);
    }

    #[test]
    fn who_gets_no_ring_hears_who_forbids_it() {
        let why = |errno: Errno, disabled: &str| no_ring(Err(errno.into()), disabled).unwrap();
        assert!(why(Errno::PERM, "2\n").contains("io_uring_disabled is 2"));
        assert!(why(Errno::PERM, "1\n").contains("kernel.io_uring_group"));
        assert!(why(Errno::PERM, "0\n").contains("seccomp") && why(Errno::PERM, "").contains("seccomp"));
        assert!(why(Errno::NOSYS, "0\n").contains("built without"));
        assert!(why(Errno::NOMEM, "0\n").contains("a ring cannot be made: "));
        assert_eq!(no_ring(Ok(()), "0\n"), None);
    }
}
