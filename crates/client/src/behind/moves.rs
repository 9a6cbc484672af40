//! Names that move here below deep leases. What the server says meanwhile of places is of before the move, so the lease holder
//! believes nothing of it until the server has been told.

use crate::cache::State;
use soda_oplog::Change;
use soda_protocol::Lsn;
use soda_types::Fid;
use std::collections::BTreeSet;

/// An inode with the directory that it comes into, or, where it loses or gets a name beside, none.
pub(super) type Move = (Fid, Option<Fid>);

/// What a change moves.
pub(super) fn moved_by(change: &Change) -> Vec<Move> {
    match change {
        Change::Link { fid, .. } | Change::Unlink { fid, .. } | Change::RemoveDirectory { fid, .. } => {
            vec![(*fid, None)]
        }
        Change::Rename { from, to, moved, replaced, .. }
        | Change::Whiteout { from, to, moved, replaced, .. } => {
            let moved = (from.directory != to.directory).then_some((*moved, Some(to.directory)));
            moved.into_iter().chain(replaced.map(|(fid, _)| (fid, None))).collect()
        }
        Change::Exchange { one, other, .. } if one.0.directory != other.0.directory => {
            vec![(one.1, Some(other.0.directory)), (other.1, Some(one.0.directory))]
        }
        _ => Vec::new(),
    }
}

impl State {
    pub(super) fn begin_moves(&mut self, lsn: Lsn, moves: &[Move]) {
        for (fid, to) in moves {
            let number = self.holder.begin_own_move(*fid, *to);
            self.behind.moves.push((lsn, number));
        }
    }

    /// What the server had been told of it has not any more.
    pub(super) fn begin_lost_moves(&mut self) {
        let known: BTreeSet<Lsn> = self.behind.moves.iter().map(|(lsn, _)| *lsn).collect();
        let pending = self.behind.log.pending().filter(|record| !known.contains(&record.lsn));
        let lost: Vec<(Lsn, Vec<Move>)> =
            pending.map(|record| (record.lsn, moved_by(&record.change))).collect();
        lost.iter().for_each(|(lsn, moves)| self.begin_moves(*lsn, moves));
        self.behind.moves.sort_unstable();
    }

    /// The server has been told of some of what the log had up to a record, or never will be.
    pub(super) fn end_moves(&mut self, up_to: Lsn) {
        let known = self.behind.moves.partition_point(|(lsn, _)| *lsn <= up_to);
        if known == 0 {
            return;
        }
        let later = self.behind.moves.split_off(known);
        let log = &self.behind.log;
        let pending = log.pending().take_while(|record| record.lsn <= up_to);
        let open: BTreeSet<Lsn> = pending.chain(log.under_way_records()).map(|record| record.lsn).collect();
        let (open, over): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.behind.moves).into_iter().partition(|(lsn, _)| open.contains(lsn));
        self.behind.moves = open;
        self.behind.moves.extend(later);
        over.into_iter().for_each(|(_, number)| self.holder.end_own_move(number));
    }
}
