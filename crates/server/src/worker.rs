//! What a session's connection is asked for is done here, in the order of arrival: the worker, a task of each connection, has
//! a place to wait for the store in.

use crate::call;
use crate::link::{Incoming, Lane};
use crate::locking;
use crate::reader::{Task, What};
use crate::reclaim;
use crate::respond::{self, Leases};
use crate::served::Served;
use crate::session::Arrival;
use bytes::Bytes;
use soda_protocol::{Answer, Call, Failure};
use soda_storage::crash;
use soda_types::{Errno, FsError};
use soda_volume::INODE_COST;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Tasks that are done before others get the place.
const TURN: usize = 64;

impl Served {
    /// Does what arrives, until the connection has ended. This may wait for the store.
    pub(crate) async fn work(self, mut queue: mpsc::UnboundedReceiver<Task>) {
        let mut turn = Vec::new();
        while queue.recv_many(&mut turn, TURN).await > 0 {
            let _place = self.shared.places.enter().await;
            let _corked = self.link.outbox.cork();
            for Task { what, bytes } in turn.drain(..) {
                // What a client is not answered it sends again, on its next connection.
                if !self.link.outbox.is_closed() {
                    self.carry_out(what);
                }
                self.link.backlog.done(bytes, &self.link.outbox);
                if !self.link.outbox.has_room(self.shared.config.limits.unsent_bytes) {
                    // Not all answers of a turn, whatever there is room for.
                    self.link.outbox.flush_now();
                }
            }
        }
    }

    /// The connection has ended.
    pub(crate) fn ended(&self) {
        let mut core = self.shared.core();
        let now = core.now;
        core.forget_lock_waits_on(self.link.session.id, self.link.outbox.id());
        if let Some(entry) = core.sessions.get_mut(&self.link.session.id) {
            if entry.control.as_ref().is_some_and(|control| control.id() == self.link.outbox.id()) {
                entry.control = None;
                entry.silent_since = Some(now);
            }
            entry.data.retain(|data| data.id() != self.link.outbox.id());
        }
    }

    fn carry_out(&self, what: What) {
        match what {
            What::Request(incoming) => self.dispatch(*incoming),
            What::Closed { fids, order } => {
                let mut core = self.shared.core();
                for fid in fids {
                    core.opens.close(self.link.session.id, fid, order);
                    core.drop_if_unused(fid);
                }
            }
            What::Cancel(tag) => {
                let mut core = self.shared.core();
                core.cancel(self.link.session.id, tag);
                core.cancel_lock(self.link.session.id, tag);
                core.settle();
            }
        }
    }

    fn dispatch(&self, incoming: Incoming) {
        match &incoming.request.call {
            Call::Hello(_) | Call::Admin(_) => incoming.unsupported("not on a session's connection"),
            // What moves may leave the reach of a deep lease, and others cover it then: those come with the answer.
            Call::Create { .. }
            | Call::TmpFile { .. }
            | Call::Link { .. }
            | Call::Unlink { .. }
            | Call::Rename { .. }
            | Call::Reclaim(_)
            | Call::Goodbye
            | Call::Digest { .. }
                if self.link.lane != Lane::Control =>
            {
                incoming.unsupported("only on the control connection");
            }
            Call::Reclaim(reclaim) => reclaim::run(&self.shared, &incoming, reclaim),
            Call::Goodbye => self.goodbye(&incoming),
            Call::StatFs { .. } => {
                let mut stats = self.shared.volume.statfs();
                if let Ok(stats) = &mut stats {
                    let others = self.shared.reserved_by_others(self.link.session.id);
                    stats.free_bytes = stats.free_bytes.saturating_sub(others);
                    // An inode takes space, too.
                    let free_inodes = stats.free_inodes.min(stats.free_bytes / INODE_COST);
                    stats.total_inodes -= stats.free_inodes - free_inodes;
                    stats.free_inodes = free_inodes;
                }
                incoming.answer(&stats.map(Answer::Stats).map_err(Failure::Fs));
            }
            Call::Sync { .. } => call::sync::start(&self.shared, incoming),
            Call::LockTest { .. }
            | Call::LockSet { .. }
            | Call::LockRelease { .. }
            | Call::LockReturn { .. } => locking::run(&self.shared, incoming),
            _ => self.operate(incoming),
        }
    }

    /// Calls about inodes and names: through exactly-once and admission.
    fn operate(&self, incoming: Incoming) {
        match (changes(&incoming.request.call), incoming.request.op) {
            (Changes::Nothing, None) => {}
            (Changes::Something, None) => {
                return incoming.invalid("a change needs a slot and a sequence");
            }
            (Changes::Nothing, Some(_)) => {
                return incoming.invalid("a call that changes nothing has no slot");
            }
            (Changes::Something, Some(op)) => {
                let arrival = self.link.session.slots().arrive(op, incoming.reply_to());
                match arrival {
                    Arrival::New => {}
                    Arrival::Answered(result) => {
                        self.shared.metrics.retries.add(1);
                        if let Call::Digest { .. } = incoming.request.call {
                            return call::digest::answer_again(&self.shared, &incoming, &result);
                        }
                        // Without leases: whatever the first reply granted may have been recalled since.
                        self.link.outbox.push(respond::reply(
                            incoming.tag,
                            &result,
                            Leases::NONE,
                            Bytes::new(),
                        ));
                        self.link.outbox.flush();
                        return;
                    }
                    Arrival::Joined => {
                        self.shared.metrics.retries.add(1);
                        self.shared.core().join(self.link.session.id, op, incoming.tag);
                        return;
                    }
                    Arrival::Old => {
                        incoming.answer(&Err(Failure::OldSequence));
                        return;
                    }
                    Arrival::Misuse(problem) => return incoming.invalid(problem),
                }
            }
        }
        match self.link.may_wait() {
            Ok(()) => call::start(Arc::clone(&self.shared), incoming),
            Err(busy) => call::turn_away(&self.shared, &incoming, busy),
        }
    }

    fn goodbye(&self, incoming: &Incoming) {
        let mut core = self.shared.core();
        let now = core.now;
        // This connection stays open for the answer; the client closes it.
        if let Some(entry) = core.sessions.get_mut(&self.link.session.id) {
            entry.control = None;
        }
        core.table.close_session(now, self.link.session.id);
        core.end_session(self.link.session.id);
        core.settle();
        drop(core);
        crash::point("server.goodbye");
        self.shared.metrics.sessions_closed.add(1);
        // The client counts on not being waited for after a restart.
        self.shared.write_ends();
        if self.shared.register.is_refused(self.link.session.id) {
            let problem = "the end of the session is not stored yet; the server goes on to try";
            return incoming.answer(&Err(Failure::Fs(FsError::new(Errno::Io, problem))));
        }
        incoming.answer(&Ok(Answer::Done));
        tracing::info!(session = %self.link.session.id, name = self.link.session.record.name, "session closed by its client");
    }
}

/// Whether a call has to be exactly-once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changes {
    Nothing,
    Something,
}

fn changes(call: &Call) -> Changes {
    match call {
        Call::Create { .. }
        | Call::Link { .. }
        | Call::Unlink { .. }
        | Call::Rename { .. }
        | Call::TmpFile { .. }
        | Call::SetAttr { .. }
        | Call::Write { .. }
        | Call::Allocate { .. }
        | Call::CopyRange { .. }
        | Call::SetXattr { .. }
        | Call::RemoveXattr { .. }
        | Call::Digest { .. } => Changes::Something,
        _ => Changes::Nothing,
    }
}
