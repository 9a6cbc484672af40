//! A server with a tree, and clients with caches that write under deep leases without telling. Messages overtake each other.
//! What a client reads from its cache is compared with what has been read or written anywhere before.

use soda_lease::table::{
    Access, BackOff, Created, DeepLeases, Equation8, LeaseTable, Moved, OpKey, Outcome, Output, TableConfig,
    TreeChanges, TreeVersion,
};
use soda_lease::{DriftMargin, Holder, HolderConfig, Holding, RecallStep, Ticket};
use soda_types::{
    Cause, Coverage, Epoch, Fid, FileKind, Grant, Ino, Monotonic, Recall, RecallAck, SessionId, VolumeId,
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
    /// It says that a plan is of now which is of before.
    StalePlans,
    /// The client answers before its caches are dropped.
    AnswersEarly,
    /// The client answers before what it wrote is with the server.
    AnswersUnflushed,
    /// It lowers a whole lease before what it wrote under it is with the server.
    LowersUnflushed,
    /// And while a change of its own is on the way.
    LowersAtWork,
    /// It answers before its moves are told.
    AnswersUntold,
}

pub(crate) fn f(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

pub(crate) fn s(number: u64) -> SessionId {
    SessionId(number)
}

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 20) % bound.max(1) as u64) as usize
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.below(of.len())].clone())
    }
}

/// What the server stores.
#[derive(Clone, Default)]
pub(crate) struct Inode {
    /// More than one: hard links.
    pub(crate) parents: Vec<Fid>,
    pub(crate) is_dir: bool,
    pub(crate) version: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Does {
    Read(Vec<Fid>),
    Change(Fid),
    Create(Fid, FileKind),
    Rename(Fid, Fid, Fid),
    Link(Fid, Fid),
    Unlink(Fid, Fid),
}

#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) session: u64,
    pub(crate) ticket: Ticket,
    pub(crate) does: Does,
    pub(crate) accesses: Vec<Access>,
    /// What the server knew to be read or written when the operation began.
    pub(crate) floors: BTreeMap<Fid, u64>,
    pub(crate) result: Option<(Outcome, TreeChanges)>,
    pub(crate) seen: Vec<(Fid, u64)>,
}

impl Op {
    pub(crate) fn makes(&self, fid: Fid) -> bool {
        let changes = self.result.iter().map(|(_, changes)| changes);
        changes.flat_map(|changes| &changes.created).any(|created| created.fid == fid)
    }
}

pub(crate) struct Reply {
    pub(crate) op: Op,
    pub(crate) grants: Vec<Grant>,
    pub(crate) covered: Vec<Coverage>,
}

pub(crate) struct Cached {
    pub(crate) version: u64,
    pub(crate) holding: Holding,
    pub(crate) dirty: bool,
}

pub(crate) struct Client {
    pub(crate) holder: Holder,
    pub(crate) cache: BTreeMap<Fid, Cached>,
    /// The newest version that an answer has shown.
    pub(crate) newest: BTreeMap<Fid, u64>,
    pub(crate) dropping: Vec<RecallStep>,
    /// What it has moved and not told.
    pub(crate) moves: Vec<OwnMove>,
    /// Requests that tell moves, and have not been answered.
    pub(crate) telling: Vec<(Ticket, u64)>,
}

/// Made by a client under write leases, told later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnMove {
    pub(crate) number: u64,
    pub(crate) fid: Fid,
    pub(crate) from: Fid,
    pub(crate) to: Fid,
}

pub(crate) struct World {
    pub(crate) mistake: Mistake,
    pub(crate) random: Random,
    /// Of so many places one is not said.
    pub(crate) unsaid: usize,
    pub(crate) habits: usize,
    pub(crate) now: Monotonic,
    pub(crate) config: TableConfig,
    pub(crate) table: LeaseTable,
    pub(crate) tree: BTreeMap<Fid, Inode>,
    /// Files that had several names once.
    pub(crate) linked: BTreeSet<Fid>,
    pub(crate) clients: BTreeMap<u64, Client>,
    pub(crate) planned: Vec<Op>,
    pub(crate) waiting: BTreeMap<OpKey, Op>,
    pub(crate) running: Vec<(OpKey, Op)>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) recalls: Vec<(u64, Recall)>,
    pub(crate) acks: Vec<(u64, RecallAck)>,
    /// The newest version of each object that somebody has read or written, all done.
    pub(crate) floor: BTreeMap<Fid, u64>,
    pub(crate) versions: u64,
    pub(crate) ops: u64,
    pub(crate) cached_reads: u64,
    pub(crate) local_writes: u64,
    pub(crate) deep_grants: u64,
    pub(crate) holes: u64,
    pub(crate) healed: u64,
    pub(crate) lowered: u64,
    pub(crate) told: u64,
    pub(crate) refused: u64,
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
        let habits = random.below(3);
        let unsaid = [0, 0, 20, 100][random.below(4)];
        let mut world = World {
            mistake,
            random,
            habits,
            unsaid,
            now,
            table: LeaseTable::new(config.clone(), Epoch(1), now),
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
            lowered: 0,
            told: 0,
            refused: 0,
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
            let client = Client {
                holder,
                cache,
                newest,
                dropping: Vec::new(),
                moves: Vec::new(),
                telling: Vec::new(),
            };
            world.clients.insert(session, client);
        }
        world
    }

    pub(crate) fn grow(&mut self, ino: u64, parent: u64, is_dir: bool) {
        let parents = if parent == 0 { Vec::new() } else { vec![f(parent)] };
        self.tree.insert(f(ino), Inode { parents, is_dir, version: 0 });
    }

    pub(crate) fn chain(&self, fid: Fid) -> Vec<Fid> {
        let up = |fid: &Fid| self.tree.get(fid)?.parents.first().copied();
        std::iter::successors(up(&fid), up).collect()
    }

    pub(crate) fn inode(&mut self, fid: Fid) -> &mut Inode {
        self.tree.entry(fid).or_default()
    }

    pub(crate) fn client(&mut self, session: u64) -> &mut Client {
        self.clients.get_mut(&session).expect("a session")
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
            90..=94 => self.use_cache(),
            95 => self.lower(),
            96..=97 => self.move_at_home(),
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

    pub(crate) fn in_flight(&self, session: u64) -> usize {
        self.all_in_flight().filter(|op| op.session == session).count()
    }

    pub(crate) fn all_in_flight(&self) -> impl Iterator<Item = &Op> {
        let running = self.running.iter().map(|(_, op)| op);
        let sent = self.planned.iter().chain(self.waiting.values()).chain(running);
        sent.chain(self.replies.iter().map(|reply| &reply.op))
    }

    /// As the server does it when the request has come.
    pub(crate) fn plan(&mut self, mut op: Op) -> Op {
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
    pub(crate) fn is_unsaid(&mut self) -> bool {
        self.unsaid > 0 && self.random.below(self.unsaid) == 0
    }

    pub(crate) fn floor(&self, fid: Fid) -> u64 {
        self.floor.get(&fid).copied().unwrap_or_default()
    }

    pub(crate) fn send(&mut self) {
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
    pub(crate) fn carry_out(&mut self) {
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
                    let parents = &mut self.inode(*fid).parents;
                    parents.retain(|parent| parent != from);
                    parents.push(*to);
                    if parents.len() == 1 && self.mistake != Mistake::MovesUntold {
                        changes.moved.push(self.moved(*fid));
                    }
                }
                fine
            }
            Does::Link(fid, dir) => {
                let fine = !has(self, fid, dir);
                if fine {
                    self.inode(*fid).parents.push(*dir);
                    self.linked.insert(*fid);
                    changes.relinked.push(*fid);
                }
                fine
            }
            Does::Unlink(fid, dir) => {
                let fine = has(self, fid, dir) && self.tree[fid].parents.len() > 1;
                if fine {
                    self.inode(*fid).parents.retain(|parent| parent != dir);
                    changes.relinked.push(*fid);
                }
                fine
            }
        };
        let writes = done && !matches!(op.does, Does::Read(_));
        let mut seen = Vec::new();
        for access in op.accesses.iter().filter(|access| access.fid != f(0)) {
            let stored = self.tree[&access.fid].version;
            assert!(stored >= op.floors[&access.fid], "{:?} is served an old {:?}", op.does, access.fid);
            if writes {
                self.versions += 1;
                self.inode(access.fid).version = self.versions;
            }
            seen.push((access.fid, self.tree[&access.fid].version));
        }
        let running = &mut self.running[at].1;
        running.seen = seen;
        let outcome = if done { Outcome::Applied } else { Outcome::Failed };
        running.result = Some((outcome, changes));
    }

    pub(crate) fn moved(&self, fid: Fid) -> Moved {
        let kind = if self.tree[&fid].is_dir { FileKind::Directory } else { FileKind::File };
        Moved { fid, kind, above: self.chain(fid) }
    }

    pub(crate) fn finish(&mut self) {
        let done: Vec<usize> =
            (0..self.running.len()).filter(|at| self.running[*at].1.result.is_some()).collect();
        let Some(at) = self.random.pick(&done) else { return };
        let (key, op) = self.running.swap_remove(at);
        let (outcome, changes) = op.result.clone().expect("carried out");
        let granted = self.table.finish_tree(self.now, key, outcome, &changes);
        let mut op = op;
        for created in &changes.created {
            op.seen.push((created.fid, 0));
        }
        self.replies.push(Reply { op, grants: granted.leases, covered: granted.covered });
    }

    pub(crate) fn hear_ack(&mut self) {
        if !self.acks.is_empty() {
            let at = self.random.below(self.acks.len());
            let (session, ack) = self.acks.swap_remove(at);
            self.table.handle_acks(self.now, s(session), &[ack]);
        }
    }

    pub(crate) fn outputs(&mut self) {
        let _ = self
            .table
            .poll_timeout()
            .filter(|wake| *wake <= self.now)
            .map(|_| self.table.handle_timeout(self.now));
        while let Some(output) = self.table.poll_output() {
            self.output(output);
        }
        let counters = self.table.counters();
        self.deep_grants = self.deep_grants.max(counters.deep_grants);
        self.holes = self.holes.max(counters.holes);
        self.healed = self.healed.max(counters.holes_healed);
        self.lowered = self.lowered.max(counters.deep_lowered);
    }

    pub(crate) fn output(&mut self, output: Output) {
        match output {
            Output::Admit(key) => {
                let op = self.waiting.remove(&key).expect("waits");
                self.running.push((key, op));
            }
            Output::Recall { session, recall } => self.recalls.push((session.0, recall)),
            other => panic!("{other:?}"),
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
            (1..=SESSIONS).for_each(|session| _ = self.tell_moves(session));
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
