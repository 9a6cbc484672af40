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
        if let Some(mount) = mounts.iter().rev().find(|mount| mount.dir == real) {
            let rest = absolute.strip_prefix(prefix).unwrap_or(Path::new(""));
            return Ok(Some((mount, rest.to_path_buf())));
        }
    }
    Ok(None)
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
