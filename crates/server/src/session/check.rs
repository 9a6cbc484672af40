//! The check of what the server keeps beside the volume, for `soda fsck`.

use crate::records::{self, RecordError};
use soda_storage::{Batch, MetaStore, Table};
use soda_types::SessionId;
use std::fmt;

/// A record of the server's own, in a store that no server uses, that is damaged or lost.
#[derive(Debug)]
pub struct DamagedRecord {
    /// The session that cannot go on for it.
    pub(super) session: Option<SessionId>,
    pub(super) cause: String,
    /// Whether it was mended.
    pub is_mended: bool,
}

impl fmt::Display for DamagedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(session) = self.session {
            write!(f, "session {session} cannot go on: ")?;
        }
        f.write_str(&self.cause)
    }
}

/// Reads every record of sessions and of the server itself. With `repair` a session with a damaged record becomes one that
/// nobody can prove, as a server would take it: what it held is waited out, then it ends, and its client mounts anew. The record
/// of the server itself is not mended here: without it nobody knows what clients may still rely on
/// ([`settle_lost_records`](super::lost::settle_lost_records)).
///
/// # Errors
/// The store cannot be read or written.
pub fn check_records(meta: &dyn MetaStore, repair: bool) -> Result<Vec<DamagedRecord>, RecordError> {
    let mut damage = Vec::new();
    let own = [records::load_server(meta).err(), records::load_durability(meta).err()];
    for error in own.into_iter().flatten() {
        damage.push(DamagedRecord { session: None, cause: damage_only(error)?, is_mended: false });
    }
    let mut batch = Batch::releasing();
    for (key, value) in records::scan(meta, Table::Session, &[], &[0xff; 9])? {
        let Some(id) = records::number(&key).map(SessionId) else {
            let cause = records::damaged(Table::Session, &key).to_string();
            damage.push(DamagedRecord { session: None, cause, is_mended: repair });
            batch.delete(Table::Session, key);
            continue;
        };
        let Err(error) = records::load_session(meta, id, &value) else { continue };
        damage.push(DamagedRecord { session: Some(id), cause: damage_only(error)?, is_mended: repair });
        end_session(meta, id, &mut batch)?;
    }
    if repair && !batch.is_empty() {
        meta.commit(batch)?;
        meta.sync()?;
    }
    Ok(damage)
}

/// Has the session be one that nobody can prove, as a server takes one with a damaged record.
pub(super) fn end_session(meta: &dyn MetaStore, id: SessionId, batch: &mut Batch) -> Result<(), RecordError> {
    records::reply_keys(meta, id)?.into_iter().for_each(|key| batch.delete(Table::Reply, key));
    records::reservation_keys(meta, id)?.into_iter().for_each(|key| batch.delete(Table::Reservation, key));
    batch.put(Table::Session, records::session_key(id), records::encode(&records::unprovable()?));
    Ok(())
}

/// In words, if it is damage.
fn damage_only(error: RecordError) -> Result<String, RecordError> {
    match error {
        RecordError::Damaged { .. } => Ok(error.to_string()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{ServerRecord, load_sessions, numbers_key, server_key, session_key};
    use bytes::Bytes;
    use soda_storage::MemoryMeta;
    use soda_types::Ino;

    #[test]
    fn a_damaged_count_of_numbers_ends_the_session_and_no_other() {
        let meta = MemoryMeta::default();
        let mut batch = Batch::new();
        for id in [1, 2] {
            let record = records::unprovable().unwrap();
            batch.put(Table::Session, session_key(SessionId(id)), records::encode(&record));
            // As a `NumbersRecord` is encoded: all numbers there are, none of them used.
            let block = (if id == 2 { u32::MAX } else { 5 }, Vec::<u64>::new());
            batch.put(Table::Reservation, numbers_key(SessionId(id), Ino(70)), records::encode(&block));
        }
        batch.put(Table::Server, server_key(), records::encode(&ServerRecord::default()));
        meta.commit(batch).unwrap();

        let texts = |damage: &[DamagedRecord]| -> Vec<(String, bool)> {
            damage.iter().map(|damage| (damage.to_string(), damage.is_mended)).collect()
        };
        let found = texts(&check_records(&meta, false).unwrap());
        assert_eq!(found.len(), 1, "{found:?}");
        let (text, is_mended) = &found[0];
        assert!(text.contains("cannot go on") && text.contains("table reservation"), "{text}");
        assert!(!is_mended);
        assert_eq!(texts(&check_records(&meta, true).unwrap()), [(text.clone(), true)]);
        assert_eq!(texts(&check_records(&meta, false).unwrap()), []);
        let kept: Vec<_> =
            load_sessions(&meta).unwrap().iter().map(|it| (it.id.0, it.numbers.len())).collect();
        assert_eq!(kept, [(1, 1), (2, 0)]);
    }

    #[test]
    fn keys_of_no_session_go_and_the_servers_own_record_stays_damaged() {
        let meta = MemoryMeta::default();
        let mut batch = Batch::new();
        batch.put(Table::Session, Bytes::from_static(b"short"), Bytes::from_static(b"\x01"));
        batch.put(Table::Server, server_key(), Bytes::from_static(b"\x01"));
        meta.commit(batch).unwrap();
        let mended = |damage: Vec<DamagedRecord>| -> Vec<bool> {
            damage.iter().map(|damage| damage.is_mended).collect()
        };
        assert_eq!(mended(check_records(&meta, true).unwrap()), [false, true]);
        assert_eq!(mended(check_records(&meta, true).unwrap()), [false]);
    }
}
