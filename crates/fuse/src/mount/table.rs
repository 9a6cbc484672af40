//! The kernel's table of mounts, and its knobs under /sys.

use super::FILE_SYSTEM_TYPE;
use crate::wire::device::Device;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Where the kernel shows a directory for each connection, if its control file system is mounted.
const CONTROL_DIR: &str = "/sys/fs/fuse/connections";

/// A Soda mount of this machine's namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    pub dir: PathBuf,
    /// What of the volume is shown there: `/`, or what a bind mount was made of, as the kernel knows its path. The end
    /// `//deleted` says that it was removed.
    pub root: PathBuf,
    /// `HOST:PORT/VOLUME`
    pub source: String,
    /// Major and minor device number: the same for a mount and all that show it once more.
    pub device: (u32, u32),
    /// The user who mounted it, as this user namespace numbers them; the kernel shows it for every FUSE mount.
    pub owner: Option<u32>,
}

/// All Soda mounts, the latest last.
///
/// # Errors
/// /proc cannot be read.
pub fn list_mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The Soda mount on `dir`, which need not be alive: nothing below it is touched.
///
/// # Errors
/// /proc cannot be read.
pub fn find_mount(dir: &Path) -> io::Result<Option<MountEntry>> {
    let wanted = absolute(dir)?;
    Ok(list_mounts()?.into_iter().rev().find(|entry| entry.dir == wanted))
}

/// Absolute, links resolved but for the last element, which may be a dead mount.
fn absolute(dir: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(dir)?;
    // `a/.` and a trailing slash name the directory itself.
    let path: PathBuf = path.components().collect();
    if let Ok(resolved) = path.canonicalize() {
        return Ok(resolved);
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(path),
    }
}

fn parse(mountinfo: &[u8]) -> Vec<MountEntry> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point options optional... - type source super-options`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = unescape(fields.next()?);
    let dir = unescape(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    if rest.next()? != FILE_SYSTEM_TYPE.as_bytes() {
        return None;
    }
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let options = std::str::from_utf8(rest.next().unwrap_or_default()).unwrap_or_default();
    let owner = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry {
        dir: PathBuf::from(OsString::from_vec(dir)),
        root: PathBuf::from(OsString::from_vec(root)),
        source,
        device: (major.parse().ok()?, minor.parse().ok()?),
        owner,
    })
}

/// Blanks and the like are octal in tables of mounts: `\040`.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(digits) => {
                out.push(
                    digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

pub(super) fn set_read_ahead(dir: &Path, kib: u32) -> io::Result<()> {
    let mount = find_mount_entry(dir)?;
    let (major, minor) = mount.device;
    std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string())
}

/// As [`find_mount`], for a path that is resolved already: asks nothing of the mount.
fn find_mount_entry(dir: &Path) -> io::Result<MountEntry> {
    let found = list_mounts()?.into_iter().rev().find(|entry| entry.dir == dir);
    found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Ends a mount's connection to its daemon: all that wait for it fail. For a mount whose server or daemon is gone.
///
/// # Errors
/// Not root.
pub fn abort_connection(mount: &MountEntry) -> io::Result<()> {
    abort_knob(mount.device)?.write_all(b"1")
}

/// What ends the connection of a mount when something is written to it: of this connection only, whatever gets its number
/// afterwards.
///
/// # Errors
/// Not root, nor who mounted it.
pub(super) fn abort_knob((_, minor): (u32, u32)) -> io::Result<File> {
    let path = Path::new(CONTROL_DIR).join(minor.to_string()).join("abort");
    let open = || File::options().write(true).open(&path);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // systemd mounts it; other machines do without until somebody needs it.
            let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
            match rustix::mount::mount("fusectl", CONTROL_DIR, "fusectl", flags, None) {
                // Somebody else has, meanwhile.
                Ok(()) | Err(Errno::BUSY) => open().map_err(named),
                Err(error) => {
                    Err(io::Error::new(error.kind(), format!("cannot mount {CONTROL_DIR}: {error}")))
                }
            }
        }
        result => result.map_err(named),
    }
}

/// Device number of the mount whose requests come over `device`; it is on `dir`.
///
/// # Errors
/// As [`own_device`], where the kernel does not say it of the descriptor.
pub(super) fn connection_of(device: &Device, dir: &Path) -> io::Result<(u32, u32)> {
    let path = format!("/proc/self/fdinfo/{}", device.as_fd().as_raw_fd());
    let said = std::fs::read_to_string(path).unwrap_or_default();
    match said_connection(&said) {
        Some(minor) => Ok((0, minor)),
        None => own_device(dir),
    }
}

/// What the kernel says of a descriptor of /dev/fuse: in Linux 6.18 the number of the connection, the minor one of the mount.
/// The major one is 0 for all that are on no device.
fn said_connection(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// Device number of the mount on `dir` that this process has just made.
///
/// # Errors
/// Another Soda mount is there, too, made at the same time.
fn own_device(dir: &Path) -> io::Result<(u32, u32)> {
    only_device(dir, &list_mounts()?)
}

fn only_device(dir: &Path, mounts: &[MountEntry]) -> io::Result<(u32, u32)> {
    let mut there = mounts.iter().filter(|entry| entry.dir == dir).map(|entry| entry.device);
    let device = there.next().ok_or(io::ErrorKind::NotFound)?;
    match there.all(|other| other == device) {
        true => Ok(device),
        false => Err(io::Error::other("several mounts were made on the directory at once")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn only_soda_mounts_are_listed() {
        let text = b"22 1 98:0 / / rw - ext4 /dev/vda rw\n\
            40 22 0:45 / /mnt/a\\040b rw,noatime shared:1 - fuse.soda 127.0.0.1:7632/main rw,user_id=0\n\
            41 22 0:46 / /mnt/c rw - fuse.sshfs x rw\n\
            42 22 0:45 /x\\040y /mnt/d rw - fuse.soda 127.0.0.1:7632/main rw,user_id=1000,group_id=0\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].dir, Path::new("/mnt/a b"));
        assert_eq!((mounts[0].source.as_str(), mounts[0].device), ("127.0.0.1:7632/main", (0, 45)));
        assert_eq!(mounts[0].root, Path::new("/"));
        assert_eq!((mounts[0].owner, mounts[1].owner), (Some(0), Some(1000)));
        assert_eq!((mounts[1].root.as_path(), mounts[1].device), (Path::new("/x y"), (0, 45)));
    }

    /// As the kernel writes a field (`mangle` in `fs/proc_namespace.c`).
    fn escape(field: &[u8]) -> Vec<u8> {
        let escaped = |byte: &u8| match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
            byte => vec![*byte],
        };
        field.iter().flat_map(escaped).collect()
    }

    proptest! {
        #[test]
        fn whatever_a_directory_is_called_it_is_found(
            dir in proptest::collection::vec(prop_oneof![1u8..=255, Just(b' '), Just(b'\\'), Just(b'-')], 1..40),
        ) {
            let line = [b"40 22 0:45 /x ", &escape(&dir)[..], b" rw shared:1 - fuse.soda h:1/main rw,user_id=7\n"].concat();
            let found = parse(&line);
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(found[0].dir.as_os_str().as_bytes(), &dir[..]);
            prop_assert_eq!((found[0].device, found[0].owner), ((0, 45), Some(7)));
        }

        #[test]
        fn random_tables_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            lines in concat!(
                "([0-9]{0,12}( |:|\n|-|/|fuse\\.soda|user_id=[0-9]{0,12}|",
                "\\\\[0-9]{0,3}|fuse_connection:\t[0-9]{0,12}|,)){0,40}",
            ),
        ) {
            parse(&bytes);
            parse(lines.as_bytes());
            said_connection(&lines);
        }
    }

    #[test]
    fn which_of_several_mounts_is_ones_own_is_not_guessed() {
        let mount = |dir: &str, minor| MountEntry {
            dir: dir.into(),
            root: "/".into(),
            source: String::new(),
            device: (0, minor),
            owner: None,
        };
        let mounts = [mount("/a", 5), mount("/b", 6), mount("/a", 5), mount("/b", 7)];
        assert_eq!(only_device(Path::new("/a"), &mounts).unwrap(), (0, 5));
        assert!(only_device(Path::new("/b"), &mounts).unwrap_err().to_string().contains("several"));
        assert_eq!(only_device(Path::new("/c"), &mounts).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_kernel_names_the_connection_of_a_descriptor() {
        let said = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t39\n";
        assert_eq!(said_connection(said), Some(39));
        assert_eq!(said_connection(&said.replace("fuse_connection", "x")), None);
    }

    #[test]
    fn half_an_escape_is_left_alone() {
        assert_eq!(unescape(b"a\\0"), b"a\\0");
        assert_eq!(unescape(b"\\134\\011"), b"\\\t");
    }
}
