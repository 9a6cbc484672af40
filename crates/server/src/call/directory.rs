//! Reading directories, with the attributes of what is in them.
//!
//! A page names many inodes. Those that nobody else may change or is about to are read under leases, so that `ls -l` asks
//! nothing twice; nobody is recalled for them. The others' attributes are in the page, too, but without a lease: they say
//! what kind of inode it is, and no more.

use super::{Stop, read};
use crate::core::{Admission, Asker, CoreGuard};
use crate::link::Incoming;
use soda_lease::table::{Access, OpKey, Want};
use soda_protocol::{DirPage, Rest};
use soda_types::{Errno, Fid, Mode, Name, SessionId};
use soda_volume::Listing;

/// Entries of one answer: bounds its size, and how many leases come at once.
const PAGE_MAX: usize = 1024;

/// One page of a directory. `keys` grows by the operations that cover its entries.
pub(super) fn page(
    incoming: &Incoming,
    directory: Fid,
    after: Option<&Name>,
    limit: u32,
    keys: &mut Vec<OpKey>,
) -> Result<DirPage, Stop> {
    let volume = &*incoming.link.shared.volume;
    let limit = (limit as usize).clamp(1, PAGE_MAX);
    let listed = volume.read_dir(directory, after, limit, Listing::Names)?;
    let rest = if listed.len() < limit { Rest::End } else { Rest::More };
    if incoming.want() == Want::Lease {
        let fids: Vec<Fid> = listed.iter().map(|entry| entry.fid).collect();
        let mut core = incoming.link.shared.core();
        let asker = incoming.asker();
        let free: Vec<Fid> = fids.into_iter().filter(|fid| is_free(&core, asker.session, *fid)).collect();
        admit_idle(&mut core, asker, &free, keys);
    }
    let mut entries = Vec::with_capacity(listed.len());
    for entry in listed {
        match read::node(volume, entry.fid) {
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

/// Nobody else has a write lease on it or waits for it.
fn is_free(core: &CoreGuard<'_>, session: SessionId, fid: Fid) -> bool {
    let others =
        |holder: &soda_lease::table::HolderInfo| holder.session != session && holder.mode == Mode::Write;
    !core.table.holders(core.now, fid).iter().any(others) && core.table.waiting(core.now, fid).is_empty()
}

/// Has as many of the inodes admitted as no operation is in progress on, in as few operations as possible.
fn admit_idle(core: &mut CoreGuard<'_>, asker: Asker, fids: &[Fid], keys: &mut Vec<OpKey>) {
    if fids.is_empty() {
        return;
    }
    match core.admit(asker, fids.iter().map(|fid| Access::read(*fid)).collect()) {
        Admission::Admitted(key) => keys.push(key),
        Admission::Waits(key, _) => {
            core.withdraw(key);
            if fids.len() > 1 {
                let (left, right) = fids.split_at(fids.len() / 2);
                admit_idle(core, asker, left, keys);
                admit_idle(core, asker, right, keys);
            }
        }
        Admission::SessionEnded => {}
    }
}
