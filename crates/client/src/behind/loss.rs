//! What becomes of the log when its session ends, or when the server comes back with less than it had.

use super::Behind;
use super::here::Origin;
use crate::cache::State;
use crate::inner::Inner;
use soda_oplog::{DigestId, Record};
use soda_protocol::SessionWelcome;
use soda_types::{Errno, Fid, FsError, Version};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Changes that the server will never hear of.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) records: Vec<Record>,
    pub(crate) inodes: Vec<Fid>,
}

impl State {
    /// The leases under which the log was written are gone: nothing of it may be applied any more. What it touched is
    /// forgotten, and the next write, fsync or close of each of these files fails.
    pub(crate) fn lose_log(&mut self) -> Lost {
        let records = self.behind.log.abandon();
        self.behind.under_way = None;
        self.behind.reserve.start_over();
        let touched: BTreeSet<Fid> =
            records.iter().flat_map(|record| Behind::inodes_of(&record.change)).collect();
        let ahead: Vec<Fid> =
            self.inodes().filter(|(_, inode)| inode.records > 0).map(|(fid, _)| *fid).collect();
        for fid in ahead {
            self.inode(fid).records = 0;
            self.repin(fid);
        }
        for fid in &touched {
            self.void(*fid);
            self.memory.clear(*fid);
            let inode = self.inode(*fid);
            inode.origin = Origin::AtServer;
            inode.seen = Version(0);
            self.repin(*fid);
            self.unsynced.note_lost(*fid);
        }
        let error = FsError::new(Errno::Io, "delayed writes were lost with the session");
        self.behind.fail_waiting(&error);
        Lost { records, inodes: touched.into_iter().collect() }
    }

    /// The server has started anew and says what its store has of the digests. What it lacks is sent again.
    pub(crate) fn restore_log(&mut self, stored: DigestId) -> usize {
        let lacks = DigestId(stored.0 + 1);
        let before = self.behind.log.pending_count();
        if self.behind.applied_up_to() < lacks {
            return 0;
        }
        self.digests_lost(lacks);
        self.behind.log.pending_count() - before
    }
}

impl Inner {
    /// Says what was lost, and keeps it for recovery.
    pub(crate) fn report_loss(self: &Arc<Inner>, lost: Lost, why: &str) {
        if lost.records.is_empty() {
            return;
        }
        self.stats.lost_records.add(lost.records.len() as u64);
        tracing::error!(
            records = lost.records.len(),
            inodes = lost.inodes.len(),
            why,
            "delayed writes were lost: the next write, fsync or close of each file concerned fails"
        );
        drop(self.drop_kernel_caches(lost.inodes));
    }

    /// Before anything else is sent to a server that has started anew.
    pub(crate) fn restore_digests(self: &Arc<Inner>, welcome: &SessionWelcome) {
        let Some(slot) = self.slots.digest_slot() else { return };
        let stored = DigestId(welcome.stored_in(slot).0);
        let mut state = crate::lock(&self.state);
        let again = state.restore_log(stored);
        drop(state);
        if again > 0 {
            tracing::warn!(again, "the server lost delayed writes in a power cut: they are sent again");
            // What is under way comes after them.
            if let Some(pending) = self.link.take_digest(slot) {
                crate::lock(&self.state).holder.fail_request(pending.ticket);
            }
        }
    }
}
