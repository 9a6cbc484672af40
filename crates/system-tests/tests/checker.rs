//! The checker itself, on histories that are known to be good or bad. If it cannot see a stale read here, it proves nothing
//! about Soda.

use soda_model::Rng;
use soda_system_tests::linear::object::{Answer, Attribute, Object, Operation, RangeMode};
use soda_system_tests::linear::{Call, History, Loss, Verdict, check};

const BLOCK: Object = Object::Block { file: 0, block: 0 };
const NAMES: Object = Object::Names { directory: 0 };
const LOG: Object = Object::Log { file: 0 };
const LOCK: Object = Object::Lock { file: 0 };

fn call(
    client: u16,
    object: Object,
    operation: Operation,
    called: u64,
    returned: u64,
    answer: Answer,
) -> Call {
    Call { client, object, operation, called, returned: Some((returned, answer)) }
}

fn lost(client: u16, object: Object, operation: Operation, called: u64) -> Call {
    Call { client, object, operation, called, returned: None }
}

fn write(client: u16, value: u64, called: u64, returned: u64) -> Call {
    call(client, BLOCK, Operation::Write(value), called, returned, Answer::Done)
}

fn read(client: u16, value: u64, called: u64, returned: u64) -> Call {
    call(client, BLOCK, Operation::Read, called, returned, Answer::Value(value))
}

fn is_linearizable(calls: Vec<Call>) -> bool {
    check(&History { calls, ..History::default() }).is_empty()
}

#[test]
fn a_stale_read_is_seen() {
    assert!(is_linearizable(vec![write(0, 1, 0, 10), read(1, 1, 20, 30)]));
    assert!(
        !is_linearizable(vec![write(0, 1, 0, 10), read(1, 0, 20, 30)]),
        "read what was before a completed write"
    );
    assert!(!is_linearizable(vec![write(0, 1, 0, 10), write(0, 2, 20, 30), read(1, 1, 40, 50)]));
}

#[test]
fn what_overlaps_may_be_seen_or_not() {
    for seen in [0, 1] {
        assert!(is_linearizable(vec![write(0, 1, 0, 100), read(1, seen, 20, 30)]));
    }
    assert!(!is_linearizable(vec![write(0, 1, 0, 100), read(1, 7, 20, 30)]), "a value that nobody wrote");
}

#[test]
fn new_then_old_is_seen() {
    assert!(is_linearizable(vec![write(0, 1, 0, 100), read(1, 0, 20, 30), read(2, 1, 40, 50)]));
    assert!(
        !is_linearizable(vec![write(0, 1, 0, 100), read(1, 1, 20, 30), read(2, 0, 40, 50)]),
        "the write is still going on, but one reader has seen it: then the next must too"
    );
}

#[test]
fn a_lost_write_is_seen() {
    assert!(!is_linearizable(vec![write(0, 1, 0, 10), write(1, 2, 20, 30), read(0, 1, 40, 50)]));
    assert!(is_linearizable(vec![write(0, 1, 0, 35), write(1, 2, 20, 30), read(0, 1, 40, 50)]));
}

#[test]
fn a_write_without_an_answer_may_have_happened_at_any_later_time_or_never() {
    let unknown = || lost(0, BLOCK, Operation::Write(9), 10);
    assert!(is_linearizable(vec![unknown(), read(1, 0, 20, 30), read(1, 0, 40, 50)]));
    assert!(is_linearizable(vec![unknown(), read(1, 0, 20, 30), read(1, 9, 40, 50)]));
    assert!(
        !is_linearizable(vec![unknown(), read(1, 9, 20, 30), read(1, 0, 40, 50)]),
        "happened, then undone"
    );
    assert!(!is_linearizable(vec![read(1, 9, 0, 5), unknown()]), "seen before it was called");
}

#[test]
fn objects_are_checked_each_by_itself() {
    let other = Object::Attribute { file: 0, which: Attribute::Size };
    let stale = call(1, other, Operation::Read, 20, 30, Answer::Value(0));
    let calls = vec![
        call(0, other, Operation::Write(1), 0, 10, Answer::Done),
        stale,
        write(0, 1, 11, 12),
        read(1, 1, 13, 14),
    ];
    let violations = check(&History { calls, ..History::default() });
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].object, other);
    assert_eq!(violations[0].verdict, Verdict::Impossible { explained: 1, stuck_at: 1 });
}

#[test]
fn names() {
    let create = |client, name, id, called, answer| {
        call(client, NAMES, Operation::Create { name, id }, called, called + 10, answer)
    };
    let lookup = |client, name, called, answer| {
        call(client, NAMES, Operation::Lookup { name }, called, called + 10, answer)
    };
    let rename = |from, to, called, answer| {
        call(0, NAMES, Operation::Rename { from, to }, called, called + 10, answer)
    };
    use Answer::{Done, Exists, Found, Missing};
    assert!(is_linearizable(vec![
        create(0, 1, 100, 0, Done),
        create(1, 1, 101, 20, Exists),
        rename(1, 2, 40, Done),
        lookup(1, 1, 60, Missing),
        lookup(1, 2, 80, Found(100)),
        call(1, NAMES, Operation::List, 100, 110, Answer::Names(vec![2])),
    ]));
    assert!(
        !is_linearizable(vec![create(0, 1, 100, 0, Done), create(1, 1, 101, 5, Done)]),
        "both won O_EXCL"
    );
    assert!(!is_linearizable(vec![create(0, 1, 100, 0, Done), lookup(1, 1, 20, Missing)]), "stale absence");
    assert!(
        !is_linearizable(vec![
            create(0, 1, 100, 0, Done),
            rename(1, 2, 20, Done),
            lookup(1, 1, 22, Missing),
            lookup(1, 2, 33, Missing),
            lookup(1, 2, 44, Found(100)),
        ]),
        "while a file is renamed it is under one of the names"
    );
}

/// A history that starts with `1 -> 100`.
fn with_name_1(mut calls: Vec<Call>) -> Vec<Call> {
    calls.insert(0, call(9, NAMES, Operation::Create { name: 1, id: 100 }, 0, 1, Answer::Done));
    calls
}

fn rename(client: u16, from: u8, to: u8, called: u64, returned: u64) -> Call {
    call(client, NAMES, Operation::Rename { from, to }, called, returned, Answer::Done)
}

#[test]
fn of_the_same_rename_by_two_clients_at_once_both_may_be_told_that_it_is_done() {
    let lookup =
        |name, called, answer| call(9, NAMES, Operation::Lookup { name }, called, called + 1, answer);
    assert!(is_linearizable(with_name_1(vec![rename(0, 1, 2, 10, 20), rename(1, 1, 2, 15, 30)])));
    assert!(is_linearizable(with_name_1(vec![
        rename(0, 1, 2, 10, 20),
        rename(1, 1, 2, 12, 30),
        rename(2, 1, 2, 14, 40),
    ])));
    assert!(is_linearizable(with_name_1(vec![
        lost(0, NAMES, Operation::Rename { from: 1, to: 2 }, 10),
        rename(1, 1, 2, 50, 60),
        lookup(2, 70, Answer::Found(100)),
    ])));
    // The names may change again before the second is told so: it came right after the first.
    assert!(is_linearizable(with_name_1(vec![
        rename(0, 1, 2, 10, 20),
        rename(1, 1, 2, 12, 60),
        call(2, NAMES, Operation::Create { name: 1, id: 101 }, 30, 40, Answer::Done),
        lookup(1, 70, Answer::Found(101)),
        lookup(2, 80, Answer::Found(100)),
    ])));
}

#[test]
fn any_other_rename_of_a_name_that_is_gone_is_a_wrong_answer() {
    let refused = |what, calls| assert!(!is_linearizable(with_name_1(calls)), "{what}");
    let create =
        |name, id, called| call(9, NAMES, Operation::Create { name, id }, called, called + 1, Answer::Done);
    refused("one after the other", vec![rename(0, 1, 2, 10, 20), rename(1, 1, 2, 21, 30)]);
    refused(
        "by the same client",
        vec![
            lost(0, NAMES, Operation::Rename { from: 1, to: 2 }, 10),
            rename(0, 1, 2, 20, 30),
            rename(0, 1, 2, 40, 50),
        ],
    );
    refused(
        "nobody renamed anything",
        vec![
            create(2, 101, 5),
            call(0, NAMES, Operation::Remove { name: 1 }, 10, 20, Answer::Done),
            rename(1, 1, 2, 15, 30),
        ],
    );
    refused("another target", vec![create(3, 101, 5), rename(0, 1, 2, 10, 20), rename(1, 1, 3, 15, 30)]);
    refused(
        "another name",
        vec![
            create(3, 101, 5),
            rename(0, 3, 2, 10, 20),
            call(2, NAMES, Operation::Remove { name: 1 }, 10, 20, Answer::Done),
            rename(1, 1, 2, 15, 30),
        ],
    );
    refused(
        "removed between the two",
        vec![
            rename(0, 1, 2, 10, 30),
            call(2, NAMES, Operation::Remove { name: 2 }, 12, 20, Answer::Done),
            rename(1, 1, 2, 25, 40),
        ],
    );
}

#[test]
fn logs() {
    let append = |client, record, called, returned| {
        call(client, LOG, Operation::Append(record), called, returned, Answer::Done)
    };
    let read = |records: &[u64], called| {
        call(9, LOG, Operation::ReadLog, called, called + 5, Answer::Records(records.to_vec()))
    };
    assert!(is_linearizable(vec![append(0, 1, 0, 10), append(1, 2, 5, 15), read(&[2, 1], 20)]));
    assert!(
        !is_linearizable(vec![append(0, 1, 0, 10), append(1, 2, 20, 30), read(&[2, 1], 40)]),
        "order of completed appends"
    );
    assert!(
        !is_linearizable(vec![append(0, 1, 0, 10), append(1, 2, 5, 15), read(&[2], 20)]),
        "a record vanished"
    );
    assert!(is_linearizable(vec![
        append(0, 1, 0, 10),
        lost(1, LOG, Operation::Append(2), 5),
        read(&[1], 20),
        read(&[1, 2], 30)
    ]));
}

#[test]
fn locks() {
    let lock = |client, called, answer| call(client, LOCK, Operation::TryLock, called, called + 10, answer);
    let unlock = |client, called| call(client, LOCK, Operation::Unlock, called, called + 10, Answer::Done);
    assert!(is_linearizable(vec![
        lock(0, 0, Answer::Done),
        lock(1, 20, Answer::Busy),
        unlock(0, 40),
        lock(1, 60, Answer::Done)
    ]));
    assert!(!is_linearizable(vec![lock(0, 0, Answer::Done), lock(1, 20, Answer::Done)]), "both hold it");
    assert!(
        !is_linearizable(vec![lock(0, 0, Answer::Done), unlock(0, 20), lock(1, 40, Answer::Busy)]),
        "nobody holds it"
    );
    let holder_dies = lost(0, LOCK, Operation::Unlock, 15);
    assert!(is_linearizable(vec![
        lock(0, 0, Answer::Done),
        holder_dies,
        lock(1, 20, Answer::Busy),
        lock(1, 40, Answer::Done)
    ]));
}

/// A simulated object with one copy: each operation takes effect at one random moment between call and return.
fn one_copy(seed: u64, clients: u16, calls_each: u64) -> Vec<Call> {
    let mut rng = Rng::new(seed);
    let mut planned = Vec::new();
    for client in 0..clients {
        let mut time = rng.below(50);
        for number in 0..calls_each {
            let called = time;
            let effect = called + 1 + rng.below(60);
            let returned = effect + 1 + rng.below(60);
            time = returned + 1 + rng.below(30);
            let operation = if rng.chance(1, 2) {
                Operation::Write(1 + u64::from(client) * calls_each + number)
            } else {
                Operation::Read
            };
            planned.push((effect, client, operation, called, returned));
        }
    }
    planned.sort_by_key(|(effect, ..)| *effect);
    let mut value = 0;
    let perform = |(_, client, operation, called, returned): (u64, u16, Operation, u64, u64)| {
        let answer = match operation {
            Operation::Write(new) => {
                value = new;
                Answer::Done
            }
            _ => Answer::Value(value),
        };
        call(client, BLOCK, operation, called, returned, answer)
    };
    planned.into_iter().map(perform).collect()
}

#[test]
fn every_history_of_one_copy_passes_and_a_value_changed_in_it_mostly_does_not() {
    let mut seen = 0;
    for seed in 0..200 {
        let good = one_copy(seed, 4, 50);
        assert!(is_linearizable(good.clone()), "seed {seed}");
        // The mutation: one read answers what some write put there long ago or will put there only later.
        let mut rng = Rng::new(seed);
        let mut bad = good;
        let reads: Vec<usize> =
            (0..bad.len()).filter(|index| bad[*index].operation == Operation::Read).collect();
        let victim = reads[rng.below(reads.len() as u64) as usize];
        let far = (victim + bad.len() / 2) % bad.len();
        let Some(value) = bad[far..].iter().chain(&bad).find_map(|call| match call.operation {
            Operation::Write(value) => Some(value),
            _ => None,
        }) else {
            continue;
        };
        if let Some((_, answer)) = &mut bad[victim].returned {
            *answer = Answer::Value(value);
        }
        seen += usize::from(!is_linearizable(bad));
    }
    assert!(seen >= 195, "only {seen} of 200 wrong reads were seen");
}

#[test]
fn long_histories_are_checked_in_reasonable_time() {
    assert!(is_linearizable(one_copy(1, 8, 5000)));
}

fn at(client: u16, object: Object, operation: Operation, called: u64, answer: Answer) -> Call {
    call(client, object, operation, called, called + 10, answer)
}

#[test]
fn directories() {
    const PARENT: Object = Object::Directories { parent: 0 };
    let make = |called, answer| at(0, PARENT, Operation::MakeDirectory { name: 1 }, called, answer);
    let remove = |called, answer| at(1, PARENT, Operation::RemoveDirectory { name: 1 }, called, answer);
    let leaf = |called, answer| at(2, PARENT, Operation::CreateLeaf { name: 1, leaf: 0 }, called, answer);
    let list = |called, answer| at(3, PARENT, Operation::ListLeaves { name: 1 }, called, answer);
    use Answer::{Done, Exists, Missing, Names, Occupied};
    assert!(is_linearizable(vec![
        leaf(0, Missing),
        make(20, Done),
        make(40, Exists),
        leaf(60, Done),
        remove(80, Occupied),
        list(100, Names(vec![0])),
        at(0, PARENT, Operation::RemoveLeaf { name: 1, leaf: 0 }, 120, Done),
        remove(140, Done),
        list(160, Missing),
        at(0, PARENT, Operation::List, 180, Names(vec![])),
    ]));
    assert!(!is_linearizable(vec![make(0, Done), make(5, Done)]), "mkdir succeeded twice");
    assert!(!is_linearizable(vec![make(0, Done), leaf(20, Done), remove(40, Done)]), "not empty");
    assert!(
        !is_linearizable(vec![make(0, Done), leaf(20, Done), list(40, Names(vec![]))]),
        "a stale listing"
    );
}

#[test]
fn record_locks() {
    const FILE: Object = Object::Ranges { file: 0 };
    let lock = |owner, (from, to), mode, called, answer| {
        at(owner as u16, FILE, Operation::TryRange { owner, from, to, mode }, called, answer)
    };
    let unlock = |owner, (from, to), called| {
        at(owner as u16, FILE, Operation::UnlockRange { owner, from, to }, called, Answer::Done)
    };
    use Answer::{Busy, Done};
    use RangeMode::{Exclusive, Shared};
    assert!(is_linearizable(vec![
        lock(1, (0, 2), Shared, 0, Done),
        lock(2, (1, 4), Shared, 20, Done),
        lock(1, (0, 1), Exclusive, 40, Done),
        lock(2, (0, 1), Shared, 60, Busy),
        lock(1, (1, 2), Exclusive, 80, Busy),
        unlock(2, (0, 4), 100),
        lock(1, (0, 4), Exclusive, 120, Done),
        unlock(1, (1, 2), 140),
        lock(2, (1, 2), Exclusive, 160, Done),
    ]));
    let overlap = vec![lock(1, (0, 2), Exclusive, 0, Done), lock(2, (1, 3), Shared, 20, Done)];
    assert!(!is_linearizable(overlap), "part 1 is locked");
    let free = vec![lock(1, (0, 2), Exclusive, 0, Done), lock(2, (2, 3), Exclusive, 20, Busy)];
    assert!(!is_linearizable(free), "part 2 is not locked");
    let part = |called| lost(1, FILE, Operation::UnlockRange { owner: 1, from: 0, to: 2 }, called);
    let died = vec![
        lock(1, (0, 2), Exclusive, 0, Done),
        part(5),
        lock(2, (0, 1), Shared, 20, Busy),
        lock(2, (0, 1), Shared, 40, Done),
    ];
    assert!(is_linearizable(died), "the holder's machine was taken for dead");
}

#[test]
fn links_and_whole_files() {
    const LINKS: Object = Object::Links { file: 0 };
    let count = |called, links| at(1, LINKS, Operation::Read, called, Answer::Value(links));
    let twice = vec![at(0, LINKS, Operation::Link, 0, Answer::Done), count(20, 2)];
    assert!(!is_linearizable(twice), "one call took effect twice");
    assert!(is_linearizable(vec![
        at(0, LINKS, Operation::Link, 0, Answer::Done),
        count(20, 1),
        at(0, LINKS, Operation::Unlink, 40, Answer::Done),
        count(60, 0),
    ]));
    const WHOLE: Object = Object::Whole { file: 0 };
    let read = |called, value| at(1, WHOLE, Operation::Read, called, Answer::Value(value));
    let cut = || {
        vec![
            at(0, WHOLE, Operation::Write(7), 0, Answer::Done),
            at(1, WHOLE, Operation::Truncate, 20, Answer::Done),
        ]
    };
    assert!(is_linearizable([cut(), vec![read(40, 0)]].concat()));
    assert!(!is_linearizable([cut(), vec![read(40, 7)]].concat()), "read what was cut off");
}

#[test]
fn renames_that_keep_what_is_there() {
    let create = |name, id, called| at(0, NAMES, Operation::Create { name, id }, called, Answer::Done);
    let lookup = |name, id, called| at(1, NAMES, Operation::Lookup { name }, called, Answer::Found(id));
    let both = || vec![create(1, 100, 0), create(2, 200, 20)];
    let exchange = at(0, NAMES, Operation::Exchange { one: 1, other: 2 }, 40, Answer::Done);
    let swapped = [both(), vec![exchange.clone(), lookup(1, 200, 60), lookup(2, 100, 80)]].concat();
    assert!(is_linearizable(swapped));
    let halfway = [both(), vec![exchange, lookup(1, 200, 60), lookup(2, 200, 80)]].concat();
    assert!(!is_linearizable(halfway), "exchanged by halves");
    let new = |from, to, answer| at(0, NAMES, Operation::RenameNew { from, to }, 40, answer);
    assert!(is_linearizable([both(), vec![new(1, 2, Answer::Exists), lookup(2, 200, 60)]].concat()));
    assert!(is_linearizable([both(), vec![new(1, 3, Answer::Done), lookup(3, 100, 60)]].concat()));
    assert!(!is_linearizable([both(), vec![new(1, 2, Answer::Done)]].concat()), "replaced what was there");
    for answer in [Answer::Exists, Answer::Missing] {
        assert!(is_linearizable([both(), vec![new(3, 2, answer)]].concat()), "both are true");
    }
    assert!(!is_linearizable([both(), vec![new(3, 4, Answer::Exists)]].concat()));
}

/// What Linux finds at both names may have come there by two renames of other machines.
#[test]
fn a_rename_that_found_nothing_to_do_because_of_two_others() {
    let rename = |client, from, to, called, returned| {
        call(client, NAMES, Operation::Rename { from, to }, called, returned, Answer::Done)
    };
    let story = |asked| {
        vec![
            call(0, NAMES, Operation::Create { name: 1, id: 100 }, 0, 10, Answer::Done),
            rename(0, 1, 2, 20, 30),
            rename(1, 2, 3, 40, 50),
            rename(2, 1, 3, asked, 60),
        ]
    };
    assert!(is_linearizable(story(25)));
    assert!(!is_linearizable(story(35)), "name 1 was gone before it was asked for");
}

/// Each of them doubles the orders to try, if those are tried in which it changes nothing.
#[test]
fn many_calls_without_an_answer_are_checked_in_reasonable_time() {
    let mut calls = Vec::new();
    for round in 0..60 {
        let called = 100 * round;
        calls.push(call(1, LOCK, Operation::TryLock, called, called + 10, Answer::Done));
        calls.push(lost(2, LOCK, Operation::Unlock, called + 5));
        calls.push(call(1, LOCK, Operation::Unlock, called + 20, called + 30, Answer::Done));
    }
    for client in [1, 3] {
        calls.push(at(client, LOCK, Operation::TryLock, 10_000 + 20 * u64::from(client), Answer::Done));
    }
    let violations = check(&History { calls, ..History::default() });
    assert!(matches!(violations[0].verdict, Verdict::Impossible { .. }), "{:?}", violations[0].verdict);
}

/// Threads 0 and 2 work on mount 0, which loses something between 100 and 200; threads 1 and 3 on mount 1.
fn is_loss(calls: Vec<Call>) -> bool {
    let losses = vec![Loss { mount: 0, since: 100, until: 200 }];
    check(&History { calls, mounts: 2, losses, ..History::default() }).is_empty()
}

#[test]
fn what_was_acknowledged_and_then_lost_is_an_end_that_nobody_else_has_seen() {
    let written = || vec![write(0, 1, 10, 20), write(2, 2, 30, 40)];
    let and = |more: &[Call]| [written(), more.to_vec()].concat();
    for left in [0, 1, 2] {
        assert!(is_loss(and(&[read(1, left, 150, 160), read(0, left, 210, 220)])), "{left} of two are left");
    }
    assert!(!is_linearizable(and(&[read(1, 0, 150, 160)])), "nobody has said that anything is lost");
    assert!(is_loss(and(&[read(0, 2, 50, 60), read(1, 0, 150, 160)])), "it has seen itself what is lost");
    assert!(!is_loss(and(&[read(1, 2, 50, 60), read(1, 1, 150, 160)])), "another mount had seen it");
    assert!(!is_loss(and(&[read(1, 1, 150, 160), read(3, 2, 170, 180)])), "lost, then back");
    assert!(!is_loss(and(&[read(1, 0, 150, 160), read(0, 2, 210, 220)])), "lost for others only");
    assert!(!is_loss(and(&[read(1, 0, 80, 90)])), "before it was lost");
    assert!(!is_loss(and(&[read(3, 2, 210, 220), read(1, 0, 230, 240)])), "after it was lost");
    let again = [read(1, 1, 150, 160), write(0, 3, 210, 220), read(1, 3, 230, 240)];
    assert!(is_loss(and(&again)), "it goes on");
    assert!(!is_loss(and(&[write(0, 3, 210, 220), read(1, 1, 230, 240)])), "one loss is not two");
    assert!(!is_loss(vec![write(1, 1, 10, 20), read(0, 0, 210, 220)]), "what another mount had written");
}

#[test]
fn of_two_mounts_that_lose_something_each_loses_only_what_it_did_last() {
    let losses = vec![Loss { mount: 0, since: 100, until: 200 }, Loss { mount: 1, since: 100, until: 200 }];
    let is_loss = |calls: Vec<Call>| {
        check(&History { calls, mounts: 2, losses: losses.clone(), ..History::default() }).is_empty()
    };
    let story = |left, seen_by| {
        // The second mount could write only when it had been told of the first write.
        vec![write(0, 1, 10, 20), write(1, 2, 30, 40), read(seen_by, left, 210, 220)]
    };
    for reader in [0, 1] {
        assert!(is_loss(story(2, reader)) && is_loss(story(1, reader)));
        assert!(!is_loss(story(0, reader)), "the other mount had it");
    }
}

#[test]
fn what_is_lost_may_have_been_seen_by_stat_only() {
    let story = |object, seen, left| {
        let on =
            |client, operation, called, answer| call(client, object, operation, called, called + 5, answer);
        is_loss(vec![
            on(0, Operation::Write(1), 10, Answer::Done),
            on(1, Operation::Read, 20, Answer::Value(seen)),
            on(0, Operation::Write(2), 30, Answer::Done),
            on(1, Operation::Read, 150, Answer::Value(left)),
        ])
    };
    let attribute = |which| Object::Attribute { file: 0, which };
    assert!([0, 1, 2].into_iter().all(|left| story(attribute(Attribute::Size), 1, left)));
    assert!(!story(attribute(Attribute::Size), 0, 0), "stat shows what is so");
    for object in [BLOCK, attribute(Attribute::Extended)] {
        assert!(!story(object, 1, 0) && story(object, 1, 1), "{object:?}");
    }
}

#[test]
fn what_was_synced_is_not_lost() {
    let sync = |client, called| call(client, BLOCK, Operation::Sync, called, called + 5, Answer::Done);
    let story = |synced, left| {
        vec![write(0, 1, 10, 20), sync(2, synced), write(0, 2, 50, 60), read(1, left, 150, 160)]
    };
    for left in [1, 2] {
        assert!(is_loss(story(30, left)), "{left}");
    }
    assert!(!is_loss(story(30, 0)));
    assert!(is_loss(story(5, 0)), "fsync was before");
}

/// Only the end of what a mount did can be lost, not something in the middle.
#[test]
fn what_is_lost_has_no_holes() {
    let append = |record, called| call(0, LOG, Operation::Append(record), called, called + 5, Answer::Done);
    let story = |left: &[u64]| {
        let read = call(1, LOG, Operation::ReadLog, 150, 160, Answer::Records(left.to_vec()));
        vec![append(1, 10), append(2, 20), append(3, 30), read]
    };
    assert!([&[][..], &[1], &[1, 2], &[1, 2, 3]].into_iter().all(|left| is_loss(story(left))));
    assert!([&[2][..], &[1, 3], &[2, 3], &[3]].into_iter().all(|left| !is_loss(story(left))));
    let lock = |client, called| call(client, LOCK, Operation::TryLock, called, called + 5, Answer::Done);
    assert!(!is_loss(vec![lock(0, 10), lock(1, 150)]), "locks are never delayed");
}

#[test]
fn many_losses_are_checked_in_reasonable_time() {
    let loss = |number: u16| Loss {
        mount: number % 2,
        since: 500 * u64::from(number),
        until: 500 * u64::from(number) + 700,
    };
    let losses = (0..20).map(loss).collect();
    let history = History { calls: one_copy(3, 8, 400), mounts: 2, losses, ..History::default() };
    assert!(check(&history).is_empty());
}
