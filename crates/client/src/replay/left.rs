//! Which logs of a cache directory are this client's to tell, one at a time.
//!
//! | who has a log | what the others do |
//! | --- | --- |
//! | nobody | one takes it, and tells the server |
//! | who tells the server, or `soda recover` | they wait: what it touches is not to be used before |
//! | a client that was killed and has not ended yet | they wait for its end |
//! | a client that runs | they leave it alone |
//!
//! Who has waited in vain does not start: its first use of what an untold log touches would end the session of that log, and what
//! it holds could not be told any more.

use super::replay_place;
use super::wire::{Wire, WireError};
use crate::error::ConnectError;
use crate::inner::Inner;
use crate::log::disk::holder::Holder;
use crate::log::disk::inodes_of;
use crate::log::disk::place::{self, Claim, Place};
use soda_oplog::segments::{self, Header};
use soda_types::Fid;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long others are waited for who get no further. Who tells the server of a log gives up before that if it is away.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// Replays all logs that were left of this volume, or waits until others have. Returns the inodes that they touch.
///
/// # Errors
/// The server cannot be reached, or has no room; or somebody else has a log for long. The logs stay.
pub(crate) async fn replay_left(inner: &Arc<Inner>) -> Result<BTreeSet<Fid>, ConnectError> {
    let mut touched = BTreeSet::new();
    let Some(cache_dir) = inner.config.cache.dir.clone() else { return Ok(touched) };
    let failed = |cause| ConnectError::CacheDir { path: cache_dir.display().to_string(), cause };
    let in_it = cache_dir.clone();
    let dirs = blocking(move || place::numbered(&in_it)).await.map_err(failed)?;
    let mut todo: VecDeque<Log> = dirs.into_iter().map(|dir| Log { dir, waited_for: false }).collect();
    // Since when nothing but waiting was done, and how many are still to be looked at before the next pause.
    let (mut began, mut fresh) = (inner.now(), todo.len());
    while let Some(mut log) = todo.pop_front() {
        let dir = log.dir.clone();
        let holder = match blocking(move || look(&dir)).await.map_err(failed)? {
            Claim::Gone | Claim::InUse(Holder::Alive) => None,
            Claim::Mine(place) => {
                touched.extend(replay_place(inner, place).await?);
                None
            }
            Claim::InUse(Holder::Unknown) => {
                tracing::warn!(dir = ?log.dir, "an operation log is left alone: it is in use, and does not say by whom");
                None
            }
            Claim::LookedAfter => Some("somebody tells the server of it, or looks at it"),
            Claim::InUse(Holder::Ending) => Some("the process that wrote it was killed and has not ended"),
        };
        if let Some(holder) = holder
            && (log.waited_for || is_wanted(inner, &log.dir, &mut touched).await?)
        {
            if !log.waited_for {
                tracing::warn!(dir = ?log.dir, holder, "waiting for an operation log of this volume");
                log.waited_for = true;
            }
            if inner.now().since(began) > PATIENCE {
                return Err(ConnectError::LogInUse { dir: log.dir.display().to_string(), holder });
            }
            todo.push_back(log);
            fresh -= 1;
            if fresh == 0 {
                tokio::time::sleep(LOOK).await;
                fresh = todo.len();
            }
        } else {
            (began, fresh) = (inner.now(), todo.len());
        }
    }
    Ok(touched)
}

struct Log {
    dir: PathBuf,
    /// It is of this volume, and somebody else has it.
    waited_for: bool,
}

/// Takes one, if nobody has it. What is empty is removed.
fn look(dir: &Path) -> io::Result<Claim> {
    match Place::claim(dir)? {
        Claim::Mine(place) if !place.has_files()? => {
            place.remove();
            Ok(Claim::Gone)
        }
        claimed => Ok(claimed),
    }
}

/// Whether a log that somebody else has is one of this volume; what it touches, as far as it can be read.
async fn is_wanted(
    inner: &Arc<Inner>,
    dir: &Path,
    touched: &mut BTreeSet<Fid>,
) -> Result<bool, ConnectError> {
    let dir = dir.to_owned();
    let read = blocking(move || {
        let owner = segments::owner(&dir).ok().flatten();
        let found = segments::read(&dir).ok().flatten();
        let records = found.iter().flat_map(|found| found.records());
        let touched: Vec<Fid> = records.flat_map(|record| inodes_of(&record.change)).collect();
        Ok((owner, touched))
    });
    // What cannot be read somebody has just taken away: the next look tells.
    let (owner, records_touch) = read.await.unwrap_or_default();
    let is_wanted = match owner {
        Some(owner) => is_of_this_volume(inner, &owner).await?,
        None => true,
    };
    if is_wanted {
        touched.extend(records_touch);
    }
    Ok(is_wanted)
}

/// Whether this client's server wrote the session's key into it. One server may be called by several names; what it is called
/// tells only that nobody has to be asked.
pub(super) async fn is_of_this_volume(inner: &Arc<Inner>, header: &Header) -> Result<bool, ConnectError> {
    if (&header.server, &header.volume) == (&inner.config.server, &inner.config.volume) {
        return Ok(true);
    }
    let server = || inner.config.server.clone();
    Wire::knows(inner, header).await.map_err(|error| match error {
        WireError::Broken(cause) => ConnectError::Unreachable { server: server(), cause },
        WireError::Failed(failure) | WireError::Refused(failure) => {
            ConnectError::Refused { server: server(), reason: failure.to_string() }
        }
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}
