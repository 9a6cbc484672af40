//! One request and what its reply does.
//!
//! The reply is applied to the caches by the task that reads the connection, in the order of arrival and whether or not
//! the caller still waits: a change that was carried out is seen by the caches before any recall that follows it, and
//! dropping an operation's future at any point is harmless.

use crate::cache::State;
use crate::caller;
use crate::config::Retry;
use crate::connection::link::{self, Cancelled, NotTaken, OnLoss};
use crate::connection::{Route, SlotGuard};
use crate::inner::{Arrived, Completion, Inner, Pending};
use bytes::Bytes;
use soda_lease::holder::Ticket;
use soda_protocol::{Answer, Call, Data, LockWait};
use soda_types::{Errno, Fid, FsError, FsResult};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

type Refused = link::Refused<Box<dyn Completion>>;
type Submission = link::Submission<Box<dyn Completion>>;

struct Answering<T, F> {
    apply: Option<F>,
    outcome: Option<FsResult<T>>,
    sender: oneshot::Sender<FsResult<T>>,
}

impl<T, F> Completion for Answering<T, F>
where
    T: Send,
    F: FnOnce(&mut Arrived<'_>, FsResult<(Answer, Bytes)>) -> FsResult<T> + Send,
{
    fn apply(&mut self, mut arrived: Arrived<'_>, result: FsResult<(Answer, Bytes)>) {
        if let Some(apply) = self.apply.take() {
            self.outcome = Some(apply(&mut arrived, result));
        }
    }

    fn is_wanted(&self) -> bool {
        !self.sender.is_closed()
    }

    fn finish(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            let _ = self.sender.send(outcome);
        }
    }
}

/// A request that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) call: Call,
    pub(crate) payload: Data,
    pub(crate) route: Route,
    pub(crate) slot: Option<SlotGuard>,
    pub(crate) ticket: Ticket,
    pub(crate) names_of: Vec<Fid>,
    /// Inodes that it changes, as far as they are known.
    pub(crate) touches: Vec<Fid>,
    pub(crate) give_up: GiveUp,
}

/// What becomes of a change when nobody waits for its result any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GiveUp {
    /// It is taken back if it still waits.
    WithCaller,
    /// It goes on.
    Never,
}

impl Order {
    /// Something that changes nothing.
    pub(crate) fn question(call: Call, ticket: Ticket) -> Order {
        Order {
            call,
            payload: Data::new(),
            route: Route::Control,
            slot: None,
            ticket,
            names_of: Vec::new(),
            touches: Vec::new(),
            give_up: GiveUp::WithCaller,
        }
    }

    pub(crate) fn change(call: Call, slot: SlotGuard, ticket: Ticket, touches: Vec<Fid>) -> Order {
        Order { slot: Some(slot), touches, ..Order::question(call, ticket) }
    }

    fn on_loss(&self) -> OnLoss {
        let lock = matches!(self.call, Call::LockSet { .. } | Call::LockRelease { .. });
        if self.slot.is_some() || lock { OnLoss::Fail } else { OnLoss::Again }
    }
}

/// A request in the list of those without a reply that nothing was done about yet.
pub(crate) struct Enlisted(Result<u64, Refused>);

/// The result of an [`Order`], on its way.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    receiver: oneshot::Receiver<FsResult<T>>,
    abandon: Abandon,
    patience: Retry,
    effect: Effect,
}

/// Whether a request does something at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    None,
    Some,
}

/// Tells the server if the caller goes while the request may still be waiting there.
#[derive(Debug)]
struct Abandon {
    inner: Arc<Inner>,
    tag: Option<u64>,
}

impl Inner {
    /// Sends a request; its reply runs `apply` even if the returned future is dropped.
    pub(crate) fn send<T: Send + 'static>(
        self: &Arc<Inner>,
        order: Order,
        apply: impl FnOnce(&mut Arrived<'_>, FsResult<(Answer, Bytes)>) -> FsResult<T> + Send + 'static,
    ) -> Waiting<T> {
        let waits_for_lock = matches!(order.call, Call::LockSet { wait: LockWait::Yes, .. });
        let effect = if order.on_loss() == OnLoss::Fail { Effect::Some } else { Effect::None };
        let cancel = waits_for_lock || (order.slot.is_some() && order.give_up == GiveUp::WithCaller);
        let (submission, receiver) = self.submission(order, apply);
        let tag = self.link.submit(submission).map_err(|refused| self.complete_refused(*refused)).ok();
        let patience = if waits_for_lock { Retry::Hard } else { self.config.retry };
        let tag = tag.filter(|_| cancel);
        Waiting { receiver, abandon: Abandon { inner: Arc::clone(self), tag }, patience, effect }
    }

    /// As [`Inner::send`], but nothing is sent and nothing completed before [`Inner::send_enlisted`]: for a request that belongs
    /// together with what is done under the lock of the caches. Nobody waits for its result.
    pub(crate) fn enlist(
        self: &Arc<Inner>,
        order: Order,
        apply: impl FnOnce(&mut Arrived<'_>, FsResult<(Answer, Bytes)>) -> FsResult<()> + Send + 'static,
    ) -> Enlisted {
        let (submission, _) = self.submission(order, apply);
        Enlisted(self.link.enlist(submission))
    }

    /// As [`Inner::send`], under the lock of the caches: what is sent after the lock is let go of comes behind it. Nobody waits
    /// for the result.
    ///
    /// # Errors
    /// EIO: it is not sent, and `apply` does not run, as the client is closed or the request does not fit into a frame.
    pub(crate) fn send_in(
        self: &Arc<Inner>,
        state: &mut State,
        call: Call,
        apply: impl FnOnce(&mut Arrived<'_>, FsResult<(Answer, Bytes)>) -> FsResult<()> + Send + 'static,
    ) -> FsResult<()> {
        let ticket = state.holder.begin_request(self.now());
        let (submission, _) = self.submission(Order::question(call, ticket), apply);
        let refused = |refused: Refused| {
            state.holder.fail_request(ticket);
            not_taken(&refused.0)
        };
        self.link.submit(submission).map(|_| ()).map_err(refused)
    }

    /// Sends a digest, with those before it, and what goes behind it.
    pub(crate) fn send_enlisted(self: &Arc<Inner>, digest: Enlisted, behind: Option<Enlisted>) {
        let digest = self.tag_of(digest);
        let behind = behind.and_then(|behind| self.tag_of(behind));
        match (digest, self.slots.digest_slots()) {
            (Some(tag), Some(slots)) => self.link.send_digests(slots, tag, behind),
            (Some(tag), None) => self.link.resend(tag),
            (None, _) => {}
        }
        // Unless it has been sent with that.
        behind.into_iter().for_each(|tag| self.link.resend(tag));
    }

    /// `None`: it is not in the list, and over.
    fn tag_of(self: &Arc<Inner>, enlisted: Enlisted) -> Option<u64> {
        enlisted.0.map_err(|refused| self.complete_refused(*refused)).ok()
    }

    fn submission<T: Send + 'static>(
        self: &Arc<Inner>,
        order: Order,
        apply: impl FnOnce(&mut Arrived<'_>, FsResult<(Answer, Bytes)>) -> FsResult<T> + Send + 'static,
    ) -> (Submission, oneshot::Receiver<FsResult<T>>) {
        let (sender, receiver) = oneshot::channel();
        let completion = Box::new(Answering { apply: Some(apply), outcome: None, sender });
        self.stats.sent(&order.call, order.payload.len());
        let on_loss = order.on_loss();
        let Order { call, payload, route, slot, ticket, names_of, touches, give_up: _ } = order;
        let submission =
            Submission { call, payload, route, slot, ticket, completion, on_loss, names_of, touches };
        (submission, receiver)
    }

    fn complete_refused(self: &Arc<Inner>, (error, submission): (NotTaken, Submission)) {
        self.complete(submission.ticket, submission.completion, Err(not_taken(&error)));
    }

    /// Gives a request up: it is not carried out if it waits, here or at the server.
    pub(crate) fn cancel(self: &Arc<Inner>, tag: u64, by: Cancelled) {
        if let Some(pending) = self.link.cancel(tag, by) {
            self.complete_given_up(pending);
        }
    }

    /// Nothing was done of it and nothing will be.
    pub(crate) fn complete_given_up(self: &Arc<Inner>, pending: Pending) {
        let errno = match pending.cancelled {
            Cancelled::ByRecall => Errno::Stale,
            Cancelled::ByCaller | Cancelled::No => Errno::Interrupted,
        };
        self.complete(pending.ticket, pending.completion, Err(errno.into()));
    }

    /// Runs a completion that got no reply.
    pub(crate) fn complete(
        self: &Arc<Inner>,
        ticket: Ticket,
        mut completion: Box<dyn Completion>,
        result: FsResult<(Answer, Bytes)>,
    ) {
        let now = self.clock.now();
        let mut state = crate::lock(&self.state);
        state.holder.fail_request(ticket);
        completion.apply(Arrived { inner: self, state: &mut state, now, ticket }, result);
        drop(state);
        completion.finish();
    }
}

impl<T> Waiting<T> {
    pub(crate) async fn result(mut self) -> FsResult<T> {
        let received = match self.patience {
            Retry::Hard => self.received().await,
            Retry::Soft { timeout } => {
                let runtime = self.abandon.inner.runtime.clone();
                let timed = {
                    let _context = runtime.enter();
                    tokio::time::timeout(timeout, self.received())
                };
                match timed.await {
                    Ok(received) => received,
                    Err(_) => {
                        return Err(FsError::new(
                            Errno::Io,
                            "ETIMEDOUT: the server did not answer in time (soft)",
                        ));
                    }
                }
            }
        };
        self.abandon.tag = None;
        received.unwrap_or_else(|_| Err(shut_down()))
    }

    /// As [`Waiting::result`], however long it takes: also with [`Retry::Soft`].
    pub(crate) async fn result_at_last(self) -> FsResult<T> {
        Waiting { patience: Retry::Hard, ..self }.result().await
    }

    /// What comes. From a caller that is being killed it is taken back meanwhile, if it still waits.
    async fn received(&mut self) -> Result<FsResult<T>, oneshot::error::RecvError> {
        poll_fn(|context| {
            let polled = Pin::new(&mut self.receiver).poll(context);
            if polled.is_pending() && caller::is_dying() && self.effect == Effect::Some {
                caller::note_outstanding();
                if let Some(tag) = self.abandon.tag.take() {
                    self.abandon.inner.cancel(tag, Cancelled::ByCaller);
                }
            }
            polled
        })
        .await
    }

    /// As [`Waiting::result`], of a request that is taken back, if it still waits, when `interrupted` is ready. Whether it did
    /// the server says; EINTR if it does not in the time.
    pub(crate) async fn result_until(
        mut self,
        interrupted: impl Future<Output = ()>,
        patience: Duration,
    ) -> FsResult<T> {
        tokio::select! {
            biased;
            received = &mut self.receiver => {
                self.abandon.tag = None;
                return received.unwrap_or_else(|_| Err(shut_down()));
            }
            () = interrupted => {}
        }
        if let Some(tag) = self.abandon.tag.take() {
            self.abandon.inner.cancel(tag, Cancelled::ByCaller);
        }
        let timed = {
            let _context = self.abandon.inner.runtime.enter();
            tokio::time::timeout(patience, &mut self.receiver)
        };
        match timed.await {
            Ok(received) => received.unwrap_or_else(|_| Err(shut_down())),
            Err(_) => Err(Errno::Interrupted.into()),
        }
    }
}

fn not_taken(error: &NotTaken) -> FsError {
    FsError::new(Errno::Io, error.to_string())
}

fn shut_down() -> FsError {
    FsError::new(Errno::Io, "the client is shut down")
}

impl Drop for Abandon {
    fn drop(&mut self) {
        if let Some(tag) = self.tag.take() {
            self.inner.cancel(tag, Cancelled::ByCaller);
        }
    }
}

/// The server answered something that does not fit the question.
pub(crate) fn unexpected<T>(answer: &Answer) -> FsResult<T> {
    Err(FsError::new(Errno::Io, format!("the server's answer does not fit the question: {answer:.80?}")))
}
