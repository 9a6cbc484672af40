//! Why a client could not start. Operations fail with [`soda_types::FsError`].

use crate::config::ConfigError;
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The client's tasks need one, and so does whatever blocks: a local disk, the kernel.
    #[error("a client needs a multi-thread runtime of tokio")]
    Runtime,
    #[error("cannot reach the server {server}: {cause}")]
    Unreachable {
        server: String,
        #[source]
        cause: io::Error,
    },
    /// Wrong volume, wrong version, not allowed: the server's words.
    #[error("the server {server} refused: {reason}")]
    Refused { server: String, reason: String },
    #[error("{server} does not speak Soda's protocol: {reason}")]
    NotSoda { server: String, reason: String },
    /// It has no room for what a client before this one had not told it, or its disk fails. The log stays.
    #[error(
        "the server {server} does not take {records} changes that were made here before and that it has not been told \
         ({reason}): make room there, and mount again. They stay in {dir}, and whoever needs the files concerned before that may \
         get them without these changes. With another cache-dir it is mounted without them"
    )]
    NoRoom { server: String, records: usize, reason: String, dir: String },
    /// Somebody else has had a log of this volume for long.
    #[error(
        "{dir} holds what was not told to the server of changes that were made here before, and {holder}: mount again when that \
         has ended. With another cache-dir it is mounted without them"
    )]
    LogInUse { dir: String, holder: &'static str },
    #[error("the cache directory {path} cannot be used: {cause}")]
    CacheDir {
        path: String,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot start threads: {0}")]
    Threads(#[source] io::Error),
}
