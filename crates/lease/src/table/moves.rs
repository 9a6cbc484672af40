//! What has moved lately: a place that was looked up before is out of date only if something that it rests on has moved since. If
//! any move made all places void, a plan for a thousand inodes would never be done in time beside somebody who renames all day.

use super::output::{Ancestors, TreeVersion};
use soda_types::Fid;
use std::collections::{BTreeMap, VecDeque};

/// The last moves that the table has heard of, and their count.
#[derive(Debug, Default)]
pub(super) struct Moves {
    version: u64,
    last: BTreeMap<Fid, u64>,
    order: VecDeque<(u64, Fid)>,
    /// Of moves until then nobody remembers what they moved.
    forgotten: u64,
}

impl Moves {
    const MOST: usize = 10_000;

    pub(super) fn version(&self) -> TreeVersion {
        TreeVersion(self.version)
    }

    /// These have moved, or have got or lost names, all at once.
    pub(super) fn note(&mut self, fids: impl Iterator<Item = Fid>) {
        self.version += 1;
        for fid in fids {
            self.last.insert(fid, self.version);
            self.order.push_back((self.version, fid));
        }
        while self.order.len() > Moves::MOST
            && let Some((version, fid)) = self.order.pop_front()
        {
            self.forgotten = version;
            if self.last.get(&fid) == Some(&version) {
                self.last.remove(&fid);
            }
        }
    }

    /// Neither the object nor anything above it has moved since its place was looked up. Of an unknown place: true.
    pub(super) fn is_current(&self, fid: Fid, ancestors: &Ancestors) -> bool {
        let (as_of, above) = match ancestors {
            Ancestors::Unknown => return true,
            Ancestors::Chain(as_of, chain) => (as_of, &chain[..]),
            Ancestors::Several(as_of) => (as_of, &[][..]),
        };
        let stayed = |fid: &Fid| self.last.get(fid).is_none_or(|moved| *moved <= as_of.0);
        as_of.0 >= self.forgotten && std::iter::once(&fid).chain(above).all(stayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    fn f(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    #[test]
    fn a_place_is_out_of_date_when_something_on_its_path_has_moved() {
        let mut moves = Moves::default();
        let before = moves.version();
        moves.note([f(3)].into_iter());
        let after = moves.version();
        let current = |as_of, ino, above: &[u64]| {
            let chain = above.iter().map(|ino| f(*ino)).collect();
            moves.is_current(f(ino), &Ancestors::Chain(as_of, chain))
        };
        assert!(current(before, 5, &[2, 1]) && current(after, 5, &[3, 1]) && current(after, 3, &[1]));
        assert!(!current(before, 5, &[3, 1]) && !current(before, 3, &[1]));
        assert!(!moves.is_current(f(3), &Ancestors::Several(before)));
        assert!(moves.is_current(f(3), &Ancestors::Unknown));
    }

    #[test]
    fn what_is_older_than_the_memory_is_out_of_date() {
        let mut moves = Moves::default();
        let first = moves.version();
        (0..Moves::MOST as u64).for_each(|ino| moves.note([f(ino)].into_iter()));
        let place = |as_of| Ancestors::Chain(as_of, vec![f(20_001)]);
        assert!(moves.is_current(f(20_000), &place(first)));
        let second = moves.version();
        moves.note([f(7)].into_iter());
        assert!(!moves.is_current(f(20_000), &place(first)) && moves.is_current(f(20_000), &place(second)));
        assert!(moves.last.len() <= Moves::MOST);
    }
}
