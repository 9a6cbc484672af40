//! File locks, around the production table of them: who nobody else is in the way of decides by itself, until that is asked back.
//! Then whoever asks waits here until all that was decided is told.

use super::Server;
use crate::context::Context;
use crate::event::ConnId;
use crate::message::{LockAnswer, LockCall, Tag, ToClient, Wait};
use crate::register::{Object, fid_of};
use crate::sabotage::Sabotage;
use soda_lease::locks::{Delegations, HeldLock, IfBusy, LockAnswer as Answer, LockTable, WaitKey};
use soda_types::{Epoch, Lock, Monotonic, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Locks {
    table: LockTable,
    delegations: Delegations,
    /// Until who decides about the file has told of its locks.
    put_off: BTreeMap<Object, VecDeque<Asking>>,
    waits: BTreeMap<WaitKey, Asking>,
    last: u64,
    /// When those are looked at next who are in somebody's way.
    pub(super) wake: Option<Monotonic>,
}

/// Who asks for a lock.
#[derive(Clone, Copy, Debug)]
struct Asking {
    reply_to: (ConnId, Tag),
    session: SessionId,
    object: Object,
    lock: Lock,
    wait: Wait,
}

/// Who has a lock that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contest {
    Free,
    /// A session whose lease has this time left.
    Alive(Duration),
    Ended,
}

/// Epochs that the server gives are above the numbers of digests.
const FIRST_EPOCH: u64 = 1 << 44;

impl Locks {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// What a session has on a file.
    pub(super) fn of(&self, session: SessionId, object: Object) -> Vec<HeldLock> {
        let mut held = self.table.locks(fid_of(object));
        held.retain(|held| held.session == session);
        held
    }

    /// The session has made these, and decides about their locks. Before anybody else is let in to what names them.
    pub(super) fn enter_made(
        &mut self,
        session: SessionId,
        made: impl Iterator<Item = Object>,
        epoch: Epoch,
    ) {
        made.for_each(|object| self.delegations.enter_made(fid_of(object), session, epoch));
    }

    /// Locks of before a restart. Returns those that are lost, as others have what excludes them.
    pub(super) fn reclaim(&mut self, session: SessionId, locks: &[(Object, Lock)]) -> Vec<(Object, Lock)> {
        let mut lost = locks.to_vec();
        lost.retain(|(object, lock)| self.table.set(fid_of(*object), session, *lock, IfBusy::Fail).is_err());
        lost
    }

    fn wake_at(&mut self, at: Monotonic) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

impl Server {
    pub(super) fn lock_call(
        &mut self,
        context: &mut Context,
        reply_to: (ConnId, Tag),
        object: Object,
        call: LockCall,
    ) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let Some(session) = running.session_of.get(&reply_to.0).copied() else { return };
        // What an older connection brings nobody reads any more.
        if running.control.get(&session) != Some(&reply_to.0) {
            return;
        }
        if running.traffic(context, now, session).is_err() {
            return context.send_to_client(reply_to.0, ToClient::SessionEnded { tag: reply_to.1 });
        }
        match call {
            LockCall::Set(lock, wait) => {
                let in_grace = running.table.grace_left(now).is_some();
                if in_grace && context.config.sabotage != Sabotage::LocksInGrace {
                    return answer(context, reply_to, LockAnswer::Grace);
                }
                let asking = Asking { reply_to, session, object, lock, wait };
                // Locks of the ended are free when their end is on disk.
                if self.contest(now, &asking) == Contest::Ended {
                    self.pump(context);
                }
                self.lock_in_turn(context, asking);
            }
            LockCall::Release(lock) => {
                running.locks.table.release(fid_of(object), session, lock);
                answer(context, reply_to, LockAnswer::Done);
                self.settle_locks(context);
            }
            LockCall::Return(epoch, locks) => {
                let fid = fid_of(object);
                let had_it = running.locks.delegations.take_back(fid, session, epoch);
                if let Some(locks) = locks.filter(|_| had_it) {
                    running.locks.table.replace(fid, session, &locks);
                }
                answer(context, reply_to, LockAnswer::Done);
                self.settle_locks(context);
                if had_it {
                    self.decide_put_off(context, object);
                }
            }
        }
    }

    /// Decides, or puts it off until the session that decides about the file's locks alone has told of them.
    fn lock_in_turn(&mut self, context: &mut Context, asking: Asking) {
        let now = self.clock.read(context.now);
        let fid = fid_of(asking.object);
        let contest = self.contest(now, &asking);
        let Some(running) = &mut self.running else { return };
        let others = running.locks.delegations.other(fid, asking.session);
        if others.is_none() || context.config.sabotage == Sabotage::DecideUntold {
            return self.decide(context, asking);
        }
        let recalled = running.locks.delegations.recall(now, fid);
        if let Contest::Alive(left) = contest {
            running.locks.wake_at(now + left);
        }
        running.locks.put_off.entry(asking.object).or_default().push_back(asking);
        if let Some((delegate, epoch)) = recalled {
            self.recall_locks(context, delegate, asking.object, epoch);
        }
    }

    fn recall_locks(&self, context: &mut Context, delegate: SessionId, object: Object, epoch: Epoch) {
        let control = self.running.as_ref().and_then(|running| running.control.get(&delegate));
        if let Some(conn) = control {
            context.send_to_client(*conn, ToClient::RecallLocks { object, epoch });
        }
    }

    /// The session has a connection again: what was said on the one before may be lost.
    pub(super) fn recall_locks_again(&self, context: &mut Context, session: SessionId) {
        let Some(running) = &self.running else { return };
        for (fid, epoch) in running.locks.delegations.recalled_from(session) {
            self.recall_locks(context, session, crate::register::object_of(fid), epoch);
        }
    }

    fn decide(&mut self, context: &mut Context, asking: Asking) {
        let now = self.clock.read(context.now);
        let contest = self.contest(now, &asking);
        let Some(running) = &mut self.running else { return };
        let Asking { reply_to, session, object, lock, wait } = asking;
        if !running.table.has_session(session) {
            return context.send_to_client(reply_to.0, ToClient::SessionEnded { tag: reply_to.1 });
        }
        let key = WaitKey(running.locks.number());
        let if_busy = if wait == Wait::Yes { IfBusy::Wait(key) } else { IfBusy::Fail };
        match running.locks.table.set(fid_of(object), session, lock, if_busy) {
            Ok(Answer::Granted) => self.taken(context, asking),
            Ok(Answer::Waits) => {
                running.locks.waits.insert(key, asking);
                if let Contest::Alive(left) = contest {
                    running.locks.wake_at(now + left);
                }
            }
            Err(_) => answer(context, reply_to, LockAnswer::Busy),
        }
        self.settle_locks(context);
    }

    fn taken(&mut self, context: &mut Context, asking: Asking) {
        let now = self.clock.read(context.now);
        let starts = self.disk.starts;
        let Some(running) = &mut self.running else { return };
        let locks = &mut running.locks;
        let epoch = Epoch(FIRST_EPOCH + (starts << 32) + locks.number());
        let others_wait = locks.put_off.get(&asking.object).is_some_and(|waiting| !waiting.is_empty());
        let offered = (!others_wait)
            .then(|| {
                let fid = fid_of(asking.object);
                locks.delegations.offer(now, fid, asking.session, &locks.table, epoch)
            })
            .flatten();
        answer(context, asking.reply_to, LockAnswer::Taken(offered));
    }

    /// Answers those who waited and have their lock now.
    fn settle_locks(&mut self, context: &mut Context) {
        while let Some(running) = &mut self.running
            && let Some(key) = running.locks.table.poll_granted()
        {
            if let Some(asking) = running.locks.waits.remove(&key) {
                self.taken(context, asking);
            }
        }
    }

    /// Nobody decides about the file's locks alone any more.
    fn decide_put_off(&mut self, context: &mut Context, object: Object) {
        while let Some(running) = &mut self.running
            && let Some(asking) = running.locks.put_off.get_mut(&object).and_then(VecDeque::pop_front)
        {
            self.decide(context, asking);
        }
    }

    /// The session's end is on disk: others may have its locks.
    pub(super) fn free_locks(&mut self, context: &mut Context, session: SessionId) {
        let Some(running) = &mut self.running else { return };
        running.locks.table.release_session(session);
        let files = running.locks.delegations.end_session(session);
        self.settle_locks(context);
        files.into_iter().for_each(|fid| self.decide_put_off(context, crate::register::object_of(fid)));
    }

    /// Whoever waited on this connection asks again on the next.
    pub(super) fn forget_lock_waits_on(&mut self, context: &mut Context, conn: ConnId) {
        let Some(running) = &mut self.running else { return };
        let locks = &mut running.locks;
        locks.put_off.values_mut().for_each(|waiting| waiting.retain(|asking| asking.reply_to.0 != conn));
        let gone = locks.waits.extract_if(.., |_, asking| asking.reply_to.0 == conn);
        for (key, _) in gone.collect::<Vec<_>>() {
            locks.table.cancel(key);
        }
        self.settle_locks(context);
    }

    /// Looks at who is in the way of the lock; ends that session if its lease has run out.
    fn contest(&mut self, now: Monotonic, asking: &Asking) -> Contest {
        let Some(running) = &mut self.running else { return Contest::Free };
        let fid = fid_of(asking.object);
        let delegate = running.locks.delegations.other(fid, asking.session);
        let holder = || running.locks.table.test(fid, asking.session, asking.lock).map(|held| held.session);
        let Some(other) = delegate.or_else(holder) else { return Contest::Free };
        let deadline = running.table.recall_deadline();
        let recalled = running.locks.delegations.recalled_since(fid);
        if delegate.is_some() && recalled.is_some_and(|since| now.since(since) > deadline) {
            running.table.condemn(other, fid);
        }
        running.table.contest(now, other, fid).map_or(Contest::Ended, Contest::Alive)
    }

    /// Looks after those who wait for locks of the dead.
    pub(super) fn contest_locks(&mut self, now: Monotonic) {
        let Some(running) = &mut self.running else { return };
        if running.locks.wake.take_if(|wake| *wake <= now).is_none() {
            return;
        }
        let firsts = running.locks.put_off.values().filter_map(VecDeque::front);
        let waiting: Vec<Asking> = running.locks.waits.values().chain(firsts).copied().collect();
        for asking in waiting {
            if let Contest::Alive(left) = self.contest(now, &asking)
                && let Some(running) = &mut self.running
            {
                // At least once in a while: what is left may be nothing.
                running.locks.wake_at(now + left.max(Duration::from_millis(1)));
            }
        }
    }

    /// What the server has of a session's locks on a file.
    pub fn locks_of(&self, session: SessionId, object: Object) -> Vec<HeldLock> {
        self.running.as_ref().map(|running| running.locks.of(session, object)).unwrap_or_default()
    }
}

fn answer(context: &mut Context, (conn, tag): (ConnId, Tag), answer: LockAnswer) {
    context.send_to_client(conn, ToClient::Locked { tag, answer });
}
