//! A session's connection: what arrives on it, and who looks after it.

use crate::call;
use crate::guard::{Asker, CoreGuard};
use crate::locking;
use crate::metrics::CallKind;
use crate::net::{Backlog, Outbox};
use crate::reclaim;
use crate::respond;
use crate::session::{Arrival, ReplyTo, Session};
use crate::shared::Shared;
use bytes::Bytes;
use soda_lease::table::{SessionEnded, Want};
use soda_protocol::{Answer, Call, Failure, Frame, FrameKind, Note, Request};
use soda_types::{Errno, Fid, FsError, SessionId};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::mpsc;

/// Tasks that are done before others get the place.
const TURN: usize = 64;

/// What a connection of a session is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Everything, in order; leases travel on it.
    Control,
    /// File data; no leases.
    Data,
}

/// A connection that has said hello for a session.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Arc<Session>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) lane: Lane,
    /// Requests that wait for something.
    pub(crate) waiting: AtomicUsize,
    /// What has arrived and is not looked at yet.
    pub(crate) backlog: Backlog,
}

/// A request that has arrived.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) link: Arc<Link>,
    pub(crate) tag: u64,
    pub(crate) kind: CallKind,
    pub(crate) request: Request,
    pub(crate) payload: Bytes,
    pub(crate) arrived: Instant,
    /// Its place in the order of arrival at the server.
    pub(crate) order: u64,
}

/// What the reader of a connection leaves to its worker, in the order of arrival.
#[derive(Debug)]
pub(crate) struct Task {
    what: What,
    /// Size of the frame.
    bytes: usize,
}

#[derive(Debug)]
enum What {
    Request(Box<Incoming>),
    /// Behind the calls that opened it.
    Closed {
        fids: Vec<Fid>,
        order: u64,
    },
    /// Behind the request that is given up.
    Cancel(u64),
}

pub(crate) type Queue = mpsc::UnboundedSender<Task>;

impl Link {
    /// Looks at a frame, on the task that reads the connection: nothing here waits for the store. `Break`: the peer does not
    /// speak the protocol.
    pub(crate) fn handle(self: &Arc<Link>, frame: Frame, queue: &Queue) -> ControlFlow<()> {
        let bytes = frame.body.len() + frame.payload.len();
        let what = match frame.kind {
            FrameKind::Request => self.handle_request(frame),
            FrameKind::Note if self.lane == Lane::Control => self.handle_note(&frame),
            FrameKind::Note | FrameKind::Reply | FrameKind::Push => {
                tracing::warn!(session = %self.session.id, kind = ?frame.kind, "a frame that no client sends here");
                return ControlFlow::Break(());
            }
        };
        if let Some(what) = what {
            self.backlog.add(bytes);
            if queue.send(Task { what, bytes }).is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Does what arrives, until the connection has ended. This may wait for the store.
    pub(crate) async fn work(self: Arc<Link>, mut queue: mpsc::UnboundedReceiver<Task>) {
        let mut turn = Vec::new();
        while queue.recv_many(&mut turn, TURN).await > 0 {
            let _place = self.shared.places.enter().await;
            let _corked = self.outbox.cork();
            for Task { what, bytes } in turn.drain(..) {
                // What a client is not answered it sends again, on its next connection.
                if !self.outbox.is_closed() {
                    self.carry_out(what);
                }
                self.backlog.done(bytes, &self.outbox);
            }
        }
    }

    fn carry_out(&self, what: What) {
        match what {
            What::Request(incoming) => self.dispatch(*incoming),
            What::Closed { fids, order } => {
                let mut core = self.shared.core();
                for fid in fids {
                    core.opens.close(self.session.id, fid, order);
                    core.drop_if_unused(fid);
                }
            }
            What::Cancel(tag) => {
                let mut core = self.shared.core();
                core.cancel(self.session.id, tag);
                core.cancel_lock(self.session.id, tag);
                core.settle();
            }
        }
    }

    fn handle_request(self: &Arc<Link>, frame: Frame) -> Option<What> {
        let arrived = Instant::now();
        // First of all, whatever comes of it: the client counts on having renewed its session with every request that is
        // answered.
        let Ok(order) = self.renew() else {
            self.refuse(frame.tag, &Failure::SessionEnded);
            return None;
        };
        let request: Request = match frame.message() {
            Ok(request) => request,
            Err(error) => {
                self.refuse(frame.tag, &Failure::Unsupported(error.to_string()));
                return None;
            }
        };
        let kind = CallKind::from(&request.call);
        let (tag, payload) = (frame.tag, frame.payload);
        let incoming = Incoming { link: self.clone(), tag, kind, request, payload, arrived, order };
        tracing::trace!(session = %self.session.id, op = kind.name(), tag = incoming.tag, "request");
        if incoming.request.call == Call::Renew {
            incoming.answer(&Ok(Answer::Done));
            return None;
        }
        Some(What::Request(Box::new(incoming)))
    }

    /// Renews the session; returns the message's place in the order of arrival.
    fn renew(&self) -> Result<u64, SessionEnded> {
        let mut core = self.shared.core();
        let now = core.now;
        core.table.handle_traffic(now, self.session.id)?;
        Ok(core.new_key())
    }

    fn dispatch(&self, incoming: Incoming) {
        match &incoming.request.call {
            Call::Hello(_) | Call::Admin(_) => incoming.unsupported("not on a session's connection"),
            Call::Reclaim(_) | Call::Goodbye if self.lane != Lane::Control => {
                incoming.unsupported("only on the control connection");
            }
            Call::Reclaim(reclaim) => reclaim::run(&incoming, reclaim),
            Call::Goodbye => self.goodbye(&incoming),
            Call::StatFs { .. } => {
                let stats = self.shared.volume.statfs();
                incoming.answer(&stats.map(Answer::Stats).map_err(Failure::Fs));
            }
            Call::Sync { .. } => self.shared.clone().sync.request(move |result| {
                incoming.answer(&result.map(|()| Answer::Done).map_err(Failure::Fs));
            }),
            Call::LockTest { .. } | Call::LockSet { .. } | Call::LockRelease { .. } => {
                locking::run(&self.shared, &incoming);
            }
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
                let arrival = self.session.slots().arrive(op, incoming.reply_to());
                match arrival {
                    Arrival::New => {}
                    Arrival::Answered(result) => {
                        self.shared.metrics.retries.add(1);
                        // Without leases: whatever the first reply granted may have been recalled since.
                        self.outbox.push(respond::reply(incoming.tag, &result, &[], Bytes::new()));
                        self.outbox.flush();
                        return;
                    }
                    Arrival::Joined => {
                        self.shared.metrics.retries.add(1);
                        self.shared.core().join(self.session.id, op, incoming.tag);
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
        if self.waiting.load(Ordering::Relaxed) >= self.shared.config.limits.waiting_per_connection {
            if let Some(op) = incoming.request.op {
                self.session.slots().forget(op);
            }
            let problem = FsError::new(Errno::TryAgain, "too many requests of this connection wait");
            incoming.answer(&Err(Failure::Fs(problem)));
            return;
        }
        call::start(incoming);
    }

    fn handle_note(&self, frame: &Frame) -> Option<What> {
        let note: Note = match frame.message() {
            Ok(note) => note,
            Err(error) => {
                tracing::warn!(session = %self.session.id, %error, "a note was not understood");
                return None;
            }
        };
        let id = self.session.id;
        let mut core = self.shared.core();
        let now = core.now;
        if core.table.handle_traffic(now, id).is_err() {
            return None;
        }
        let later = match note {
            Note::RecallAcks(acks) => {
                core.table.handle_acks(now, id, &acks);
                None
            }
            Note::Release(acks) => {
                core.table.handle_release(now, id, &acks);
                None
            }
            Note::RecallProgress(fids) => {
                core.table.handle_progress(now, id, &fids);
                None
            }
            Note::Closed(fids) => Some(What::Closed { fids, order: core.new_key() }),
            Note::Cancel(tag) => Some(What::Cancel(tag)),
        };
        core.settle();
        later
    }

    fn goodbye(&self, incoming: &Incoming) {
        let mut core = self.shared.core();
        let now = core.now;
        // This connection stays open for the answer; the client closes it.
        if let Some(entry) = core.sessions.get_mut(&self.session.id) {
            entry.control = None;
        }
        core.table.close_session(now, self.session.id);
        core.end_session(self.session.id);
        core.settle();
        drop(core);
        self.shared.metrics.sessions_closed.add(1);
        // The client counts on not being waited for after a restart.
        self.shared.write_ends();
        incoming.answer(&Ok(Answer::Done));
        tracing::info!(session = %self.session.id, name = self.session.record.name, "session closed by its client");
    }

    fn refuse(&self, tag: u64, failure: &Failure) {
        self.outbox.push(respond::reply(tag, &respond::encode(&Err(failure.clone())), &[], Bytes::new()));
        self.outbox.flush();
    }

    /// The connection has ended.
    pub(crate) fn ended(&self) {
        let mut core = self.shared.core();
        let now = core.now;
        core.forget_lock_waits_on(self.outbox.id());
        if let Some(entry) = core.sessions.get_mut(&self.session.id) {
            if entry.control.as_ref().is_some_and(|control| control.id() == self.outbox.id()) {
                entry.control = None;
                entry.silent_since = Some(now);
            }
            entry.data.retain(|data| data.id() != self.outbox.id());
        }
    }
}

impl Incoming {
    pub(crate) fn session(&self) -> SessionId {
        self.link.session.id
    }

    pub(crate) fn reply_to(&self) -> ReplyTo {
        ReplyTo { outbox: self.link.outbox.clone(), tag: self.tag }
    }

    pub(crate) fn asker(&self) -> Asker {
        Asker { session: self.session(), kind: self.kind, op: self.request.op, tag: self.tag }
    }

    /// Whether leases can travel with the answer.
    pub(crate) fn want(&self) -> Want {
        match self.link.lane {
            Lane::Control => Want::Lease,
            Lane::Data => Want::Nothing,
        }
    }

    /// Answers at once: nothing of the answer depends on the table's order.
    pub(crate) fn answer(&self, result: &Result<Answer, Failure>) {
        self.answer_with(result, Bytes::new());
    }

    pub(crate) fn answer_with(&self, result: &Result<Answer, Failure>, payload: Bytes) {
        self.count(result);
        self.link.outbox.push(respond::reply(self.tag, &respond::encode(result), &[], payload));
        self.link.outbox.flush();
    }

    /// Answers in the order of the table's decisions.
    pub(crate) fn answer_in(&self, core: &mut CoreGuard<'_>, result: &Result<Answer, Failure>) {
        self.count(result);
        core.send(&self.link.outbox, respond::reply(self.tag, &respond::encode(result), &[], Bytes::new()));
    }

    /// Notes the time the call took.
    pub(crate) fn count<T, E>(&self, result: &Result<T, E>) {
        let metrics = self.link.shared.metrics.call(self.kind);
        metrics.latency.record(self.arrived.elapsed());
        if result.is_err() {
            metrics.failed.add(1);
        }
    }

    fn unsupported(&self, why: &str) {
        self.answer(&Err(Failure::Unsupported(format!("{}: {why}", self.kind.name()))));
    }

    fn invalid(&self, problem: &str) {
        tracing::warn!(session = %self.session(), op = self.kind.name(), problem, "a client breaks the rules");
        self.answer(&Err(Failure::Fs(FsError::new(Errno::Invalid, problem))));
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
        | Call::RemoveXattr { .. } => Changes::Something,
        _ => Changes::Nothing,
    }
}
