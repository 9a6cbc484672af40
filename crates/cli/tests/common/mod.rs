//! What several programs of tests look at.

use std::fs;
use std::path::Path;

/// Mounts, processes and files of a run whose temporary directories are below `scratch`.
pub(crate) fn left_behind(scratch: &Path) -> Vec<String> {
    let scratch_text = scratch.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(&scratch_text)).map(str::to_owned);
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let words = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&words).into_owned()).filter(|words| words.contains(&scratch_text))
    });
    let files = fs::read_dir(scratch).unwrap().map(|entry| entry.unwrap().file_name().display().to_string());
    mounts.chain(processes).chain(files.filter(|name| name != "run")).collect()
}
