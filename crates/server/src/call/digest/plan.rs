//! What a digest touches, and where its data goes.

use super::journal;
use crate::link::Ahead;
use crate::shared::Shared;
use soda_lease::table::{Ancestors, Covered};
use soda_protocol::digest::{COUNTED_VERSIONS, INODES_MAX, RECORDS_MAX};
use soda_protocol::{Change, Failure, Lsn, Object, Record};
use soda_types::{Errno, Fid, FsError, FsResult, SessionId, SetAttr, Version};
use soda_volume::{Redo, Staged, Volume};
use std::collections::{BTreeSet, HashMap};

/// What a digest touches, each once, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) held: Vec<Fid>,
    pub(super) made: Vec<Fid>,
    alone: Vec<Fid>,
    /// Bytes of file data.
    pub(super) bytes: u64,
    /// Bytes that it may take of the space that the session has reserved.
    pub(super) space: u64,
}

impl Plan {
    /// What the table is asked for. `ancestors`: of what was there before, with deep leases on.
    pub(super) fn covered(&self, ancestors: Vec<(Fid, Ancestors)>) -> Covered {
        Covered { held: self.held.clone(), made: self.made.clone(), alone: self.alone.clone(), ancestors }
    }

    /// What was there before.
    pub(super) fn held(&self) -> impl Iterator<Item = Fid> {
        self.held.iter().copied()
    }

    pub(super) fn has(&self, fid: Fid) -> bool {
        self.held.binary_search(&fid).is_ok() || self.made.binary_search(&fid).is_ok()
    }
}

/// The inodes that a record touches.
pub(super) fn inodes(record: &Record) -> impl Iterator<Item = Fid> {
    record.change.touches().into_iter().filter_map(|(object, _)| match object {
        Object::Inode(fid) => Some(fid),
        Object::Name(_) | Object::Tree => None,
    })
}

/// What records create.
pub(super) fn created(records: &[Record]) -> impl Iterator<Item = Fid> {
    records.iter().filter_map(|record| record.change.creates())
}

/// Plans a digest.
///
/// # Errors
/// It breaks a limit or a rule.
pub(super) fn plan(
    volume: &Volume,
    records: &[Record],
    versions: &[(Fid, Version, Version)],
) -> Result<Plan, Failure> {
    let first = records.first().map_or(Lsn(0), |record| record.lsn);
    let refuse = |lsn, errno, why: &str| Err(Failure::Digest { lsn, error: FsError::new(errno, why) });
    if records.len() > RECORDS_MAX || versions.len() > INODES_MAX {
        return refuse(first, Errno::TooBig, "a digest of too many records");
    }
    let made: BTreeSet<Fid> = created(records).collect();
    let (mut held, mut alone, bytes) = (BTreeSet::new(), BTreeSet::new(), data_of(records));
    let space = space_of(records);
    for record in records {
        for (object, _) in record.change.touches() {
            match object {
                Object::Inode(fid) => drop(held.insert(fid)),
                Object::Tree => drop(alone.insert(crate::call::tree_of(volume.id()))),
                Object::Name(_) => {}
            }
        }
    }
    let most = Version(volume.first_version().0 + COUNTED_VERSIONS);
    for (fid, version, data_version) in versions {
        if *version >= most || *data_version >= most {
            return refuse(first, Errno::Invalid, "versions that nobody can have counted to");
        }
        // Of changes that cancelled each other out there is no record, and of what was made by them no inode.
        if !held.contains(fid) && volume.getattr(*fid).is_ok() {
            held.insert(*fid);
        }
    }
    held.retain(|fid| !made.contains(fid));
    if held.len() + made.len() > INODES_MAX {
        return refuse(first, Errno::TooBig, "a digest of too many inodes");
    }
    let vec = |set: BTreeSet<Fid>| set.into_iter().collect();
    Ok(Plan { held: vec(held), made: vec(made), alone: vec(alone), bytes, space })
}

/// Bytes that they may take of the space that the session has reserved.
fn space_of(records: &[Record]) -> u64 {
    records.iter().map(|record| record.change.space()).fold(0, u64::saturating_add)
}

/// Bytes of file data.
fn data_of(records: &[Record]) -> u64 {
    let data = records.iter().map(|record| match &record.change {
        Change::Write { data, .. } => data.len() as u64,
        _ => 0,
    });
    data.sum()
}

/// Stores the data of a digest that has to wait for its turn, and has the medium begin: when its turn comes it need not wait for
/// that as well. `None`: it is little, or more than what is set aside for it, or room is scarce; then all is left to the turn.
pub(super) fn ahead(shared: &Shared, session: SessionId, records: &[Record]) -> Option<Ahead> {
    let bytes = data_of(records);
    if bytes <= journal::AT_ONCE || records.len() > RECORDS_MAX {
        return None;
    }
    // Until the turn takes it off what is reserved it counts twice.
    if shared.space.of(session) < space_of(records) || !journal::has_room(shared) {
        return None;
    }
    let staged = stage(&shared.volume, records, journal::redo(bytes)).ok()?;
    staged.iter().any(Staged::has_chunks).then(|| Ahead { staged, asked: shared.data_sync.ask() })
}

/// Stores the data of all writes, in their order.
///
/// # Errors
/// Of the record that could not be.
pub(super) fn stage(volume: &Volume, records: &[Record], redo: Redo) -> Result<Vec<Staged>, Failure> {
    // Small files keep their data beside the metadata: as large as they are by then.
    let mut sizes: HashMap<Fid, u64> = HashMap::new();
    let mut staged = Vec::new();
    for record in records {
        let stage = |sizes: &mut HashMap<Fid, u64>| -> FsResult<Option<Staged>> {
            match &record.change {
                Change::Create { fid, .. } | Change::TmpFile { fid, .. } => drop(sizes.insert(*fid, 0)),
                Change::SetAttr { fid, set: SetAttr { size: Some(size), .. } } => {
                    sizes.insert(*fid, *size);
                }
                Change::Write { fid, offset, data, .. } => {
                    let known = sizes.get(fid).copied();
                    let size = match known {
                        Some(size) => size,
                        // A digest before makes it; or it is not there, which will be found.
                        None => volume.getattr(*fid).map_or(0, |attr| attr.size),
                    };
                    sizes.insert(*fid, size.max(offset.saturating_add(data.len() as u64)));
                    return Ok(Some(volume.stage(size, data.to_bytes(), redo)?));
                }
                _ => {}
            }
            Ok(None)
        };
        let piece = stage(&mut sizes).map_err(|error| Failure::Digest { lsn: record.lsn, error })?;
        staged.extend(piece);
    }
    Ok(staged)
}
