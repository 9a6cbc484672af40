//! What the server itself keeps in the store, beside the volume: sessions, the replies of their slots, starts.
//!
//! Every record is a version byte and a postcard body. A change's reply travels in the batch of the change, so that both
//! are there after a crash, or neither.

use crate::random::random;
use crate::rounds::{DurabilityRecord, Round};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use soda_lease::numbers::NumbersRecord;
use soda_storage::{MetaRead, MetaStore, StorageError, Table};
use soda_types::{ClientId, Ino, Sequence, SessionId, Slot, Timestamp};
use std::ops::ControlFlow;
use std::time::Duration;

const RECORD_VERSION: u8 = 1;
const SERVER_KEY: &[u8] = b"server";
const DURABILITY_KEY: &[u8] = b"durability";

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("record {key:02x?} of table {table} is damaged")]
    Damaged { table: &'static str, key: Vec<u8> },
    #[error("no random numbers: {0}")]
    Random(std::io::Error),
}

/// The server's own state, one record.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    /// Starts of this data directory so far: the high part of every epoch of this run.
    pub(crate) starts: u64,
    /// The number of the newest session; none is used twice.
    pub(crate) last_session: u64,
    /// The longest term that some client may still count on: of all runs since a grace period was completed. The next grace
    /// period must not be shorter.
    pub(crate) term: Duration,
}

/// A session that may come back after a restart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    pub(crate) client: ClientId,
    pub(crate) secret: [u8; 16],
    pub(crate) name: String,
    pub(crate) opened: Timestamp,
}

/// The last reply of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ReplyRecord {
    pub(crate) sequence: Sequence,
    /// The encoded `Result<Answer, Failure>`.
    pub(crate) result: Bytes,
    /// The sync that makes the change durable.
    pub(crate) round: Round,
    /// The last operation of the slot whose change was durable before.
    pub(crate) durable: Sequence,
}

/// Keys order as their numbers do.
pub(crate) fn session_key(session: SessionId) -> Bytes {
    Bytes::copy_from_slice(&session.0.to_be_bytes())
}

pub(crate) fn reply_key(session: SessionId, slot: Slot) -> Bytes {
    let mut key = Vec::with_capacity(10);
    key.extend_from_slice(&session.0.to_be_bytes());
    key.extend_from_slice(&slot.0.to_be_bytes());
    key.into()
}

/// Of the bytes that a session has reserved.
pub(crate) fn space_key(session: SessionId) -> Bytes {
    session_key(session)
}

/// Of a block of inode numbers that a session has reserved.
pub(crate) fn numbers_key(session: SessionId, first: Ino) -> Bytes {
    let mut key = Vec::with_capacity(16);
    key.extend_from_slice(&session.0.to_be_bytes());
    key.extend_from_slice(&first.0.to_be_bytes());
    key.into()
}

pub(crate) fn server_key() -> Bytes {
    Bytes::from_static(SERVER_KEY)
}

pub(crate) fn durability_key() -> Bytes {
    Bytes::from_static(DURABILITY_KEY)
}

pub(crate) fn encode<T: Serialize>(record: &T) -> Bytes {
    // Plain data into memory: there is no way to fail.
    postcard::to_extend(record, vec![RECORD_VERSION]).map(Bytes::from).unwrap_or_default()
}

/// Whether there is a record of the server.
pub(super) fn has_server(meta: &dyn MetaStore) -> Result<bool, RecordError> {
    Ok(meta.get(Table::Server, SERVER_KEY)?.is_some())
}

/// The session that a key belongs to.
pub(super) fn session_of(key: &[u8]) -> Option<SessionId> {
    key.get(..8).and_then(number).map(SessionId)
}

/// The server's record; the default in a fresh store.
pub(crate) fn load_server(meta: &dyn MetaStore) -> Result<ServerRecord, RecordError> {
    match meta.get(Table::Server, SERVER_KEY)? {
        Some(bytes) => decode(Table::Server, SERVER_KEY, &bytes),
        None => Ok(ServerRecord::default()),
    }
}

/// What is known to be durable; the default in a fresh store.
pub(crate) fn load_durability(meta: &dyn MetaStore) -> Result<DurabilityRecord, RecordError> {
    match meta.get(Table::Server, DURABILITY_KEY)? {
        Some(bytes) => decode(Table::Server, DURABILITY_KEY, &bytes),
        None => Ok(DurabilityRecord::default()),
    }
}

/// Every session with the replies of its slots, by number.
///
/// A session with a damaged record is among them, as one that nobody can prove: what it held is waited out in the grace
/// period, then it ends.
pub(crate) fn load_sessions(meta: &dyn MetaStore) -> Result<Vec<StoredSession>, RecordError> {
    let mut sessions = Vec::new();
    for (key, value) in scan(meta, Table::Session, &[], &[0xff; 9])? {
        let Some(id) = number(&key).map(SessionId) else {
            tracing::error!(?key, "a record of a session that none can have is ignored");
            continue;
        };
        match load_session(meta, id, &value) {
            Ok(stored) => sessions.push(stored),
            Err(error @ RecordError::Damaged { .. }) => {
                tracing::error!(session = %id, %error, "the session cannot go on");
                let record = unprovable()?;
                sessions.push(StoredSession {
                    id,
                    record,
                    replies: Vec::new(),
                    space: 0,
                    numbers: Vec::new(),
                });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sessions)
}

/// One session, of which this is the record.
pub(crate) fn load_session(
    meta: &dyn MetaStore,
    id: SessionId,
    value: &[u8],
) -> Result<StoredSession, RecordError> {
    let record = decode(Table::Session, &session_key(id), value)?;
    let (space, numbers) = reservations_of(meta, id)?;
    Ok(StoredSession { id, record, replies: replies_of(meta, id)?, space, numbers })
}

/// The record of a session that nobody can prove to be his.
pub(crate) fn unprovable() -> Result<SessionRecord, RecordError> {
    Ok(SessionRecord {
        client: ClientId([0; 16]),
        secret: random().map_err(RecordError::Random)?,
        name: "a damaged record".to_owned(),
        opened: Timestamp::default(),
    })
}

/// Keys of all replies of a session, to delete them with it.
pub(crate) fn reply_keys(meta: &dyn MetaStore, session: SessionId) -> Result<Vec<Bytes>, RecordError> {
    let (start, end) = reply_range(session);
    Ok(scan(meta, Table::Reply, &start, &end)?.into_iter().map(|(key, _)| key).collect())
}

#[derive(Debug)]
pub(crate) struct StoredSession {
    pub(crate) id: SessionId,
    pub(crate) record: SessionRecord,
    pub(crate) replies: Vec<(Slot, ReplyRecord)>,
    /// Bytes that it has reserved.
    pub(crate) space: u64,
    /// Inode numbers that it has reserved.
    pub(crate) numbers: Vec<(u64, NumbersRecord)>,
}

/// Keys of all that a session has reserved, to delete them with it.
pub(crate) fn reservation_keys(meta: &dyn MetaStore, session: SessionId) -> Result<Vec<Bytes>, RecordError> {
    let (start, end) = reply_range(session);
    Ok(scan(meta, Table::Reservation, &start, &end)?.into_iter().map(|(key, _)| key).collect())
}

fn reservations_of(
    meta: &dyn MetaStore,
    session: SessionId,
) -> Result<(u64, Vec<(u64, NumbersRecord)>), RecordError> {
    let (start, end) = reply_range(session);
    let (mut space, mut numbers) = (0, Vec::new());
    for (key, value) in scan(meta, Table::Reservation, &start, &end)? {
        match key.get(8..).unwrap_or_default() {
            [] => space = decode(Table::Reservation, &key, &value)?,
            first => {
                let first = number(first).ok_or_else(|| damaged(Table::Reservation, &key))?;
                let block: NumbersRecord = decode(Table::Reservation, &key, &value)?;
                if !block.is_sound() {
                    return Err(damaged(Table::Reservation, &key));
                }
                numbers.push((first, block));
            }
        }
    }
    Ok((space, numbers))
}

fn replies_of(meta: &dyn MetaStore, session: SessionId) -> Result<Vec<(Slot, ReplyRecord)>, RecordError> {
    let (start, end) = reply_range(session);
    let rows = scan(meta, Table::Reply, &start, &end)?.into_iter().map(|(key, value)| {
        let slot: Option<[u8; 2]> = key.get(8..).and_then(|slot| slot.try_into().ok());
        let slot = slot.ok_or_else(|| damaged(Table::Reply, &key))?;
        Ok((Slot(u16::from_be_bytes(slot)), decode(Table::Reply, &key, &value)?))
    });
    rows.collect()
}

fn reply_range(session: SessionId) -> (Bytes, Bytes) {
    // Not up to the next session: damage can make the last number of all.
    (session_key(session), [&session.0.to_be_bytes()[..], &[0xff; 9]].concat().into())
}

pub(crate) fn scan(
    meta: &dyn MetaRead,
    table: Table,
    start: &[u8],
    end: &[u8],
) -> Result<Vec<(Bytes, Bytes)>, RecordError> {
    let mut rows = Vec::new();
    meta.scan(table, start, end, &mut |key, value| {
        rows.push((Bytes::copy_from_slice(key), value));
        ControlFlow::Continue(())
    })?;
    Ok(rows)
}

fn decode<T: DeserializeOwned>(table: Table, key: &[u8], bytes: &[u8]) -> Result<T, RecordError> {
    match bytes.split_first() {
        Some((&RECORD_VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((record, [])) => Ok(record),
            _ => Err(damaged(table, key)),
        },
        _ => Err(damaged(table, key)),
    }
}

pub(crate) fn damaged(table: Table, key: &[u8]) -> RecordError {
    RecordError::Damaged { table: table.name(), key: key.to_owned() }
}

pub(crate) fn number(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::BootId;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use proptest::test_runner::TestRunner;
    use soda_lease::numbers::BLOCK_MAX;
    use soda_storage::{Batch, MemoryMeta};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn sessions_come_back_with_their_replies_only() {
        let meta = MemoryMeta::default();
        let record = SessionRecord {
            client: ClientId([1; 16]),
            secret: [2; 16],
            name: "host:/mnt".to_owned(),
            opened: Timestamp::new(5, 0),
        };
        let reply = ReplyRecord {
            sequence: Sequence(9),
            result: Bytes::from_static(b"r"),
            round: Round(3),
            durable: Sequence(7),
        };
        let mut batch = Batch::new();
        for id in [3, 255, 256] {
            batch.put(Table::Session, session_key(SessionId(id)), encode(&record));
            batch.put(Table::Reply, reply_key(SessionId(id), Slot(id as u16)), encode(&reply));
        }
        meta.commit(batch).unwrap();
        let sessions = load_sessions(&meta).unwrap();
        let ids: Vec<u64> = sessions.iter().map(|session| session.id.0).collect();
        assert_eq!(ids, [3, 255, 256]);
        for session in sessions {
            assert_eq!(session.record, record);
            assert_eq!(session.replies, vec![(Slot(session.id.0 as u16), reply.clone())]);
            assert_eq!(reply_keys(&meta, session.id).unwrap().len(), 1);
        }
    }

    /// The last one is what damage can make of any other.
    const SESSIONS: [u64; 3] = [1, 255, u64::MAX];

    /// Whose it is, if it is a session's.
    type Row = (Option<u64>, Table, Vec<u8>, Vec<u8>);

    /// All kinds of rows, with these numbers in them.
    fn rows(one: u64, other: u64) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let term = Duration::new(one, 5);
        let server = encode(&ServerRecord { starts: other, last_session: one, term });
        let (boot, synced) = (Some(BootId::new("a boot")), Round(one));
        let doubtful = vec![(Round(0), Round(other)), (Round(other), Round(one))];
        let durability = encode(&DurabilityRecord { boot, synced, doubtful });
        rows.push((None, Table::Server, server_key().into(), server.into()));
        rows.push((None, Table::Server, durability_key().into(), durability.into()));
        for id in SESSIONS {
            let session = SessionId(id);
            let mut put =
                |table, key: Bytes, value: Bytes| rows.push((Some(id), table, key.into(), value.into()));
            let (name, opened) = (format!("host{one}:/mnt"), Timestamp::new(5, 0));
            let record = SessionRecord { client: ClientId([1; 16]), secret: [2; 16], name, opened };
            put(Table::Session, session_key(session), encode(&record));
            for slot in [0, 7, u16::MAX] {
                let result = Bytes::from(vec![7; usize::from(slot % 40)]);
                let (sequence, durable) = (Sequence(one), Sequence(other));
                let reply = ReplyRecord { sequence, result, round: Round(one), durable };
                put(Table::Reply, reply_key(session, Slot(slot)), encode(&reply));
            }
            put(Table::Reservation, space_key(session), encode(&one));
            for first in [one, u64::MAX] {
                // As a `NumbersRecord` is encoded: at least as many as there are bits.
                let count = 5 * 64 + (other % u64::from(BLOCK_MAX - 5 * 64)) as u32;
                let block = (count, vec![other; (one % 5) as usize]);
                put(Table::Reservation, numbers_key(session, Ino(first)), encode(&block));
            }
        }
        rows
    }

    fn store(rows: &[Row]) -> MemoryMeta {
        let meta = MemoryMeta::default();
        let mut batch = Batch::new();
        for (_, table, key, value) in rows {
            batch.put(*table, key.clone(), value.clone());
        }
        meta.commit(batch).unwrap();
        meta
    }

    /// By number, as text.
    fn sessions(meta: &MemoryMeta) -> BTreeMap<u64, String> {
        let sessions = load_sessions(meta).unwrap();
        for session in &sessions {
            reply_keys(meta, session.id).unwrap();
            reservation_keys(meta, session.id).unwrap();
        }
        sessions.into_iter().map(|session| (session.id.0, format!("{session:?}"))).collect()
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Part {
        Key,
        Value,
    }

    #[test]
    fn damaged_rows_are_read_or_refused_and_no_other_session_minds() {
        const CASES: u32 = 5000;
        let byte = prop_oneof![Just(0), Just(1), Just(0x80), Just(0xff), any::<u8>()];
        let put = proptest::collection::vec(byte, 0..12);
        let part = prop_oneof![1 => Just(Part::Key), 3 => Just(Part::Value)];
        let damage = (any::<Index>(), part, any::<Index>(), 0..4usize, put);
        let number = || prop_oneof![0..1000u64, Just(u64::MAX), any::<u64>()];
        let cases = (number(), number(), proptest::collection::vec(damage, 1..4));
        let changed = std::cell::Cell::new(0);
        let outcome = TestRunner::new(ProptestConfig {
            cases: CASES,
            failure_persistence: None,
            ..ProptestConfig::default()
        })
        .run(&cases, |(one, other, damages)| {
            let mut rows = rows(one, other);
            let sound = sessions(&store(&rows));
            prop_assert_eq!(sound.keys().copied().collect::<Vec<_>>(), SESSIONS);
            prop_assert!(sound.values().all(|session| !session.contains("a damaged record")));
            let (mut hit, mut moved) = (BTreeSet::new(), false);
            for (row, part, at, cut, put) in damages {
                let row = row.index(rows.len());
                let (whose, _, key, value) = &mut rows[row];
                let bytes = match part {
                    Part::Key => key,
                    Part::Value => value,
                };
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..bytes.len().min(at + cut), put);
                hit.extend(*whose);
                moved |= part == Part::Key;
            }
            let meta = store(&rows);
            let _ = (load_server(&meta), load_durability(&meta));
            let found = sessions(&meta);
            for (id, session) in &found {
                let is_same = sound.get(id) == Some(session);
                prop_assert!(is_same || moved || hit.contains(id), "session {}: {}", id, session);
                let is_other = !is_same && !session.contains("a damaged record");
                changed.set(changed.get() + u32::from(is_other));
            }
            Ok(())
        });
        outcome.unwrap();
        assert!(
            changed.get() > CASES / 10,
            "hardly any damage reaches what is in a record: {}",
            changed.get()
        );
    }

    #[test]
    fn damage_ends_one_session_or_stops_the_start() {
        let meta = MemoryMeta::default();
        let mut batch = Batch::new();
        batch.put(Table::Session, session_key(SessionId(1)), Bytes::from_static(b"\x01junk"));
        batch.put(Table::Server, server_key(), Bytes::from_static(b"\x01"));
        meta.commit(batch).unwrap();
        let sessions = load_sessions(&meta).unwrap();
        assert_eq!((sessions.len(), sessions[0].id), (1, SessionId(1)));
        assert_ne!(sessions[0].record.secret, [0; 16]);
        let error = load_server(&meta).unwrap_err();
        assert!(error.to_string().contains("table server is damaged"), "{error}");
    }
}
