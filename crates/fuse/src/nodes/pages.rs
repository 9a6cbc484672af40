//! What pages of a file's data the kernel may have.

use super::{Fill, Nodes, PageState, Pages};
use crate::unpoisoned::Unpoisoned;
use soda_types::{Fid, Version};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

impl Nodes {
    /// The kernel is about to fill pages with data of `version`, unless it must not.
    pub(crate) fn fill_pages(&self, fid: Fid, version: Version) -> Fill {
        let filled = self.with(fid, |node| {
            if node.newest.is_some_and(|newest| newest > version) {
                return Fill::Overtaken;
            }
            node.fill(version);
            Fill::Fits
        });
        filled.unwrap_or(Fill::Fits)
    }

    /// The kernel has filled pages itself, with what became `version` of the data.
    pub(crate) fn pages_filled(&self, fid: Fid, version: Version) {
        self.with(fid, |node| node.fill(version));
    }

    pub(crate) fn may_have_pages(&self, fid: Fid) -> bool {
        self.with(fid, |node| node.pages != Pages::None).unwrap_or(false)
    }

    /// Own change made `version` of the data; the range it touched has been dropped from the kernel's pages.
    pub(crate) fn pages_changed(&self, fid: Fid, version: Version) {
        self.with(fid, |node| {
            node.pages = match node.pages {
                Pages::None => Pages::None,
                Pages::Of(old) if old.next() == version || old == version => Pages::Of(version),
                _ => Pages::Mixed,
            }
        });
    }

    /// The kernel is about to be told attributes of `version`: from here on pages of older ones are kept from it, and those
    /// that it may have are to be dropped first.
    pub(crate) fn announce(&self, fid: Fid, version: Version, size: u64) -> PageState {
        self.with(fid, |node| {
            node.newest = node.newest.max(Some(version));
            node.shown = node.shown.min(size);
        });
        self.page_state(fid, version)
    }

    pub(crate) fn page_state(&self, fid: Fid, version: Version) -> PageState {
        let pages = self.with(fid, |node| node.pages).unwrap_or(Pages::None);
        match pages {
            Pages::None => PageState::Current,
            Pages::Of(old) if old == version => PageState::Current,
            _ => PageState::Outdated,
        }
    }

    /// The kernel would not drop pages, and may have old ones: until all of them have been dropped it believes no attributes, so
    /// whoever reads asks first, and has it told again.
    pub(crate) fn pages_stay(&self, fid: Fid) {
        self.staying.insert(fid);
        self.with(fid, |node| node.pages = Pages::Mixed);
    }

    /// All pages have been (or, by an open without KEEP_CACHE, will be) dropped; those that come will be of `version`.
    pub(crate) fn pages_restart(&self, fid: Fid, version: Version) {
        self.staying.remove(fid);
        self.with(fid, |node| node.pages = Pages::Of(version));
    }

    pub(crate) fn pages_dropped(&self, fid: Fid) {
        self.staying.remove(fid);
        self.with(fid, |node| node.pages = Pages::None);
    }
}

/// Inodes whose pages the kernel would not drop. As a rule none.
#[derive(Debug, Default)]
pub(super) struct Staying {
    count: AtomicUsize,
    fids: Mutex<HashSet<Fid>>,
}

impl Staying {
    fn fids(&self) -> MutexGuard<'_, HashSet<Fid>> {
        self.fids.lock().unpoisoned()
    }

    fn insert(&self, fid: Fid) {
        let mut fids = self.fids();
        fids.insert(fid);
        self.count.store(fids.len(), Ordering::SeqCst);
    }

    fn remove(&self, fid: Fid) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut fids = self.fids();
            fids.remove(&fid);
            self.count.store(fids.len(), Ordering::SeqCst);
        }
    }

    pub(super) fn contains(&self, fid: Fid) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.fids().contains(&fid)
    }
}
