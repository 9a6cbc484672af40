//! A server in a process of its own, which dies at a crash point.

use super::{PATIENCE, config};
use soda_server::{RunningServer, Server, ServerConfig, StartError};
use soda_storage::{DataDirectory, StorageError, StoreOptions};
use soda_types::Timestamp;
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, fsck};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub fn short(dir: &Path) -> ServerConfig {
    config(dir).with_term(Duration::from_secs(2))
}

/// Runs the test `child` of this program in another process: it calls [`serve_until_let_go`].
pub fn spawn(dir: &Path, point: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("SODA_CRASH_POINT", point)
        .env("SODA_CRASH_DIRECTORY", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

pub fn address(output: &mut impl BufRead) -> Option<std::net::SocketAddr> {
    let lines = output.lines().map_while(Result::ok);
    let mut found = lines.filter_map(|line| line.split("listening on ").nth(1)?.parse().ok());
    found.next()
}

pub fn serve_until_let_go() {
    let Some(dir) = std::env::var_os("SODA_CRASH_DIRECTORY") else { return };
    let server = start_again(&short(Path::new(&dir)));
    println!("\nlistening on {}", server.local_addr());
    // Until the test lets go of the other end.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

pub fn start_again(config: &ServerConfig) -> RunningServer {
    once_let_go(|| match Server::start(config.clone()) {
        Err(StartError::Storage(error @ StorageError::InUse { .. })) => Err(error),
        other => Ok(other.unwrap()),
    })
}

/// A process that another test is about to start has the lock's descriptor, too, until it is a program of its own.
fn once_let_go<T>(mut open: impl FnMut() -> Result<T, StorageError>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(StorageError::InUse { .. }) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => break other.unwrap(),
        }
    }
}

pub fn check_stores(dir: &Path, what: &str) {
    let stores = once_let_go(|| DataDirectory::open(dir, StoreOptions::default()));
    let options =
        FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0), branch: 0 };
    let report = fsck(stores.meta.clone(), stores.data.clone(), options, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}
