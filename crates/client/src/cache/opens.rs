//! Which inodes are open here, and what the server was told of it.
//!
//! The server keeps an inode without a name for as long as a session has it open. A lease is enough for that: whoever wants
//! it removed recalls it, and the answer says whether it is in use. What no lease covers is registered
//! ([`Uses`](super::inode::Uses)) and, once closed, taken off the server's list again.

use super::State;
use super::inode::Inode;
use soda_types::{Fid, InUse, Mode, Monotonic};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// How long the server may take to notice that a connection broke, and how many files are closed in that time at most.
const CLOSED_LATELY: Duration = Duration::from_secs(60);
const MOST_CLOSED_LATELY: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// Inodes that programs have open.
    open: BTreeSet<Fid>,
    /// The server counts them as open here, but nobody has them open any more: to be told to it.
    closed_at_server: Vec<Fid>,
    /// What it was told lately: told again if the connection broke.
    closed_lately: VecDeque<(Monotonic, Fid)>,
}

impl State {
    /// One more has it open.
    pub(crate) fn begin_open(&mut self, fid: Fid) {
        self.inode(fid).uses.opens += 1;
        self.opens.open.insert(fid);
        self.repin(fid);
    }

    /// One less. Says whether that was the last one.
    pub(crate) fn end_open(&mut self, fid: Fid) -> bool {
        let inode = self.inode(fid);
        inode.uses.opens = inode.uses.opens.saturating_sub(1);
        if inode.uses.opens > 0 {
            return false;
        }
        inode.uses.locks_lost = 0;
        self.opens.open.remove(&fid);
        self.repin(fid);
        self.unsynced.forget_told(fid);
        true
    }

    /// For one who has nothing open: whether changes of the inode were lost, and nobody has heard of it.
    pub(crate) fn take_lost(&mut self, fid: Fid) -> bool {
        let lost = self.unsynced.take_lost(fid);
        if !self.is_open(fid) {
            self.unsynced.forget_told(fid);
        }
        lost
    }

    /// All that programs have open.
    pub(crate) fn open_files(&self) -> Vec<Fid> {
        self.opens.open.iter().copied().collect()
    }

    pub(crate) fn is_open(&self, fid: Fid) -> bool {
        self.peek(fid).is_some_and(|inode| inode.uses.opens > 0)
    }

    /// Whether the inode is in use here, in other ways than by open files, too.
    pub(crate) fn in_use(&self, fid: Fid, otherwise: InUse) -> InUse {
        if self.is_open(fid) { InUse::Yes } else { otherwise }
    }

    /// The server was told that the inode is open here.
    pub(crate) fn told_open(&mut self, fid: Fid) {
        let inode = self.inode(fid);
        if inode.uses.opens > 0 {
            inode.uses.open_at_server = InUse::Yes;
        } else {
            inode.uses.open_at_server = InUse::No;
            self.opens.closed_at_server.push(fid);
        }
    }

    /// A new session: the server's list is empty.
    pub(crate) fn nothing_told_open(&mut self) {
        for fid in self.open_files() {
            self.inode(fid).uses.open_at_server = InUse::No;
        }
    }

    /// What is to be taken off the server's list.
    pub(crate) fn take_closed(&mut self) -> Vec<Fid> {
        std::mem::take(&mut self.opens.closed_at_server)
    }

    /// Whether a lease says that the inode has a name, and nobody, here or elsewhere, is about to take it: then the server
    /// can do nothing with the news that it was closed, and hears of it before anything that it could do something with.
    pub(crate) fn keeps_a_name(&self, now: Monotonic, fid: Fid) -> bool {
        let covered = self.holder.valid_until(now, fid, Mode::Read).is_some();
        let quiet = |inode: &Inode| inode.kernel.recalling == 0 && inode.changes.unanswered == 0;
        let named = |inode: &Inode| inode.attr.is_some_and(|attr| attr.nlink > 0);
        covered && self.peek(fid).is_some_and(|inode| quiet(inode) && named(inode))
    }

    pub(crate) fn note_told_closed(&mut self, now: Monotonic, fid: Fid) {
        let lately = &mut self.opens.closed_lately;
        let old = |(at, _): &(Monotonic, Fid)| now.since(*at) > CLOSED_LATELY;
        while lately.front().is_some_and(old) || lately.len() > MOST_CLOSED_LATELY {
            lately.pop_front();
        }
        lately.push_back((now, fid));
    }

    /// What the server may not have heard of before the connection broke.
    pub(crate) fn take_told_closed(&mut self) -> Vec<Fid> {
        let closed = std::mem::take(&mut self.opens.closed_lately).into_iter().map(|(_, fid)| fid);
        closed.filter(|fid| !self.opens.open.contains(fid)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{CacheConfig, Consistency};
    use soda_types::{
        Attr, Epoch, FileKind, Grant, Ino, Mode, Scope, SessionId, Term, Timestamp, Version, VolumeId,
    };
    use std::sync::Arc;

    const TERM: Duration = Duration::from_secs(30);

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    /// Of an empty file.
    pub(crate) fn plain(fid: Fid) -> Attr {
        let zero = Timestamp::new(0, 0);
        Attr {
            ino: fid.ino,
            kind: FileKind::File,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            version: Version(1),
            data_version: Version(1),
        }
    }

    #[test]
    fn only_a_lease_on_an_inode_with_a_name_that_stays_lets_a_close_wait() {
        let fid = Fid::new(VolumeId(1), Ino(2));
        let attr = plain(fid);
        let mut state = State::new(
            &CacheConfig::default(),
            Consistency::Lease,
            crate::config::WritePolicy::Through,
            Arc::default(),
            Arc::new(crate::hooks::NoKernel),
        );
        state.inode(fid).attr = Some(attr);
        assert!(!state.keeps_a_name(at(2), fid), "no lease");
        state.holder.start_session(at(1), at(1), SessionId(1), TERM);
        let ticket = state.holder.begin_request(at(1));
        let (scope, mode, epoch, term) = (Scope::Node, Mode::Read, Epoch(1), Term::Session);
        state.accept(at(1), ticket, (&[Grant { fid, scope, mode, epoch, term }], &[]));
        state.inode(fid).attr = Some(attr);
        assert!(state.keeps_a_name(at(2), fid));
        assert!(!state.keeps_a_name(at(100), fid), "the lease is over");
        state.inode(fid).kernel.recalling = 1;
        assert!(!state.keeps_a_name(at(2), fid), "somebody may be about to remove it");
        state.inode(fid).kernel.recalling = 0;
        state.inode(fid).changes.unanswered = 1;
        assert!(!state.keeps_a_name(at(2), fid), "this client may be about to remove it");
        state.inode(fid).changes.unanswered = 0;
        assert!(state.keeps_a_name(at(2), fid));
        state.inode(fid).attr = Some(Attr { nlink: 0, ..attr });
        assert!(!state.keeps_a_name(at(2), fid), "the server waits for it to delete the inode");
    }
}
