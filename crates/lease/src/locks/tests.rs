use super::*;
use soda_types::{Ino, LockMode, VolumeId};

const S1: SessionId = SessionId(1);
const S2: SessionId = SessionId(2);
const TO_END: u64 = u64::MAX;

fn f(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

fn record(owner: u64, start: u64, end: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Record, owner: LockOwner(owner), pid: owner as u32, start, end, mode }
}

fn flock(owner: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Flock, ..record(owner, 0, TO_END, mode) }
}

use LockMode::{Exclusive, Shared};

/// Ranges and modes that an owner holds.
fn held(table: &LockTable, session: SessionId, owner: u64) -> Vec<(u64, u64, LockMode)> {
    let locks = table.locks(f(1));
    let mine = locks.iter().filter(|held| held.owner() == (session, LockOwner(owner)));
    mine.map(|held| (held.lock.start, held.lock.end, held.lock.mode)).collect()
}

fn try_set(table: &mut LockTable, session: SessionId, lock: Lock) -> bool {
    table.set(f(1), session, lock, IfBusy::Fail).is_ok()
}

fn granted(table: &mut LockTable) -> Vec<u64> {
    std::iter::from_fn(|| table.poll_granted()).map(|key| key.0).collect()
}

fn wait(
    table: &mut LockTable,
    ino: u64,
    session: SessionId,
    lock: Lock,
    key: u64,
) -> Result<LockAnswer, LockError> {
    table.set(f(ino), session, lock, IfBusy::Wait(WaitKey(key)))
}

#[test]
fn shared_go_together_exclusive_alone() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 9, Shared)));
    assert!(try_set(&mut table, S2, record(1, 5, 14, Shared)));
    assert!(!try_set(&mut table, S2, record(2, 9, 9, Exclusive)));
    assert!(try_set(&mut table, S2, record(2, 15, 20, Exclusive)));
    assert_eq!(table.test(f(1), S1, record(1, 12, 18, Exclusive)).map(|held| held.lock.start), Some(5));
    assert_eq!(table.test(f(1), S1, record(1, 0, 4, Exclusive)), None);
}

#[test]
fn the_same_owner_number_of_two_sessions_is_two_owners() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 9, Exclusive)));
    assert!(!try_set(&mut table, S2, record(1, 0, 9, Exclusive)));
}

#[test]
fn families_do_not_see_each_other() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, flock(1, Exclusive)));
    assert!(try_set(&mut table, S2, record(1, 0, TO_END, Exclusive)));
    table.release(f(1), S1, record(1, 0, TO_END, Shared));
    assert!(!try_set(&mut table, S2, flock(1, Shared)));
}

#[test]
fn ranges_split_and_merge() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 99, Exclusive)));
    table.release(f(1), S1, record(1, 40, 59, Shared));
    assert_eq!(held(&table, S1, 1), [(0, 39, Exclusive), (60, 99, Exclusive)]);
    assert!(try_set(&mut table, S1, record(1, 30, 69, Shared)));
    assert_eq!(held(&table, S1, 1), [(0, 29, Exclusive), (30, 69, Shared), (70, 99, Exclusive)]);
    assert!(try_set(&mut table, S1, record(1, 30, 69, Exclusive)));
    assert_eq!(held(&table, S1, 1), [(0, 99, Exclusive)]);
    assert!(try_set(&mut table, S1, record(1, 100, TO_END, Exclusive)));
    assert_eq!(held(&table, S1, 1), [(0, TO_END, Exclusive)]);
    table.release(f(1), S1, record(1, 0, TO_END, Shared));
    assert!(table.files.is_empty());
}

#[test]
fn waiting_is_first_come_first_served() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 9, Exclusive)));
    assert_eq!(wait(&mut table, 1, S2, record(2, 0, 9, Exclusive), 1), Ok(LockAnswer::Waits));
    assert_eq!(wait(&mut table, 1, S2, record(3, 0, 9, Exclusive), 2), Ok(LockAnswer::Waits));
    assert_eq!(wait(&mut table, 1, S2, record(4, 5, 5, Shared), 3), Ok(LockAnswer::Waits));
    assert_eq!(granted(&mut table), []);
    table.release(f(1), S1, record(1, 0, 9, Exclusive));
    assert_eq!(granted(&mut table), [1]);
    table.release(f(1), S2, record(2, 0, 9, Exclusive));
    assert_eq!(granted(&mut table), [2]);
    table.release(f(1), S2, record(3, 0, TO_END, Shared));
    assert_eq!(granted(&mut table), [3]);
    assert_eq!(table.waiting_count(), 0);
}

#[test]
fn lowering_lets_readers_in() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 9, Exclusive)));
    assert_eq!(wait(&mut table, 1, S2, record(2, 0, 9, Shared), 1), Ok(LockAnswer::Waits));
    assert!(try_set(&mut table, S1, record(1, 0, 9, Shared)));
    assert_eq!(granted(&mut table), [1]);
}

#[test]
fn a_cancelled_wait_is_over() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 9, Exclusive)));
    assert_eq!(wait(&mut table, 1, S2, record(2, 0, 9, Shared), 1), Ok(LockAnswer::Waits));
    assert!(table.cancel(WaitKey(1)));
    assert!(!table.cancel(WaitKey(1)));
    table.release_session(S1);
    assert_eq!(granted(&mut table), []);
    assert!(table.files.is_empty() && table.waits.is_empty() && table.waits_of.is_empty());
}

#[test]
fn the_end_of_a_session_frees_all_it_had_and_waited_for() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 9, Exclusive)));
    assert!(try_set(&mut table, S1, flock(2, Exclusive)));
    assert!(try_set(&mut table, S2, record(2, 20, 29, Exclusive)));
    assert_eq!(wait(&mut table, 1, S1, record(1, 20, 29, Shared), 1), Ok(LockAnswer::Waits));
    assert_eq!(wait(&mut table, 1, S2, record(2, 0, 9, Shared), 2), Err(LockError::Deadlock));
    assert_eq!(wait(&mut table, 1, S2, flock(2, Shared), 3), Ok(LockAnswer::Waits));
    assert_eq!(table.count_of(S1), 2);
    table.release_session(S1);
    assert_eq!(granted(&mut table), [3]);
    assert_eq!((table.count_of(S1), table.count_of(S2), table.waiting_count()), (0, 2, 0));
}

#[test]
fn circles_are_refused_even_through_several_files() {
    let mut table = LockTable::new();
    let whole = |owner| record(owner, 0, TO_END, Exclusive);
    for (ino, session, owner) in [(1, S1, 1), (2, S2, 1), (3, S2, 2)] {
        assert_eq!(table.set(f(ino), session, whole(owner), IfBusy::Fail), Ok(LockAnswer::Granted));
    }
    assert_eq!(wait(&mut table, 2, S1, whole(1), 1), Ok(LockAnswer::Waits));
    assert_eq!(wait(&mut table, 3, S2, whole(1), 2), Ok(LockAnswer::Waits));
    assert_eq!(wait(&mut table, 1, S2, whole(2), 3), Err(LockError::Deadlock));
    // Not a circle once somebody gave up.
    assert!(table.cancel(WaitKey(2)));
    assert_eq!(wait(&mut table, 1, S2, whole(2), 3), Ok(LockAnswer::Waits));
}

#[test]
fn flocks_are_not_checked_for_circles() {
    let mut table = LockTable::new();
    for (ino, owner) in [(1, 1), (2, 2)] {
        assert_eq!(table.set(f(ino), S1, flock(owner, Exclusive), IfBusy::Fail), Ok(LockAnswer::Granted));
    }
    assert_eq!(wait(&mut table, 2, S1, flock(1, Exclusive), 1), Ok(LockAnswer::Waits));
    assert_eq!(wait(&mut table, 1, S1, flock(2, Exclusive), 2), Ok(LockAnswer::Waits), "as on Linux");
}

#[test]
fn changing_a_flock_is_not_atomic() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, flock(1, Shared)));
    assert!(try_set(&mut table, S2, flock(2, Shared)));
    assert!(!try_set(&mut table, S1, flock(1, Exclusive)));
    assert_eq!(held(&table, S1, 1), [], "flock(2): the old one is gone");
    assert!(try_set(&mut table, S2, flock(2, Exclusive)));
}

#[test]
fn changing_a_record_lock_is_atomic() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 9, Shared)));
    assert!(try_set(&mut table, S2, record(2, 0, 9, Shared)));
    assert!(!try_set(&mut table, S1, record(1, 0, 9, Exclusive)));
    assert_eq!(held(&table, S1, 1), [(0, 9, Shared)]);
    assert_eq!(wait(&mut table, 1, S1, record(1, 0, 9, Exclusive), 1), Ok(LockAnswer::Waits));
    assert_eq!(wait(&mut table, 1, S2, record(2, 0, 9, Exclusive), 2), Err(LockError::Deadlock));
    table.release(f(1), S2, record(2, 0, 9, Shared));
    assert_eq!(granted(&mut table), [1]);
    assert_eq!(held(&table, S1, 1), [(0, 9, Exclusive)]);
}

#[test]
fn two_flocks_raised_at_once_do_not_deadlock() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, flock(1, Shared)));
    assert!(try_set(&mut table, S2, flock(2, Shared)));
    assert_eq!(wait(&mut table, 1, S1, flock(1, Exclusive), 1), Ok(LockAnswer::Waits));
    // The first has given its shared lock up to wait, so nothing is in the way of the second.
    assert_eq!(wait(&mut table, 1, S2, flock(2, Exclusive), 2), Ok(LockAnswer::Granted));
    assert_eq!(granted(&mut table), []);
    table.release(f(1), S2, flock(2, Shared));
    assert_eq!(granted(&mut table), [1]);
}

#[test]
fn a_range_must_not_end_before_it_starts() {
    let mut table = LockTable::new();
    assert_eq!(table.set(f(1), S1, record(1, 5, 4, Shared), IfBusy::Fail), Err(LockError::BadRange));
}

#[test]
fn a_range_that_ends_before_it_starts_has_nothing_in_it() {
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 99, Exclusive)));
    assert_eq!(table.test(f(1), S2, record(1, 60, 40, Exclusive)), None);
    table.release(f(1), S1, record(1, 60, 40, Exclusive));
    assert_eq!(held(&table, S1, 1), [(0, 99, Exclusive)]);
}

#[test]
fn nobody_is_left_waiting_for_nothing() {
    // A waiter of one owner that is in the way of its own other lock: granted once the others are gone.
    let mut table = LockTable::new();
    assert!(try_set(&mut table, S1, record(1, 0, 0, Exclusive)));
    assert_eq!(wait(&mut table, 1, S2, record(2, 0, 10, Exclusive), 1), Ok(LockAnswer::Waits));
    assert!(try_set(&mut table, S2, record(2, 5, 5, Shared)));
    table.release_session(S1);
    assert_eq!(granted(&mut table), [1]);
    assert_eq!(held(&table, S2, 2), [(0, 10, Exclusive)]);
}
