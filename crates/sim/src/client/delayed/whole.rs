//! A deep write lease of which one object after the other is asked for, to be read: after some of these questions all of it is
//! lowered, when the server's disk has what was done under it.

use crate::client::{Asked, Client};
use crate::config::Order;
use crate::context::Context;
use crate::message::ToServer;
use soda_types::{Fid, LeasePart, Monotonic};
use std::time::Duration;

/// For how long it is tried.
const PATIENCE: Duration = Duration::from_secs(1);

/// A lease that is to be lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lowering {
    lease: Fid,
    until: Monotonic,
}

impl Client {
    /// Part of it is being asked for.
    pub(in crate::client) fn note_question(&mut self, now: Monotonic, lease: Fid) {
        let Some(delayed) = &mut self.delayed else { return };
        if self.holder.take_scan(lease, delayed.kept.log.pending_count()).is_some() {
            delayed.lowering.push(Lowering { lease, until: now + PATIENCE });
        }
    }

    pub(super) fn lower_leases(&mut self, context: &mut Context) {
        let all: Vec<Lowering> = self.delayed.iter().flat_map(|delayed| &delayed.lowering).copied().collect();
        let now = self.clock.read(context.now);
        for Lowering { lease, until } in all {
            let lowered = self.lower_lease(context, lease);
            if lowered == Lowered::NotYet && now < until {
                continue;
            }
            self.holder.end_scan(lease, lowered == Lowered::Yes);
            if let Some(delayed) = &mut self.delayed {
                delayed.lowering.retain(|lowering| lowering.lease != lease);
            }
        }
    }

    fn lower_lease(&mut self, context: &mut Context, lease: Fid) -> Lowered {
        let covered = self.holder.covered_by(lease);
        let Some(delayed) = &self.delayed else { return Lowered::NotYet };
        let is_told = |fid: &Fid| !delayed.to_tell_first(*fid).iter().any(|fid| delayed.is_ahead(*fid));
        let told = covered.iter().all(is_told) && self.uncovered_ahead(LeasePart::tree(lease)).is_empty();
        let busy = covered.iter().any(|fid| self.is_logged(context, *fid) || self.is_changing(*fid));
        // On a connection that keeps no order, what is made from now on may overtake the word of it.
        let overtakes = context.config.order == Order::Scrambled && (self.has_made() || self.is_sending());
        if told && busy && !self.requests.values().any(|request| matches!(request.what, Asked::Settle(_))) {
            self.settle_now(context);
        }
        if !told || busy || overtakes || !self.holder.may_lower_deep(lease) {
            return Lowered::NotYet;
        }
        let Some(lowered) = self.holder.lower_deep(lease) else { return Lowered::NotYet };
        context.note(|| format!("client{}  lowers {lowered:?}", self.number));
        self.tell(context, ToServer::Release(vec![lowered]));
        Lowered::Yes
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lowered {
    Yes,
    /// Something is under way there, or to be told or made durable.
    NotYet,
}
