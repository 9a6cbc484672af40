//! `soda serve` where what it stands on is not as it should be: a log that nobody reads, a port that is taken.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use soda_system_tests::cell::{PATIENCE, free_port};
use soda_system_tests::wait;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

const SODA: &str = env!("CARGO_BIN_EXE_soda");

/// `soda serve 2>&1 | less`, left alone; or a log on a disk that stalls.
#[test]
fn a_log_that_takes_nothing_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut server = Command::new(SODA);
    server.args(["--log", "soda_server=debug", "serve", "--listen", &address, "--data"]).arg(dir.path());
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    wait::in_time(PATIENCE, "the server listens", || TcpStream::connect(&address).is_ok());
    // Each is worth a line, and a pipe takes 64 KiB.
    let peer = address.parse().unwrap();
    for _ in 0..2000 {
        drop(TcpStream::connect_timeout(&peer, PATIENCE).expect(wait::TIMED_OUT));
    }
    let mut status = Command::new(SODA);
    status.args(["status", "--server", &address]).env("SODA_RUNTIME_DIR", dir.path().join("run"));
    let answer = wait::run(&mut status, PATIENCE);
    server.kill().unwrap();
    server.wait().unwrap();
    answer.expect_success("the server does not answer");
}

#[test]
fn a_port_that_is_taken_is_all_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = dir.path().join("data");
    let mut server = Command::new(SODA);
    server.args(["serve", "--listen", &address, "--data"]).arg(&data);
    let output = wait::run(&mut server, PATIENCE).output("it does not give up");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot listen on") && said.contains(&address), "{said}");
    assert!(!said.contains("recovered") && !data.exists(), "{said}");
}
