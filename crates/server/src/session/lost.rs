//! What becomes of the server's own records when some are lost for good: `soda fsck --repair --discard-lost`.
//!
//! A session whose replies may be lost must not go on: a client that repeats what was done would have it done again. It ends as
//! one with a damaged record does, and its client keeps what it has not told. What the server counts by goes on above all that
//! it can have given: a number of a session, an epoch or a round that comes again would be taken for what it was.

use super::check::{DamagedRecord, end_session};
use crate::records::{self, RecordError, ServerRecord};
use soda_storage::{Batch, MetaStore, Salvaged, Table};
use soda_types::SessionId;
use std::collections::BTreeSet;
use std::time::Duration;

/// So many sessions may have been opened above the highest that is left.
const LOST_SESSIONS: u64 = 1 << 32;

/// So many starts, where the newest may be among what a journal has lost.
const LOST_STARTS: u64 = 1 << 10;

/// What clients may still count on where the term that they were promised is lost: the next start waits as long for them.
const LOST_TERM: Duration = Duration::from_secs(600);

/// Settles what is lost of sessions and of the server's own record, and mends that record if it is damaged. `runs`: how many
/// times the volume was opened, which is as often as the server has started, or more. Nobody else uses the store.
///
/// # Errors
/// The store cannot be read or written.
pub fn settle_lost_records(
    meta: &dyn MetaStore,
    salvaged: &Salvaged,
    runs: u64,
) -> Result<Vec<DamagedRecord>, RecordError> {
    let lost = Lost { salvaged };
    let mut settled = Vec::new();
    let mut batch = Batch::releasing();
    let mut settle = |session, cause: &str| {
        settled.push(DamagedRecord { session, cause: cause.to_owned(), is_mended: true });
    };
    let mut known = BTreeSet::new();
    for (key, _) in records::scan(meta, Table::Session, &[], &[0xff; 9])? {
        let Some(id) = records::session_of(&key) else { continue };
        known.insert(id);
        if lost.of_session(Table::Reply, id) || lost.of_session(Table::Reservation, id) {
            end_session(meta, id, &mut batch)?;
            settle(Some(id), "replies of it, or what it has reserved, may be lost");
        }
    }
    let mut last = known.last().map_or(0, |id| id.0);
    for table in [Table::Reply, Table::Reservation] {
        for (key, _) in records::scan(meta, table, &[], &[0xff; 19])? {
            let Some(id) = records::session_of(&key) else { continue };
            last = last.max(id.0);
            if lost.any(Table::Session) && !known.contains(&id) {
                batch.delete(table, key);
            }
        }
    }
    let server = match records::load_server(meta) {
        Err(RecordError::Damaged { .. }) => None,
        server => Some(server?),
    };
    let is_there = records::has_server(meta)?;
    let mut server = match server {
        Some(server) if is_there || !lost.any(Table::Server) => server,
        _ => {
            settle(
                None,
                "how often the server was started is lost: it goes on counting above what it can have given",
            );
            ServerRecord { starts: runs, last_session: last.saturating_add(LOST_SESSIONS), term: LOST_TERM }
        }
    };
    if salvaged.lost_batches.is_some() {
        settle(
            None,
            "what the server counts by has gone back with the journal: it goes on above what it can have given",
        );
        server.starts += LOST_STARTS;
        server.last_session = server.last_session.saturating_add(LOST_SESSIONS);
    }
    if lost.any(Table::Session) {
        settle(None, "sessions may be lost: the next start waits for what they held");
        // Nobody can prove it, so what it may hold is waited out.
        server.last_session = server.last_session.max(last) + 1;
        end_session(meta, SessionId(server.last_session), &mut batch)?;
    }
    if let Err(RecordError::Damaged { .. }) = records::load_durability(meta) {
        // Without it all that was answered before counts as in doubt.
        batch.delete(Table::Server, records::durability_key());
        settle(None, "which changes were durable is lost: clients are told that none was");
    }
    if !settled.is_empty() {
        batch.put(Table::Server, records::server_key(), records::encode(&server));
        meta.commit(batch)?;
        meta.sync()?;
    }
    Ok(settled)
}

struct Lost<'a> {
    salvaged: &'a Salvaged,
}

impl Lost<'_> {
    /// Whether anything of a table may be lost. A journal that was cut has lost changes of any.
    fn any(&self, table: Table) -> bool {
        self.salvaged.lost_batches.is_some() || self.salvaged.lost.iter().any(|range| range.table == table)
    }

    fn of_session(&self, table: Table, session: SessionId) -> bool {
        let key = records::session_key(session);
        let touches = |range: &soda_storage::LostRange| range.table == table && range.touches(&key);
        self.salvaged.lost_batches.is_some() || self.salvaged.lost.iter().any(touches)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::records::{ReplyRecord, load_server, load_sessions, reply_key, server_key, session_key};
    use crate::rounds::Round;
    use bytes::Bytes;
    use soda_storage::{LostRange, MemoryMeta};
    use soda_types::{Sequence, Slot};

    const STARTS: u64 = 7;

    /// Three sessions, each with a reply.
    fn store() -> MemoryMeta {
        let meta = MemoryMeta::default();
        let mut batch = Batch::new();
        for id in [3, 4, 9] {
            let record = records::unprovable().unwrap();
            let result = Bytes::from_static(b"r");
            let reply = ReplyRecord { sequence: Sequence(1), result, round: Round(3), durable: Sequence(0) };
            batch.put(Table::Session, session_key(SessionId(id)), records::encode(&record));
            batch.put(Table::Reply, reply_key(SessionId(id), Slot(0)), records::encode(&reply));
        }
        let server = ServerRecord { starts: STARTS, last_session: 9, term: Duration::from_secs(1) };
        batch.put(Table::Server, server_key(), records::encode(&server));
        meta.commit(batch).unwrap();
        meta
    }

    fn delete(meta: &MemoryMeta, table: Table, key: Bytes) {
        let mut batch = Batch::new();
        batch.delete(table, key);
        meta.commit(batch).unwrap();
    }

    fn range(table: Table, first: impl Into<Bytes>, last: impl Into<Bytes>) -> Salvaged {
        let range = LostRange { table, first: first.into(), last: Some(last.into()), file: String::new() };
        Salvaged { lost: vec![range], ..Salvaged::default() }
    }

    fn replies(meta: &MemoryMeta) -> Vec<(u64, usize)> {
        load_sessions(meta).unwrap().iter().map(|it| (it.id.0, it.replies.len())).collect()
    }

    #[test]
    fn a_session_whose_replies_may_be_lost_goes_on_no_more() {
        let meta = store();
        assert!(settle_lost_records(&meta, &Salvaged::default(), 20).unwrap().is_empty());
        // From behind the reply of 3 to before that of 9.
        let lost = range(Table::Reply, reply_key(SessionId(3), Slot(1)), reply_key(SessionId(4), Slot(0)));
        delete(&meta, Table::Reply, reply_key(SessionId(4), Slot(0)));
        let settled = settle_lost_records(&meta, &lost, 20).unwrap();
        assert_eq!(settled.iter().map(|it| it.session.unwrap().0).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(replies(&meta), [(3, 0), (4, 0), (9, 1)]);
        assert_eq!(load_server(&meta).unwrap().starts, STARTS, "which is not lost");
        let cut = Salvaged { lost_batches: Some(1), ..Salvaged::default() };
        settle_lost_records(&meta, &cut, 20).unwrap();
        assert!(replies(&meta).iter().all(|(_, replies)| *replies == 0));
        let server = load_server(&meta).unwrap();
        assert!(server.starts > STARTS && server.last_session > 9);
    }

    #[test]
    fn a_session_that_is_lost_is_waited_for_and_its_number_does_not_come_again() {
        let meta = store();
        let key = session_key(SessionId(9));
        delete(&meta, Table::Session, key.clone());
        settle_lost_records(&meta, &range(Table::Session, key.clone(), key), 20).unwrap();
        let server = load_server(&meta).unwrap();
        assert_eq!(replies(&meta), [(3, 1), (4, 1), (server.last_session, 0)]);
        assert!(server.last_session > 9);
        assert!(records::reply_keys(&meta, SessionId(9)).unwrap().is_empty());
    }

    #[test]
    fn a_record_of_the_server_that_is_lost_or_damaged_goes_on_above_all_that_it_can_have_given() {
        for damaged in [false, true] {
            let meta = store();
            let lost = match damaged {
                true => {
                    let mut batch = Batch::new();
                    batch.put(Table::Server, server_key(), Bytes::from_static(b"\x01"));
                    meta.commit(batch).unwrap();
                    Salvaged::default()
                }
                false => {
                    delete(&meta, Table::Server, server_key());
                    range(Table::Server, Bytes::new(), server_key())
                }
            };
            assert_eq!(settle_lost_records(&meta, &lost, 20).unwrap().len(), 1);
            let server = load_server(&meta).unwrap();
            assert!(server.starts == 20 && server.last_session > 1 << 30 && server.term == LOST_TERM);
            assert!(settle_lost_records(&meta, &Salvaged::default(), 21).unwrap().is_empty());
        }
    }
}
