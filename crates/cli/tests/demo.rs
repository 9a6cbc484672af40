//! `soda demo --once`, as the README tells everybody to run first: it must end well and leave nothing behind.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    assert!(can || std::env::var_os("CI").is_none(), "CI must be able to mount");
    can
}

#[test]
fn the_demo_tells_its_story_and_cleans_up() {
    if !can_mount() {
        eprintln!("SKIPPED: needs root and /dev/fuse");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["--kill-after=5", "60", env!("CARGO_BIN_EXE_soda"), "demo", "--once"])
        .env("TMPDIR", scratch.path())
        .env("SODA_RUNTIME_DIR", scratch.path().join("run"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{:?}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("Not one stale answer"), "{text}");
    assert!(text.contains("gave up 1 lease when asked"), "{text}");
    assert!(text.contains("no message at all"), "{text}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&scratch.path().display().to_string()), "still mounted\n{mounts}");
    let left: Vec<_> =
        std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "run"), "left behind: {left:?}");
}
