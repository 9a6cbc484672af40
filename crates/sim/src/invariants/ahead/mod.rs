//! One copy, with writers that are ahead of the server. Each register has a line of values: the order in which operations
//! were completed, wherever. A local operation is completed when it is made, one through the server when it is answered.
//!
//! * *Fresh*: a read returns a value of the line, not before the last that was completed when it was called; a change is made
//!   on top of the line's end.
//! * *Prefix*: the server walks along the line. What it applies comes right after what it has, so it holds a prefix of
//!   each client's history, but for what went ahead, which is closed under dependencies.
//! * *Synced*: what fsync has returned for is on the disk after every power cut.
//! * *Durable*: values are taken off the end of a line only when the session ended before they were sent, or because
//!   of a power cut; everything else reaches the server in the end.
//!
//! A power cut takes what was not synced. What is still in the log of its client comes again. The rest is lost, and with it
//! what was made on top: until that is clear, it is in *limbo*: it may be seen, need not be, and may be sent or given up.

mod here;
mod line;

use super::{Property, Violation};
use crate::deed::is_directory;
use crate::register::{Content, Object, OpUid, Register, Value};
use here::Here;
use line::Line;
use soda_types::SessionId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Ahead {
    lines: BTreeMap<Register, Line>,
    ops: BTreeMap<OpUid, Op>,
    /// Operations that the server does not have.
    local: BTreeMap<SessionId, BTreeSet<OpUid>>,
    /// Where each register's line was when an operation that is not over was called.
    floors: BTreeMap<OpUid, Vec<(Register, usize)>>,
    /// The fsyncs among them that the server has not answered, and whose they are.
    syncs: BTreeMap<OpUid, Option<SessionId>>,
    /// Of which something was lost in a power cut, and nothing has come to the server since.
    limbo: BTreeSet<Object>,
    here: Here,
    /// Their logs are gone, so what the server does not have of them it will not get.
    abandoned: BTreeSet<SessionId>,
}

#[derive(Debug)]
struct Op {
    session: SessionId,
    effects: Vec<(Register, Value)>,
    /// All that it touches.
    objects: BTreeSet<Object>,
    state: State,
    /// Its program has been told, or never will be.
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Local,
    Applied,
    Lost,
}

/// Whether a directory gets another parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    Stays,
    Changes,
}

/// Stands for all directories that a client moves by itself: whether one may be moved depends on where it has moved the others,
/// so who loses one of these changes loses those after it.
fn tree_of(session: SessionId) -> Object {
    Object::MAX - session.0 as Object
}

type Found = Option<Violation>;

fn violation(property: Property, what: String) -> Found {
    Some(Violation { property, what })
}

impl Ahead {
    pub(super) fn invoked(&mut self, uid: OpUid, registers: &[Register]) {
        let floor = |register: &Register| (*register, self.lines.get(register).map_or(0, Line::required));
        self.floors.insert(uid, registers.iter().map(floor).collect());
    }

    /// fsync: of everything completed but what only another client has.
    pub(super) fn sync_invoked(&mut self, uid: OpUid, session: Option<SessionId>, registers: &[Register]) {
        let required = |register: &Register| self.lines.get(register).map_or(0, Line::required);
        let floor =
            |register: &Register| (*register, self.not_elsewhere(session, *register, required(register)));
        let floors = registers.iter().map(floor).collect();
        self.floors.insert(uid, floors);
        self.syncs.insert(uid, session);
    }

    /// The last value up to `most` that is not only in another client's log.
    fn not_elsewhere(&self, session: Option<SessionId>, register: Register, most: usize) -> usize {
        let Some(line) = self.lines.get(&register) else { return 0 };
        let is_elsewhere = |at: &usize| {
            let op = line.get(*at).and_then(|value| self.ops.get(&value.stamp.by));
            op.is_some_and(|op| op.state == State::Local && Some(op.session) != session)
        };
        (0..=most).rev().find(|at| !is_elsewhere(at)).unwrap_or_default()
    }

    /// From here on the server answers for everything, whatever a power cut takes.
    pub(super) fn sync_answered(&mut self, uid: OpUid) {
        self.syncs.remove(&uid);
    }

    pub(super) fn ended(&mut self, uid: OpUid) {
        self.floors.remove(&uid);
        self.syncs.remove(&uid);
        if let Some(op) = self.ops.get_mut(&uid) {
            op.ended = true;
        }
    }

    /// `by`: the session of who reads.
    pub(super) fn read(
        &mut self,
        uid: OpUid,
        by: Option<SessionId>,
        register: Register,
        value: Value,
    ) -> Found {
        let floors = self.floors.get(&uid).into_iter().flatten();
        let floor = floors.filter(|(of, _)| *of == register).map(|(_, at)| *at).max().unwrap_or_default();
        let line = self.lines.entry(register).or_default();
        let value = if value == Value::MISSING { Value::default() } else { value };
        let Some(at) = line.position(value) else {
            return violation(
                Property::Fresh,
                format!("{uid:?} returned {value:?} of {register:?}, which is not in {line:?}"),
            );
        };
        line.require(at);
        let removed_by =
            line.get(at + 1).filter(|next| next.content == Content::Gone).map(|end| end.stamp.by);
        let line = &*line;
        // Who is told that the inode is there no more learns nothing of its state: by name nobody finds that out as long as the
        // machine that has it removed has not heard that it is done, and holds the lease on the directory.
        let is_being_removed = removed_by
            .and_then(|remover| self.ops.get(&remover))
            .is_some_and(|op| op.state == State::Applied && !op.ended && Some(op.session) == by);
        (at < floor && !is_being_removed).then(|| Violation {
            property: Property::Fresh,
            what: format!(
                "{uid:?} returned {value:?} of {register:?}, older than when it was called: {line:?}"
            ),
        })
    }

    /// A client has made the change and told its program so. `before`: what it found.
    pub(super) fn done_locally(
        &mut self,
        uid: OpUid,
        session: SessionId,
        (changes, shape): (&[Object], Shape),
        before: &[(Register, Value)],
        effects: &[(Register, Value)],
    ) -> Found {
        for (register, value) in before {
            self.drop_lost_end(*register, Some(*value));
            let line = self.lines.entry(*register).or_default();
            if line.last() != *value {
                return violation(
                    Property::Fresh,
                    format!(
                        "{uid:?} is made on top of {value:?} of {register:?}, whose end is elsewhere: {line:?}"
                    ),
                );
            }
        }
        let tree = (shape == Shape::Changes).then(|| tree_of(session));
        let changed = effects.iter().map(|(register, _)| register.object);
        let objects: BTreeSet<Object> = changed.chain(changes.iter().copied()).chain(tree).collect();
        let is_in_limbo = !objects.is_disjoint(&self.limbo);
        if is_in_limbo {
            self.limbo.extend(&objects);
        }
        for (register, value) in effects {
            if !before.iter().any(|(of, _)| of == register) {
                self.drop_lost_end(*register, None);
            }
            let line = self.lines.entry(*register).or_default();
            if is_in_limbo {
                line.begin_limbo();
            }
            line.push(*value);
            line.require(line.end());
        }
        self.local.entry(session).or_default().insert(uid);
        let (effects, state) = (effects.to_vec(), State::Local);
        self.ops.insert(uid, Op { session, effects, objects, state, ended: true });
        None
    }

    /// What a power cut took stays at the end of its line as long as somebody may still have it in a cache. Who is `found` to
    /// have what was before has not.
    fn drop_lost_end(&mut self, register: Register, found: Option<Value>) {
        let line = self.lines.entry(register).or_default();
        while line.end() > line.applied()
            && Some(line.last()) != found
            && self.ops.get(&line.last().stamp.by).is_some_and(|op| op.state == State::Lost)
        {
            line.cut(line.end());
        }
    }

    /// The server has made the change for a client.
    pub(super) fn done_through(
        &mut self,
        uid: OpUid,
        session: SessionId,
        effects: &[(Register, Value)],
    ) -> Found {
        if self.ops.get(&uid).is_some_and(|op| op.state == State::Applied) {
            return violation(Property::Once, format!("{uid:?} was carried out twice"));
        }
        for (register, value) in effects {
            let line = self.lines.entry(*register).or_default();
            if line.required() > line.applied() {
                return violation(
                    Property::Fresh,
                    format!(
                        "{uid:?} is made at the server, which lacks what was completed of {register:?}: {line:?}"
                    ),
                );
            }
            let overtaken = line.cut(line.applied() + 1);
            line.push(*value);
            line.apply(line.end());
            self.lose(&overtaken);
        }
        let objects = effects.iter().map(|(register, _)| register.object).collect();
        self.limbo.retain(|object| !effects.iter().any(|(register, _)| register.object == *object));
        let (effects, state) = (effects.to_vec(), State::Applied);
        self.ops.insert(uid, Op { session, effects, objects, state, ended: false });
        None
    }

    /// Its program has been told that the change was made.
    pub(super) fn completed(&mut self, uid: OpUid) -> Found {
        let Some(op) = self.ops.get(&uid) else {
            return violation(Property::Once, format!("{uid:?} was acknowledged and never carried out"));
        };
        for (register, value) in &op.effects {
            if let Some(line) = self.lines.get_mut(register)
                && let Some(at) = line.position(*value)
            {
                line.require(at);
            }
        }
        None
    }

    /// The server has applied a digest that stands for these operations.
    pub(super) fn digested(
        &mut self,
        session: SessionId,
        uids: &[OpUid],
        stored: impl Fn(Register) -> Value,
    ) -> Found {
        let mut touched = BTreeSet::new();
        for uid in uids {
            self.remove_despite_loss(*uid);
            let Some(op) = self.ops.get_mut(uid) else { continue };
            if op.state != State::Local {
                let state = op.state;
                let property = if state == State::Applied { Property::Once } else { Property::Prefix };
                return violation(property, format!("{uid:?} is in a digest, and {state:?}"));
            }
            for (register, value) in &op.effects {
                touched.insert(*register);
                let line = self.lines.entry(*register).or_default();
                let next = line.applied() + 1;
                if line.get(next) != Some(*value) {
                    return violation(
                        Property::Prefix,
                        format!("{uid:?} is applied to {register:?} out of order: {line:?}"),
                    );
                }
                line.apply(next);
            }
            op.state = State::Applied;
            self.limbo.retain(|object| !op.objects.contains(object));
            if let Some(local) = self.local.get_mut(&session) {
                local.remove(uid);
            }
        }
        touched.into_iter().find_map(|register| self.compare(register, stored(register)))
    }

    /// A file is removed whatever is in it, also without a change of it that was lost in between.
    fn remove_despite_loss(&mut self, uid: OpUid) {
        let Some(op) = self.ops.get(&uid) else { return };
        for (register, _) in op.effects.iter().filter(|(_, value)| value.content == Content::Gone) {
            let Some(line) = self.lines.get_mut(register) else { continue };
            let is_lost =
                |value: Value| self.ops.get(&value.stamp.by).is_some_and(|op| op.state == State::Lost);
            while line.get(line.applied() + 1).is_some_and(is_lost) {
                line.remove_next();
            }
        }
    }

    fn compare(&self, register: Register, stored: Value) -> Found {
        let line = self.lines.get(&register)?;
        (line.get(line.applied()) != Some(stored)).then(|| Violation {
            property: Property::Prefix,
            what: format!(
                "the server has {stored:?} of {register:?}, and should be on its way along {line:?}"
            ),
        })
    }

    /// The server has ended the session: what it has not sent is lost.
    pub(super) fn session_ended(&mut self, session: SessionId) -> Found {
        let lost: Vec<OpUid> = self.local.remove(&session).unwrap_or_default().into_iter().collect();
        self.take_back(&lost)
    }

    /// The client of the session has lost its log. Until the server has ended the session a digest on its way may arrive: what
    /// only this client has may be seen, and need not be.
    pub(super) fn abandoned(&mut self, session: SessionId) {
        self.abandoned.insert(session);
        let local = self.local.get(&session).into_iter().flatten();
        let effects: Vec<(Register, Value)> =
            local.filter_map(|uid| self.ops.get(uid)).flat_map(|op| op.effects.clone()).collect();
        for (register, value) in effects {
            if let Some(line) = self.lines.get_mut(&register) {
                line.release(value);
            }
            self.lower_floors(register);
        }
    }

    /// A client has given up what no lease covers any more.
    pub(super) fn given_up(&mut self, uids: &[OpUid]) -> Found {
        for uid in uids {
            let Some(op) = self.ops.get(uid) else { continue };
            if op.state == State::Lost {
                continue;
            }
            let without_cause = op.effects.iter().find(|(register, value)| {
                self.lines.get(register).is_some_and(|line| {
                    line.position(*value).is_some_and(|at| at > line.applied() && !line.is_in_limbo(at))
                })
            });
            if let Some((register, _)) = without_cause {
                let line = self.lines.get(register);
                return violation(
                    Property::Durable,
                    format!("{uid:?} was given up without a cause: {register:?} is at {line:?}"),
                );
            }
        }
        self.take_back(uids)
    }

    fn take_back(&mut self, uids: &[OpUid]) -> Found {
        for uid in uids {
            let Some(op) = self.ops.get_mut(uid) else { continue };
            op.state = State::Lost;
            for (register, value) in op.effects.clone() {
                let Some(line) = self.lines.get_mut(&register) else { continue };
                if let Some(at) = line.position(value) {
                    if at <= line.durable() && at > 0 {
                        return violation(
                            Property::Synced,
                            format!("{uid:?} is lost after fsync: {register:?} is at {line:?}"),
                        );
                    }
                    // Others may have had it before the power cut that took it.
                    let seen = at > line.applied() && line.is_in_limbo(at);
                    let mut lost = if seen { line.doom(at) } else { line.cut(at) };
                    if seen && !is_directory(register.object) {
                        // A file is removed whatever is in it.
                        lost.retain(|value| value.content != Content::Gone);
                    }
                    self.lower_floors(register);
                    self.lose(&lost);
                }
            }
        }
        None
    }

    /// These values are off their line.
    fn lose(&mut self, values: &[Value]) {
        for value in values {
            if let Some(op) = self.ops.get_mut(&value.stamp.by) {
                op.state = State::Lost;
                if let Some(local) = self.local.get_mut(&op.session) {
                    local.remove(&value.stamp.by);
                }
            }
        }
    }

    fn lower_floors(&mut self, register: Register) {
        let Some(line) = self.lines.get(&register) else { return };
        let required = line.required();
        for (_, floor) in self.floors.values_mut().flatten().filter(|(of, _)| *of == register) {
            *floor = (*floor).min(required);
        }
    }

    /// The server has lost what it had not synced. `logged`: operations that clients have in their logs, under leases.
    pub(super) fn power_cut(
        &mut self,
        stored: impl Fn(Register) -> Value,
        logged: &BTreeSet<OpUid>,
    ) -> Found {
        let mut poison: BTreeSet<Object> = BTreeSet::new();
        for (register, line) in &mut self.lines {
            let value = stored(*register);
            let Some(at) = line.position(value).filter(|at| *at <= line.applied()) else {
                return violation(
                    Property::Durable,
                    format!("after a power cut the server has {value:?} of {register:?}: {line:?}"),
                );
            };
            if at < line.durable() {
                return violation(
                    Property::Synced,
                    format!(
                        "a power cut has taken what fsync had returned for: {register:?} is at {at} of {line:?}"
                    ),
                );
            }
            for value in line.roll_back(at) {
                let uid = value.stamp.by;
                let Some(op) = self.ops.get_mut(&uid) else { continue };
                if logged.contains(&uid) {
                    op.state = State::Local;
                    self.local.entry(op.session).or_default().insert(uid);
                } else {
                    op.state = State::Lost;
                    poison.extend(&op.objects);
                    if self.here.is_on_the_server_alone(uid) {
                        return violation(
                            Property::Synced,
                            format!(
                                "a power cut has taken {uid:?}, for which fsync had returned, and no log has it"
                            ),
                        );
                    }
                }
            }
        }
        self.lower_syncs();
        self.begin_limbo(poison);
        None
    }

    /// An fsync that waits for the server does not answer for what a power cut has made another client's alone again.
    fn lower_syncs(&mut self) {
        for (uid, session) in &self.syncs {
            let Some(mut floors) = self.floors.remove(uid) else { continue };
            for (register, at) in &mut floors {
                *at = self.not_elsewhere(*session, *register, *at);
            }
            self.floors.insert(*uid, floors);
        }
    }

    /// Nobody sends these again. If a power cut has taken them, they are lost.
    pub(super) fn handed_over(&mut self, uids: &[OpUid]) {
        let lost = uids.iter().filter_map(|uid| self.ops.get(uid)).filter(|op| op.state == State::Local);
        let poison: BTreeSet<Object> = lost.flat_map(|op| op.objects.iter().copied()).collect();
        if !poison.is_empty() {
            self.begin_limbo(poison);
        }
    }

    fn begin_limbo(&mut self, mut poison: BTreeSet<Object>) {
        poison.append(&mut self.limbo);
        self.spread(&mut poison);
        let limbo: Vec<Register> =
            self.lines.keys().filter(|register| poison.contains(&register.object)).copied().collect();
        for register in limbo {
            if let Some(line) = self.lines.get_mut(&register) {
                line.begin_limbo();
            }
            self.lower_floors(register);
        }
        self.limbo = poison;
    }

    /// What was made on top of what is lost can be lost, too.
    fn spread(&self, poison: &mut BTreeSet<Object>) {
        loop {
            let before = poison.len();
            for op in self.local.values().flatten().filter_map(|uid| self.ops.get(uid)) {
                if !op.objects.is_disjoint(poison) {
                    poison.extend(&op.objects);
                }
            }
            if poison.len() == before {
                return;
            }
        }
    }

    /// fsync has returned: what it answers for is to survive.
    pub(super) fn synced(&mut self, uid: OpUid) -> Found {
        self.syncs.remove(&uid);
        for (register, at) in self.floors.remove(&uid).into_iter().flatten() {
            let Some(line) = self.lines.get_mut(&register) else { continue };
            if at > line.applied() {
                return violation(
                    Property::Synced,
                    format!("fsync {uid:?} returned, but the server lacks changes of {register:?}: {line:?}"),
                );
            }
            line.survive(at);
        }
        None
    }

    /// The server has what it should have, at a start or a crash.
    pub(super) fn check_stored(&self, stored: impl Fn(Register) -> Value) -> Found {
        self.lines.keys().find_map(|register| self.compare(*register, stored(*register)))
    }

    /// In the end the server has everything that was not lost.
    pub(super) fn check_end(&mut self) -> Found {
        for session in std::mem::take(&mut self.abandoned) {
            if let Some(found) = self.session_ended(session) {
                return Some(found);
            }
        }
        if let Some(found) = self.check_synced_here() {
            return Some(found);
        }
        let (register, line) = self.lines.iter().find(|(_, line)| line.required() > line.applied())?;
        violation(
            Property::Durable,
            format!("the server never got what was completed of {register:?}: {line:?}"),
        )
    }
}
