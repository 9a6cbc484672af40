//! Names that move below deep leases: what the server says meanwhile of places is of before the move, so the lease holder
//! believes nothing of it until the server has been told.

use crate::client::Client;
use crate::context::Context;
use crate::deed::moved_by;
use crate::layout::Tree;
use crate::message::Tag;
use soda_oplog::{Change, Lsn, Record};
use soda_types::{Fid, Scope};

impl Client {
    /// The widest leases that this client takes.
    pub(in crate::client) fn widest(&self, context: &Context) -> Scope {
        let narrow = context.config.seed.is_multiple_of(4) && self.number == 0;
        if narrow { Scope::Node } else { Scope::Subtree }
    }

    /// The request, which is not sent yet, will move these.
    pub(in crate::client) fn say_moves(&mut self, context: &Context, tag: Tag, moves: &[(Fid, Option<Fid>)]) {
        let Some(request) = self.requests.get(&tag).filter(|_| is_told(context)) else { return };
        moves.iter().for_each(|(fid, to)| self.holder.begin_move(request.ticket, *fid, *to));
    }

    /// It was made here, and the server is told later.
    pub(super) fn begin_own_moves(&mut self, context: &Context, lsn: Lsn, change: &Change) {
        let moves = moved_by(change);
        let Some(delayed) = self.delayed.as_mut().filter(|_| is_told(context) && !moves.is_empty()) else {
            return;
        };
        let numbers = moves.iter().map(|(fid, to)| self.holder.begin_own_move(*fid, *to)).collect();
        delayed.moves.insert(lsn, numbers);
    }

    /// The server has been told of these records, or never will be.
    pub(super) fn end_own_moves(&mut self, lsns: impl IntoIterator<Item = Lsn>) {
        let Some(delayed) = &mut self.delayed else { return };
        let numbers = lsns.into_iter().filter_map(|lsn| delayed.moves.remove(&lsn)).flatten();
        numbers.for_each(|number| self.holder.end_own_move(number));
    }

    /// What the server had been told of it has not any more.
    pub(super) fn begin_lost_moves(&mut self, context: &Context) {
        let Some(delayed) = &self.delayed else { return };
        let pending = delayed.kept.log.pending().filter(|record| !delayed.moves.contains_key(&record.lsn));
        let lost: Vec<Record> = pending.cloned().collect();
        lost.iter().for_each(|record| self.begin_own_moves(context, record.lsn, &record.change));
    }
}

fn is_told(context: &Context) -> bool {
    context.config.layout().tree == Tree::Deep
}
