//! Waiting for what mounts have not told their servers yet: what `soda sync` does, and `soda umount` before it unmounts.

use crate::answer::{MountStatus, SyncAnswer};
use crate::control::{self, Daemon};
use crate::error::CliError;
use crate::progress::Progress;
use crate::units::{count, show_size};
use serde::Serialize;
use soda_client::BacklogView;
use soda_fuse::MountEntry;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a server that is gone is waited for, at least.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(100);

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// All of it is on the server's disk.
    Durable,
    /// As much has been told as there was at the beginning: the daemon tells the rest when it ends. A writer that never
    /// stops keeps nobody waiting for ever.
    Told,
}

/// How it went with one mount.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Synced {
    pub dir: PathBuf,
    #[serde(skip)]
    server: String,
    pub began: BacklogView,
    /// Nothing of what it began with, if it was synced.
    pub left: BacklogView,
    pub outcome: Outcome,
    /// The file that its daemon logs to, if it says so.
    #[serde(skip)]
    log: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Synced,
    /// Only with [`Until::Told`].
    Told,
    NoRoom,
    /// Changes were lost, then or before, and nobody has heard of it.
    Lost,
    Failed(String),
    ServerGone,
    DaemonEnded,
    /// Its daemon is there, but stopped or stuck. What it has not told is not known.
    NoAnswer,
}

/// Has them synced all at once.
pub(crate) fn sync(daemons: Vec<Daemon>, until: Until) -> Vec<Synced> {
    let start = Instant::now();
    let (tell, told) = mpsc::channel();
    let mut jobs: Vec<Job> = daemons.into_iter().map(Job::new).collect();
    for (number, job) in jobs.iter().enumerate() {
        let (tell, socket) = (tell.clone(), job.daemon.socket.clone());
        // It ends with the process if nobody waits for it any more; the daemon goes on.
        std::thread::spawn(move || tell.send((number, control::sync(&socket))));
    }
    drop(tell);
    let mut progress = Progress::new(waiting_for(&jobs), jobs.iter().map(|job| job.began.records).sum());
    while jobs.iter().any(|job| job.outcome.is_none()) {
        match told.recv_timeout(PAUSE) {
            Ok((number, answer)) => jobs[number].end(outcome_of(answer)),
            // Each thread tells before it ends.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                jobs.iter_mut().filter(|job| job.outcome.is_none()).for_each(|job| job.look(until, start));
                progress.show(jobs.iter().map(|job| job.told).sum(), away(&jobs));
            }
        }
    }
    drop(progress);
    jobs.into_iter().map(Job::finish).collect()
}

fn waiting_for(jobs: &[Job]) -> String {
    match jobs {
        [job] => format!(
            "{} of {} to reach the server's disk",
            left_text(&job.began),
            job.daemon.status.dir.display()
        ),
        jobs => format!("{} to reach their servers' disks", count(jobs.len() as u64, "mount")),
    }
}

fn away(jobs: &[Job]) -> Option<String> {
    let away = jobs.iter().find(|job| job.outcome.is_none() && !job.last.is_connected())?;
    Some(format!("the server {} to come back", away.last.session.server))
}

/// Of what the server has not heard: `3 changes (1.0 KiB)`.
pub(crate) fn show_changes(backlog: &BacklogView) -> String {
    format!("{} ({})", count(backlog.records, "change"), show_size(backlog.bytes))
}

/// As [`show_changes`], with those that the server may still lose.
fn left_text(backlog: &BacklogView) -> String {
    let pending = show_changes(backlog);
    match backlog.not_durable {
        0 => pending,
        more => format!("{pending}, and {} that its disk may not have,", count(more, "change")),
    }
}

/// What waits for one mount.
struct Job {
    daemon: Daemon,
    began: BacklogView,
    /// Digested when it began.
    digested: u64,
    last: MountStatus,
    /// Of what it began with, the part that is told; never less than before.
    told: u64,
    outcome: Option<Outcome>,
}

impl Job {
    fn new(daemon: Daemon) -> Job {
        let status = daemon.status.clone();
        let (began, digested) = (status.session.backlog, status.count("digested"));
        Job { daemon, began, digested, last: status, told: 0, outcome: None }
    }

    fn look(&mut self, until: Until, start: Instant) {
        // One that is stopped for a moment, or busy, says more at the next look; one that ends also ends the wait.
        let Some(now) = control::status(&self.daemon.socket) else { return };
        self.told = self.told.max(told(&self.began, &now, self.digested));
        let is_gone = !now.is_connected() && now.session.left.is_zero() && start.elapsed() >= PATIENCE;
        self.last = now;
        if is_gone {
            self.end(Outcome::ServerGone);
        } else if until == Until::Told && self.told == self.began.records && self.began.records > 0 {
            self.end(Outcome::Told);
        }
    }

    /// The first end counts.
    fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }

    fn finish(self) -> Synced {
        let outcome = self.outcome.unwrap_or(Outcome::DaemonEnded);
        let now = control::status(&self.daemon.socket).unwrap_or(self.last);
        Synced {
            dir: now.dir,
            server: now.session.server,
            began: self.began,
            left: now.session.backlog,
            outcome,
            log: now.log.map(|log| log.file),
        }
    }
}

/// How much of a backlog was told: what came after it may keep the backlog as long as it was, so what went out counts, too.
fn told(began: &BacklogView, now: &MountStatus, digested: u64) -> u64 {
    let gone = began.records.saturating_sub(now.session.backlog.records);
    let sent = now.count("digested").saturating_sub(digested);
    // What is under way is not told: at most what is still there may be that.
    let surely_sent = sent.saturating_sub(now.session.backlog.records);
    gone.max(surely_sent).min(began.records)
}

fn outcome_of(answer: Option<SyncAnswer>) -> Outcome {
    match answer {
        Some(SyncAnswer::Synced) => Outcome::Synced,
        Some(SyncAnswer::NoRoom) => Outcome::NoRoom,
        Some(SyncAnswer::Lost) => Outcome::Lost,
        Some(SyncAnswer::Failed(why)) => Outcome::Failed(why),
        None => Outcome::DaemonEnded,
    }
}

impl Synced {
    /// Of a mount that could not even be asked.
    pub(crate) fn no_answer(mount: MountEntry) -> Synced {
        let (began, left) = (BacklogView::default(), BacklogView::default());
        Synced { dir: mount.dir, server: mount.source, began, left, outcome: Outcome::NoAnswer, log: None }
    }

    /// What a command says that was to sync and could not.
    pub(crate) fn into_result(self) -> Result<(), CliError> {
        let (dir, left) = (self.dir.display(), left_text(&self.left));
        let log = log_text(self.log.as_deref());
        let text = match self.outcome {
            Outcome::Synced | Outcome::Told => return Ok(()),
            Outcome::ServerGone => {
                return Err(CliError::ServerGone { server: self.server, left, dir: self.dir });
            }
            Outcome::NoRoom => format!(
                "the server {} has no room for {left} of {dir}. They are kept and tried again: make room there, or remove \
                 files that are not needed",
                self.server
            ),
            Outcome::Lost => return Err(lost(&self.dir, self.log.as_deref())),
            Outcome::Failed(why) => format!("cannot sync {dir}: {why}; {log} says more"),
            Outcome::DaemonEnded => format!("cannot sync {dir}: its daemon has ended; {log} may say why"),
            Outcome::NoAnswer => {
                format!("{dir} is not synced: its daemon does not answer, it is stopped or stuck")
            }
        };
        Err(CliError::Failed(text))
    }
}

fn log_text(file: Option<&str>) -> String {
    file.map_or_else(|| "its daemon's log".to_owned(), |file| format!("its daemon's log, {file},"))
}

/// Of changes that were lost, and nobody has heard of it. `log`: the file that the mount's daemon logs to.
pub(crate) fn lost(dir: &Path, log: Option<&str>) -> CliError {
    CliError::Failed(format!(
        "changes made in {} are lost, and no program has been told: {} says why, and `soda recover ls` shows what is kept of \
         them, if anything is",
        dir.display(),
        log_text(log)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::mount_status;

    fn after(records: u64, digested: u64) -> MountStatus {
        let mut status = mount_status();
        status.session.backlog.records = records;
        status.counters.insert("digested".into(), digested);
        status
    }

    #[test]
    fn progress_is_over_what_was_there_at_the_beginning() {
        let began = BacklogView { records: 100, ..BacklogView::default() };
        assert_eq!(told(&began, &after(100, 7), 7), 0);
        assert_eq!(told(&began, &after(60, 47), 7), 40);
        assert_eq!(told(&began, &after(100, 107), 7), 0, "all of it under way");
        assert_eq!(told(&began, &after(100, 257), 7), 100, "others have come since");
        assert_eq!(told(&began, &after(0, 107), 7), 100);
    }

    #[test]
    fn what_is_left_is_said_in_words() {
        let mut backlog = BacklogView { records: 1, bytes: 1024, ..BacklogView::default() };
        assert_eq!(left_text(&backlog), "1 change (1.0 KiB)");
        backlog.not_durable = 2;
        assert_eq!(left_text(&backlog), "1 change (1.0 KiB), and 2 changes that its disk may not have,");
    }

    #[test]
    fn each_bad_end_has_its_words_and_its_code() {
        let synced = |outcome| Synced {
            dir: "/m".into(),
            server: "h:1".into(),
            began: BacklogView::default(),
            left: BacklogView { records: 3, ..BacklogView::default() },
            outcome,
            log: Some("/run/soda/log".into()),
        };
        for (outcome, code, word) in [
            (Outcome::ServerGone, 3, "h:1 has not answered"),
            (Outcome::NoRoom, 1, "no room for 3 changes"),
            (Outcome::Lost, 1, "in /m are lost"),
            (Outcome::Lost, 1, "/run/soda/log, says why"),
            (Outcome::Lost, 1, "`soda recover ls`"),
            (Outcome::Failed("EIO".into()), 1, "/m: EIO; its daemon's log, /run"),
            (Outcome::DaemonEnded, 1, "ended"),
        ] {
            let error = synced(outcome).into_result().unwrap_err();
            assert_eq!(error.code(), code);
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(synced(Outcome::Synced).into_result().is_ok());
    }
}
