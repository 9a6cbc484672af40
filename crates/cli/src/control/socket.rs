//! The socket of a mount's daemon, before it can be found.

use super::runtime_dir;
use crate::error::CliError;
use std::io;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Where a mount's daemon is going to be asked: it listens, but has no name yet.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    device: Option<(u32, u32)>,
    path: PathBuf,
    listener: UnixListener,
    unfinished: Unfinished,
}

impl ControlSocket {
    /// `device`: of the mount.
    ///
    /// # Errors
    /// The runtime directory, the socket.
    pub(crate) fn bind(device: Option<(u32, u32)>) -> Result<ControlSocket, CliError> {
        let dir = runtime_dir::made()?;
        let minor = device.map_or(0, |(_, minor)| minor);
        let path = dir.join(format!("mount-{}-{minor}.sock", std::process::id()));
        let bound = bind(&path).map_err(CliError::io(format!("the control socket {}", path.display())));
        let (listener, unfinished) = bound?;
        Ok(ControlSocket { device, path, listener, unfinished })
    }

    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// The path by which it is found now, if it could have it.
    pub(super) fn finish(self) -> (PathBuf, UnixListener, io::Result<()>) {
        let ControlSocket { path, listener, unfinished, .. } = self;
        let named = unfinished.finish(&path);
        (path, listener, named)
    }
}

/// The name of a socket that has none yet.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Unfinished {
    fn finish(self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.0, path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The socket has its name only when somebody listens: who finds one that refuses takes it away.
fn bind(path: &Path) -> io::Result<(UnixListener, Unfinished)> {
    let unfinished = path.with_extension("new");
    let _ = std::fs::remove_file(&unfinished);
    let listener = UnixListener::bind(&unfinished)?;
    Ok((listener, Unfinished(unfinished)))
}

#[cfg(test)]
mod tests {
    use super::super::{Question, ask};
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn who_looks_for_daemons_takes_no_socket_from_one_that_starts() {
        let dir = tempfile::tempdir().unwrap();
        let path = |number: u32| dir.path().join(format!("mount-{number}-1.sock"));
        let newest = std::sync::atomic::AtomicU32::new(0);
        let taken_away = std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    match newest.load(std::sync::atomic::Ordering::Relaxed) {
                        u32::MAX => return,
                        number => ask(&path(number + 1), Question::Status, Some(Duration::from_millis(1))),
                    };
                }
            });
            let taken_away = (1..300).filter(|number| {
                let (listener, unfinished) = bind(&path(*number)).unwrap();
                let named = unfinished.finish(&path(*number));
                newest.store(*number, std::sync::atomic::Ordering::Relaxed);
                let _listens = listener;
                named.is_err() || !path(*number).exists()
            });
            let taken_away = taken_away.count();
            newest.store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
            taken_away
        });
        assert_eq!(taken_away, 0);
    }

    #[tokio::test]
    async fn a_socket_that_cannot_have_its_name_leaves_nothing_and_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount-1-1.sock");
        std::fs::create_dir(&path).unwrap();
        let (_listens, unfinished) = bind(&path).unwrap();
        assert!(path.with_extension("new").exists());
        unfinished.finish(&path).unwrap_err();
        assert!(path.is_dir() && !path.with_extension("new").exists());
    }
}
