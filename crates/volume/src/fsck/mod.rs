//! The check of a whole volume, and its repair.
//!
//! A check takes a census of all records (`census`), then compares what it found (`check`). Repair mends each problem by
//! itself, with the smallest change that makes it go away, and checks again, because mending one thing may show
//! another: names that lead to a deleted inode, for example. What was found once is reported once.

mod census;
mod check;
mod places;
mod problem;
mod repair;
mod salvaged;
mod sharing;
#[cfg(test)]
mod tests;

pub use places::PATHS_MAX;
pub use problem::{BadChunk, Problem};
pub use salvaged::runs_begun;

use crate::key;
use crate::record::{self, Counters, InodeMark, RecordError, Runs, Superblock};
use crate::sweep;
use crate::volume::{MAIN_VOLUME, Volume, VolumeConfig, missing};
use census::Census;
use places::Places;
use soda_storage::{Batch, ChunkRef, DataStore, MetaStore, Origin, Salvaged, SegmentId, Table};
use soda_types::{FsResult, Ino, Timestamp, VolumeId};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Checks that find nothing new end the repair; more than this many mean that it goes in circles.
const ROUNDS_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    No,
    /// All but lost data, which goes on reading as an error.
    Yes,
    /// Lost data, too: it becomes holes, which read as zeros.
    Discarding,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataCheck {
    /// Reads all data and compares check sums.
    CheckSums,
    /// Only sees whether the data can be there.
    Existence,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsckOptions {
    pub repair: Repair,
    pub data: DataCheck,
    /// Given to what the repair makes.
    pub now: Timestamp,
    /// As [`VolumeConfig::branch`], for what the repair makes: random where there may be mounts that have seen what is lost.
    pub branch: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Inodes,
    Names,
    Extents,
    Attributes,
    Chunks,
    Space,
    Repair,
}

/// How far a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsckProgress {
    pub phase: Phase,
    /// Records (bytes in [`Phase::Chunks`]) dealt with in this phase.
    pub done: u64,
    /// What `done` is going to be, where that is known.
    pub total: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// All that was found, in the order it was.
    pub problems: Vec<Problem>,
    /// How many of them were repaired.
    pub repaired: usize,
    /// What is still wrong.
    pub left: Vec<Problem>,
    /// Files, and bytes of them as far as they are known, that were made holes.
    pub lost_files: u64,
    pub lost_bytes: u64,
    /// What the problems are about, and the paths of each inode.
    places: Places,
    pub inodes: u64,
    pub names: u64,
    pub extents: u64,
    pub chunks: u64,
    /// Deleted files whose space is not given back yet: no problem, the server goes on with it.
    pub reclaim_left: u64,
    /// Bytes that were stored when the server died and belong to nothing: no problem, the server gives them back.
    pub unswept: u64,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }

    /// The inode that a problem of this report is about.
    pub fn inode(&self, problem: &Problem) -> Option<Ino> {
        self.places.inode(problem)
    }

    /// The paths where it is, from the root of the volume: that of the name that it is about, or all of the inode, up to
    /// [`PATHS_MAX`]. None if no names lead there.
    pub fn paths(&self, problem: &Problem) -> &[String] {
        self.places.paths(problem)
    }
}

/// Checks the volume in a store that nobody else uses.
pub fn fsck(
    meta: Arc<dyn MetaStore>,
    data: Arc<dyn DataStore>,
    options: FsckOptions,
    progress: &mut dyn FnMut(FsckProgress),
) -> FsResult<Report> {
    check_all(meta, data, options, None, progress)
}

/// As [`fsck`], with metadata that are a copy of what could be read of damaged ones: what others have seen of what is lost is
/// never given again, and old records are named. Without repair the copy may be changed, the data are not.
pub fn fsck_salvaged(
    meta: Arc<dyn MetaStore>,
    data: Arc<dyn DataStore>,
    options: FsckOptions,
    salvaged: &Salvaged,
    progress: &mut dyn FnMut(FsckProgress),
) -> FsResult<Report> {
    check_all(meta, data, options, Some(salvaged), progress)
}

fn check_all(
    meta: Arc<dyn MetaStore>,
    data: Arc<dyn DataStore>,
    options: FsckOptions,
    salvaged: Option<&Salvaged>,
    progress: &mut dyn FnMut(FsckProgress),
) -> FsResult<Report> {
    let mut report = Report::default();
    let id = VolumeId(1);
    if !has_records(&*meta, id)? {
        return match meta.origin() {
            // There is nothing yet, and making something is not for us.
            Origin::New => Ok(report),
            Origin::Kept => Err(missing()),
        };
    }
    let unreadable = check_first_records(&*meta, id)?;
    report.problems.extend(unreadable.iter().cloned());
    if !unreadable.is_empty() {
        if options.repair == Repair::No && salvaged.is_none() {
            report.left = unreadable;
            return Ok(report);
        }
        let in_use = salvaged::highest_in_use(&*meta, &*data, id)?;
        rewrite_first_records(&*meta, id, &unreadable, options.now, in_use)?;
        if options.repair != Repair::No {
            report.repaired += unreadable.len();
        }
    }
    let config = VolumeConfig {
        created: options.now,
        chunk_cache: 0,
        branch: options.branch,
        ..VolumeConfig::default()
    };
    let volume = match options.repair {
        Repair::No => Volume::load(meta, data, config)?,
        Repair::Yes | Repair::Discarding => Volume::open(meta, data, config)?,
    };
    let stays = |problem: &Problem| options.repair == Repair::Yes && problem.is_lost_data();
    let mut lost = BTreeSet::new();
    let mut verified = Verified::new();
    for round in 0..ROUNDS_MAX {
        let census = Census::take(&volume, options.data, &mut verified, progress)?;
        let mut problems = check::problems(&volume, &census)?;
        if let (0, Some(salvaged)) = (round, salvaged) {
            problems.extend(salvaged::old_records(&salvaged.old, &census));
        }
        if options.repair == Repair::No {
            report.unswept = set_unswept_aside(&mut problems, sweep::swept(&*volume.meta)?);
        } else if hides_extents(&problems, stays) {
            // What is stored for nothing may be what an extent refers to that cannot be read.
            problems.retain(|problem| !matches!(problem, Problem::LeakedSpace { .. }));
        }
        census.totals(&mut report);
        report.places.learn(&census, &problems);
        let known = std::mem::replace(&mut report.left, problems);
        let new = report.left.iter().filter(|problem| !known.contains(problem));
        report.problems.extend(new.cloned());
        if options.repair == Repair::No || report.left.iter().all(stays) {
            break;
        }
        let to_mend: Vec<&Problem> = report.left.iter().filter(|problem| !stays(problem)).collect();
        let total = Some(to_mend.len() as u64);
        for (done, problem) in to_mend.iter().enumerate() {
            progress(FsckProgress { phase: Phase::Repair, done: done as u64, total });
            repair::mend(&volume, &census, problem, options.now)?;
            if problem.is_lost_data() {
                lost.extend(report.places.inode(problem));
                report.lost_bytes += problem.range().map_or(0, |range| range.end - range.start);
            }
        }
        report.repaired += to_mend.len();
        volume.forget_cached()?;
        volume.sync()?;
    }
    report.lost_files = lost.len() as u64;
    if options.repair != Repair::No {
        if !hides_extents(&report.left, stays) {
            volume.reclaim_all()?;
            report.reclaim_left = 0;
        }
        report.repaired -= report.left.iter().filter(|problem| !stays(problem)).count();
        volume.sync()?;
    }
    Ok(report)
}

/// Whether there are extents that stay and that nobody can read.
fn hides_extents(problems: &[Problem], stays: impl Fn(&Problem) -> bool) -> bool {
    problems.iter().any(|problem| matches!(problem, Problem::Unreadable { .. }) && stays(problem))
}

/// Takes the leaks that a sweep is going to find out of the problems. Returns their bytes.
fn set_unswept_aside(problems: &mut Vec<Problem>, swept: SegmentId) -> u64 {
    let mut bytes = 0;
    problems.retain(|problem| match problem {
        Problem::LeakedSpace { segment, range } if *segment >= swept => {
            bytes += range.end - range.start;
            false
        }
        _ => true,
    });
    bytes
}

/// What is known of chunks that were looked at: `None` for good ones.
type Verified = HashMap<ChunkRef, Option<BadChunk>>;

/// The records without which a volume does not open.
fn check_first_records(meta: &dyn MetaStore, id: VolumeId) -> FsResult<Vec<Problem>> {
    fn check<T: serde::de::DeserializeOwned>(
        meta: &dyn MetaStore,
        key: Vec<u8>,
        problems: &mut Vec<Problem>,
    ) -> FsResult<()> {
        let result = match meta.get(Table::Meta, &key)? {
            Some(bytes) => record::decode::<T>(&bytes).map(drop),
            None => Err(RecordError::Empty),
        };
        if let Err(error) = result {
            problems.push(Problem::Unreadable { table: Table::Meta, key, error });
        }
        Ok(())
    }
    let mut problems = Vec::new();
    check::<Superblock>(meta, key::superblock(id), &mut problems)?;
    check::<Counters>(meta, key::counters(id), &mut problems)?;
    check::<InodeMark>(meta, key::inode_mark(id), &mut problems)?;
    check::<Runs>(meta, key::runs(id), &mut problems)?;
    Ok(problems)
}

/// Whether there is anything of a volume.
fn has_records(meta: &dyn MetaStore, id: VolumeId) -> FsResult<bool> {
    let mut any = false;
    let range = key::volume_range(id);
    for table in [Table::Meta, Table::Inode, Table::Dirent] {
        meta.scan(table, &range.start, &range.end, &mut |_, _| {
            any = true;
            ControlFlow::Break(())
        })?;
    }
    Ok(any)
}

/// Counters are put right by the check that follows.
fn rewrite_first_records(
    meta: &dyn MetaStore,
    id: VolumeId,
    unreadable: &[Problem],
    now: Timestamp,
    in_use: salvaged::HighestInUse,
) -> FsResult<()> {
    let superblock = Superblock { name: MAIN_VOLUME.to_owned(), created: now };
    let defaults = [
        (key::superblock(id), record::encode(&superblock)),
        (key::counters(id), record::encode(&Counters::default())),
        (key::inode_mark(id), record::encode(&InodeMark { next: in_use.next_number() })),
        (key::runs(id), record::encode(&Runs { begun: in_use.runs() })),
    ];
    let mut batch = Batch::releasing();
    for (key, value) in defaults {
        if unreadable
            .iter()
            .any(|problem| matches!(problem, Problem::Unreadable { key: bad, .. } if *bad == key))
        {
            batch.put(Table::Meta, key, value);
        }
    }
    Ok(meta.commit(batch)?)
}
