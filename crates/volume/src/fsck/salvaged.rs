//! What a check knows beside the records where these were saved from damaged metadata, or the first ones are lost.

use super::Problem;
use super::census::Census;
use crate::key;
use crate::record::{self, Dirent, Inode, Runs};
use crate::versions::{LAST_RUN, run_of, run_of_segment};
use crate::volume::MAIN_ID;
use soda_storage::{DataStore, MetaRead, OldRecord, Table};
use soda_types::{FsResult, Ino, VolumeId};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// What may have been given above the highest inode number that is left: as much as sixteen runs leave out by chance
/// ([`crate::versions`]).
const LOST_NUMBERS: u64 = 1 << 44;

/// As many runs may have left no version and no segment.
const LOST_RUNS: u64 = 1 << 10;

/// The highest numbers that anything says were given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HighestInUse {
    number: u64,
    run: u64,
}

impl HighestInUse {
    /// Above all inode numbers that were given, also to what is lost.
    pub(super) fn next_number(self) -> u64 {
        self.number.saturating_add(LOST_NUMBERS)
    }

    /// As many as have been begun, or more.
    pub(super) fn runs(self) -> u64 {
        (self.run + LOST_RUNS).min(LAST_RUN.saturating_sub(LOST_RUNS)).max(self.run)
    }
}

pub(super) fn highest_in_use(
    meta: &dyn MetaRead,
    data: &dyn DataStore,
    id: VolumeId,
) -> FsResult<HighestInUse> {
    let mut highest = HighestInUse { number: Ino::ROOT.0, run: 0 };
    let range = key::volume_range(id);
    for table in [Table::Inode, Table::Dirent, Table::Extent, Table::Xattr, Table::Orphan, Table::Reclaim] {
        meta.scan(table, &range.start, &range.end, &mut |key, value| {
            let mut number = key::number(key).unwrap_or_default();
            if table == Table::Inode
                && let Ok(inode) = record::decode::<Inode>(&value)
            {
                number = number.max(inode.stream);
                highest.run = highest.run.max(run_of(inode.version.max(inode.data_version)));
            } else if table == Table::Dirent
                && let Ok(dirent) = record::decode::<Dirent>(&value)
            {
                number = number.max(dirent.ino.0);
            }
            highest.number = highest.number.max(number);
            ControlFlow::Continue(())
        })?;
    }
    for segment in data.segments()? {
        highest.run = highest.run.max(run_of_segment(segment.id));
    }
    Ok(highest)
}

/// How many times the volume was opened to be changed, as is recorded.
pub fn runs_begun(meta: &dyn MetaRead) -> FsResult<u64> {
    let value = meta.get(Table::Meta, &key::runs(MAIN_ID))?;
    let runs = value.and_then(|value| record::decode::<Runs>(&value).ok());
    Ok(runs.unwrap_or_default().begun)
}

/// What is to be said of records that may be old: one problem for each thing that they are about.
pub(super) fn old_records(old: &[OldRecord], census: &Census) -> Vec<Problem> {
    let owners = census.owners();
    let mut told = BTreeSet::new();
    let mut problems = Vec::new();
    for OldRecord { table, key } in old {
        let Some(number) = key::number(key) else { continue };
        let ino = match table {
            Table::Inode | Table::Dirent | Table::Xattr => Some(Ino(number)),
            Table::Extent => owners.get(&number).copied(),
            // Nothing that anybody sees.
            _ => None,
        };
        let Some(ino) = ino.filter(|ino| census.inodes.contains_key(ino)) else { continue };
        if told.insert((*table, ino)) {
            problems.push(Problem::Old { ino, table: *table });
        }
    }
    problems
}
