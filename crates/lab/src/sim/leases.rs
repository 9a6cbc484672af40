//! Production leases under simulation: [`soda_lease::Table`] at the server, a [`soda_lease::Holder`] at each client.

use super::workload::{Event, SystemCall, Workload};
use super::{Book, Kind, Protocol, Tree};
use soda_lease::holder::RecallStep;
use soda_lease::table::{BackOff, Covered, Created, DeepLeases, Equation8, Granted, TreeChanges};
use soda_lease::{Access, DriftMargin, Holder, HolderConfig, OpKey, Outcome, Output, Table, TableConfig};
use soda_model::Rng;
use soda_model::load::Network;
use soda_types::{
    Cause, Epoch, Fid, FileKind, InUse, Ino, Mode, Monotonic, ObjectTerm, Recall, Scope, SessionId, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longer than any run: sessions neither end nor need renewal, so that leases alone are counted.
const FOREVER: Duration = Duration::from_secs(1_000_000_000);

/// How leases are used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// Seconds; infinite as long as the session.
    pub term: f64,
    pub usage: Use,
    pub network: Network,
    /// Whether equation (8) may withhold leases.
    pub policy: Policy,
    /// Chance that a holder that is asked is dead: then its lease has to run out.
    pub dead: f64,
    pub granularity: Granularity,
}

/// What a lease may cover.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Granularity {
    Nodes,
    /// Whole subtrees, too. Who has not used one for so many seconds gives it back (infinite: never).
    Deep {
        idle: f64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    AlwaysGrant,
    Equation8,
}

/// What writers do with their leases.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Use {
    /// As in the SODA paper: a write ends every lease, the writer's own as well, and goes through.
    Paper,
    /// As Soda's `write=through`: who writes has a write lease afterwards, which the next reader has lowered.
    Through,
    /// As Soda's `write=behind`: under a write lease writes stay at the client for so many seconds.
    Behind { age: f64 },
}

impl Setting {
    /// The paper's protocol with this term.
    pub fn paper(term: f64, network: Network) -> Setting {
        Setting {
            term,
            usage: Use::Paper,
            network,
            policy: Policy::AlwaysGrant,
            dead: 0.0,
            granularity: Granularity::Nodes,
        }
    }

    /// Soda's, with leases as long as the session.
    pub fn soda(usage: Use) -> Setting {
        Setting {
            term: f64::INFINITY,
            usage,
            network: Network::Unicast,
            policy: Policy::Equation8,
            dead: 0.0,
            granularity: Granularity::Nodes,
        }
    }

    /// The same with deep leases that are given back after so many seconds without use.
    pub fn deep(self, idle: f64) -> Setting {
        Setting { granularity: Granularity::Deep { idle }, ..self }
    }
}

/// An operation that the table has not admitted yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    event: Event,
    is_flush: bool,
    /// The server had to ask somebody.
    asked: bool,
}

struct Client {
    holder: Holder,
    /// Version of what is cached of each file.
    cached: Vec<u64>,
    /// Since when the file has writes that were not told.
    dirty: BTreeMap<usize, f64>,
    /// Those of them that the server does not know yet.
    made: BTreeSet<usize>,
}

pub(super) struct Leases {
    setting: Setting,
    tree: Tree,
    table: Table,
    clients: Vec<Client>,
    pending: BTreeMap<OpKey, Pending>,
    /// What digests on the way have made.
    told: BTreeMap<OpKey, BTreeSet<usize>>,
    next_op: u64,
    /// Recalls that their dead holder will never answer.
    unheard: BTreeSet<Epoch>,
    chance: Rng,
}

impl Leases {
    pub(super) fn new(workload: &Workload, tree: Tree, setting: Setting) -> Leases {
        let object_term = match setting.term {
            0.0 => ObjectTerm::None,
            term if term.is_infinite() => ObjectTerm::Session,
            term => ObjectTerm::For(Duration::from_secs_f64(term)),
        };
        let equation_8 = match setting.policy {
            Policy::AlwaysGrant => Equation8::Off,
            Policy::Equation8 => Equation8::On { half_life: Duration::from_secs(10), min_writes: 8 },
        };
        let (deep_leases, widest) = match setting.granularity {
            Granularity::Nodes => (DeepLeases::Off, Scope::Node),
            Granularity::Deep { .. } => (DeepLeases::DEFAULT_ON, Scope::Subtree),
        };
        let config = TableConfig {
            object_term,
            equation_8,
            back_off: BackOff::Off,
            deep_leases,
            recall_resend: FOREVER,
            recall_deadline: FOREVER,
            ..TableConfig::with_term(FOREVER)
        };
        let mut table = Table::new(config, Epoch(1), Monotonic::ZERO);
        let mut clients = Vec::new();
        for number in 0..workload.clients {
            let session = SessionId(u64::from(number) + 1);
            table.open_session(Monotonic::ZERO, session);
            table.set_widest(session, widest);
            let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
            let lost = holder.start_session(Monotonic::ZERO, Monotonic::ZERO, session, FOREVER);
            debug_assert!(lost.is_empty());
            let cached = vec![0; workload.files as usize];
            clients.push(Client { holder, cached, dirty: BTreeMap::new(), made: BTreeSet::new() });
        }
        let (pending, told, unheard) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Leases { setting, tree, table, clients, pending, told, next_op: 1, unheard, chance: Rng::new(0xdead) }
    }

    /// Time passes: leases run out whose holders are dead, and dirty files come of age.
    fn advance(&mut self, book: &mut Book, until: f64) {
        loop {
            let wake = self.table.poll_timeout().filter(|wake| *wake <= clock(until));
            let due = self.oldest_dirty().filter(|(at, ..)| *at <= until);
            match (wake, due) {
                (Some(wake), due) if due.is_none_or(|(at, ..)| wake <= clock(at)) => {
                    let now = seconds(wake).min(until);
                    book.at(now);
                    // Not by way of seconds, which are rounded: before its time it would do nothing, again and again.
                    self.table.handle_timeout(wake);
                    self.drain(book, now);
                }
                (_, Some((at, client))) => {
                    book.at(at);
                    self.flush(book, at, client);
                    self.drain(book, at);
                }
                _ => break,
            }
        }
        book.at(until);
    }

    /// When the oldest delayed write has to be told, and whose it is.
    fn oldest_dirty(&self) -> Option<(f64, usize)> {
        let Use::Behind { age } = self.setting.usage else { return None };
        let all = self
            .clients
            .iter()
            .enumerate()
            .flat_map(|(client, state)| state.dirty.values().map(move |since| (since + age, client)));
        all.filter(|(at, _)| at.is_finite()).min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Tells all that a client wrote under write leases, in one digest.
    fn flush(&mut self, book: &mut Book, now: f64, client: usize) {
        let state = &mut self.clients[client];
        let (dirty, made) = (std::mem::take(&mut state.dirty), std::mem::take(&mut state.made));
        if dirty.is_empty() {
            return;
        }
        book.exchange_with_data(Kind::Flush);
        let held: Vec<usize> = dirty.into_keys().filter(|file| !made.contains(file)).collect();
        let ancestors = match self.setting.granularity {
            Granularity::Nodes => Vec::new(),
            Granularity::Deep { .. } => {
                held.iter().map(|file| (fid(*file), self.place(Access::read(fid(*file))).ancestors)).collect()
            }
        };
        let held = held.into_iter().map(fid).collect();
        let covered =
            Covered { held, made: made.iter().copied().map(fid).collect(), ancestors, alone: Vec::new() };
        let op = self.take_op();
        let event = Event { at: now, client, file: 0, call: SystemCall::Write };
        self.pending.insert(op, Pending { event, is_flush: true, asked: false });
        self.told.insert(op, made);
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

    /// Deep leases that were not used go back. Asked before each event: nobody else could notice any earlier.
    fn release_idle(&mut self, book: &mut Book, now: f64) {
        let Granularity::Deep { idle } = self.setting.granularity else { return };
        if !idle.is_finite() {
            return;
        }
        for number in 0..self.clients.len() {
            let older_than = Duration::from_secs_f64(idle);
            for root in self.clients[number].holder.idle_deep(clock(now), older_than) {
                self.flush(book, now, number);
                self.drain(book, now);
                if let Some(ack) = self.clients[number].holder.release_deep(root) {
                    book.messages(Kind::Release, 1);
                    self.table.handle_release(clock(now), session(number), &[ack]);
                }
            }
        }
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
        self.table.request(clock(event.at), session(event.client), op, vec![access]);
        if let Some(pending) = self.pending.get_mut(&op) {
            pending.asked = self.table.counters().recalls > recalls;
        }
        let is_write = event.call == SystemCall::Write;
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
        if event.call == SystemCall::Write {
            book.exchange_with_data(Kind::Write);
            client.cached[event.file] = book.write(event.file, exchanges, waited);
            return;
        }
        let kind = if granted == Granted::default() { Kind::Read } else { Kind::Grant };
        book.exchange_with_data(kind);
        client.cached[event.file] = book.version(event.file);
        book.read(event.file, book.version(event.file), exchanges, waited);
    }

    /// A digest is done: what it made is known from now on.
    fn told(&mut self, now: f64, op: OpKey, client: usize) {
        let made = self.told.remove(&op).unwrap_or_default();
        let directories: BTreeSet<usize> = self.tree.parents.iter().flatten().copied().collect();
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
        client.dirty.entry(event.file).or_insert(event.at);
        true
    }
}

impl Protocol for Leases {
    fn event(&mut self, book: &mut Book, event: &Event) {
        self.advance(book, event.at);
        self.release_idle(book, event.at);
        let (now, object) = (clock(event.at), fid(event.file));
        let client = &mut self.clients[event.client];
        if let (Granularity::Deep { .. }, Some(parent)) =
            (self.setting.granularity, self.tree.parents[event.file])
        {
            // The name is looked up, which is a use of the lease that covers its directory.
            client.holder.touch(now, fid(parent));
        }
        match event.call {
            // What an open needs to know the same lease covers.
            SystemCall::Open(_) | SystemCall::Close => {}
            SystemCall::Read => match client.holder.touch(now, object) {
                Some(_) => book.read(event.file, client.cached[event.file], 0, 0.0),
                None if client.made.contains(&event.file) => {
                    book.read(event.file, client.cached[event.file], 0, 0.0);
                }
                None => self.ask(book, event, Access::read(object)),
            },
            SystemCall::Write => match self.setting.usage {
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
                        self.ask(book, event, Access::change(object, Cause::Data));
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
