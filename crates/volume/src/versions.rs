//! Versions are never given twice for different content, whatever a crash takes back.
//!
//! A power cut can lose the last changes of an inode after somebody has seen their versions. Were its versions simply
//! counted on, they would be given again, for something else, and who cached the first would take it for the second. So
//! every opening of a volume is a *run* with a number of its own, durable before the first change, and the versions of a
//! run begin at a multiple of it: above all that any run before can have given.
//!
//! A run that goes on from a backup has the number of one that clients may have seen. So what its versions and inode numbers
//! begin with is moved by chance, the *branch*: who comes back from the other one finds its caches void and its files gone.

use crate::key;
use crate::record::{self, Runs};
use crate::view::damaged;
use soda_storage::{Batch, MetaStore, SegmentId, Table, crash};
use soda_types::{FsResult, Version, VolumeId};

/// Versions of one run, as a power of two: at 100,000 changes of one inode a second enough for five years, for a million runs.
const VERSIONS_PER_RUN: u32 = 44;

/// Segments of one run, as a power of two.
const SEGMENTS_PER_RUN: u32 = 24;

/// By how much a branch moves the first version, as a power of two: most of what a run has is left.
const MOVED_VERSIONS: u32 = 42;

/// By how much it moves the first inode number: one of a million million, for sixteen million runs.
const MOVED_NUMBERS: u32 = 40;

/// Begins a run. Returns its lowest version.
pub(crate) fn begin_run(meta: &dyn MetaStore, id: VolumeId, branch: u64) -> FsResult<Version> {
    let key = key::runs(id);
    let before: Runs = match meta.get(Table::Meta, &key)? {
        Some(value) => record::decode(&value).map_err(|error| damaged(Table::Meta, &key, error))?,
        None => Runs::default(),
    };
    let runs = Runs { begun: before.begun + 1 };
    let mut batch = Batch::releasing();
    batch.put(Table::Meta, key, record::encode(&runs));
    meta.commit(batch)?;
    meta.sync()?;
    crash::point("volume.run-begun");
    Ok(Version((runs.begun << VERSIONS_PER_RUN) + branch % (1 << MOVED_VERSIONS)))
}

/// How many inode numbers a branch leaves out.
pub(crate) fn skipped_numbers(branch: u64) -> u64 {
    branch % (1 << MOVED_NUMBERS)
}

/// The run that gave a version, or one before it.
pub(crate) fn run_of(version: Version) -> u64 {
    version.0 >> VERSIONS_PER_RUN
}

/// The first segment of the run that gives `version`: above those of all runs before. Numbers that went on from the
/// segments that are there would be given again where the last of these are lost, and giving back what was lost would
/// take what is new.
pub(crate) fn first_segment(version: Version) -> SegmentId {
    SegmentId(run_of(version) << SEGMENTS_PER_RUN)
}
