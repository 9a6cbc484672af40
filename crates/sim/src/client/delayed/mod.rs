//! Delayed writes: what a client does under its write leases goes into its log, and to the server later.
//!
//! * here: what there is, and what of it survives a crash;
//! * `choose`: what programs do next;
//! * `local`: what may be done without the server;
//! * `moves`: names that move, as the lease holder has to know them;
//! * `flush`: digests, which of them are under way, and what waits for them;
//! * `along`: syncs that are asked for along with a digest;
//! * `answered`: what becomes of a digest;
//! * `recalls`: nothing is handed over before the server has it;
//! * `local_disk`: what a power cut of the client leaves of its log, and what fsync is content with;
//! * `space`: what the server has set aside for what is told later;
//! * `whole`: deep leases that are lowered for who goes through what they cover;
//! * `restart`: what a new run of the server has, and what it has lost.

mod along;
mod answered;
mod choose;
mod flush;
mod inquiries;
mod local;
mod local_disk;
mod moves;
mod recalls;
mod restart;
mod space;
mod whole;

pub(super) use choose::Plan;
pub(super) use local_disk::Mark;

use crate::config::{Behind, LogPlace};
use crate::context::Context;
use crate::event::ConnId;
use crate::message::{DigestCall, Leases, Tag};
use crate::register::{Content, Object, OpUid, Register, Value};
use along::Along;
use recalls::Owed;
use soda_oplog::{DigestId, Log, Lsn};
use soda_types::{Fid, Ino, Monotonic, Recall, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug)]
pub(super) struct Delayed {
    config: Behind,
    /// What is on the local disk, if the log is.
    kept: Kept,
    /// Inodes that were made here and that the server has not heard of: nobody else can reach them.
    made: BTreeSet<Object>,
    values: BTreeMap<Register, Value>,
    /// Inodes whose making has been in a digest.
    told: BTreeSet<Object>,
    /// Requests that wait until the server has what they depend on.
    held_back: BTreeSet<Tag>,
    /// Syncs that have been asked for along with a digest, in the order of these.
    along: Vec<Along>,
    owed: Vec<Owed>,
    /// Questions about parts of deep leases that are looked at when the digests under way have their answers, up to this one.
    deferred: Vec<(Recall, DigestId)>,
    /// Own moves that the server has not been told, as the lease holder numbers them.
    moves: BTreeMap<Lsn, Vec<u64>>,
    lowering: Vec<whole::Lowering>,
    space: space::Space,
    /// For [`Sabotage::ChangeWhileRecalled`].
    ///
    /// [`Sabotage::ChangeWhileRecalled`]: crate::sabotage::Sabotage::ChangeWhileRecalled
    looked_clean: BTreeSet<Fid>,
    /// What programs believe that names mean.
    view: BTreeMap<Register, Content>,
    known: Vec<Object>,
    /// Numbers of inodes are never used twice.
    last_object: Object,
    settling: Settling,
    through: local_disk::Through,
}

/// After a crash nothing new is done before the server's disk has all that was left in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Settling {
    No,
    Yes,
}

#[derive(Debug, Default)]
struct Kept {
    session: Option<SessionId>,
    /// The run of the server that was heard of last.
    boot: u64,
    /// The last digest that the server had at the last welcome.
    stored: DigestId,
    log: Log,
    /// What is in the log.
    written: BTreeMap<Lsn, Written>,
    /// Digests under way, in their order.
    under_way: VecDeque<Sending>,
    /// Those that were sent behind one that the server has refused: it will not apply them, and nothing goes before each of them
    /// has its answer.
    doomed: VecDeque<Sending>,
    /// The local disk has the log up to here.
    synced: Lsn,
    /// fsync has returned for the log up to here, because that is so.
    promised: Lsn,
}

/// A record of the log.
#[derive(Clone, Debug)]
struct Written {
    uid: OpUid,
    /// What was found.
    before: Vec<(Register, Value)>,
    effects: Vec<(Register, Value)>,
    /// Inodes that existed before.
    changes: Vec<Object>,
    makes: Option<Object>,
    /// The number of what it makes, where these are counted.
    number: Option<Ino>,
    /// The digest in which it was sent last.
    digest: Option<DigestId>,
    /// Somebody else has been let in to what it changed: no lease covers it any more.
    handed_over: bool,
}

/// A digest without an answer.
#[derive(Debug)]
struct Sending {
    digest: DigestCall,
    lsns: Vec<Lsn>,
    chosen: Chosen,
    request: Option<Tag>,
    sent_on: Option<ConnId>,
    /// It was turned away, and does not go again before.
    not_before: Monotonic,
    /// Read when those before it have theirs.
    answer: Option<Answer>,
}

/// Why a digest holds what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Chosen {
    InOrder,
    /// Somebody waits for it.
    Wanted,
}

#[derive(Debug)]
enum Answer {
    Applied(Leases),
    Refused,
}

impl Written {
    fn touches(&self, object: Object) -> bool {
        self.makes == Some(object) || self.changes.contains(&object)
    }
}

impl Delayed {
    pub(super) fn new(config: Behind, client: usize) -> Delayed {
        Delayed {
            config,
            kept: Kept::default(),
            made: BTreeSet::new(),
            values: BTreeMap::new(),
            told: BTreeSet::new(),
            held_back: BTreeSet::new(),
            along: Vec::new(),
            owed: Vec::new(),
            deferred: Vec::new(),
            lowering: Vec::new(),
            space: space::Space::default(),
            moves: BTreeMap::new(),
            looked_clean: BTreeSet::new(),
            view: BTreeMap::new(),
            known: Vec::new(),
            last_object: 1000 + client as Object * 10_000_000,
            settling: Settling::No,
            through: local_disk::Through::default(),
        }
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        self.kept.session
    }

    /// Whether it was made here, and the server has never been told of it: nobody else can know of it.
    pub(super) fn is_known_here_alone(&self, object: Object) -> bool {
        self.made.contains(&object) && !self.told.contains(&object)
    }

    /// Whether the server lacks something of it.
    pub(super) fn is_ahead(&self, fid: Fid) -> bool {
        self.kept.log.concerns(fid)
    }

    /// What programs have come to know.
    pub(super) fn known(&self) -> &[Object] {
        &self.known
    }

    /// Nothing is in the log that the server lacks.
    pub(super) fn is_clean(&self) -> bool {
        self.kept.log.oldest_pending().is_none() && !self.kept.is_sending()
    }

    /// Nor can a power cut of the server give anything back to the log, and no recall waits for what is to be told.
    pub(super) fn is_durable(&self) -> bool {
        self.is_clean() && self.owed.is_empty() && !self.kept.log.has_undurable_from(DigestId(0))
    }

    /// The server has been told all that was logged up to here.
    fn told_up_to(&self) -> Lsn {
        let pending = self.kept.log.pending().map(|record| record.lsn).next();
        let under_way = self.kept.sent().flat_map(|sending| &sending.lsns).copied().min();
        let first = pending.into_iter().chain(under_way).min();
        first.map_or(self.kept.log.last_lsn(), |first| Lsn(first.0 - 1))
    }

    /// Processes that wait for room at the server.
    pub(super) fn waiting_for_room(&self) -> Vec<usize> {
        self.space.waiting().collect()
    }

    /// Operations in the log that a lease covers: they are not lost with the memory of the server.
    pub(super) fn logged(&self) -> impl Iterator<Item = OpUid> {
        self.kept.written.values().filter(|written| !written.handed_over).map(|written| written.uid)
    }

    /// The client has crashed.
    pub(super) fn crash(&mut self, context: &mut Context) {
        if self.config.log == LogPlace::Memory {
            self.lose_log(context);
        }
        // As its log has them: each is told after the other, whatever was said of those before.
        for sending in &mut self.kept.under_way {
            (sending.request, sending.sent_on, sending.answer) = (None, None, None);
            (sending.digest.after, sending.not_before) = (None, Monotonic::ZERO);
            // The processes that had locks are gone.
            sending.digest.locks.clear();
        }
        self.kept.doomed.clear();
        self.lose_memory();
        if !self.kept.written.is_empty() {
            self.settling = Settling::Yes;
        }
    }

    pub(super) fn is_settling(&self) -> bool {
        self.settling == Settling::Yes
    }

    /// The session is over, and the log with it.
    pub(super) fn lose_log(&mut self, context: &mut Context) {
        if let Some(session) = self.kept.session {
            context.invariants.abandoned(session);
        }
        self.keep(context, self.kept.written.values().map(|written| written.uid).collect());
        self.kept = Kept { boot: self.kept.boot, ..Kept::default() };
        self.settling = Settling::No;
        let space = self.space.of_next_session();
        // Inodes that were only in the log never were.
        self.view.clear();
        self.known.clear();
        self.lose_memory();
        self.space = space;
    }

    fn lose_memory(&mut self) {
        self.made.clear();
        self.values.clear();
        self.held_back.clear();
        self.along.clear();
        self.owed.clear();
        self.deferred.clear();
        self.lowering.clear();
        self.space = space::Space::default();
        self.moves.clear();
    }

    /// An answer shows what the register holds.
    pub(super) fn saw(&mut self, register: Register, value: Value) {
        self.view.insert(register, value.content);
        match value.content {
            Content::Names(object) => self.learn(object),
            Content::Gone => self.known.retain(|object| *object != register.object),
            Content::Blank | Content::Data(_) | Content::Links(_) | Content::Under(_) => {}
        }
    }

    fn learn(&mut self, object: Object) {
        const MOST: usize = 8;
        if !self.known.contains(&object) {
            self.known.push(object);
        }
        if self.known.len() > MOST {
            self.known.remove(0);
        }
    }

    pub(super) fn hold_back(&mut self, tag: Tag) {
        self.held_back.insert(tag);
    }

    fn forget_made(&mut self, object: Object) {
        self.made.remove(&object);
        self.values.retain(|register, _| register.object != object);
    }
}
