//! One `soda serve`.

use super::namespaces::Namespaces;
use super::ports::free_port;
use super::{PATIENCE, Setting, soda_binary, tail};
use crate::wait;
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What it says when it can be used.
const SERVING: &str = "soda: serving ";

/// A server process on its own data directory. Killed when dropped.
#[derive(Debug)]
pub struct Server {
    /// `None` while it is down.
    child: Option<Child>,
    /// How often it was started.
    starts: usize,
    /// What puts a command into the server's network namespace.
    prefix: Vec<String>,
    data: PathBuf,
    log: PathBuf,
    listen: String,
    port: u16,
    is_namespaced: bool,
    term: Duration,
    options: Vec<String>,
}

impl Server {
    pub(super) fn start(
        dir: &Path,
        data: PathBuf,
        namespaces: Option<&Namespaces>,
        setting: &Setting<'_>,
    ) -> Server {
        let port = free_port();
        let host = if namespaces.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        let mut server = Server {
            child: None,
            starts: 0,
            prefix: namespaces.map(Namespaces::enter_server).unwrap_or_default(),
            data,
            log: dir.join("server.log"),
            listen: format!("{host}:{port}"),
            port,
            is_namespaced: namespaces.is_some(),
            term: setting.term,
            options: setting.server_options.iter().map(|word| (*word).to_owned()).collect(),
        };
        server.spawn();
        server
    }

    /// `HOST:PORT` for clients on loopback.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            wait::signal(&child, Signal::KILL);
            let _ = child.wait();
        }
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Panics
    /// If it does not end, or ends with an error.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        wait::signal(&child, Signal::TERM);
        let mut status = None;
        let ended = wait::until(PATIENCE, || {
            status = child.try_wait().ok().flatten();
            status.is_some()
        });
        let log = tail(&self.log, 40);
        assert!(ended, "{}: the server does not end\n{log}", wait::TIMED_OUT);
        assert!(status.is_some_and(|status| status.success()), "server ended with {status:?}\n{log}");
    }

    /// Starts it again on the same data and port, after [`Server::kill`] or [`Server::stop`].
    pub fn restart(&mut self) {
        self.spawn();
    }

    /// SIGSTOP: it is there, but does not answer.
    pub fn freeze(&self) {
        if let Some(child) = &self.child {
            wait::freeze(child);
        }
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            wait::signal(child, signal);
        }
    }

    fn spawn(&mut self) {
        assert!(self.child.is_none(), "the server is running");
        let mut words = self.prefix.clone();
        words.push(soda_binary().display().to_string());
        words.extend(["serve", "--listen", &self.listen, "--data"].map(str::to_owned));
        words.push(self.data.display().to_string());
        words.extend(["--term".to_owned(), format!("{}s", self.term.as_secs())]);
        words.extend(self.options.iter().cloned());
        // All tests can be run with deep leases, and without.
        if let Some(wanted) = std::env::var_os("SODA_TEST_DEEP_LEASES")
            && !self.options.iter().any(|word| word == "--deep-leases")
        {
            let wanted = if wanted == "0" { "off" } else { "on" };
            words.extend(["--deep-leases", wanted].map(str::to_owned));
        }
        if self.is_namespaced {
            words.push("--insecure".to_owned());
        }
        self.child = Some(spawn(&words, &self.log));
        self.starts += 1;
        let ready = wait::until(PATIENCE, || self.has_ended() || self.serves());
        let log = tail(&self.log, 40);
        assert!(ready, "{}: server did not start\n{log}", wait::TIMED_OUT);
        assert!(!self.has_ended(), "server ended\n{log}");
    }

    /// By its own word: its port is there before.
    fn serves(&self) -> bool {
        let log = std::fs::read(&self.log).unwrap_or_default();
        log.windows(SERVING.len()).filter(|words| *words == SERVING.as_bytes()).count() >= self.starts
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a command with its output at the end of `log`.
pub(super) fn spawn(words: &[String], log: &Path) -> Child {
    let output = || File::options().create(true).append(true).open(log);
    let (out, err) = match (output(), output()) {
        (Ok(out), Ok(err)) => (out, err),
        (Err(error), _) | (_, Err(error)) => panic!("{}: {error}", log.display()),
    };
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::from(out)).stderr(Stdio::from(err));
    command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"))
}
