//! The programs of a client: each does one operation after the other, from the caches if it can.

use super::delayed::{Delayed, Plan};
use super::{Asked, Client, Request, Work};
use crate::clock::Time;
use crate::context::Context;
use crate::deed::{Deed, moved_by};
use crate::event::Event;
use crate::invariants::progress;
use crate::layout::Tree;
use crate::message::{Call, Leases, OpId, Tag};
use crate::network::Kind;
use crate::register::{Content, Object, OpUid, Register, Stamp, Value};
use crate::sabotage::Sabotage;
use soda_lease::Ticket;
use soda_oplog::DigestId;
use soda_types::{Fid, Monotonic, Sequence};

#[derive(Debug, Default)]
pub(super) struct Process {
    sequence: u64,
    /// What it is doing, since when.
    busy: Option<(OpUid, Time)>,
}

impl Process {
    pub(super) fn begin(&mut self, uid: OpUid, now: Time) {
        self.busy = Some((uid, now));
    }

    /// The program is told EIO, or dies: the operation ends without a result.
    pub(super) fn forget(&mut self, context: &mut Context) {
        if let Some((uid, _)) = self.busy.take() {
            context.invariants.gave_up(uid);
        }
    }
}

impl Client {
    pub(super) fn think(&mut self, context: &mut Context, process: usize) {
        let delay = context.about(context.config.think);
        context.after(delay, Event::Think { client: self.number, life: self.life, process });
    }

    /// The daemon is frozen (SIGSTOP): programs still read what the kernel has.
    pub fn read_frozen(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        for (register, value) in self.caches.all_of_kernel(now) {
            let uid = context.next_uid();
            context.invariants.invoked(uid, &[register]);
            context.invariants.read(uid, self.holder.session(), register, value);
        }
    }

    pub(super) fn act(&mut self, context: &mut Context, work: Work, process: usize) {
        let has_work = work == Work::GoesOn || self.has_locks(process);
        if !has_work || self.processes[process].busy.is_some() || !self.is_on() {
            return;
        }
        if self.delayed.as_ref().is_some_and(Delayed::is_settling) {
            return self.think(context, process);
        }
        if self.act_on_locks(context, work, process) {
            return;
        }
        let hasty = context.config.sabotage == Sabotage::ReleaseUnsynced;
        if context.rng.chance(1, if hasty { 2 } else { 40 }) {
            self.release_one(context);
        }
        let uid = context.next_uid();
        let plan = match self.delayed {
            Some(_) => self.choose_delayed(context),
            None => Plan::Call(self.choose(context)),
        };
        self.processes[process].busy = Some((uid, context.now));
        let call = match plan {
            Plan::Call(call) => call,
            Plan::Sync(object) => return self.sync(context, process, uid, object),
        };
        match &call {
            Call::Read(register) | Call::Look(register) => {
                context.invariants.invoked(uid, &[*register]);
                if let Some(value) = self.cached(context, *register) {
                    context.note(|| {
                        format!("client{}  {uid:?} {register:?} = {value} from its caches", self.number)
                    });
                    self.read_done(context, process, uid, *register, value);
                    return;
                }
                self.begin(context, process, uid, None, call);
            }
            Call::Change(registers) => {
                context.invariants.invoked(uid, registers);
                let op = self.next_op(process);
                self.begin(context, process, uid, Some(op), call);
            }
            Call::Do(deed) => {
                context.invariants.invoked(uid, &deed.registers());
                if let Some(values) = self.do_locally(context, uid, deed) {
                    values.into_iter().for_each(|(register, value)| self.saw(register, value));
                    return self.done(context, process);
                }
                let op = self.next_op(process);
                self.begin(context, process, uid, Some(op), call);
            }
        }
    }

    /// The same operation, which was not done.
    pub(super) fn begin_again(&mut self, context: &mut Context, process: usize, uid: OpUid, call: Call) {
        let op = self.next_op(process);
        self.begin(context, process, uid, Some(op), call);
    }

    fn next_op(&mut self, process: usize) -> OpId {
        self.processes[process].sequence += 1;
        OpId { slot: process, sequence: Sequence(self.processes[process].sequence) }
    }

    fn sync(&mut self, context: &mut Context, process: usize, uid: OpUid, object: Object) {
        if self.sync_log_here(context, object) {
            context.note(|| format!("client{}  {uid:?} fsync {object} here", self.number));
            return self.done(context, process);
        }
        let Some(delayed) = &self.delayed else { return };
        let (mark, up_to) = (delayed.mark(), delayed.waits_up_to());
        let registers: Vec<Register> = context.config.layout().registers_of(object).collect();
        context.invariants.sync_invoked(uid, self.holder.session(), &registers);
        context.note(|| format!("client{}  {uid:?} fsync {object}", self.number));
        let tag = self.ask(context, Kind::Control, Asked::Sync { process, uid, object, up_to, mark });
        self.share_along(context, tag, object);
        self.send_op(context, tag);
    }

    pub(super) fn handle_synced(&mut self, context: &mut Context, tag: Tag, durable: DigestId) {
        let Some(Request { ticket, what, .. }) = self.requests.remove(&tag) else { return };
        self.take_answer(context, ticket, &Leases::default());
        let (Asked::Sync { mark, .. } | Asked::Along(mark) | Asked::Settle(mark)) = what else { return };
        if let Some(delayed) = &mut self.delayed {
            delayed.note_synced(mark);
        }
        match what {
            Asked::Along(_) => self.synced_along(context, tag),
            what => {
                self.handle_durable(durable);
                self.fsync_returns(context, &what);
            }
        }
    }

    pub(super) fn fsync_returns(&mut self, context: &mut Context, what: &Asked) {
        if let Asked::Sync { process, uid, .. } = what {
            context.invariants.synced(*uid);
            self.done(context, *process);
        }
    }

    fn saw(&mut self, register: Register, value: Value) {
        if let Some(delayed) = &mut self.delayed {
            delayed.saw(register, value);
        }
    }

    fn choose(&mut self, context: &mut Context) -> Call {
        let pick = |context: &mut Context| Register {
            object: context.rng.below(u64::from(context.config.objects)) as Object,
            cell: context.rng.below(u64::from(context.config.cells)) as u8,
        };
        let first = pick(context);
        if context.rng.below(100) >= context.config.changes_percent {
            return Call::Read(first);
        }
        let second = pick(context);
        if context.rng.chance(1, 4) && second.object != first.object {
            return Call::Change(vec![first, second]);
        }
        Call::Change(vec![first])
    }

    /// From the kernel's cache, or from the daemon's, which fills the kernel's.
    fn cached(&mut self, context: &mut Context, register: Register) -> Option<Value> {
        if let Some(value) = self.read_made(context, register) {
            return Some(value);
        }
        let now = self.clock.read(context.now);
        if let Some(value) = self.caches.kernel(now, register) {
            return Some(value);
        }
        let fid = register.fid();
        let value = self.caches.daemon(register, self.holder.holding(fid))?;
        self.holder.touch(now, fid)?;
        self.tell_kernel(context, now, register, value);
        Some(value)
    }

    pub(super) fn tell_kernel(
        &mut self,
        context: &Context,
        now: Monotonic,
        register: Register,
        value: Value,
    ) {
        if let Some(until) = self.holder.promise_until(now, register.fid()) {
            let too_long = context.config.sabotage == Sabotage::KernelToldTooLong;
            let until = if too_long { now + context.config.table.session_term } else { until };
            self.caches.fill_kernel(register, value, until);
        }
    }

    fn begin(&mut self, context: &mut Context, process: usize, uid: OpUid, op: Option<OpId>, call: Call) {
        // Names are changed on the control connection alone: the answer brings leases for what leaves the reach of deep ones.
        let anywhere = !matches!(&call, Call::Do(deed) if deed.is_of_names());
        let via = if context.rng.chance(1, 3) && anywhere { Kind::Data } else { Kind::Control };
        context.note(|| format!("client{}  {uid:?} {call:?} {via:?}", self.number));
        let moves = match &call {
            Call::Do(deed) => moved_by(&deed.change(uid)),
            Call::Read(_) | Call::Look(_) | Call::Change(_) => Vec::new(),
        };
        let tag = self.ask(context, via, Asked::Op { process, uid, op, call });
        self.say_moves(context, tag, &moves);
        self.send_op(context, tag);
    }

    pub(super) fn handle_reply(
        &mut self,
        context: &mut Context,
        tag: Tag,
        values: &[Value],
        leases: &Leases,
    ) {
        let Some(Request { ticket, what: Asked::Op { process, uid, call, .. }, .. }) =
            self.requests.remove(&tag)
        else {
            return;
        };
        self.take_answer(context, ticket, leases);
        self.space_counted(tag);
        match &call {
            Call::Read(register) | Call::Look(register) => {
                let value = values.first().copied().unwrap_or_default();
                self.caches.see(*register, value);
                self.cache(context, ticket, *register, value);
                self.read_done(context, process, uid, *register, value);
            }
            Call::Change(registers) => {
                for (register, value) in registers.iter().zip(values) {
                    self.caches.see(*register, *value);
                    self.cache(context, ticket, *register, *value);
                }
                context.invariants.changed(uid, registers, values);
                self.done(context, process);
            }
            Call::Do(deed) => {
                self.deed_answered(context, ticket, uid, deed, values);
                self.done(context, process);
            }
        }
    }

    fn deed_answered(
        &mut self,
        context: &mut Context,
        ticket: Ticket,
        uid: OpUid,
        deed: &Deed,
        values: &[Value],
    ) {
        let mut found: Vec<(Register, Value)> =
            deed.registers().into_iter().zip(values.iter().copied()).collect();
        let done = values.iter().all(|value| value.stamp.by == uid && value.content != Content::Gone);
        if done {
            context.invariants.completed(uid);
            if let Some(delayed) = &mut self.delayed {
                delayed.note_through();
            }
            if let (Some(object), Some(stamp)) = (deed.makes(), values.first().map(|value| value.stamp)) {
                let blank = Value { stamp, content: Content::Blank };
                let layout = context.config.layout();
                found.extend(layout.cells_of(object).map(|register| (register, blank)));
                if layout.tree == Tree::Deep {
                    let attributes = Value { stamp, content: deed.attributes_made() };
                    found.push((Register::attributes(object), attributes));
                }
            }
            let ended = deed.ends().filter(|_| context.config.sabotage != Sabotage::KeepRemoved);
            if let Some(object) = ended {
                self.forget(crate::register::fid_of(object));
                // The answer to an operation before it may come later.
                let end = Value { stamp: Stamp { count: u32::MAX, by: uid }, content: Content::Gone };
                let gone = context.config.layout().registers_of(object);
                gone.for_each(|register| self.caches.see(register, end));
            }
        } else {
            context.invariants.failed(uid, self.holder.session(), &found);
        }
        for (register, value) in found {
            self.saw(register, value);
            self.caches.see(register, value);
            self.cache(context, ticket, register, value);
        }
    }

    fn cache(&mut self, context: &mut Context, ticket: Ticket, register: Register, value: Value) {
        // ESTALE is not cached: somebody may have it in a log, whom no lease is in the way of.
        if value == Value::MISSING {
            return;
        }
        let now = self.clock.read(context.now);
        let fid = register.fid();
        let mut holding = self.holder.cacheable(ticket, fid);
        if context.config.sabotage == Sabotage::CacheEverything {
            holding = self.holder.holding(fid);
        }
        let Some(holding) = holding else { return };
        self.caches.fill(register, value, holding);
        if let Some(value) = self.caches.daemon(register, Some(holding)) {
            self.tell_kernel(context, now, register, value);
        }
    }

    pub(super) fn read_done(
        &mut self,
        context: &mut Context,
        process: usize,
        uid: OpUid,
        register: Register,
        value: Value,
    ) {
        context.invariants.read(uid, self.holder.session(), register, value);
        self.saw(register, value);
        self.done(context, process);
    }

    pub(super) fn done(&mut self, context: &mut Context, process: usize) {
        if let Some((uid, since)) = self.processes[process].busy.take() {
            context.check_progress(uid, since);
        }
        self.think(context, process);
    }

    /// Operations that have not ended, but for locks that are waited for.
    pub fn unfinished(&self) -> impl Iterator<Item = (OpUid, Time)> {
        let processes = self.processes.iter().enumerate().filter(|(number, _)| !self.locks.waits(*number));
        processes.filter_map(|(_, process)| process.busy)
    }

    /// A change of this client on the object is on the way: its result is not known here, but others may see it.
    pub(super) fn is_changing(&self, fid: Fid) -> bool {
        self.requests.values().any(|request| match &request.what {
            Asked::Op { call: Call::Change(registers), .. } => registers.iter().any(|one| one.fid() == fid),
            Asked::Op { call: Call::Do(deed), .. } => {
                deed.changes().into_iter().any(|object| crate::register::fid_of(object) == fid)
            }
            _ => false,
        })
    }
}

impl Context {
    /// Waiting counts from the call or from the healing, whichever is later.
    fn check_progress(&mut self, uid: OpUid, since: Time) {
        if let Some(healed) = self.healed {
            let took = self.now.since(since.max(healed));
            let found = progress::check(uid, took, progress::bound(&self.config.table));
            self.invariants.report(found);
        }
    }
}
