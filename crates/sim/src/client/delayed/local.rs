//! What may be done without the server: everything that write leases cover, and whatever is done to inodes that the server has
//! not heard of.

use super::Written;
use crate::client::{Asked, Client};
use crate::context::Context;
use crate::deed::{Deed, Obstacle, is_directory};
use crate::invariants::Shape;
use crate::layout::Tree;
use crate::message::Call;
use crate::register::{Content, Object, OpUid, Register, Value, fid_of};
use crate::sabotage::Sabotage;
use soda_types::{Fid, Mode, Monotonic, Timestamp};

impl Client {
    /// What is known here of the register, and may be shown.
    pub(in crate::client) fn read_made(&self, context: &Context, register: Register) -> Option<Value> {
        let delayed = self.delayed.as_ref()?;
        let stands = self.holder.session_valid_until() > self.clock.read(context.now);
        if stands && delayed.made.contains(&register.object) {
            delayed.values.get(&register).copied()
        } else {
            None
        }
    }

    fn known(&self, register: Register) -> Option<Value> {
        let delayed = self.delayed.as_ref()?;
        if delayed.made.contains(&register.object) {
            return delayed.values.get(&register).copied();
        }
        self.caches.daemon(register, self.holder.holding(register.fid()))
    }

    /// Does it here and now, if leases cover it. `None`: they do not, or what it depends on is not known here.
    pub(in crate::client) fn do_locally(
        &mut self,
        context: &mut Context,
        uid: OpUid,
        deed: &Deed,
    ) -> Option<Vec<(Register, Value)>> {
        let now = self.clock.read(context.now);
        let session = self.holder.session()?;
        let changes = deed.changes();
        if !changes.iter().all(|object| self.may_change(context, now, *object)) {
            return None;
        }
        let mut before: Vec<(Register, Value)> = deed
            .registers()
            .into_iter()
            .map(|register| Some((register, self.known(register)?)))
            .collect::<Option<_>>()?;
        let layout = context.config.layout();
        let effects = match deed.effects(uid, layout, |register| self.known(register)) {
            Ok(effects) => effects,
            Err(Obstacle::Unknown) => return None,
            Err(Obstacle::Fails) => {
                context.invariants.failed(uid, Some(session), &before);
                return Some(before);
            }
        };
        let depends_on = deed.depends_on(layout, |register| self.known(register)).ok()?;
        if !depends_on.iter().all(|(register, _)| self.stays(now, register.object)) {
            return None;
        }
        let change = deed.change(uid);
        if !self.has_room_here(context, now, &change) {
            return None;
        }
        let number = match deed.makes().and(context.config.room) {
            Some(_) => Some(self.next_number()?),
            None => None,
        };
        // What is removed has to be: a directory empty, a file without other names.
        let decides = |object: Object| match is_directory(object) {
            true => layout.cells_of(object).collect(),
            false if layout.tree == Tree::Deep => vec![Register::attributes(object)],
            false => Vec::new(),
        };
        let cells = deed.ends().into_iter().flat_map(decides);
        before.extend(cells.filter_map(|register| Some((register, self.known(register)?))));
        let found: Vec<(Register, Value)> = before.iter().chain(&depends_on).copied().collect();
        let touched: Vec<Object> =
            depends_on.iter().map(|(register, _)| register.object).chain(changes.iter().copied()).collect();
        let shape = if deed.reshapes().is_some() { Shape::Changes } else { Shape::Stays };
        context.invariants.done_locally(uid, session, (&touched, shape), &found, &effects);
        let delayed = self.delayed.as_mut()?;
        let lsn = delayed.kept.log.append(now, Timestamp::new(uid.0 as i64, 0), change.clone());
        let makes = deed.makes();
        let written = Written {
            uid,
            before,
            effects: effects.clone(),
            changes,
            makes,
            number,
            digest: None,
            handed_over: false,
        };
        delayed.kept.written.insert(lsn, written);
        delayed.made.extend(makes);
        if let Some(object) = makes {
            delayed.learn(object);
        }
        self.begin_own_moves(context, lsn, &change);
        context.note(|| format!("client{}  {uid:?} {lsn:?} {deed:?} on its own", self.number));
        self.take_effect(context, now, &effects);
        Some(effects)
    }

    fn take_effect(&mut self, context: &Context, now: Monotonic, effects: &[(Register, Value)]) {
        for (register, value) in effects {
            let fid = register.fid();
            let Some(delayed) = &mut self.delayed else { return };
            if value.content == Content::Gone {
                delayed.forget_made(register.object);
                self.forget(fid);
            } else if delayed.made.contains(&register.object) {
                delayed.values.insert(*register, *value);
            } else if let Some(holding) = self.holder.holding(fid) {
                self.caches.see(*register, *value);
                self.caches.fill(*register, *value, holding);
                self.tell_kernel(context, now, *register, *value);
            }
        }
    }

    /// Where the directory lies is told by the lease on it: who moves it asks for that. Moves of directories on one machine its
    /// kernel does one after the other.
    fn stays(&self, now: Monotonic, object: Object) -> bool {
        if self.is_asked(fid_of(object)) {
            return false;
        }
        let is_made = self.delayed.as_ref().is_some_and(|delayed| delayed.made.contains(&object));
        is_made || self.holder.lasts_until_recalled(now, fid_of(object))
    }

    fn may_change(&self, context: &Context, now: Monotonic, object: Object) -> bool {
        let fid = fid_of(object);
        if self.is_asked(fid) {
            return false;
        }
        let stands = self.holder.session_valid_until() > now;
        if self.delayed.as_ref().is_some_and(|delayed| delayed.made.contains(&object)) {
            return stands;
        }
        let held = self.holder.mode(fid) == Some(Mode::Write);
        match context.config.sabotage {
            Sabotage::ChangeWhileRecalled => held && stands,
            Sabotage::ChangeAfterTerm => held && !self.holder.recalling().contains(&fid),
            _ => self.holder.valid_until(now, fid, Mode::Write).is_some(),
        }
    }

    /// An operation on the object goes through the server: it is not known whether it comes before or after.
    fn is_asked(&self, fid: Fid) -> bool {
        self.requests.values().any(|request| match &request.what {
            Asked::Op { call, .. } => touched(call).into_iter().any(|object| fid_of(object) == fid),
            _ => false,
        })
    }

    /// What is cached of it is void.
    pub(in crate::client) fn forget(&mut self, fid: Fid) {
        self.caches.drop_kernel(fid);
        self.caches.drop_daemon(fid);
    }
}

/// The inodes that an operation reads or changes.
pub(super) fn touched(call: &Call) -> Vec<Object> {
    match call {
        Call::Read(register) | Call::Look(register) => vec![register.object],
        Call::Change(registers) => registers.iter().map(|register| register.object).collect(),
        Call::Do(deed) => deed.changes(),
    }
}
