//! The table of locks does what a simple list would, in whatever order requests come; and the cost of one does not grow with
//! the number of locks that are there.

mod delegated;
mod simple;

use proptest::prelude::*;
use simple::{Refused, SimpleTable};
use soda_lease::locks::{HeldLock, IfBusy, LockAnswer, LockError, LockTable, WaitKey};
use soda_types::{Fid, Ino, Lock, LockFamily, LockMode, LockOwner, SessionId, VolumeId};
use std::ops::RangeInclusive;
use std::time::Duration;

const SESSIONS: RangeInclusive<u64> = 1..=3;
const FILES: RangeInclusive<u64> = 1..=2;

fn fid(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

#[derive(Clone, Debug)]
enum Step {
    Try(HeldLock),
    Wait(HeldLock),
    Test(HeldLock),
    Release(HeldLock),
    /// Somebody who waited, or waits: the number of the step.
    Cancel(prop::sample::Index),
    End(SessionId),
}

/// Places close to each other, some far away, and the last.
fn place() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..16_u64, 1 => 1000..1004_u64, 1 => u64::MAX - 2..=u64::MAX]
}

fn lock() -> impl Strategy<Value = HeldLock> {
    let family = prop_oneof![1 => Just(LockFamily::Flock), 4 => Just(LockFamily::Record)];
    let mode = prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive)];
    (SESSIONS, 1..=2_u64, 1..=3_u32, place(), place(), family, mode).prop_map(
        |(session, owner, pid, one, other, family, mode)| {
            let (start, end) = (one.min(other), one.max(other));
            let lock = Lock { family, owner: LockOwner(owner), pid, start, end, mode };
            HeldLock { session: SessionId(session), lock }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => lock().prop_map(Step::Try),
        6 => lock().prop_map(Step::Wait),
        2 => lock().prop_map(Step::Test),
        5 => lock().prop_map(Step::Release),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        1 => SESSIONS.prop_map(|session| Step::End(SessionId(session))),
    ]
}

/// Where several are in the way and start at the same byte, any of them may be named.
fn agree(table: Result<LockAnswer, LockError>, simple: &Result<LockAnswer, Refused>) -> bool {
    match (table, simple) {
        (Ok(one), Ok(other)) => one == *other,
        (Err(LockError::Busy(one)), Err(Refused::Busy(firsts))) => firsts.contains(&one),
        (Err(LockError::Deadlock), Err(Refused::Deadlock)) => true,
        (Err(LockError::BadRange), Err(Refused::BadRange)) => true,
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_a_simple_list_does(steps in prop::collection::vec((FILES, step()), 1..100)) {
        let (mut table, mut simple) = (LockTable::new(), SimpleTable::default());
        for (number, (ino, step)) in steps.iter().enumerate() {
            let (fid, key) = (fid(*ino), WaitKey(number as u64));
            match step {
                Step::Try(HeldLock { session, lock }) => {
                    let one = table.set(fid, *session, *lock, IfBusy::Fail);
                    let other = simple.set(fid, *session, *lock, IfBusy::Fail);
                    prop_assert!(agree(one, &other), "{:?}: {:?}", one, other);
                }
                Step::Wait(HeldLock { session, lock }) => {
                    let one = table.set(fid, *session, *lock, IfBusy::Wait(key));
                    let other = simple.set(fid, *session, *lock, IfBusy::Wait(key));
                    prop_assert!(agree(one, &other), "{:?}: {:?}", one, other);
                }
                Step::Test(asked) => {
                    let (one, firsts) = (table.test(fid, asked.session, asked.lock), simple.firsts_in_the_way(fid, asked));
                    prop_assert!(one.map_or(firsts.is_empty(), |one| firsts.contains(&one)), "{:?}: {:?}", one, firsts);
                }
                Step::Release(HeldLock { session, lock }) => {
                    table.release(fid, *session, *lock);
                    simple.release(fid, *session, *lock);
                }
                Step::Cancel(which) => {
                    let key = WaitKey(which.index(steps.len()) as u64);
                    prop_assert_eq!(table.cancel(key), simple.cancel(key));
                }
                Step::End(session) => {
                    table.release_session(*session);
                    simple.release_session(*session);
                }
            }
            let granted: Vec<WaitKey> = std::iter::from_fn(|| table.poll_granted()).collect();
            prop_assert_eq!(granted, simple.take_granted());
            for ino in FILES {
                prop_assert_eq!(table.locks(self::fid(ino)), simple.locks(self::fid(ino)));
            }
            for session in SESSIONS.map(SessionId) {
                prop_assert_eq!(table.count_of(session), simple.count_of(session));
            }
            prop_assert_eq!(table.waiting_count(), simple.waiting_count());
        }
    }
}

/// What this thread has computed.
fn computed() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Locks and unlocks `count` bytes of one file, shared and exclusive by turns, as of `owners` owners with every second byte each,
/// below and beside locks of others: one of all bytes and one far away.
fn lock_bytes(count: u64, owners: u64) -> Duration {
    let started = computed();
    let mut table = LockTable::new();
    let lock = |owner, start, end, mode| Lock {
        family: LockFamily::Record,
        owner: LockOwner(owner),
        pid: 1,
        start,
        end,
        mode,
    };
    let mut set = |session, lock| table.set(fid(1), SessionId(session), lock, IfBusy::Fail);
    assert!(set(2, lock(1, 1 << 40, u64::MAX, LockMode::Exclusive)).is_ok());
    for mode in [LockMode::Shared, LockMode::Exclusive, LockMode::Shared] {
        for byte in 0..count {
            assert!(set(1, lock(byte % owners, 2 * byte, 2 * byte, mode)).is_ok());
        }
        if mode == LockMode::Exclusive {
            assert!(set(2, lock(1, count, count + 9, LockMode::Shared)).is_err());
        }
    }
    assert!(set(2, lock(1, 0, (1 << 40) - 1, LockMode::Shared)).is_ok());
    assert_eq!(table.count_of(SessionId(1)), count as usize);
    for byte in 0..count {
        table.release(fid(1), SessionId(1), lock(byte % owners, 2 * byte, 2 * byte, LockMode::Shared));
    }
    table.release_session(SessionId(2));
    assert_eq!(table.locks(fid(1)), []);
    computed() - started
}

#[test]
fn a_request_does_not_look_at_all_locks_of_the_file() {
    for owners in [1, 1000] {
        let few = (0..3).map(|_| lock_bytes(2_000, owners)).min().unwrap_or_default();
        let many = lock_bytes(32_000, owners);
        // Sixteen times as many: in proportion or a little more, where to look at all of them takes 256 times as long.
        assert!(many < 100 * few, "{owners} owners: {few:?}, sixteen times as many locks {many:?}");
    }
}
