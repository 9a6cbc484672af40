//! Directories that are going to be listed: who goes through a tree (`find`, `ls -R`, `du`, `cp -r`) lists what was found in
//! listings. Each would be a message, and far from the server a round trip; those that are likely to be next come along with the
//! one that is asked for, many in one answer.
//!
//! *Which?* What listings had in them and nobody has listed since, in the order of a walk that goes down first. Who goes through
//! the tree in another order finds them all the same, a little later.
//!
//! *How many?* They are listed on credit, which only listing what was found so gives: two for each. So no more is listed for
//! nothing than was found so, and who goes on has twice as many come along each time.
//!
//! *For whom?* Only what is known under a lease that is here already is asked for, and only what nobody else may change comes.

use super::State;
use super::names::Complete;
use crate::config::Consistency;
use rustc_hash::FxHashSet;
use soda_protocol::{MAX_NEXT, MAX_NEXT_ENTRIES};
use soda_types::semantics::ENTRY_SIZE;
use soda_types::{Fid, FileKind, Monotonic};
use std::collections::VecDeque;

/// Of directories, for each that is found to have been foreseen.
const CREDIT: u32 = 2;
/// Nobody is believed to go through a tree before he has listed three that were found in it.
const ENOUGH: u32 = 3 * CREDIT;
const MOST_CREDIT: u32 = 2 * MAX_NEXT as u32;
/// Most that are remembered, 16 bytes each.
const MOST_WAITING: usize = 1 << 13;

/// What was found in listings and is not listed yet.
#[derive(Debug, Default)]
pub(crate) struct NextDirs {
    waiting: VecDeque<Fid>,
    /// The same: each is in it once, however often what it is in is listed.
    is_waiting: FxHashSet<Fid>,
    /// They came along with others, and nobody has asked for them yet.
    ahead: FxHashSet<Fid>,
    credit: u32,
}

impl NextDirs {
    /// Somebody lists a directory.
    fn note_listed(&mut self, dir: Fid) {
        let waited = self.is_waiting.remove(&dir);
        if waited && let Some(at) = self.waiting.iter().position(|waiting| *waiting == dir) {
            self.waiting.remove(at);
        }
        if self.ahead.remove(&dir) || waited {
            self.credit = MOST_CREDIT.min(self.credit + CREDIT);
        }
    }

    /// His listing has these directories in it.
    fn note_found(&mut self, found: impl DoubleEndedIterator<Item = Fid>) {
        for dir in found.rev() {
            if !self.ahead.contains(&dir) && self.is_waiting.insert(dir) {
                self.waiting.push_front(dir);
            }
        }
        while self.waiting.len() > MOST_WAITING
            && let Some(last) = self.waiting.pop_back()
        {
            self.is_waiting.remove(&last);
        }
    }

    /// What comes along with the listing that is asked for now. `entries`: how many names a directory has; `None`: it is not
    /// wanted.
    fn choose(&mut self, mut entries: impl FnMut(Fid) -> Option<u64>) -> Vec<Fid> {
        let most = if self.credit < ENOUGH { 0 } else { MAX_NEXT.min(self.credit as usize) };
        let mut room = MAX_NEXT_ENTRIES as u64;
        let mut chosen = Vec::new();
        while chosen.len() < most
            && let Some(dir) = self.waiting.pop_front()
        {
            self.is_waiting.remove(&dir);
            let Some(entries) = entries(dir) else { continue };
            let Some(left) = room.checked_sub(entries) else {
                self.waiting.push_front(dir);
                self.is_waiting.insert(dir);
                break;
            };
            room = left;
            chosen.push(dir);
        }
        self.credit -= chosen.len() as u32;
        if self.ahead.len() + chosen.len() > MOST_WAITING {
            self.ahead.clear();
        }
        self.ahead.extend(chosen.iter().copied());
        chosen
    }
}

impl State {
    /// Somebody begins to list a directory.
    pub(crate) fn note_listed(&mut self, dir: Fid) {
        if self.consistency == Consistency::Lease {
            self.next_dirs.note_listed(dir);
        }
    }

    /// What was found in a listing that somebody reads, in its order.
    pub(crate) fn note_found(&mut self, listed: impl DoubleEndedIterator<Item = (Fid, FileKind)>) {
        if self.consistency == Consistency::Lease {
            let directories = listed.filter(|(_, kind)| *kind == FileKind::Directory);
            self.next_dirs.note_found(directories.map(|(fid, _)| fid));
        }
    }

    /// What the server may list along with a directory that it is asked for.
    pub(crate) fn next_dirs(&mut self, now: Monotonic) -> Vec<Fid> {
        let mut next_dirs = std::mem::take(&mut self.next_dirs);
        let mut all = 0;
        let chosen = next_dirs.choose(|dir| {
            let attr = self.peek_attr(now, dir)?;
            let names = self.peek(dir).and_then(|inode| inode.dir.as_ref());
            let known =
                names.is_some_and(|names| names.complete == Complete::Yes || names.learning_until > now);
            let entries = attr.size / ENTRY_SIZE;
            let wanted = !known && !self.is_ahead(&[dir]) && self.room.is_large_for(all + entries + 1);
            wanted.then(|| {
                all += entries + 1;
                entries
            })
        });
        self.next_dirs = next_dirs;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    fn fids(inos: std::ops::Range<u64>) -> Vec<Fid> {
        inos.map(fid).collect()
    }

    /// Somebody who goes through a tree of directories of so many names, `each` of them directories, down first. Returns how
    /// often the server was asked, and for how many directories ahead.
    fn walk(next: &mut NextDirs, tree: &mut VecDeque<(u64, u64)>, entries: u64, each: u64) -> (u64, u64) {
        let (mut known, mut made) = (FxHashSet::default(), 1_000_000);
        let (mut asked, mut ahead) = (0, 0);
        while let Some((dir, depth)) = tree.pop_front() {
            next.note_listed(fid(dir));
            if known.insert(fid(dir)) {
                asked += 1;
                let chosen = next.choose(|dir| (!known.contains(&dir)).then_some(entries));
                ahead += chosen.len() as u64;
                known.extend(chosen);
            }
            if depth > 0 {
                let below = made..made + each;
                made = below.end;
                next.note_found(below.clone().map(fid));
                below.rev().for_each(|dir| tree.push_front((dir, depth - 1)));
            }
        }
        (asked, ahead)
    }

    #[test]
    fn who_goes_through_a_tree_asks_ever_less_often() {
        let mut next = NextDirs::default();
        let (asked, ahead) = walk(&mut next, &mut VecDeque::from([(1, 1)]), 50, 2000);
        assert!(
            asked <= 40 && ahead >= 1960,
            "{asked} for {ahead}: 81 directories of 50 names fit one answer"
        );
        let (asked, ahead) = walk(&mut NextDirs::default(), &mut VecDeque::from([(1, 3)]), 10, 10);
        assert!(asked <= 250 && ahead >= 860, "{asked} for {ahead}");
    }

    #[test]
    fn who_lists_what_nobody_has_found_has_nothing_come_along() {
        let mut next = NextDirs::default();
        for dir in 1..100 {
            next.note_listed(fid(dir));
            assert_eq!(next.choose(|_| Some(1)), []);
        }
        next.note_found(fids(200..300).into_iter());
        assert_eq!(next.choose(|_| Some(1)), [], "three of these first");
    }

    #[test]
    fn no_more_comes_along_for_nothing_than_was_foreseen() {
        let mut next = NextDirs::default();
        next.note_found(fids(1..10_000).into_iter());
        let mut ahead = 0;
        for dir in 1..=4 {
            // Always the last: all that comes along comes in vain.
            next.note_listed(fid(8000 - dir));
            ahead += next.choose(|_| Some(1)).len();
        }
        assert!((6..=8).contains(&ahead), "{ahead}");
    }

    #[test]
    fn what_does_not_fit_waits_and_what_is_not_wanted_is_forgotten() {
        let mut next = NextDirs { credit: MOST_CREDIT, ..NextDirs::default() };
        next.note_found(fids(1..6).into_iter());
        let entries = |dir: Fid| (dir != fid(2)).then_some(MAX_NEXT_ENTRIES as u64 / 2);
        assert_eq!(next.choose(entries), [fid(1), fid(3)]);
        assert_eq!(next.choose(entries), [fid(4), fid(5)]);
        assert_eq!(next.choose(entries), []);
    }

    #[test]
    fn who_lists_the_same_again_and_again_has_nothing_come_twice() {
        let mut next = NextDirs { credit: MOST_CREDIT, ..NextDirs::default() };
        (0..100).for_each(|_| next.note_found(fids(1..6).into_iter()));
        assert_eq!(next.choose(|dir| (dir != fid(4)).then_some(1)), [fid(1), fid(2), fid(3), fid(5)]);
        next.note_found(fids(1..6).into_iter());
        assert_eq!(next.choose(|_| Some(1)), [fid(4)], "the others are on their way");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut next = NextDirs::default();
        for round in 0..100 {
            next.credit = MOST_CREDIT;
            next.note_found(fids(round * 1000..round * 1000 + 1000).into_iter());
            next.choose(|_| Some(0));
        }
        assert!(next.waiting.len() <= MOST_WAITING && next.ahead.len() <= MOST_WAITING);
        assert_eq!(next.waiting.len(), next.is_waiting.len());
    }
}
