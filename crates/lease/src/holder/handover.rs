//! Leases that pass to the holder of another process on the same machine, which goes on with the session.
//!
//! Nothing is on the way then that could bring a lease, so what is remembered for the sake of late answers stays behind. Times
//! pass as they are, where both have one clock ([`HandedLeases::without_times`] where they do not), and the holder's own number
//! is counted on.
//!
//! A lease that somebody has asked for does not pass, nor one that has run out. The server counts it as held, asks for it again,
//! and is told that it is gone; by then the caches of whoever had it must be empty. Deep leases pass together or not at all: what
//! one covers may hang together with what is being asked for, or moved, in ways that only the answer brings to an end. Where they
//! do not, the new holder knows at least what was last heard of them, and which were given back: the server counts them as held,
//! and names them again, and what others have been let in to meanwhile must not be raised by that.

use super::deep::Deep;
use super::leases::Held;
use super::{Holder, Holding};
use serde::{Deserialize, Serialize};
use soda_types::{Fid, Monotonic};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What [`Holder::hand_over`] made for [`Holder::take_over`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HandedLeases {
    clock: u64,
    /// By object.
    nodes: Vec<(Fid, Held)>,
    deep: Deep,
}

impl HandedLeases {
    /// As [`Holder::holding`] is going to be.
    pub fn holding(&self, fid: Fid) -> Option<Holding> {
        let at = self.nodes.binary_search_by_key(&fid, |(node, _)| *node);
        let by_node = at.ok().map(|at| self.nodes[at].1.holding);
        by_node.or_else(|| self.deep.members.get(&fid).map(|member| member.holding))
    }

    /// For a holder by whose clock the ends of leases mean something else: none of them.
    pub fn without_times(self) -> HandedLeases {
        HandedLeases { nodes: Vec::new(), deep: self.deep.hand_over_words(self.clock), ..self }
    }
}

impl Holder {
    /// Of leases on single objects the `most` that were used last, and deep ones if they cover no more than so many.
    pub fn hand_over(&self, now: Monotonic, most: usize) -> HandedLeases {
        let passes = |held: &Held| held.recall.is_none() && held.own_end > now;
        let mut nodes: Vec<(Fid, &Held)> =
            self.leases.iter().filter(|(_, held)| passes(held)).map(|(fid, held)| (*fid, held)).collect();
        if nodes.len() > most {
            nodes.sort_unstable_by_key(|(_, held)| Reverse(held.last_used));
            nodes.truncate(most);
            nodes.sort_unstable_by_key(|(fid, _)| *fid);
        }
        let is_left = |fid: &Fid| {
            self.leases.contains_key(fid) && nodes.binary_search_by_key(fid, |(node, _)| *node).is_err()
        };
        let deep = self.deep.hand_over(most, is_left);
        let deep = deep.unwrap_or_else(|| self.deep.hand_over_words(self.clock));
        let nodes = nodes.into_iter().map(|(fid, held)| (fid, held.clone())).collect();
        HandedLeases { clock: self.clock, nodes, deep }
    }

    /// Before the first request, in the session that the leases are of, which has been started.
    pub fn take_over(&mut self, handed: HandedLeases) {
        let HandedLeases { clock, nodes, deep } = handed;
        self.clock = self.clock.max(clock);
        self.leases = BTreeMap::from_iter(nodes);
        self.deep = deep;
        self.deep.tidy_taken_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::HolderConfig;
    use soda_types::{Cause, RecallAck};
    use soda_types::{
        Coverage, Epoch, Grant, InUse, Ino, LeasePart, Mode, Recall, Scope, SessionId, Term, VolumeId,
    };
    use std::time::Duration;

    const ONE: SessionId = SessionId(1);
    const TERM: Duration = Duration::from_secs(10);

    fn f(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    fn secs(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn grant(scope: Scope, mode: Mode, ino: u64, epoch: u64) -> Grant {
        Grant { fid: f(ino), scope, mode, epoch: Epoch(epoch), term: Term::Session }
    }

    fn node(mode: Mode, ino: u64, epoch: u64) -> Grant {
        grant(Scope::Node, mode, ino, epoch)
    }

    fn recall(ino: u64, epoch: u64, part: Option<LeasePart>) -> Recall {
        Recall { fid: f(ino), epoch: Epoch(epoch), to: None, cause: Cause::Data, part }
    }

    fn started(at: u64) -> Holder {
        let mut holder = Holder::new(HolderConfig::default());
        assert_eq!(holder.start_session(secs(at), secs(at), ONE, TERM), []);
        holder
    }

    fn get(holder: &mut Holder, at: u64, grants: &[Grant], covered: &[Coverage]) {
        let ticket = holder.begin_request(secs(at));
        holder.handle_reply_covered(secs(at), ticket, grants, covered);
    }

    fn heir(holder: &Holder, at: u64, most: usize) -> Holder {
        let handed = holder.hand_over(secs(at), most);
        let mut heir = started(at);
        heir.take_over(handed);
        heir
    }

    fn gone(ino: u64, epoch: u64) -> RecallAck {
        RecallAck { fid: f(ino), epoch: Epoch(epoch), kept: None, in_use: InUse::No, uses: 0, part: None }
    }

    #[test]
    fn leases_go_on_with_their_modes_holdings_and_ends() {
        let mut old = started(0);
        let short = Grant { term: Term::For(Duration::from_secs(4)), ..node(Mode::Read, 9, 3) };
        get(&mut old, 0, &[node(Mode::Write, 7, 1), node(Mode::Read, 8, 2), short], &[]);
        let mut new = heir(&old, 2, 100);
        let until = |holder: &Holder, ino| holder.valid_until(secs(2), f(ino), Mode::Read);
        for ino in [7, 8, 9] {
            assert_eq!((new.holding(f(ino)), new.mode(f(ino))), (old.holding(f(ino)), old.mode(f(ino))));
        }
        assert_eq!(until(&new, 9), until(&old, 9), "its term is its own");
        assert!(until(&new, 7) > until(&old, 7), "as long as the session");
        assert!(new.may_delay_changes(secs(2), f(7)));
        let ticket = new.begin_request(secs(2));
        assert_eq!(new.cacheable(ticket, f(8)), old.holding(f(8)));
        // An older recall is answered for, and one of now is heeded.
        let step = new.handle_recall(secs(3), &recall(7, 1, None));
        assert!(matches!(step, super::super::RecallStep::Drop { .. }), "{step:?}");
        assert_eq!(new.finish_recall(secs(3), f(7), Epoch(1), InUse::No), gone(7, 1));
        assert_eq!(new.holding(f(7)), None);
        assert_eq!(heir(&old, 5, 100).holding(f(9)), None, "it has run out meanwhile");
    }

    #[test]
    fn what_is_being_asked_for_does_not_pass() {
        let mut old = started(0);
        get(&mut old, 0, &[node(Mode::Write, 7, 1), node(Mode::Read, 8, 2)], &[]);
        let _ = old.handle_recall(secs(1), &recall(7, 1, None));
        let mut new = heir(&old, 1, 100);
        assert_eq!((new.holding(f(7)), new.holding(f(8))), (None, old.holding(f(8))));
        let again = new.handle_recall(secs(1), &recall(7, 1, None));
        assert_eq!(again, super::super::RecallStep::AlreadyGone(gone(7, 1)));
    }

    #[test]
    fn of_too_many_those_used_last_pass() {
        let mut old = started(0);
        let all: Vec<Grant> = (1..=20).map(|ino| node(Mode::Read, ino, ino)).collect();
        get(&mut old, 0, &all, &[]);
        for ino in [3, 11, 17] {
            assert!(old.touch(secs(1), f(ino)).is_some());
        }
        let handed = old.hand_over(secs(2), 3);
        let passed: Vec<u64> = (1..=20).filter(|ino| handed.holding(f(*ino)).is_some()).collect();
        assert_eq!(passed, [3, 11, 17]);
    }

    fn below(ino: u64, root: u64, mode: Mode) -> Coverage {
        Coverage { fid: f(ino), root: f(root), mode, above: vec![f(root)] }
    }

    fn itself(root: u64) -> Coverage {
        Coverage { fid: f(root), root: f(root), mode: Mode::Write, above: vec![] }
    }

    fn with_deep() -> Holder {
        let mut old = started(0);
        let covered = [itself(3), below(10, 3, Mode::Write), below(11, 3, Mode::Read)];
        get(&mut old, 0, &[grant(Scope::Subtree, Mode::Write, 3, 5)], &covered);
        old
    }

    #[test]
    fn a_deep_lease_goes_on_with_all_that_it_covers() {
        let old = with_deep();
        let mut new = heir(&old, 1, 100);
        for ino in [3, 10, 11] {
            assert_eq!((new.holding(f(ino)), new.mode(f(ino))), (old.holding(f(ino)), old.mode(f(ino))));
        }
        let made = new.adopt_new(secs(1), f(3), f(20)).unwrap();
        assert!([3, 10, 11].iter().all(|ino| old.holding(f(*ino)) != Some(made)), "a number of its own");
        // A part is asked for, and then the rest.
        let part = recall(3, 6, Some(LeasePart::object(f(10))));
        let step = new.handle_recall(secs(2), &part);
        let inside = |step| match step {
            super::super::RecallStep::DropPart { inside, .. } => inside,
            other => panic!("{other:?}"),
        };
        assert_eq!(inside(step), [f(10)]);
        assert_eq!(new.finish_part(f(3), Epoch(6), InUse::No).kept, None);
        assert_eq!(new.holding(f(10)), None);
        let step = new.handle_recall(secs(2), &recall(3, 7, Some(LeasePart::tree(f(3)))));
        assert_eq!(inside(step), [f(3), f(11), f(20)]);
    }

    #[test]
    fn a_deep_lease_does_not_pass_while_part_of_it_is_asked_for_or_moved_or_where_it_covers_too_much() {
        let mut old = with_deep();
        let covered = |holder: &Holder| heir(holder, 1, 2).covered_count();
        assert_eq!(covered(&old), 0, "too much");
        let ticket = old.begin_request(secs(1));
        old.begin_move(ticket, f(10), Some(f(3)));
        assert_eq!(heir(&old, 1, 100).covered_count(), 0, "moving");
        old.handle_reply(secs(1), ticket, &[]);
        assert_eq!(heir(&old, 1, 100).covered_count(), 3);
        let _ = old.handle_recall(secs(1), &recall(3, 6, Some(LeasePart::object(f(10)))));
        assert_eq!(heir(&old, 1, 100).covered_count(), 0, "asked for");
    }

    /// It may be all that stands behind what a deep one was said to cover.
    #[test]
    fn where_a_node_lease_does_not_pass_a_deep_one_covers_nothing() {
        let mut old = with_deep();
        get(&mut old, 0, &[node(Mode::Write, 11, 8)], &[]);
        assert_eq!(heir(&old, 1, 100).mode(f(11)), Some(Mode::Write));
        let _ = old.handle_recall(secs(1), &recall(11, 8, None));
        let new = heir(&old, 1, 100);
        assert_eq!((new.holding(f(11)), new.holding(f(10))), (None, old.holding(f(10))));
    }

    /// It stood before what came to be covered by another one, of which others have had a part since.
    #[test]
    fn a_deep_lease_that_did_not_pass_raises_nothing_when_it_is_named_again() {
        let part = |fid| recall(3, 6, Some(LeasePart::object(f(fid))));
        let named = grant(Scope::Subtree, Mode::Write, 3, 5);
        let raised = |holder: &mut Holder| {
            let below = Coverage { above: vec![f(12), f(3)], ..below(13, 12, Mode::Read) };
            get(holder, 2, &[grant(Scope::Subtree, Mode::Read, 12, 4)], &[itself(12), below]);
            assert_eq!(holder.mode(f(13)), Some(Mode::Read));
            get(holder, 3, &[named], &[]);
            holder.mode(f(13)) == Some(Mode::Write)
        };
        assert!(raised(&mut started(0)), "where it is news");
        let mut old = with_deep();
        let _ = old.handle_recall(secs(1), &part(10));
        let mut new = heir(&old, 1, 100);
        assert_eq!(new.covered_count(), 0);
        assert!(!raised(&mut new));
        assert!(!raised(&mut heir(&with_deep(), 1, 2)), "too much");
        let mut elsewhere = started(1);
        elsewhere.take_over(with_deep().hand_over(secs(1), 100).without_times());
        assert_eq!(elsewhere.covered_count(), 0);
        assert!(!raised(&mut elsewhere));
    }

    #[test]
    fn what_was_moved_is_no_news_to_who_got_no_deep_lease() {
        let mut old = with_deep();
        let ticket = old.begin_request(secs(1));
        old.begin_move(ticket, f(10), Some(f(3)));
        let mut new = heir(&old, 1, 100);
        let below = Coverage { above: vec![f(12), f(10)], ..below(13, 12, Mode::Read) };
        get(&mut new, 2, &[grant(Scope::Subtree, Mode::Read, 12, 4)], &[itself(12), below]);
        // With the move, whose answer was lost.
        get(&mut new, 3, &[grant(Scope::Subtree, Mode::Write, 10, 9)], &[]);
        assert_eq!(new.mode(f(13)), Some(Mode::Read));
    }

    /// The answer that tells of the same one again is of before.
    #[test]
    fn what_was_given_back_is_remembered() {
        let mut old = with_deep();
        assert!(old.release_deep(f(3)).is_some());
        get(&mut old, 1, &[grant(Scope::Subtree, Mode::Write, 4, 6)], &[itself(4)]);
        for most in [100, 0] {
            let new = heir(&old, 1, most);
            assert_eq!(new.covered_count(), usize::from(most > 0));
            assert_eq!(new.given_back(), old.given_back());
            assert_eq!(new.given_back().len(), 1);
        }
    }
}
