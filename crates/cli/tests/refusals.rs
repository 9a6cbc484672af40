//! Servers that are none, or of another kind: each has a message that says what to do, and an exit code of its own.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use bytes::{Bytes, BytesMut};
use soda_protocol::{Failure, Frame, FrameHeader, FrameKind, HEADER_LEN, Reply};
use soda_system_tests::cell::{PATIENCE, free_port};
use soda_system_tests::wait;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

/// Something that listens, and does this with each connection; its address. It ends with the test's process.
fn peer(answer: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
    address
}

/// What the commands that talk to a server do with this one: always the same.
fn refused_by_all(address: &str, code: i32, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (mount_point, object) = (dir.path().display().to_string(), format!("{address}/main/file"));
    for arguments in [
        vec!["mount", &format!("{address}/main"), &mount_point],
        vec!["status", "--server", address],
        vec!["stats", "--once", "--server", address],
        vec!["lease", "ls", "--server", address],
        vec!["lease", "why", &object],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
        command.args(&arguments).env("SODA_RUNTIME_DIR", dir.path().join("run"));
        let output = wait::run(&mut command, PATIENCE).output(&format!("{arguments:?} hangs"));
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        for word in words.iter().chain([&address]) {
            assert!(message.contains(word), "{arguments:?}: no `{word}` in: {message}");
        }
    }
}

#[test]
fn nobody_there() {
    let address = format!("127.0.0.1:{}", free_port());
    refused_by_all(&address, 3, &["cannot reach", "Connection refused", "Is `soda serve` running there?"]);
}

#[test]
fn a_peer_of_another_protocol() {
    let address = peer(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    refused_by_all(&address, 4, &["does not speak Soda's protocol"]);
}

#[test]
fn a_peer_that_hangs_up() {
    let address = peer(drop);
    refused_by_all(&address, 3, &["cannot reach"]);
}

/// As a server of another version answers: it cannot serve the hello, and says why.
#[test]
fn a_server_of_another_version() {
    let address = peer(|mut stream| {
        let mut raw = [0; HEADER_LEN];
        stream.read_exact(&mut raw).unwrap();
        let header = FrameHeader::parse(&raw).unwrap();
        let mut rest = vec![0; header.rest_len()];
        stream.read_exact(&mut rest).unwrap();
        let hello = header.finish(rest.into()).unwrap();
        let text =
            "no common protocol: the server speaks 8 to 9, the client 1 to 1; update the client".to_string();
        let reply = Reply { result: Err(Failure::Refused(text)), grants: Vec::new(), covered: Vec::new() };
        let mut head = BytesMut::new();
        Frame::new(FrameKind::Reply, hello.tag, &reply, Bytes::new()).unwrap().encode_head(&mut head);
        stream.write_all(&head).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    refused_by_all(&address, 4, &["refused", "no common protocol", "update the client"]);
}

/// Other tests' dead mounts on this machine are bad, too, so only what this server has to do with it is looked at.
#[test]
fn doctor_says_what_is_wrong_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
    command.args(["doctor", "--json", "--server", &address]).env("SODA_RUNTIME_DIR", dir.path().join("run"));
    let output = wait::run(&mut command, PATIENCE).output("it hangs");
    assert_eq!(output.status.code(), Some(1));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of =
        |what: &str| findings.as_array().unwrap().iter().find(|finding| finding["what"] == what).unwrap();
    assert_eq!(of("server")["verdict"], "bad");
    assert!(of("server")["found"].as_str().unwrap().contains(&address));
    assert!(of("kernel")["found"].as_str().unwrap().starts_with("Linux "));
    assert!(String::from_utf8_lossy(&output.stderr).contains("mended"));
}
