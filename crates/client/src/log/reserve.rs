//! What the server has set aside for this client: inode numbers, space, and versions that it may count.

use crate::config::WritePolicy;
use soda_protocol::digest::COUNTED_VERSIONS;
use soda_types::{Fid, Ino, Monotonic, Version, VolumeId};
use std::ops::Range;
use std::time::Duration;

/// With fewer left, more are asked for: the answer waits for the disk of the server, and meanwhile who creates files goes on.
const LOW: u64 = 8192;
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
    pub(crate) needed_at: Monotonic,
    /// It was given back for want of use: nothing is asked for until it is needed again.
    asleep: bool,
    /// When all that was set aside was last given up.
    given_up: Option<Monotonic>,
    /// The lowest version that a change may give in this run of the server, if it has said so.
    first_version: Option<Version>,
    /// What it was last said to be, by whichever run.
    last_first_version: Version,
}

/// Whether a run of the server counts versions from where they have been already, as one that goes on from a backup does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WentBack {
    Yes,
    No,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    number: u64,
    asked: Asked,
}

/// What the server is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// What is needed here.
    Needed,
    /// Nothing: others need it.
    GivenUp,
    /// Nothing: it is not needed here.
    Idle,
}

impl Reserve {
    /// Bytes that the server may need for what it has not heard of.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A number that nobody else has. `None`: they are used up.
    pub(crate) fn number(&mut self, volume: VolumeId) -> Option<Fid> {
        self.numbers.next().map(|number| Fid::new(volume, Ino(number)))
    }

    pub(crate) fn lacks_numbers(&self) -> bool {
        self.numbers.end - self.numbers.start < LOW
    }

    /// `most`: the bytes that are set aside at best.
    pub(crate) fn is_low(&self, now: Monotonic, most: u64) -> bool {
        let short = self.lacks_numbers() || self.bytes <= most / 2;
        self.asking.is_none() && !self.asleep && short && now >= self.not_before
    }

    /// Something is about to be done here, or through, that needs it.
    pub(crate) fn note_needed(&mut self, now: Monotonic) {
        self.needed_at = self.needed_at.max(now);
        self.asleep = false;
    }

    pub(crate) fn fall_asleep(&mut self) {
        self.bytes = 0;
        self.asleep = true;
    }

    /// Whether it was needed for nothing since so long ago.
    pub(crate) fn idles(&self, now: Monotonic, idle: Duration) -> bool {
        self.bytes > 0 && self.asking.is_none() && now.since(self.needed_at) >= idle
    }

    /// What the server was told takes so much of its space now, and not of what it set aside.
    pub(crate) fn note_used(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.used += bytes;
    }

    /// Nothing more is done here until the server has been asked again: others need the space.
    pub(crate) fn give_up(&mut self, now: Monotonic) -> GivenUp {
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
    pub(crate) fn start_over(&mut self) {
        *self = Reserve {
            asking: self.asking,
            questions: self.questions,
            last_first_version: self.last_first_version,
            ..Reserve::default()
        };
    }

    /// Another run of the server counts versions from elsewhere: it is asked before anything is done here again.
    pub(crate) fn note_another_run(&mut self) {
        self.bytes = 0;
        self.not_before = Monotonic::ZERO;
        self.first_version = None;
    }

    /// The lowest version that a change may give. Too low while it is not known, which the server mends.
    pub(crate) fn first_version(&self) -> Version {
        self.first_version.unwrap_or_default()
    }

    /// The server has said what its versions begin with.
    pub(crate) fn handle_first_version(&mut self, first: Version) -> WentBack {
        self.first_version = Some(first);
        let before = std::mem::replace(&mut self.last_first_version, first);
        // A run that came after that one begins far above it. The same one begins elsewhere where it goes on from a backup.
        if first == before || first >= Version(before.0.saturating_add(COUNTED_VERSIONS)) {
            return WentBack::No;
        }
        // The server does not know that it has given them.
        self.numbers = 0..0;
        WentBack::Yes
    }

    /// Whether nobody can have counted to this version in this run: it is of a run that the server does not know (a backup was
    /// put back), and would have the digest refused.
    pub(crate) fn is_beyond(&self, version: Version) -> bool {
        self.first_version.is_some_and(|first| version >= Version(first.0.saturating_add(COUNTED_VERSIONS)))
    }

    /// The version as the server is told it: none where it is not known which it takes.
    pub(crate) fn told(&self, version: Version) -> Version {
        let known = self.first_version.is_some() && !self.is_beyond(version);
        if known { version } else { Version(0) }
    }

    pub(crate) fn begin_question(&mut self, asked: Asked) -> Question {
        self.questions += 1;
        self.used = 0;
        *self.asking.insert(Question { number: self.questions, asked })
    }

    pub(crate) fn handle_reserved(
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

    pub(crate) fn handle_failed(&mut self, now: Monotonic, question: Question) {
        self.asking.take_if(|last| *last == question);
        self.not_before = now + ASK_AGAIN;
    }
}

/// Of what was set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    Now,
    /// Somebody else has, a moment ago.
    JustNow,
    Nothing,
}

impl super::Behind {
    pub(crate) fn wants_attention(&self, now: Monotonic) -> bool {
        let WritePolicy::Behind(policy) = &self.policy else { return false };
        self.reserve.is_low(now, policy.space()) || self.due_at().is_some_and(|due| due <= now)
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

    #[test]
    fn versions_begin_where_this_run_of_the_server_says() {
        const RUN: u64 = 1 << 44;
        let mut reserve = Reserve::default();
        assert_eq!((reserve.first_version(), reserve.told(Version(7))), (Version(0), Version(0)));
        assert_eq!(reserve.handle_first_version(Version(3 * RUN)), WentBack::No);
        let counted = Version(3 * RUN + 7);
        assert_eq!((reserve.first_version(), reserve.told(counted)), (Version(3 * RUN), counted));
        for forget in [Reserve::note_another_run, Reserve::start_over] {
            forget(&mut reserve);
            assert_eq!((reserve.first_version(), reserve.told(counted)), (Version(0), Version(0)));
            assert!(!reserve.is_beyond(counted), "nobody knows");
        }
        assert_eq!(reserve.handle_first_version(Version(2 * RUN)), WentBack::Yes, "a backup");
        assert_eq!(reserve.first_version(), Version(2 * RUN));
        assert!(reserve.is_beyond(counted) && reserve.told(counted) == Version(0));
        assert_eq!(reserve.handle_first_version(Version(2 * RUN)), WentBack::No, "once");
        answer(&mut reserve, at(1), 100..9000, MOST);
        assert_eq!(reserve.handle_first_version(Version(2 * RUN + 5)), WentBack::Yes, "another one");
        assert_eq!(reserve.number(VolumeId(1)), None, "they were of the other run");
        assert_eq!(reserve.handle_first_version(Version(3 * RUN)), WentBack::No);
    }
}
