//! What the server sets aside for clients: space, around the production ledger of it, and numbers of inodes.

use super::digests::made;
use super::{Operation, Server, Work};
use crate::context::Context;
use crate::deed::{CELL_BYTES, Deed};
use crate::event::ConnId;
use crate::invariants::room;
use crate::message::{Call, DigestCall, Leases, OpId, Tag, ToClient};
use crate::register::Value;
use crate::sabotage::Sabotage;
use soda_lease::numbers::{Numbers, NumbersRecord, Taken};
use soda_lease::space::{Purpose, Space, Taking};
use soda_lease::table::{OpKey, Outcome};
use soda_protocol::space_through;
use soda_types::{Errno, FsResult, Ino, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// In one run of the server.
#[derive(Debug)]
pub(super) struct SetAside {
    space: Arc<Space>,
    /// Numbers of inodes.
    numbers: BTreeMap<SessionId, Numbers>,
    last_number: u64,
}

impl SetAside {
    /// The session has ended.
    pub(super) fn forget(&mut self, session: SessionId, sabotage: Sabotage) {
        self.numbers.remove(&session);
        if sabotage != Sabotage::KeepSpaceOfTheEnded {
            self.space.forget(session);
        }
    }
}

impl Server {
    fn free(&self, context: &Context) -> u64 {
        let capacity = context.config.room.map_or(u64::MAX, |room| room.capacity);
        capacity.saturating_sub(self.disk.used())
    }

    /// As it was when the server ended. Each run of it has numbers of its own: a power cut may have taken what the one before has
    /// used.
    pub(super) fn restore_set_aside(&self, context: &Context) -> SetAside {
        let (limits, sabotage) = (context.config.room, context.config.sabotage);
        let space = Space::new(limits.map(|room| room.full).unwrap_or_default());
        if sabotage != Sabotage::ForgetReservations {
            self.disk.reservations().iter().for_each(|(session, bytes)| space.restore(*session, *bytes));
        }
        let forgets = sabotage == Sabotage::ForgetNumbers;
        let numbers = if forgets { BTreeMap::new() } else { self.disk.numbers() };
        let last_number = if sabotage == Sabotage::NumbersStartAnew { 0 } else { self.disk.starts << 32 };
        SetAside { space: Arc::new(space), numbers, last_number }
    }

    pub(super) fn reserve(
        &mut self,
        context: &mut Context,
        (conn, tag): (ConnId, Tag),
        (inodes, bytes): (u32, u64),
    ) {
        let (now, free) = (self.clock.read(context.now), self.free(context));
        let Some(running) = &mut self.running else { return };
        let session = running.session_of.get(&conn).copied();
        let Some(session) = session.filter(|session| running.traffic(context, now, *session).is_ok()) else {
            return context.send_to_client(conn, ToClient::SessionEnded { tag });
        };
        // What an older connection brings nobody reads any more.
        if running.control.get(&session) != Some(&conn) {
            return;
        }
        let careless = context.config.sabotage == Sabotage::ReserveWhatIsTaken;
        let free = if careless { u64::MAX / 2 } else { free };
        let Ok(bytes) = running.set_aside.space.reserve(session, bytes, || Ok(free)) else { return };
        let differs = bytes != running.set_aside.space.stored(session);
        if differs {
            self.disk.set_reservation(session, bytes);
            running.set_aside.space.note_stored(session, bytes);
        }
        let first = running.set_aside.last_number + 1;
        if inodes > 0 {
            running.set_aside.last_number += u64::from(inodes);
            let block = NumbersRecord::new(inodes);
            self.disk.set_numbers(session, Ino(first), block.clone());
            let numbers = running.set_aside.numbers.entry(session).or_default();
            if let Some(forgotten) = numbers.add(Ino(first), block) {
                self.disk.forget_numbers(session, forgotten);
            }
        }
        if (differs || inodes > 0) && context.config.sabotage != Sabotage::ReserveUnsynced {
            self.disk.sync();
        }
        context.note(|| format!("server > {session:?} has {bytes} of {free} bytes set aside"));
        let numbers = first..first + u64::from(inodes);
        context.send_to_client(conn, ToClient::Reserved { tag, numbers, bytes });
    }

    /// What is used of numbers once the digest is applied: each is the session's, and was not used before.
    pub(super) fn take_numbers(
        &self,
        context: &mut Context,
        session: SessionId,
        digest: &DigestCall,
    ) -> FsResult<Taken> {
        let mut taken = Taken::default();
        let numbers = self.running.as_ref().and_then(|running| running.set_aside.numbers.get(&session));
        for number in &digest.numbers {
            let found = match numbers {
                Some(numbers) => numbers.take(&mut taken, *number),
                None => Numbers::default().take(&mut taken, *number),
            };
            if let Err(error) = found {
                context.invariants.report(Some(room::refused_number(session, digest.id, &error)));
                return Err(error);
            }
        }
        Ok(taken)
    }

    /// The digest is applied.
    pub(super) fn numbers_taken(
        &mut self,
        context: &mut Context,
        session: SessionId,
        digest: &DigestCall,
        taken: Taken,
    ) {
        for (first, block) in taken.blocks() {
            self.disk.set_numbers(session, first, block.clone());
        }
        if let Some(numbers) =
            self.running.as_mut().and_then(|running| running.set_aside.numbers.get_mut(&session))
        {
            numbers.committed(taken);
        }
        for (number, object) in digest.numbers.iter().zip(made(digest)) {
            context.numbered_here += 1;
            context.invariants.numbered(*number, object);
        }
    }

    /// Lets an operation of the session take space: what is set aside for who is away goes before it is refused.
    ///
    /// # Errors
    /// `ENOSPC`
    pub(super) fn take_space(
        &mut self,
        context: &mut Context,
        session: SessionId,
        wanted: (u64, Purpose),
    ) -> FsResult<Taking> {
        let taken = self.try_to_take(context, session, wanted);
        if taken.is_ok() || !self.contest_reservations(context) {
            return taken;
        }
        self.try_to_take(context, session, wanted)
    }

    fn try_to_take(
        &self,
        context: &Context,
        session: SessionId,
        (bytes, purpose): (u64, Purpose),
    ) -> FsResult<Taking> {
        let running = self.running.as_ref().ok_or(Errno::Io)?;
        let careless = context.config.sabotage == Sabotage::TakeWhatIsReserved;
        let free = if careless { u64::MAX } else { self.free(context) };
        running.set_aside.space.take(session, (bytes, purpose), || Ok(free))
    }

    /// Ends the sessions for which space is set aside and whose lease has run out.
    fn contest_reservations(&mut self, context: &mut Context) -> bool {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return false };
        if context.config.sabotage == Sabotage::KeepSpaceOfTheAway || running.table.grace_left(now).is_some()
        {
            return false;
        }
        let mut away = running.set_aside.space.reservations();
        away.retain(|(session, _)| running.table.is_expired(now, *session));
        for (session, _) in &away {
            let _ = running.table.contest_space(now, *session);
        }
        self.pump(context);
        !away.is_empty()
    }

    /// There was no room: nor is any set aside for who is away.
    pub(super) fn note_refused_for_space(&self, context: &mut Context) {
        let now = self.clock.read(context.now);
        let Some(running) = self.running.as_ref().filter(|running| running.table.grace_left(now).is_none())
        else {
            return;
        };
        let mut reservations = running.set_aside.space.reservations().into_iter();
        let away = reservations.find(|(session, _)| running.table.is_expired(now, *session));
        context.invariants.report(away.map(room::set_aside_for_nobody));
    }

    /// What is taken and what is set aside have room side by side, and all of the latter is somebody's.
    pub(super) fn check_room(&self, context: &mut Context) {
        let (Some(limits), Some(running)) = (context.config.room, &self.running) else { return };
        let found = room::check(limits.capacity, self.disk.used(), running.set_aside.space.total());
        context.invariants.report(found);
        let mut reservations = running.set_aside.space.reservations().into_iter();
        let left = reservations.find(|(session, _)| !running.table.has_session(*session));
        context.invariants.report(left.map(room::set_aside_for_nobody));
    }

    /// A digest can take what it needs: its session has that set aside.
    pub(super) fn take_space_for_digest(
        &mut self,
        context: &mut Context,
        session: SessionId,
        digest: &DigestCall,
    ) -> Option<Taking> {
        context.config.room?;
        let wanted = (space_of(digest), Purpose::Digest);
        let taken = self.take_space(context, session, wanted);
        if taken.is_err() {
            context.invariants.report(Some(room::refused(session, digest.id, wanted.0)));
        }
        taken.ok()
    }

    /// Lets an operation that goes through take space.
    ///
    /// # Errors
    /// `ENOSPC`
    pub(super) fn take_space_for(
        &mut self,
        context: &mut Context,
        session: SessionId,
        call: &Call,
    ) -> FsResult<Option<Taking>> {
        let wanted = space_for(call).filter(|_| context.config.room.is_some());
        wanted.map(|wanted| self.take_space(context, session, wanted)).transpose()
    }

    pub(super) fn has_room_for(&self, context: &Context, key: OpKey) -> bool {
        let operation = self.running.as_ref().and_then(|running| running.ops.get(&key));
        self.has_room(context, operation.map_or(0, Operation::space))
    }

    /// An operation that goes through is done. `used`: bytes that were taken before.
    pub(super) fn note_through(&mut self, context: &mut Context, key: OpKey, used: u64) {
        let Some(running) = self.running.as_mut().filter(|_| context.config.room.is_some()) else { return };
        let Some(operation) = running.ops.get(&key).filter(|operation| operation.outcome == Outcome::Applied)
        else {
            return;
        };
        let Work::Call(Call::Do(deed)) = &operation.work else { return };
        self.disk.note_taken(operation.space(), used);
        let (session, sabotage) = (operation.session, context.config.sabotage);
        operation.taking.iter().for_each(|taking| self.disk.take(session, taking, sabotage));
        if let Some(made) = deed.makes() {
            running.set_aside.last_number += 1;
            context.invariants.numbered(Ino(running.set_aside.last_number), made);
        }
    }

    /// The operation is not done, and is not when it comes again.
    pub(super) fn no_space(
        &mut self,
        context: &mut Context,
        (conn, tag): (ConnId, Tag),
        session: SessionId,
        op: Option<OpId>,
    ) {
        self.note_refused_for_space(context);
        if let Some(op) = op {
            self.disk.set_reply(session, op.slot, (op.sequence, Vec::new()));
        }
        context.send_to_client(conn, ToClient::NoSpace { tag });
    }

    /// The store writes it.
    pub(super) fn has_room(&self, context: &Context, bytes: u64) -> bool {
        context.config.room.is_none() || self.free(context) >= bytes
    }
}

impl Operation {
    /// Bytes that it may take.
    fn space(&self) -> u64 {
        match &self.work {
            Work::Call(call) => space_for(call).map_or(0, |(bytes, _)| bytes),
            Work::Digest(digest) => space_of(digest),
        }
    }
}

/// Values that are none: there was no room.
pub(super) fn reply(tag: Tag, values: &[Value], leases: Leases) -> ToClient {
    match values {
        [] => ToClient::NoSpace { tag },
        values => ToClient::Reply { tag, values: values.to_vec(), leases },
    }
}

/// Bytes that what goes through may take, and for what, as the server has it; `None`: it takes none.
fn space_for(call: &Call) -> Option<(u64, Purpose)> {
    match call {
        Call::Do(Deed::Write(_)) => Some((CELL_BYTES + space_through(0), Purpose::Data)),
        Call::Do(Deed::Create { .. } | Deed::Link { .. }) => Some((space_through(0), Purpose::Little)),
        _ => None,
    }
}

pub(super) fn space_of(digest: &DigestCall) -> u64 {
    digest.records.iter().map(|record| record.change.space()).sum()
}
