//! Deep leases on their way to another process ([`crate::holder::handover`]).

use super::Deep;
use soda_types::Fid;

impl Deep {
    /// For another process, without the members that are left behind. `None`: not now, or too much.
    pub(in crate::holder) fn hand_over(&self, most: usize, is_left: impl Fn(&Fid) -> bool) -> Option<Deep> {
        let is_quiet = self.work.is_empty() && self.moving.is_empty() && self.bound_for.is_empty();
        if !is_quiet || self.members.len() > most || self.roots.values().any(|root| root.is_asked) {
            return None;
        }
        let mut handed = self.clone();
        for fid in self.members.keys().filter(|fid| is_left(fid)) {
            handed.remove_member(*fid);
        }
        Some(handed)
    }

    /// For another process, which is to hold none of them: what it would else take for news, or for held. `until`: the last
    /// request that was sent.
    pub(in crate::holder) fn hand_over_words(&self, until: u64) -> Deep {
        let mut news = self.news.clone();
        // Whether these end well or not.
        self.moving.values().flatten().for_each(|fid| news.note_move(*fid, until));
        Deep { over: self.over.clone(), news, narrowed: self.narrowed, ..Deep::default() }
    }

    /// Nothing of before is on the way.
    pub(in crate::holder) fn tidy_taken_over(&mut self) {
        (self.bars, self.bar_order) = Default::default();
        let moved: Vec<Fid> = self.displaced.union(&self.strayed).copied().collect();
        moved.into_iter().for_each(|fid| self.tidy_displaced(fid));
    }
}
