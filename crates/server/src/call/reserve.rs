//! What a client needs to be sure that its digests cannot fail for want of it: inode numbers, space.

use crate::guard::CoreGuard;
use crate::link::Incoming;
use crate::records;
use crate::session::Session;
use crate::shared::Shared;
use soda_lease::numbers::{BLOCK_MAX, NumbersRecord};
use soda_lease::space::{Purpose, Taking};
use soda_protocol::{Allocate, Answer, Call, Failure, space_through};
use soda_storage::{Batch, Table, crash};
use soda_types::{Errno, FsResult, Ino, SessionId};

/// Sets aside what was asked for, durably: numbers that were told to a client have to be known to be its own
/// for as long as it can tell what it created.
pub(super) fn run(shared: &Shared, incoming: Incoming, inodes: u32, bytes: u64) {
    match reserve(shared, &incoming.link.session, inodes, bytes) {
        Ok((answer, Stored::Before)) => incoming.answer(&Ok(answer)),
        Ok((answer, Stored::Now)) => shared.sync.request(move |synced| {
            incoming.answer(&synced.map(|()| answer).map_err(Failure::Fs));
        }),
        Err(error) => incoming.answer(&Err(Failure::Fs(error))),
    }
}

/// Whether what is answered has to be made durable before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stored {
    Before,
    Now,
}

fn reserve(shared: &Shared, session: &Session, inodes: u32, bytes: u64) -> FsResult<(Answer, Stored)> {
    let mut numbers = session.numbers();
    let bytes = shared.space.reserve(session.id, bytes, || shared.free_space())?;
    let mut batch = Batch::releasing();
    if bytes != shared.space.stored(session.id) {
        batch.put(Table::Reservation, records::space_key(session.id), records::encode(&bytes));
    }
    let (mut first, count) = (Ino(0), inodes.min(BLOCK_MAX));
    if count > 0 {
        first = shared.volume.reserve_numbers(count)?;
        let block = NumbersRecord::new(count);
        batch.put(Table::Reservation, records::numbers_key(session.id, first), records::encode(&block));
        if let Some(forgotten) = numbers.add(first, block) {
            batch.delete(Table::Reservation, records::numbers_key(session.id, forgotten));
        }
    }
    let stored = if batch.is_empty() { Stored::Before } else { Stored::Now };
    if stored == Stored::Now {
        shared.write_ends();
        shared.volume.meta().commit(batch)?;
        shared.space.note_stored(session.id, bytes);
        crash::point("server.reserved");
        shared.sync.dirty();
    }
    if inodes > 0 || bytes > 0 {
        shared.core().table.note_delays(session.id);
    }
    if session.has_ended() {
        shared.space.forget(session.id);
        shared.forget_reservations(session.id);
    }
    Ok((Answer::Reserved { first, count, bytes, version: shared.volume.first_version() }, stored))
}

impl Shared {
    /// Bytes that are free, whoever may have them.
    pub(crate) fn free_space(&self) -> FsResult<u64> {
        Ok(self.volume.space()?.free)
    }

    /// Lets an operation of the session take space: what is set aside for who is away goes before it is refused.
    pub(super) fn take_space(&self, session: SessionId, wanted: (u64, Purpose)) -> FsResult<Taking> {
        let take = || self.space.take(session, wanted, || self.free_space());
        match take() {
            Err(error) if error.errno == Errno::NoSpace && self.core().contest_reservations() > 0 => take(),
            taken => taken,
        }
    }

    /// What others have reserved, bytes, but for what [`Shared::take_space`] would take from them.
    pub(crate) fn reserved_by_others(&self, session: SessionId) -> u64 {
        let reservations = self.space.reservations();
        let core = self.core();
        let counts = |id: SessionId| id != session && !core.has_let_go_of_space(id);
        reservations.iter().filter(|(id, _)| counts(*id)).map(|(_, bytes)| bytes).sum()
    }

    /// Of an ended session, whose record is gone.
    pub(super) fn forget_reservations(&self, session: SessionId) {
        let deleted = records::reservation_keys(self.volume.meta(), session).map(|keys| {
            let mut batch = Batch::releasing();
            keys.into_iter().for_each(|key| batch.delete(Table::Reservation, key));
            self.volume.meta().commit(batch)
        });
        if !matches!(deleted, Ok(Ok(()))) {
            tracing::warn!(%session, "a reservation of an ended session stays in the store");
        }
    }
}

impl CoreGuard<'_> {
    /// Ends the sessions for which space is set aside and whose lease has run out. Returns how many.
    pub(crate) fn contest_reservations(&mut self) -> usize {
        let now = self.now;
        let mut away = self.shared().space.reservations();
        away.retain(|(session, _)| self.has_let_go_of_space(*session));
        for (session, _) in &away {
            let _ = self.table.contest_space(now, *session);
        }
        self.settle();
        away.len()
    }

    /// In a grace period nobody has been away for long.
    fn has_let_go_of_space(&self, session: SessionId) -> bool {
        self.grace_left().is_none() && self.table.is_expired(self.now, session)
    }
}

/// What a call may take of the space that is free, bytes; `None` if it leads to space being freed or takes none.
pub(super) fn space_for(call: &Call, payload: u64) -> Option<(u64, Purpose)> {
    let little = |bytes| Some((space_through(bytes), Purpose::Little));
    let data = match call {
        Call::Write { .. } => payload,
        Call::Allocate { how: Allocate::PunchHole, .. } => return None,
        Call::CopyRange { len, .. } | Call::Allocate { len, .. } => *len,
        Call::SetXattr { value, .. } => return little(value.len()),
        Call::Create { new, .. } => return little(new.target.len()),
        Call::TmpFile { .. } | Call::Link { .. } => return little(0),
        _ => return None,
    };
    Some((data.saturating_add(space_through(0)), Purpose::Data))
}
