//! One file for each command.

pub(crate) mod beside;
pub(crate) mod cleaner;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod documents;
pub(crate) mod fsck;
pub(crate) mod helper;
pub(crate) mod lab;
pub(crate) mod lease;
pub(crate) mod mount;
pub(crate) mod recover;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod takeover;
pub(crate) mod umount;

use crate::error::CliError;
use crate::json::readable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Standard output, where a reader that has gone (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::io("standard output")(error))
        }
        _ => Ok(()),
    }
}

pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<(), CliError> {
    let text = readable(value).and_then(|value| serde_json::to_string_pretty(&value));
    let text = text.map_err(|error| CliError::Failed(error.to_string()))?;
    print(&format!("{text}\n"))
}

/// To be run once more, for another part.
pub(crate) fn this_program() -> Result<Command, CliError> {
    std::env::current_exe().map(Command::new).map_err(CliError::io("this program's own path"))
}

/// How often caches had what was asked of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hits {
    pub hits: u64,
    pub misses: u64,
}

impl Hits {
    /// Of all look-ups, attributes, reads and xattrs that a mount's daemon was asked for, those that needed no server.
    pub(crate) fn of_mount(counters: &BTreeMap<String, u64>) -> Hits {
        let figure = |name: &str| counters.get(name).copied().unwrap_or(0);
        // A read that is not in memory is a miss, also where the pieces that it takes are on the disk.
        let disk = figure("disk_hits").min(figure("data_misses"));
        let sum =
            |what: &str| ["name", "attr", "data", "xattr"].map(|kind| figure(&format!("{kind}_{what}")));
        Hits {
            hits: sum("hits").iter().sum::<u64>() + disk,
            misses: sum("misses").iter().sum::<u64>() - disk,
        }
    }

    /// Of all caches of a server.
    pub(crate) fn of_server(counters: &BTreeMap<String, u64>) -> Hits {
        let sum = |suffix: &str| {
            let of_caches = counters.iter().filter(|(name, _)| name.starts_with("cache."));
            of_caches.filter(|(name, _)| name.ends_with(suffix)).map(|(_, count)| count).sum()
        };
        Hits { hits: sum(".hits"), misses: sum(".misses") }
    }

    pub(crate) fn asked(self) -> u64 {
        self.hits + self.misses
    }
}

impl fmt::Display for Hits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.asked() {
            0 => f.write_str("-"),
            all => write!(f, "{:.1} %", self.hits as f64 * 100.0 / all as f64),
        }
    }
}

/// Ctrl-C, and a polite request to end: from when this is made, neither ends the process.
pub(crate) struct EndRequests {
    terminate: Signal,
    interrupt: Signal,
}

impl EndRequests {
    /// Inside a runtime.
    pub(crate) fn listen() -> Result<EndRequests, CliError> {
        let terminate = signal(SignalKind::terminate()).map_err(CliError::io("signals"))?;
        let interrupt = signal(SignalKind::interrupt()).map_err(CliError::io("signals"))?;
        Ok(EndRequests { terminate, interrupt })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

/// The runtime of a command that talks to a server.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    soda_server::allow_descriptors();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("soda").on_thread_start(soda_client::threads::started);
    let runtime = builder.build().map_err(CliError::io("cannot start threads"))?;
    let _context = runtime.enter();
    writes_may_fail()?;
    drop(_context);
    Ok(runtime)
}

/// Has a file that becomes larger than this process may make it be an error, EFBIG, in place of its death by SIGXFSZ
/// (setrlimit(2)): a shell's `ulimit -f` is passed on to a server, and not meant for it. To be called inside a runtime.
fn writes_may_fail() -> Result<(), CliError> {
    use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Fsize);
    let _ = setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit });
    // With a handler, which stays, it ends nobody.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop).map_err(CliError::io("signals"))
}
