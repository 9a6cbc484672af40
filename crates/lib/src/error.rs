//! Why a call failed: what was to be done, where, and the errno.

use soda_client::Untold;
use soda_types::{Errno, FsError};
use std::io;
use std::path::{Path, PathBuf};

/// Of every call that names or has a file.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that failed. [`io::Error`] is made of it with the same [`kind`](Error::kind) and text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot {operation} {}: {}", path.display(), said(cause))]
pub struct Error {
    operation: &'static str,
    path: PathBuf,
    cause: FsError,
}

fn said(cause: &FsError) -> String {
    let errno = io::Error::from_raw_os_error(cause.errno.raw());
    if cause.context.is_empty() { errno.to_string() } else { format!("{errno}: {}", cause.context) }
}

impl Error {
    pub fn errno(&self) -> Errno {
        self.cause.errno
    }

    /// As [`std::fs`] would say it.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.cause.errno.raw()).kind()
    }

    /// What the call was about, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// What an error is told with.
pub(crate) trait At<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<FsError>> At<T> for std::result::Result<T, E> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|cause| Error { operation, path: path.to_owned(), cause: cause.into() })
    }
}

/// The end of a [`Volume`](crate::Volume) whose server had not taken every change that was answered before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the server has not taken all changes: {lost} are lost, {left} wait in the cache directory for the next start"
)]
pub struct Unfinished {
    /// Changes that the next one with the same [`cache_dir`](crate::Options::cache_dir) tells the server.
    pub left: u64,
    /// Changes that are lost. What the cache directory had of them is kept there: `soda recover`.
    pub lost: u64,
}

impl Unfinished {
    pub(crate) fn unless_all_told(untold: Untold) -> std::result::Result<(), Unfinished> {
        match untold {
            Untold { left: 0, lost: 0 } => Ok(()),
            Untold { left, lost } => Err(Unfinished { left, lost }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_failed_where_and_why() {
        let failed: std::result::Result<(), FsError> = Err(Errno::NoEntry.into());
        let error = failed.at("open", Path::new("a/b")).unwrap_err();
        assert_eq!(error.to_string(), "cannot open a/b: No such file or directory (os error 2)");
        let io = io::Error::from(error);
        assert_eq!(
            (io.kind(), io.to_string().starts_with("cannot open a/b")),
            (io::ErrorKind::NotFound, true)
        );
        let failed: std::result::Result<(), FsError> = Err(FsError::new(Errno::Io, "changes were lost"));
        let error = failed.at("sync", Path::new("x")).unwrap_err();
        assert!(error.to_string().ends_with(": changes were lost"), "{error}");
    }
}
