//! A table with a clock, and short words.

use soda_lease::table::{
    Access, BackOff, Equation8, FenceReason, LeaseTable, OpKey, Outcome, Output, Refusal, TableConfig,
};
use soda_types::{
    Cause, Epoch, Fid, Grant, InUse, Ino, Mode, Monotonic, Recall, RecallAck, Scope, SessionId, Term,
    VolumeId,
};
use std::time::Duration;

pub(crate) const TERM: Duration = Duration::from_secs(10);

pub(crate) fn s(number: u64) -> SessionId {
    SessionId(number)
}

pub(crate) fn f(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

pub(crate) fn e(number: u64) -> Epoch {
    Epoch(number)
}

pub(crate) fn secs(secs: f64) -> Monotonic {
    Monotonic::ZERO + Duration::from_secs_f64(secs)
}

pub(crate) fn read(ino: u64) -> Access {
    Access::read(f(ino))
}

pub(crate) fn change(ino: u64) -> Access {
    Access::change(f(ino), Cause::Data)
}

pub(crate) fn grant(mode: Mode, ino: u64, epoch: u64) -> Grant {
    Grant { fid: f(ino), scope: Scope::Node, mode, epoch: e(epoch), term: Term::Session }
}

pub(crate) fn admit(op: u64) -> Output {
    Output::Admit(OpKey(op))
}

pub(crate) fn refuse(op: u64) -> Output {
    Output::Refuse(OpKey(op), Refusal::SessionEnded)
}

pub(crate) fn fence(session: u64, reason: FenceReason) -> Output {
    Output::Fence { session: s(session), reason }
}

pub(crate) fn expired(session: u64, ino: u64) -> Output {
    fence(session, FenceReason::Expired(f(ino)))
}

/// For a writer.
pub(crate) fn recall(session: u64, ino: u64, epoch: u64) -> Output {
    let recall = Recall { fid: f(ino), epoch: e(epoch), to: None, cause: Cause::Data, part: None };
    Output::Recall { session: s(session), recall }
}

/// For a reader.
pub(crate) fn lower(session: u64, ino: u64, epoch: u64) -> Output {
    let recall =
        Recall { fid: f(ino), epoch: e(epoch), to: Some(Mode::Read), cause: Cause::Read, part: None };
    Output::Recall { session: s(session), recall }
}

pub(crate) fn gone(ino: u64, epoch: u64) -> RecallAck {
    RecallAck { fid: f(ino), epoch: e(epoch), kept: None, in_use: InUse::No, uses: 0, part: None }
}

pub(crate) fn kept(ino: u64, epoch: u64) -> RecallAck {
    RecallAck { kept: Some(Mode::Read), ..gone(ino, epoch) }
}

/// No policy that depends on history.
pub(crate) fn plain() -> TableConfig {
    TableConfig { equation_8: Equation8::Off, back_off: BackOff::Off, ..TableConfig::with_term(TERM) }
}

pub(crate) struct Bench {
    pub(crate) table: LeaseTable,
    pub(crate) now: Monotonic,
}

impl Bench {
    /// With sessions 1 to 4, just opened.
    pub(crate) fn new() -> Bench {
        Bench::with(plain())
    }

    pub(crate) fn with(config: TableConfig) -> Bench {
        let mut bench = Bench { table: LeaseTable::new(config, e(1), secs(0.0)), now: secs(0.0) };
        (1..=4).for_each(|session| bench.table.open_session(bench.now, s(session)));
        bench
    }

    pub(crate) fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.table.poll_output()).collect()
    }

    /// Lets time pass, with all time-outs on the way; sessions in `renewing` renew each second.
    pub(crate) fn pass(&mut self, until: f64, renewing: &[u64]) -> Vec<Output> {
        let until = secs(until);
        let mut all = Vec::new();
        let mut second = self.now + Duration::from_secs(1);
        loop {
            let next = self.table.poll_timeout().unwrap_or(Monotonic::NEVER).min(second).min(until);
            self.now = self.now.max(next);
            if self.now == second {
                for session in renewing {
                    let _ = self.table.handle_traffic(self.now, s(*session));
                }
                second = second + Duration::from_secs(1);
            }
            self.table.handle_timeout(self.now);
            all.extend(self.outputs());
            if self.now >= until {
                return all;
            }
        }
    }

    pub(crate) fn renew(&mut self, session: u64) {
        self.table.handle_traffic(self.now, s(session)).expect("a session in good standing");
    }

    pub(crate) fn request(&mut self, session: u64, op: u64, accesses: &[Access]) -> Vec<Output> {
        self.table.request(self.now, s(session), OpKey(op), accesses.to_vec());
        self.outputs()
    }

    pub(crate) fn finish(&mut self, op: u64) -> (Vec<Grant>, Vec<Output>) {
        let grants = self.table.finish(self.now, OpKey(op), Outcome::Applied);
        (grants, self.outputs())
    }

    /// An operation that nothing is in the way of.
    pub(crate) fn run(&mut self, session: u64, access: Access) -> Vec<Grant> {
        let op = 1_000_000 + self.table.counters().admissions;
        assert_eq!(self.request(session, op, &[access]), [admit(op)]);
        let (grants, outputs) = self.finish(op);
        assert_eq!(outputs, []);
        grants
    }

    pub(crate) fn ack(&mut self, session: u64, ack: RecallAck) -> Vec<Output> {
        self.table.handle_acks(self.now, s(session), &[ack]);
        self.outputs()
    }

    pub(crate) fn cancel(&mut self, op: u64) -> Vec<Output> {
        self.table.cancel(self.now, OpKey(op));
        self.outputs()
    }

    pub(crate) fn modes(&self, ino: u64) -> Vec<(u64, Mode)> {
        self.table.holders(self.now, f(ino)).iter().map(|holder| (holder.session.0, holder.mode)).collect()
    }
}
