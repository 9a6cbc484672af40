//! A session's connection and the requests that come on it: what everybody knows who works on one, and how it is answered.

mod line;

pub(crate) use line::{Ahead, Arrived, Entered, Line};

use crate::metrics::{CallKind, Metrics};
use crate::net::{Backlog, Held, Outbox, Share};
use crate::respond::{self, Leases};
use crate::session::{ReplyTo, Session};
use bytes::Bytes;
use soda_lease::table::Want;
use soda_protocol::{Answer, Failure, Request};
use soda_types::{Errno, FsError, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

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
    pub(crate) session: Arc<Session>,
    /// The session's digests, those of its other connections, too.
    pub(crate) digests: Arc<Line>,
    pub(crate) outbox: Arc<Outbox>,
    /// Of the memory for requests.
    pub(crate) share: Share,
    pub(crate) lane: Lane,
    /// Requests that wait for something.
    pub(crate) waiting: AtomicUsize,
    /// So many may.
    pub(crate) waiting_max: usize,
    /// What has arrived and is not looked at yet.
    pub(crate) backlog: Backlog,
    pub(crate) metrics: Arc<Metrics>,
}

impl Link {
    /// Whether one more request may wait.
    ///
    /// # Errors
    /// What it is to be answered otherwise.
    pub(crate) fn may_wait(&self) -> Result<(), Failure> {
        if self.waiting.load(Ordering::Relaxed) < self.waiting_max {
            return Ok(());
        }
        Err(Failure::Busy("too many requests of this connection wait".to_owned()))
    }
}

/// A request that counts as waiting while this is there.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Link>);

impl Counted {
    pub(crate) fn new(link: &Arc<Link>) -> Counted {
        link.waiting.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(link))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the log has said that a request waits long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Warned {
    NotYet,
    Already,
}

/// A request that has arrived.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) link: Arc<Link>,
    pub(crate) tag: u64,
    pub(crate) kind: CallKind,
    pub(crate) request: Request,
    pub(crate) payload: Bytes,
    /// The memory that it has.
    pub(crate) held: Held,
    pub(crate) arrived: Instant,
    /// Its place in the order of arrival at the server.
    pub(crate) order: u64,
}

impl Incoming {
    pub(crate) fn session(&self) -> SessionId {
        self.link.session.id
    }

    pub(crate) fn reply_to(&self) -> ReplyTo {
        ReplyTo { outbox: self.link.outbox.clone(), tag: self.tag }
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
        self.link.outbox.push(respond::reply(self.tag, &respond::encode(result), Leases::NONE, payload));
        self.link.outbox.flush();
    }

    /// Nothing was done, so the same request may come again: to its slot it is as if it had never arrived.
    pub(crate) fn answer_undone(&self, result: &Result<Answer, Failure>) {
        if let Some(op) = self.request.op {
            let encoded = respond::encode(result);
            for waiter in self.link.session.slots().forget(op) {
                waiter.outbox.push(respond::reply(waiter.tag, &encoded, Leases::NONE, Bytes::new()));
                waiter.outbox.flush();
            }
        }
        self.answer(result);
    }

    /// Notes the time the call took.
    pub(crate) fn count<T, E>(&self, result: &Result<T, E>) {
        let metrics = self.link.metrics.call(self.kind);
        metrics.latency.record(self.arrived.elapsed());
        if result.is_err() {
            metrics.failed.add(1);
        }
    }

    pub(crate) fn unsupported(&self, why: &str) {
        self.answer(&Err(Failure::Unsupported(format!("{}: {why}", self.kind.name()))));
    }

    pub(crate) fn invalid(&self, problem: &str) {
        tracing::warn!(session = %self.session(), op = self.kind.name(), problem, "a client breaks the rules");
        self.answer(&Err(Failure::Fs(FsError::new(Errno::Invalid, problem))));
    }
}
