//! What arrives on a session's connection, on the task that reads it: nothing here waits for the store. It renews the session
//! and takes answers to recalls; all else becomes a [`Task`] for the connection's worker.

use crate::link::{Incoming, Lane};
use crate::metrics::CallKind;
use crate::net::{Awaited, Held, SHORT};
use crate::respond::{self, Leases};
use crate::served::Served;
use bytes::Bytes;
use soda_lease::table::SessionEnded;
use soda_protocol::digest::join_data;
use soda_protocol::{Answer, Call, Failure, Frame, FrameKind, Note, Record, Request};
use soda_types::Fid;
use std::ops::ControlFlow;
use std::time::Instant;
use tokio::sync::mpsc;

/// What the reader of a connection leaves to its worker, in the order of arrival.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) what: What,
    /// Size of the frame.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) enum What {
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

impl Served {
    /// Looks at a frame, for which memory was taken before it was read or was not. `Break`: the peer does not speak the protocol.
    pub(crate) fn handle(&self, frame: Frame, held: Option<Held>, queue: &Queue) -> ControlFlow<()> {
        let bytes = frame.body.len() + frame.payload.len();
        let what = match frame.kind {
            FrameKind::Request => self.handle_request(frame, held),
            FrameKind::Note if self.link.lane == Lane::Control => self.handle_note(&frame),
            FrameKind::Note | FrameKind::Reply | FrameKind::Push => {
                tracing::warn!(session = %self.link.session.id, kind = ?frame.kind, "a frame that no client sends here");
                return ControlFlow::Break(());
            }
        };
        if let Some(what) = what {
            self.link.backlog.add(bytes);
            if queue.send(Task { what, bytes }).is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn handle_request(&self, frame: Frame, held: Option<Held>) -> Option<What> {
        let arrived = Instant::now();
        // First of all, whatever comes of it: the client counts on having renewed its session with every request that is
        // answered.
        let Ok(order) = self.renew() else {
            self.refuse(frame.tag, &Failure::SessionEnded);
            return None;
        };
        let mut request: Request = match frame.message() {
            Ok(request) => request,
            Err(error) => {
                self.refuse(frame.tag, &Failure::Unsupported(error.to_string()));
                return None;
            }
        };
        let bytes = frame.body.len() + frame.payload.len();
        let Some(mut held) = held.or_else(|| self.room_for(&request, bytes)) else {
            self.shared.metrics.turned_away.add(1);
            self.refuse(frame.tag, &Failure::Busy("too much waits for the server's disk".to_owned()));
            return None;
        };
        held.grow(decoded(&request.call));
        let kind = CallKind::from(&request.call);
        let (tag, mut payload) = (frame.tag, frame.payload.to_bytes());
        if let Call::Digest { records, data, .. } = &mut request.call
            && let Err(error) = join_data(records, data, std::mem::take(&mut payload))
        {
            self.refuse(tag, &Failure::Unsupported(error.to_string()));
            return None;
        }
        let incoming =
            Incoming { link: self.link.clone(), tag, kind, request, payload, held, arrived, order };
        tracing::trace!(session = %self.link.session.id, op = kind.name(), tag = incoming.tag, "request");
        if incoming.request.call == Call::Renew {
            incoming.answer(&Ok(Answer::Done));
            return None;
        }
        Some(What::Request(Box::new(incoming)))
    }

    /// Memory for a request that came on the control connection, which has to be read whatever there is: answers to recalls come
    /// on it, too. `None`: it is to come again later.
    fn room_for(&self, request: &Request, bytes: usize) -> Option<Held> {
        // Of what is under way already nobody can say that nothing was done.
        let is_new = || request.op.is_some_and(|op| self.link.session.slots().is_new(op));
        match request.call {
            Call::Digest { .. } | Call::Write { .. } if bytes > SHORT && is_new() => {}
            _ => return Some(self.link.share.take(bytes)),
        }
        self.link.share.try_take(bytes, Awaited::No).or_else(|| {
            let is_awaited = self.shared.core().table.is_asked(self.link.session.id);
            if is_awaited { self.link.share.try_take(bytes, Awaited::Yes) } else { None }
        })
    }

    /// Renews the session; returns the message's place in the order of arrival.
    fn renew(&self) -> Result<u64, SessionEnded> {
        let mut core = self.shared.core();
        let now = core.now;
        core.table.handle_traffic(now, self.link.session.id)?;
        Ok(core.new_key())
    }

    fn handle_note(&self, frame: &Frame) -> Option<What> {
        let note: Note = match frame.message() {
            Ok(note) => note,
            Err(error) => {
                tracing::warn!(session = %self.link.session.id, %error, "a note was not understood");
                return None;
            }
        };
        let id = self.link.session.id;
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
                core.delegations.handle_progress(now, id, &fids);
                None
            }
            Note::Closed(fids) => Some(What::Closed { fids, order: core.new_key() }),
            Note::Cancel(tag) => Some(What::Cancel(tag)),
            Note::InquiryAnswers(answers) => {
                core.inquiries_answered(id, answers);
                None
            }
            Note::Backlog(report) => {
                if let Some(entry) = core.sessions.get_mut(&id) {
                    entry.backlog = Some((report, now));
                }
                None
            }
        };
        core.settle();
        later
    }

    fn refuse(&self, tag: u64, failure: &Failure) {
        self.link.outbox.push(respond::reply(
            tag,
            &respond::encode(&Err(failure.clone())),
            Leases::NONE,
            Bytes::new(),
        ));
        self.link.outbox.flush();
    }
}

/// What a call takes beside the bytes that it came in.
fn decoded(call: &Call) -> usize {
    match call {
        Call::Digest { records, .. } => records.len() * size_of::<Record>(),
        _ => 0,
    }
}
