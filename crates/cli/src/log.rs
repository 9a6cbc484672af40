//! The log: lines for people or JSON, filtered by `--log` or RUST_LOG.

use crate::args::{LogArgs, LogFormat};
use crate::error::CliError;
use crate::log_file::LogFile;
use crate::log_queue::LogQueue;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How long the end of the process waits for what the log is written to.
const LAST_LINES: Duration = Duration::from_secs(2);

/// What the log goes through in a process in which nobody waits for it.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Something was logged that is not as it should be.
static TROUBLE: AtomicBool = AtomicBool::new(false);

/// How the daemon of a mount logs, as it says to those who ask.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LogView {
    pub file: String,
    pub filter: Option<String>,
    pub format: LogFormat,
}

impl LogView {
    /// `None`: it logs to standard error, or to a file whose name is no text. To be asked before the process goes elsewhere.
    pub(crate) fn of(args: &LogArgs) -> Option<LogView> {
        let file = std::path::absolute(args.file.as_ref()?).ok()?.into_os_string().into_string().ok()?;
        Some(LogView { file, filter: args.filter.clone(), format: args.format })
    }

    /// What the next daemon logs to, where it was not told otherwise.
    pub(crate) fn kept(self, args: &LogArgs) -> LogArgs {
        LogArgs {
            file: Some(args.file.clone().unwrap_or_else(|| self.file.into())),
            filter: args.filter.clone().or(self.filter),
            format: if args.format == LogFormat::Text { self.format } else { args.format },
        }
    }
}

/// Sets [`TROUBLE`].
struct Noticing;

impl<S: Subscriber> Layer<S> for Noticing {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() <= Level::WARN {
            TROUBLE.store(true, Ordering::Relaxed);
        }
    }
}

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
    if file.as_ref().is_some_and(|file| !file.is_empty()) {
        // Of somebody before, who may have left it for a reason.
        TROUBLE.store(true, Ordering::Relaxed);
    }
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
        LogFormat::Text => builder.finish().with(Noticing).try_init(),
        LogFormat::Json => builder.json().finish().with(Noticing).try_init(),
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

/// A log that the daemon of a mount has begun in `dir`, where nobody asked for it, goes with the mount, unless it says that
/// something was not as it should be. To be called at the end.
pub(crate) fn remove_if_all_was_well(log: Option<&LogView>, dir: &Path) {
    let Some(file) = log.map(|log| PathBuf::from(&log.file)) else { return };
    if file.parent() == Some(dir) && !TROUBLE.load(Ordering::Relaxed) {
        finish();
        // It may be gone.
        let _ = std::fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_daemon_logs_as_the_one_before_but_for_what_it_is_told() {
        let before =
            LogArgs { filter: Some("info".into()), format: LogFormat::Json, file: Some("/l".into()) };
        let said = LogView::of(&before).unwrap();
        let plain = LogArgs { filter: None, format: LogFormat::Text, file: None };
        assert_eq!(LogView::of(&said.clone().kept(&plain)), Some(said.clone()));
        let other =
            LogArgs { filter: Some("debug".into()), format: LogFormat::Text, file: Some("/m".into()) };
        let kept = LogView::of(&said.kept(&other)).unwrap();
        assert_eq!((kept.file.as_str(), kept.filter.as_deref()), ("/m", Some("debug")));
        assert_eq!(LogView::of(&plain), None);
    }
}
