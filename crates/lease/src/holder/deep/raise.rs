//! What a deep read lease covers already becomes part of a deep write lease on a directory above it.
//!
//! The server gives that only if nobody else has anything below; and nobody else has moved what this client has read there all
//! the time, since that would have been asked for. So it is where it was when it was said to be covered, unless this client
//! has moved it, or a directory between, itself, or that was asked for alone: that is left out. What has a lease of its own
//! keeps to that one; what is below is not left out for it. A lease that this client got because it has moved the
//! directory has holes, and is left out; where the answer with it was lost, what the next one says of its members counts.

use super::links::Links;
use super::{Deep, Holder, Member, Ticket};
use soda_types::{Fid, Mode};

impl Deep {
    /// What is known to lie below the directory for certain.
    fn certainly_below(&self, directory: Fid, ticket: Ticket) -> Vec<Fid> {
        let bar = |fid: &Fid| self.bars.get(fid);
        let emptied = |fid: &Fid| bar(fid).is_some_and(|bar| ticket.number <= bar.below_until);
        let mut found = Vec::new();
        let mut next = vec![directory];
        while let Some(fid) = next.pop() {
            if emptied(&fid) {
                continue;
            }
            for child in Links::of(&self.links.down, fid) {
                let known = self.members.get(&child).is_some_and(|member| member.recalls == 0);
                let asked = bar(&child).is_some_and(|bar| ticket.number <= bar.until.max(bar.moved_until));
                let elsewhere = self.displaced.contains(&child)
                    || self.strayed.contains(&child)
                    || self.adrift.contains(&child);
                if known && !asked && !elsewhere {
                    found.push(child);
                    next.push(child);
                }
            }
        }
        found
    }

    /// Forgets that it was moved, when nothing is left that could be wrong about where it is.
    pub(super) fn tidy_displaced(&mut self, fid: Fid) {
        let linked = Links::of(&self.links.down, fid).chain(Links::of(&self.links.up, fid)).next().is_some();
        if !linked && !self.members.contains_key(&fid) && !self.bars.contains_key(&fid) {
            let on_the_way = self.moving.values().any(|moved| moved.contains(&fid));
            if !on_the_way {
                self.displaced.remove(&fid);
                self.strayed.remove(&fid);
            }
        }
    }
}

impl Holder {
    /// These grants came with this request's answer. Its coverage is known: it may say how to get from the new lease's directory
    /// to that of the old one.
    pub(in crate::holder) fn raise_below(&mut self, ticket: Ticket) {
        for grant in std::mem::take(&mut self.deep.raising) {
            if grant.mode == Mode::Write && !self.deep.displaced.contains(&grant.fid) {
                self.raise_below_one(ticket, grant.fid);
            }
        }
    }

    fn raise_below_one(&mut self, ticket: Ticket, root: Fid) {
        for fid in self.deep.certainly_below(root, ticket) {
            if self.leases.contains_key(&fid) {
                continue;
            }
            // What the very answer says may be read has a hole for it: a lease that came before may be said again.
            let raised =
                |member: &&mut Member| member.mode == Mode::Read && member.granted_by != ticket.number;
            if let Some(member) = self.deep.members.get_mut(&fid).filter(raised) {
                (member.mode, member.root) = (Mode::Write, root);
            }
        }
    }
}
