//! Objects and the leases on them: the part of the table that is large, so every byte counts here.

use super::ancestry::{Ancestry, By, PackedPosition, Position, Tally};
use super::holes::{Deep, Holed};
use super::index::{FidIndex, ObjectId};
use super::rates::Rates;
use super::slab::Slab;
use super::{Intent, OpKey};
use soda_types::{Epoch, Fid, Mode, Monotonic, Scope, SessionId};
use std::collections::{BTreeMap, VecDeque};

pub(super) type LeaseId = u32;

/// A lease that a session holds. 48 bytes.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) session: SessionId,
    pub(super) epoch: Epoch,
    /// Since when the session has held it without a gap.
    pub(super) since: Monotonic,
    /// End of its own term; `NEVER` if it lasts as long as the session.
    pub(super) expires: Monotonic,
    pub(super) object: ObjectId,
    /// Neighbours in the session's list: least recently granted first.
    older: Link,
    newer: Link,
    pub(super) scope: Scope,
    pub(super) mode: Mode,
    /// Of a node lease. What has been asked of a deep one is in its [`Deep`].
    pub(super) recall: RecallState,
}

/// Whether somebody asked for the lease back; the details are in the table's list of outstanding recalls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecallState {
    Quiet,
    Recalled,
}

/// A place in a slab, or none (`u32::MAX`): half the size of an `Option<u32>`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Link(u32);

impl Link {
    const NONE: Link = Link(u32::MAX);

    fn id(self) -> Option<LeaseId> {
        (self != Link::NONE).then_some(self.0)
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id().fmt(f)
    }
}

/// The leases of one session, least recently granted first.
#[derive(Debug)]
pub(super) struct LeaseList {
    oldest: Link,
    newest: Link,
    len: usize,
}

impl LeaseList {
    pub(super) fn new() -> LeaseList {
        LeaseList { oldest: Link::NONE, newest: Link::NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<LeaseId> {
        self.oldest.id()
    }
}

/// Something that leases are held on, or that operations use or wait for.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) fid: Fid,
    holders: Holders,
    /// Operations that wait for it, first come first served. Mostly absent, so boxed: 8 bytes instead of 32.
    #[allow(clippy::box_collection)]
    queue: Option<Box<VecDeque<Waiter>>>,
    pub(super) rates: Option<Box<Rates>>,
    pub(super) running: Running,
    /// Recalls sent and not answered.
    pub(super) unanswered: u32,
    pub(super) position: PackedPosition,
}

#[derive(Debug)]
enum Holders {
    None,
    One(LeaseId),
    /// Sorted by session. Boxed: an object is 16 bytes smaller so.
    #[allow(clippy::box_collection)]
    Many(Box<Vec<(SessionId, LeaseId)>>),
}

/// An operation that waits for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiter {
    pub(super) op: OpKey,
    pub(super) intent: Intent,
}

/// Admitted operations that are not finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Running {
    Readers(u32),
    Changer,
}

impl Running {
    pub(super) fn lets_in(self, intent: Intent) -> bool {
        match self {
            Running::Readers(0) => true,
            Running::Readers(_) => intent == Intent::Read,
            Running::Changer => false,
        }
    }

    pub(super) fn enter(&mut self, intent: Intent) {
        *self = match (*self, intent) {
            (Running::Readers(count), Intent::Read) => Running::Readers(count + 1),
            _ => Running::Changer,
        };
    }

    pub(super) fn leave(&mut self) {
        *self = match *self {
            Running::Readers(count) => Running::Readers(count.saturating_sub(1)),
            Running::Changer => Running::Readers(0),
        };
    }
}

impl Object {
    pub(super) fn queue(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter().flat_map(|queue| queue.iter())
    }

    pub(super) fn queue_len(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.len())
    }

    pub(super) fn enqueue(&mut self, waiter: Waiter) {
        self.queue.get_or_insert_default().push_back(waiter);
    }

    pub(super) fn dequeue(&mut self, op: OpKey) {
        if let Some(queue) = &mut self.queue {
            if let Some(at) = queue.iter().position(|waiter| waiter.op == op) {
                queue.remove(at);
            }
            if queue.is_empty() {
                self.queue = None;
            }
        }
    }

    pub(super) fn has_holders(&self) -> bool {
        !matches!(self.holders, Holders::None)
    }

    /// Leased, used or waited for.
    pub(super) fn is_in_use(&self) -> bool {
        self.has_holders()
            || self.queue.is_some()
            || self.running != Running::Readers(0)
            || self.unanswered > 0
    }

    fn is_idle(&self) -> bool {
        !self.is_in_use() && self.rates.is_none()
    }
}

#[derive(Debug)]
pub(super) struct Store {
    objects: Slab<Object>,
    index: FidIndex,
    leases: Slab<Lease>,
    /// What only deep leases have.
    deep: BTreeMap<LeaseId, Deep>,
    holed: Holed,
    /// Absent while deep leases are off.
    ancestry: Option<Ancestry>,
    /// Directories that something was moved out of.
    untidy: Vec<ObjectId>,
}

impl Store {
    pub(super) fn new(ancestry: Option<Ancestry>) -> Store {
        let (objects, leases) = (Slab::new(), Slab::new());
        Store {
            objects,
            index: FidIndex::default(),
            leases,
            deep: BTreeMap::new(),
            holed: Holed::default(),
            ancestry,
            untidy: Vec::new(),
        }
    }

    pub(super) fn ancestry(&self) -> Option<&Ancestry> {
        self.ancestry.as_ref()
    }

    pub(super) fn ancestry_mut(&mut self) -> Option<&mut Ancestry> {
        self.ancestry.as_mut()
    }

    pub(super) fn deep_count(&self) -> usize {
        self.deep.len()
    }

    pub(super) fn deep_ids(&self) -> impl Iterator<Item = LeaseId> {
        self.deep.keys().copied()
    }

    pub(super) fn deep(&self, id: LeaseId) -> Option<&Deep> {
        self.deep.get(&id)
    }

    pub(super) fn deep_mut(&mut self, id: LeaseId) -> Option<&mut Deep> {
        self.deep.get_mut(&id)
    }

    pub(super) fn holed(&self) -> &Holed {
        &self.holed
    }

    pub(super) fn holed_mut(&mut self) -> &mut Holed {
        &mut self.holed
    }

    pub(super) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn object_count(&self) -> usize {
        self.objects.len()
    }

    /// All objects, in no order that means anything.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter()
    }

    pub(super) fn find(&self, fid: Fid) -> Option<ObjectId> {
        self.index.get(fid)
    }

    pub(super) fn find_or_insert(&mut self, fid: Fid) -> ObjectId {
        let objects = &mut self.objects;
        self.index.get_or_insert_with(fid, || {
            objects.insert(Object {
                fid,
                holders: Holders::None,
                queue: None,
                rates: None,
                running: Running::Readers(0),
                unanswered: 0,
                position: Position::Unknown.into(),
            })
        })
    }

    /// The caller holds an id that it got from this store and that is in use by a lease, an operation or itself.
    pub(super) fn object(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(id)
    }

    pub(super) fn object_mut(&mut self, id: ObjectId) -> Option<&mut Object> {
        self.objects.get_mut(id)
    }

    pub(super) fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.leases.get(id)
    }

    pub(super) fn lease_mut(&mut self, id: LeaseId) -> Option<&mut Lease> {
        self.leases.get_mut(id)
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    /// Forgets an object that nothing refers to, and the directories above that were known for its sake.
    pub(super) fn tidy(&mut self, id: ObjectId) {
        let mut next = Some(id);
        while let Some(id) = next
            && let Some(object) = self.objects.get(id)
            && object.is_idle()
        {
            let up = match object.position.into() {
                Position::Unknown | Position::Several => None,
                Position::In(up) => Some(up),
                Position::Is(branch) => {
                    let Some(ancestry) = &mut self.ancestry else { return };
                    if ancestry.get(branch).is_some_and(|branch| !branch.is_empty()) {
                        return;
                    }
                    ancestry.remove(branch).and_then(|branch| branch.up)
                }
            };
            self.index.remove(object.fid);
            self.objects.remove(id);
            next = up.and_then(|up| self.ancestry.as_mut()?.get_mut(up)).map(|branch| {
                branch.inside = branch.inside.saturating_sub(1);
                branch.object
            });
        }
    }

    /// To be tidied when nobody holds the id who has not said so yet.
    pub(super) fn note_untidy(&mut self, id: ObjectId) {
        self.untidy.push(id);
    }

    pub(super) fn tidy_all(&mut self) {
        while let Some(id) = self.untidy.pop() {
            self.tidy(id);
        }
    }

    /// The session's node lease on an object.
    pub(super) fn lease_of(&self, object: ObjectId, session: SessionId) -> Option<LeaseId> {
        match &self.objects.get(object)?.holders {
            Holders::None => None,
            Holders::One(id) => (self.leases.get(*id)?.session == session).then_some(*id),
            Holders::Many(list) => {
                let at = list.binary_search_by_key(&session, |(holder, _)| *holder).ok()?;
                Some(list[at].1)
            }
        }
    }

    /// Node leases on an object, by session.
    pub(super) fn holders(&self, object: ObjectId) -> HoldersIter<'_> {
        match self.objects.get(object).map(|object| &object.holders) {
            None | Some(Holders::None) => HoldersIter::Few(None),
            Some(Holders::One(id)) => HoldersIter::Few(Some(*id)),
            Some(Holders::Many(list)) => HoldersIter::Many(list.iter()),
        }
    }

    /// One of the leases on an object. A write lease has no company, so this one tells whether there is one.
    pub(super) fn first_holder(&self, object: ObjectId) -> Option<&Lease> {
        self.holders(object).find_map(|id| self.lease(id))
    }

    /// The session must hold none of this scope on the object.
    pub(super) fn add_lease(&mut self, list: &mut LeaseList, new: NewLease) -> LeaseId {
        let id = self.leases.insert(Lease {
            session: new.session,
            epoch: new.epoch,
            since: new.now,
            expires: new.expires,
            object: new.object,
            older: Link::NONE,
            newer: Link::NONE,
            scope: new.scope,
            mode: new.mode,
            recall: RecallState::Quiet,
        });
        self.append(list, id);
        self.count(new.object, new.session, Tally::one(new.mode, new.scope), By::Adding);
        if new.scope == Scope::Subtree {
            self.deep.insert(id, Deep::default());
            self.put_on_branch(new.object, |deep| deep.push(id));
            return id;
        }
        let first = match self.objects.get(new.object).map(|object| &object.holders) {
            Some(Holders::One(first)) => self.leases.get(*first).map(|lease| (lease.session, *first)),
            _ => None,
        };
        if let Some(object) = self.objects.get_mut(new.object) {
            match &mut object.holders {
                Holders::None => object.holders = Holders::One(id),
                Holders::One(_) => {
                    let mut both = vec![(new.session, id)];
                    both.extend(first);
                    both.sort_unstable();
                    object.holders = Holders::Many(Box::new(both));
                }
                Holders::Many(all) => {
                    let at = all.partition_point(|(holder, _)| *holder < new.session);
                    all.insert(at, (new.session, id));
                }
            }
        }
        id
    }

    pub(super) fn remove_lease(&mut self, list: &mut LeaseList, id: LeaseId) -> Option<Lease> {
        self.unlink(list, id);
        let lease = self.leases.remove(id)?;
        self.count(lease.object, lease.session, Tally::one(lease.mode, lease.scope), By::Taking);
        if lease.scope == Scope::Subtree {
            if let Some(gone) = self.deep.remove(&id) {
                self.holed.forget(id, &gone);
            }
            self.put_on_branch(lease.object, |deep| deep.retain(|held| *held != id));
            return Some(lease);
        }
        if let Some(object) = self.objects.get_mut(lease.object) {
            match &mut object.holders {
                Holders::None => {}
                Holders::One(_) => object.holders = Holders::None,
                Holders::Many(all) => {
                    if let Ok(at) = all.binary_search_by_key(&lease.session, |(holder, _)| *holder) {
                        all.remove(at);
                    }
                    if all.len() == 1 {
                        object.holders = Holders::One(all[0].1);
                    } else if all.len() < all.capacity() / 4 {
                        all.shrink_to_fit();
                    }
                }
            }
        }
        Some(lease)
    }

    fn put_on_branch(&mut self, object: ObjectId, change: impl FnOnce(&mut Vec<LeaseId>)) {
        let position = self.objects.get(object).map(|found| Position::from(found.position));
        let (Some(Position::Is(branch)), Some(ancestry)) = (position, &mut self.ancestry) else { return };
        if let Some(branch) = ancestry.get_mut(branch) {
            change(&mut branch.deep);
        }
    }

    /// Makes it the most recently granted of its session.
    pub(super) fn freshen(&mut self, list: &mut LeaseList, id: LeaseId) {
        if list.newest != Link(id) {
            self.unlink(list, id);
            self.append(list, id);
        }
    }

    pub(super) fn newer(&self, id: LeaseId) -> Option<LeaseId> {
        self.leases.get(id)?.newer.id()
    }

    fn append(&mut self, list: &mut LeaseList, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.older = list.newest;
            lease.newer = Link::NONE;
        }
        match list.newest.id().and_then(|newest| self.leases.get_mut(newest)) {
            Some(newest) => newest.newer = Link(id),
            None => list.oldest = Link(id),
        }
        list.newest = Link(id);
        list.len += 1;
    }

    fn unlink(&mut self, list: &mut LeaseList, id: LeaseId) {
        let Some(lease) = self.leases.get(id) else { return };
        let (older, newer) = (lease.older, lease.newer);
        match older.id().and_then(|older| self.leases.get_mut(older)) {
            Some(lease) => lease.newer = newer,
            None => list.oldest = newer,
        }
        match newer.id().and_then(|newer| self.leases.get_mut(newer)) {
            Some(lease) => lease.older = older,
            None => list.newest = older,
        }
        list.len -= 1;
    }
}

#[derive(Debug)]
pub(super) struct NewLease {
    pub(super) session: SessionId,
    pub(super) object: ObjectId,
    pub(super) scope: Scope,
    pub(super) mode: Mode,
    pub(super) epoch: Epoch,
    pub(super) now: Monotonic,
    pub(super) expires: Monotonic,
}

#[derive(Debug)]
pub(super) enum HoldersIter<'a> {
    Few(Option<LeaseId>),
    Many(std::slice::Iter<'a, (SessionId, LeaseId)>),
}

impl Iterator for HoldersIter<'_> {
    type Item = LeaseId;
    fn next(&mut self) -> Option<LeaseId> {
        match self {
            HoldersIter::Few(id) => id.take(),
            HoldersIter::Many(list) => list.next().map(|(_, id)| *id),
        }
    }
}
