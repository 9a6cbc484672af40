//! Directories of the cache directory: what is in them is for this user only, whatever the modes in the volume say.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Others may do nothing.
const MODE: u32 = 0o700;

/// Makes a directory that others cannot enter, with the parents that are missing; shuts one that is there.
///
/// # Errors
/// It cannot be made, or is another user's.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(dir)?;
    let mode = fs::metadata(dir)?.permissions().mode() & 0o7777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => fs::set_permissions(dir, Permissions::from_mode(MODE)),
    }
}

/// As [`make_dir`]; the disk knows the names of those that it makes.
///
/// # Errors
/// As [`make_dir`], or the disk fails.
pub(crate) fn make_dir_durably(dir: &Path) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let missing = dir.ancestors().take_while(|dir| !dir.exists()).count();
    make_dir(&dir)?;
    dir.ancestors().skip(1).take(missing).try_for_each(|parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_shut_whether_it_was_there_or_not() {
        let parent = tempfile::tempdir().unwrap();
        let (new, old) = (parent.path().join("a/b"), parent.path().join("old"));
        fs::create_dir(&old).unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o755)).unwrap();
        for dir in [new, old] {
            make_dir(&dir).unwrap();
            assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o7777, MODE);
        }
    }
}
