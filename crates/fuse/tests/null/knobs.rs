//! What the kernel shows of a connection.

use rustix::mount::MountFlags;
use std::path::{Path, PathBuf};

/// Where the kernel has the knobs of the connection of what is mounted at `dir`.
pub(crate) fn control(dir: &Path) -> PathBuf {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
    let minor = line.split(' ').nth(2).and_then(|number| number.split(':').nth(1)).unwrap();
    let all = Path::new("/sys/fs/fuse/connections");
    if std::fs::read_dir(all).unwrap().next().is_none() {
        rustix::mount::mount("none", all, "fusectl", MountFlags::empty(), None).unwrap();
    }
    all.join(minor)
}

/// Requests without an answer.
pub(crate) fn waiting(dir: &Path) -> usize {
    std::fs::read_to_string(control(dir).join("waiting")).unwrap().trim().parse().unwrap()
}
