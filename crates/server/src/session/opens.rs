//! Which sessions have which inodes open, as far as the server was told: by `Opened`, by answers to recalls, by what was
//! created open. A session that holds a lease tells when the lease is recalled; so before an inode's last name goes,
//! everybody who has it open is in this table.

use soda_types::{Fid, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// With the place of the message that said so in the order of arrival.
    users: HashMap<Fid, BTreeMap<SessionId, u64>>,
    sessions: BTreeMap<SessionId, BTreeSet<Fid>>,
}

impl Opens {
    /// A message that arrived as number `order` said that the session has it open.
    pub(crate) fn add(&mut self, session: SessionId, fid: Fid, order: u64) {
        let said = self.users.entry(fid).or_default().entry(session).or_insert(order);
        *said = (*said).max(order);
        self.sessions.entry(session).or_default().insert(fid);
    }

    /// A message that arrived as number `order` said that the session has closed it. Calls are looked at later than notes, so
    /// it may have been opened again meanwhile.
    pub(crate) fn close(&mut self, session: SessionId, fid: Fid, order: u64) {
        let said = self.users.get(&fid).and_then(|users| users.get(&session));
        if said.is_some_and(|said| *said < order) {
            self.remove(session, fid);
        }
    }

    fn remove(&mut self, session: SessionId, fid: Fid) {
        if let Some(users) = self.users.get_mut(&fid) {
            users.remove(&session);
            if users.is_empty() {
                self.users.remove(&fid);
            }
        }
        if let Some(open) = self.sessions.get_mut(&session) {
            open.remove(&fid);
            if open.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }

    /// Forgets a session; returns what it had open.
    pub(crate) fn remove_session(&mut self, session: SessionId) -> BTreeSet<Fid> {
        let open = self.sessions.get(&session).cloned().unwrap_or_default();
        for fid in &open {
            self.remove(session, *fid);
        }
        open
    }

    pub(crate) fn is_used(&self, fid: Fid) -> bool {
        self.users.contains_key(&fid)
    }

    /// Sessions that have an inode open.
    pub(crate) fn users(&self, fid: Fid) -> impl Iterator<Item = SessionId> {
        self.users.get(&fid).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Inodes that a session has open.
    pub(crate) fn count(&self, session: SessionId) -> usize {
        self.sessions.get(&session).map_or(0, BTreeSet::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    #[test]
    fn an_inode_is_used_until_the_last_session_has_closed_it() {
        let mut opens = Opens::default();
        let fid = Fid::new(VolumeId(1), Ino(5));
        opens.add(SessionId(1), fid, 1);
        opens.add(SessionId(1), fid, 2);
        opens.add(SessionId(2), fid, 3);
        opens.close(SessionId(1), fid, 4);
        assert!(opens.is_used(fid));
        assert_eq!(opens.count(SessionId(1)), 0);
        assert_eq!(opens.remove_session(SessionId(2)), BTreeSet::from([fid]));
        assert!(!opens.is_used(fid));
        opens.close(SessionId(7), fid, 5);
    }

    #[test]
    fn a_close_does_not_count_for_what_was_opened_after_it() {
        let mut opens = Opens::default();
        let fid = Fid::new(VolumeId(1), Ino(5));
        opens.add(SessionId(1), fid, 1);
        opens.add(SessionId(1), fid, 3);
        opens.close(SessionId(1), fid, 2);
        assert!(opens.is_used(fid));
        opens.close(SessionId(1), fid, 4);
        assert!(!opens.is_used(fid));
    }
}
