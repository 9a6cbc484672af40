//! What the server has set aside for this client, and what becomes of an operation that there is no room for.

use crate::client::{Asked, Client, Link, Request};
use crate::context::Context;
use crate::deed::Deed;
use crate::message::{Call, Leases, Tag};
use crate::network::Kind;
use crate::register::{OpUid, TREE};
use crate::sabotage::Sabotage;
use soda_oplog::reserve::{Asked as For, GivenUp, Question, Reserve, Room};
use soda_oplog::{Change, Lsn};
use soda_protocol::space_through;
use soda_types::{Ino, Monotonic};
use std::collections::BTreeSet;
use std::ops::Range;

#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) reserve: Reserve,
    /// Small changes on their way through that have been taken off what is set aside.
    counted: BTreeSet<Tag>,
    giving_up: Option<GivingUp>,
}

/// All that is set aside is given back, when all has been told that it was for.
#[derive(Debug)]
struct GivingUp {
    up_to: Lsn,
    asked: Option<Question>,
    /// What had no room, and is tried again then.
    waiting: Vec<(usize, OpUid, Call)>,
}

impl Space {
    /// What goes through is given up with the session.
    pub(super) fn of_next_session(&mut self) -> Space {
        let mut reserve = std::mem::take(&mut self.reserve);
        self.counted.iter().for_each(|_| reserve.end_through(space_through(0)));
        reserve.start_over();
        Space { reserve, ..Space::default() }
    }

    /// The processes that wait for room.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        self.giving_up.iter().flat_map(|giving_up| &giving_up.waiting).map(|(process, ..)| *process)
    }
}

impl Client {
    /// Whether the change may be made here, as far as it takes space.
    pub(super) fn has_room_here(&mut self, context: &Context, now: Monotonic, change: &Change) -> bool {
        let Some(delayed) = self.delayed.as_mut().filter(|_| context.config.room.is_some()) else {
            return true;
        };
        let space = change.space();
        if space == 0 {
            return true;
        }
        let reserve = &mut delayed.space.reserve;
        reserve.note_needed(now);
        let careless = context.config.sabotage == Sabotage::CountNothingUntold;
        let untold = if careless { 0 } else { delayed.kept.log.untold_space() };
        reserve.room_for(space, untold) == Room::Enough
    }

    /// A number for what is made here. `None`: they are used up.
    pub(super) fn next_number(&mut self) -> Option<Ino> {
        let reserve = &mut self.delayed.as_mut()?.space.reserve;
        reserve.number(TREE.volume).map(|fid| fid.ino)
    }

    /// A small change goes through, and the server lets it have its space of what is set aside for what is done here: not before
    /// what was done here has its room beside it.
    pub(in crate::client) fn lacks_room(&self, context: &Context, tag: Tag) -> bool {
        let Some(delayed) = self.delayed.as_ref().filter(|_| context.config.room.is_some()) else {
            return false;
        };
        let untold = delayed.kept.log.untold_space();
        self.is_little(tag)
            && !delayed.space.counted.contains(&tag)
            && untold > 0
            && delayed.space.reserve.room_for(space_through(0), untold) != Room::Enough
    }

    /// It is sent, perhaps once more.
    pub(in crate::client) fn count_space(&mut self, context: &Context, tag: Tag) {
        let now = self.clock.read(context.now);
        let is_little = self.is_little(tag);
        let Some(delayed) = self.delayed.as_mut().filter(|_| context.config.room.is_some()) else { return };
        if is_little && delayed.space.counted.insert(tag) {
            delayed.space.reserve.note_needed(now);
            match context.config.sabotage {
                Sabotage::CountNothingThrough => delayed.space.reserve.note_used(space_through(0)),
                _ => delayed.space.reserve.begin_through(space_through(0)),
            }
        }
    }

    fn is_little(&self, tag: Tag) -> bool {
        let what = self.requests.get(&tag).map(|request| &request.what);
        let Some(Asked::Op { call: Call::Do(deed), .. }) = what else { return false };
        matches!(deed, Deed::Create { .. } | Deed::Link { .. })
    }

    /// It has its answer.
    pub(in crate::client) fn space_counted(&mut self, tag: Tag) {
        if let Some(delayed) = &mut self.delayed
            && delayed.space.counted.remove(&tag)
        {
            delayed.space.reserve.end_through(space_through(0));
        }
    }

    /// Somebody waits for room, which all that is untold stands in the way of.
    pub(super) fn tells_for_room(&self, context: &Context) -> bool {
        let Some(delayed) = &self.delayed else { return false };
        delayed.space.giving_up.as_ref().is_some_and(|giving_up| giving_up.asked.is_none())
            || delayed.held_back.iter().any(|tag| self.lacks_room(context, *tag))
    }

    /// Asks for more, or gives back.
    pub(super) fn look_after_space(&mut self, context: &mut Context) {
        let now = self.clock.read(context.now);
        let (Some(limits), Link::Up(_), Some(_)) = (context.config.room, &self.link, self.holder.session())
        else {
            return;
        };
        let Some(delayed) = &mut self.delayed else { return };
        let told = delayed.told_up_to();
        let (clean, durable) = (delayed.is_clean(), delayed.is_durable());
        let Space { reserve, giving_up, .. } = &mut delayed.space;
        let mut inodes = 0;
        let (what, bytes) = match giving_up {
            Some(GivingUp { asked: None, up_to, .. }) if clean || told >= *up_to => (For::GivenUp, 0),
            Some(_) => return,
            None if durable && reserve.idles(now, limits.idle) => {
                reserve.fall_asleep();
                (For::Idle, 0)
            }
            None if reserve.is_low(now, limits.reserve) => {
                reserve.needed_at = now;
                inodes = if reserve.lacks_numbers(limits.reserve) { limits.reserve.inodes } else { 0 };
                (For::Needed, limits.reserve.bytes)
            }
            None => return,
        };
        let question = reserve.begin_question(what);
        if let Some(giving_up) = giving_up {
            giving_up.asked = Some(question);
        }
        let tag = self.ask(context, Kind::Control, Asked::Reserve(question, inodes, bytes));
        self.send_op(context, tag);
    }

    pub(in crate::client) fn handle_reserved(
        &mut self,
        context: &mut Context,
        tag: Tag,
        numbers: Range<u64>,
        bytes: u64,
    ) {
        let Some(Request { ticket, what: Asked::Reserve(question, ..), .. }) = self.requests.remove(&tag)
        else {
            return;
        };
        self.take_answer(context, ticket, &Leases::default());
        let now = self.clock.read(context.now);
        let (Some(limits), Some(delayed)) = (context.config.room, &mut self.delayed) else { return };
        let Space { reserve, giving_up, .. } = &mut delayed.space;
        reserve.handle_reserved(now, question, (numbers, bytes), limits.reserve);
        let Some(given_up) = giving_up.take_if(|giving_up| giving_up.asked == Some(question)) else { return };
        for (process, uid, call) in given_up.waiting {
            self.begin_again(context, process, uid, call);
        }
    }

    /// There is no answer.
    pub(in crate::client) fn handle_reserve_failed(&mut self, now: Monotonic, question: Question) {
        if let Some(delayed) = &mut self.delayed {
            delayed.space.reserve.handle_failed(now, question);
        }
    }

    /// The server has no room for it. Of data it is tried again when what is set aside for this client has been given back.
    pub(in crate::client) fn handle_no_space(&mut self, context: &mut Context, tag: Tag) {
        let Some(Request { ticket, what: Asked::Op { process, uid, call, .. }, .. }) =
            self.requests.remove(&tag)
        else {
            return;
        };
        self.take_answer(context, ticket, &Leases::default());
        self.space_counted(tag);
        let now = self.clock.read(context.now);
        let is_data = matches!(call, Call::Do(Deed::Write(_)));
        let Some(delayed) = self.delayed.as_mut().filter(|_| is_data) else {
            return self.no_space(context, process);
        };
        if let Some(giving_up) = &mut delayed.space.giving_up {
            return giving_up.waiting.push((process, uid, call));
        }
        match delayed.space.reserve.give_up(now) {
            GivenUp::Now => {
                let up_to = delayed.kept.log.last_lsn();
                let waiting = vec![(process, uid, call)];
                delayed.space.giving_up = Some(GivingUp { up_to, asked: None, waiting });
            }
            GivenUp::JustNow => self.begin_again(context, process, uid, call),
            GivenUp::Nothing => self.no_space(context, process),
        }
    }

    fn no_space(&mut self, context: &mut Context, process: usize) {
        context.refused_for_space += 1;
        self.processes[process].forget(context);
        self.think(context, process);
    }
}
