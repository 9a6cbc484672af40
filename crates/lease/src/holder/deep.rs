//! Deep leases held: which objects they cover, and what to do when one of these is asked for.
//!
//! A deep lease covers what the server has said so of ([`Coverage`]), and what this client has made below it
//! ([`Holder::adopt_new`]): its *members*. So a question about an object costs one look-up, however deep it lies, and with node
//! leases alone nothing. The directories between a member and its lease are kept as links; a recall of a directory and all below
//! it takes what is linked below it, and costs as many steps as there is to drop.
//!
//! Who is given a directory alone may move it without another word. Then the server asks for all below it, as of a deep lease on
//! that directory that this client has never heard of. Until that comes what is below may lie elsewhere than it is linked: it
//! is found by its own name and by that of its directory, and is taken for certain nowhere.
//!
//! Own renames: see [`Holder::begin_move`].

mod handed;
mod links;
mod moving;
mod over;
mod raise;
mod recalls;
mod whole;

use super::leases::{Held, Holding};
use super::{Holder, Ticket};
use links::Links;
use over::Over;
use raise::News;
use recalls::Work;
use serde::{Deserialize, Serialize};
use soda_types::{Coverage, Epoch, Fid, Grant, InUse, LeasePart, Mode, Monotonic, RecallAck, Scope};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use whole::Questions;
pub use whole::Scan;

/// All that a client holds by deep leases. What is there only for requests that are on the way does not pass to another process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Deep {
    pub(super) roots: BTreeMap<Fid, Root>,
    pub(super) members: BTreeMap<Fid, Member>,
    links: Links,
    #[serde(skip)]
    work: BTreeMap<Epoch, Work>,
    #[serde(skip)]
    bars: BTreeMap<Fid, PartBar>,
    #[serde(skip)]
    bar_order: VecDeque<(u64, Fid)>,
    over: Over,
    /// Members whose place was said before own moves that are over since: they count as below everything.
    adrift: BTreeSet<Fid>,
    /// Members that an own move has taken into a directory of which nobody has said how it hangs together with their lease: they
    /// count as below everything, too, until that is said, or the move has brought a lease on what was moved.
    unmoored: BTreeSet<Fid>,
    /// What own requests that are on the way move, or changes that the server has not been told.
    #[serde(skip)]
    moving: BTreeMap<u64, Vec<Fid>>,
    /// Of these, by object, what comes into another directory: the object, the request, the directory.
    #[serde(skip)]
    bound_for: BTreeSet<(Fid, u64, Fid)>,
    /// What own requests have moved, as long as there are links to it or from it: these may be old.
    displaced: BTreeSet<Fid>,
    /// What others have asked for and may have moved since, as long as there are links to it or from it.
    strayed: BTreeSet<Fid>,
    /// Grants that came with the answer that is being taken in: what they raise.
    #[serde(skip)]
    raising: Vec<Grant>,
    news: News,
    /// The last request that was sent before a directory was asked for with all below it, or a lease was lowered or given back.
    /// What an answer of before says to lie elsewhere than it has been moved to since may have been below that.
    narrowed: u64,
}

/// A deep lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Root {
    pub(super) grant: Grant,
    pub(super) began: u64,
    granted_by: u64,
    /// All of it was asked for.
    pub(super) is_asked: bool,
    /// It was given for writing, and this client keeps reading.
    lowered: bool,
    /// Answers to requests sent until then say for writing what may only be read since.
    lowered_at: u64,
    #[serde(skip)]
    questions: Questions,
    pub(super) last_used: Monotonic,
}

/// An object that a deep lease covers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Member {
    root: Fid,
    pub(super) mode: Mode,
    pub(super) holding: Holding,
    began: u64,
    granted_by: u64,
    /// Which of all members that the object has been.
    #[serde(skip)]
    number: u64,
    /// Recalls that are being worked on and concern it.
    pub(super) recalls: u32,
    uses: u32,
}

/// Answers to requests sent until then say nothing any more of what is covered.
#[derive(Clone, Debug, Default)]
struct PartBar {
    until: u64,
    /// The same of all that is below.
    below_until: u64,
    /// And of where it lies: it was moved meanwhile.
    moved_until: u64,
    /// And grants of a deep lease on it up to this epoch are refused.
    epoch: Epoch,
}

impl Deep {
    fn remove_member(&mut self, fid: Fid) -> Option<Member> {
        let member = self.members.remove(&fid)?;
        self.adrift.remove(&fid);
        self.unmoored.remove(&fid);
        self.links.prune(fid, |fid| self.members.contains_key(&fid));
        self.tidy_displaced(fid);
        Some(member)
    }

    fn certainly_or_perhaps_below(&self, object: Fid) -> BTreeSet<Fid> {
        let mut all = self.links.below(object);
        all.extend(&self.adrift);
        all.extend(&self.unmoored);
        all
    }

    fn members_of(&self, root: Fid) -> Vec<Fid> {
        self.members.iter().filter(|(_, member)| member.root == root).map(|(fid, _)| *fid).collect()
    }

    /// What would be covered no more without the lease. What was moved below its directory was said of another one.
    fn standing_on(&self, root: Fid) -> Vec<Fid> {
        let mut all = self.certainly_or_perhaps_below(root);
        all.extend(self.members_of(root));
        all.into_iter().filter(|fid| self.members.contains_key(fid)).collect()
    }

    fn remove_root(&mut self, root: Fid, members: Vec<Fid>) -> Vec<Fid> {
        self.roots.remove(&root);
        for fid in &members {
            self.remove_member(*fid);
        }
        members
    }

    pub(super) fn bar(&mut self, fid: Fid, until: u64, scope: Scope) {
        let bar = self.bars.entry(fid).or_default();
        bar.until = bar.until.max(until);
        if scope == Scope::Subtree {
            bar.below_until = bar.below_until.max(until);
        }
        self.bar_order.push_back((until, fid));
    }

    pub(super) fn lift_bars(&mut self, oldest: u64) {
        while let Some((until, fid)) = self.bar_order.front().copied()
            && until < oldest
        {
            self.bar_order.pop_front();
            if self.bars.get(&fid).is_some_and(|bar| bar.until.max(bar.moved_until) <= until) {
                self.bars.remove(&fid);
                self.tidy_displaced(fid);
            }
        }
    }

    fn is_barred(&self, ticket: Ticket, covered: &Coverage) -> bool {
        let below = |fid: &Fid| self.bars.get(fid).is_some_and(|bar| ticket.number <= bar.below_until);
        self.bars.get(&covered.fid).is_some_and(|bar| ticket.number <= bar.until)
            || covered.above.iter().any(below)
    }

    /// What was moved here while the answer was on the way the server may have told of as it lay before.
    fn is_adrift(&self, ticket: Ticket, covered: &Coverage) -> bool {
        let moved = |fid: &Fid| self.bars.get(fid).is_some_and(|bar| ticket.number <= bar.moved_until);
        moved(&covered.fid) || covered.above.iter().any(moved)
    }

    pub(super) fn allows(&self, fid: Fid, mode: Mode) -> bool {
        self.members
            .get(&fid)
            .is_some_and(|member| if member.recalls == 0 { mode <= member.mode } else { mode == Mode::Read })
    }

    pub(super) fn use_it(&mut self, now: Monotonic, fid: Fid, times: u32) -> bool {
        let Some(member) = self.members.get_mut(&fid) else { return false };
        member.uses = member.uses.saturating_add(times);
        if let Some(root) = self.roots.get_mut(&member.root) {
            root.last_used = now;
        }
        true
    }

    pub(super) fn cacheable(&self, ticket: Ticket, fid: Fid) -> Option<Holding> {
        let member = self.members.get(&fid)?;
        let covered = member.began < ticket.number || member.granted_by == ticket.number;
        (member.recalls == 0 && covered).then_some(member.holding)
    }
}

impl Holder {
    /// What came with an answer beside its grants. [`Holder::handle_reply_covered`] calls it while the request still counts as
    /// on the way.
    pub(super) fn accept_covered(&mut self, ticket: Ticket, covered: &Coverage) {
        let Some(root) = self.deep.roots.get(&covered.root) else { return };
        let since = root.began < ticket.number || root.granted_by == ticket.number;
        if !since || root.is_asked || self.deep.is_barred(ticket, covered) {
            return;
        }
        let moved = self.deep.is_adrift(ticket, covered);
        if ticket.number <= self.deep.narrowed && (moved || self.deep.is_moving(covered)) {
            return;
        }
        let most = if ticket.number <= root.lowered_at { Mode::Read } else { root.grant.mode };
        let mode = covered.mode.min(most);
        match self.deep.members.get_mut(&covered.fid) {
            Some(member) if member.recalls > 0 => return,
            Some(member) => {
                if mode > member.mode {
                    member.root = covered.root;
                    member.mode = mode;
                }
                member.granted_by = ticket.number;
            }
            None => {
                let member = self.new_member(covered.fid, covered.root, mode, ticket.number);
                self.deep.members.insert(covered.fid, member);
            }
        }
        let mut below = covered.fid;
        for directory in &covered.above {
            self.deep.link_said(*directory, below);
            below = *directory;
        }
        if moved {
            self.deep.adrift.insert(covered.fid);
        }
        if !self.deep.bound_for.is_empty() {
            std::iter::once(&covered.fid).chain(&covered.above).for_each(|fid| self.deep.link_moving(*fid));
        }
        if self.deep.is_bound_for_unknown(covered) {
            self.deep.unmoored.insert(covered.fid);
        } else if !moved {
            self.deep.moor(covered.fid);
        }
    }

    fn new_member(&mut self, fid: Fid, root: Fid, mode: Mode, granted_by: u64) -> Member {
        // What a node lease covers at the same time stays covered when that one is given back.
        let held = self.leases.get(&fid).filter(|held| held.recall.is_none()).map(|held| held.holding);
        let holding = held.unwrap_or_else(|| Holding::of_member(self.tick()));
        let number = self.tick();
        Member { root, mode, holding, began: number, granted_by, number, recalls: 0, uses: 0 }
    }

    pub(super) fn accept_deep(&mut self, now: Monotonic, ticket: Ticket, grant: &Grant) {
        if self.deep.bars.get(&grant.fid).is_some_and(|bar| grant.epoch <= bar.epoch) {
            return;
        }
        let (began, granted_by) = (self.clock, ticket.number);
        match self.deep.roots.get_mut(&grant.fid) {
            Some(root) if grant.epoch < root.grant.epoch => {}
            // Said again, beside what it covers.
            Some(root) if grant.epoch == root.grant.epoch => root.granted_by = granted_by,
            _ if self.deep.over.has(grant, ticket.number) => {}
            Some(root) if !root.is_asked => {
                if grant.mode > root.grant.mode {
                    self.deep.raising.push(*grant);
                }
                root.grant = *grant;
                root.lowered = false;
                root.granted_by = granted_by;
            }
            _ => {
                let questions = Questions::default();
                let (is_asked, lowered, lowered_at, last_used) = (false, false, 0, now);
                let grant = *grant;
                let root =
                    Root { grant, began, granted_by, is_asked, lowered, lowered_at, questions, last_used };
                self.deep.roots.insert(grant.fid, root);
                self.deep.raising.push(grant);
                self.deep.moor_below(grant.fid);
            }
        }
    }

    /// This client has made an inode in a directory that a deep write lease of its covers, and the server does not know it
    /// yet: nobody else can have it. `None`: the directory is not covered like that.
    pub fn adopt_new(&mut self, now: Monotonic, parent: Fid, fid: Fid) -> Option<Holding> {
        let directory = self.deep.members.get(&parent)?;
        let root = directory.root;
        if directory.recalls > 0 || directory.mode != Mode::Write || self.session_end() <= now {
            return None;
        }
        let member = self.new_member(fid, root, Mode::Write, 0);
        let holding = member.holding;
        self.deep.members.insert(fid, member);
        self.deep.links.add(parent, fid);
        Some(holding)
    }

    /// A deep lease covers the object no more as far as this client is concerned. What is cached of it is void unless a node
    /// lease covers it: all caches must have dropped it before.
    pub fn let_go(&mut self, fid: Fid) {
        if self.deep.members.get(&fid).is_some_and(|member| member.recalls == 0) {
            self.deep.remove_member(fid);
        }
    }

    /// A node lease on it was lowered, or is gone with `None`. It may have been all that stood behind what a deep lease had been
    /// said to cover (after a move), so no more is done under that; nor is what was said before, and has not come yet, believed.
    pub(super) fn lower_member(&mut self, fid: Fid, kept: Option<Mode>) {
        let until = self.clock;
        self.deep.bar(fid, until, Scope::Node);
        match (self.deep.members.get_mut(&fid), kept) {
            (None, _) => {}
            (Some(member), Some(mode)) => member.mode = member.mode.min(mode),
            (Some(_), None) => self.let_go(fid),
        }
    }

    /// A deep lease on the directory is held, or being given up.
    pub fn holds_deep(&self, directory: Fid) -> bool {
        self.deep.roots.contains_key(&directory)
    }

    /// The mode in which a deep lease covers an object that nobody asks for.
    pub fn covered_deep(&self, fid: Fid) -> Option<Mode> {
        let member = self.deep.members.get(&fid)?;
        (member.recalls == 0).then_some(member.mode)
    }

    /// After a restart of the server: what deep leases covered is claimed object by object, as node leases, so that of each the
    /// server can see whether it has what is cached. Where there are many it gives a deep lease again by and by.
    pub fn fall_back_to_nodes(&mut self) {
        let members = std::mem::take(&mut self.deep.members);
        let roots = std::mem::take(&mut self.deep.roots);
        (self.deep.links, self.deep.work) = Default::default();
        (self.deep.adrift, self.deep.unmoored, self.deep.strayed) = Default::default();
        // What is on the way still says where things were.
        self.deep.displaced = self.deep.moving.values().flatten().copied().collect();
        for (fid, member) in members {
            let Some(root) = roots.get(&member.root) else { continue };
            match self.leases.get_mut(&fid) {
                Some(held) => held.mode = held.mode.max(member.mode),
                None => {
                    let (epoch, holding) = (root.grant.epoch, member.holding);
                    self.leases.insert(fid, Held::of_member(epoch, member.mode, holding, member.began));
                }
            }
        }
    }

    /// What a deep lease covers, sorted: to be dropped before it is given back.
    pub fn covered_by(&self, lease: Fid) -> Vec<Fid> {
        self.deep.standing_on(lease)
    }

    /// Gives a deep lease back unasked. Caches of what only it covers must be empty first. `None`: not held, or part of it is
    /// being asked for.
    pub fn release_deep(&mut self, lease: Fid) -> Option<RecallAck> {
        let root = self.deep.roots.get(&lease)?;
        if root.is_asked || self.deep.work.values().any(|work| work.answer.fid == lease) {
            return None;
        }
        let epoch = root.grant.epoch;
        let until = self.clock;
        self.deep.bar(lease, until, Scope::Subtree);
        self.deep.narrowed = until;
        self.deep.over.add(lease, epoch, until);
        let members = self.deep.standing_on(lease);
        self.deep.remove_root(lease, members);
        Some(RecallAck {
            fid: lease,
            epoch,
            kept: None,
            in_use: InUse::No,
            uses: 0,
            part: Some(LeasePart::tree(lease)),
        })
    }

    /// Deep leases of which nothing was used for so long. Candidates for [`Holder::release_deep`].
    pub fn idle_deep(&self, now: Monotonic, older_than: Duration) -> Vec<Fid> {
        let idle = |root: &Root| !root.is_asked && now.since(root.last_used) >= older_than;
        self.deep.roots.iter().filter(|(_, root)| idle(root)).map(|(fid, _)| *fid).collect()
    }

    /// Objects that deep leases cover, those being asked for included.
    pub fn covered_count(&self) -> usize {
        self.deep.members.len()
    }

    /// The deep lease was refused after a restart.
    pub(super) fn lose_deep(&mut self, asked: &Grant) -> Vec<Fid> {
        if self.deep.roots.get(&asked.fid).is_none_or(|root| root.grant.epoch > asked.epoch) {
            return Vec::new();
        }
        let members = self.deep.standing_on(asked.fid);
        self.deep.remove_root(asked.fid, members)
    }
}

#[cfg(test)]
mod tests;
