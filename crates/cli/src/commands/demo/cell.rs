//! The processes of the demo.

use crate::answer::MountStatus;
use crate::commands::cleaner::{Cleaner, Manner};
use crate::commands::this_program;
use crate::control;
use crate::error::CliError;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Session lease of the demo's server: a stopped client is in the way for so long, and nobody wants to watch for longer.
pub(super) const TERM: Duration = Duration::from_secs(3);
/// A server that starts, a client that comes back after a crash.
const PATIENCE: Duration = Duration::from_secs(20);
/// A process that was told to stop.
const STOPS: Duration = Duration::from_secs(2);
const SERVING: &str = "soda: serving ";

/// A server and two machines. Whatever ends this process, its [`Cleaner`] takes all of it away.
#[derive(Debug)]
pub(super) struct Cell {
    server: Server,
    pub machines: [Machine; 2],
    cleaner: Cleaner,
}

impl Cell {
    pub(super) fn start(data: Option<&Path>) -> Result<Cell, CliError> {
        let cleaner = Cleaner::start("soda-demo.", Manner::InOrder)?;
        let scratch = cleaner.scratch();
        let data = data.map_or_else(|| scratch.join("data"), Path::to_path_buf);
        let server = Server::start(data, scratch.join("server.log"))?;
        let machines = [
            Machine::start("A", scratch.join("a"), &server.address)?,
            Machine::start("B", scratch.join("b"), &server.address)?,
        ];
        Ok(Cell { server, machines, cleaner })
    }

    pub(super) fn address(&self) -> &str {
        &self.server.address
    }

    pub(super) fn data(&self) -> &Path {
        &self.server.data
    }

    /// kill -9 of the server, and the same server started again.
    pub(super) fn crash_server(&mut self) -> Result<(), CliError> {
        let failed = || CliError::io("cannot kill the server");
        self.server.child.kill().map_err(failed())?;
        self.server.child.wait().map_err(failed())?;
        self.server.child = self.server.spawn()?;
        Ok(())
    }

    pub(super) fn end(mut self) {
        self.cleaner.begin();
        let _ = self.server.child.wait();
        self.cleaner.wait();
    }
}

#[derive(Debug)]
struct Server {
    child: Child,
    address: String,
    data: PathBuf,
    log: PathBuf,
}

impl Server {
    fn start(data: PathBuf, log: PathBuf) -> Result<Server, CliError> {
        let child = serve("127.0.0.1:0", &data, &log)?;
        let mut server = Server { child, address: String::new(), data, log };
        let deadline = Instant::now() + PATIENCE;
        while server.address.is_empty() {
            let said = fs::read_to_string(&server.log).unwrap_or_default();
            // It may be read while it is being written.
            let mut lines = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            let line = lines.find_map(|line| line.strip_prefix(SERVING));
            if let Some((_, address)) = line.and_then(|line| line.rsplit_once(" on ")) {
                server.address = address.to_string();
            } else if Instant::now() > deadline || !matches!(server.child.try_wait(), Ok(None)) {
                return Err(CliError::Failed(format!("the server did not start: {}", said.trim())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn spawn(&self) -> Result<Child, CliError> {
        serve(&self.address, &self.data, &self.log)
    }
}

fn serve(listen: &str, data: &Path, log: &Path) -> Result<Child, CliError> {
    let log_file = File::options().create(true).append(true).open(log);
    let log_file = log_file.map_err(CliError::io(log.display().to_string()))?;
    let mut command = this_program()?;
    command.args(["serve", "--listen", listen, "--term"]).arg(format!("{}s", TERM.as_secs()));
    command.arg("--data").arg(data).arg("--log-file").arg(log);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
    // A Ctrl-C on the terminal is for the demo alone, which then ends them in order.
    command.process_group(0).spawn().map_err(CliError::io("cannot start the server"))
}

/// One mount: to the server, another machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub name: &'static str,
    pub dir: PathBuf,
    daemon: u32,
    socket: PathBuf,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Running,
    Frozen,
}

impl Machine {
    fn start(name: &'static str, dir: PathBuf, server: &str) -> Result<Machine, CliError> {
        let place = || dir.display().to_string();
        fs::create_dir(&dir).map_err(CliError::io(place()))?;
        let mut command = this_program()?;
        command.arg("mount").arg(format!("{server}/main")).arg(&dir);
        command.arg("--log-file").arg(dir.with_extension("log"));
        let output = command.output().map_err(CliError::io("cannot mount"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let text = text.trim().trim_start_matches("soda: ").to_string();
            return Err(CliError::Daemon { code: output.status.code().unwrap_or(1) as u8, text });
        }
        let unanswered = || CliError::Failed(format!("the daemon of {} does not answer", place()));
        let socket = control::socket_of(&dir).ok_or_else(unanswered)?;
        let daemon = control::status(&socket).ok_or_else(unanswered)?.pid;
        Ok(Machine { name, dir, daemon, socket, standing: Standing::Running })
    }

    /// `None` while it is frozen: to ask would be to wait.
    pub(super) fn status(&self) -> Option<MountStatus> {
        match self.standing {
            Standing::Running => control::status(&self.socket),
            Standing::Frozen => None,
        }
    }

    /// SIGSTOP: it is there, but does nothing, as a laptop with its lid closed.
    pub(super) fn freeze(&mut self) -> Result<(), CliError> {
        self.standing = Standing::Frozen;
        self.signal(Signal::STOP)?;
        // A thread that still runs could answer when it is asked for a lease.
        let deadline = Instant::now() + STOPS;
        while !self.is_stopped() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.daemon)).into_iter().flatten().flatten();
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        stats.into_iter().all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    }

    pub(super) fn thaw(&mut self) -> Result<(), CliError> {
        self.standing = Standing::Running;
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), CliError> {
        let gone = || CliError::Failed(format!("the daemon of {} is gone", self.dir.display()));
        let pid = Pid::from_raw(self.daemon.cast_signed()).ok_or_else(gone)?;
        kill_process(pid, signal).map_err(|error| CliError::io("cannot signal a mount")(error.into()))
    }
}
