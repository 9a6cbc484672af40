//! Names that are going to be asked for: who looks several of one directory up, present ones or absent ones, asks for more. Far
//! from the server each would cost a round trip (`git status`, `git grep`, a compiler's search for headers); all names and their
//! attributes together, as a listing brings them, cost one or a few.
//!
//! *When?* From the fourth name on that the server is asked for, under a lease on the directory, which says how many names it
//! has: no more than [`FOR_EACH`] are listed for each that was asked for. So in a large directory it takes more, and in one of
//! more than [`MOST_NAMES`], or than the room for metadata is large for, it is never done.
//!
//! *In the next directory?* Who goes through a tree would begin anew in each. So names that are found in such a listing give
//! credit, with which the first look-up in another directory is enough; listings that nobody needed use it up.
//!
//! *Where others change names all the time?* A listing whose names are dropped before as many were found in it as are asked for
//! before one was made in vain. After each such one twice as many are asked for first, up to [`MOST_DOUBLED`] times; credit does
//! not help there.

use super::State;
use super::names::{Complete, Directory};
use crate::config::Consistency;
use soda_types::semantics::ENTRY_SIZE;
use soda_types::{Fid, Monotonic};

/// Names that are asked for one by one before the others are.
const ENOUGH: u32 = 4;
/// How often that is doubled at most: then who looks names up asks for one listing more in so many messages.
const MOST_DOUBLED: u32 = 4;
/// Names that are listed for each that was asked for.
const FOR_EACH: u64 = 256;
/// Larger directories are not listed for it.
const MOST_NAMES: u64 = 1 << 14;
/// Most of [`NamesAhead::credit`]: some directories in which nothing was needed.
const MOST_CREDIT: u32 = 64;

#[derive(Debug, Default)]
pub(crate) struct NamesAhead {
    /// Names that were found in a listing made for that, less what listings cost that were begun early.
    credit: u32,
}

/// What of a directory was asked for since its names were last dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    names: u32,
    /// It was listed before somebody asked for a listing.
    listed: bool,
    /// Names that were found since then.
    found: u32,
    /// Listings one after the other that were made in vain.
    in_vain: u32,
}

impl Asked {
    /// Names that are asked for one by one before the others are.
    fn enough(&self) -> u32 {
        ENOUGH << self.in_vain.min(MOST_DOUBLED)
    }

    /// As it begins when the names are dropped.
    fn next(&self) -> Asked {
        let in_vain = match self.listed {
            false => self.in_vain,
            true if self.found >= ENOUGH => 0,
            true => self.in_vain.saturating_add(1),
        };
        Asked { in_vain, ..Asked::default() }
    }
}

/// Whether to list a directory now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum List {
    Now,
    NotNow,
}

impl State {
    /// The server is asked for a name. `again`: if all names are asked for now, not before that.
    pub(crate) fn note_name_asked(&mut self, now: Monotonic, dir: Fid, again: Monotonic) -> List {
        if self.consistency != Consistency::Lease {
            return List::NotNow;
        }
        let entries = self.peek_attr(now, dir).map(|attr| attr.size / ENTRY_SIZE);
        let few = entries.filter(|entries| *entries <= MOST_NAMES && self.room.is_large_for(*entries));
        let trusted = self.names_ahead.credit >= ENOUGH;
        let names = self.inode(dir).directory();
        names.asked.names = names.asked.names.saturating_add(1);
        let Some(entries) = few else { return List::NotNow };
        let (asked, one_by_one) = (names.asked.names, names.asked.enough());
        let trusted = trusted && names.asked.in_vain == 0;
        let enough = (asked >= one_by_one || trusted) && entries <= u64::from(asked) * FOR_EACH;
        if !enough || names.complete == Complete::Yes || names.learning_until > now {
            return List::NotNow;
        }
        names.learning_until = again;
        names.asked = Asked { names: 0, listed: true, ..names.asked };
        if asked < one_by_one {
            self.names_ahead.credit -= ENOUGH;
        }
        List::Now
    }

    /// A name was asked for, and the cache knew it.
    pub(crate) fn note_name_found(&mut self, dir: Fid) {
        let names = self.inodes.get_mut(&dir).and_then(|inode| inode.dir.as_mut());
        let Some(names) = names.filter(|names| names.asked.listed) else { return };
        names.asked.found = names.asked.found.saturating_add(1);
        self.names_ahead.credit = MOST_CREDIT.min(self.names_ahead.credit + 1);
    }
}

impl Directory {
    /// Its names were dropped: what is asked for from now on counts anew.
    pub(super) fn forget_asked(&mut self) {
        self.asked = self.asked.next();
    }
}
