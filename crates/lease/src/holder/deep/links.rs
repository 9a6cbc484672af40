//! What is in which directory, as far as it was said, or follows from own moves.

use serde::{Deserialize, Serialize};
use soda_types::Fid;
use std::collections::BTreeSet;

/// Directories and what is in them, both ways.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Links {
    pub(super) down: BTreeSet<(Fid, Fid)>,
    pub(super) up: BTreeSet<(Fid, Fid)>,
}

impl Links {
    pub(super) fn add(&mut self, directory: Fid, fid: Fid) {
        self.down.insert((directory, fid));
        self.up.insert((fid, directory));
    }

    pub(super) fn of(set: &BTreeSet<(Fid, Fid)>, fid: Fid) -> impl Iterator<Item = Fid> {
        set.range((fid, Fid::default())..).take_while(move |(from, _)| *from == fid).map(|(_, to)| *to)
    }

    /// The object and all that is linked below it.
    pub(super) fn below(&self, fid: Fid) -> BTreeSet<Fid> {
        Links::reached(&self.down, fid)
    }

    /// The object and all that it is linked below.
    pub(super) fn above(&self, fid: Fid) -> BTreeSet<Fid> {
        Links::reached(&self.up, fid)
    }

    fn reached(set: &BTreeSet<(Fid, Fid)>, fid: Fid) -> BTreeSet<Fid> {
        let mut found = BTreeSet::from([fid]);
        let mut next = vec![fid];
        while let Some(fid) = next.pop() {
            next.extend(Links::of(set, fid).filter(|other| found.insert(*other)));
        }
        found
    }

    /// Forgets what it lies in.
    pub(super) fn cut(&mut self, fid: Fid) {
        for directory in Links::of(&self.up, fid).collect::<Vec<_>>() {
            self.up.remove(&(fid, directory));
            self.down.remove(&(directory, fid));
        }
    }

    /// Forgets how to get to what nobody wants to get to.
    pub(super) fn prune(&mut self, fid: Fid, wanted: impl Fn(Fid) -> bool) {
        let mut next = vec![fid];
        while let Some(fid) = next.pop() {
            if wanted(fid) || Links::of(&self.down, fid).next().is_some() {
                continue;
            }
            for directory in Links::of(&self.up, fid).collect::<Vec<_>>() {
                self.up.remove(&(fid, directory));
                self.down.remove(&(directory, fid));
                next.push(directory);
            }
        }
    }
}
