//! What the server has set aside for this client: inode numbers, and space, so that a digest cannot fail for want of them and
//! a full disk shows when a program writes, not later.

use crate::cache::State;
use crate::call::{Order, Waiting, unexpected};
use crate::config::WritePolicy;
use crate::inner::Inner;
use soda_protocol::{Answer, Call, space_through};
use soda_types::{Fid, Ino, Monotonic, Version, VolumeId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Numbers asked for at once.
const NUMBERS: u32 = 4096;
/// With fewer left, more are asked for.
const LOW: u64 = 1024;
/// So long after the server had no more space it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reserve {
    numbers: Range<u64>,
    /// What is left of what was set aside.
    bytes: u64,
    /// Bytes that were used up since the server was last asked.
    used: u64,
    /// The last question, until it is answered. Answers to those before it say nothing any more.
    asking: Option<Question>,
    questions: u64,
    not_before: Monotonic,
    /// When it was last needed.
    needed_at: Monotonic,
    /// It was given back for want of use: nothing is asked for until it is needed again.
    asleep: bool,
    /// When all that was set aside was last given up.
    given_up: Option<Monotonic>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    number: u64,
    asked: Asked,
}

/// What the server is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// What is needed here.
    Needed,
    /// Nothing: others need it.
    GivenUp,
    /// Nothing: it is not needed here.
    Idle,
}

impl Reserve {
    /// Bytes that the server may need for what it has not heard of.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A number that nobody else has. `None`: they are used up.
    pub(super) fn number(&mut self, volume: VolumeId) -> Option<Fid> {
        self.numbers.next().map(|number| Fid::new(volume, Ino(number)))
    }

    fn lacks_numbers(&self) -> bool {
        self.numbers.end - self.numbers.start < LOW
    }

    /// `most`: the bytes that are set aside at best.
    fn is_low(&self, now: Monotonic, most: u64) -> bool {
        let short = self.lacks_numbers() || self.bytes <= most / 2;
        self.asking.is_none() && !self.asleep && short && now >= self.not_before
    }

    /// Something is about to be done here, or through, that needs it.
    pub(super) fn note_needed(&mut self, now: Monotonic) {
        self.needed_at = self.needed_at.max(now);
        self.asleep = false;
    }

    fn fall_asleep(&mut self) {
        self.bytes = 0;
        self.asleep = true;
    }

    /// Whether it was needed for nothing since so long ago.
    fn idles(&self, now: Monotonic, idle: Duration) -> bool {
        self.bytes > 0 && self.asking.is_none() && now.since(self.needed_at) >= idle
    }

    /// What the server was told takes so much of its space now, and not of what it set aside.
    pub(super) fn note_used(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.used += bytes;
    }

    /// Nothing more is done here until the server has been asked again: others need the space.
    fn give_up(&mut self, now: Monotonic) -> GivenUp {
        let had = std::mem::take(&mut self.bytes);
        let just_now = self.given_up.is_some_and(|at| now < at + ASK_AGAIN);
        self.not_before = now + ASK_AGAIN;
        match (had, self.asking) {
            (0, None) if just_now => GivenUp::JustNow,
            (0, None) => GivenUp::Nothing,
            _ => {
                self.given_up = Some(now);
                GivenUp::Now
            }
        }
    }

    /// Another session: what was set aside for the last one is gone.
    pub(super) fn start_over(&mut self) {
        *self = Reserve { asking: self.asking, questions: self.questions, ..Reserve::default() };
    }

    /// Another run of the server counts versions from elsewhere: it is asked before anything is done here again.
    pub(super) fn note_another_run(&mut self) {
        self.bytes = 0;
        self.not_before = Monotonic::ZERO;
    }

    fn begin_question(&mut self, asked: Asked) -> Question {
        self.questions += 1;
        self.used = 0;
        *self.asking.insert(Question { number: self.questions, asked })
    }

    fn handle_reserved(
        &mut self,
        now: Monotonic,
        question: Question,
        numbers: Range<u64>,
        (bytes, most): (u64, u64),
    ) {
        if self.asking.take_if(|last| *last == question).is_some() {
            // The server may have set it aside before it was told what used it up.
            self.bytes = bytes.saturating_sub(self.used);
            if bytes <= most / 2 && question.asked != Asked::Idle {
                self.not_before = now + ASK_AGAIN;
            }
        }
        if !numbers.is_empty() {
            // What is left of the last batch is given up, if it cannot be joined: numbers are plenty.
            self.numbers = match self.numbers.end == numbers.start {
                true => self.numbers.start..numbers.end,
                false => numbers,
            };
        }
    }

    fn handle_failed(&mut self, now: Monotonic, question: Question) {
        self.asking.take_if(|last| *last == question);
        self.not_before = now + ASK_AGAIN;
    }
}

impl State {
    /// What to ask the server to set aside, if it is time.
    pub(super) fn next_reservation(&mut self, now: Monotonic) -> Option<(Order, Question)> {
        let WritePolicy::Behind(policy) = &self.behind.policy else { return None };
        let bytes = policy.space();
        if !self.behind.reserve.is_low(now, bytes) || self.holder.session().is_none() {
            return None;
        }
        self.behind.reserve.needed_at = now;
        let inodes = if self.behind.reserve.lacks_numbers() { NUMBERS } else { 0 };
        Some(self.ask_for_reservation(now, Asked::Needed, inodes, bytes))
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

impl super::Behind {
    pub(super) fn wants_attention(&self, now: Monotonic) -> bool {
        let WritePolicy::Behind(policy) = &self.policy else { return false };
        self.reserve.is_low(now, policy.space()) || self.due_at().is_some_and(|due| due <= now)
    }
}

/// Of what was set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GivenUp {
    Now,
    /// Somebody else has, a moment ago.
    JustNow,
    Nothing,
}

/// Whether there is hope that the server takes what it had no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    Made,
    None,
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
    pub(crate) async fn make_room(self: &Arc<Inner>) -> Room {
        if !self.writes_behind() {
            return Room::None;
        }
        let _one_at_a_time = self.making_room.lock().await;
        let given_up = {
            let (mut state, now) = self.locked();
            state.behind.reserve.give_up(now)
        };
        match given_up {
            GivenUp::Now => {}
            GivenUp::JustNow => return Room::Made,
            GivenUp::Nothing => return Room::None,
        }
        if self.flush_all().await.is_err() {
            return Room::None;
        }
        let asked = {
            let (mut state, now) = self.locked();
            state.ask_for_reservation(now, Asked::GivenUp, 0, 0)
        };
        let given_back = self.send_reservation(asked).result().await;
        if given_back.is_ok() { Room::Made } else { Room::None }
    }

    /// A change is about to go through that takes so little space that the server lets it have that of what is set aside for this
    /// client, so it is not there any more for what is done here.
    pub(crate) async fn take_little(self: &Arc<Inner>, bytes: usize) {
        if !self.writes_behind() {
            return;
        }
        let little = space_through(bytes);
        let over = {
            let behind = &self.locked().0.behind;
            let untold = behind.log.untold_space();
            untold > 0 && untold + little > behind.reserve.bytes()
        };
        if over {
            // Who waits for what cannot be told hears of it.
            let _ = self.flush_all().await;
        }
        let (mut state, now) = self.locked();
        state.behind.reserve.note_needed(now);
        state.behind.reserve.note_used(little);
    }

    pub(super) fn send_reservation(self: &Arc<Inner>, (order, question): (Order, Question)) -> Waiting<()> {
        let most = match self.config.write_policy() {
            WritePolicy::Behind(policy) => policy.space(),
            WritePolicy::Through => 0,
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
                    reserve.handle_reserved(arrived.now, question, numbers, (bytes, most));
                    let behind = &mut arrived.state.behind;
                    behind.first_version = Version(behind.first_version.0.max(version.0));
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

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1 << 20;

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn answer(reserve: &mut Reserve, now: Monotonic, numbers: Range<u64>, bytes: u64) {
        let question = reserve.begin_question(Asked::Needed);
        reserve.handle_reserved(now, question, numbers, (bytes, MOST));
    }

    #[test]
    fn numbers_are_given_once_and_asked_for_before_they_run_out() {
        let mut reserve = Reserve::default();
        assert!(reserve.is_low(at(1), MOST));
        answer(&mut reserve, at(1), 100..100 + LOW + 1, MOST);
        assert!(!reserve.is_low(at(1), MOST));
        let first = reserve.number(VolumeId(1)).unwrap();
        let second = reserve.number(VolumeId(1)).unwrap();
        assert_eq!((first.ino, second.ino), (Ino(100), Ino(101)));
        assert!(reserve.is_low(at(1), MOST));
        answer(&mut reserve, at(1), 5000..9000, MOST);
        assert_eq!(reserve.number(VolumeId(1)).unwrap().ino, Ino(5000));
    }

    #[test]
    fn a_full_server_is_not_asked_all_the_time() {
        let mut reserve = Reserve::default();
        answer(&mut reserve, at(1), 100..9000, 0);
        assert_eq!(reserve.bytes(), 0);
        assert!(!reserve.is_low(at(1), MOST));
        assert!(reserve.is_low(at(3), MOST));
    }

    #[test]
    fn what_was_used_up_is_asked_for_again() {
        let mut reserve = Reserve::default();
        answer(&mut reserve, at(1), 100..9000, MOST);
        reserve.note_used(MOST / 2 - 1);
        assert!(!reserve.is_low(at(1), MOST));
        reserve.note_used(1);
        assert!(reserve.is_low(at(1), MOST));
        // Asked; what is applied until the answer may have been taken from what it says.
        let question = reserve.begin_question(Asked::Needed);
        reserve.note_used(100);
        reserve.handle_reserved(at(1), question, 0..0, (MOST, MOST));
        assert_eq!(reserve.bytes(), MOST - 100);
        reserve.note_another_run();
        assert!(reserve.is_low(at(1), MOST) && reserve.bytes() == 0);
    }

    #[test]
    fn what_idles_is_given_back_and_asked_for_when_it_is_needed() {
        let idle = Duration::from_secs(30);
        let mut reserve = Reserve::default();
        answer(&mut reserve, at(1), 100..9000, MOST);
        reserve.note_needed(at(2));
        assert!(!reserve.idles(at(31), idle));
        assert!(reserve.idles(at(32), idle));
        reserve.fall_asleep();
        let question = reserve.begin_question(Asked::Idle);
        assert!(!reserve.idles(at(90), idle), "it is on its way");
        reserve.handle_reserved(at(99), question, 0..0, (0, MOST));
        assert!(!reserve.is_low(at(99), MOST), "it is not wanted back");
        reserve.note_needed(at(99));
        assert!(reserve.is_low(at(99), MOST));
        assert_eq!(reserve.number(VolumeId(1)).unwrap().ino, Ino(100), "numbers take no space");
    }

    #[test]
    fn what_was_given_up_does_not_come_back_with_an_older_answer() {
        let mut reserve = Reserve::default();
        answer(&mut reserve, at(1), 100..9000, MOST);
        let before = reserve.begin_question(Asked::Needed);
        assert_eq!(reserve.give_up(at(2)), GivenUp::Now);
        let nothing = reserve.begin_question(Asked::GivenUp);
        reserve.handle_reserved(at(2), before, 9000..9999, (MOST, MOST));
        assert_eq!(reserve.bytes(), 0);
        reserve.handle_reserved(at(2), nothing, 0..0, (0, MOST));
        assert_eq!((reserve.bytes(), reserve.give_up(at(2))), (0, GivenUp::JustNow));
        assert_eq!(reserve.give_up(at(5)), GivenUp::Nothing);
    }
}
