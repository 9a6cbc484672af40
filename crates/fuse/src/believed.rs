//! When the kernel may believe attributes.
//!
//! Linux notes that attributes are valid before it sets them, one by one (`fuse_change_attributes_common`), and stat(2) takes no
//! lock: who asks while another thread takes an answer in may be shown what another machine changed long before. So attributes
//! that are not those which the kernel has are told twice after a recall, first without a time-out. With one they are told when
//! they are set: to a thread that was told before, which had to take in that answer to ask again, or after a while.
//!
//! From 6.13 on this leaves the moment between two of Linux' steps: it withdraws the notification's mark first and then, with an
//! atomic addition in between, replaces the old time-out by none. One in twenty is left of what would be seen otherwise.

use std::time::Duration;

/// Who was answered so long ago has taken it in; if not, it has not run for all that time.
const SET_BY_NOW: Ticks = Ticks(9);

/// Eighths of a second since some instant: for 17 years. There are some of these for each inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticks(u32);

impl Ticks {
    pub(crate) fn of(since: Duration) -> Ticks {
        Ticks(u32::try_from(since.as_millis() / 125).unwrap_or(u32::MAX))
    }

    fn after(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_sub(other.0))
    }
}

/// Whether the kernel takes an answer in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Free,
    /// It was told to forget the inode since it asked, and throws the answer away.
    Barred,
}

/// Attributes on their way to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Telling {
    /// The same for the same attributes ([`crate::wire::AttrOut::print`]).
    pub(crate) print: u32,
    /// What is left of the lease.
    pub(crate) valid: Duration,
    /// Thread that waits for them. 0: not known.
    pub(crate) to: u32,
    pub(crate) way: Way,
    pub(crate) now: Ticks,
}

/// Which attributes the kernel has, whether it believes them or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Attributes {
    /// None: it does not have the inode yet.
    None,
    /// These, and from then until `until` those that own changes made of them. What another process here sees of an own change
    /// while a third one's answer is taken in may be of before.
    Are { print: u32, until: Ticks, told: Ticks },
    /// These, as soon as one of the threads `to` has run, those that were told first and last; others until then.
    Become { print: u32, to: [u32; 2], since: Ticks },
    #[default]
    Unknown,
}

impl Attributes {
    /// For how long the kernel may believe them.
    pub(crate) fn tell(&mut self, telling: Telling) -> Duration {
        let Telling { print, valid, to, way, now } = telling;
        if way == Way::Barred {
            *self = Attributes::Unknown;
            return Duration::ZERO;
        }
        let lasts = match *self {
            Attributes::None => Ticks(0),
            Attributes::Are { until, .. } if now < until => until,
            Attributes::Are { print: has, .. } if has == print => Ticks(0),
            Attributes::Become { print: gets, to: told, since } if gets == print => {
                let has_run = to != 0 && told.contains(&to);
                if !has_run && now.after(since) < SET_BY_NOW {
                    *self = Attributes::Become { print, to: [told[0], to], since };
                    return Duration::ZERO;
                }
                Ticks(0)
            }
            _ => {
                *self = Attributes::Become { print, to: [to; 2], since: now };
                return Duration::ZERO;
            }
        };
        let until = match valid.is_zero() {
            true => lasts,
            false => Ticks(now.0.saturating_add(Ticks::of(valid).0)),
        };
        *self = Attributes::Are { print, until, told: now };
        valid
    }

    /// Another machine may change them from now on.
    pub(crate) fn recalled(&mut self, now: Ticks) {
        *self = match *self {
            Attributes::Are { print, told, .. } if now.after(told) >= SET_BY_NOW => {
                Attributes::Are { print, until: Ticks(0), told }
            }
            Attributes::None => Attributes::None,
            _ => Attributes::Unknown,
        };
    }

    /// The kernel throws away what it was told and has not taken in.
    pub(crate) fn barred(&mut self) {
        if let Attributes::Become { .. } = self {
            *self = Attributes::Unknown;
        }
    }

    /// The kernel did not take the last answer.
    pub(crate) fn not_taken(&mut self) {
        *self = Attributes::Unknown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const NOT_YET: Duration = Duration::ZERO;
    const SECOND: u32 = 8;

    fn tell(attributes: &mut Attributes, print: u32, to: u32, now: u32) -> Duration {
        attributes.tell(Telling { print, valid: LEASE, to, way: Way::Free, now: Ticks(now) })
    }

    /// As the kernel has the attributes 1, believed, and then is told to forget them.
    fn recalled() -> Attributes {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, 100), LEASE);
        attributes.recalled(Ticks(110));
        attributes
    }

    #[test]
    fn what_another_machine_changed_is_believed_when_it_is_surely_set() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 10, 110), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 111), NOT_YET, "10 may not have run since");
        assert_eq!(tell(&mut attributes, 2, 10, 112), LEASE, "it has, to ask again");
        assert_eq!(tell(&mut attributes, 2, 12, 113), LEASE);
    }

    /// A shell looks once and ends, then one program looks at everything.
    #[test]
    fn so_it_is_for_who_was_told_last() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 10, 110), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 111), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 111), LEASE);
    }

    #[test]
    fn others_believe_it_after_a_second() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 10, 110), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 110 + SECOND), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 12, 110 + SECOND + 1), LEASE);
    }

    #[test]
    fn who_is_not_known_is_never_the_same() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 0, 110), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 0, 111), NOT_YET);
    }

    #[test]
    fn what_is_as_it_was_is_believed_at_once() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 1, 11, 110), LEASE);
        assert_eq!(tell(&mut attributes, 1, 11, 5000), LEASE, "its time was over");
    }

    /// The kernel throws away what it has not taken in when it is told to forget.
    #[test]
    fn what_was_told_just_before_the_recall_may_not_be_there() {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, 100), LEASE);
        attributes.recalled(Ticks(100 + SECOND));
        assert_eq!(tell(&mut attributes, 1, 11, 100 + SECOND), NOT_YET);
        assert_eq!(tell(&mut attributes, 1, 11, 100 + SECOND), LEASE);
    }

    #[test]
    fn a_lease_that_ended_by_itself_is_like_a_recall() {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, 100), LEASE);
        assert_eq!(tell(&mut attributes, 2, 11, 180), NOT_YET);
    }

    #[test]
    fn own_changes_are_believed_at_once_while_nobody_else_could_make_any() {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, 100), LEASE);
        assert_eq!(tell(&mut attributes, 2, 11, 179), LEASE);
        let set_only = Telling { print: 3, valid: NOT_YET, to: 12, way: Way::Free, now: Ticks(180) };
        assert_eq!(attributes.tell(set_only), NOT_YET);
        attributes.barred();
        assert_eq!(tell(&mut attributes, 4, 13, 181), LEASE);
        attributes.recalled(Ticks(200));
        assert_eq!(attributes.tell(Telling { now: Ticks(201), ..set_only }), NOT_YET);
        assert_eq!(tell(&mut attributes, 5, 13, 202), NOT_YET, "12 may not have set its own yet");
    }

    #[test]
    fn a_recall_before_they_are_set_leaves_open_which_there_are() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 10, 110), NOT_YET);
        attributes.recalled(Ticks(130));
        assert_eq!(tell(&mut attributes, 1, 11, 131), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 132), NOT_YET, "others than those of before");
        assert_eq!(tell(&mut attributes, 2, 11, 133), LEASE);
    }

    #[test]
    fn an_answer_that_the_kernel_throws_away_is_none() {
        let barred = Telling { print: 2, valid: LEASE, to: 10, way: Way::Barred, now: Ticks(110) };
        let throw_away: [fn(&mut Attributes, Telling) -> Duration; 3] = [
            // It was told to forget before the answer was written, after, and who asked was killed.
            |attributes, barred| attributes.tell(barred),
            |attributes, barred| {
                let said = attributes.tell(Telling { way: Way::Free, ..barred });
                attributes.barred();
                said
            },
            |attributes, barred| {
                let said = attributes.tell(Telling { way: Way::Free, ..barred });
                attributes.not_taken();
                said
            },
        ];
        for thrown_away in throw_away {
            let mut attributes = recalled();
            assert_eq!(thrown_away(&mut attributes, barred), NOT_YET);
            assert_eq!(tell(&mut attributes, 2, 10, 111), NOT_YET);
            assert_eq!(tell(&mut attributes, 2, 10, 112), LEASE);
        }
    }
}
