//! How much is kept of what nobody needs.

use super::State;
use super::inode::{Inode, Xattrs};
use super::layout::Layout;
use super::names::Directory;
use bytes::Bytes;
use soda_types::{Fid, Monotonic, XATTR_CAPABILITY};
use std::sync::Arc;

/// So many that cannot go yet are looked at for one that can.
const MOST_PASSED_OVER: u32 = 8;
/// What an inode takes besides what is known of it, roughly: its places in the tables, its lease, and its attributes.
const INODE_BYTES: u64 = 800;
/// Inodes that nobody needs are kept however little room there is: some are on their way to who asked.
const ALWAYS_KEPT: usize = 64;

/// Room for metadata, and what they take, bytes.
#[derive(Debug)]
pub(super) struct Room {
    most: u64,
    /// What is known of all inodes beyond their attributes: names, extended attributes, targets of links.
    known: u64,
    /// Nothing of that is dropped before it takes more than this.
    drop_above: u64,
}

impl Room {
    pub(super) fn new(most: u64) -> Room {
        Room { most, known: 0, drop_above: most / 2 }
    }

    /// Whether so many inodes, and a name of each, take a small part of it.
    pub(super) fn is_large_for(&self, inodes: u64) -> bool {
        const NAMED: u64 = INODE_BYTES + 400;
        inodes.saturating_mul(NAMED) <= self.most / 8
    }

    /// What is known of one inode took so much, and takes so much now.
    pub(super) fn changed(&mut self, before: u64, after: u64) {
        self.known = (self.known + after).saturating_sub(before);
    }
}

impl State {
    pub(crate) fn with_names<R>(
        &mut self,
        now: Monotonic,
        dir: Fid,
        work: impl FnOnce(&mut Directory) -> R,
    ) -> R {
        self.learn(now, dir, |inode| work(inode.directory()))
    }

    pub(crate) fn set_xattrs(&mut self, now: Monotonic, fid: Fid, xattrs: Xattrs) {
        self.learn(now, fid, |inode| inode.xattrs = xattrs);
    }

    pub(crate) fn forget_xattrs(&mut self, fid: Fid) {
        if let Some(inode) = self.inodes.get_mut(&fid) {
            let before = inode.bytes();
            inode.xattrs = Xattrs::Unknown;
            self.room.changed(before, inode.bytes());
        }
    }

    /// A change is made here that takes file capabilities away.
    pub(crate) fn drop_capabilities(&mut self, now: Monotonic, fid: Fid) {
        let Some(Xattrs::All(list)) = self.peek(fid).map(|inode| &inode.xattrs) else { return };
        let stays = |(name, _): &&(Vec<u8>, Bytes)| name != XATTR_CAPABILITY;
        let left: Vec<_> = list.iter().filter(stays).cloned().collect();
        if left.len() < list.len() {
            self.set_xattrs(now, fid, Xattrs::All(Arc::new(left)));
        }
    }

    /// Such a change goes to the server: until it has answered nobody else knows, and it may refuse.
    pub(crate) fn doubt_capabilities(&mut self, fid: Fid) {
        let Some(Xattrs::All(list)) = self.peek(fid).map(|inode| &inode.xattrs) else { return };
        if list.iter().any(|(name, _)| name == XATTR_CAPABILITY) {
            self.forget_xattrs(fid);
        }
    }

    pub(crate) fn set_target(&mut self, now: Monotonic, fid: Fid, target: Bytes) {
        self.learn(now, fid, |inode| inode.target = Some(target));
    }

    pub(crate) fn set_layout(&mut self, now: Monotonic, fid: Fid, layout: Layout) {
        self.learn(now, fid, |inode| inode.layout = Some(Box::new(layout)));
    }

    /// Notes what comes to be known of an inode, or is not known any more.
    pub(super) fn learn<R>(&mut self, now: Monotonic, fid: Fid, work: impl FnOnce(&mut Inode) -> R) -> R {
        let inode = self.inode(fid);
        let before = inode.bytes();
        let result = work(inode);
        let after = inode.bytes();
        self.room.changed(before, after);
        if self.room.known > self.room.drop_above {
            self.drop_known_except(now, fid);
        }
        result
    }

    /// What the inodes take that nobody needs, and what is known of all of them, and of who reads them in order, bytes.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.room.known + self.idle.len() as u64 * INODE_BYTES + self.next_files.bytes()
    }

    fn has_too_many(&self) -> bool {
        let kept = self.idle.len();
        kept > self.max_inodes || (self.metadata_bytes() > self.room.most && kept > ALWAYS_KEPT)
    }

    /// The least recently used inodes go when they are too many, or take too much, and their leases with them.
    pub(super) fn evict_for(&mut self, now: Monotonic, newcomer: Fid) {
        let mut passed_over = 0;
        while self.has_too_many() && passed_over < MOST_PASSED_OVER {
            let Some(fid) = self.idle.oldest().copied().filter(|fid| *fid != newcomer) else { return };
            if !self.may_give_back(fid) {
                passed_over += 1;
                if let Some(place) = self.inodes.get(&fid).and_then(|inode| inode.place.as_ref()) {
                    self.idle.touch(place);
                }
                continue;
            }
            if let Some(ack) = self.holder.release(now, fid) {
                self.given_up.push(ack);
            }
            self.holder.let_go(fid);
            self.void(fid);
            if let Some(gone) = self.inodes.remove(&fid) {
                debug_assert!(!gone.pinned(), "{fid} is in use");
                self.room.changed(gone.bytes(), 0);
                if let Some(place) = gone.place {
                    self.idle.remove(place);
                }
            }
        }
    }

    /// Half of the room is for what is known beyond attributes. Of inodes in use only that can go; the leases stay.
    fn drop_known_except(&mut self, now: Monotonic, newcomer: Fid) {
        let half = self.room.most / 2;
        // If one takes so much by itself not even what is new of it can be kept.
        let fits = |inode: &Inode| inode.bytes() <= half / 2;
        let kept = self.peek(newcomer).is_some_and(fits).then_some(newcomer);
        for (fid, inode) in &mut self.inodes {
            // What the server has not heard of only the caches know.
            if Some(*fid) != kept && inode.log.records == 0 {
                inode.forget_known(now);
            }
        }
        self.room.known = self.inodes.values().map(Inode::bytes).sum();
        // It has to be worth looking at all of them again.
        self.room.drop_above = half.max(self.room.known + half / 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::names::Known;
    use crate::cache::opens::tests::plain;
    use crate::config::{CacheConfig, Consistency, WritePolicy};
    use crate::hooks::NoKernel;
    use soda_protocol::{Node, XattrSummary};
    use soda_types::{FileKind, Ino, Name, VolumeId};
    use std::sync::Arc;

    const MOST: u64 = 1 << 20;

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    fn state() -> State {
        let cache = CacheConfig { metadata_bytes: MOST, ..CacheConfig::default() };
        State::new(&cache, Consistency::Lease, WritePolicy::Through, Arc::default(), Arc::new(NoKernel))
    }

    fn exact(state: &State) -> u64 {
        state.inodes.values().map(Inode::bytes).sum()
    }

    fn large(ino: u64) -> Xattrs {
        let value = Bytes::from(vec![ino as u8; 10_000]);
        Xattrs::All(Arc::new(vec![(b"user.large".to_vec(), value)]))
    }

    #[test]
    fn extended_attributes_of_inodes_in_use_are_dropped_before_they_take_too_much() {
        let mut state = state();
        for ino in 1..=500 {
            state.inode(fid(ino)).kernel.refs = 1;
            state.repin(fid(ino));
            state.set_xattrs(at(1), fid(ino), large(ino));
            assert!(state.metadata_bytes() <= MOST, "{} of inode {ino}", state.metadata_bytes());
            assert!(matches!(state.inode(fid(ino)).xattrs, Xattrs::All(_)), "the newest are kept");
        }
        assert_eq!(state.len(), 500);
        assert_eq!(state.room.known, exact(&state));
        state.set_xattrs(at(2), fid(500), Xattrs::None);
        state.set_target(at(2), fid(499), Bytes::from_static(b"elsewhere"));
        state.void(fid(498));
        assert_eq!(state.room.known, exact(&state));
    }

    #[test]
    fn long_names_are_dropped_before_they_take_too_much_even_of_one_directory() {
        let mut state = state();
        let known = Known::Present { fid: fid(9), kind: FileKind::File };
        for number in 0..20_000 {
            let name = Name::new(format!("{number:0>200}").as_bytes()).unwrap();
            state.with_names(at(1), fid(2), |names| names.set(at(1), &name, known));
            assert!(state.metadata_bytes() <= MOST, "{} with name {number}", state.metadata_bytes());
        }
        assert_eq!(state.room.known, exact(&state));
        assert!(state.room.known > 0);
    }

    #[test]
    fn what_the_server_has_not_heard_of_stays() {
        let mut state = state();
        state.inode(fid(1)).log.records = 1;
        state.repin(fid(1));
        state.set_xattrs(at(1), fid(1), large(1));
        for ino in 2..=300 {
            state.inode(fid(ino)).kernel.refs = 1;
            state.set_xattrs(at(1), fid(ino), large(ino));
        }
        assert!(matches!(state.inode(fid(1)).xattrs, Xattrs::All(_)));
    }

    /// A part of the changes of a file was lost, and with it what is known of the file. Of its extended attributes the log has
    /// others than the server speaks of.
    #[test]
    fn what_the_server_says_of_attributes_that_are_ahead_of_it_is_not_believed_after_a_loss() {
        let mut state = state();
        let attr = plain(fid(1));
        let node = Node { fid: fid(1), attr, xattrs: XattrSummary::None };
        let inode = state.inode(fid(1));
        (inode.log.records, inode.attr) = (1, None);
        let ticket = state.holder.begin_request(at(1));
        state.learn_node(at(1), ticket, &node);
        assert!(matches!(state.inode(fid(1)).xattrs, Xattrs::Unknown));
        // Nothing was lost: what was changed are not these.
        state.inode(fid(1)).attr = Some(attr);
        state.learn_node(at(1), ticket, &node);
        assert!(matches!(state.inode(fid(1)).xattrs, Xattrs::None));
    }

    /// Also what another process told the kernel of, of which nothing is known here but that.
    #[test]
    fn inodes_that_the_kernel_knows_stay_with_their_leases() {
        let mut state = state();
        let told = fid(1);
        state.inode(told).kernel.refs = 1;
        state.repin(told);
        for ino in 2..=5000 {
            state.inode(fid(ino));
            state.evict_for(at(1), fid(ino));
        }
        assert!(state.peek(fid(2)).is_none() && state.peek(told).is_some());
    }

    #[test]
    fn inodes_that_nobody_needs_go_when_they_take_too_much() {
        let mut state = state();
        for ino in 1..=5000 {
            state.inode(fid(ino));
            state.evict_for(at(1), fid(ino));
        }
        assert!(state.metadata_bytes() <= MOST && state.len() as u64 > MOST / INODE_BYTES / 2);
        assert!(state.peek(fid(1)).is_none() && state.peek(fid(5000)).is_some());
    }
}
