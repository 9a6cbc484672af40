use super::*;
use crate::world::{fid, history, new, place};
use proptest::prelude::*;
use soda_types::{FileKind, Monotonic, Timestamp};

const FEW: DigestLimits = DigestLimits { records: 500, bytes: u64::MAX };

fn append(log: &mut Log, change: Change) {
    log.append(Monotonic::ZERO, Timestamp::new(1, 0), change);
}

fn create(ino: u64) -> Change {
    Change::Create { place: place(fid(1), ino as u8), fid: fid(ino), new: new(FileKind::File) }
}

fn unlink(ino: u64) -> Change {
    Change::Unlink { place: place(fid(1), ino as u8), fid: fid(ino), then: Fate::Gone }
}

fn write(ino: u64, len: usize) -> Change {
    Change::Write { fid: fid(ino), offset: 0, data: vec![0; len].into(), kill_suid_sgid: false }
}

/// Files under numbers of their own.
fn files(log: &mut Log, numbers: std::ops::Range<u64>) {
    numbers.for_each(|ino| append(log, create(ino)));
}

/// As [`Log::window`], looking at all of them.
fn looking_at_all(log: &Log, limits: DigestLimits) -> usize {
    let (mut told, mut window) = (Told::default(), 1);
    let Some(first) = log.first_pending() else { return window };
    let near = |lsn: &Lsn| lsn.0 < first.0 + WIDEST as u64;
    for (so_far, (_, pending)) in (1..).zip(log.pending.iter().take_while(|(lsn, _)| near(lsn))) {
        told.add(&pending.record.change);
        if told.records <= limits.records && told.fits(limits.bytes) {
            window = so_far;
        }
    }
    window
}

#[test]
fn where_nothing_is_removed_no_more_is_looked_at_than_is_told() {
    let mut log = Log::default();
    files(&mut log, 100..60_100);
    let (mut looked_at, mut digests) = (0, 0);
    while log.first_pending().is_some() {
        looked_at += log.window(FEW).looked_at;
        let digest = log.take(FEW).unwrap();
        digests += 1;
        log.handle_applied(digest.id);
        log.handle_durable(digest.id);
    }
    assert_eq!((looked_at, digests), (60_000 + digests - 1, 120));
}

#[test]
fn nor_for_what_is_removed_too_far_away_to_help() {
    let mut log = Log::default();
    files(&mut log, 100..20_100);
    append(&mut log, unlink(100));
    assert_eq!(log.window(FEW), Window { records: 500, looked_at: 501 });
    // Within reach, but one of many.
    let mut log = Log::default();
    files(&mut log, 100..1100);
    append(&mut log, unlink(100));
    assert_eq!(log.window(FEW), Window { records: 500, looked_at: 503 });
}

#[test]
fn what_was_written_and_removed_is_looked_for_as_far_as_it_makes_room() {
    let limits = DigestLimits { records: 500, bytes: 1 << 20 };
    let mut log = Log::default();
    append(&mut log, create(100));
    append(&mut log, write(100, 1 << 20));
    append(&mut log, write(101, 1 << 10));
    append(&mut log, unlink(100));
    append(&mut log, write(102, 1 << 20));
    assert_eq!(log.window(limits).records, 4);
    let mut log = Log::default();
    for ino in 100..2100 {
        append(&mut log, create(ino));
        append(&mut log, write(ino, 16 << 10));
    }
    let window = log.window(limits);
    assert!(window.looked_at <= window.records + 1 && window.records < 130, "{window:?}");
}

/// A log with removals in it that may be too far away, and digests out of its order.
fn shuffled(log: &mut Log, dice: &[u8]) {
    let mut next = 1000;
    for roll in dice {
        match roll % 8 {
            0..=3 => {
                files(log, next..next + u64::from(*roll));
                next += u64::from(*roll);
            }
            4 | 5 => (next.saturating_sub(u64::from(*roll)).max(1000)..next).for_each(|ino| {
                let gone = log
                    .objects
                    .get(&crate::Object::Inode(fid(ino)))
                    .is_none_or(|uses| uses.life.removed.is_some());
                if !gone {
                    append(log, unlink(ino));
                }
            }),
            6 => drop(log.take_for(&[fid(next - 1)], FEW)),
            _ => drop(log.take(DigestLimits { records: usize::from(*roll), bytes: u64::MAX })),
        }
    }
}

/// What is not looked at would not have changed anything. Of what later writes replace less is counted where something else was
/// done to the file in between and what was before that has gone: then a digest may end earlier than it need.
fn check(log: &Log, limits: DigestLimits) -> Result<(), TestCaseError> {
    let (window, all) = (log.window(limits).records, looking_at_all(log, limits));
    if limits.bytes == u64::MAX {
        prop_assert_eq!(window, all);
    }
    prop_assert!(window <= all, "{} of {}", window, all);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_window_is_what_it_would_be_if_all_were_looked_at(
        dice in prop::collection::vec(any::<[u8; 5]>(), 1..150),
        records in 1_usize..40,
        bytes in prop_oneof![Just(u64::MAX), 200_u64..6_000],
        takes in prop::collection::vec((1_usize..12, any::<bool>()), 0..8),
    ) {
        let limits = DigestLimits { records, bytes };
        let mut log = Log::default();
        for record in history(&dice).1 {
            log.restore(Monotonic::ZERO, record);
            check(&log, limits)?;
        }
        for (records, in_order) in takes {
            let taken = match in_order {
                true => log.take(DigestLimits { records, bytes: u64::MAX }),
                false => log.take_for(&[fid(records as u64)], limits),
            };
            if records % 5 == 0 && let Some(digest) = taken {
                log.handle_lost(digest.id);
            }
            check(&log, limits)?;
        }
        while log.take(limits).is_some() {
            check(&log, limits)?;
        }
        prop_assert!(log.removals.0.is_empty() && log.objects.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn also_where_much_is_made_and_removed(dice in prop::collection::vec(any::<u8>(), 1..60)) {
        let mut log = Log::default();
        shuffled(&mut log, &dice);
        check(&log, DigestLimits { records: 60, bytes: 40_000 })?;
        check(&log, FEW)?;
        while log.take(FEW).is_some() {
            check(&log, FEW)?;
        }
        prop_assert!(log.removals.0.is_empty() && log.objects.is_empty());
    }
}
