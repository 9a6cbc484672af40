//! Reading directories, with the attributes of what is in them.
//!
//! A page names many inodes. Those that nobody else may change or is about to are read under leases, so that `ls -l` asks
//! nothing twice; nobody is recalled for them. The others' attributes are in the page, too, but without a lease: they say
//! what kind of inode it is, and no more.

use super::PLACES_MAX;
use super::ancestry::ancestors;
use super::conclusion::Stop;
use super::node::node;
use crate::guard::Admission;
use crate::link::Incoming;
use crate::shared::Shared;
use soda_lease::table::{Access, Ancestors, OpKey, TreeVersion, Want};
use soda_protocol::{DirPage, MAX_NEXT, MAX_NEXT_ENTRIES, Rest};
use soda_types::semantics::ENTRY_SIZE;
use soda_types::{Errno, Fid, Name};
use soda_volume::{Listing, Volume};

/// Entries of one answer: bounds its size, and how many leases come at once.
const PAGE_MAX: usize = 1024;

/// One page of a directory. `keys` grows by the operations that cover its entries.
pub(super) fn page(
    shared: &Shared,
    incoming: &Incoming,
    directory: Fid,
    after: Option<&Name>,
    limit: u32,
    keys: &mut Vec<OpKey>,
) -> Result<DirPage, Stop> {
    let volume = &*shared.volume;
    let limit = (limit as usize).clamp(1, PAGE_MAX);
    let listed = volume.read_dir(directory, after, limit, Listing::Names)?;
    let rest = if listed.len() < limit { Rest::End } else { Rest::More };
    if incoming.want() == Want::Lease {
        admit_idle(shared, incoming, directory, listed.iter().map(|entry| entry.fid), keys);
    }
    let mut entries = Vec::with_capacity(listed.len());
    for entry in listed {
        match node(volume, entry.fid) {
            Ok(node) => entries.push((entry.name, node)),
            // Cannot be: the directory is admitted, so its names stay, and they keep their inodes.
            Err(error) if error.errno == Errno::Stale => {
                tracing::error!(%directory, name = %entry.name, fid = %entry.fid, "a name without an inode: run `soda fsck`");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(DirPage { dir: volume.getattr(directory)?, parent: volume.parent(directory)?, entries, rest })
}

/// Of directories that are likely to be listed next those that can be read without anybody being asked or waited for, whole, in
/// their order, until the next one does not fit.
pub(super) fn next_pages(
    shared: &Shared,
    incoming: &Incoming,
    next: &[Fid],
    keys: &mut Vec<OpKey>,
) -> Vec<(Fid, DirPage)> {
    let mut pages = Vec::new();
    if incoming.want() != Want::Lease {
        return pages;
    }
    let mut room = MAX_NEXT_ENTRIES as u64;
    for directory in next.iter().copied().take(MAX_NEXT) {
        let Ok(parent) = shared.volume.parent(directory) else { continue };
        if admit_idle(shared, incoming, parent, [directory].into_iter(), keys) == 0 {
            continue;
        }
        // From here on it stands still.
        let Ok(attr) = shared.volume.getattr(directory) else { continue };
        let entries = attr.size / ENTRY_SIZE;
        if entries > room {
            break;
        }
        if entries >= PAGE_MAX as u64 {
            continue;
        }
        let Ok(page) = page(shared, incoming, directory, None, PAGE_MAX as u32, keys) else { continue };
        room -= entries;
        pages.push((directory, page));
    }
    pages
}

/// Has the inodes admitted that can be read without anybody being asked or waited for; returns how many.
pub(super) fn admit_idle(
    shared: &Shared,
    incoming: &Incoming,
    directory: Fid,
    fids: impl Iterator<Item = Fid>,
    keys: &mut Vec<OpKey>,
) -> usize {
    let mut accesses: Vec<Access> = fids.map(Access::read).collect();
    let mut as_of = shared.tree_version();
    let mut tries = 0;
    let mut core = loop {
        if let Some(as_of) = as_of {
            place_entries(&shared.volume, as_of, directory, &mut accesses);
        }
        let core = shared.core();
        let moved = |access: &Access| core.table.is_out_of_date(access.fid, &access.ancestors);
        if !accesses.iter().any(moved) {
            break core;
        }
        // What is read without its place being known would be in the way of everybody's deep leases.
        tries += 1;
        if tries == PLACES_MAX {
            return 0;
        }
        as_of = Some(core.table.tree_version());
    };
    match as_of {
        None => accesses.retain(|access| core.table.reads_at_once(incoming.session(), access.fid)),
        Some(_) => accesses.retain(|access| core.table.reads_at_once_there(incoming.session(), access)),
    }
    let count = accesses.len();
    match core.admit(incoming.asker(), accesses) {
        Admission::Admitted(key) => {
            keys.push(key);
            return count;
        }
        // The grace period, in which no new leases are given.
        Admission::Waits(key, _) => core.withdraw(key),
        Admission::SessionEnded | Admission::NotHeld(_) | Admission::Unplaced => {}
    }
    0
}

/// What is in a directory lies where it does. The names stand still, but what is above may move: then nothing of it is used.
fn place_entries(volume: &Volume, as_of: TreeVersion, directory: Fid, accesses: &mut [Access]) {
    let Ancestors::Chain(_, above) = ancestors(volume, as_of, directory) else { return };
    let chain: Vec<Fid> = std::iter::once(directory).chain(above).collect();
    for access in accesses {
        access.ancestors = match volume.parent_of(access.fid) {
            Ok(Some(parent)) if parent == directory => Ancestors::Chain(as_of, chain.clone()),
            Ok(None) => Ancestors::Several(as_of),
            Ok(Some(_)) | Err(_) => Ancestors::Unknown,
        };
    }
}
