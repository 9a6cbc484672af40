//! The log: lines for people or JSON, filtered by `--log` or RUST_LOG.

use crate::args::{LogArgs, LogFormat};
use crate::error::CliError;
use crate::log_file::LogFile;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// # Errors
/// A filter that cannot be understood; a file that cannot be opened.
pub(crate) fn start(args: &LogArgs, default_filter: &str) -> Result<(), CliError> {
    let filter = match &args.filter {
        Some(filter) => EnvFilter::try_new(filter).map_err(|error| {
            CliError::Usage(format!("--log {filter}: {error}; such as `info` or `warn,soda_fuse=debug`"))
        })?,
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter)),
    };
    let writer = match &args.file {
        Some(path) => {
            let file = LogFile::open(path).map_err(CliError::io(path.display().to_string()))?;
            BoxMakeWriter::new(std::sync::Mutex::new(file))
        }
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let is_terminal = args.file.is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(is_terminal);
    let started = match args.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| CliError::Failed(format!("cannot start the log: {error}")))
}
