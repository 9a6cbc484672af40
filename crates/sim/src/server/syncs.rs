//! fsync: at once, or, if it was sent along with a digest, when that has been applied.

use super::Server;
use super::disk::UpTo;
use crate::context::Context;
use crate::event::{ConnId, Event, Step};
use crate::message::{Tag, ToClient};
use crate::register::OpUid;
use crate::sabotage::Sabotage;
use soda_lease::table::OpKey;
use soda_oplog::DigestId;
use soda_types::SessionId;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Sync {
    pub(super) session: SessionId,
    pub(super) reply_to: (ConnId, Tag),
    /// The fsyncs that it is for.
    pub(super) uids: Vec<OpUid>,
}

/// The disk takes a while.
#[derive(Debug)]
pub(super) struct UnderWay {
    sync: Sync,
    up_to: UpTo,
}

impl Server {
    /// Makes all durable that has been applied.
    pub(super) fn sync(&mut self, context: &mut Context, sync: Sync) {
        let up_to = self.disk.begin_sync();
        self.synced(context, UnderWay { sync, up_to });
    }

    /// Begins when the digest has been applied.
    pub(super) fn sync_along(&mut self, context: &mut Context, sync: Sync, digest: DigestId) {
        let Some(running) = &mut self.running else { return };
        if context.config.sabotage == Sabotage::SyncAtOnce {
            self.begin_sync(context, sync);
        } else if running.ops.values().any(|operation| operation.is_digest(sync.session, digest)) {
            running.lines.syncs.push((digest, sync));
        } else {
            self.go_on_with(context, sync, digest);
        }
    }

    /// One of the session's digests is over, or as if it had never come.
    pub(super) fn go_on_with_syncs(&mut self, context: &mut Context, session: SessionId) {
        let Some(running) = &mut self.running else { return };
        let ops = &running.ops;
        let is_over = |(digest, sync): &mut (DigestId, Sync)| {
            sync.session == session && !ops.values().any(|operation| operation.is_digest(session, *digest))
        };
        let over: Vec<(DigestId, Sync)> = running.lines.syncs.extract_if(.., is_over).collect();
        over.into_iter().for_each(|(digest, sync)| self.go_on_with(context, sync, digest));
    }

    fn go_on_with(&mut self, context: &mut Context, sync: Sync, digest: DigestId) {
        let Some(running) = &self.running else { return };
        let careless = context.config.sabotage == Sabotage::SyncOutOfTurn;
        if careless || running.lines.has_applied(context, &self.disk, sync.session, digest) {
            self.begin_sync(context, sync);
        } else {
            let (conn, tag) = sync.reply_to;
            context.send_to_client(conn, ToClient::SyncOutOfTurn { tag });
        }
    }

    fn begin_sync(&mut self, context: &mut Context, sync: Sync) {
        let Some(running) = &mut self.running else { return };
        running.last_op += 1;
        let op = OpKey(running.last_op);
        running.syncs.insert(op, UnderWay { sync, up_to: self.disk.begin_sync() });
        let delay = context.about(Duration::from_millis(5));
        context.after(delay, Event::ServerStep { life: self.disk.starts, op, step: Step::Sync });
    }

    pub(super) fn end_sync(&mut self, context: &mut Context, op: OpKey) {
        let sync = self.running.as_mut().and_then(|running| running.syncs.remove(&op));
        sync.into_iter().for_each(|sync| self.synced(context, sync));
    }

    fn synced(&mut self, context: &mut Context, UnderWay { sync, up_to }: UnderWay) {
        if context.config.sabotage != Sabotage::SyncNothing {
            self.disk.end_sync(up_to);
        }
        let Sync { session, reply_to: (conn, tag), uids } = sync;
        uids.into_iter().for_each(|uid| context.invariants.sync_answered(uid));
        let durable = self.disk.durable(session);
        context.send_to_client(conn, ToClient::Synced { tag, durable });
    }
}
