//! Mounts with delayed writes that are killed: what the next one tells, and what `soda recover` is left with.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use soda_system_tests::cell::{Cell, Network, PATIENCE, TERM, prerequisites, soda_binary};
use soda_system_tests::wait::{self, Finish};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const FILES: usize = 20;

fn soda(arguments: &[&str]) -> Command {
    let mut command = Command::new(soda_binary());
    command.args(arguments);
    command
}

fn recover(cache: &TempDir, arguments: &[&str]) -> Finish {
    let dir = cache.path().to_str().unwrap();
    let all: Vec<&str> =
        ["recover", "--cache-dir", dir].into_iter().chain(arguments.iter().copied()).collect();
    wait::run(&mut soda(&all), PATIENCE)
}

fn said(finish: Finish) -> String {
    let output = finish.expect_success("soda recover");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn kept(cache: &TempDir) -> Vec<serde_json::Value> {
    serde_json::from_str(&said(recover(cache, &["ls", "--json"]))).unwrap()
}

/// Mounts that tell nothing before they are asked; the first one logs.
fn cell(clients: usize, more: &str) -> (Cell, TempDir) {
    let cache = tempfile::tempdir().unwrap();
    let options = format!("write=behind,dirty-age=1h,cache-dir={}{more}", cache.path().display());
    (Cell::start_with(Network::Loopback, clients, &["-o", &options]), cache)
}

fn backlog(cell: &Cell) -> u64 {
    cell.mounts[0].counter("backlog_records")
}

/// Files with their numbers in a new directory, all of them delayed. The first changes go through, and bring the leases.
fn write_later(cell: &Cell) {
    wait::in_time(PATIENCE, "nothing is delayed", || {
        fs::write(cell.root(0).join("warm"), "up").unwrap();
        backlog(cell) > 0
    });
    let dir = cell.root(0).join("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..FILES {
        fs::write(dir.join(number.to_string()), number.to_string()).unwrap();
    }
    assert!(backlog(cell) as usize > FILES);
}

fn has_all(root: &Path) -> bool {
    (0..FILES).all(|number| {
        fs::read_to_string(root.join("dir").join(number.to_string()))
            .is_ok_and(|content| content == number.to_string())
    })
}

#[test]
fn a_mount_that_was_killed_tells_what_it_had_not() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = cell(2, "");
    for _ in 0..3 {
        write_later(&cell);
        cell.crash_client(0);
        assert!(cell.mounts[0].counter("replayed") > 0);
        assert!(has_all(cell.root(1)));
        fs::remove_dir_all(cell.root(0).join("dir")).unwrap();
        fs::remove_file(cell.root(0).join("warm")).unwrap();
    }
    assert!(kept(&cache).is_empty());
}

#[test]
fn an_unmount_without_the_server_leaves_the_rest_to_the_next_mount() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = cell(1, "");
    write_later(&cell);
    cell.server.kill();
    // As a machine that goes down in the middle of a long unmount.
    cell.mounts[0].crash();
    cell.server.restart();
    cell.mounts[0].start();
    assert!(has_all(cell.root(0)) && kept(&cache).is_empty());
}

#[test]
fn an_unmount_without_the_server_says_where_the_rest_is() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = cell(1, "");
    write_later(&cell);
    cell.server.kill();
    let dir = cell.root(0).to_str().unwrap().to_owned();
    let umount = wait::run(&mut soda(&["umount", &dir]), PATIENCE * 2).expect_success("umount");
    let said = String::from_utf8_lossy(&umount.stderr).into_owned();
    assert!(said.contains("is gone") && said.contains("cache-dir") && !said.contains("lost"), "{said}");
    cell.mounts[0].crash();
    cell.server.restart();
    cell.mounts[0].start();
    assert!(has_all(cell.root(0)) && kept(&cache).is_empty());
}

/// A log that is kept: somebody else needed the directory in which it was written.
fn fenced() -> (Cell, TempDir) {
    let (mut cell, cache) = cell(2, "");
    write_later(&cell);
    cell.mounts[0].crash();
    let gone = wait::until(TERM * 10, || fs::metadata(cell.root(1).join("dir")).is_err());
    assert!(gone, "nobody had been told of it");
    cell.mounts[0].start();
    (cell, cache)
}

// SEMANTICS 51
#[test]
fn what_may_not_be_told_any_more_is_kept_shown_applied_and_dropped() {
    if !prerequisites() {
        return;
    }
    let (mut cell, cache) = fenced();
    assert!(!cell.root(0).join("dir").exists(), "applied although it was fenced");
    let log = fs::read_to_string(cell.mounts[0].log()).unwrap();
    assert!(log.contains("soda recover"), "{log}");
    let [one] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    let name = one["name"].as_str().unwrap();
    assert!(said(recover(&cache, &["ls"])).contains("the session has ended"));
    assert!(said(recover(&cache, &["show", name])).contains("/dir/7"));
    let status = wait::run(&mut soda(&["status"]), PATIENCE).expect_success("status");
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("see `soda recover ls`"), "{status}");

    assert!(said(recover(&cache, &["apply", name])).contains("applied"));
    assert!(has_all(cell.root(0)) && has_all(cell.root(1)));
    assert!(kept(&cache).is_empty());

    // Once more, with somebody who was faster.
    fs::remove_dir_all(cell.root(1).join("dir")).unwrap();
    write_later(&cell);
    cell.mounts[0].crash();
    let dir = cell.root(1).join("dir");
    let faster = || fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join("7"), "theirs")).is_ok();
    assert!(wait::until(TERM * 10, faster));
    cell.mounts[0].start();
    let [one] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    let name = one["name"].as_str().unwrap();
    let output = recover(&cache, &["apply", name]).output("it waits");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && report.contains("its name is taken"), "{report}");
    assert_eq!(fs::read_to_string(dir.join("7")).unwrap(), "theirs");
    assert_eq!(kept(&cache).len(), 1, "what was not applied stays");
    assert!(said(recover(&cache, &["drop", name])).contains("dropped"));
    assert!(kept(&cache).is_empty());
    let output = recover(&cache, &["show", name]).output("it waits");
    assert_eq!(output.status.code(), Some(1));
}

// SEMANTICS 52
#[test]
fn a_local_fsync_asks_nobody_and_survives_a_crash() {
    if !prerequisites() {
        return;
    }
    let (mut cell, _cache) = cell(1, ",fsync=local");
    write_later(&cell);
    // What went through to the server is not in the log.
    let root = cell.root(0).to_str().unwrap().to_owned();
    wait::run(&mut soda(&["sync", &root]), PATIENCE).expect_success("soda sync");
    let path = cell.root(0).join("dir/safe");
    let mut file = fs::File::create_new(&path).unwrap();
    file.write_all(b"and sound").unwrap();
    let pending = backlog(&cell);
    file.sync_all().unwrap();
    assert_eq!((backlog(&cell), cell.mounts[0].counter("fsyncs_local")), (pending, 1));
    assert!(pending > 0);
    drop(file);
    cell.crash_client(0);
    assert_eq!(fs::read(&path).unwrap(), b"and sound");
    assert!(cell.mounts[0].counter("replayed") > 0);
}
