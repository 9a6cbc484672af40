//! File locks of a client's processes: by themselves where the server lets the client decide, or where it has made the file and
//! not told of it. Whoever has to wait does so at the server.

use super::delayed::Delayed;
use super::{Asked, Client, Request, Work};
use crate::config::FileLocks as Used;
use crate::context::Context;
use crate::event::Event;
use crate::layout::is_directory;
use crate::message::{LockAnswer, LockCall, Tag, Wait};
use crate::network::Kind;
use crate::register::{Object, OpUid, fid_of};
use crate::sabotage::Sabotage;
use soda_lease::locks::{Delegate, HeldLock, OwnLocks, Return, Truth};
use soda_oplog::DigestId;
use soda_types::{Epoch, Lock, LockFamily, LockMode, LockOwner, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct FileLocks {
    pub(super) delegate: Delegate,
    /// What the processes have, as the server is told of it.
    held: BTreeMap<Owner, OwnLocks>,
    /// What they count on: taken, and not about to be released or changed.
    counted_on: BTreeMap<Owner, OwnLocks>,
    /// What a process wants that it has not yet.
    wishes: BTreeMap<usize, Wish>,
    /// Files of which any was ever taken. Only for the invariants.
    locked: BTreeSet<Object>,
}

/// A process, a file, and which of the two kinds of locks, which do not see each other.
type Owner = (Object, usize, LockFamily);

#[derive(Clone, Copy, Debug)]
struct Wish {
    object: Object,
    lock: Lock,
    wait: Wait,
    asked: Asking,
}

/// Whether the server is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asking {
    /// It may have to be told of the file first.
    NotYet,
    Yes,
}

/// Before what was turned away goes again.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a file that are locked.
const BYTES: u64 = 4;

impl FileLocks {
    fn is_busy(&self, object: Object, process: usize, lock: &Lock) -> bool {
        let others = self.held.iter().filter(|((of, owner, _), _)| *of == object && *owner != process);
        others.flat_map(|(_, held)| held.overlapping(*lock)).any(|held| excludes(held, lock))
    }

    fn release(&mut self, owner: Owner, range: Lock) {
        for all in [&mut self.held, &mut self.counted_on] {
            if let Some(own) = all.get_mut(&owner) {
                own.cut(range);
            }
            all.retain(|_, own| !own.is_empty());
        }
    }

    fn first_of(&self, process: usize) -> Option<(Object, Lock)> {
        let own = self.held.iter().find(|((_, owner, _), _)| *owner == process);
        own.and_then(|((object, ..), held)| Some((*object, *held.iter().next()?)))
    }

    fn all_of(&self, object: Object) -> Vec<Lock> {
        let of_file = self.held.iter().filter(|((of, ..), _)| *of == object);
        of_file.flat_map(|(_, held)| held.iter()).copied().collect()
    }

    /// The server has none of the digests from this one on.
    pub(super) fn lose_digests(&mut self, from: DigestId) {
        self.delegate.handle_lost(Epoch(from.0));
    }

    /// Files that processes wait for which have not asked the server.
    pub(super) fn wished_for(&self) -> impl Iterator<Item = Object> {
        self.wishes.values().filter(|wish| wish.asked == Asking::NotYet).map(|wish| wish.object)
    }

    pub(super) fn waits(&self, process: usize) -> bool {
        self.wishes.contains_key(&process)
    }
}

/// Whether two locks of different owners cannot be held at once.
pub fn excludes(one: &Lock, other: &Lock) -> bool {
    let shared = one.mode == LockMode::Shared && other.mode == LockMode::Shared;
    !shared && one.family == other.family && one.start <= other.end && other.start <= one.end
}

impl Client {
    /// Now and then a process does something with locks. Who has one gives it up soon.
    pub(super) fn act_on_locks(&mut self, context: &mut Context, work: Work, process: usize) -> bool {
        if context.config.locks == Used::Unused {
            return false;
        }
        if let Some((object, lock)) = self.locks.first_of(process)
            && (work == Work::Ends || context.rng.chance(1, 3))
        {
            self.begin_locking(context, process);
            self.unlock(context, process, object, lock);
            return true;
        }
        if !context.rng.chance(1, 8) {
            return false;
        }
        let files: Vec<Object> = (0..Object::from(context.config.objects))
            .chain(self.delayed.iter().flat_map(Delayed::known).copied())
            .filter(|object| !is_directory(*object))
            .collect();
        let object = context.rng.pick(&files);
        let start = context.rng.below(BYTES);
        let end = start + context.rng.below(BYTES - start);
        let mode = context.rng.pick(&[LockMode::Shared, LockMode::Exclusive]);
        let owner = LockOwner(process as u64);
        let record = Lock { family: LockFamily::Record, owner, pid: 1, start, end, mode };
        let lock = match (start, end + 1) {
            (0, BYTES) => Lock { family: LockFamily::Flock, end: u64::MAX, ..record },
            _ => record,
        };
        let wait = context.rng.pick(&[Wait::No, Wait::Yes]);
        let uid = self.begin_locking(context, process);
        context.note(|| format!("client{}  {uid:?} wants {lock:?} of {object}, {wait:?}", self.number));
        let owner = (object, process, lock.family);
        match lock.family {
            // flock(2): it is gone in its old mode while the new one is waited for, or if that is refused.
            LockFamily::Flock => self.locks.release(owner, lock),
            LockFamily::Record => {
                self.locks.counted_on.get_mut(&owner).into_iter().for_each(|own| drop(own.cut(lock)));
            }
        }
        // Nobody finds a deadlock between the two kinds, as in Linux: who waits for a flock has nothing that others wait for.
        let may_wait = lock.family == LockFamily::Record || !self.has_locks(process);
        let wait = if may_wait { wait } else { Wait::No };
        self.locks.wishes.insert(process, Wish { object, lock, wait, asked: Asking::NotYet });
        self.pursue(context, process);
        true
    }

    /// Whether the process has any.
    pub(super) fn has_locks(&self, process: usize) -> bool {
        self.locks.first_of(process).is_some()
    }

    fn begin_locking(&mut self, context: &mut Context, process: usize) -> OpUid {
        let uid = context.next_uid();
        self.processes[process].begin(uid, context.now);
        uid
    }

    /// Goes on with what waits until the server knows of a file.
    pub(super) fn pursue_all(&mut self, context: &mut Context) {
        let waiting = self.locks.wishes.iter().filter(|(_, wish)| wish.asked == Asking::NotYet);
        let waiting: Vec<usize> = waiting.map(|(process, _)| *process).collect();
        waiting.into_iter().for_each(|process| self.pursue(context, process));
    }

    /// Takes the lock here, or asks the server for it.
    fn pursue(&mut self, context: &mut Context, process: usize) {
        let Some(Wish { object, lock, wait, .. }) = self.locks.wishes.get(&process).copied() else { return };
        let (now, fid) = (self.clock.read(context.now), fid_of(object));
        let lasts = self.holder.session_valid_until() > now;
        let delayed = self.delayed.as_ref();
        if lasts && delayed.is_some_and(|delayed| delayed.is_known_here_alone(object)) {
            self.locks.delegate.begin_made(now, fid);
        }
        if self.locks.delegate.decides(fid) {
            let is_busy = self.locks.is_busy(object, process, &lock);
            if lasts && !is_busy {
                self.locks.delegate.used(now, fid);
                context.locks_here += 1;
                return self.lock_taken(context, process, object, lock);
            }
            if lasts && wait == Wait::No {
                return self.locking_over(context, process);
            }
            let given_back = self.locks.delegate.give_up(fid);
            self.return_locks(context, object, given_back);
        }
        let is_ahead = self.delayed.as_ref().is_some_and(|delayed| delayed.is_ahead(fid));
        if is_ahead || self.locks.delegate.decides(fid) {
            return;
        }
        self.locks.delegate.asked(fid);
        if let Some(wish) = self.locks.wishes.get_mut(&process) {
            wish.asked = Asking::Yes;
        }
        self.ask_for_lock(context, object, LockCall::Set(lock, wait));
    }

    fn unlock(&mut self, context: &mut Context, process: usize, object: Object, range: Lock) {
        let (now, fid) = (self.clock.read(context.now), fid_of(object));
        context.note(|| format!("client{}  process {process} gives up {range:?} of {object}", self.number));
        self.locks.release((object, process, range.family), range);
        // However old the session is: nobody else gets what is released before they ask for it.
        if self.locks.delegate.decides(fid) {
            self.locks.delegate.used(now, fid);
            return self.locking_over(context, process);
        }
        self.locks.delegate.asked(fid);
        self.ask_for_lock(context, object, LockCall::Release(range));
    }

    fn ask_for_lock(&mut self, context: &mut Context, object: Object, call: LockCall) {
        let tag = self.ask(context, Kind::Control, Asked::Lock(object, call));
        // It may wait for long, and brings no leases.
        if let Some(request) = self.requests.get(&tag) {
            self.holder.fail_request(request.ticket);
        }
        self.send_op(context, tag);
    }

    pub(super) fn return_locks(&mut self, context: &mut Context, object: Object, given_back: Option<Return>) {
        let Some(Return { epoch, truth }) = given_back else { return };
        let told = truth == Truth::Here && context.config.sabotage != Sabotage::ReturnWithoutLocks;
        let locks = told.then(|| self.locks.all_of(object));
        self.ask_for_lock(context, object, LockCall::Return(epoch, locks));
    }

    pub(super) fn handle_lock_recall(&mut self, context: &mut Context, object: Object, epoch: Epoch) {
        let given_back = self.locks.delegate.recalled(fid_of(object), epoch);
        self.return_locks(context, object, given_back);
    }

    pub(super) fn handle_lock_answer(&mut self, context: &mut Context, tag: Tag, answer: LockAnswer) {
        if answer == LockAnswer::Grace {
            let (client, life) = (self.number, self.life);
            return context.after(PAUSE, Event::LockAgain { client, life, tag });
        }
        let Some(Request { what: Asked::Lock(object, call), .. }) = self.requests.remove(&tag) else {
            return;
        };
        let (now, fid) = (self.clock.read(context.now), fid_of(object));
        let given = if let LockAnswer::Taken(given) = answer { given } else { None };
        match call {
            LockCall::Set(lock, _) => {
                self.locks.delegate.answered(now, fid, given);
                let process = lock.owner.0 as usize;
                match answer {
                    LockAnswer::Taken(_) => self.lock_taken(context, process, object, lock),
                    _ => self.locking_over(context, process),
                }
            }
            LockCall::Release(range) => {
                self.locks.delegate.answered(now, fid, None);
                self.locking_over(context, range.owner.0 as usize);
            }
            LockCall::Return(epoch, _) => self.locks.delegate.returned(fid, epoch),
        }
    }

    fn lock_taken(&mut self, context: &mut Context, process: usize, object: Object, lock: Lock) {
        context.note(|| format!("client{}  process {process} has {lock:?} of {object}", self.number));
        context.locks += 1;
        self.locks.locked.insert(object);
        for all in [&mut self.locks.held, &mut self.locks.counted_on] {
            all.entry((object, process, lock.family)).or_default().put(lock);
        }
        self.locking_over(context, process);
    }

    fn locking_over(&mut self, context: &mut Context, process: usize) {
        let waited = self.locks.wishes.remove(&process).is_some_and(|wish| wish.wait == Wait::Yes);
        if waited {
            // Until others give up what they have: no bound is known.
            self.processes[process].forget(context);
            return self.think(context, process);
        }
        self.done(context, process);
    }

    // ------------------------------------------------------------------------------------- what happens to the server

    /// A digest that made these is applied, or removed them again. Under its number the server knows that this client decides, if
    /// it said so.
    pub(super) fn locks_of_made_told(
        &mut self,
        context: &mut Context,
        made: &[Object],
        gone: &BTreeSet<Object>,
        digest: DigestId,
    ) {
        for object in made {
            let fid = fid_of(*object);
            if !self.locks.delegate.is_made(fid) {
                continue;
            }
            if gone.contains(object) {
                self.locks.delegate.forget_made(fid);
            } else {
                let given_back = self.locks.delegate.told(fid, Epoch(digest.0));
                self.return_locks(context, *object, given_back);
            }
        }
    }

    /// The server has started anew, and decides: it hears of all locks now.
    pub(super) fn claim_locks(&mut self) -> Vec<(Object, Lock)> {
        self.locks.delegate.leave_all();
        let held = self.locks.held.iter();
        held.flat_map(|((object, ..), held)| held.iter().map(|lock| (*object, *lock))).collect()
    }

    /// Others have what excludes these.
    pub(super) fn lose_locks(&mut self, lost: &[(Object, Lock)]) {
        for (object, lock) in lost {
            self.locks.release((*object, lock.owner.0 as usize, lock.family), *lock);
        }
    }

    /// The session is over, and all locks with it. Returns the processes that wanted one and had not asked for it.
    pub(super) fn lose_all_locks(&mut self) -> Vec<usize> {
        self.locks.delegate.forget_all();
        (self.locks.held, self.locks.counted_on) = Default::default();
        let wishes = std::mem::take(&mut self.locks.wishes).into_iter();
        wishes.filter(|(_, wish)| wish.asked == Asking::NotYet).map(|(process, _)| process).collect()
    }

    // ----------------------------------------------------------------------------------------------- for the invariants

    /// The locks that processes count on, as long as the session lasts by this client's clock.
    pub fn locks_counted_on(&self, context: &Context) -> impl Iterator<Item = (Object, usize, &Lock)> {
        let lasts = self.is_on() && self.holder.session_valid_until() > self.clock.read(context.now);
        let all = self.locks.counted_on.iter().filter(move |_| lasts);
        all.flat_map(|((object, owner, _), held)| held.iter().map(|lock| (*object, *owner, lock)))
    }

    /// In the end: who waits, or what the server (`known`) has of locks that no process has.
    pub fn stuck_with_locks(&self, known: impl Fn(SessionId, Object) -> Vec<HeldLock>) -> Option<String> {
        if let Some((process, wish)) = self.locks.wishes.first_key_value() {
            return Some(format!("process {process} of client{} waits for {wish:?}", self.number));
        }
        let session = self.holder.session()?;
        let is_told = |object: &Object| {
            !self.locks.delegate.decides(fid_of(*object)) && self.locks.all_of(*object).is_empty()
        };
        let locked = self.locks.locked.iter().copied().filter(is_told);
        let mut all = locked.map(|object| (object, known(session, object)));
        let (object, left) = all.find(|(_, known)| !known.is_empty())?;
        Some(format!("client{} has no lock of {object}, the server believes in {left:?}", self.number))
    }

    /// Whether a process still wants a lock.
    pub fn wants_locks(&self) -> bool {
        !self.locks.wishes.is_empty()
    }
}
