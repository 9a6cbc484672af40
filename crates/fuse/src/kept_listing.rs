//! A listing that the kernel keeps.
//!
//! With `FOPEN_CACHE_DIR` the kernel keeps the names that READDIR and READDIRPLUS bring in pages of the directory; another
//! listing takes no request but OPENDIR then (Linux, `fs/fuse/readdir.c`). An offset in them is a position in one edition of
//! the directory ([`Edition`]). Why no page shows what is not there any more, and no position means two names:
//!
//! - Of the open handles of a directory one at most fills and uses pages. So whoever is in the middle of a listing goes on in the
//!   pages that it began with, or, where these are gone, in its own snapshot of the same edition.
//! - Without `FOPEN_KEEP_CACHE` the kernel drops the pages when a handle is opened. It is given only while the client knows the
//!   whole directory under a lease, and the pages can be of no other edition than that.
//! - A recall that takes attributes back drops the pages, too ([`crate::notify`]).
//! - Who begins anew with a handle that is open makes the kernel look at the time and its own version of the directory
//!   (`FUSE_AUTO_INVAL_DATA`, `i_version`). The version has moved if this machine has changed a name, or one was taken back;
//!   the time, which it has to ask for after a recall or the end of the lease, if any machine has. So pages that were taken in
//!   late, or have outlived the lease, would be used only where somebody set the time back besides.
//!
//! Not to be done: dropping pages before attributes of the directory are answered. The kernel throws such an answer away, and
//! checks permissions by what it knew before.

use serde::{Deserialize, Serialize};
use soda_client::Edition;
use std::time::Instant;

/// Of one directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeptListing {
    /// The one that fills and uses pages.
    handle: Option<u64>,
    /// Editions mean nothing to another process.
    #[serde(skip, default = "Pages::suspect")]
    pages: Pages,
}

#[derive(Clone, Debug, Default)]
enum Pages {
    /// There are none, or the next handle has them dropped.
    #[default]
    None,
    /// Of one edition, some or all. Until then the kernel knows the names behind them, too: later it would have to ask for each
    /// of them, where a new listing brings many at once.
    Of(Edition, Instant),
    Mixed,
}

impl Pages {
    fn suspect() -> Pages {
        Pages::Mixed
    }
}

/// What an open handle is to do with pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageUse {
    /// Others are using them: it leaves them alone.
    Leave,
    /// It has them dropped.
    Drop,
    /// It has them dropped, and makes new ones.
    Fill,
    /// It uses what is there.
    Keep,
}

impl KeptListing {
    /// A handle is about to be opened. `whole`: the edition of now; `None` if not all names are known under a lease, and
    /// `Some(None)` if all are, but have not been listed since they changed.
    pub(crate) fn opened(&mut self, handle: u64, whole: Option<Option<&Edition>>, now: Instant) -> PageUse {
        if self.handle.is_some() {
            return PageUse::Leave;
        }
        let Some(edition) = whole else {
            self.pages = Pages::None;
            return PageUse::Drop;
        };
        self.handle = Some(handle);
        match &self.pages {
            Pages::Of(kept, until) if Some(kept) == edition && now < *until => PageUse::Keep,
            _ => {
                self.pages = Pages::None;
                PageUse::Fill
            }
        }
    }

    /// Whether what the handle is told may become pages.
    pub(crate) fn is_filled_by(&self, handle: u64) -> bool {
        self.handle == Some(handle)
    }

    /// Names of `edition` (`None`: of nobody knows which) are about to be told to a handle.
    pub(crate) fn told(&mut self, handle: u64, edition: Option<Edition>, until: Instant) {
        if !self.is_filled_by(handle) {
            return;
        }
        let before = std::mem::take(&mut self.pages);
        self.pages = match (before, edition) {
            (Pages::None, Some(edition)) => Pages::Of(edition, until),
            (Pages::Of(kept, until), Some(edition)) if kept == edition => Pages::Of(kept, until),
            _ => Pages::Mixed,
        };
    }

    pub(crate) fn closed(&mut self, handle: u64) {
        if self.handle == Some(handle) {
            self.handle = None;
        }
    }

    /// The directory is taken back. Whether there may be pages, which have to go. What the handle that fills them was told and
    /// the kernel has not taken in yet makes new ones after that: so they stay suspect until the next handle.
    pub(crate) fn recalled(&mut self) -> bool {
        if matches!(self.pages, Pages::None) {
            return false;
        }
        self.pages = Pages::Mixed;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct World {
        listing: KeptListing,
        now: Instant,
    }

    impl World {
        fn new() -> World {
            World { listing: KeptListing::default(), now: Instant::now() }
        }

        fn open(&mut self, handle: u64, edition: &Edition) -> PageUse {
            self.listing.opened(handle, Some(Some(edition)), self.now)
        }

        fn tell(&mut self, handle: u64, edition: &Edition) {
            self.listing.told(handle, Some(edition.clone()), self.now + Duration::from_secs(5));
        }
    }

    #[test]
    fn what_one_handle_was_told_the_next_one_uses_while_nothing_changes() {
        let (mut world, edition) = (World::new(), Edition::default());
        assert_eq!(world.listing.opened(1, Some(None), world.now), PageUse::Fill);
        world.tell(1, &edition);
        world.tell(1, &edition);
        world.listing.closed(1);
        assert_eq!(world.open(2, &edition), PageUse::Keep);
        world.listing.closed(2);
        assert_eq!(world.open(3, &Edition::default()), PageUse::Fill);
        world.listing.closed(3);
        assert_eq!(world.open(4, &edition), PageUse::Fill, "it had them dropped");
    }

    #[test]
    fn without_a_lease_pages_go() {
        let (mut world, edition) = (World::new(), Edition::default());
        world.open(1, &edition);
        world.tell(1, &edition);
        world.listing.closed(1);
        assert_eq!(world.listing.opened(2, None, world.now), PageUse::Drop);
        world.listing.closed(2);
        assert_eq!(world.open(3, &edition), PageUse::Fill);
    }

    #[test]
    fn one_handle_at_a_time() {
        let (mut world, edition) = (World::new(), Edition::default());
        assert_eq!(world.open(1, &edition), PageUse::Fill);
        world.tell(1, &edition);
        assert_eq!(world.open(2, &edition), PageUse::Leave);
        world.tell(2, &Edition::default());
        world.listing.closed(2);
        world.listing.closed(1);
        assert_eq!(world.open(3, &edition), PageUse::Keep);
    }

    #[test]
    fn pages_of_two_editions_or_of_none_are_not_kept() {
        for second in [Some(Edition::default()), None] {
            let (mut world, edition) = (World::new(), Edition::default());
            world.open(1, &edition);
            world.tell(1, &edition);
            world.listing.told(1, second, world.now + Duration::from_secs(5));
            world.listing.closed(1);
            assert_eq!(world.open(2, &edition), PageUse::Fill);
        }
    }

    #[test]
    fn pages_are_kept_as_long_as_the_kernel_knows_the_names() {
        let (mut world, edition) = (World::new(), Edition::default());
        world.open(1, &edition);
        world.tell(1, &edition);
        world.listing.closed(1);
        world.now += Duration::from_secs(5);
        assert_eq!(world.open(2, &edition), PageUse::Fill);
    }

    #[test]
    fn another_process_does_not_know_what_the_pages_are() {
        let (mut world, edition) = (World::new(), Edition::default());
        world.open(1, &edition);
        world.tell(1, &edition);
        let handed = soda_client::handover::encode(&world.listing).unwrap();
        world.listing = soda_client::handover::decode(&handed).unwrap();
        assert_eq!(world.open(2, &edition), PageUse::Leave);
        world.tell(1, &edition);
        world.listing.closed(1);
        assert_eq!(world.open(3, &edition), PageUse::Fill);
    }

    #[test]
    fn after_a_recall_pages_go_and_none_that_come_late_are_kept() {
        let (mut world, edition, newer) = (World::new(), Edition::default(), Edition::default());
        world.open(1, &edition);
        assert!(!world.listing.recalled(), "nothing was told");
        world.tell(1, &edition);
        assert!(world.listing.recalled());
        world.tell(1, &newer);
        world.listing.closed(1);
        assert_eq!(world.open(2, &newer), PageUse::Fill);
        assert!(!world.listing.recalled());
    }
}
