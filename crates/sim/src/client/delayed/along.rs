//! fsync asks for the sync along with the digest that it waits for. It returns when both have their answers; if the sync was not
//! done, or has its answer first, it asks for another one when the server has been told.

use super::Delayed;
use crate::client::{Asked, Client};
use crate::config::Syncs;
use crate::context::Context;
use crate::event::ConnId;
use crate::message::{Tag, ToServer};
use crate::network::Kind;
use crate::register::{Object, OpUid, fid_of};
use crate::sabotage::Sabotage;
use soda_oplog::{DigestId, Lsn, Wanted};

/// A sync without an answer.
#[derive(Debug)]
pub(super) struct Along {
    request: Tag,
    digest: DigestId,
    sent_on: Option<ConnId>,
    /// Those whom it is for, while the digest has no answer.
    waiting: Vec<Tag>,
    /// And when that was applied.
    told: Vec<Tag>,
}

impl Client {
    /// This digest is under way. If it brings the last of what somebody waits for, a sync goes along with it.
    pub(super) fn ask_along(&mut self, context: &mut Context, digest: DigestId) {
        let Some(delayed) = self.delayed.as_ref().filter(|delayed| delayed.config.syncs == Syncs::Along)
        else {
            return;
        };
        let part_is_enough = context.config.sabotage == Sabotage::SyncWithPart;
        let is_last = |tag: &&Tag| match self.requests.get(*tag).map(|request| &request.what) {
            Some(Asked::Sync { object, up_to, .. }) => {
                let mut wanted = Wanted::new(vec![fid_of(*object)], *up_to);
                let log = &delayed.kept.log;
                log.under_way_for(&wanted) == Some(digest)
                    && (part_is_enough || !log.has_pending(&mut wanted))
            }
            _ => false,
        };
        let waiting: Vec<Tag> = delayed.unserved().filter(is_last).copied().collect();
        if waiting.is_empty() {
            return;
        }
        let mark = delayed.mark();
        let request = self.ask(context, Kind::Control, Asked::Along(mark));
        if let Some(delayed) = &mut self.delayed {
            delayed.along.push(Along { request, digest, sent_on: None, waiting, told: Vec::new() });
        }
    }

    /// Each behind its digest, over each new connection.
    pub(super) fn send_along(&mut self, context: &mut Context, conn: ConnId) {
        let Some(delayed) = &mut self.delayed else { return };
        let kept = &delayed.kept;
        let comes_later = |digest: DigestId| {
            let mut waits = kept.sent().filter(|sent| sent.answer.is_none() && sent.sent_on != Some(conn));
            waits.any(|sent| sent.digest.id == digest)
        };
        let unsent = |along: &&mut Along| along.sent_on != Some(conn) && !comes_later(along.digest);
        for along in delayed.along.iter_mut().filter(unsent) {
            along.sent_on = Some(conn);
            let uids = along.waiting.iter().chain(&along.told).filter_map(|tag| {
                match self.requests.get(tag)?.what {
                    Asked::Sync { uid, .. } => Some(uid),
                    _ => None,
                }
            });
            let uids: Vec<OpUid> = uids.collect();
            let (tag, after) = (along.request, Some(along.digest));
            context.send_to_server(conn, ToServer::Sync { tag, after, uids });
        }
    }

    /// Its digest was applied, or the server would not have done it.
    pub(in crate::client) fn synced_along(&mut self, context: &mut Context, request: Tag) {
        let Some(along) = self.delayed.as_mut().and_then(|delayed| delayed.end_along(request)) else {
            return;
        };
        self.handle_durable(along.digest);
        self.return_along(context, along.told);
    }

    fn return_along(&mut self, context: &mut Context, served: Vec<Tag>) {
        for tag in served {
            let Some(request) = self.requests.remove(&tag) else { continue };
            if let Some(delayed) = &mut self.delayed {
                delayed.held_back.remove(&tag);
            }
            context.synced_along += 1;
            self.holder.fail_request(request.ticket);
            self.fsync_returns(context, &request.what);
        }
    }

    /// Whom it was for asks by himself, when the server has been told.
    pub(in crate::client) fn handle_sync_out_of_turn(&mut self, context: &mut Context, request: Tag) {
        let Some(asked) = self.requests.remove(&request) else { return };
        self.holder.fail_request(asked.ticket);
        let along = self.delayed.as_mut().and_then(|delayed| delayed.end_along(request));
        if context.config.sabotage == Sabotage::TakeOutOfTurn {
            let served = along.into_iter().flat_map(|along| [along.waiting, along.told].concat()).collect();
            self.return_along(context, served);
        }
    }

    /// One of the mistakes: who comes when a sync has been asked for along with a digest shares it, if nothing of his is pending.
    pub(in crate::client) fn share_along(&mut self, context: &Context, tag: Tag, object: Object) {
        if let Some(delayed) =
            self.delayed.as_mut().filter(|_| context.config.sabotage == Sabotage::ShareAlong)
            && !delayed.kept.log.has_pending_for(&[fid_of(object)])
            && let Some(along) = delayed.along.last_mut()
        {
            along.told.push(tag);
        }
    }
}

impl Delayed {
    /// What fsync waits for that is called now.
    pub(in crate::client) fn waits_up_to(&self) -> Lsn {
        match self.config.syncs {
            Syncs::Along => self.kept.log.last_lsn(),
            Syncs::Afterwards => Lsn(u64::MAX),
        }
    }

    /// Whether the server lacks something that was done to the object up to this record.
    pub(super) fn is_untold(&self, object: Object, up_to: Lsn) -> bool {
        let mut wanted = Wanted::new(vec![fid_of(object)], up_to);
        self.kept.log.has_pending(&mut wanted) || self.kept.log.under_way_for(&wanted).is_some()
    }

    pub(super) fn is_served_along(&self, tag: Tag) -> bool {
        self.along.iter().any(|along| along.waiting.contains(&tag) || along.told.contains(&tag))
    }

    /// Requests that are held back, but those that a sync along with a digest under way is for.
    pub(super) fn unserved(&self) -> impl Iterator<Item = &Tag> {
        self.held_back.iter().filter(|tag| !self.is_served_along(**tag))
    }

    /// The digest has been applied.
    pub(super) fn note_told(&mut self, digest: DigestId) {
        for along in self.along.iter_mut().filter(|along| along.digest == digest) {
            along.told.append(&mut along.waiting);
        }
    }

    /// The server has neither this digest nor any later one: who waits for one of them waits for another.
    pub(super) fn lose_digests(&mut self, first: DigestId) {
        self.kept.lost(first);
        self.along.iter_mut().filter(|along| along.digest >= first).for_each(|along| along.waiting.clear());
    }

    fn end_along(&mut self, request: Tag) -> Option<Along> {
        let at = self.along.iter().position(|along| along.request == request)?;
        Some(self.along.remove(at))
    }
}
