//! The simulation against the model: it drives the production core, the model knows nothing of it.

use super::compare::systems;
use super::leases::{Policy, Setting, Use};
use super::*;
use crate::trace::Trace;
use crate::workload::{Arrivals, Event, Popularity};
use soda_model::load::{Network, Sharing, Subtree, Term};

fn poisson(clients: u32, reads: f64, writes: f64, duration: f64) -> Workload {
    Workload::of_one_file(clients, (reads, writes), duration)
}

fn run(system: System, workload: &Workload, round_trip: f64, seed: u64) -> Outcome {
    super::run(system, workload, round_trip, seed).expect("sessions fit")
}

fn sharing(workload: &Workload) -> Sharing {
    Sharing::new(f64::from(workload.clients), workload.reads, workload.writes).expect("right")
}

/// 99 % intervals hold 99 times in 100; the seeds are fixed, so a comparison that holds once holds for ever.
fn agrees((mean, margin): (f64, f64), expected: f64, what: &str) {
    assert!(margin < 0.1 * mean.max(0.01), "{what}: {mean} +- {margin} says too little");
    assert!((mean - expected).abs() <= margin, "{what}: {mean} +- {margin} simulated, {expected} expected");
}

/// Many runs of the lease core: means, half widths of their intervals, and what the formula has.
fn many_runs() -> Vec<(f64, f64, f64)> {
    let mut all = Vec::new();
    for n in [2, 3, 5] {
        for (r, w) in [(1.0, 0.2), (1.0, 0.5), (2.0, 1.0), (0.5, 0.4)] {
            for t in [0.7, 2.0, 6.0, f64::INFINITY] {
                let workload = poisson(n, r, w, 40_000.0 / (f64::from(n) * (r + w)));
                let seed = 1000 + all.len() as u64;
                let network = if seed.is_multiple_of(2) { Network::Unicast } else { Network::Multicast };
                let outcome = run(System::Leases(Setting::paper(t, network)), &workload, 0.0, seed);
                assert_eq!(outcome.stale_reads, 0);
                let expected = sharing(&workload).exact_lease_cost(Term::new(t).expect("right"), network);
                let (mean, margin) = outcome.consistency_rate();
                all.push((mean, margin, expected));
            }
        }
    }
    all
}

/// Whether deviations are those of chance: of Student's t with 19 degrees of freedom, whose variance is 19/17 and that of its
/// square 3.0. Each question is answered wrongly once in some 400 times.
fn are_of_chance(all: &[f64]) -> Result<(), String> {
    let count = all.len() as f64;
    let outside = all.iter().filter(|deviation| deviation.abs() > STUDENT).count();
    let mean = all.iter().sum::<f64>() / (count * 19.0 / 17.0).sqrt();
    let squares = all.iter().map(|deviation| deviation * deviation).sum::<f64>();
    let squares = (squares - count * 19.0 / 17.0) / (count * 3.0).sqrt();
    let said = format!("{outside} of {count} outside of the interval; mean {mean}, squares {squares} sigma");
    if outside <= 3 && mean.abs() < 3.0 && squares.abs() < 3.0 { Ok(()) } else { Err(said) }
}

#[test]
fn leases_of_the_paper_cost_what_the_exact_formula_says_and_not_half_a_per_cent_more_or_less() {
    let runs = many_runs();
    assert_eq!(runs.len(), 48);
    // In standard errors.
    let deviations = |factor: f64| -> Vec<f64> {
        let of = |(mean, margin, expected): &(f64, f64, f64)| (mean - factor * expected) / (margin / STUDENT);
        runs.iter().map(of).collect()
    };
    assert_eq!(are_of_chance(&deviations(1.0)), Ok(()));
    for factor in [0.995, 1.005] {
        let biased = are_of_chance(&deviations(factor));
        assert!(biased.is_err(), "a formula that is {factor} times what it should be passes");
    }
}

#[test]
fn the_poisson_approximation_is_told_apart_from_what_is_simulated() {
    // NWt = 1.8, where it is worst.
    let workload = poisson(3, 4.0, 0.6, 20_000.0);
    let (mean, margin) =
        run(System::Leases(Setting::paper(1.0, Network::Unicast)), &workload, 0.0, 11).consistency_rate();
    let approximate = sharing(&workload).lease_cost(Term::new(1.0).expect("right"), Network::Unicast);
    assert!((mean - approximate).abs() > 2.0 * margin, "{mean} +- {margin}, {approximate}");
}

#[test]
fn asking_each_time_costs_two_messages_for_a_read() {
    let workload = poisson(4, 2.0, 0.3, 2000.0);
    for system in [System::Leases(Setting::paper(0.0, Network::Unicast)), System::CheckEachRead] {
        let outcome = run(system, &workload, 0.001, 5);
        assert_eq!(outcome.batches.iter().sum::<u64>(), 2 * outcome.reads, "{system:?}");
        assert_eq!(outcome.stale_reads, 0, "{system:?}");
        assert!((outcome.mean_read_delay() - 0.001).abs() < 1e-9);
    }
}

#[test]
fn delayed_writes_cost_what_the_markov_chain_says() {
    for (seed, (n, r, w, age)) in
        [(2, 0.2, 1.0, 1.0), (5, 1.0, 0.3, 2.0), (1, 1.0, 0.5, 3.0)].into_iter().enumerate()
    {
        let workload = poisson(n, r, w, 20_000.0);
        let setting = Setting { policy: Policy::AlwaysGrant, ..Setting::soda(Use::Behind { age }) };
        let outcome = run(System::Leases(setting), &workload, 0.0, seed as u64);
        let expected = sharing(&workload).delayed_write_cost(age).expect("right");
        agrees(outcome.server_load(), expected, &format!("N {n} R {r} W {w} age {age}"));
        assert_eq!(outcome.stale_reads, 0);
    }
}

#[test]
fn clients_that_have_nothing_to_send_renew_their_sessions_as_often_as_the_formula_says() {
    for (seed, (n, files, r, w, session)) in
        [(4, 1, 0.5, 0.05, 3.0), (3, 4, 0.1, 0.02, 10.0), (5, 2, 0.2, 0.2, 6.0)].into_iter().enumerate()
    {
        // Rates of a model are those of each file, of a workload those of all.
        let workload = Workload { files, ..poisson(n, r * f64::from(files), w * f64::from(files), 40_000.0) };
        let setting = Setting { session, ..Setting::paper(f64::INFINITY, Network::Unicast) };
        let outcome = run(System::Leases(setting), &workload, 0.0, 30 + seed as u64);
        let model = Sharing::new(f64::from(n), r, w).expect("right");
        let term = Term::new(session).expect("right");
        let expected = model.session_lease_cost(f64::from(files), term, Network::Unicast).expect("right");
        assert!(outcome.messages[&Kind::Heartbeat] > 1000, "{:?}", outcome.messages);
        agrees(outcome.consistency_rate(), expected, &format!("N {n} k {files} R {r} W {w} T {session}"));
    }
}

#[test]
fn writes_wait_for_dead_readers_as_long_as_the_formula_says() {
    // Two clients: there the formula is exact. A write that waits holds the file up, so few wait.
    let workload = poisson(2, 1.0, 0.01, 400_000.0);
    let setting = Setting { dead: 0.2, ..Setting::paper(4.0, Network::Unicast) };
    let outcome = run(System::Leases(setting), &workload, 0.0, 3);
    let expected = sharing(&workload).write_delay(Term::new(4.0).expect("right"), 0.2).expect("right");
    let found = outcome.mean_write_delay();
    assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
    assert_eq!(outcome.stale_reads, 0);
}

#[test]
fn the_same_seed_counts_the_same() {
    let workload = Workload {
        files: 20,
        popularity: Popularity::Zipf { exponent: 1.0 },
        arrivals: Arrivals::Sessions { operations: 10.0, gap: 0.05 },
        ..poisson(5, 2.0, 0.2, 500.0)
    };
    for (name, system) in systems() {
        let one = run(system, &workload, 0.001, 9);
        assert_eq!(one, run(system, &workload, 0.001, 9), "{name}");
        assert_ne!(one, run(system, &workload, 0.001, 10), "{name}");
    }
}

#[test]
fn who_promises_one_copy_is_never_stale_and_the_others_are() {
    let workload = Workload {
        files: 3,
        arrivals: Arrivals::Sessions { operations: 20.0, gap: 0.2 },
        ..poisson(4, 4.0, 0.5, 4000.0)
    };
    for arrivals in [workload.arrivals, Arrivals::Held, Arrivals::Bursty { work: 2.0, rest: 4.0 }] {
        let workload = Workload { arrivals, ..workload };
        for (name, system) in systems() {
            let outcome = run(system, &workload, 0.001, 21);
            let mut stale = matches!(system, System::AfsV1 | System::AfsV2 | System::Nfs { .. });
            // Who asks at each open, or is told, is right at each read that is a session of its own.
            stale &= !matches!(arrivals, Arrivals::Bursty { .. });
            assert_eq!(outcome.stale_reads > 0, stale, "{name}, {arrivals:?}: {}", outcome.stale_reads);
            assert!(outcome.reads > 1000 && outcome.writes > 100, "{name}, {arrivals:?}");
        }
    }
}

#[test]
fn sprite_pays_for_opens_and_loses_its_cache_while_a_file_is_shared() {
    // One client: opens and closes cost, reads do not, writes are delayed.
    let alone = Workload {
        arrivals: Arrivals::Sessions { operations: 50.0, gap: 0.01 },
        ..poisson(1, 4.0, 1.0, 1000.0)
    };
    let outcome = run(System::Sprite, &alone, 0.001, 2);
    assert!(outcome.hit_ratio() > 0.99, "{}", outcome.hit_ratio());
    assert_eq!(outcome.messages.get(&Kind::Write), None);
    // Many with the file open for long: nothing is cached.
    let shared = Workload {
        arrivals: Arrivals::Sessions { operations: 200.0, gap: 0.19 },
        ..poisson(6, 4.0, 1.0, 1000.0)
    };
    let outcome = run(System::Sprite, &shared, 0.001, 2);
    assert!(outcome.hit_ratio() < 0.1, "{}", outcome.hit_ratio());
}

#[test]
fn afs_calls_back_instead_of_asking() {
    let workload = Workload { files: 10, ..poisson(5, 2.0, 0.01, 1000.0) };
    let (one, two) = (run(System::AfsV1, &workload, 0.001, 4), run(System::AfsV2, &workload, 0.001, 4));
    assert!(one.server_load().0 > 10.0 * two.server_load().0, "{:?} {:?}", one.messages, two.messages);
    let asked = one.messages[&Kind::Validate] as f64 / one.messages.values().sum::<u64>() as f64;
    // Table II of the AFS paper has 61.7 % TestAuth; a workload that only opens, reads and closes has more.
    assert!(asked > 0.6, "{asked}");
}

/// One machine builds in a tree of its own: 40 files made, written, read over and over; another looks at one of them at the end.
fn own_tree() -> Trace {
    let mut text = String::new();
    for number in 0..40 {
        text += &format!("{number},0,make,tree/f{number}\n{number},0,write,tree/f{number}\n");
    }
    for number in 0..40 {
        text += &format!("{},0,read,tree/f{number}\n", 40 + number);
    }
    text += "90,1,read,tree/f7\n91,1,read,tree/f7\n";
    Trace::parse(&text).expect("a trace")
}

#[test]
fn a_tree_of_ones_own_is_read_without_the_server_under_any_lease_and_told_in_digests() {
    let replayed = |usage, deep: bool| {
        let setting = Setting::soda(usage);
        let setting = if deep { setting.deep(f64::INFINITY) } else { setting };
        replay(System::Leases(setting), &own_tree().replay(), 0.01)
    };
    for deep in [false, true] {
        let (through, behind) = (replayed(Use::Through, deep), replayed(Use::Behind { age: 10.0 }, deep));
        for outcome in [&through, &behind] {
            assert_eq!((outcome.stale_reads, outcome.reads), (0, 42), "deep {deep}");
            // The 40 own reads, and the other machine's second one.
            assert_eq!(outcome.hits, 41, "deep {deep}: {:?}", outcome.messages);
        }
        assert_eq!(through.messages[&Kind::Write], 2 * 80, "deep {deep}");
        let told = behind.messages[&Kind::Flush];
        assert!(told <= 2 * 5, "deep {deep}: {told} messages for 80 changes in 40 s");
    }
}

#[test]
fn a_deep_lease_that_goes_back_too_early_costs_what_it_had_saved() {
    let replayed = |idle| {
        let setting = Setting::soda(Use::Through).deep(idle);
        replay(System::Leases(setting), &own_tree().replay(), 0.0)
    };
    let (early, late, never) = (replayed(0.2), replayed(5.0), replayed(f64::INFINITY));
    let total = |outcome: &Outcome| outcome.messages.values().sum::<u64>();
    let released = |outcome: &Outcome| outcome.messages.get(&Kind::Release).copied().unwrap_or(0);
    assert!(released(&early) > 0 && released(&never) == 0, "{:?}", early.messages);
    assert!(total(&early) > total(&never), "{:?} {:?}", early.messages, never.messages);
    // It is used each second, and back when the other machine comes, which asks nobody for it then.
    assert_eq!((late.messages[&Kind::Grant], released(&late)), (never.messages[&Kind::Grant], 1));
    assert_eq!((late.messages.get(&Kind::Recall), never.messages[&Kind::Recall]), (None, 2));
    assert_eq!(early.stale_reads, 0);
}

#[test]
fn who_changes_a_name_where_nobody_else_is_has_all_below_for_itself() {
    // Another machine's tree: one name is made in it; the directory is looked at all the time, a file in it now and then.
    let mut text = "0,1,read,tree/f\n1,0,make,tree/new\n".to_owned();
    for tenth in 11..70 {
        let at = f64::from(tenth) / 10.0;
        text += &format!("{at},0,stat,tree\n");
        text += &if tenth % 10 == 5 { format!("{at},0,read,tree/f\n") } else { String::new() };
    }
    for usage in [Use::Through, Use::Behind { age: 1.0 }] {
        let setting = Setting::soda(usage).deep(0.3);
        let outcome = replay(System::Leases(setting), &Trace::parse(&text).expect("a trace").replay(), 0.0);
        // One for each machine, and no more when a lease of the file's own would have gone back.
        assert_eq!(outcome.messages[&Kind::Grant], 2 * 2, "{:?}", outcome.messages);
    }
}

#[test]
fn what_is_made_and_removed_again_and_again_is_another_file_each_time() {
    // The directory is in use all the time, the file half of it.
    let mut text = "0,0,make,dir/first\n".to_owned();
    for tenth in 1..100 {
        let (at, round) = (f64::from(tenth) / 10.0, tenth % 10);
        text += &format!("{at},0,stat,dir\n");
        text += &match round {
            1 => format!("{at},0,make,dir/f\n{at},0,write,dir/f\n"),
            6 => format!("{at},0,remove,dir/f\n"),
            _ => String::new(),
        };
    }
    // Leases on single files, which go back when they are not used, but for those on what is not durable.
    let setting = Setting { idle: 0.2, ..Setting::soda(Use::Behind { age: 0.1 }) };
    let outcome = replay(System::Leases(setting), &Trace::parse(&text).expect("a trace").replay(), 0.0);
    // Of the directory's first change.
    assert_eq!(outcome.messages[&Kind::Write], 2, "{:?}", outcome.messages);
}

#[test]
fn leases_on_single_files_go_back_as_well_when_they_are_not_used() {
    let trace = "0,0,read,a\n1,0,read,b\n2,0,read,a\n9,0,read,b\n20,1,write,a\n21,1,write,b";
    let replay = |idle| {
        let setting = Setting { idle, ..Setting::soda(Use::Through) };
        replay(System::Leases(setting), &Trace::parse(trace).expect("a trace").replay(), 0.0)
    };
    // Looked for each second: `a` goes back at 6 s, `b` at 5 s, is asked for again at 9 s, and goes back at 13 s.
    let (given, kept) = (replay(4.0), replay(f64::INFINITY));
    let kinds = [(Kind::Grant, 6), (Kind::Write, 4), (Kind::Release, 3)];
    assert_eq!(given.messages.into_iter().collect::<Vec<_>>(), kinds);
    let kinds = [(Kind::Grant, 4), (Kind::Recall, 4), (Kind::Write, 4)];
    assert_eq!(kept.messages.into_iter().collect::<Vec<_>>(), kinds);
}

#[test]
fn who_has_told_changes_keeps_their_leases_until_they_are_durable() {
    // Through and with a lease; here twice, told each time; here again, or through because the lease has gone back.
    let trace = "0,0,write,a\n0.1,0,write,a\n0.3,0,write,a\n1.5,0,write,a";
    let replay = |syncing: bool| {
        let setting = Setting { idle: 0.4, ..Setting::soda(Use::Behind { age: 0.1 }) };
        let setting = if syncing { setting.syncing() } else { setting };
        let outcome = replay(System::Leases(setting), &Trace::parse(trace).expect("a trace").replay(), 0.0);
        outcome.messages.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(replay(false), [(Kind::Write, 4), (Kind::Flush, 4), (Kind::Release, 1)]);
    // Three digests, and two syncs two seconds apart, the later one after all.
    assert_eq!(replay(true), [(Kind::Write, 2), (Kind::Flush, 10)]);
}

/// As the workload, but only the first so many clients write.
fn writes_of(writers: usize, workload: &Workload, seed: u64) -> Vec<Event> {
    let all = workload.events(seed).expect("right");
    all.into_iter().filter(|event| !event.call.is_change() || event.client < writers).collect()
}

#[test]
fn a_subset_of_writers_costs_what_the_formula_says() {
    for (seed, (n, writers, r, w, t)) in
        [(5, 1, 1.0, 0.5, 2.0), (4, 2, 1.0, 0.3, f64::INFINITY), (6, 3, 0.5, 0.4, 5.0)]
            .into_iter()
            .enumerate()
    {
        let workload = poisson(n, r, w, 20_000.0);
        let events = writes_of(writers, &workload, 50 + seed as u64);
        for network in [Network::Unicast, Network::Multicast] {
            let system = protocol(System::Leases(Setting::paper(t, network)), &workload, &Tree::flat(1));
            let outcome = carry_out(system, &workload, &events, 0.0);
            let term = Term::new(t).expect("right");
            let expected = sharing(&workload).subset_cost(writers as f64, term, network).expect("right");
            agrees(
                outcome.consistency_rate(),
                expected,
                &format!("{writers} of {n}, R {r} W {w} t {t} {network:?}"),
            );
        }
    }
}

#[test]
fn leases_on_many_files_that_another_changes_cost_what_the_formula_says() {
    for (seed, (k, u, c, t)) in
        [(30, 1.0, 0.05, f64::INFINITY), (30, 1.0, 0.05, 10.0), (10, 0.5, 0.1, 4.0)].into_iter().enumerate()
    {
        let each = f64::from(k);
        let workload = Workload { files: k, ..poisson(2, u * each, c * each, 3000.0) };
        // One at work, and another who comes across it.
        let all = workload.events(70 + seed as u64).expect("right").into_iter();
        let events: Vec<Event> = all.filter(|event| (event.client == 1) == event.call.is_change()).collect();
        let system = System::Leases(Setting::paper(t, Network::Unicast));
        let outcome =
            carry_out(protocol(system, &workload, &Tree::flat(k as usize)), &workload, &events, 0.0);
        let expected = Subtree::new(each, u, c).expect("right").node_cost(Term::new(t).expect("right"));
        agrees(outcome.consistency_rate(), expected, &format!("k {k} u {u} c {c} t {t}"));
    }
}

#[test]
fn a_deep_lease_with_holes_costs_what_the_formula_says() {
    for (seed, (k, u, c)) in [(100, 1.0, 0.05), (60, 0.5, 0.2)].into_iter().enumerate() {
        let each = f64::from(k);
        let workload = Workload { files: k, ..poisson(2, u * each, c * each, 3000.0) };
        // One at work, and another who comes across it. What comes before the deep lease is next to nothing of all this.
        let all = workload.events(90 + seed as u64).expect("right").into_iter();
        let events: Vec<Event> = all.filter(|event| (event.client == 1) == event.call.is_change()).collect();
        let system = System::Leases(Setting::paper(f64::INFINITY, Network::Unicast).deep(f64::INFINITY));
        let outcome =
            carry_out(protocol(system, &workload, &Tree::flat(k as usize)), &workload, &events, 0.0);
        let subtree = Subtree::new(each, u, c).expect("right");
        let expected = subtree.deep_with_holes_cost(Term::INFINITE);
        agrees(outcome.consistency_rate(), expected, &format!("k {k} u {u} c {c}"));
        assert_eq!(outcome.stale_reads, 0);
    }
}

#[test]
fn deep_leases_are_never_stale_where_many_write() {
    let workload = Workload {
        files: 30,
        arrivals: Arrivals::Bursty { work: 3.0, rest: 6.0 },
        ..poisson(4, 4.0, 0.5, 2000.0)
    };
    for usage in [Use::Through, Use::Behind { age: 1.0 }] {
        for idle in [0.5, f64::INFINITY] {
            let outcome = run(System::Leases(Setting::soda(usage).deep(idle)), &workload, 0.0, 5);
            assert_eq!(outcome.stale_reads, 0, "{usage:?} {idle}");
            assert!(outcome.reads > 10_000 && outcome.writes > 1000);
        }
    }
}
