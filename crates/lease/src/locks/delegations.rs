//! Whom the server lets decide about the locks of a file: a session that nobody else is in the way of takes and gives up locks
//! on it by itself, until they are asked back. Sans-IO, like the table of locks.

use super::LockTable;
use soda_types::{Epoch, Fid, Monotonic, SessionId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// After locks were asked back nobody decides about them alone for this long; twice as long if it happens again soon.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// So many pauses are remembered before those are looked for that are over.
const PAUSES_MIN: usize = 1024;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Delegations {
    files: BTreeMap<Fid, Delegation>,
    of_session: BTreeMap<SessionId, BTreeSet<Fid>>,
    pauses: BTreeMap<Fid, Pause>,
    tidy_at: usize,
    limits: Limits,
}

/// Numbers of files.
#[derive(Clone, Copy, Debug)]
struct Limits {
    of_session: usize,
    all: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { of_session: 1 << 16, all: 1 << 20 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Delegation {
    session: SessionId,
    epoch: Epoch,
    /// Since when it is asked back.
    recalled: Option<Monotonic>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Monotonic,
    length: Duration,
}

impl Delegations {
    pub fn new() -> Delegations {
        Delegations::default()
    }

    /// Who decides about the file's locks, if it is not `session` itself.
    pub fn other(&self, fid: Fid, session: SessionId) -> Option<SessionId> {
        let delegation = self.files.get(&fid)?;
        (delegation.session != session).then_some(delegation.session)
    }

    /// Who decides about the file's locks, and since when that is asked back.
    pub fn delegate(&self, fid: Fid) -> Option<(SessionId, Option<Monotonic>)> {
        let delegation = self.files.get(&fid)?;
        Some((delegation.session, delegation.recalled))
    }

    /// The session has just got a lock, and would take more by itself. With nobody else there it may; it has to be told the
    /// epoch with the lock. `epoch` must not have been used before, by an earlier run of the server either.
    pub fn offer(
        &mut self,
        now: Monotonic,
        fid: Fid,
        session: SessionId,
        locks: &LockTable,
        epoch: Epoch,
    ) -> Option<Epoch> {
        if let Some(delegation) = self.files.get(&fid) {
            // Told again: the answer before may have been lost.
            let told = delegation.session == session && delegation.recalled.is_none();
            return told.then_some(delegation.epoch);
        }
        if self.pauses.get(&fid).is_some_and(|pause| now < pause.until) || !locks.has_none_but(fid, session) {
            return None;
        }
        let of_session = self.of_session.get(&session).map_or(0, BTreeSet::len);
        if of_session >= self.limits.of_session || self.files.len() >= self.limits.all {
            return None;
        }
        self.of_session.entry(session).or_default().insert(fid);
        self.files.insert(fid, Delegation { session, epoch, recalled: None });
        Some(epoch)
    }

    /// Whether a session may decide about so many files more.
    pub fn has_room_for(&self, session: SessionId, more: usize) -> bool {
        let of_session = self.of_session.get(&session).map_or(0, BTreeSet::len);
        of_session + more <= self.limits.of_session
    }

    /// The session has made the file, and decided about its locks before anybody else could know of it. To be entered before
    /// anybody can: nothing is asked about limits, nor about who has locks, as nobody has. (Who has had the file before a power
    /// cut that took it, and has locks on it now, or decides about them, goes on: then its maker has left that to the server, and
    /// expects nothing.)
    pub fn enter_made(&mut self, fid: Fid, session: SessionId, epoch: Epoch) {
        if let Entry::Vacant(place) = self.files.entry(fid) {
            place.insert(Delegation { session, epoch, recalled: None });
            self.of_session.entry(session).or_default().insert(fid);
        }
    }

    /// Somebody else wants to know of, or have, locks on the file. Returns whom to ask for them, the first time.
    pub fn recall(&mut self, now: Monotonic, fid: Fid) -> Option<(SessionId, Epoch)> {
        let delegation = self.files.get_mut(&fid).filter(|delegation| delegation.recalled.is_none())?;
        delegation.recalled = Some(now);
        let asked = (delegation.session, delegation.epoch);
        self.pause(now, fid);
        Some(asked)
    }

    /// Since when the file's locks are asked back.
    pub fn recalled_since(&self, fid: Fid) -> Option<Monotonic> {
        self.files.get(&fid)?.recalled
    }

    /// The session is at work on what was asked of it: that counts from now.
    pub fn handle_progress(&mut self, now: Monotonic, session: SessionId, fids: &[Fid]) {
        for fid in fids {
            if let Some(delegation) = self.files.get_mut(fid)
                && delegation.session == session
                && delegation.recalled.is_some()
            {
                delegation.recalled = Some(now);
            }
        }
    }

    /// The server itself was not running for a while: what its clients sent meanwhile has not been looked at yet.
    pub fn handle_own_pause(&mut self, now: Monotonic) {
        for delegation in self.files.values_mut().filter(|delegation| delegation.recalled.is_some()) {
            delegation.recalled = Some(now);
        }
    }

    /// What is asked back of a session, to be asked again over a new connection.
    pub fn recalled_from(&self, session: SessionId) -> Vec<(Fid, Epoch)> {
        let fids = self.of_session.get(&session).into_iter().flatten();
        let recalled = |fid: &Fid| {
            let delegation = self.files.get(fid).filter(|delegation| delegation.recalled.is_some())?;
            Some((*fid, delegation.epoch))
        };
        fids.filter_map(recalled).collect()
    }

    /// The session gives it back, asked or not. False: it does not have it (any more), and what it says counts for nothing.
    pub fn take_back(&mut self, fid: Fid, session: SessionId, epoch: Epoch) -> bool {
        let known = self.files.get(&fid);
        if known.is_none_or(|known| known.session != session || known.epoch != epoch) {
            return false;
        }
        self.files.remove(&fid);
        if let Entry::Occupied(mut fids) = self.of_session.entry(session) {
            fids.get_mut().remove(&fid);
            if fids.get().is_empty() {
                fids.remove();
            }
        }
        true
    }

    /// The session has ended, and all it decided alone with it. Returns the files.
    pub fn end_session(&mut self, session: SessionId) -> Vec<Fid> {
        let fids: Vec<Fid> = self.of_session.remove(&session).into_iter().flatten().collect();
        for fid in &fids {
            self.files.remove(fid);
        }
        fids
    }

    /// Whether the session may have locks that nobody else has heard of.
    pub fn has_any(&self, session: SessionId) -> bool {
        self.of_session.get(&session).is_some_and(|fids| !fids.is_empty())
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn pause(&mut self, now: Monotonic, fid: Fid) {
        if self.pauses.len() >= self.tidy_at.max(PAUSES_MIN) {
            self.pauses.retain(|_, pause| now < pause.until + pause.length);
            self.tidy_at = 2 * self.pauses.len();
        }
        let again = self.pauses.get(&fid).filter(|before| now < before.until + before.length);
        let length = again.map_or(FIRST_PAUSE, |before| (before.length * 2).min(LONGEST_PAUSE));
        self.pauses.insert(fid, Pause { until: now + length, length });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::IfBusy;
    use soda_types::{Ino, Lock, LockFamily, LockMode, LockOwner, VolumeId};

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);
    const FILE: Fid = Fid { volume: VolumeId(1), ino: Ino(2), generation: 0 };

    fn seconds(seconds: u64) -> Monotonic {
        Monotonic::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn who_is_alone_decides_until_asked_back() {
        let (mut all, mut locks) = (Delegations::new(), LockTable::new());
        let lock = |family, owner| Lock {
            family,
            owner: LockOwner(owner),
            pid: 1,
            start: 0,
            end: 9,
            mode: LockMode::Shared,
        };
        locks.set(FILE, TWO, lock(LockFamily::Flock, 1), IfBusy::Fail).expect("free");
        assert_eq!(all.offer(seconds(0), FILE, ONE, &locks, Epoch(1)), None, "of the other family, too");
        locks.release(FILE, TWO, lock(LockFamily::Flock, 1));
        assert_eq!(all.offer(seconds(0), FILE, ONE, &locks, Epoch(1)), Some(Epoch(1)));
        assert_eq!(all.offer(seconds(0), FILE, ONE, &locks, Epoch(2)), Some(Epoch(1)), "told again");
        assert_eq!(all.offer(seconds(0), FILE, TWO, &locks, Epoch(2)), None);
        assert_eq!((all.other(FILE, TWO), all.other(FILE, ONE)), (Some(ONE), None));

        assert_eq!(all.recall(seconds(1), FILE), Some((ONE, Epoch(1))));
        assert_eq!(all.recall(seconds(2), FILE), None, "asked already");
        assert_eq!(all.recalled_from(ONE), [(FILE, Epoch(1))]);
        all.handle_progress(seconds(9), TWO, &[FILE]);
        assert_eq!(all.recalled_since(FILE), Some(seconds(1)));
        all.handle_progress(seconds(9), ONE, &[FILE]);
        assert_eq!(all.recalled_since(FILE), Some(seconds(9)));
        all.handle_own_pause(seconds(99));
        assert_eq!(all.recalled_since(FILE), Some(seconds(99)), "the server stood still");
        assert_eq!(all.offer(seconds(2), FILE, ONE, &locks, Epoch(2)), None, "it is asked back");
        assert!(!all.take_back(FILE, TWO, Epoch(1)) && !all.take_back(FILE, ONE, Epoch(7)));
        assert!(all.take_back(FILE, ONE, Epoch(1)) && !all.take_back(FILE, ONE, Epoch(1)));
        assert!(!all.has_any(ONE) && all.is_empty());
    }

    #[test]
    fn locks_that_are_wanted_by_many_stay_at_the_server_for_longer_each_time() {
        let (mut all, locks) = (Delegations::new(), LockTable::new());
        let (mut now, mut pauses) = (0, Vec::new());
        for epoch in 1..10 {
            let since = now;
            while all.offer(seconds(now), FILE, ONE, &locks, Epoch(epoch)).is_none() {
                now += 1;
            }
            pauses.push(now - since);
            assert!(all.recall(seconds(now), FILE).is_some());
            assert!(all.take_back(FILE, ONE, Epoch(epoch)));
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        let quiet = seconds(now + 129);
        assert!(all.offer(quiet, FILE, ONE, &locks, Epoch(90)).is_some());
        assert!(all.recall(quiet, FILE).is_some() && all.take_back(FILE, ONE, Epoch(90)));
        assert!(all.offer(quiet + FIRST_PAUSE, FILE, ONE, &locks, Epoch(91)).is_some(), "it was quiet");
    }

    #[test]
    fn what_is_refused_leaves_nothing_behind() {
        let limits = Limits { of_session: 2, all: 3 };
        let (mut all, locks) = (Delegations { limits, ..Delegations::new() }, LockTable::new());
        let mut offers = |session, ino| {
            let fid = Fid { ino: Ino(ino), ..FILE };
            all.offer(seconds(0), fid, session, &locks, Epoch(ino)).is_some()
        };
        assert_eq!([1, 2, 3].map(|ino| offers(ONE, ino)), [true, true, false]);
        assert_eq!([3, 4].map(|ino| offers(TWO, ino)), [true, false]);
        assert!(!offers(SessionId(3), 4));
        assert_eq!(all.of_session.keys().copied().collect::<Vec<_>>(), [ONE, TWO]);
    }

    #[test]
    fn who_made_a_file_decides_from_the_first() {
        let (mut all, locks) = (Delegations::new(), LockTable::new());
        all.enter_made(FILE, ONE, Epoch(3));
        assert_eq!(all.other(FILE, TWO), Some(ONE));
        assert_eq!(all.offer(seconds(0), FILE, ONE, &locks, Epoch(9)), Some(Epoch(3)), "told again");
        assert_eq!(all.recall(seconds(1), FILE), Some((ONE, Epoch(3))));
        assert!(all.take_back(FILE, ONE, Epoch(3)));
        assert!(all.offer(seconds(9), FILE, TWO, &locks, Epoch(9)).is_some());
        all.enter_made(FILE, ONE, Epoch(4));
        assert_eq!(all.other(FILE, ONE), Some(TWO), "it had the file before a power cut");
        assert!(!all.has_any(ONE));

        let limits = Limits { of_session: 2, all: 0 };
        let mut all = Delegations { limits, ..Delegations::new() };
        assert!(all.has_room_for(ONE, 2) && !all.has_room_for(ONE, 3));
        all.enter_made(FILE, ONE, Epoch(3));
        assert!(all.has_room_for(ONE, 1) && !all.has_room_for(ONE, 2) && all.has_room_for(TWO, 2));
        assert_eq!(all.len(), 1, "limits of all the server gives away are not its maker's");
    }

    #[test]
    fn the_end_of_a_session_ends_what_it_decided() {
        let (mut all, locks) = (Delegations::new(), LockTable::new());
        all.offer(seconds(0), FILE, ONE, &locks, Epoch(1));
        assert_eq!(all.end_session(ONE), [FILE]);
        assert_eq!(all.offer(seconds(0), FILE, TWO, &locks, Epoch(2)), Some(Epoch(2)));
        assert_eq!(all.end_session(ONE), []);
        assert!(all.has_any(TWO));
    }

    #[test]
    fn pauses_that_are_over_are_forgotten() {
        let (mut all, locks) = (Delegations::new(), LockTable::new());
        for number in 0..10_000 {
            let fid = Fid { ino: Ino(number), ..FILE };
            assert!(all.offer(seconds(number), fid, ONE, &locks, Epoch(number)).is_some());
            assert!(all.recall(seconds(number), fid).is_some() && all.take_back(fid, ONE, Epoch(number)));
        }
        assert!(all.pauses.len() <= PAUSES_MIN);
    }
}
