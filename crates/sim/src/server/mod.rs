//! A small server around the production [`LeaseTable`], with the flow of the real one: request, admission, apply to the
//! store together with the exactly-once record, finish, reply. Digests are in [`digests`], the store in
//! [`disk`], the coming and going of clients in [`sessions`].

mod digests;
mod disk;
mod inquiries;
mod locks;
mod mistakes;
mod places;
mod room;
mod sessions;
mod syncs;

use crate::clock::{Clock, Time};
use crate::context::Context;
use crate::deed::Obstacle;
use crate::event::{ConnId, Event, Step};
use crate::message::{Call, DigestCall, Leases, OpId, Tag, ToClient, ToServer, first_epoch};
use crate::network::Kind;
use crate::register::{OpUid, Register, Value, fid_of};
use crate::sabotage::Sabotage;
use digests::Lines;
use disk::Disk;
use locks::Locks;
use places::Watched;
use room::{SetAside, reply};
use sessions::check_epochs;
use soda_lease::space::Taking;
use soda_lease::table::{
    FenceReason, LeaseTable, OpKey, Outcome, Output, Refusal, SessionEnded, TreeChanges,
};
use soda_types::{Epoch, InUse, Mode, Monotonic, RecallAck, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use syncs::{Sync, UnderWay};

#[derive(Debug)]
pub struct Server {
    clock: Clock,
    disk: Disk,
    /// `None` while it is down.
    running: Option<Running>,
}

/// What is lost in one.
#[derive(Debug)]
struct Running {
    table: LeaseTable,
    /// The control connection of each session.
    control: BTreeMap<SessionId, ConnId>,
    session_of: BTreeMap<ConnId, SessionId>,
    /// Only for the invariants.
    client_of: BTreeMap<SessionId, usize>,
    /// How often the client of a session had started when it said so last.
    lives: BTreeMap<SessionId, u64>,
    /// Those that tell what they had before a restart.
    reclaiming: BTreeSet<SessionId>,
    silenced: BTreeSet<SessionId>,
    /// Recalls that have been sent once.
    recalled: BTreeSet<(Epoch, Option<Mode>)>,
    ops: BTreeMap<OpKey, Operation>,
    /// Changing operations that are under way: a retry joins them.
    by_slot: BTreeMap<(SessionId, usize), OpKey>,
    lines: Lines,
    syncs: BTreeMap<OpKey, UnderWay>,
    locks: Locks,
    set_aside: SetAside,
    last_op: u64,
    timer: u64,
    armed: Option<Monotonic>,
    /// For [`Sabotage::KeepDescriptions`].
    descriptions: BTreeMap<Register, Value>,
}

#[derive(Debug)]
struct Operation {
    session: SessionId,
    uid: OpUid,
    op: Option<OpId>,
    work: Work,
    /// Each connection over which it was asked for, the latest last.
    reply_to: Vec<(ConnId, Tag)>,
    values: Vec<Value>,
    outcome: Outcome,
    /// The kind of connection that it came on.
    via: Option<Kind>,
    /// What has moved.
    tree: TreeChanges,
    /// The space that it may take.
    taking: Option<Taking>,
}

#[derive(Debug)]
enum Work {
    Call(Call),
    Digest(DigestCall),
}

impl Running {
    /// Renews the session, unless its end has been decided: the fence comes when somebody needs what it holds.
    fn traffic(
        &mut self,
        context: &mut Context,
        now: Monotonic,
        session: SessionId,
    ) -> Result<(), SessionEnded> {
        let renewed = self.table.handle_traffic(now, session);
        if renewed.is_err() && self.table.has_session(session) && self.table.grace_left(now).is_none() {
            self.silenced(context, session);
        }
        renewed
    }

    /// The session ends because it was silent; reported once, when the client is told or when it is fenced.
    fn silenced(&mut self, context: &mut Context, session: SessionId) {
        let client = self.client_of.get(&session);
        // A session of an earlier life of the client, kept up by a message that came late, harms nobody.
        let is_newest = self.client_of.iter().all(|(other, of)| Some(of) != client || *other <= session);
        if self.silenced.insert(session)
            && is_newest
            && let Some(client) = client
        {
            context.fenced_for_silence(*client);
        }
    }
}

impl Server {
    pub fn new(clock: Clock) -> Server {
        Server { clock, disk: Disk::default(), running: None }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts, for the first time or after a crash.
    pub fn start(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        self.disk.starts += 1;
        let starts = if context.config.sabotage == Sabotage::EpochsStartAnew { 1 } else { self.disk.starts };
        let mut table = LeaseTable::new(context.config.table.clone(), first_epoch(starts), now);
        if context.config.sabotage == Sabotage::NoGrace {
            self.disk.sessions.iter().for_each(|session| table.open_session(now, *session));
        } else {
            table.begin_grace(now, self.disk.sessions.iter().copied());
        }
        context.note(|| format!("server   starts for the {}. time, knows {:?}", starts, self.disk.sessions));
        self.running = Some(Running {
            table,
            control: BTreeMap::new(),
            session_of: BTreeMap::new(),
            client_of: BTreeMap::new(),
            lives: BTreeMap::new(),
            reclaiming: BTreeSet::new(),
            silenced: BTreeSet::new(),
            recalled: BTreeSet::new(),
            ops: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            lines: Lines::default(),
            syncs: BTreeMap::new(),
            locks: Locks::default(),
            set_aside: self.restore_set_aside(context),
            last_op: 0,
            timer: 0,
            armed: None,
            descriptions: BTreeMap::new(),
        });
        if let Some(behind) = context.config.delayed() {
            context.after(behind.sync_every, Event::ServerSyncs { life: self.disk.starts });
        }
        self.pump(context);
    }

    pub fn crash(&mut self, context: &mut Context, power: Power) {
        context.note(|| format!("server   crashes: {power:?}"));
        self.running = None;
        if power == Power::Cut {
            self.disk.power_cut();
        }
        for id in context.network.all() {
            context.break_connection(id);
        }
    }

    pub fn value(&self, register: Register) -> Value {
        self.disk.value(register)
    }

    pub fn handle(&mut self, context: &mut Context, event: Event) {
        match event {
            Event::ServerStarts if self.running.is_none() => self.start(context),
            Event::ArrivesAtServer(conn, message) | Event::CopyAtServer(conn, message) => {
                self.handle_message(context, conn, message);
            }
            Event::ResetAtServer(conn) => {
                self.handle_reset(conn);
                self.forget_lock_waits_on(context, conn);
            }
            Event::ServerTimer { generation } => {
                let now = self.clock.read(context.now);
                if let Some(running) = &mut self.running
                    && running.timer == generation
                {
                    running.armed = None;
                    running.table.handle_timeout(now);
                    self.contest_locks(now);
                }
            }
            Event::ServerSyncs { life } if life == self.disk.starts && self.running.is_some() => {
                self.disk.sync();
                if let Some(behind) = context.config.delayed() {
                    context.after(behind.sync_every, Event::ServerSyncs { life });
                }
            }
            Event::ServerStep { life, op, step } if life == self.disk.starts => match step {
                Step::Apply => self.apply(context, op),
                Step::Finish => self.finish(context, op),
                Step::Sync => self.end_sync(context, op),
            },
            _ => {}
        }
        if context.config.delayed().is_none() {
            self.disk.sync();
        }
        self.pump(context);
        self.check_room(context);
    }

    fn handle_reset(&mut self, conn: ConnId) {
        let Some(running) = &mut self.running else { return };
        // What was read from it before may still be looked at, so it keeps its session.
        if let Some(session) = running.session_of.get(&conn)
            && running.control.get(session) == Some(&conn)
        {
            running.control.remove(session);
        }
    }

    fn handle_message(&mut self, context: &mut Context, conn: ConnId, message: ToServer) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let session = running.session_of.get(&conn).copied();
        context.note(|| format!("server < {session:?} {message:?}"));
        match message {
            // A connection begins once.
            ToServer::Hello { .. } | ToServer::Attach { .. } if session.is_some() => {}
            ToServer::Hello { resume, life, widest, tag } => {
                self.hello(context, (conn, tag), resume, life, widest);
            }
            ToServer::Attach { session } => {
                running.session_of.insert(conn, session);
            }
            ToServer::Renew { tag } => {
                let renewed = session.filter(|session| running.traffic(context, now, *session).is_ok());
                let reply = match renewed {
                    Some(session) => ToClient::Renewed { tag, durable: self.disk.durable(session) },
                    None => ToClient::SessionEnded { tag },
                };
                context.send_to_client(conn, reply);
            }
            ToServer::Sync { tag, after, uids } => {
                let renewed = session.filter(|session| running.traffic(context, now, *session).is_ok());
                let Some(session) = renewed else {
                    context.send_to_client(conn, ToClient::SessionEnded { tag });
                    return;
                };
                let sync = Sync { session, reply_to: (conn, tag), uids };
                match after {
                    Some(digest) => self.sync_along(context, sync, digest),
                    None => self.sync(context, sync),
                }
            }
            ToServer::Digest { tag, session, digest } => {
                self.digest(context, (conn, tag), session, digest);
            }
            ToServer::Request { tag, session, uid, op, call } => {
                self.request(context, (conn, tag), session, uid, op, call);
            }
            ToServer::Reclaim { tag, claims, locks, step } => {
                if let Some(session) = session {
                    self.reclaim(context, (conn, tag), session, (claims.as_slice(), locks.as_slice()), step);
                }
            }
            ToServer::Reserve { tag, inodes, bytes } => self.reserve(context, (conn, tag), (inodes, bytes)),
            ToServer::Lock { tag, object, call } => self.lock_call(context, (conn, tag), object, call),
            ToServer::Acks(acks) => {
                if let Some(session) = session {
                    let _ = running.traffic(context, now, session);
                    running.table.handle_acks(now, session, &acks);
                }
            }
            ToServer::Release(acks) => {
                if let Some(session) = session {
                    let _ = running.traffic(context, now, session);
                    running.table.handle_release(now, session, &acks);
                }
            }
            ToServer::Goodbye => {
                if let Some(session) = session {
                    self.forget_session(context, session);
                    let Some(running) = &mut self.running else { return };
                    running.table.close_session(now, session);
                }
                context.break_connection(conn);
            }
            ToServer::Described { number, value } => {
                if let Some(session) = session {
                    let _ = running.traffic(context, now, session);
                    self.described(context, session, OpKey(number), value);
                }
            }
            ToServer::Progress(fids) => {
                if let Some(session) = session {
                    let _ = running.traffic(context, now, session);
                    running.table.handle_progress(now, session, &fids);
                }
            }
        }
    }

    fn request(
        &mut self,
        context: &mut Context,
        reply_to: (ConnId, Tag),
        session: SessionId,
        uid: OpUid,
        op: Option<OpId>,
        call: Call,
    ) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        if running.session_of.get(&reply_to.0) != Some(&session) {
            return;
        }
        if running.traffic(context, now, session).is_err() {
            context.send_to_client(reply_to.0, ToClient::SessionEnded { tag: reply_to.1 });
            return;
        }
        if let Some(op) = op {
            if let Some(known) = running.by_slot.get(&(session, op.slot)).copied()
                && let Some(known) = running.ops.get_mut(&known)
            {
                if known.op == Some(op) {
                    known.reply_to.push(reply_to);
                }
                return;
            }
            match self.disk.reply(session, op.slot) {
                Some((sequence, values)) if *sequence == op.sequence => {
                    let reply = reply(reply_to.1, values, Leases::default());
                    return context.send_to_client(reply_to.0, reply);
                }
                Some((sequence, _)) if *sequence > op.sequence => return,
                _ => {}
            }
        }
        let looks_at = if let Call::Look(register) = &call { Some(*register) } else { None };
        if let Some(register) = looks_at
            && self.describe_again(context, reply_to, register)
        {
            return;
        }
        let Ok(taking) = self.take_space_for(context, session, &call) else {
            return self.no_space(context, reply_to, session, op);
        };
        let Some(running) = &mut self.running else { return };
        let via = context.network.kind_of(reply_to.0);
        let accesses = running.accesses(&call, via, &self.disk, context.config.layout());
        running.last_op += 1;
        let key = OpKey(running.last_op);
        if let Some(op) = op {
            running.by_slot.insert((session, op.slot), key);
        }
        let operation = Operation {
            session,
            uid,
            op,
            work: Work::Call(call),
            reply_to: vec![reply_to],
            values: Vec::new(),
            outcome: Outcome::Applied,
            via,
            tree: TreeChanges::default(),
            taking,
        };
        running.ops.insert(key, operation);
        // Should it not be described after all, it is a read with the same key.
        if looks_at.is_some() && running.table.inquire(now, session, key, &accesses[0]) {
            return;
        }
        running.table.request(now, session, key, accesses);
    }

    fn apply(&mut self, context: &mut Context, key: OpKey) {
        let (has_room, used) = (self.has_room_for(context, key), self.disk.used());
        let Some(running) = &mut self.running else { return };
        let Some(operation) = running.ops.get_mut(&key) else { return };
        let disk = &mut self.disk;
        match &operation.work {
            Work::Call(Call::Read(register) | Call::Look(register)) => {
                operation.values = vec![disk.found(*register, context.config.objects.into())];
            }
            Work::Call(Call::Change(registers)) => {
                for register in registers {
                    let mut value = disk.value(*register);
                    value.stamp.count += 1;
                    disk.set(*register, value);
                    operation.values.push(value);
                    context.invariants.applied(operation.uid, *register, value);
                }
            }
            Work::Call(Call::Do(_)) if !has_room => operation.outcome = Outcome::Failed,
            Work::Call(Call::Do(deed)) => {
                let layout = context.config.layout();
                let objects = layout.objects;
                match deed.effects(operation.uid, layout, |at| Some(disk.found(at, objects))) {
                    Ok(effects) => {
                        let watched = Watched::before(disk, layout, deed.moves().into_iter().map(fid_of));
                        effects.iter().for_each(|(register, value)| disk.set(*register, *value));
                        watched.note_moves(disk, layout, &mut operation.tree);
                        operation.tree.created.extend(deed.makes().map(|made| disk.created(made, layout)));
                        context.invariants.done_through(operation.uid, operation.session, &effects);
                    }
                    Err(Obstacle::Fails | Obstacle::Unknown) => operation.outcome = Outcome::Failed,
                }
                operation.values = deed.registers().iter().map(|at| disk.found(*at, objects)).collect();
            }
            Work::Digest(_) => {
                self.apply_digest(context, key);
                return self.step(context, key);
            }
        }
        if let Some(op) = operation.op
            && context.config.sabotage != Sabotage::ForgetReplies
        {
            let reply = (op.sequence, operation.values.clone());
            disk.set_reply(operation.session, op.slot, reply);
        }
        let values = operation.values.clone();
        context.trace.mix(values.iter().map(|value| u64::from(value.stamp.count)).sum());
        context.note(|| format!("server   {key:?} {:?} applied: {values:?}", operation.uid));
        self.note_through(context, key, used);
        self.step(context, key);
    }

    fn step(&mut self, context: &mut Context, key: OpKey) {
        let life = self.disk.starts;
        let delay = context.about(Duration::from_micros(100));
        context.after(delay, Event::ServerStep { life, op: key, step: Step::Finish });
    }

    fn finish(&mut self, context: &mut Context, key: OpKey) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let Some(operation) = running.ops.remove(&key) else { return };
        if let Some(op) = operation.op {
            running.by_slot.remove(&(operation.session, op.slot));
        }
        let Work::Call(call) = &operation.work else {
            return self.finish_digest(context, key, &operation);
        };
        let mut tree = operation.tree.clone();
        Watched::sabotage(&mut tree, context.config.sabotage);
        let mut granted = running.table.finish_tree(now, key, operation.outcome, &tree);
        check_epochs(context, granted.leases.iter());
        // Never a lease on what the operation deleted, or what was gone already: a power cut may bring it back.
        let objects = context.config.objects.into();
        for object in call.objects().into_iter().filter(|object| !self.disk.exists(*object, objects)) {
            let gone = fid_of(object);
            granted.leases.retain(|grant| grant.fid != gone);
            granted.covered.retain(|covered| covered.fid != gone);
            running.give_up_lease(now, operation.session, gone);
        }
        let mut leases = running.leases(operation.session, granted);
        if let Call::Read(register) = call
            && context.config.sabotage == Sabotage::ForgetHoles
        {
            self.forget_holes(context, operation.session, register.fid(), &mut leases);
        }
        context.note(|| {
            format!("server > {:?} {:?} {:?} {leases:?}", operation.session, operation.uid, operation.values)
        });
        // The first may be gone, the latest may be late: whoever still listens hears of the result.
        for (conn, tag) in operation.reply_to {
            let by_control = context.network.kind_of(conn) != Some(Kind::Data);
            // Words of deep leases only go with replies on the control connection.
            let covered = if by_control { leases.covered.clone() } else { Vec::new() };
            let leases = Leases { grants: leases.grants.clone(), covered };
            context.send_to_client(conn, reply(tag, &operation.values, leases));
        }
    }

    fn begin(&mut self, context: &mut Context, op: OpKey) {
        if let Some(operation) = self.running.as_ref().and_then(|running| running.ops.get(&op)) {
            context.invariants.begun(operation.uid, operation.session);
        }
        let mean = if context.rng.chance(1, 100) { 50_000 } else { 100 };
        let delay = context.about(Duration::from_micros(mean));
        let life = self.disk.starts;
        context.after(delay, Event::ServerStep { life, op, step: Step::Apply });
    }

    fn refused(&mut self, context: &mut Context, key: OpKey, refusal: Refusal) {
        let Some(running) = &mut self.running else { return };
        let Some(operation) = running.ops.remove(&key) else { return };
        if let Some(op) = operation.op {
            running.by_slot.remove(&(operation.session, op.slot));
        }
        if let Work::Digest(digest) = &operation.work {
            return self.digest_refused(context, digest.id, &operation, refusal);
        }
        for (conn, tag) in operation.reply_to {
            match refusal {
                Refusal::SessionEnded => context.send_to_client(conn, ToClient::SessionEnded { tag }),
                // It comes again on the next connection.
                Refusal::NotHeld(_) | Refusal::Unplaced(_) => context.break_connection(conn),
            }
        }
    }

    /// Carries out what the table wants, and sets the timer.
    fn pump(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        while let Some(output) = self.running.as_mut().and_then(|running| running.table.poll_output()) {
            context.note(|| format!("server   {output:?}"));
            let Some(running) = &mut self.running else { return };
            match output {
                Output::Admit(op) => self.begin(context, op),
                Output::Refuse(op, Refusal::SessionEnded)
                    if context.config.sabotage == Sabotage::CarryOutRefused =>
                {
                    self.begin(context, op);
                }
                Output::Refuse(op, refusal) => self.refused(context, op, refusal),
                Output::Recall { session, recall } => {
                    if context.config.sabotage == Sabotage::SkipAckWait {
                        let ack = RecallAck {
                            fid: recall.fid,
                            epoch: recall.epoch,
                            kept: recall.to,
                            in_use: InUse::No,
                            uses: 0,
                            part: recall.part,
                        };
                        running.table.handle_acks(now, session, &[ack]);
                    }
                    let again = !running.recalled.insert((recall.epoch, recall.to));
                    if again && context.config.sabotage == Sabotage::NoResend {
                        continue;
                    }
                    if let Some(conn) = running.control.get(&session) {
                        context.send_to_client(*conn, ToClient::Recall(recall));
                    }
                }
                Output::Fence { session, reason } => {
                    if matches!(reason, FenceReason::Silent(_)) {
                        running.silenced(context, session);
                    }
                    self.forget_session(context, session);
                }
                Output::Inquire { session, op, .. } => self.send_inquiry(context, session, op),
                Output::NotDescribed(op) => self.not_described(context, now, op),
                Output::SessionInUse { .. } => {}
            }
        }
        self.sabotage_table(context, now);
        let Some(running) = &mut self.running else { return };
        let wake = running.table.poll_timeout().into_iter().chain(running.locks.wake).min();
        if wake != running.armed {
            running.armed = wake;
            running.timer += 1;
            let generation = running.timer;
            if let Some(wake) = wake {
                let at: Time = self.clock.when(wake);
                context.schedule(at, Event::ServerTimer { generation });
            }
        }
    }

    /// Of this life of the table.
    pub fn counters(&self) -> soda_lease::table::Counters {
        self.running.as_ref().map(|running| running.table.counters()).unwrap_or_default()
    }
}

/// Of connections on which nothing may be done any more.
const NO_SESSION: SessionId = SessionId(0);

/// What a crash of the server takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Power {
    /// What the process had in its memory.
    Stays,
    /// What was not synced, too.
    Cut,
}
