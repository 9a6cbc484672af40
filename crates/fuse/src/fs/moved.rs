//! Directories that another machine has moved, and that Linux has to be shown at their new place before it can rename them.
//!
//! Linux has one path for each directory. A look-up that finds it elsewhere takes it there (`d_splice_alias`), unless it has
//! to move between two parents while the file system's rename lock is held, as it is in a rename(2) between two directories:
//! then the look-up fails with ESTALE. rename(2) walks both paths again, once, and must not find the same. So somebody who
//! holds no lock looks the new path up in between, while the second walk waits.
//!
//! That is a process of its own. A thread of the daemon that waits for an answer of the daemon keeps /dev/fuse open in spite of
//! kill -9, and then nobody is ever answered.

use super::Inner;
use crate::nodes::Place;
use crate::unpoisoned::Unpoisoned;
use soda_types::{Fid, Name};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// rename(2) begins its second walk at once.
const AT_ONCE: Duration = Duration::from_secs(1);
/// So long a look-up waits for a path to be shown. Longer than a process takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);
/// So often a path is shown until Linux takes it, and how long after the last time: another rename may hold the lock.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(5);
/// Threads of which it is kept what they found.
const THREADS: usize = 256;
/// Paths that are shown at the same time.
const SHOWN_AT_ONCE: usize = 4;

/// Which threads have found a directory at another place than Linux has it.
#[derive(Debug)]
pub(super) struct Moved {
    mount_point: PathBuf,
    found: Mutex<HashMap<u32, Found>>,
    /// Number of entries of `found`: mostly none.
    threads: AtomicUsize,
    permits: Arc<Semaphore>,
}

/// What the last look-up of a thread came upon.
#[derive(Clone, Debug)]
struct Found {
    directory: Fid,
    at: Place,
    when: Instant,
}

/// What a thread's next look-up says of what the one before it found.
#[derive(Debug)]
enum Next {
    /// The look-up went well: it goes on below.
    Below,
    /// The same again, with nothing looked up in between: rename(2) fails for the second time.
    Again(Found),
    /// It may be walking its paths for the second time.
    Elsewhere(Found),
}

impl Moved {
    pub(super) fn new(mount_point: PathBuf) -> Moved {
        Moved {
            mount_point,
            found: Mutex::default(),
            threads: AtomicUsize::new(0),
            permits: Arc::new(Semaphore::new(SHOWN_AT_ONCE)),
        }
    }

    fn found(&self) -> MutexGuard<'_, HashMap<u32, Found>> {
        self.found.lock().unpoisoned()
    }

    fn note(&self, tid: u32, found: Found) {
        let mut all = self.found();
        if all.len() >= THREADS {
            all.retain(|_, found| found.when.elapsed() < AT_ONCE);
        }
        if all.len() < THREADS {
            all.insert(tid, found);
        }
        self.threads.store(all.len(), Ordering::Relaxed);
    }

    fn next(&self, tid: u32, dir: Fid, name: &Name) -> Option<Next> {
        if self.threads.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut all = self.found();
        let found = all.remove(&tid).filter(|found| found.when.elapsed() < AT_ONCE)?;
        self.threads.store(all.len(), Ordering::Relaxed);
        Some(if dir == found.directory {
            Next::Below
        } else if found.at.is(dir, name.as_bytes()) {
            Next::Again(found)
        } else {
            Next::Elsewhere(found)
        })
    }
}

impl Inner {
    /// Before a look-up: lets Linux take over the directory that the thread's last one found, if it may not have done so.
    pub(super) async fn settle_moved(self: &Arc<Self>, tid: u32, dir: Fid, name: &Name) {
        match self.moved.next(tid, dir, name) {
            None | Some(Next::Below) => {}
            // It holds the lock: it is answered, and the next rename(2) will find the directory there.
            Some(Next::Again(found)) => drop(self.show(found)),
            Some(Next::Elsewhere(found)) => {
                let shown = self.show(found);
                if tokio::time::timeout(PATIENCE, shown).await.is_err() {
                    tracing::debug!("the path of a directory that was moved is not shown in time");
                }
            }
        }
    }

    /// A look-up of `name` in `dir` is about to be answered with `directory`.
    pub(super) fn note_moved(&self, tid: u32, dir: Fid, name: &Name, directory: Fid) {
        if self.nodes.may_be_elsewhere(directory, dir) {
            let at = Place { dir, name: name.as_bytes().into() };
            self.moved.note(tid, Found { directory, at, when: Instant::now() });
        }
    }

    /// This machine's rename has put something at a name.
    pub(super) fn renamed_to(&self, dir: Fid, name: &Name) {
        let node = self.client.cached(dir, name).and_then(|entry| entry.node);
        if let Some(node) = node {
            self.nodes.place_is(node.fid, Place { dir, name: name.as_bytes().into() });
        }
    }

    /// Has the new path looked up. Goes on if nobody waits for it.
    fn show(self: &Arc<Self>, found: Found) -> impl Future<Output = ()> + use<> {
        let shown = self.start_to_show(found);
        async move {
            if let Some(shown) = shown {
                // An error: the runtime ends.
                let _ = shown.await;
            }
        }
    }

    fn start_to_show(self: &Arc<Self>, found: Found) -> Option<tokio::task::JoinHandle<()>> {
        let permit = self.moved.permits.clone().try_acquire_owned().ok()?;
        let path = self.moved.mount_point.join(self.nodes.path_of(&found.at)?);
        let inner = self.clone();
        Some(self.tasks.runtime().spawn_blocking(move || {
            match look_up(&path) {
                Ok(status) if status.success() => inner.nodes.place_is(found.directory, found.at),
                Ok(status) => {
                    tracing::debug!(%status, ?path, "a directory that was moved is not there any more")
                }
                Err(error) => {
                    tracing::warn!(%error, ?path, "a directory that was moved cannot be shown to the kernel")
                }
            }
            drop(permit);
        }))
    }
}

/// Has a process look `path` up.
fn look_up(path: &Path) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    let mut status = run(path, deadline)?;
    for _ in 1..TRIES {
        if status.success() || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(AGAIN);
        status = run(path, deadline)?;
    }
    Ok(status)
}

fn run(path: &Path, deadline: Instant) -> io::Result<ExitStatus> {
    let mut command = Command::new("stat");
    command.arg("--").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = command.spawn()?;
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            // It waits for a server that does not answer.
            process.kill()?;
            return process.wait();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
