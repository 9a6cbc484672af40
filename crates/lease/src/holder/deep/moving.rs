//! Own moves: what is moved is at both places while the server has not heard of it, and where the new one hangs together with the
//! lease that covers it may not be known. See [`Holder::begin_move`].

use super::links::Links;
use super::{Deep, Holder, Ticket};
use soda_types::{Coverage, Fid};

impl Deep {
    /// The request has its answer: what it moved may have been told of, as it lay before, by those that were on the way with it.
    pub(in crate::holder) fn end_move(&mut self, number: u64, until: u64) {
        for fid in self.moving.remove(&number).unwrap_or_default() {
            self.news.note_move(fid, until);
            let ends = (fid, number, Fid::default());
            while let Some(end) = self.bound_for.range(ends..).next().copied()
                && (end.0, end.1) == (fid, number)
            {
                self.bound_for.remove(&end);
            }
            let bar = self.bars.entry(fid).or_default();
            bar.moved_until = bar.moved_until.max(until);
            self.bar_order.push_back((until, fid));
        }
    }

    fn start_move(&mut self, number: u64, fid: Fid, to: Option<Fid>) {
        self.moving.entry(number).or_default().push(fid);
        self.displaced.insert(fid);
        let Some(to) = to else { return };
        self.bound_for.insert((fid, number, to));
        self.link_moving(fid);
        self.unmoor(fid, to);
        let members = &self.members;
        self.links.prune(fid, |fid| members.contains_key(&fid));
    }

    /// What is being moved is at its new place beside the old one: whoever asks for either directory asks for it. The new one may
    /// be covered only later: one that was made here is when the server hears of it, and of the move.
    pub(super) fn link_moving(&mut self, fid: Fid) {
        let from = (fid, 0, Fid::default());
        for (_, _, to) in self.bound_for.range(from..).take_while(|end| end.0 == fid) {
            self.links.add(*to, fid);
        }
    }

    /// What comes into a directory from which no links lead up to the lease that covers it (a node lease may be all that this
    /// client has had there) would not be found by who asks for one of those between.
    fn unmoor(&mut self, fid: Fid, to: Fid) {
        let above = self.links.above(to);
        if self.roots.keys().all(|root| above.contains(root)) {
            return;
        }
        let below = self.links.below(fid);
        let known = |root: &Fid| above.contains(root) || below.contains(root);
        let unmoored = |fid: &&Fid| self.members.get(fid).is_some_and(|member| !known(&member.root));
        self.unmoored.extend(below.iter().filter(unmoored));
    }

    /// How the member hangs together with its lease was said, and is so.
    pub(super) fn moor(&mut self, fid: Fid) {
        let root = self.members.get(&fid).map(|member| member.root);
        if self.unmoored.contains(&fid) && root.is_some_and(|root| self.links.above(fid).contains(&root)) {
            self.unmoored.remove(&fid);
        }
    }

    /// A lease on a directory stands behind what is below it. Links to what this client has moved
    /// itself, or others may have moved, may be old.
    pub(super) fn moor_below(&mut self, directory: Fid) {
        let mut next = if self.unmoored.is_empty() { Vec::new() } else { vec![directory] };
        while let Some(fid) = next.pop() {
            self.unmoored.remove(&fid);
            let elsewhere = |fid: &Fid| self.displaced.contains(fid) || self.strayed.contains(fid);
            next.extend(Links::of(&self.links.down, fid).filter(|child| !elsewhere(child)));
        }
    }

    /// What is said to lie in a directory. If it was in another one before, somebody has moved it, and there may be old links.
    pub(super) fn link_said(&mut self, directory: Fid, fid: Fid) {
        if Links::of(&self.links.up, fid).any(|known| known != directory) {
            self.strayed.insert(fid);
        }
        self.links.add(directory, fid);
    }

    /// The object, or a directory above it, is being moved by this client: the answer may be of before or after that.
    pub(super) fn is_moving(&self, covered: &Coverage) -> bool {
        let moving = |fid: &Fid| {
            self.bound_for.range((*fid, 0, Fid::default())..).next().is_some_and(|(moved, ..)| moved == fid)
        };
        !self.bound_for.is_empty() && std::iter::once(&covered.fid).chain(&covered.above).any(moving)
    }

    /// Something on the way from a member up to its lease is being moved to where nobody knows the way.
    pub(super) fn is_bound_for_unknown(&self, covered: &Coverage) -> bool {
        let unknown = |fid: &Fid| {
            let ends = self.bound_for.range((*fid, 0, Fid::default())..).take_while(|end| end.0 == *fid);
            ends.into_iter().any(|(_, _, to)| !self.links.above(*to).contains(&covered.root))
        };
        std::iter::once(&covered.fid).chain(&covered.above).any(unknown)
    }
}

impl Holder {
    /// Call before a request is sent that moves `fid` into the directory `to`, or with `None` gives it a name beside or takes one
    /// from it: its ticket.
    ///
    /// What is cached stays: if it leaves the reach of the deep lease that covers it, the server gives the mover other leases
    /// with the move, on the object and on what is below, and asks for these what it would have asked for the deep one. Own
    /// delayed changes of its names must be with the server before, and those of the directories concerned.
    pub fn begin_move(&mut self, ticket: Ticket, fid: Fid, to: Option<Fid>) {
        self.deep.start_move(ticket.number, fid, to);
    }

    /// As [`Holder::begin_move`] for a move that was made here and that the server is told later. Ends with
    /// [`Holder::end_own_move`].
    pub fn begin_own_move(&mut self, fid: Fid, to: Option<Fid>) -> u64 {
        let number = self.tick();
        self.deep.start_move(number, fid, to);
        number
    }

    /// The server has been told, or never will be.
    pub fn end_own_move(&mut self, number: u64) {
        let until = self.clock;
        self.deep.end_move(number, until);
    }
}
