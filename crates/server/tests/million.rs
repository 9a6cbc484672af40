//! A million leases of a thousand sessions, and what they cost. A program of its own: the memory is
//! that of the whole process.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::*;
use soda_protocol::{AdminAnswer, AdminCall, Answer, Call, Role};
use std::time::Instant;

const SESSIONS: usize = 1000;
const DIRECTORIES: usize = 40;
/// In each directory: as many as one page brings with it.
const FILES: usize = 1000;
/// Bytes for each lease, whatever the server keeps of it.
const LEASE_MAX: u64 = 200;

/// The whole server's memory, measured from outside: the process has nothing else that grows.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_hold_a_million_leases() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let maker = Client::connect(&server).await;
    let mut directories = Vec::new();
    for directory in 0..DIRECTORIES {
        let directory = maker.mkdir(maker.root, &format!("d{directory}")).await.unwrap().fid;
        for file in 0..FILES {
            maker.create(directory, &format!("f{file}")).await.unwrap();
        }
        directories.push(directory);
    }
    maker.ask(Call::Goodbye).await.result.unwrap();
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let client = Client::connect(&server).await;
        // Sessions, connections and buffers are there before the leases are.
        client.ask(Call::StatFs { fid: client.root }).await.result.unwrap();
        clients.push(client);
    }
    let (before, began) = (resident(), Instant::now());
    for (client, dir) in clients.iter().zip(directories.iter().cycle()) {
        let page = Call::ReadDir { dir: *dir, after: None, limit: FILES as u32, next: Vec::new() };
        let reply = client.ask(page).await;
        assert_eq!(reply.grants.len(), FILES + 1, "the directory and all that is in it");
    }
    let took = began.elapsed();
    let grown = resident().saturating_sub(before);
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let status = tools.call(None, Call::Admin(AdminCall::Status), Default::default()).await.unwrap().0;
    let Ok(Answer::Admin(AdminAnswer::Status(status))) = status.result else { panic!() };
    assert_eq!(status.leases as usize, SESSIONS * (FILES + 1));
    let each = grown / status.leases;
    println!("{} leases in {took:?}, {each} bytes each", status.leases);
    assert!(each < LEASE_MAX, "{each} bytes for a lease");
}

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
