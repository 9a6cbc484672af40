//! Where logs lie: directories in the cache directory, each of one client or kept for recovery.
//!
//! ```text
//! <cache-dir>/oplog/3/          the log of a client, or left by one that crashed: files of soda_oplog::segments; locked itself
//!                               by who looks after what a crashed one left
//!                  /3/lock      locked as long as the client runs, which names itself in it
//!                  /kept/NAME/  will not be sent to the server any more: for `soda recover`
//!                  /kept/NAME/why
//!                            /reached   how far it has been applied (crate::recover)
//!                            /lock      locked while it is applied
//! ```

use super::holder::{self, Holder};
use crate::private;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// In the cache directory.
const ALL: &str = "oplog";
const KEPT: &str = "kept";
const LOCK: &str = "lock";
/// When a log was kept, whose it was, and why.
const WHY: &str = "why";
/// Logs in one cache directory: clients that run, and those that crashed and did not come back.
const MOST: usize = 1000;

/// A log's directory that nobody else uses.
#[derive(Debug)]
pub(crate) struct Place {
    dir: PathBuf,
    lock: File,
    /// Of one that was left.
    _looked_after: Option<File>,
}

/// What came of an attempt to have a log that is there.
#[derive(Debug)]
pub(crate) enum Claim {
    Mine(Place),
    /// It is gone, or kept by now.
    Gone,
    /// Somebody else tells the server of it, applies it, or looks at it.
    LookedAfter,
    /// A client writes it.
    InUse(Holder),
}

/// Why a log is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    /// Since 1970.
    pub(crate) at: Duration,
    /// Host and mount point, as the server's tools show them.
    pub(crate) client: String,
    pub(crate) why: String,
}

impl Place {
    /// A new one; `client`: host and mount point.
    ///
    /// # Errors
    /// The cache directory cannot be written.
    pub(crate) fn take(cache_dir: &Path, client: &str) -> io::Result<Place> {
        let all = cache_dir.join(ALL);
        private::make_dir(&all)?;
        for number in 0..MOST {
            let dir = all.join(number.to_string());
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            // Somebody who looks for logs may have been quicker, and taken it for an empty one.
            if let Some(place) = Place::lock(&dir)? {
                holder::note(&place.lock, client);
                return Ok(place);
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many operation logs in it"))
    }

    /// Takes a log that a client has left, be it in its own place or among those that are kept. Who is about to look after one
    /// says so first, by a lock on the directory itself: so it is told from a client that runs.
    ///
    /// # Errors
    /// It cannot be locked.
    pub(crate) fn claim(dir: &Path) -> io::Result<Claim> {
        let looked_after = match File::open(dir) {
            Ok(looked_after) => looked_after,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Gone),
            Err(error) => return Err(error),
        };
        // Where directories cannot be locked, the other lock is all there is.
        let locked = flock(&looked_after, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(rustix::io::Errno::WOULDBLOCK) {
            return Ok(Claim::LookedAfter);
        }
        match Place::lock(dir)? {
            Some(place) => Ok(Claim::Mine(Place { _looked_after: Some(looked_after), ..place })),
            None if !dir.join(LOCK).exists() => Ok(Claim::Gone),
            None => Ok(Claim::InUse(holder::of(&dir.join(LOCK)))),
        }
    }

    /// Whether there is a log in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn has_files(&self) -> io::Result<bool> {
        let is_log = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "log"))
        };
        Ok(fs::read_dir(&self.dir)?.any(is_log))
    }

    /// Of another process, which has passed its lock on.
    pub(crate) fn taken_over(dir: PathBuf, lock: File) -> Place {
        Place { dir, lock, _looked_after: None }
    }

    pub(crate) fn lock_to_pass_on(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// The client that wrote it, as far as that is known.
    pub(crate) fn client(&self) -> Option<String> {
        client_of(&self.dir)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Nothing in it is needed.
    pub(crate) fn remove(self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = ?self.dir, %error, "an operation log that is not needed any more stays");
        }
    }

    /// Puts it among those that are kept. Needs no space but for the note.
    ///
    /// # Errors
    /// It cannot be moved; it stays where it is.
    pub(crate) fn keep(self, note: &Note) -> io::Result<PathBuf> {
        let kept = self.dir.parent().unwrap_or(&self.dir).join(KEPT);
        private::make_dir(&kept)?;
        // Another mount with this cache directory may take the name just now: nothing is moved over what is there.
        let to = first_free(&kept, note, |to| move_new(&self.dir, to))?;
        let _ = fs::remove_file(to.join(LOCK));
        if let Err(error) = note.write(&to) {
            tracing::warn!(dir = ?to, %error, "why it is kept could not be written beside an operation log");
        }
        Ok(to)
    }

    /// `None`: somebody else has it, or it is gone.
    ///
    /// # Errors
    /// The lock cannot be made.
    fn lock(dir: &Path) -> io::Result<Option<Place>> {
        let path = dir.join(LOCK);
        let lock = match File::options().create(true).append(true).mode(0o600).open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // It may have been removed or kept in between.
        let there = fs::metadata(&path).ok().map(|found| found.ino());
        let same = there == Some(lock.metadata()?.ino());
        Ok(same.then(|| Place { dir: dir.to_owned(), lock, _looked_after: None }))
    }
}

/// A new directory among those that are kept.
///
/// # Errors
/// It cannot be made.
pub(crate) fn new_kept(cache_dir: &Path, note: &Note) -> io::Result<PathBuf> {
    let kept = cache_dir.join(ALL).join(KEPT);
    private::make_dir_durably(&kept)?;
    let dir = first_free(&kept, note, |dir| DirBuilder::new().mode(0o700).create(dir))?;
    match note.write(&dir) {
        Ok(()) => Ok(dir),
        Err(error) => {
            let _ = fs::remove_dir_all(&dir);
            Err(error)
        }
    }
}

/// Has the disk know why a log is kept, and its names: those in it, its own, and those of the directories of all of them.
///
/// # Errors
/// The disk fails.
pub(crate) fn sync_kept(kept: &Path) -> io::Result<()> {
    File::open(kept.join(WHY))?.sync_all()?;
    kept.ancestors().take(4).try_for_each(|dir| File::open(dir)?.sync_all())
}

/// Bytes of the files of a log; of what cannot be looked at, none.
pub(crate) fn bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
}

/// The client that writes a log, or left it: host and mount point.
pub(crate) fn client_of(dir: &Path) -> Option<String> {
    holder::client_of(&dir.join(LOCK))
}

/// When a log was written last, since 1970.
pub(crate) fn written_at(dir: &Path) -> Duration {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let times = files.filter_map(|file| file.metadata().and_then(|found| found.modified()).ok());
    times.max().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default()
}

/// Directories of the logs that clients write or have left.
///
/// # Errors
/// The cache directory cannot be read.
pub(crate) fn numbered(cache_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = directories(&cache_dir.join(ALL))?;
    all.retain(|dir| dir.file_name().and_then(|name| name.to_str()).is_some_and(is_number));
    all.sort();
    Ok(all)
}

/// Directories of the logs that are kept, oldest first.
///
/// # Errors
/// The cache directory cannot be read.
pub(crate) fn kept(cache_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = directories(&cache_dir.join(ALL).join(KEPT))?;
    all.sort();
    Ok(all)
}

impl Note {
    pub(crate) fn new(client: &str, why: &str) -> Note {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Note { at, client: client.to_owned(), why: why.to_owned() }
    }

    fn write(&self, dir: &Path) -> io::Result<()> {
        let line = |text: &str| text.replace('\n', " ");
        let text = format!("{}\n{}\n{}\n", self.at.as_secs(), line(&self.client), line(&self.why));
        let mut file =
            File::options().create(true).write(true).truncate(true).mode(0o600).open(dir.join(WHY))?;
        file.write_all(text.as_bytes())
    }

    /// What is not there is empty.
    pub(crate) fn read(dir: &Path) -> Note {
        let text = fs::read_to_string(dir.join(WHY)).unwrap_or_default();
        let mut lines = text.lines();
        let secs = lines.next().and_then(|line| line.parse().ok()).unwrap_or(0);
        let mut next = || lines.next().unwrap_or_default().to_owned();
        Note { at: Duration::from_secs(secs), client: next(), why: next() }
    }
}

/// Fails if something is there.
fn move_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that does not know it.
        Err(rustix::io::Errno::INVAL) if to.exists() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(rustix::io::Errno::INVAL) => fs::rename(from, to),
        moved => Ok(moved?),
    }
}

/// Takes the first name that nobody has taken, by the attempt itself.
fn first_free(
    kept: &Path,
    note: &Note,
    mut take: impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<PathBuf> {
    let secs = note.at.as_secs();
    for number in 0..MOST {
        let name = match number {
            0 => kept.join(secs.to_string()),
            _ => kept.join(format!("{secs}-{number}")),
        };
        match take(&name) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many operation logs of one second are kept"))
}

fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn directories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::holder::tests::nobody_starts;
    use super::*;

    fn left(cache_dir: &Path) -> Vec<PathBuf> {
        let claim = |dir: &PathBuf| matches!(Place::claim(dir).unwrap(), Claim::Mine(_));
        numbered(cache_dir).unwrap().into_iter().filter(claim).collect()
    }

    #[test]
    fn a_log_is_of_one_client_at_a_time_and_left_when_it_is_gone() {
        let _nobody_starts = nobody_starts();
        let cache = tempfile::tempdir().unwrap();
        let place = Place::take(cache.path(), "host:/mnt").unwrap();
        let other = Place::take(cache.path(), "host:/mnt").unwrap();
        assert_ne!(place.dir(), other.dir());
        fs::write(place.dir().join("0000000001.log"), "x").unwrap();
        assert!(matches!(Place::claim(place.dir()).unwrap(), Claim::InUse(Holder::Alive)));
        assert!(left(cache.path()).is_empty(), "both are in use");
        let dirs = [place.dir().to_owned(), other.dir().to_owned()];
        drop((place, other));
        assert_eq!(left(cache.path()), dirs);
        assert_eq!(client_of(&dirs[0]).unwrap(), "host:/mnt");
        let Claim::Mine(place) = Place::claim(&dirs[0]).unwrap() else { panic!("nobody has it") };
        assert!(place.has_files().unwrap());
        assert!(matches!(Place::claim(&dirs[0]).unwrap(), Claim::LookedAfter));
        place.remove();
        assert!(matches!(Place::claim(&dirs[0]).unwrap(), Claim::Gone));
    }

    #[test]
    fn what_is_kept_says_why() {
        let cache = tempfile::tempdir().unwrap();
        let note = Note { at: Duration::from_secs(77), client: "host:/mnt".into(), why: "cut\noff".into() };
        for name in ["77", "77-1"] {
            let place = Place::take(cache.path(), "host:/mnt").unwrap();
            fs::write(place.dir().join("0000000001.log"), "x").unwrap();
            let dir = place.keep(&note).unwrap();
            assert!(dir.ends_with(name) && dir.join("0000000001.log").exists());
            assert_eq!(Note::read(&dir), Note { why: "cut off".into(), ..note.clone() });
        }
        assert_eq!(kept(cache.path()).unwrap().len(), 2);
        assert!(left(cache.path()).is_empty());
    }

    /// As when two mounts that share it are given up by one server.
    #[test]
    fn logs_that_are_kept_in_one_second_have_a_directory_each() {
        const THREADS: usize = 8;
        const EACH: usize = 10;
        let cache = tempfile::tempdir().unwrap();
        let note = Note { at: Duration::from_secs(77), client: "host:/mnt".into(), why: "why".into() };
        let start = std::sync::Barrier::new(THREADS);
        let keep = &|thread: usize| {
            start.wait();
            let name = format!("{thread}.log");
            let mut dirs = Vec::new();
            for turn in 0..EACH {
                dirs.push(match (thread + turn) % 2 {
                    0 => {
                        let dir = new_kept(cache.path(), &note).unwrap();
                        fs::write(dir.join(&name), "x").unwrap();
                        dir
                    }
                    _ => {
                        let place = Place::take(cache.path(), "host:/mnt").unwrap();
                        fs::write(place.dir().join(&name), "x").unwrap();
                        place.keep(&note).unwrap()
                    }
                });
            }
            (name, dirs)
        };
        let kept_by = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || keep(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for (name, dirs) in kept_by {
            for dir in dirs {
                let logs = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
                let logs: Vec<_> = logs.filter(|name| name.to_string_lossy().ends_with(".log")).collect();
                assert_eq!(logs, [name.as_str()], "{dir:?}");
            }
        }
        assert_eq!(kept(cache.path()).unwrap().len(), THREADS * EACH);
    }
}
