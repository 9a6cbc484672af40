//! Production leases under simulation: [`soda_lease::LeaseTable`] at the server, a [`soda_lease::Holder`] at each client.

mod setting;

pub use setting::{Granularity, Policy, Setting, Use};

use super::{Book, Kind, Protocol, Source, Tree};
use crate::workload::{Event, SystemCall, Workload};
use soda_lease::holder::RecallStep;
use soda_lease::table::{BackOff, Covered, Created, DeepLeases, Equation8, Granted, TreeChanges};
use soda_lease::{
    Access, DriftMargin, Holder, HolderConfig, LeaseTable, OpKey, Outcome, Output, TableConfig,
};
use soda_model::Rng;
use soda_model::load::Network;
use soda_types::{
    Cause, Epoch, Fid, FileKind, InUse, Ino, Mode, Monotonic, ObjectTerm, Recall, RecallAck, Scope,
    SessionId, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(1_000_000_000);

/// What a client or the server does by itself when its time has come.
#[derive(Clone, Copy, Debug)]
enum Due {
    Table,
    /// When exactly, seconds, and whose delayed writes.
    Digest(f64, usize),
    Sync(usize),
    Heartbeat(usize),
}

/// An operation that the table has not admitted yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    event: Event,
    is_flush: bool,
    /// The server had to ask somebody.
    asked: bool,
}

/// What a digest on the way tells.
#[derive(Debug)]
struct Told {
    made: BTreeSet<usize>,
    /// Files and the versions that they have from then on.
    versions: Vec<(usize, u64)>,
}

struct Client {
    holder: Holder,
    /// Version of what is cached of each file.
    cached: Vec<u64>,
    /// Files with writes that were not told, how many bytes they have of these, and since when there are any.
    dirty: BTreeMap<usize, u64>,
    dirty_since: f64,
    /// Those of them that the server does not know yet.
    made: BTreeSet<usize>,
    /// Files whose changes the server has, but not on its disk.
    undurable: BTreeSet<usize>,
    /// When it asks for that, or may do so again, seconds.
    sync_at: f64,
}

impl Client {
    /// Whether a lease on the file may go back unasked.
    fn may_give_back(&self, file: usize) -> bool {
        !self.dirty.contains_key(&file) && !self.undurable.contains(&file)
    }
}

pub(super) struct Leases {
    setting: Setting,
    tree: Tree,
    table: LeaseTable,
    clients: Vec<Client>,
    /// What the server has of each file.
    stored: Vec<u64>,
    pending: BTreeMap<OpKey, Pending>,
    told: BTreeMap<OpKey, Told>,
    next_op: u64,
    /// Recalls that their dead holder will never answer.
    unheard: BTreeSet<Epoch>,
    chance: Rng,
    /// When clients last looked for leases that they do not use, seconds.
    looked: f64,
}

impl Leases {
    pub(super) fn new(workload: &Workload, tree: Tree, setting: Setting) -> Leases {
        let object_term = match setting.term {
            0.0 => ObjectTerm::None,
            term if term.is_infinite() => ObjectTerm::Session,
            term => ObjectTerm::For(Duration::from_secs_f64(term)),
        };
        let production = TableConfig::default();
        let (equation_8, back_off) = match setting.policy {
            Policy::AlwaysGrant => (Equation8::Off, BackOff::Off),
            Policy::Production => (production.equation_8, production.back_off),
        };
        let (deep_leases, widest) = match setting.granularity {
            Granularity::Nodes => (DeepLeases::Off, Scope::Node),
            Granularity::Deep => (DeepLeases::DEFAULT_ON, Scope::Subtree),
        };
        let session_term = match setting.session {
            term if term.is_infinite() => FOREVER,
            term => Duration::from_secs_f64(term),
        };
        let config = TableConfig {
            object_term,
            equation_8,
            back_off,
            deep_leases,
            recall_resend: FOREVER,
            recall_deadline: FOREVER,
            ..TableConfig::with_term(session_term)
        };
        let mut table = LeaseTable::new(config, Epoch(1), Monotonic::ZERO);
        let mut clients = Vec::new();
        for number in 0..workload.clients {
            let session = SessionId(u64::from(number) + 1);
            table.open_session(Monotonic::ZERO, session);
            table.set_widest(session, widest);
            let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
            let lost = holder.start_session(Monotonic::ZERO, Monotonic::ZERO, session, session_term);
            debug_assert!(lost.is_empty());
            let cached = vec![0; workload.files as usize];
            let (made, undurable) = (BTreeSet::new(), BTreeSet::new());
            let dirty = BTreeMap::new();
            clients.push(Client { holder, cached, dirty, dirty_since: 0.0, made, undurable, sync_at: 0.0 });
        }
        Leases {
            setting,
            tree,
            table,
            clients,
            stored: vec![0; workload.files as usize],
            pending: BTreeMap::new(),
            told: BTreeMap::new(),
            next_op: 1,
            unheard: BTreeSet::new(),
            chance: Rng::new(0xdead),
            looked: 0.0,
        }
    }

    /// Time passes: leases run out whose holders are dead, dirty files come of age, silent clients renew their sessions.
    fn advance(&mut self, book: &mut Book, until: f64) {
        loop {
            let wake = self.table.poll_timeout().map(|wake| (wake, Due::Table));
            let tell = self.oldest_dirty().map(|(at, client)| (clock(at), Due::Digest(at, client)));
            let sync = self.first_to_sync().map(|(at, client)| (clock(at), Due::Sync(client)));
            let renew = self.first_to_renew().map(|(at, client)| (at, Due::Heartbeat(client)));
            let first = [wake, tell, sync, renew].into_iter().flatten().min_by_key(|(at, _)| *at);
            let Some((at, due)) = first.filter(|(at, _)| *at <= clock(until)) else { break };
            let now = seconds(at).min(until);
            book.at(now);
            match due {
                // Not by way of seconds, which are rounded: before its time it would do nothing, again and again.
                Due::Table => self.table.handle_timeout(at),
                Due::Digest(at, client) => self.flush(book, at.min(until), client),
                Due::Sync(client) => {
                    book.messages(Kind::Flush, 2);
                    let client = &mut self.clients[client];
                    client.sync_at = now + self.setting.syncs;
                    client.undurable.clear();
                }
                Due::Heartbeat(client) => self.renew(book, at, client),
            }
            self.drain(book, now);
        }
        book.at(until);
    }

    /// Who has told changes that are not durable, and when it asks for that.
    fn first_to_sync(&self) -> Option<(f64, usize)> {
        let all = self.clients.iter().enumerate().filter(|(_, client)| !client.undurable.is_empty());
        all.map(|(number, client)| (client.sync_at, number)).min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Who has sent nothing for a third of a session's term.
    fn first_to_renew(&self) -> Option<(Monotonic, usize)> {
        if self.setting.session.is_infinite() {
            return None;
        }
        let all = self.clients.iter().enumerate();
        all.map(|(number, client)| (client.holder.renew_at(), number)).min()
    }

    fn renew(&mut self, book: &mut Book, now: Monotonic, client: usize) {
        book.messages(Kind::Heartbeat, 2);
        let holder = &mut self.clients[client].holder;
        let ticket = holder.begin_request(now);
        let heard = self.table.handle_traffic(now, session(client));
        debug_assert!(heard.is_ok(), "it renews in time");
        holder.handle_reply(now, ticket, &[]);
    }

    /// When the oldest delayed write has to be told, and whose it is.
    fn oldest_dirty(&self) -> Option<(f64, usize)> {
        let Use::Behind { age } = self.setting.usage else { return None };
        let all = self.clients.iter().enumerate().filter(|(_, client)| !client.dirty.is_empty());
        let due = all.map(|(number, client)| (client.dirty_since + age, number));
        due.filter(|(at, _)| at.is_finite()).min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Tells all that a client wrote under write leases, in one digest.
    fn flush(&mut self, book: &mut Book, now: f64, client: usize) {
        let state = &mut self.clients[client];
        let (dirty, made) = (std::mem::take(&mut state.dirty), std::mem::take(&mut state.made));
        if dirty.is_empty() {
            return;
        }
        book.exchange_with_data(Kind::Flush, dirty.values().sum());
        if self.setting.syncs > 0.0 {
            if state.undurable.is_empty() {
                state.sync_at = state.sync_at.max(now);
            }
            state.undurable.extend(dirty.keys());
        }
        let versions = dirty.keys().map(|file| (*file, self.clients[client].cached[*file])).collect();
        let held: Vec<usize> = dirty.into_keys().filter(|file| !made.contains(file)).collect();
        let ancestors = match self.setting.granularity {
            Granularity::Nodes => Vec::new(),
            Granularity::Deep => {
                held.iter().map(|file| (fid(*file), self.place(Access::read(fid(*file))).ancestors)).collect()
            }
        };
        let held = held.into_iter().map(fid).collect();
        let covered =
            Covered { held, made: made.iter().copied().map(fid).collect(), ancestors, alone: Vec::new() };
        let op = self.take_op();
        let event = Event { at: now, client, file: 0, call: SystemCall::Write, size: 0, part: 0 };
        self.pending.insert(op, Pending { event, is_flush: true, asked: false });
        self.told.insert(op, Told { made, versions });
        let heard = self.table.handle_traffic(clock(now), session(client));
        debug_assert!(heard.is_ok(), "it renews in time");
        self.table.request_covered(clock(now), session(client), op, covered);
    }

    /// Says where the object lies.
    fn place(&self, access: Access) -> Access {
        if self.setting.granularity == Granularity::Nodes {
            return access;
        }
        let above = |of: &usize| self.tree.parents[*of];
        let chain = std::iter::successors(above(&(access.fid.ino.0 as usize)), above).map(fid).collect();
        access.below(self.table.tree_version(), chain)
    }

    /// The last time before that at which clients looked for leases that they do not use: each quarter of the time after which
    /// those go back, at most every 50 ms. Earlier looks would have found no others.
    fn last_look(&mut self, before: f64) -> Option<f64> {
        if self.setting.idle.is_infinite() {
            return None;
        }
        let every = (self.setting.idle / 4.0).max(0.05);
        let look = (before / every).floor() * every;
        (look > std::mem::replace(&mut self.looked, look)).then_some(look)
    }

    /// Leases that were not used go back, but for those of files with changes that are not told.
    fn release_idle(&mut self, book: &mut Book, now: f64) {
        let older_than = Duration::from_secs_f64(self.setting.idle);
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            let may_go = |fid: &Fid| client.may_give_back(fid.ino.0 as usize);
            let idle: Vec<Fid> =
                client.holder.idle(clock(now), older_than).into_iter().filter(may_go).collect();
            let acks: Vec<RecallAck> =
                idle.into_iter().filter_map(|fid| client.holder.release(clock(now), fid)).collect();
            book.messages(Kind::Release, acks.len() as u64);
            self.table.handle_release(clock(now), session(number), &acks);
            // A deep lease goes back when nothing below is to be told or made durable; where all is durable at once, what
            // there is is told first.
            let tells_first = self.setting.syncs == 0.0;
            for root in self.clients[number].holder.idle_deep(clock(now), older_than) {
                if tells_first {
                    self.flush(book, now, number);
                    self.drain(book, now);
                } else if !self.is_durable(number, root.ino.0 as usize) {
                    continue;
                }
                if let Some(ack) = self.clients[number].holder.release_deep(root) {
                    book.messages(Kind::Release, 1);
                    self.table.handle_release(clock(now), session(number), &[ack]);
                }
            }
            self.drain(book, now);
        }
    }

    /// Whether the server has all that the client did in a directory, or below it, on its disk.
    fn is_durable(&self, client: usize, directory: usize) -> bool {
        let client = &self.clients[client];
        let above = |file: usize| std::iter::successors(Some(file), |of| self.tree.parents[*of]);
        let mut open = client.dirty.keys().chain(&client.undurable);
        !open.any(|file| above(*file).any(|of| of == directory))
    }

    fn take_op(&mut self) -> OpKey {
        self.next_op += 1;
        OpKey(self.next_op)
    }

    fn ask(&mut self, book: &mut Book, event: &Event, access: Access) {
        let op = self.take_op();
        self.pending.insert(op, Pending { event: *event, is_flush: false, asked: false });
        let recalls = self.table.counters().recalls;
        let access = self.place(access);
        let heard = self.table.handle_traffic(clock(event.at), session(event.client));
        debug_assert!(heard.is_ok(), "it renews in time");
        self.table.request(clock(event.at), session(event.client), op, vec![access]);
        if let Some(pending) = self.pending.get_mut(&op) {
            pending.asked = self.table.counters().recalls > recalls;
        }
        let is_write = event.call.is_change();
        if self.setting.network == Network::Multicast && is_write {
            // Equation (4): one message to all, whoever there is.
            book.messages(Kind::Recall, 1);
        }
        self.drain(book, event.at);
    }

    /// Does what the table says, until it says nothing.
    fn drain(&mut self, book: &mut Book, now: f64) {
        while let Some(output) = self.table.poll_output() {
            match output {
                Output::Admit(op) => self.carry_out(book, now, op),
                Output::Recall { session, recall } => self.recall(book, now, session, &recall),
                // Sessions last for ever here, and nothing is unlinked.
                Output::Refuse(op, _) => drop(self.pending.remove(&op)),
                Output::Fence { .. } | Output::SessionInUse { .. } => {}
                Output::Inquire { .. } | Output::NotDescribed(_) => {}
            }
        }
    }

    fn carry_out(&mut self, book: &mut Book, now: f64, op: OpKey) {
        let Some(Pending { event, is_flush, asked }) = self.pending.remove(&op) else { return };
        if is_flush {
            return self.told(now, op, event.client);
        }
        let client = &mut self.clients[event.client];
        // Sent when it was called: the client counts from then.
        let ticket = client.holder.begin_request(clock(event.at));
        let granted = self.table.finish_tree(clock(now), op, Outcome::Applied, &TreeChanges::default());
        client.holder.handle_reply_covered(clock(now), ticket, &granted.leases, &granted.covered);
        let exchanges = if asked { 2 } else { 1 };
        let waited = now - event.at;
        let stored = &mut self.stored[event.file];
        if event.call.is_change() {
            book.exchange_with_data(Kind::Write, event.part);
            *stored = book.write(event.file, exchanges, waited);
            client.cached[event.file] = *stored;
            return;
        }
        let kind = if granted == Granted::default() { Kind::Read } else { Kind::Grant };
        book.exchange_with_data(kind, event.part);
        client.cached[event.file] = *stored;
        book.read(event.file, *stored, Source::Server, exchanges, waited);
    }

    /// A digest is done: what it made and wrote is known from now on.
    fn told(&mut self, now: f64, op: OpKey, client: usize) {
        let Some(Told { made, versions }) = self.told.remove(&op) else { return };
        versions.into_iter().for_each(|(file, version)| self.stored[file] = version);
        let directories = &self.tree.directories;
        let created = made.iter().map(|file| Created {
            fid: fid(*file),
            kind: if directories.contains(file) { FileKind::Directory } else { FileKind::File },
            parent: self.tree.parents[*file].map(fid),
        });
        let changes = TreeChanges { created: created.collect(), ..TreeChanges::default() };
        let holder = &mut self.clients[client].holder;
        let ticket = holder.begin_request(clock(now));
        let granted = self.table.finish_covered_tree(clock(now), op, &changes);
        holder.handle_reply_covered(clock(now), ticket, &granted.leases, &granted.covered);
    }

    fn recall(&mut self, book: &mut Book, now: f64, to: SessionId, recall: &Recall) {
        let number = to.0 as usize - 1;
        if self.setting.network == Network::Unicast {
            book.messages(Kind::Recall, 1);
        }
        let is_dead =
            self.setting.dead > 0.0 && self.chance.chance((self.setting.dead * 1e9) as u64, 1_000_000_000);
        if self.unheard.contains(&recall.epoch) || is_dead {
            self.unheard.insert(recall.epoch);
            return;
        }
        let ack = match self.clients[number].holder.handle_recall(clock(now), recall) {
            RecallStep::AlreadyGone(ack) => ack,
            RecallStep::Drop { fid, epoch, .. } => {
                self.flush_first(book, now, number);
                self.clients[number].holder.finish_recall(clock(now), fid, epoch, InUse::No)
            }
            RecallStep::DropPart { lease, epoch, .. } => {
                self.flush_first(book, now, number);
                self.clients[number].holder.finish_part(lease, epoch, InUse::No)
            }
            RecallStep::Working => return,
        };
        book.messages(Kind::Recall, 1);
        self.table.handle_acks(clock(now), to, &[ack]);
    }
}

impl Leases {
    /// The digest is before the answer, as on the wire; it needs the lease that is being asked for.
    fn flush_first(&mut self, book: &mut Book, now: f64, client: usize) {
        self.flush(book, now, client);
        self.drain(book, now);
    }

    /// What another machine would be told of a change. Who changes names where nobody else is gets a deep lease on them.
    fn cause(&self, event: &Event) -> Cause {
        match event.call {
            SystemCall::Change if self.tree.directories.contains(&event.file) => Cause::Names(Vec::new()),
            SystemCall::Change => Cause::Attributes,
            _ => Cause::Data,
        }
    }

    /// What was removed has no leases any more, and nothing of it is told; the server knows that without a message.
    fn forget(&mut self, now: Monotonic, file: usize) {
        for (number, client) in self.clients.iter_mut().enumerate() {
            client.made.remove(&file);
            client.dirty.remove(&file);
            client.undurable.remove(&file);
            let ack = client.holder.release(now, fid(file));
            self.table.handle_release(now, session(number), ack.as_slice());
        }
    }

    /// A write under write=behind that the server hears of later, if the leases allow that.
    fn write_here(&mut self, book: &mut Book, event: &Event) -> bool {
        let (now, object) = (clock(event.at), fid(event.file));
        let parent = self.tree.parents[event.file];
        let client = &mut self.clients[event.client];
        let is_new = self.tree.born.contains(&event.file) && book.version(event.file) == 0;
        let covers = |file: usize, client: &Client| {
            client.made.contains(&file) || client.holder.valid_until(now, fid(file), Mode::Write).is_some()
        };
        if is_new && parent.is_some_and(|parent| covers(parent, client)) {
            client.made.insert(event.file);
            if let Some(parent) = parent {
                // Says nothing where only the directory itself is held.
                client.holder.adopt_new(now, fid(parent), object);
            }
        }
        if !covers(event.file, client) {
            return false;
        }
        client.cached[event.file] = book.write(event.file, 0, 0.0);
        if client.dirty.is_empty() {
            client.dirty_since = event.at;
        }
        let bytes = client.dirty.entry(event.file).or_insert(0);
        *bytes = (*bytes).max(event.part);
        true
    }
}

impl Protocol for Leases {
    fn event(&mut self, book: &mut Book, event: &Event) {
        if let Some(look) = self.last_look(event.at) {
            self.advance(book, look);
            self.release_idle(book, look);
        }
        self.advance(book, event.at);
        let (now, object) = (clock(event.at), fid(event.file));
        let client = &mut self.clients[event.client];
        if let (Granularity::Deep, Some(parent)) = (self.setting.granularity, self.tree.parents[event.file]) {
            // The name is looked up, which is a use of the lease that covers its directory.
            client.holder.touch(now, fid(parent));
        }
        match event.call {
            // What an open needs to know the same lease covers.
            SystemCall::Open(_) => book.opened(0),
            SystemCall::Close => book.closed(0),
            SystemCall::Gone => self.forget(now, event.file),
            SystemCall::Read | SystemCall::Look => {
                let is_covered = client.holder.touch(now, object).is_some();
                if is_covered || client.made.contains(&event.file) {
                    book.read(event.file, client.cached[event.file], Source::Cache, 0, 0.0);
                } else {
                    self.ask(book, event, Access::read(object));
                }
            }
            SystemCall::Write | SystemCall::Change => match self.setting.usage {
                Use::Paper => {
                    // The lease goes back with the write.
                    if let Some(ack) = client.holder.release(now, object) {
                        self.table.handle_release(now, session(event.client), &[ack]);
                    }
                    self.ask(book, event, Access::change(object, Cause::Data).without_lease());
                }
                usage => {
                    let is_delayed = matches!(usage, Use::Behind { .. }) && self.write_here(book, event);
                    if !is_delayed {
                        let cause = self.cause(event);
                        self.ask(book, event, Access::change(object, cause));
                    }
                    if self.setting.granularity != Granularity::Nodes {
                        // Attributes are asked for after a change: a use of the lease that covers it.
                        self.clients[event.client].holder.touch(now, object);
                    }
                }
            },
        }
    }

    fn end(&mut self, book: &mut Book) {
        self.advance(book, book.now);
    }
}

fn fid(file: usize) -> Fid {
    Fid::new(VolumeId(1), Ino(file as u64))
}

fn session(client: usize) -> SessionId {
    SessionId(client as u64 + 1)
}

fn clock(seconds: f64) -> Monotonic {
    Monotonic::from_nanos((seconds * 1e9) as u64)
}

fn seconds(at: Monotonic) -> f64 {
    at.as_nanos() as f64 / 1e9
}
