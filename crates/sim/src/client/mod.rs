//! A small client around the production [`Holder`], with the rules of the real one: what is cached is used only while
//! the lease is valid; the kernel is told no more than what is left of it and is cleaned before a recall is answered;
//! requests are repeated over new connections until they are answered.

mod answers;
mod caches;
mod delayed;
mod link;
mod locks;
mod programs;

use crate::clock::Clock;
use crate::config::SimConfig;
use crate::context::Context;
use crate::event::{ConnId, Event};
use crate::message::{Call, Claim, Leases, LockCall, OpId, Tag, ToClient, ToServer};
use crate::network::Kind;
use crate::register::{Object, OpUid};
use crate::sabotage::Sabotage;
use caches::Caches;
use delayed::{Delayed, Mark};
use link::Link;
use locks::FileLocks;
pub use locks::excludes;
use programs::Process;
use soda_lease::holder::HandedLeases;
use soda_lease::{DriftMargin, Holder, HolderConfig, Ticket};
use soda_oplog::reserve::Question;
use soda_protocol::{Lsn, ReclaimStep};
use soda_types::{Coverage, Fid, Grant, Mode, Monotonic, SessionId};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug)]
pub struct Client {
    number: usize,
    clock: Clock,
    /// Grows with every crash: what was planned before is void.
    life: u64,
    power: Power,
    holder: Holder,
    /// How often another process has gone on: what the one before was working on is void.
    process: u64,
    /// What the next one takes over, if that is a mistake.
    written_down: Option<(SessionId, HandedLeases)>,
    caches: Caches,
    /// With delayed writes.
    delayed: Option<Delayed>,
    locks: FileLocks,
    link: Link,
    data: Option<ConnId>,
    requests: BTreeMap<Tag, Request>,
    processes: Vec<Process>,
    last_tag: u64,
    timer: u64,
    armed: Option<Monotonic>,
    /// While recalls are worked on: when the server hears of that next.
    progress_at: Option<Monotonic>,
}

/// How often the server hears that work on a recall is getting on.
const PROGRESS: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Power {
    On,
    /// Recalls are not worked on (a kernel that hangs), all else goes on.
    Stuck,
    Off,
}

/// A request that is not answered.
#[derive(Debug)]
struct Request {
    ticket: Ticket,
    via: Kind,
    what: Asked,
}

#[derive(Clone, Debug)]
enum Asked {
    Op {
        process: usize,
        uid: OpUid,
        op: Option<OpId>,
        call: Call,
    },
    /// fsync of the object, as it was at this record of the log.
    Sync {
        process: usize,
        uid: OpUid,
        object: Object,
        up_to: Lsn,
        mark: Mark,
    },
    /// A sync along with a digest, for those who wait for that.
    Along(Mark),
    Digest,
    Lock(Object, LockCall),
    /// After a crash: that the server's disk has all that was left in the log.
    Settle(Mark),
    Renew,
    /// That so many numbers and bytes are set aside.
    Reserve(Question, u32, u64),
    Reclaim(Vec<Claim>, ReclaimStep),
}

/// Whether programs begin new operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    GoesOn,
    Ends,
}

impl Client {
    pub fn new(number: usize, clock: Clock, config: &SimConfig) -> Client {
        Client {
            number,
            clock,
            life: 0,
            power: Power::On,
            holder: new_holder(config),
            process: 0,
            written_down: None,
            caches: Caches::default(),
            delayed: config.delayed().map(|behind| Delayed::new(behind, number)),
            locks: FileLocks::default(),
            link: Link::Down,
            data: None,
            requests: BTreeMap::new(),
            processes: (0..config.processes).map(|_| Process::default()).collect(),
            last_tag: 0,
            timer: 0,
            armed: None,
            progress_at: None,
        }
    }

    pub fn start(&mut self, context: &mut Context) {
        context.note(|| format!("client{}  starts", self.number));
        self.life += 1;
        self.power = Power::On;
        self.connect(context);
        for process in 0..self.processes.len() {
            self.think(context, process);
        }
    }

    pub fn stop(&mut self, context: &mut Context, how: End) {
        // Who has not sent everything does not say goodbye; nor he whose fsync was content with his log, before the server's
        // disk has it.
        let is_told = if context.syncs_here() { Delayed::is_durable } else { Delayed::is_clean };
        let unsent = self.delayed.as_ref().is_some_and(|delayed| !is_told(delayed));
        let how = if unsent && how == End::Goodbye { End::Crash } else { how };
        context.note(|| format!("client{}  ends: {how:?}", self.number));
        self.life += 1;
        self.power = Power::Off;
        self.holder = new_holder(&context.config);
        self.caches = Caches::default();
        self.locks = FileLocks::default();
        if how == End::Goodbye {
            self.tell(context, ToServer::Goodbye);
        }
        if let Some(delayed) = &mut self.delayed {
            match how {
                End::Crash => delayed.crash(context),
                End::PowerCut => {
                    delayed.lose_unsynced(context);
                    delayed.crash(context);
                }
                End::Goodbye => delayed.lose_log(context),
            }
        }
        self.link = Link::Down;
        self.data = None;
        self.requests.clear();
        self.armed = None;
        for process in &mut self.processes {
            process.forget(context);
        }
        if how != End::Goodbye {
            for id in context.network.connections_of(self.number) {
                context.break_connection(id);
            }
        }
    }

    pub fn is_on(&self) -> bool {
        self.power != Power::Off
    }

    pub fn set_stuck(&mut self, stuck: Stuck) {
        self.power = match (self.power, stuck) {
            (Power::Off, _) => Power::Off,
            (_, Stuck::Yes) => Power::Stuck,
            (_, Stuck::No) => Power::On,
        };
    }

    /// What this client believes it may do with the object, by its own clock.
    pub fn valid_mode(&self, context: &Context, fid: Fid) -> Option<Mode> {
        let now = self.clock.read(context.now);
        [Mode::Write, Mode::Read].into_iter().find(|mode| self.holder.valid_until(now, fid, *mode).is_some())
    }

    pub fn handle(&mut self, context: &mut Context, work: Work, event: Event) {
        match event {
            Event::ClientStarts { .. } if self.power == Power::Off => self.start(context),
            Event::ArrivesAtClient(conn, message) => self.handle_message(context, conn, message),
            Event::ResetAtClient { conn, .. } => self.handle_reset(context, conn),
            Event::Connect { life, .. } if life == self.life => self.connect(context),
            Event::ConnectGivesUp { life, conn, .. } if life == self.life && self.link.is_beginning(conn) => {
                context.break_connection(conn);
            }
            Event::ConnectData { life, .. } if life == self.life => self.connect_data(context),
            Event::ClientTimer { life, generation, .. } if life == self.life && generation == self.timer => {
                self.armed = None;
                self.report_progress(context);
                self.renew(context);
            }
            Event::Think { life, process, .. } if life == self.life => self.act(context, work, process),
            Event::LockAgain { life, tag, .. } if life == self.life => self.send_op(context, tag),
            Event::CachesDropped { life, dropping, .. }
                if life == self.life && dropping.process == self.process =>
            {
                if self.power == Power::Stuck {
                    let again = Event::CachesDropped { client: self.number, life, dropping };
                    context.after(Duration::from_millis(500), again);
                    return;
                }
                self.caches_dropped(context, dropping);
            }
            _ => {}
        }
        self.pump_delayed(context);
        self.arm(context);
    }

    fn handle_message(&mut self, context: &mut Context, conn: ConnId, message: ToClient) {
        context.note(|| format!("client{} < {message:?}", self.number));
        let current = self.data == Some(conn) || self.link.control() == Some(conn);
        match message {
            ToClient::Welcome { tag, session, standing, term, boot, stored } => {
                self.welcome(context, (conn, tag), session, (standing, term), (boot, stored));
            }
            ToClient::Recall(recall) if current => self.handle_recall(context, &recall),
            _ if !current => {}
            ToClient::SessionEnded { tag } if self.requests.contains_key(&tag) => self.lose_session(context),
            ToClient::Renewed { tag, durable } => {
                if let Some(request) = self.requests.remove(&tag) {
                    self.take_answer(context, request.ticket, &Leases::default());
                    self.handle_durable(durable);
                }
            }
            ToClient::Synced { tag, durable } => self.handle_synced(context, tag, durable),
            ToClient::SyncOutOfTurn { tag } => self.handle_sync_out_of_turn(context, tag),
            ToClient::Digested { tag, leases } => self.handle_digested(context, tag, &leases),
            ToClient::DigestRefused { tag } => self.handle_digest_refused(context, tag),
            ToClient::DigestUndone { tag, why } => self.handle_digest_undone(context, tag, why),
            ToClient::Reclaimed { tag, answers, lost } => {
                self.lose_locks(&lost);
                self.handle_reclaimed(context, tag, &answers);
            }
            ToClient::Locked { tag, answer } => self.handle_lock_answer(context, tag, answer),
            ToClient::RecallLocks { object, epoch } => self.handle_lock_recall(context, object, epoch),
            ToClient::Inquiry { number, register } => self.handle_inquiry(context, number, register),
            ToClient::Described { tag, value } => self.handle_described(context, tag, value),
            ToClient::NoSpace { tag } => self.handle_no_space(context, tag),
            ToClient::Reserved { tag, numbers, bytes } => self.handle_reserved(context, tag, numbers, bytes),
            ToClient::Reply { tag, values, leases } => self.handle_reply(context, tag, &values, &leases),
            _ => {}
        }
    }

    fn lose_session(&mut self, context: &mut Context) {
        context.note(|| format!("client{}  has lost its session", self.number));
        let now = self.clock.read(context.now);
        self.holder.handle_session_lost(now);
        self.after_session_lost(context);
        for id in context.network.connections_of(self.number) {
            context.break_connection(id);
        }
    }

    /// Nothing cached is covered any more. What was being changed may or may not have been: programs get EIO. What was
    /// being read is read again under the next session.
    fn after_session_lost(&mut self, context: &mut Context) {
        self.caches.drop_all();
        let mut given_up = self.lose_all_locks();
        if let Some(delayed) = &mut self.delayed {
            given_up.extend(delayed.waiting_for_room());
            delayed.lose_log(context);
        }
        self.forget_renewals();
        let now = self.clock.read(context.now);
        let mut again = Vec::new();
        for (tag, request) in std::mem::take(&mut self.requests) {
            match request.what {
                Asked::Op { process, op: Some(_), .. } | Asked::Sync { process, .. } => {
                    given_up.push(process)
                }
                Asked::Lock(_, LockCall::Set(lock, _) | LockCall::Release(lock)) => {
                    given_up.push(lock.owner.0 as usize);
                }
                Asked::Reserve(question, ..) => self.handle_reserve_failed(now, question),
                Asked::Digest | Asked::Along(_) | Asked::Settle(_) | Asked::Lock(_, LockCall::Return(..)) => {
                }
                _ => again.push((tag, Request { ticket: self.holder.begin_request(now), ..request })),
            }
        }
        self.requests.extend(again);
        for process in given_up {
            self.processes[process].forget(context);
            self.think(context, process);
        }
    }

    /// Sends what is not answered over the connection that there is now.
    fn send_again(&mut self, context: &mut Context, via: Kind) {
        let tags: Vec<Tag> = self
            .requests
            .iter()
            .filter(|(_, request)| request.via == via)
            .filter(|(_, request)| {
                matches!(
                    request.what,
                    Asked::Op { .. }
                        | Asked::Sync { .. }
                        | Asked::Settle(_)
                        | Asked::Reserve(..)
                        | Asked::Lock(..)
                )
            })
            .map(|(tag, _)| *tag)
            .collect();
        for tag in tags {
            self.send_op(context, tag);
        }
    }

    fn send_op(&mut self, context: &mut Context, tag: Tag) {
        if self.must_wait(context, tag) {
            if let Some(delayed) = &mut self.delayed {
                delayed.hold_back(tag);
            }
            return;
        }
        self.count_space(context, tag);
        let Some(Request { via, what, .. }) = self.requests.get(&tag) else { return };
        let conn = match (via, &self.link) {
            (Kind::Control, Link::Up(conn)) => Some(*conn),
            (Kind::Data, _) => self.data,
            _ => None,
        };
        let (Some(conn), Some(session)) = (conn, self.holder.session()) else { return };
        let message = match what {
            Asked::Op { uid, op, call, .. } => {
                ToServer::Request { tag, session, uid: *uid, op: *op, call: call.clone() }
            }
            Asked::Sync { uid, .. } => ToServer::Sync { tag, after: None, uids: vec![*uid] },
            Asked::Settle(_) => ToServer::Sync { tag, after: None, uids: Vec::new() },
            Asked::Lock(object, call) => {
                let (object, call) = (*object, call.clone());
                ToServer::Lock { tag, object, call }
            }
            Asked::Reserve(_, inodes, bytes) => ToServer::Reserve { tag, inodes: *inodes, bytes: *bytes },
            Asked::Digest | Asked::Along(_) | Asked::Renew | Asked::Reclaim(..) => return,
        };
        context.send_to_server(conn, message);
    }

    fn ask(&mut self, context: &mut Context, via: Kind, what: Asked) -> Tag {
        let tag = self.next_tag();
        let ticket = self.holder.begin_request(self.clock.read(context.now));
        self.requests.insert(tag, Request { ticket, via, what });
        tag
    }

    fn tell(&mut self, context: &mut Context, message: ToServer) {
        if let Some(conn) = self.link.control() {
            context.send_to_server(conn, message);
        }
    }

    fn next_tag(&mut self) -> Tag {
        self.last_tag += 1;
        Tag(self.last_tag)
    }

    // ------------------------------------------------------------------------------------------------------- leases

    fn renew(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        let Link::Up(conn) = self.link else { return };
        if now < self.holder.renew_at() {
            return;
        }
        let pending = self.requests.values().find(|request| matches!(request.what, Asked::Renew));
        if let Some(pending) = pending {
            // The connection is silent for too long: try another one.
            if now.since(pending.ticket.sent_at()) > context.config.table.session_term / 2 {
                context.break_connection(conn);
            }
            return;
        }
        let tag = self.ask(context, Kind::Control, Asked::Renew);
        context.send_to_server(conn, ToServer::Renew { tag });
    }

    /// However busy it is otherwise: whoever renews its session by other requests works on recalls all the same.
    fn report_progress(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        if self.power == Power::On && self.progress_at.is_some_and(|at| at <= now) {
            self.progress_at = None;
            let working_on = self.working_on();
            self.tell(context, ToServer::Progress(working_on));
        }
    }

    /// When the server has to hear that recalls are worked on.
    fn progress_due(&mut self, now: Monotonic) -> Option<Monotonic> {
        if self.working_on().is_empty() {
            self.progress_at = None;
            return None;
        }
        let at = *self.progress_at.get_or_insert(now + PROGRESS);
        (self.power == Power::On).then_some(at)
    }

    fn take_answer(&mut self, context: &mut Context, ticket: Ticket, leases: &Leases) {
        let now = self.clock.read(context.now);
        let deep = leases.covered.iter().map(|(lease, _)| *lease);
        let grants: Vec<Grant> = leases.grants.iter().copied().chain(deep).collect();
        let covered: Vec<Coverage> = leases.covered.iter().map(|(_, covered)| covered.clone()).collect();
        if context.config.sabotage == Sabotage::CountFromReply {
            self.holder.fail_request(ticket);
            let late = self.holder.begin_request(now);
            self.holder.handle_reply(now, late, &grants);
            return;
        }
        self.holder.handle_reply_covered(now, ticket, &grants, &covered);
    }

    /// Operations that are not lost with the memory of the server.
    pub fn logged(&self) -> impl Iterator<Item = OpUid> {
        self.delayed.iter().flat_map(Delayed::logged)
    }

    fn arm(&mut self, context: &mut Context) {
        let pending = self.requests.values().any(|request| matches!(request.what, Asked::Renew));
        let now = self.clock.read(context.now);
        let wake = match self.link {
            Link::Up(_) if pending => Some(now + context.config.table.session_term / 2),
            Link::Up(_) => Some(self.holder.renew_at().max(now)),
            _ => None,
        };
        let due = self.digest_due().filter(|due| *due > now);
        let progress = self.progress_due(now).map(|at| at.max(now));
        let wake = wake.map(|wake| [due, progress].into_iter().flatten().fold(wake, Monotonic::min));
        let early = matches!((wake, self.armed), (Some(wake), Some(armed)) if armed <= wake && armed > now);
        if early || wake == self.armed {
            return;
        }
        self.armed = wake;
        self.timer += 1;
        if let Some(wake) = wake.filter(|wake| *wake != Monotonic::NEVER) {
            let event = Event::ClientTimer { client: self.number, life: self.life, generation: self.timer };
            context.schedule(self.clock.when(wake), event);
        }
    }
}

/// How a client ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Crash,
    /// Of its machine: what was not synced of its log may be gone.
    PowerCut,
    /// Unmounted: its caches are gone when it says so.
    Goodbye,
}

/// Whether recalls are worked on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stuck {
    Yes,
    No,
}

fn new_holder(config: &SimConfig) -> Holder {
    let ignore = config.sabotage == Sabotage::IgnoreDriftMargin;
    Holder::new(HolderConfig { drift_margin: if ignore { DriftMargin::NONE } else { config.margin } })
}
