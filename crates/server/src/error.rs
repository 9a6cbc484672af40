//! Why a server does not start, with what the administrator can do about it.

use crate::records::RecordError;
use soda_storage::StorageError;
use soda_types::FsError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "refusing to listen on {0}: connections are not authenticated yet, so whoever reaches that address could read and \
         change everything. Listen on a loopback address (such as 127.0.0.1), or accept the risk with --insecure"
    )]
    Exposed(SocketAddr),
    #[error(
        "refusing to serve metrics on {0}: whoever reaches that address could see who uses this server, and how. Choose a \
         loopback address (such as 127.0.0.1), or accept that with --insecure"
    )]
    ExposedMetrics(SocketAddr),
    #[error("there is no volume {0:?} to set the lease term of; this server has \"main\"")]
    NoVolume(String),
    #[error("cannot listen on {address}: {source}{}", listen_hint(.source))]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot serve metrics on {address}: {source}{}", listen_hint(.source))]
    Metrics { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("cannot open the volume in {path}: {cause}")]
    Volume { path: PathBuf, cause: FsError },
    #[error(transparent)]
    Records(#[from] RecordError),
    #[error("the kernel gives no random numbers: {0}")]
    Random(std::io::Error),
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            ". Another program, perhaps another `soda serve`, uses the port: stop it, or choose another with --listen"
        }
        std::io::ErrorKind::AddrNotAvailable => ". This machine does not have that address",
        std::io::ErrorKind::PermissionDenied => ". Ports below 1024 need privilege: choose a higher one",
        _ => "",
    }
}
