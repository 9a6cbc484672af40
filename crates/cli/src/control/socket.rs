//! The socket of a mount's daemon, before anybody is answered.

use super::runtime_dir;
use crate::error::CliError;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::net::UnixListener;

/// Where a mount's daemon is going to be asked: it listens. That of a new mount is found already, by another name: the kernel
/// shows the mount before its daemon can answer, and who asks then waits for that.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    device: Option<(u32, u32)>,
    path: PathBuf,
    listener: UnixListener,
    unfinished: Unfinished,
}

impl ControlSocket {
    /// For a mount that another process serves still; nobody finds it.
    ///
    /// # Errors
    /// The runtime directory, the socket.
    pub(crate) fn bind(device: Option<(u32, u32)>) -> Result<ControlSocket, CliError> {
        let path = path_of(device)?;
        let (listener, unfinished) = bind(&path).map_err(named(&path))?;
        Ok(ControlSocket { device, path, listener, unfinished })
    }

    /// For a mount that is going to be made.
    ///
    /// # Errors
    /// As [`ControlSocket::bind`].
    pub(crate) fn bind_early() -> Result<ControlSocket, CliError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        // Of a process in another PID namespace the number may be the same.
        let path = runtime_dir::made()?.join(format!("starting-{}-{now}.sock", std::process::id()));
        let bound = bind(&path).and_then(|(listener, unfinished)| Ok((listener, unfinished.rename(&path)?)));
        let (listener, unfinished) = bound.map_err(named(&path))?;
        Ok(ControlSocket { device: None, path, listener, unfinished })
    }

    /// The mount is there: `device` is its own.
    ///
    /// # Errors
    /// The runtime directory.
    pub(crate) fn for_mount(self, device: Option<(u32, u32)>) -> Result<ControlSocket, CliError> {
        Ok(ControlSocket { device, path: path_of(device)?, ..self })
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

fn path_of(device: Option<(u32, u32)>) -> Result<PathBuf, CliError> {
    let minor = device.map_or(0, |(_, minor)| minor);
    Ok(runtime_dir::made()?.join(format!("mount-{}-{minor}.sock", std::process::id())))
}

fn named(path: &Path) -> impl FnOnce(io::Error) -> CliError {
    CliError::io(format!("the control socket {}", path.display()))
}

/// The name of a socket that is going to have another one.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Unfinished {
    fn rename(mut self, path: &Path) -> io::Result<Unfinished> {
        std::fs::rename(&self.0, path)?;
        path.clone_into(&mut self.0);
        Ok(self)
    }

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
