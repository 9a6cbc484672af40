//! After a restart: clients say what they held.

use crate::call::ancestry::{ancestries, core_with_ancestries};
use crate::core::Standing;
use crate::link::Incoming;
use crate::shared::Shared;
use soda_lease::locks::IfBusy;
use soda_lease::table::Ancestors;
use soda_protocol::{Answer, Failure, Reclaim, ReclaimStep};
use soda_storage::crash;
use soda_types::{Fid, Grant, Mode, SessionId, Version};

/// Takes one batch. Batches may be repeated: a lease that is held already is answered with what it is now.
pub(crate) fn run(shared: &Shared, incoming: &Incoming, reclaim: &Reclaim) {
    let session = incoming.session();
    // Nobody else changes these inodes before the grace period ends, so this needs no lock.
    let unchanged: Vec<bool> =
        reclaim.leases.iter().map(|(grant, version)| shared.is_at(grant, *version)).collect();
    let open: Vec<Fid> =
        reclaim.open.iter().copied().filter(|fid| shared.volume.getattr(*fid).is_ok()).collect();

    let mut known = ancestries(shared, reclaim.leases.iter().map(|(grant, _)| grant.fid));
    // Those whose claims are in already may move things.
    let mut core = core_with_ancestries(shared, &mut known).unwrap_or_else(|| shared.core());
    let known = known.into_iter().map(|(_, above)| above).chain(std::iter::repeat(Ancestors::Unknown));
    let claimed: Vec<(Grant, Ancestors)> =
        reclaim.leases.iter().zip(known).map(|((grant, _), above)| (*grant, above)).collect();
    let now = core.now;
    let standing = core.sessions.get(&session).map(|entry| entry.standing);
    // Also those of what is not as the client has it: its caches, the kernel's among them, show that until the answer has
    // come and they are dropped. Whoever needs the inode before asks for the lease, and waits for that.
    let result = match core.table.handle_reclaim_placed(now, session, &claimed) {
        Ok(held) => {
            let each = held.into_iter().zip(&unchanged);
            Ok(each.map(|(held, unchanged)| held.filter(|_| *unchanged)).collect())
        }
        Err(_) => Err(Failure::SessionEnded),
    };
    let mut refused_locks = Vec::new();
    if result.is_ok() {
        for fid in open {
            core.opens.add(session, fid, incoming.order);
        }
        if standing == Some(Standing::Reclaiming) {
            for (fid, lock) in &reclaim.locks {
                if let Err(error) = core.locks.set(*fid, session, *lock, IfBusy::Fail) {
                    tracing::error!(%session, %fid, %error, "a lock could not be reclaimed");
                    refused_locks.push((*fid, *lock));
                }
            }
            crash::point("server.reclaim-taken");
            if reclaim.step == ReclaimStep::Last {
                if let Some(entry) = core.sessions.get_mut(&session) {
                    entry.standing = Standing::Current;
                }
                core.table.finish_reclaim(now, session);
                crash::point("server.reclaim-last");
                log_reclaimed(session, &incoming.link.session.record.name);
            }
        }
    }
    let answer = result.map(|leases| Answer::Reclaimed { leases, refused_locks });
    incoming.answer_in(&mut core, &answer);
    core.settle();
    core.settle_locks();
}

impl Shared {
    /// Whether the store has the version that the client's cache has. A power cut may have taken the last
    /// changes. What came after
    /// that version under a write lease was the client's own, told in digests whose answers it has not got.
    fn is_at(&self, grant: &Grant, version: Version) -> bool {
        self.volume.getattr(grant.fid).is_ok_and(|attr| match grant.mode {
            Mode::Read => attr.version == version,
            Mode::Write => attr.version >= version,
        })
    }
}

fn log_reclaimed(session: SessionId, name: &str) {
    tracing::info!(%session, name, "session reclaimed what it held");
}
