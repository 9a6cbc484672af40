//! Leases held: what they cover and until when.

use super::{Holder, Ticket};
use serde::{Deserialize, Serialize};
use soda_types::{Epoch, Fid, Grant, InUse, Mode, Monotonic, RecallAck, Scope, Term};
use std::time::Duration;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) mode: Mode,
    /// The server's name for the lease: its last grant.
    pub(super) epoch: Epoch,
    pub(super) term: Term,
    /// End of its own term; `NEVER` if it lasts as long as the session.
    pub(super) own_end: Monotonic,
    pub(super) holding: Holding,
    /// The holder's clock when the holding began.
    pub(super) began: u64,
    /// The request whose answer brought the last grant.
    granted_by: u64,
    /// One that is being worked on does not pass to another process.
    #[serde(skip)]
    pub(super) recall: Option<Asked>,
    pub(super) last_used: Monotonic,
    pub(super) uses: u32,
}

/// A recall that is being worked on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) epoch: Epoch,
    /// The epoch that the first step was told; work on older ones was for a lease before.
    pub(super) first: Epoch,
    pub(super) to: Option<Mode>,
    /// Steps that the caches have been told and that are not finished.
    pub(super) steps: u32,
}

/// Grants up to this epoch are refused: they were asked or given back before they came.
#[derive(Debug, Default)]
pub(super) struct Bar {
    epoch: Epoch,
    /// Requests sent up to here may be on the way.
    until: u64,
}

/// One unbroken time of holding a lease on an object; compare for equality.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Holding(pub Epoch);

impl Holding {
    /// Of an object that a deep lease covers: numbered by the holder, in a range that no server's epoch reaches.
    pub(super) fn of_member(number: u64) -> Holding {
        Holding(Epoch(number | 1 << 63))
    }
}

/// A lease held, for tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldInfo {
    pub grant: Grant,
    pub holding: Holding,
    /// How long it may still be used; zero: expired.
    pub left: Duration,
    pub uses: u32,
    pub state: HeldState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeldState {
    Held,
    /// The server asked for it, the caches are being dropped.
    Recalling,
}

impl Holder {
    /// Until when what is cached of the object may be used in this mode; `None`: not covered. This is the one question
    /// that caches ask: use what is cached only if the answer is later than now, looking at the clock *after* this.
    ///
    /// While a recall is being worked on, reading what is cached stays allowed: the server waits for the answer. New
    /// writes under the lease do not.
    pub fn valid_until(&self, now: Monotonic, fid: Fid, mode: Mode) -> Option<Monotonic> {
        let by_node = self.leases.get(&fid).and_then(|held| {
            let allowed = match held.recall {
                None => mode <= held.mode,
                Some(_) => mode == Mode::Read,
            };
            let end = held.own_end.min(self.session_end());
            (allowed && end > now).then_some(end)
        });
        if by_node.is_some() || self.deep.members.is_empty() {
            return by_node;
        }
        let end = self.session_end();
        // What was moved out of reach of the deep lease has only the node lease behind it.
        let asked = self.leases.get(&fid).is_some_and(|held| held.recall.is_some());
        let allowed = self.deep.allows(fid, mode) && (mode == Mode::Read || !asked);
        (allowed && end > now).then_some(end)
    }

    /// Whether changes of the object may be made in the caches now, to be told to the server later: no, if the lease could run
    /// out before what is done under it has been told, or if somebody has asked for it.
    pub fn may_delay_changes(&self, now: Monotonic, fid: Fid) -> bool {
        let until = self.valid_until(now, fid, Mode::Write);
        until.is_some_and(|until| until >= self.session_end())
    }

    /// Whether what is cached may be used until somebody asks for the object: no recall has come, and while the session lives the
    /// lease does not run out.
    pub fn lasts_until_recalled(&self, now: Monotonic, fid: Fid) -> bool {
        let promised = self.promise_until(now, fid);
        promised.is_some_and(|until| until >= self.session_end())
            && self.valid_until(now, fid, Mode::Read).is_some()
    }

    /// As [`Holder::valid_until`] for reading, and counts the use: for the server's rates and for
    /// [`Holder::idle`].
    pub fn touch(&mut self, now: Monotonic, fid: Fid) -> Option<Monotonic> {
        let end = self.session_end();
        let Some(held) = self.leases.get_mut(&fid) else {
            return (end > now && self.deep.use_it(now, fid, 1)).then_some(end);
        };
        let end = held.own_end.min(end);
        if end <= now {
            return None;
        }
        held.uses = held.uses.saturating_add(1);
        held.last_used = now;
        Some(end)
    }

    /// Until when somebody else may be told to use what is cached (the kernel, as its time-out): as
    /// [`Holder::valid_until`] for reading, but `None` once the lease is being recalled. What is told after the caches
    /// began to be dropped would be told for too long.
    pub fn promise_until(&self, now: Monotonic, fid: Fid) -> Option<Monotonic> {
        let Some(held) = self.leases.get(&fid) else {
            let end = self.session_end();
            let quiet = self.deep.members.get(&fid).is_some_and(|member| member.recalls == 0);
            return (quiet && end > now).then_some(end);
        };
        let end = held.own_end.min(self.session_end());
        (held.recall.is_none() && end > now).then_some(end)
    }

    /// Uses that happened elsewhere (the kernel's caches) or are counted in bulk.
    pub fn note_uses(&mut self, now: Monotonic, fid: Fid, uses: u32) {
        if let Some(held) = self.leases.get_mut(&fid) {
            held.uses = held.uses.saturating_add(uses);
            held.last_used = now;
        } else {
            self.deep.use_it(now, fid, uses);
        }
    }

    /// Whether what came with this request's answer may be cached, and the holding to note with it: the lease is held,
    /// nobody has asked for it, and it has been held since the request was sent or came with this very answer. Ask
    /// after [`Holder::handle_reply`].
    ///
    /// That speaks of *other* clients' changes. Answers to this client's own requests can overtake each other, and its
    /// own change may have been made and not yet answered: a cache also remembers the newest version it has seen of an
    /// object, never goes back behind it, and drops what is older as soon as any answer shows a newer one.
    pub fn cacheable(&self, ticket: Ticket, fid: Fid) -> Option<Holding> {
        let same_session = ticket.session == self.session();
        let Some(held) = self.leases.get(&fid) else {
            return self.deep.cacheable(ticket, fid).filter(|_| same_session);
        };
        let covered = held.began < ticket.number || held.granted_by == ticket.number;
        (same_session && held.recall.is_none() && covered).then_some(held.holding)
    }

    /// The present holding of a lease on the object, recalling or expired ones included. What is cached with another
    /// holding is void.
    pub fn holding(&self, fid: Fid) -> Option<Holding> {
        let by_node = self.leases.get(&fid).map(|held| held.holding);
        by_node.or_else(|| self.deep.members.get(&fid).map(|member| member.holding))
    }

    /// Mode of the lease on the object, whether or not it is still valid.
    pub fn mode(&self, fid: Fid) -> Option<Mode> {
        let by_node = self.leases.get(&fid).map(|held| held.mode);
        by_node.max(self.deep.members.get(&fid).map(|member| member.mode))
    }

    /// Whether this client has the object for itself alone, as far as it has heard: then what was changed here may still be told,
    /// and own changes go ahead of a recall. Whether the lease has run out is not asked.
    pub fn is_exclusive(&self, fid: Fid) -> bool {
        self.mode(fid) == Some(Mode::Write)
    }

    /// Gives a lease back unasked. The caches must be empty of the object first. `None`: not held, or its recall is
    /// being worked on, whose answer says it all.
    pub fn release(&mut self, _now: Monotonic, fid: Fid) -> Option<RecallAck> {
        if self.leases.get(&fid)?.recall.is_some() {
            return None;
        }
        let held = self.leases.remove(&fid)?;
        self.bar(fid, held.epoch);
        self.lower_member(fid, None);
        Some(RecallAck { fid, epoch: held.epoch, kept: None, in_use: InUse::No, uses: held.uses, part: None })
    }

    /// The server has lost the object, and with it the lease: nothing is to be given back.
    pub fn forget(&mut self, fid: Fid) {
        self.leases.remove(&fid);
        self.let_go(fid);
    }

    /// The server has lost that this client had removed the object, and has it again: its write lease, which went with it, is to
    /// be claimed like the others.
    pub fn hold_again(&mut self, fid: Fid) {
        let number = self.tick();
        let held = Held::of_member(Epoch(1), Mode::Write, Holding::of_member(number), number);
        self.leases.entry(fid).or_insert(held);
    }

    /// The mode of the node lease on the object, if nobody has asked for it.
    pub fn node_mode(&self, fid: Fid) -> Option<Mode> {
        self.leases.get(&fid).filter(|held| held.recall.is_none()).map(|held| held.mode)
    }

    /// Whether [`Holder::lower`] has something to lower.
    pub fn may_lower(&self, fid: Fid) -> bool {
        self.node_mode(fid) == Some(Mode::Write)
    }

    /// Lowers a write lease to reading, unasked. What own changes did must be settled as for a recall to read, and none
    /// may be on the way. `None`: there is no write lease, or its recall is being worked on.
    pub fn lower(&mut self, fid: Fid) -> Option<RecallAck> {
        let began = self.tick();
        let held = self.leases.get_mut(&fid)?;
        if held.recall.is_some() || held.mode != Mode::Write {
            return None;
        }
        held.mode = Mode::Read;
        // As after a recall: what is on the way may be of before a change of our own that others can see from now on.
        held.began = began;
        let (uses, epoch) = (std::mem::take(&mut held.uses), held.epoch);
        self.lower_member(fid, Some(Mode::Read));
        Some(RecallAck { fid, epoch, kept: Some(Mode::Read), in_use: InUse::No, uses, part: None })
    }

    /// Leases not used for so long, the least recently used first. Candidates for [`Holder::release`].
    pub fn idle(&self, now: Monotonic, older_than: Duration) -> Vec<Fid> {
        let idle = |held: &&Held| held.recall.is_none() && now.since(held.last_used) >= older_than;
        let mut found: Vec<(Monotonic, Fid)> = self
            .leases
            .iter()
            .filter(|(_, held)| idle(held))
            .map(|(fid, held)| (held.last_used, *fid))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, fid)| fid).collect()
    }

    /// What the server may believe this client holds, for [`Call::Reclaim`] after the server's restart. Leases whose
    /// recall is being worked on are part of it: their caches are in use until the answer. Those whose own term is over
    /// are not: the server may have let somebody else change the object long before it stopped. Make the list after
    /// the new server has said Welcome, not before.
    ///
    /// [`Call::Reclaim`]: # "in soda-protocol"
    pub fn reclaim_list(&self, now: Monotonic) -> Vec<Grant> {
        let fids = self.sorted_fids(|held| held.own_end > now);
        let nodes = fids.iter().filter_map(|fid| self.leases.get(fid).map(|held| held.grant(*fid)));
        self.deep.roots.values().map(|root| root.grant).chain(nodes).collect()
    }

    /// The answer to a reclaim of `asked`. Returns the objects whose leases were refused: their caches are void.
    pub fn handle_reclaimed(
        &mut self,
        now: Monotonic,
        ticket: Ticket,
        asked: &[Grant],
        answers: &[Option<Grant>],
    ) -> Vec<Fid> {
        if ticket.session.is_none() || ticket.session != self.session() {
            self.fail_request(ticket);
            return Vec::new();
        }
        let granted: Vec<Grant> = answers.iter().flatten().copied().collect();
        let mut refused = Vec::new();
        for (at, grant) in asked.iter().enumerate() {
            let is_refused = answers.get(at).is_none_or(Option::is_none);
            if is_refused && grant.scope == Scope::Subtree {
                refused.extend(self.lose_deep(grant));
                continue;
            }
            // A lease that was granted anew since the list was made is not the one that was refused.
            if is_refused && self.leases.get(&grant.fid).is_some_and(|held| held.epoch <= grant.epoch) {
                self.leases.remove(&grant.fid);
                refused.push(grant.fid);
            }
        }
        let is_held = |grant: &&Grant| match grant.scope {
            Scope::Node => self.leases.contains_key(&grant.fid),
            Scope::Subtree => self.deep.roots.contains_key(&grant.fid),
        };
        let known = granted.iter().filter(is_held).copied().collect::<Vec<_>>();
        self.handle_reply(now, ticket, &known);
        refused
    }

    /// All leases held, by fid.
    pub fn snapshot(&self, now: Monotonic) -> Vec<HeldInfo> {
        let fids = self.sorted_fids(|_| true);
        let info = |fid: &Fid| {
            let held = self.leases.get(fid)?;
            Some(HeldInfo {
                grant: held.grant(*fid),
                holding: held.holding,
                left: held.own_end.min(self.session_end()).since(now),
                uses: held.uses,
                state: if held.recall.is_some() { HeldState::Recalling } else { HeldState::Held },
            })
        };
        let deep = self.deep.roots.values().map(|root| HeldInfo {
            grant: root.grant,
            holding: Holding::of_member(root.began),
            left: self.session_end().since(now),
            uses: 0,
            state: if root.is_asked { HeldState::Recalling } else { HeldState::Held },
        });
        deep.chain(fids.iter().filter_map(info)).collect()
    }

    pub(super) fn accept(&mut self, now: Monotonic, ticket: Ticket, grant: &Grant) {
        if grant.scope == Scope::Subtree {
            return self.accept_deep(now, ticket, grant);
        }
        if self.bars.get(&grant.fid).is_some_and(|bar| grant.epoch <= bar.epoch) {
            return;
        }
        let own_end = match grant.term {
            Term::Session => Monotonic::NEVER,
            Term::For(term) => ticket.sent_at() + self.config.drift_margin.usable(term),
        };
        let began = self.clock;
        if let Some(held) = self.leases.get_mut(&grant.fid) {
            // While a recall is worked on, only a lease of after that recall is news.
            if grant.epoch <= held.epoch || held.recall.is_some_and(|asked| grant.epoch <= asked.epoch) {
                return;
            }
            // If the old lease is still good by this clock it was good by the server's when it gave the new one, and
            // nothing can have changed in between. If not, somebody may have changed the object.
            if held.own_end <= now || held.recall.is_some() {
                held.holding = Holding(grant.epoch);
                held.began = began;
                held.uses = 0;
            }
            held.mode = grant.mode;
            held.epoch = grant.epoch;
            held.term = grant.term;
            held.own_end = own_end;
            held.granted_by = ticket.number;
            held.last_used = now;
            held.recall = None;
            return;
        }
        let held = Held {
            mode: grant.mode,
            epoch: grant.epoch,
            term: grant.term,
            own_end,
            // What a deep lease covers already stays cached.
            holding: self.deep.members.get(&grant.fid).map_or(Holding(grant.epoch), |member| member.holding),
            began,
            granted_by: ticket.number,
            recall: None,
            last_used: now,
            uses: 0,
        };
        self.leases.insert(grant.fid, held);
    }

    /// Refuses grants up to the epoch for as long as one can be on the way, and what was said before of deep leases on the
    /// object: the lease may have come in their place.
    pub(super) fn bar(&mut self, fid: Fid, epoch: Epoch) {
        let until = self.clock;
        self.deep.bar(fid, until, Scope::Node);
        let bar = self.bars.entry(fid).or_default();
        bar.epoch = bar.epoch.max(epoch);
        bar.until = until;
        self.bar_order.push_back((until, fid));
        self.lift_bars();
    }

    pub(super) fn lift_bars(&mut self) {
        let oldest = self.oldest_on_the_way();
        self.deep.lift_bars(oldest);
        while let Some((until, fid)) = self.bar_order.front().copied()
            && until < oldest
        {
            self.bar_order.pop_front();
            if self.bars.get(&fid).is_some_and(|bar| bar.until == until) {
                self.bars.remove(&fid);
            }
        }
    }
}

impl Held {
    pub(super) fn adopted(now: Monotonic, epoch: Epoch, began: u64) -> Held {
        Held {
            mode: Mode::Write,
            epoch,
            term: Term::Session,
            own_end: Monotonic::NEVER,
            holding: Holding(epoch),
            began,
            granted_by: began,
            recall: None,
            last_used: now,
            uses: 0,
        }
    }

    /// In the place of a deep lease. Its last grant was told in other words.
    pub(super) fn of_member(epoch: Epoch, mode: Mode, holding: Holding, began: u64) -> Held {
        let last_used = Monotonic::ZERO;
        Held { mode, holding, ..Held::adopted(last_used, epoch, began) }
    }

    fn grant(&self, fid: Fid) -> Grant {
        Grant { fid, scope: Scope::Node, mode: self.mode, epoch: self.epoch, term: self.term }
    }
}
