//! Logs of delayed writes that will not be sent any more (their session has ended, the server refused them, they are
//! damaged), or wait for the next client of their volume: for people to look at, to apply as far as nobody else has changed what
//! they touch, and to drop.
//!
//! Applying goes through a client like any other program's operations, with the leases and the rules of the day. What somebody
//! has changed meanwhile is reported and left as it is, with all that rests on it. What is done is noted beside the log, which
//! is left as it was found, until nothing is left in it, or it is dropped. Of a damaged one only what is before the damage is
//! applied, and it stays until it is dropped.

mod apply;
mod names;
mod progress;
mod report;
mod save;
mod show;

pub use names::{Named, Names};
pub use report::{Applied, Outcome};
pub use save::{Saved, Whole};

use crate::client::Client;
use crate::log::disk::holder::Holder;
use crate::log::disk::place::{self, Claim, Place};
use progress::{Notes, Progress};
use report::{Halt, Report};
use serde::{Deserialize, Serialize};
use show::Paths;
use soda_oplog::Record;
use soda_oplog::segments::{self, Found, SegmentError};
use soda_protocol::Lsn;
use soda_types::{Fid, FsError};
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
    #[error("{0} is being applied or dropped by somebody else")]
    InUse(PathBuf),
    #[error(
        "the server does not answer ({cause}): {done} of {of} changes were gone through. Apply it again to go on"
    )]
    Silent { done: usize, of: usize, cause: FsError },
    #[error(
        "the server has no room ({cause}): {done} of {of} changes were gone through. Make room there, and apply it again to go on"
    )]
    NoRoom { done: usize, of: usize, cause: FsError },
    #[error(
        "the server has lost changes in a power cut, some of these perhaps: {done} of {of} were gone through, and what was \
         applied last does not count. Apply it again to go on"
    )]
    Lost { done: usize, of: usize },
}

/// What is to become of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogState {
    /// It was put aside: nobody tells the server of it but who applies it.
    Kept,
    /// Its client was killed, or ended without its server: the next one of the same volume with this cache directory tells it.
    Waiting,
    /// Somebody is telling the server of it, or applies it.
    LookedAfter,
}

/// A log that no client writes any more.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeptLog {
    /// Its name in the cache directory.
    pub name: String,
    pub dir: PathBuf,
    pub state: LogState,
    /// When it was put aside, since 1970. Of one that waits, when it was written last.
    pub kept_at: Duration,
    /// Host and mount point of the client; empty if that is not known.
    pub client: String,
    pub why: String,
    pub server: String,
    pub volume: String,
    /// What is left in it.
    pub records: usize,
    /// Bytes of data in these.
    pub bytes: u64,
    /// Where it is damaged, if it is.
    pub damage: Option<String>,
    /// Changes behind the damage: can be shown, but not applied.
    pub beyond_damage: usize,
    /// Bytes on the local disk.
    pub disk_bytes: u64,
}

/// A record of a kept log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeptRecord {
    pub lsn: Lsn,
    /// When it was done, since 1970.
    pub at: Duration,
    /// The system call, about.
    pub operation: String,
    /// From the root of the volume, or from an inode whose path nobody knows.
    pub path: String,
    /// What else there is to say.
    pub detail: String,
    /// Where the names are from, in `path` and in `detail`; of several the last in the order of [`Named`].
    #[serde(default)]
    pub named: Named,
}

/// A log with the names that the server has for what the log does not name.
#[derive(Clone, Copy, Debug)]
pub struct NamedLog<'a> {
    log: &'a KeptLog,
    names: &'a Names,
}

/// The logs in a cache directory that no client writes: those that are kept, oldest first, also those that cannot be read; then
/// those that wait.
///
/// # Errors
/// The directory cannot be read.
pub fn list(cache_dir: &Path) -> Result<Vec<KeptLog>, RecoverError> {
    let failed = |source| RecoverError::Io { path: cache_dir.to_owned(), source };
    let kept = place::kept(cache_dir).map_err(failed)?;
    let left = place::numbered(cache_dir).map_err(failed)?;
    let kept = kept.iter().map(|dir| KeptLog::read(dir, LogState::Kept, &place::Note::read(dir)));
    Ok(kept.chain(left.iter().filter_map(|dir| KeptLog::waiting(cache_dir, dir))).collect())
}

impl KeptLog {
    /// One that was left in its place; `None` if its client runs, or if there is nothing in it.
    fn waiting(cache_dir: &Path, dir: &Path) -> Option<KeptLog> {
        // Who may not lock it may look at it all the same.
        let claim = Place::claim(dir);
        let (state, why) = match &claim {
            Ok(Claim::Gone | Claim::InUse(Holder::Alive | Holder::Unknown)) => return None,
            Ok(Claim::LookedAfter) => {
                (LogState::LookedAfter, "somebody tells the server of it, or applies it")
            }
            Ok(Claim::InUse(Holder::Ending)) => {
                (LogState::Waiting, "its process was killed and has not ended")
            }
            Ok(Claim::Mine(_)) | Err(_) => (LogState::Waiting, "its mount ended before the server was told"),
        };
        let why = format!("{why}: it is told when this is mounted with cache-dir={}", cache_dir.display());
        let note = place::Note {
            at: place::written_at(dir),
            client: place::client_of(dir).unwrap_or_default(),
            why,
        };
        let log = KeptLog::read(dir, state, &note);
        let is_readable = segments::owner(dir).is_ok_and(|owner| owner.is_some());
        (!is_readable || log.records > 0 || log.damage.is_some()).then_some(log)
    }

    fn read(dir: &Path, state: LogState, note: &place::Note) -> KeptLog {
        let mut log = KeptLog {
            name: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            dir: dir.to_owned(),
            state,
            kept_at: note.at,
            client: note.client.clone(),
            why: note.why.clone(),
            server: String::new(),
            volume: String::new(),
            records: 0,
            bytes: 0,
            damage: None,
            beyond_damage: 0,
            disk_bytes: place::bytes(dir),
        };
        let found = match log.found() {
            Ok((found, _)) => found,
            // Kept because it is no log: why says so.
            Err(RecoverError::Empty(_) | RecoverError::Log(SegmentError::NotALog { .. })) => return log,
            Err(error) => {
                log.why = format!("cannot be read: {error}; {}", log.why);
                return log;
            }
        };
        let records = found.records();
        log.records = records.len();
        log.bytes = records.iter().map(|record| show::bytes_of(&record.change)).sum();
        if let Some(damage) = &found.damage {
            log.damage = Some(format!("{} at byte {}", damage.file.display(), damage.offset));
            log.beyond_damage = damage.beyond.len();
        }
        (log.server, log.volume) = (found.header.server, found.header.volume);
        log
    }

    /// The inodes that it does not name, by the numbers that the server has for them: those to ask the server about.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn unnamed(&self) -> Result<Vec<Fid>, RecoverError> {
        let (found, progress) = self.found()?;
        let now = |fid| progress.reached.get(&fid).map_or(fid, |reached| reached.now);
        Ok(Paths::unnamed(all(&found)).into_iter().map(now).collect())
    }

    /// The log with what the server has said of [`KeptLog::unnamed`].
    pub fn named<'a>(&'a self, names: &'a Names) -> NamedLog<'a> {
        NamedLog { log: self, names }
    }

    /// As [`NamedLog::show`], without the server.
    ///
    /// # Errors
    /// As there.
    pub fn show(&self) -> Result<Vec<KeptRecord>, RecoverError> {
        self.named(&Names::default()).show()
    }

    /// As [`NamedLog::apply`], with the names that the log has.
    ///
    /// # Errors
    /// As there.
    pub async fn apply(
        &self,
        client: &Arc<Client>,
        progress: impl FnMut(usize),
    ) -> Result<Vec<Applied>, RecoverError> {
        self.named(&Names::default()).apply(client, progress).await
    }

    /// Puts one that waits among those that are kept: no client tells it any more.
    ///
    /// # Errors
    /// Somebody tells or applies it, or it cannot be moved.
    pub fn put_aside(&self) -> Result<KeptLog, RecoverError> {
        let failed = |source| RecoverError::Io { path: self.dir.clone(), source };
        if self.state == LogState::Kept {
            return Ok(self.clone());
        }
        let Claim::Mine(place) = Place::claim(&self.dir).map_err(failed)? else {
            return Err(RecoverError::InUse(self.dir.clone()));
        };
        let note = place::Note::new(&self.client, "it was to be applied before its volume was mounted again");
        let dir = place.keep(&note).map_err(failed)?;
        Ok(KeptLog::read(&dir, LogState::Kept, &note))
    }

    async fn apply_kept(
        &self,
        client: &Arc<Client>,
        names: &Names,
        progress: impl FnMut(usize),
    ) -> Result<Vec<Applied>, RecoverError> {
        let failed = |source| RecoverError::Io { path: self.dir.clone(), source };
        let Claim::Mine(_place) = Place::claim(&self.dir).map_err(failed)? else {
            return Err(RecoverError::InUse(self.dir.clone()));
        };
        let (found, before) = self.found()?;
        let notes = Notes::begin(&self.dir, &before).map_err(failed)?;
        let paths = Paths::with(names.by_log(&before.reached));
        let of = found.records().len();
        let report = apply::apply(client, &found, before, notes, paths, progress).await;
        let Report { applied, over, .. } = report.map_err(|halt| match halt {
            Halt::Silent { done, cause } => RecoverError::Silent { done, of, cause },
            Halt::NoRoom { done, cause } => RecoverError::NoRoom { done, of, cause },
            Halt::Lost { done } => RecoverError::Lost { done, of },
            Halt::Unnoted(source) => failed(source),
        })?;
        if over.len() == of && found.damage.is_none() {
            self.delete()?;
        }
        Ok(applied)
    }

    /// Deletes it.
    ///
    /// # Errors
    /// It cannot be deleted, or somebody applies it.
    pub fn remove(&self) -> Result<(), RecoverError> {
        // On a full disk there is no room for a lock, either.
        match Place::claim(&self.dir) {
            Ok(Claim::Mine(_)) | Err(_) => self.delete(),
            Ok(Claim::Gone | Claim::LookedAfter | Claim::InUse(_)) => {
                Err(RecoverError::InUse(self.dir.clone()))
            }
        }
    }

    fn delete(&self) -> Result<(), RecoverError> {
        let failed = |source| RecoverError::Io { path: self.dir.clone(), source };
        std::fs::remove_dir_all(&self.dir).map_err(failed)
    }

    /// What is left in it, and how far it has been applied.
    fn found(&self) -> Result<(Found, Progress), RecoverError> {
        let mut found = segments::read(&self.dir)?.ok_or_else(|| RecoverError::Empty(self.dir.clone()))?;
        let progress = Progress::read(&self.dir);
        let is_left = |record: &Record| !progress.over.contains(&record.lsn);
        found.pending.retain(is_left);
        found.given_up.retain(is_left);
        for digest in found.applied.iter_mut().chain(&mut found.sent) {
            digest.records.retain(is_left);
        }
        Ok((found, progress))
    }
}

impl NamedLog<'_> {
    /// What is left in it, in order; behind it what lies behind a damaged place.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn show(&self) -> Result<Vec<KeptRecord>, RecoverError> {
        let (found, progress) = self.log.found()?;
        let mut paths = Paths::with(self.names.by_log(&progress.reached));
        Ok(all(&found).map(|record| paths.show(record)).collect())
    }

    /// Writes what it holds of files into a new directory, each as the log left it: under its path, as far as that is known.
    /// What the log does not hold of a file is zeros. What has been applied is left out.
    ///
    /// # Errors
    /// The log cannot be read, the directory is there and not empty, or it cannot be written.
    pub fn save(&self, dir: &Path) -> Result<Vec<Saved>, RecoverError> {
        let (found, progress) = self.log.found()?;
        let paths = Paths::with(self.names.by_log(&progress.reached));
        save::save(all(&found), dir, paths)
            .map_err(|source| RecoverError::Io { path: dir.to_owned(), source })
    }

    /// Carries out what is left in it, through a client of its volume. What was done, or had been done already, is not left in it
    /// any more; with nothing left, and no damage, it is removed. One that waits is put aside first. `progress` hears after each
    /// change how many have been gone through.
    ///
    /// # Errors
    /// The log cannot be read, or somebody else applies it; the server does not answer, has no room, or loses what was applied;
    /// how far it comes cannot be written beside it. Nothing is lost: the next time goes on there.
    pub async fn apply(
        &self,
        client: &Arc<Client>,
        progress: impl FnMut(usize),
    ) -> Result<Vec<Applied>, RecoverError> {
        self.log.put_aside()?.apply_kept(client, self.names, progress).await
    }
}

fn all(found: &Found) -> impl Iterator<Item = &Record> {
    let beyond = found.damage.iter().flat_map(|damage| &damage.beyond);
    found.records().into_iter().chain(beyond)
}
