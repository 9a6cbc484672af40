use super::*;
use crate::world::{Tree, fid, history, new, place};
use bytes::Bytes;
use proptest::prelude::*;
use soda_protocol::Fate;
use soda_protocol::digest::Moved;
use soda_types::{FileKind, SetAttr};
use std::time::Duration;

const ALL: DigestLimits = DigestLimits { records: usize::MAX, bytes: u64::MAX };

fn at(secs: u64) -> Monotonic {
    Monotonic::from_nanos(secs * 1_000_000_000)
}

fn numbers(lsns: &[Lsn]) -> Vec<u64> {
    lsns.iter().map(|lsn| lsn.0).collect()
}

/// mkdir 2, creat 2/a = 3, write 3, creat 1/b = 4, write 4.
fn two_branches() -> Log {
    let mut log = Log::default();
    let create = |directory, number, ino, kind| Change::Create {
        place: place(fid(directory), number),
        fid: fid(ino),
        new: new(kind),
    };
    let write = |ino| Change::Write {
        fid: fid(ino),
        offset: 0,
        data: Bytes::from_static(b"data").into(),
        kill_suid_sgid: false,
    };
    let changes = [
        create(1, 0, 2, FileKind::Directory),
        create(2, 0, 3, FileKind::File),
        write(3),
        create(1, 1, 4, FileKind::File),
        write(4),
    ];
    for (second, change) in (1..).zip(changes) {
        log.append(at(second), Timestamp::new(second as i64, 0), change);
    }
    log
}

#[test]
fn the_space_for_what_is_inherited_is_kept_until_the_server_has_it() {
    let mut log = two_branches();
    let before = log.untold_space();
    let create = Change::Create { place: place(fid(1), 2), fid: fid(5), new: new(FileKind::File) };
    log.append_with(at(6), Timestamp::new(6, 0), create, 5000);
    assert_eq!(log.untold_space(), before + 5000);
    let digest = log.take(ALL).unwrap();
    assert_eq!((log.space_of(digest.id), log.untold_space()), (before + 5000, before + 5000));
    log.handle_lost(digest.id);
    assert_eq!(log.untold_space(), before + 5000);
    let digest = log.take(ALL).unwrap();
    log.handle_applied(digest.id);
    assert_eq!(log.untold_space(), 0);
}

#[test]
fn who_waits_for_a_file_does_not_wait_for_what_is_done_to_it_later() {
    let mut log = two_branches();
    let mut wanted = Wanted::new(vec![fid(4)], log.last_lsn());
    let write = Change::Write {
        fid: fid(4),
        offset: 4,
        data: Bytes::from_static(b"more").into(),
        kill_suid_sgid: false,
    };
    let later = log.append(at(6), Timestamp::new(6, 0), write);
    assert!(log.has_pending(&mut wanted));
    let digest = log.take_wanted(Some(&mut wanted), &mut [], ALL).unwrap();
    assert_eq!(numbers(&digest.lsns), [4, 5]);
    assert!(!log.has_pending(&mut wanted) && log.has_pending_for(&[fid(4)]));
    log.handle_lost(digest.id);
    assert!(log.has_pending(&mut wanted), "the server has not got it");
    let one = DigestLimits { records: 1, bytes: u64::MAX };
    let digest = log.take_wanted(Some(&mut wanted), &mut [], one).unwrap();
    log.handle_applied(digest.id);
    assert!(log.has_pending(&mut wanted));
    log.handle_durable(digest.id);
    let digest = log.take_wanted(Some(&mut wanted), &mut [], ALL).unwrap();
    log.handle_applied(digest.id);
    assert!(!log.has_pending(&mut wanted));
    assert_eq!(log.needed_for(&[fid(4)]), [later]);
}

#[test]
fn who_is_not_served_whole_stands_back_unless_it_is_his_turn() {
    let two = DigestLimits { records: 2, bytes: u64::MAX };
    let wanted = |ino| Wanted::new(vec![fid(ino)], Lsn(5));
    let taken = |due: Option<u64>, others: &[u64], limits| {
        let mut others: Vec<Wanted> = others.iter().map(|ino| wanted(*ino)).collect();
        let mut others: Vec<&mut Wanted> = others.iter_mut().collect();
        let digest = two_branches().take_wanted(due.map(wanted).as_mut(), &mut others, limits);
        digest.map(|digest| numbers(&digest.lsns))
    };
    assert_eq!(taken(None, &[3, 4], two), Some(vec![4, 5]), "that of 3 takes three");
    assert_eq!(taken(Some(3), &[4], two), Some(vec![1, 2]));
    assert_eq!(taken(None, &[3], two), Some(vec![1, 2]));
    assert_eq!(taken(None, &[3, 4], ALL), Some(vec![1, 2, 3, 4, 5]));
    assert_eq!(taken(None, &[4, 1], DigestLimits { records: 3, bytes: u64::MAX }), Some(vec![1, 4, 5]));
    assert_eq!(taken(Some(7), &[8], ALL), None);
    let light = DigestLimits { records: 5, bytes: 1 };
    assert_eq!(taken(None, &[3, 4], light), Some(vec![1]), "one record may be more");
}

#[test]
fn what_comes_and_goes_makes_room_in_a_digest_for_what_comes_after_it() {
    let mut log = Log::default();
    let mut change = |change| log.append(at(1), Timestamp::new(1, 0), change).0;
    let file = |number: u64| place(fid(1), number as u8);
    let create =
        |number: u64| Change::Create { place: file(number), fid: fid(number), new: new(FileKind::File) };
    for number in 10..30 {
        change(create(number));
    }
    for number in 10..30 {
        change(Change::Unlink { place: file(number), fid: fid(number), then: Fate::Gone });
    }
    let last = change(create(30));
    let digest = log.take(DigestLimits { records: 10, bytes: u64::MAX }).unwrap();
    assert_eq!((digest.lsns.len(), digest.records.len()), (41, 1), "{digest:?}");
    assert_eq!(digest.records[0].lsn.0, last);
}

#[test]
fn a_digest_stays_within_its_limits() {
    let mut log = two_branches();
    let two = log.take(DigestLimits { records: 2, bytes: u64::MAX }).unwrap();
    assert_eq!(numbers(&two.lsns), [1, 2]);
    log.handle_applied(two.id);
    assert_eq!(
        numbers(&log.take(DigestLimits { records: 9, bytes: 1 }).unwrap().lsns),
        [3],
        "one alone may be more"
    );
}

#[test]
fn who_waits_for_a_file_gets_what_it_depends_on_and_no_more() {
    let mut log = two_branches();
    assert_eq!(numbers(&log.needed_for(&[fid(4)])), [4, 5]);
    assert_eq!(numbers(&log.needed_for(&[fid(3)])), [1, 2, 3]);
    // Who reads the root sees both names in it, but not yet what is in them.
    assert_eq!(numbers(&log.needed_for(&[fid(1)])), [1, 4]);
    let digest = log.take_for(&[fid(4)], ALL).unwrap();
    assert_eq!(numbers(&digest.lsns), [4, 5]);
    assert!(log.concerns(fid(4)));
    log.handle_applied(digest.id);
    assert!(!log.concerns(fid(4)) && log.concerns(fid(3)));
    assert_eq!(numbers(&log.take(ALL).unwrap().lsns), [1, 2, 3]);
}

#[test]
fn digests_that_are_under_way_together_are_applied_in_order_or_lost_from_one_on() {
    let mut log = two_branches();
    let one_each = DigestLimits { records: 1, bytes: u64::MAX };
    let ids: Vec<DigestId> = (0..4).map(|_| log.take(one_each).unwrap().id).collect();
    assert_eq!((log.first_under_way(), log.under_way()), (Some(ids[0]), Some(ids[3])));
    assert_eq!(log.records_of(ids[2]).map(|record| record.lsn.0).collect::<Vec<_>>(), [3]);
    log.handle_applied(ids[1]);
    assert_eq!(log.first_under_way(), Some(ids[0]), "not before the one that it comes after");
    log.handle_applied(ids[0]);
    assert_eq!((log.first_under_way(), log.undurable_count()), (Some(ids[1]), 1));
    log.handle_lost(ids[2]);
    assert_eq!((log.first_under_way(), log.under_way()), (Some(ids[1]), Some(ids[1])));
    assert_eq!((log.backlog(at(11)).records, log.pending_count()), (4, 3));
    let again = log.take(ALL).unwrap();
    assert_eq!(numbers(&again.lsns), [3, 4, 5]);
    assert!(again.id > ids[3], "under a number of its own");
}

#[test]
fn what_is_under_way_is_found_in_the_digest_that_holds_it() {
    let mut log = two_branches();
    let (one, two) = (log.take_for(&[fid(3)], ALL).unwrap().id, log.take_for(&[fid(4)], ALL).unwrap().id);
    let wanted = |ino, up_to| Wanted::new(vec![fid(ino)], Lsn(up_to));
    let found = [(3, 5), (4, 5), (4, 3), (2, 5), (1, 5), (1, 1), (9, 5)]
        .map(|(ino, up_to)| log.under_way_for(&wanted(ino, up_to)));
    assert_eq!(found, [Some(one), Some(two), None, Some(one), Some(two), Some(one), None]);
    assert_eq!([3, 4].map(|lsn| log.under_way_up_to(Lsn(lsn))), [Some(one), Some(two)]);
    log.handle_applied(one);
    assert_eq!((log.under_way_for(&wanted(3, 5)), log.under_way_up_to(Lsn(3))), (None, None));
}

#[test]
fn numbers_that_were_given_up_are_nothing_that_a_server_can_have_lost() {
    let mut log = two_branches();
    let one = log.take_for(&[fid(3)], ALL).unwrap();
    log.handle_applied(one.id);
    let given_up = log.take(ALL).unwrap();
    log.handle_lost(given_up.id);
    let under_way = log.take(ALL).unwrap();
    assert!(log.has_undurable_from(one.id) && !log.has_undurable_from(given_up.id));
    log.handle_applied(under_way.id);
    assert!(log.has_undurable_from(given_up.id));
    log.handle_durable(under_way.id);
    assert!(!log.has_undurable());
}

#[test]
fn what_makes_room_does_not_wait_for_what_needs_room() {
    let mut log = two_branches();
    let unlink = |directory, number, ino| Change::Unlink {
        place: place(fid(directory), number),
        fid: fid(ino),
        then: Fate::Gone,
    };
    assert!(log.take_freeing(ALL).is_none(), "nothing gives space back");
    log.append(at(6), Timestamp::new(6, 0), unlink(1, 2, 7));
    log.append(at(7), Timestamp::new(7, 0), unlink(1, 1, 4));
    // 4 was made and filled here: with its end nothing of it is left.
    let digest = log.take_freeing(ALL).unwrap();
    assert_eq!(numbers(&digest.lsns), [4, 5, 6, 7]);
    assert!(digest.records.iter().all(|record| !record.change.brings_data()), "{digest:?}");
    log.handle_applied(digest.id);
    assert!(log.take_freeing(ALL).is_none());
    assert_eq!(numbers(&log.take(ALL).unwrap().lsns), [1, 2, 3]);
}

/// As of an editor, rsync or git: the new contents under another name, then in place of the old.
fn save_over(log: &mut Log, number: u64) {
    let (tmp, old, new_file) = (place(fid(1), 1), place(fid(1), 2), fid(1000 + number));
    let write = Change::Write {
        fid: new_file,
        offset: 0,
        data: Bytes::from_static(b"data").into(),
        kill_suid_sgid: false,
    };
    let rename = Change::Rename {
        from: tmp.clone(),
        to: old,
        moved: new_file,
        what: Moved::Leaf,
        replaced: Some((fid(999 + number), Fate::Gone)),
    };
    for change in [Change::Create { place: tmp, fid: new_file, new: new(FileKind::File) }, write, rename] {
        log.append(at(number), Timestamp::new(number as i64, 0), change);
    }
}

#[test]
fn what_makes_room_is_found_behind_much_that_does_not() {
    const SAVED: u64 = 150;
    let mut log = Log::default();
    (0..SAVED).for_each(|number| save_over(&mut log, number));
    let unlink =
        |number, ino| Change::Unlink { place: place(fid(1), number), fid: fid(ino), then: Fate::Gone };
    let plain = log.append(at(900), Timestamp::new(900, 0), unlink(3, 7));
    let digest = log.take_freeing(ALL).unwrap();
    assert_eq!(digest.lsns, [plain], "what the server knows is removed at once");
    log.handle_applied(digest.id);
    // Made and filled here, and removed: with what it was made of nothing is left. It is judged when it is its turn.
    let brief = place(fid(1), 4);
    let made = Change::Create { place: brief.clone(), fid: fid(8), new: new(FileKind::File) };
    let write = Change::Write {
        fid: fid(8),
        offset: 0,
        data: Bytes::from_static(b"data").into(),
        kill_suid_sgid: false,
    };
    for change in [made, write, unlink(4, 8)] {
        log.append(at(901), Timestamp::new(901, 0), change);
    }
    let looks = (1..=10).find_map(|look| Some((look, log.take_freeing(ALL)?)));
    let (looks, digest) = looks.expect("never found");
    assert_eq!(numbers(&digest.lsns), [plain.0 + 1, plain.0 + 2, plain.0 + 3]);
    assert!(looks <= 4, "{looks}");
    assert!(log.take_freeing(ALL).is_none());
}

#[test]
fn the_backlog_is_what_the_server_lacks() {
    let mut log = two_branches();
    assert_eq!((log.backlog(at(11)).records, log.backlog(at(11)).age), (5, Duration::from_secs(10)));
    let digest = log.take(DigestLimits { records: 2, bytes: u64::MAX }).unwrap();
    assert_eq!(log.backlog(at(11)).records, 5);
    log.handle_applied(digest.id);
    let backlog = log.backlog(at(11));
    assert_eq!((backlog.records, backlog.not_durable, backlog.age), (3, 2, Duration::from_secs(8)));
    assert_eq!(log.handle_durable(digest.id), Lsn(3));
    assert_eq!(log.backlog(at(11)).not_durable, 0);
}

#[test]
fn what_a_power_cut_took_is_sent_again_first() {
    let mut log = two_branches();
    let limits = DigestLimits { records: 2, bytes: u64::MAX };
    let one = log.take(limits).unwrap();
    log.handle_applied(one.id);
    let two = log.take(limits).unwrap();
    log.handle_applied(two.id);
    assert_eq!(log.unsaved().count(), 5);
    log.handle_lost(two.id);
    assert_eq!(
        numbers(&log.needed_for(&[fid(4)])),
        [4, 5],
        "dependencies of what was appended before the loss"
    );
    assert_eq!(numbers(&log.take(ALL).unwrap().lsns), [3, 4, 5]);
    assert_eq!(log.handle_durable(one.id), Lsn(3));
}

#[test]
fn a_record_that_is_refused_takes_only_what_depends_on_it_along() {
    let mut log = two_branches();
    let numbers = |records: Vec<Record>| records.iter().map(|record| record.lsn.0).collect::<Vec<_>>();
    assert_eq!(numbers(log.give_up_record(Lsn(2))), [2, 3], "its directory stays");
    assert_eq!(numbers(log.give_up_record(Lsn(5))), [5]);
    assert_eq!(log.pending_count(), 2);
}

#[test]
fn what_is_given_up_takes_along_what_depends_on_it() {
    let mut log = two_branches();
    let given_up =
        |log: &mut Log, ino| log.give_up(&[fid(ino)]).iter().map(|record| record.lsn.0).collect::<Vec<_>>();
    assert_eq!(given_up(&mut log, 2), [1, 2, 3], "the directory, the file in it, and its data");
    assert_eq!(log.needed_for(&[fid(1)]).len(), 1, "names beside it stay");
    assert_eq!(numbers(&log.take(ALL).unwrap().lsns), [4, 5]);
    assert_eq!(given_up(&mut log, 4), [0_u64; 0], "its outcome is not known");

    let mut log = two_branches();
    let remove = Change::RemoveDirectory { place: place(fid(1), 0), fid: fid(2) };
    log.append(at(6), Timestamp::new(6, 0), remove);
    assert_eq!(given_up(&mut log, 3), [2, 3, 6], "a directory cannot go before the names in it");
    assert_eq!(log.backlog(at(6)).records, 3);
}

/// What a test does with a log between appends.
#[derive(Clone, Copy, Debug)]
enum Event {
    Take(usize),
    TakeFor(u64),
    TakeWanted(u64),
    Applied,
    /// The one at this place, and all behind it.
    Lost(usize),
    PowerCut,
    Durable,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1usize..20).prop_map(Event::Take),
        (1usize..20).prop_map(Event::Take),
        (1u64..20).prop_map(Event::TakeFor),
        (1u64..20).prop_map(Event::TakeWanted),
        Just(Event::Applied),
        Just(Event::Applied),
        Just(Event::Applied),
        (0usize..4).prop_map(Event::Lost),
        Just(Event::PowerCut),
        Just(Event::Durable),
    ]
}

/// A server: what it has applied, and what of that is on its disk.
struct Server {
    durable: (DigestId, Tree),
    state: (DigestId, Tree),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever goes ahead and whatever is lost, each digest is legal where it is applied (the tree panics
    /// otherwise), who was waited for is served, and in the end the server has the state that the client has.
    #[test]
    fn the_server_can_follow(
        dice in prop::collection::vec(any::<[u8; 5]>(), 1..100),
        events in prop::collection::vec((0usize..6, event()), 0..60),
    ) {
        let (start, records, end) = history(&dice);
        let mut server = Server {
            durable: (DigestId(0), start.clone()),
            state: (DigestId(0), start),
        };
        let mut log = Log::default();
        let mut under_way: VecDeque<Digest> = VecDeque::new();
        let mut records = records.into_iter();
        // Those who have waited for long.
        let mut waiting: Vec<Wanted> = Vec::new();
        for (round, (appends, event)) in events.into_iter().enumerate() {
            for record in records.by_ref().take(appends) {
                log.append(at(1), record.at, record.change);
            }
            if round % 20 == 2 {
                waiting = (0..20).map(|ino| Wanted::new(vec![fid(ino), fid(1)], log.last_lsn())).collect();
            }
            for ino in 1..20 {
                let asked = [fid(ino)];
                prop_assert_eq!(log.has_pending_for(&asked), !log.needed_for(&asked).is_empty());
                let touches = |record: &Record| {
                    record.change.touches().iter().any(|(object, _)| *object == Object::Inode(asked[0]))
                };
                for up_to in [Lsn(5), log.last_lsn()] {
                    let mut wanted = Wanted::new(asked.to_vec(), up_to);
                    let pending = log.pending().any(|record| record.lsn <= up_to && touches(record));
                    prop_assert_eq!(log.has_pending(&mut wanted), pending);
                }
                let needed = log.count_needed_for(&asked);
                let own = log.pending().filter(|record| touches(record)).count();
                prop_assert_eq!((needed.own, needed.own + needed.besides), (own, log.needed_for(&asked).len()));
                if let Some(waits) = waiting.get_mut(ino as usize) {
                    let mut anew = waits.anew();
                    prop_assert_eq!(log.has_pending(waits), log.has_pending(&mut anew));
                }
            }
            match event {
                Event::Take(records) => {
                    under_way.extend(log.take(DigestLimits { records, bytes: u64::MAX }));
                }
                Event::TakeFor(ino) => under_way.extend(log.take_for(&[fid(ino)], ALL)),
                Event::TakeWanted(ino) => {
                    if let Some(waits) = waiting.get_mut(ino as usize) {
                        let pending = log.has_pending(waits);
                        let few = DigestLimits { records: 3, bytes: u64::MAX };
                        let digest = log.take_wanted(Some(waits), &mut [], few);
                        prop_assert_eq!(digest.is_some(), pending);
                        under_way.extend(digest);
                    }
                }
                Event::Applied => {
                    if let Some(digest) = under_way.pop_front() {
                        digest.records.iter().for_each(|record| server.state.1.apply(record));
                        server.state.0 = digest.id;
                        log.handle_applied(digest.id);
                    }
                }
                Event::Lost(from) => {
                    if let Some(digest) = under_way.get(from) {
                        log.handle_lost(digest.id);
                        under_way.truncate(from);
                    }
                }
                Event::PowerCut => {
                    under_way.clear();
                    server.state = server.durable.clone();
                    log.handle_lost(DigestId(server.state.0.0 + 1));
                }
                Event::Durable => {
                    server.durable = server.state.clone();
                    log.handle_durable(server.durable.0);
                }
            }
        }
        if let Some(digest) = under_way.pop_front() {
            log.handle_lost(digest.id);
        }
        for record in records {
            log.append(at(1), record.at, record.change);
        }
        while let Some(digest) = log.take(DigestLimits { records: 7, bytes: u64::MAX }) {
            digest.records.iter().for_each(|record| server.state.1.apply(record));
            log.handle_applied(digest.id);
        }
        prop_assert_eq!(server.state.1.without_times(), end.without_times());
        prop_assert_eq!(log.backlog(at(1)).records, 0);
    }
}

fn write(ino: u64, offset: u64, len: usize) -> Change {
    Change::Write { fid: fid(ino), offset, data: vec![0; len].into(), kill_suid_sgid: false }
}

fn log_of(changes: impl IntoIterator<Item = Change>) -> Log {
    let mut log = Log::default();
    for change in changes {
        log.append(at(1), Timestamp::new(1, 0), change);
    }
    log
}

#[test]
fn writes_that_are_replaced_do_not_count_against_the_limit() {
    const FULL: usize = 1 << 20;
    let limits = DigestLimits { records: 1000, bytes: FULL as u64 + 10_000 };
    let truncation = Change::SetAttr { fid: fid(2), set: SetAttr { size: Some(0), ..SetAttr::default() } };
    let again: Vec<Change> = (0..20).map(|_| write(2, 0, FULL)).collect();
    let truncated = again.iter().flat_map(|one| [truncation.clone(), one.clone()]).collect();
    for changes in [again.clone(), truncated] {
        let (count, last) = (changes.len(), write(3, 0, FULL));
        let mut log = log_of(changes.into_iter().chain([last]));
        let (first, second) = (log.take(limits).unwrap(), log.take(limits).unwrap());
        assert_eq!((first.lsns.len(), second.lsns.len()), (count, 1));
        log.handle_lost(first.id);
        // Whoever waits for it is told as much at once.
        let wanted = log.take_for(&[fid(2)], limits).unwrap();
        assert_eq!(wanted.lsns.len(), count);
    }
    // Also where one is more than the limit, and the others are counted as before when one of them is taken.
    let mut log = log_of((0..20).map(|_| write(2, 0, FULL)));
    let few = DigestLimits { records: 5, bytes: 1000 };
    assert_eq!(log.take(few).unwrap().lsns.len(), 5);
    assert_eq!(log.pending_data(), FULL as u64);
    let apart = [write(2, 0, FULL), write(2, 1, FULL)];
    assert_eq!(log_of(apart).take(limits).unwrap().lsns.len(), 1, "a byte of the first is left");
    let between = Change::RemoveXattr { fid: fid(2), name: Vec::new() };
    let told = [write(2, 0, FULL), between, write(2, 0, FULL)];
    assert_eq!(log_of(told).take(limits).unwrap().lsns.len(), 2, "the first is told");
}

fn data_of(records: &[Record]) -> u64 {
    let of = |record: &Record| match &record.change {
        Change::Write { data, .. } => data.len() as u64,
        _ => 0,
    };
    records.iter().map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A digest that is longer than its limit may not fit a frame.
    #[test]
    fn no_digest_tells_more_data_than_its_limit(
        dice in prop::collection::vec(any::<[u8; 5]>(), 1..150),
        bytes in 1_u64..4_000,
        wanted in 1_u64..6,
    ) {
        let (_, records, _) = history(&dice);
        let mut log = Log::default();
        for record in records {
            log.restore(at(1), record);
            let pending: Vec<Record> = log.pending().cloned().collect();
            prop_assert!(data_of(&coalesce(pending)) <= log.pending_data());
        }
        let limits = DigestLimits { records: 100, bytes };
        let all: Vec<Record> = log.pending().cloned().collect();
        while let Some(digest) = log.take_for(&[fid(wanted)], limits).or_else(|| log.take(limits)) {
            let data = data_of(&digest.records);
            let first = all.iter().find(|record| record.lsn == digest.lsns[0]).map(|record| record.change.weight());
            let first = first.unwrap_or_default() - Change::RECORD_WEIGHT;
            prop_assert!(data <= bytes.max(first), "{} of {}, {}", data, bytes, first);
            let pending: Vec<Record> = log.pending().cloned().collect();
            prop_assert!(data_of(&coalesce(pending)) <= log.pending_data());
        }
        prop_assert_eq!((log.pending_data(), log.pending_bytes()), (0, 0));
    }
}
