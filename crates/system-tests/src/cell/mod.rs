//! A cell on this machine: a server, its mounts, and everything that can go wrong with them.
//!
//! Every process runs in the foreground as a child, so its id is known and nothing outlives the test: dropping a
//! [`Cell`] unmounts, kills and removes all of it.

mod binary;
mod disk;
mod mount;
mod namespaces;
mod ports;
mod server;

pub use binary::{Prerequisite, copy_program, prerequisites, skip, skip_not_allowed, soda_binary};
pub use disk::SmallDisk;
pub use mount::{Mount, is_mounted, mount_entry, transport};
pub use ports::free_port;
pub use server::Server;

use namespaces::Namespaces;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Within this a healthy server listens, a mount becomes usable, an unmount ends.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The session lease's term that the tests ask for: short, because they wait for it.
pub const TERM: Duration = Duration::from_secs(2);

/// One whose end a test waits for and measures: beside it what a busy machine takes is little.
pub const MEASURED_TERM: Duration = Duration::from_secs(10);

/// One that no test waits for.
pub const LONG_TERM: Duration = Duration::from_secs(60);

/// How clients reach the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    Loopback,
    /// Each in a network namespace of its own, with a cable (veth) to the server's that can be pulled.
    Namespaces,
}

/// How a [`Cell`] is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub network: Network,
    /// The server's data directory; `None`: a fresh one.
    pub data: Option<&'a Path>,
    /// Of `soda mount`.
    pub mount_options: &'a [&'a str],
    /// What starts the program that mounts, as `["unshare", "--pid", "--fork"]`.
    pub mount_prefix: &'a [&'a str],
    /// Of `soda serve`.
    pub server_options: &'a [&'a str],
    /// What mounts take the kernel for.
    pub kernel: Option<&'a str>,
    /// Of session leases.
    pub term: Duration,
}

impl Default for Setting<'_> {
    fn default() -> Self {
        let network = Network::Loopback;
        Setting {
            network,
            data: None,
            mount_options: &[],
            mount_prefix: &[],
            server_options: &[],
            kernel: None,
            term: TERM,
        }
    }
}

/// A server with mounts of its volume `main`. Fields drop in this order: mounts, server, network, directories.
#[derive(Debug)]
pub struct Cell {
    pub mounts: Vec<Mount>,
    pub server: Server,
    namespaces: Option<Namespaces>,
    dir: TempDir,
}

impl Cell {
    /// Starts a server on a fresh data directory and mounts it `clients` times.
    ///
    /// # Panics
    /// If that fails, with the logs.
    pub fn start(network: Network, clients: usize) -> Cell {
        Cell::assemble(clients, &Setting { network, ..Setting::default() })
    }

    /// As [`Cell::start`], with options of `soda mount`, as `["-o", "soft"]`.
    pub fn start_with(network: Network, clients: usize, mount_options: &[&str]) -> Cell {
        Cell::assemble(clients, &Setting { network, mount_options, ..Setting::default() })
    }

    /// As [`Cell::start`] on loopback, where the server has each change before its call returns.
    pub fn writing_through(clients: usize) -> Cell {
        Cell::start_with(Network::Loopback, clients, &["-o", "write=through"])
    }

    /// As [`Cell::start`] on loopback, where mounts take the kernel for an older one, as `6.1`.
    pub fn start_pretending(kernel: &str, clients: usize) -> Cell {
        Cell::assemble(clients, &Setting { kernel: Some(kernel), ..Setting::default() })
    }

    /// As [`Cell::start`] on loopback, with the data where the caller wants it.
    pub fn start_on(data: &Path, clients: usize) -> Cell {
        Cell::assemble(clients, &Setting { data: Some(data), ..Setting::default() })
    }

    /// As [`Cell::start`] on loopback, for tests that take nothing away: sessions outlast what an overloaded machine does.
    pub fn unhurried(clients: usize) -> Cell {
        Cell::assemble(clients, &Setting { term: LONG_TERM, ..Setting::default() })
    }

    /// # Panics
    /// As [`Cell::start`].
    pub fn assemble(clients: usize, setting: &Setting<'_>) -> Cell {
        let dir = match tempfile::Builder::new().prefix("soda-cell.").tempdir() {
            Ok(dir) => dir,
            Err(error) => panic!("no temporary directory: {error}"),
        };
        // What mounts leave for `soda recover` is nobody's but this test's.
        let state = format!("SODA_STATE_DIR={}", state_in(dir.path()).display());
        let pretence = setting.kernel.map(|kernel| format!("SODA_FUSE_PRETEND={kernel}"));
        let environment = ["env", &state].into_iter().chain(pretence.as_deref());
        let prefix: Vec<&str> = environment.chain(setting.mount_prefix.iter().copied()).collect();
        let namespaces = match setting.network {
            Network::Loopback => None,
            Network::Namespaces => Some(Namespaces::make(clients)),
        };
        let data = setting.data.map_or_else(|| dir.path().join("data"), Path::to_path_buf);
        let server = Server::start(dir.path(), data, namespaces.as_ref(), setting);
        let mut cell = Cell { mounts: Vec::new(), server, namespaces, dir };
        for number in 0..clients {
            let mount = cell.new_mount(number, &prefix, setting);
            cell.mounts.push(mount);
        }
        cell
    }

    /// Where client `number` sees the volume.
    pub fn root(&self, number: usize) -> &Path {
        self.mounts[number].root()
    }

    pub fn roots(&self) -> Vec<PathBuf> {
        self.mounts.iter().map(|mount| mount.root().to_path_buf()).collect()
    }

    /// A directory for the test's own files, outside of Soda; removed with the cell.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Where the mounts' `SODA_STATE_DIR` is.
    pub fn state(&self) -> PathBuf {
        state_in(self.dir.path())
    }

    /// kill -9 of a client and a new one at the same place, as after a crash of its machine.
    pub fn crash_client(&mut self, number: usize) {
        self.mounts[number].crash();
        self.mounts[number].start();
    }

    /// Pulls the cable of a client: packets vanish, connections stay open on both sides.
    ///
    /// # Panics
    /// If the cell has no namespaces.
    pub fn cut(&self, client: usize) {
        self.network().cut(client);
    }

    pub fn heal(&self, client: usize) {
        self.network().heal(client);
    }

    /// A command of the program under test on the machine of a client: it reaches the server as that does, and finds what that
    /// has left for `soda recover`.
    pub fn soda_at(&self, client: usize) -> Command {
        let mut words =
            self.namespaces.as_ref().map(|namespaces| namespaces.enter_client(client)).unwrap_or_default();
        words.push(soda_binary().display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("SODA_STATE_DIR", self.state());
        command
    }

    /// Bytes that went over a client's cable so far, both ways.
    ///
    /// # Panics
    /// If the cell has no namespaces, or the client is down.
    pub fn wire_bytes(&self, client: usize) -> u64 {
        assert!(self.namespaces.is_some(), "a cell on loopback has no cables");
        let devices = format!("/proc/{}/net/dev", self.mounts[client].process());
        let table = std::fs::read_to_string(&devices).unwrap_or_default();
        let cable = table.lines().find_map(|line| line.trim_start().strip_prefix("cable:"));
        let Some(cable) = cable else { panic!("{devices} has no cable: {table}") };
        let numbers: Vec<u64> = cable.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // Received bytes come first, sent ones ninth.
        numbers[0] + numbers[8]
    }

    fn network(&self) -> &Namespaces {
        match &self.namespaces {
            Some(namespaces) => namespaces,
            None => panic!("a cell on loopback has no cables"),
        }
    }

    fn new_mount(&self, number: usize, words: &[&str], setting: &Setting<'_>) -> Mount {
        let address = match &self.namespaces {
            Some(namespaces) => namespaces.server_address(number, self.server.port()),
            None => self.server.address(),
        };
        let mut prefix =
            self.namespaces.as_ref().map(|namespaces| namespaces.enter_client(number)).unwrap_or_default();
        prefix.extend(words.iter().map(|word| (*word).to_owned()));
        let (transport, options) = (mount::transport_on(setting.kernel), setting.mount_options);
        let mut mount = Mount::new(self.dir.path(), number, &address, prefix, &transport, options);
        mount.start();
        mount
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in self.mounts.iter().map(Mount::log).chain([self.server.log()]) {
                eprintln!("---- last lines of {}:\n{}", log.display(), tail(log, 40));
            }
        }
    }
}

fn state_in(dir: &Path) -> PathBuf {
    dir.join("state")
}

fn tail(path: &Path, lines: usize) -> String {
    let text =
        std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
