//! The log on the client's disk: what fsync with `fsync=local` is content with, what a power cut of the client leaves, and what
//! is kept there for recovery.

use super::Delayed;
use super::recalls::Owed;
use crate::client::{Asked, Client, Request};
use crate::config::LogPlace;
use crate::context::Context;
use crate::register::{Object, OpUid, fid_of, object_of};
use crate::sabotage::Sabotage;
use soda_oplog::Lsn;
use soda_types::{Fid, Mode};

/// Changes of this client that went through to the server, and that its disk may lack: they are in no log.
#[derive(Debug, Default)]
pub(super) struct Through {
    done: u64,
    synced: u64,
}

/// A moment in the order of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::client) struct Mark(u64);

impl Client {
    /// Whether all that the server's disk may lack of the object is in the log here, and that is now on the local disk.
    pub(in crate::client) fn sync_log_here(&mut self, context: &mut Context, object: Object) -> bool {
        let (now, fid) = (self.clock.read(context.now), fid_of(object));
        let leased = self.holder.valid_until(now, fid, Mode::Read).is_some();
        let Some(delayed) = self.delayed.as_mut().filter(|_| context.syncs_here()) else { return false };
        let here = delayed.made.contains(&object) || delayed.kept.log.concerns(fid) || leased;
        // What others were let in to cannot be told again.
        let careless = context.config.sabotage == Sabotage::SyncHereShared;
        let shared = !careless && delayed.kept.written.values().any(|written| written.handed_over);
        if !here || shared || delayed.through.done > delayed.through.synced {
            return false;
        }
        if context.config.sabotage != Sabotage::SyncHereNothing {
            delayed.sync_here();
        }
        let uids: Vec<OpUid> = delayed.kept.written.values().map(|written| written.uid).collect();
        delayed.kept.promised = delayed.kept.log.last_lsn();
        context.synced_here += 1;
        context.invariants.synced_here(&uids);
        true
    }

    /// What fsync has returned for is on the server's disk before anybody else is let in to it: after that this client cannot
    /// tell it again. Has that done for what is asked back.
    pub(super) fn sync_what_is_asked_back(&mut self, context: &mut Context) {
        let Some(delayed) = &self.delayed else { return };
        let waits = |fid: &Fid| !delayed.kept.log.concerns(*fid) && delayed.is_promised(*fid);
        let wanted = delayed.owed.iter().flat_map(Owed::fids).any(|fid| waits(&fid));
        let is_asked = |request: &Request| matches!(request.what, Asked::Settle(_));
        if wanted && !self.requests.values().any(is_asked) {
            self.settle_now(context);
        }
    }
}

impl Delayed {
    /// A change has gone through.
    pub(in crate::client) fn note_through(&mut self) {
        self.through.done += 1;
    }

    pub(in crate::client) fn mark(&self) -> Mark {
        Mark(self.through.done)
    }

    /// The server's disk has all that it had at that moment.
    pub(in crate::client) fn note_synced(&mut self, mark: Mark) {
        self.through.synced = self.through.synced.max(mark.0);
    }

    /// Whether fsync has returned for something of the inode that the server's disk may lack.
    pub(super) fn is_promised(&self, fid: Fid) -> bool {
        let promised = self.kept.written.range(..=self.kept.promised);
        promised.into_iter().any(|(_, written)| written.touches(object_of(fid)))
    }

    pub(super) fn sync_here(&mut self) {
        self.kept.synced = self.kept.log.last_lsn();
    }

    /// The client's machine has lost its power: its disk has the log up to some record after the last sync.
    pub(in crate::client) fn lose_unsynced(&mut self, context: &mut Context) {
        let (synced, last) = (self.kept.synced.0, self.kept.log.last_lsn().0);
        let left = synced + context.rng.below(last.saturating_sub(synced) + 1);
        let pending: Vec<Lsn> = self.kept.log.pending().map(|record| record.lsn).collect();
        let mut uids = Vec::new();
        for lsn in pending.into_iter().filter(|lsn| lsn.0 > left) {
            for record in self.kept.log.give_up_record(lsn) {
                uids.extend(self.kept.written.remove(&record.lsn).map(|written| written.uid));
            }
        }
        context.note(|| format!("log      is left up to {left}: {uids:?} are gone"));
        context.invariants.lost_here(&uids);
    }

    /// These are not told any more: a log on the disk is put aside for recovery.
    pub(super) fn keep(&self, context: &mut Context, uids: Vec<OpUid>) {
        if self.config.log == LogPlace::Disk && context.config.sabotage != Sabotage::DropGivenUp {
            context.invariants.kept(&uids);
        }
    }
}
