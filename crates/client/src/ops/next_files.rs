//! Fetching small files before they are read: [`crate::cache::next_files`] says which.

use super::read::Orders;
use crate::cache::State;
use crate::cache::next_files::{Foreseen, Had, SMALL};
use crate::config::Consistency;
use crate::inner::Inner;
use soda_types::{Attr, Fid, Monotonic};
use std::ops::Range;
use std::sync::Arc;

impl Inner {
    /// A file is read, and what of it was there is known. Announces which others are fetched on this occasion, as reads in order
    /// fetch what is ahead in their file.
    pub(super) fn plan_next_files(
        &self,
        state: &mut State,
        now: Monotonic,
        (fid, attr): (Fid, &Attr),
        read: &Range<u64>,
        had: Had,
    ) -> Vec<(Fid, Orders)> {
        let whole = read.start == 0 && attr.size <= SMALL;
        if !whole || self.config.consistency != Consistency::Lease {
            return Vec::new();
        }
        let (foreseen, next) = state.next_files(now, (fid, attr), had);
        if foreseen == Foreseen::Yes {
            self.stats.next_files_read.one();
        }
        let mut all = Vec::new();
        for (fid, attr) in next {
            self.stats.next_files.one();
            self.stats.readahead_bytes.add(attr.size);
            let mut orders = Orders::default();
            self.plan_fetches(state, now, (fid, &attr), 0..attr.size, &mut orders);
            all.push((fid, orders));
        }
        all
    }

    /// Behind what somebody waits for. They go on by themselves; what fails is missing when it is read.
    pub(super) fn begin_next_files(self: &Arc<Inner>, all: Vec<(Fid, Orders)>) {
        for (fid, orders) in all {
            drop(self.begin(fid, orders));
        }
    }
}
