//! Logs of delayed writes that will not be sent any more (their session has ended, the server refused them, they are
//! damaged): for people to look at, to apply as far as nobody else has changed what they touch, and to drop.
//!
//! Applying goes through a client like any other program's operations, with the leases and the rules of the day. What somebody
//! has changed meanwhile is reported and left as it is, with all that rests on it. What is done is noted in the log, which
//! stays until nothing is left in it, or it is dropped.

mod apply;
mod reached;
mod show;

pub use apply::{Applied, Outcome};

use crate::client::Client;
use crate::log::disk::place;
use serde::{Deserialize, Serialize};
use show::Paths;
use soda_oplog::segments::{self, Entry, Found, Safety, SegmentError, Segments};
use soda_protocol::Lsn;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Log(#[from] SegmentError),
    #[error("{0} holds no log")]
    Empty(PathBuf),
}

/// A log that is kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeptLog {
    /// Its name in the cache directory.
    pub name: String,
    pub dir: PathBuf,
    /// When it was put aside, since 1970.
    pub kept_at: Duration,
    /// Host and mount point of the client.
    pub client: String,
    pub why: String,
    pub server: String,
    pub volume: String,
    /// What is left in it.
    pub records: usize,
    /// Bytes of data in these.
    pub bytes: u64,
    /// What is behind a damaged place in it: can be shown, but not applied.
    pub beyond_damage: usize,
}

/// A record of a kept log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeptRecord {
    pub lsn: Lsn,
    /// When it was done, since 1970.
    pub at: Duration,
    /// The system call, about.
    pub operation: String,
    /// From the root of the volume, as far as the log knows.
    pub path: String,
    /// What else there is to say.
    pub detail: String,
}

/// The logs that are kept in a cache directory, oldest first.
///
/// # Errors
/// The directory or a log in it cannot be read.
pub fn list(cache_dir: &Path) -> Result<Vec<KeptLog>, RecoverError> {
    let failed = |source| RecoverError::Io { path: cache_dir.to_owned(), source };
    place::kept(cache_dir).map_err(failed)?.iter().map(|dir| KeptLog::read(dir)).collect()
}

impl KeptLog {
    fn read(dir: &Path) -> Result<KeptLog, RecoverError> {
        let note = place::Note::read(dir);
        let mut log = KeptLog {
            name: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            dir: dir.to_owned(),
            kept_at: note.at,
            client: note.client,
            why: note.why,
            server: String::new(),
            volume: String::new(),
            records: 0,
            bytes: 0,
            beyond_damage: 0,
        };
        let found = match segments::read(dir) {
            Ok(Some(found)) => found,
            // Kept because it is no log: nothing in it can be read, but it is there.
            Ok(None) | Err(SegmentError::NotALog { .. }) => return Ok(log),
            Err(error) => return Err(error.into()),
        };
        let records = found.records();
        log.records = records.len();
        log.bytes = records.iter().map(|record| show::bytes_of(&record.change)).sum();
        log.beyond_damage = found.damage.as_ref().map_or(0, |damage| damage.beyond.len());
        (log.server, log.volume) = (found.header.server, found.header.volume);
        Ok(log)
    }

    /// What is left in it, in order; behind it what lies behind a damaged place.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn show(&self) -> Result<Vec<KeptRecord>, RecoverError> {
        let found = self.found()?;
        let beyond = found.damage.iter().flat_map(|damage| &damage.beyond);
        let mut paths = Paths::default();
        Ok(found.records().into_iter().chain(beyond).map(|record| paths.show(record)).collect())
    }

    /// Carries out what is left in it, through a client of its volume. What was done, or had been done already, is taken out of
    /// the log; with nothing left in it the log is removed. `progress` hears after each change how many have been gone through.
    ///
    /// # Errors
    /// The log cannot be read or written. Nothing is lost: what was done is found to be done the next time.
    pub async fn apply(
        &self,
        client: &Arc<Client>,
        progress: impl FnMut(usize),
    ) -> Result<Vec<Applied>, RecoverError> {
        let found = self.found()?;
        let before = reached::read(&self.dir);
        let apply::Report { applied, reached } = apply::apply(client, &found, before, progress).await;
        let synced = client.sync_all().await;
        let source = |error: soda_types::FsError| io::Error::other(error.to_string());
        synced.map_err(|error| RecoverError::Io { path: self.dir.clone(), source: source(error) })?;
        let over = apply::over(&found, &applied);
        if over.len() == found.records().len() && found.damage.is_none() {
            self.remove()?;
        } else if !over.is_empty() {
            let failed = |source| RecoverError::Io { path: self.dir.clone(), source };
            reached::write(&self.dir, &reached).map_err(failed)?;
            self.take_out(&found, over)?;
        }
        Ok(applied)
    }

    /// Deletes it.
    ///
    /// # Errors
    /// It cannot be deleted.
    pub fn remove(&self) -> Result<(), RecoverError> {
        let failed = |source| RecoverError::Io { path: self.dir.clone(), source };
        std::fs::remove_dir_all(&self.dir).map_err(failed)
    }

    fn found(&self) -> Result<Found, RecoverError> {
        segments::read(&self.dir)?.ok_or_else(|| RecoverError::Empty(self.dir.clone()))
    }

    fn take_out(&self, found: &Found, lsns: Vec<Lsn>) -> Result<(), RecoverError> {
        let mut segments = Segments::create(&self.dir, found.header.clone(), Safety::PowerCut)?;
        // Nothing of it is on its way any more.
        segments.append(&Entry::Lost { from: soda_types::Sequence(0) });
        segments.append(&Entry::GivenUp { lsns });
        Ok(segments.sync()?)
    }
}
