//! What must hold in every run. Each has a module of its own.
//!
//! | property | source | module |
//! |---|---|---|
//! | two sessions never hold conflicting valid leases, each judged by its own clock at the same true time | the promise of a lease | [`exclusive`] |
//! | no stale read: a read returns nothing older than what any operation had returned before it began | one copy; linearizability (Herlihy & Wing 1990) | [`fresh`] |
//! | no acknowledged write is lost, across crashes of the server | nothing lost in silence | [`durable`] |
//! | an operation is carried out at most once; exactly once if it was acknowledged | exactly once | [`once`] |
//! | nothing is begun for a session that has ended | fenced first, then the request goes on | [`fenced`] |
//! | epochs only grow, across restarts | fencing; Chubby's sequencers | [`epochs`] |
//! | slow is not dead: nobody who is reachable and answers is thrown out for silence | Lustre evicted clients for one dropped message | [`patience`] |
//! | once all faults are healed, every operation ends within a bound | openraft's two-phase simulation | [`progress`] |
//! | with delayed writes: one copy, the server's state is a prefix of each client's history, what was fsynced is never lost, everything else only with its session or in a power cut | docs/SEMANTICS.md, "Delayed writes" | [`ahead`] |
//! | no two processes count on file locks that exclude each other; in the end no lock is left that nobody has | docs/SEMANTICS.md, "Locks" | [`locked`] |
//! | what was made under a reservation has room when it is told, and a number of its own; what is taken and what is set aside fit side by side; nothing is set aside for who is away while others are refused | docs/SEMANTICS.md, 16 | [`room`] |
//! | the same seed gives the same run | slatedb: determinism is itself a test | `tests/determinism.rs` |

pub mod ahead;
pub mod durable;
pub mod epochs;
pub mod exclusive;
pub mod fenced;
pub mod fresh;
pub mod locked;
pub mod once;
pub mod patience;
pub mod progress;
pub mod room;

use crate::config::Writes;
use crate::property::{Property, Violation};
use crate::register::{Object, OpUid, Register, Value};
pub use ahead::Shape;
use soda_types::{Grant, Ino, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The watchers of one run.
#[derive(Debug, Default)]
pub struct Invariants {
    fresh: fresh::Fresh,
    once: once::Once,
    epochs: epochs::Epochs,
    fenced: fenced::Fenced,
    numbers: room::Numbers,
    /// What the store has.
    stored: BTreeMap<Register, Value>,
    /// With delayed writes: in the place of the watchers above but `epochs` and `fenced`.
    ahead: Option<ahead::Ahead>,
    violations: Vec<Violation>,
}

impl Invariants {
    pub fn new(writes: Writes) -> Invariants {
        let ahead = matches!(writes, Writes::Behind(_)).then(ahead::Ahead::default);
        Invariants { ahead, ..Invariants::default() }
    }

    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub fn report(&mut self, found: Option<Violation>) {
        self.violations.extend(found);
    }

    /// The store has changed the register for the operation.
    pub fn applied(&mut self, uid: OpUid, register: Register, value: Value) {
        self.stored.insert(register, value);
        let found = self.once.applied(uid, register, value);
        self.report(found);
    }

    /// A program calls.
    pub fn invoked(&mut self, uid: OpUid, registers: &[Register]) {
        match &mut self.ahead {
            Some(ahead) => ahead.invoked(uid, registers),
            None => self.fresh.invoked(uid, registers),
        }
    }

    /// A read has returned to the program, of a client with this session.
    pub fn read(&mut self, uid: OpUid, by: Option<SessionId>, register: Register, value: Value) {
        if let Some(ahead) = &mut self.ahead {
            let found = ahead.read(uid, by, register, value);
            ahead.ended(uid);
            return self.report(found);
        }
        self.returned(uid, register, value);
        self.fresh.ended(uid);
    }

    /// A change has returned to the program.
    pub fn changed(&mut self, uid: OpUid, registers: &[Register], values: &[Value]) {
        let found = self.once.acknowledged(uid, registers, values);
        self.report(found);
        for (register, value) in registers.iter().zip(values) {
            self.returned(uid, *register, *value);
        }
        self.fresh.ended(uid);
    }

    fn returned(&mut self, uid: OpUid, register: Register, value: Value) {
        let stored = self.stored.get(&register).copied().unwrap_or_default();
        let found = self.fresh.returned(uid, register, value, stored);
        self.report(found);
    }

    /// The program will never know.
    pub fn gave_up(&mut self, uid: OpUid) {
        self.watch_ahead(|ahead| {
            ahead.ended(uid);
            None
        });
        self.fresh.ended(uid);
    }

    /// The server begins to carry out an operation of the session.
    pub fn begun(&mut self, uid: OpUid, session: SessionId) {
        let found = self.fenced.begun(uid, session);
        self.report(found);
    }

    pub fn granted(&mut self, grant: &Grant) {
        let found = self.epochs.granted(grant);
        self.report(found);
    }

    /// The server has taken the number for an inode that a client has made, by itself or through the server.
    pub fn numbered(&mut self, number: Ino, object: Object) {
        let found = self.numbers.numbered(number, object);
        self.report(found);
    }

    /// What the store has now is at least what programs have been told.
    pub fn check_durable(&mut self, stored: impl Fn(Register) -> Value) {
        if let Some(ahead) = &self.ahead {
            let found = ahead.check_stored(stored);
            return self.report(found);
        }
        let found = durable::check(self.fresh.seen(), stored);
        self.report(found);
    }

    // ------------------------------------------------------------------------------------------------- delayed writes

    fn watch_ahead(&mut self, watch: impl FnOnce(&mut ahead::Ahead) -> Option<Violation>) {
        let found = self.ahead.as_mut().and_then(watch);
        self.report(found);
    }

    /// A client has made the change and told its program so. `shape`: what it does to the tree.
    pub fn done_locally(
        &mut self,
        uid: OpUid,
        session: SessionId,
        (changes, shape): (&[Object], Shape),
        before: &[(Register, Value)],
        effects: &[(Register, Value)],
    ) {
        self.watch_ahead(|ahead| ahead.done_locally(uid, session, (changes, shape), before, effects));
        self.gave_up(uid);
    }

    /// The server has made the change for a client.
    pub fn done_through(&mut self, uid: OpUid, session: SessionId, effects: &[(Register, Value)]) {
        self.watch_ahead(|ahead| ahead.done_through(uid, session, effects));
    }

    /// The program has been told so.
    pub fn completed(&mut self, uid: OpUid) {
        self.watch_ahead(|ahead| ahead.completed(uid));
        self.gave_up(uid);
    }

    /// The program has been told that nothing was done, because this is how it is.
    pub fn failed(&mut self, uid: OpUid, by: Option<SessionId>, found: &[(Register, Value)]) {
        for (register, value) in found {
            self.watch_ahead(|ahead| ahead.read(uid, by, *register, *value));
        }
        self.gave_up(uid);
    }

    pub fn digested(&mut self, session: SessionId, uids: &[OpUid], stored: impl Fn(Register) -> Value) {
        self.watch_ahead(|ahead| ahead.digested(session, uids, stored));
    }

    /// The server has ended the session.
    pub fn session_ended(&mut self, session: SessionId) {
        self.fenced.ended(session);
        self.watch_ahead(|ahead| ahead.session_ended(session));
    }

    /// A client has lost the log of the session.
    pub fn abandoned(&mut self, session: SessionId) {
        self.watch_ahead(|ahead| {
            ahead.abandoned(session);
            None
        });
    }

    /// A client has let others in to what these changed: they are not sent again.
    pub fn handed_over(&mut self, uids: &[OpUid]) {
        self.watch_ahead(|ahead| {
            ahead.handed_over(uids);
            None
        });
    }

    /// A client has given these up for lost, after a power cut of the server.
    pub fn given_up(&mut self, uids: &[OpUid]) {
        self.watch_ahead(|ahead| ahead.given_up(uids));
    }

    pub fn power_cut(&mut self, stored: impl Fn(Register) -> Value, logged: &BTreeSet<OpUid>) {
        self.watch_ahead(|ahead| ahead.power_cut(stored, logged));
    }

    pub fn sync_invoked(&mut self, uid: OpUid, session: Option<SessionId>, registers: &[Register]) {
        self.watch_ahead(|ahead| {
            ahead.sync_invoked(uid, session, registers);
            None
        });
    }

    /// The server has answered an fsync.
    pub fn sync_answered(&mut self, uid: OpUid) {
        self.watch_ahead(|ahead| {
            ahead.sync_answered(uid);
            None
        });
    }

    /// fsync has returned.
    pub fn synced(&mut self, uid: OpUid) {
        self.watch_ahead(|ahead| ahead.synced(uid));
    }

    /// fsync has returned as these are on the client's own disk.
    pub fn synced_here(&mut self, uids: &[OpUid]) {
        self.watch_ahead(|ahead| {
            ahead.synced_here(uids);
            None
        });
    }

    /// A power cut of the client has taken these from its log.
    pub fn lost_here(&mut self, uids: &[OpUid]) {
        self.watch_ahead(|ahead| ahead.lost_here(uids));
    }

    /// The client's disk keeps these for recovery.
    pub fn kept(&mut self, uids: &[OpUid]) {
        self.watch_ahead(|ahead| {
            ahead.kept(uids);
            None
        });
    }

    pub fn check_end(&mut self) {
        self.watch_ahead(ahead::Ahead::check_end);
    }
}
