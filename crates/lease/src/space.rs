//! Who may have the space that is free: what sessions have reserved, for what they did already and will tell later, nobody else
//! gets: not even themselves, for what they do not tell but have done at once.

use soda_types::{Errno, FsError, FsResult, SessionId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct Space {
    ledger: Mutex<Ledger>,
    full: Full,
}

/// Who refuses what there is no room for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Full {
    /// The store, as it writes: only what is reserved has to be kept free.
    #[default]
    SaysTheStore,
    /// Nobody else: there is a quota.
    IsSaidHere,
}

/// All in bytes.
#[derive(Debug, Default)]
struct Ledger {
    reserved: BTreeMap<SessionId, u64>,
    /// As the store has it: at least what is left of a reservation.
    stored: BTreeMap<SessionId, u64>,
    total: u64,
    /// What operations under way may take that were let pass; some of it may be taken already.
    under_way: u64,
}

/// An operation that may take space. Dropped when it is over.
#[derive(Debug)]
pub struct Taking {
    space: Arc<Space>,
    session: SessionId,
    bytes: u64,
    source: Source,
}

/// Whose space an operation takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// What nobody has reserved.
    Free,
    /// What its session had reserved when it was let pass.
    Reservation,
}

/// What an operation takes space for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// What nobody was promised room for. Not even of the session's own reservation: that is for what it did already.
    Data,
    /// About a name or an attribute: so little that the session may have it of its own reservation, from which it is taken.
    Little,
    /// What the session did already, which it made its reservation for.
    Digest,
}

impl Space {
    /// Nothing is reserved.
    pub fn new(full: Full) -> Space {
        Space { full, ..Space::default() }
    }

    /// Lets an operation of the session take so many bytes. `free`: what is free of the store, whoever may have it.
    ///
    /// # Errors
    /// `ENOSPC`: others have reserved what is left.
    pub fn take(
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
        let source = match purpose {
            Purpose::Little | Purpose::Digest if ledger.of(session) > 0 => Source::Reservation,
            _ => Source::Free,
        };
        Ok(Taking { space: self.clone(), session, bytes, source })
    }

    /// Makes the session's reservation as large as asked for, as far as others leave it; of that a quarter stays free, as nobody
    /// knows to the byte what the store will need. Not less than it was, which may be used up already by what the session did,
    /// unless that is asked for. Returns what it is, bytes.
    ///
    /// # Errors
    /// It is not known what is free.
    pub fn reserve(
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
    pub fn restore(&self, session: SessionId, bytes: u64) {
        self.note_stored(session, bytes);
        self.ledger().set(session, bytes);
    }

    /// The store has this for the session.
    pub fn note_stored(&self, session: SessionId, bytes: u64) {
        self.ledger().note_stored(session, bytes);
    }

    /// What the store has for the session, bytes.
    pub fn stored(&self, session: SessionId) -> u64 {
        self.ledger().stored(session)
    }

    /// What the session has reserved, bytes.
    pub fn of(&self, session: SessionId) -> u64 {
        self.ledger().of(session)
    }

    /// Who has reserved how many bytes.
    pub fn reservations(&self) -> Vec<(SessionId, u64)> {
        self.ledger().reserved.iter().map(|(session, bytes)| (*session, *bytes)).collect()
    }

    /// What operations under way may take, and what is reserved, bytes.
    pub fn spoken_for(&self) -> u64 {
        let ledger = self.ledger();
        ledger.total.saturating_add(ledger.under_way)
    }

    /// What is reserved, bytes.
    pub fn total(&self) -> u64 {
        self.ledger().total
    }

    /// The session has ended.
    pub fn forget(&self, session: SessionId) {
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

    fn left(&self, session: SessionId, used: u64) -> u64 {
        self.of(session).saturating_sub(used)
    }

    fn stored(&self, session: SessionId) -> u64 {
        self.stored.get(&session).copied().unwrap_or(0)
    }

    fn note_stored(&mut self, session: SessionId, bytes: u64) {
        match bytes {
            0 => self.stored.remove(&session),
            _ => self.stored.insert(session, bytes),
        };
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
    /// Whether it is taken from what the session has reserved. Of those of one session only one at a time may be between
    /// [`Taking::left`] and [`Taking::used`].
    pub fn uses_reservation(&self) -> bool {
        self.source == Source::Reservation
    }

    /// What is left of the session's reservation when it is done: to be stored in the batch that does it, or after a restart what
    /// is used up would be reserved once more. `None`: the store has it so.
    pub fn left(&self) -> Option<u64> {
        let ledger = self.space.ledger();
        let left = ledger.left(self.session, self.bytes);
        (self.uses_reservation() && left != ledger.stored(self.session)).then_some(left)
    }

    /// It is done, and the store has what is left of the reservation.
    pub fn used(&self) {
        if self.uses_reservation() {
            let mut ledger = self.space.ledger();
            let left = ledger.left(self.session, self.bytes);
            ledger.set(self.session, left);
            ledger.note_stored(self.session, left);
        }
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
    fn what_is_left_is_stored_with_what_uses_the_rest() {
        let space = Arc::new(Space::default());
        let take = |purpose| space.take(ONE, (10, purpose), || Ok(100)).unwrap();
        let of_nothing = take(Purpose::Digest);
        space.reserve(ONE, 60, || Ok(100)).unwrap();
        space.note_stored(ONE, 60);
        assert_eq!(of_nothing.left(), None, "nothing was reserved when it was let pass");
        of_nothing.used();
        assert_eq!((take(Purpose::Data).left(), space.of(ONE)), (None, 60));
        let digest = take(Purpose::Digest);
        assert_eq!(digest.left(), Some(50));
        digest.used();
        assert_eq!((space.of(ONE), space.stored(ONE)), (50, 50));
        // As it is after a restart that found that.
        let space = Arc::new(Space::default());
        space.restore(ONE, 50);
        let digest = space.take(ONE, (70, Purpose::Digest), || Ok(100)).unwrap();
        assert_eq!(digest.left(), Some(0));
        digest.used();
        assert_eq!((space.of(ONE), space.stored(ONE), space.total()), (0, 0, 0));
        // Fenced while it was under way.
        space.reserve(ONE, 20, || Ok(100)).unwrap();
        let digest = space.take(ONE, (10, Purpose::Digest), || Ok(100)).unwrap();
        space.forget(ONE);
        digest.used();
        assert_eq!((digest.left(), space.total(), space.stored(ONE)), (None, 0, 0));
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
