//! Who may have the space that is free: what sessions have reserved, for what they did already and will tell later, nobody else
//! gets.

use soda_types::{Errno, FsError, FsResult, SessionId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Space {
    ledger: Mutex<Ledger>,
}

/// All in bytes.
#[derive(Debug, Default)]
struct Ledger {
    reserved: HashMap<SessionId, u64>,
    total: u64,
    /// What operations under way may take that were let pass; some of it may be taken already.
    under_way: u64,
}

/// An operation that may take space. Dropped when it is over.
#[derive(Debug)]
pub(crate) struct Taking {
    space: Arc<Space>,
    bytes: u64,
}

impl Space {
    /// Lets an operation of the session take so many bytes.
    ///
    /// # Errors
    /// `ENOSPC`: others have reserved what is left.
    pub(crate) fn take(
        self: &Arc<Self>,
        session: SessionId,
        bytes: u64,
        free: impl FnOnce() -> FsResult<u64>,
    ) -> FsResult<Taking> {
        let mut ledger = self.ledger();
        let others = ledger.others(session);
        if others > 0 {
            let free = free()?;
            if free < others.saturating_add(ledger.under_way).saturating_add(bytes) {
                let context = format!("{free} bytes are free, {others} of them reserved for other clients");
                return Err(FsError::new(Errno::NoSpace, context));
            }
        }
        ledger.under_way += bytes;
        Ok(Taking { space: self.clone(), bytes })
    }

    /// Makes the session's reservation as large as asked for, as far as others leave it. Returns what it is.
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
                bytes.min(free()?.saturating_sub(taken))
            }
        };
        ledger.set(session, granted);
        Ok(granted)
    }

    /// As it was before a restart.
    pub(crate) fn restore(&self, session: SessionId, bytes: u64) {
        self.ledger().set(session, bytes);
    }

    /// What the session has reserved.
    pub(crate) fn of(&self, session: SessionId) -> u64 {
        self.ledger().reserved.get(&session).copied().unwrap_or(0)
    }

    /// What everybody else has reserved.
    pub(crate) fn of_others(&self, session: SessionId) -> u64 {
        self.ledger().others(session)
    }

    pub(crate) fn total(&self) -> u64 {
        self.ledger().total
    }

    /// The session has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        self.ledger().set(session, 0);
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    fn others(&self, session: SessionId) -> u64 {
        self.total - self.reserved.get(&session).copied().unwrap_or(0)
    }

    fn set(&mut self, session: SessionId, bytes: u64) {
        let before = match bytes {
            0 => self.reserved.remove(&session),
            _ => self.reserved.insert(session, bytes),
        };
        self.total = self.total - before.unwrap_or(0) + bytes;
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
        assert_eq!(reserve(OTHER, 70), 30);
        assert_eq!(reserve(ONE, 20), 20);
        assert_eq!(reserve(OTHER, 70), 70);
        assert_eq!((space.of_others(ONE), space.of(OTHER), space.total()), (70, 70, 90));
        space.forget(OTHER);
        assert_eq!((space.total(), space.of_others(ONE)), (20, 0));
    }

    #[test]
    fn nobody_takes_what_another_has_reserved_not_even_several_at_once() {
        let space = Arc::new(Space::default());
        space.reserve(ONE, 60, || Ok(100)).unwrap();
        let take = |session, bytes| space.take(session, bytes, || Ok(100));
        let first = take(OTHER, 30).unwrap();
        assert_eq!(take(OTHER, 30).unwrap_err().errno, Errno::NoSpace);
        drop(first);
        drop(take(OTHER, 40).unwrap());
        assert_eq!(take(OTHER, 41).unwrap_err().errno, Errno::NoSpace);
        // Its own.
        drop(take(ONE, 100).unwrap());
    }

    #[test]
    fn what_is_under_way_cannot_be_reserved() {
        let space = Arc::new(Space::default());
        let _taking = space.take(OTHER, 30, || Ok(100)).unwrap();
        assert_eq!(space.reserve(ONE, 100, || Ok(100)).unwrap(), 70);
    }
}
