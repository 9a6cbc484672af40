//! The log: lines for people or JSON, filtered by `--log` or RUST_LOG.

use crate::args::{LogArgs, LogFormat};
use crate::error::CliError;
use crate::log_file::LogFile;
use crate::log_queue::LogQueue;
use std::io::Write;
use std::sync::OnceLock;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// How long the end of the process waits for what the log is written to.
const LAST_LINES: Duration = Duration::from_secs(2);

/// What the log goes through in a process in which nobody waits for it.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Who writes what is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writing {
    /// Who logs it: a command for people.
    AtOnce,
    /// A thread, see [`LogQueue`]; [`finish`] waits for it.
    Aside,
}

/// # Errors
/// A filter that cannot be understood; a file that cannot be opened.
pub(crate) fn start(args: &LogArgs, default_filter: &str, writing: Writing) -> Result<(), CliError> {
    let filter = match &args.filter {
        Some(filter) => EnvFilter::try_new(filter).map_err(|error| {
            CliError::Usage(format!("--log {filter}: {error}; such as `info` or `warn,soda_fuse=debug`"))
        })?,
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter)),
    };
    let file = match &args.file {
        Some(path) => Some(LogFile::open(path).map_err(CliError::io(path.display().to_string()))?),
        None => None,
    };
    let is_terminal = file.is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let writer = match (file, writing) {
        (Some(file), Writing::AtOnce) => BoxMakeWriter::new(std::sync::Mutex::new(file)),
        (None, Writing::AtOnce) => BoxMakeWriter::new(std::io::stderr),
        (Some(file), Writing::Aside) => aside(file)?,
        (None, Writing::Aside) => aside(std::io::stderr())?,
    };
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(is_terminal);
    let started = match args.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| CliError::Failed(format!("cannot start the log: {error}")))
}

fn aside(sink: impl Write + Send + 'static) -> Result<BoxMakeWriter, CliError> {
    let tell = |lines| tracing::warn!(lines, "left out of the log: what it is written to does not keep up");
    let queue = LogQueue::start(sink, tell).map_err(CliError::io("a thread for the log"))?;
    let _ = QUEUE.set(queue.clone());
    Ok(BoxMakeWriter::new(move || queue.clone()))
}

/// Waits until what was logged is written; not for long.
pub(crate) fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.finish(LAST_LINES);
    }
}
