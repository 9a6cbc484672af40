//! Getters for tools: who holds what, who waits for whom and how long, and what policy says.

use super::holes::Hole;
use super::output::{Access, Ancestors};
use super::placing::Reaching;
use super::rates::{Equation8, Intent, Usage};
use super::store::{Lease, LeaseId};
use super::{Counters, LeaseTable, ObjectTerm, OpKey, TableConfig};
use soda_types::{Epoch, Fid, Grant, Mode, Monotonic, SessionId, Term};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A lease on an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HolderInfo {
    pub session: SessionId,
    pub mode: Mode,
    pub epoch: Epoch,
    pub held_for: Duration,
    /// How long a recall has been waiting for an answer.
    pub recalled_for: Option<Duration>,
}

/// A lease with its object and holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseView {
    pub grant: Grant,
    pub holder: HolderInfo,
}

/// An operation that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitInfo {
    pub op: OpKey,
    pub session: SessionId,
    pub intent: Intent,
    pub waited: Duration,
    /// Sessions whose leases, or whose operations ahead of it, are in the way. Sorted.
    pub blocked_by: Vec<SessionId>,
    /// When the leases in its way are gone at the latest; `None` if it waits for operations only.
    pub at_latest: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    pub session: SessionId,
    /// What is left of its lease; zero: expired, kept by courtesy.
    pub left: Duration,
    pub leases: usize,
    /// Recalls that it has not answered.
    pub unanswered: usize,
}

/// What policy says about the next lease on an object.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Policy {
    Grants,
    /// Term 0 by configuration.
    NoLeases,
    /// Equation (8): caches would be asked back more often than they answer.
    TooManyWrites(Usage),
    /// A write lease was recalled a moment ago.
    BacksOff(Duration),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Grants => f.write_str("leases are given"),
            Policy::NoLeases => f.write_str("no leases: the volume's term is 0"),
            Policy::TooManyWrites(usage) => write!(
                f,
                "no leases for now: caches would answer {:.1} reads a second, and be asked back {:.1} times (equation 8: asking \
                 costs less)",
                usage.hits_per_s, usage.recalls_per_s
            ),
            Policy::BacksOff(left) => {
                write!(f, "no new write lease for {} ms: the last one was recalled", left.as_millis())
            }
        }
    }
}

impl LeaseTable {
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Leases held.
    pub fn len(&self) -> usize {
        self.store.lease_count()
    }

    pub fn is_empty(&self) -> bool {
        self.store.lease_count() == 0
    }

    /// Objects that the table knows of: leased, in use, waited for, or remembered for their rates.
    pub fn object_count(&self) -> usize {
        self.store.object_count()
    }

    /// Operations that wait.
    pub fn waiting_count(&self) -> usize {
        self.ops.values().filter(|op| op.is_waiting()).count()
    }

    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// All sessions, by id.
    pub fn sessions(&self, now: Monotonic) -> Vec<SessionInfo> {
        let mut unanswered: BTreeMap<SessionId, usize> = BTreeMap::new();
        for lease in self.recalls.leases().filter_map(|id| self.store.lease(id)) {
            *unanswered.entry(lease.session).or_default() += 1;
        }
        self.sessions
            .iter()
            .map(|(id, session)| SessionInfo {
                session: *id,
                left: session.expires.since(now),
                leases: session.leases.len(),
                unanswered: unanswered.get(id).copied().unwrap_or_default(),
            })
            .collect()
    }

    /// Whether the session has been asked for a lease, or a part of one, that it has not given back: somebody waits for it.
    pub fn is_asked(&self, session: SessionId) -> bool {
        self.recalls.is_asked(session)
    }

    /// The session's node lease on an object.
    pub fn lease(&self, session: SessionId, fid: Fid) -> Option<Grant> {
        let id = self.store.lease_of(self.store.find(fid)?, session)?;
        self.store.lease(id).map(|lease| self.grant_of(lease))
    }

    /// Whether an operation of the session that reads the object would be admitted without asking or waiting for
    /// anybody. Grace periods are left out.
    pub fn reads_at_once(&self, session: SessionId, fid: Fid) -> bool {
        let Some(id) = self.store.find(fid) else { return self.store.deep_count() == 0 };
        let Some(object) = self.store.object(id) else { return true };
        let in_the_way = |lease: &Lease| lease.session != session && lease.mode == Mode::Write;
        if self.is_excluded(id, session, Mode::Read) {
            return false;
        }
        object.queue_len() == 0
            && object.running.lets_in(Intent::Read)
            && !self.store.first_holder(id).is_some_and(in_the_way)
    }

    /// As [`LeaseTable::reads_at_once`], of an object whose place is said.
    pub fn reads_at_once_there(&mut self, session: SessionId, access: &Access) -> bool {
        let object = self.store.find_or_insert(access.fid);
        self.place(object, &access.ancestors);
        let at_once = self.reads_at_once(session, access.fid);
        self.store.note_untidy(object);
        at_once
    }

    /// Says where an object lies that no call has been about lately, for the questions below.
    pub fn learn_place(&mut self, fid: Fid, ancestors: &Ancestors) {
        let object = self.store.find_or_insert(fid);
        self.place(object, ancestors);
        self.store.note_untidy(object);
    }

    /// The session's deep lease on a directory.
    pub fn deep_lease(&self, session: SessionId, fid: Fid) -> Option<Grant> {
        let id = self.store.deep_lease_of(self.store.find(fid)?, session)?;
        self.store.lease(id).map(|lease| self.grant_of(lease))
    }

    /// Deep leases that reach an object, the nearest first, with what they allow there: holes are left out. Of an object that
    /// the table does not know, nothing is known.
    pub fn deep_holders(&self, now: Monotonic, fid: Fid) -> Vec<(Grant, HolderInfo)> {
        let Some(object) = self.store.find(fid) else { return Vec::new() };
        let info = |reach: Reaching| {
            let lease = self.store.lease(reach.lease)?;
            let asked =
                self.owed_for(object, reach.session).into_iter().find_map(|epoch| self.recalls.get(epoch));
            let recalled_for = asked.map(|asked| now.since(asked.since));
            let info = HolderInfo { mode: reach.allows, recalled_for, ..self.holder_info(now, lease) };
            Some((self.grant_of(lease), info))
        };
        self.store.reaching(object).into_iter().filter_map(info).collect()
    }

    /// Deep leases on directories above an object that allow less there than elsewhere, the nearest first: what each allows
    /// there, `None` for nothing.
    pub fn deep_holders_without(&self, now: Monotonic, fid: Fid) -> Vec<(Grant, HolderInfo, Option<Mode>)> {
        let Some(object) = self.store.find(fid) else { return Vec::new() };
        let on_path = self.store.with_holes_for(object).into_iter();
        let info = |(id, allows): (LeaseId, Option<Mode>)| {
            let lease = self.store.lease(id)?;
            Some((self.grant_of(lease), self.holder_info(now, lease), allows))
        };
        on_path.filter_map(info).collect()
    }

    /// Objects, and directories with all below them, taken out of a session's deep lease on a directory.
    pub fn holes(&self, session: SessionId, fid: Fid) -> Vec<(Fid, Hole)> {
        let lease = self.store.find(fid).and_then(|object| self.store.deep_lease_of(object, session));
        let deep = lease.and_then(|id| self.store.deep(id));
        deep.into_iter().flat_map(|deep| deep.holes().iter().map(|(fid, hole)| (*fid, *hole))).collect()
    }

    /// The directories above an object, from its parent to the root, if the table knows the object and where it lies.
    pub fn ancestors(&self, fid: Fid) -> Option<Vec<Fid>> {
        let object = self.store.find(fid)?;
        self.store.nearest_branch(object)?;
        Some(self.store.path(object).split_off(1))
    }

    /// Directories that the table knows for what is leased below them; none with deep leases off.
    pub fn branch_count(&self) -> usize {
        self.store.ancestry().map_or(0, |ancestry| ancestry.len())
    }

    /// Node leases on an object, by session.
    pub fn holders(&self, now: Monotonic, fid: Fid) -> Vec<HolderInfo> {
        let Some(object) = self.store.find(fid) else { return Vec::new() };
        let leases = self.store.holders(object).filter_map(|id| self.store.lease(id));
        leases.map(|lease| self.holder_info(now, lease)).collect()
    }

    /// At most `limit` leases of all objects, in no order that means anything.
    pub fn leases(&self, now: Monotonic, limit: usize) -> Vec<LeaseView> {
        let leases = self.store.leases().take(limit);
        leases
            .map(|lease| LeaseView { grant: self.grant_of(lease), holder: self.holder_info(now, lease) })
            .collect()
    }

    /// Operations that wait for an object, first come first.
    pub fn waiting(&self, now: Monotonic, fid: Fid) -> Vec<WaitInfo> {
        let Some(object) = self.store.find(fid).and_then(|object| self.store.object(object)) else {
            return Vec::new();
        };
        object.queue().filter_map(|waiter| self.wait_info(now, waiter.op, waiter.intent)).collect()
    }

    /// How an object has been used lately; `None` if no lease on it had to be recalled.
    pub fn rates(&self, now: Monotonic, fid: Fid) -> Option<Usage> {
        let half_life = self.config.equation_8.half_life();
        let mut rates = self.store.object(self.store.find(fid)?)?.rates.as_deref()?.clone();
        rates.decay(now, half_life);
        Some(rates.usage(half_life))
    }

    /// How objects have been used lately, the busiest first, at most `limit`: those that a lease had to be recalled of. Looks at
    /// all objects.
    pub fn busiest(&self, now: Monotonic, limit: usize) -> Vec<(Fid, Usage)> {
        let half_life = self.config.equation_8.half_life();
        let used = self.store.objects().filter_map(|object| {
            let mut rates = object.rates.as_deref()?.clone();
            rates.decay(now, half_life);
            Some((object.fid, rates.usage(half_life)))
        });
        let mut used: Vec<(Fid, Usage)> = used.collect();
        let uses = |usage: &Usage| usage.reads + usage.writes;
        used.sort_by(|(one, of_one), (other, of_other)| {
            uses(of_other).total_cmp(&uses(of_one)).then(one.cmp(other))
        });
        used.truncate(limit);
        used
    }

    /// What policy says about the next lease on an object.
    pub fn policy(&self, now: Monotonic, fid: Fid) -> Policy {
        if self.config.term_of(fid.volume) == ObjectTerm::None {
            return Policy::NoLeases;
        }
        let object = self.store.find(fid).and_then(|object| self.store.object(object));
        let Some(mut rates) = object.and_then(|object| object.rates.as_deref()).cloned() else {
            return Policy::Grants;
        };
        if let Equation8::On { half_life, min_writes } = self.config.equation_8 {
            rates.decay(now, half_life);
            if !rates.leases_pay(min_writes) {
                return Policy::TooManyWrites(rates.usage(half_life));
            }
        }
        rates.backs_off(now).map_or(Policy::Grants, Policy::BacksOff)
    }

    pub(super) fn grant_of(&self, lease: &Lease) -> Grant {
        let fid = self.store.object(lease.object).map(|object| object.fid).unwrap_or_default();
        let term = if lease.expires == Monotonic::NEVER {
            Term::Session
        } else {
            self.term_of(lease.session, fid).term().unwrap_or(Term::Session)
        };
        Grant { fid, scope: lease.scope, mode: lease.mode, epoch: lease.epoch, term }
    }

    fn holder_info(&self, now: Monotonic, lease: &Lease) -> HolderInfo {
        HolderInfo {
            session: lease.session,
            mode: lease.mode,
            epoch: lease.epoch,
            held_for: now.since(lease.since),
            recalled_for: self.recalls.get(lease.epoch).map(|outstanding| now.since(outstanding.since)),
        }
    }

    fn wait_info(&self, now: Monotonic, key: OpKey, intent: Intent) -> Option<WaitInfo> {
        let op = self.ops.get(&key)?;
        let obstacles = self.obstacles(now, key);
        let leases: Vec<&Lease> = obstacles.leases.iter().filter_map(|id| self.store.lease(*id)).collect();
        let ends = leases.iter().map(|lease| self.end_at_latest(now, lease));
        let at_latest = ends.chain(self.grace.as_ref().map(|grace| grace.wake)).max();
        let mut blocked_by = obstacles.operations;
        blocked_by.extend(leases.iter().map(|lease| lease.session));
        blocked_by.sort_unstable();
        blocked_by.dedup();
        Some(WaitInfo {
            op: key,
            session: op.session,
            intent,
            waited: now.since(op.arrived),
            blocked_by,
            at_latest: at_latest.map(|latest| latest.since(now)),
        })
    }

    /// A holder that goes on renewing is condemned at the recall's deadline and has a term left then.
    fn end_at_latest(&self, now: Monotonic, lease: &Lease) -> Monotonic {
        let deadline =
            self.recalls.get(lease.epoch).map_or(now + self.config.recall_deadline, |found| found.deadline);
        let session = match self.sessions.get(&lease.session) {
            Some(session) if session.is_good() => deadline.max(now) + self.config.session_term,
            Some(session) => session.expires,
            None => now,
        };
        session.min(lease.expires)
    }
}
