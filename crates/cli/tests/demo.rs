//! `soda demo`, as the README tells everybody to run first: it must end well, and leave nothing behind however it ends.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod common;

use common::left_behind;
use soda_system_tests::cell::{PATIENCE, prerequisites};
use soda_system_tests::wait;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn demo(scratch: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
    command.arg("demo").env("TMPDIR", scratch).env("SODA_RUNTIME_DIR", scratch.join("run"));
    command
}

#[test]
fn the_demo_tells_its_story_and_cleans_up() {
    if !prerequisites() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let output =
        wait::run(demo(scratch.path()).arg("--once"), Duration::from_secs(90)).expect_success("the demo");
    let text = String::from_utf8_lossy(&output.stdout);
    for words in ["not one stale answer", "none", "waits to write", "was asked", "read lease"] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    assert_eq!(left_behind(scratch.path()), Vec::<String>::new());
}

#[test]
fn a_killed_demo_leaves_nothing_behind() {
    if !prerequisites() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    let mut command = demo(scratch.path());
    let mut demo =
        command.arg("--data").arg(data.path().join("kept")).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let invited = lines.map_while(Result::ok).any(|line| line.contains("Ctrl-C"));
    demo.kill().unwrap();
    demo.wait().unwrap();
    assert!(invited, "the demo never invited anybody");
    wait::until(PATIENCE, || left_behind(scratch.path()).is_empty());
    assert_eq!(left_behind(scratch.path()), Vec::<String>::new());
    assert!(data.path().join("kept/FORMAT").exists(), "the data directory was to be kept");
}
