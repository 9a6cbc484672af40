//! What the server has set aside for this client: inode numbers, space, and versions that it may count.

use soda_protocol::digest::COUNTED_VERSIONS;
use soda_types::{Fid, Ino, Monotonic, Version, VolumeId};
use std::ops::Range;
use std::time::Duration;

/// So long after the server had no more space it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What the server is asked to set aside. Asked again with half of it left: the answer waits for the disk of the server, and
/// meanwhile who creates files goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Most {
    pub inodes: u32,
    pub bytes: u64,
}

/// What is left here of it.
#[derive(Debug, Default)]
pub struct Reserve {
    numbers: Range<u64>,
    /// What is left of what was set aside.
    bytes: u64,
    /// Bytes that were used up since the server was last asked, or that something on its way then may use up since.
    used: u64,
    /// Bytes that changes on their way through may use up.
    going_through: u64,
    /// The last question, until it is answered. Answers to those before it say nothing any more.
    asking: Option<Question>,
    questions: u64,
    not_before: Monotonic,
    /// When it was last needed.
    pub needed_at: Monotonic,
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
pub enum WentBack {
    Yes,
    No,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    number: u64,
    asked: Asked,
}

/// What the server is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// What is needed here.
    Needed,
    /// Nothing: others need it.
    GivenUp,
    /// Nothing: it is not needed here.
    Idle,
}

impl Reserve {
    /// Bytes that the server may need for what it has not heard of.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a change for which the server may need `space` bytes has its room beside what it may need `untold` for.
    pub fn room_for(&self, space: u64, untold: u64) -> Room {
        match self.bytes {
            bytes if untold + space <= bytes => Room::Enough,
            bytes if space <= bytes => Room::Later,
            _ => Room::None,
        }
    }

    /// A number that nobody else has. `None`: they are used up.
    pub fn number(&mut self, volume: VolumeId) -> Option<Fid> {
        self.numbers.next().map(|number| Fid::new(volume, Ino(number)))
    }

    /// Whether more are to be asked for with the next question.
    pub fn lacks_numbers(&self, most: Most) -> bool {
        self.numbers.end - self.numbers.start < u64::from(most.inodes / 2)
    }

    /// Whether it is time to ask.
    pub fn is_low(&self, now: Monotonic, most: Most) -> bool {
        let short = self.lacks_numbers(most) || self.bytes <= most.bytes / 2;
        self.asking.is_none() && !self.asleep && short && now >= self.not_before
    }

    /// Something is about to be done here, or through, that needs it.
    pub fn note_needed(&mut self, now: Monotonic) {
        self.needed_at = self.needed_at.max(now);
        self.asleep = false;
    }

    /// All is going to be given back ([`Asked::Idle`]).
    pub fn fall_asleep(&mut self) {
        self.bytes = 0;
        self.asleep = true;
    }

    /// Whether it was needed for nothing since so long ago.
    pub fn idles(&self, now: Monotonic, idle: Duration) -> bool {
        self.bytes > 0 && self.asking.is_none() && now.since(self.needed_at) >= idle
    }

    /// What the server was told takes so much of its space now, and not of what it set aside.
    pub fn note_used(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.used += bytes;
    }

    /// A change goes through to the server, which takes its space off what is set aside. When it does is not known before the
    /// answer: perhaps after it has said what that is.
    pub fn begin_through(&mut self, bytes: u64) {
        self.going_through += bytes;
        self.note_used(bytes);
    }

    /// The change has its answer.
    pub fn end_through(&mut self, bytes: u64) {
        self.going_through = self.going_through.saturating_sub(bytes);
    }

    /// Nothing more is done here until the server has been asked again: others need the space.
    pub fn give_up(&mut self, now: Monotonic) -> GivenUp {
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
    pub fn start_over(&mut self) {
        *self = Reserve {
            asking: self.asking,
            going_through: self.going_through,
            questions: self.questions,
            last_first_version: self.last_first_version,
            ..Reserve::default()
        };
    }

    /// Another run of the server counts versions from elsewhere: it is asked before anything is done here again.
    pub fn note_another_run(&mut self) {
        self.bytes = 0;
        self.not_before = Monotonic::ZERO;
        self.first_version = None;
    }

    /// The lowest version that a change may give. Too low while it is not known, which the server mends.
    pub fn first_version(&self) -> Version {
        self.first_version.unwrap_or_default()
    }

    /// The server has said what its versions begin with.
    pub fn handle_first_version(&mut self, first: Version) -> WentBack {
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
    pub fn is_beyond(&self, version: Version) -> bool {
        self.first_version.is_some_and(|first| version >= Version(first.0.saturating_add(COUNTED_VERSIONS)))
    }

    /// The version as the server is told it: none where it is not known which it takes.
    pub fn told(&self, version: Version) -> Version {
        let known = self.first_version.is_some() && !self.is_beyond(version);
        if known { version } else { Version(0) }
    }

    /// The server is asked.
    pub fn begin_question(&mut self, asked: Asked) -> Question {
        self.questions += 1;
        self.used = self.going_through;
        *self.asking.insert(Question { number: self.questions, asked })
    }

    /// The answer: more numbers, if any, and the bytes that are set aside now.
    pub fn handle_reserved(
        &mut self,
        now: Monotonic,
        question: Question,
        (numbers, bytes): (Range<u64>, u64),
        most: Most,
    ) {
        if self.asking.take_if(|last| *last == question).is_some() {
            // The server may have set it aside before it was told what used it up.
            self.bytes = bytes.saturating_sub(self.used);
            if bytes <= most.bytes / 2 && question.asked != Asked::Idle {
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

    /// There is no answer.
    pub fn handle_failed(&mut self, now: Monotonic, question: Question) {
        self.asking.take_if(|last| *last == question);
        self.not_before = now + ASK_AGAIN;
    }
}

/// Whether there is room in what was set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    Enough,
    /// When the server has been told.
    Later,
    None,
}

/// Of what was set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivenUp {
    Now,
    /// Somebody else has, a moment ago.
    JustNow,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;
    const MOST: Most = Most { inodes: 2 * LOW, bytes: BYTES };
    const LOW: u32 = 8192;

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn answer(reserve: &mut Reserve, now: Monotonic, numbers: Range<u64>, bytes: u64) {
        let question = reserve.begin_question(Asked::Needed);
        reserve.handle_reserved(now, question, (numbers, bytes), MOST);
    }

    #[test]
    fn numbers_are_given_once_and_asked_for_before_they_run_out() {
        let mut reserve = Reserve::default();
        assert!(reserve.is_low(at(1), MOST));
        answer(&mut reserve, at(1), 100..100 + u64::from(LOW) + 1, BYTES);
        assert!(!reserve.is_low(at(1), MOST));
        let first = reserve.number(VolumeId(1)).unwrap();
        let second = reserve.number(VolumeId(1)).unwrap();
        assert_eq!((first.ino, second.ino), (Ino(100), Ino(101)));
        assert!(reserve.is_low(at(1), MOST));
        answer(&mut reserve, at(1), 5000..9000, BYTES);
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
        answer(&mut reserve, at(1), 100..9000, BYTES);
        reserve.note_used(BYTES / 2 - 1);
        assert!(!reserve.is_low(at(1), MOST));
        reserve.note_used(1);
        assert!(reserve.is_low(at(1), MOST));
        // Asked; what is applied until the answer may have been taken from what it says.
        let question = reserve.begin_question(Asked::Needed);
        reserve.note_used(100);
        reserve.handle_reserved(at(1), question, (0..0, BYTES), MOST);
        assert_eq!(reserve.bytes(), BYTES - 100);
        reserve.note_another_run();
        assert!(reserve.is_low(at(1), MOST) && reserve.bytes() == 0);
    }

    #[test]
    fn what_goes_through_is_taken_off_the_answer_whenever_the_server_does_it() {
        let mut reserve = Reserve::default();
        answer(&mut reserve, at(1), 100..9000, BYTES);
        reserve.begin_through(100);
        assert_eq!(reserve.bytes(), BYTES - 100);
        // It may reach the server after the question.
        answer(&mut reserve, at(1), 0..0, BYTES);
        assert_eq!(reserve.bytes(), BYTES - 100);
        let question = reserve.begin_question(Asked::Needed);
        reserve.end_through(100);
        reserve.handle_reserved(at(1), question, (0..0, BYTES), MOST);
        assert_eq!(reserve.bytes(), BYTES - 100, "perhaps it was done after that was said");
        answer(&mut reserve, at(1), 0..0, BYTES);
        assert_eq!(reserve.bytes(), BYTES);
    }

    #[test]
    fn room_is_beside_what_is_untold() {
        let mut reserve = Reserve::default();
        assert_eq!((reserve.room_for(0, 0), reserve.room_for(1, 0)), (Room::Enough, Room::None));
        answer(&mut reserve, at(1), 100..9000, 100);
        for (space, untold, room) in
            [(100, 0, Room::Enough), (40, 60, Room::Enough), (41, 60, Room::Later), (101, 0, Room::None)]
        {
            assert_eq!(reserve.room_for(space, untold), room, "{space} beside {untold}");
        }
    }

    #[test]
    fn what_idles_is_given_back_and_asked_for_when_it_is_needed() {
        let idle = Duration::from_secs(30);
        let mut reserve = Reserve::default();
        answer(&mut reserve, at(1), 100..9000, BYTES);
        reserve.note_needed(at(2));
        assert!(!reserve.idles(at(31), idle));
        assert!(reserve.idles(at(32), idle));
        reserve.fall_asleep();
        let question = reserve.begin_question(Asked::Idle);
        assert!(!reserve.idles(at(90), idle), "it is on its way");
        reserve.handle_reserved(at(99), question, (0..0, 0), MOST);
        assert!(!reserve.is_low(at(99), MOST), "it is not wanted back");
        reserve.note_needed(at(99));
        assert!(reserve.is_low(at(99), MOST));
        assert_eq!(reserve.number(VolumeId(1)).unwrap().ino, Ino(100), "numbers take no space");
    }

    #[test]
    fn what_was_given_up_does_not_come_back_with_an_older_answer() {
        let mut reserve = Reserve::default();
        answer(&mut reserve, at(1), 100..9000, BYTES);
        let before = reserve.begin_question(Asked::Needed);
        assert_eq!(reserve.give_up(at(2)), GivenUp::Now);
        let nothing = reserve.begin_question(Asked::GivenUp);
        reserve.handle_reserved(at(2), before, (9000..9999, BYTES), MOST);
        assert_eq!(reserve.bytes(), 0);
        reserve.handle_reserved(at(2), nothing, (0..0, 0), MOST);
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
        answer(&mut reserve, at(1), 100..9000, BYTES);
        assert_eq!(reserve.handle_first_version(Version(2 * RUN + 5)), WentBack::Yes, "another one");
        assert_eq!(reserve.number(VolumeId(1)), None, "they were of the other run");
        assert_eq!(reserve.handle_first_version(Version(3 * RUN)), WentBack::No);
    }
}
