//! How a command fails: a text that says what to do, and an exit code that a script can act on.

use soda_client::ConnectError;
use soda_fuse::MountError;
use std::io;
use std::path::PathBuf;

/// Exit codes. 2 is clap's, for a command line that cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It failed, for a reason that has no code of its own.
    Failed = 1,
    Usage = 2,
    /// The server cannot be reached.
    Unreachable = 3,
    /// The server answers, but refuses: wrong volume, wrong version, not a Soda server.
    Refused = 4,
    /// The mount failed on this machine: mount point, privilege, kernel.
    Mount = 5,
    /// There is no Soda mount.
    NotMounted = 6,
    /// The mount is in use.
    Busy = 7,
    /// fsck found damage that is still there.
    Damaged = 8,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error("cannot reach the server {server}: {}. {}", plain(.cause), unreachable_hint(.cause))]
    Unreachable { server: String, cause: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    CacheDir(ConnectError),
    #[error("{cause}{}", mount_hint(.cause))]
    Mount {
        #[from]
        cause: MountError,
    },
    #[error("{dir} has a mount of {spec} already; `soda umount {dir}` takes it away")]
    Mounted { dir: PathBuf, spec: String },
    #[error("{0} is not a Soda mount; `soda status` lists them")]
    NotMounted(PathBuf),
    #[error("the daemon of {0} does not answer: it is stopped, or another user's")]
    Silent(PathBuf),
    #[error(
        "{0} is in use. Close what works there (`fuser -vm {0}` lists it), or detach it with --lazy, or cut it off with --force"
    )]
    Busy(PathBuf),
    #[error(
        "{0} is in use, and its daemon does not answer: it is stopped, or another user's. Detach the mount with --lazy, or \
         cut it off with --force"
    )]
    BusyAndSilent(PathBuf),
    #[error(
        "{0} is unmounted, but its daemon does not answer: what it had not told its server, if anything, it tells when it \
         goes on; if it is killed before, that is lost, or stays in the log in its cache-dir"
    )]
    SilentDaemon(PathBuf),
    #[error(
        "the server {server} has not answered for longer than its session's lease: {left} of {dir} wait for it. Nothing is \
         lost by waiting: they are told when it is back, unless their session has ended there by then"
    )]
    ServerGone { dir: PathBuf, server: String, left: String },
    #[error("{what}: {cause}")]
    Io { what: String, cause: io::Error },
    #[error(transparent)]
    Server(#[from] soda_server::StartError),
    #[error(transparent)]
    Lab(#[from] soda_lab::LabError),
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Failed(String),
    /// What the daemon of a mount said before it ended.
    #[error("{text}")]
    Daemon { code: u8, text: String },
}

/// What can be done about a server that cannot be reached.
fn unreachable_hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            "Something listens there, or nothing hears at all: a server that is stopped or overloaded, or a firewall"
        }
        io::ErrorKind::NotFound => "Is the name right?",
        _ => "Is `soda serve` running there?",
    }
}

fn mount_hint(error: &MountError) -> String {
    match error {
        MountError::MountPoint { path, cause } if cause.kind() == io::ErrorKind::NotFound => {
            format!("; make it first: mkdir -p {}", path.display())
        }
        _ => String::new(),
    }
}

/// The system's words for it, and for what it says least well, ours.
pub(crate) fn plain(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it does not answer".into(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => "the connection was closed".into(),
        _ => cause.to_string(),
    }
}

impl From<ConnectError> for CliError {
    fn from(error: ConnectError) -> CliError {
        match error {
            ConnectError::Unreachable { server, cause } => CliError::Unreachable { server, cause },
            ConnectError::Refused { .. } | ConnectError::NotSoda { .. } | ConnectError::NoRoom { .. } => {
                CliError::Refused(error.to_string())
            }
            ConnectError::Config(error) => CliError::Usage(error.to_string()),
            ConnectError::CacheDir { .. } | ConnectError::LogInUse { .. } => CliError::CacheDir(error),
            ConnectError::Threads(cause) => CliError::Io { what: "cannot start threads".into(), cause },
            ConnectError::Runtime => CliError::Failed(error.to_string()),
        }
    }
}

impl CliError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> CliError {
        let what = what.into();
        move |cause| CliError::Io { what, cause }
    }

    pub(crate) fn code(&self) -> u8 {
        let exit = match self {
            CliError::Daemon { code, .. } => return *code,
            CliError::Usage(_)
            | CliError::Lab(soda_lab::LabError::Usage(_) | soda_lab::LabError::Model(_)) => Exit::Usage,
            CliError::Unreachable { .. } | CliError::ServerGone { .. } => Exit::Unreachable,
            CliError::Refused(_) => Exit::Refused,
            CliError::Mount { .. } | CliError::Mounted { .. } => Exit::Mount,
            CliError::NotMounted(_) => Exit::NotMounted,
            CliError::Busy(_) | CliError::BusyAndSilent(_) => Exit::Busy,
            CliError::Damaged(_) => Exit::Damaged,
            CliError::CacheDir(_)
            | CliError::Io { .. }
            | CliError::Server(_)
            | CliError::Silent(_)
            | CliError::SilentDaemon(_)
            | CliError::Lab(_)
            | CliError::Failed(_) => Exit::Failed,
        };
        exit as u8
    }
}
