//! A small server around the production [`Table`], with the flow of the real one: request, admission, apply to the
//! store together with the exactly-once record, finish, reply.

use crate::clock::{Clock, Time};
use crate::config::Sabotage;
use crate::context::Context;
use crate::event::{ConnId, Event, Step};
use crate::message::{Call, OpId, OpUid, Register, Standing, Tag, ToClient, ToServer, Value, first_epoch};
use crate::network::Kind;
use soda_lease::table::{Access, FenceReason, OpKey, Outcome, Output, Refusal, SessionEnded, Table};
use soda_types::{Cause, Epoch, Grant, InUse, Mode, Monotonic, RecallAck, Sequence, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Debug)]
pub struct Server {
    clock: Clock,
    disk: Disk,
    /// `None` while it is down.
    running: Option<Running>,
}

/// What survives a crash. A batch is atomic and durable as soon as it is applied.
#[derive(Debug, Default)]
struct Disk {
    starts: u64,
    sessions: BTreeSet<SessionId>,
    last_session: u64,
    registers: BTreeMap<Register, Value>,
    /// The last reply of each slot.
    replies: BTreeMap<(SessionId, usize), (Sequence, Vec<Value>)>,
}

/// What is lost in one.
#[derive(Debug)]
struct Running {
    table: Table,
    /// The control connection of each session.
    control: BTreeMap<SessionId, ConnId>,
    session_of: BTreeMap<ConnId, SessionId>,
    /// Only for the invariants.
    client_of: BTreeMap<SessionId, usize>,
    silenced: BTreeSet<SessionId>,
    /// Recalls that have been sent once.
    recalled: BTreeSet<(Epoch, Option<Mode>)>,
    ops: BTreeMap<OpKey, Operation>,
    /// Changing operations that are under way: a retry joins them.
    by_slot: BTreeMap<(SessionId, usize), OpKey>,
    last_op: u64,
    timer: u64,
    armed: Option<Monotonic>,
}

#[derive(Debug)]
struct Operation {
    session: SessionId,
    uid: OpUid,
    op: Option<OpId>,
    call: Call,
    /// Each connection over which it was asked for, the latest last.
    reply_to: Vec<(ConnId, Tag)>,
    values: Vec<Value>,
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
        let mut table = Table::new(context.config.table.clone(), first_epoch(starts), now);
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
            silenced: BTreeSet::new(),
            recalled: BTreeSet::new(),
            ops: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            last_op: 0,
            timer: 0,
            armed: None,
        });
        self.pump(context);
    }

    pub fn crash(&mut self, context: &mut Context) {
        context.note(|| "server   crashes".to_owned());
        self.running = None;
        for id in context.network.all() {
            context.break_connection(id);
        }
    }

    pub fn value(&self, register: Register) -> Value {
        self.disk.registers.get(&register).copied().unwrap_or_default()
    }

    pub fn handle(&mut self, context: &mut Context, event: Event) {
        match event {
            Event::ServerStarts if self.running.is_none() => self.start(context),
            Event::ArrivesAtServer(conn, message) | Event::CopyAtServer(conn, message) => {
                self.handle_message(context, conn, message);
            }
            Event::ResetAtServer(conn) => self.handle_reset(conn),
            Event::ServerTimer { generation } => {
                let now = self.clock.read(context.now);
                if let Some(running) = &mut self.running
                    && running.timer == generation
                {
                    running.armed = None;
                    running.table.handle_timeout(now);
                }
            }
            Event::ServerStep { life, op, step } if life == self.disk.starts => match step {
                Step::Apply => self.apply(context, op),
                Step::Finish => self.finish(context, op),
            },
            _ => {}
        }
        self.pump(context);
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
            ToServer::Hello { resume, tag } => self.hello(context, conn, resume, tag),
            ToServer::Attach { session } => {
                running.session_of.insert(conn, session);
            }
            ToServer::Renew { tag } => {
                let reply = match session.map(|session| running.traffic(context, now, session)) {
                    Some(Ok(())) => ToClient::Renewed { tag },
                    _ => ToClient::SessionEnded { tag },
                };
                context.send_to_client(conn, reply);
            }
            ToServer::Request { tag, session, uid, op, call } => {
                self.request(context, (conn, tag), session, uid, op, call);
            }
            ToServer::Reclaim { tag, held } => {
                let Some(session) = session else { return };
                let answers = running.traffic(context, now, session);
                let answers = answers.and_then(|()| running.table.handle_reclaim(now, session, &held));
                let Ok(answers) = answers else {
                    context.send_to_client(conn, ToClient::SessionEnded { tag });
                    return;
                };
                running.table.finish_reclaim(now, session);
                check_epochs(context, answers.iter().flatten());
                context.send_to_client(conn, ToClient::Reclaimed { tag, answers });
            }
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
                    self.forget_session(session);
                    let Some(running) = &mut self.running else { return };
                    running.table.close_session(now, session);
                }
                context.break_connection(conn);
            }
            ToServer::Progress(fids) => {
                if let Some(session) = session {
                    let _ = running.traffic(context, now, session);
                    running.table.handle_progress(now, session, &fids);
                }
            }
        }
    }

    fn hello(&mut self, context: &mut Context, conn: ConnId, resume: Option<SessionId>, tag: Tag) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let known = resume.filter(|session| running.traffic(context, now, *session).is_ok());
        let (session, standing) = match known {
            Some(session) if running.table.grace_left(now).is_some() => (session, Standing::Reclaim),
            Some(session) => {
                running.table.handle_reconnect(now, session);
                (session, Standing::Resumed)
            }
            None => {
                self.disk.last_session += 1;
                let session = SessionId(self.disk.last_session);
                self.disk.sessions.insert(session);
                running.table.open_session(now, session);
                (session, Standing::New)
            }
        };
        // Also the newer one, if the hellos come in the wrong order: then the client has to try again.
        if let Some(old) = running.control.insert(session, conn) {
            context.break_connection(old);
        }
        let Some(running) = &mut self.running else { return };
        running.session_of.insert(conn, session);
        if let Some(client) = context.network.client_of(conn) {
            running.client_of.insert(session, client);
        }
        let term = context.config.table.session_term;
        context.send_to_client(conn, ToClient::Welcome { tag, session, standing, term });
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
            match self.disk.replies.get(&(session, op.slot)) {
                Some((sequence, values)) if *sequence == op.sequence => {
                    let reply =
                        ToClient::Reply { tag: reply_to.1, values: values.clone(), grants: Vec::new() };
                    context.send_to_client(reply_to.0, reply);
                    return;
                }
                Some((sequence, _)) if *sequence > op.sequence => return,
                _ => {}
            }
        }
        let accesses = accesses(&call, context.network.kind_of(reply_to.0));
        running.last_op += 1;
        let key = OpKey(running.last_op);
        if let Some(op) = op {
            running.by_slot.insert((session, op.slot), key);
        }
        let operation = Operation { session, uid, op, call, reply_to: vec![reply_to], values: Vec::new() };
        running.ops.insert(key, operation);
        running.table.request(now, session, key, accesses);
    }

    fn apply(&mut self, context: &mut Context, key: OpKey) {
        let Some(running) = &mut self.running else { return };
        let Some(operation) = running.ops.get_mut(&key) else { return };
        match &operation.call {
            Call::Read(register) => {
                operation.values = vec![self.disk.registers.get(register).copied().unwrap_or_default()];
            }
            Call::Change(registers) => {
                for register in registers {
                    let value = self.disk.registers.entry(*register).or_default();
                    *value += 1;
                    operation.values.push(*value);
                    context.invariants.applied(operation.uid, *register, *value);
                }
                if let Some(op) = operation.op
                    && context.config.sabotage != Sabotage::ForgetReplies
                {
                    let reply = (op.sequence, operation.values.clone());
                    self.disk.replies.insert((operation.session, op.slot), reply);
                }
            }
        }
        let values = operation.values.clone();
        context.trace.mix(values.iter().sum());
        context.note(|| format!("server   {key:?} {:?} applied: {values:?}", operation.uid));
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
        let grants = running.table.finish(now, key, Outcome::Applied);
        check_epochs(context, grants.iter());
        context.note(|| {
            format!("server > {:?} {:?} {:?} {grants:?}", operation.session, operation.uid, operation.values)
        });
        // The first may be gone, the latest may be late: whoever still listens hears of the result.
        for (conn, tag) in operation.reply_to {
            let reply = ToClient::Reply { tag, values: operation.values.clone(), grants: grants.clone() };
            context.send_to_client(conn, reply);
        }
    }

    /// Carries out what the table wants, and sets the timer.
    fn pump(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        let life = self.disk.starts;
        while let Some(output) = self.running.as_mut().and_then(|running| running.table.poll_output()) {
            context.note(|| format!("server   {output:?}"));
            let Some(running) = &mut self.running else { return };
            match output {
                Output::Admit(op) => {
                    let mean = if context.rng.chance(1, 100) { 50_000 } else { 100 };
                    let delay = context.about(Duration::from_micros(mean));
                    context.after(delay, Event::ServerStep { life, op, step: Step::Apply });
                }
                Output::Refuse(op, Refusal::SessionEnded) => {
                    if let Some(operation) = running.ops.remove(&op) {
                        if let Some(op) = operation.op {
                            running.by_slot.remove(&(operation.session, op.slot));
                        }
                        for (conn, tag) in operation.reply_to {
                            context.send_to_client(conn, ToClient::SessionEnded { tag });
                        }
                    }
                }
                Output::Recall { session, recall } => {
                    if context.config.sabotage == Sabotage::SkipAckWait {
                        let ack = RecallAck {
                            fid: recall.fid,
                            epoch: recall.epoch,
                            kept: recall.to,
                            in_use: InUse::No,
                            uses: 0,
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
                    self.forget_session(session);
                }
                Output::SessionInUse { .. } => {}
            }
        }
        self.sabotage_table(context, now);
        let Some(running) = &mut self.running else { return };
        let wake = running.table.poll_timeout();
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

    /// Mistakes that are made between the table and its driver.
    fn sabotage_table(&mut self, context: &mut Context, now: Monotonic) {
        let Some(running) = &mut self.running else { return };
        if context.config.sabotage != Sabotage::FenceAtOnce {
            return;
        }
        // Whoever leaves a recall unanswered for a third of the deadline is thrown out, expired or not.
        let patience = context.config.table.recall_deadline / 3;
        let silent: Vec<SessionId> = running
            .table
            .leases(now, usize::MAX)
            .iter()
            .filter(|lease| lease.holder.recalled_for.is_some_and(|waited| waited > patience))
            .map(|lease| lease.holder.session)
            .collect();
        for session in silent {
            self.forget_session(session);
            if let Some(running) = &mut self.running {
                running.table.close_session(now, session);
            }
        }
    }

    /// The session has ended, and that is on disk before anything else is done.
    fn forget_session(&mut self, session: SessionId) {
        self.disk.sessions.remove(&session);
        self.disk.replies.retain(|(of, _), _| *of != session);
        if let Some(running) = &mut self.running {
            running.control.remove(&session);
            running.session_of.retain(|_, of| *of != session);
        }
    }

    /// Of this life of the table.
    pub fn counters(&self) -> soda_lease::table::Counters {
        self.running.as_ref().map(|running| running.table.counters()).unwrap_or_default()
    }
}

fn accesses(call: &Call, conn: Option<Kind>) -> Vec<Access> {
    let accesses = match call {
        Call::Read(register) => vec![Access::read(register.fid())],
        Call::Change(registers) => {
            registers.iter().map(|register| Access::change(register.fid(), Cause::Data)).collect()
        }
    };
    match conn {
        Some(Kind::Control) => accesses,
        // Grants only go with replies on the control connection.
        Some(Kind::Data) | None => accesses.into_iter().map(Access::without_lease).collect(),
    }
}

fn check_epochs<'a>(context: &mut Context, grants: impl Iterator<Item = &'a Grant>) {
    let epochs: Vec<Epoch> = grants.map(|grant| grant.epoch).collect();
    for epoch in epochs {
        context.invariants.granted(epoch);
    }
}
