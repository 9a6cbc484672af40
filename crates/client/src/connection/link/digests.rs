//! Digests among the requests without a reply: each comes after the one before it, whatever keeps that from its turn.

use super::{ConnId, Link, Pending, Sent, Table};
use crate::connection::Writer;
use soda_protocol::DigestSlots;
use soda_types::Sequence;

/// What becomes of a digest that the server did not apply because it had not applied the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutOfTurn {
    /// The one before it has no answer: it goes again behind that.
    Again,
    /// The one before it has its answer: it will never be its turn.
    Never,
}

impl<C> Link<C> {
    /// Sends digests that wait, up to this one: each comes after the one before it; and in one write with the last of them the
    /// request that goes behind it.
    pub(crate) fn send_digests(&self, slots: DigestSlots, up_to: u64, behind: Option<u64>) {
        crate::lock(&self.table).send_digests(slots, up_to, behind);
    }

    /// The session is restored, but only digests are sent, until [`Link::control_ready`].
    pub(crate) fn control_restoring(&self, id: ConnId, slots: DigestSlots) {
        let mut table = crate::lock(&self.table);
        if table.control.as_ref().is_none_or(|(control, _)| *control != id) {
            return;
        }
        table.restoring = Some(slots);
        table.send_digests(slots, u64::MAX, None);
    }

    /// The server has not carried out a digest because it has not carried out the one before.
    pub(crate) fn out_of_turn(&self, tag: u64) -> OutOfTurn {
        let mut table = crate::lock(&self.table);
        let Some((before, sent_on)) = table.before(tag) else { return OutOfTurn::Never };
        if let Some(pending) = table.pending.get_mut(&tag) {
            pending.sent_on = None;
            pending.sent = Sent::TooEarly;
        }
        // Otherwise it follows when that one goes again.
        if sent_on.is_some() {
            table.send_followers(before);
        }
        OutOfTurn::Again
    }

    /// Takes the digests out that have no answer, from this number on: they are not sent again.
    pub(crate) fn take_digests(&self, slots: DigestSlots, from: u64) -> Vec<Pending<C>> {
        let mut table = crate::lock(&self.table);
        let is_after = |pending: &Pending<C>| {
            pending.slot.as_ref().is_some_and(|guard| guard.op.sequence >= Sequence(from))
        };
        let taken = table.pending.extract_if(.., |_, pending| pending.is_in(slots) && is_after(pending));
        taken.map(|(_, pending)| pending).collect()
    }
}

impl<C> Table<C> {
    /// Under the lock, so that none goes ahead of one before it.
    fn send_digests(&mut self, slots: DigestSlots, up_to: u64, behind: Option<u64>) {
        let waits = |pending: &Pending<C>| pending.sent_on.is_none() && pending.is_in(slots);
        let of_them = self.pending.range(..=up_to).filter(|(_, pending)| waits(pending));
        let tags: Vec<u64> = of_them.map(|(tag, _)| *tag).collect();
        let Some((id, writer)) =
            self.control.clone().filter(|_| self.control_ready || self.restoring.is_some())
        else {
            return;
        };
        let is_unsent = |tag: &u64| self.pending.get(tag).is_some_and(|pending| pending.sent_on.is_none());
        let behind = behind.filter(|tag| self.control_ready && is_unsent(tag));
        for tag in tags {
            let Some(pending) = self.pending.get_mut(&tag) else { continue };
            if tag == up_to && behind.is_some() {
                pending.hold(id, &writer);
            } else {
                pending.send_again(tag, id, &writer, Some(&writer));
            }
        }
        if let Some(tag) = behind
            && let Some(pending) = self.pending.get_mut(&tag)
        {
            pending.send_again(tag, id, &writer, Some(&writer));
        }
    }

    /// A digest has been sent: sends those behind it that came too early.
    pub(super) fn send_followers(&mut self, mut tag: u64) {
        while let Some(next) = self.after(tag) {
            let Some(pending) = self.pending.get(&next).filter(|pending| pending.sent == Sent::TooEarly)
            else {
                return;
            };
            let Some((id, writer)) = self.pick(pending.route, pending.slot.as_ref()) else { return };
            if let Some(pending) = self.pending.get_mut(&next) {
                pending.send_again(next, id, &writer, Some(&writer));
            }
            tag = next;
        }
    }

    /// The digest before this one, if it has no answer, and on which connection it was sent.
    fn before(&self, tag: u64) -> Option<(u64, Option<ConnId>)> {
        let slot = self.pending.get(&tag)?.slot.as_ref()?;
        let is_before =
            |pending: &Pending<C>| pending.slot.as_ref().is_some_and(|other| other.is_before(slot));
        let mut earlier = self.pending.range(..tag).rev();
        earlier.find(|(_, pending)| is_before(pending)).map(|(tag, pending)| (*tag, pending.sent_on))
    }

    /// The digest directly behind this one.
    fn after(&self, tag: u64) -> Option<u64> {
        let slot = self.pending.get(&tag)?.slot.as_ref()?;
        let is_after =
            |pending: &Pending<C>| pending.slot.as_ref().is_some_and(|other| slot.is_before(other));
        let mut later = self.pending.range(tag + 1..);
        later.find(|(_, pending)| is_after(pending)).map(|(tag, _)| *tag)
    }
}

impl<C> Pending<C> {
    /// Sends it with what is sent next.
    fn hold(&mut self, id: ConnId, writer: &Writer) {
        self.sent_on = Some(id);
        self.sent = Sent::Perhaps;
        writer.hold(&self.frame);
    }

    fn is_in(&self, slots: DigestSlots) -> bool {
        self.slot.as_ref().is_some_and(|guard| slots.has(guard.op.slot))
    }
}
