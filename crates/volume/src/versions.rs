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
use soda_types::{Errno, FsError, FsResult, Version, VolumeId};

/// Versions of one run, as a power of two: at 100,000 changes of one inode a second enough for five years, for a million runs.
const VERSIONS_PER_RUN: u32 = 44;

/// The last run whose versions are numbers.
pub(crate) const LAST_RUN: u64 = (1 << (u64::BITS - VERSIONS_PER_RUN)) - 1;

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
    if before.begun >= LAST_RUN {
        return Err(used_up("versions"));
    }
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

/// There are none of these left that were never given.
pub(crate) fn used_up(what: &str) -> FsError {
    FsError::new(
        Errno::Overflow,
        format!(
            "all {what} are used up: copy the files to a new data directory (`soda fsck` says whether a record is wrong)"
        ),
    )
}

/// The run that gave a version, or one before it.
pub(crate) fn run_of(version: Version) -> u64 {
    version.0 >> VERSIONS_PER_RUN
}

/// The run that has begun a segment, or one before it.
pub(crate) fn run_of_segment(segment: SegmentId) -> u64 {
    segment.0 >> SEGMENTS_PER_RUN
}

/// The first segment of the run that gives `version`: above those of all runs before. Numbers that went on from the
/// segments that are there would be given again where the last of these are lost, and giving back what was lost would
/// take what is new.
pub(crate) fn first_segment(version: Version) -> SegmentId {
    SegmentId(run_of(version) << SEGMENTS_PER_RUN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsck::{DataCheck, FsckOptions, Repair, fsck};
    use crate::record::{Inode, InodeMark};
    use crate::view::View;
    use crate::volume::root_inode;
    use crate::{Volume, VolumeConfig};
    use soda_storage::{MemoryData, MemoryMeta, MetaRead};
    use soda_types::semantics::Moment;
    use soda_types::{Ino, Name, Timestamp};
    use std::sync::Arc;

    const ID: VolumeId = VolumeId(1);
    const NOW: Timestamp = Timestamp::new(1, 0);
    const BRANCH: u64 = (7 << 30) + 5;

    #[derive(Default)]
    struct Stores {
        meta: MemoryMeta,
        data: MemoryData,
    }

    impl Stores {
        fn open(&self, branch: u64) -> FsResult<Volume> {
            let config = VolumeConfig { branch, ..VolumeConfig::default() };
            Volume::open(Arc::new(self.meta.clone()), Arc::new(self.data.clone()), config)
        }

        fn put<T: serde::Serialize>(&self, table: Table, key: Vec<u8>, record: &T) {
            let mut batch = Batch::new();
            batch.put(table, key, record::encode(record));
            self.meta.commit(batch).unwrap();
        }
    }

    #[track_caller]
    fn refused(stores: &Stores, branch: u64) {
        let error = stores.open(branch).unwrap_err();
        assert_eq!(error.errno, Errno::Overflow);
        assert!(error.to_string().contains("used up"), "{error}");
    }

    #[test]
    fn no_run_begins_without_versions_and_numbers_that_were_never_given() {
        let stores = Stores::default();
        stores.open(0).unwrap();
        stores.put(Table::Meta, key::runs(ID), &Runs { begun: LAST_RUN - 1 });
        assert_eq!(run_of(stores.open(u64::MAX).unwrap().first_version()), LAST_RUN);
        refused(&stores, 0);
        stores.put(Table::Meta, key::runs(ID), &Runs { begun: 7 });
        stores.put(Table::Meta, key::inode_mark(ID), &InodeMark { next: u64::MAX - (1 << 20) });
        refused(&stores, BRANCH);
        stores.open(0).unwrap();
    }

    /// What the repair makes: `lost+found`, for an inode without a name.
    fn made_by_repair(stores: &Stores) -> (Ino, Inode) {
        let options =
            FsckOptions { repair: Repair::Yes, data: DataCheck::CheckSums, now: NOW, branch: BRANCH };
        let (meta, data) = (Arc::new(stores.meta.clone()), Arc::new(stores.data.clone()));
        assert!(fsck(meta, data, options, &mut |_| {}).unwrap().is_clean());
        let volume = stores.open(0).unwrap();
        let name = Name::try_from("lost+found").unwrap();
        let ino = volume.resolve(volume.root(), &name).unwrap().unwrap().0.ino;
        (ino, Inode::clone(&volume.inode_record(ino).unwrap().unwrap()))
    }

    fn volume_with_a_lost_inode(ino: Ino) -> (Stores, Version) {
        let stores = Stores::default();
        let volume = stores.open(0).unwrap();
        let inode = Inode { stream: ino.0, ..root_inode(Moment::now(NOW, Version(1))) };
        stores.put(Table::Inode, key::inode(ID, ino), &inode);
        let first = volume.first_version();
        (stores, first)
    }

    #[test]
    fn what_a_repair_makes_is_not_taken_for_what_came_after_the_part_that_is_left() {
        let (stores, first) = volume_with_a_lost_inode(Ino(50));
        stores.put(Table::Meta, key::inode_mark(ID), &InodeMark { next: 60 });
        let (ino, inode) = made_by_repair(&stores);
        assert_eq!(ino, Ino(60 + BRANCH));
        assert!(inode.version >= Version(first.0 + (1 << VERSIONS_PER_RUN) + BRANCH));
    }

    #[test]
    fn a_mark_that_is_put_right_is_branched_from_and_a_branch_hides_no_wrong_one() {
        // Above all that the branch leaves out, and within it.
        for highest in [BRANCH * 3, 50] {
            let (stores, _) = volume_with_a_lost_inode(Ino(highest));
            stores.put(Table::Meta, key::inode_mark(ID), &InodeMark { next: 3 });
            let (ino, _) = made_by_repair(&stores);
            assert!(ino.0 >= BRANCH && ino.0 != highest && ino.0 != highest + 1, "{ino:?}");
            let mark = stores.meta.get(Table::Meta, &key::inode_mark(ID)).unwrap().unwrap();
            let mark: InodeMark = record::decode(&mark).unwrap();
            assert!(mark.next > highest.max(ino.0));
        }
    }
}
