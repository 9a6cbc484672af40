//! Contention inside a deep lease, and its end: holes heal, and what is handed to and fro is handed over less and less often.

use super::*;
use crate::common::tools::Tools;
use std::time::Instant;

/// All that was said by either side, answers not counted.
fn said(clients: &[&Arc<Client>]) -> u64 {
    let one = |client: &&Arc<Client>| {
        let stats = client.stats();
        stats.requests() + stats.count("recalls") - stats.count("msg_renew") - stats.count("msg_recallack")
    };
    clients.iter().map(one).sum()
}

/// For reading: who has gone leaves no trace, and nothing is asked for a second time.
#[tokio::test(flavor = "multi_thread")]
async fn a_hole_in_what_is_read_heals_when_its_cause_has_gone() {
    let cell = Cell::deep();
    let mut tools = Tools::of(&cell).await;
    let (maker, home) = writer(&cell, "home").await;
    let mut files = Vec::new();
    for number in 0..40 {
        files.push(make(&maker, home, &format!("f{number}"), "x").await);
    }
    maker.shutdown().await;
    let a = cell.client().await;
    assert_eq!(list(&a, home).await, 40);
    for file in &files {
        a.getattr(*file).await.unwrap();
    }
    assert_eq!(deep_leases(&a), [(home, Mode::Read)]);
    let leases = a.leases().len();
    let b = cell.client().await;
    for file in &files[..5] {
        overwrite(&b, *file, "changed").await;
    }
    let before = messages(&a);
    for file in &files {
        let size = a.getattr(*file).await.unwrap().value.size;
        assert_eq!(size, if files[..5].contains(file) { 7 } else { 1 });
    }
    assert_eq!(messages(&a), before + 5, "what was not changed stays known");
    b.shutdown().await;
    // Who asks for them again is told that the deep lease covers them, too.
    let healed = tools.count("lease.holes_healed").await;
    let c = cell.client().await;
    for file in &files[..5] {
        overwrite(&c, *file, "again").await;
    }
    c.shutdown().await;
    for file in &files[..5] {
        a.getattr(*file).await.unwrap();
    }
    assert!(tools.count("lease.holes_healed").await >= healed + 5, "{:?}", a.leases());
    assert!(a.leases().len() <= leases + 5, "{:?}", a.leases());
    let before = said(&[&a]);
    for file in &files {
        a.getattr(*file).await.unwrap();
        assert!(contents(&a, *file).await.len() == a.getattr(*file).await.unwrap().value.size as usize);
    }
    let read = said(&[&a]) - before;
    let before = said(&[&a]);
    for file in &files {
        contents(&a, *file).await;
    }
    assert_eq!((said(&[&a]) - before, read <= 40), (0, true), "{:?}", a.stats());
}

/// For writing: once back-off is over, all is done here again, under the one lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_hole_in_what_is_written_heals_and_writes_are_delayed_again() {
    let cell = Cell::deep();
    let mut tools = Tools::of(&cell).await;
    let (a, home) = writer(&cell, "home").await;
    let mut files = Vec::new();
    for number in 0..10 {
        files.push(make(&a, home, &format!("f{number}"), "mine").await);
    }
    a.sync_all().await.unwrap();
    let b = cell.client().await;
    // Contention.
    for round in 0..4 {
        overwrite(&b, files[3], &format!("b{round}")).await;
        overwrite(&a, files[3], &format!("a{round}")).await;
        assert!(contents(&b, files[3]).await.starts_with(&format!("a{round}")));
    }
    // Its end.
    b.shutdown().await;
    wait_until("delayed again", || async {
        let here = a.stats().count("here");
        overwrite(&a, files[3], "again").await;
        a.stats().count("here") > here
    })
    .await;
    let (before, here) = (said(&[&a]), a.stats().count("here"));
    for round in 0..20 {
        for file in &files {
            overwrite(&a, *file, &format!("round {round}")).await;
        }
    }
    assert_eq!(a.stats().count("here"), here + 200, "{:?}", a.stats());
    assert!(said(&[&a]) <= before + 2, "{:?}", a.stats());
    // Not by leases of their own.
    let healed = tools.count("lease.holes_healed").await;
    assert!(healed > 0 || a.leases().len() <= 4, "{healed} healed: {:?}", a.leases());
    a.sync_all().await.unwrap();
    assert_eq!(contents(&cell.client().await, files[3]).await, "round 19");
    assert_eq!(a.stats().count("lost_records"), 0);
}

/// A turn that takes the directory from the other one costs a recall and its answer; one that goes through costs a request.
#[tokio::test(flavor = "multi_thread")]
async fn two_that_change_one_directory_by_turns_hand_it_over_less_and_less_often() {
    const TURNS: usize = 300;
    for deep in [false, true] {
        let cell = if deep { Cell::deep() } else { Cell::start() };
        let (a, shared) = writer(&cell, "shared").await;
        let b = Client::connect(patient(&cell), Box::new(NoKernel)).await.unwrap();
        let both = [&a, &b];
        let recalls = || both.iter().map(|client| client.stats().count("recalls")).sum::<u64>();
        let mut halves = Vec::new();
        let began = Instant::now();
        for half in 0..2 {
            let before = (recalls(), said(&both));
            for turn in 0..TURNS {
                for (who, client) in both.into_iter().enumerate() {
                    make_nothing(client, shared, &format!("{half} {turn} {who}")).await;
                }
            }
            halves.push((recalls() - before.0, said(&both) - before.1));
        }
        let took = began.elapsed();
        eprintln!("deep: {deep}: recalls and messages in each half {halves:?}, {took:?}");
        // Twice as long after each: ten steps to the longest, which is a term; then once in each term, from each of them.
        let most = 2 * (10 + took.as_secs() / cell.term.as_secs());
        let [first, second] = halves[..] else { panic!("{halves:?}") };
        assert!(first.0 + second.0 <= most, "{halves:?} in {took:?}");
        // A creation each time, and little beside: what a hand-over costs (a recall, its answer, a digest).
        assert!(first.1 + second.1 <= (TURNS * 4) as u64 + 6 * most, "{halves:?} in {took:?}");
        assert_eq!(a.stats().count("lost_records") + b.stats().count("lost_records"), 0);
        let all: Vec<usize> = vec![list(&a, shared).await, list(&b, shared).await];
        assert_eq!(all, [TURNS * 4; 2]);
    }
}

async fn make_nothing(client: &Arc<Client>, dir: Fid, text: &str) {
    client.create(dir, &name(text), new_node(FileKind::File)).await.unwrap();
}
