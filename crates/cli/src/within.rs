//! Which mount a path leads into.

use crate::error::CliError;
use soda_fuse::MountEntry;
use std::path::{Component, Path, PathBuf};

/// The mount that a path leads into, and what is left of the path there. Nothing in the mount is touched: who asks why
/// others wait must not wait with them.
pub(crate) fn in_mount<'a>(
    path: &Path,
    mounts: &'a [MountEntry],
) -> Result<Option<(&'a MountEntry, PathBuf)>, CliError> {
    let absolute =
        without_dots(&std::path::absolute(path).map_err(CliError::io(path.display().to_string()))?);
    let mut above = absolute.ancestors().collect::<Vec<_>>();
    above.reverse();
    for prefix in above {
        // Symbolic links on the way are followed up to the mount's root, which is a directory and asks nobody.
        let Ok(real) = prefix.canonicalize() else { break };
        if let Some(first) = mounts.iter().rposition(|mount| mount.dir == real) {
            let rest = absolute.strip_prefix(prefix).unwrap_or(Path::new(""));
            return Ok(deepest(&mounts[first..], &real.join(rest)));
        }
    }
    Ok(None)
}

/// As far as mounts lead that were made on directories of the first, or below.
fn deepest<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<(&'a MountEntry, PathBuf)> {
    // Of several on one directory the last is the one that is seen.
    let on_the_way = mounts.iter().filter(|mount| path.starts_with(&mount.dir));
    let mount = on_the_way.max_by_key(|mount| mount.dir.as_os_str().len())?;
    Some((mount, path.strip_prefix(&mount.dir).ok()?.to_path_buf()))
}

/// `a/../b` is `b`: by its text, as a shell's `cd` takes it.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, component| {
        match component {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
        plain
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::entry;

    #[test]
    fn a_mount_below_a_mount_is_the_one_that_a_path_leads_into() {
        let mounts = [
            entry(1, "/", "/mnt"),
            entry(1, "/a", "/mnt/b"),
            entry(1, "/c", "/mnt/b"),
            entry(1, "/d", "/elsewhere"),
        ];
        let leads = |path: &str| {
            let (mount, rest) = deepest(&mounts, Path::new(path)).unwrap();
            (mount.root.clone(), rest)
        };
        assert_eq!(leads("/mnt/b/x"), ("/c".into(), "x".into()));
        assert_eq!(leads("/mnt/b"), ("/c".into(), "".into()));
        assert_eq!(leads("/mnt/bb"), ("/".into(), "bb".into()));
    }
}
