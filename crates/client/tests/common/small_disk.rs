//! A disk that gets full: a small tmpfs in a mount namespace of its own. Who is not root may be denied that, then the tests are
//! skipped.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Runs an ignored test of this program, with a disk of this size in the directory that a variable of the environment says.
pub(crate) fn on_a_small_disk(test: &str, size: &str, variable: &str) {
    let mount_point = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=$SODA_SIZE none \"$SODA_DISK\" || exit 77
        exec \"$0\" --exact \"$SODA_CHILD\" --ignored";
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let namespaces: &[&str] = if root { &["--mount"] } else { &["--map-root-user", "--mount"] };
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(variable, mount_point.path())
        .env("SODA_DISK", mount_point.path())
        .env("SODA_SIZE", size)
        .env("SODA_CHILD", test)
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) if output.status.code() == Some(101) => {
            panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        }
        other => {
            assert!(
                !root && std::env::var_os("SODA_TEST_REQUIRE").is_none(),
                "no full disk to be had: {other:?}"
            );
            eprintln!("SKIPPED: no mount namespace to be had: {other:?}");
        }
    }
}
