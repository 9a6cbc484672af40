//! What the server is told next, and what becomes of that.

use super::Behind;
use super::pace::Left;
use crate::config::WritePolicy;
use crate::crash;
use soda_oplog::segments::Entry;
use soda_oplog::{Digest, DigestId, DigestLimits};
use soda_protocol::{DigestSlots, Lsn};
use soda_types::{Fid, Monotonic, Sequence};

/// Bytes of data that fill a digest: the largest write that is logged.
const FULL: u64 = 1 << 20;
/// The same with what records weigh besides, so that what replaces such a write fits in beside it.
const WITH_RECORDS: u64 = FULL + (64 << 10);
/// Most of one digest: some milliseconds of the server's time, so that who waits for another one is not kept long.
pub(crate) const LIMITS: DigestLimits = DigestLimits { records: 1000, bytes: WITH_RECORDS };
/// Most of a digest that nobody asked for: who asks while it is under way waits for its end.
const UNASKED: DigestLimits = DigestLimits { records: 500, bytes: WITH_RECORDS };
/// The same while others are asking. Smaller ones cost more each.
const UNASKED_AMONG_OTHERS: DigestLimits = DigestLimits { records: 128, bytes: 256 << 10 };

/// A digest without an answer.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    pub(crate) id: DigestId,
    pub(crate) chosen: Chosen,
    pub(crate) filled: Filled,
    /// Inodes, as often as its records touch them.
    pub(crate) touched: Vec<Fid>,
    /// Inodes that may be left without a name while a process has them open.
    pub(crate) kept: Vec<Fid>,
    /// Inodes that are removed.
    pub(crate) gone: Vec<Fid>,
    /// Inodes that are made, of those about whose locks something was decided here.
    pub(crate) made: Vec<Fid>,
}

/// How much of what it may hold a digest holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Filled {
    /// All that there was for it.
    #[default]
    InPart,
    /// As much as one holds: there may be more.
    Full,
}

/// Why a digest holds what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Chosen {
    /// Its records came first.
    #[default]
    InOrder,
    /// Somebody waits for them.
    Wanted,
    /// They give space back.
    Freeing,
}

/// Whether the server has room for what it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ServerRoom {
    #[default]
    Enough,
    /// It refused a digest for want of space. What gives space back goes first; then each who waits has a digest alone, so
    /// that nobody fails for what another one has written.
    Short,
    /// It refused what gives space back.
    None,
}

impl Behind {
    /// From when on another digest may be sent beside those that are under way; `None`: not before one of them is answered.
    /// Behind one another go full ones, as many as the window takes, and what somebody waits for goes behind what nobody does.
    /// Who comes while one is under way for others shares the next.
    pub(super) fn may_send_from(&self) -> Option<Monotonic> {
        let at_once = |may: bool| may.then_some(Monotonic::ZERO);
        let Some((first, last)) = self.under_way.front().zip(self.under_way.back()) else {
            return at_once(self.unanswered.is_empty());
        };
        // Of those behind a digest that was lost no number may be used again before it is certain that they were not applied.
        let lost = self.unanswered.len() > self.under_way.len();
        if lost || self.room != ServerRoom::Enough || self.restoring.is_some() {
            return None;
        }
        let open = (self.log.last_digest().0 + 1).saturating_sub(first.id.0);
        let is_much = self.log.pending_data() > FULL;
        if open < self.window.size() as u64 {
            let goes_on = last.filled == Filled::Full
                || self.under_way.iter().all(|under_way| under_way.chosen == Chosen::InOrder);
            let more = self.log.pending_count() >= UNASKED.records || is_much;
            return at_once(more || (goes_on && self.waiting.has_unserved()));
        }
        // Who comes while a stream is under way goes behind that, and does not wait for its answers.
        let has_place = open < self.window.size_of_stream() as u64;
        let unasked = self.under_way.iter().all(|under_way| under_way.chosen == Chosen::InOrder);
        if has_place && unasked && self.waiting.has_unserved() {
            return self.waiting.due_at();
        }
        // Beside the server, too, it finds the next MiB there when it has carried out one.
        let streams = has_place && is_much && last.filled == Filled::Full;
        streams.then(|| self.pace.one_more_from())
    }

    /// Whether so much is due that who has written the last of it had better go on while another thread sends it.
    pub(crate) fn is_much(&self) -> bool {
        self.log.pending_data() > FULL && !self.waiting.has_unserved()
    }

    /// How full a digest is.
    pub(crate) fn filled(&self, digest: &Digest) -> Filled {
        let weight: u64 = digest.records.iter().map(|record| record.change.weight()).sum();
        let full = digest.lsns.len() >= UNASKED.records / 2 || weight >= FULL / 2;
        if full { Filled::Full } else { Filled::InPart }
    }

    /// Takes what is sent next out of the log.
    pub(crate) fn choose(&mut self, now: Monotonic) -> Option<(Digest, Chosen)> {
        let (due, mut others) = match self.room {
            ServerRoom::Enough if self.owes_order(now) => (None, Vec::new()),
            ServerRoom::Enough => self.waiting.wanted(now, &self.log),
            ServerRoom::Short | ServerRoom::None => {
                let freeing =
                    if self.room == ServerRoom::Short { self.log.take_freeing(LIMITS) } else { None };
                if let Some(digest) = freeing {
                    return Some((digest, Chosen::Freeing));
                }
                (self.waiting.wanted_by_one(&self.log), Vec::new())
            }
        };
        let (digest, chosen) = match self.log.take_wanted(due, &mut others, LIMITS) {
            Some(digest) => (digest, Chosen::Wanted),
            None => {
                let limits = if self.pace.is_among_others(now) { UNASKED_AMONG_OTHERS } else { UNASKED };
                (self.log.take(limits)?, Chosen::InOrder)
            }
        };
        self.waiting.note_sent(&self.log, digest.id, chosen);
        self.pace.note_chosen(chosen);
        Some((digest, chosen))
    }

    /// Those who wait for inodes come first, but not always: while they go on and on what nobody waits for grows old, and who
    /// waits for everything waits.
    fn owes_order(&self, now: Monotonic) -> bool {
        let WritePolicy::Behind(behind) = &self.policy else { return false };
        let is_old = self.log.oldest_pending().is_some_and(|oldest| oldest + behind.max_age <= now);
        self.pace.was_wanted() && (is_old || self.waiting.has_overtaken_all(&self.log))
    }

    /// A digest is about to be sent.
    pub(crate) fn note_sent(&mut self, now: Monotonic, chosen: Chosen, filled: Filled) {
        let DigestLimits { records, bytes } = UNASKED_AMONG_OTHERS;
        let is_much = self.log.pending_count() > records || self.log.pending_data() > bytes;
        let left = if is_much { Left::Much } else { Left::Little };
        self.pace.note_sent(now, chosen, filled, left);
    }

    /// Somebody waits who is not to wait for more than one digest of others.
    pub(crate) fn hurry(&mut self, now: Monotonic) {
        self.pace.hurry(now);
    }

    pub(crate) fn handle_applied(&mut self, now: Monotonic, under_way: &UnderWay) {
        self.pace.note_applied(now, under_way.chosen);
        self.reserve.note_used(self.log.space_of(under_way.id));
        self.log.handle_applied(under_way.id);
        self.applied += 1;
        if under_way.chosen == Chosen::InOrder {
            self.room = ServerRoom::Enough;
        }
        self.note_less();
    }

    /// If nothing is left of what the server has no room for, or did not take, what comes next finds out whether it does.
    pub(crate) fn note_less(&mut self) {
        if self.log.first_pending().is_none() && self.aside.is_empty() {
            self.room = ServerRoom::Enough;
            self.stalled_until = Monotonic::ZERO;
        }
    }

    /// The digest in which everything is that was logged so far and applied.
    pub(crate) fn applied_up_to(&self) -> DigestId {
        match self.log.first_under_way() {
            Some(DigestId(under_way)) => DigestId(under_way.saturating_sub(1)),
            None => self.log.last_digest(),
        }
    }

    /// How many digests the server has applied.
    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// How often a server turned out to have less than it had applied.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Of what a digest makes, that about whose locks something was decided here.
    pub(crate) fn made_in(&self, id: DigestId) -> Vec<Fid> {
        let found = self.under_way.iter().find(|under_way| under_way.id == id);
        found.map_or_else(Vec::new, |under_way| under_way.made.clone())
    }

    /// So much of the server's slots digests have in this session.
    pub(crate) fn begin_session(&mut self, slots: Option<DigestSlots>) {
        self.window.begin_session(slots.map_or(1, DigestSlots::most_open));
    }

    /// A digest is about to be refused because of this record.
    pub(crate) fn note_refused(&mut self, record: Lsn) {
        self.refused = Some(record);
    }

    /// The server's disk has what it had applied up to this digest.
    pub(crate) fn handle_durable(&mut self, id: DigestId) {
        self.durable = self.durable.max(id);
        self.before = self.before.split_off(&DigestId(id.0 + 1));
        let floor = self.log.handle_durable(id);
        if self.promised < floor {
            self.break_promises();
        }
        let floor = self.aside.keys().next().map_or(floor, |first| floor.min(*first));
        if let Some(disk) = &self.disk {
            disk.push(Entry::Durable { up_to: Sequence(id.0) });
            disk.push_forget(floor);
        }
        crash::point("client.durable");
    }
}
