//! `scripts/timed-out` decides which failures of tests are given a second chance.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A target of which these tests failed, each with what its panics said.
fn target(name: &str, failed: &[(&str, &[&str])]) -> String {
    let mut log = String::from("running 2 tests\ntest passes ... ok\n");
    for (test, _) in failed {
        log += &format!("test {test} ... FAILED\n");
    }
    log += "\nfailures:\n\n";
    for (test, panics) in failed {
        log += &format!("---- {test} stdout ----\nwhat the test printed\n");
        for message in *panics {
            log += &format!(
                "\nthread '{test}' (71) panicked at crates/x/tests/y.rs:30:5:\n{message}\nmore of it\n"
            );
            log += "stack backtrace:\n   0: __rustc::rust_begin_unwind\n";
        }
        log += "\n\n";
    }
    log += "failures:\n";
    for (test, _) in failed {
        log += &format!("    {test}\n");
    }
    let count = failed.len();
    log += &format!("\ntest result: FAILED. 1 passed; {count} failed; 0 ignored; finished in 1.00s\n\n");
    log + &format!("error: test failed, to rerun pass `-p x --test {name}`\n")
}

/// What may be run again; `None`: nothing.
fn again(log: &str) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/timed-out");
    let mut command = Command::new(script);
    let mut script = command.arg("/dev/stdin").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    script.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    assert_eq!(output.status.success(), !output.stdout.is_empty());
    Some(String::from_utf8(output.stdout).unwrap()).filter(|lines| !lines.is_empty())
}

const LATE: &[&str] = &["TIMED OUT: the reader still waits"];
const STALE: &[&str] = &["assertion `left == right` failed: TIMED OUT is not how it begins"];

#[test]
fn tests_that_ran_out_of_time_are_run_again() {
    assert_eq!(again(&target("y", &[("slow", LATE)])).as_deref(), Some("-p x --test y\tslow\n"));
    let two = target("y", &[("slow", LATE)]) + &target("z", &[("slow::too", LATE)]);
    assert_eq!(again(&two).as_deref(), Some("-p x --test y\tslow\n-p x --test z\tslow::too\n"));
}

#[test]
fn a_wrong_answer_is_none_of_them_and_spoils_it_for_the_others() {
    assert_eq!(again(&target("y", &[("stale", STALE)])), None);
    assert_eq!(again(&target("y", &[("slow", LATE), ("stale", STALE)])), None);
    // In another target, before or after; of the same name.
    let (slow, stale) = (target("y", &[("same", LATE)]), target("z", &[("same", STALE)]));
    assert_eq!(again(&format!("{slow}{stale}")), None);
    assert_eq!(again(&format!("{stale}{slow}")), None);
    // Another thread of the test saw it.
    assert_eq!(again(&target("y", &[("both", &[STALE[0], LATE[0]])])), None);
    assert_eq!(again(&target("y", &[("both", &[LATE[0], STALE[0]])])), None);
}

#[test]
fn what_is_not_a_failed_test_is_none_of_them() {
    assert_eq!(again("error: could not compile `x` (lib) due to 1 previous error\n"), None);
    let died =
        "running 2 tests\nerror: test failed, to rerun pass `-p x --test z`\n\nCaused by:\n  signal: 6\n";
    assert_eq!(again(&(target("y", &[("slow", LATE)]) + died)), None);
    // The process died, or cargo was killed, before it said how the test failed.
    assert_eq!(again(&format!("test slow ... FAILED\n{died}")), None);
    assert_eq!(again(&(target("y", &[("slow", LATE)]) + "test other ... FAILED\n")), None);
    // It failed without a panic.
    assert_eq!(again(&target("y", &[("error", &[])])), None);
}
