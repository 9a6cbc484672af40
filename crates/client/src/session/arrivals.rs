//! What comes from the server: replies, which are applied to the caches, and recalls.

use crate::connection::link::{Cancelled, OutOfTurn, Undone};
use crate::inner::{Arrived, Inner, Pending};
use bytes::Bytes;
use soda_protocol::{Answer, Covered, Failure, Push, Reply};
use soda_types::{Errno, FsError, FsResult, Grant};
use std::sync::Arc;
use std::time::Duration;

/// Which kind of connection something came on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Channel {
    Control,
    Data,
}

impl Inner {
    /// A reply has come: applies it to the caches, then wakes who waits for it.
    pub(super) fn handle_reply(self: &Arc<Inner>, channel: Channel, tag: u64, reply: Reply, payload: Bytes) {
        self.stats.replies.one();
        self.stats.bytes_received.add(payload.len() as u64);
        match reply.result {
            Err(Failure::Grace(wait)) => {
                self.stats.grace_waits.one();
                self.link.unanswered(tag);
                // The grace period may end early.
                self.ask_again(tag, wait.clamp(Duration::from_millis(20), Duration::from_millis(250)));
            }
            Err(Failure::SessionEnded) => {
                self.link.unanswered(tag);
                self.session_ended.notify_one();
            }
            Err(Failure::Busy(why)) => {
                tracing::debug!(tag, why, "the server has too much to do");
                self.stats.busy_waits.one();
                self.undone(tag, None);
            }
            Err(Failure::InTheWay) => {
                self.stats.lease_polls.one();
                self.undone(tag, self.config.lease_poll);
            }
            Err(Failure::OutOfTurn) if self.link.out_of_turn(tag) == OutOfTurn::Again => {
                tracing::debug!(tag, "a digest goes again behind the one before it");
            }
            result => {
                let Some(pending) = self.link.take(tag) else {
                    tracing::debug!(tag, "a reply that nobody waits for");
                    return;
                };
                if let Err(Failure::Digest { lsn, .. }) = &result {
                    crate::lock(&self.state).behind.note_refused(*lsn);
                }
                let result =
                    result.map(|answer| (answer, payload)).map_err(|failure| failed(failure, &pending));
                let leases = (reply.grants.as_slice(), reply.covered.as_slice());
                self.finish(channel, pending, leases, result);
            }
        }
    }

    /// Nothing of it was done: it is sent again, after a pause that gets longer each time if none is given.
    fn undone(self: &Arc<Inner>, tag: u64, pause: Option<Duration>) {
        match self.link.undone(tag) {
            Some(Undone::AskAgain(longer)) => self.ask_again(tag, pause.unwrap_or(longer)),
            Some(Undone::GivenUp(pending)) => self.complete_given_up(*pending),
            None => {}
        }
    }

    fn finish(
        self: &Arc<Inner>,
        channel: Channel,
        pending: Pending,
        leases: (&[Grant], &[Covered]),
        result: FsResult<(Answer, Bytes)>,
    ) {
        let Pending { mut completion, ticket, slot, touches, .. } = pending;
        let now = self.now();
        let mut state = crate::lock(&self.state);
        match channel {
            Channel::Control => {
                state.accept(now, ticket, leases);
                if slot.is_none() {
                    state.behind.window.note_answer(now.since(ticket.sent_at()));
                }
            }
            // Brings no leases. `cacheable` asks for the ticket only by its number.
            Channel::Data => state.holder.fail_request(ticket),
        }
        state.unsynced.answering(slot.as_ref().map(|slot| slot.op));
        completion.apply(Arrived { inner: self, state: &mut state, now, ticket }, result);
        state.unsynced.answering(None);
        if !completion.is_wanted() && !touches.is_empty() {
            self.drop_kernel_copies(&mut state, now, &touches);
        }
        let given_up = std::mem::take(&mut state.given_up);
        let closed = state.take_closed();
        // Whoever else would do it has to be woken first.
        let to_sync = self.take_to_sync(&mut state, now);
        drop(state);
        drop(slot);
        self.sync_for(to_sync);
        completion.finish();
        self.release(given_up);
        self.closed(closed);
    }

    fn ask_again(self: &Arc<Inner>, tag: u64, pause: Duration) {
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            inner.link.resend(tag);
        });
    }

    pub(super) fn handle_push(self: &Arc<Inner>, push: Push) {
        match push {
            Push::Recalls(recalls) => self.handle_passed(self.gate.pass(recalls)),
            Push::Inquiries(inquiries) => self.handle_inquiries(&inquiries),
            Push::RecallLocks(recalls) => self.handle_lock_recalls(&recalls),
            Push::Stopping => tracing::info!(server = self.config.server, "the server is stopping"),
        }
    }
}

/// A failure as the caller sees it.
fn failed(failure: Failure, pending: &Pending) -> FsError {
    match failure {
        // Taken out of the server's queue because of a recall: nothing was done, walk the path again.
        Failure::Fs(error)
            if error.errno == Errno::Interrupted && pending.cancelled == Cancelled::ByRecall =>
        {
            FsError::new(Errno::Stale, "taken back for a recall of its directory")
        }
        Failure::Fs(error) => error,
        Failure::Digest { lsn, error } => FsError::new(error.errno, format!("{lsn}: {error}")),
        Failure::OutOfTurn => FsError::new(Errno::TryAgain, failure.to_string()),
        Failure::Unsupported(what) => FsError::new(Errno::NotSupported, what),
        other => FsError::new(Errno::Io, other.to_string()),
    }
}
