//! Where the objects of a call lie, for deep leases: what the lease table is told before a call, and what it hears of names
//! that moved in it. With deep leases off nothing is looked up.

use super::PLANS_MAX;
use crate::guard::CoreGuard;
use crate::shared::Shared;
use soda_lease::table::{Access, Ancestors, Created, DeepLeases, Moved, TreeChanges, TreeVersion};
use soda_types::{Attr, Fid, FsResult};
use soda_volume::{Ancestry, Txn, Volume};

impl Shared {
    /// The state of the tree that the lease table has heard of, to be taken before the volume is looked at. `None`: with deep
    /// leases off nobody needs to know.
    pub(crate) fn tree_version(&self) -> Option<TreeVersion> {
        match self.config.deep_leases {
            DeepLeases::Off => None,
            DeepLeases::On { .. } => Some(self.core().table.tree_version()),
        }
    }
}

/// Where these inodes lie, as the volume has it now; nothing with deep leases off.
pub(crate) fn ancestries(shared: &Shared, fids: impl IntoIterator<Item = Fid>) -> Vec<(Fid, Ancestors)> {
    let Some(as_of) = shared.tree_version() else { return Vec::new() };
    fids.into_iter().map(|fid| (fid, ancestors(&shared.volume, as_of, fid))).collect()
}

/// The core, locked at a moment when all these places are of now: those on whose way something has moved are looked up again.
/// `None`: that goes on and on.
pub(crate) fn core_with_ancestries<'a>(
    shared: &'a Shared,
    ancestries: &mut [(Fid, Ancestors)],
) -> Option<CoreGuard<'a>> {
    for _ in 0..PLANS_MAX {
        let core = shared.core();
        if !ancestries.iter().any(|(fid, known)| core.table.is_out_of_date(*fid, known)) {
            return Some(core);
        }
        let as_of = core.table.tree_version();
        let outdated = ancestries.iter_mut().filter(|(fid, known)| core.table.is_out_of_date(*fid, known));
        let outdated: Vec<&mut (Fid, Ancestors)> = outdated.collect();
        drop(core);
        for (fid, known) in outdated {
            *known = ancestors(&shared.volume, as_of, *fid);
        }
    }
    None
}

/// Says of each access where its object lies.
pub(super) fn find_ancestries(volume: &Volume, as_of: Option<TreeVersion>, accesses: &mut [Access]) {
    let Some(as_of) = as_of else { return };
    for access in accesses {
        access.ancestors = ancestors(volume, as_of, access.fid);
    }
}

/// Where an object lies. The number 0 is of no inode, so it lies nowhere.
pub(crate) fn ancestors(volume: &Volume, as_of: TreeVersion, fid: Fid) -> Ancestors {
    match volume.ancestry(fid) {
        Ok(Ancestry::Below(chain)) => Ancestors::Chain(as_of, chain),
        Ok(Ancestry::Nowhere) => Ancestors::Several(as_of),
        Err(_) => Ancestors::Unknown,
    }
}

/// Inodes that a change may move, with where they were.
#[derive(Debug)]
pub(super) struct Watched(Vec<(Fid, Option<Fid>)>);

impl Watched {
    /// Call it before the change is made.
    pub(super) fn before(txn: &Txn<'_>, fids: impl IntoIterator<Item = Fid>) -> FsResult<Watched> {
        let place = |fid: Fid| Ok((fid, txn.parent_of(fid)?));
        Ok(Watched(fids.into_iter().map(place).collect::<FsResult<_>>()?))
    }

    /// What the change has moved. What it deleted is of no interest.
    pub(super) fn note_moves(self, txn: &Txn<'_>, changes: &mut TreeChanges) -> FsResult<()> {
        for (fid, before) in self.0 {
            let after = txn.parent_of(fid)?;
            if after == before {
                continue;
            }
            match txn.ancestry(fid)? {
                Ancestry::Below(above) => {
                    let kind = txn.attr(fid)?.kind;
                    changes.moved.push(Moved { fid, kind, above });
                }
                Ancestry::Nowhere if txn.attr(fid).is_ok() => changes.relinked.push(fid),
                Ancestry::Nowhere => {}
            }
        }
        Ok(())
    }
}

/// A new inode and its place.
pub(super) fn created(txn: &Txn<'_>, fid: Fid, attr: &Attr) -> FsResult<Created> {
    Ok(Created { fid, kind: attr.kind, parent: txn.parent_of(fid)? })
}
