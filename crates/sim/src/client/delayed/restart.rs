//! A new run of the server: what it has is kept, what a power cut took is sent again, what no lease covers is given up.

use super::{Kept, Written};
use crate::client::Client;
use crate::context::Context;
use crate::layout::{Layout, Tree};
use crate::message::Claim;
use crate::register::{Object, OpUid, Register, Stamp, Value, fid_of, object_of};
use crate::sabotage::Sabotage;
use soda_oplog::DigestId;
use soda_types::{Epoch, Fid, Grant, LeasePart, Mode, Monotonic, Scope, SessionId, Term};
use std::collections::{BTreeMap, BTreeSet};

impl Client {
    /// `stored`: the last digest that this run of the server has.
    pub(in crate::client) fn welcomed(
        &mut self,
        context: &mut Context,
        session: SessionId,
        boot: u64,
        stored: DigestId,
    ) {
        let sabotage = context.config.sabotage;
        let Some(delayed) = &mut self.delayed else { return };
        delayed.kept.session = Some(session);
        delayed.kept.stored = stored;
        let is_new_run = std::mem::replace(&mut delayed.kept.boot, boot) != boot;
        if sabotage == Sabotage::RenumberOnReconnect
            && !is_new_run
            && let Some(first) = delayed.kept.under_way.front().map(|sending| sending.digest.id)
        {
            delayed.lose_digests(first);
            self.locks.lose_digests(first);
            return self.stop_sending_from(first);
        }
        if !is_new_run || sabotage == Sabotage::ForgetLost {
            return;
        }
        delayed.space.reserve.note_another_run();
        // Answers that wait for those before them speak of leases of the run before: what it has it is asked again.
        delayed.kept.under_way.iter_mut().for_each(|sending| sending.answer = None);
        let first_lost = DigestId(stored.0 + 1);
        let is_lost = |written: &&Written| written.digest.is_some_and(|digest| digest >= first_lost);
        let mut uncovered: Vec<Fid> = delayed
            .kept
            .written
            .values()
            .filter(is_lost)
            .filter(|written| written.handed_over)
            .flat_map(|written| written.changes.iter().chain(&written.makes))
            .map(|object| fid_of(*object))
            .collect();
        // Nothing of ours is on the way to this run yet, so what it does not have it will not get. Also what has no answer: it
        // may rest on what this run has lost, of others, too.
        if sabotage != Sabotage::KeepInDoubt || delayed.kept.log.has_undurable_from(first_lost) {
            delayed.lose_digests(first_lost);
            self.locks.lose_digests(first_lost);
            self.stop_sending_from(first_lost);
            self.begin_lost_moves(context);
        }
        let Some(delayed) = &mut self.delayed else { return };
        if sabotage != Sabotage::ForgetThrough {
            uncovered.extend(delayed.kept.chains().1.into_iter().map(fid_of));
        }
        if !uncovered.is_empty() {
            self.give_up(context, &uncovered);
        }
        let ends = self.delayed.as_ref().map(|delayed| delayed.kept.chains().0).unwrap_or_default();
        for (register, end) in ends {
            let fid = register.fid();
            let cached = self.caches.daemon(register, self.holder.holding(fid));
            if cached.is_some_and(|cached| cached != end) {
                self.forget(fid);
            }
        }
    }

    /// What the server has lost the making of is only here again. No lease is claimed on it: when the server is told again, a
    /// deep one may cover it.
    pub(in crate::client) fn take_back_made(&mut self, context: &Context) {
        let layout = context.config.layout();
        let Some(delayed) = self.delayed.as_mut().filter(|_| layout.tree == Tree::Deep) else { return };
        let lost: Vec<Object> = delayed.kept.lacking().filter_map(|written| written.makes).collect();
        for object in lost {
            let fid = fid_of(object);
            if !delayed.made.insert(object) {
                continue;
            }
            for register in layout.registers_of(object) {
                if let Some(value) = self.caches.daemon(register, self.holder.holding(fid)) {
                    delayed.values.insert(register, value);
                }
            }
            self.caches.drop_kernel(fid);
            self.caches.drop_daemon(fid);
            self.holder.forget(fid);
        }
    }

    /// What to reclaim: the leases held, and those that cover what is in the log, should the client have forgotten them.
    pub(in crate::client) fn claims(&self, context: &Context, now: Monotonic) -> Vec<Claim> {
        let mut grants = self.holder.reclaim_list(now);
        if context.config.sabotage != Sabotage::ReclaimNothing {
            let logged: BTreeSet<Fid> = self.logged_objects().into_iter().map(fid_of).collect();
            // Of one that was removed through the server the client may have a lease on its absence, which it has not any more.
            grants.retain(|grant| grant.mode == Mode::Write || !logged.contains(&grant.fid));
            let held: BTreeSet<Fid> = grants.iter().map(|grant| grant.fid).collect();
            let logged = logged.into_iter().filter(|fid| !held.contains(fid));
            let epoch = Epoch(1);
            grants.extend(logged.map(|fid| Grant {
                fid,
                scope: Scope::Node,
                mode: Mode::Write,
                epoch,
                term: Term::Session,
            }));
        }
        let believed = |fid: Fid| self.believed(now, fid, context.config.layout());
        grants.into_iter().map(|grant| Claim { grant, believed: believed(grant.fid) }).collect()
    }

    /// Inodes with something in the log that the server lacks, and that it knows.
    fn logged_objects(&self) -> BTreeSet<Object> {
        let Some(delayed) = &self.delayed else { return BTreeSet::new() };
        let lacking = delayed.kept.lacking();
        let made: BTreeSet<Object> = lacking.clone().filter_map(|written| written.makes).collect();
        lacking
            .flat_map(|written| &written.changes)
            .filter(|object| !made.contains(object))
            .copied()
            .collect()
    }

    /// The state in which the server should have it: what is cached, without what is in the log.
    fn believed(&self, now: Monotonic, fid: Fid, layout: Layout) -> Vec<(Register, Stamp)> {
        let Some(delayed) = &self.delayed else { return Vec::new() };
        let believe = |register: Register| {
            let first =
                delayed.kept.lacking().find(|written| written.effects.iter().any(|(of, _)| *of == register));
            let value = match first {
                Some(written) if written.makes == Some(register.object) => {
                    return Some((register, Stamp::default()));
                }
                Some(written) => {
                    written.before.iter().find(|(of, _)| *of == register).map(|(_, value)| *value)?
                }
                // The kernel shows what it was told before the lease was asked for and given again.
                None => {
                    let cached = self.caches.daemon(register, self.holder.holding(fid));
                    cached.or_else(|| self.caches.kernel(now, register))?
                }
            };
            Some((register, value.stamp))
        };
        layout.registers_of(object_of(fid)).filter_map(believe).collect()
    }

    /// What is to be told of these no lease covers.
    pub(in crate::client) fn uncovered(&self) -> Vec<Fid> {
        let Some(delayed) = &self.delayed else { return Vec::new() };
        let pending = delayed.kept.written.values().filter(|written| written.digest.is_none());
        let changed: BTreeSet<Object> = pending.flat_map(|written| &written.changes).copied().collect();
        let known = changed.into_iter().filter(|object| !delayed.made.contains(object));
        known.map(fid_of).filter(|fid| !self.holder.is_exclusive(*fid)).collect()
    }

    /// The same, if they may belong to the part of a deep lease. With all below it that may be any.
    pub(in crate::client) fn uncovered_ahead(&self, part: LeasePart) -> Vec<Fid> {
        let mut uncovered = self.uncovered();
        uncovered.retain(|fid| part.scope == Scope::Subtree || *fid == part.fid);
        uncovered
    }

    /// The server will not take what is in the log of these: its programs are told so (EIO).
    pub(in crate::client) fn give_up(&mut self, context: &mut Context, fids: &[Fid]) {
        let Some(delayed) = &mut self.delayed else { return };
        let records = delayed.kept.log.give_up(fids);
        let lost: Vec<Written> =
            records.iter().filter_map(|record| delayed.kept.written.remove(&record.lsn)).collect();
        let uids: Vec<OpUid> = lost.iter().map(|written| written.uid).collect();
        context.note(|| format!("client{}  gives up {uids:?}", self.number));
        context.invariants.given_up(&uids);
        delayed.keep(context, uids);
        self.end_own_moves(records.iter().map(|record| record.lsn));
        let made = lost.iter().filter_map(|written| written.makes);
        made.for_each(|object| self.locks.delegate.forget_made(fid_of(object)));
        for object in lost.iter().flat_map(|written| written.changes.iter().chain(&written.makes)) {
            if let Some(delayed) = &mut self.delayed {
                delayed.forget_made(*object);
            }
            self.forget(fid_of(*object));
        }
    }
}

impl Kept {
    /// What the server lacked at the last welcome: a digest under way that it had not got comes behind the claims.
    fn lacking(&self) -> impl Iterator<Item = &Written> + Clone {
        self.written.values().filter(|written| written.digest.is_none_or(|digest| digest > self.stored))
    }

    /// For each register in what the server lacks, the value that it ends with; and the inodes that cannot come that far: in
    /// between they were changed through the server, which has lost that.
    fn chains(&self) -> (BTreeMap<Register, Value>, BTreeSet<Object>) {
        let (mut ends, mut broken) = (BTreeMap::new(), BTreeSet::new());
        for written in self.lacking() {
            for (register, found) in &written.before {
                if ends.get(register).is_some_and(|end| end != found) {
                    broken.insert(register.object);
                }
            }
            ends.extend(written.effects.iter().copied());
        }
        (ends, broken)
    }

    /// The server does not have this digest nor any later one.
    pub(super) fn lost(&mut self, first: DigestId) {
        self.log.handle_lost(first);
        for written in self.written.values_mut() {
            written.digest = written.digest.filter(|digest| *digest < first);
        }
    }
}
