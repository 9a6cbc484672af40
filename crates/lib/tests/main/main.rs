//! The library against a server in this process.

#![allow(clippy::unwrap_used, reason = "tests")]

mod examples;
mod like_std;
mod machines;

use libsoda::{Options, Volume, Writes};
use soda_server::{RunningServer, Server, ServerConfig};
use std::time::Duration;
use tempfile::TempDir;

/// A server, and where it is.
struct Cell {
    server: RunningServer,
    _dir: TempDir,
}

impl Cell {
    fn start() -> Cell {
        Cell::with_term(Duration::from_secs(10))
    }

    fn with_term(term: Duration) -> Cell {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ServerConfig::new(dir.path()).with_term(term);
        config.listen = "127.0.0.1:0".parse().unwrap();
        config.reserve = 0;
        Cell { server: Server::start(config).unwrap(), _dir: dir }
    }

    fn address(&self) -> String {
        self.server.local_addr().to_string()
    }

    async fn volume(&self, writes: Writes) -> Volume {
        Volume::connect(Options::new(self.address(), "main").writes(writes)).await.unwrap()
    }
}
