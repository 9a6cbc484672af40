//! A server with a tree, and clients with caches that write under deep leases without telling. Messages overtake each other.
//! What a client reads from its cache is compared with what has been read or written anywhere before.

use soda_lease::table::{
    Access, BackOff, Created, DeepLeases, Equation8, OpKey, Outcome, Output, Table, TableConfig, TreeChanges,
    TreeVersion,
};
use soda_lease::{DriftMargin, Holder, HolderConfig, Holding, RecallStep, Ticket};
use soda_types::{
    Cause, Covered, Epoch, Fid, FileKind, Grant, InUse, Ino, Mode, Monotonic, Recall, RecallAck, SessionId,
    VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) const SESSIONS: u64 = 3;
const TERM: Duration = Duration::from_secs(1_000_000);

/// Something that a server or a client can do wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    None,
    /// The client does not say that it moves or links something.
    MovesUnsaid,
    /// The server does not tell the table of renames.
    MovesUntold,
    /// Nor that a file has one name more or less.
    LinksUntold,
    /// It says that a plan is of now which is of before.
    StalePlans,
    /// The client answers a recall for a directory when only that directory is dropped.
    DropsOne,
    /// The client answers before what it wrote is with the server.
    AnswersUnflushed,
    /// The client takes what it hears for covered although it was asked for it in between.
    BelievesLate,
}

pub(crate) fn f(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

fn s(number: u64) -> SessionId {
    SessionId(number)
}

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 20) % bound.max(1) as u64) as usize
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.below(of.len())].clone())
    }
}

/// What the server stores.
#[derive(Clone, Default)]
struct Inode {
    /// More than one: hard links.
    parents: Vec<Fid>,
    is_dir: bool,
    version: u64,
}

#[derive(Clone, Debug)]
enum Does {
    Read(Vec<Fid>),
    Change(Fid),
    Create(Fid, FileKind),
    Rename(Fid, Fid, Fid),
    Link(Fid, Fid),
    Unlink(Fid, Fid),
}

#[derive(Clone, Debug)]
struct Op {
    session: u64,
    ticket: Ticket,
    does: Does,
    accesses: Vec<Access>,
    /// What the server knew to be read or written when the operation began.
    floors: BTreeMap<Fid, u64>,
    result: Option<(Outcome, TreeChanges)>,
    seen: Vec<(Fid, u64)>,
}

impl Op {
    fn makes(&self, fid: Fid) -> bool {
        let changes = self.result.iter().map(|(_, changes)| changes);
        changes.flat_map(|changes| &changes.created).any(|created| created.fid == fid)
    }
}

struct Reply {
    op: Op,
    grants: Vec<Grant>,
    covered: Vec<Covered>,
}

struct Cached {
    version: u64,
    holding: Holding,
    dirty: bool,
}

struct Client {
    holder: Holder,
    cache: BTreeMap<Fid, Cached>,
    /// The newest version that an answer has shown.
    newest: BTreeMap<Fid, u64>,
    dropping: Vec<RecallStep>,
    late: Vec<Covered>,
}

pub(crate) struct World {
    pub(crate) mistake: Mistake,
    random: Random,
    /// Of so many places one is not said.
    unsaid: usize,
    now: Monotonic,
    config: TableConfig,
    table: Table,
    tree: BTreeMap<Fid, Inode>,
    /// Files that had several names once.
    linked: BTreeSet<Fid>,
    clients: BTreeMap<u64, Client>,
    planned: Vec<Op>,
    waiting: BTreeMap<OpKey, Op>,
    running: Vec<(OpKey, Op)>,
    replies: Vec<Reply>,
    recalls: Vec<(u64, Recall)>,
    acks: Vec<(u64, RecallAck)>,
    /// The newest version of each object that somebody has read or written, all done.
    floor: BTreeMap<Fid, u64>,
    versions: u64,
    ops: u64,
    pub(crate) cached_reads: u64,
    pub(crate) local_writes: u64,
    pub(crate) deep_grants: u64,
    pub(crate) holes: u64,
    pub(crate) healed: u64,
}

impl World {
    pub(crate) fn new(seed: u64, mistake: Mistake) -> World {
        let mut random = Random::new(seed);
        let second = Duration::from_secs(1);
        let back_off = BackOff::On { first: Duration::from_millis(5), longest: second };
        let config = TableConfig {
            equation_8: Equation8::Off,
            back_off: if random.below(2) == 0 { BackOff::Off } else { back_off },
            deep_leases: DeepLeases::On { after: 1 + random.below(4) as u32, max_holes: 3 + random.below(6) },
            max_leases_per_session: if random.below(4) == 0 { 6 } else { 1000 },
            recall_resend: Duration::from_millis(200),
            ..TableConfig::with_term(TERM)
        };
        let now = Monotonic::ZERO + second;
        let unsaid = [0, 0, 20, 100][random.below(4)];
        let mut world = World {
            mistake,
            random,
            unsaid,
            now,
            table: Table::new(config.clone(), Epoch(1), now),
            config,
            tree: BTreeMap::new(),
            linked: BTreeSet::new(),
            clients: BTreeMap::new(),
            planned: Vec::new(),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            replies: Vec::new(),
            recalls: Vec::new(),
            acks: Vec::new(),
            floor: BTreeMap::new(),
            versions: 0,
            ops: 0,
            cached_reads: 0,
            local_writes: 0,
            deep_grants: 0,
            holes: 0,
            healed: 0,
        };
        // The root, a corner for each session with a directory in it, and files everywhere.
        for (ino, parent) in [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (6, 3), (7, 4)] {
            world.grow(ino, parent, true);
            world.grow(ino + 10, ino, false);
            world.grow(ino + 20, ino, false);
        }
        for session in 1..=SESSIONS {
            let mut holder = Holder::new(HolderConfig { drift_margin: DriftMargin::NONE });
            holder.start_session(now, now, s(session), TERM);
            world.table.open_session(now, s(session));
            let (cache, newest) = (BTreeMap::new(), BTreeMap::new());
            let client = Client { holder, cache, newest, dropping: Vec::new(), late: Vec::new() };
            world.clients.insert(session, client);
        }
        world
    }

    fn grow(&mut self, ino: u64, parent: u64, is_dir: bool) {
        let parents = if parent == 0 { Vec::new() } else { vec![f(parent)] };
        self.tree.insert(f(ino), Inode { parents, is_dir, version: 0 });
    }

    fn chain(&self, fid: Fid) -> Vec<Fid> {
        let up = |fid: &Fid| self.tree.get(fid)?.parents.first().copied();
        std::iter::successors(up(&fid), up).collect()
    }

    fn client(&mut self, session: u64) -> &mut Client {
        self.clients.get_mut(&session).unwrap()
    }

    pub(crate) fn step(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        match self.random.below(100) {
            0..=22 => self.begin(),
            23..=36 => self.send(),
            37..=48 => self.carry_out(),
            49..=60 => self.finish(),
            61..=72 => self.hear_reply(),
            73..=78 => self.hear_recall(),
            79..=83 => self.drop_caches(),
            84..=89 => self.hear_ack(),
            90..=97 => self.use_cache(),
            98 => self.give_back(),
            _ => {
                if self.random.below(60) == 0 {
                    self.restart();
                }
            }
        }
        self.outputs();
        if self.random.below(8) == 0 {
            self.check();
        }
    }

    fn begin(&mut self) {
        let session = 1 + self.random.below(SESSIONS as usize) as u64;
        if self.in_flight(session) > 3 {
            return;
        }
        // Nobody has seen what is not there yet.
        let new = |fid: &Fid| self.running.iter().any(|(_, op)| op.makes(*fid));
        let all: Vec<Fid> = self.tree.keys().copied().filter(|fid| !new(fid)).collect();
        let dirs: Vec<Fid> = all.iter().copied().filter(|fid| self.tree[fid].is_dir).collect();
        // Clients stay in their corner mostly.
        let corner = f(1 + session);
        let near: Vec<Fid> =
            all.iter().copied().filter(|fid| *fid == corner || self.chain(*fid).contains(&corner)).collect();
        let one = if self.random.below(6) > 0 { self.random.pick(&near) } else { self.random.pick(&all) };
        let near_dirs: Vec<Fid> = near.iter().copied().filter(|fid| self.tree[fid].is_dir).collect();
        let to =
            if self.random.below(5) > 0 { self.random.pick(&near_dirs) } else { self.random.pick(&dirs) };
        let (Some(one), Some(to)) = (one, to) else { return };
        let inode = self.tree[&one].clone();
        let parent = self.random.pick(&inode.parents);
        let does = match (self.random.below(20), parent, inode.is_dir) {
            (0..=1, _, _) if self.tree.len() < 40 => {
                let kind = if self.random.below(2) == 0 { FileKind::Directory } else { FileKind::File };
                Does::Create(to, kind)
            }
            (2..=3, Some(parent), _) if one != to && !self.chain(to).contains(&one) => {
                Does::Rename(one, parent, to)
            }
            (4, Some(_), false) if inode.parents.len() == 1 && !inode.parents.contains(&to) => {
                Does::Link(one, to)
            }
            (5, Some(parent), false) if inode.parents.len() > 1 => Does::Unlink(one, parent),
            (6..=8, _, _) => Does::Change(one),
            (9..=12, Some(parent), _) => Does::Read(vec![parent, one]),
            _ => Does::Read(vec![one]),
        };
        let now = self.now;
        let mistake = self.mistake;
        let moves = match &does {
            Does::Rename(fid, _, to) => Some((*fid, Some(*to))),
            Does::Link(fid, _) | Does::Unlink(fid, _) => Some((*fid, None)),
            _ => None,
        };
        // What it has done on its own comes before.
        self.flush_all(session);
        let ticket = self.client(session).holder.begin_request(now);
        if let Some((fid, to)) = moves
            && mistake != Mistake::MovesUnsaid
        {
            let client = self.client(session);
            for lost in client.holder.begin_move(ticket, fid, to) {
                client.cache.remove(&lost);
            }
        }
        let op = Op {
            session,
            ticket,
            does,
            accesses: Vec::new(),
            floors: BTreeMap::new(),
            result: None,
            seen: Vec::new(),
        };
        let planned = self.plan(op);
        self.planned.push(planned);
    }

    fn in_flight(&self, session: u64) -> usize {
        self.all_in_flight().filter(|op| op.session == session).count()
    }

    fn all_in_flight(&self) -> impl Iterator<Item = &Op> {
        let running = self.running.iter().map(|(_, op)| op);
        let sent = self.planned.iter().chain(self.waiting.values()).chain(running);
        sent.chain(self.replies.iter().map(|reply| &reply.op))
    }

    /// As the server does it when the request has come.
    fn plan(&mut self, mut op: Op) -> Op {
        let as_of = self.table.tree_version();
        let names = || Cause::Names(Vec::new());
        let mut accesses = match &op.does {
            Does::Read(fids) => fids.iter().map(|fid| Access::read(*fid)).collect(),
            Does::Change(fid) => vec![Access::change(*fid, Cause::Data)],
            Does::Create(parent, _) => vec![Access::change(*parent, names())],
            Does::Rename(fid, from, to) => {
                let mut accesses =
                    vec![Access::change(*from, names()), Access::change(*fid, Cause::Attributes)];
                accesses.push(Access::change(*to, names()));
                accesses
            }
            Does::Link(fid, dir) | Does::Unlink(fid, dir) => {
                vec![Access::change(*dir, names()), Access::change(*fid, Cause::Attributes)]
            }
        };
        for access in &mut accesses {
            let unknown = self.is_unsaid();
            let inode = &self.tree[&access.fid];
            if unknown {
                continue;
            }
            let placed = std::mem::replace(access, Access::read(access.fid));
            *access = if inode.parents.len() > 1 {
                placed.not_deep(as_of)
            } else {
                let chain = self.chain(placed.fid);
                placed.below(as_of, chain)
            };
        }
        if let Does::Rename(fid, from, to) = &op.does
            && from != to
            && self.tree[fid].is_dir
        {
            accesses.push(Access::change(f(0), Cause::Reclaim).without_lease().not_deep(as_of));
        }
        op.floors = accesses.iter().map(|access| (access.fid, self.floor(access.fid))).collect();
        op.accesses = accesses;
        op
    }

    /// The server cannot always say where a file lies.
    fn is_unsaid(&mut self) -> bool {
        self.unsaid > 0 && self.random.below(self.unsaid) == 0
    }

    fn floor(&self, fid: Fid) -> u64 {
        self.floor.get(&fid).copied().unwrap_or_default()
    }

    fn send(&mut self) {
        if self.planned.is_empty() {
            return;
        }
        let at = self.random.below(self.planned.len());
        let mut op = self.planned.swap_remove(at);
        if self.mistake == Mistake::StalePlans {
            let as_of: TreeVersion = self.table.tree_version();
            for access in &mut op.accesses {
                let old = std::mem::replace(access, Access::read(access.fid));
                *access = match old.ancestors.clone() {
                    soda_lease::table::Ancestors::Chain(_, chain) => old.below(as_of, chain),
                    soda_lease::table::Ancestors::Several(_) => old.not_deep(as_of),
                    soda_lease::table::Ancestors::Unknown => old,
                };
            }
        }
        self.ops += 1;
        let key = OpKey(self.ops);
        let (session, accesses) = (s(op.session), op.accesses.clone());
        self.waiting.insert(key, op);
        let _ = self.table.handle_traffic(self.now, session);
        self.table.request(self.now, session, key, accesses);
    }

    /// What the volume does, before the table hears that it is done.
    fn carry_out(&mut self) {
        let todo: Vec<usize> =
            (0..self.running.len()).filter(|at| self.running[*at].1.result.is_none()).collect();
        let Some(at) = self.random.pick(&todo) else { return };
        let op = self.running[at].1.clone();
        let mut changes = TreeChanges::default();
        let has = |world: &World, fid: &Fid, dir: &Fid| world.tree[fid].parents.contains(dir);
        let done = match &op.does {
            Does::Read(fids) => fids.len() < 2 || has(self, &fids[1], &fids[0]),
            Does::Change(_) => true,
            Does::Create(parent, kind) => {
                let ino = 100 + self.tree.len() as u64;
                self.grow(ino, parent.ino.0, *kind == FileKind::Directory);
                changes.created.push(Created { fid: f(ino), kind: *kind, parent: Some(*parent) });
                true
            }
            Does::Rename(fid, from, to) => {
                let fine = has(self, fid, from) && !has(self, fid, to) && !self.chain(*to).contains(fid);
                if fine {
                    let parents = &mut self.tree.get_mut(fid).unwrap().parents;
                    parents.retain(|parent| parent != from);
                    parents.push(*to);
                    if parents.len() == 1 && self.mistake != Mistake::MovesUntold {
                        changes.moved.push((*fid, self.chain(*fid)));
                    }
                }
                fine
            }
            Does::Link(fid, dir) => {
                let fine = !has(self, fid, dir);
                if fine {
                    self.tree.get_mut(fid).unwrap().parents.push(*dir);
                    self.linked.insert(*fid);
                    changes.relinked.push(*fid);
                }
                fine
            }
            Does::Unlink(fid, dir) => {
                let fine = has(self, fid, dir) && self.tree[fid].parents.len() > 1;
                if fine {
                    self.tree.get_mut(fid).unwrap().parents.retain(|parent| parent != dir);
                    changes.relinked.push(*fid);
                }
                fine
            }
        };
        if self.mistake == Mistake::LinksUntold {
            changes.relinked.clear();
        }
        let writes = done && !matches!(op.does, Does::Read(_));
        let mut seen = Vec::new();
        for access in op.accesses.iter().filter(|access| access.fid != f(0)) {
            let stored = self.tree[&access.fid].version;
            assert!(stored >= op.floors[&access.fid], "{:?} is served an old {:?}", op.does, access.fid);
            if writes {
                self.versions += 1;
                self.tree.get_mut(&access.fid).unwrap().version = self.versions;
            }
            seen.push((access.fid, self.tree[&access.fid].version));
        }
        let running = &mut self.running[at].1;
        running.seen = seen;
        let outcome = if done { Outcome::Applied } else { Outcome::Failed };
        running.result = Some((outcome, changes));
    }

    fn finish(&mut self) {
        let done: Vec<usize> =
            (0..self.running.len()).filter(|at| self.running[*at].1.result.is_some()).collect();
        let Some(at) = self.random.pick(&done) else { return };
        let (key, op) = self.running.swap_remove(at);
        let (outcome, changes) = op.result.clone().unwrap();
        let granted = self.table.finish_tree(self.now, key, outcome, &changes);
        let mut op = op;
        for created in &changes.created {
            op.seen.push((created.fid, 0));
        }
        self.replies.push(Reply { op, grants: granted.leases, covered: granted.covered });
    }

    fn hear_reply(&mut self) {
        if self.replies.is_empty() {
            return;
        }
        let at = self.random.below(self.replies.len());
        let Reply { op, grants, mut covered } = self.replies.swap_remove(at);
        let (now, mistake) = (self.now, self.mistake);
        let client = self.clients.get_mut(&op.session).unwrap();
        if mistake == Mistake::BelievesLate {
            client.late.append(&mut covered);
            // Under the ticket of a request that it never sent.
            let ticket = client.holder.begin_request(now);
            client.holder.handle_reply(now, op.ticket, &grants);
            client.holder.handle_reply_covered(now, ticket, &[], &std::mem::take(&mut client.late));
        } else {
            client.holder.handle_reply_covered(now, op.ticket, &grants, &covered);
        }
        for (fid, version) in &op.seen {
            let newest = client.newest.entry(*fid).or_default();
            *newest = (*newest).max(*version);
            if client.cache.get(fid).is_some_and(|cached| cached.version < *newest) {
                client.cache.remove(fid);
            }
            if let Some(holding) = client.holder.cacheable(op.ticket, *fid)
                && version == newest
                && !client.cache.get(fid).is_some_and(|cached| cached.holding == holding)
            {
                client.cache.insert(*fid, Cached { version: *version, holding, dirty: false });
            }
            let floor = self.floor.entry(*fid).or_default();
            *floor = (*floor).max(*version);
        }
    }

    fn hear_recall(&mut self) {
        if self.recalls.is_empty() {
            return;
        }
        let at = self.random.below(self.recalls.len());
        let (session, recall) = self.recalls[at].clone();
        // Some come twice.
        if self.random.below(8) > 0 {
            self.recalls.swap_remove(at);
        }
        let now = self.now;
        match self.client(session).holder.handle_recall(now, &recall) {
            RecallStep::AlreadyGone(ack) => self.acks.push((session, ack)),
            RecallStep::Working => {}
            step => self.client(session).dropping.push(step),
        }
    }

    fn drop_caches(&mut self) {
        let busy = |(session, client): (&u64, &Client)| (!client.dropping.is_empty()).then_some(*session);
        let busy: Vec<u64> = self.clients.iter().filter_map(busy).collect();
        let Some(session) = self.random.pick(&busy) else { return };
        let at = self.random.below(self.clients[&session].dropping.len());
        let step = self.client(session).dropping.swap_remove(at);
        let (now, mistake) = (self.now, self.mistake);
        let ack = match step {
            RecallStep::Drop { fid, epoch, keep } => {
                self.bring_down(session, fid, keep);
                self.client(session).holder.finish_recall(now, fid, epoch, InUse::No)
            }
            RecallStep::DropPart { lease, epoch, keep, inside } => {
                let inside = if mistake == Mistake::DropsOne { &inside[..1] } else { &inside[..] };
                inside.iter().for_each(|fid| self.bring_down(session, *fid, keep));
                self.client(session).holder.finish_part(lease, epoch, InUse::No)
            }
            RecallStep::AlreadyGone(_) | RecallStep::Working => return,
        };
        self.acks.push((session, ack));
    }

    fn bring_down(&mut self, session: u64, fid: Fid, keep: Option<Mode>) {
        if self.mistake != Mistake::AnswersUnflushed {
            self.flush(session, fid);
        }
        // An own change whose answer has not come may have been made: the cache does not show it.
        let changing = self.all_in_flight().any(|op| {
            op.session == session && !matches!(op.does, Does::Read(_)) && op.floors.contains_key(&fid)
        });
        if (keep.is_none() || changing) && self.mistake != Mistake::DropsOne {
            self.client(session).cache.remove(&fid);
        }
    }

    fn flush(&mut self, session: u64, fid: Fid) {
        if let Some(cached) = self.clients.get_mut(&session).unwrap().cache.get_mut(&fid)
            && std::mem::take(&mut cached.dirty)
        {
            let stored = &mut self.tree.get_mut(&fid).unwrap().version;
            *stored = (*stored).max(cached.version);
        }
    }

    fn flush_all(&mut self, session: u64) {
        let fids: Vec<Fid> = self.clients[&session].cache.keys().copied().collect();
        fids.into_iter().for_each(|fid| self.flush(session, fid));
    }

    fn hear_ack(&mut self) {
        if !self.acks.is_empty() {
            let at = self.random.below(self.acks.len());
            let (session, ack) = self.acks.swap_remove(at);
            self.table.handle_acks(self.now, s(session), &[ack]);
        }
    }

    fn use_cache(&mut self) {
        let session = 1 + self.random.below(SESSIONS as usize) as u64;
        let fids: Vec<Fid> = self.clients[&session].cache.keys().copied().collect();
        let Some(fid) = self.random.pick(&fids) else { return };
        let (now, floor) = (self.now, self.floor(fid));
        let busy = self.all_in_flight().any(|op| op.session == session && op.floors.contains_key(&fid));
        let may_write = self.random.below(2) == 0 && !busy;
        let client = self.clients.get_mut(&session).unwrap();
        let cached = client.cache.get_mut(&fid).unwrap();
        if client.holder.holding(fid) != Some(cached.holding) {
            return;
        }
        if client.holder.valid_until(now, fid, Mode::Read).is_some() {
            self.cached_reads += 1;
            assert!(
                cached.version >= floor,
                "s{session} reads an old {fid:?}: {} of {floor}",
                cached.version
            );
        }
        if may_write && client.holder.valid_until(now, fid, Mode::Write).is_some() {
            assert!(cached.version >= floor, "s{session} overwrites {fid:?}, which it has not seen");
            self.versions += 1;
            self.local_writes += 1;
            (cached.version, cached.dirty) = (self.versions, true);
            client.newest.insert(fid, self.versions);
            self.floor.insert(fid, self.versions);
        }
    }

    /// A client that is idle.
    fn give_back(&mut self) {
        let session = 1 + self.random.below(SESSIONS as usize) as u64;
        let now = self.now;
        self.flush_all(session);
        let client = self.client(session);
        let roots = client.holder.idle_deep(now, Duration::from_millis(20));
        for root in roots {
            let covered = client.holder.covered_by(root);
            if let Some(ack) = client.holder.release_deep(root) {
                for fid in covered {
                    client.cache.remove(&fid);
                }
                self.acks.push((session, ack));
                return;
            }
        }
        if let Some(fid) = client.holder.idle(now, Duration::from_millis(20)).first().copied()
            && let Some(ack) = client.holder.release(now, fid)
        {
            client.cache.remove(&fid);
            self.acks.push((session, ack));
        }
    }

    /// The server stops and starts; all messages are lost. What was asked of it comes to nothing.
    fn restart(&mut self) {
        let first = Epoch(self.table.last_epoch().0 + 1000);
        self.table = Table::new(self.config.clone(), first, self.now);
        self.table.begin_grace(self.now, (1..=SESSIONS).map(s));
        let running = std::mem::take(&mut self.running).into_iter().map(|(_, op)| op);
        let waiting = std::mem::take(&mut self.waiting).into_values();
        let replies = std::mem::take(&mut self.replies).into_iter().map(|reply| reply.op);
        let lost: Vec<Op> = std::mem::take(&mut self.planned)
            .into_iter()
            .chain(running)
            .chain(waiting)
            .chain(replies)
            .collect();
        self.recalls.clear();
        self.acks.clear();
        for op in lost {
            // Its own change may have been made.
            for access in &op.accesses {
                self.flush(op.session, access.fid);
                self.client(op.session).cache.remove(&access.fid);
            }
            self.client(op.session).holder.fail_request(op.ticket);
        }
        let now = self.now;
        let mut order: Vec<u64> = (1..=SESSIONS).collect();
        order.swap(0, self.random.below(SESSIONS as usize));
        for session in order {
            let held = self.clients[&session].holder.reclaim_list(now);
            let as_of = self.table.tree_version();
            let placed: Vec<_> = held
                .iter()
                .map(|grant| {
                    let several = self.tree[&grant.fid].parents.len() > 1;
                    let access = Access::read(grant.fid);
                    let access = match (several, self.is_unsaid()) {
                        (true, _) => access.not_deep(as_of),
                        (false, true) => access,
                        (false, false) => access.below(as_of, self.chain(grant.fid)),
                    };
                    (*grant, access.ancestors)
                })
                .collect();
            let ticket = self.client(session).holder.begin_request(now);
            let answers = self.table.handle_reclaim_placed(now, s(session), &placed).unwrap();
            let refused = self.client(session).holder.handle_reclaimed(now, ticket, &held, &answers);
            for fid in refused {
                // Nobody else can have it, or the world would not be one copy: what was written there is written.
                self.flush(session, fid);
                self.client(session).cache.remove(&fid);
            }
            self.table.finish_reclaim(now, s(session));
        }
    }

    fn outputs(&mut self) {
        let _ = self
            .table
            .poll_timeout()
            .filter(|wake| *wake <= self.now)
            .map(|_| self.table.handle_timeout(self.now));
        while let Some(output) = self.table.poll_output() {
            match output {
                Output::Admit(key) => {
                    let op = self.waiting.remove(&key).expect("waits");
                    self.running.push((key, op));
                }
                Output::Recall { session, recall } => self.recalls.push((session.0, recall)),
                other => panic!("{other:?}"),
            }
        }
        let counters = self.table.counters();
        self.deep_grants = self.deep_grants.max(counters.deep_grants);
        self.holes = self.holes.max(counters.holes);
        self.healed = self.healed.max(counters.holes_healed);
    }

    /// What a session may do with an object by all its leases: the rule, without the table's short cuts.
    fn may(&self, session: u64, fid: Fid) -> Option<Mode> {
        let node = self.table.lease(s(session), fid).map(|grant| grant.mode);
        let mut path = vec![fid];
        path.extend(self.chain(fid));
        let deep = path.iter().enumerate().filter_map(|(at, root)| {
            let lease = self.table.deep_lease(s(session), *root)?;
            let holes: BTreeMap<Fid, Option<Mode>> =
                self.table.holes(s(session), *root).into_iter().collect();
            if path[1..=at].iter().any(|dir| holes.get(dir) == Some(&None)) {
                return None;
            }
            holes.get(&fid).map_or(Some(lease.mode), |kept| *kept).map(|kept| kept.min(lease.mode))
        });
        node.max(deep.max())
    }

    /// No two sessions' leases conflict anywhere in the tree.
    fn check(&self) {
        // Between a rename and its end the table is behind the volume.
        if self.running.iter().any(|(_, op)| op.result.is_some()) {
            return;
        }
        for fid in self.tree.keys().filter(|fid| !self.linked.contains(fid)) {
            let modes: Vec<Mode> = (1..=SESSIONS).filter_map(|session| self.may(session, *fid)).collect();
            let writer = modes.contains(&Mode::Write);
            assert!(!writer || modes.len() == 1, "{fid:?}: {modes:?}");
            if let Some(known) = self.table.ancestors(*fid) {
                assert_eq!(known, self.chain(*fid), "where {fid:?} lies");
            }
        }
    }

    /// Everybody answers, everything is carried out: then nobody waits.
    pub(crate) fn wind_up(&mut self) {
        for _ in 0..2000 {
            self.now = self.now + Duration::from_millis(1);
            self.send();
            self.carry_out();
            self.finish();
            self.hear_reply();
            self.hear_recall();
            (0..SESSIONS).for_each(|_| self.drop_caches());
            self.hear_ack();
            self.outputs();
            if self.all_in_flight().next().is_none() {
                break;
            }
        }
        self.check();
        assert!(self.waiting.is_empty() && self.running.is_empty(), "{:?}", self.waiting);
        for session in 1..=SESSIONS {
            self.table.close_session(self.now, s(session));
        }
        assert!(self.table.is_empty());
        // Contention is remembered for a while.
        if self.config.back_off == BackOff::Off {
            assert_eq!((self.table.branch_count(), self.table.object_count()), (0, 0));
        }
    }
}
