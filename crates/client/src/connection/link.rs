//! Requests without a reply, and the connections they travel on.

mod digests;

use crate::connection::{Generation, SlotGuard, Writer};
use bytes::Bytes;
use soda_lease::holder::Ticket;
use soda_protocol::{Call, Data, DigestSlots, Frame, FrameError, FrameKind, Note, Request};
use soda_types::Fid;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) use digests::OutOfTurn;

/// Before a request that the server had no room for is sent again.
const LEAST_PAUSE: Duration = Duration::from_millis(4);
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// Which connection a request goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Control,
    Data,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnId(u64);

/// What becomes of a request without a reply when its session has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnLoss {
    /// Nobody knows whether it was carried out: it fails.
    Fail,
    /// It changes nothing: sent again in the new session.
    Again,
}

/// Who gave up waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cancelled {
    No,
    /// The caller; nobody is interested in the result.
    ByCaller,
    /// A recall, which waits for a lock that the caller holds.
    ByRecall,
}

/// A request without a reply. `C`: what is to be done with that.
pub(crate) struct Pending<C> {
    pub(crate) frame: Frame,
    pub(crate) route: Route,
    pub(crate) slot: Option<SlotGuard>,
    pub(crate) ticket: Ticket,
    pub(crate) completion: C,
    pub(crate) on_loss: OnLoss,
    /// Directories whose names it changes.
    pub(crate) names_of: Vec<Fid>,
    /// Inodes that it changes.
    pub(crate) touches: Vec<Fid>,
    pub(crate) cancelled: Cancelled,
    sent_on: Option<ConnId>,
    sent: Sent,
    /// How often the server had too much to do.
    refusals: u32,
}

/// What the server can know of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// Nothing, or nothing any more.
    No,
    /// It may be waiting there, or be carried out.
    Perhaps,
    /// Nothing: the digest that it comes after had not been carried out. It goes again behind that.
    TooEarly,
}

/// What becomes of a request that the server did not even begin.
pub(crate) enum Undone<C> {
    AskAgain(Duration),
    /// Nobody wants it any more.
    GivenUp(Box<Pending<C>>),
}

/// A request as it is handed in.
pub(crate) struct Submission<C> {
    pub(crate) call: Call,
    pub(crate) payload: Data,
    pub(crate) route: Route,
    pub(crate) slot: Option<SlotGuard>,
    pub(crate) ticket: Ticket,
    pub(crate) completion: C,
    pub(crate) on_loss: OnLoss,
    pub(crate) names_of: Vec<Fid>,
    pub(crate) touches: Vec<Fid>,
}

/// Whether a connection is still the one in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Current {
    Yes,
    No,
}

type Connection = (ConnId, Arc<Writer>);

/// A request that is not taken on, and why.
pub(crate) type Refused<C> = Box<(NotTaken, Submission<C>)>;

/// A request that is taken out of the list, to be completed or put back.
pub(crate) type Taken<C> = (u64, Pending<C>);

pub(crate) struct Link<C> {
    next_tag: AtomicU64,
    table: Mutex<Table<C>>,
}

struct Table<C> {
    /// By tag, which is the order of asking.
    pending: BTreeMap<u64, Pending<C>>,
    control: Option<(ConnId, Arc<Writer>)>,
    /// Whether the session is restored on it, so that requests may follow.
    control_ready: bool,
    /// Until it is, only digests.
    restoring: Option<DigestSlots>,
    data: Vec<(ConnId, Arc<Writer>)>,
    next_conn: u64,
    /// Requests with a slot of an older session are not taken on.
    generation: Generation,
    data_wanted: usize,
    closed: bool,
}

impl<C> Link<C> {
    pub(crate) fn new(data_wanted: usize) -> Link<C> {
        let table = Table {
            pending: BTreeMap::new(),
            control: None,
            control_ready: false,
            restoring: None,
            data: Vec::new(),
            next_conn: 0,
            generation: Generation::default(),
            data_wanted,
            closed: false,
        };
        Link { next_tag: AtomicU64::new(1), table: Mutex::new(table) }
    }

    pub(crate) fn next_tag(&self) -> u64 {
        self.next_tag.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes the request on and sends it if a connection is up. Returns its tag.
    ///
    /// # Errors
    /// The request, if it does not fit into a frame, its session has ended, or the client is closed.
    pub(crate) fn submit(&self, submission: Submission<C>) -> Result<u64, Refused<C>> {
        let (tag, frame, connection) = self.take_on(submission, Table::pick)?;
        if let Some((_, writer)) = connection {
            writer.send(&frame);
        }
        Ok(tag)
    }

    /// Takes the request on; [`Link::resend`] sends it.
    ///
    /// # Errors
    /// As [`Link::submit`].
    pub(crate) fn enlist(&self, submission: Submission<C>) -> Result<u64, Refused<C>> {
        self.take_on(submission, |_, _, _| None).map(|(tag, ..)| tag)
    }

    fn take_on(
        &self,
        mut submission: Submission<C>,
        pick: impl FnOnce(&Table<C>, Route, Option<&SlotGuard>) -> Option<Connection>,
    ) -> Result<(u64, Frame, Option<Connection>), Refused<C>> {
        let tag = self.next_tag();
        let op = submission.slot.as_ref().map(|slot| slot.op);
        let Submission { call, payload, .. } = &mut submission;
        let request = Request { op, call: std::mem::replace(call, Call::Renew) };
        let frame = Frame::new(FrameKind::Request, tag, &request, payload.clone());
        *call = request.call;
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Err(Box::new((NotTaken::Frame(error), submission))),
        };
        let mut table = crate::lock(&self.table);
        if table.closed {
            return Err(Box::new((NotTaken::Closed, submission)));
        }
        if submission.slot.as_ref().is_some_and(|slot| slot.generation < table.generation) {
            return Err(Box::new((NotTaken::SessionEnded, submission)));
        }
        let Submission { route, slot, ticket, completion, on_loss, names_of, touches, .. } = submission;
        let connection = pick(&table, route, slot.as_ref());
        let pending = Pending {
            frame: frame.clone(),
            route,
            slot,
            ticket,
            completion,
            on_loss,
            names_of,
            touches,
            cancelled: Cancelled::No,
            sent_on: connection.as_ref().map(|(id, _)| *id),
            sent: if connection.is_some() { Sent::Perhaps } else { Sent::No },
            refusals: 0,
        };
        table.pending.insert(tag, pending);
        Ok((tag, frame, connection))
    }

    /// The request that a reply belongs to.
    pub(crate) fn take(&self, tag: u64) -> Option<Pending<C>> {
        crate::lock(&self.table).pending.remove(&tag)
    }

    /// Its reply does not answer it: to be sent again.
    pub(crate) fn unanswered(&self, tag: u64) {
        if let Some(pending) = crate::lock(&self.table).pending.get_mut(&tag) {
            pending.sent_on = None;
        }
    }

    /// The server had too much to do and has forgotten it.
    pub(crate) fn undone(&self, tag: u64) -> Option<Undone<C>> {
        let mut table = crate::lock(&self.table);
        let pending = table.pending.get_mut(&tag)?;
        pending.sent_on = None;
        pending.sent = Sent::No;
        if pending.cancelled != Cancelled::No {
            return table.pending.remove(&tag).map(|pending| Undone::GivenUp(Box::new(pending)));
        }
        pending.refusals += 1;
        Some(Undone::AskAgain(back_off(pending.refusals, tag)))
    }

    /// Sends what was not answered, if a connection is up.
    pub(crate) fn resend(&self, tag: u64) {
        let mut guard = crate::lock(&self.table);
        let table = &mut *guard;
        let Some(waiting) = table.pending.get(&tag).filter(|pending| pending.sent_on.is_none()) else {
            return;
        };
        let connection = table.pick(waiting.route, waiting.slot.as_ref());
        let Some((id, writer)) = connection else { return };
        let control = table.control.as_ref().map(|(_, writer)| &**writer);
        let Some(pending) = table.pending.get_mut(&tag) else { return };
        pending.send_again(tag, id, &writer, control);
        table.send_followers(tag);
    }

    /// A control connection is there: notes go on it, requests wait until the session is restored.
    pub(crate) fn control_opened(&self, writer: &Arc<Writer>) -> ConnId {
        let mut table = crate::lock(&self.table);
        let id = table.new_id();
        table.control = Some((id, Arc::clone(writer)));
        table.control_ready = false;
        table.restoring = None;
        id
    }

    /// The session is restored: all requests that wait are sent, in order.
    pub(crate) fn control_ready(&self, id: ConnId) -> Current {
        let mut table = crate::lock(&self.table);
        let Some((_, writer)) = table.control.clone().filter(|(control, _)| *control == id) else {
            return Current::No;
        };
        table.control_ready = true;
        table.restoring = None;
        table.send_waiting(Route::Control, id, &writer);
        Current::Yes
    }

    pub(crate) fn data_up(&self, writer: &Arc<Writer>) -> ConnId {
        let mut table = crate::lock(&self.table);
        let id = table.new_id();
        table.data.push((id, Arc::clone(writer)));
        table.send_waiting(Route::Data, id, writer);
        id
    }

    /// What was sent on it waits for the next one, or goes on another at once.
    pub(crate) fn connection_lost(&self, id: ConnId) {
        let mut table = crate::lock(&self.table);
        if table.control.as_ref().is_some_and(|(control, _)| *control == id) {
            table.control = None;
        }
        table.data.retain(|(data, _)| *data != id);
        for pending in table.pending.values_mut().filter(|pending| pending.sent_on == Some(id)) {
            pending.sent_on = None;
        }
        if let Some((other, writer)) = table.data.first().cloned() {
            table.send_waiting(Route::Data, other, &writer);
        }
    }

    /// Sent if the control connection is up; lost otherwise, as its effect is then (the server resends recalls).
    pub(crate) fn note(&self, note: &Note) {
        let control = crate::lock(&self.table).control.clone();
        let Some((_, writer)) = control else { return };
        send_note(&writer, note);
    }

    /// As [`Link::note`], but together with what is sent next, or by [`Link::send_held`].
    pub(crate) fn hold(&self, note: &Note) {
        let Some(writer) = self.control_writer() else { return };
        if let Ok(frame) = Frame::new(FrameKind::Note, 0, note, Bytes::new()) {
            writer.hold(&frame);
        }
    }

    pub(crate) fn send_held(&self) {
        if let Some(writer) = self.control_writer() {
            writer.send_held();
        }
    }

    /// Marks a request as given up and tells the server, if it was sent and is not answered. One that the server does not have
    /// is taken out, to be completed as interrupted.
    #[must_use]
    pub(crate) fn cancel(&self, tag: u64, by: Cancelled) -> Option<Pending<C>> {
        let mut table = crate::lock(&self.table);
        let pending = table.pending.get_mut(&tag)?;
        if pending.cancelled == Cancelled::No {
            pending.cancelled = by;
        }
        if pending.sent == Sent::No {
            return table.pending.remove(&tag);
        }
        let sent = pending.sent_on.is_some();
        drop(table);
        if sent {
            self.note(&Note::Cancel(tag));
        }
        None
    }

    /// Requests that change names of the directory.
    pub(crate) fn changing_names_of(&self, dir: Fid) -> Vec<u64> {
        let table = crate::lock(&self.table);
        let changes = table.pending.iter().filter(|(_, pending)| pending.names_of.contains(&dir));
        changes.map(|(tag, _)| *tag).collect()
    }

    /// Requests that change a name of the inode.
    pub(crate) fn changing_a_name_of(&self, fid: Fid) -> Vec<u64> {
        let table = crate::lock(&self.table);
        let is_one = |pending: &Pending<C>| !pending.names_of.is_empty() && pending.touches.contains(&fid);
        table.pending.iter().filter(|(_, pending)| is_one(pending)).map(|(tag, _)| *tag).collect()
    }

    /// A session has begun that is not the one before: takes out what fails with that. The rest gets a new ticket each, for
    /// the new one.
    pub(crate) fn take_lost(
        &self,
        generation: Generation,
        mut new_ticket: impl FnMut(Ticket) -> Ticket,
    ) -> Vec<Taken<C>> {
        let mut table = crate::lock(&self.table);
        table.generation = generation;
        let all = std::mem::take(&mut table.pending);
        let fails = |pending: &Pending<C>| match &pending.slot {
            Some(slot) => slot.generation < generation,
            None => pending.on_loss == OnLoss::Fail,
        };
        let (lost, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, pending)| fails(pending));
        for (tag, mut pending) in kept {
            pending.ticket = new_ticket(pending.ticket);
            pending.sent_on = None;
            table.pending.insert(tag, pending);
        }
        lost
    }

    /// No more requests; takes out all there are.
    pub(crate) fn close(&self) -> Vec<Taken<C>> {
        let mut table = crate::lock(&self.table);
        table.closed = true;
        if let Some((_, writer)) = table.control.take() {
            writer.close();
        }
        table.data.drain(..).for_each(|(_, writer)| writer.close());
        std::mem::take(&mut table.pending).into_iter().collect()
    }

    pub(crate) fn control_writer(&self) -> Option<Arc<Writer>> {
        crate::lock(&self.table).control.as_ref().map(|(_, writer)| Arc::clone(writer))
    }

    pub(crate) fn waiting(&self) -> usize {
        crate::lock(&self.table).pending.len()
    }

    /// Requests without an answer that do something, or of whose answer the server takes something to be known here. What only
    /// brings data is left out: read-ahead, mostly, which nobody waits for.
    pub(crate) fn to_be_settled(&self) -> usize {
        let only_brings_data = |pending: &&Pending<C>| pending.route == Route::Data && pending.slot.is_none();
        let table = crate::lock(&self.table);
        table.pending.len() - table.pending.values().filter(only_brings_data).count()
    }

    pub(crate) fn connections(&self) -> usize {
        let table = crate::lock(&self.table);
        table.data.len() + usize::from(table.control.is_some())
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error(transparent)]
    Frame(FrameError),
    #[error("the session ended before it was sent: it was not done")]
    SessionEnded,
    #[error("the client is shut down")]
    Closed,
}

impl<C> Table<C> {
    fn new_id(&mut self) -> ConnId {
        self.next_conn += 1;
        ConnId(self.next_conn)
    }

    fn pick(&self, route: Route, slot: Option<&SlotGuard>) -> Option<Connection> {
        let restores =
            || slot.is_some_and(|guard| self.restoring.is_some_and(|slots| slots.has(guard.op.slot)));
        match route {
            Route::Data if self.data_wanted > 0 => self.least_busy(),
            _ => self.control.clone().filter(|_| self.control_ready || restores()),
        }
    }

    fn least_busy(&self) -> Option<(ConnId, Arc<Writer>)> {
        let outstanding = |id: ConnId| -> usize {
            let on_it = self.pending.values().filter(|pending| pending.sent_on == Some(id));
            on_it.map(|pending| pending.frame.payload.len() + 4096).sum()
        };
        match self.data.as_slice() {
            [] => None,
            [only] => Some(only.clone()),
            several => {
                several.iter().min_by_key(|(id, writer)| outstanding(*id) + writer.backlog_bytes()).cloned()
            }
        }
    }

    /// Under the lock, so that nothing that is asked later goes first.
    fn send_waiting(&mut self, route: Route, id: ConnId, writer: &Writer) {
        let control_carries_all = self.data_wanted == 0;
        let control = self.control.as_ref().map(|(_, writer)| &**writer);
        for (tag, pending) in &mut self.pending {
            let of_route = pending.route == route || control_carries_all;
            if pending.sent_on.is_none() && of_route {
                pending.send_again(*tag, id, writer, control);
            }
        }
    }
}

impl<C> Pending<C> {
    /// Who gave it up meanwhile could not tell the server: a lock would be waited for that nobody is there to release.
    fn send_again(&mut self, tag: u64, id: ConnId, writer: &Writer, control: Option<&Writer>) {
        self.sent_on = Some(id);
        self.sent = Sent::Perhaps;
        writer.send(&self.frame);
        if self.cancelled != Cancelled::No
            && let Some(control) = control
        {
            send_note(control, &Note::Cancel(tag));
        }
    }
}

/// Twice as long each time, and not the same for all that were refused together.
fn back_off(refusals: u32, tag: u64) -> Duration {
    let longest = LEAST_PAUSE.saturating_mul(1 << refusals.clamp(1, 8));
    longest.saturating_sub(longest.mul_f64((tag % 16) as f64 / 32.0)).min(MOST_PAUSE)
}

fn send_note(control: &Writer, note: &Note) {
    if let Ok(frame) = Frame::new(FrameKind::Note, 0, note, Bytes::new()) {
        control.send(&frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Slots;
    use soda_lease::holder::{Holder, HolderConfig};
    use soda_types::{Ino, Monotonic, VolumeId};

    /// A sequence of the old session would be a new one to the server, and all that follow in its slot old ones.
    #[test]
    fn a_slot_of_the_session_before_goes_into_no_other() {
        let (link, slots) = (Link::new(0), Arc::new(Slots::default()));
        let mut holder = Holder::new(HolderConfig::default());
        let mut request = |slot| Submission {
            call: Call::GetAttr { fid: Fid::new(VolumeId(1), Ino(1)) },
            payload: Data::new(),
            route: Route::Control,
            slot: Some(slot),
            ticket: holder.begin_request(Monotonic::ZERO),
            completion: (),
            on_loss: OnLoss::Fail,
            names_of: Vec::new(),
            touches: Vec::new(),
        };
        slots.start_session(3);
        let (sent, late) = (slots.try_acquire().unwrap(), slots.try_acquire().unwrap());
        let sent = link.submit(request(sent)).unwrap_or_else(|_| panic!("refused"));
        let generation = slots.start_session(3);
        let early = link.submit(request(slots.try_acquire().unwrap())).unwrap_or_else(|_| panic!("refused"));
        let lost: Vec<u64> =
            link.take_lost(generation, |ticket| ticket).iter().map(|(tag, _)| *tag).collect();
        assert_eq!(lost, [sent]);
        assert!(link.take(early).is_some(), "of the new session already");
        let refused = link.submit(request(late)).err().map(|refused| refused.0);
        assert!(matches!(refused, Some(NotTaken::SessionEnded)));
        assert_eq!(link.waiting(), 0);
    }
}
