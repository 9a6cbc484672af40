//! Where a file has data and where holes are, as far as lseek has asked: a walk over all of them asks the server once for many.

use super::State;
use super::inode::Inode;
use crate::config::Consistency;
use soda_lease::holder::Ticket;
use soda_protocol::{Layout as Told, MAX_LAYOUT, Whence};
use soda_types::{Errno, Fid, FsResult, Monotonic};
use std::ops::Range;

/// Extents that are asked for first: who asks once is not to wait for thousands.
const FIRST: u32 = 16;
/// Who goes on where the last answer ended is asked so many times more for.
const GROWTH: u32 = 4;

/// A part of a file; good while its lease is, and no own change has begun or ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// What is known.
    known: Range<u64>,
    /// Stretches of data in it, in order, with a hole between each two.
    data: Vec<Range<u64>>,
    size: u64,
    /// So many extents were asked for.
    asked: u32,
    /// The inode's, when it was asked for ([`count`](super::inode::OwnChanges::count)).
    change_count: u64,
}

impl Layout {
    /// What the server told from an offset on; `None` if that cannot be: it has to answer lseek(2) there.
    pub(crate) fn new(told: Told, offset: u64, asked: u32, change_count: u64) -> Option<Layout> {
        let Told { data, until, size } = told;
        let starts = data.iter().map(|stretch| stretch.start);
        let mut ends = data.iter().map(|stretch| stretch.end);
        let apart = starts.clone().skip(1).zip(ends.clone()).all(|(start, before)| before < start);
        let last = ends.next_back();
        let is_sound = apart
            && data.len() <= asked as usize
            && data.iter().all(|stretch| !stretch.is_empty())
            && starts.min().is_none_or(|first| first >= offset)
            && last.is_none_or(|last| last <= until)
            && until <= size
            && (until == size || last == Some(until));
        is_sound.then_some(Layout { known: offset..until, data, size, asked, change_count })
    }

    /// What lseek(2) answers; `None`: it is not known.
    pub(crate) fn seek(&self, offset: u64, whence: Whence) -> Option<FsResult<u64>> {
        if offset >= self.size {
            return Some(Err(Errno::NoDevice.into()));
        }
        if !self.known.contains(&offset) {
            return None;
        }
        let next = self.data.get(self.data.partition_point(|stretch| stretch.end <= offset));
        Some(match (whence, next) {
            (Whence::Data, Some(stretch)) => Ok(stretch.start.max(offset)),
            (Whence::Data, None) => Err(Errno::NoDevice.into()),
            (Whence::Hole, Some(stretch)) if stretch.start <= offset => Ok(stretch.end),
            (Whence::Hole, _) => Ok(offset),
        })
    }

    /// How many extents to ask for from an offset on, if this is what is known before.
    pub(crate) fn to_ask(before: Option<&Layout>, offset: u64) -> u32 {
        let goes_on = before.filter(|before| before.known.end == offset);
        goes_on.map_or(FIRST, |before| before.asked.saturating_mul(GROWTH).min(MAX_LAYOUT))
    }

    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<Layout>() + self.data.len() * size_of::<Range<u64>>()) as u64
    }
}

/// A question for a layout that may be kept if nothing changes until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) offset: u64,
    /// How many extents.
    pub(crate) most: u32,
    change_count: u64,
}

impl Ask {
    /// What the server told; `None` if it is no answer to this.
    pub(crate) fn answered(self, told: Told) -> Option<Layout> {
        Layout::new(told, self.offset, self.most, self.change_count)
    }
}

impl State {
    /// What lseek(2) answers, if that may be said without the server.
    pub(crate) fn seek(
        &mut self,
        now: Monotonic,
        fid: Fid,
        offset: u64,
        whence: Whence,
    ) -> Option<FsResult<u64>> {
        let inode = self.under_lease(now, fid)?;
        let layout = inode.layout.as_ref().filter(|layout| inode.is_unchanged_since(layout.change_count))?;
        layout.seek(offset, whence)
    }

    /// How to ask for more than one answer; `None`: they could not be kept.
    pub(crate) fn ask_layout(&mut self, now: Monotonic, fid: Fid, offset: u64) -> Option<Ask> {
        let inode = self.under_lease(now, fid)?;
        let most = Layout::to_ask(inode.layout.as_deref(), offset);
        Some(Ask { offset, most, change_count: inode.changes.count })
    }

    /// A layout that came with the ticket's reply is kept if it may be.
    pub(crate) fn learn_layout(&mut self, now: Monotonic, ticket: Ticket, fid: Fid, layout: Layout) {
        // No own change in between: its order against this answer is the server's.
        if self.enter(ticket, fid) && self.inode(fid).is_unchanged_since(layout.change_count) {
            self.set_layout(now, fid, layout);
        }
    }

    /// Caches that are good by time would show a layout beside data of another time.
    fn under_lease(&mut self, now: Monotonic, fid: Fid) -> Option<&Inode> {
        if self.consistency != Consistency::Lease {
            return None;
        }
        self.served(now, fid)?;
        self.peek(fid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 64;

    /// A file of blocks with and without data, and what a server that stops after `most` blocks tells of it.
    fn told(blocks: &[bool], offset: u64, most: u32) -> Told {
        let size = blocks.len() as u64;
        let mut data: Vec<Range<u64>> = Vec::new();
        for at in (offset..size).filter(|at| blocks[*at as usize]) {
            let count = data.len() as u32;
            match data.last_mut() {
                Some(last) if last.end == at => last.end = at + 1,
                Some(last) if count >= most => {
                    let until = last.end;
                    return Told { data, until, size };
                }
                _ => data.push(at..at + 1),
            }
        }
        Told { data, until: size, size }
    }

    fn truth(blocks: &[bool], offset: u64, whence: Whence) -> Result<u64, Errno> {
        if offset >= blocks.len() as u64 {
            return Err(Errno::NoDevice);
        }
        let found =
            (offset..).zip(&blocks[offset as usize..]).find(|(_, data)| **data == (whence == Whence::Data));
        match whence {
            Whence::Data => found.map(|(at, _)| at).ok_or(Errno::NoDevice),
            Whence::Hole => Ok(found.map_or(blocks.len() as u64, |(at, _)| at)),
        }
    }

    proptest! {
        #[test]
        fn what_is_known_is_right_and_what_was_asked_is_known(
            blocks in prop::collection::vec(any::<bool>(), 0..SIZE as usize),
            offset in 0..SIZE,
            most in 1..8u32,
        ) {
            let layout = Layout::new(told(&blocks, offset, most), offset, most, 0).unwrap();
            for whence in [Whence::Data, Whence::Hole] {
                prop_assert!(layout.seek(offset, whence).is_some());
                for at in 0..SIZE + 2 {
                    if let Some(found) = layout.seek(at, whence) {
                        prop_assert_eq!(found.map_err(|error| error.errno), truth(&blocks, at, whence));
                    }
                }
            }
        }

        #[test]
        fn no_answer_panics_or_leaves_the_question_open(
            data in prop::collection::vec((0..9u64, 0..9u64), 0..4),
            until in 0..9u64,
            size in 0..9u64,
            offset in 0..9u64,
        ) {
            let data = data.into_iter().map(|(start, end)| start..end).collect();
            if let Some(layout) = Layout::new(Told { data, until, size }, offset, 3, 0) {
                prop_assert!(layout.seek(offset, Whence::Data).is_some());
                prop_assert!(layout.seek(offset, Whence::Hole).is_some());
            }
        }
    }

    #[test]
    fn a_walk_asks_for_more_each_time_up_to_what_the_server_looks_at() {
        let blocks: Vec<bool> = (0..100_000).map(|block| block % 2 == 1).collect();
        let (mut layout, mut at, mut asked) = (None, 0, Vec::new());
        while at < blocks.len() as u64 {
            let most = Layout::to_ask(layout.as_ref(), at);
            let next = Layout::new(told(&blocks, at, most), at, most, 0).unwrap();
            at = next.known.end;
            asked.push(most);
            layout = Some(next);
        }
        assert_eq!(asked[..6], [16, 64, 256, 1024, 4096, 4096]);
        assert_eq!(asked.len(), 16);
        assert_eq!(Layout::to_ask(layout.as_ref(), 50_000), FIRST, "elsewhere it begins anew");
    }
}
