//! Exactly-once: the last reply of each slot of a session (NFSv4.1's slot table, RFC 8881 section 2.10.6).
//!
//! A slot carries one operation at a time, with growing sequences. So the server has to keep one reply per slot, and knows
//! of each operation that arrives whether it is new, the one in progress, the one just answered, or a packet of the past.

use crate::records::ReplyRecord;
use crate::respond;
use crate::rounds::Round;
use bytes::Bytes;
use soda_protocol::OpId;
use soda_types::{Sequence, Slot as SlotId};

/// The slots of one session. `W` is who waits for the reply of a retried operation that is still in progress.
#[derive(Debug)]
pub(crate) struct Slots<W> {
    slots: Vec<Slot<W>>,
}

#[derive(Debug)]
struct Slot<W> {
    sequence: Sequence,
    state: State<W>,
    /// The last one whose reply the store holds, and the sync that makes it durable.
    stored: (Sequence, Round),
    /// The last one that was durable when the one after it was stored.
    durable: Sequence,
}

#[derive(Debug)]
enum State<W> {
    Done {
        reply: Bytes,
    },
    InProgress {
        waiters: Vec<W>,
        /// What the slot held before, should the operation be given up.
        before: (Sequence, Bytes),
    },
}

/// What is to be done with a changing operation that arrived.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// Never seen: carry it out, then call [`Slots::done`].
    New,
    /// Answered before: this is the encoded result.
    Answered(Bytes),
    /// In progress: its reply goes to this request, too.
    Joined,
    /// Older than the slot's last one.
    Old,
    /// A new operation in a slot whose last one is not answered, or no such slot: the client breaks the rules.
    Misuse(&'static str),
}

/// How far an operation has got that others come after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    UnderWay,
    /// Carried out without a failure.
    Applied,
    /// It has not come, was refused, or nobody can ask for it any more.
    No,
}

impl<W> Slots<W> {
    pub(crate) fn new(count: u16) -> Slots<W> {
        Slots { slots: (0..count).map(|_| Slot::empty()).collect() }
    }

    /// Takes a reply of an earlier run from the store. `stored` is up to where the store has what the slot did, data
    /// included.
    pub(crate) fn restore(&mut self, slot: SlotId, reply: ReplyRecord, stored: (Sequence, Round)) {
        let index = usize::from(slot.0);
        while self.slots.len() <= index {
            self.slots.push(Slot::empty());
        }
        let state = State::Done { reply: reply.result };
        self.slots[index] = Slot { sequence: reply.sequence, state, stored, durable: reply.durable };
    }

    /// The last sequence of each slot whose reply the store holds.
    pub(crate) fn stored(&self) -> Vec<(SlotId, Sequence)> {
        let stored = (0..).map(SlotId).zip(self.slots.iter().map(|slot| slot.stored.0));
        stored.filter(|(_, sequence)| *sequence > Sequence(0)).collect()
    }

    /// The last operation of the slot that is durable, if everything up to the round `synced` is.
    pub(crate) fn durable(&mut self, slot: SlotId, synced: Round) -> Sequence {
        let Some(slot) = self.slots.get_mut(usize::from(slot.0)) else { return Sequence(0) };
        let (sequence, round) = slot.stored;
        if round <= synced {
            slot.durable = sequence;
        }
        slot.durable
    }

    pub(crate) fn arrive(&mut self, op: OpId, waiter: W) -> Arrival {
        let Some(slot) = self.slots.get_mut(usize::from(op.slot.0)) else {
            return Arrival::Misuse("there is no such slot");
        };
        if op.sequence == Sequence(0) {
            return Arrival::Misuse("sequences start at 1");
        }
        if op.sequence < slot.sequence {
            return Arrival::Old;
        }
        if op.sequence == slot.sequence {
            return match &mut slot.state {
                State::Done { reply } => Arrival::Answered(reply.clone()),
                State::InProgress { waiters, .. } => {
                    waiters.push(waiter);
                    Arrival::Joined
                }
            };
        }
        let State::Done { reply } = &mut slot.state else {
            return Arrival::Misuse("the slot's last operation is still in progress");
        };
        let before = (slot.sequence, std::mem::take(reply));
        slot.sequence = op.sequence;
        slot.state = State::InProgress { waiters: Vec::new(), before };
        Arrival::New
    }

    /// Whether it has not arrived before.
    pub(crate) fn is_new(&self, op: OpId) -> bool {
        let slot = self.slots.get(usize::from(op.slot.0));
        slot.is_some_and(|slot| slot.sequence < op.sequence)
    }

    /// How far the operation has got, if it is the last one of its slot.
    pub(crate) fn progress(&self, op: OpId) -> Progress {
        let slot = self.slots.get(usize::from(op.slot.0)).filter(|slot| slot.sequence == op.sequence);
        match slot.map(|slot| &slot.state) {
            Some(State::InProgress { .. }) => Progress::UnderWay,
            Some(State::Done { reply }) if respond::is_ok(reply) => Progress::Applied,
            Some(State::Done { .. }) | None => Progress::No,
        }
    }

    /// The operation was given up before anything was done: as if it had never arrived. Returns those who sent it again.
    pub(crate) fn forget(&mut self, op: OpId) -> Vec<W> {
        let Some(slot) = self.slots.get_mut(usize::from(op.slot.0)) else { return Vec::new() };
        match &mut slot.state {
            State::InProgress { waiters, before } if slot.sequence == op.sequence => {
                let waiters = std::mem::take(waiters);
                let (sequence, reply) = std::mem::replace(before, (Sequence(0), Bytes::new()));
                slot.sequence = sequence;
                slot.state = State::Done { reply };
                waiters
            }
            _ => Vec::new(),
        }
    }

    /// The operation is answered: keeps the reply, returns those who sent it again meanwhile.
    pub(crate) fn done(&mut self, op: OpId, reply: Bytes, kept: Kept) -> Vec<W> {
        let Some(slot) = self.slots.get_mut(usize::from(op.slot.0)) else { return Vec::new() };
        if slot.sequence != op.sequence {
            return Vec::new();
        }
        if let Kept::InStore(round) = kept {
            slot.stored = (op.sequence, round);
        }
        match std::mem::replace(&mut slot.state, State::Done { reply }) {
            State::InProgress { waiters, .. } => waiters,
            State::Done { .. } => Vec::new(),
        }
    }
}

impl<W> Slot<W> {
    fn empty() -> Slot<W> {
        let nothing = Sequence(0);
        let state = State::Done { reply: Bytes::new() };
        Slot { sequence: nothing, state, stored: (nothing, Round(0)), durable: nothing }
    }
}

/// Where a reply is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// With the sync that makes it durable.
    InStore(Round),
    /// Lost when the server restarts: the operation changed nothing, or nothing could be stored.
    InMemory,
}

#[cfg(test)]
mod pipelined;

#[cfg(test)]
mod tests {
    use super::*;
    use soda_protocol::{Answer, Failure};

    fn op(slot: u16, sequence: u64) -> OpId {
        OpId { slot: SlotId(slot), sequence: Sequence(sequence) }
    }

    fn reply(sequence: u64) -> ReplyRecord {
        let result = Bytes::from_static(b"reply");
        ReplyRecord { sequence: Sequence(sequence), result, round: Round(5), durable: Sequence(7) }
    }

    #[test]
    fn a_retry_gets_the_reply_of_the_first() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.arrive(op(1, 5), "first"), Arrival::New);
        assert_eq!(slots.arrive(op(1, 5), "second"), Arrival::Joined);
        assert_eq!(
            slots.done(op(1, 5), Bytes::from_static(b"reply"), Kept::InStore(Round(1))),
            vec!["second"]
        );
        assert_eq!(slots.arrive(op(1, 5), "third"), Arrival::Answered(Bytes::from_static(b"reply")));
        assert_eq!(slots.stored(), [(SlotId(1), Sequence(5))]);
    }

    #[test]
    fn who_comes_after_an_operation_knows_whether_it_was_carried_out() {
        let mut slots = Slots::new(2);
        let done = respond::encode(&Ok(Answer::Done));
        let failed = respond::encode(&Err(Failure::SessionEnded));
        assert_eq!(slots.progress(op(0, 7)), Progress::No);
        slots.arrive(op(0, 7), ());
        assert_eq!(slots.progress(op(0, 7)), Progress::UnderWay);
        slots.done(op(0, 7), done.clone(), Kept::InMemory);
        assert_eq!(slots.progress(op(0, 7)), Progress::Applied);
        for other in [op(0, 6), op(0, 8), op(1, 7), op(9, 7)] {
            assert_eq!(slots.progress(other), Progress::No, "{other:?}");
        }
        slots.arrive(op(0, 8), ());
        assert_eq!(slots.progress(op(0, 7)), Progress::No, "nobody can ask for it any more");
        slots.forget(op(0, 8));
        assert_eq!(slots.progress(op(0, 7)), Progress::Applied, "as if it had never come");
        slots.arrive(op(0, 8), ());
        slots.done(op(0, 8), failed, Kept::InMemory);
        assert_eq!(slots.progress(op(0, 8)), Progress::No);
    }

    #[test]
    fn packets_of_the_past_and_misuse_are_told_apart() {
        let mut slots = Slots::new(1);
        assert_eq!(slots.arrive(op(0, 7), ()), Arrival::New);
        assert_eq!(slots.arrive(op(0, 6), ()), Arrival::Old);
        assert!(matches!(slots.arrive(op(0, 8), ()), Arrival::Misuse(_)));
        assert!(matches!(slots.arrive(op(1, 9), ()), Arrival::Misuse(_)));
        assert!(matches!(slots.arrive(op(0, 0), ()), Arrival::Misuse(_)));
        slots.done(op(0, 7), Bytes::new(), Kept::InMemory);
        assert_eq!(slots.stored(), []);
        assert_eq!(slots.arrive(op(0, 8), ()), Arrival::New);
    }

    #[test]
    fn what_was_given_up_can_be_sent_again() {
        let mut slots = Slots::new(1);
        slots.arrive(op(0, 1), "first");
        slots.done(op(0, 1), Bytes::from_static(b"one"), Kept::InStore(Round(1)));
        assert_eq!(slots.arrive(op(0, 2), "second"), Arrival::New);
        assert_eq!(slots.arrive(op(0, 2), "again"), Arrival::Joined);
        assert_eq!(slots.forget(op(0, 2)), vec!["again"]);
        assert_eq!(slots.arrive(op(0, 1), "first"), Arrival::Answered(Bytes::from_static(b"one")));
        assert_eq!(slots.arrive(op(0, 2), "second"), Arrival::New);
    }

    #[test]
    fn replies_of_an_earlier_run_are_found() {
        let mut slots: Slots<()> = Slots::new(1);
        slots.restore(SlotId(3), reply(40), (Sequence(40), Round(5)));
        assert_eq!(slots.arrive(op(3, 40), ()), Arrival::Answered(Bytes::from_static(b"reply")));
        assert_eq!(slots.arrive(op(3, 39), ()), Arrival::Old);
        assert_eq!(slots.stored(), [(SlotId(3), Sequence(40))]);
    }
    #[test]
    fn what_a_slot_did_is_durable_when_the_sync_after_it_is_done() {
        let mut slots = Slots::new(1);
        for (sequence, round, synced, durable) in
            [(1, 10, 9, 0), (2, 10, 9, 0), (3, 11, 10, 2), (4, 11, 10, 2)]
        {
            slots.arrive(op(0, sequence), ());
            assert_eq!(slots.durable(SlotId(0), Round(synced)), Sequence(durable));
            slots.done(op(0, sequence), Bytes::new(), Kept::InStore(Round(round)));
        }
        assert_eq!(slots.durable(SlotId(0), Round(11)), Sequence(4));
    }

    #[test]
    fn of_what_is_in_doubt_the_reply_is_there_but_does_not_count() {
        let mut slots: Slots<()> = Slots::new(1);
        slots.restore(SlotId(0), reply(9), (Sequence(7), Round(0)));
        assert_eq!(slots.arrive(op(0, 9), ()), Arrival::Answered(Bytes::from_static(b"reply")));
        assert_eq!(slots.stored(), [(SlotId(0), Sequence(7))]);
        assert_eq!(slots.arrive(op(0, 10), ()), Arrival::New);
        assert_eq!(slots.durable(SlotId(0), Round(1)), Sequence(7));
    }
}
