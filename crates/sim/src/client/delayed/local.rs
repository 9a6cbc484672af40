//! What may be done without the server: everything that write leases cover, and whatever is done to inodes that the server has
//! not heard of.

use super::Written;
use crate::client::{Asked, Client};
use crate::config::Sabotage;
use crate::context::Context;
use crate::deed::{Deed, Obstacle, is_directory};
use crate::message::{Call, Content, Object, OpUid, Register, Value, fid_of};
use soda_types::{Fid, Mode, Monotonic, Timestamp};

/// What a program does next.
#[derive(Clone, Debug)]
pub(in crate::client) enum Plan {
    Call(Call),
    Sync(Object),
}

impl Client {
    pub(in crate::client) fn choose_delayed(&mut self, context: &mut Context) -> Plan {
        let Some(delayed) = &mut self.delayed else { return Plan::Sync(0) };
        let objects: Vec<Object> =
            (0..Object::from(context.config.objects)).chain(delayed.known.iter().copied()).collect();
        let pick = |context: &mut Context| Register {
            object: context.rng.pick(&objects),
            cell: context.rng.below(u64::from(context.config.cells)) as u8,
        };
        let at = pick(context);
        if context.rng.chance(1, context.config.fsync_every) {
            return Plan::Sync(at.object);
        }
        if context.rng.below(100) >= context.config.changes_percent {
            // Not at directories: what they name the server may never have heard of.
            let looks = !is_directory(at.object) && context.rng.chance(1, 2);
            return Plan::Call(if looks { Call::Look(at) } else { Call::Read(at) });
        }
        if !is_directory(at.object) {
            return Plan::Call(Call::Do(Deed::Write(at)));
        }
        let deed = match delayed.view.get(&at) {
            Some(Content::Blank) => {
                delayed.last_object += 2;
                let is_file = context.rng.chance(2, 3);
                Some(Deed::Create { at, object: delayed.last_object + Object::from(is_file) })
            }
            Some(Content::Names(object)) => {
                let to = pick(context);
                let replaced = match delayed.view.get(&to) {
                    Some(Content::Blank) => Some(None),
                    Some(Content::Names(other)) if !is_directory(*other) && other != object => {
                        Some(Some(*other))
                    }
                    _ => None,
                };
                match replaced {
                    Some(replaced) if !is_directory(*object) && is_directory(to.object) && to != at => {
                        Some(Deed::Rename { from: at, to, moved: *object, replaced })
                    }
                    _ => Some(Deed::Remove { at, object: *object }),
                }
            }
            _ => None,
        };
        Plan::Call(deed.map_or(Call::Read(at), Call::Do))
    }

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
        let effects = match deed.effects(uid, context.config.cells, |register| self.known(register)) {
            Ok(effects) => effects,
            Err(Obstacle::Unknown) => return None,
            Err(Obstacle::Fails) => {
                context.invariants.failed(uid, &before);
                return Some(before);
            }
        };
        // What a directory has to be like to be removed: empty.
        let ended = deed.ends().filter(|object| is_directory(*object));
        let cells = ended.into_iter().flat_map(|object| all_of(context, object));
        before.extend(cells.filter_map(|register| Some((register, self.known(register)?))));
        context.invariants.done_locally(uid, session, &changes, &before, &effects);
        let delayed = self.delayed.as_mut()?;
        let lsn = delayed.kept.log.append(now, Timestamp::new(uid.0 as i64, 0), deed.change(uid));
        let makes = deed.makes();
        let written = Written {
            uid,
            before,
            effects: effects.clone(),
            changes,
            makes,
            digest: None,
            handed_over: false,
        };
        delayed.kept.written.insert(lsn, written);
        delayed.made.extend(makes);
        if let Some(object) = makes {
            delayed.learn(object);
        }
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

fn all_of(context: &Context, object: Object) -> impl Iterator<Item = Register> + use<> {
    (0..context.config.cells).map(move |cell| Register { object, cell })
}

/// The inodes that an operation reads or changes.
pub(super) fn touched(call: &Call) -> Vec<Object> {
    match call {
        Call::Read(register) | Call::Look(register) => vec![register.object],
        Call::Change(registers) => registers.iter().map(|register| register.object).collect(),
        Call::Do(deed) => deed.changes(),
    }
}
