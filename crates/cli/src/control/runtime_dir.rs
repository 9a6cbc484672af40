//! Where sockets and logs of this user's mounts are. The directory of last resort is below /tmp, where anybody may make it first:
//! so one that was not named is used, and asked, only if it is this user's own.

use crate::error::CliError;
use crate::user;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

const MODE: u32 = 0o700;
const OF_OTHERS: u32 = 0o077;
const HINT: &str = "SODA_RUNTIME_DIR names another place";

/// Who has said which directory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    ByUser,
    ByDefault,
}

pub(crate) fn runtime_dir() -> PathBuf {
    place().0
}

fn place() -> (PathBuf, Named) {
    if let Some(dir) = std::env::var_os("SODA_RUNTIME_DIR") {
        return (PathBuf::from(dir), Named::ByUser);
    }
    let dir = match user::is_machines_root() {
        true => PathBuf::from("/run/soda"),
        false => {
            let fallback = || std::env::temp_dir().join(format!("soda-{}", user::outside()));
            named_dir(std::env::var_os("XDG_RUNTIME_DIR")).map_or_else(fallback, |dir| dir.join("soda"))
        }
    };
    (dir, Named::ByDefault)
}

/// A directory that a variable of the environment names. One that is empty or relative counts as none, as the XDG Base
/// Directory Specification says.
pub(crate) fn named_dir(variable: Option<OsString>) -> Option<PathBuf> {
    variable.map(PathBuf::from).filter(|dir| dir.is_absolute())
}

/// Makes it, if need be, and keeps others out.
///
/// # Errors
/// It cannot be made, or is not this user's.
pub(super) fn made() -> Result<PathBuf, CliError> {
    let (dir, named) = place();
    let made = match named {
        Named::ByUser => fs::create_dir_all(&dir),
        Named::ByDefault => make_own(&dir, own_uid()),
    };
    let made = made.and_then(|()| fs::set_permissions(&dir, Permissions::from_mode(MODE)));
    made.map_err(CliError::io(format!("the runtime directory {} ({HINT})", dir.display())))?;
    Ok(dir)
}

/// It, to be looked into. `None`: somebody else may have put there what is in it, which is said once.
pub(super) fn trusted() -> Option<PathBuf> {
    static SAID: Once = Once::new();
    let (dir, named) = place();
    let checked = match named {
        Named::ByUser => Ok(()),
        Named::ByDefault => check(&dir, own_uid(), OF_OTHERS),
    };
    match checked {
        Ok(()) => return Some(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            SAID.call_once(|| eprintln!("soda: nobody is asked in {}: {error} ({HINT})", dir.display()))
        }
    }
    None
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn make_own(dir: &Path, owner: u32) -> io::Result<()> {
    dir.parent().map_or(Ok(()), fs::create_dir_all)?;
    match DirBuilder::new().mode(MODE).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        // What others may do with it is about to be taken from them.
        _ => check(dir, owner, 0),
    }
}

/// Whether it is a directory, no link to one, of this user, with none of these permissions.
fn check(dir: &Path, owner: u32, without: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let why = if !found.is_dir() {
        "it is no directory".to_owned()
    } else if found.uid() != owner {
        format!("it belongs to user {}", found.uid())
    } else if found.mode() & without != 0 {
        format!("others may use it (mode {:o})", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_directory_that_is_empty_or_relative_is_none() {
        let named = |text: &str| named_dir(Some(text.into()));
        assert_eq!([named(""), named("run"), named_dir(None)], [None, None, None]);
        assert_eq!(named("/run/user/7"), Some("/run/user/7".into()));
    }

    #[test]
    fn a_directory_that_somebody_else_has_made_is_neither_used_nor_asked() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, owner) = (tmp.path().join("a/soda-7"), own_uid());
        let asked = |dir: &Path, owner| check(dir, owner, OF_OTHERS).map_err(|error| error.kind());
        assert_eq!(asked(&dir, owner), Err(io::ErrorKind::NotFound));
        make_own(&dir, owner).unwrap();
        make_own(&dir, owner).unwrap();
        asked(&dir, owner).unwrap();
        let denied = Err(io::ErrorKind::PermissionDenied);
        assert_eq!(make_own(&dir, owner + 1).map_err(|error| error.kind()), denied);
        assert_eq!(asked(&dir, owner + 1), denied);
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert_eq!(make_own(&link, owner).map_err(|error| error.kind()), denied);
        assert_eq!(asked(&link, owner), denied);
        fs::set_permissions(&dir, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(asked(&dir, owner), denied);
        make_own(&dir, owner).unwrap();
    }
}
