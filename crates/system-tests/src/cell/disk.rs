//! A disk that is soon full.

use super::PATIENCE;
use crate::wait;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk of a given size, in memory. Unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it on `dir`, which is made.
    ///
    /// # Panics
    /// If that fails.
    pub fn mount(dir: &Path, mebibytes: u32) -> SmallDisk {
        if let Err(error) = std::fs::create_dir_all(dir) {
            panic!("{}: {error}", dir.display());
        }
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "none"]);
        wait::run(mount.arg(dir), PATIENCE).expect_success("mount -t tmpfs");
        SmallDisk(dir.to_path_buf())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
