//! What all parts of a client share.

use crate::cache::State;
use crate::cache::disk::DiskCache;
use crate::call::Arrived;
use crate::clock::Clock;
use crate::config::ClientConfig;
use crate::connection::link::{Cancelled, Undone};
use crate::connection::{Link, Pending, Slots, Transport};
use crate::hooks::KernelHooks;
use crate::recall::Pool;
use crate::stats::Stats;
use crate::validity::Answers;
use bytes::Bytes;
use soda_protocol::{Answer, Covered, Failure, Note, Push, Reply};
use soda_types::{Errno, Fid, FsError, FsResult, Grant, InUse, Monotonic, RecallAck};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

/// How long a note that nobody waits for may be kept back.
const HOLD: Duration = Duration::from_millis(100);

pub(crate) struct Inner {
    pub(crate) config: ClientConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Arc<dyn KernelHooks>,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) state: Mutex<State>,
    pub(crate) link: Link,
    pub(crate) slots: Arc<Slots>,
    pub(crate) answers: Arc<Answers>,
    pub(crate) stats: Stats,
    pub(crate) runtime: Handle,
    pub(crate) recall_pool: Pool,
    pub(crate) disk: OnceLock<Arc<DiskCache>>,
    pub(crate) root: OnceLock<Fid>,
    pub(crate) max_io: AtomicU32,
    /// Grows with each session that was lost: open files remember it.
    pub(crate) losses: AtomicU64,
    /// Whether notes that are kept back are going to be sent, whatever follows.
    pub(crate) holding: AtomicBool,
    /// The server said that the session has ended: connect anew.
    pub(crate) session_ended: Notify,
    /// Held by who has the server given back what it keeps for what is done here.
    pub(crate) making_room: tokio::sync::Mutex<()>,
    pub(crate) phase: watch::Sender<Phase>,
}

/// How the client stands with its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Connected,
    /// The control connection is gone; trying again.
    Disconnected,
    /// Goodbye was said.
    Closed,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("server", &self.config.server).finish_non_exhaustive()
    }
}

/// Which kind of connection something came on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Channel {
    Control,
    Data,
}

impl Inner {
    pub(crate) fn now(&self) -> Monotonic {
        self.clock.now()
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.phase.borrow() == Phase::Closed
    }

    /// A reply has come: applies it to the caches, then wakes who waits for it.
    pub(crate) fn handle_reply(self: &Arc<Inner>, channel: Channel, tag: u64, reply: Reply, payload: Bytes) {
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
                match self.link.undone(tag) {
                    Some(Undone::AskAgain(pause)) => self.ask_again(tag, pause),
                    Some(Undone::GivenUp(pending)) => self.complete_given_up(*pending),
                    None => {}
                }
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
            Channel::Control => state.accept(now, ticket, leases),
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
        drop(state);
        drop(slot);
        completion.finish();
        self.release(given_up);
        self.closed(closed);
    }

    pub(crate) fn closed(&self, fids: Vec<Fid>) {
        if !fids.is_empty() {
            self.note(&Note::Closed(fids));
        }
    }

    fn ask_again(self: &Arc<Inner>, tag: u64, pause: Duration) {
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            inner.link.resend(tag);
        });
    }

    pub(crate) fn handle_push(self: &Arc<Inner>, push: Push) {
        match push {
            Push::Recalls(recalls) => self.handle_recalls(&recalls),
            Push::Stopping => tracing::info!(server = self.config.server, "the server is stopping"),
        }
    }

    pub(crate) fn note(&self, note: &Note) {
        self.stats.noted(note);
        self.link.note(note);
    }

    /// Tells the server with what it is told next, or soon.
    pub(crate) fn note_soon(self: &Arc<Inner>, note: &Note) {
        self.stats.noted(note);
        self.link.hold(note);
        if self.holding.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            tokio::time::sleep(HOLD).await;
            // Before they are sent: what is kept back from now on has somebody to send it.
            inner.holding.store(false, Ordering::Release);
            inner.link.send_held();
        });
    }

    /// Tells the server of leases that were given up unasked.
    pub(crate) fn release(&self, acks: Vec<RecallAck>) {
        if !acks.is_empty() {
            self.stats.leases_released.add(acks.len() as u64);
            let said_open = said_open(&acks);
            self.note(&Note::Release(acks));
            self.close_overtaken(said_open);
        }
    }

    /// After a note that said these are open. What was closed between the note's making and its sending, the server has heard
    /// in the wrong order.
    pub(crate) fn close_overtaken(&self, said_open: Vec<Fid>) {
        if said_open.is_empty() {
            return;
        }
        let mut state = crate::lock(&self.state);
        said_open.into_iter().for_each(|fid| state.told_open(fid));
        let closed = state.take_closed();
        drop(state);
        self.closed(closed);
    }

    pub(crate) fn max_io(&self) -> u32 {
        self.max_io.load(Ordering::Relaxed)
    }
}

/// What the acknowledgements say is in use.
pub(crate) fn said_open(acks: &[RecallAck]) -> Vec<Fid> {
    acks.iter().filter(|ack| ack.in_use == InUse::Yes).map(|ack| ack.object.unwrap_or(ack.fid)).collect()
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
        Failure::Unsupported(what) => FsError::new(Errno::NotSupported, what),
        other => FsError::new(Errno::Io, other.to_string()),
    }
}
