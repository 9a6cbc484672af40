//! Who may have the space that is free: what sessions have reserved, for what they did already and will tell later, nobody else
//! gets: not even themselves, for what they do not tell but have done at once.

use soda_types::{Errno, FsError, FsResult, SessionId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Space {
    ledger: Mutex<Ledger>,
    full: Full,
}

/// Who refuses what there is no room for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Full {
    /// The store, as it writes: only what is reserved has to be kept free.
    #[default]
    SaysTheStore,
    /// Nobody else: there is a quota.
    IsSaidHere,
}

/// All in bytes.
#[derive(Debug, Default)]
struct Ledger {
    reserved: HashMap<SessionId, u64>,
    /// As the store has it: at least what is left of a reservation.
    stored: HashMap<SessionId, u64>,
    total: u64,
    /// What operations under way may take that were let pass; some of it may be taken already.
    under_way: u64,
}

/// An operation that may take space. Dropped when it is over.
#[derive(Debug)]
pub(crate) struct Taking {
    space: Arc<Space>,
    session: SessionId,
    bytes: u64,
    purpose: Purpose,
}

/// What an operation takes space for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// What nobody was promised room for. Not even of the session's own reservation: that is for what it did already.
    Data,
    /// About a name or an attribute: so little that the session may have it of its own reservation, from which it is taken.
    Little,
    /// What the session did already, which it made its reservation for.
    Digest,
}

impl Space {
    pub(crate) fn new(full: Full) -> Space {
        Space { full, ..Space::default() }
    }

    /// Lets an operation of the session take so many bytes.
    ///
    /// # Errors
    /// `ENOSPC`: others have reserved what is left.
    pub(crate) fn take(
        self: &Arc<Self>,
        session: SessionId,
        (bytes, purpose): (u64, Purpose),
        free: impl FnOnce() -> FsResult<u64>,
    ) -> FsResult<Taking> {
        let mut ledger = self.ledger();
        let reserved = match purpose {
            Purpose::Data => ledger.total,
            Purpose::Little | Purpose::Digest => ledger.others(session),
        };
        // Whatever became of the rest.
        let promised = purpose == Purpose::Digest && bytes <= ledger.of(session);
        // What brings no data may be what gives space back.
        if !promised && bytes > 0 && (reserved > 0 || self.full == Full::IsSaidHere) {
            let free = free()?;
            if free < reserved.saturating_add(ledger.under_way).saturating_add(bytes) {
                let context =
                    format!("{free} bytes are free, {reserved} reserved for what clients did already");
                return Err(FsError::new(Errno::NoSpace, context));
            }
        }
        ledger.under_way += bytes;
        Ok(Taking { space: self.clone(), session, bytes, purpose })
    }

    /// Makes the session's reservation as large as asked for, as far as others leave it; of that a quarter stays free, as nobody
    /// knows to the byte what the store will need. Not less than it was, which may be used up already by what the session did,
    /// unless that is asked for. Returns what it is.
    pub(crate) fn reserve(
        &self,
        session: SessionId,
        bytes: u64,
        free: impl FnOnce() -> FsResult<u64>,
    ) -> FsResult<u64> {
        let mut ledger = self.ledger();
        let granted = match bytes {
            0 => 0,
            _ => {
                let taken = ledger.others(session).saturating_add(ledger.under_way);
                let left = free()?.saturating_sub(taken);
                bytes.min((left - left / 4).max(ledger.of(session)))
            }
        };
        ledger.set(session, granted);
        Ok(granted)
    }

    /// As it was before a restart.
    pub(crate) fn restore(&self, session: SessionId, bytes: u64) {
        self.note_stored(session, bytes);
        self.ledger().set(session, bytes);
    }

    /// The store has this for the session.
    pub(crate) fn note_stored(&self, session: SessionId, bytes: u64) {
        self.ledger().stored.insert(session, bytes);
    }

    /// What the store has for the session.
    pub(crate) fn stored(&self, session: SessionId) -> u64 {
        self.ledger().stored.get(&session).copied().unwrap_or(0)
    }

    /// What the session has reserved.
    #[cfg(test)]
    fn of(&self, session: SessionId) -> u64 {
        self.ledger().of(session)
    }

    /// Who has reserved how much.
    pub(crate) fn reservations(&self) -> Vec<(SessionId, u64)> {
        self.ledger().reserved.iter().map(|(session, bytes)| (*session, *bytes)).collect()
    }

    /// What operations under way may take, and what is reserved.
    pub(crate) fn spoken_for(&self) -> u64 {
        let ledger = self.ledger();
        ledger.total.saturating_add(ledger.under_way)
    }

    pub(crate) fn total(&self) -> u64 {
        self.ledger().total
    }

    /// The session has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        let mut ledger = self.ledger();
        ledger.set(session, 0);
        ledger.stored.remove(&session);
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    fn of(&self, session: SessionId) -> u64 {
        self.reserved.get(&session).copied().unwrap_or(0)
    }

    fn others(&self, session: SessionId) -> u64 {
        self.total - self.of(session)
    }

    fn set(&mut self, session: SessionId, bytes: u64) {
        let before = match bytes {
            0 => self.reserved.remove(&session),
            _ => self.reserved.insert(session, bytes),
        };
        self.total = self.total - before.unwrap_or(0) + bytes;
    }
}

impl Taking {
    /// It is done: of the session's reservation so much is used up, unless it was not for that.
    pub(crate) fn used(&self) {
        if self.purpose == Purpose::Data {
            return;
        }
        let mut ledger = self.space.ledger();
        let left = ledger.of(self.session).saturating_sub(self.bytes);
        ledger.set(self.session, left);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.space.ledger().under_way -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    #[test]
    fn a_reservation_is_what_others_leave() {
        let space = Arc::new(Space::default());
        let reserve = |session, bytes| space.reserve(session, bytes, || Ok(100)).unwrap();
        assert_eq!(reserve(ONE, 70), 70);
        assert_eq!(reserve(OTHER, 70), 23, "a quarter of what is left stays free");
        assert_eq!(reserve(ONE, 20), 20);
        assert_eq!(reserve(OTHER, 70), 60);
        assert_eq!((space.of(ONE), space.of(OTHER), space.total()), (20, 60, 80));
        space.forget(OTHER);
        assert_eq!((space.total(), space.reservations()), (20, vec![(ONE, 20)]));
    }

    #[test]
    fn what_was_promised_is_kept_when_less_is_free() {
        let space = Arc::new(Space::default());
        space.reserve(ONE, 60, || Ok(100)).unwrap();
        assert_eq!(space.reserve(ONE, 80, || Ok(10)).unwrap(), 60);
        space.reserve(OTHER, 60, || Ok(100)).unwrap();
        let digest = space.take(ONE, (60, Purpose::Digest), || Ok(10)).unwrap();
        digest.used();
        drop(digest);
        assert_eq!(space.take(ONE, (60, Purpose::Digest), || Ok(10)).unwrap_err().errno, Errno::NoSpace);
        assert_eq!(space.reserve(ONE, 0, || Ok(10)).unwrap(), 0);
    }

    #[test]
    fn nobody_takes_what_another_has_reserved_not_even_several_at_once() {
        let space = Arc::new(Space::default());
        space.reserve(ONE, 60, || Ok(100)).unwrap();
        let take = |session, bytes| space.take(session, (bytes, Purpose::Data), || Ok(100));
        let first = take(OTHER, 30).unwrap();
        assert_eq!(take(OTHER, 30).unwrap_err().errno, Errno::NoSpace);
        drop(first);
        drop(take(OTHER, 40).unwrap());
        assert_eq!(take(OTHER, 41).unwrap_err().errno, Errno::NoSpace);
        // What the session has done already has its room, whatever it does besides.
        drop(take(ONE, 40).unwrap());
        assert_eq!(take(ONE, 41).unwrap_err().errno, Errno::NoSpace);
        let digest = space.take(ONE, (100, Purpose::Digest), || Ok(100)).unwrap();
        drop(space.take(OTHER, (0, Purpose::Digest), || Ok(0)).unwrap());
        digest.used();
        drop(digest);
        assert_eq!(space.of(ONE), 0, "used up");
        space.reserve(ONE, 50, || Ok(100)).unwrap();
        for (purpose, left) in [(Purpose::Data, 50), (Purpose::Little, 40)] {
            space.take(ONE, (10, purpose), || Ok(100)).unwrap().used();
            assert_eq!(space.of(ONE), left);
        }
    }

    #[test]
    fn what_is_under_way_cannot_be_reserved() {
        let space = Arc::new(Space::default());
        let _taking = space.take(OTHER, (30, Purpose::Data), || Ok(100)).unwrap();
        assert_eq!(space.reserve(ONE, 100, || Ok(100)).unwrap(), 53);
    }

    #[test]
    fn with_a_quota_nothing_is_let_in_beyond_it_but_what_was_promised() {
        let space = Arc::new(Space::new(Full::IsSaidHere));
        for purpose in [Purpose::Data, Purpose::Little] {
            assert_eq!(space.take(ONE, (11, purpose), || Ok(10)).unwrap_err().errno, Errno::NoSpace);
            drop(space.take(ONE, (10, purpose), || Ok(10)).unwrap());
        }
        space.reserve(ONE, 60, || Ok(100)).unwrap();
        drop(space.take(ONE, (60, Purpose::Digest), || Ok(10)).unwrap());
        drop(space.take(OTHER, (0, Purpose::Digest), || Ok(0)).unwrap());
        assert_eq!(space.take(OTHER, (1, Purpose::Digest), || Ok(0)).unwrap_err().errno, Errno::NoSpace);
    }
}
