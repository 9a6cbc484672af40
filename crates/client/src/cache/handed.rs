//! Leases and what they cover, on their way to another process that goes on with the session (`handover.rs`). Not the data of
//! files, which may be much: those in a cache directory are found there by version.
//!
//! All that it says is true as long as the lease is held that it belongs to, of which [`Holding`] tells. What is under way, or
//! was changed here and has a version of its own, does not pass; nor does what the kernel was told, which drops all of that but
//! pages.

use super::State;
use super::inode::{Inode, Origin, Rewritten, Xattrs};
use super::names::{Complete, Directory, Known};
use crate::config::Consistency;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use soda_lease::holder::{HandedLeases, Holding};
use soda_types::{Attr, Fid, Monotonic, Name, Version};
use std::sync::Arc;

/// So many leases and inodes pass at most, and so many bytes of these, about: programs wait meanwhile.
const MOST: usize = 1 << 15;
const MOST_BYTES: u64 = 64 << 20;
/// What an inode takes without names, extended attributes and the like, about.
const INODE_BYTES: u64 = 200;

/// What [`State::hand_over`] made for [`State::take_over`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HandedCaches {
    leases: HandedLeases,
    inodes: Vec<HandedInode>,
    /// Files whose data were changed here lately, and of which the kernel may have pages.
    rewritten: Vec<(Fid, Rewritten)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct HandedInode {
    fid: Fid,
    holding: Holding,
    attr: Attr,
    seen: Version,
    /// `None`: not known.
    xattrs: Option<Vec<(Vec<u8>, Bytes)>>,
    /// A symbolic link's.
    target: Option<Bytes>,
    dir: Option<HandedDirectory>,
    parent: Option<Fid>,
    /// The kernel may have pages, and has taken in what was changed here.
    pages: bool,
}

/// Names of a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HandedDirectory {
    pub(super) complete: Complete,
    pub(super) parent: Option<Fid>,
    pub(super) names: Vec<(Name, Known)>,
}

impl HandedCaches {
    /// For a process by whose clock the times in it mean something else.
    pub(crate) fn without_times(self, now: Monotonic) -> HandedCaches {
        let HandedCaches { leases, inodes: _, rewritten } = self;
        let rewritten = rewritten.into_iter().map(|(fid, rewritten)| (fid, rewritten.anew_at(now))).collect();
        HandedCaches { leases: leases.without_times(), inodes: Vec::new(), rewritten }
    }
}

impl State {
    /// To be called when nothing is under way, and no recall can come any more.
    pub(crate) fn hand_over(&self, now: Monotonic) -> HandedCaches {
        if self.consistency != Consistency::Lease {
            return HandedCaches::default();
        }
        let leases = self.holder.hand_over(now, MOST);
        let mut room = MOST_BYTES;
        let mut inodes = Vec::new();
        for (fid, inode) in &self.inodes {
            let Some(holding) = inode.holding.filter(|holding| leases.holding(*fid) == Some(*holding)) else {
                continue;
            };
            let bytes = INODE_BYTES + inode.bytes();
            if inodes.len() < MOST
                && bytes <= room
                && let Some(handed) = inode.hand_over(now, *fid, holding)
            {
                room -= bytes;
                inodes.push(handed);
            }
        }
        let rewritten = self.inodes.iter().filter(|(_, inode)| inode.kernel.data);
        let rewritten = rewritten.filter_map(|(fid, inode)| Some((*fid, inode.rewritten(now)?))).collect();
        HandedCaches { leases, inodes, rewritten }
    }

    /// Whether the kernel may keep its pages, which are of this version: they are what the inode has until somebody asks for the
    /// lease, and are dropped then.
    pub(crate) fn may_keep_pages(&self, now: Monotonic, fid: Fid, version: Version) -> bool {
        let is_covered = |inode: &&Inode| {
            inode.holding.is_some()
                && self.holder.holding(fid) == inode.holding
                && self.holder.lasts_until_recalled(now, fid)
        };
        let are_current =
            |inode: &Inode| inode.kernel.data && inode.attr.is_some_and(|attr| attr.data_version == version);
        self.peek(fid).filter(is_covered).is_some_and(are_current)
    }

    /// In a session that has been started, before anything is asked for.
    pub(crate) fn take_over(&mut self, now: Monotonic, handed: HandedCaches) {
        self.holder.take_over(handed.leases);
        for (fid, rewritten) in handed.rewritten {
            self.inode(fid).note_rewritten(rewritten);
        }
        for handed in handed.inodes {
            if self.holder.holding(handed.fid) == Some(handed.holding) {
                self.learn(now, handed.fid, |inode| inode.take_over(now, handed));
            }
        }
    }
}

impl Inode {
    fn hand_over(&self, now: Monotonic, fid: Fid, holding: Holding) -> Option<HandedInode> {
        let attr = self.attr.filter(|attr| self.told == attr.version)?;
        let is_settled = self.changes.unanswered == 0
            && self.log.origin == Origin::AtServer
            && self.log.records == 0
            && self.log.going_through == 0
            && !self.log.deleted
            && self.kernel.recalling == 0;
        if !is_settled {
            return None;
        }
        let xattrs = match &self.xattrs {
            Xattrs::Unknown => None,
            Xattrs::None => Some(Vec::new()),
            Xattrs::All(list) => Some(list.to_vec()),
        };
        let dir = self.dir.as_ref().map(|dir| dir.hand_over());
        let (seen, target, parent) = (self.seen, self.target.clone(), self.parent);
        // Who has shortened a file may not have run since, and Linux shortens it when that runs.
        let pages = self.kernel.data && self.rewritten(now).is_none();
        Some(HandedInode { fid, holding, attr, seen, xattrs, target, dir, parent, pages })
    }

    fn take_over(&mut self, now: Monotonic, handed: HandedInode) {
        let HandedInode { fid: _, holding, attr, seen, xattrs, target, dir, parent, pages } = handed;
        (self.attr, self.holding, self.fetched) = (Some(attr), Some(holding), now);
        (self.told, self.seen) = (attr.version, seen.max(attr.version));
        self.xattrs = match xattrs {
            None => Xattrs::Unknown,
            Some(list) if list.is_empty() => Xattrs::None,
            Some(list) => Xattrs::All(Arc::new(list)),
        };
        (self.target, self.parent) = (target, parent);
        self.kernel.data = pages;
        self.dir = dir.map(|dir| Box::new(Directory::handed(now, dir)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::opens::tests::plain;
    use crate::config::{CacheConfig, WritePolicy};
    use crate::hooks::NoKernel;
    use soda_types::{Epoch, FileKind, Grant, Ino, Mode, Scope, SessionId, Term, VolumeId};
    use std::time::Duration;

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    fn state() -> State {
        let cache = CacheConfig::default();
        let mut state =
            State::new(&cache, Consistency::Lease, WritePolicy::Through, Arc::default(), Arc::new(NoKernel));
        state.holder.start_session(at(1), at(1), SessionId(1), Duration::from_secs(30));
        state
    }

    /// What is known of this inode under a lease.
    fn learn(state: &mut State, ino: u64) {
        let ticket = state.holder.begin_request(at(1));
        let (scope, mode, term) = (Scope::Node, Mode::Write, Term::Session);
        let grant = Grant { fid: fid(ino), scope, mode, epoch: Epoch(ino), term };
        state.accept(at(1), ticket, (&[grant], &[]));
        state.learn_attr(at(1), ticket, fid(ino), &plain(fid(ino)));
    }

    fn heir(state: &State) -> State {
        let bytes = postcard::to_stdvec(&state.hand_over(at(2))).unwrap();
        let mut heir = self::state();
        heir.take_over(at(2), postcard::from_bytes(&bytes).unwrap());
        heir
    }

    fn is_known(state: &mut State, ino: u64) -> bool {
        state.peek_attr(at(2), fid(ino)).is_some()
    }

    #[test]
    fn what_is_known_passes_with_its_lease() {
        let mut old = state();
        (2..=4).for_each(|ino| learn(&mut old, ino));
        let value = Bytes::from_static(b"value");
        let list = vec![(b"user.one".to_vec(), value)];
        old.set_xattrs(at(1), fid(2), Xattrs::All(Arc::new(list.clone())));
        old.set_xattrs(at(1), fid(3), Xattrs::None);
        old.set_target(at(1), fid(3), Bytes::from_static(b"elsewhere"));
        old.met(fid(2), fid(4));
        let present = Known::Present { fid: fid(2), kind: FileKind::File };
        old.with_names(at(1), fid(4), |dir| {
            dir.set(at(1), &name("one"), present);
            dir.set(at(1), &name("none"), Known::Absent);
            dir.set_parent(fid(3));
        });
        let mut new = heir(&old);
        assert!([2, 3, 4].into_iter().all(|ino| is_known(&mut new, ino)));
        assert!(matches!(&new.inode(fid(2)).xattrs, Xattrs::All(all) if **all == list));
        assert!(matches!(new.inode(fid(3)).xattrs, Xattrs::None));
        assert!(matches!(new.inode(fid(4)).xattrs, Xattrs::Unknown));
        assert_eq!(new.target(fid(3)).as_deref(), Some(&b"elsewhere"[..]));
        assert_eq!(new.inode(fid(2)).parent, Some(fid(4)));
        let found = ["one", "none", "other"].map(|text| new.peek_name(at(2), fid(4), &name(text)));
        assert_eq!(found, [Some(present), Some(Known::Absent), None]);
        assert_eq!(new.inode(fid(4)).directory().parent(), Some(fid(3)));
        assert_eq!(new.metadata_bytes(), old.metadata_bytes());
        // The whole directory: then what is not there is known, too.
        old.inode(fid(4)).directory().complete = Complete::Yes;
        assert_eq!(heir(&old).peek_name(at(2), fid(4), &name("other")), Some(Known::Absent));
    }

    #[test]
    fn a_name_that_is_not_known_is_not_absent_there() {
        let mut old = state();
        learn(&mut old, 4);
        old.inode(fid(4)).directory().complete = Complete::Yes;
        old.inode(fid(4)).directory().doubt(&name("one"));
        old.with_names(at(1), fid(4), |dir| dir.begin_change(at(1), &name("one")));
        let mut new = heir(&old);
        assert!(is_known(&mut new, 4));
        assert_eq!(new.peek_name(at(2), fid(4), &name("one")), None);
    }

    #[test]
    fn what_is_not_settled_does_not_pass() {
        let mut old = state();
        (2..=6).for_each(|ino| learn(&mut old, ino));
        old.inode(fid(2)).changes.unanswered = 1;
        old.inode(fid(3)).log.records = 1;
        old.inode(fid(4)).told = Version(0);
        old.inode(fid(5)).holding = Some(Holding(Epoch(4)));
        let mut new = heir(&old);
        let known = [2, 3, 4, 5, 6].map(|ino| is_known(&mut new, ino));
        assert_eq!(known, [false, false, false, false, true]);
        assert!(new.covered_for_writing(at(2), fid(4)), "its lease does");
    }

    #[test]
    fn pages_stay_that_a_lease_covers_and_are_as_old_as_the_attributes() {
        let mut old = state();
        (2..=6).for_each(|ino| learn(&mut old, ino));
        (2..=5).for_each(|ino| old.inode(fid(ino)).note_fill());
        old.inode(fid(3)).note_recent(at(1), None, Some(0..9));
        old.inode(fid(4)).note_recent(at(1), None, None);
        old.inode(fid(5)).changes.unanswered = 1;
        let new = heir(&old);
        let keeps = |ino, version| new.may_keep_pages(at(2), fid(ino), Version(version));
        assert_eq!([2, 3, 4, 5, 6].map(|ino| keeps(ino, 1)), [true, false, true, false, false]);
        assert!(!keeps(2, 2) && !keeps(9, 1));
        assert!(!new.may_keep_pages(at(100), fid(2), Version(1)), "the session is over");
        let mut new = new;
        let plan = crate::kernel::Plan::new(&mut new, at(2), fid(2), None);
        assert_eq!(plan.data, Some(0..u64::MAX), "whoever asks has them dropped");
    }

    /// It may have to drop them still.
    #[test]
    fn pages_of_what_was_rewritten_do_not_stay_where_the_next_process_is_followed_by_another_either() {
        let mut old = state();
        (2..=4).for_each(|ino| learn(&mut old, ino));
        (2..=4).for_each(|ino| old.inode(fid(ino)).note_fill());
        old.inode(fid(3)).note_recent(at(1), None, Some(0..9));
        old.inode(fid(4)).note_recent(at(1), None, Some(0..9));
        // That one does not pass.
        old.inode(fid(4)).changes.unanswered = 1;
        let mut new = heir(&old);
        learn(&mut new, 4);
        (2..=4).for_each(|ino| new.inode(fid(ino)).note_fill());
        let third = heir(&new);
        let keeps = |ino| third.may_keep_pages(at(2), fid(ino), Version(1));
        assert_eq!([2, 3, 4].map(keeps), [true, false, false]);
    }

    #[test]
    fn where_the_clock_is_another_no_lease_passes_and_what_was_rewritten_was_so_just_now() {
        let mut old = state();
        (2..=3).for_each(|ino| learn(&mut old, ino));
        (2..=3).for_each(|ino| old.inode(fid(ino)).note_fill());
        old.inode(fid(3)).note_recent(at(1), None, Some(0..9));
        let mut new = state();
        let handed = old.hand_over(at(2)).without_times(at(1000));
        new.take_over(at(1000), handed);
        assert!(!is_known(&mut new, 2) && !new.covered_for_writing(at(2), fid(2)));
        let is_rewritten = |ino| new.peek(fid(ino)).is_some_and(|inode| inode.rewritten(at(1050)).is_some());
        assert_eq!([2, 3].map(is_rewritten), [false, true]);
    }

    #[test]
    fn what_is_served_there_is_recalled_there() {
        let mut old = state();
        learn(&mut old, 2);
        let mut new = heir(&old);
        assert!(new.holder.release(at(2), fid(2)).is_some());
        assert!(!is_known(&mut new, 2));
    }
}
