//! Digests that are sent without waiting for answers, over connections that lose answers and deliver anything again, however
//! late: the server has a prefix of what the client did, each once.

use super::{Arrival, Kept, Progress, Slots};
use crate::records::ReplyRecord;
use crate::respond;
use crate::rounds::Round;
use bytes::Bytes;
use proptest::prelude::*;
use soda_protocol::{Answer, DigestSlots, Failure, OpId};
use soda_types::{Sequence, Slot};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SLOTS: DigestSlots = DigestSlots { first: Slot(2), count: 4 };

/// It holds `count` of the things that the client did, from `from` on.
#[derive(Clone, Copy, Debug)]
struct Digest {
    op: OpId,
    after: Option<OpId>,
    from: u64,
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Applied,
    Failed,
    /// Nothing was done.
    Undone,
    /// A packet of the past.
    Old,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The client sends the next ones.
    Tell(u64),
    /// The server gets the next digest on the connection, and its answer gets back or breaks it; or any packet that was ever
    /// sent.
    Deliver { late: Option<usize>, fails: Fate, answer: Fate },
    /// A new connection: what is unanswered is sent again.
    Reconnect,
    /// Of the server's process: what was kept in memory is gone.
    Restart,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Good,
    Bad,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![4 => Just(Fate::Good), 1 => Just(Fate::Bad)]
}

fn event() -> impl Strategy<Value = Event> {
    let late = prop_oneof![3 => Just(None), 1 => (0usize..1000).prop_map(Some)];
    prop_oneof![
        4 => (1u64..4).prop_map(Event::Tell),
        8 => (late, fate(), fate()).prop_map(|(late, fails, answer)| Event::Deliver { late, fails, answer }),
        1 => Just(Event::Reconnect),
        1 => Just(Event::Restart),
    ]
}

struct Server {
    slots: Slots<()>,
    /// The last of each slot that was carried out, with its reply.
    stored: BTreeMap<Slot, (Sequence, Bytes)>,
    /// What was done, in order.
    done: Vec<u64>,
}

impl Server {
    fn restart(&mut self) {
        self.slots = Slots::new(8);
        for (slot, (sequence, result)) in &self.stored {
            let (sequence, round) = (*sequence, Round::default());
            let reply = ReplyRecord { sequence, result: result.clone(), round, durable: Sequence(0) };
            self.slots.restore(*slot, reply, (sequence, round));
        }
    }

    fn handle(&mut self, digest: Digest, fails: Fate) -> Heard {
        let heard = |reply: &[u8]| if reply.first() == Some(&0) { Heard::Applied } else { Heard::Failed };
        match self.slots.arrive(digest.op, ()) {
            Arrival::New => {}
            Arrival::Answered(reply) => return heard(&reply),
            Arrival::Old => return Heard::Old,
            other => panic!("{other:?} of {digest:?}"),
        }
        if digest.after.is_some_and(|before| self.slots.progress(before) != Progress::Applied) {
            self.slots.forget(digest.op);
            return Heard::Undone;
        }
        let result = match fails {
            Fate::Good => {
                self.done.extend(digest.from..digest.from + digest.count);
                Ok(Answer::Done)
            }
            Fate::Bad => Err(Failure::SessionEnded),
        };
        let reply = respond::encode(&result);
        if fails == Fate::Good {
            self.stored.insert(digest.op.slot, (digest.op.sequence, reply.clone()));
        }
        self.slots.done(digest.op, reply.clone(), Kept::InMemory);
        heard(&reply)
    }
}

#[derive(Default)]
struct Client {
    last: u64,
    /// The first thing that is in no digest.
    next: u64,
    under_way: VecDeque<Digest>,
    unanswered: BTreeSet<u64>,
}

impl Client {
    /// As the log of the client decides it.
    fn tell(&mut self, count: u64) -> Option<Digest> {
        let open = self.under_way.front().map_or(0, |first| self.last + 1 - first.op.sequence.0);
        if self.unanswered.len() > self.under_way.len() || open >= SLOTS.most_open() as u64 {
            return None;
        }
        self.last += 1;
        let after = self.under_way.back().map(|before| before.op);
        let digest = Digest { op: SLOTS.op(Sequence(self.last)), after, from: self.next, count };
        self.next += count;
        self.under_way.push_back(digest);
        self.unanswered.insert(self.last);
        Some(digest)
    }

    fn hear(&mut self, digest: Digest, heard: Heard) {
        let number = digest.op.sequence.0;
        if !self.unanswered.remove(&number) {
            return;
        }
        let Some(place) = self.under_way.iter().position(|one| one.op == digest.op) else {
            assert_eq!(heard, Heard::Undone, "{digest:?} comes after one that was lost");
            return;
        };
        if heard == Heard::Applied {
            assert_eq!(place, 0, "{digest:?} is answered before the one that it comes after");
            self.under_way.pop_front();
        } else {
            assert_ne!(heard, Heard::Old, "{digest:?}");
            self.under_way.truncate(place);
            self.next = digest.from;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_server_has_a_prefix_of_what_was_done_each_once(events in prop::collection::vec(event(), 0..150)) {
        let mut server = Server { slots: Slots::new(8), stored: BTreeMap::new(), done: Vec::new() };
        let mut client = Client::default();
        let mut packets: Vec<Digest> = Vec::new();
        // On the connection, unanswered.
        let mut line: VecDeque<Digest> = VecDeque::new();
        // Unanswered, in the order in which they are sent again.
        let mut again: Vec<Digest> = Vec::new();
        for event in events {
            match event {
                Event::Tell(count) => if let Some(digest) = client.tell(count) {
                    packets.push(digest);
                    line.push_back(digest);
                    again.push(digest);
                },
                // Nobody listens to the answer.
                Event::Deliver { late: Some(which), fails, .. } => if !packets.is_empty() {
                    server.handle(packets[which % packets.len()], fails);
                },
                Event::Deliver { late: None, fails, answer } => if let Some(digest) = line.pop_front() {
                    let heard = server.handle(digest, fails);
                    if answer == Fate::Good {
                        client.hear(digest, heard);
                        again.retain(|one| client.unanswered.contains(&one.op.sequence.0));
                    } else {
                        // The connection is gone with it.
                        line = again.iter().copied().collect();
                    }
                },
                Event::Reconnect => line = again.iter().copied().collect(),
                Event::Restart => {
                    server.restart();
                    // Nothing gets from the connections of one process to another.
                    packets.clone_from(&again);
                    line = again.iter().copied().collect();
                }
            }
            let expected: Vec<u64> = (0..server.done.len() as u64).collect();
            prop_assert_eq!(&server.done, &expected);
        }
        // In the end all of it can be told.
        for digest in again {
            let heard = server.handle(digest, Fate::Good);
            client.hear(digest, heard);
        }
        while let Some(digest) = client.tell(1).filter(|digest| digest.from < 1000) {
            let heard = server.handle(digest, Fate::Good);
            client.hear(digest, heard);
        }
        prop_assert_eq!(&server.done, &(0..1000).collect::<Vec<_>>());
    }
}
