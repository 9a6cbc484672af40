//! What commands say of a mount that was frozen past its term while another one needed its files: it has lost what it had not
//! told, and its programs may have ended without asking.

use soda_system_tests::cell::{
    Cell, MEASURED_TERM, Mount, Network, PATIENCE, Setting, is_mounted, prerequisites, soda_binary,
};
use soda_system_tests::wait;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Exit code, and what it says of what is wrong.
fn soda(arguments: &[&str]) -> (Option<i32>, String) {
    let output = wait::run(Command::new(soda_binary()).args(arguments), PATIENCE).output("it waits");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Of the first two of three mounts each has lost a change of a file of its own, of which no program has heard.
fn two_losers() -> Cell {
    // Longer than a busy machine takes for anything else here.
    let (network, term) = (Network::Loopback, MEASURED_TERM / 2);
    let mount_options = ["-o", "write=behind,dirty-age=1h"];
    let cell =
        Cell::assemble(3, &Setting { network, term, mount_options: &mount_options, ..Setting::default() });
    let name = |number: usize| format!("file{number}");
    for number in [0, 1] {
        let file = cell.root(number).join(name(number));
        fs::write(&file, "told").unwrap();
        assert_eq!(soda(&["sync", text(cell.root(number))]).0, Some(0));
        wait::in_time(PATIENCE, "nothing is delayed", || {
            fs::write(&file, "lost").unwrap();
            cell.mounts[number].counter("backlog_records") > 0
        });
    }
    let losers = &cell.mounts[..2];
    losers.iter().for_each(Mount::freeze);
    let theirs = [0, 1].map(|number| fs::read_to_string(cell.root(2).join(name(number))).unwrap());
    losers.iter().for_each(Mount::thaw);
    assert!(theirs.iter().all(|content| content != "lost"), "{theirs:?}");
    for number in [0, 1] {
        wait::in_time(PATIENCE, "nothing is lost", || cell.mounts[number].counter("lost_records") > 0);
    }
    cell
}

fn says_what_is_lost((code, said): (Option<i32>, String), root: &Path) {
    assert_eq!(code, Some(1), "{said}");
    let words = ["are lost", "its daemon's log", "`soda recover ls`", text(root)];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(!said.contains("Io"), "{said}");
}

// SEMANTICS 49, 56
#[test]
fn what_a_fenced_mount_has_lost_is_said_by_the_command_that_asks_for_all() {
    if !prerequisites() {
        return;
    }
    let cell = two_losers();
    let (synced, unmounted) = (cell.root(0), cell.root(1));
    says_what_is_lost(soda(&["sync", text(synced)]), synced);
    says_what_is_lost(soda(&["umount", text(unmounted)]), unmounted);
    assert!(!is_mounted(unmounted), "it was no reason to stay");
    let (code, said) = soda(&["umount", text(synced)]);
    assert_eq!(code, Some(0), "said once: {said}");
    // Of who had to wait: how long, if the other is gone.
    let log = fs::read_to_string(cell.server.log()).unwrap();
    let waits = log.lines().find(|line| line.contains("an operation waits"));
    assert!(waits.is_some_and(|line| line.contains("if_gone=") && line.contains("at_most=")), "{log}");
}
