//! Why a client could not start. Operations fail with [`soda_types::FsError`].

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot reach the server {server}: {cause}")]
    Unreachable { server: String, cause: io::Error },
    /// Wrong volume, wrong version, not allowed: the server's words.
    #[error("the server {server} refused: {reason}")]
    Refused { server: String, reason: String },
    #[error("{server} does not speak Soda's protocol: {reason}")]
    NotSoda { server: String, reason: String },
    #[error("the cache directory {path} cannot be used: {cause}")]
    CacheDir { path: String, cause: io::Error },
}
