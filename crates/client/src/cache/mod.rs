//! Everything the client knows about the volume, behind one lock that is never held across a wait.
//!
//! *One question.* Whether something cached may be used is decided in [`State::served`] alone; whether something that
//! came may be entered in [`State::enter`] alone. Both ask the lease holder, or the rule of another consistency mode.
//!
//! *Own changes.* Between sending a change and its answer only the server knows the truth about what it touches. Names
//! and byte ranges concerned are taken out of the cache when it is sent; if no write lease covers the inode, all of it
//! is not served until the answer is here, because others may see the change already.

pub(crate) mod asked_locks;
pub(crate) mod disk;
pub(crate) mod extents;
pub(crate) mod handed;
pub(crate) mod held_locks;
pub(crate) mod inode;
pub(crate) mod layout;
pub(crate) mod lru;
pub(crate) mod names;
pub(crate) mod names_ahead;
pub(crate) mod next_dirs;
pub(crate) mod next_files;
mod opens;
pub(crate) mod readahead;
pub(crate) mod reading;
mod room;
pub(crate) mod unseen;
pub(crate) mod unsynced;

use crate::config::{CacheConfig, Consistency, WritePolicy};
use crate::hooks::{KernelHooks, NAMES_KEPT, NamesLock};
use crate::log::Behind;
use crate::validity::{Answers, Cached, Validity};
use asked_locks::AskedLocks;
use bytes::Bytes;
use extents::Memory;
use held_locks::HeldLocks;
use inode::{Inode, Origin, Xattrs};
use lru::Lru;
use names::{Complete, Known};
use names_ahead::NamesAhead;
use next_dirs::NextDirs;
use next_files::NextFiles;
use opens::Opens;
use room::Room;
use rustc_hash::FxHashMap;
use soda_lease::holder::{Holder, HolderConfig, Ticket};
use soda_lease::locks::Delegate;
use soda_protocol::{Covered, Node, XattrSummary};
use soda_types::{Attr, Coverage, Fid, FileKind, Grant, Mode, Monotonic, Name, RecallAck};
use std::sync::Arc;
use std::time::Duration;
use unsynced::Unsynced;

#[cfg(test)]
pub(crate) use opens::tests::plain as plain_attr;

/// So far apart are changes sent back to walk their path again: the kernel passes a second time in one call on to the program.
const ONE_CALL: Duration = Duration::from_secs(10);

pub(crate) struct State {
    pub(crate) holder: Holder,
    pub(crate) memory: Memory,
    pub(crate) locks: HeldLocks,
    /// Of which files they are taken and released without asking.
    pub(crate) delegate: Delegate,
    pub(crate) asked_locks: AskedLocks,
    pub(crate) unsynced: Unsynced,
    pub(crate) behind: Behind,
    /// Leases given up by eviction, to be told to the server.
    pub(crate) given_up: Vec<RecallAck>,
    opens: Opens,
    names_ahead: NamesAhead,
    next_dirs: NextDirs,
    next_files: NextFiles,
    inodes: FxHashMap<Fid, Inode>,
    /// Inodes that nobody needs, by last use.
    idle: Lru<Fid>,
    room: Room,
    max_inodes: usize,
    consistency: Consistency,
    answers: Arc<Answers>,
    hooks: Arc<dyn KernelHooks>,
    /// No change is sent back before that.
    sent_back_until: Monotonic,
}

/// An own change in progress on one inode. Ends with [`State::end_change`].
#[derive(Debug)]
#[must_use]
pub(crate) struct OwnChange {
    fid: Fid,
    uncovered: bool,
}

impl State {
    pub(crate) fn new(
        cache: &CacheConfig,
        consistency: Consistency,
        write: WritePolicy,
        answers: Arc<Answers>,
        hooks: Arc<dyn KernelHooks>,
    ) -> State {
        State {
            holder: Holder::new(HolderConfig::default()),
            memory: Memory::new(cache.memory_bytes),
            locks: HeldLocks::default(),
            delegate: Delegate::new(),
            asked_locks: AskedLocks::default(),
            unsynced: Unsynced::default(),
            behind: Behind::new(write),
            given_up: Vec::new(),
            opens: Opens::default(),
            names_ahead: NamesAhead::default(),
            next_dirs: NextDirs::default(),
            next_files: NextFiles::default(),
            inodes: FxHashMap::default(),
            idle: Lru::default(),
            room: Room::new(cache.metadata_bytes),
            max_inodes: cache.max_inodes,
            consistency,
            answers,
            hooks,
            sent_back_until: Monotonic::ZERO,
        }
    }

    // ------------------------------------------------------------ may it be used

    /// Whether what is cached of the inode may be used now, and for how long the kernel may keep it.
    pub(crate) fn served(&mut self, now: Monotonic, fid: Fid) -> Option<Validity> {
        let inode = self.inodes.get(&fid)?;
        match self.consistency {
            // Nobody else can know it: it is good for as long as the session.
            Consistency::Lease if inode.log.origin != Origin::AtServer => {
                let until = self.holder.session_valid_until();
                let promise = match inode.log.origin {
                    Origin::Here => Validity::new(until, self.answers.stamp()),
                    _ => Validity::NONE,
                };
                (until > now).then_some(promise)
            }
            Consistency::Lease => {
                if inode.changes.uncovered > 0 || inode.holding.is_none() {
                    return None;
                }
                self.holder.touch(now, fid)?;
                if self.holder.holding(fid) != inode.holding {
                    return None;
                }
                let promise =
                    if inode.kernel.recalling > 0 { None } else { self.holder.promise_until(now, fid) };
                Some(promise.map_or(Validity::NONE, |until| Validity::new(until, self.answers.stamp())))
            }
            Consistency::Verify => None,
            Consistency::Ttl(ttl) => {
                let until = inode.fetched + ttl;
                let known = inode.attr.is_some() && until > now && inode.changes.unanswered == 0;
                known.then(|| Validity::new(until, self.answers.stamp()))
            }
        }
    }

    /// The attributes, if they may be used, for our own use.
    pub(crate) fn peek_attr(&mut self, now: Monotonic, fid: Fid) -> Option<Attr> {
        self.served(now, fid)?;
        self.inodes.get(&fid)?.attr
    }

    /// What a name means, if that may be used, for our own use.
    pub(crate) fn peek_name(&mut self, now: Monotonic, dir: Fid, name: &Name) -> Option<Known> {
        self.served(now, dir)?;
        self.last_known_name(dir, name)
    }

    /// What a name meant when that could be used last, to say so: it may mean something else by now.
    pub(crate) fn last_known_name(&self, dir: Fid, name: &Name) -> Option<Known> {
        self.inodes.get(&dir)?.dir.as_ref()?.find(name, Monotonic::ZERO)
    }

    /// Whether leases cover what is cached: what own writes put into a file may stay then, and a directory be known completely.
    pub(crate) fn caches_under_leases(&self) -> bool {
        self.consistency == Consistency::Lease
    }

    /// The attributes, if they may be used; the kernel is taken to keep them.
    pub(crate) fn attr(&mut self, now: Monotonic, fid: Fid) -> Option<Cached<Attr>> {
        let valid = self.served(now, fid)?;
        let inode = self.inodes.get_mut(&fid)?;
        let value = inode.attr?;
        if let Some(until) = valid.until() {
            inode.kernel.attr_until = inode.kernel.attr_until.max(until);
        }
        if let Some(place) = &inode.place {
            self.idle.touch(place);
        }
        Some(Cached { value, valid })
    }

    /// How long the kernel may keep attributes that have just been learned.
    pub(crate) fn attr_validity(&mut self, now: Monotonic, fid: Fid, attr: &Attr) -> Validity {
        match self.attr(now, fid) {
            Some(cached) if cached.value.version == attr.version => cached.valid,
            _ => Validity::NONE,
        }
    }

    /// What is known of a name, if it may be used.
    pub(crate) fn name(&mut self, now: Monotonic, dir: Fid, name: &Name) -> Option<Cached<Known>> {
        let valid = self.served(now, dir)?;
        let fetched_after = match self.consistency {
            Consistency::Ttl(ttl) => now - ttl,
            _ => Monotonic::ZERO,
        };
        let known = self.inodes.get(&dir)?.dir.as_ref()?.find(name, fetched_after)?;
        let valid = self.give_name(now, dir, (name, known), valid);
        Some(Cached { value: known, valid })
    }

    /// How long the kernel may keep a name that has just been learned.
    pub(crate) fn name_validity(&mut self, now: Monotonic, dir: Fid, name: &Name, known: Known) -> Validity {
        match self.name(now, dir, name) {
            Some(cached) if cached.value == known => cached.valid,
            _ => Validity::NONE,
        }
    }

    fn give_name(
        &mut self,
        now: Monotonic,
        dir: Fid,
        (name, known): (&Name, Known),
        valid: Validity,
    ) -> Validity {
        let valid = match self.hooks.names_lock() {
            NamesLock::None => valid,
            NamesLock::Directory => valid.at_most(now + NAMES_KEPT),
        };
        let Some(until) = valid.until() else { return Validity::NONE };
        let given = self.with_names(now, dir, |names| names.give(now, name, known, until));
        if given { valid } else { Validity::NONE }
    }

    pub(crate) fn covered_for_writing(&self, now: Monotonic, fid: Fid) -> bool {
        self.consistency == Consistency::Lease && self.holder.valid_until(now, fid, Mode::Write).is_some()
    }

    // ------------------------------------------------------------ may it be entered

    /// Notes the leases that came with a reply; before its values are entered.
    pub(crate) fn accept(
        &mut self,
        now: Monotonic,
        ticket: Ticket,
        (grants, covered): (&[Grant], &[Covered]),
    ) {
        // In the modes without leases whatever the server grants is refused, and a recall answered at once.
        let leases = self.consistency == Consistency::Lease;
        let (grants, covered) = if leases { (grants, covered) } else { (&[] as _, &[] as _) };
        // The answer that brought a deep lease may have been lost; whatever it covers tells of it.
        let deep = covered.iter().map(|covered| covered.lease);
        let all: Vec<Grant> = grants.iter().copied().chain(deep).collect();
        let each: Vec<Coverage> = covered.iter().flat_map(Covered::each).collect();
        self.holder.handle_reply_covered(now, ticket, &all, &each);
        for fid in all.iter().map(|grant| grant.fid).chain(each.iter().map(|covered| covered.fid)) {
            self.note_leased(fid);
            self.evict_for(now, fid);
        }
    }

    /// Whether what came with the ticket's reply may be entered; makes the inode ready for it.
    pub(crate) fn enter(&mut self, ticket: Ticket, fid: Fid) -> bool {
        if self.consistency == Consistency::Lease {
            let Some(holding) = self.holder.cacheable(ticket, fid) else { return false };
            let before = self.inode(fid).holding;
            if before != Some(holding) {
                self.void(fid);
                let inode = self.inode(fid);
                inode.holding = Some(holding);
                inode.reading.note_leased();
            }
        } else {
            self.inode(fid);
        }
        true
    }

    /// Attributes from a reply. Out of several the newest version stays.
    pub(crate) fn learn_attr(&mut self, now: Monotonic, ticket: Ticket, fid: Fid, attr: &Attr) {
        let enterable = self.enter(ticket, fid);
        let lease = self.consistency == Consistency::Lease;
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        if inode.log.records > 0 {
            // The server does not know yet what it is like.
            return;
        }
        inode.hearsay = false;
        let newest = attr.version >= inode.seen;
        inode.seen = inode.seen.max(attr.version);
        match inode.attr {
            Some(old) if attr.version >= old.version => {
                inode.attr = Some(*attr);
                inode.told = attr.version;
                inode.fetched = now;
                if !lease {
                    self.memory.revalidate(fid, attr.data_version);
                }
            }
            None if enterable && newest => {
                inode.attr = Some(*attr);
                inode.told = attr.version;
                inode.fetched = now;
                self.memory.revalidate(fid, attr.data_version);
            }
            _ => {}
        }
    }

    pub(crate) fn learn_node(&mut self, now: Monotonic, ticket: Ticket, node: &Node) {
        self.learn_attr(now, ticket, node.fid, &node.attr);
        // What was changed here is at another version, but if its attributes were among that they would be known; unless they
        // were forgotten with a part of the changes that was lost, as all attributes were.
        let ahead = |inode: &Inode| {
            inode.log.records > 0 && inode.attr.is_some() && matches!(inode.xattrs, Xattrs::Unknown)
        };
        let current =
            |inode: &Inode| ahead(inode) || inode.attr.is_some_and(|attr| attr.version == node.attr.version);
        let learned = match (node.xattrs, self.peek(node.fid).filter(|inode| current(inode))) {
            (XattrSummary::None, Some(_)) => Xattrs::None,
            (XattrSummary::Some, Some(Inode { xattrs: Xattrs::None, .. })) => Xattrs::Unknown,
            _ => return,
        };
        self.set_xattrs(now, node.fid, learned);
    }

    /// A name from a reply to a question that was sent with the ticket.
    pub(crate) fn learn_name(&mut self, now: Monotonic, ticket: Ticket, dir: Fid, name: &Name, known: Known) {
        // What was changed here the server may not know: what is known of its names is newer than any answer.
        let ahead = self.is_ahead(&[dir]);
        let found = |inode: &Inode| inode.dir.as_ref()?.find(name, Monotonic::ZERO);
        if ahead && self.peek(dir).and_then(found).is_some() {
            return;
        }
        if self.enter(ticket, dir) {
            self.with_names(now, dir, |names| names.learn(now, ticket.sent_at(), name, known));
        }
    }

    /// A new directory of our own: it is completely known to be empty.
    pub(crate) fn learn_new_directory(&mut self, ticket: Ticket, fid: Fid, parent: Fid) {
        if self.consistency == Consistency::Lease && self.enter(ticket, fid) {
            let dir = self.inode(fid).directory();
            dir.set_parent(parent);
            if dir.len() == 0 {
                dir.complete = Complete::Yes;
            }
        }
    }

    // ------------------------------------------------------------ own changes

    pub(crate) fn begin_change(&mut self, now: Monotonic, fid: Fid) -> OwnChange {
        let uncovered = !self.covered_for_writing(now, fid);
        let inode = self.inode(fid);
        inode.changes.unanswered += 1;
        inode.changes.uncovered += u32::from(uncovered);
        inode.changes.count += 1;
        self.repin(fid);
        OwnChange { fid, uncovered }
    }

    pub(crate) fn end_change(&mut self, change: OwnChange) {
        let OwnChange { fid, uncovered } = change;
        if let Some(inode) = self.inodes.get_mut(&fid) {
            inode.changes.unanswered = inode.changes.unanswered.saturating_sub(1);
            let left = inode.changes.uncovered.saturating_sub(u32::from(uncovered));
            inode.changes.uncovered = left.min(inode.changes.unanswered);
            inode.changes.count += 1;
        }
        self.repin(fid);
    }

    /// The change was carried out.
    pub(crate) fn changed(
        &mut self,
        now: Monotonic,
        fid: Fid,
        name: Option<&Name>,
        data: Option<std::ops::Range<u64>>,
    ) {
        self.unsynced.note(fid, self.behind.last_lsn());
        if let Some(inode) = self.inodes.get_mut(&fid) {
            inode.note_recent(now, name, data);
        }
        self.note_unseen(fid);
    }

    // ------------------------------------------------------------ what the server lacks

    /// What the server has to be told all of before the leases on these inodes may be given to others; also of what data is set
    /// aside: if the removal fails it is to be told. That a directory could be moved here may have been decided by where those
    /// above it lie: they stay there until it is told.
    pub(crate) fn to_tell_first(&self, fids: impl Iterator<Item = Fid> + Clone) -> Vec<Fid> {
        let is_directory = |fid: Fid| self.peek(fid).is_some_and(|inode| inode.dir.is_some());
        let above = fids.clone().any(is_directory);
        let moved = if above { self.behind.log.moved_directories() } else { Vec::new() };
        let is_owed = |fid: &Fid| self.is_ahead(&[*fid]) || self.behind.aside_of(&[*fid]).is_some();
        moved.into_iter().chain(fids).filter(is_owed).collect()
    }

    /// Whether the lease on the inode may be given back unasked: nothing is to be told before, and a power cut of the server
    /// takes nothing that could not be told again without it.
    pub(crate) fn may_give_back(&self, fid: Fid) -> bool {
        let durable = self.peek(fid).is_none_or(|inode| inode.log.told_in <= self.behind.durable);
        durable && self.to_tell_first([fid].into_iter()).is_empty()
    }

    /// Whether fsync has returned for something that the server was told of one of these and its disk may lack: not to be seen by
    /// others before it has, since under their leases it could not be told again.
    pub(crate) fn is_promised(&self, mut fids: impl Iterator<Item = Fid>) -> bool {
        let undurable = |fid| self.peek(fid).is_some_and(|inode| inode.log.told_in > self.behind.durable);
        self.behind.has_promised() && fids.any(undurable)
    }

    /// Whether the server lacks something of one of these.
    pub(crate) fn is_ahead(&self, fids: &[Fid]) -> bool {
        fids.iter().any(|fid| self.peek(*fid).is_some_and(|inode| inode.log.records > 0))
    }

    // ------------------------------------------------------------ the table

    /// The inode, which comes into the table if it was not there.
    pub(crate) fn inode(&mut self, fid: Fid) -> &mut Inode {
        let idle = &mut self.idle;
        self.inodes.entry(fid).or_insert_with(|| Inode { place: Some(idle.insert(fid)), ..Inode::default() })
    }

    pub(crate) fn existing(&mut self, fid: Fid) -> Option<&mut Inode> {
        self.inodes.get_mut(&fid)
    }

    pub(crate) fn peek(&self, fid: Fid) -> Option<&Inode> {
        self.inodes.get(&fid)
    }

    pub(crate) fn inodes(&self) -> impl Iterator<Item = (&Fid, &Inode)> {
        self.inodes.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// The server has started anew: what no lease was reclaimed for may be another thing under the same version.
    pub(crate) fn forget_unheld(&mut self) {
        for (fid, inode) in &mut self.inodes {
            if self.holder.holding(*fid).is_none() && inode.log.records == 0 {
                inode.seen = soda_types::Version(0);
            }
        }
        for fid in self.memory.files() {
            if self.holder.holding(fid).is_none() && !self.is_ahead(&[fid]) {
                self.memory.clear(fid);
            }
        }
    }

    /// Puts the inode into the list of those that nobody needs, or takes it out.
    pub(crate) fn repin(&mut self, fid: Fid) {
        let Some(inode) = self.inodes.get_mut(&fid) else { return };
        match (inode.pinned(), inode.place.take()) {
            (true, Some(place)) => {
                self.idle.remove(place);
            }
            (false, None) => inode.place = Some(self.idle.insert(fid)),
            (_, place) => inode.place = place,
        }
    }

    /// The kernel was told to drop all it held of the inode.
    pub(crate) fn kernel_dropped(&mut self, fid: Fid) {
        if let Some(inode) = self.inodes.get_mut(&fid) {
            inode.kernel.attr_until = Monotonic::ZERO;
            if let Some(dir) = &mut inode.dir {
                dir.kernel_dropped();
            }
        }
    }

    /// Everything that the lease covered is void. Data stay, marked with their version.
    pub(crate) fn void(&mut self, fid: Fid) {
        if let Some(inode) = self.inodes.get_mut(&fid) {
            let before = inode.bytes();
            inode.void();
            self.room.changed(before, inode.bytes());
        }
    }

    /// The server went back in time: versions say nothing any more.
    pub(crate) fn forget_versions(&mut self) {
        for inode in self.inodes.values_mut() {
            inode.seen = soda_types::Version(0);
        }
    }

    /// Other machines change the directory: not all of its names are given to the kernel for a while.
    pub(crate) fn note_contended(&mut self, now: Monotonic, dir: Fid, keep: Option<Mode>) {
        let lock = self.names_lock();
        if let Some(dir) = self.existing(dir).and_then(|inode| inode.dir.as_mut()) {
            dir.note_contended(now, lock, keep);
        }
    }

    /// Whether changes may be sent back now to walk their path again. Notes that they are.
    pub(crate) fn send_back(&mut self, now: Monotonic) -> bool {
        let may = self.sent_back_until <= now;
        if may {
            self.sent_back_until = now + ONE_CALL;
        }
        may
    }

    pub(crate) fn names_lock(&self) -> NamesLock {
        self.hooks.names_lock()
    }

    /// The target of a symbolic link never changes, so no lease is needed once it is known.
    pub(crate) fn target(&self, fid: Fid) -> Option<Bytes> {
        self.inodes.get(&fid)?.target.clone()
    }
}

/// What a node is, as a name's target.
pub(crate) fn present(node: &Node) -> Known {
    Known::Present { fid: node.fid, kind: node.attr.kind }
}

pub(crate) fn is_directory(node: &Node) -> bool {
    node.attr.kind == FileKind::Directory
}
