//! mount(2) and umount(2), by ourselves as root, else through fusermount3.

use super::{FILE_SYSTEM_TYPE, MountError};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Mounts and unmounts for who is not root.
const HELPER: &str = "fusermount3";

/// Options of mount(8) that the kernel carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MountFlags {
    pub access: MountAccess,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    /// No symbolic link is followed (Linux 5.10). They can be read all the same.
    pub no_symfollow: bool,
    /// Users but the one who mounts may use it. Always so when root mounts.
    pub allow_other: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MountAccess {
    #[default]
    ReadWrite,
    ReadOnly,
}

pub(super) fn check_mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let bad = |cause: io::Error| {
        let cause = match Errno::from_io_error(&cause) {
            // Its daemon died.
            Some(Errno::NOTCONN) => {
                io::Error::other(format!("a dead mount is there; run `soda umount {}`", dir.display()))
            }
            _ => cause,
        };
        MountError::MountPoint { path: dir.to_path_buf(), cause }
    };
    let path = dir.canonicalize().map_err(bad)?;
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err(bad(io::Error::from(io::ErrorKind::NotADirectory))),
        Err(cause) => Err(bad(cause)),
    }
}

/// The device of a new mount on `dir`.
pub(super) fn mount(source: &str, dir: &Path, flags: &MountFlags) -> Result<OwnedFd, MountError> {
    match rustix::process::geteuid().is_root() {
        true => mount_as_root(source, dir, flags),
        false => mount_with_helper(Command::new(HELPER), source, dir, flags),
    }
}

fn mount_as_root(source: &str, dir: &Path, flags: &MountFlags) -> Result<OwnedFd, MountError> {
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| MountError::NoDevice(error.into()))?;
    let ids = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        fd.as_raw_fd(),
        ids.0,
        ids.1
    );
    let failed = |cause| MountError::Mount { path: dir.to_path_buf(), cause };
    let data = CString::new(data).map_err(|_| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
    rustix::mount::mount(source, dir, FILE_SYSTEM_TYPE, kernel_flags(flags), data.as_c_str())
        .map_err(|error| failed(error.into()))?;
    Ok(fd)
}

fn kernel_flags(flags: &MountFlags) -> rustix::mount::MountFlags {
    use rustix::mount::MountFlags as Kernel;
    let mut kernel = Kernel::NOATIME;
    kernel.set(Kernel::NOSUID, flags.no_suid);
    kernel.set(Kernel::NODEV, flags.no_dev);
    kernel.set(Kernel::NOEXEC, flags.no_exec);
    kernel.set(Kernel::NOSYMFOLLOW, flags.no_symfollow);
    kernel.set(Kernel::RDONLY, flags.access == MountAccess::ReadOnly);
    kernel
}

/// Changes the flags of a mount.
///
/// # Errors
/// mount(2)'s.
pub fn remount(dir: &Path, flags: &MountFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(dir, kernel_flags(flags), "")?)
}

/// The set-user-id helper mounts, and sends the device over a socket.
fn mount_with_helper(
    mut helper: Command,
    source: &str,
    dir: &Path,
    flags: &MountFlags,
) -> Result<OwnedFd, MountError> {
    let failed = |text: String| MountError::Helper(text);
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None);
    let (ours, theirs) = pair.map_err(|error| failed(error.to_string()))?;
    let _ = rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC);
    let mut options = format!("fsname={source},subtype=soda,default_permissions,noatime");
    let chosen = [
        (flags.access == MountAccess::ReadOnly, "ro"),
        (flags.no_suid, "nosuid"),
        (flags.no_dev, "nodev"),
        (flags.no_exec, "noexec"),
        (flags.no_symfollow, "nosymfollow"),
        (flags.allow_other, "allow_other"),
    ];
    for (_, option) in chosen.iter().filter(|(on, _)| *on) {
        options.push(',');
        options.push_str(option);
    }
    let output = helper
        .args(["-o", &options, "--"])
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("{error}; install the package fuse3, or mount as root")))?;
    drop(theirs);
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
    receive_fd(&ours).map_err(|error| {
        // It has mounted, and nobody is going to serve that.
        if let Err(error) = detach(dir) {
            tracing::warn!(%error, "a dead mount stays on {}", dir.display());
        }
        failed(error.to_string())
    })
}

fn receive_fd(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(io::Error::other("it sent no device"))
}

pub(super) fn detach(dir: &Path) -> io::Result<()> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(dir, flags) {
        Err(Errno::PERM) => {
            let status = Command::new(HELPER).args(["-u", "-z", "-q", "--"]).arg(dir).status()?;
            match status.success() {
                true => Ok(()),
                false => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            }
        }
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_mount_point() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(check_mount_point(file.path()), Err(MountError::MountPoint { .. })));
        assert!(matches!(check_mount_point(Path::new("/no/such/dir")), Err(MountError::MountPoint { .. })));
    }

    #[test]
    fn who_may_not_open_the_device_hears_of_its_mode() {
        let text = |errno: Errno| MountError::NoDevice(errno.into()).to_string();
        let denied = text(Errno::ACCESS);
        assert!(denied.contains("chmod a+rw /dev/fuse") && !denied.contains("modprobe"), "{denied}");
        assert!(text(Errno::NOENT).contains("modprobe fuse"));
    }

    /// One that mounts and sends nothing, as one that runs out of descriptors.
    #[test]
    fn what_a_helper_mounted_is_detached_if_its_device_does_not_come() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("SODA_TEST_REQUIRE").is_none(), "needs root");
            return println!("SKIPPED: needs root");
        }
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        // Called as `helper -o OPTIONS -- DIRECTORY`.
        let mut helper = Command::new("sh");
        helper.args(["-c", "exec mount -t tmpfs -o size=4k nothing \"$4\"", "helper"]);
        let mounted = mount_with_helper(helper, "nothing", dir, &MountFlags::default());
        assert!(matches!(&mounted, Err(MountError::Helper(why)) if why.contains("no device")), "{mounted:?}");
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(dir.to_str().unwrap()), "it is still mounted");
    }

    #[test]
    fn links_are_the_kernels_to_follow_or_not() {
        let flags = MountFlags { no_symfollow: true, ..MountFlags::default() };
        assert!(kernel_flags(&flags).contains(rustix::mount::MountFlags::NOSYMFOLLOW));
    }
}
