//! What came of the records of a kept log, and which of them are not needed any more.

use super::KeptRecord;
use super::apply::Work;
use super::progress::Notes;
use crate::cache::unsynced::Heard;
use crate::client::Client;
use crate::log::disk::inodes_of;
use serde::{Deserialize, Serialize};
use soda_oplog::Change;
use soda_oplog::segments::Found;
use soda_protocol::Lsn;
use soda_types::{Errno, Fid, FsError};
use std::collections::{BTreeSet, HashSet};
use std::io;

/// What became of a record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Applied {
    pub record: KeptRecord,
    pub outcome: Outcome,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// It had been done before, or what it would do is so already.
    Already,
    /// Somebody else has changed what it touches: nothing was done.
    Conflict(String),
    /// The server refuses it.
    Failed(FsError),
    /// It rests on one that was not done.
    LeftOut,
}

impl Outcome {
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done | Outcome::Already)
    }

    /// What the failure of a record's operation means.
    ///
    /// # Errors
    /// The server has no room: as little for what comes after it.
    pub(super) fn of_failure(error: FsError) -> Result<Outcome, FsError> {
        use Errno::{Exists, IsDirectory, NoEntry, NoSpace, NotDirectory, NotEmpty, Quota, Stale};
        match error.errno {
            Stale => Ok(Outcome::Conflict("it is gone".to_owned())),
            // Looked up just before, it was not so.
            Exists | IsDirectory | NoEntry | NotDirectory | NotEmpty => {
                Ok(Outcome::Conflict(error.to_string()))
            }
            NoSpace | Quota => Err(error),
            _ => Ok(Outcome::Failed(error)),
        }
    }
}

/// What came of the records, and which of them are not needed any more.
pub(super) struct Report {
    pub(super) applied: Vec<Applied>,
    pub(super) over: BTreeSet<Lsn>,
    /// Done, and the server's disk may lack it.
    pub(super) unsettled: Vec<Lsn>,
    /// What the client had lost when it began.
    lost_before: Heard,
}

/// Why it did not come to its end.
pub(super) enum Halt {
    /// The server does not answer; so many records were gone through.
    Silent { done: usize, cause: FsError },
    /// It has no room.
    NoRoom { done: usize, cause: FsError },
    /// The server has lost what was done last; so many records were gone through.
    Lost { done: usize },
    /// How far it comes cannot be noted.
    Unnoted(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Halt {
        Halt::Unnoted(error)
    }
}

impl Report {
    pub(super) fn begin(client: &Client) -> Report {
        let lost_before = losses_of(client);
        Report { applied: Vec::new(), over: BTreeSet::new(), unsettled: Vec::new(), lost_before }
    }

    /// Waits until the server's disk has what was done, and notes that it is not needed any more.
    pub(super) async fn settle(&mut self, work: &Work<'_>, notes: &mut Notes) -> Result<(), Halt> {
        let done = self.applied.len();
        let told = work.client.tell_all().await;
        self.check_loss(work, notes)?;
        told.map_err(|cause| Halt::Silent { done, cause })?;
        self.unsettled.clear();
        let over = over(work.found, &self.applied);
        let news: Vec<Lsn> = over.into_iter().filter(|lsn| self.over.insert(*lsn)).collect();
        Ok(notes.note_over(&news)?)
    }

    /// Of what was done and is lost nothing counts as done.
    pub(super) fn check_loss(&mut self, work: &Work<'_>, notes: &mut Notes) -> Result<(), Halt> {
        if losses_of(work.client) == self.lost_before {
            return Ok(());
        }
        let lost: HashSet<Lsn> = self.unsettled.iter().copied().collect();
        let records = work.found.records().into_iter().filter(|record| lost.contains(&record.lsn));
        let touched: BTreeSet<Fid> = records.flat_map(|record| inodes_of(&record.change)).collect();
        let touched: Vec<(Fid, Fid)> = touched.into_iter().map(|fid| (fid, work.now(fid))).collect();
        notes.note_lost(&self.unsettled, &touched)?;
        Err(Halt::Lost { done: self.applied.len() })
    }
}

fn losses_of(client: &Client) -> Heard {
    crate::lock(&client.inner.state).unsynced.heard_of_all()
}

/// The records that are not needed any more, of those that were gone through. What was done to a file without a name ends
/// with the client that did it: it stays as long as something of that file is left.
fn over(found: &Found, applied: &[Applied]) -> Vec<Lsn> {
    let records = found.records();
    let is_done = |place: usize| applied.get(place).is_some_and(|applied| applied.outcome.is_done());
    let mut nameless = HashSet::new();
    for (place, record) in records.iter().enumerate() {
        match &record.change {
            Change::TmpFile { fid, .. } => drop(nameless.insert(*fid)),
            Change::Link { fid, .. } if is_done(place) => drop(nameless.remove(fid)),
            _ => {}
        }
    }
    let left = records.iter().enumerate().filter(|(place, _)| !is_done(*place));
    let needed: HashSet<Fid> =
        left.flat_map(|(_, record)| inodes_of(&record.change)).filter(|fid| nameless.contains(fid)).collect();
    let over = records.iter().enumerate().filter(|(place, record)| {
        is_done(*place) && !inodes_of(&record.change).any(|fid| needed.contains(&fid))
    });
    over.map(|(_, record)| record.lsn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_others_may_have_done_is_called_a_conflict() {
        let of = |errno: Errno| Outcome::of_failure(errno.into());
        for errno in [Errno::Stale, Errno::NotEmpty, Errno::Exists] {
            assert!(matches!(of(errno), Ok(Outcome::Conflict(_))), "{errno:?}");
        }
        for errno in [Errno::Perm, Errno::FileTooBig, Errno::Io] {
            assert_eq!(of(errno), Ok(Outcome::Failed(errno.into())));
        }
        for errno in [Errno::NoSpace, Errno::Quota] {
            assert_eq!(of(errno), Err(errno.into()));
        }
    }
}
