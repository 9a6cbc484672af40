//! What the server has set aside for this client: inode numbers, and space, so that a digest cannot fail for want of them and
//! a full disk shows when a program writes, not later.

use crate::cache::State;
use crate::call::{Order, Waiting, unexpected};
use crate::config::WritePolicy;
use crate::inner::Inner;
use crate::log::most_reserved;
use soda_oplog::reserve::{Asked, GivenUp, Most, Question, Room, WentBack};
use soda_protocol::{Answer, Call, space_through};
use soda_types::Monotonic;
use std::sync::Arc;

impl State {
    /// What to ask the server to set aside, if it is time.
    pub(super) fn next_reservation(&mut self, now: Monotonic) -> Option<(Order, Question)> {
        let WritePolicy::Behind(policy) = &self.behind.policy else { return None };
        let most = most_reserved(policy);
        if !self.behind.reserve.is_low(now, most) || self.holder.session().is_none() {
            return None;
        }
        self.behind.reserve.needed_at = now;
        let inodes = if self.behind.reserve.lacks_numbers(most) { most.inodes } else { 0 };
        Some(self.ask_for_reservation(now, Asked::Needed, inodes, most.bytes))
    }

    fn ask_for_reservation(
        &mut self,
        now: Monotonic,
        asked: Asked,
        inodes: u32,
        bytes: u64,
    ) -> (Order, Question) {
        let question = self.behind.reserve.begin_question(asked);
        let ticket = self.holder.begin_request(now);
        (Order::question(Call::Reserve { inodes, bytes }, ticket), question)
    }
}

impl State {
    /// What gives back what was set aside for what has not been done for a while. All that was done is on the server's disk: a
    /// server that comes back with less has to be told again, and needs the room for that.
    fn idle_reservation(&mut self, now: Monotonic) -> Option<(Order, Question)> {
        let WritePolicy::Behind(policy) = &self.behind.policy else { return None };
        let idle = policy.reserve_idle;
        let needed = self.behind.has_backlog() || self.behind.is_restoring();
        if needed || self.holder.session().is_none() || !self.behind.reserve.idles(now, idle) {
            return None;
        }
        self.behind.reserve.fall_asleep();
        Some(self.ask_for_reservation(now, Asked::Idle, 0, 0))
    }
}

/// Whether there is hope that the server takes what it had no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MadeRoom {
    Yes,
    No,
}

/// A change on its way through that may take space of what is set aside.
#[must_use]
pub(crate) struct GoingThrough {
    inner: Arc<Inner>,
    bytes: u64,
}

impl Drop for GoingThrough {
    fn drop(&mut self) {
        self.inner.locked().0.behind.reserve.end_through(self.bytes);
    }
}

impl Inner {
    /// Others may have what is set aside for a client that does nothing.
    pub(crate) fn release_idle_reservation(self: &Arc<Inner>) {
        let asked = {
            let (mut state, now) = self.locked();
            state.idle_reservation(now)
        };
        if let Some(asked) = asked {
            self.stats.reservations_idle.one();
            drop(self.send_reservation(asked));
        }
    }

    /// The server had no room for something that goes through to it. What it keeps for what is done here is given back,
    /// after all that was done here has been told: then there may be room.
    pub(crate) async fn make_room(self: &Arc<Inner>) -> MadeRoom {
        if !self.writes_behind() {
            return MadeRoom::No;
        }
        let _one_at_a_time = self.making_room.lock().await;
        let given_up = {
            let (mut state, now) = self.locked();
            state.behind.reserve.give_up(now)
        };
        match given_up {
            GivenUp::Now => {}
            GivenUp::JustNow => return MadeRoom::Yes,
            GivenUp::Nothing => return MadeRoom::No,
        }
        if self.flush_all().await.is_err() {
            return MadeRoom::No;
        }
        let asked = {
            let (mut state, now) = self.locked();
            state.ask_for_reservation(now, Asked::GivenUp, 0, 0)
        };
        let given_back = self.send_reservation(asked).result().await;
        if given_back.is_ok() { MadeRoom::Yes } else { MadeRoom::No }
    }

    /// A change is about to go through that takes so little space that the server lets it have that of what is set aside for this
    /// client, so it is not there any more for what is done here. To be held until the change has its answer.
    pub(crate) async fn take_little(self: &Arc<Inner>, bytes: usize) -> Option<GoingThrough> {
        if !self.writes_behind() {
            return None;
        }
        let little = space_through(bytes);
        let over = {
            let behind = &self.locked().0.behind;
            behind.log.untold_space() > 0 && behind.room_for(little) != Room::Enough
        };
        if over {
            // Who waits for what cannot be told hears of it.
            let _ = self.flush_all().await;
        }
        let (mut state, now) = self.locked();
        state.behind.reserve.note_needed(now);
        state.behind.reserve.begin_through(little);
        Some(GoingThrough { inner: Arc::clone(self), bytes: little })
    }

    pub(super) fn send_reservation(self: &Arc<Inner>, (order, question): (Order, Question)) -> Waiting<()> {
        let most = match self.config.write_policy() {
            WritePolicy::Behind(policy) => most_reserved(&policy),
            WritePolicy::Through => Most { inodes: 0, bytes: 0 },
        };
        self.send(order, move |arrived, result| {
            let reserve = &mut arrived.state.behind.reserve;
            let reserved = result.and_then(|(answer, _)| match answer {
                Answer::Reserved { first, count, bytes, version } => Ok((first, count, bytes, version)),
                other => unexpected(&other),
            });
            match reserved {
                Ok((first, count, bytes, version)) => {
                    let numbers = first.0..first.0 + u64::from(count);
                    let went_back = reserve.handle_first_version(version);
                    reserve.handle_reserved(arrived.now, question, (numbers, bytes), most);
                    if went_back == WentBack::Yes {
                        tracing::warn!("the server has gone back to an earlier state, such as a backup");
                        arrived.state.forget_versions();
                    }
                    Ok(())
                }
                Err(error) => {
                    reserve.handle_failed(arrived.now, question);
                    tracing::debug!(%error, "no reservation: changes go through to the server");
                    Err(error)
                }
            }
        })
    }
}
