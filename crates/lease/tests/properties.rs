//! Whatever comes in whatever order: what must always hold of the table, and of byte-range locks.

use proptest::prelude::*;
use soda_lease::locks::{IfBusy, LockTable};
use soda_lease::table::{
    Access, BackOff, Equation8, Intent, LeaseTable, ObjectTerm, OpKey, Outcome, Output, TableConfig, Want,
};
use soda_types::{
    Cause, Epoch, Fid, Grant, InUse, Ino, Lock, LockFamily, LockMode, LockOwner, Mode, Monotonic, Recall,
    RecallAck, SessionId, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SESSIONS: u64 = 4;

#[derive(Clone, Debug)]
enum Event {
    Request {
        session: u64,
        accesses: Vec<(u64, Intent, Want)>,
    },
    Finish {
        which: usize,
        outcome: Outcome,
    },
    Cancel {
        which: usize,
    },
    /// Answers the newest or an old recall, lowering or giving up.
    Ack {
        which: usize,
        kept: Option<Mode>,
    },
    Release {
        session: u64,
        ino: u64,
    },
    /// What it wants from now on.
    OwnTerm {
        session: u64,
        term: Option<ObjectTerm>,
    },
    Progress {
        session: u64,
        ino: u64,
    },
    Renew {
        session: u64,
    },
    Goodbye {
        session: u64,
    },
    Open {
        session: u64,
    },
    Pass {
        ms: u64,
    },
    Restart {
        known: Vec<u64>,
    },
    FinishReclaim {
        session: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let session = 1..=SESSIONS;
    let ino = 1..=3_u64;
    let intent = prop_oneof![Just(Intent::Read), Just(Intent::Change)];
    let want = prop_oneof![3 => Just(Want::Lease), 1 => Just(Want::Nothing)];
    let accesses = prop::collection::vec((ino.clone(), intent, want), 1..=2);
    let kept = prop_oneof![2 => Just(None), 1 => Just(Some(Mode::Read)), 1 => Just(Some(Mode::Write))];
    let outcome = prop_oneof![4 => Just(Outcome::Applied), 1 => Just(Outcome::Failed)];
    prop_oneof![
        12 => (session.clone(), accesses).prop_map(|(session, accesses)| Event::Request { session, accesses }),
        12 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Event::Finish { which, outcome }),
        2 => any::<usize>().prop_map(|which| Event::Cancel { which }),
        10 => (any::<usize>(), kept).prop_map(|(which, kept)| Event::Ack { which, kept }),
        2 => (session.clone(), ino.clone()).prop_map(|(session, ino)| Event::Release { session, ino }),
        1 => (session.clone(), ino).prop_map(|(session, ino)| Event::Progress { session, ino }),
        6 => session.clone().prop_map(|session| Event::Renew { session }),
        1 => session.clone().prop_map(|session| Event::Goodbye { session }),
        2 => session.clone().prop_map(|session| Event::Open { session }),
        2 => (session.clone(), proptest::option::of(object_term()))
            .prop_map(|(session, term)| Event::OwnTerm { session, term }),
        4 => (1..15_000_u64).prop_map(|ms| Event::Pass { ms }),
        1 => prop::collection::vec(session.clone(), 0..3).prop_map(|known| Event::Restart { known }),
        2 => session.prop_map(|session| Event::FinishReclaim { session }),
    ]
}

fn fid(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

/// A table and what the world outside knows of it.
struct Watched {
    table: LeaseTable,
    config: TableConfig,
    now: Monotonic,
    ops: u64,
    accesses: BTreeMap<OpKey, (SessionId, Vec<Access>)>,
    waiting: BTreeSet<OpKey>,
    running: BTreeSet<OpKey>,
    recalls: Vec<(SessionId, Recall)>,
    last_epoch: Epoch,
}

impl Watched {
    fn new(config: TableConfig) -> Watched {
        let now = Monotonic::ZERO;
        let mut table = LeaseTable::new(config.clone(), Epoch(1), now);
        (1..=SESSIONS).for_each(|session| table.open_session(now, SessionId(session)));
        Watched {
            table,
            config,
            now,
            ops: 0,
            accesses: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            recalls: Vec::new(),
            last_epoch: Epoch(0),
        }
    }

    fn apply(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Request { session, accesses } => {
                self.ops += 1;
                let op = OpKey(self.ops);
                let make =
                    |(ino, intent, want)| Access { intent, want, ..Access::change(fid(ino), Cause::Data) };
                let accesses: Vec<Access> = accesses.into_iter().map(make).collect();
                self.accesses.insert(op, (SessionId(session), accesses.clone()));
                self.waiting.insert(op);
                self.table.request(now, SessionId(session), op, accesses);
            }
            Event::Finish { which, outcome } => {
                if let Some(op) = pick(&self.running, which) {
                    self.finish(op, outcome);
                }
            }
            Event::Cancel { which } => {
                if let Some(op) = pick(&self.waiting, which) {
                    self.waiting.remove(&op);
                    self.table.cancel(now, op);
                }
            }
            Event::Ack { which, kept } => {
                if !self.recalls.is_empty() {
                    let (session, recall) = self.recalls[which % self.recalls.len()].clone();
                    self.ack(session, &recall, kept);
                }
            }
            Event::Release { session, ino } => {
                if let Some(lease) = self.table.lease(SessionId(session), fid(ino)) {
                    let (epoch, in_use) = (lease.epoch, InUse::No);
                    let release = RecallAck { fid: fid(ino), epoch, kept: None, in_use, uses: 1, part: None };
                    self.table.handle_release(now, SessionId(session), &[release]);
                }
            }
            Event::Progress { session, ino } => {
                self.table.handle_progress(now, SessionId(session), &[fid(ino)])
            }
            Event::Renew { session } => drop(self.table.handle_traffic(now, SessionId(session))),
            Event::Goodbye { session } => self.table.close_session(now, SessionId(session)),
            Event::Open { session } => self.table.open_session(now, SessionId(session)),
            Event::OwnTerm { session, term } => self.table.set_object_term(SessionId(session), term),
            Event::Pass { ms } => self.pass(Duration::from_millis(ms)),
            Event::Restart { known } => {
                self.table = LeaseTable::new(self.config.clone(), Epoch(self.last_epoch.0 + 1000), now);
                self.table.begin_grace(now, known.into_iter().map(SessionId));
                (self.waiting, self.running) = Default::default();
            }
            Event::FinishReclaim { session } => {
                let held: Vec<Grant> = Vec::new();
                let _ = self.table.handle_reclaim(now, SessionId(session), &held);
                self.table.finish_reclaim(now, SessionId(session));
            }
        }
        self.outputs();
        self.check();
    }

    fn finish(&mut self, op: OpKey, outcome: Outcome) {
        self.running.remove(&op);
        let grants = self.table.finish(self.now, op, outcome);
        for grant in &grants {
            assert!(grant.epoch > self.last_epoch, "epochs only grow");
            self.last_epoch = grant.epoch;
        }
        let (session, accesses) = &self.accesses[&op];
        for grant in grants {
            let asked = accesses.iter().find(|access| access.fid == grant.fid && access.want == Want::Lease);
            assert!(asked.is_some(), "a lease that nobody asked for");
            assert!(self.table.has_session(*session));
        }
        self.last_epoch = self.last_epoch.max(self.table.last_epoch());
    }

    fn ack(&mut self, session: SessionId, recall: &Recall, kept: Option<Mode>) {
        let ack = RecallAck {
            fid: recall.fid,
            epoch: recall.epoch,
            kept,
            in_use: InUse::No,
            uses: 2,
            part: recall.part,
        };
        self.table.handle_acks(self.now, session, &[ack]);
    }

    fn pass(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(wake) = self.table.poll_timeout().filter(|wake| *wake <= until) {
            self.now = self.now.max(wake);
            self.table.handle_timeout(self.now);
            self.outputs();
            self.check();
            let next = self.table.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "a time-out that does not end");
        }
        self.now = until;
    }

    fn outputs(&mut self) {
        while let Some(output) = self.table.poll_output() {
            match output {
                Output::Admit(op) => {
                    assert!(self.waiting.remove(&op), "{op:?} is admitted and did not wait");
                    self.running.insert(op);
                    self.check_admitted(op);
                }
                Output::Refuse(op, _) => {
                    assert!(self.waiting.remove(&op), "{op:?} is refused and did not wait")
                }
                Output::Recall { session, recall } => self.recalls.push((session, recall)),
                Output::Fence { session, .. } => assert!(!self.table.has_session(session)),
                Output::SessionInUse { .. } | Output::Inquire { .. } | Output::NotDescribed(_) => {}
            }
        }
    }

    /// Operations that run do not conflict with each other, nor with leases of others.
    fn check_admitted(&self, op: OpKey) {
        let (session, accesses) = &self.accesses[&op];
        for access in accesses {
            for other in self.running.iter().filter(|other| **other != op) {
                for running in self.accesses[other].1.iter().filter(|running| running.fid == access.fid) {
                    let both_read = running.intent == Intent::Read && access.intent == Intent::Read;
                    assert!(both_read, "{op:?} and {other:?} run together");
                }
            }
            for holder in self.table.holders(self.now, access.fid) {
                let in_the_way = access.intent == Intent::Change || holder.mode == Mode::Write;
                assert!(holder.session == *session || !in_the_way, "{op:?} runs against {holder:?}");
            }
        }
    }

    /// Leases of different sessions do not conflict, and the books are in order.
    fn check(&self) {
        for ino in 1..=3 {
            let holders = self.table.holders(self.now, fid(ino));
            let writer = holders.iter().any(|holder| holder.mode == Mode::Write);
            assert!(!writer || holders.len() == 1, "{holders:?}");
        }
        let sessions = self.table.sessions(self.now);
        // This walks through all recalls.
        for session in &sessions {
            assert_eq!(self.table.is_asked(session.session), session.unanswered > 0, "{session:?}");
        }
        let held: usize = sessions.iter().map(|session| session.leases).sum();
        assert_eq!(held, self.table.len());
        assert_eq!(self.table.waiting_count(), self.waiting.len());
        // Who waits is told for whom, or that there is a grace period: admission has what the view shows.
        for ino in 1..=3 {
            for wait in self.table.waiting(self.now, fid(ino)) {
                let in_grace = wait.blocked_by.is_empty() && self.table.grace_left(self.now).is_some();
                assert!(in_grace || !wait.blocked_by.is_empty(), "{wait:?} waits for nothing");
            }
        }
    }

    /// Everybody answers and everything is finished: then nothing is left waiting.
    fn wind_up(&mut self) {
        for _ in 0..200 {
            for session in 1..=SESSIONS {
                self.table.finish_reclaim(self.now, SessionId(session));
            }
            self.outputs();
            for (session, recall) in std::mem::take(&mut self.recalls) {
                self.ack(session, &recall, None);
            }
            self.outputs();
            while let Some(op) = pick(&self.running, 0) {
                self.finish(op, Outcome::Applied);
                self.outputs();
            }
            self.pass(Duration::from_secs(1));
            self.check();
            if self.waiting.is_empty() && self.running.is_empty() {
                break;
            }
        }
        assert!(self.waiting.is_empty(), "{:?} still wait", self.waiting);
        for session in 1..=SESSIONS {
            self.table.close_session(self.now, SessionId(session));
        }
        self.outputs();
        assert_eq!((self.table.len(), self.table.poll_timeout()), (0, None));
    }
}

fn pick(set: &BTreeSet<OpKey>, which: usize) -> Option<OpKey> {
    if set.is_empty() {
        return None;
    }
    set.iter().nth(which % set.len()).copied()
}

fn object_term() -> impl Strategy<Value = ObjectTerm> + Clone {
    let some_time = ObjectTerm::For(Duration::from_secs(3));
    prop_oneof![Just(ObjectTerm::None), Just(some_time), Just(ObjectTerm::Session)]
}

fn config() -> impl Strategy<Value = TableConfig> {
    let second = Duration::from_secs(1);
    (any::<bool>(), any::<bool>(), 1..5_usize, object_term()).prop_map(
        move |(rates, back_off, room, term)| {
            let on = Equation8::On { half_life: second, min_writes: 2 };
            let back_off_on = BackOff::On { first: second, longest: second * 4 };
            TableConfig {
                equation_8: if rates { on } else { Equation8::Off },
                back_off: if back_off { back_off_on } else { BackOff::Off },
                max_leases_per_session: room,
                object_term: term,
                ..TableConfig::with_term(second * 10)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_always_holds(config in config(), events in prop::collection::vec(event(), 1..120)) {
        let mut watched = Watched::new(config);
        for event in events {
            watched.apply(event);
        }
        watched.wind_up();
    }

    /// Without waiting, locks are a table of who holds each byte and how.
    #[test]
    fn locks_are_what_each_byte_says(steps in prop::collection::vec(
        (1..=2_u64, 1..=2_u64, 0..12_u64, 0..12_u64, 0..3_u8), 1..60
    )) {
        let mut table = LockTable::new();
        let mut bytes: BTreeMap<(u64, u64, u64), LockMode> = BTreeMap::new();
        for (session, owner, one, other, what) in steps {
            let (start, end) = (one.min(other), one.max(other));
            let mode = if what == 0 { LockMode::Shared } else { LockMode::Exclusive };
            let lock = Lock { family: LockFamily::Record, owner: LockOwner(owner), pid: 1, start, end, mode };
            if what == 2 {
                table.release(fid(1), SessionId(session), lock);
                bytes.retain(|(s, o, at), _| (*s, *o) != (session, owner) || !(start..=end).contains(at));
                continue;
            }
            let free = (start..=end).all(|byte| bytes.iter().all(|((s, o, at), held)| {
                *at != byte || (*s, *o) == (session, owner) || (*held == LockMode::Shared && mode == LockMode::Shared)
            }));
            let set = table.set(fid(1), SessionId(session), lock, IfBusy::Fail);
            prop_assert_eq!(set.is_ok(), free);
            if free {
                bytes.extend((start..=end).map(|byte| ((session, owner, byte), mode)));
            }
            let mut seen = BTreeMap::new();
            for held in table.locks(fid(1)) {
                for byte in held.lock.start..=held.lock.end {
                    let twice = seen.insert((held.session.0, held.lock.owner.0, byte), held.lock.mode);
                    prop_assert_eq!(twice, None);
                }
            }
            prop_assert_eq!(&seen, &bytes);
        }
    }
}
