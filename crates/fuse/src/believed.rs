//! When the kernel may believe attributes.
//!
//! Linux notes that attributes are valid before it sets them, one by one (`fuse_change_attributes_common`), and stat(2) takes no
//! lock: who asks while another thread takes an answer in may be shown what another machine changed long before. So attributes
//! that are not those which the kernel has are told twice after a recall, first without a time-out. With one they are told when
//! they are surely set: to the thread that was told before, which had to take in that answer to ask again, or after a while.

use std::time::Duration;

/// Who was answered so long ago has taken it in; if not, it has not run for all that time.
const SET_BY_NOW: Ticks = Ticks(100);

/// Hundredths of a second since some instant; the last one never ends. There is one of these for each inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticks(u32);

impl Ticks {
    pub(crate) fn of(since: Duration) -> Ticks {
        Ticks(u32::try_from(since.as_millis() / 10).unwrap_or(u32::MAX))
    }

    fn after(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_sub(other.0))
    }
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
    pub(crate) now: Ticks,
}

/// Which attributes the kernel has, whether it believes them or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Attributes {
    /// None: it does not have the inode yet, and shows it to nobody before they are set.
    None,
    /// These, and from then until `until` those that own changes made of them. What is changed here while the kernel believes
    /// the attributes is nothing that others have seen before.
    Are { print: u32, until: Ticks },
    /// These, as soon as the thread `by` runs; others until then.
    Become { print: u32, by: u32, since: Ticks },
    #[default]
    Unknown,
}

impl Attributes {
    /// For how long the kernel may believe them.
    pub(crate) fn tell(&mut self, telling: Telling) -> Duration {
        let Telling { print, valid, to, now } = telling;
        let lasts = match *self {
            Attributes::None => Ticks(0),
            Attributes::Are { until, .. } if now < until => until,
            Attributes::Are { print: has, .. } if has == print => Ticks(0),
            Attributes::Become { print: gets, by, since }
                if gets == print && ((by == to && to != 0) || now.after(since) >= SET_BY_NOW) =>
            {
                Ticks(0)
            }
            Attributes::Become { print: gets, .. } if gets == print => return Duration::ZERO,
            _ => {
                *self = Attributes::Become { print, by: to, since: now };
                return Duration::ZERO;
            }
        };
        let until = match valid.is_zero() {
            true => lasts,
            false => Ticks(now.0.saturating_add(Ticks::of(valid).0)),
        };
        *self = Attributes::Are { print, until };
        valid
    }

    /// Another machine may change them from now on.
    pub(crate) fn recalled(&mut self) {
        *self = match *self {
            Attributes::Are { print, .. } => Attributes::Are { print, until: Ticks(0) },
            Attributes::Become { .. } => Attributes::Unknown,
            unchanged => unchanged,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const NOT_YET: Duration = Duration::ZERO;

    fn tell(attributes: &mut Attributes, print: u32, to: u32, now: u32) -> Duration {
        attributes.tell(Telling { print, valid: LEASE, to, now: Ticks(now) })
    }

    /// As the kernel has the attributes 1, believed, and then is told to forget them.
    fn recalled() -> Attributes {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, 100), LEASE);
        attributes.recalled();
        attributes
    }

    #[test]
    fn what_another_machine_changed_is_believed_when_it_is_surely_set() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 10, 110), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 111), NOT_YET, "10 may not have run since");
        assert_eq!(tell(&mut attributes, 2, 10, 112), LEASE, "it has, to ask again");
        assert_eq!(tell(&mut attributes, 2, 11, 113), LEASE);
    }

    #[test]
    fn others_believe_it_after_a_second() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 10, 110), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 209), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 12, 210), LEASE);
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

    #[test]
    fn a_lease_that_ended_by_itself_is_like_a_recall() {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, 100), LEASE);
        assert_eq!(tell(&mut attributes, 2, 11, 1100), NOT_YET);
    }

    #[test]
    fn own_changes_are_believed_at_once_while_nobody_else_could_make_any() {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, 100), LEASE);
        assert_eq!(tell(&mut attributes, 2, 11, 1099), LEASE);
        let set_only = Telling { print: 3, valid: NOT_YET, to: 12, now: Ticks(1100) };
        assert_eq!(attributes.tell(set_only), NOT_YET);
        assert_eq!(tell(&mut attributes, 4, 13, 1101), LEASE);
        attributes.recalled();
        assert_eq!(attributes.tell(Telling { now: Ticks(1102), ..set_only }), NOT_YET);
        assert_eq!(tell(&mut attributes, 5, 13, 1103), NOT_YET, "12 may not have set its own yet");
    }

    #[test]
    fn a_recall_before_they_are_set_leaves_open_which_there_are() {
        let mut attributes = recalled();
        assert_eq!(tell(&mut attributes, 2, 10, 110), NOT_YET);
        attributes.recalled();
        assert_eq!(tell(&mut attributes, 1, 11, 111), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, 112), NOT_YET, "others than those of before");
        assert_eq!(tell(&mut attributes, 2, 11, 113), LEASE);
    }

    /// The clock of a mount that is up for more than a year stands still.
    #[test]
    fn at_the_end_of_time_nothing_is_taken_for_an_own_change() {
        let mut attributes = Attributes::None;
        assert_eq!(tell(&mut attributes, 1, 10, u32::MAX), LEASE);
        assert_eq!(tell(&mut attributes, 2, 11, u32::MAX), NOT_YET);
        assert_eq!(tell(&mut attributes, 2, 11, u32::MAX), LEASE);
    }
}
