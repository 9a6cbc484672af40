//! Whether who asks for a file's attributes goes on to read it.
//!
//! *The problem.* After a recall a reader asks twice: its kernel wants to know how long the file is by now, then for its pages.
//! One round trip would do, if the first question could say that data are wanted, too. But stat(2) and what comes before
//! open(2) are the same question.
//!
//! *Answers that do not do.* Data with all attributes: `ls -l` would move all files. The lease with all attributes: where
//! another machine delays its changes, it would have to tell what nobody reads.
//!
//! *What is done.* What followed the last time is taken to follow again. Of a file that was read since its attributes were
//! asked for last, its data are asked for with them. If its holder had described it that time (`recall/inquiries.rs`), which was
//! for nothing, it is not asked to again, but for its lease at once. Each guess is good for one question: before the next one
//! there has to be a read. So for each read here at most one small file is fetched for nothing, or one holder disturbed.

use super::State;
use super::inode::Origin;
use super::readahead::RANDOM_UNIT;
use crate::config::Consistency;
use soda_protocol::FromHolder;
use soda_types::{Fid, Version};

/// Larger files are not fetched with their attributes, bytes: recalls go on the same connection.
pub(crate) const MOST: u32 = RANDOM_UNIT as u32;

/// What attributes are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    /// For themselves, as far as anybody says.
    Attributes,
    /// By who needs the lease, too.
    Lease,
    /// By who is about to read.
    Data,
}

/// What is asked for with the attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Besides {
    /// The version of the data, if they are here.
    pub(crate) known: Option<Version>,
    pub(crate) holder: FromHolder,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Followed {
    #[default]
    Nothing,
    Read,
    /// What its holder had said of it was not enough.
    ReadAfterDescription,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Leases {
    #[default]
    Given,
    /// The last data that came with attributes had none: they could not be kept.
    Refused,
}

/// Of a file, how it is used here.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// What has happened since its attributes were asked for.
    followed: Followed,
    /// What has happened if it is read now.
    if_read: Followed,
    leases: Leases,
}

impl Reading {
    /// A program reads it.
    pub(crate) fn note_read(&mut self) {
        self.followed = self.if_read.max(Followed::Read);
    }

    pub(crate) fn note_leased(&mut self) {
        self.leases = Leases::Given;
    }

    /// Data came with its attributes and cannot be kept.
    pub(crate) fn note_refused(&mut self) {
        self.leases = Leases::Refused;
    }
}

impl State {
    /// The attributes are about to be asked for. `None`: nothing else.
    pub(crate) fn ask_besides(&mut self, fid: Fid, asks: Asks) -> Option<Besides> {
        let known = self.memory.version_of_all(fid);
        let has_room = self.memory.limit() >= u64::from(MOST);
        let keeps = has_room && self.consistency == Consistency::Lease;
        let inode = self.existing(fid)?;
        let expected = std::mem::take(&mut inode.reading.followed);
        let described_in_vain = asks != Asks::Attributes && inode.hearsay;
        inode.reading.if_read = if described_in_vain { Followed::ReadAfterDescription } else { expected };
        let is_quiet = inode.log.origin == Origin::AtServer
            && inode.log.records == 0
            && inode.changes.unanswered == 0
            && inode.dir.is_none();
        let is_wanted = asks == Asks::Data || expected != Followed::Nothing;
        let holder = match (asks, expected) {
            (Asks::Attributes, Followed::Nothing | Followed::Read) => FromHolder::Attributes,
            _ => FromHolder::Lease,
        };
        let asked = keeps && is_quiet && is_wanted && inode.reading.leases == Leases::Given;
        asked.then_some(Besides { known, holder })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CacheConfig, WritePolicy};
    use crate::hooks::NoKernel;
    use soda_types::{Ino, VolumeId};
    use std::sync::Arc;

    const FILE: Fid = Fid { volume: VolumeId(1), ino: Ino(2), generation: 0 };

    fn state() -> State {
        let cache = CacheConfig::default();
        let mut state =
            State::new(&cache, Consistency::Lease, WritePolicy::Through, Arc::default(), Arc::new(NoKernel));
        state.inode(FILE);
        state
    }

    fn holder(state: &mut State, asks: Asks) -> Option<FromHolder> {
        state.ask_besides(FILE, asks).map(|besides| besides.holder)
    }

    #[test]
    fn what_followed_the_last_time_is_expected_once() {
        let mut state = state();
        assert_eq!(holder(&mut state, Asks::Attributes), None);
        assert_eq!(holder(&mut state, Asks::Lease), None, "nothing was ever read");
        state.inode(FILE).reading.note_read();
        assert_eq!(holder(&mut state, Asks::Attributes), Some(FromHolder::Attributes));
        assert_eq!(holder(&mut state, Asks::Attributes), None, "nobody has read it since");
        state.inode(FILE).reading.note_read();
        assert_eq!(holder(&mut state, Asks::Lease), Some(FromHolder::Lease));
        assert_eq!(holder(&mut state, Asks::Data), Some(FromHolder::Lease), "who says so is believed");
    }

    #[test]
    fn a_description_that_was_not_enough_is_not_asked_for_again_as_long_as_that_is_so() {
        let mut state = state();
        state.inode(FILE).hearsay = true;
        assert_eq!(holder(&mut state, Asks::Attributes), None);
        assert_eq!(holder(&mut state, Asks::Data), Some(FromHolder::Lease));
        state.inode(FILE).hearsay = false;
        for _ in 0..3 {
            state.inode(FILE).reading.note_read();
            assert_eq!(holder(&mut state, Asks::Attributes), Some(FromHolder::Lease));
        }
        assert_eq!(holder(&mut state, Asks::Attributes), None);
        state.inode(FILE).reading.note_read();
        assert_eq!(holder(&mut state, Asks::Attributes), Some(FromHolder::Attributes), "it may do now");
    }

    #[test]
    fn what_cannot_be_kept_is_not_fetched() {
        let mut state = state();
        state.inode(FILE).reading.note_refused();
        assert_eq!(holder(&mut state, Asks::Data), None);
        state.inode(FILE).reading.note_leased();
        assert!(holder(&mut state, Asks::Data).is_some());
        state.inode(FILE).changes.unanswered = 1;
        assert_eq!(holder(&mut state, Asks::Data), None, "only the server knows what is in it");
        state.inode(FILE).changes.unanswered = 0;
        state.memory = crate::cache::extents::Memory::new(u64::from(MOST) - 1);
        assert_eq!(holder(&mut state, Asks::Data), None);
    }
}
