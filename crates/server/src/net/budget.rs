//! Memory of all connections together: what was read and waits to be done, and what waits for peers that do not read. Each
//! connection has a limit of its own; this one is for thousands of them that come near theirs at once. Each may have a little in
//! any case, and more only while it has no more than what is left for all (as for requests: `intake`), so who takes all that it
//! can leaves room for who comes. Nobody waits in a circle: what a connection has goes as the store and its own peer take it.

use std::sync::atomic::{AtomicU64, Ordering};

/// What any connection may have in each direction, bytes.
const LEAST: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    held: AtomicU64,
}

impl Budget {
    /// `limit`: bytes.
    pub(crate) fn new(limit: u64) -> Budget {
        Budget { limit, held: AtomicU64::new(0) }
    }

    /// Bytes.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self, bytes: usize) {
        self.held.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Whether there is no more than the least for anybody.
    pub(super) fn is_used_up(&self) -> bool {
        self.held() >= self.limit
    }

    /// Whether a connection may have so many bytes that may have `most` of them by itself.
    pub(super) fn allows(&self, own: usize, most: usize) -> bool {
        let left = self.limit.saturating_sub(self.held());
        own <= most && own as u64 <= left.max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_share_what_one_may_have_and_nobody_has_nothing() {
        const MIB: usize = 1 << 20;
        let budget = Budget::new(40 << 20);
        let mut own = [0; 10];
        loop {
            let before = own;
            for own in own.iter_mut().filter(|own| budget.allows(**own + MIB, 16 * MIB)) {
                budget.take(MIB);
                *own += MIB;
            }
            if own == before {
                break;
            }
        }
        assert!(own.iter().sum::<usize>() <= 40 * MIB && budget.held() <= 40 << 20, "{own:?}");
        assert!(own.iter().all(|own| (2 * MIB..16 * MIB).contains(own)), "{own:?}");
        assert!(budget.allows(MIB, 16 * MIB), "there is room for who comes");
        budget.take(40 << 20);
        assert!(
            budget.is_used_up() && !budget.allows(MIB, 16 * MIB) && budget.allows(LEAST as usize, 16 * MIB)
        );
        assert!(!budget.allows(LEAST as usize, 1000), "its own limit holds");
        budget.give_back((40 << 20) + own.iter().sum::<usize>());
        assert_eq!(budget.held(), 0);
        assert!(budget.allows(16 * MIB, 16 * MIB));
    }
}
