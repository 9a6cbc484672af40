//! What a deep read lease covers already becomes part of a deep write lease on a directory above it.
//!
//! The server gives that only if nobody else has anything below; and nobody else has moved what this client has read there all
//! the time, since that would have been asked for. So it is where it was when it was said to be covered, unless this client
//! has moved it, or a directory between, itself, or that was asked for alone: that is left out. What has a lease of its own
//! keeps to that one; what is below is not left out for it. A lease that this client got because it has moved the
//! directory has holes, and is left out.
//!
//! Only the answer that brings the lease raises anything. Where that was lost, others may have been let in by the time that the
//! next one names it, and this client was asked for nothing that it did not know. So a lease that may be older than that
//! ([`News`]) is one like any other: what is said of its members counts.

use super::links::Links;
use super::{Deep, Holder, Member, Ticket};
use serde::{Deserialize, Serialize};
use soda_types::{Epoch, Fid, Grant, Mode, Scope};
use std::collections::BTreeSet;

/// Which deep leases were certainly given by the request that is answered. Epochs only grow, and a node lease gets a new one each
/// time that it is given; so what has a later one than has been heard of is new. But for what the server gave with an own move:
/// that is not, if the answer has been lost, until a node lease has come that was asked for after the move.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct News {
    /// The latest epoch that has been heard of.
    latest: Epoch,
    /// What own moves moved that have ended, and no answer to a request that was sent later has brought a node lease.
    moved: BTreeSet<Fid>,
    /// Too many of them.
    much_moved: bool,
    moved_until: u64,
    /// What the answer brings that is being taken in is new if it is later than this,
    #[serde(skip)]
    than: Epoch,
    /// and later than this, if it was moved.
    #[serde(skip)]
    than_moves: Option<Epoch>,
}

impl News {
    const MOST: usize = 1000;

    pub(super) fn note_move(&mut self, fid: Fid, until: u64) {
        self.moved_until = until;
        self.much_moved |= self.moved.len() >= News::MOST;
        if !self.much_moved {
            self.moved.insert(fid);
        }
    }

    fn begin_answer(&mut self, ticket: Ticket, grants: &[Grant]) {
        let nodes = grants.iter().filter(|grant| grant.scope == Scope::Node);
        self.than_moves = nodes.map(|grant| grant.epoch).min().filter(|_| ticket.number > self.moved_until);
        self.than = self.latest;
        self.latest = grants.iter().map(|grant| grant.epoch).fold(self.latest, Epoch::max);
    }

    fn has(&self, grant: &Grant) -> bool {
        let was_moved = self.much_moved || self.moved.contains(&grant.fid);
        let is_later = || self.than_moves.is_some_and(|epoch| grant.epoch > epoch);
        grant.epoch > self.than && (!was_moved || is_later())
    }

    fn end_answer(&mut self) {
        if self.than_moves.is_some() {
            self.much_moved = false;
            self.moved.clear();
        }
    }
}

impl Deep {
    pub(in crate::holder) fn begin_answer(&mut self, ticket: Ticket, grants: &[Grant]) {
        self.news.begin_answer(ticket, grants);
    }

    pub(in crate::holder) fn note_recall(&mut self, epoch: Epoch) {
        self.news.latest = self.news.latest.max(epoch);
    }

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
            let is_new = self.deep.news.has(&grant) && !self.deep.displaced.contains(&grant.fid);
            if grant.mode == Mode::Write && is_new {
                self.raise_below_one(ticket, grant.fid);
            }
        }
        self.deep.news.end_answer();
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
