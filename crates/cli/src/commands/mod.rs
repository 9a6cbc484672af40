//! One file for each command.

pub(crate) mod demo;
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
pub(crate) mod umount;

use crate::error::CliError;
use crate::json::readable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

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

/// Of all look-ups, attributes, data and xattrs asked for, the part that needed no server.
pub(crate) fn hit_ratio(counters: &BTreeMap<String, u64>) -> String {
    let sum = |suffix: &str| -> u64 {
        counters.iter().filter(|(name, _)| name.ends_with(suffix)).map(|(_, count)| count).sum()
    };
    let (hits, misses) = (sum("_hits"), sum("_misses"));
    match hits + misses {
        0 => "-".into(),
        all => format!("{:.1} %", hits as f64 * 100.0 / all as f64),
    }
}

/// Waits for Ctrl-C or a polite request to end.
pub(crate) async fn asked_to_end() -> Result<(), CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::io("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::io("signals"))?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// The runtime of a command that talks to a server.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("soda").build().map_err(CliError::io("cannot start threads"))
}
