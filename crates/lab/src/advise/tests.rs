use super::*;

fn counters(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn advice(list: &[(&str, u64)], clients: usize) -> Vec<String> {
    let report = Observed::of(&counters(list), clients, 100.0)
        .expect("enough")
        .advise(&Waiting::default())
        .expect("right");
    report.advice.into_iter().map(|advice| advice.recommended).collect()
}

#[test]
fn machines_that_do_not_meet_want_long_deep_leases_and_delayed_writes() {
    let found = advice(
        &[
            ("calls.lookup", 1000),
            ("calls.write", 5000),
            ("lease.reported_uses", 9000),
            ("lease.recalls", 10),
            ("lease.read_grants", 1000),
            ("lease.write_grants", 500),
        ],
        4,
    );
    assert!(found[0].starts_with("as long") && found[1].starts_with("write=behind"), "{found:?}");
    assert!(found[2].starts_with("deep"), "{found:?}");
}

#[test]
fn changes_that_come_in_digests_are_changes() {
    // Names are asked for with their attributes, and all that is written is told later: what a default mount does.
    let list = [
        ("calls.lookupstat", 100),
        ("calls.stat", 50),
        ("calls.digest", 10),
        ("digest_records", 5000),
        ("lease.reported_uses", 9000),
        ("lease.recalls", 10),
    ];
    let observed = Observed::of(&counters(&list), 4, 100.0).expect("enough");
    let found = [observed.misses, observed.changes, observed.told, observed.digests];
    assert_eq!(found, [1.5, 50.0, 50.0, 0.1]);
    let mode = &observed.advise(&Waiting::default()).expect("right").advice[1];
    assert!(mode.recommended.starts_with("write=behind"), "{mode:?}");
    assert!(mode.because.contains("(100 % of them come in digests now)"), "{mode:?}");
    let consistency = Consistency::of(&counters(&list), 4).expect("reads");
    // N = 4 that share: with W = 0 the model had nothing to recall.
    assert_eq!((consistency.measured, consistency.asking), (320.0, 18_300.0));
    assert!(consistency.shared > 4.0 * 5000.0, "{consistency:?}");
}

#[test]
fn what_advice_saves_is_what_the_model_has_for_the_other_choice() {
    // One client, 50 changes a second: told each, or in digests, a second after the first of them.
    let list = [("calls.write", 5000), ("calls.read", 100), ("lease.read_grants", 300)];
    let report =
        Observed::of(&counters(&list), 1, 100.0).expect("enough").advise(&Waiting::default()).expect("right");
    let [term, mode, granularity] = &report.advice[..] else { panic!("{:?}", report.advice) };
    assert_eq!(term.saved_messages_per_s, 0.0, "all reads came to the server");
    let delayed = 2.0 / (1.0 + 1.0 / 50.0);
    assert!((mode.saved_messages_per_s - (100.0 - delayed)).abs() < 1e-9, "{mode:?}");
    // 300 leases of one object each, or the first 16 and one for the rest.
    assert!(
        (granularity.saved_messages_per_s - 2.0 * (300.0 - 17.0) / 100.0).abs() < 1e-9,
        "{granularity:?}"
    );
    let deep = [list[0], list[1], list[2], ("lease.deep_grants", 1)];
    let report =
        Observed::of(&counters(&deep), 1, 100.0).expect("enough").advise(&Waiting::default()).expect("right");
    assert_eq!(report.advice[2].recommended, "deep leases, as there are");
}

/// Four machines that read what one of them changes now and then, with so many leases and dead clients.
fn shared(dead: u64, held: u64, waiting: &Waiting) -> Report {
    let list = [
        ("calls.lookupstat", 3000),
        ("lease.reported_uses", 97_000),
        ("calls.write", 300),
        ("lease.recalls", 900),
        ("lease.fences", dead),
        ("leases", held),
    ];
    Observed::of(&counters(&list), 4, 1000.0).expect("enough").advise(waiting).expect("right")
}

#[test]
fn how_long_a_lease_lasts_is_a_matter_of_who_dies_and_what_waiting_is_worth() {
    let found = |dead, waiting: &Waiting| shared(dead, 0, waiting).advice.swap_remove(0);
    let usual = Waiting::default();
    let calm = found(0, &usual);
    assert!(calm.recommended.starts_with("as long as the session"), "{calm:?}");
    assert!(calm.because.contains("none of 900 recalls met a client that was dead"), "{calm:?}");
    let dying = found(9, &usual);
    assert!(dying.recommended.contains("s (--object-term "), "{dying:?}");
    assert!(dying.because.contains("9 of 900 recalls met a client that was dead (1.00 %)"), "{dying:?}");
    assert!(dying.because.contains("worth 1000 messages (--waiting-price)"), "{dying:?}");
    // As little as nothing, or more than all that leases save.
    let free = found(9, &Waiting { price: 0.0, ..usual });
    assert!(free.recommended.starts_with("as long as the session"), "{free:?}");
    let dear = found(9, &Waiting { price: 1e7, ..usual });
    assert!(dear.recommended.starts_with("none (--object-term 0)"), "{dear:?}");
    // Who knows better than the counters says so.
    let supposed = found(0, &Waiting { dead: Some(0.01), ..usual });
    assert_eq!(supposed.recommended, dying.recommended);
    assert!(supposed.because.contains("1.00 % of the holders that are asked are dead (--dead)"));
}

#[test]
fn what_is_recommended_is_what_the_model_has_for_leases_that_are_alike() {
    let report = shared(9, 40, &Waiting::default());
    // Ten leases of each client; R = 100 / 4 / 10, W = 0.9 / 3 / 4 / 10, f = 1 %.
    let sharing = Sharing::new(4.0, 2.5, 0.0075).expect("right");
    let best = sharing.optimal_term(Network::Unicast, 1000.0, 0.01).expect("right").secs();
    let Some((term, _)) = report.advice[0].recommended.split_once("s (") else { panic!("{report:?}") };
    let term: f64 = term.parse().expect("seconds");
    assert!((term / best - 1.0).abs() < 0.05, "{report:?}, {best}");
    let waits = sharing.write_delay(Term::new(term).expect("a term"), 0.01).expect("right");
    assert!((report.waits.recommended_s - waits).abs() < 1e-12, "{report:?}");
    assert!(report.waits.recommended_s < report.waits.session_s);
    // One lease alone is used more often, so a shorter one saves as much.
    let alone = shared(9, 4, &Waiting::default()).advice.swap_remove(0).recommended;
    let (alone, _) = alone.split_once("s (").expect("seconds");
    assert!(alone.parse::<f64>().expect("a number") < term, "{alone}, {term}");
}

#[test]
fn a_file_that_all_write_wants_none_of_them() {
    let found = advice(
        &[
            ("calls.read", 1000),
            ("calls.write", 1000),
            ("lease.recalls", 3000),
            ("lease.read_grants", 1000),
            ("lease.write_grants", 1000),
        ],
        4,
    );
    assert!(found[0].starts_with("none"), "{found:?}");
    assert_eq!(found[1..], ["write=through", "node leases"]);
}

#[test]
fn what_is_predicted_is_what_the_formula_has_for_the_same_counts() {
    let of = |list: &[(&str, u64)], clients| Consistency::of(&counters(list), clients);
    assert_eq!(of(&[("calls.write", 10)], 3), None);
    assert_eq!(of(&[("calls.read", 10)], 0), None);
    let found = of(
        &[("calls.read", 100), ("lease.reported_uses", 900), ("calls.write", 100), ("lease.recalls", 50)],
        2,
    )
    .expect("reads");
    // R = 500, W = 50, p = 500 / 600; 4 * 500 / 6 and 2 * (2 * 5 / 6) * 50.
    assert_eq!((found.measured, found.asking), (300.0, 2000.0));
    assert!((found.shared - 500.0).abs() < 1e-9, "{}", found.shared);
}

#[test]
fn what_terms_cost_besides_reads_is_counted_as_the_lab_counts_it_of_a_mount() {
    let of_server = counters(&[
        ("calls.read", 100),
        ("calls.opened", 900),
        ("calls.lockset", 20),
        ("calls.write", 5000),
        ("calls.sync", 7),
        ("lease.recalls", 50),
        ("lease.releases", 30),
    ]);
    let of_mount = counters(&[
        ("msg_read", 100),
        ("msg_opened", 900),
        ("msg_lockset", 20),
        ("msg_write", 5000),
        ("msg_sync", 7),
        ("recalls", 50),
        ("msg_release", 30),
    ]);
    let lab = crate::cell::Messages::between(&BTreeMap::new(), &of_mount).for_consistency();
    let measured = Consistency::of(&of_server, 2).expect("reads").measured;
    assert_eq!((measured, lab), (2170.0, 2170));
    let observed = Observed::of(&of_server, 2, 10.0).expect("enough");
    assert_eq!((observed.kept, observed.consistency), (92.0, 217.0));
}

#[test]
fn too_little_is_said_to_be_too_little() {
    let error = Observed::of(&counters(&[("calls.read", 5)]), 1, 100.0).expect_err("too little");
    assert!(error.to_string().contains("5 operations"), "{error}");
    assert!(Observed::of(&counters(&[("calls.read", 500)]), 0, 100.0).is_err());
}
